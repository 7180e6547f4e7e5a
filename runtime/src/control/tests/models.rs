//! Votes, views and the right to serve, every order of steps of a few silos and one store.
//!
//! **State.** Of each silo the parts of its control machine that decide: what it knows of the table
//! (`membership.rs`), whom it may vote against (`votes.rs`), its lease (`lease.rs`); the table; who
//! reaches whom and who reaches the store. **Steps.** A fault begins, or all is whole again; a silo
//! reads the table, or writes a vote or a death, each at once and in any order; a period passes. In
//! it each silo hears those that reach it, takes up the newest view of those, renews its lease as a
//! probe's answer or a read does, and reads if it has waited as long as `machine.rs` ever does.
//! **Rest.** At the end all is whole and every silo does what it wants, in turn. **Bounds.**
//! [`Plan`]. **Abstracted away.** Probes and lanes: who is reached answers, who was not heard for
//! the misses allowed, by a third silo either, is suspected (`detector.rs`); joining, leaving;
//! time within a period.

use core::fmt::{self, Write};
use std::collections::{BTreeMap, VecDeque};

use siloring_core::limits::{
    HEARTBEAT_PERIOD, ISOLATED_FACTOR, LEASE, PROBE_MISSES, PROBE_PERIOD, SUSPECT_READ_PERIOD,
    TABLE_READ_PERIOD, VOTES_NEEDED,
};
use siloring_core::ports::store::{Table, TableRow};
use siloring_core::{Generation, Incarnation, Moment, SiloName, SiloRow, SiloStatus, ViewNumber};
use siloring_explore::{Mark, Rule, World, explore, is_long, refute};

use super::super::Defect;
use super::super::desk::{Change, Edit, Why};
use super::super::lease::{Heard, Lease};
use super::super::membership::{Membership, Reading};
use super::super::votes::{Decision, Electorate};

const ONE_VIEW: &str = "views of one number have one content";
const FENCED: &str = "whoever is Dead serves no longer than the lease and the news of it take, and \
                      not at all if it reached no store";
const COUNTED: &str = "no vote of an accused silo makes another Dead";
const SOMEBODY: &str = "some silo of the table lives";
const CONVERGED: &str = "once all is whole the living agree, serve, and are those of the table";

/// What befalls the silos, by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// These and the others do not hear each other.
    Part(&'static [usize]),
    /// Nobody hears anybody.
    PartAll,
    /// Nobody hears this one, which hears all.
    Mute(usize),
    /// These do not reach the store.
    NoStore(&'static [usize]),
    /// It stands still until all is whole.
    Pause(usize),
    /// It is gone for good.
    Kill(usize),
}

/// A deliberate mistake: of the product's parts, or of what is around them here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    Of(Defect),
    /// The store takes a write whatever it is based on.
    NoCompare,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    silos: usize,
    /// In this order, each at any time while they last.
    faults: &'static [Fault],
    periods: u32,
    /// Writes whose answers are lost.
    unheard: u8,
    mistake: Option<Mistake>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Begin(Fault),
    Read(usize),
    /// The first writes what it has to say of the second…
    Write(usize, usize),
    /// …and does not hear whether it was written.
    Unheard(usize, usize),
    Pass,
    Rest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Running,
    Paused,
    /// Killed, or it has found its row Dead.
    Gone,
}

struct Silo {
    me: Incarnation,
    membership: Membership,
    lease: Lease,
    heard: Vec<Moment>,
    /// When it asked for a table that showed it in service.
    shown_at: Moment,
    life: Life,
}

struct Cluster {
    plan: Plan,
    now: Moment,
    table: Table,
    silos: Vec<Silo>,
    faults: Vec<Fault>,
    begun: usize,
    passed: u32,
    unheard: u8,
    /// Rows of each view, as somebody had it.
    views: BTreeMap<ViewNumber, Vec<(Generation, SiloStatus)>>,
    dead_at: BTreeMap<Generation, Moment>,
    broken: [bool; 5],
    was_fenced: bool,
    has_conflicted: bool,
    is_over: bool,
}

