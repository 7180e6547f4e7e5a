//! Claims and hubs: an address that a process owns is reachable exactly as long as it is open.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_core::limits::CLAIM_LEASE;
use siloring_runtime::directory::PlantedFault;
use siloring_testkit::sim::{Cluster, Fault, Options, Plan, Slot};

use super::scenario::{
    Echo, EchoRef as _, New, Note, Opening, Outcome, S1, S2, S3, SECOND, check, ensure, note,
    owned, serve_hub, up,
};

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
            cluster.plant_fault(slot, PlantedFault::LoseEntries);
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
        // The owner of its range is neither of the two.
        let heir = owned(&cluster, "portal", S3, S1)[0];
        let old = serve_hub(&mut cluster, S2, heir, Opening::Plain);
        cluster.run_for(SECOND)?;
        // The old holder hears of the take-over late: its own release is on the way by then.
        cluster.inflict(Fault::Delay(S1, S2, Duration::from_millis(400), 10 * SECOND));
        cluster.inflict(Fault::Delay(S2, S3, Duration::from_millis(400), 10 * SECOND));
        let new_log = serve_hub(&mut cluster, S1, heir, Opening::TakeOver);
        cluster.run_for(Duration::from_millis(300))?;
        old.close();
        cluster.run_for(15 * SECOND)?;
        ensure!(new_log.claimed() == Some(Ok(())), "{new_log:?}");
        for slot in [S1, S2, S3] {
            let heard = cluster
                .block_on(slot, |node| async move { note(&node, heir, &Note::default()).await })?;
            ensure!(heard.name() == "Handled", "from {slot}: {heard:?}");
        }
        ensure!(new_log.numbers().len() == 3, "{new_log:?}");
        Ok(())
    }
    check(scenario, &["address-only"]);
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
    check(scenario, &["refusals-swallowed", "deactivate-on-refusal"]);
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
        for key in ["busy", "passing"] {
            cluster.block_on(S3, move |node| async move {
                node.handle().grain::<Echo>(key).echo().await
            })??;
        }
        // A turn of the silo that stops waits for another silo.
        let pending = cluster.spawn(S3, |node| async move {
            node.handle().grain::<Echo>("mine").chain(vec!["far-chain".to_owned()]).await
        });
        let slow = cluster.spawn(S3, |node| async move {
            node.handle().grain::<Echo>("far").echo_after(3_000).await
        });
        // Requests on their way while it begins to leave.
        let passing = cluster.spawn(S1, |node| async move {
            let mut ended = Vec::new();
            for _ in 0..600 {
                let call = node.handle().grain::<Echo>("passing").echo();
                ended.push(call.deadline(Duration::from_secs(2)).await.is_ok());
            }
            ended
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
        let passing = passing.borrow_mut().take().unwrap_or_default();
        let lost = passing.iter().filter(|answered| !**answered).count();
        ensure!(passing.len() == 600 && lost == 0, "{lost} of {} lost", passing.len());
        ensure!(behind.borrow().as_ref().is_some_and(Result::is_ok), "routed anew: {behind:?}");
        let errors = cluster.world().event_count("DeliveriesFailed");
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
    check(scenario, &["last-writer-wins", "losers-untold", "no-incarnation"]);
}

/// A full mailbox is no silo that leaves: whoever believed that would never open its hub.
#[test]
fn a_hub_whose_mail_finds_no_room_is_told_so() {
    let mut options = Options::new(1);
    (options.silos, options.shards, options.load_per_second) = (2, 1, 0);
    (options.mailbox, options.mail_delay) = (16, Duration::from_millis(5));
    let said = Rc::new(RefCell::new(Vec::new()));
    let heard = Rc::clone(&said);
    let builder = Cluster::builder().plan(Plan::calm(options)).program(move |node| {
        let heard = Rc::clone(&heard);
        async move {
            let open = |number| {
                let hub = node.handle().hub(&format!("portal/{}-{number}", node.slot()));
                hub.expect("a plain address").start().map(drop)
            };
            // The shard takes none of it before all are sent.
            let opened: Vec<_> = (0..32).map(open).collect();
            node.sleep(SECOND).await;
            heard.borrow_mut().push((opened, open(99)));
        }
    });
    let mut cluster = up(builder).unwrap();
    cluster.run_for(3 * SECOND).unwrap();
    let said = said.borrow();
    assert_eq!(said.len(), 2);
    for (at_once, later) in said.iter() {
        assert_eq!(at_once.last(), Some(&Err(HubError::Overloaded)), "there is no room for all");
        assert_eq!(*later, Ok(()), "and there is, later");
    }
}
