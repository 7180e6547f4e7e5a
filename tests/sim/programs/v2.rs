//! The second release: it keeps the first one's shapes, and says how each becomes the other.

use siloring::ctx::StateError;
use siloring::prelude::*;
use siloring_testkit::sim::{Node, Release};

use super::{Drive, LINES, Shape, Unreadable, named, next, program, sound};

#[message(type = "versions.added")]
struct AddedV1 {
    number: u64,
}

#[message(type = "versions.added", version = 2, was(AddedV1))]
#[derive(Debug)]
pub(crate) struct Added {
    note: Option<String>,
    number: u64,
}

impl From<AddedV1> for Added {
    fn from(old: AddedV1) -> Self {
        Self { note: None, number: old.number }
    }
}

impl From<Added> for AddedV1 {
    fn from(new: Added) -> Self {
        Self { number: new.number }
    }
}

#[message(type = "versions.removed")]
struct RemovedV1 {
    mood: u32,
    number: u64,
}

#[message(type = "versions.removed", version = 2, was(RemovedV1))]
#[derive(Debug)]
pub(crate) struct Removed {
    number: u64,
}

impl From<RemovedV1> for Removed {
    fn from(old: RemovedV1) -> Self {
        Self { number: if old.mood == 7 { old.number } else { u64::from(u32::MAX) } }
    }
}

impl From<Removed> for RemovedV1 {
    fn from(new: Removed) -> Self {
        Self { mood: 0, number: new.number }
    }
}

#[message(type = "versions.swapped")]
struct SwappedV1 {
    number: u64,
    from: u32,
    to: u32,
}

#[message(type = "versions.swapped", version = 2, was(SwappedV1))]
#[derive(Debug)]
pub(crate) struct Swapped {
    number: u64,
    to: u32,
    from: u32,
}

impl From<SwappedV1> for Swapped {
    fn from(old: SwappedV1) -> Self {
        Self { number: old.number, to: old.to, from: old.from }
    }
}

impl From<Swapped> for SwappedV1 {
    fn from(new: Swapped) -> Self {
        Self { number: new.number, from: new.from, to: new.to }
    }
}

#[message(type = "versions.widened")]
struct WidenedV1 {
    number: u32,
}

#[message(type = "versions.widened", version = 2, was(WidenedV1))]
#[derive(Debug)]
pub(crate) struct Widened {
    number: u64,
}

/// A number whose conversion panics.
pub(crate) const PANICS: u64 = 1313;

impl From<WidenedV1> for Widened {
    fn from(old: WidenedV1) -> Self {
        let number = u64::from(old.number);
        assert!(number != PANICS, "the program's own code panics");
        Self { number }
    }
}

impl TryFrom<Widened> for WidenedV1 {
    type Error = std::num::TryFromIntError;

    fn try_from(new: Widened) -> Result<Self, Self::Error> {
        assert!(new.number != PANICS, "the program's own code panics");
        Ok(Self { number: u32::try_from(new.number)? })
    }
}

#[message(type = "versions.parted", version = 2)]
#[derive(Debug)]
pub(crate) struct Parted {
    number: u64,
    to: u32,
    from: u32,
}

impl Shape for Added {
    fn of(number: u64) -> Self {
        Self { note: Some("new".to_owned()), number }
    }

    fn number(&self) -> Option<u64> {
        let is_sound = self.note.as_deref().is_none_or(|note| note == "new");
        is_sound.then_some(self.number)
    }
}

impl Shape for Removed {
    fn of(number: u64) -> Self {
        Self { number }
    }

    fn number(&self) -> Option<u64> {
        Some(self.number)
    }
}

impl Shape for Swapped {
    fn of(number: u64) -> Self {
        Self { number, to: 2, from: 1 }
    }

    fn number(&self) -> Option<u64> {
        ((self.from, self.to) == (1, 2)).then_some(self.number)
    }
}

impl Shape for Widened {
    fn of(number: u64) -> Self {
        Self { number }
    }

    fn number(&self) -> Option<u64> {
        Some(self.number)
    }
}

impl Shape for Parted {
    fn of(number: u64) -> Self {
        Self { number, to: 2, from: 1 }
    }

    fn number(&self) -> Option<u64> {
        ((self.from, self.to) == (1, 2)).then_some(self.number)
    }
}

program! {
    added, "versions.added", Added,
    take: { #[method(version = 2)] #[was(1, fn(it: AddedV1) -> AddedV1)] },
    keep: { #[method(version = 2)] #[was(1, fn(it: AddedV1) -> Result<(), Unreadable>)] },
    kept: { #[method(version = 2)] #[was(1, fn() -> Result<Option<AddedV1>, Unreadable>)] },
    more: {
        /// The first release has no such method.
        pub(crate) async fn only_new(&self) -> u64 { 2 }
    }
}
program! {
    removed, "versions.removed", Removed,
    take: { #[method(version = 2)] #[was(1, fn(it: RemovedV1) -> RemovedV1)] },
    keep: { #[method(version = 2)] #[was(1, fn(it: RemovedV1) -> Result<(), Unreadable>)] },
    kept: { #[method(version = 2)] #[was(1, fn() -> Result<Option<RemovedV1>, Unreadable>)] },
    more: {}
}
program! {
    swapped, "versions.swapped", Swapped,
    take: { #[method(version = 2)] #[was(1, fn(it: SwappedV1) -> SwappedV1)] },
    keep: { #[method(version = 2)] #[was(1, fn(it: SwappedV1) -> Result<(), Unreadable>)] },
    kept: { #[method(version = 2)] #[was(1, fn() -> Result<Option<SwappedV1>, Unreadable>)] },
    more: {}
}
program! {
    widened, "versions.widened", Widened,
    take: { #[method(version = 2)] #[was(1, fn(it: WidenedV1) -> WidenedV1)] },
    keep: { #[method(version = 2)] #[was(1, fn(it: WidenedV1) -> Result<(), Unreadable>)] },
    kept: { #[method(version = 2)] #[was(1, fn() -> Result<Option<WidenedV1>, Unreadable>)] },
    more: {}
}
program! {
    parted, "versions.parted", Parted,
    take: { #[method(version = 2)] }, keep: { #[method(version = 2)] },
    kept: { #[method(version = 2)] }, more: {}
}

/// It, as what a cluster is rolled to.
pub(crate) fn later(release: Release) -> Release {
    release
        .host::<added::Room>()
        .host::<removed::Room>()
        .host::<swapped::Room>()
        .host::<widened::Room>()
        .host::<parted::Room>()
}
