//! Detection and votes: M2, M3, M4 and what FAULTS says of crashed, paused and silent silos.

use core::time::Duration;

use siloring_core::limits::{HEARD_PERIOD, LEASE, PROBE_MISSES, PROBE_PERIOD};
use siloring_core::view::Vote;
use siloring_core::{Generation, Moment, SiloStatus, ViewNumber};

use super::super::{Control, ControlMessage, ControlOutput, Defect, ProbeNumber, ViewRows};
use super::world::{Cut, Life, StoreFault, World, millis, seconds};
use super::{assert_serving, fails, seeds};

/// Runs until `node` is Dead in the store; tells how long that took.
fn time_to_death(world: &mut World, node: usize, bound: Duration) -> Duration {
    let begin = world.now;
    let dead = world.run_until(bound, |world| world.is_dead_in_store(node));
    assert!(dead, "seed {}: node {node} is Dead within {bound:?}", world.seed);
    world.now.since(begin)
}

fn deaths(count: usize, crash: impl Fn(&mut World)) -> Vec<Duration> {
    let mut times: Vec<Duration> = seeds(40)
        .map(|seed| {
            let mut world = World::started(seed, count);
            let wait = world.rng().u64(0..1000);
            world.run(millis(wait));
            crash(&mut world);
            let time = time_to_death(&mut world, 0, seconds(10));
            world.run(seconds(1));
            assert!(world.is_converged(), "seed {seed}: gossip tells all within a second");
            time
        })
        .collect();
    times.sort_unstable();
    times
}

#[test]
fn a_killed_silo_is_typically_dead_within_three_seconds() {
    for count in [2, 3, 5, 14] {
        let times = deaths(count, |world| world.kill(0));
        assert!(times[times.len() / 2] <= seconds(3), "{count} silos: {times:?}");
        assert!(*times.last().unwrap() <= seconds(5), "{count} silos: {times:?}");
    }
}

#[test]
fn a_silo_whose_host_vanished_is_dead_as_soon() {
    for count in [2, 3, 5] {
        let times = deaths(count, |world| world.vanish(0));
        assert!(times[times.len() / 2] <= seconds(3), "{count} silos: {times:?}");
        assert!(*times.last().unwrap() <= seconds(5), "{count} silos: {times:?}");
    }
}

/// M2: the target is cut off from all; one accuser's clock is an hour ahead.
fn silent_target(seed: u64, skew: Duration) -> Duration {
    let mut world = World::new(seed);
    for node in 0..4 {
        world.add();
        if node == 1 {
            world.set_skew(node, skew);
        }
        world.start(node);
    }
    world.run(seconds(10));
    assert!(world.is_converged());
    world.part(&[0], &[1, 2, 3], Cut::Drop);
    let time = time_to_death(&mut world, 0, seconds(10));
    assert!(time >= PROBE_PERIOD * (PROBE_MISSES - 1), "not before the misses: {time:?}");
    let target = world.generation(0);
    let rows = &world.store.table.rows;
    let row = rows.iter().find(|row| row.row.incarnation.generation == target).unwrap();
    let mut authors: Vec<Generation> = row.row.votes.iter().map(|vote| vote.by).collect();
    authors.dedup();
    assert!(authors.len() >= 2, "two silos voted: {authors:?}");
    assert!(!authors.contains(&target));
    world.run(seconds(7));
    assert_eq!(world.nodes[0].exited.map(|(_, code)| code), Some(70));
    assert_serving(&world, &[1, 2, 3]);
    time
}

#[test]
fn a_silent_silo_is_dead_only_after_the_due_votes_whatever_a_clock_says() {
    for seed in seeds(20) {
        assert_eq!(silent_target(seed, Duration::ZERO), silent_target(seed, seconds(3600)));
    }
}

#[test]
fn one_accuser_alone_makes_nobody_dead() {
    let mut world = World::started(5, 4);
    // Node 1 does not ask a third silo, so that it does accuse.
    world.nodes[1].control.plant(Defect::NoThird);
    world.part(&[0], &[1], Cut::Drop);
    assert!(world.run_until(seconds(10), |world| world.count_events(1, "SiloAccused") > 0));
    world.run(seconds(60));
    assert!(!world.is_dead_in_store(0));
    assert!(!world.is_dead_in_store(1));
}

