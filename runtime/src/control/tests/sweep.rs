//! Random worlds: faults for a while, then calm; invariants after every step, convergence at the
//! end.

use siloring_core::SiloStatus;

use super::super::{Control, Defect};
use super::world::{Cut, Life, StoreFault, World, millis, seconds};

/// What a run came across.
#[derive(Default)]
struct Marks {
    kills: usize,
    pauses: usize,
    cuts: usize,
    store_faults: usize,
    joins: usize,
    leaves: usize,
    fences: usize,
    exits: usize,
    steps: u64,
}

impl Marks {
    fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.store_faults += other.store_faults;
        self.joins += other.joins;
        self.leaves += other.leaves;
        self.fences += other.fences;
        self.exits += other.exits;
        self.steps += other.steps;
    }
}

fn alive(world: &World) -> Vec<usize> {
    (0..world.nodes.len()).filter(|&node| world.nodes[node].life == Life::Running).collect()
}

fn cut_something(world: &mut World) {
    let count = world.nodes.len();
    let cut = if world.rng().bool() { Cut::Drop } else { Cut::Reject };
    for one in 0..count {
        for other in 0..count {
            if one != other && world.rng().u8(0..4) == 0 {
                world.cuts.insert((one, other), cut);
            }
        }
    }
}

fn disturb(world: &mut World, marks: &mut Marks) {
    let alive = alive(world);
    let Some(node) = world.rng().choice(alive.iter().copied()) else { return };
    let spare = alive.len() > 2;
    match world.rng().u8(0..10) {
        0 if spare => {
            marks.kills += 1;
            if world.rng().bool() { world.kill(node) } else { world.vanish(node) }
        }
        1 if spare => {
            marks.kills += 1;
            marks.joins += 1;
            world.kill(node);
            let (name, address) =
                (world.nodes[node].name.to_string(), world.nodes[node].address.clone());
            let successor = world.add_as(&name, &address);
            world.start(successor);
        }
        2 => {
            marks.pauses += 1;
            world.pause(node);
        }
        3 | 4 => {
            marks.cuts += 1;
            cut_something(world);
        }
        5 | 6 => {
            marks.store_faults += 1;
            let faults = [
                StoreFault::Down,
                StoreFault::Hang,
                StoreFault::LosesAnswers(50),
                StoreFault::LosesBoth(50),
            ];
            let fault = world.rng().choice(faults);
            if world.rng().bool() {
                world.nodes[node].store_fault = fault;
            } else {
                world.nodes.iter_mut().for_each(|node| node.store_fault = fault);
            }
        }
        7 if world.nodes.len() < 9 => {
            marks.joins += 1;
            let newcomer = world.add();
            world.start(newcomer);
        }
        8 if spare => {
            marks.leaves += 1;
            world.command(node, Control::begin_drain);
            world.run(millis(500));
            if world.nodes[node].life == Life::Running {
                world.command(node, Control::finish_drain);
            }
        }
        _ => {
            world.loss = world.rng().u8(0..30);
            world.delay = millis(world.rng().u64(0..100));
        }
    }
}

fn calm(world: &mut World) {
    world.heal();
    world.loss = 0;
    world.delay = millis(0);
    for node in 0..world.nodes.len() {
        world.nodes[node].store_fault = None;
        world.resume(node);
    }
}

/// One run of a simulated minute and more: 30 s of faults, then at most 60 s until all agree.
fn run(seed: u64, defect: Option<Defect>) -> Marks {
    let mut marks = Marks::default();
    let count = 3 + usize::try_from(seed % 3).unwrap();
    let mut world = World::new(seed);
    for _ in 0..count {
        let node = world.add();
        world.start(node);
    }
    world.plant(defect);
    world.run(seconds(5));
    for _ in 0..10 {
        if world.rng().u8(0..3) == 0 {
            calm(&mut world);
        }
        disturb(&mut world, &mut marks);
        let wait = world.rng().u64(500..5000);
        world.run(millis(wait));
    }
    calm(&mut world);
    // Whoever is left, or a silo started by an operator, finds the others and agrees with them.
    let newcomer = world.add();
    world.start(newcomer);
    let settled = |world: &World| {
        let nodes = || world.nodes.iter().filter(|node| node.me.is_some());
        let gone = |life| matches!(life, Life::Killed | Life::Vanished);
        let dead = nodes().filter(|node| gone(node.life)).all(|node| {
            let generation = node.me.as_ref().unwrap().generation;
            world.store.status(generation).is_none_or(|status| status == SiloStatus::Dead)
        });
        dead && world.nodes[newcomer].started_at.is_some() && world.is_converged()
    };
    assert!(world.run_until(seconds(100), settled), "seed {seed}: settles");
    // A request that hung at the store is given up by then.
    world.run(seconds(12));
    for node in alive(&world) {
        assert!(world.is_serving(node), "seed {seed}: node {node} serves at the end");
    }
    for node in 0..world.nodes.len() {
        marks.fences += world.count_events(node, "Fenced");
        marks.exits += usize::from(world.nodes[node].exited.is_some());
    }
    marks.steps = world.steps;
    marks
}

#[test]
fn random_faults_break_no_invariant_and_all_converge() {
    let mut marks = Marks::default();
    for seed in 0..300 {
        marks.add(&run(seed, None));
    }
    let Marks { kills, pauses, cuts, store_faults, joins, leaves, fences, exits, steps } = marks;
    assert!(steps > 1_000_000, "{steps} steps");
    for (name, count) in [
        ("kills", kills),
        ("pauses", pauses),
        ("cuts", cuts),
        ("store faults", store_faults),
        ("joins", joins),
        ("leaves", leaves),
        ("fences", fences),
        ("exits", exits),
    ] {
        assert!(count >= 20, "{name}: {count}");
    }
}

#[test]
fn a_seed_replays_step_by_step() {
    for seed in [3, 77] {
        assert_eq!(run(seed, None).steps, run(seed, None).steps);
    }
}

#[test]
fn planted_defects_are_found_by_the_seeds() {
    for defect in [Defect::UnknownCommitAssumed, Defect::IgnoresOwnDeath, Defect::ServesForever] {
        let found =
            (0..300).any(|seed| super::fails(move || assert!(run(seed, Some(defect)).steps > 0)));
        assert!(found, "{defect:?}");
    }
}
