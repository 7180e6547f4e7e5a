//! The gate on the stream leg: who has no live subscriber is told so, and who has one is delivered
//! to, whatever the check, the registry or a subscription left behind may say.

use std::time::Duration;

use siloring::prelude::*;
use siloring_core::event::Event;
use siloring_core::{Address, RejectedKind};
use siloring_pubsub::{Leg, Liveness, SubscribeError, stream_address};
use siloring_runtime::placement::{Placement, place};
use siloring_testkit::sim::{Cluster, Fault, Node, Slot};

use super::scenario::{
    DETECTED, Heard as Told, New, Note, Outcome, S1, S2, S3, SECOND, check, ensure, up,
};
use super::streaming::{
    Heard, Listener, Manner, ROOM, begin, confirm_all, given, listen, publish, range, rows,
    set_manner, stream_on, subscribe, usage, wake,
};

/// One way on the simulated network, at its longest.
const ONE_WAY: Duration = Duration::from_micros(500);
/// To the store and back, at its longest.
const STORE: Duration = Duration::from_millis(6);

/// Sends a note to a hub over the stream leg.
pub(crate) async fn send(node: &Node, hub: &str, number: u64) -> Told {
    let began = node.now();
    let hub = node.handle().hub_ref(hub).expect("the tests' addresses are plain");
    let route = node.streams().route(hub).leg(Leg::Stream);
    let sent = Note { number, bytes: Vec::new() };
    let failure = route.send::<Note, Note>(&sent).await.err();
    Told { failure, took: node.now().since(began) }
}

/// Opens a hub that is reached over its stream, and answers each note with itself.
pub(crate) fn reach(cluster: &mut Cluster, slot: Slot, hub: &'static str) -> Outcome {
    cluster.block_on(slot, move |node| async move {
        let mut hub = node.handle().hub(hub)?.open().await?;
        node.streams().reach(&hub, true).await?;
        node.spawn(async move {
            while let Some(delivery) = hub.next().await {
                if let Ok(note) = delivery.message::<Note>() {
                    delivery.answer(&note);
                }
            }
        });
        Ok::<_, Box<dyn std::error::Error>>(())
    })?
}

/// A hub's address whose stream is owned by the silo of `slot`.
pub(crate) fn hub_on(cluster: &Cluster, slot: Slot) -> &'static str {
    let silo = cluster.silo(slot).expect("a silo lives in the slot");
    let me = silo.incarnation().expect("it has joined").generation;
    let all = (0..400).map(|number| &*format!("portal/h{number}").leak());
    let mut owned = all.filter(|hub| {
        let stream = stream_of(hub);
        let place = place(Placement::Hash, stream.hash(), me, &silo.view());
        place.is_some_and(|place| place.silo == me)
    });
    owned.next().expect("one of so many")
}

fn stream_of(hub: &str) -> Address {
    stream_address("hub", hub).expect("a plain address")
}

/// G1. A delivery over the stream leg to an address that nobody has registered.
#[test]
fn a_delivery_over_the_stream_leg_to_nobody_is_refused_within_five_round_trips() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let builder = new(3)
            .world(|world| world.network.latency_tail = ONE_WAY)
            .streams(|streams| streams.stream_routed_kind("portal"));
        let mut cluster = up(builder)?;
        for slot in [S1, S2, S3] {
            for number in 0..10 {
                let told = cluster.block_on(slot, move |node| async move {
                    send(&node, "portal/browser-7", number).await
                })?;
                ensure!(told.name() == "NoSubscriber", "{told:?}");
                ensure!(told.took <= 10 * ONE_WAY + STORE, "{told:?}");
            }
        }
        // The refusal has a sibling.
        reach(&mut cluster, S2, "portal/browser-7")?;
        let told =
            cluster.block_on(S1, |node| async move { send(&node, "portal/browser-7", 1).await })?;
        ensure!(told.name() == "Handled", "{told:?}");
        Ok(())
    }
    check(scenario, &["stream-nobody-suffices"]);
}

