//! The directory: where an address lives, while its owners come and go.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring_runtime::directory::PlantedFault;
use siloring_testkit::sim::workload::Workload;
use siloring_testkit::sim::{Cluster, Fault, Node, Plan};

use super::scenario::{
    Echo, EchoRef as _, Heard, New, Note, Opening, Outcome, S1, S2, S3, S4, SECOND, check,
    echo_owned_by, ensure, is_gone_for, note, notes, process, serve_hub, up,
};

const HUBS: [&str; 8] = [
    "portal/k1",
    "portal/k2",
    "portal/k3",
    "portal/k4",
    "portal/k5",
    "portal/k6",
    "portal/k7",
    "portal/k8",
];

/// Hubs that are looked up for the first time in each round, one each `COLD_PERIOD`: for longer
/// than a death takes to be found and its ranges to be recovered.
const COLD_HUBS: u64 = 300;
const COLD_PERIOD: Duration = Duration::from_millis(40);

/// Opens a hub and answers whatever comes.
async fn hold(node: Node, hub: String) {
    let builder = node.handle().hub(&hub).expect("a plain address");
    let Ok(mut hub) = builder.open().await else { return };
    while let Some(delivery) = hub.next().await {
        delivery.answer(&());
    }
}

/// Looks up the hubs of a round, each from a cold cache; what was heard.
async fn look_up_cold(node: Node, round: u64) -> Vec<Heard> {
    let mut heard = Vec::new();
    for index in 0..COLD_HUBS {
        let began = node.now();
        heard.push(note(&node, &format!("portal/cold-{round}-{index}"), &Note::default()).await);
        node.sleep(COLD_PERIOD.saturating_sub(node.now().since(began))).await;
    }
    heard
}

/// Sends to some hubs all the time, and to others for the first time, while `disturb` happens; none
/// is ever said not to be there.
fn look_up_while(
    mut cluster: Cluster,
    disturb: impl Fn(&mut Cluster, u64) -> Outcome,
    rounds: u64,
) -> Outcome {
    for hub in HUBS {
        serve_hub(&mut cluster, S1, hub, Opening::Plain);
    }
    for (round, index) in (0..rounds).flat_map(|round| (0..COLD_HUBS).map(move |i| (round, i))) {
        drop(cluster.spawn(S1, move |node| hold(node, format!("portal/cold-{round}-{index}"))));
    }
    cluster.run_for(SECOND)?;
    let (mut watches, mut cold) = (Vec::new(), Vec::new());
    for hub in HUBS {
        let span = Duration::from_secs(40 * rounds);
        let period = Duration::from_millis(40);
        watches.push(cluster.spawn(S2, move |node| notes(node, hub.to_owned(), period, span)));
    }
    for round in 0..rounds {
        cold.push(cluster.spawn(S2, move |node| look_up_cold(node, round)));
        disturb(&mut cluster, round)?;
    }
    cluster.run_until(300 * SECOND, "all are answered", |_| {
        watches.iter().all(|watch| watch.borrow().is_some())
    })?;
    for (hub, watch) in HUBS.iter().zip(&watches) {
        let heard = watch.borrow_mut().take().unwrap_or_default();
        for (index, heard) in heard.iter().enumerate() {
            ensure!(heard.name() != "NotHere", "{hub}, look-up {index}: {heard:?}");
        }
    }
    for (round, heard) in cold.iter().enumerate() {
        let heard = heard.borrow_mut().take().ok_or("a look-up never ended")?;
        let absent = heard.iter().find(|heard| heard.name() == "NotHere");
        ensure!(absent.is_none(), "round {round}, from a cold cache: {absent:?}");
    }
    cluster.run_until(60 * SECOND, "whole again", Cluster::is_whole)?;
    for hub in HUBS {
        let heard = cluster
            .block_on(S3, move |node| async move { note(&node, hub, &Note::default()).await })?;
        ensure!(heard.name() == "Handled" && heard.took < SECOND, "{hub}: {heard:?}");
    }
    Ok(())
}

/// D1. The owner of a range leaves during look-ups: success or a transient kind, never `NotHere`.
#[test]
fn a_look_up_during_the_owners_end_is_never_terminal() {
    fn scenario(new: New<'_>) -> Outcome {
        let disturb = |cluster: &mut Cluster, round: u64| -> Outcome {
            cluster.inflict(if round.is_multiple_of(2) {
                Fault::Kill(S3)
            } else {
                Fault::Drain(S3)
            });
            cluster.run_for(15 * SECOND)?;
            cluster.inflict(Fault::Start(S3));
            cluster.run_for(20 * SECOND)?;
            Ok(())
        };
        look_up_while(up(new(3))?, disturb, 4)
    }
    check(scenario, &["open-before-all-answers"]);
}