const START: Moment = Moment::from_nanos(100_000_000_000);

fn row(index: usize) -> SiloRow {
    let generation = Generation(index as u64 + 1);
    SiloRow {
        incarnation: Incarnation { name: SiloName::new("pod").unwrap(), generation },
        status: SiloStatus::Active,
        advertised: String::new(),
        host: String::new(),
        shards: 1,
        votes: Vec::new(),
        changed_in: ViewNumber(generation.0),
    }
}

// ---- who reaches whom
impl Cluster {
    fn is_running(&self, silo: usize) -> bool {
        self.silos[silo].life == Life::Running
    }

    fn has_store(&self, silo: usize) -> bool {
        let cut = |fault: &Fault| matches!(fault, Fault::NoStore(cut) if cut.contains(&silo));
        self.is_running(silo) && !self.faults.iter().any(cut)
    }

    /// Whether bytes come through.
    fn is_open(&self, from: usize, to: usize) -> bool {
        let cut = |fault: &Fault| match fault {
            Fault::Part(side) => side.contains(&from) != side.contains(&to),
            Fault::PartAll => true,
            Fault::Mute(mute) => from == *mute,
            Fault::NoStore(_) | Fault::Pause(_) | Fault::Kill(_) => false,
        };
        self.is_running(from) && self.is_running(to) && !self.faults.iter().any(cut)
    }

    fn generation(&self, silo: usize) -> Generation {
        self.silos[silo].me.generation
    }

    /// Whether one hears the other: who has it Dead does not speak to it.
    fn hears(&self, silo: usize, other: usize) -> bool {
        let gone =
            |one: usize, of: usize| self.silos[one].membership.view().is_gone(self.generation(of));
        self.is_open(other, silo) && !gone(other, silo) && !gone(silo, other)
    }

    fn answers(&self, silo: usize, other: usize) -> bool {
        self.hears(silo, other) && self.hears(other, silo)
    }

    fn others(&self, silo: usize) -> Vec<usize> {
        let view = self.silos[silo].membership.view();
        let lives = |other: &usize| !view.is_gone(self.generation(*other));
        (0..self.silos.len()).filter(|other| *other != silo).filter(lives).collect()
    }

    /// Whom a silo may vote against, and since when.
    fn suspects(&self, silo: usize) -> Vec<(usize, Moment)> {
        if !self.is_running(silo) {
            return Vec::new();
        }
        let others = self.others(silo);
        let silent = |other: &usize| self.now.since(self.silos[silo].heard[*other]);
        let silent_count = others.iter().filter(|o| silent(o) >= PROBE_PERIOD * 2).count();
        let count = others.len();
        let is_isolated = count >= 2 && (count - silent_count) * 2 < count;
        let required = PROBE_PERIOD * PROBE_MISSES;
        let required = if is_isolated { required * ISOLATED_FACTOR } else { required };
        let third = |other: usize| {
            others.iter().any(|third| self.answers(silo, *third) && self.answers(*third, other))
        };
        let ripe = others.iter().filter(|other| silent(other) >= required && !third(**other));
        ripe.map(|&other| (other, self.silos[silo].heard[other] + required)).collect()
    }
}

// ---- what a silo does
impl Cluster {
    fn is(&self, defect: Defect) -> bool {
        self.plan.mistake == Some(Mistake::Of(defect))
    }

    /// What came of a table or a view.
    fn noted(&mut self, silo: usize, reading: Reading) {
        let now = self.now;
        let one = &mut self.silos[silo];
        if let Reading::OwnGone(_) = reading {
            one.life = Life::Gone;
            one.lease.end(now, &mut VecDeque::new());
        }
        let view = one.membership.view();
        let rows = view.rows().iter().map(|row| (row.incarnation.generation, row.status));
        let rows: Vec<_> = rows.collect();
        let known = self.views.entry(view.number()).or_insert_with(|| rows.clone());
        self.broken[0] |= *known != rows;
    }

