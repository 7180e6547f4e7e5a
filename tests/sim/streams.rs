//! Streams: every event that was taken in reaches each consumer once, or its publisher hears.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::{DeliveryFailure, Generation, RejectedKind, ViewNumber};
use siloring_pubsub::{Liveness, Overflow, StreamPolicy, SubscribeError};
use siloring_testkit::sim::Fault;

use super::scenario::{New, Note, Outcome, S1, S2, S3, SECOND, check, ensure, up};
use super::streaming::{
    Ended, GAPPY, Listener, ListenerRef as _, Manner, ROOM, activations, begin, dead_letters,
    given, join, listen, numbers, publish, publish_each, range, rows, set_manner, stream_on,
    streams_on, subscribe, wake, write_row,
};

const SOON: Duration = Duration::from_millis(10);

/// S1. Producers and consumers, each as a grain and as a hub or program: 100 events, each once, in
/// order, and handled when the publish says so.
#[test]
fn a_hundred_events_reach_each_consumer_once_and_in_order() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let hub = listen(&mut cluster, S2, "portal/one", "general")?;
        let near = listen(&mut cluster, S3, "portal/two", "general")?;
        subscribe(&mut cluster, S1, "grain", "general", "of a grain")?;
        wake(&mut cluster, S3, "producer")?;
        for number in 1..=100u64 {
            let handled = if number.is_multiple_of(2) {
                let taken = cluster.block_on(S1, move |node| async move {
                    publish(&node, "general", number).await
                })??;
                taken.handled
            } else {
                cluster.block_on(S3, move |node| async move {
                    let producer = node.handle().grain::<Listener>("producer");
                    producer.say("general".to_owned(), number).await
                })??
            };
            ensure!(handled == 3, "{number} was handled by {handled}");
            let heard = hub.numbers().len() + near.numbers().len();
            let all = heard + numbers("grain", "of a grain").len();
            ensure!(all as u64 == 3 * number, "{all} have it when {number} was handled");
        }
        for heard in [hub.numbers(), near.numbers(), numbers("grain", "of a grain")] {
            ensure!(heard == range(1, 100), "{heard:?}");
        }
        Ok(())
    }
    check(scenario, &["stream-unconfirmed"]);
}

/// S1. A thousand at once: batches keep the order.
#[test]
fn events_in_flight_keep_their_order() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let one = listen(&mut cluster, S2, "portal/one", "general")?;
        subscribe(&mut cluster, S1, "grain", "general", "g")?;
        set_manner("grain", Manner::FailsOnce(500));
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        drop(cluster.spawn(S1, move |node| {
            publish_each(node, (ROOM, "general"), 1..=1000, Duration::ZERO, done)
        }));
        cluster.run_for(5 * SECOND)?;
        let handled = ended.borrow().values().filter(|end| end.is_ok()).count();
        ensure!(handled == 1000, "{handled} handled");
        ensure!(one.numbers() == range(1, 1000), "{one:?}");
        let mut of_grain = numbers("grain", "g");
        ensure!(of_grain[499..501] == [500, 500], "tried again before the next");
        of_grain.dedup();
        ensure!(of_grain == range(1, 1000), "{of_grain:?}");
        Ok(())
    }
    check(scenario, &["stream-failure-counts"]);
}

