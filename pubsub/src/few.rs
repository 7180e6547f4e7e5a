//! A map for few entries: what a stream keeps of its consumers and its publishers.
//!
//! Most streams have one consumer and one publisher, and there are many streams. A tree's first
//! node has room for eleven entries; this map begins with room for one.
//!
//! Contract: sorted by key; a search takes logarithmic time, and adding or taking out at either end
//! constant time. In the middle the shorter side is moved: values that are not small are boxed.
//! Room that is not small is given back when the last entry goes.

use core::borrow::Borrow;
use core::cmp::Ordering;
use std::collections::VecDeque;

/// So much room is kept without entries: a small one that comes and goes allocates nothing.
const ROOM_KEPT_BYTES: usize = 64;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Few<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Few<K, V> {
    pub(crate) const fn new() -> Self {
        Self(VecDeque::new())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.0.front().map(|(key, value)| (key, value))
    }

    pub(crate) fn pop_first(&mut self) -> Option<(K, V)> {
        let first = self.0.pop_front();
        self.give_back();
        first
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
        self.give_back();
    }

    fn give_back(&mut self) {
        let room = self.0.capacity() * size_of::<(K, V)>();
        if self.0.is_empty() && room > ROOM_KEPT_BYTES {
            self.0 = VecDeque::new();
        }
    }
}

impl<K: Ord, V> Few<K, V> {
    /// Where the key is, or belongs.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // Whoever asks most often has just come.
        match self.0.back().map(|(last, _)| last.borrow().cmp(key)) {
            None => Err(0),
            Some(Ordering::Less) => Err(self.0.len()),
            Some(Ordering::Equal) => Ok(self.0.len() - 1),
            Some(Ordering::Greater) => {
                self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
            }
        }
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Puts a value in; gives back the one that it replaces.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(core::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                if self.0.capacity() == 0 {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// The value of the key; a new one if there is none.
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = match self.find(&key) {
            Ok(at) => at,
            Err(at) => {
                self.insert(key, V::default());
                at
            }
        };
        &mut self.0[at].1
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        let removed = self.0.remove(at).map(|(_, value)| value);
        self.give_back();
        removed
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Few<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut few = Self::new();
        for (key, value) in entries {
            few.insert(key, value);
        }
        few
    }
}

/// Adds to the end of a queue that mostly holds one value, or none.
#[inline]
pub(crate) fn push_back<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.capacity() == 0 {
        queue.reserve_exact(1);
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_entry_takes_the_room_of_one_and_a_burst_leaves_none() {
        let mut few = Few::new();
        few.insert(1, 1);
        assert_eq!(few.0.capacity(), 1);
        few.extend_to(1_000);
        while few.pop_first().is_some() {}
        assert_eq!(few.0.capacity(), 0);
        few.insert(1, 1);
        few.remove(&1);
        assert_eq!(few.0.capacity(), 1, "a small one that comes and goes allocates once");
        let mut large = Few::new();
        large.insert(1, [0_u8; ROOM_KEPT_BYTES]);
        large.remove(&1);
        assert_eq!(large.0.capacity(), 0);
    }

    impl Few<u32, u32> {
        fn extend_to(&mut self, count: u32) {
            for key in 0..count {
                self.insert(key, key);
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u32),
        GetOrDefault(u8),
        Remove(u8),
        PopFirst,
        RetainEven,
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..24_u8;
        prop_oneof![
            4 => (key.clone(), any::<u32>()).prop_map(|(key, value)| Step::Insert(key, value)),
            1 => key.clone().prop_map(Step::GetOrDefault),
            2 => key.prop_map(Step::Remove),
            1 => Just(Step::PopFirst),
            1 => Just(Step::RetainEven),
        ]
    }

    proptest! {
        /// Method: any steps, beside a tree.
        #[test]
        fn it_answers_as_a_tree_would(steps in prop::collection::vec(step(), 0..80)) {
            let (mut few, mut tree) = (Few::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        prop_assert_eq!(few.insert(key, value), tree.insert(key, value));
                    }
                    Step::GetOrDefault(key) => {
                        prop_assert_eq!(few.get_or_default(key), tree.entry(key).or_default());
                    }
                    Step::Remove(key) => prop_assert_eq!(few.remove(&key), tree.remove(&key)),
                    Step::PopFirst => prop_assert_eq!(few.pop_first(), tree.pop_first()),
                    Step::RetainEven => {
                        few.retain(|key, _| key % 2 == 0);
                        tree.retain(|key, _| key % 2 == 0);
                    }
                }
                prop_assert!(few.iter().eq(tree.iter()));
                prop_assert_eq!((few.first(), few.len()), (tree.first_key_value(), tree.len()));
                for key in 0..24 {
                    prop_assert_eq!(few.get(&key), tree.get(&key));
                }
            }
        }
    }
}
