//! Deliberate defects: a test that passes with its defect switched on proves nothing.
//!
//! The switch exists in test builds and under the feature `planted` only; elsewhere
//! [`Planted::has`] is `false` at compile time.

/// A deliberate defect of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// A recovered range is opened before all silos have answered.
    OpenBeforeAllAnswers,
    /// A place that refused stays in the cache.
    CacheKeptOnRefusal,
    /// A claim is given up after six tries.
    ClaimGivesUp,
    /// A claim is given up when the range is moving.
    SingleAttach,
    /// A claim is made before the silo is Active.
    ClaimBeforeActive,
    /// A held claim is never asserted again.
    ClaimOnceOnly,
    /// A claim in flight stays with the owner of the view it was made in.
    NoSwitch,
    /// A release or a re-assert counts whoever it comes from and whatever its number.
    AddressOnly,
    /// A released address is not remembered.
    NoTombstone,
    /// A claim replaces a living holder without being asked to.
    LastWriterWins,
    /// A giver answers for a span it has already given away.
    GivenTwice,
}

/// Which defect is switched on.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    #[cfg(any(test, feature = "planted"))]
    defect: Option<Defect>,
}

impl Planted {
    /// No defect.
    pub const NONE: Self = Self {
        #[cfg(any(test, feature = "planted"))]
        defect: None,
    };

    /// With this defect.
    #[cfg(any(test, feature = "planted"))]
    pub const fn with(defect: Defect) -> Self {
        Self { defect: Some(defect) }
    }

    /// Whether the defect is switched on.
    #[cfg(any(test, feature = "planted"))]
    pub(super) fn has(self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Whether the defect is switched on: never, in this build.
    #[cfg(not(any(test, feature = "planted")))]
    #[expect(clippy::unused_self, reason = "one call site for all builds")]
    pub(super) const fn has(self, _defect: Defect) -> bool {
        false
    }
}