/// S2. The store refuses reads, then writes, then loses its answers: subscribing fails typed each
/// time, and once it is well the same key has one row, and one delivery of each event.
#[test]
fn a_store_that_refuses_leaves_one_row_and_one_delivery() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let refused = |found: &Result<_, SubscribeError>| {
            matches!(found, Err(SubscribeError::Delivery(failure))
                if failure.rejected_kind() == Some(RejectedKind::RegistryUnavailable))
        };
        cluster.inflict(Fault::StoreDown(12 * SECOND));
        let cold = cluster
            .block_on(S1, |node| async move { join(&node, "grain", "general", "g").await })?;
        ensure!(refused(&cold), "cold: {cold:?}");
        cluster.run_for(15 * SECOND)?;
        // The stream is owned from here on: what fails now are writes.
        let one = listen(&mut cluster, S2, "portal/one", "general")?;
        cluster.inflict(Fault::StoreDown(12 * SECOND));
        let warm = cluster
            .block_on(S1, |node| async move { join(&node, "grain", "general", "g").await })?;
        ensure!(refused(&warm), "warm: {warm:?}");
        cluster.run_for(15 * SECOND)?;
        cluster.inflict(Fault::StoreLose(1000, 12 * SECOND));
        let unknown = cluster
            .block_on(S3, |node| async move { join(&node, "grain", "general", "g").await })?;
        let is_unknown = matches!(
            &unknown,
            Err(SubscribeError::Delivery(DeliveryFailure::Indeterminate { .. }))
        );
        ensure!(is_unknown, "unknown commit: {unknown:?}");
        cluster.run_for(15 * SECOND)?;
        ensure!(rows(&mut cluster, "general").len() == 2, "the write had its effect");
        subscribe(&mut cluster, S1, "grain", "general", "g")?;
        let keys: Vec<String> =
            rows(&mut cluster, "general").into_iter().map(|row| row.key).collect();
        ensure!(keys == ["g", "portal/one"], "{keys:?}");
        for number in 1..=10 {
            let taken = cluster
                .block_on(S1, move |node| async move { publish(&node, "general", number).await })?;
            ensure!(taken.as_ref().is_ok_and(|taken| taken.handled == 2), "{taken:?}");
        }
        ensure!(numbers("grain", "g") == range(1, 10), "{:?}", numbers("grain", "g"));
        ensure!(one.numbers() == range(1, 10), "{one:?}");
        Ok(())
    }
    check(scenario, &["stream-write-assumed"]);
}

/// S3. A cold stream whose subscriptions cannot be read holds up no other, and its consumer gets
/// everything from the first event on.
#[test]
fn a_cold_stream_that_is_blocked_holds_up_no_hot_one() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let streams = streams_on(&cluster, S2);
        let (cold, hot) = (streams[0], &streams[1..9]);
        for stream in hot.iter().copied() {
            subscribe(&mut cluster, S1, "hot", stream, stream)?;
            cluster.block_on(S1, move |node| async move { publish(&node, stream, 1).await })??;
        }
        let view = cluster.silo(S1).map(|silo| silo.view().number()).unwrap_or_default();
        write_row(&mut cluster, cold, "c", "test.listener/cold", (None, view));
        cluster.inflict(Fault::StoreHang(8 * SECOND));
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        drop(cluster.spawn(S1, move |node| publish_each(node, (ROOM, cold), 1..=5, SOON, done)));
        cluster.run_for(SECOND)?;
        for stream in hot.iter().copied() {
            for number in 2..=5 {
                let taken = cluster
                    .spawn(S1, move |node| async move { publish(&node, stream, number).await });
                cluster.run_for(Duration::from_millis(100))?;
                let taken = taken.borrow_mut().take();
                ensure!(matches!(taken, Some(Ok(_))), "{stream} {number}: {taken:?}");
            }
        }
        ensure!(numbers("cold", "c").is_empty(), "it could not be read");
        cluster.run_for(20 * SECOND)?;
        ensure!(numbers("cold", "c") == range(1, 5), "{:?}", numbers("cold", "c"));
        ensure!(ended.borrow().values().all(Result::is_ok), "{ended:?}");
        Ok(())
    }
    check(scenario, &["stream-one-cold-blocks-all", "stream-unread-means-none"]);
}

