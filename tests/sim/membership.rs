//! Membership: who is alive, who may serve, and how soon everybody knows.

use std::time::Duration;

use siloring_core::SiloStatus;
use siloring_testkit::sim::world::{Life, ProcessId};
use siloring_testkit::sim::{Cluster, Fault, Slot};

use super::scenario::{
    DETECTED, Echo, EchoRef as _, New, Note, Opening, Outcome, S1, S2, S3, SECOND, check, ensure,
    note, serve_hub, up,
};

/// Whether the silo in `observer` has the incarnation that ran as `process` for gone.
fn is_gone_for(cluster: &Cluster, observer: Slot, process: ProcessId) -> bool {
    let generation = cluster.silo_of(process).and_then(|silo| silo.incarnation());
    let view = cluster.silo(observer).map(|silo| silo.view());
    generation.zip(view).is_some_and(|(who, view)| view.is_gone(who.generation))
}

fn process(cluster: &Cluster, slot: Slot) -> Result<ProcessId, String> {
    cluster.process(slot).ok_or_else(|| format!("{slot} is empty"))
}

/// M2. A silent silo is Dead after the due votes: not before its lease has ended, and within the
/// bound.
#[test]
fn a_silent_silo_is_dead_within_the_bound_and_not_before_its_lease_ends() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.run_for(5 * SECOND)?;
        let gone = process(&cluster, S3)?;
        cluster.inflict(Fault::Vanish(S3));
        cluster.run_for(Duration::from_millis(1_400))?;
        ensure!(!is_gone_for(&cluster, S1, gone), "Dead before its lease can have ended");
        cluster.run_until(DETECTED, "it is Dead for both", |cluster| {
            is_gone_for(cluster, S1, gone) && is_gone_for(cluster, S2, gone)
        })?;
        Ok(())
    }
    // What a vote needs has its variants in the tests of the control machine.
    check(scenario, &[]);
}

/// M2. One accuser alone, cut off from the accused, kills nobody: the others hear it.
#[test]
fn a_silo_that_others_hear_is_not_dead() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let split = process(&cluster, S2)?;
        cluster.inflict(Fault::Split(S1, S2, 20 * SECOND));
        cluster.run_for(25 * SECOND)?;
        ensure!(cluster.world().life(split) == Life::Running, "s2 ended");
        ensure!(cluster.process(S2) == Some(split), "s2 was restarted");
        ensure!(!is_gone_for(&cluster, S3, split), "s2 is Dead for s3");
        ensure!(
            cluster.world().event_count("SiloAccused") == 0,
            "nobody votes while a third hears"
        );
        Ok(())
    }
    check(scenario, &["no-third"]);
}

/// M3. Two of three are killed at once: both are Dead within half a minute.
#[test]
fn two_of_three_killed_at_once_are_dead_within_half_a_minute() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.run_for(10 * SECOND)?;
        let gone = [process(&cluster, S2)?, process(&cluster, S3)?];
        cluster.inflict(Fault::Vanish(S2));
        cluster.inflict(Fault::Vanish(S3));
        cluster.run_until(30 * SECOND, "both are Dead", |cluster| {
            gone.iter().all(|process| is_gone_for(cluster, S1, *process))
        })?;
        let alone = cluster.block_on(S1, |node| async move {
            node.handle().grain::<Echo>("alone").echo().await
        })?;
        ensure!(alone == Ok(1), "the last one serves: {alone:?}");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// M3. A firewall rejects what two silos send each other: nobody votes while a third reaches both.
#[test]
fn a_firewall_between_two_silos_kills_nobody() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let before = [process(&cluster, S1)?, process(&cluster, S2)?];
        cluster.inflict(Fault::Refuse(S1, S2, 20 * SECOND));
        cluster.inflict(Fault::Refuse(S2, S1, 20 * SECOND));
        cluster.run_for(30 * SECOND)?;
        let after = [process(&cluster, S1)?, process(&cluster, S2)?];
        ensure!(before == after, "{before:?} then {after:?}");
        ensure!(cluster.world().event_count("SiloDeclaredDead") == 0, "nobody is Dead");
        ensure!(cluster.world().event_count("SiloAccused") == 0, "nobody is accused");
        Ok(())
    }
    check(scenario, &["no-third"]);
}

/// M4. A silo is stopped for ten seconds: its successors take over, it accepts nothing when it
/// wakes, learns that it is Dead and ends with 70.
#[test]
fn a_sleeper_finds_itself_dead_and_nothing_of_it_is_accepted() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let sleeper = process(&cluster, S3)?;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("mine").echo().await
        })??;
        let open = cluster.spawn(S3, |node| async move {
            node.sleep(Duration::from_millis(1_900)).await;
            node.handle().grain::<Echo>("mine").echo().await
        });
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Pause(S3, 10 * SECOND));
        cluster.run_for(9 * SECOND)?;
        ensure!(is_gone_for(&cluster, S1, sleeper), "it is Dead while it sleeps");
        let taken_over = cluster
            .block_on(S1, |node| async move { node.handle().grain::<Echo>("mine").echo().await })?;
        ensure!(taken_over == Ok(1), "a new activation: {taken_over:?}");
        cluster.run_for(6 * SECOND)?;
        ensure!(cluster.world().life(sleeper) == Life::Exited(70), "it ends with 70");
        let again = cluster
            .block_on(S2, |node| async move { node.handle().grain::<Echo>("mine").runs().await })?;
        ensure!(again == Ok(1), "nothing of the sleeper was accepted: {again:?}");
        ensure!(!matches!(*open.borrow(), Some(Ok(_))), "{open:?}");
        Ok(())
    }
    check(scenario, &["ignores-own-death"]);
}

