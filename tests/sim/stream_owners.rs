//! Owners of streams come and go: there is one in a view, and what is confirmed stays confirmed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_core::limits::OWNER_LEAVES_AFTER;
use siloring_core::ring::position;
use siloring_pubsub::{Leg, StreamPolicy, stream_address};
use siloring_testkit::sim::{Cluster, Fault, Node, Slot};

use super::scenario::{
    Echo, EchoRef as _, New, Note, Outcome, S1, S2, S3, S4, SECOND, check, echo_owned_by, ensure,
    process, up,
};
use super::stream_gate::{hub_on, reach, send};
use super::streaming::{
    Ended, Listener, Manner, ROOM, begin, given, listen, numbers, owner_of_all, publish,
    publish_each, range, set_manner, stream_on, streams_on, subscribe, usage, wake,
};

const SOON: Duration = Duration::from_millis(20);

/// G3, stream leg. Requests over a hub's stream, while the silo that owns the stream and its range
/// leaves in order: each is answered.
#[test]
fn answers_over_the_stream_leg_survive_the_leaving_of_its_owner() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let builder = new(3).streams(|streams| streams.stream_routed_kind("portal"));
        let mut cluster = up(builder)?;
        let hub = hub_on(&cluster, S3);
        reach(&mut cluster, S1, hub)?;
        let mut sent = Vec::new();
        for number in 0..200 {
            if number == 50 {
                cluster.inflict(Fault::Drain(S3));
            }
            sent.push(cluster.spawn(S2, move |node| async move { send(&node, hub, number).await }));
            cluster.run_for(SOON)?;
        }
        cluster.run_for(20 * SECOND)?;
        for (number, told) in sent.iter().enumerate() {
            let told = told.borrow_mut().take();
            ensure!(told.as_ref().is_some_and(|t| t.name() == "Handled"), "{number}: {told:?}");
        }
        Ok(())
    }
    check(scenario, &["stream-memory-registry"]);
}

/// G3, stream leg. The owner of a hub's stream is killed when the hub has answered and the answer
/// has not come: what is sent again hears the same answer, and the hub is not asked twice.
#[test]
fn an_answer_over_the_stream_leg_outlives_its_owner() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let builder = new(3).streams(|streams| streams.stream_routed_kind("portal"));
        let mut cluster = up(builder)?;
        let hub = hub_on(&cluster, S3);
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        cluster.block_on(S1, move |node| async move {
            let mut hub = node.handle().hub(hub)?.open().await?;
            node.streams().reach(&hub, true).await?;
            node.spawn(async move {
                while let Some(delivery) = hub.next().await {
                    count.set(count.get() + 1);
                    delivery.answer(&Note { number: 100 + count.get(), bytes: Vec::new() });
                }
            });
            Ok::<_, Box<dyn std::error::Error>>(())
        })??;
        let told = cluster.block_on(S2, move |node| async move { send(&node, hub, 1).await })?;
        ensure!(told.name() == "Handled" && asked.get() == 1, "{told:?}");
        cluster.inflict(Fault::Delay(S1, S3, Duration::from_millis(300), 5 * SECOND));
        let answer = cluster.spawn(S2, move |node| ask(node, hub));
        cluster.run_for(Duration::from_millis(450))?;
        ensure!(asked.get() == 2 && answer.borrow().is_none(), "it has answered: {answer:?}");
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(20 * SECOND)?;
        let answer = answer.borrow_mut().take();
        ensure!(matches!(answer, Some(Ok(102))), "{answer:?}");
        ensure!(asked.get() == 2, "it was asked {} times", asked.get());
        Ok(())
    }
    check(scenario, &["answers-forgotten"]);
}

/// Asks a hub over the stream leg for a number.
async fn ask(node: Node, hub: &'static str) -> Result<u64, DeliveryFailure> {
    let hub = node.handle().hub_ref(hub).expect("the tests' addresses are plain");
    let route = node.streams().route(hub).leg(Leg::Stream);
    let sent = Note { number: 2, bytes: Vec::new() };
    route.send::<Note, Note>(&sent).await.map(|note| note.number)
}