#[test]
fn two_of_three_killed_at_once_are_dead_within_thirty_seconds() {
    for seed in seeds(20) {
        for gone in [Life::Killed, Life::Vanished] {
            let mut world = World::started(seed, 3);
            for node in [0, 1] {
                if gone == Life::Killed { world.kill(node) } else { world.vanish(node) }
            }
            let both = |world: &World| world.is_dead_in_store(0) && world.is_dead_in_store(1);
            assert!(world.run_until(seconds(30), both), "seed {seed}");
            world.run(seconds(2));
            assert_serving(&world, &[2]);
        }
    }
}

#[test]
fn four_of_six_killed_at_once_are_dead_within_thirty_seconds() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 6);
        (0..4).for_each(|node| world.kill(node));
        let all = |world: &World| (0..4).all(|node| world.is_dead_in_store(node));
        assert!(world.run_until(seconds(30), all), "seed {seed}");
        world.run(seconds(2));
        assert_serving(&world, &[4, 5]);
    }
}

/// M3, B.20: a firewall between two silos, a third reaches both.
fn firewall(cut: Cut, defect: Option<Defect>) {
    for seed in seeds(5) {
        let mut world = World::started(seed, 3);
        world.plant(defect);
        let version = world.store.table.version;
        world.part(&[0], &[1], cut);
        world.run(seconds(120));
        assert_eq!(world.store.table.version, version, "seed {seed}: nobody voted");
        assert_serving(&world, &[0, 1, 2]);
        assert_eq!(world.count_events(0, "ReachedByThirdOnly"), 1, "it is told, once");
        world.heal();
        world.run(seconds(10));
        assert_serving(&world, &[0, 1, 2]);
    }
}

#[test]
fn nobody_votes_while_a_third_silo_reaches_the_suspect() {
    for cut in [Cut::Reject, Cut::Drop] {
        firewall(cut, None);
        assert!(fails(move || firewall(cut, Some(Defect::NoThird))));
    }
}

/// M3: a vote of ten minutes ago, and a silo that joined just now and suspects the same.
fn old_vote(defect: Option<Defect>) {
    let mut world = World::started(9, 3);
    let (suspect, author) = (world.generation(0), world.generation(1));
    world.run(seconds(120));
    let heartbeat = world.store.table.heartbeat(author).unwrap() - 20;
    let next = world.store.table.version.next();
    let rows = &mut world.store.table.rows;
    let row = rows.iter_mut().find(|row| row.row.incarnation.generation == suspect).unwrap();
    row.row.votes.push(Vote { by: author, heartbeat });
    world.store.table.version = next;
    let newcomer = world.add();
    world.start(newcomer);
    assert!(world.run_until(seconds(20), |world| world.nodes[3].started_at.is_some()));
    world.nodes[3].control.plant(defect.unwrap_or(Defect::NoThird));
    let others: &[usize] = if defect.is_some() { &[3, 1, 2] } else { &[3] };
    world.part(&[0], others, Cut::Drop);
    let accused = |world: &World| {
        world.count_events(3, "SiloAccused") + world.count_events(3, "SiloDeclaredDead") > 0
    };
    assert!(world.run_until(seconds(10), accused), "the newcomer voted");
    let alone = world.count_events(3, "SiloDeclaredDead") == 0;
    let votes = |world: &World| {
        let rows = &world.store.table.rows;
        let row = rows.iter().find(|row| row.row.incarnation.generation == suspect).unwrap();
        row.row.votes.clone()
    };
    assert!(alone, "its vote and an old one do not suffice: {:?}", votes(&world));
    assert!(votes(&world).iter().all(|vote| vote.heartbeat != heartbeat), "the old one went");
}

#[test]
fn a_reader_that_just_started_counts_no_old_votes() {
    old_vote(None);
    assert!(fails(|| old_vote(Some(Defect::VotesNeverExpire))));
}

/// M4, A.6: stopped for ten seconds, then continued.
fn sleeper(seed: u64, defect: Option<Defect>) {
    let mut world = World::started(seed, 3);
    world.plant(defect);
    world.pause(0);
    world.run(seconds(10));
    assert!(world.is_dead_in_store(0), "seed {seed}: its successors took over");
    let view = world.nodes[1].view;
    world.resume(0);
    for _ in 0..5000 {
        world.run(millis(1));
        assert!(!world.is_serving(0), "seed {seed}: nothing is accepted by the sleeper");
    }
    let (at, code) = world.nodes[0].exited.expect("it learns of its death");
    assert_eq!(code, 70);
    assert!(world.now.since(at) >= millis(4000), "seed {seed}: soon");
    assert_eq!(world.nodes[1].view, view, "seed {seed}: nothing it sent changed a thing");
    assert_serving(&world, &[1, 2]);
}