/// S4. One of two subscribers refuses everything: the other gets all of it, at once.
#[test]
fn a_subscriber_that_refuses_costs_the_other_nothing() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        subscribe(&mut cluster, S1, "refuses", "general", "bad")?;
        subscribe(&mut cluster, S2, "takes", "general", "good")?;
        set_manner("refuses", Manner::FailsFrom(1));
        wake(&mut cluster, S1, "refuses")?;
        wake(&mut cluster, S2, "takes")?;
        let ended = Ended::default();
        for number in 1..=20 {
            let done = Rc::clone(&ended);
            drop(cluster.spawn(S3, move |node| {
                publish_each(node, (ROOM, "general"), number..=number, SOON, done)
            }));
            cluster.run_for(Duration::from_millis(30))?;
            let good = numbers("takes", "good");
            ensure!(good == range(1, number), "after {number}: {good:?}");
        }
        cluster.run_for(60 * SECOND)?;
        let ended = ended.borrow();
        let both = |end: &Result<siloring_pubsub::Published, _>| {
            end.as_ref().is_ok_and(|end| (end.handled, end.failed) == (1, 1))
        };
        ensure!(ended.len() == 20 && ended.values().all(both), "{ended:?}");
        ensure!(dead_letters(&mut cluster, "general").len() == 20, "each is kept");
        Ok(())
    }
    check(scenario, &["stream-refusal-blocks-all"]);
}

/// S6. Published all the while: whatever begins after the acknowledgement arrives.
#[test]
fn every_event_after_the_acknowledgement_arrives() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let next = Rc::new(Cell::new(1u64));
        let count = Rc::clone(&next);
        drop(cluster.spawn(S1, move |node| async move {
            while count.get() <= 2000 {
                let publisher = node.clone();
                let number = count.replace(count.get() + 1);
                node.spawn(async move { drop(publish(&publisher, "general", number).await) });
                node.sleep(Duration::from_millis(2)).await;
            }
        }));
        let mut from = Vec::new();
        // The first one subscribes while every publish is refused.
        for grain in ["a", "b", "c", "d", "e", "f"] {
            cluster.run_for(Duration::from_millis(250))?;
            let next = Rc::clone(&next);
            let began = cluster.block_on(S3, move |node| async move {
                join(&node, grain, "general", grain).await.map(|_| next.get())
            })??;
            from.push((grain, began));
        }
        cluster.run_for(10 * SECOND)?;
        ensure!(next.get() > 2000, "{next:?}");
        for (grain, from) in from {
            let heard = numbers(grain, grain);
            let after: Vec<u64> = heard.into_iter().filter(|number| *number >= from).collect();
            ensure!(after == range(from, 2000), "{grain} from {from}: {} of them", after.len());
        }
        Ok(())
    }
    check(scenario, &["stream-cursor-after-answer"]);
}

/// S7. A slow consumer and a fast one of one silo: the fast one keeps pace.
#[test]
fn a_fast_consumer_keeps_pace_beside_a_slow_one() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        for grain in ["slow", "fast"] {
            wake(&mut cluster, S3, grain)?;
            subscribe(&mut cluster, S3, grain, "general", grain)?;
        }
        set_manner("slow", Manner::Slow(Duration::from_millis(400)));
        for number in 1..=20 {
            drop(
                cluster
                    .spawn(S1, move |node| async move { publish(&node, "general", number).await }),
            );
            cluster.run_for(Duration::from_millis(60))?;
            let fast = numbers("fast", "fast");
            ensure!(fast == range(1, number), "after {number}: {fast:?}");
        }
        cluster.run_for(15 * SECOND)?;
        let slow = given("slow", "slow");
        let once: Vec<u64> = slow.iter().map(|given| given.number).collect();
        ensure!(once == range(1, 20), "each once: {slow:?}");
        Ok(())
    }
    check(scenario, &["stream-slow-blocks-all", "stream-events-unknown"]);
}

