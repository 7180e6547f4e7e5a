//! Consumers that move while events flow to them: they keep their subscriptions.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use siloring_testkit::sim::{Cluster, Fault, Slot};

use super::scenario::{New, Note, Outcome, S1, S2, S3, SECOND, check, ensure, owned, up};
use super::streaming::{
    Ended, Heard, Listener, ROOM, begin, confirm_all, listen, numbers, publish, publish_each,
    range, rows, stream_on, streams_on, subscribe, wake,
};

/// Some of them live on the shard that the agent of their silo is on, and some do not.
const HUBS: [&str; 4] = ["portal/a", "portal/b", "portal/c", "portal/d"];

/// Opens a hub in place of the one that lives elsewhere, and subscribes it after a while; nothing
/// that comes before that is lost, though nobody reads it.
fn move_to(
    cluster: &mut Cluster,
    slot: Slot,
    hub: &'static str,
    streams: &[&'static str],
    after: Duration,
) -> Heard {
    let heard = Heard::default();
    let (seen, streams) = (heard.clone(), streams.to_vec());
    drop(cluster.spawn(slot, move |node| async move {
        let hub = node.handle().hub(hub)?.take_over().open().await?;
        node.sleep(after).await;
        for stream in streams {
            let stream = node.stream::<Note>(ROOM, stream);
            stream.subscription(hub.address().as_str()).take_over().hub(&hub).await?;
        }
        node.spawn(confirm_all(node.clone(), hub, seen));
        Ok::<_, Box<dyn std::error::Error>>(())
    }));
    heard
}

/// Opens and subscribes a hub whose program takes its time with each event: others wait unread.
fn listen_slowly(
    cluster: &mut Cluster,
    slot: Slot,
    hub: &'static str,
    streams: &[&'static str],
) -> Result<Rc<RefCell<Vec<u64>>>, Box<dyn std::error::Error>> {
    let numbers = Rc::new(RefCell::new(Vec::new()));
    let (seen, streams) = (Rc::clone(&numbers), streams.to_vec());
    cluster.block_on(slot, move |node| async move {
        let mut hub = node.handle().hub(hub)?.open().await?;
        for stream in streams {
            let stream = node.stream::<Note>(ROOM, stream);
            stream.subscription(hub.address().as_str()).hub(&hub).await?;
        }
        let program = node.clone();
        node.spawn(async move {
            while let Some(delivery) = hub.next().await {
                program.sleep(Duration::from_millis(12)).await;
                if let Ok(note) = delivery.message::<Note>() {
                    seen.borrow_mut().push(note.number);
                    delivery.confirm();
                }
            }
        });
        Ok::<_, Box<dyn std::error::Error>>(())
    })??;
    Ok(numbers)
}

/// H10, G9. Hubs are taken over by another process, which subscribes them a while later, and then
/// their silo leaves: each event is handled once, by the one or by the other, and no publisher
/// hears that nobody subscribes.
#[test]
fn a_hub_that_moves_keeps_its_subscriptions() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3))?;
        let streams = &streams_on(&cluster, S1)[..3];
        let mut before = Vec::new();
        for hub in HUBS {
            before.push(listen_slowly(&mut cluster, S2, hub, streams)?);
        }
        let ended = Ended::default();
        for (stream, first) in streams.iter().copied().zip([1, 201, 401]) {
            let (done, pace) = (Rc::clone(&ended), Duration::from_millis(10));
            drop(cluster.spawn(S1, move |node| {
                publish_each(node, (ROOM, stream), first..=first + 199, pace, done)
            }));
        }
        cluster.run_for(Duration::from_millis(500))?;
        let after: Vec<Heard> = HUBS
            .map(|hub| move_to(&mut cluster, S3, hub, streams, Duration::from_millis(300)))
            .into();
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Drain(S2));
        cluster.run_for(30 * SECOND)?;
        let ended = ended.borrow();
        let failed: Vec<_> = ended
            .iter()
            .filter(|(_, end)| !end.as_ref().is_ok_and(|p| p.handled == 4 && p.failed == 0))
            .collect();
        ensure!(failed.is_empty() && ended.len() == 600, "{} failed: {failed:?}", failed.len());
        for (index, hub) in HUBS.iter().enumerate() {
            let (old, new) = (before[index].borrow(), after[index].numbers());
            ensure!(!old.is_empty() && !new.is_empty(), "{hub}: each had some");
            let mut all: Vec<u64> = old.iter().copied().chain(new).collect();
            all.sort_unstable();
            ensure!(all == range(1, 600), "{hub}: each event once: {all:?}");
        }
        let evicted = cluster.world().event_count("SubscriberEvicted");
        ensure!(evicted == 0, "{evicted} were evicted");
        for stream in streams {
            ensure!(rows(&mut cluster, stream).len() == HUBS.len(), "a row each");
        }
        Ok(())
    }
    check(scenario, &["ended-hub-is-final"]);
}