    fn read(&mut self, silo: usize) {
        let (now, table) = (self.now, self.table.clone());
        let one = &mut self.silos[silo];
        let adoptions = one.membership.adoptions();
        let reading = one.membership.take_table(now, Some(&one.me), now, adoptions, table);
        if matches!(reading, Reading::Adopted | Reading::Known) {
            one.shown_at = now;
            one.lease.renew_from_store(now);
        }
        self.noted(silo, reading);
    }

    fn is_read_due(&self, silo: usize) -> bool {
        let asked = self.silos[silo].membership.asked();
        let due = self.silos[silo].lease.read_due().min(asked + TABLE_READ_PERIOD);
        let suspects = !self.suspects(silo).is_empty();
        self.has_store(silo)
            && (self.now >= due || suspects && self.now >= asked + SUSPECT_READ_PERIOD)
    }

    /// What a silo would write of another.
    fn verdict(&self, silo: usize, against: usize) -> Option<Change> {
        let one = &self.silos[silo];
        let table = one.membership.table()?;
        let asked = one.membership.asked();
        let suspects = self.suspects(silo);
        suspects.iter().find(|(other, since)| *other == against && *since <= asked)?;
        let defect = match self.plan.mistake {
            Some(Mistake::Of(defect)) => Some(defect),
            Some(Mistake::NoCompare) | None => None,
        };
        let electorate = Electorate { table, beats: one.membership.beats(), defect };
        match electorate.decide(one.me.generation, self.generation(against)) {
            Decision::Wait => None,
            Decision::Vote(row) => Some(Change::row(table.version, row, Why::Vote("silent"))),
            Decision::Declare(row) => Some(Change::row(table.version, row, Why::Death("silent"))),
        }
    }

    fn write(&mut self, silo: usize, change: &Change, is_heard: bool) {
        let is_made =
            change.expected == self.table.version || self.plan.mistake == Some(Mistake::NoCompare);
        if is_made {
            self.make(change);
        } else {
            self.has_conflicted = true;
        }
        let assumed = self.is(Defect::UnknownCommitAssumed);
        let now = self.now;
        let one = &mut self.silos[silo];
        if (is_made && is_heard) || assumed {
            let reading = one.membership.take_change(now, change);
            self.noted(silo, reading);
        } else {
            one.membership.forget_table();
        }
    }

    /// The store makes a change.
    fn make(&mut self, change: &Change) {
        let Edit::Row(row) = &change.edit else { panic!("only votes and deaths are written") };
        let generation = row.incarnation.generation;
        if row.status == SiloStatus::Dead && !self.dead_at.contains_key(&generation) {
            self.dead_at.insert(generation, self.now);
            let is_its = |silo: &usize| self.generation(*silo) == generation;
            let silo = (0..self.silos.len()).find(is_its).expect("every row is a silo's");
            let serves = self.is_running(silo) && self.silos[silo].lease.until() > self.now;
            self.broken[1] |= serves && !self.has_store(silo);
            self.broken[2] |= !self.is_just(row);
        }
        let held = self.table.rows.iter_mut().find(|r| r.row.incarnation.generation == generation);
        held.expect("every silo has a row").row = row.clone();
        self.table.version = change.next;
        self.broken[3] |= self.table.view().active().next().is_none();
    }

    /// Whether enough of those who vote for the row's death are Active and not accused themselves.
    fn is_just(&self, dead: &SiloRow) -> bool {
        let view = self.table.view();
        let is_active = |by: Generation| view.status(by) == Some(SiloStatus::Active);
        let is_accused = |silo: Generation| {
            view.silo(silo).is_some_and(|row| row.votes.iter().any(|vote| is_active(vote.by)))
        };
        let just = dead.votes.iter().filter(|vote| is_active(vote.by) && !is_accused(vote.by));
        let accusers = view.active().filter(|row| row.incarnation != dead.incarnation).count();
        just.count() >= accusers.clamp(1, VOTES_NEEDED)
    }
}

