//! Hubs whose process goes and comes back.

use std::time::{Duration, Instant};

use crate::silo::{Cluster, tell, until};

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

/// H10, subscriptions: who has a key keeps it until it is taken over, or dead.
#[test]
fn a_restarted_hub_takes_its_subscription_over() {
    a_subscription_is_taken_over(&Cluster::new("subscription-taken-over"));
}

pub(crate) fn a_subscription_is_taken_over(cluster: &Cluster) {
    let (mut old, mut new) = (cluster.start("old"), cluster.start("new"));
    let mut caller = cluster.start("caller");
    assert_eq!(old.result("listen portal/ada general ada claim"), "subscribed");
    assert_eq!(caller.publish("general", 1).value, Some(1));

    let refused = new.result("listen portal/ada general ada claim");
    assert!(refused.contains("AlreadyClaimed"), "its address is claimed: {refused}");
    let refused = new.result("listen portal/other general ada claim");
    assert!(refused.contains("Taken"), "its key is taken: {refused}");
    assert_eq!(caller.publish("general", 2).value, Some(1));

    assert_eq!(new.result("listen portal/ada general ada take_over"), "subscribed");
    for number in 3..=20 {
        let ended = caller.publish("general", number);
        assert_eq!((&*ended.how, ended.value), ("handled", Some(1)), "{number}: {ended:?}");
    }
    assert_eq!(old.numbers("portal/ada"), [1, 2], "the old one hears nothing more");
    assert_eq!(new.numbers("portal/ada"), (3..=20).collect::<Vec<u64>>());
    assert_eq!(caller.subscriptions("general")["ada"], new.generation);

    new.process.kill().expect("it runs");
    let killed = Instant::now();
    let mut third = cluster.start("third");
    let mut answers = vec![third.result("listen portal/ada general ada claim")];
    while answers.last().is_some_and(|answer| answer != "subscribed") {
        assert!(killed.elapsed() < DETECTION_TIME_MAX, "still refused: {answers:?}");
        answers.push(third.result("listen portal/ada general ada claim"));
    }
    let ended = caller.publish("general", 21);
    assert_eq!((&*ended.how, ended.value), ("handled", Some(1)), "{ended:?}");
    assert_eq!(third.numbers("portal/ada"), [21]);
}

/// H11. Two mirrors of one stream: one outlives a roll, the other one's process is killed.
#[test]
fn a_live_mirror_stays_subscribed_across_a_roll_and_a_dead_one_goes() {
    mirrors_live_and_die(&Cluster::new("mirrors"));
}

pub(crate) fn mirrors_live_and_die(cluster: &Cluster) {
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    let mut carl = cluster.start("carl");
    assert_eq!(ann.result("listen mesh/live general live claim"), "subscribed");
    assert_eq!(bob.result("listen mesh/dead general dead claim"), "subscribed");
    carl.subscribe("general", "ear", "ear");
    assert_eq!(carl.publish("general", 1).value, Some(3));

    let mut dora = cluster.start("dora");
    carl.drain();
    for number in 2..=20 {
        let ended = dora.publish("general", number);
        assert_eq!((&*ended.how, ended.value), ("handled", Some(3)), "{number}: {ended:?}");
    }
    bob.process.kill().expect("it runs");
    let killed = Instant::now();
    let (mut number, mut longest) = (20, Duration::ZERO);
    while dora.subscriptions("general").contains_key("dead") {
        assert!(killed.elapsed() < DETECTION_TIME_MAX, "the dead mirror stays");
        number += 1;
        let ended = dora.publish("general", number);
        assert_eq!(ended.how, "handled", "the dead mirror stays, the others hear: {ended:?}");
        longest = longest.max(ended.time);
    }
    let last = dora.publish("general", number + 1);
    assert_eq!(last.value, Some(2), "nobody waits for the dead one any more: {last:?}");
    let all: Vec<u64> = (1..=number + 1).collect();
    assert_eq!(ann.numbers("mesh/live"), all, "the live mirror heard each event once");
    until("its row is gone", DETECTION_TIME_MAX, || cluster.rows().len() == 2);
    tell(&format!("{} events while it was unknown, longest {longest:?}", number - 20));
}
