//! What the owner of a range knows of its addresses.
//!
//! Sorted by ring position, so that a span is a range of keys. Released entries are remembered for
//! [`TOMBSTONE_TIME`], at most [`TOMBSTONES_MAX`] of them, the earliest making room.

use std::collections::BTreeMap;
use std::ops::Bound;

use siloring_core::Moment;
use siloring_core::limits::{
    DIRECTORY_SWEEP_MAX, DIRECTORY_SWEEP_PERIOD, TOMBSTONE_TIME, TOMBSTONES_MAX,
};

use super::message::{Item, ItemState};
use super::place::Place;
use super::schedule::Schedule;
use super::span::{Key, Span};

/// What is known of one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Its home, or its last one.
    pub(super) place: Place,
    /// Which registration or claim of that shard.
    pub(super) attempt: u64,
    /// How it stands.
    pub(super) state: EntryState,
}

/// How an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryState {
    /// An activation is registered.
    Registered,
    /// A hub is claimed.
    Claimed,
    /// A hub was closed.
    Released {
        /// Until when that is remembered.
        until: Moment,
    },
}

// A home costs its range's owner this much, and the key.
const _: () = assert!(size_of::<Entry>() <= 64, "an entry is small");

impl EntryState {
    const fn until(self) -> Moment {
        match self {
            Self::Released { until } => until,
            Self::Registered | Self::Claimed => Moment::NEVER,
        }
    }
}

impl Entry {
    /// Its home, unless it has none any more.
    pub(super) const fn home(&self) -> Option<Place> {
        match self.state {
            EntryState::Registered | EntryState::Claimed => Some(self.place),
            EntryState::Released { .. } => None,
        }
    }

    fn item(&self, key: Key, now: Moment) -> Item {
        let state = match self.state {
            EntryState::Registered => ItemState::Registered,
            EntryState::Claimed => ItemState::Claimed,
            EntryState::Released { until } => ItemState::Released { left_ms: left_ms(until, now) },
        };
        Item { key, place: self.place, attempt: self.attempt, state }
    }
}

/// Milliseconds until `until`.
pub(super) fn left_ms(until: Moment, now: Moment) -> u64 {
    u64::try_from(until.since(now).as_millis()).unwrap_or(u64::MAX)
}

/// When an entry with so much left expires: never later than a fresh one would.
pub(super) fn until(now: Moment, left_ms: u64) -> Moment {
    now + TOMBSTONE_TIME.min(core::time::Duration::from_millis(left_ms))
}

/// The entries of one shard's ranges.
#[derive(Debug, Default)]
pub(super) struct Entries {
    map: BTreeMap<Key, Entry>,
    expiry: Schedule<Key>,
    /// While entries of a silo that left are searched: the next key to look at, and when.
    sweep: Option<(Key, Moment)>,
}

