//! Deadlines of many things, earliest first.

use std::collections::BTreeSet;

use siloring_core::Moment;

/// Deadlines by thing. Each thing keeps its own deadline, so that it can be taken out again;
/// [`Moment::NEVER`] stands for none.
#[derive(Debug)]
pub(super) struct Schedule<K>(BTreeSet<(Moment, K)>);

impl<K> Default for Schedule<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Copy> Schedule<K> {
    /// Moves the deadline of `key` from `due` to `at`.
    pub(super) fn set(&mut self, key: K, due: &mut Moment, at: Moment) {
        self.clear(key, *due);
        if at != Moment::NEVER {
            self.0.insert((at, key));
        }
        *due = at;
    }

    /// Takes out the deadline of `key`, which was `due`.
    pub(super) fn clear(&mut self, key: K, due: Moment) {
        if due != Moment::NEVER {
            let was_there = self.0.remove(&(due, key));
            assert!(was_there, "a deadline that is kept is in the schedule");
        }
    }

    /// Something whose deadline has come; it stays in until it is moved.
    pub(super) fn due(&self, now: Moment) -> Option<K> {
        self.0.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// The thing with the earliest deadline.
    pub(super) fn first(&self) -> Option<K> {
        self.0.first().map(|(_, key)| *key)
    }

    /// Everything that has a deadline, in order of keys.
    pub(super) fn keys(&self) -> Vec<K> {
        let mut keys: Vec<_> = self.0.iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Moment {
        self.0.first().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// How many things have a deadline.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