/// G4. As G3; sixteen minutes later, when the owner has long been idle, it moves again.
#[test]
fn a_cold_stream_whose_owner_has_moved_twice_still_knows_its_hub() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let builder = new(3).streams(|streams| streams.stream_routed_kind("portal"));
        let mut cluster = up(builder)?;
        let hub = hub_on(&cluster, S3);
        reach(&mut cluster, S1, hub)?;
        let told = cluster.block_on(S2, move |node| async move { send(&node, hub, 1).await })?;
        ensure!(told.name() == "Handled", "{told:?}");
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(20 * SECOND)?;
        cluster.inflict(Fault::Start(S3));
        cluster.run_for(Duration::from_mins(16))?;
        for slot in [S1, S2, S3] {
            let owners = usage(&mut cluster, slot)?.owners;
            ensure!(owners == 0, "{slot}: the owner is not cold");
        }
        cluster.inflict(Fault::Drain(S2));
        cluster.run_for(20 * SECOND)?;
        for slot in [S1, S3] {
            let told =
                cluster.block_on(slot, move |node| async move { send(&node, hub, 2).await })?;
            ensure!(told.name() == "Handled", "from {slot}: {told:?}");
        }
        Ok(())
    }
    check(scenario, &["stream-memory-registry"]);
}

/// G5. The registry has lost the subscription, its stream's owner has not: no refusal, nobody is
/// evicted.
#[test]
fn a_lost_registry_evicts_nobody_from_a_warm_owner() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let builder = new(3).streams(|streams| streams.stream_routed_kind("portal"));
        let mut cluster = up(builder)?;
        let hub = hub_on(&cluster, S3);
        cluster.inflict(Fault::StoreLag(2 * SECOND));
        reach(&mut cluster, S1, hub)?;
        cluster.run_for(5 * SECOND)?;
        let stream = stream_address("hub", hub)?;
        let left = siloring_core::ports::store::StoreRequest::LoadSubscriptions { stream };
        let lost = format!("{:?}", cluster.ask_store(&left));
        ensure!(lost.contains("rows: []"), "the row is lost: {lost}");
        for number in 0..20 {
            let told =
                cluster.block_on(S2, move |node| async move { send(&node, hub, number).await })?;
            ensure!(told.name() == "Handled", "{told:?}");
            cluster.run_for(SECOND)?;
        }
        ensure!(cluster.world().event_count("SubscriberEvicted") == 0, "nobody is evicted");
        Ok(())
    }
    check(scenario, &["stream-registry-trusted"]);
}

/// A consumer does not answer while the silo of its stream's owner leaves: everybody else finds the
/// next owner at once.
#[test]
fn an_owner_whose_consumer_is_stuck_leaves_with_its_silo() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S3);
        // A hub that reads nothing.
        let stuck = cluster.block_on(S1, move |node| async move {
            let hub = node.handle().hub("portal/stuck")?.open().await?;
            node.stream::<Note>(ROOM, stream).subscription("stuck").hub(&hub).await?;
            Ok::<_, Box<dyn std::error::Error>>(hub)
        })??;
        let ended = Ended::default();
        let outcomes = Rc::clone(&ended);
        drop(
            cluster
                .spawn(S2, move |node| publish_each(node, (ROOM, stream), 1..=3, SOON, outcomes)),
        );
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(SECOND)?;
        let took = cluster.block_on(S2, move |node| async move {
            let began = node.now();
            let stream = node.stream::<Note>(ROOM, stream);
            let made = stream.subscription("late").grain::<Listener>("late", Listener::ON_NOTE);
            made.await.map(|_made| node.now().since(began))
        })??;
        ensure!(took < 4 * SECOND, "it took {took:?} to subscribe");
        drop(stuck);
        cluster.run_for(40 * SECOND)?;
        ensure!(ended.borrow().len() == 3, "each has an outcome: {ended:?}");
        Ok(())
    }
    check(scenario, &["stream-owner-stays"]);
}

