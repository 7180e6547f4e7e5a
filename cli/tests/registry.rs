//! `siloring subscriptions` and `siloring prune`.
//!
//! Method: a store in a file with a cluster of three silos, of which one is Dead and one is gone
//! from the table, and subscriptions of each.

use std::io::Read as _;
use std::process::{Command, Stdio};

use siloring_core::ids::{Incarnation, MethodId};
use siloring_core::ports::registry::{SetVersion, Subscription};
use siloring_core::ports::store::{Store, StoreAnswer, StoreRequest};
use siloring_core::{Address, ClusterId, Generation, SiloName, SiloRow, SiloStatus, ViewNumber};

use crate::{siloring, text, url_in};

/// A migrated store with cluster `prod` in view 5: silo 1 is Active, 2 Dead, 3 gone.
struct Cluster {
    url: String,
    _folder: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = url_in(folder.path());
        siloring_storage::migrate(&url).unwrap();
        let cluster = Self { url, _folder: folder };
        let mut store = cluster.open();
        for (view, generation, status) in [
            (1, 1, SiloStatus::Active),
            (2, 2, SiloStatus::Active),
            (3, 3, SiloStatus::Active),
            (4, 2, SiloStatus::Dead),
            (5, 3, SiloStatus::Dead),
        ] {
            let (expected, next) = (ViewNumber(view - 1), ViewNumber(view));
            let row = silo_row(generation, status);
            store.execute(&StoreRequest::WriteRow { expected, next, row }).unwrap();
        }
        let (expected, next) = (ViewNumber(5), ViewNumber(6));
        let generations = vec![Generation(3)];
        store.execute(&StoreRequest::RemoveDead { expected, next, generations }).unwrap();
        cluster
    }

    /// With a subscription of each kind.
    fn subscribed() -> Self {
        let cluster = Self::new();
        cluster.subscribe("a", "of a grain", None, 2);
        cluster.subscribe("a", "live", Some(1), 6);
        cluster.subscribe("b", "dead", Some(2), 2);
        cluster.subscribe("b", "gone", Some(3), 3);
        cluster.subscribe("c", "of a view that the store has lost", Some(2), 9);
        cluster
    }

    fn open(&self) -> Box<dyn Store> {
        siloring_storage::open(&self.url, &ClusterId::new("prod").unwrap()).unwrap()
    }

    fn subscribe(&self, stream: &str, key: &str, owner: Option<u64>, view: u64) {
        let row = Subscription {
            stream: Address::of("stream", &format!("orders/{stream}")).unwrap(),
            key: key.into(),
            consumer: Address::of("portal", key).unwrap(),
            handler: MethodId(0),
            owner: owner.map(Generation),
            view: ViewNumber(view),
            filter: String::new(),
            operation: 1,
            version: SetVersion(0),
        };
        let request = StoreRequest::WriteSubscription { row, expected: None };
        self.open().execute(&request).unwrap();
    }

    fn keys(&self) -> Vec<String> {
        let list = StoreRequest::ListSubscriptions { after: None, limit: 100 };
        match self.open().execute(&list) {
            Ok(StoreAnswer::Subscriptions { rows, .. }) => {
                rows.into_iter().map(|row| row.key).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// The command's standard output, which must be a success.
    fn run(&self, command: &str, options: &[&str]) -> String {
        let fixed = [command, &self.url, "--cluster", "prod"];
        let out = siloring(&[&fixed[..], options].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    }

    fn json(&self, command: &str, options: &[&str]) -> serde_json::Value {
        let out = self.run(command, &[options, &["--json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }
}

fn silo_row(generation: u64, status: SiloStatus) -> SiloRow {
    SiloRow {
        incarnation: Incarnation {
            name: SiloName::new(format!("silo-{generation}")).unwrap(),
            generation: Generation(generation),
        },
        status,
        advertised: format!("127.0.0.1:{}", 7000 + generation),
        host: "host".into(),
        shards: 1,
        votes: Vec::new(),
        changed_in: ViewNumber(0),
    }
}

#[test]
fn subscriptions_are_listed_with_the_liveness_of_their_owners() {
    let cluster = Cluster::subscribed();
    let out = cluster.run("subscriptions", &[]);
    let lines: Vec<_> = out.lines().collect();
    let ends = ["LIVENESS", "live", "-", "dead", "dead", "unknown"];
    assert_eq!(lines.len(), ends.len() + 2, "{out}");
    for (line, end) in lines.iter().zip(ends) {
        assert!(line.ends_with(&format!(" {end}")), "{line:?} ends with {end}");
    }
    assert!(lines[1].starts_with("stream/orders/a  ") && lines[1].contains(" portal/live "));
    assert!(lines[2].contains(" of a grain ") && lines[2].contains(" - "), "{out}");
    assert_eq!(lines[6], "5 subscriptions: 1 of grains, 1 live, 2 dead, 1 unknown");
    let remedy = format!("`siloring prune {} --cluster prod`", cluster.url);
    assert!(lines[7].ends_with(&remedy), "{out}");
}

#[test]
fn subscriptions_are_listed_as_one_json_object() {
    let cluster = Cluster::subscribed();
    let mut answer = cluster.json("subscriptions", &[]);
    let rows = answer["subscriptions"].take();
    let liveness: Vec<_> = (0..5).map(|index| rows[index]["liveness"].as_str()).collect();
    assert_eq!(liveness, [Some("live"), None, Some("dead"), Some("dead"), Some("unknown")]);
    let expected = serde_json::json!({
        "stream": "stream/orders/b", "key": "gone", "consumer": "portal/gone", "owner": "3",
        "liveness": "dead", "view": "3", "filter": "", "version": 4,
    });
    assert_eq!((rows.as_array().map(Vec::len), &rows[3]), (Some(5), &expected));
    let expected = serde_json::json!({
        "cluster": "prod", "subscriptions": null, "view": "6", "grains": 1, "live": 1, "dead": 2,
        "unknown": 1,
    });
    assert_eq!(answer, expected);
    let empty = Cluster::new().json("subscriptions", &[]);
    assert_eq!(empty["subscriptions"], serde_json::json!([]));
}

#[test]
fn prune_removes_what_dead_silos_have_left_and_says_what() {
    let cluster = Cluster::subscribed();
    let kept = " 2 subscriptions of 2 dead silos; kept 1 of living silos, 1 of grains, 1 that no \
                view can judge\n";
    let dry = cluster.run("prune", &["--dry-run"]);
    assert_eq!(dry, format!("would remove{kept}"));
    assert_eq!(cluster.keys().len(), 5, "a dry run removes nothing");
    assert_eq!(cluster.run("prune", &[]), format!("removed{kept}"));
    assert_eq!(cluster.keys(), ["live", "of a grain", "of a view that the store has lost"]);
    assert!(cluster.run("prune", &[]).starts_with("removed 0 subscriptions of 0 dead silos"));
}

#[test]
fn prune_answers_with_one_json_object() {
    let cluster = Cluster::subscribed();
    let mut expected = serde_json::json!({
        "cluster": "prod", "dry_run": true, "removed": 2, "dead_silos": ["2", "3"],
        "kept": { "live": 1, "grains": 1, "unknown": 1 },
    });
    assert_eq!(cluster.json("prune", &["--dry-run"]), expected);
    expected["dry_run"] = false.into();
    assert_eq!(cluster.json("prune", &[]), expected);
}

#[test]
fn a_list_longer_than_a_page_is_whole_and_may_be_cut_off_by_its_reader() {
    let cluster = Cluster::new();
    let mut store = cluster.open();
    for group in 0..3 {
        let rows = (0..700).map(|index| StoreRequest::WriteSubscription {
            row: Subscription {
                stream: Address::of("stream", &format!("orders/{group}")).unwrap(),
                key: format!("{index:04}"),
                consumer: Address::of("portal", "p").unwrap(),
                handler: MethodId(0),
                owner: Some(Generation(2)),
                view: ViewNumber(2),
                filter: String::new(),
                operation: 1,
                version: SetVersion(0),
            },
            expected: None,
        });
        let results = store.execute_group(&rows.collect::<Vec<_>>());
        assert!(results.iter().all(Result::is_ok));
    }
    let out = cluster.run("subscriptions", &[]);
    assert_eq!(out.lines().filter(|line| line.ends_with(" dead")).count(), 2_100);
    let mut child = Command::new(env!("CARGO_BIN_EXE_siloring"))
        .args(["subscriptions", &cluster.url, "--cluster", "prod"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(first, *b"STREAM");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(cluster.run("prune", &[]).starts_with("removed 2100 subscriptions of 1 dead silos"));
}

#[test]
fn a_cluster_that_never_was_and_a_store_without_tables_are_named_with_the_remedy() {
    let cluster = Cluster::new();
    for command in ["subscriptions", "prune"] {
        let out = siloring(&[command, &cluster.url, "--cluster", "prd"]);
        let error = text(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{error}");
        assert!(error.contains("no silo of cluster prd") && error.contains("correct --cluster"));
        let folder = tempfile::tempdir().unwrap();
        let out = siloring(&[command, &url_in(folder.path()), "--cluster", "prod", "--json"]);
        let error: serde_json::Value = serde_json::from_slice(&out.stderr).unwrap();
        assert!(error["error"].as_str().unwrap().contains("run `siloring migrate"), "{error}");
        assert_eq!(siloring(&[command, &cluster.url]).status.code(), Some(2), "without --cluster");
        let out =
            siloring(&[command, "postgres://a:s3cret@localhost/d?host=/no", "--cluster", "p"]);
        let error = text(&out.stderr);
        assert!(error.contains("cannot be reached") && !error.contains("s3cret"), "{error}");
        let help = text(&siloring(&[command, "--help"]).stdout);
        assert!(help.contains("Examples:") && help.contains("Exit codes"), "{help}");
    }
}
