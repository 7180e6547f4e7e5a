//! Streams of real silos: each event once, whoever publishes, consumes, leaves, dies or sleeps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use siloring_testkit::process::Stream;

use crate::silo::{Asked, Cluster, DRAIN_TIME_MAX, Ended, Silo, on_each_store, tell, until};

/// A killed or sleeping silo is known to be gone by then.
const DETECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// A silo that slept ends by itself after it was woken within this.
const AWAKENING_TIME_MAX: Duration = Duration::from_secs(5);
/// What is left of a dead silo in the registry is gone by then.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(15);
/// The exit code of a silo that finds itself Dead.
const DEAD: i32 = 70;
/// Word of a changed row has come by then, and its owner has read it again.
const HOT_AFTER: Duration = Duration::from_millis(2600);
/// Events on hot streams.
const HOT_EVENTS: u64 = 100_000;

/// S1. All four combinations of publisher and consumer, in one process and across two.
#[test]
fn grains_and_hubs_hear_each_event_of_grains_and_of_programs_once() {
    let alone = Cluster::on("alone", "memory:");
    let mut solo = alone.start("solo");
    solo.settle("ear");
    listen(&mut solo);
    publish_both_ways(&mut solo);
    expect_each_once(&mut solo);
    across_two(&Cluster::new("combinations"));
}

pub(crate) fn across_two(cluster: &Cluster) {
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    bob.settle("ear");
    listen(&mut bob);
    publish_both_ways(&mut ann);
    expect_each_once(&mut bob);
}

fn listen(silo: &mut Silo) {
    silo.subscribe("general", "ear", "ear");
    assert_eq!(silo.result("listen portal/ear general hub claim"), "subscribed");
}

/// A hundred events of a grain, a hundred of the program around it.
fn publish_both_ways(silo: &mut Silo) {
    silo.settle("mouth");
    let told = silo.outcome("tell mouth general 1 100 20000");
    assert_eq!((&*told.how, told.value), ("handled", Some(100)), "{told:?}");
    let poured = silo.tally("pour general 101 100 4");
    assert_eq!(poured, BTreeMap::from([("handled".to_owned(), 100)]));
}

fn expect_each_once(silo: &mut Silo) {
    for consumer in ["ear", "portal/ear"] {
        assert_eq!(silo.numbers(consumer), (1..=200).collect::<Vec<u64>>(), "{consumer}");
        let in_turn: Vec<u64> = silo.events(consumer).iter().map(|event| event.number).collect();
        let of_the_grain: Vec<u64> = in_turn.into_iter().filter(|number| *number <= 100).collect();
        assert!(of_the_grain.is_sorted(), "{consumer} heard one publisher out of order");
    }
}

/// S9. Subscriptions of one grain come and go; its activations too.
#[test]
fn a_grain_hears_what_it_subscribes_to_across_its_activations() {
    several_of_one_grain(&Cluster::new("several"));
}

pub(crate) fn several_of_one_grain(cluster: &Cluster) {
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    bob.settle("ear");
    for (stream, key) in [("a", "one"), ("b", "one"), ("b", "two"), ("c", "one")] {
        ann.subscribe(stream, key, "ear");
    }
    // Stream b twice, for its two subscriptions.
    let handled = |ann: &mut Silo, stream: &str, number: u64| ann.publish(stream, number).value;
    assert_eq!(handled(&mut ann, "a", 1), Some(1));
    assert_eq!(handled(&mut ann, "b", 2), Some(2));
    assert_eq!(handled(&mut ann, "c", 3), Some(1));
    assert_eq!(bob.numbers("ear"), [1, 2, 2, 3]);

    assert_eq!(bob.outcome("leave ear 10000").how, "handled");
    bob.settle("ear");
    assert_eq!(handled(&mut ann, "b", 4), Some(2), "its next activation hears the same");
    assert_eq!(ann.result("unsubscribe b two"), "unsubscribed");
    assert_eq!(handled(&mut ann, "b", 5), Some(1));
    assert_eq!(bob.result("unsubscribe a one"), "unsubscribed");
    assert_eq!(ann.publish("a", 6).how, "NoSubscriber");

    assert_eq!(bob.outcome("leave ear 10000").how, "handled");
    bob.settle("ear");
    bob.subscribe("a", "one", "ear");
    assert_eq!(handled(&mut ann, "a", 7), Some(1));
    assert_eq!(handled(&mut ann, "c", 8), Some(1));
    assert_eq!(bob.numbers("ear"), [1, 2, 2, 3, 4, 4, 5, 7, 8]);
}

/// G3. The hub's stream has its owner on a silo that leaves while replies are on their way.
#[test]
fn replies_over_a_stream_are_answered_while_its_owner_leaves() {
    const NAME: &str = "replies_over_a_stream_are_answered_while_its_owner_leaves";
    on_each_store(NAME, "owner-leaves", replies_while_the_owner_leaves);
}

