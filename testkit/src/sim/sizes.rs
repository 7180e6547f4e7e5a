//! Sizes of a shard's tables: what they may be, and what is left of them at rest.

use siloring_core::limits::{
    ACTIVATIONS_MAX, DIRECTORY_PARKED_MAX, DIRECTORY_WAITING_MAX, OPEN_DELIVERIES_MAX,
    TOMBSTONES_MAX,
};
use siloring_runtime::directory::Usage;
use siloring_runtime::shard::ShardSizes;

/// Tasks of a shard that never end: the one in which its streams follow the views.
const STREAM_TASKS: usize = 1;

/// Sizes of one shard's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// The shard's own.
    pub shard: ShardSizes,
    /// Its directory's.
    pub directory: Usage,
    /// Links whose peer takes no more bytes.
    pub clogged: usize,
}

impl Sizes {
    /// Names a table that outgrew its bound.
    pub(super) fn beyond_bounds(&self) -> Option<String> {
        let tables = [
            ("open deliveries", self.shard.open_deliveries, OPEN_DELIVERIES_MAX),
            ("activations", self.shard.activations, ACTIVATIONS_MAX),
            ("held outcomes", self.shard.held_outcomes, OPEN_DELIVERIES_MAX),
            ("look-ups", self.directory.lookups, DIRECTORY_WAITING_MAX),
            ("parked requests", self.directory.parked, DIRECTORY_PARKED_MAX),
            ("tombstones", self.directory.tombstones, TOMBSTONES_MAX),
            ("closed hubs", self.directory.closed, TOMBSTONES_MAX),
        ];
        let beyond = tables.into_iter().find(|(_, size, bound)| size > bound);
        beyond.map(|(table, size, bound)| format!("{size} {table}, {bound} at most"))
    }

    /// Names something that is not over although nothing is asked of the shard any more.
    pub(super) fn left_over(&self) -> Option<String> {
        // A grain and a hub have a timer each; what waits has another.
        let timers = self.shard.timers.saturating_sub(self.shard.activations + self.shard.hubs);
        let tables = [
            ("open deliveries", self.shard.open_deliveries),
            ("turns or timers of grains", self.shard.tasks.saturating_sub(STREAM_TASKS)),
            ("futures that wait", self.shard.slots),
            ("timers of nothing", timers),
            ("held outcomes", self.shard.held_outcomes),
            ("held requests", self.shard.held_requests),
            ("look-ups", self.directory.lookups),
            ("parked requests", self.directory.parked),
            ("ranges or registrations under way", self.directory.underway),
            ("clogged links", self.clogged),
        ];
        let left = tables.into_iter().find(|(_, size)| *size > 0);
        left.map(|(table, size)| format!("{size} {table}"))
    }
}

/// Whether the directory is the union of what lives: one entry for each activation and each hub.
pub(super) fn is_union(all: &[Sizes]) -> Result<(), String> {
    let sum = |of: fn(&Sizes) -> usize| all.iter().map(of).sum::<usize>();
    let entries = sum(|sizes| sizes.directory.entries - sizes.directory.tombstones);
    let activations = sum(|sizes| sizes.shard.activations);
    let hubs = sum(|sizes| sizes.shard.hubs);
    if entries == activations + hubs {
        return Ok(());
    }
    Err(format!("{entries} entries of {activations} activations and {hubs} hubs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_beyond_its_bound_and_what_is_left_at_rest_are_named() {
        let mut sizes = Sizes::default();
        assert_eq!((sizes.beyond_bounds(), sizes.left_over()), (None, None));
        sizes.shard.activations = 2;
        sizes.shard.timers = 2;
        assert_eq!(sizes.left_over(), None, "an idle grain has a timer");
        sizes.shard.timers = 3;
        assert_eq!(sizes.left_over().as_deref(), Some("1 timers of nothing"));
        sizes.shard.timers = 2;
        sizes.directory.parked = DIRECTORY_PARKED_MAX + 1;
        assert!(sizes.beyond_bounds().is_some_and(|text| text.contains("parked")));
        assert!(sizes.left_over().is_some_and(|text| text.contains("parked")));
    }

    #[test]
    fn an_entry_of_nothing_is_seen() {
        let mut sizes = Sizes::default();
        sizes.directory.entries = 3;
        sizes.directory.tombstones = 1;
        sizes.shard.activations = 1;
        assert!(is_union(&[sizes]).is_err());
        sizes.shard.hubs = 1;
        assert_eq!(is_union(&[sizes]), Ok(()));
    }
}
