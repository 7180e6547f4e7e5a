//! Leaving in order, and replacing silo by silo while the calls go on.

use std::time::Duration;

use siloring_testkit::process::Stream;

use crate::silo::{Cluster, Silo, on_each_store, tell, until};

/// How long a leaving silo may take to refuse what is new.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(50);
/// How long a leaving silo may take once its last reply is there.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(8);
const ROLLS: usize = 10;
/// How long a call under load may take, in the worst roll.
const CALL_TIME_MAX_MS: f64 = 5_000.0;
/// Probes of each silo after each roll.
const PROBES: usize = 10;

/// G9. In each roll every silo is replaced, newcomer first, while all call each other's grains
/// without pause. None stays through all rolls: with time it would host every grain.
#[test]
fn ten_graceful_rolls_fail_no_call() {
    let cluster = Cluster::new("rolls");
    let mut pods: Vec<Silo> = (0..3).map(|pod| begin(&cluster, &format!("pod-{pod}-0"))).collect();
    let mut calls = 0;
    for roll in 1..=ROLLS {
        for (number, pod) in pods.iter_mut().enumerate() {
            let newcomer = begin(&cluster, &format!("pod-{number}-{roll}"));
            let mut leaver = std::mem::replace(pod, newcomer);
            calls += end(&mut leaver);
            leaver.drain();
        }
        for pod in &mut pods {
            probe(pod, roll);
        }
    }
    calls += pods.iter_mut().map(end).sum::<u64>();
    assert!(calls > 10_000, "the load was no load: {calls} calls");
}

/// G9, with streams: as above for two silos that publish without pause, to grains that subscribed
/// before all rolls. Owners, consumers and publishers all move.
#[test]
fn ten_graceful_rolls_fail_no_publish() {
    on_each_store("ten_graceful_rolls_fail_no_publish", "stream-rolls", rolls_under_events);
}

pub(crate) fn rolls_under_events(cluster: &Cluster) {
    const STREAMS: usize = 16;
    let start = |name: &str| {
        let mut silo = cluster.start(name);
        silo.get(&format!("load_events 1 {STREAMS}"));
        silo
    };
    let mut first = cluster.start("pod-0-0");
    for key in 0..STREAMS {
        first.subscribe(&format!("load-{key}"), "ear", &format!("ear-{key}"));
    }
    first.get(&format!("load_events 1 {STREAMS}"));
    let mut pods = vec![first, start("pod-1-0")];
    let mut published = 0;
    for roll in 1..=ROLLS {
        for (number, pod) in pods.iter_mut().enumerate() {
            let newcomer = start(&format!("pod-{number}-{roll}"));
            let mut leaver = std::mem::replace(pod, newcomer);
            published += end(&mut leaver);
            leaver.drain();
        }
        for pod in &mut pods {
            for probe in 0..PROBES {
                let ended = pod.publish(&format!("load-{probe}"), 0);
                assert_eq!((&*ended.how, ended.value), ("handled", Some(1)), "{roll}: {ended:?}");
            }
        }
    }
    published += pods.iter_mut().map(end).sum::<u64>();
    assert!(published > 10_000, "the load was no load: {published} events");
    assert_eq!(cluster.rows().len(), STREAMS, "every grain subscribes as before");
    tell(&format!("{published} events in {ROLLS} rolls of two silos, each handled"));
}

/// Starts a silo, and its share of the load.
fn begin(cluster: &Cluster, name: &str) -> Silo {
    let mut silo = cluster.start(name);
    silo.get("load 2 64");
    silo
}

/// Ends a silo's share of the load, in which no call failed and none took long; how many there
/// were.
fn end(silo: &mut Silo) -> u64 {
    let load = silo.get("rest");
    let name = silo.process.name();
    let ends = load["ends"].as_object().map_or(0, serde_json::Map::len);
    assert_eq!(ends, 1, "calls of {name} failed: {load}");
    let longest = load["longest_ms"].as_f64().unwrap_or(f64::MAX);
    assert!(longest <= CALL_TIME_MAX_MS, "calls of {name} heard nothing for long: {load}");
    load["ends"]["handled"].as_u64().unwrap_or(0)
}

