//! The first release.

use siloring::ctx::StateError;
use siloring::prelude::*;
use siloring_testkit::sim::{ClusterBuilder, Node};

use super::{Drive, LINES, Shape, Unreadable, named, next, program, sound};

/// Gets a field.
#[message(type = "versions.added")]
#[derive(Debug)]
pub(crate) struct Added {
    number: u64,
}

/// Loses one.
#[message(type = "versions.removed")]
#[derive(Debug)]
pub(crate) struct Removed {
    mood: u32,
    number: u64,
}

/// Has two fields of one type changed for each other: read as the other, it would pass every check.
#[message(type = "versions.swapped")]
#[derive(Debug)]
pub(crate) struct Swapped {
    number: u64,
    from: u32,
    to: u32,
}

/// Gets a wider field, which may hold what the old one cannot.
#[message(type = "versions.widened")]
#[derive(Debug)]
pub(crate) struct Widened {
    number: u32,
}

/// Changes without a way from one to the other.
#[message(type = "versions.parted")]
#[derive(Debug)]
pub(crate) struct Parted {
    number: u64,
    from: u32,
    to: u32,
}

impl Shape for Added {
    fn of(number: u64) -> Self {
        Self { number }
    }

    fn number(&self) -> Option<u64> {
        Some(self.number)
    }
}

impl Shape for Removed {
    fn of(number: u64) -> Self {
        Self { mood: 7, number }
    }

    fn number(&self) -> Option<u64> {
        matches!(self.mood, 0 | 7).then_some(self.number)
    }
}

impl Shape for Swapped {
    fn of(number: u64) -> Self {
        Self { number, from: 1, to: 2 }
    }

    fn number(&self) -> Option<u64> {
        ((self.from, self.to) == (1, 2)).then_some(self.number)
    }
}

impl Shape for Widened {
    fn of(number: u64) -> Self {
        Self { number: u32::try_from(number).unwrap_or(u32::MAX) }
    }

    fn number(&self) -> Option<u64> {
        Some(u64::from(self.number))
    }
}

impl Shape for Parted {
    fn of(number: u64) -> Self {
        Self { number, from: 1, to: 2 }
    }

    fn number(&self) -> Option<u64> {
        ((self.from, self.to) == (1, 2)).then_some(self.number)
    }
}

program! { added, "versions.added", Added, take: {}, keep: {}, kept: {}, more: {
    /// The second release has it no more.
    pub(crate) async fn only_old(&self) -> u64 { 1 }
} }
program! { removed, "versions.removed", Removed, take: {}, keep: {}, kept: {}, more: {} }
program! { swapped, "versions.swapped", Swapped, take: {}, keep: {}, kept: {}, more: {} }
program! { widened, "versions.widened", Widened, take: {}, keep: {}, kept: {}, more: {} }
program! { parted, "versions.parted", Parted, take: {}, keep: {}, kept: {}, more: {} }

/// A cluster that begins with it.
pub(crate) fn first(builder: ClusterBuilder) -> ClusterBuilder {
    builder
        .host::<added::Room>()
        .host::<removed::Room>()
        .host::<swapped::Room>()
        .host::<widened::Room>()
        .host::<parted::Room>()
}
