//! The reason that this project exists: nobody is left without an outcome.

use std::time::Duration;

use siloring_testkit::process::Stream;

use crate::silo::Cluster;

/// How long a refusal of an address that nobody holds may take, between processes of one host.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(50);
/// How long a killed silo may be waited for before it is known to be gone.
const DETECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// What a sender may hear of a killed silo: it was lost, or it is known to be gone. A time-out
/// would say that nobody told.
const EXPECTED: &[&str] = &["LostAfterHandOver", "ConnectionLost", "IncarnationDead", "NotHere"];

#[test]
fn a_request_to_a_client_nobody_registered_is_refused_at_once() {
    let cluster = Cluster::new("nobody");
    let (mut ann, _bob) = (cluster.start("ann"), cluster.start("bob"));
    for _ in 0..20 {
        let ended = ann.outcome("send client/nobody 10000 64");
        assert_eq!(ended.how, "NotHere");
        assert!(ended.time <= REFUSAL_TIME_MAX, "{ended:?}");
    }
    let lines = ann.process.line_count(Stream::Error, "DeliveriesFailed");
    assert_eq!(lines, 1, "one line a minute and target, whatever the number of refusals");
}

#[test]
fn a_request_between_hubs_of_two_processes_is_answered() {
    let cluster = Cluster::new("hubs");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    assert_eq!(ann.outcome("send portal/bob 10000 64").how, "NotHere", "nobody is there yet");
    assert_eq!(bob.hub("portal/bob", "claim"), "claimed");
    assert_eq!(ann.hub("portal/ann", "claim"), "claimed");
    let answered = ann.outcome("send portal/bob 10000 64");
    assert_eq!(answered.value, Some(u64::from(bob.process.pid())), "{answered:?}");
    let answered = bob.outcome("send portal/ann 10000 64");
    assert_eq!(answered.value, Some(u64::from(ann.process.pid())), "{answered:?}");
    assert_eq!((ann.heard("portal/ann"), bob.heard("portal/bob")), (1, 1), "each was heard once");
}

#[test]
fn senders_to_a_killed_process_are_answered_each_time() {
    let cluster = Cluster::new("killed");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    let _carl = cluster.start("carl");
    assert_eq!(bob.hub("portal/bob", "claim"), "claimed");
    assert_eq!(ann.outcome("send portal/bob 10000 64").how, "handled");

    bob.process.kill().unwrap();
    // Five a second, as long as the bound of the detection.
    let series = ann.series("portal/bob 50 200 15000");
    for (index, ended) in series.iter().enumerate() {
        assert!(EXPECTED.contains(&ended.how.as_str()), "number {index}: {ended:?}");
    }
    let longest = series.iter().map(|ended| ended.time).max().expect("there were sends");
    assert!(longest <= DETECTION_TIME_MAX, "a sender waited {longest:?} to hear that it is gone");
    let last = ann.outcome("send portal/bob 15000 64");
    assert_eq!(last.how, "NotHere", "the dead silo's claim is gone: {last:?}");
    assert!(last.time <= REFUSAL_TIME_MAX, "{last:?}");
    let lines = ann.process.line_count(Stream::Error, "DeliveriesFailed");
    assert!(lines <= 2, "{lines} lines for one target");
}
