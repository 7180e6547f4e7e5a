//! A table of connections: a number that is never used again names each, and finds its slot
//! directly.

use siloring_runtime::mail::ConnId;

/// Bits of the slot; the rest counts.
const SLOT_BITS: u32 = 20;
const SLOTS_MAX: usize = 1 << SLOT_BITS;

/// Values in slots, each under a number of its own.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<(ConnId, T)>>,
    free: Vec<usize>,
    counter: u64,
}

impl<T> Slots<T> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), counter: 0 }
    }

    /// Puts the value that `make` builds from its number.
    ///
    /// # Panics
    /// At 2^20 values: more than the descriptors of any process.
    pub(crate) fn insert(&mut self, make: impl FnOnce(ConnId) -> T) -> ConnId {
        let slot = self.free.pop().unwrap_or(self.entries.len());
        assert!(slot < SLOTS_MAX, "a process has fewer descriptors than the table slots");
        self.counter += 1;
        let id = ConnId((self.counter << SLOT_BITS) | slot as u64);
        let entry = Some((id, make(id)));
        if slot == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries[slot] = entry;
        }
        id
    }

    /// The value under a number, if it is still there.
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        match self.entries.get_mut(slot_of(id))? {
            Some((found, value)) if *found == id => Some(value),
            Some(_) | None => None,
        }
    }

    /// Takes the value under a number out, if it is still there.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<T> {
        self.get_mut(id)?;
        let (_, value) = self.entries[slot_of(id)].take()?;
        self.free.push(slot_of(id));
        Some(value)
    }

    /// The numbers of all values.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.entries.iter().flatten().map(|(id, _)| *id)
    }

    /// How many values there are.
    pub(crate) const fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "SLOT_BITS bits fit a usize")]
const fn slot_of(id: ConnId) -> usize {
    id.0 as usize & (SLOTS_MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_used_again_though_its_slot_is() {
        let mut slots = Slots::new();
        let first = slots.insert(|_| 'a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert(|_| 'b');
        assert_eq!(slot_of(first), slot_of(second));
        assert_ne!(first, second);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
        assert_eq!((slots.len(), slots.ids().count()), (1, 1));
    }
}
