//! The right to serve: M6.

use core::time::Duration;

use siloring_core::limits::LEASE;

use super::super::Defect;
use super::world::{Cut, StoreFault, World, millis, seconds};
use super::{assert_serving, fails, seeds};

/// Runs for `span`; tells for how much of it each of `nodes` served.
fn served(world: &mut World, span: Duration, nodes: &[usize]) -> Vec<Duration> {
    let mut served = vec![Duration::ZERO; nodes.len()];
    let step = millis(10);
    for _ in 0..span.as_millis() / step.as_millis() {
        world.run(step);
        for (time, &node) in served.iter_mut().zip(nodes) {
            if world.is_serving(node) {
                *time += step;
            }
        }
    }
    served
}

#[test]
fn a_silo_cut_off_from_the_store_only_serves_on() {
    for fault in [StoreFault::Down, StoreFault::Hang] {
        for seed in seeds(5) {
            let mut world = World::started(seed, 3);
            world.nodes[0].store_fault = Some(fault);
            let span = seconds(120);
            assert_eq!(served(&mut world, span, &[0, 1, 2]), [span; 3], "seed {seed}");
            assert_serving(&world, &[0, 1, 2]);
        }
    }
}

#[test]
fn a_store_outage_stops_nobody_who_hears_the_others() {
    for (seed, count) in [(1, 1), (2, 2), (3, 3), (4, 5), (5, 14), (6, 24)] {
        let mut world = World::started(seed, count);
        for node in &mut world.nodes {
            node.store_fault = Some(StoreFault::Down);
        }
        let nodes: Vec<usize> = (0..count).collect();
        let span = seconds(60);
        assert_eq!(served(&mut world, span, &nodes), vec![span; count], "{count} silos");
        for node in &mut world.nodes {
            node.store_fault = None;
        }
        world.run(seconds(10));
        assert_serving(&world, &nodes);
    }
}

#[test]
fn a_silo_cut_off_from_its_peers_only_is_declared_dead_and_exits() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 3);
        world.part(&[0], &[1, 2], Cut::Drop);
        world.run(seconds(10));
        assert_eq!(world.nodes[0].exited.map(|(_, code)| code), Some(70), "seed {seed}");
        let dead_at = world.store.dead_at[&world.generation(0)];
        let (exited_at, _) = world.nodes[0].exited.unwrap();
        assert!(exited_at.since(dead_at) <= seconds(1), "seed {seed}: it reads its row");
        assert_serving(&world, &[1, 2]);
    }
}

fn cut_off_from_both(seed: u64, defect: Option<Defect>) {
    let mut world = World::started(seed, 3);
    world.plant(defect);
    world.part(&[0], &[1, 2], Cut::Drop);
    world.nodes[0].store_fault = Some(StoreFault::Down);
    world.run(LEASE + millis(100));
    assert!(!world.is_serving(0), "seed {seed}: it fences in its lease");
    let span = seconds(20);
    assert_eq!(served(&mut world, span, &[0, 1, 2]), [Duration::ZERO, span, span], "seed {seed}");
    world.heal();
    world.nodes[0].store_fault = None;
    world.run(seconds(5));
    assert_eq!(world.nodes[0].exited.map(|(_, code)| code), Some(70), "seed {seed}");
}

#[test]
fn a_silo_cut_off_from_both_fences_before_anybody_takes_over() {
    seeds(20).for_each(|seed| cut_off_from_both(seed, None));
    assert!(fails(|| cut_off_from_both(1, Some(Defect::ServesForever))));
}

#[test]
fn those_who_lost_the_store_serve_on_while_they_hear_those_who_did_not() {
    for seed in seeds(5) {
        let mut world = World::started(seed, 5);
        for node in [0, 1, 2] {
            world.nodes[node].store_fault = Some(StoreFault::Down);
        }
        let span = seconds(60);
        assert_eq!(served(&mut world, span, &[0, 1, 2, 3, 4]), [span; 5], "seed {seed}");
    }
}

fn store_with_the_minority(seed: u64, defect: Option<Defect>) {
    let mut world = World::started(seed, 5);
    world.plant(defect);
    world.part(&[0, 1, 2], &[3, 4], Cut::Drop);
    for node in [0, 1, 2] {
        world.nodes[node].store_fault = Some(StoreFault::Down);
    }
    world.run(LEASE + millis(100));
    for node in [0, 1, 2] {
        assert!(!world.is_serving(node), "seed {seed}: node {node} fenced");
        assert!(!world.is_dead_in_store(node), "seed {seed}: before it was declared Dead");
    }
    world.run(seconds(30));
    for node in [0, 1, 2] {
        assert!(world.is_dead_in_store(node), "seed {seed}: node {node}");
    }
    assert!([3, 4].into_iter().all(|node| world.is_serving(node)), "seed {seed}");
    world.heal();
    for node in [0, 1, 2] {
        world.nodes[node].store_fault = None;
    }
    world.run(seconds(5));
    for node in [0, 1, 2] {
        assert_eq!(world.nodes[node].exited.map(|(_, code)| code), Some(70), "seed {seed}");
    }
    assert_serving(&world, &[3, 4]);
}

#[test]
fn the_side_without_the_store_fences_before_the_side_with_it_takes_over() {
    seeds(20).for_each(|seed| store_with_the_minority(seed, None));
    assert!(fails(|| store_with_the_minority(1, Some(Defect::ServesForever))));
}

