//! Networks that fail in part: B.18 to B.23, B.27 and B.30.

use super::world::{Cut, World, millis, seconds};
use super::{assert_serving, seeds};

fn survivors(world: &World) -> Vec<usize> {
    (0..world.nodes.len()).filter(|&node| world.nodes[node].exited.is_none()).collect()
}

#[test]
fn a_partition_leaves_the_larger_side_and_annihilates_nobody_else() {
    for seed in seeds(40) {
        for cut in [Cut::Drop, Cut::Reject] {
            let mut world = World::started(seed, 5);
            world.part(&[0, 1], &[2, 3, 4], cut);
            world.run(seconds(30));
            assert_eq!(survivors(&world), [2, 3, 4], "seed {seed} {cut:?}");
            assert_serving(&world, &[2, 3, 4]);
        }
    }
}

#[test]
fn an_even_partition_leaves_exactly_one_side() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 4);
        world.part(&[0, 1], &[2, 3], Cut::Drop);
        world.run(seconds(60));
        let left = survivors(&world);
        assert!(left == [0, 1] || left == [2, 3] || left.len() == 1, "seed {seed}: {left:?}");
        assert_serving(&world, &left);
    }
}

#[test]
fn of_two_silos_that_lost_each_other_exactly_one_survives() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 2);
        world.part(&[0], &[1], Cut::Drop);
        world.run(seconds(10));
        let left = survivors(&world);
        assert_eq!(left.len(), 1, "seed {seed}");
        assert_serving(&world, &left);
    }
}

#[test]
fn silos_that_all_lost_each_other_do_not_all_die() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 4);
        for node in 0..4 {
            let others: Vec<usize> = (0..4).filter(|&other| other != node).collect();
            world.part(&[node], &others, Cut::Drop);
        }
        world.run(seconds(90));
        let left = survivors(&world);
        assert!(!left.is_empty(), "seed {seed}");
        world.heal();
        world.run(seconds(10));
        assert_eq!(survivors(&world), left, "seed {seed}: no vote outlives the cut");
        assert_serving(&world, &left);
    }
}

#[test]
fn a_silo_cut_off_from_two_others_never_outvotes_them() {
    for seed in seeds(60) {
        for cut in [Cut::Drop, Cut::Reject] {
            let mut world = World::started(seed, 3);
            world.part(&[0], &[1, 2], cut);
            world.run(seconds(20));
            assert_eq!(survivors(&world), [1, 2], "seed {seed} {cut:?}");
        }
    }
}

#[test]
fn a_silo_that_hears_but_is_not_heard_is_dead_or_reconnected_without_a_loop() {
    for seed in seeds(20) {
        for cut in [Cut::Drop, Cut::Reject] {
            let mut world = World::started(seed, 3);
            for other in [1, 2] {
                world.cuts.insert((0, other), cut);
            }
            world.run(seconds(12));
            assert!(world.is_dead_in_store(0), "seed {seed} {cut:?}");
            let commits = world.store.commits;
            world.run(seconds(60));
            assert_eq!(world.store.commits, commits, "seed {seed} {cut:?}: no loop");
            assert_serving(&world, &[1, 2]);
        }
    }
}

#[test]
fn a_blip_of_43_ms_changes_no_view() {
    for seed in seeds(20) {
        for cut in [Cut::Drop, Cut::Reject] {
            let mut world = World::started(seed, 3);
            let version = world.store.table.version;
            world.part(&[0], &[1, 2], cut);
            world.part(&[1], &[2], cut);
            world.run(millis(43));
            world.heal();
            world.run(seconds(30));
            assert_eq!(world.store.table.version, version, "seed {seed} {cut:?}");
            assert_serving(&world, &[0, 1, 2]);
        }
    }
}

#[test]
fn ten_minutes_of_flapping_links_change_the_view_at_most_twice_a_minute() {
    for (seed, cut) in [(1, Cut::Drop), (2, Cut::Reject)] {
        let mut world = World::started(seed, 3);
        let commits = world.store.commits;
        for _ in 0..300 {
            world.part(&[0], &[1, 2], cut);
            world.run(seconds(1));
            world.heal();
            world.run(seconds(1));
        }
        assert!(world.store.commits - commits <= 20, "{cut:?}");
        world.run(seconds(10));
        assert_serving(&world, &[0, 1, 2]);
    }
}

#[test]
fn loss_and_delay_cost_time_and_no_life() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 4);
        world.loss = 20;
        world.delay = millis(500);
        world.run(seconds(120));
        let deaths: usize = (0..4).map(|node| world.count_events(node, "SiloDeclaredDead")).sum();
        assert_eq!(deaths, 0, "seed {seed}");
        world.loss = 0;
        world.delay = millis(0);
        world.run(seconds(20));
        assert_serving(&world, &[0, 1, 2, 3]);
    }
}

#[test]
fn a_second_partition_during_recovery_is_decided_like_the_first() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 5);
        world.part(&[0, 1], &[2, 3, 4], Cut::Drop);
        let wait = world.rng().u64(1500..4000);
        world.run(millis(wait));
        world.part(&[2], &[3, 4], Cut::Drop);
        world.run(seconds(40));
        let left = survivors(&world);
        assert!(!left.is_empty(), "seed {seed}");
        assert_serving(&world, &left);
    }
}

#[test]
fn healed_before_the_verdict_a_partition_costs_nobody() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 5);
        world.part(&[0, 1], &[2, 3, 4], Cut::Drop);
        world.run(millis(1300));
        world.heal();
        world.run(seconds(10));
        assert_serving(&world, &[0, 1, 2, 3, 4]);
    }
}