/// An event is refused by an owner that leaves while an earlier one is still at work there: when it
/// comes to the next owner it names that one as open, though it has its outcome. It is handled at
/// once all the same.
#[test]
fn an_event_does_not_wait_at_the_next_owner_for_one_that_the_last_has_closed() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S3);
        wake(&mut cluster, S1, "slow")?;
        subscribe(&mut cluster, S1, "slow", stream, "slow")?;
        set_manner("slow", Manner::Slow(Duration::from_millis(300)));
        let ended = Ended::default();
        let publish = |cluster: &mut Cluster, number: u64| {
            let done = Rc::clone(&ended);
            drop(cluster.spawn(S2, move |node| {
                publish_each(node, (ROOM, stream), number..=number, SOON, done)
            }));
        };
        publish(&mut cluster, 1);
        cluster.run_for(Duration::from_millis(100))?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(Duration::from_millis(50))?;
        ensure!(ended.borrow().is_empty(), "the first is at work");
        publish(&mut cluster, 2);
        cluster.run_for(2 * SECOND)?;
        let ended = ended.borrow();
        ensure!(ended.len() == 2 && ended.values().all(Result::is_ok), "{ended:?}");
        ensure!(numbers("slow", "slow") == range(1, 2), "{:?}", numbers("slow", "slow"));
        let epochs = given("slow", "slow");
        ensure!(epochs[0].epoch < epochs[1].epoch, "one owner had both: {epochs:?}");
        Ok(())
    }
    check(scenario, &[]);
}

/// G8. The silo that owns a stream is killed with events that nobody has confirmed: each is handled
/// once after its successor has taken over.
#[test]
fn unconfirmed_events_of_a_killed_owner_are_handled_once() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S3);
        wake(&mut cluster, S1, "slow")?;
        subscribe(&mut cluster, S1, "slow", stream, "slow")?;
        set_manner("slow", Manner::Slow(Duration::from_millis(50)));
        let fast = listen(&mut cluster, S2, "portal/fast", stream)?;
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        drop(cluster.spawn(S2, move |node| {
            publish_each(node, (ROOM, stream), 1..=60, Duration::from_millis(10), done)
        }));
        cluster.run_for(Duration::from_millis(500))?;
        let before = numbers("slow", "slow").len();
        ensure!((1..60).contains(&before), "{before} were begun");
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(30 * SECOND)?;
        let ended = ended.borrow();
        ensure!(ended.len() == 60 && ended.values().all(Result::is_ok), "{ended:?}");
        for (who, heard) in [("slow", numbers("slow", "slow")), ("fast", fast.numbers())] {
            ensure!(heard == range(1, 60), "{who}: {heard:?}");
        }
        Ok(())
    }
    check(scenario, &["stream-no-window", "stream-events-unknown", "stream-lanes-unordered"]);
}

/// S5. The owner leaves in order while one consumer has confirmed five events and another nine, and
/// a third attaches: none misses any, none is given again what it has confirmed.
#[test]
fn a_hand_over_loses_and_repeats_nothing() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut policy = StreamPolicy::default();
        policy.attempts_max = 200;
        let builder = new(3).host::<Listener>().streams(|streams| streams.policy(ROOM, policy));
        let mut cluster = up(builder)?;
        let stream = stream_on(&cluster, S3);
        for grain in ["five", "nine", "third"] {
            wake(&mut cluster, S1, grain)?;
        }
        subscribe(&mut cluster, S1, "five", stream, "a")?;
        subscribe(&mut cluster, S1, "nine", stream, "b")?;
        set_manner("five", Manner::FailsFrom(6));
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        drop(cluster.spawn(S2, move |node| publish_each(node, (ROOM, stream), 1..=9, SOON, done)));
        cluster.run_for(SECOND)?;
        ensure!(numbers("nine", "b") == range(1, 9), "{:?}", numbers("nine", "b"));
        ensure!(ended.borrow().len() == 5, "five are confirmed by both: {ended:?}");
        cluster.inflict(Fault::Drain(S3));
        let third = cluster.spawn(S1, move |node| async move {
            let stream = node.stream::<Note>(ROOM, stream);
            stream.subscription("c").grain::<Listener>("third", Listener::ON_NOTE).await
        });
        let done = Rc::clone(&ended);
        drop(
            cluster.spawn(S2, move |node| publish_each(node, (ROOM, stream), 10..=15, SOON, done)),
        );
        // Longer than a silo that leaves waits for its turns.
        cluster.run_for(16 * SECOND)?;
        set_manner("five", Manner::Well);
        cluster.run_for(20 * SECOND)?;
        let third = third.borrow_mut().take();
        ensure!(matches!(third, Some(Ok(_))), "{third:?}");
        let done = Rc::clone(&ended);
        drop(
            cluster.spawn(S2, move |node| publish_each(node, (ROOM, stream), 16..=20, SOON, done)),
        );
        cluster.run_for(5 * SECOND)?;
        let ended = ended.borrow();
        ensure!(ended.len() == 20 && ended.values().all(Result::is_ok), "{ended:?}");
        ensure!(numbers("nine", "b") == range(1, 20), "{:?}", numbers("nine", "b"));
        let mut five = numbers("five", "a");
        ensure!(five.iter().filter(|number| **number <= 5).count() == 5, "{five:?}");
        five.dedup();
        ensure!(five == range(1, 20), "{five:?}");
        let third = numbers("third", "c");
        let first = third.first().copied().unwrap_or_default();
        ensure!(first <= 16 && third == range(first, 20), "{third:?}");
        Ok(())
    }
    check(scenario, &["stream-no-window", "stream-events-unknown"]);
}