/// D5. A newcomer is killed at every moment of its hand-overs, a leaver at every moment of its own.
#[test]
fn a_hand_over_cut_short_at_any_moment_leaves_the_range_whole() {
    fn scenario(new: New<'_>) -> Outcome {
        let disturb = |cluster: &mut Cluster, round: u64| -> Outcome {
            cluster.inflict(Fault::Drain(S3));
            // From the first piece of the leaver's hand-over to the last.
            cluster.run_for(Duration::from_millis(1 + round * round))?;
            cluster.inflict(Fault::Kill(S3));
            cluster.run_for(12 * SECOND)?;
            cluster.inflict(Fault::Start(S3));
            let joined = |cluster: &Cluster| {
                let status = cluster.silo(S3).and_then(|silo| silo.status());
                status == Some(siloring_core::SiloStatus::Active)
            };
            cluster.run_until(60 * SECOND, "it joins", joined)?;
            if round.is_multiple_of(2) {
                cluster.run_for(Duration::from_millis(round))?;
                cluster.inflict(Fault::Kill(S3));
                cluster.run_for(12 * SECOND)?;
                cluster.inflict(Fault::Start(S3));
            }
            cluster.run_for(10 * SECOND)?;
            Ok(())
        };
        look_up_while(up(new(3))?, disturb, 8)
    }
    check(scenario, &["open-before-all-answers"]);
}

/// D5. One silo is unreachable for the asker only: its answer comes through a third, and until then
/// the range is moving.
#[test]
fn a_recovery_hears_a_silo_that_only_others_reach() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(4))?;
        let names: Vec<&'static str> =
            (0..160).map(|hub| &*format!("portal/r{hub}").leak()).collect();
        for hub in &names {
            serve_hub(&mut cluster, S1, hub, Opening::Plain);
        }
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Split(S1, S2, 8 * SECOND));
        // Each is asked for once, so that no cache knows: from before the death until after all.
        let mut asked = Vec::new();
        for (wait, hub) in (0..).zip(names.iter().copied()) {
            asked.push(cluster.spawn(S2, move |node| async move {
                node.sleep(Duration::from_millis(40 * wait)).await;
                note(&node, hub, &Note::default()).await
            }));
        }
        cluster.run_until(60 * SECOND, "all are answered", |_| {
            asked.iter().all(|asked| asked.borrow().is_some())
        })?;
        for (hub, asked) in names.iter().zip(&asked) {
            let heard = asked.borrow_mut().take();
            let terminal = heard.as_ref().is_some_and(|heard| heard.name() == "NotHere");
            ensure!(!terminal, "{hub}: {heard:?}");
        }
        Ok(())
    }
    check(scenario, &["open-before-all-answers"]);
}

/// D2. Calls to a thousand ids while silos join, drain and are killed: what was answered is stored,
/// and a survivor keeps its activations.
#[test]
fn a_thousand_ids_keep_one_committing_activation_each() {
    fn scenario(new: New<'_>) -> Outcome {
        let workload = Workload::new();
        let mut cluster = workload.install(new(3).planned(troubled)).build();
        cluster.start()?;
        let counts = Rc::new(RefCell::new(BTreeMap::new()));
        for id in 0..1_000u64 {
            let counts = Rc::clone(&counts);
            drop(cluster.spawn(S1, move |node| async move {
                let echo = node.handle().grain::<Echo>(format!("id-{id}"));
                let result = echo.echo().await;
                counts.borrow_mut().insert(id, result.map_err(|error| error.to_string()));
            }));
        }
        cluster.run_plan()?;
        workload.verify(&mut cluster)?;
        let counts = counts.borrow();
        ensure!(counts.len() == 1_000, "{} of 1000 ended", counts.len());
        let once = counts.values().filter(|count| **count == Ok(1)).count();
        ensure!(once == 1_000, "before any fault {once} of 1000 ran once");
        Ok(())
    }
    check(scenario, &["range-kept", "numbers-repeat"]);
}

/// Silos join, drain and are killed under load.
fn troubled(mut plan: Plan) -> Plan {
    plan.options.load_per_second = 60;
    plan.options.safety = Duration::from_secs(150);
    plan.at(10 * SECOND, Fault::Kill(S2))
        .at(25 * SECOND, Fault::Start(S2))
        .at(45 * SECOND, Fault::Drain(S3))
        .at(60 * SECOND, Fault::Start(S3))
        .at(80 * SECOND, Fault::Roll)
}

/// D2. The death of a directory owner deactivates nothing elsewhere.
#[test]
fn the_death_of_an_owner_deactivates_nothing_elsewhere() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let call_all = |cluster: &mut Cluster| {
            cluster.block_on(S1, |node| async move {
                let mut counts = Vec::new();
                for id in 0..60 {
                    let echo = node.handle().grain::<Echo>(format!("kept-{id}"));
                    counts.push(echo.echo().await);
                }
                counts
            })
        };
        let first = call_all(&mut cluster)?;
        ensure!(first.iter().all(|count| *count == Ok(1)), "{first:?}");
        let before = cluster.world().event_count("GrainDeactivated");
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(15 * SECOND)?;
        let second = call_all(&mut cluster)?;
        // They are on the silo that called them first, so none was on the one that died.
        ensure!(second.iter().all(|count| *count == Ok(2)), "{second:?}");
        let after = cluster.world().event_count("GrainDeactivated");
        ensure!(after == before, "{before} then {after} deactivations");
        Ok(())
    }
    check(scenario, &["death-deactivates"]);
}

