//! A hashed timing wheel with constant-time insertion and cancellation.
//!
//! Source: Varghese and Lauck, "Hashed and hierarchical timing wheels" (1987), scheme 6. Slots of
//! [`LEDGER_TICK`]; an entry further away than one turn of the wheel waits for its round.
//!
//! Contract: [`Wheel::insert`] and [`Wheel::cancel`] are O(1) and allocate only while the slab
//! grows. [`Wheel::expire`] yields each entry at the first tick not before its moment, exactly
//! once, never early, in order of tick. A tick is the bound by which an entry may be late.

use core::fmt;

use siloring_core::limits::LEDGER_TICK;
use siloring_core::time::Moment;
use slab::Slab;

const SLOTS: usize = 4096;
const NONE: u32 = u32::MAX;
#[expect(clippy::cast_possible_truncation, reason = "a tick of 584 years is not meant")]
const TICK_NANOS: u64 = LEDGER_TICK.as_nanos() as u64;

/// Names an entry until it expires or is cancelled; afterwards it names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerKey {
    index: u32,
    reuse: u32,
}

struct Entry<T> {
    reuse: u32,
    tick: u64,
    payload: T,
    before: u32,
    after: u32,
}

/// The wheel; `T` is what an entry stands for.
pub struct Wheel<T> {
    entries: Slab<Entry<T>>,
    heads: Box<[u32; SLOTS]>,
    /// One bit a slot that has entries, so that the next one is found fast.
    occupied: [u64; SLOTS / 64],
    /// Every tick up to and including this one has expired.
    done: u64,
    /// No entry is due before this tick, which is after `done`; nothing need be due then, as it may
    /// have been cancelled. Asked for much more often than anything expires.
    next: u64,
    /// Tells apart the entries that use one place of the slab.
    inserted: u32,
}

