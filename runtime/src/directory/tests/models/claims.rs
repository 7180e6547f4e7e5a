//! Claims of one hub, every order of steps: made, taken over, asserted again, released late, and
//! those whose holder or whose range's owner dies.
//!
//! What is abstracted away is in `mod.rs`.

use core::fmt::{self, Write};

use siloring_explore::{Mark, Rule, World, explore, is_long, refute};

use super::Change::{Die, Join};
use super::Command::{Claim, Lookup, Release, TakeOver};
use super::{Plan, Step, Town};
use crate::directory::Defect;

const ONE_OWNER: &str = "at most one living shard serves a position of the ring";
const NO_WRONG_MISS: &str = "an owner denies no hub whose holder lives";
const ONE_NUMBER: &str = "no number is given twice";
const ONE_HOLDER: &str = "claims that take nothing over make no second holder";
const WHOLE: &str = "at rest the range's owner names the one holder, or none if there is none";

struct Claims(Town);

impl World for Claims {
    type Setup = Plan;
    type Step = Step;
    const NAME: &'static str = "claims";
    const RULES: &'static [Rule<Self>] = &[
        Rule { name: ONE_OWNER, holds: |world| !world.0.seen.two_owners },
        Rule { name: NO_WRONG_MISS, holds: |world| !world.0.seen.wrong_miss },
        Rule { name: ONE_NUMBER, holds: |world| !world.0.seen.number_twice },
        Rule { name: ONE_HOLDER, holds: |world| !world.0.seen.two_holders },
        Rule { name: WHOLE, holds: |world| !world.0.seen.unwhole },
    ];
    const MARKS: &'static [Mark<Self>] = &[
        Mark { name: REFUSED, holds: |world| world.0.seen.refused },
        Mark { name: LOST, holds: |world| world.0.seen.lost },
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

const REFUSED: &str = "a claim is refused";
const LOST: &str = "a claim is lost";
const RECOVERED: &str = "a range is recovered";
const RESTED: &str = "the world comes to rest";

/// Silos 1 and 2 are Active, silo 3 is Joining, and nobody has the hub.
const PLAN: Plan = Plan {
    active: &[1, 2],
    before: &[],
    changes: &[],
    commands: &[],
    cuts: 0,
    timers: 0,
    defect: None,
};
const RACE: Plan = Plan { commands: &[Claim(1), Claim(2), Release(2)], cuts: 1, timers: 2, ..PLAN };
const TAKEN_OVER: Plan = Plan {
    before: &[Claim(2)],
    commands: &[TakeOver(1), Release(2), Lookup(2)],
    cuts: 1,
    timers: 1,
    ..PLAN
};
const MOVED: Plan =
    Plan { before: &[Claim(2)], changes: &[Join(3)], commands: &[Release(2), Claim(1)], ..PLAN };

fn check(plan: Plan, depth: usize, states_min: usize, no: &[&str]) {
    let depth_max = if is_long() { depth + 4 } else { depth };
    explore::<Claims>(plan, depth_max, states_min, no);
}

#[test]
fn of_two_claims_one_is_granted_until_it_is_released() {
    check(RACE, 40, 900, &[LOST, RECOVERED]);
}

#[test]
fn a_late_release_takes_nothing_from_who_took_over() {
    check(TAKEN_OVER, 40, 1600, &[REFUSED, RECOVERED]);
}

#[test]
fn a_claim_has_one_holder_while_its_range_moves() {
    check(MOVED, 11, 3600, &[LOST, RECOVERED, RESTED]);
    check(Plan { commands: &[TakeOver(1)], ..MOVED }, 11, 1200, &[REFUSED, RECOVERED, RESTED]);
}

#[test]
fn a_claim_has_one_holder_though_its_ranges_owner_dies() {
    let (active, before, changes) = (&[1, 2, 3], &[Claim(2)], &[Die(3)]);
    let plan = Plan { active, before, changes, timers: 1, ..PLAN };
    check(Plan { commands: &[Release(2), Claim(1)], ..plan }, 40, 180, &[LOST]);
    check(Plan { commands: &[TakeOver(1)], ..plan }, 40, 180, &[REFUSED]);
}

#[test]
fn a_claim_over_a_dead_holder_succeeds() {
    let (changes, commands) = (&[Join(3), Die(2)], &[Claim(1), Claim(3)]);
    check(Plan { before: &[Claim(2)], changes, commands, ..PLAN }, 11, 3000, &[LOST, RESTED]);
}

#[test]
fn each_rule_of_claims_breaks_without_what_holds_it() {
    let refute = |plan: Plan, defect, rule| {
        refute::<Claims>(Plan { defect: Some(defect), ..plan }, 14, rule);
    };
    refute(TAKEN_OVER, Defect::AddressOnly, NO_WRONG_MISS);
    refute(RACE, Defect::LastWriterWins, ONE_HOLDER);
    refute(RACE, Defect::NumbersRepeat, ONE_NUMBER);
    refute(MOVED, Defect::RangeKept, ONE_OWNER);
    refute(RACE, Defect::RefusalRetried, WHOLE);
}
