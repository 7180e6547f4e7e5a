//! What code inside a world can reach without being handed it: the ledger, the time, the
//! violations.
//!
//! A grain is made by its type's `Default`, so nothing can be handed to it. A world therefore puts
//! its scene before the thread while it runs; outside of a world every call here does nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::Moment;
use siloring_core::limits::LEASE;

use super::checks::Checks;
use super::history::{Histories, Turns};
use super::ledger::Ledger;
use super::rare::RarePaths;
use super::world::{HostId, ProcessId, Violation};

/// The word of a death has come by then where nothing is wrong.
const NEWS_MAX: Duration = Duration::from_secs(1);
/// Violations kept at most: the first one is what matters.
const VIOLATIONS_KEPT_MAX: usize = 64;

thread_local! {
    static SCENE: RefCell<Option<Rc<Scene>>> = const { RefCell::new(None) };
}

/// What a world shares with the code that runs in it.
#[derive(Debug, Default)]
pub(super) struct Scene {
    pub(super) now: Cell<Moment>,
    /// Who runs; `None` between runs.
    pub(super) process: Cell<Option<ProcessId>>,
    pub(super) ledger: RefCell<Ledger>,
    /// Parts per million that a clock may be slow.
    pub(super) drift_ppm: Cell<u32>,
    /// The host of each process.
    pub(super) hosts: RefCell<Vec<HostId>>,
    /// When a connection between two hosts last ended, by the lower host first.
    pub(super) breaks: RefCell<BTreeMap<(HostId, HostId), Moment>>,
    /// What the store committed between two moments was lost.
    pub(super) losses: RefCell<Vec<(Moment, Moment)>>,
    /// When silos were declared Dead.
    pub(super) deaths: RefCell<Vec<Moment>>,
    violations: RefCell<Vec<Violation>>,
    /// Whether somebody watches the run; only then are notes made.
    pub(super) watched: Cell<bool>,
    notes: RefCell<Vec<String>>,
    /// Rare paths: asked for and taken.
    pub(super) rare: RefCell<RarePaths>,
    /// What was seen of all silos together.
    pub(super) checks: RefCell<Checks>,
    /// What was answered when.
    pub(super) histories: RefCell<Histories>,
    /// Turns under way.
    pub(super) turns: RefCell<Turns>,
}

impl Scene {
    pub(super) fn violate(&self, invariant: &'static str, detail: impl Into<String>) {
        let mut violations = self.violations.borrow_mut();
        if violations.len() < VIOLATIONS_KEPT_MAX {
            violations.push(Violation { at: self.now.get(), invariant, detail: detail.into() });
        }
    }

    pub(super) fn note(&self, text: impl FnOnce() -> String) {
        if self.watched.get() {
            self.notes.borrow_mut().push(text());
        }
    }

    pub(super) fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    pub(super) fn is_sound(&self) -> bool {
        self.violations.borrow().is_empty()
    }

    pub(super) fn violations(&self) -> Vec<Violation> {
        self.violations.borrow().clone()
    }

    /// How much longer a span may take on the slowest clock, and as much again.
    pub(super) fn drift(&self, span: Duration) -> Duration {
        span * (2 * self.drift_ppm.get()) / 1_000_000
    }

    pub(super) fn note_break(&self, one: HostId, other: HostId) {
        self.breaks.borrow_mut().insert((one.min(other), one.max(other)), self.now.get());
    }

    /// Whether a connection between the two processes' hosts ended at or after `since`.
    pub(super) fn broke_since(&self, one: ProcessId, other: ProcessId, since: Moment) -> bool {
        let hosts = self.hosts.borrow();
        let (one, other) = (hosts[one.0 as usize], hosts[other.0 as usize]);
        let breaks = self.breaks.borrow();
        breaks.get(&(one.min(other), one.max(other))).is_some_and(|at| *at >= since)
    }

    /// Whether any connection ended at or after `since`.
    pub(super) fn broke_anywhere_since(&self, since: Moment) -> bool {
        self.breaks.borrow().values().any(|at| *at >= since)
    }

    /// Whether somebody who had been declared Dead a moment before may not have known it then.
    pub(super) fn may_be_a_zombies(&self, at: Moment) -> bool {
        let unaware = LEASE + NEWS_MAX;
        self.deaths.borrow().iter().any(|death| *death <= at && at.since(*death) <= unaware)
    }

    /// Whether the store may have lost what it committed at or after `since`.
    pub(super) fn lost_since(&self, since: Moment) -> bool {
        self.losses.borrow().iter().any(|(_, until)| *until >= since)
    }

    /// Makes this the thread's scene.
    pub(super) fn enter(self: &Rc<Self>) {
        SCENE.with_borrow_mut(|scene| {
            if !scene.as_ref().is_some_and(|current| Rc::ptr_eq(current, self)) {
                *scene = Some(Rc::clone(self));
            }
        });
    }
}

/// Runs `work` with the thread's scene; `None` outside of any world, or while the thread ends.
pub(super) fn with<R>(work: impl FnOnce(&Rc<Scene>) -> R) -> Option<R> {
    SCENE.try_with(|scene| scene.borrow().as_ref().map(Rc::clone)).ok().flatten().map(|s| work(&s))
}

/// Whether the store may have lost what it committed between the two moments.
pub(super) fn may_be_lost(sent: Moment, heard: Moment) -> bool {
    let is_in = |(since, until): &(Moment, Moment)| *since <= heard && sent <= *until;
    with(|scene| scene.losses.borrow().iter().any(is_in)).unwrap_or_default()
}

/// Reports an invariant of the program under test that does not hold; the run stops and fails.
pub fn violate(invariant: &'static str, detail: impl Into<String>) {
    with(|scene| scene.violate(invariant, detail));
}

/// The world's time; `None` outside of any.
pub fn world_now() -> Option<Moment> {
    with(|scene| scene.now.get())
}