/// Ten calls by this silo, each answered.
fn probe(silo: &mut Silo, roll: usize) {
    for probe in 0..PROBES {
        let ended = silo.outcome(&format!("call probe-{probe} 10000"));
        assert_eq!(ended.how, "handled", "roll {roll}, {}: {ended:?}", silo.process.name());
    }
}

#[test]
fn a_stopping_silo_refuses_at_once_and_hears_its_own_replies() {
    let cluster = Cluster::new("stopping");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    // Preferring its caller's silo, the grain lives on ann's.
    assert_eq!(ann.outcome("call slow 10000").how, "handled");
    let pending = bob.ask("slow slow 1500 10000");
    let settled = bob.outcome("call mine 10000");
    assert_eq!(settled.how, "handled", "before it leaves everything is taken");

    bob.process.terminate().unwrap();
    let told = |line: &str| line.contains("status=Draining");
    bob.process.wait_for_log(Duration::from_secs(5), told).unwrap();
    // Its shards hear of it a moment after the one that says so.
    let is_leaving = |bob: &mut Silo| bob.outcome("call late 10000").how == "Draining";
    until("it refuses what is new", Duration::from_secs(1), || is_leaving(&mut bob));
    for _ in 0..20 {
        let refused = bob.outcome("call late 10000");
        assert_eq!(refused.how, "Draining");
        assert!(refused.time <= REFUSAL_TIME_MAX, "{refused:?}");
    }
    let answered = bob.ended(pending);
    assert_eq!(answered.how, "handled", "a reply to a leaving silo arrives: {answered:?}");
    let left = bob.process.wait_exit(LEAVING_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(left.code(), Some(0));
    let lines = bob.process.line_count(Stream::Error, "ERROR");
    assert!(lines <= 2, "{lines} errors logged:\n{}", bob.process.log_text());
}

/// H9, with streams: the leaving silo publishes, consumes, and owns one of the two streams.
#[test]
fn a_stopping_silo_hears_of_its_events_and_its_subscriptions_end() {
    let cluster = Cluster::new("stopping-streams");
    let (mut ann, mut bob) = (cluster.start("ann"), cluster.start("bob"));
    ann.settle("ear");
    let (there, own) = (ann.generation, bob.generation);
    let streams = [(there, "there"), (own, "own")];
    let streams = streams.map(|(owner, name)| bob.stream_owned_by(owner, name, "ear"));
    for stream in &streams {
        let listen = format!("listen portal/{stream} {stream} hub claim");
        assert_eq!(bob.result(&listen), "subscribed");
    }
    // The grain is at work for long; the hub of the leaving silo has them at once.
    let slow = |stream: &String| format!("publish {stream} 1 1000 10000");
    let pending = streams.each_ref().map(|stream| bob.ask(&slow(stream)));
    for stream in &streams {
        let hub = format!("portal/{stream}");
        until("it has the event", Duration::from_secs(5), || !bob.events(&hub).is_empty());
    }

    bob.process.terminate().unwrap();
    let told = |line: &str| line.contains("status=Draining");
    bob.process.wait_for_log(Duration::from_secs(5), told).unwrap();
    // Its shards hear of it a moment after the one that says so.
    let refuses = |bob: &mut Silo| bob.publish("nobody", 1).how == "Draining";
    until("it refuses what is new", Duration::from_secs(1), || refuses(&mut bob));
    for _ in 0..20 {
        let published = bob.publish(&streams[0], 2);
        assert_eq!(published.how, "Draining");
        assert!(published.time <= REFUSAL_TIME_MAX, "{published:?}");
    }
    for pending in pending {
        let answered = bob.ended(pending);
        assert_eq!((&*answered.how, answered.value), ("handled", Some(2)), "{answered:?}");
    }
    let left = bob.process.wait_exit(LEAVING_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(left.code(), Some(0));
    let lines = bob.process.line_count(Stream::Error, "ERROR");
    assert!(lines <= 4, "{lines} errors logged:\n{}", bob.process.log_text());
    for stream in &streams {
        let answered = ann.publish(stream, 3);
        assert_eq!((&*answered.how, answered.value), ("handled", Some(1)), "{answered:?}");
        let left: Vec<String> = ann.subscriptions(stream).into_keys().collect();
        assert_eq!(left, ["ear"], "the hub went with its silo");
    }
}
