//! Rare paths: where a simulated run may ask a machine for one, and where a machine says that it
//! took one.
//!
//! A machine that evicts, splits, repeats or re-reads now and then does so seldom in a short run.
//! At a few such points it asks [`is_asked`] first; a run answers yes once in a while and so meets
//! states that it would not live to see. [`took`] tells of paths that no event names, and that a
//! batch of runs must have met.
//!
//! Neither is there without the feature `planted`, which nothing but tests enables: then
//! [`is_asked`] is `false` at compile time and [`took`] is empty. Both are about correctness only
//! in that they must never matter to it: any answer is right at any time.

/// A point at which a machine may take a path that is otherwise rare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rare {
    /// A piece of a hand-over, or of an answer to a recovery, has one entry.
    SmallPiece,
    /// The table is read although nothing asks for it.
    ReadNow,
    /// An activation that has nothing to do ends soon.
    EndSoon,
    /// A batch of events has one.
    SmallBatch,
    /// The owner of a stream reads its subscriptions again although nothing asks for it.
    ReadSubscriptions,
    /// A delivery has been redirected as often as it may be, though it was not.
    NoRedirect,
}

impl Rare {
    /// Every point.
    pub const ALL: [Self; 6] = [
        Self::SmallPiece,
        Self::ReadNow,
        Self::EndSoon,
        Self::SmallBatch,
        Self::ReadSubscriptions,
        Self::NoRedirect,
    ];

    /// Its name in the figures of a batch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SmallPiece => "small-piece",
            Self::ReadNow => "read-now",
            Self::EndSoon => "end-soon",
            Self::SmallBatch => "small-batch",
            Self::ReadSubscriptions => "read-subscriptions",
            Self::NoRedirect => "no-redirect",
        }
    }
}

/// A path that was taken, and that no event names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mark {
    /// A delivery was not redirected any further: it had been as often as one may be.
    ForwardLimit,
    /// Two silos had dialled each other's control lane at once, and one lane gave way.
    LanesCrossed,
}

impl Mark {
    /// Every path.
    pub const ALL: [Self; 2] = [Self::ForwardLimit, Self::LanesCrossed];

    /// Its name in the figures of a batch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardLimit => "forward limit",
            Self::LanesCrossed => "lanes crossed",
        }
    }
}

/// Who answers, and who is told, on this thread.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, Debug)]
pub struct Rehearsal {
    /// Whether the rare path is to be taken here.
    pub asks: fn(Rare) -> bool,
    /// A path was taken.
    pub told: fn(Mark),
}

#[cfg(feature = "planted")]
std::thread_local! {
    static REHEARSAL: core::cell::Cell<Option<Rehearsal>> = const { core::cell::Cell::new(None) };
}

/// From now on this is asked, and told, on this thread.
#[cfg(feature = "planted")]
pub fn rehearse(rehearsal: Rehearsal) {
    REHEARSAL.set(Some(rehearsal));
}

/// Whether the rare path is to be taken here.
#[cfg(feature = "planted")]
pub fn is_asked(point: Rare) -> bool {
    REHEARSAL.get().is_some_and(|rehearsal| (rehearsal.asks)(point))
}

/// Whether the rare path is to be taken here: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline]
pub const fn is_asked(_point: Rare) -> bool {
    false
}

/// A path was taken.
#[cfg(feature = "planted")]
pub fn took(path: Mark) {
    if let Some(rehearsal) = REHEARSAL.get() {
        (rehearsal.told)(path);
    }
}

/// A path was taken: nobody is told, in this build.
#[cfg(not(feature = "planted"))]
#[inline]
pub const fn took(_path: Mark) {}
