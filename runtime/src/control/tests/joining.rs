//! Joining: M9, names, addresses, settings, crash loops, storms.

use core::time::Duration;

use siloring_core::limits::JOIN_TIME_MAX;
use siloring_core::{Generation, SiloStatus};

use super::super::{Control, Defect, JoinError};
use super::world::{Cut, StoreFault, World, millis, seconds};
use super::{assert_serving, fails, seeds};

/// Starts a new process with the name and address of `node`.
fn restart(world: &mut World, node: usize) -> usize {
    let (name, address) = (world.nodes[node].name.to_string(), world.nodes[node].address.clone());
    let successor = world.add_as(&name, &address);
    world.start(successor);
    successor
}

fn join_failure(world: &mut World, node: usize) -> JoinError {
    let failed = |world: &World| world.nodes[node].join_failed.is_some();
    assert!(world.run_until(JOIN_TIME_MAX + seconds(1), failed), "seed {}", world.seed);
    let error = world.nodes[node].join_failed.clone().unwrap();
    assert!(!error.to_string().contains('\n'), "one line");
    error
}

#[test]
fn a_silo_restarted_after_all_were_killed_joins_within_the_bound() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 3);
        (0..3).for_each(|node| world.kill(node));
        world.run(seconds(2));
        let node = restart(&mut world, 0);
        let joined = |world: &World| world.nodes[node].started_at.is_some();
        assert!(world.run_until(seconds(60), joined), "seed {seed}");
        world.run(seconds(1));
        assert!((0..3).all(|node| world.is_dead_in_store(node)), "seed {seed}");
        assert_serving(&world, &[node]);
    }
}

#[test]
fn a_silo_of_another_name_joins_a_cluster_of_corpses_within_the_bound() {
    for vanished in [false, true] {
        let mut world = World::started(3, 3);
        for node in 0..3 {
            if vanished { world.vanish(node) } else { world.kill(node) }
        }
        let begin = world.now;
        let node = world.add();
        world.start(node);
        let joined = |world: &World| world.nodes[node].started_at.is_some();
        assert!(world.run_until(seconds(60), joined));
        assert!(world.now.since(begin) >= seconds(20), "not before the rows were stale");
    }
}

#[test]
fn all_silos_restarted_at_once_join_within_the_bound() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 4);
        (0..4).for_each(|node| world.kill(node));
        // Three with their old names, one with a new one: all wait for the same corpse.
        let mut nodes: Vec<usize> = (0..3).map(|node| restart(&mut world, node)).collect();
        let newcomer = world.add();
        world.start(newcomer);
        nodes.push(newcomer);
        let joined =
            |world: &World| nodes.iter().all(|&node| world.nodes[node].started_at.is_some());
        assert!(world.run_until(seconds(60), joined), "seed {seed}");
        world.run(seconds(10));
        assert_serving(&world, &nodes);
    }
}

#[test]
fn a_joiner_declares_nobody_dead_whose_heartbeat_moves() {
    let scenario = |defect: Option<Defect>| {
        let mut world = World::started(5, 2);
        let node = world.add();
        world.plant(defect);
        world.part(&[node], &[0, 1], Cut::Drop);
        world.start(node);
        let error = join_failure(&mut world, node);
        assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("open the way"));
        world.run(seconds(10));
        assert!(world.is_dead_in_store(node), "it leaves no living row behind");
        assert_serving(&world, &[0, 1]);
    };
    scenario(None);
    assert!(fails(move || scenario(Some(Defect::JoinsUnproven))));
}

#[test]
fn a_joiner_that_nobody_can_dial_fails_and_says_so() {
    for seed in seeds(5) {
        let mut world = World::started(seed, 2);
        let node = world.add();
        world.nodes[node].is_routable = false;
        let own = "10.0.0.2:7000";
        world.start(node);
        let error = join_failure(&mut world, node);
        assert!(
            matches!(&error, JoinError::NotReachedBack { advertised, .. } if advertised == own),
            "seed {seed}: {error}"
        );
        world.run(seconds(10));
        assert!(world.is_dead_in_store(node));
        assert_serving(&world, &[0, 1]);
    }
}

