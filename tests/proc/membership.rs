//! Who is in the cluster: silos that are killed, paused, cut off, restarted.

use std::time::{Duration, Instant};

use siloring_testkit::process::{Bridge, Stream, skip};

use crate::silo::{Cluster, JOIN_TIME_MAX};

/// A paused silo is woken after this.
const PAUSE: Duration = Duration::from_secs(10);
/// A woken silo knows by then that it is Dead.
const AWAKENING_TIME_MAX: Duration = Duration::from_secs(5);
/// Both of two silos that were killed at once are Dead by then.
const DOUBLE_DETECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// The exit code of a silo that finds itself Dead.
const DEAD: i32 = 70;

#[test]
fn a_silo_that_slept_learns_that_it_is_dead() {
    let cluster = Cluster::new("slept");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    let _carl = cluster.start("carl");
    assert_eq!(bob.outcome("call counter 10000").value, Some(1));
    assert_eq!(ann.outcome("call counter 10000").value, Some(2), "one activation, on bob's silo");
    bob.get("load 2 8");

    bob.process.pause().unwrap();
    let paused = Instant::now();
    let mut successor = None;
    while paused.elapsed() < PAUSE
        || (successor.is_none() && paused.elapsed() < DOUBLE_DETECTION_TIME_MAX)
    {
        let ended = ann.outcome("call counter 1000");
        successor = successor.or(ended.value);
    }
    assert_eq!(successor, Some(1), "a new activation took over during the pause");

    bob.process.resume().unwrap();
    let ended = bob.process.wait_exit(AWAKENING_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ended.code(), Some(DEAD));
    let before = ann.outcome("call counter 10000").value;
    let after = ann.outcome("call counter 10000").value;
    assert_eq!(before.map(|count| count + 1), after, "the sleeper's activation is not heard");
}

#[test]
fn two_of_three_killed_at_once_are_both_declared_dead() {
    let cluster = Cluster::new("two-of-three");
    let ann = cluster.start("ann");
    let (mut bob, mut carl) = (cluster.start("bob"), cluster.start("carl"));
    bob.process.kill().unwrap();
    carl.process.kill().unwrap();
    for name in ["bob", "carl"] {
        let dead = |line: &str| line.contains("SiloDeclaredDead") && line.contains(name);
        let declared = ann.process.wait_for_log(DOUBLE_DETECTION_TIME_MAX, dead);
        declared.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn no_silo_is_declared_dead_while_a_third_one_reaches_it() {
    const NAME: &str = "no_silo_is_declared_dead_while_a_third_one_reaches_it";
    if let Some(obstacle) = Bridge::obstacle() {
        return skip(NAME, &obstacle);
    }
    let cluster = Cluster::new("third");
    let bridge = Bridge::new(3).unwrap_or_else(|error| panic!("{error}"));
    let mut ann = cluster.start_on(bridge.host(0), "ann");
    let mut bob = cluster.start_on(bridge.host(1), "bob");
    let carl = cluster.start_on(bridge.host(2), "carl");
    assert_eq!(bob.hub("portal/bob", "claim"), "claimed");
    assert_eq!(ann.outcome("send portal/bob 10000 64").how, "handled");

    bridge.reset_connections(0, 1).unwrap_or_else(|error| panic!("{error}"));
    // The bound of a detection that may happen must pass without one.
    let dead = |line: &str| line.contains("SiloDeclaredDead");
    let declared = ann.process.wait_for_log(PAUSE, dead);
    assert!(declared.is_err(), "declared dead although a third one reaches it: {declared:?}");
    assert_eq!(carl.process.line_count(Stream::Error, "SiloDeclaredDead"), 0);
    assert!(!bob.process.has_ended());
    bridge.heal().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ann.outcome("send portal/bob 10000 64").how, "handled", "healed");
    assert_eq!(ann.process.line_count(Stream::Error, "SiloDeclaredDead"), 0);
}

#[test]
fn a_silo_restarted_on_its_port_replaces_its_older_incarnation() {
    let cluster = Cluster::new("same-port");
    let (mut ann, mut old) = (cluster.start("ann"), cluster.start("bob"));
    assert_eq!(old.outcome("call counter 10000").value, Some(1));
    assert_eq!(ann.outcome("call counter 10000").value, Some(2));
    old.process.kill().unwrap();
    let mut new = cluster.start_at("bob", &old.address);
    assert_eq!(new.address, old.address);
    let ended = ann.outcome("call counter 10000");
    assert_eq!(ended.value, Some(1), "the old activation is gone, a new one answers: {ended:?}");
    assert_eq!(new.outcome("call counter 10000").value, Some(2), "and it is the only one");
}

#[test]
fn the_first_to_restart_joins_after_all_were_killed() {
    let cluster = Cluster::new("all-killed");
    let mut silos = [cluster.start("ann"), cluster.start("bob"), cluster.start("carl")];
    for silo in &mut silos {
        silo.process.kill().unwrap();
    }
    let began = Instant::now();
    let mut dora = cluster.start("dora");
    assert!(began.elapsed() <= JOIN_TIME_MAX);
    assert_eq!(dora.outcome("call counter 10000").how, "handled");
}