impl Entries {
    /// What is known of an address.
    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        self.map.get(&key)
    }

    /// Writes an entry. A tombstone beyond the bound pushes out the earliest, which is returned.
    pub(super) fn put(&mut self, key: Key, entry: Entry) -> Option<Key> {
        self.remove(key);
        let mut due = Moment::NEVER;
        self.expiry.set(key, &mut due, entry.state.until());
        self.map.insert(key, entry);
        let earliest = self.expiry.first().filter(|_| self.expiry.len() > TOMBSTONES_MAX);
        if let Some(key) = earliest {
            self.remove(key);
        }
        earliest
    }

    /// Forgets an entry.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(entry) = self.map.remove(&key) {
            self.expiry.clear(key, entry.state.until());
        }
    }

    /// Forgets all entries of a span.
    pub(super) fn remove_span(&mut self, span: Span) {
        let keys: Vec<_> = self.map.range(span.keys()).map(|(key, _)| *key).collect();
        for key in keys {
            self.remove(key);
        }
    }

    /// Entries of a span, behind a key.
    pub(super) fn items(
        &self,
        span: Span,
        after: Option<Key>,
        now: Moment,
    ) -> impl Iterator<Item = Item> + '_ {
        let keys = span.keys();
        let first = match after {
            Some(after) if after >= *keys.start() => Bound::Excluded(after.min(*keys.end())),
            Some(_) | None => Bound::Included(*keys.start()),
        };
        let range = self.map.range((first, Bound::Included(*keys.end())));
        range.map(move |(key, entry)| entry.item(*key, now))
    }

    /// A silo left: its entries are searched from now on.
    pub(super) fn begin_sweep(&mut self, now: Moment) {
        let first = self.map.keys().next();
        self.sweep = first.map(|first| (*first, now + DIRECTORY_SWEEP_PERIOD));
    }

    /// Looks at some entries, and forgets those whose home is `lost`.
    pub(super) fn sweep(&mut self, now: Moment, lost: impl Fn(Key, Place) -> bool) {
        let Some((first, _)) = self.sweep.filter(|(_, at)| *at <= now) else {
            return;
        };
        let seen: Vec<_> = self.map.range(first..).take(DIRECTORY_SWEEP_MAX + 1).collect();
        let next = seen.get(DIRECTORY_SWEEP_MAX);
        self.sweep = next.map(|(key, _)| (**key, now + DIRECTORY_SWEEP_PERIOD));
        let lost: Vec<_> = seen
            .iter()
            .take(DIRECTORY_SWEEP_MAX)
            .filter(|(key, entry)| entry.home().is_some_and(|place| lost(**key, place)))
            .map(|(key, _)| **key)
            .collect();
        for key in lost {
            self.remove(key);
        }
    }

    /// Forgets tombstones whose time has come.
    pub(super) fn expire(&mut self, now: Moment) {
        while let Some(key) = self.expiry.due(now) {
            self.remove(key);
        }
    }

    /// When the next tombstone expires, or the search goes on.
    pub(super) fn next_deadline(&self) -> Moment {
        self.expiry.next().min(self.sweep.map_or(Moment::NEVER, |(_, at)| at))
    }

    /// How many addresses have a home here.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// How many tombstones there are.
    pub(super) fn tombstone_count(&self) -> usize {
        self.expiry.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::{ActivationNumber, Endpoint, Generation, ShardIndex, ViewNumber};

    fn entry(silo: u64, state: EntryState) -> Entry {
        let endpoint = Endpoint { silo: Generation(silo), shard: ShardIndex(0) };
        let number = ActivationNumber { view: ViewNumber(1), counter: 1 };
        Entry { place: Place { endpoint, number }, attempt: 1, state }
    }

    #[test]
    fn tombstones_are_bounded_and_the_earliest_makes_room() {
        let mut entries = Entries::default();
        for index in 0..TOMBSTONES_MAX as u64 {
            let until = Moment::from_nanos(1 + index);
            let forgotten =
                entries.put(Key(index.into()), entry(1, EntryState::Released { until }));
            assert_eq!(forgotten, None);
        }
        let until = Moment::from_nanos(u64::MAX - 1);
        let one_more = entry(1, EntryState::Released { until });
        assert_eq!(entries.put(Key(u128::MAX), one_more), Some(Key(0)));
        assert_eq!(entries.tombstone_count(), TOMBSTONES_MAX);
        entries.expire(until);
        assert_eq!((entries.len(), entries.tombstone_count()), (0, 0));
    }

    #[test]
    fn a_sweep_goes_on_until_it_has_seen_everything() {
        let mut entries = Entries::default();
        let count = 2 * DIRECTORY_SWEEP_MAX as u128 + 1;
        for key in 0..count {
            let silo = 1 + u64::from(key % 2 == 0);
            entries.put(Key(key), entry(silo, EntryState::Registered));
        }
        let mut now = Moment::ZERO;
        entries.begin_sweep(now);
        let mut goes = 0;
        while entries.next_deadline() != Moment::NEVER {
            now = entries.next_deadline();
            entries.sweep(now, |_, place| place.endpoint.silo == Generation(2));
            goes += 1;
        }
        assert_eq!(goes, 3, "it is paced");
        assert_eq!(entries.len() as u128, count / 2);
    }

    #[test]
    fn items_begin_behind_the_last_key_told() {
        let mut entries = Entries::default();
        let keys: Vec<_> = (1..=4).map(|position| Key(position << 64)).collect();
        for key in &keys {
            entries.put(*key, entry(1, EntryState::Registered));
        }
        let span = Span { first: 2, last: 3 };
        let told = |after| {
            entries.items(span, after, Moment::ZERO).map(|item| item.key).collect::<Vec<_>>()
        };
        assert_eq!(told(None), keys[1..3]);
        assert_eq!(told(Some(keys[0])), keys[1..3]);
        assert_eq!(told(Some(keys[1])), keys[2..3]);
        assert_eq!(told(Some(keys[3])), vec![]);
    }
}
