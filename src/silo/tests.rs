//! Real silos in one process: real threads, sockets, rings and stores.

use siloring_storage::migrate;

use super::*;

fn sqlite(folder: &tempfile::TempDir) -> String {
    let url = format!("sqlite:{}", folder.path().join("silo.db").display());
    migrate(&url).unwrap();
    url
}

fn builder(cluster: &str, name: &str, store: &str) -> SiloBuilder {
    Silo::builder().cluster(cluster).name(name).store(store).shards(2).idle(Idle::Park)
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let since = clock::now();
    while !holds() {
        assert!(clock::now().since(since) < Duration::from_secs(20), "{what} did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn a_silo_on_memory_starts_and_drains() {
    let silo = builder("alone", "pod-a", "memory:").start().unwrap();
    assert_eq!(silo.incarnation().name.as_str(), "pod-a");
    assert_eq!(silo.handle().shards(), 2);
    let second = builder("alone", "pod-b", "memory:").start().unwrap_err();
    assert!(matches!(second, StartError::SecondOnMemory { .. }), "{second}");
    assert!(silo.metrics_text().contains("siloring_shard_turns_total{shard=\"1\"}"));
    silo.drain().unwrap();
}

#[test]
fn two_silos_link_over_both_kinds_of_sockets_and_one_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    for (cluster, mode) in [("pair-unix", LinkMode::Unix), ("pair-tcp", LinkMode::Tcp)] {
        let first = builder(cluster, "pod-a", &store).link(mode).start().unwrap();
        let second = builder(cluster, "pod-b", &store).link(mode).start().unwrap();
        wait_for("a lane", || first.event_count("LinkUp") > Some(0));
        assert_eq!(first.event_count("HandshakeRefused"), Some(0));
        second.drain().unwrap();
        wait_for("the leave", || first.event_count("LinkDown") > Some(0));
        assert_eq!(first.event_count("SiloDeclaredDead"), Some(0));
        first.drain().unwrap();
    }
}

#[test]
fn a_taken_port_and_a_missing_table_name_their_remedies() {
    let holder = builder("port", "pod-a", "memory:").start().unwrap();
    let bind = holder.bound().to_string();
    let error = builder("port-2", "pod-b", "memory:").bind(&bind).start().unwrap_err();
    assert!(matches!(error, StartError::PortTaken { .. }));
    assert!(error.to_string().contains(&bind), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("empty.db").display());
    let error = builder("table", "pod-a", &url).start().unwrap_err().to_string();
    assert!(error.contains("siloring migrate sqlite:"), "{error}");
}

#[test]
fn the_name_of_a_running_silo_is_refused_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let first = builder("names", "pod-a", &store).start().unwrap();
    let error = builder("names", "pod-a", &store).start().unwrap_err();
    let error = error.to_string();
    assert!(error.contains("pod-a") && error.contains(first.address()), "{error}");
}

#[test]
fn a_silo_with_another_secret_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let first = builder("secrets", "pod-a", &store).secret([1; 32]).start().unwrap();
    let error = builder("secrets", "pod-b", &store).secret([2; 32]).start().unwrap_err();
    assert!(matches!(error, StartError::PeerRefused { .. }), "{error}");
    assert!(error.to_string().ends_with("set the cluster's secret"), "{error}");
    drop(first);
}

#[test]
fn a_future_runs_beside_a_local_silo() {
    let shards = Silo::local().run(async |handle| handle.shards()).unwrap();
    assert_eq!(shards, 1);
}

#[test]
fn a_silo_that_is_led_to_one_of_another_cluster_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let tcp = |cluster, name| builder(cluster, name, &store).link(LinkMode::Tcp);
    let other = tcp("theirs", "pod-b").start().unwrap();
    // A row of our cluster leads to a silo of theirs.
    let misleading = tcp("ours", "pod-a").advertise(other.address()).start().unwrap();
    let error = tcp("ours", "pod-c").start().unwrap_err();
    assert!(matches!(error, StartError::ForeignCluster { .. }), "{error}");
    assert!(error.to_string().ends_with("correct cluster or store"), "{error}");
    drop(misleading);
}

#[test]
fn a_peer_that_does_not_listen_on_a_unix_socket_is_linked_with_over_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let plain = builder("fallback", "pod-a", &store).link(LinkMode::Tcp).start().unwrap();
    let second = builder("fallback", "pod-b", &store).link(LinkMode::Auto).start().unwrap();
    wait_for("a lane", || second.event_count("LinkUp") > Some(0));
    assert_eq!(second.event_count("DialFailed"), Some(0), "the dial went on over TCP");
    drop(plain);
}