#[test]
fn a_restart_at_the_same_address_replaces_the_old_incarnation_at_once() {
    for seed in seeds(20) {
        let mut world = World::started(seed, 3);
        world.kill(0);
        world.run(millis(500));
        let begin = world.now;
        let node = restart(&mut world, 0);
        let joined = |world: &World| world.nodes[node].started_at.is_some();
        assert!(world.run_until(seconds(3), joined), "seed {seed}");
        assert!(world.is_dead_in_store(0), "seed {seed}");
        assert!(world.now.since(begin) < seconds(2), "seed {seed}: {:?}", world.now.since(begin));
        assert!(world.generation(node) > world.generation(0));
        world.run(seconds(1));
        assert_serving(&world, &[node, 1, 2]);
    }
}

#[test]
fn a_second_silo_of_one_name_refuses_to_start_while_the_first_answers() {
    for seed in seeds(10) {
        let mut world = World::started(seed, 2);
        let view = world.nodes[0].view;
        let node = world.add_as("silo-0", "10.0.0.99:7000");
        world.start(node);
        let error = join_failure(&mut world, node);
        let (name, address) = ("silo-0".to_owned(), "10.0.0.0:7000".to_owned());
        assert_eq!(error, JoinError::NameTaken { name, address });
        assert!(error.to_string().contains("give this silo another name"));
        world.run(seconds(10));
        assert_eq!(world.nodes[0].view, view, "seed {seed}: nothing was written");
        assert_serving(&world, &[0, 1]);
    }
}

#[test]
fn of_two_silos_of_one_name_started_at_once_exactly_one_joins() {
    for seed in seeds(40) {
        let mut world = World::started(seed, 1);
        let one = world.add_as("twin", "10.0.1.1:7000");
        let two = world.add_as("twin", "10.0.1.2:7000");
        world.start(one);
        world.start(two);
        world.run(JOIN_TIME_MAX + seconds(5));
        let joined = [one, two].into_iter().filter(|&node| world.nodes[node].started_at.is_some());
        assert_eq!(joined.count(), 1, "seed {seed}");
        let refused = [one, two].into_iter().filter(|&node| {
            matches!(world.nodes[node].join_failed, Some(JoinError::NameTaken { .. }))
        });
        assert_eq!(refused.count(), 1, "seed {seed}");
        assert!([one, two].iter().all(|&node| world.nodes[node].exited.is_none()));
    }
}

#[test]
fn a_dead_namesake_at_another_address_is_waited_for_and_replaced() {
    for alone in [false, true] {
        let mut world = World::started(2, if alone { 1 } else { 3 });
        world.vanish(0);
        let node = world.add_as("silo-0", "10.0.0.99:7000");
        world.start(node);
        let joined = |world: &World| world.nodes[node].started_at.is_some();
        assert!(world.run_until(seconds(60), joined), "alone: {alone}");
        assert!(world.is_dead_in_store(0));
    }
}

#[test]
fn a_joiner_with_another_setting_is_refused_by_its_name() {
    let mut world = World::started(1, 1);
    let settings = vec![("ring_points".to_owned(), "31".to_owned())];
    let node = world.add_with("silo-x", "10.0.0.9:7000", settings);
    world.start(node);
    let error = join_failure(&mut world, node);
    let expected = JoinError::SettingDiffers {
        name: "ring_points".to_owned(),
        ours: "31".to_owned(),
        theirs: "30".to_owned(),
    };
    assert_eq!(error, expected);
    assert!(world.nodes[node].me.is_none(), "no row was written");
    let unknown =
        vec![("ring_points".to_owned(), "30".to_owned()), ("votes".to_owned(), "3".to_owned())];
    let node = world.add_with("silo-y", "10.0.0.8:7000", unknown);
    world.start(node);
    let error = join_failure(&mut world, node);
    assert!(error.to_string().contains("votes is 3 here and (none)"), "{error}");
}