pub(crate) fn replies_while_the_owner_leaves(cluster: &Cluster) {
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    let mut carl = cluster.start("carl");
    let hub = hub_with_stream_at(&mut ann, &mut bob, carl.generation);
    let before = bob.heard(&hub);
    let series = ann.ask(&format!("legs {hub} 200 10 10000 stream"));
    until("replies are on their way", Duration::from_secs(10), || bob.heard(&hub) > before + 20);
    carl.process.terminate().expect("it runs");
    let left = carl.process.wait_exit(DRAIN_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(left.code(), Some(0));
    let at_exit = bob.heard(&hub) - before;
    let ended = series_of(&mut ann, series);
    let failed: Vec<&Ended> = ended.iter().filter(|ended| ended.how != "handled").collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(bob.heard(&hub) - before, 200, "each was heard once");
    let longest = ended.iter().map(|ended| ended.time).max();
    tell(&format!("200 answered, {at_exit} before the owner had left; longest {longest:?}"));
}

/// A hub of `bob`'s whose own stream has its owner on the silo.
fn hub_with_stream_at(ann: &mut Silo, bob: &mut Silo, owner: u64) -> String {
    let mut hubs = (0..64).map(|number| format!("portal/ada-{number}"));
    let found = hubs.find(|hub| {
        assert_eq!(bob.result(&format!("reach {hub} claim")), "subscribed");
        assert_eq!(ann.outcome(&format!("leg {hub} stream 10000")).how, "handled");
        ann.owner(&format!("stream/hub/{hub}")) == owner
    });
    found.expect("of 64 streams each silo owns some")
}

fn series_of(silo: &mut Silo, asked: Asked) -> Vec<Ended> {
    let answer = silo.answer(asked);
    answer["series"].as_array().expect("a list").iter().map(Ended::read).collect()
}

/// G6, with a row in the registry and both legs.
#[test]
fn senders_over_both_legs_to_a_killed_hub_are_answered_each_time() {
    const NAME: &str = "senders_over_both_legs_to_a_killed_hub_are_answered_each_time";
    /// What they may hear of it: lost, or gone. A time-out would say that nobody told.
    const EXPECTED: [&str; 5] =
        ["LostAfterHandOver", "ConnectionLost", "IncarnationDead", "NotHere", "NoSubscriber"];
    on_each_store(NAME, "killed-hub-row", |cluster| {
        let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
        let carl = cluster.start("carl");
        assert_eq!(bob.result("reach portal/bob claim"), "subscribed");
        assert_eq!(ann.outcome("leg portal/bob stream 10000").how, "handled");
        assert_eq!(ann.outcome("leg portal/bob both 10000").how, "handled");
        assert_eq!(cluster.rows().len(), 1);

        bob.process.kill().unwrap();
        let series = ann.ask("legs portal/bob 30 200 15000 both");
        await_death(&[&ann, &carl], "bob");
        until("its row is gone", SWEEP_TIME_MAX, || cluster.rows().is_empty());
        let ended = series_of(&mut ann, series);
        for (index, ended) in ended.iter().enumerate() {
            assert!(EXPECTED.contains(&&*ended.how), "number {index}: {ended:?}");
            assert!(ended.time <= DETECTION_TIME_MAX, "number {index}: {ended:?}");
        }
        for leg in ["both", "stream"] {
            let last = ann.outcome(&format!("leg portal/bob {leg} 15000"));
            assert!(["NotHere", "NoSubscriber"].contains(&&*last.how), "{leg}: {last:?}");
        }
        for target in ["target=portal/bob", "target=stream/hub/portal/bob"] {
            let of_target =
                |line: &&str| line.contains("DeliveriesFailed") && line.contains(target);
            let lines = ann.process.log_text().lines().filter(of_target).count();
            assert!(lines <= 2, "{lines} lines for {target}:\n{}", ann.process.log_text());
        }
        let told = counted(&ended);
        tell(&format!("of {} sends: {told:?}", ended.len()));
    });
}

/// Waits until one of these silos has declared another one dead.
fn await_death(witnesses: &[&Silo], name: &str) {
    let told = |silo: &Silo| {
        let text = silo.process.log_text();
        text.lines().any(|line| line.contains("SiloDeclaredDead") && line.contains(name))
    };
    until("it is declared dead", DETECTION_TIME_MAX, || witnesses.iter().any(|silo| told(silo)));
}

/// How many ended how.
fn counted(ended: &[Ended]) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for ended in ended {
        *counted.entry(ended.how.as_str()).or_default() += 1;
    }
    counted
}

