//! Claims and hubs: an address that a process owns is reachable exactly as long as it is open.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_core::limits::CLAIM_LEASE;
use siloring_testkit::sim::{Cluster, Fault, Slot};

use super::scenario::{
    Echo, EchoRef as _, New, Note, Opening, Outcome, S1, S2, S3, SECOND, check, ensure, note,
    serve_hub, up,
};

/// The holder's claim, as the first look from another silo finds it.
const SOON: Duration = Duration::from_millis(50);

/// H1. Hubs are opened while the owner of their ranges is gone and the store, which could say so,
/// is down: asked again and again, attached in the end. (The exact schedule of the tries, and the
/// claim that gives up at the first refusal, are tests of the directory.)
#[test]
fn a_claim_that_nobody_answers_for_long_is_made_in_the_end() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.inflict(Fault::StoreDown(10 * SECOND));
        cluster.inflict(Fault::Kill(S3));
        let claimed = Rc::new(Cell::new(0));
        for hub in 0..40u64 {
            let claimed = Rc::clone(&claimed);
            drop(cluster.spawn(S1, move |node| async move {
                let address = format!("portal/h1-{hub}");
                let builder = node.handle().hub(&address).expect("a plain address");
                let hub = builder.open().await;
                claimed.set(claimed.get() + u64::from(hub.is_ok()));
                node.sleep(Duration::from_mins(1)).await;
                drop(hub);
            }));
        }
        cluster.run_for(9 * SECOND)?;
        ensure!((1..40).contains(&claimed.get()), "{} attached by living owners", claimed.get());
        cluster.run_for(20 * SECOND)?;
        ensure!(claimed.get() == 40, "{} of 40 attached", claimed.get());
        Ok(())
    }
    check(scenario, &["claim-gives-up"]);
}

/// H2. The answer to a hub's first message must not overtake the claim it comes back on.
#[test]
fn the_answer_to_a_hubs_first_message_finds_the_hub() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        for round in 0..12u64 {
            cluster.block_on(S3, move |node| async move {
                node.handle().grain::<Echo>(format!("teller-{round}")).runs().await
            })??;
        }
        // Claims at the second silo have a long way to go; whoever asks from the third is there at
        // once.
        cluster.inflict(Fault::Delay(S1, S2, Duration::from_millis(300), 600 * SECOND));
        for round in 0..12u64 {
            let told = cluster.block_on(S1, move |node| async move {
                let address = format!("portal/first-{round}");
                let hub = node.handle().hub(&address).expect("a plain address").start();
                let mut hub = hub.expect("the silo takes mail");
                let call = hub.grain::<Echo>(format!("teller-{round}")).tell(address);
                node.spawn(async move {
                    while let Some(delivery) = hub.next().await {
                        delivery.answer(&());
                    }
                });
                call.await
            })?;
            ensure!(told.as_deref() == Ok("answered"), "round {round}: {told:?}");
        }
        Ok(())
    }
    check(scenario, &["no-outbound-gate"]);
}

/// H3. A hub opened before its silo is Active waits, and is claimed once.
#[test]
fn a_claim_made_before_the_silo_is_active_is_held_back() {
    fn scenario(new: New<'_>) -> Outcome {
        let claims = Rc::new(Cell::new(0u32));
        let seen = Rc::clone(&claims);
        let builder = new(3).early_program(move |node| {
            let seen = Rc::clone(&seen);
            async move {
                let address = format!("portal/early-{}", node.slot());
                let builder = node.handle().hub(&address).expect("a plain address");
                let Ok(mut hub) = builder.open().await else { return };
                seen.set(seen.get() + 1);
                while let Some(delivery) = hub.next().await {
                    delivery.answer(&());
                }
            }
        });
        let mut cluster = builder.build();
        for slot in [S1, S2, S3] {
            cluster.inflict(Fault::Start(slot));
            for _ in 0..400 {
                cluster.run_for(Duration::from_millis(10))?;
                let active = cluster.silo(slot).and_then(|silo| silo.status());
                if active == Some(siloring_core::SiloStatus::Active) {
                    break;
                }
                ensure!(claims.get() < u32::from(slot.0), "{slot} claimed as {active:?}");
            }
        }
        cluster.run_for(2 * SECOND)?;
        ensure!(claims.get() == 3, "{} claims", claims.get());
        let told = cluster.world().event_count("HubClaimed");
        ensure!(told == 3, "each once, not {told} times");
        for hub in ["portal/early-s1", "portal/early-s2", "portal/early-s3"] {
            let heard = cluster.block_on(S2, move |node| async move {
                note(&node, hub, &Note::default()).await
            })?;
            ensure!(heard.name() == "Handled", "{hub}: {heard:?}");
        }
        Ok(())
    }
    check(scenario, &["claim-before-active"]);
}