#[test]
fn a_sleeper_that_wakes_accepts_nothing_and_exits() {
    seeds(20).for_each(|seed| sleeper(seed, None));
    assert!(fails(|| sleeper(1, Some(Defect::IgnoresOwnDeath))));
}

/// As the sleeper, but it wakes in a world that it can neither hear nor ask.
fn lonely_sleeper(seed: u64, defect: Option<Defect>) {
    let mut world = World::started(seed, 3);
    world.plant(defect);
    world.pause(0);
    world.part(&[0], &[1, 2], Cut::Drop);
    world.nodes[0].store_fault = Some(StoreFault::Hang);
    world.run(seconds(10));
    assert!(world.is_dead_in_store(0), "seed {seed}: its successors took over");
    world.resume(0);
    for _ in 0..5000 {
        world.run(millis(1));
        assert!(!world.is_serving(0), "seed {seed}: nothing is accepted by the sleeper");
    }
    assert_eq!(world.count_events(0, "Fenced"), 1, "seed {seed}");
}

#[test]
fn a_sleeper_that_wakes_alone_accepts_nothing() {
    seeds(20).for_each(|seed| lonely_sleeper(seed, None));
    assert!(fails(|| lonely_sleeper(1, Some(Defect::ServesForever))));
}

#[test]
fn a_pause_shorter_than_the_detection_costs_a_fence_and_no_life() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 3);
        world.pause(0);
        world.run(millis(1700));
        assert!(world.now > world.nodes[0].serve_until, "seed {seed}: its lease ended meanwhile");
        world.resume(0);
        world.run(seconds(5));
        assert_eq!(world.count_events(0, "Fenced"), 1, "seed {seed}");
        assert_eq!(world.count_events(0, "Unfenced"), 1, "seed {seed}");
        for node in [1, 2] {
            assert_eq!(world.count_events(0, "SiloAccused"), 0, "seed {seed}: {node} forgave");
        }
        assert_serving(&world, &[0, 1, 2]);
    }
}

#[test]
fn a_starved_silo_accuses_nobody() {
    for seed in seeds(5) {
        let mut world = World::started(seed, 3);
        world.nodes[0].starved = millis(900);
        world.run(seconds(60));
        assert_eq!(world.count_events(0, "SiloAccused"), 0, "seed {seed}");
        assert!(world.nodes[0].exited.is_none(), "seed {seed}: it is slow, not dead");
    }
}

#[test]
fn bytes_of_a_silo_forbid_votes_against_it() {
    let scenario = |defect: Option<Defect>| {
        let mut world = World::started(3, 3);
        world.plant(defect);
        // Refused lanes bring the indirect probe forward; its failure alone is no vote.
        for _ in 0..20 {
            world.part(&[0], &[1, 2], Cut::Reject);
            world.run(millis(900));
            world.heal();
            world.run(millis(600));
        }
        assert!(!world.is_dead_in_store(0));
        assert_serving(&world, &[0, 1, 2]);
        let accused = (0..3).map(|node| world.count_events(node, "SiloAccused")).sum::<usize>();
        assert_eq!(accused, 0);
    };
    scenario(None);
    assert!(fails(move || scenario(Some(Defect::BytesForbidNothing))));
}

/// Node 0 is cut off from all control lanes, and from the store when `store` says so, while bytes
/// of all go on to come in on the shards' links.
fn slow_lanes(store: Option<StoreFault>) -> World {
    let mut world = World::started(3, 3);
    world.part(&[0], &[1, 2], Cut::Drop);
    world.nodes[0].store_fault = store;
    let silos: Vec<Generation> = (0..3).map(|node| world.generation(node)).collect();
    for _ in 0..80 {
        for node in 0..3 {
            for &silo in silos.iter().filter(|silo| **silo != silos[node]) {
                world.command(node, |control, now| control.heard_on_link(now, silo));
            }
        }
        world.run(HEARD_PERIOD);
    }
    world
}

#[test]
fn a_silo_whose_links_speak_is_not_voted_against_though_its_lanes_are_silent() {
    let mut world = slow_lanes(None);
    let accused = (0..3).map(|node| world.count_events(node, "SiloAccused")).sum::<usize>();
    assert_eq!(accused, 0);
    assert_serving(&world, &[0, 1, 2]);
    assert!(world.run_until(seconds(10), |world| world.is_dead_in_store(0)), "silent for good");
}