/// G8. The events are with the owner when it dies, and with their publisher.
#[test]
fn events_of_a_killed_owner_are_handled_once_by_its_successor() {
    const NAME: &str = "events_of_a_killed_owner_are_handled_once_by_its_successor";
    const EVENTS: u64 = 20;
    on_each_store(NAME, "killed-owner", |cluster| {
        let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
        let mut carl = cluster.start("carl");
        bob.settle("ear");
        let stream = ann.stream_owned_by(carl.generation, "general", "ear");
        let before = bob.events("ear").len();
        let publish = |number| format!("publish {stream} {number} 50 30000");
        let asked: Vec<Asked> = (1..=EVENTS).map(|number| ann.ask(&publish(number))).collect();
        let few = before + 3;
        until("some are handled", DETECTION_TIME_MAX, || bob.events("ear").len() >= few);
        carl.process.kill().unwrap();
        let at_kill = bob.events("ear").len() - before;
        let ended: Vec<Ended> = asked.into_iter().map(|asked| ann.ended(asked)).collect();
        let events = bob.events("ear").split_off(before);
        let mut numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
        numbers.sort_unstable();
        let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(numbers.len(), distinct.len(), "handled twice: {events:?}");
        for (number, ended) in (1..).zip(&ended) {
            let was_handled = ended.how == "handled";
            assert!(!was_handled || distinct.contains(&number), "{number} is lost: {events:?}");
        }
        let handled = ended.iter().filter(|ended| ended.how == "handled").count();
        assert_eq!(handled as u64, EVENTS, "its publisher lives on: {:?}", counted(&ended));
        assert!(at_kill < ended.len(), "the owner died with nothing left to do");
        assert!(events.is_sorted_by_key(|event| event.epoch), "an earlier owner came later");
        let successor = ann.owner(&format!("stream/room/{stream}"));
        assert_ne!(successor, carl.generation, "somebody else owns the stream");
        tell(&format!("{at_kill} before the kill, {} after", ended.len() - at_kill));
    });
}

/// S10. Nobody is left, and then everybody is back.
#[test]
fn grains_subscribe_beyond_the_end_of_all_silos_and_hubs_do_not() {
    const NAME: &str = "grains_subscribe_beyond_the_end_of_all_silos_and_hubs_do_not";
    on_each_store(NAME, "restarted", everybody_leaves_and_returns);
}

pub(crate) fn everybody_leaves_and_returns(cluster: &Cluster) {
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    ann.subscribe("general", "one", "ear-one");
    bob.subscribe("general", "two", "ear-two");
    assert_eq!(ann.result("listen portal/ann general ann claim"), "subscribed");
    assert_eq!(bob.result("listen portal/bob general bob claim"), "subscribed");
    assert_eq!(ann.publish("general", 1).value, Some(4));
    bob.process.kill().expect("it runs");
    // The whole cluster ends; its next one need not find out who is dead.
    await_death(&[&ann], "bob");
    ann.drain();

    let (mut dora, mut emil) = (cluster.start("dora"), cluster.start("emil"));
    let listed: Vec<String> = dora.subscriptions("general").into_keys().collect();
    assert_eq!(listed, ["one", "two"], "grains as before, no dead hub");
    assert_eq!(emil.publish("general", 2).value, Some(2));
    for ear in ["ear-one", "ear-two"] {
        let heard = [dora.numbers(ear), emil.numbers(ear)].concat();
        assert_eq!(heard, [2], "{ear}");
    }
    let of_hubs = || cluster.rows().iter().filter(|row| row.owner.is_some()).count();
    until("rows of dead hubs are gone", SWEEP_TIME_MAX, || of_hubs() == 0);
    assert_eq!(cluster.rows().len(), 2);
}

/// S11. Four silos, then three as the owner sleeps, one, and four again; the sleeper is woken.
#[test]
fn a_stream_has_one_owner_a_view_while_silos_sleep_leave_and_join() {
    const NAME: &str = "a_stream_has_one_owner_a_view_while_silos_sleep_leave_and_join";
    on_each_store(NAME, "resized", |cluster| {
        let (mut ann, bob) = (cluster.start("ann"), cluster.start("bob"));
        let (carl, mut dora) = (cluster.start("carl"), cluster.start("dora"));
        ann.settle("ear");
        let stream = ann.stream_owned_by(dora.generation, "general", "ear");
        let mut numbers = 1..;
        let mut publish = |ann: &mut Silo, times: usize| {
            for number in numbers.by_ref().take(times) {
                let ended = ann.outcome(&format!("publish {stream} {number} 0 30000"));
                assert_eq!((&*ended.how, ended.value), ("handled", Some(1)), "{number}: {ended:?}");
            }
        };
        let before = ann.events("ear").len();
        publish(&mut ann, 20);
        dora.process.pause().unwrap();
        publish(&mut ann, 20);
        await_death(&[&ann, &bob, &carl], "dora");
        dora.process.resume().unwrap();
        publish(&mut ann, 20);
        let woken = dora.process.wait_exit(AWAKENING_TIME_MAX);
        assert_eq!(woken.unwrap_or_else(|error| panic!("{error}")).code(), Some(DEAD));
        bob.drain();
        publish(&mut ann, 20);
        carl.drain();
        publish(&mut ann, 20);
        let _others = ["emil", "fay", "gus"].map(|name| cluster.start(name));
        publish(&mut ann, 20);

        let events = ann.events("ear").split_off(before);
        let heard: Vec<u64> = events.iter().map(|event| event.number).collect();
        assert_eq!(heard, (1..=120).collect::<Vec<u64>>(), "each once and in order");
        assert!(events.is_sorted_by_key(|event| event.epoch), "a stale owner was heard");
        let owners: BTreeSet<(u64, u64)> = events.iter().map(|event| event.epoch).collect();
        assert!(owners.len() >= 2, "the stream never moved: {owners:?}");
        tell(&format!("120 events, {} owners after one another", owners.len()));
    });
}

