//! Claims: made when, made again when, and remembered for how long.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_core::Moment;
use siloring_core::event::Event;
use siloring_core::limits::{CLAIM_TRIES_QUIET, DIRECTORY_RESEND_AFTER, TOMBSTONE_TIME};
use siloring_runtime::directory::PlantedFault;
use siloring_testkit::sim::{Cluster, Fault, Slot};

use super::scenario::{
    New, Note, Opening, Outcome, S1, S2, S3, S4, SECOND, check, ensure, is_gone_for, note, owned,
    process, serve_hub, up,
};

/// A first look from another silo is answered by then.
const SOON: Duration = Duration::from_millis(50);
/// A way to the directory and back, and the wakes of those who wait.
const WAY: Duration = Duration::from_millis(10);

/// H1. Hubs are opened while the owner of their ranges is gone and the store, which could say so,
/// is down: asked again and again, attached in the end.
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

/// Opens a hub; how it ended, and after how long.
async fn open(
    node: siloring_testkit::sim::Node,
    hub: &'static str,
) -> (Result<(), HubError>, Duration) {
    let began = node.now();
    let opened = node.handle().hub(hub).expect("a plain address").open().await;
    (opened.map(drop), node.now().since(began))
}

/// H1. A claim that a moving directory refuses k times is made again each period, exactly, and is
/// held after the k-th; one that is refused for good fails at its first try.
#[test]
fn a_claim_is_made_again_on_schedule_and_a_permanent_refusal_is_the_end() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let hubs = owned(&cluster, "portal", S2, S3);
        for (refusals, hub) in (0..=7u32).zip(hubs.iter().copied()) {
            cluster.plant_fault(S2, PlantedFault::RefuseClaims(refusals));
            cluster.run_for(WAY)?;
            let (opened, took) = cluster.block_on(S1, move |node| open(node, hub))?;
            ensure!(opened.is_ok(), "after {refusals} refusals: {opened:?}");
            let expected = DIRECTORY_RESEND_AFTER * refusals;
            ensure!(
                took >= expected && took <= expected + WAY,
                "{refusals} refusals: {took:?}, not {expected:?}"
            );
        }
        cluster.plant_fault(S2, PlantedFault::RefuseClaims(0));
        serve_hub(&mut cluster, S3, hubs[8], Opening::Plain);
        cluster.run_for(SECOND)?;
        let hub = hubs[8];
        let refused = cluster.spawn(S1, move |node| open(node, hub));
        cluster.run_for(SECOND)?;
        let refused = refused.borrow_mut().take();
        let Some((Err(HubError::AlreadyClaimed { .. }), took)) = refused else {
            return Err(format!("refused for good, not {refused:?}").into());
        };
        ensure!(took <= WAY, "at the first try: {took:?}");
        Ok(())
    }
    check(scenario, &["single-attach", "claim-gives-up", "refusal-retried"]);
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

/// H5. While a claim is in flight the view changes: it is made once more at each change, not
/// twice, and then keeps its period. The event of the eighth unanswered claim tells when that was.
#[test]
fn a_view_change_during_a_claim_in_flight_brings_one_more_claim() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(4))?;
        let hub = owned(&cluster, "portal", S2, S3)[0];
        cluster.inflict(Fault::Mute(S1, S2, 20 * SECOND));
        serve_hub(&mut cluster, S1, hub, Opening::Plain);
        cluster.run_for(Duration::from_millis(250))?;
        cluster.inflict(Fault::Drain(S4));
        let (eighth, changes) = eighth_claim(&mut cluster, S1)?;
        ensure!(changes >= 1, "the view changed while the claim was in flight");
        cluster.run_for(SECOND)?;
        let told = cluster.world().events().iter().find_map(|kept| {
            if let Event::HubClaimUnanswered { address, tries } = &kept.event
                && address.as_str() == hub
            {
                return Some((*tries, kept.at));
            }
            None
        });
        let Some((tries, at)) = told else { return Err("no claim went unanswered".into()) };
        ensure!(tries == CLAIM_TRIES_QUIET, "{tries} tries");
        let apart = at.since(eighth).max(eighth.since(at));
        ensure!(apart <= WAY, "the eighth claim was at {at:?}, not at {eighth:?}");
        cluster.run_for(40 * SECOND)?;
        let claimed = cluster.world().event_count("HubClaimed");
        ensure!(claimed == 1, "{claimed} claims granted");
        Ok(())
    }
    check(scenario, &["no-switch", "asked-twice"]);
}

