//! The event queue: ordered by time, then by the order of scheduling.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use siloring_core::Moment;

/// Events to come. Two events of one moment happen in the order in which they were scheduled.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Moment,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(super) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0 }
    }

    pub(super) fn push(&mut self, at: Moment, event: E) {
        self.sequence += 1;
        self.heap.push(Entry { at, sequence: self.sequence, event });
    }

    /// The next event, if it happens at or before `limit`.
    pub(super) fn pop_until(&mut self, limit: Moment) -> Option<(Moment, E)> {
        if self.heap.peek()?.at > limit {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed: the heap yields its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_moment_keep_their_order() {
        let mut queue = EventQueue::new();
        for (at, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd')] {
            queue.push(Moment::from_nanos(at), name);
        }
        let mut order = Vec::new();
        while let Some((_, name)) = queue.pop_until(Moment::from_nanos(4)) {
            order.push(name);
        }
        assert_eq!(order, ['b', 'd'], "nothing after the limit");
        while let Some((_, name)) = queue.pop_until(Moment::NEVER) {
            order.push(name);
        }
        assert_eq!(order, ['b', 'd', 'a', 'c']);
    }
}
