//! A bounded queue in memory: many threads push, one pops.
//!
//! Values stand in numbered slots of a ring. A slot's stamp says for which number it is free, or
//! whose value it holds. Who pushes takes a number, writes its slot and stamps it; who pops looks
//! at the stamp of the slot that is next and at nothing else. So one value is one hand-over between
//! two cores, and the line of the next number stays with those who push: to look for values by that
//! number would fetch it away from them and back for each value.
//!
//! Contract:
//! - *One owner a slot.* Who took its number, until it is stamped; then who pops, until it is free.
//! - *In order of the numbers.* A value whose push is not finished holds up those behind it.
//! - *Bounded.* A full queue gives the value back.
//!
//! Deliberately absent: waiting, pops by several threads at once, and dropping what is left.

#![expect(unsafe_code, reason = "a slot has one owner at a time, which no type can say")]

use core::mem::MaybeUninit;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::model::{AtomicU64, Ordering, UnsafeCell};

/// A queue for `capacity` values, and the one way out of it.
///
/// # Panics
/// If `capacity` is not a power of two.
pub(super) fn queue<T>(capacity: usize) -> (Arc<Queue<T>>, Popper<T>) {
    let queue = Arc::new(Queue::new(capacity));
    (Arc::clone(&queue), Popper { queue })
}

/// The side that any number of threads push on.
pub(super) struct Queue<T> {
    /// The number of the next push.
    tail: CachePadded<AtomicU64>,
    /// The number of the next pop: stored by who pops.
    head: CachePadded<AtomicU64>,
    slots: Box<[Slot<T>]>,
}

/// On lines of its own: a neighbour's push takes none of them away from who waits for this one.
#[repr(align(64))]
struct Slot<T> {
    /// Twice the number that the slot is free for, or one more once it holds that number's value.
    stamp: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a value is reached by one thread at a time, as the stamps say: it is moved through.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T> Queue<T> {
    fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two(), "a ring of {capacity} slots");
        let slot = |number| Slot {
            stamp: AtomicU64::new(free_for(number)),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let number = || CachePadded::new(AtomicU64::new(0));
        Self { tail: number(), head: number(), slots: (0..capacity as u64).map(slot).collect() }
    }

    /// Puts a value behind all others, or gives it back if there is no room.
    pub(super) fn push(&self, value: T) -> Result<(), T> {
        let mut number = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(number);
            let stamp = slot.stamp.load(Ordering::Acquire);
            if stamp < free_for(number) {
                return Err(value);
            }
            if stamp > free_for(number) {
                number = self.tail.load(Ordering::Relaxed);
                continue;
            }
            let relaxed = Ordering::Relaxed;
            match self.tail.compare_exchange_weak(number, number + 1, relaxed, relaxed) {
                Ok(_) => {
                    slot.value.with_mut(|place| {
                        // SAFETY: the number is taken by this thread and the slot is free for it:
                        // nobody else touches it until it is stamped.
                        unsafe { (*place).write(value) };
                    });
                    slot.stamp.store(held_by(number), Ordering::Release);
                    return Ok(());
                }
                Err(later) => number = later,
            }
        }
    }

    /// How many values there are, those whose push is not finished included; already past when
    /// read.
    pub(super) fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        let count = self.tail.load(Ordering::Relaxed).saturating_sub(head);
        usize::try_from(count).map_or(self.slots.len(), |count| count.min(self.slots.len()))
    }

    #[expect(clippy::cast_possible_truncation, reason = "what the mask leaves is below a usize")]
    fn slot(&self, number: u64) -> &Slot<T> {
        &self.slots[(number & (self.slots.len() as u64 - 1)) as usize]
    }
}