/// H4. Twenty view changes: the hub is reachable after each, and calling it creates nothing.
#[test]
fn a_hub_stays_reachable_over_twenty_view_changes() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let hubs = ["portal/a", "portal/b", "portal/c", "portal/d", "portal/e", "portal/f"];
        for hub in hubs {
            serve_hub(&mut cluster, S1, hub, Opening::Plain);
        }
        cluster.run_for(SECOND)?;
        let first = cluster.silo(S1).map(|silo| silo.view().number());
        for round in 0..4u32 {
            // One leaves in order, one does not: both move ranges that the hubs may be in.
            cluster.inflict(if round.is_multiple_of(2) {
                Fault::Drain(S3)
            } else {
                Fault::Kill(S3)
            });
            cluster.run_for(15 * SECOND)?;
            reach_all(&mut cluster, S2, &hubs)?;
            cluster.inflict(Fault::Start(S3));
            cluster.run_until(60 * SECOND, "whole again", Cluster::is_whole)?;
            cluster.run_for(SECOND)?;
            reach_all(&mut cluster, S2, &hubs)?;
        }
        for slot in [S1, S2, S3] {
            cluster.lose_directory(slot);
        }
        // Nothing but the holder's own lease repairs that: no traffic, no view.
        cluster.run_for(CLAIM_LEASE + SECOND)?;
        // The newest silo has asked for none of them yet.
        reach_all(&mut cluster, S3, &hubs)?;
        let last = cluster.silo(S1).map(|silo| silo.view().number());
        let changes = last.zip(first).map_or(0, |(last, first)| last.version() - first.version());
        ensure!(changes >= 16, "{changes} view changes");
        let activated = cluster.world().event_count("GrainActivated");
        ensure!(activated == 0, "a call to a hub activates nothing: {activated}");
        Ok(())
    }
    check(scenario, &["claim-once-only"]);
}

fn reach_all(cluster: &mut Cluster, from: Slot, hubs: &[&'static str]) -> Outcome {
    for hub in hubs.iter().copied() {
        let heard = cluster
            .block_on(from, move |node| async move { note(&node, hub, &Note::default()).await })?;
        ensure!(heard.name() == "Handled", "{hub} from {from}: {heard:?}");
        ensure!(heard.took <= SECOND, "{hub} from {from}: {heard:?}");
    }
    Ok(())
}

/// H6. The predecessor's late release changes nothing for its successor.
#[test]
fn a_late_release_of_the_predecessor_leaves_the_successor_reachable() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let old = serve_hub(&mut cluster, S2, "portal/heir", Opening::Plain);
        cluster.run_for(SECOND)?;
        // The old holder hears of the take-over late: its own release is on the way by then.
        cluster.inflict(Fault::Delay(S1, S2, Duration::from_millis(400), 10 * SECOND));
        cluster.inflict(Fault::Delay(S2, S3, Duration::from_millis(400), 10 * SECOND));
        let new_log = serve_hub(&mut cluster, S1, "portal/heir", Opening::TakeOver);
        cluster.run_for(Duration::from_millis(300))?;
        old.close();
        cluster.run_for(15 * SECOND)?;
        ensure!(new_log.claimed() == Some(Ok(())), "{new_log:?}");
        for slot in [S1, S2, S3] {
            let heard = cluster.block_on(slot, |node| async move {
                note(&node, "portal/heir", &Note::default()).await
            })?;
            ensure!(heard.name() == "Handled", "from {slot}: {heard:?}");
        }
        ensure!(new_log.numbers().len() == 3, "{new_log:?}");
        Ok(())
    }
    check(scenario, &["address-only"]);
}

/// H7. A closed address is terminal, at once and from everywhere, also while its range moves.
#[test]
fn a_closed_address_is_answered_terminally_at_once() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let logs: Vec<_> = ["portal/x1", "portal/x2", "portal/x3", "portal/x4"]
            .map(|hub| serve_hub(&mut cluster, S1, hub, Opening::Plain))
            .into();
        cluster.run_for(SECOND)?;
        logs.iter().for_each(super::scenario::HubLog::close);
        cluster.run_for(SECOND)?;
        for hub in ["portal/x1", "portal/x2", "portal/x3", "portal/x4"] {
            let heard = cluster.block_on(S2, move |node| async move {
                note(&node, hub, &Note::default()).await
            })?;
            ensure!(heard.name() == "NotHere", "{hub}: {heard:?}");
            ensure!(heard.took <= SOON, "{hub}: {heard:?}");
        }
        Ok(())
    }
    check(scenario, &["refusals-swallowed"]);
}

