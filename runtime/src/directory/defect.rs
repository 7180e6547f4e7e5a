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
    /// What a range knows is lost when it is handed over.
    MemoryRegistry,
    /// A range stays with its owner although a newer view gives it to another.
    RangeKept,
    /// A claim in flight is asked for twice at a newer view.
    AskedTwice,
    /// A claim that is refused for good is asked for again.
    RefusalRetried,
    /// Of two that hold one address the older one wins.
    OldestWins,
    /// Two grants may get one number.
    NumbersRepeat,
    /// The range's owner is not told of an activation's end.
    EndsUntold,
    /// Whoever loses an address is not told.
    LosersUntold,
    /// Who asks is known by its shard, whichever life of whichever silo it is of.
    NoIncarnation,
    /// What is absent while its range moves is answered as absent.
    AbsentWhileMoving,
    /// The ring follows from the order in which a silo has heard of the others.
    RingOfOrder,
}

/// What can be done to a directory that nothing but a defect would.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedFault {
    /// It loses every entry that it owns.
    LoseEntries,
    /// It answers so many claims as if their range were moving.
    RefuseClaims(u32),
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

#[cfg(feature = "planted")]
mod ring {
    //! A ring that each silo makes in its own order.

    use std::sync::Arc;

    use siloring_core::View;
    use siloring_core::ring::Ring;

    use super::super::Directory;
    use super::Defect;

    impl Directory {
        /// The view as this directory takes it up: planted, its ring begins with this silo.
        pub(in super::super) fn planted_view(&self, view: &Arc<View>) -> Arc<View> {
            if !self.core.config.planted.has(Defect::RingOfOrder) {
                return Arc::clone(view);
            }
            let me = self.core.config.endpoint.silo;
            let mut rows: Vec<_> = view.active().collect();
            rows.sort_by_key(|row| row.incarnation.generation != me);
            let silos = rows.iter().map(|row| (row.incarnation.generation, row.shards));
            Arc::new(view.with_ring(Ring::of_order(silos)))
        }
    }
}