/// S11. Four silos, three, one, four; the owner of the stream is stopped and woken meanwhile: there
/// is one owner in a view, and nobody hears an older one.
#[test]
fn a_woken_owner_is_not_heard_by_anybody() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(4).host::<Listener>())?;
        let stream = stream_on(&cluster, S4);
        wake(&mut cluster, S1, "grain")?;
        subscribe(&mut cluster, S1, "grain", stream, "g")?;
        let hub = listen(&mut cluster, S1, "portal/mirror", stream)?;
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        let pace = Duration::from_millis(100);
        drop(
            cluster.spawn(S1, move |node| publish_each(node, (ROOM, stream), 1..=1000, pace, done)),
        );
        cluster.run_for(3 * SECOND)?;
        ensure!(owner_of_all(&mut cluster)? == S4, "the fourth owns it");
        let woken = process(&cluster, S4)?;
        cluster.inflict(Fault::Pause(S4, 20 * SECOND));
        cluster.run_for(27 * SECOND)?;
        let life = cluster.world().life(woken);
        ensure!(!life.is_alive(), "who was woken has ended: {life:?}");
        cluster.inflict(Fault::Kill(S4));
        cluster.inflict(Fault::Kill(S2));
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(35 * SECOND)?;
        for slot in [S2, S3, S4] {
            cluster.inflict(Fault::Start(slot));
        }
        cluster.run_until(60 * SECOND, "whole again", Cluster::is_whole)?;
        cluster.run_for(70 * SECOND)?;
        let ended = ended.borrow();
        ensure!(ended.len() == 1000, "{} have an outcome", ended.len());
        let handled: Vec<u64> =
            ended.iter().filter(|(_, end)| end.is_ok()).map(|(number, _)| *number).collect();
        ensure!(handled.len() > 990, "{} were handled", handled.len());
        let of_grain = given("grain", "g");
        for (who, heard) in [("grain", numbers("grain", "g")), ("hub", hub.numbers())] {
            ensure!(heard.is_sorted(), "{who}: {heard:?}");
            for number in &handled {
                let times = heard.iter().filter(|heard| *heard == number).count();
                ensure!(times == 1, "{who} has {number} {times} times");
            }
        }
        ensure!(of_grain.is_sorted_by_key(|given| given.epoch), "an older owner was heard");
        let mut owners = 0;
        for slot in [S1, S2, S3, S4] {
            owners += usage(&mut cluster, slot)?.owners;
        }
        ensure!(owners == 1, "{owners} own the stream");
        Ok(())
    }
    check(scenario, &["stream-no-window", "ignores-own-death"]);
}