// ---- time
impl Cluster {
    fn pass(&mut self) {
        self.now += PROBE_PERIOD;
        self.passed += 1;
        let count = self.silos.len();
        let since = (PROBE_PERIOD * self.passed).as_nanos();
        let is_beat = since.is_multiple_of(HEARTBEAT_PERIOD.as_nanos());
        for silo in (0..count).filter(|silo| is_beat && self.has_store(*silo)).collect::<Vec<_>>() {
            self.table.rows[silo].heartbeat += 1;
        }
        let views: Vec<_> = self.silos.iter().map(|one| one.membership.view().clone()).collect();
        let heard: Vec<(usize, usize)> = (0..count)
            .flat_map(|silo| (0..count).map(move |other| (silo, other)))
            .filter(|(silo, other)| silo != other && self.hears(*silo, *other))
            .collect();
        for (silo, other) in heard {
            self.hear(silo, other, &views[other]);
        }
        for silo in 0..count {
            if self.is_read_due(silo) {
                self.read(silo);
            }
            self.update_lease(silo);
        }
    }

    fn hear(&mut self, silo: usize, other: usize, view: &siloring_core::View) {
        let now = self.now;
        let is_answered = self.answers(silo, other);
        let shown = self.silos[other].shown_at;
        let is_shown = view.status(self.generation(silo)) == Some(SiloStatus::Active);
        let one = &mut self.silos[silo];
        one.heard[other] = now;
        if is_answered && is_shown && now.since(shown) < LEASE {
            one.lease.renew_from_peer(now, now.since(shown));
        }
        if view.number() > one.membership.view().number() {
            let me = one.me.clone();
            let reading = one.membership.take_view(now, &me, view.clone());
            self.noted(silo, reading);
        }
    }

    fn update_lease(&mut self, silo: usize) {
        if !self.is_running(silo) {
            return;
        }
        let now = self.now;
        let others = self.others(silo);
        let forever = self.is(Defect::ServesForever);
        let one = &mut self.silos[silo];
        if forever {
            one.lease.renew_from_store(now);
        }
        let heard = others.iter().map(|other| Heard::At(one.heard[*other])).collect();
        let needed = one.membership.votes_needed(now, one.me.generation);
        one.lease.update(now, heard, needed, &mut VecDeque::new());
        self.was_fenced |= one.lease.until() <= now;
        let dead_at = self.dead_at.get(&one.me.generation);
        let late = LEASE + TABLE_READ_PERIOD + PROBE_PERIOD * 2;
        self.broken[1] |= dead_at.is_some_and(|at| now > *at + late) && one.lease.until() > now;
    }

    /// All is whole: who stood still goes on, and everybody does what it wants.
    fn rest(&mut self) {
        self.faults.clear();
        let now = self.now;
        for one in self.silos.iter_mut().filter(|one| one.life == Life::Paused) {
            one.life = Life::Running;
            one.lease.fence(now, "it stood still", &mut VecDeque::new());
            one.heard.fill(now);
        }
        for _ in 0..60 {
            self.pass();
            for silo in 0..self.silos.len() {
                for other in 0..self.silos.len() {
                    if let Some(change) = self.verdict(silo, other)
                        && self.has_store(silo)
                    {
                        self.write(silo, &change, true);
                    }
                }
            }
        }
        self.is_over = true;
        self.broken[4] = !self.is_whole();
    }

    fn is_whole(&self) -> bool {
        let running: Vec<&Silo> =
            self.silos.iter().filter(|one| one.life == Life::Running).collect();
        let view = self.table.view();
        let active = view.active().map(|row| row.incarnation.generation);
        let agrees = |one: &&Silo| one.membership.view().number() == view.number();
        let serves = |one: &&Silo| one.lease.until() > self.now;
        active.eq(running.iter().map(|one| one.me.generation))
            && running.iter().all(agrees)
            && running.iter().all(serves)
    }
}