/// M5. A silo restarts on the same port before its death is known: the old incarnation is Dead at
/// once.
#[test]
fn a_restart_on_the_same_port_replaces_the_old_incarnation_at_once() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("moved").echo().await
        })??;
        let old = process(&cluster, S3)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(Duration::from_millis(100))?;
        cluster.inflict(Fault::Start(S3));
        cluster.run_until(3 * SECOND, "the old one is Dead", |cluster| {
            is_gone_for(cluster, S1, old)
        })?;
        let heard = cluster.block_on(S1, |node| async move {
            let began = node.now();
            let result = node.handle().grain::<Echo>("moved").echo().await;
            (result, node.now().since(began))
        })?;
        ensure!(heard.0 == Ok(1) && heard.1 < SECOND, "{heard:?}");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// Whether the silo in `slot` answers a call to a grain that only it hosts.
fn serves(cluster: &mut Cluster, slot: Slot) -> Result<bool, Box<dyn std::error::Error>> {
    let result = cluster.block_on(slot, move |node| async move {
        let own = node.handle().grain::<Echo>(format!("own-{slot}"));
        own.echo().deadline(Duration::from_millis(500)).await
    })?;
    Ok(result.is_ok())
}

/// M6. Cut off from the store only, a silo serves on: it hears the others.
#[test]
fn a_silo_cut_off_from_the_store_serves_on() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        ensure!(serves(&mut cluster, S1)?, "before");
        cluster.inflict(Fault::StoreCut(S1, 60 * SECOND));
        for second in 0..50 {
            ensure!(serves(&mut cluster, S1)?, "{second} s after the cut");
            cluster.run_for(SECOND)?;
        }
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// M6. The store is down for everybody: nobody dies, everybody serves.
#[test]
fn a_store_outage_stops_nobody_who_hears_the_others() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        for slot in [S1, S2, S3] {
            ensure!(serves(&mut cluster, slot)?, "before");
        }
        cluster.inflict(Fault::StoreDown(60 * SECOND));
        for second in 0..20 {
            for slot in [S1, S2, S3] {
                ensure!(serves(&mut cluster, slot)?, "{slot}, {second} rounds after the outage");
            }
            cluster.run_for(2 * SECOND)?;
        }
        ensure!(cluster.world().event_count("SiloDeclaredDead") == 0, "nobody is Dead");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// M6. Cut off from peers and store, a silo fences within its lease and serves no more.
#[test]
fn a_silo_cut_off_from_all_fences_within_its_lease() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        ensure!(serves(&mut cluster, S1)?, "before");
        let alone = process(&cluster, S1)?;
        cluster.inflict(Fault::StoreCut(S1, 40 * SECOND));
        cluster.inflict(Fault::Isolate(S1, 40 * SECOND));
        cluster.run_for(Duration::from_millis(2_600))?;
        ensure!(!serves(&mut cluster, S1)?, "it serves after its lease");
        cluster.run_until(30 * SECOND, "it is Dead for the others", |cluster| {
            is_gone_for(cluster, S2, alone) && is_gone_for(cluster, S3, alone)
        })?;
        ensure!(!serves(&mut cluster, S1)?, "it serves after its death");
        let heard = cluster.block_on(S2, |node| async move {
            node.handle().grain::<Echo>("own-s1").echo().await
        })?;
        ensure!(heard == Ok(1), "its successor begins anew: {heard:?}");
        Ok(())
    }
    check(scenario, &["serves-forever"]);
}

/// M6. Two silos, the store down, and one crashes: the other cannot know, and fences.
#[test]
fn of_two_silos_without_a_store_the_survivor_fences() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(10 * SECOND)?;
        ensure!(serves(&mut cluster, S1)?, "before");
        cluster.inflict(Fault::StoreDown(40 * SECOND));
        cluster.inflict(Fault::Vanish(S2));
        cluster.run_for(5 * SECOND)?;
        ensure!(!serves(&mut cluster, S1)?, "it serves although it may be the one cut off");
        cluster.run_for(45 * SECOND)?;
        ensure!(serves(&mut cluster, S1)?, "it serves again with the store");
        Ok(())
    }
    check(scenario, &["serves-forever"]);
}

/// M9. All silos are killed at once and one comes back: it joins without help.
#[test]
fn after_all_were_killed_the_first_one_back_joins_alone() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.run_for(5 * SECOND)?;
        for slot in [S1, S2, S3] {
            cluster.inflict(Fault::Vanish(slot));
        }
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Start(S2));
        cluster.run_until(60 * SECOND, "it is Active", |cluster| {
            cluster.silo(S2).and_then(|silo| silo.status()) == Some(SiloStatus::Active)
        })?;
        ensure!(serves(&mut cluster, S2)?, "it serves");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// A roll of the whole cluster under traffic to a hub and a grain: nobody is lost.
#[test]
fn a_roll_leaves_every_silo_reachable() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.inflict(Fault::Roll);
        cluster.run_until(120 * SECOND, "the roll is done", Cluster::is_whole)?;
        let hub = serve_hub(&mut cluster, S2, "portal/after", Opening::Plain);
        cluster.run_for(SECOND)?;
        for slot in [S1, S2, S3] {
            let heard = cluster.block_on(slot, |node| async move {
                note(&node, "portal/after", &Note::default()).await
            })?;
            ensure!(heard.name() == "Handled", "{slot}: {heard:?}");
        }
        ensure!(hub.numbers().len() == 3, "{hub:?}");
        ensure!(cluster.report().tally.rolls == 1, "one roll");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}