/// They may have waited behind a long turn: whoever sent them may have voted since.
#[test]
fn bytes_on_a_link_do_not_renew_the_right_to_serve() {
    let world = slow_lanes(Some(StoreFault::Down));
    assert!(!world.is_serving(0), "neither the store nor a control lane speaks for it");
    assert_serving(&world, &[1, 2]);
}

#[test]
fn a_silo_that_leaves_the_directory_waiting_is_voted_against() {
    let mut world = World::started(4, 3);
    let silent = world.generation(0);
    for node in [1, 2] {
        world.command(node, |control, now| control.accuse(now, silent));
    }
    assert!(world.run_until(seconds(3), |world| world.is_dead_in_store(0)));
    let mut alone = World::started(4, 3);
    let silent = alone.generation(0);
    alone.command(1, |control, now| control.accuse(now, silent));
    alone.run(seconds(60));
    assert!(!alone.is_dead_in_store(0), "one accuser is not enough");
}

#[test]
fn a_shard_without_progress_is_reported_and_then_ends_the_process() {
    let mut world = World::started(1, 1);
    for count in 0..40u64 {
        world.run(seconds(1));
        world.command(0, |control, now| control.handle_progress(now, &[count, 7]));
    }
    let stalls = &world.nodes[0].stalls;
    assert_eq!(stalls.len(), 2, "each told once: {stalls:?}");
    let shard = siloring_core::ShardIndex(1);
    assert!(matches!(stalls[0], ControlOutput::Stalled { shard: s, .. } if s == shard));
    assert_eq!(stalls[1], ControlOutput::Abort { shard });
}

#[test]
fn a_joiner_that_dies_before_it_is_active_does_not_linger() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 3);
        let node = world.add();
        world.start(node);
        assert!(world.run_until(seconds(5), |world| world.nodes[3].me.is_some()));
        world.kill(node);
        assert!(world.run_until(seconds(75), |world| world.is_dead_in_store(3)), "seed {seed}");
    }
}

#[test]
fn a_death_is_never_written_before_the_lease_of_the_dead_has_ended() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 5);
        // Cut off from all, store included: it can only fence by itself.
        world.part(&[0], &[1, 2, 3, 4], Cut::Drop);
        world.nodes[0].store_fault = Some(StoreFault::Hang);
        assert!(world.run_until(seconds(10), |world| world.is_dead_in_store(0)), "seed {seed}");
        assert!(!world.is_serving(0), "seed {seed}");
        let fenced = world.nodes[0].serve_until;
        assert!(fenced + millis(100) < world.now, "seed {seed}: {fenced:?} before {:?}", world.now);
        assert!(fenced > Moment::ZERO + LEASE);
        assert_eq!(world.store.status(world.generation(0)), Some(SiloStatus::Dead));
    }
}

#[test]
fn a_view_of_a_dead_silo_is_not_answered() {
    let mut world = World::started(1, 3);
    world.kill(0);
    assert!(world.run_until(seconds(10), |world| world.is_dead_in_store(0)));
    world.run(seconds(1));
    let (gone, now) = (world.generation(0), world.now);
    let control = &mut world.nodes[1].control;
    let sends = |control: &mut Control| {
        let outputs = core::iter::from_fn(|| control.poll_output());
        outputs.filter(|out| matches!(out, ControlOutput::Send(to, _) if *to == gone)).count()
    };
    let rows = ViewRows { number: ViewNumber(1), rows: Vec::new() };
    control.handle_message(now, gone, ControlMessage::Newer(rows));
    assert_eq!(sends(control), 0, "two that hold each other Dead would never end");
    let probe = ControlMessage::Probe { number: ProbeNumber(1), view: ViewNumber(1) };
    control.handle_message(now, gone, probe);
    assert_eq!(sends(control), 1, "but a sleeper is told");
}

#[test]
fn an_idle_cluster_and_a_waiting_joiner_cost_little() {
    let mut world = World::started(1, 3);
    let steps = world.steps;
    world.run(seconds(60));
    let per_silo = (world.steps - steps) / 60 / 3;
    assert!(per_silo <= 40, "{per_silo} steps a second for each silo");
    (0..3).for_each(|node| world.kill(node));
    let node = world.add();
    world.start(node);
    world.run(seconds(1));
    let steps = world.steps;
    world.run(seconds(15));
    assert!(world.nodes[node].started_at.is_none());
    let waiting = (world.steps - steps) / 15;
    assert!(waiting <= 40, "{waiting} steps a second for a joiner that waits");
}