impl World for Cluster {
    type Setup = Plan;
    type Step = Step;
    const NAME: &'static str = "membership";
    const RULES: &'static [Rule<Self>] = &[
        Rule { name: ONE_VIEW, holds: |world| !world.broken[0] },
        Rule { name: FENCED, holds: |world| !world.broken[1] },
        Rule { name: COUNTED, holds: |world| !world.broken[2] },
        Rule { name: SOMEBODY, holds: |world| !world.broken[3] },
        Rule { name: CONVERGED, holds: |world| !world.broken[4] },
    ];
    const MARKS: &'static [Mark<Self>] = &[
        Mark { name: DIED, holds: |world| !world.dead_at.is_empty() },
        Mark { name: FENCES, holds: |world| world.was_fenced },
        Mark { name: CONFLICT, holds: |world| world.has_conflicted },
        Mark { name: RESTED, holds: |world| world.is_over },
    ];

    fn new(plan: &Plan) -> Self {
        let rows: Vec<_> =
            (0..plan.silos).map(|index| TableRow { row: row(index), heartbeat: 1 }).collect();
        let silos = rows.iter().map(|row| Silo {
            me: row.row.incarnation.clone(),
            membership: Membership::new(),
            lease: Lease::new(),
            heard: vec![START; plan.silos],
            shown_at: Moment::ZERO,
            life: Life::Running,
        });
        let mut world = Self {
            plan: *plan,
            now: Moment::from_nanos(START.as_nanos() - 5_000_000_000),
            silos: silos.collect(),
            table: Table { version: ViewNumber(10), rows },
            faults: Vec::new(),
            begun: 0,
            passed: 0,
            unheard: plan.unheard,
            views: BTreeMap::new(),
            dead_at: BTreeMap::new(),
            broken: [false; 5],
            was_fenced: false,
            has_conflicted: false,
            is_over: false,
        };
        for at in [world.now, START] {
            world.now = at;
            (0..plan.silos).for_each(|silo| world.read(silo));
            world.table.rows.iter_mut().for_each(|row| row.heartbeat += 1);
        }
        world.silos.iter_mut().for_each(|one| one.lease.begin(START));
        (0..plan.silos).for_each(|silo| world.update_lease(silo));
        world
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.is_over {
            return steps;
        }
        if let Some(fault) = self.plan.faults.get(self.begun) {
            steps.push(Step::Begin(*fault));
        }
        for silo in (0..self.silos.len()).filter(|silo| self.has_store(*silo)) {
            let one = &self.silos[silo].membership;
            let suspects = self.suspects(silo);
            let is_news = one.view().number() != self.table.version || one.table().is_none();
            let is_wanted = suspects.iter().any(|(_, since)| *since > one.asked());
            steps.extend((is_news || is_wanted).then_some(Step::Read(silo)));
            for (other, _) in suspects {
                if self.verdict(silo, other).is_some() {
                    steps.push(Step::Write(silo, other));
                    steps.extend((self.unheard > 0).then_some(Step::Unheard(silo, other)));
                }
            }
        }
        let has_time = self.passed < self.plan.periods;
        steps.push(if has_time { Step::Pass } else { Step::Rest });
        steps
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Begin(fault) => {
                self.begun += 1;
                self.faults.push(fault);
                match fault {
                    Fault::Pause(silo) => self.silos[silo].life = Life::Paused,
                    Fault::Kill(silo) => self.silos[silo].life = Life::Gone,
                    Fault::Part(_) | Fault::PartAll | Fault::Mute(_) | Fault::NoStore(_) => {}
                }
            }
            Step::Read(silo) => self.read(silo),
            Step::Write(silo, other) => {
                let change = self.verdict(silo, other).expect("it was possible");
                self.write(silo, &change, true);
            }
            Step::Unheard(silo, other) => {
                self.unheard -= 1;
                let change = self.verdict(silo, other).expect("it was possible");
                self.write(silo, &change, false);
            }
            Step::Pass => self.pass(),
            Step::Rest => self.rest(),
        }
    }

    fn print(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{:?}{:?}{}{}", self.now, self.faults, self.begun, self.unheard)?;
        write!(out, "{:?}{:?}{:?}", self.table, self.dead_at, self.broken)?;
        write!(out, "{}{}{}", self.was_fenced, self.has_conflicted, self.is_over)?;
        for one in &self.silos {
            write!(out, "{:?}{:?}{:?}", one.membership, one.lease, one.heard)?;
            write!(out, "{:?}{:?}", one.shown_at, one.life)?;
        }
        Ok(())
    }
}