/// S11. An owner leaves while a frame of its events is on a slow way; the next one delivers them
/// first: the consumer hears nothing of the old one any more.
#[test]
fn a_late_frame_of_an_owner_that_has_left_is_not_heard() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>().host::<Echo>())?;
        let stream = stream_between(&cluster, S3, S2).ok_or("no such stream")?;
        wake(&mut cluster, S1, "slow")?;
        subscribe(&mut cluster, S1, "slow", stream, "slow")?;
        cluster.block_on(S2, move |node| async move { publish(&node, stream, 1).await })??;
        set_manner("slow", Manner::Slow(Duration::from_millis(300)));
        let way = 2 * SECOND;
        cluster.inflict(Fault::Delay(S1, S3, way, 15 * SECOND));
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        drop(cluster.spawn(S2, move |node| publish_each(node, (ROOM, stream), 2..=10, SOON, done)));
        // A turn that keeps the silo until the frame has come.
        // Whose entry is on no slow way.
        let stays = echo_owned_by(&cluster, S2, S1);
        cluster.block_on(S3, move |node| async move {
            node.handle().grain::<Echo>(stays).echo().await
        })??;
        drop(cluster.spawn(S3, move |node| async move {
            node.handle().grain::<Echo>(stays).echo_after(7_000).await
        }));
        // The second event comes there alone; when that is known, the others go together.
        cluster.run_for(2 * way + Duration::from_millis(350))?;
        ensure!(given("slow", "slow").len() == 2, "{:?}", given("slow", "slow"));
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(30 * SECOND)?;
        let ended = ended.borrow();
        ensure!(ended.len() == 9 && ended.values().all(Result::is_ok), "{ended:?}");
        let given = given("slow", "slow");
        ensure!(given.is_sorted_by_key(|given| given.epoch), "an old owner was heard: {given:?}");
        ensure!(numbers("slow", "slow") == range(1, 10), "{given:?}");
        let refused = cluster.world().event_count("StaleOwnerRefused");
        ensure!(refused > 0, "the late frame has come");
        Ok(())
    }
    check(scenario, &["stale-owners-heard"]);
}

/// A stream whose owner is placed on one silo, and whose entry is kept by another.
fn stream_between(cluster: &Cluster, owner: Slot, entry: Slot) -> Option<&'static str> {
    let kept = cluster.silo(entry)?;
    let keeper = kept.incarnation()?.generation;
    let view = kept.view();
    streams_on(cluster, owner).into_iter().find(|key| {
        let address = stream_address(ROOM, key).expect("a plain name");
        view.ring().owner(position(address.hash())).is_some_and(|place| place.silo == keeper)
    })
}

/// H9. A silo that stops owns streams, and has publishes under way: none is lost.
#[test]
fn a_silo_that_stops_loses_no_event() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let (own, far) = (stream_on(&cluster, S3), stream_on(&cluster, S1));
        for (grain, stream) in [("own", own), ("far", far)] {
            wake(&mut cluster, S2, grain)?;
            subscribe(&mut cluster, S2, grain, stream, grain)?;
        }
        set_manner("far", Manner::Slow(2 * SECOND));
        let pending = cluster.spawn(S3, move |node| async move { publish(&node, far, 1).await });
        // What is on its way when the silo begins to leave comes after that.
        cluster.inflict(Fault::Delay(S1, S3, Duration::from_millis(50), 30 * SECOND));
        let ended = Rc::new(RefCell::new(Vec::new()));
        let done = Rc::clone(&ended);
        drop(cluster.spawn(S1, move |node| publish_timed(node, own, 1..=400, done)));
        cluster.run_for(Duration::from_millis(500))?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(30 * SECOND)?;
        let pending = pending.borrow_mut().take();
        ensure!(matches!(pending, Some(Ok(_))), "its own was answered: {pending:?}");
        let ended = ended.borrow();
        let failed = ended.iter().filter(|(_, is_ok)| !is_ok).count();
        ensure!(ended.len() == 400 && failed == 0, "{failed} of {} failed", ended.len());
        let slowest = ended.iter().map(|(took, _)| *took).max().unwrap_or_default();
        ensure!(slowest < OWNER_LEAVES_AFTER + SECOND, "one took {slowest:?}");
        ensure!(numbers("own", "own") == range(1, 400), "{:?}", numbers("own", "own"));
        Ok(())
    }
    check(scenario, &["stream-memory-registry", "inbound-dropped-at-stop"]);
}

/// Publishes these numbers, one each five milliseconds: how long each took, and whether it was
/// handled.
async fn publish_timed(
    node: Node,
    stream: &'static str,
    numbers: std::ops::RangeInclusive<u64>,
    ended: Rc<RefCell<Vec<(Duration, bool)>>>,
) {
    for number in numbers {
        let (publisher, ended) = (node.clone(), Rc::clone(&ended));
        node.spawn(async move {
            let began = publisher.now();
            let is_ok = publish(&publisher, stream, number).await.is_ok();
            ended.borrow_mut().push((publisher.now().since(began), is_ok));
        });
        node.sleep(Duration::from_millis(5)).await;
    }
}
