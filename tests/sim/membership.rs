//! Membership: who is alive, who may serve, and how soon everybody knows.

use std::time::Duration;

use siloring_core::SiloStatus;
use siloring_testkit::sim::world::Life;
use siloring_testkit::sim::{Cluster, Fault, Slot};

use super::scenario::{
    DETECTED, Echo, EchoRef as _, New, Outcome, S1, S2, S3, S4, SECOND, check, ensure, is_gone_for,
    process, up,
};

/// The fifth slot.
const S5: Slot = Slot(5);

/// M2. A silent silo is Dead after the due votes: not before its lease has ended, and within the
/// bound. (Clocks of simulated hosts are days apart and drift, here as everywhere.)
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
    check(scenario, &["one-miss-suffices", "never-votes"]);
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
    check(scenario, &["votes-fixed"]);
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
        cluster.run_until(SECOND / 2, "the old one is Dead", |cluster| {
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
    check(scenario, &["old-row-kept"]);
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
    check(scenario, &["store-alone-renews"]);
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
    check(scenario, &["store-alone-renews"]);
}

/// M6. Three of five lose the store and hear the other two: nobody fences, nobody dies.
#[test]
fn of_five_silos_three_without_the_store_serve_on_beside_two_that_reach_it() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(5))?;
        for slot in [S1, S2, S3] {
            cluster.inflict(Fault::StoreCut(slot, 60 * SECOND));
        }
        for second in 0..25 {
            for slot in [S1, S2, S3, S4, S5] {
                ensure!(serves(&mut cluster, slot)?, "{slot}, round {second}");
            }
            cluster.run_for(2 * SECOND)?;
        }
        ensure!(cluster.world().event_count("SiloDeclaredDead") == 0, "nobody is Dead");
        Ok(())
    }
    check(scenario, &["store-alone-renews"]);
}

/// M6. Three of five lose the store and the other two at once: the two that reach the store go on
/// and declare them Dead; the three, though they are more, fence within their lease. Nothing that
/// they accepted late stands beside what their successors accept.
#[test]
fn of_five_silos_the_two_that_reach_the_store_go_on_and_the_three_fence() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(5))?;
        let (lost, kept) = ([S1, S2, S3], [S4, S5]);
        for slot in [S1, S2, S3, S4, S5] {
            ensure!(serves(&mut cluster, slot)?, "before");
        }
        let processes = [process(&cluster, S1)?, process(&cluster, S2)?, process(&cluster, S3)?];
        for slot in lost {
            cluster.inflict(Fault::StoreCut(slot, 60 * SECOND));
            for other in kept {
                cluster.inflict(Fault::Split(slot, other, 60 * SECOND));
            }
        }
        cluster.run_for(Duration::from_millis(2_600))?;
        for slot in lost {
            ensure!(!serves(&mut cluster, slot)?, "{slot} serves after its lease");
        }
        for slot in kept {
            ensure!(serves(&mut cluster, slot)?, "{slot} reaches the store and does not serve");
        }
        cluster.run_until(30 * SECOND, "the three are Dead for the two", |cluster| {
            let gone = |slot| processes.iter().all(|lost| is_gone_for(cluster, slot, *lost));
            gone(S4) && gone(S5)
        })?;
        for (slot, key) in lost.into_iter().zip(["own-s1", "own-s2", "own-s3"]) {
            ensure!(!serves(&mut cluster, slot)?, "{slot} serves after its death");
            let heard = cluster.block_on(S4, move |node| async move {
                node.handle().grain::<Echo>(key).echo().await
            })?;
            ensure!(heard == Ok(1), "the successor of {slot} begins anew: {heard:?}");
        }
        cluster.run_for(60 * SECOND)?;
        for lost in processes {
            let life = cluster.world().life(lost);
            ensure!(life == Life::Exited(70), "{lost:?} ends with 70, not {life:?}");
        }
        let heard = cluster.block_on(S5, |node| async move {
            node.handle().grain::<Echo>("own-s1").echo().await
        })?;
        ensure!(heard == Ok(2), "nothing of the lost was accepted: {heard:?}");
        Ok(())
    }
    check(scenario, &["serves-forever", "ignores-own-death"]);
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

/// F40. The store fails over to a replica that had not heard of a death: the silos do not go back,
/// write what was lost under a new lineage, aloud, and serve on.
#[test]
fn a_store_that_goes_back_is_brought_forward_again() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.run_for(5 * SECOND)?;
        let gone = process(&cluster, S3)?;
        cluster.inflict(Fault::StoreLag(12 * SECOND));
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(11 * SECOND)?;
        ensure!(is_gone_for(&cluster, S1, gone), "its death is written, and will be lost");
        let last = cluster.silo(S1).map(|silo| silo.view().number()).unwrap_or_default();
        for second in 0..20 {
            for slot in [S1, S2] {
                ensure!(serves(&mut cluster, slot)?, "{slot}, {second} s after the fail-over");
                ensure!(is_gone_for(&cluster, slot, gone), "for {slot} it lives again");
            }
            cluster.run_for(SECOND)?;
        }
        let told = cluster.world().event_count("StoreRegressed");
        ensure!((1..=2).contains(&told), "told once by each who sees it, not {told} times");
        for slot in [S1, S2] {
            let view = cluster.silo(slot).map(|silo| silo.view().number()).unwrap_or_default();
            ensure!(view.lineage() == last.lineage() + 2, "{slot}: one new lineage, not {view}");
        }
        cluster.inflict(Fault::Start(S3));
        cluster.run_until(60 * SECOND, "whole in the new lineage", Cluster::is_whole)?;
        ensure!(serves(&mut cluster, S3)?, "the newcomer serves");
        Ok(())
    }
    check(scenario, &["view-goes-back"]);
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
    check(scenario, &["stale-rows-kept"]);
}