#[test]
fn with_the_store_down_the_survivor_of_two_fences_until_it_is_back() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 2);
        for node in [0, 1] {
            world.nodes[node].store_fault = Some(StoreFault::Down);
        }
        world.run(seconds(20));
        assert!(world.is_serving(0) && world.is_serving(1), "seed {seed}");
        world.kill(1);
        world.run(LEASE + millis(100));
        let span = seconds(20);
        assert_eq!(served(&mut world, span, &[0]), [Duration::ZERO], "seed {seed}");
        world.nodes[0].store_fault = None;
        world.run(seconds(1));
        assert!(world.is_serving(0), "seed {seed}: it has read its row");
        assert!(world.run_until(seconds(30), |world| world.is_dead_in_store(1)), "seed {seed}");
    }
}

/// One of three reaches the store, the others reach only each other: it may decide alone as soon as
/// nobody else beats, so they must have stopped by then.
fn store_with_one(seed: u64, defect: Option<Defect>) {
    let mut world = World::started(seed, 3);
    world.plant(defect);
    world.part(&[0, 1], &[2], Cut::Drop);
    for node in [0, 1] {
        world.nodes[node].store_fault = Some(StoreFault::Down);
    }
    world.run(seconds(4));
    assert!([0, 1].into_iter().all(|node| world.is_serving(node)), "seed {seed}: one is too few");
    let decided = |world: &World| world.is_dead_in_store(0) || world.is_dead_in_store(1);
    assert!(world.run_until(seconds(30), decided), "seed {seed}");
    assert!([0, 1].into_iter().all(|node| !world.is_serving(node)), "seed {seed}: both fenced");
    world.run(seconds(5));
    assert!(world.is_serving(2), "seed {seed}");
}

#[test]
fn a_lone_silo_with_the_store_takes_over_only_after_all_others_fenced() {
    seeds(20).for_each(|seed| store_with_one(seed, None));
    assert!(fails(|| store_with_one(1, Some(Defect::ServesForever))));
}

#[test]
fn with_the_store_down_a_crash_fences_the_others_only_when_one_vote_would_be_enough() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 3);
        for node in [0, 1, 2] {
            world.nodes[node].store_fault = Some(StoreFault::Down);
        }
        world.kill(2);
        let span = seconds(4);
        assert_eq!(served(&mut world, span, &[0, 1]), [span; 2], "seed {seed}");
        world.run(seconds(12));
        let span = seconds(10);
        assert_eq!(served(&mut world, span, &[0, 1]), [Duration::ZERO; 2], "seed {seed}");
        world.nodes.iter_mut().for_each(|node| node.store_fault = None);
        world.run(seconds(1));
        assert!([0, 1].into_iter().all(|node| world.is_serving(node)), "seed {seed}");
        assert!(world.run_until(seconds(30), |world| world.is_dead_in_store(2)), "seed {seed}");
    }
}

#[test]
fn a_silo_that_said_goodbye_counts_as_heard() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 2);
        for node in [0, 1] {
            world.nodes[node].store_fault = Some(StoreFault::Down);
        }
        world.run(seconds(5));
        world.command(1, super::super::Control::begin_drain);
        world.command(1, super::super::Control::finish_drain);
        world.run(seconds(6));
        assert!(world.nodes[1].left_at.is_some(), "seed {seed}: it left without the store");
        let span = seconds(30);
        assert_eq!(served(&mut world, span, &[0]), [span], "seed {seed}");
    }
}

#[test]
fn a_silo_that_leaves_in_order_is_draining_then_dead_and_fences_nobody() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 3);
        world.command(0, super::super::Control::begin_drain);
        let draining = |world: &World| {
            let leaver = world.generation(0);
            world.nodes[1].control.view().status(leaver)
                == Some(siloring_core::SiloStatus::Draining)
        };
        assert!(world.run_until(seconds(1), draining), "seed {seed}: gossip tells it");
        assert!(world.is_serving(0), "seed {seed}: it finishes its turns");
        world.run(seconds(5));
        world.command(0, super::super::Control::finish_drain);
        assert!(world.run_until(seconds(1), |world| world.nodes[0].left_at.is_some()));
        assert!(world.is_dead_in_store(0), "seed {seed}");
        world.run(millis(100));
        assert!(world.nodes[0].exited.is_none(), "seed {seed}: it left by itself");
        assert_serving(&world, &[1, 2]);
        for node in [1, 2] {
            assert_eq!(world.count_events(node, "Fenced"), 0, "seed {seed}");
            assert_eq!(world.count_events(node, "SiloAccused"), 0, "seed {seed}");
        }
    }
}

#[test]
fn a_leap_of_the_clock_fences_until_the_row_was_read() {
    for count in [1, 3] {
        let mut world = World::started(7, count);
        world.set_skew(0, seconds(3600));
        world.run(seconds(5));
        assert_eq!(world.count_events(0, "Fenced"), 1);
        assert_eq!(world.count_events(0, "Unfenced"), 1);
        let nodes: Vec<usize> = (0..count).collect();
        assert_serving(&world, &nodes);
        assert_eq!(world.count_events(0, "SiloAccused"), 0);
    }
}

#[test]
fn a_clock_one_percent_fast_or_an_hour_ahead_changes_nothing() {
    let mut world = World::new(8);
    for node in 0..3 {
        world.add();
        world.nodes[node].drift_permille = 5 * u64::try_from(node).unwrap();
        world.set_skew(node, seconds(1800 * u64::try_from(node).unwrap()));
        world.start(node);
    }
    world.run(seconds(6));
    assert!(world.is_converged());
    let span = seconds(300);
    assert_eq!(served(&mut world, span, &[0, 1, 2]), [span; 3]);
    assert!((0..3).all(|node| world.count_events(node, "SiloAccused") == 0));
}
