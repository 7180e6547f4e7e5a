//! Streams: every event that was taken in reaches each consumer once, or its publisher hears.

use std::cell::RefCell;
use std::rc::Rc;

use siloring::{Published, SubscribeError};
use siloring_core::{DeliveryFailure, RejectedKind};
use siloring_testkit::sim::{Cluster, Fault, Node, Slot};

use super::scenario::{New, Note, Outcome, S1, S2, S3, SECOND, check, ensure, up};

/// What a listening hub has seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard(Rc<RefCell<Vec<(u64, u8)>>>);

impl Heard {
    /// Number and attempt of each event, in order.
    pub(crate) fn all(&self) -> Vec<(u64, u8)> {
        self.0.borrow().clone()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.all().iter().map(|(number, _)| *number).collect()
    }
}

/// Opens a hub in a slot's program, subscribes it, and confirms every event.
pub(crate) fn listen(
    cluster: &mut Cluster,
    slot: Slot,
    hub: &'static str,
    key: &'static str,
) -> Result<Heard, Box<dyn std::error::Error>> {
    let heard = Heard::default();
    let seen = heard.clone();
    cluster.block_on(slot, move |node| async move {
        let mut hub = node.handle().hub(hub)?.open().await?;
        let stream = node.stream::<Note>("room", key);
        stream.subscription(hub.address().as_str()).hub(&hub).await?;
        node.spawn(async move {
            while let Some(delivery) = hub.next().await {
                if let (Ok(note), Some(_)) = (delivery.message::<Note>(), delivery.event()) {
                    seen.0.borrow_mut().push((note.number, delivery.attempt()));
                    delivery.answer(&());
                }
            }
        });
        Ok::<_, Box<dyn std::error::Error>>(())
    })??;
    Ok(heard)
}

/// Publishes a note and waits for its outcome.
pub(crate) async fn publish(
    node: &Node,
    key: &str,
    number: u64,
) -> Result<Published, DeliveryFailure> {
    let event = Note { number, bytes: Vec::new() };
    node.stream::<Note>("room", key).publish(&event).await
}

/// G11. A publish to a stream that nobody has ever heard of.
#[test]
fn a_publish_to_nobody_is_refused_and_leaves_nothing() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let refused =
            cluster.block_on(S1, |node| async move { publish(&node, "none", 1).await })?;
        let kind = refused.err().and_then(|failure| failure.rejected_kind());
        ensure!(kind == Some(RejectedKind::NoSubscriber), "{kind:?}");
        let heard = listen(&mut cluster, S2, "portal/a", "some")?;
        let taken = cluster.block_on(S1, |node| async move { publish(&node, "some", 1).await })?;
        ensure!(taken.as_ref().is_ok_and(|taken| taken.handled == 1), "{taken:?}");
        ensure!(heard.numbers() == [1], "{heard:?}");
        Ok(())
    }
    check(scenario, &[]);
}

/// S1, hub to hub. 100 events, each once and in order.
#[test]
fn a_hundred_events_reach_each_consumer_once_and_in_order() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let one = listen(&mut cluster, S2, "portal/one", "general")?;
        let two = listen(&mut cluster, S3, "portal/two", "general")?;
        let three = listen(&mut cluster, S3, "portal/three", "general")?;
        for number in 1..=100 {
            let taken = cluster
                .block_on(S1, move |node| async move { publish(&node, "general", number).await })?;
            ensure!(taken.as_ref().is_ok_and(|taken| taken.handled == 3), "{taken:?}");
        }
        for heard in [one, two, three] {
            ensure!(heard.all() == (1..=100).map(|n| (n, 1)).collect::<Vec<_>>(), "{heard:?}");
        }
        Ok(())
    }
    check(scenario, &[]);
}

/// As above, all at once: batches keep the order.
#[test]
fn events_in_flight_keep_their_order() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let one = listen(&mut cluster, S2, "portal/one", "general")?;
        let done = Rc::new(RefCell::new(0));
        let count = Rc::clone(&done);
        cluster.block_on(S1, move |node| async move {
            for number in 1..=1000 {
                let (publisher, count) = (node.clone(), Rc::clone(&count));
                node.spawn(async move {
                    let taken = publish(&publisher, "general", number).await;
                    *count.borrow_mut() += usize::from(taken.is_ok());
                });
            }
        })?;
        cluster.run_for(5 * SECOND)?;
        ensure!(*done.borrow() == 1000, "{done:?}");
        ensure!(one.all() == (1..=1000).map(|n| (n, 1)).collect::<Vec<_>>(), "{one:?}");
        Ok(())
    }
    check(scenario, &[]);
}

/// M7. Whoever waits for a registry that does not answer hears so in time, also behind somebody
/// more patient.
#[test]
fn who_waits_for_the_registry_hears_why_before_the_deadline() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.inflict(Fault::StoreHang(30 * SECOND));
        cluster.block_on(S2, |node| async move {
            let patient = node.clone();
            node.spawn(async move { drop(publish(&patient, "cold", 1).await) });
        })?;
        cluster.run_for(SECOND)?;
        let failures = cluster.block_on(S1, |node| async move {
            let hub = node.handle().hub("portal/a")?.open().await?;
            let stream = node.stream::<Note>("room", "cold");
            let making = stream.subscription("a").deadline(3 * SECOND);
            let subscribed = making.hub(&hub).await;
            let event = Note { number: 2, bytes: Vec::new() };
            let published = stream.publish(&event).deadline(3 * SECOND).await;
            Ok::<_, Box<dyn std::error::Error>>((subscribed, published))
        })??;
        let (subscribed, published) = failures;
        let unavailable = Some(RejectedKind::RegistryUnavailable);
        let kind = match &subscribed {
            Err(SubscribeError::Delivery(failure)) => failure.rejected_kind(),
            other => return Err(format!("{other:?}").into()),
        };
        ensure!(kind == unavailable, "{subscribed:?}");
        let kind = published.as_ref().err().and_then(DeliveryFailure::rejected_kind);
        ensure!(kind == unavailable, "{published:?}");
        Ok(())
    }
    check(scenario, &[]);
}