/// G6. The process of a hub is killed; who sends over its stream goes on.
#[test]
fn sends_over_the_stream_of_a_killed_process_turn_to_no_subscriber() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let builder = new(3).streams(|streams| streams.stream_routed_kind("portal"));
        let mut cluster = up(builder)?;
        let hub = hub_on(&cluster, S2);
        reach(&mut cluster, S3, hub)?;
        let period = Duration::from_millis(200);
        let mut sent = Vec::new();
        for number in 0..200u32 {
            if number == 25 {
                cluster.inflict(Fault::Kill(S3));
            }
            let one = cluster
                .spawn(S1, move |node| async move { send(&node, hub, u64::from(number)).await });
            sent.push((number, one));
            cluster.run_for(period)?;
        }
        for (number, told) in sent {
            let Some(told) = told.borrow_mut().take() else {
                return Err(format!("{number} is open").into());
            };
            ensure!(told.took <= DETECTED, "{number}: {told:?}");
            if number < 25 {
                ensure!(told.name() == "Handled", "{number}: {told:?}");
            } else if period * (number - 25) > DETECTED {
                ensure!(told.name() == "NoSubscriber", "{number}: {told:?}");
            }
        }
        let left =
            cluster.ask_store(&siloring_core::ports::store::StoreRequest::LoadSubscriptions {
                stream: stream_of(hub),
            });
        let gone = matches!(&left, Ok(siloring_core::ports::store::StoreAnswer::Subscriptions {
            rows, ..
        }) if rows.is_empty());
        ensure!(gone, "its row is gone: {left:?}");
        let lines = cluster.world().event_count("DeliveriesFailed");
        ensure!(lines <= 3, "at most a line and one a minute, not {lines}");
        Ok(())
    }
    check(scenario, &["stream-rows-without-incarnation"]);
}

/// G7. The subscriber leaves between the check and the delivery: the sender hears.
#[test]
fn a_subscriber_that_leaves_before_the_delivery_is_missed() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3))?;
        let stream = stream_on(&cluster, S2);
        let heard = listen(&mut cluster, S3, "portal/leaves", stream)?;
        cluster.block_on(S1, move |node| async move { publish(&node, stream, 1).await })??;
        cluster.inflict(Fault::Delay(S2, S3, Duration::from_millis(200), 5 * SECOND));
        let taken = cluster.spawn(S1, move |node| async move {
            let knows = node.stream::<Note>(ROOM, stream).has_live_subscriber();
            (knows, publish(&node, stream, 2).await)
        });
        cluster.run_for(Duration::from_millis(50))?;
        heard.close();
        cluster.run_for(5 * SECOND)?;
        let Some((knows, taken)) = taken.borrow_mut().take() else { return Err("open".into()) };
        ensure!(knows == Liveness::Live(1), "the check said yes: {knows:?}");
        let kind = taken.as_ref().err().and_then(DeliveryFailure::rejected_kind);
        let says = matches!(kind, Some(RejectedKind::NotHere | RejectedKind::NoSubscriber));
        ensure!(says, "{taken:?}");
        ensure!(heard.numbers() == [1], "{heard:?}");
        Ok(())
    }
    check(scenario, &["stream-unconfirmed"]);
}

/// G10. The publisher's silo is gone when its event was handled: one event says so, and nothing is
/// sent.
#[test]
fn an_outcome_that_finds_no_publisher_is_one_event_and_no_refusal() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S2);
        wake(&mut cluster, S3, "late")?;
        subscribe(&mut cluster, S3, "late", stream, "g")?;
        set_manner("late", Manner::Slow(15 * SECOND));
        drop(cluster.spawn(S1, move |node| async move { publish(&node, stream, 1).await }));
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Kill(S1));
        cluster.run_for(40 * SECOND)?;
        ensure!(given("late", "g").len() == 1, "{:?}", given("late", "g"));
        let orphans = cluster.world().events().iter().filter_map(|kept| {
            if let Event::ReplyOrphaned { source, failure, .. } = &kept.event {
                return Some((source.as_str().to_owned(), failure.name()));
            }
            None
        });
        let orphans: Vec<_> = orphans.collect();
        let address = stream_address(ROOM, stream)?;
        ensure!(orphans.len() == 1 && orphans[0].0 == address.as_str(), "{orphans:?}");
        ensure!(cluster.world().event_count("DeadLetter") == 0, "no failure of a failure");
        Ok(())
    }
    check(scenario, &["orphans-untold"]);
}

/// G11. A publish to a stream that nobody has ever heard of.
#[test]
fn a_publish_to_nobody_is_refused_and_leaves_nothing() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3))?;
        for number in 0..20 {
            let refused = cluster
                .block_on(S1, move |node| async move { publish(&node, "none", number).await })?;
            let kind = refused.err().and_then(|failure| failure.rejected_kind());
            ensure!(kind == Some(RejectedKind::NoSubscriber), "{kind:?}");
        }
        ensure!(rows(&mut cluster, "none").is_empty(), "publishing writes nothing");
        cluster.run_for(SECOND)?;
        for slot in [S1, S2, S3] {
            let left = usage(&mut cluster, slot)?;
            ensure!(left == siloring_pubsub::StreamUsage::default(), "{slot}: {left:?}");
        }
        let heard = listen(&mut cluster, S2, "portal/a", "some")?;
        let taken = cluster.block_on(S1, |node| async move { publish(&node, "some", 1).await })?;
        ensure!(taken.as_ref().is_ok_and(|taken| taken.handled == 1), "{taken:?}");
        ensure!(heard.numbers() == [1], "{heard:?}");
        Ok(())
    }
    check(scenario, &["stream-publisher-rows", "stream-nobody-suffices"]);
}