impl<T> Wheel<T> {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Moment) -> Self {
        Self {
            entries: Slab::new(),
            heads: Box::new([NONE; SLOTS]),
            occupied: [0; SLOTS / 64],
            done: now.as_nanos() / TICK_NANOS,
            next: u64::MAX,
            inserted: 0,
        }
    }

    /// How many entries wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry that expires at `at`; one that is already due expires at the next tick.
    pub fn insert(&mut self, at: Moment, payload: T) -> TimerKey {
        let tick = at.as_nanos().div_ceil(TICK_NANOS).max(self.done + 1);
        self.next = self.next.min(tick);
        let slot = slot_of(tick);
        let head = self.heads[slot];
        self.inserted = self.inserted.wrapping_add(1);
        let reuse = self.inserted;
        let index = self.entries.insert(Entry { reuse, tick, payload, before: NONE, after: head });
        let index = u32::try_from(index).expect("fewer than 2^32 timers");
        if head != NONE {
            self.entries[head as usize].before = index;
        }
        self.heads[slot] = index;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        TimerKey { index, reuse }
    }

    /// Removes an entry; `None` if it has expired or was cancelled before.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        (entry.reuse == key.reuse).then(|| self.unlink(key.index))
    }

    /// When the next entry is due; never later than its moment by a whole tick.
    #[inline]
    pub fn next_deadline(&self) -> Moment {
        if self.entries.is_empty() {
            return Moment::NEVER;
        }
        Moment::from_nanos(self.next.saturating_mul(TICK_NANOS))
    }

    /// The next tick whose slot has entries.
    fn next_occupied(&self) -> u64 {
        let first = self.done + 1;
        let mut tick = first;
        while tick < first + SLOTS as u64 {
            let slot = slot_of(tick);
            let word = self.occupied[slot / 64] >> (slot % 64);
            if word != 0 {
                return tick + u64::from(word.trailing_zeros());
            }
            tick += 64 - (slot % 64) as u64;
        }
        u64::MAX
    }

    /// Moves all that is due at `now` into `out`.
    pub fn expire(&mut self, now: Moment, out: &mut Vec<T>) {
        let until = now.as_nanos() / TICK_NANOS;
        if until <= self.done {
            return;
        }
        // After a gap of a whole turn each slot is looked at once.
        let first = (self.done + 1).max(until.saturating_sub(SLOTS as u64 - 1));
        self.done = until;
        for tick in first..=until {
            self.expire_slot(slot_of(tick), until, out);
        }
        self.next = self.next_occupied();
    }

    fn expire_slot(&mut self, slot: usize, until: u64, out: &mut Vec<T>) {
        let from = out.len();
        let mut index = self.heads[slot];
        while index != NONE {
            let entry = &self.entries[index as usize];
            let (tick, after) = (entry.tick, entry.after);
            if tick <= until {
                let payload = self.unlink(index);
                out.push(payload);
            }
            index = after;
        }
        // Entries are linked newest first.
        out[from..].reverse();
    }

    fn unlink(&mut self, index: u32) -> T {
        let entry = self.entries.remove(index as usize);
        let slot = slot_of(entry.tick);
        if entry.before == NONE {
            self.heads[slot] = entry.after;
        } else {
            self.entries[entry.before as usize].after = entry.after;
        }
        if entry.after != NONE {
            self.entries[entry.after as usize].before = entry.before;
        }
        if self.heads[slot] == NONE {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        entry.payload
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder below SLOTS")]
const fn slot_of(tick: u64) -> usize {
    (tick % SLOTS as u64) as usize
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Wheel({} waiting)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn an_entry_expires_once_and_never_early() {
        let mut wheel = Wheel::new(ms(0));
        wheel.insert(ms(25), 'a');
        let mut out = Vec::new();
        wheel.expire(ms(24), &mut out);
        assert!(out.is_empty());
        assert_eq!(wheel.next_deadline(), ms(30));
        wheel.expire(ms(30), &mut out);
        wheel.expire(ms(90), &mut out);
        assert_eq!((out, wheel.next_deadline()), (vec!['a'], Moment::NEVER));
    }

    #[test]
    fn a_cancelled_entry_never_expires() {
        let mut wheel = Wheel::new(ms(0));
        let keys = [1, 2, 3].map(|n| wheel.insert(ms(50), n));
        assert_eq!((wheel.cancel(keys[1]), wheel.cancel(keys[1])), (Some(2), None));
        let mut out = Vec::new();
        wheel.expire(ms(60), &mut out);
        assert_eq!(out, [1, 3]);
    }

    #[test]
    fn an_entry_beyond_one_turn_waits_for_its_round() {
        let mut wheel = Wheel::new(ms(0));
        wheel.insert(ms(100_000), ());
        let mut out = Vec::new();
        for step in 1..10_000 {
            wheel.expire(ms(step * 10), &mut out);
        }
        assert!(out.is_empty());
        wheel.expire(ms(100_000), &mut out);
        assert_eq!(out.len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_early_or_later_than_a_tick(
            steps in prop::collection::vec((1u64..9_000, 0u64..200_000, any::<bool>()), 1..60),
        ) {
            let mut wheel = Wheel::new(ms(0));
            let (mut entries, mut expected) = (Vec::new(), 0);
            let (mut now, mut seen, mut out) = (0, 0, Vec::new());
            for (step, after, cancelled) in steps.into_iter().chain([(300_000, 0, true)]) {
                let key = wheel.insert(ms(now + after), entries.len());
                entries.push(now + after);
                if cancelled { wheel.cancel(key); } else { expected += 1; }
                let due = wheel.next_deadline();
                let before = now;
                now += step;
                wheel.expire(ms(now), &mut out);
                for index in out.drain(..) {
                    let at = entries[index];
                    prop_assert!(at <= now, "early");
                    prop_assert!(at + 10 > before, "late");
                    prop_assert!(due <= ms(now), "next_deadline promised nothing");
                    seen += 1;
                }
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
