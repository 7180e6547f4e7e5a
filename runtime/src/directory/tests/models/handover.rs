//! Hand-over and recovery of a range, every order of steps.
//!
//! The range of the address belongs to silo 1 until silo 3 joins; then 3 takes it. One of them may
//! die at any step, also between two pieces, while others register or look the address up. What is
//! abstracted away is in `mod.rs`.

use core::fmt::{self, Write};

use siloring_explore::{Mark, Rule, World, explore, is_long, refute};

use super::Change::{Die, Drain, Join};
use super::Command::{Lookup, Register, Unregister};
use super::{Plan, Step, Town};
use crate::directory::Defect;

const ONE_OWNER: &str = "at most one living shard serves a position of the ring";
const NO_WRONG_MISS: &str = "an owner denies no home that lives";
const ONE_NUMBER: &str = "no number is given twice";
const WHOLE: &str = "at rest the ring is whole and its owners know what is held, and no more";

const RECOVERED: &str = "a range is recovered";
const RESTED: &str = "the world comes to rest";

struct Handover(Town);

impl World for Handover {
    type Setup = Plan;
    type Step = Step;
    const NAME: &'static str = "hand-over";
    const RULES: &'static [Rule<Self>] = &[
        Rule { name: ONE_OWNER, holds: |world| !world.0.seen.two_owners },
        Rule { name: NO_WRONG_MISS, holds: |world| !world.0.seen.wrong_miss },
        Rule { name: ONE_NUMBER, holds: |world| !world.0.seen.number_twice },
        Rule { name: WHOLE, holds: |world| !world.0.seen.unwhole },
    ];
    const MARKS: &'static [Mark<Self>] = &[
        Mark { name: RECOVERED, holds: |world| world.0.seen.recovered },
        Mark { name: RESTED, holds: |world| world.0.seen.at_rest },
    ];

    fn new(plan: &Plan) -> Self {
        Self(Town::of(*plan))
    }

    fn steps(&self) -> Vec<Step> {
        self.0.possible()
    }

    fn take(&mut self, step: &Step) {
        self.0.happen(*step);
    }

    fn print(&self, out: &mut dyn Write) -> fmt::Result {
        self.0.describe(out)
    }
}

/// Silos 1 and 2 are Active, silo 3 is Joining, and the address is at silo 2.
const PLAN: Plan = Plan {
    active: &[1, 2],
    before: &[Register(2)],
    changes: &[],
    commands: &[Lookup(2)],
    cuts: 0,
    timers: 0,
    defect: None,
};
const GIVER_DIES: Plan = Plan { changes: &[Join(3), Die(1)], ..PLAN };
const TAKER_DIES: Plan = Plan { changes: &[Join(3), Die(3)], ..PLAN };
const TAKER_LEAVES: Plan = Plan { changes: &[Join(3), Drain(3)], ..PLAN };
const ASKERS: Plan = Plan {
    before: &[],
    changes: &[Join(3)],
    commands: &[Register(1), Register(2), Lookup(2)],
    ..PLAN
};
const ASKERS_OF_THE_DEAD: Plan =
    Plan { before: &[], changes: &[Die(1)], commands: &[Register(2), Register(3)], ..PLAN };
const ANOTHER: Plan = Plan { commands: &[Unregister(2), Register(1)], ..PLAN };

fn check(plan: Plan, depth: usize, states_min: usize, no: &[&str]) {
    let depth_max = if is_long() { depth + 4 } else { depth };
    explore::<Handover>(plan, depth_max, states_min, no);
}

#[test]
fn a_range_has_one_owner_though_its_giver_dies() {
    check(GIVER_DIES, 40, 5500, &[]);
}

#[test]
fn a_range_has_one_owner_though_its_taker_dies() {
    check(TAKER_DIES, 40, 4500, &[]);
}

#[test]
fn a_range_has_one_owner_though_its_taker_leaves() {
    check(TAKER_LEAVES, 9, 4000, &[RECOVERED, RESTED]);
}

#[test]
fn a_range_has_one_owner_though_its_giver_leaves() {
    check(
        Plan { changes: &[Drain(1)], commands: &[Lookup(2), Register(1)], ..PLAN },
        40,
        575,
        &[RECOVERED],
    );
}

#[test]
fn of_several_who_register_while_the_range_moves_one_wins() {
    check(ASKERS, 9, 6500, &[RECOVERED, RESTED]);
}

#[test]
fn of_several_who_register_after_the_owners_death_one_wins() {
    check(ASKERS_OF_THE_DEAD, 40, 120, &[]);
}

#[test]
fn a_range_has_one_owner_though_lanes_break_and_timers_are_early() {
    let commands = &[Unregister(2)];
    check(
        Plan { cuts: 1, timers: 1, changes: &[Drain(1)], commands, ..PLAN },
        10,
        2300,
        &[RECOVERED],
    );
    check(
        Plan { cuts: 1, timers: 1, changes: &[Join(3)], commands, ..PLAN },
        7,
        1,
        &[RECOVERED, RESTED],
    );
}

#[test]
fn each_rule_of_a_hand_over_breaks_without_what_holds_it() {
    let refute = |plan: Plan, depth: usize, defect, rule| {
        refute::<Handover>(Plan { defect: Some(defect), ..plan }, depth, rule);
    };
    refute(GIVER_DIES, 40, Defect::RangeKept, ONE_OWNER);
    refute(TAKER_LEAVES, 9, Defect::GivenTwice, ONE_OWNER);
    refute(GIVER_DIES, 40, Defect::OpenBeforeAllAnswers, NO_WRONG_MISS);
    refute(GIVER_DIES, 40, Defect::AbsentWhileMoving, NO_WRONG_MISS);
    refute(GIVER_DIES, 40, Defect::MemoryRegistry, NO_WRONG_MISS);
    refute(ANOTHER, 9, Defect::NumbersRepeat, ONE_NUMBER);
    refute(ASKERS_OF_THE_DEAD, 40, Defect::LosersUntold, WHOLE);
}