/// S7. Beyond its credit: the publisher hears, or the consumer hears of the gap.
#[test]
fn beyond_a_consumers_credit_somebody_hears() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let policy = |overflow| {
            let mut policy = StreamPolicy::default();
            (policy.overflow, policy.backlog_max) = (overflow, 8);
            policy
        };
        let builder = new(3).host::<Listener>().streams(|streams| {
            streams.policy(ROOM, policy(Overflow::Refuse));
            streams.policy(GAPPY, policy(Overflow::Gap));
        });
        let mut cluster = up(builder)?;
        set_manner("slow", Manner::Slow(Duration::from_millis(200)));
        set_manner("lossy", Manner::Slow(Duration::from_millis(200)));
        subscribe(&mut cluster, S3, "slow", "general", "slow")?;
        cluster.block_on(S3, |node| async move {
            let stream = node.stream::<Note>(GAPPY, "general");
            stream.subscription("lossy").grain::<Listener>("lossy", Listener::ON_NOTE).await
        })??;
        let (refused, lossy) = (Ended::default(), Ended::default());
        for (stream, ended) in [((ROOM, "general"), &refused), ((GAPPY, "general"), &lossy)] {
            let ended = Rc::clone(ended);
            drop(cluster.spawn(S1, move |node| publish_each(node, stream, 1..=60, SOON, ended)));
        }
        cluster.run_for(50 * SECOND)?;
        let slow = numbers("slow", "slow");
        for (number, end) in refused.borrow().iter() {
            let is_sound = match end {
                Ok(_) => slow.contains(number),
                Err(failure) => failure.name() == "Overloaded" && !slow.contains(number),
            };
            ensure!(is_sound, "{number}: {end:?}");
        }
        let mut missed = 0;
        let mut next = 1;
        for given in given("lossy", "lossy") {
            next += given.missed;
            missed += given.missed;
            ensure!(given.number == next, "{given:?}, {next} was next");
            next += 1;
        }
        let failed = lossy.borrow().values().filter(|end| end.is_err()).count() as u64;
        ensure!(missed > 0 && failed >= missed, "{missed} missed, {failed} told");
        ensure!(lossy.borrow().len() == 60, "each has an outcome");
        Ok(())
    }
    check(scenario, &["stream-gap-untold"]);
}

/// S8. A handler that fails once is given the event again, before any later one; one that always
/// fails with it loses it as a dead letter, and goes on.
#[test]
fn what_fails_comes_again_in_order_and_ends_as_a_dead_letter() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        subscribe(&mut cluster, S2, "once", "general", "once")?;
        subscribe(&mut cluster, S2, "poisoned", "general", "poisoned")?;
        set_manner("once", Manner::FailsOnce(4));
        set_manner("poisoned", Manner::Fails(4));
        let ended = Ended::default();
        let done = Rc::clone(&ended);
        drop(
            cluster.spawn(S1, move |node| publish_each(node, (ROOM, "general"), 1..=8, SOON, done)),
        );
        cluster.run_for(20 * SECOND)?;
        let once: Vec<_> =
            given("once", "once").iter().map(|given| (given.number, given.attempt)).collect();
        let expected = [1, 2, 3, 4, 4, 5, 6, 7, 8].into_iter().scan(0, |last, number| {
            let attempt = if *last == number { 2 } else { 1 };
            *last = number;
            Some((number, attempt))
        });
        ensure!(once == expected.collect::<Vec<(u64, u8)>>(), "{once:?}");
        let attempts: Vec<u8> = given("poisoned", "poisoned")
            .iter()
            .filter(|given| given.number == 4)
            .map(|given| given.attempt)
            .collect();
        ensure!(attempts == [1, 2, 3, 4, 5], "{attempts:?}");
        let mut all = numbers("poisoned", "poisoned");
        all.dedup();
        ensure!(all == range(1, 8), "{all:?}");
        let letters = dead_letters(&mut cluster, "general");
        ensure!(letters.len() == 1 && letters[0].attempts == 5, "{letters:?}");
        ensure!(letters[0].key == "poisoned", "{letters:?}");
        ensure!(letters[0].reason.contains("as it was told to"), "{letters:?}");
        let ended = ended.borrow();
        let failed = ended.get(&4).and_then(|end| end.as_ref().ok()).map(|end| end.failed);
        ensure!(failed == Some(1) && ended.values().all(Result::is_ok), "{ended:?}");
        Ok(())
    }
    check(scenario, &["stream-failure-counts", "stream-no-dead-letters"]);
}

