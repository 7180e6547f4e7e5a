//! Rare paths of a run: how often a machine, or the world, is asked for one, and how often one was
//! taken.
//!
//! The machines' points are [`siloring_core::ports::rare`], in builds with the feature `planted`;
//! the world has a few of its own. Entropy is a stream of its own: a run with other rates meets the
//! same latencies.

use std::collections::BTreeMap;

#[cfg(feature = "planted")]
use siloring_core::ports::rare::{Mark, Rare, Rehearsal, rehearse};

use super::random::stream;
#[cfg(feature = "planted")]
use super::scene;

/// The kernel takes less than there was room for.
pub(super) const SHORT_WRITE: &str = "short-write";
/// A read brings less than has arrived.
pub(super) const SHORT_READ: &str = "short-read";
/// A thread is woken for nothing.
pub(super) const IDLE_WAKE: &str = "idle-wake";

/// An activation that has nothing to do ends: no run draws it, plans may have it.
pub(super) const END_SOON: &str = "end-soon";

/// What a run has of them.
#[derive(Debug)]
pub(super) struct RarePaths {
    per_mille: u16,
    /// The same for the end of an activation that has nothing to do.
    ends_per_mille: u16,
    random: fastrand::Rng,
    counts: BTreeMap<&'static str, u64>,
}

impl Default for RarePaths {
    fn default() -> Self {
        Self::new(0, 0, 0)
    }
}

impl RarePaths {
    /// Of a thousand times that one could be taken, so many are.
    pub(super) fn new(seed: u64, per_mille: u16, ends_per_mille: u16) -> Self {
        Self { per_mille, ends_per_mille, random: stream(seed, "rare"), counts: BTreeMap::new() }
    }

    /// Whether the path of this name is to be taken.
    pub(super) fn is_asked(&mut self, name: &'static str) -> bool {
        let share = if name == END_SOON { self.ends_per_mille } else { self.per_mille };
        let is_asked = share > 0 && self.random.u16(..1000) < share;
        if is_asked {
            self.count(name);
        }
        is_asked
    }

    /// A part of a whole that has more than one.
    pub(super) fn part_of(&mut self, whole: usize) -> usize {
        self.random.usize(1..whole)
    }

    pub(super) fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    pub(super) const fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }
}

/// The names of all that a drawn run can take.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    #[cfg(feature = "planted")]
    let asked = Rare::ALL.iter().map(|point| point.name());
    #[cfg(not(feature = "planted"))]
    let asked = std::iter::empty();
    let all = [SHORT_WRITE, SHORT_READ, IDLE_WAKE].into_iter().chain(asked);
    all.filter(|name| *name != END_SOON)
}

/// Lets the machines of this thread ask the world that runs on it.
#[cfg(feature = "planted")]
pub(super) fn enter() {
    let asks = |point: Rare| {
        scene::with(|scene| scene.rare.borrow_mut().is_asked(point.name())).unwrap_or_default()
    };
    let told = |mark: Mark| {
        scene::with(|scene| scene.rare.borrow_mut().count(mark.name()));
    };
    rehearse(Rehearsal { asks, told });
}

/// The machines of this build do not ask.
#[cfg(not(feature = "planted"))]
pub(super) const fn enter() {}