/// H6. A delivery finds the hub closed; before that is known to the stream's owner, the hub is open
/// and subscribed again elsewhere: nobody is evicted.
#[test]
fn a_refusal_of_the_old_place_does_not_evict_who_has_subscribed_anew() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3))?;
        let stream = stream_on(&cluster, S1);
        // Whose claim is on no slow way.
        let mirror = owned(&cluster, "portal", S3, S1)[0];
        let old = listen(&mut cluster, S2, mirror, stream)?;
        let first =
            cluster.block_on(S3, move |node| async move { publish(&node, stream, 1).await })?;
        ensure!(first.is_ok(), "{first:?}");
        cluster.inflict(Fault::Delay(S1, S2, Duration::from_millis(300), 2 * SECOND));
        old.close();
        cluster.run_for(Duration::from_millis(20))?;
        let sent = cluster.spawn(S3, move |node| async move { publish(&node, stream, 2).await });
        // The frame has come to the old place, and its answer is on its way.
        cluster.run_for(Duration::from_millis(450))?;
        let new = move_to(&mut cluster, S3, mirror, &[stream], Duration::ZERO);
        cluster.run_for(Duration::from_millis(100))?;
        ensure!(sent.borrow().is_none(), "the answer is not here: {sent:?}");
        cluster.run_for(5 * SECOND)?;
        let third =
            cluster.block_on(S3, move |node| async move { publish(&node, stream, 3).await })?;
        ensure!(third.is_ok(), "{third:?}");
        ensure!(new.numbers() == [2, 3], "{new:?}");
        let sent = sent.borrow_mut().take();
        ensure!(matches!(sent, Some(Ok(_))), "{sent:?}");
        ensure!(cluster.world().event_count("SubscriberEvicted") == 0, "nobody is evicted");
        Ok(())
    }
    check(scenario, &["stream-evicts-any-row"]);
}

/// G9. The frame for a grain cannot go out, and its silo has left when it is tried again: the event
/// goes to where the grain is now.
#[test]
fn an_event_follows_a_grain_whose_silo_is_gone() {
    fn scenario(new: New<'_>) -> Outcome {
        begin();
        let mut cluster = up(new(3).host::<Listener>())?;
        let stream = stream_on(&cluster, S1);
        wake(&mut cluster, S3, "far")?;
        subscribe(&mut cluster, S1, "far", stream, "far")?;
        cluster.block_on(S2, move |node| async move { publish(&node, stream, 1).await })??;
        cluster.inflict(Fault::Refuse(S1, S3, 3 * SECOND));
        let sent = cluster.spawn(S2, move |node| async move { publish(&node, stream, 2).await });
        cluster.run_for(Duration::from_millis(20))?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(20 * SECOND)?;
        let sent = sent.borrow_mut().take();
        ensure!(matches!(&sent, Some(Ok(sent)) if sent.handled == 1), "{sent:?}");
        ensure!(numbers("far", "far") == range(1, 2), "{:?}", numbers("far", "far"));
        Ok(())
    }
    check(scenario, &[]);
}