/// S8. The consumer's silo dies while it handles an event: the attempt counts.
#[test]
fn an_attempt_that_took_its_silo_along_is_counted() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S2);
        wake(&mut cluster, S3, "grain")?;
        subscribe(&mut cluster, S3, "grain", stream, "g")?;
        set_manner("grain", Manner::Slow(2 * SECOND));
        let taken = cluster.spawn(S1, move |node| async move { publish(&node, stream, 1).await });
        cluster.run_for(SECOND)?;
        ensure!(numbers("grain", "g") == [1], "it is handling it");
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(25 * SECOND)?;
        let attempts: Vec<u8> = given("grain", "g").iter().map(|given| given.attempt).collect();
        ensure!(attempts == [1, 2], "{attempts:?}");
        let taken = taken.borrow_mut().take();
        ensure!(matches!(taken, Some(Ok(_))), "{taken:?}");
        Ok(())
    }
    check(scenario, &["stream-attempt-after-send"]);
}

/// S9. Several subscriptions of one grain, added and removed, across deactivation: each gets
/// exactly what it is to get; an old handle on one removes nothing.
#[test]
fn subscriptions_of_one_grain_are_counted_each_by_itself() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let say = |cluster: &mut siloring_testkit::sim::Cluster, number: u64| {
            cluster.block_on(S2, move |node| async move {
                for stream in ["a", "b"] {
                    // What nobody subscribes to is refused.
                    drop(publish(&node, stream, number).await);
                }
            })
        };
        let first = subscribe(&mut cluster, S1, "grain", "a", "one")?;
        subscribe(&mut cluster, S1, "grain", "a", "two")?;
        let joined = cluster.block_on(S3, |node| async move {
            node.handle().grain::<Listener>("grain").join("b".to_owned(), "three".to_owned()).await
        })??;
        ensure!(joined, "from its own turn");
        say(&mut cluster, 1)?;
        cluster.block_on(S1, |node| async move {
            node.handle().grain::<Listener>("grain").leave().await
        })??;
        say(&mut cluster, 2)?;
        ensure!(activations("grain") >= 2, "it was activated again");
        // Replaced by another consumer, under the same key.
        let again = cluster.block_on(S1, |node| async move {
            let stream = node.stream::<Note>(ROOM, "a");
            let subscribing = stream.subscription("one").take_over();
            subscribing.grain::<Listener>("heir", Listener::ON_NOTE).await
        })??;
        let late = cluster.block_on(S1, move |node| async move {
            node.stream::<Note>(ROOM, "a").unsubscribe(&first).await
        })?;
        ensure!(matches!(late, Err(SubscribeError::Superseded)), "{late:?}");
        say(&mut cluster, 3)?;
        let ended = cluster.block_on(S1, move |node| async move {
            node.stream::<Note>(ROOM, "a").unsubscribe(&again).await
        })?;
        ensure!(ended.is_ok(), "{ended:?}");
        let second = cluster.block_on(S1, |node| async move {
            node.stream::<Note>(ROOM, "a").subscriptions().await
        })??;
        ensure!(second.len() == 1 && second[0].subscription.key() == "two", "{second:?}");
        subscribe(&mut cluster, S1, "grain", "a", "four")?;
        say(&mut cluster, 4)?;
        let two = second[0].subscription.clone();
        cluster.block_on(S2, move |node| async move {
            node.stream::<Note>(ROOM, "a").unsubscribe(&two).await
        })??;
        say(&mut cluster, 5)?;
        for (grain, key, expected) in [
            ("grain", "one", vec![1, 2]),
            ("heir", "one", vec![3]),
            ("grain", "two", vec![1, 2, 3, 4]),
            ("grain", "three", vec![1, 2, 3, 4, 5]),
            ("grain", "four", vec![4, 5]),
        ] {
            ensure!(numbers(grain, key) == expected, "{key}: {:?}", numbers(grain, key));
        }
        Ok(())
    }
    check(scenario, &["stream-release-by-key-only", "stream-unsubscribes-all"]);
}