/// S14. Publishing writes nothing, and reads nothing.
#[test]
fn hot_streams_ask_nothing_of_the_store() {
    const NAME: &str = "hot_streams_ask_nothing_of_the_store";
    on_each_store(NAME, "hot", publishing_asks_no_store);
}

pub(crate) fn publishing_asks_no_store(cluster: &Cluster) {
    const METRIC: &str = "siloring_shard_store_requests_total";
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    bob.settle("ear");
    for stream in ["one", "two"] {
        ann.subscribe(stream, "ear", "ear");
    }
    let asked = |ann: &mut Silo, bob: &mut Silo| ann.metric(METRIC) + bob.metric(METRIC);
    assert!(asked(&mut ann, &mut bob) >= 4, "each stream was read and written once");
    // The owners hear late of their own writes, and read the rows once more.
    let mut next = 1;
    let mut warm = |ann: &mut Silo, bob: &mut Silo| {
        let (before, began) = (asked(ann, bob), Instant::now());
        while began.elapsed() < HOT_AFTER {
            ann.tally(&format!("pour one {next} 100 4"));
            next += 100;
        }
        asked(ann, bob) == before
    };
    until("the streams are hot", 4 * HOT_AFTER, || warm(&mut ann, &mut bob));

    let (before, began) = (asked(&mut ann, &mut bob), Instant::now());
    let poured = ["one", "two"].map(|stream| {
        let half = HOT_EVENTS / 2;
        (ann.ask(&format!("pour {stream} 1000000 {half} 16")), half)
    });
    for (poured, half) in poured {
        let ends = ann.answer(poured)["ends"].clone();
        assert_eq!(ends, serde_json::json!({ "handled": half }));
    }
    let took = began.elapsed();
    assert_eq!(asked(&mut ann, &mut bob) - before, 0, "requests to the store");
    tell(&format!("{HOT_EVENTS} events in {took:?}, no request to the store"));
}

/// S15. The same streams, keys and hubs twice in one database.
#[test]
fn two_clusters_in_one_database_do_not_see_each_other() {
    const NAME: &str = "two_clusters_in_one_database_do_not_see_each_other";
    on_each_store(NAME, "first", |first| {
        let second = Cluster::on("second", first.store());
        let (mut ann, mut bob) = (first.start("ann"), first.start("bob"));
        let mut other = second.start("ann");
        for silo in [&mut bob, &mut other] {
            assert_eq!(silo.result("listen portal/ear general hub claim"), "subscribed");
            silo.subscribe("general", "ear", "ear");
        }
        assert_eq!(ann.publish("general", 1).value, Some(2));
        assert_eq!(other.publish("general", 2).value, Some(2));
        assert_eq!(other.publish("general", 3).value, Some(2));
        assert_eq!(bob.numbers("portal/ear"), [1]);
        assert_eq!(other.numbers("portal/ear"), [2, 3]);
        assert_eq!(other.numbers("ear"), [2, 3]);
        assert_eq!((first.rows().len(), second.rows().len()), (2, 2));

        bob.process.kill().unwrap();
        until("the dead hub's row is gone", SWEEP_TIME_MAX, || first.rows().len() == 1);
        assert_eq!(ann.publish("general", 4).value, Some(1), "its own dead hub is gone");
        assert_eq!(second.rows().len(), 2, "the other cluster's rows stay");
        assert_eq!(other.publish("general", 5).value, Some(2));
        assert_eq!(ann.result("unsubscribe general ear"), "unsubscribed");
        assert_eq!(ann.publish("general", 6).how, "NoSubscriber");
        assert_eq!(other.publish("general", 7).value, Some(2));
        let lines = other.process.line_count(Stream::Error, "SubscriptionsSwept");
        assert_eq!(lines, 0, "nothing to sweep there");
    });
}
