//! The registry as a stream's owner reads and writes it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring::{Streams, SubscribeError};
use siloring_core::RejectedKind;
use siloring_core::ports::registry::RegistryHint;
use siloring_testkit::sim::{Cluster, Fault, Slot};

use super::scenario::{New, Note, Outcome, S1, S2, S3, SECOND, check, ensure, up};
use super::streaming::{rows, usage};

/// A grain that listens.
#[derive(Grain, Default, Debug)]
#[grain(type = "test.reader")]
struct Reader {
    heard: Vec<u64>,
}

#[grain_methods]
impl Reader {
    /// Keeps the note's number.
    #[on_event]
    async fn hear(&mut self, note: &Archived<Note>) {
        self.heard.push(note.number.to_native());
    }
}

/// Rows are read again while others subscribe and leave: a reading that is older than what was
/// acknowledged takes nobody away and brings nobody back.
#[test]
fn who_has_subscribed_stays_though_rows_are_read_again_meanwhile() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3).host::<Reader>())?;
        let (left, wrong) = (Rc::new(RefCell::new(0_usize)), Rc::new(RefCell::new(0_usize)));
        // With nobody subscribed the owner would end, and read anew.
        cluster.block_on(S1, |node| async move {
            let stream = node.stream::<Note>("room", "busy");
            stream.subscription("stays").grain("stays", Reader::HEAR).await.map(drop)
        })??;
        for subscriber in 0..8 {
            let (left, wrong) = (Rc::clone(&left), Rc::clone(&wrong));
            *left.borrow_mut() += 1;
            drop(cluster.spawn(S1, move |node| async move {
                let key = format!("{subscriber}");
                let stream = node.stream::<Note>("room", "busy");
                let is_listed = async || {
                    let listed = stream.subscriptions().await.expect("nothing is wrong");
                    listed.iter().any(|listed| listed.subscription.key() == key)
                };
                for _ in 0..4_000 {
                    let made = stream.subscription(key.as_str()).grain(key.as_str(), Reader::HEAR);
                    let made = made.await.expect("nothing is wrong");
                    *wrong.borrow_mut() += usize::from(!is_listed().await);
                    stream.unsubscribe(&made).await.expect("nothing is wrong");
                    *wrong.borrow_mut() += usize::from(is_listed().await);
                }
                *left.borrow_mut() -= 1;
            }));
        }
        while *left.borrow() > 0 {
            for slot in [S1, S2, S3] {
                cluster.block_on(slot, |node| async move {
                    Streams::hinted(node.handle(), RegistryHint::Everything);
                })?;
            }
            cluster.run_for(Duration::from_millis(100))?;
        }
        ensure!(*wrong.borrow() == 0, "{wrong:?} times the list was of before");
        Ok(())
    }
    check(scenario, &["stream-registry-trusted"]);
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
            node.spawn(async move {
                let stream = patient.stream::<Note>("room", "cold");
                drop(stream.publish(&Note::default()).await);
            });
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
    check(scenario, &["stream-unread-means-none"]);
}

/// F44. A subscription's write was made, its answer was lost, and nobody subscribes again: the
/// owner, which has others, finds the row by itself.
#[test]
fn a_write_whose_answer_was_lost_is_found_by_its_owner() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3).host::<Reader>())?;
        subscribe(&mut cluster, "first")?;
        cluster.inflict(Fault::StoreLose(1_000, 3 * SECOND));
        let lost = cluster.block_on(S1, |node| async move {
            let stream = node.stream::<Note>("room", "busy");
            let made = stream.subscription("second").deadline(2 * SECOND);
            made.grain("second", Reader::HEAR).await.map(drop)
        })?;
        ensure!(lost.is_err(), "nobody knows whether it was made");
        cluster.run_for(10 * SECOND)?;
        ensure!(rows(&mut cluster, "busy").len() == 2, "it was made");
        let published = cluster.block_on(S2, |node| async move {
            node.stream::<Note>("room", "busy").publish(&Note::default()).await
        })??;
        ensure!(published.handled == 2, "{published:?}");
        Ok(())
    }
    check(scenario, &["stream-writes-forgotten"]);
}

/// F40. The store goes back behind a subscription that was acknowledged: the stream's owner, which
/// has it in memory, tells it again, and goes on with the versions that the store has now.
#[test]
fn a_store_that_went_back_is_told_of_the_subscriptions_that_it_lost() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3).host::<Reader>())?;
        subscribe(&mut cluster, "first")?;
        cluster.run_for(5 * SECOND)?;
        cluster.inflict(Fault::StoreLag(12 * SECOND));
        subscribe(&mut cluster, "second")?;
        // So that the views tell.
        let elsewhere = [S2, S3].into_iter().find(|slot| !owns(&mut cluster, *slot));
        cluster.inflict(Fault::Kill(elsewhere.ok_or("somebody owns nothing")?));
        cluster.run_for(30 * SECOND)?;
        ensure!(cluster.world().event_count("StoreRegressed") > 0, "it went back");
        let keys: Vec<String> = rows(&mut cluster, "busy").into_iter().map(|row| row.key).collect();
        ensure!(keys == ["first", "second"], "{keys:?}");
        // Over a row that the store has, with a version that it has.
        cluster.block_on(S1, |node| async move {
            let stream = node.stream::<Note>("room", "busy");
            let made = stream.subscription("second").take_over().deadline(5 * SECOND);
            made.grain("other", Reader::HEAR).await.map(drop)
        })??;
        let published = cluster.block_on(S1, |node| async move {
            node.stream::<Note>("room", "busy").publish(&Note::default()).await
        })??;
        ensure!(published.handled == 2, "{published:?}");
        Ok(())
    }
    check(scenario, &["stream-store-not-retold"]);
}

/// The subscriber check has room for few streams: that it forgets one is an event, and says nothing
/// about it.
#[test]
fn a_check_that_is_too_small_says_so() {
    fn scenario(new: New<'_>) -> Outcome {
        let builder = new(3).host::<Reader>().streams(|streams| streams.check_entries(1));
        let mut cluster = up(builder)?;
        for number in 0..40 {
            let refused = cluster.block_on(S1, move |node| async move {
                let stream = node.stream::<Note>("room", &format!("k{number}"));
                stream.publish(&Note::default()).await
            })?;
            let kind = refused.err().and_then(|failure| failure.rejected_kind());
            ensure!(kind == Some(RejectedKind::NoSubscriber), "{kind:?}");
            if number == 0 {
                let evicted = cluster.world().event_count("CheckEntryEvicted");
                ensure!(evicted == 0, "there was room");
            }
        }
        let evicted = cluster.world().event_count("CheckEntryEvicted");
        ensure!(evicted > 0, "40 streams have no room");
        Ok(())
    }
    check(scenario, &[]);
}

fn subscribe(cluster: &mut Cluster, key: &'static str) -> Outcome {
    cluster.block_on(S1, move |node| async move {
        let stream = node.stream::<Note>("room", "busy");
        stream.subscription(key).grain(key, Reader::HEAR).await.map(drop)
    })??;
    Ok(())
}

fn owns(cluster: &mut Cluster, slot: Slot) -> bool {
    usage(cluster, slot).is_ok_and(|usage| usage.owners > 0)
}