const DIED: &str = "a silo is declared Dead";
const FENCES: &str = "a silo is fenced";
const CONFLICT: &str = "two write on one version";
const RESTED: &str = "the world comes to rest";

const fn plan(silos: usize, faults: &'static [Fault], periods: u32) -> Plan {
    Plan { silos, faults, periods, unheard: 0, mistake: None }
}

const HALVES: Plan = plan(2, &[Fault::Part(&[0])], 12);
const HALF_CUT: Plan = plan(2, &[Fault::NoStore(&[0]), Fault::Part(&[0])], 9);
const ONE_OF_THREE: Plan = plan(3, &[Fault::Part(&[0])], 10);
const STORE_CUT: Plan = plan(5, &[Fault::NoStore(&[0, 1, 2]), Fault::Part(&[0, 1, 2])], 9);
const KILLED: Plan = plan(3, &[Fault::Kill(0)], 8);

fn check(plan: Plan, depth: usize, states_min: usize, no: &[&str]) {
    let depth_max = if is_long() { depth + 3 } else { depth };
    explore::<Cluster>(plan, depth_max, states_min, no);
}

#[test]
fn of_two_that_are_parted_one_lives() {
    check(HALVES, 40, 1_700, &[FENCES]);
}

#[test]
fn of_two_that_are_parted_the_one_without_the_store_is_fenced() {
    check(HALF_CUT, 40, 280, &[CONFLICT]);
}

#[test]
fn three_that_are_parted_agree_when_they_are_whole_again() {
    check(ONE_OF_THREE, 18, 10_000, &[FENCES]);
    check(plan(3, &[Fault::PartAll], 10), 15, 5_000, &[FENCES]);
    check(plan(3, &[Fault::Mute(0)], 9), 40, 5_000, &[FENCES]);
}

#[test]
fn a_majority_without_the_store_is_fenced_before_two_with_it_declare_it_dead() {
    check(STORE_CUT, 15, 2_300, &[]);
}

#[test]
fn three_of_which_one_is_killed_or_stands_still_agree() {
    check(KILLED, 40, 1_100, &[FENCES]);
    check(plan(3, &[Fault::Pause(0)], 9), 40, 1_800, &[FENCES]);
}

#[test]
fn three_of_which_one_does_not_hear_what_it_wrote_agree() {
    check(Plan { unheard: 1, ..plan(3, &[Fault::Part(&[0])], 7) }, 15, 7_400, &[FENCES]);
}

#[test]
fn each_rule_of_membership_breaks_without_what_holds_it() {
    let refute = |plan: Plan, mistake, rule| {
        refute::<Cluster>(Plan { mistake: Some(mistake), ..plan }, 16, rule);
    };
    let of = Mistake::Of;
    refute(HALVES, of(Defect::UnknownCommitAssumed), ONE_VIEW);
    refute(HALF_CUT, of(Defect::ServesForever), FENCED);
    refute(STORE_CUT, of(Defect::ServesForever), FENCED);
    refute(ONE_OF_THREE, of(Defect::AccusedVotes), COUNTED);
    refute(HALVES, Mistake::NoCompare, SOMEBODY);
    refute(KILLED, of(Defect::NeverVotes), CONVERGED);
}
