//! Hubs whose process goes and comes back.

use std::time::{Duration, Instant};

use crate::silo::Cluster;

/// A killed silo's claims are free by then.
const DETECTION_TIME_MAX: Duration = Duration::from_secs(10);

#[test]
fn a_restarted_hub_takes_its_address_over() {
    let cluster = Cluster::new("taken-over");
    let (mut old, mut new) = (cluster.start("old"), cluster.start("new"));
    let mut caller = cluster.start("caller");
    assert_eq!(old.hub("portal/ada", "claim"), "claimed");
    assert_eq!(caller.outcome("send portal/ada 10000 64").value, Some(old.process.pid().into()));

    let refused = new.hub("portal/ada", "claim");
    assert!(refused.contains("AlreadyClaimed"), "{refused}");
    assert_eq!(caller.outcome("send portal/ada 10000 64").value, Some(old.process.pid().into()));

    assert_eq!(new.hub("portal/ada", "take_over"), "claimed");
    for _ in 0..20 {
        let answered = caller.outcome("send portal/ada 10000 64");
        assert_eq!(answered.value, Some(new.process.pid().into()), "{answered:?}");
    }
    let told = old.get("heard portal/ada");
    assert_eq!(told["deliveries"], 2, "the old holder hears nothing more");
    assert!(told["ended"].to_string().contains("ClaimLost"), "{told}");
    assert_eq!(new.heard("portal/ada"), 20, "each delivery was heard once");
}

#[test]
fn a_hub_whose_process_was_killed_is_claimed_again_once_it_is_dead() {
    let cluster = Cluster::new("killed-hub");
    let mut old = cluster.start("old");
    let (mut new, mut caller) = (cluster.start("new"), cluster.start("caller"));
    assert_eq!(old.hub("portal/ada", "claim"), "claimed");
    old.process.kill().unwrap();
    let killed = Instant::now();
    let mut answers = vec![new.hub("portal/ada", "claim")];
    while answers.last().is_some_and(|answer| answer != "claimed") {
        assert!(killed.elapsed() < DETECTION_TIME_MAX, "still refused: {answers:?}");
        answers.push(new.hub("portal/ada", "claim"));
    }
    let answered = caller.outcome("send portal/ada 10000 64");
    assert_eq!(answered.value, Some(new.process.pid().into()), "{answered:?}");
}