/// D4. A stale cache entry costs one forward, then it is right: also if a one-way found it out.
#[test]
fn a_stale_place_is_corrected_by_the_first_call_that_meets_it() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        for round in 0..6u64 {
            let key = format!("mover-{round}");
            let call = |cluster: &mut Cluster, slot, key: String| {
                cluster.block_on(slot, move |node| async move {
                    node.handle().grain::<Echo>(key.as_str()).echo().await
                })
            };
            ensure!(call(&mut cluster, S3, key.clone())? == Ok(1), "made on s3");
            ensure!(call(&mut cluster, S1, key.clone())? == Ok(2), "s1 knows that it is on s3");
            let leaving = key.clone();
            cluster.block_on(S3, move |node| async move {
                node.handle().grain::<Echo>(leaving.as_str()).leave().await
            })??;
            cluster.run_for(SECOND)?;
            ensure!(call(&mut cluster, S2, key.clone())? == Ok(1), "made anew, on s2");
            if round.is_multiple_of(2) {
                ensure!(call(&mut cluster, S1, key.clone())? == Ok(2), "s1 finds it");
            } else {
                let one_way = key.clone();
                cluster.block_on(S1, move |node| async move {
                    node.handle().grain::<Echo>(one_way.as_str()).echo().one_way()
                })??;
                cluster.run_for(SECOND)?;
            }
            let attempt = cluster.block_on(S1, move |node| async move {
                node.handle().grain::<Echo>(key.as_str()).attempt().await
            })?;
            ensure!(attempt == Ok(1), "and knows it: {attempt:?}");
            let runs = cluster.block_on(S2, move |node| async move {
                node.handle().grain::<Echo>(format!("mover-{round}")).runs().await
            })?;
            ensure!(runs == Ok(3), "all at one place: {runs:?}");
        }
        Ok(())
    }
    check(scenario, &["redirect-unlearnt"]);
}

/// D3. An entry is lost and its grain is activated a second time; in the recovery after the owner's
/// death both silos say that they have it. The newer one stays; the older one ends with the turn
/// that it has begun, and forwards what waits behind it.
#[test]
fn of_two_that_claim_one_grain_in_a_recovery_the_newest_stays_and_the_other_forwards() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(4))?;
        let key = echo_owned_by(&cluster, S3, S4);
        let call = |cluster: &mut Cluster, slot| {
            cluster.block_on(slot, move |node| async move {
                node.handle().grain::<Echo>(key).echo().await
            })
        };
        ensure!(call(&mut cluster, S1)? == Ok(1), "made on s1");
        cluster.plant_fault(S3, PlantedFault::LoseEntries);
        ensure!(call(&mut cluster, S2)? == Ok(1), "made once more, on s2");
        let turn = cluster.spawn(S1, move |node| async move {
            node.handle().grain::<Echo>(key).echo_after(20_000).await
        });
        cluster.run_for(Duration::from_millis(50))?;
        let behind: Vec<_> = (0..3)
            .map(|_| {
                cluster.spawn(S1, move |node| async move {
                    node.handle().grain::<Echo>(key).echo().await
                })
            })
            .collect();
        cluster.run_for(Duration::from_millis(50))?;
        let owner = process(&cluster, S3)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_until(11 * SECOND, "the owner is Dead", |cluster| {
            [S1, S2, S4].iter().all(|slot| is_gone_for(cluster, *slot, owner))
        })?;
        cluster.run_for(3 * SECOND)?;
        ensure!(turn.borrow().is_none(), "the turn that has begun goes on");
        let forwarded: Vec<_> = behind.iter().map(|heard| heard.borrow().clone()).collect();
        ensure!(
            forwarded == [Some(Ok(2)), Some(Ok(3)), Some(Ok(4))],
            "what waited behind it is forwarded: {forwarded:?}"
        );
        for (slot, count) in [(S1, 5), (S2, 6), (S4, 7)] {
            let heard = call(&mut cluster, slot)?;
            ensure!(heard == Ok(count), "{slot} finds the newest: {heard:?}");
        }
        cluster.run_for(20 * SECOND)?;
        ensure!(*turn.borrow() == Some(Ok(2)), "the turn ended well: {turn:?}");
        let lost = cluster.world().event_count("RegistrationLost");
        ensure!(lost == 1, "one of the two lost, not {lost}");
        Ok(())
    }
    check(scenario, &["oldest-wins", "losers-untold"]);
}