/// The side that one thread at a time pops on: there is one of a queue.
pub(super) struct Popper<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Popper<T> {
    /// Takes the oldest value, if its push is finished.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        let number = self.queue.head.load(Ordering::Relaxed);
        let slot = self.queue.slot(number);
        if slot.stamp.load(Ordering::Acquire) != held_by(number) {
            return None;
        }
        let value = slot.value.with(|place| {
            // SAFETY: the stamp says that the value is written, and it is read once: this is the
            // one popper, and its next pop is of the next number.
            unsafe { place.cast::<T>().read() }
        });
        let turn = self.queue.slots.len() as u64;
        slot.stamp.store(free_for(number + turn), Ordering::Release);
        self.queue.head.store(number + 1, Ordering::Relaxed);
        Some(value)
    }

    /// Whether a pop would find nothing.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let number = self.queue.head.load(Ordering::Relaxed);
        self.queue.slot(number).stamp.load(Ordering::Relaxed) != held_by(number)
    }
}

/// The stamp of a slot that may take the value of that number.
const fn free_for(number: u64) -> u64 {
    2 * number
}

/// The stamp of a slot that holds the value of that number.
const fn held_by(number: u64) -> u64 {
    2 * number + 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn values_come_in_order_over_many_turns_of_the_ring() {
        for capacity in [1, 2, 8] {
            let (queue, mut popper) = queue(capacity);
            for round in 0..10 {
                for value in 0..capacity {
                    assert_eq!(queue.push(Box::new(round + value)), Ok(()));
                }
                assert_eq!(queue.push(Box::new(0)), Err(Box::new(0)), "full");
                assert_eq!(queue.len(), capacity);
                for value in 0..capacity {
                    assert!(!popper.is_empty());
                    assert_eq!(popper.pop(), Some(Box::new(round + value)));
                }
                assert!(popper.is_empty());
                assert_eq!((popper.pop(), queue.len()), (None, 0));
            }
        }
    }

    #[test]
    fn what_many_threads_push_is_popped_once_each_and_in_the_order_of_each() {
        const EACH: usize = if cfg!(miri) { 50 } else { 20_000 };
        let (queue, mut popper) = queue(4);
        let push_all = |thread: usize| {
            for count in 0..EACH {
                let mut value = Box::new((thread, count));
                while let Err(back) = queue.push(value) {
                    value = back;
                    thread::yield_now();
                }
            }
        };
        thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || push_all(thread));
            }
            let mut next = [0; 3];
            while next != [EACH; 3] {
                let Some(value) = popper.pop() else {
                    thread::yield_now();
                    continue;
                };
                let (thread, count) = *value;
                assert_eq!(count, next[thread], "of thread {thread}");
                next[thread] += 1;
            }
        });
        assert_eq!(popper.pop(), None);
    }
}

/// Seen to fail with a relaxed store of either stamp.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn what_two_threads_push_into_a_full_ring_is_popped_once_or_given_back() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let (queue, mut popper) = queue(2);
            let pushing = || {
                let queue = Arc::clone(&queue);
                loom::thread::spawn(move || {
                    let pushes = [queue.push(Box::new(1)), queue.push(Box::new(1))];
                    pushes.iter().filter(|push| push.is_ok()).count()
                })
            };
            let threads = [pushing(), pushing()];
            let mut popped = 0;
            for _ in 0..2 {
                popped += popper.pop().map_or(0, |value| *value);
            }
            let pushed: usize = threads.map(|thread| thread.join().unwrap()).iter().sum();
            while let Some(value) = popper.pop() {
                popped += *value;
            }
            assert!(pushed >= 2, "there was room for two");
            assert_eq!(popped, pushed);
        });
    }

    #[test]
    fn a_slot_is_written_anew_only_after_its_value_was_taken() {
        loom::model(|| {
            let (queue, mut popper) = queue(1);
            queue.push(Box::new(1)).unwrap();
            let pushing = Arc::clone(&queue);
            let thread = loom::thread::spawn(move || pushing.push(Box::new(2)));
            assert_eq!(popper.pop(), Some(Box::new(1)));
            let second = thread.join().unwrap().ok().and_then(|()| popper.pop());
            assert!(second.is_none_or(|value| *value == 2));
        });
    }
}