/// When the eighth claim is due of a hub that was opened a quarter of a second ago, and how many
/// views came meanwhile: one claim at the start, one at each view, one a period after the last.
fn eighth_claim(
    cluster: &mut Cluster,
    slot: Slot,
) -> Result<(Moment, u32), Box<dyn std::error::Error>> {
    let view = |cluster: &Cluster| cluster.silo(slot).map(|silo| silo.view().number());
    let mut known = view(cluster);
    let mut due = cluster.world().now() + Duration::from_millis(250);
    let (mut claims, mut changes) = (1, 0);
    loop {
        let now = cluster.world().now();
        let is_newer = view(cluster) != known;
        if is_newer || now >= due {
            claims += 1;
            changes += u32::from(is_newer);
            due = if is_newer { now } else { due } + DIRECTORY_RESEND_AFTER;
            known = view(cluster);
        }
        if claims == CLAIM_TRIES_QUIET {
            return Ok((now, changes));
        }
        cluster.run_for(Duration::from_millis(1))?;
    }
}

/// H7. A closed address is terminal, at once and from everywhere.
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

/// H7. The successor closed the hub while its predecessor could not hear of it, and the owner that
/// knew dies: the tombstone keeps the predecessor from holding the hub again.
#[test]
fn a_closed_address_does_not_go_back_to_who_held_it_before() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(4))?;
        let hub = owned(&cluster, "portal", S3, S4)[0];
        let first = serve_hub(&mut cluster, S1, hub, Opening::Plain);
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Split(S1, S3, 20 * SECOND));
        let second = serve_hub(&mut cluster, S2, hub, Opening::TakeOver);
        cluster.run_for(Duration::from_millis(300))?;
        ensure!(second.claimed() == Some(Ok(())), "{second:?}");
        second.close();
        cluster.run_for(Duration::from_millis(300))?;
        ensure!(first.ended().is_none(), "the predecessor has not heard: {first:?}");
        let owner = process(&cluster, S3)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_until(11 * SECOND, "the owner is Dead", |cluster| {
            [S1, S2, S4].iter().all(|slot| is_gone_for(cluster, *slot, owner))
        })?;
        cluster.run_for(3 * SECOND)?;
        let heard = cluster
            .block_on(S4, move |node| async move { note(&node, hub, &Note::default()).await })?;
        ensure!(heard.name() == "NotHere", "{heard:?}");
        ensure!(matches!(first.ended(), Some(HubError::ClaimLost { .. })), "{first:?}");
        Ok(())
    }
    check(scenario, &["no-tombstone"]);
}

/// H7. Once the tombstone has expired the address is absent in a stable range, and not known while
/// its range moves.
#[test]
fn a_closed_address_is_forgotten_in_time_and_then_as_any_other() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(4))?;
        let hub = owned(&cluster, "portal", S2, S3)[0];
        let log = serve_hub(&mut cluster, S1, hub, Opening::Plain);
        cluster.run_for(SECOND)?;
        log.close();
        cluster.run_for(TOMBSTONE_TIME + SECOND)?;
        let ask = move |node| async move { note(&node, hub, &Note::default()).await };
        let heard = cluster.block_on(S4, ask)?;
        ensure!(heard.name() == "NotHere" && heard.took <= SOON, "in a stable range: {heard:?}");
        // The owner is gone, and one silo, which may hold the hub, does not answer its heir.
        let owner = process(&cluster, S2)?;
        cluster.inflict(Fault::Kill(S2));
        cluster.run_for(3 * SECOND / 2)?;
        cluster.inflict(Fault::Pause(S1, 20 * SECOND));
        cluster.run_until(11 * SECOND, "the owner is Dead", |cluster| {
            [S3, S4].iter().all(|slot| is_gone_for(cluster, *slot, owner))
        })?;
        let heard = cluster.spawn(S4, ask);
        cluster.run_for(Duration::from_millis(300))?;
        ensure!(heard.borrow().is_none(), "while its range moves: {heard:?}");
        cluster.run_for(20 * SECOND)?;
        let heard = heard.borrow_mut().take();
        let name = heard.as_ref().map(super::scenario::Heard::name);
        ensure!(name == Some("NotHere"), "with its range whole: {heard:?}");
        Ok(())
    }
    check(scenario, &["absent-while-moving"]);
}