#[test]
fn a_joiner_without_a_store_says_so_after_its_bound() {
    let mut world = World::new(1);
    let node = world.add();
    world.nodes[node].store_fault = Some(StoreFault::Down);
    world.start(node);
    let error = join_failure(&mut world, node);
    assert!(matches!(error, JoinError::StoreUnavailable { .. }), "{error}");
    assert!(error.to_string().contains("see that it runs"));
}

#[test]
fn fifty_silos_join_at_once_within_thirty_seconds() {
    for seed in seeds(2) {
        let mut world = World::new(seed);
        for _ in 0..50 {
            let node = world.add();
            world.start(node);
        }
        let all = |world: &World| world.nodes.iter().all(|node| node.started_at.is_some());
        assert!(world.run_until(seconds(30), all), "seed {seed}");
        world.run(seconds(10));
        let nodes: Vec<usize> = (0..50).collect();
        assert_serving(&world, &nodes);
        assert_eq!(world.store.commits, 100, "two views for each, no more");
    }
}

#[test]
fn a_crash_loop_changes_the_view_at_most_once_a_second() {
    let mut world = World::started(6, 3);
    let mut node = 0;
    let mut at_last = 0;
    for round in 0..40 {
        world.kill(node);
        world.run(millis(100));
        node = restart(&mut world, node);
        let joined = |world: &World| world.nodes[node].started_at.is_some();
        assert!(world.run_until(seconds(30), joined), "round {round}");
        if round == 9 {
            at_last = world.store.commits;
            world.nodes[1].events.clear();
        }
    }
    let commits = world.store.commits - at_last;
    let (first, last) = (world.nodes[1].events.first(), world.nodes[1].events.last());
    let span = last.unwrap().0.since(first.unwrap().0);
    assert!(u64::try_from(span.as_millis()).unwrap() >= commits * 1000, "{commits} in {span:?}");
    world.run(seconds(6));
    assert_serving(&world, &[node, 1, 2]);
}

#[test]
fn a_silo_told_to_leave_before_it_joined_gives_up() {
    let mut world = World::started(1, 2);
    let node = world.add();
    world.part(&[node], &[0, 1], Cut::Drop);
    world.start(node);
    world.run(seconds(5));
    world.command(node, Control::begin_drain);
    assert_eq!(world.nodes[node].join_failed, Some(JoinError::Cancelled));
    world.run(seconds(1));
    assert!(world.is_dead_in_store(node));
}

#[test]
fn generations_are_the_versions_of_their_joining_writes_and_never_repeat() {
    let mut world = World::started(9, 2);
    let mut generations: Vec<Generation> = vec![world.generation(0), world.generation(1)];
    for _ in 0..3 {
        let node = restart(&mut world, 0);
        world.run(seconds(20));
        generations.push(world.generation(node));
        world.kill(node);
    }
    let mut distinct = generations.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), generations.len());
}

#[test]
fn dead_rows_are_removed_when_there_are_too_many_and_when_they_are_old() {
    let dead = |world: &World| {
        let rows = &world.store.table.rows;
        rows.iter().filter(|row| row.row.status == SiloStatus::Dead).count()
    };
    let mut world = World::started(2, 2);
    for index in 0..70 {
        let node = world.add_as(&format!("guest-{index}"), &format!("10.1.0.{index}:1"));
        world.start(node);
        let joined = |world: &World| world.nodes[node].started_at.is_some();
        assert!(world.run_until(seconds(10), joined));
        world.command(node, Control::finish_drain);
        assert!(world.run_until(seconds(5), |world| world.nodes[node].left_at.is_some()));
    }
    world.run(seconds(2));
    assert!((30..=64).contains(&dead(&world)), "{}", dead(&world));
    world.run(Duration::from_secs(3700));
    assert_eq!(dead(&world), 0);
    assert_serving(&world, &[0, 1]);
}