/// S13. The consumer is idle, or being collected, when the event comes: it is activated first.
#[test]
fn an_event_activates_its_consumer_first() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        wake(&mut cluster, S3, "grain")?;
        subscribe(&mut cluster, S1, "grain", "general", "g")?;
        for number in 1..=12 {
            // Idle after five seconds: before, at, and after that moment.
            let idle = Duration::from_millis(4_990 + number * 2);
            cluster.run_for(idle)?;
            let taken = cluster
                .block_on(S2, move |node| async move { publish(&node, "general", number).await })?;
            ensure!(taken.is_ok(), "{number}: {taken:?}");
        }
        cluster.run_for(10 * SECOND)?;
        let before = activations("grain");
        let taken =
            cluster.block_on(S2, |node| async move { publish(&node, "general", 13).await })?;
        ensure!(taken.is_ok(), "{taken:?}");
        ensure!(activations("grain") == before + 1, "activated for it");
        ensure!(numbers("grain", "g") == range(1, 13), "{:?}", numbers("grain", "g"));
        Ok(())
    }
    check(scenario, &["stream-only-active"]);
}

/// S16. A subscription is acknowledged, and told to a publisher whose silo still believes that
/// there is none: what it publishes is delivered.
#[test]
fn a_cached_none_refuses_nothing() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S3);
        let refused =
            cluster.block_on(S1, move |node| async move { publish(&node, stream, 0).await })?;
        let kind = refused.err().and_then(|failure| failure.rejected_kind());
        ensure!(kind == Some(RejectedKind::NoSubscriber), "{kind:?}");
        // What the owner tells is a long time on its way.
        cluster.inflict(Fault::Delay(S1, S3, Duration::from_millis(300), 5 * SECOND));
        subscribe(&mut cluster, S2, "grain", stream, "g")?;
        let taken = cluster.block_on(S1, move |node| async move {
            let knows = node.stream::<Note>(ROOM, stream).has_live_subscriber();
            (knows, publish(&node, stream, 1).await)
        })?;
        ensure!(matches!(taken.0, Liveness::None { .. }), "{:?}", taken.0);
        ensure!(taken.1.is_ok(), "{:?}", taken.1);
        ensure!(numbers("grain", "g") == [1], "{:?}", numbers("grain", "g"));
        let knows = cluster.block_on(S1, move |node| async move {
            node.stream::<Note>(ROOM, stream).has_live_subscriber()
        })?;
        ensure!(knows == Liveness::Live(1), "put right by the answer: {knows:?}");
        Ok(())
    }
    check(scenario, &["stream-check-trusted"]);
}

/// S17. A row newer than its reader's view, of an owner that the reader cannot know: it is not
/// judged, and a `NotHere` that was decided in an older view removes nothing. One whose owner is
/// gone from the table is dead, and deleted by whoever sweeps.
#[test]
fn a_row_is_judged_only_in_a_view_that_can_know_it() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let view = cluster.silo(S1).map(|silo| silo.view().number()).unwrap_or_default();
        let later = ViewNumber(view.0 + 5);
        // The generation is the view of its Joining.
        let (newer, pruned) = (Generation(later.0), Generation(1));
        write_row(&mut cluster, "young", "h", "portal/newer", (Some(newer), later));
        write_row(&mut cluster, "old", "h", "portal/pruned", (Some(pruned), view));
        let young = cluster.spawn(S1, |node| async move { publish(&node, "young", 1).await });
        let old = cluster.block_on(S1, |node| async move { publish(&node, "old", 1).await })?;
        let kind = old.err().and_then(|failure| failure.rejected_kind());
        ensure!(kind == Some(RejectedKind::NoSubscriber), "of a pruned owner: {kind:?}");
        cluster.run_for(5 * SECOND)?;
        ensure!(young.borrow().is_none(), "not judged: {young:?}");
        ensure!(rows(&mut cluster, "young").len() == 1, "a row of the future stays");
        // The view that makes somebody sweep.
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(40 * SECOND)?;
        ensure!(rows(&mut cluster, "old").is_empty(), "swept");
        let young = young.borrow_mut().take();
        ensure!(matches!(young, Some(Err(_))), "the publisher hears: {young:?}");
        Ok(())
    }
    check(scenario, &["stream-judged-in-any-view", "stream-rows-without-incarnation"]);
}