/// H8. Deliveries that reach a silo which no longer has the hub are refused, each one.
#[test]
fn deliveries_to_a_silo_that_lost_the_hub_are_refused_each() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let log = serve_hub(&mut cluster, S3, "portal/was", Opening::Plain);
        cluster.run_for(SECOND)?;
        // The sender's shard now has the place in its cache.
        let heard = cluster.block_on(S1, |node| async move {
            note(&node, "portal/was", &Note::default()).await
        })?;
        ensure!(heard.name() == "Handled", "{heard:?}");
        log.close();
        cluster.run_for(Duration::from_millis(20))?;
        let all: Vec<_> = (0..32)
            .map(|number| {
                cluster.spawn(S1, move |node| async move {
                    note(&node, "portal/was", &Note { number, bytes: Vec::new() }).await
                })
            })
            .collect();
        cluster.run_for(SECOND)?;
        let refused = all
            .iter()
            .filter(|heard| heard.borrow().as_ref().is_some_and(|heard| heard.name() == "NotHere"));
        let count = refused.count();
        ensure!(count == 32, "{count} of 32 refused");
        Ok(())
    }
    check(scenario, &["refusals-swallowed"]);
}

/// H9. A silo that stops under traffic says so at once, and its own open calls still end well.
#[test]
fn a_silo_that_stops_refuses_at_once_and_hears_its_own_replies() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("mine").echo().await
        })??;
        cluster.block_on(S1, |node| async move {
            node.handle().grain::<Echo>("far").echo().await
        })??;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("busy").echo().await
        })??;
        // A turn of the silo that stops waits for another silo.
        let pending = cluster.spawn(S3, |node| async move {
            node.handle().grain::<Echo>("mine").chain(vec!["far-chain".to_owned()]).await
        });
        let slow = cluster.spawn(S3, |node| async move {
            node.handle().grain::<Echo>("far").echo_after(3_000).await
        });
        // A turn that goes on while the silo leaves, and a request behind it.
        let turn = cluster.spawn(S1, |node| async move {
            node.handle().grain::<Echo>("busy").echo_after(2_000).await
        });
        cluster.run_for(Duration::from_millis(100))?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(Duration::from_millis(10))?;
        let behind = cluster
            .spawn(S1, |node| async move { node.handle().grain::<Echo>("busy").echo().await });
        cluster.run_for(Duration::from_millis(20))?;
        let refused = cluster.block_on(S3, |node| async move {
            let began = node.now();
            let result = node.handle().grain::<Echo>("another").echo().await;
            (result, node.now().since(began))
        })?;
        let name = refused.0.err().and_then(|error| error.delivery().map(DeliveryFailure::name));
        ensure!(name == Some("Draining"), "{name:?}");
        ensure!(refused.1 < Duration::from_millis(50), "{:?}", refused.1);
        cluster.run_for(15 * SECOND)?;
        ensure!(pending.borrow().as_ref().is_some_and(Result::is_ok), "{pending:?}");
        ensure!(slow.borrow().as_ref().is_some_and(Result::is_ok), "{slow:?}");
        ensure!(turn.borrow().as_ref().is_some_and(Result::is_ok), "{turn:?}");
        ensure!(behind.borrow().as_ref().is_some_and(Result::is_ok), "routed anew: {behind:?}");
        let errors = cluster.world().event_count("DeliveryFailed");
        ensure!(errors <= 3, "no flood: {errors}");
        Ok(())
    }
    check(scenario, &["inbound-dropped-at-stop"]);
}

/// H12. Two processes, one address.
#[test]
fn the_first_claim_holds_unless_it_is_taken_over() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let first = serve_hub(&mut cluster, S1, "portal/one", Opening::Plain);
        cluster.run_for(SECOND)?;
        let second = serve_hub(&mut cluster, S2, "portal/one", Opening::Plain);
        cluster.run_for(SECOND)?;
        let holder = cluster.silo(S1).and_then(|silo| silo.incarnation()).map(|i| i.generation);
        let refused = second.claimed();
        let Some(Err(HubError::AlreadyClaimed { holder: named })) = refused else {
            return Err(format!("the second hears that it is claimed, not {refused:?}").into());
        };
        ensure!(Some(named) == holder, "{named:?} is not {holder:?}");
        let third = serve_hub(&mut cluster, S3, "portal/one", Opening::TakeOver);
        cluster.run_for(SECOND)?;
        ensure!(third.claimed() == Some(Ok(())), "{third:?}");
        let ended = first.ended();
        ensure!(matches!(ended, Some(HubError::ClaimLost { .. })), "{ended:?}");
        let heard = cluster.block_on(S2, |node| async move {
            note(&node, "portal/one", &Note::default()).await
        })?;
        ensure!(heard.name() == "Handled" && third.numbers().len() == 1, "{heard:?} {third:?}");
        Ok(())
    }
    check(scenario, &["last-writer-wins"]);
}