/// H6. A successor has taken the subscription over: the predecessor's late unsubscribe, and the
/// sweep that follows its death, leave it subscribed.
#[test]
fn a_late_unsubscribe_of_the_predecessor_leaves_the_successor_subscribed() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3))?;
        let stream = stream_on(&cluster, S1);
        let old = listen(&mut cluster, S2, "portal/mirror", stream)?;
        let heard = Heard::default();
        let seen = heard.clone();
        cluster.block_on(S3, move |node| async move {
            let hub = node.handle().hub("portal/mirror")?.take_over().open().await?;
            let stream = node.stream::<Note>(ROOM, stream);
            let plain = stream.subscription("portal/mirror").hub(&hub).await;
            ensure!(matches!(plain, Err(SubscribeError::Taken { .. })), "{plain:?}");
            stream.subscription("portal/mirror").take_over().hub(&hub).await?;
            node.spawn(confirm_all(node.clone(), hub, seen));
            Ok::<_, Box<dyn std::error::Error>>(())
        })??;
        let subscription = old.subscription();
        let late = cluster.block_on(S2, move |node| async move {
            node.stream::<Note>(ROOM, stream).unsubscribe(&subscription).await
        })?;
        ensure!(matches!(late, Err(SubscribeError::Superseded)), "{late:?}");
        cluster.block_on(S1, move |node| async move { publish(&node, stream, 1).await })??;
        cluster.inflict(Fault::Kill(S2));
        cluster.run_for(30 * SECOND)?;
        cluster.block_on(S1, move |node| async move { publish(&node, stream, 2).await })??;
        ensure!(heard.numbers() == [1, 2] && old.numbers().is_empty(), "{heard:?} {old:?}");
        ensure!(rows(&mut cluster, stream).len() == 1, "one row");
        Ok(())
    }
    check(scenario, &["stream-release-by-key-only"]);
}

/// H11. A live mirror stays subscribed although it could not be reached for longer than a publisher
/// waits, and the silos around it are replaced; once its hub is closed, one terminal answer evicts
/// it.
#[test]
fn a_live_mirror_stays_subscribed_and_a_dead_one_is_evicted() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3))?;
        let stream = stream_on(&cluster, S2);
        let heard = listen(&mut cluster, S3, "portal/mirror", stream)?;
        cluster.inflict(Fault::Refuse(S2, S3, 10 * SECOND));
        let away = cluster.block_on(S1, move |node| async move {
            let note = Note { number: 1_000, bytes: Vec::new() };
            node.stream::<Note>(ROOM, stream).publish(&note).deadline(3 * SECOND).await
        })?;
        ensure!(away.is_err(), "it cannot be reached: {away:?}");
        cluster.run_for(20 * SECOND)?;
        let mut sent = 0;
        let faults = [
            Fault::Drain(S2),
            Fault::Start(S2),
            Fault::Drain(S1),
            Fault::Start(S1),
            Fault::Reset(S2, S3),
        ];
        for fault in faults {
            cluster.inflict(fault);
            for _ in 0..10 {
                sent += 1;
                let number = sent;
                let taken = cluster.block_on(S3, move |node| async move {
                    publish(&node, stream, number).await
                })?;
                ensure!(taken.is_ok(), "{number} after {fault}: {taken:?}");
                cluster.run_for(SECOND)?;
            }
        }
        ensure!(heard.numbers() == range(1, sent), "{:?}", heard.numbers());
        ensure!(rows(&mut cluster, stream).len() == 1, "it stays subscribed");
        heard.close();
        cluster.run_for(SECOND)?;
        for number in 0..2 {
            let taken = cluster
                .block_on(S3, move |node| async move { publish(&node, stream, number).await })?;
            ensure!(taken.is_err(), "{taken:?}");
        }
        cluster.run_for(SECOND)?;
        let evicted = cluster.world().event_count("SubscriberEvicted");
        ensure!(evicted == 1 && rows(&mut cluster, stream).is_empty(), "{evicted} evicted");
        Ok(())
    }
    check(scenario, &["stream-evict-on-transient", "stream-rows-without-incarnation"]);
}
