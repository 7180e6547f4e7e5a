//! A bucket: a few streams behind one sequence, which one thread writes and any thread reads.
//!
//! The protocol is that of a sequence lock, as Hans Boehm gives it for the memory model of C++
//! ("Can Seqlocks Get Along With Programming Language Memory Models?", MSPC 2012): the words are
//! atomics, so that a torn read is a value to throw away and not undefined behaviour.
//! - The writer makes the sequence odd, fences, stores the words, makes the sequence even.
//! - A reader loads the sequence, the words, fences, and loads the sequence again: if the words
//!   held anything of a later write, it sees that write's odd sequence, or a later one.
//!
//! Invariants: a reader gets an entry as it was put, or [`Found::Torn`] (loom-tested below); it
//! stores nothing, so that readers do not slow one another down; a stream is in one slot at most; a
//! newcomer takes a free slot, or one whose entry nobody may believe, or that of the oldest set.
//! Bounds: [`SLOTS`] streams, 128 bytes. Deliberately absent: waiting, which is the caller's to
//! bound, and a second writer: whoever may call [`Bucket::put`] and [`Bucket::forget`] is one.

use super::model::{AtomicU64, Ordering, fence, load_own};
use super::{Owned, SetVersion};

/// Streams of one bucket: with the sequence they fill 128 bytes, two lines that are fetched as one.
/// In the models one: the slots differ in nothing, and each adds interleavings.
pub(super) const SLOTS: usize = if cfg!(loom) { 1 } else { 5 };

/// What a bucket holds of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Subscribers that live.
    pub(super) live: u32,
    /// Whether a view can end one of them.
    pub(super) owned: Owned,
    /// The losses up to the view that `live` was counted in.
    pub(super) losses: Losses,
    /// The version of the set that was counted.
    pub(super) set: SetVersion,
}

impl Entry {
    /// Whether the count still holds after `losses`.
    pub(super) fn holds(self, losses: Losses) -> bool {
        match self.owned {
            Owned::Yes => self.losses == losses,
            Owned::No => true,
        }
    }

    fn packed(self) -> u64 {
        let owned = match self.owned {
            Owned::Yes => OWNED,
            Owned::No => 0,
        };
        owned | self.losses.0 << Losses::SHIFT | u64::from(self.live)
    }

    #[inline]
    fn unpacked(packed: u64, set: SetVersion) -> Self {
        let live = u32::try_from(packed & u64::from(u32::MAX)).expect("32 bits are kept");
        let owned = if packed & OWNED == 0 { Owned::No } else { Owned::Yes };
        let losses = Losses(packed >> Losses::SHIFT);
        Self { live, owned, losses, set }
    }
}

/// Of a packed entry: the lower 32 bits count, then this, then the losses.
const OWNED: u64 = 1 << 32;

/// How many views have lost somebody, as far as it fits an entry. It wraps: an entry that sits
/// unwritten through 2^31 such views is believed, after 68 years of one a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Losses(pub(super) u64);

impl Losses {
    const SHIFT: u32 = 33;

    /// One more.
    pub(super) const fn next(self) -> Self {
        Self((self.0 + 1) & (u64::MAX >> Self::SHIFT))
    }
}

/// The name of no stream.
pub(super) const FREE: u64 = 0;

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The stream's entry, as it was put.
    Entry(Entry),
    /// The stream is not here, or came or went during the look.
    Nothing,
    /// The writer was here during the look.
    Torn,
}

/// What became of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    /// It is in.
    Written,
    /// It is in, and another stream's entry that held is not.
    Evicted,
    /// The stream's entry is of a later set, and stays.
    Older,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Odd while the writer is at a slot.
    sequence: AtomicU64,
    slots: [Slot; SLOTS],
}

/// Free if its stream is [`FREE`].
#[derive(Debug, Default)]
struct Slot {
    stream: AtomicU64,
    packed: AtomicU64,
    set: AtomicU64,
}

impl Slot {
    /// A reader's look at the words, of whatever writes: to be believed if the sequence says so.
    #[inline]
    fn seen(&self) -> Entry {
        let set = SetVersion(self.set.load(Ordering::Relaxed));
        Entry::unpacked(self.packed.load(Ordering::Relaxed), set)
    }

    /// The writer's look at what it wrote.
    fn own(&self) -> Entry {
        Entry::unpacked(load_own(&self.packed), SetVersion(load_own(&self.set)))
    }
}

impl Bucket {
    /// What is held of `stream`. From any thread; a fixed number of loads.
    #[inline]
    pub(super) fn look(&self, stream: u64) -> Found {
        let sequence = self.sequence.load(Ordering::Acquire);
        if sequence % 2 == 1 {
            return Found::Torn;
        }
        let Some(slot) = self.slot_of(stream) else { return Found::Nothing };
        let entry = slot.seen();
        // Orders the words before the second look at the sequence, against the fence in `write`.
        fence(Ordering::Acquire);
        if self.sequence.load(Ordering::Relaxed) == sequence {
            Found::Entry(entry)
        } else {
            Found::Torn
        }
    }

    /// A reader's look for the slot. It compares all names: which one it is is nothing that a
    /// processor can foresee, and to be wrong about it costs more than the other names.
    #[inline]
    fn slot_of(&self, stream: u64) -> Option<&Slot> {
        let is_of = |slot: &Slot| u32::from(slot.stream.load(Ordering::Relaxed) == stream);
        let slots = self.slots.iter().rev();
        let hits = slots.fold(0, |hits, slot| hits << 1 | is_of(slot));
        self.slots.get(hits.trailing_zeros() as usize)
    }

    /// Puts `entry`, unless what is held of `stream` is of a later set. Writer only; `losses` are
    /// those of now.
    pub(super) fn put(&self, stream: u64, entry: Entry, losses: Losses) -> Put {
        if let Some((slot, held)) = self.held(stream) {
            if entry.set < held.set {
                return Put::Older;
            }
            self.write(slot, stream, Some(entry));
            return Put::Written;
        }
        let slots = self.slots.iter().map(|slot| (slot, Worth::of(slot, losses)));
        let (slot, worth) = slots.min_by_key(|(_, worth)| *worth).expect("a bucket has slots");
        self.write(slot, stream, Some(entry));
        match worth {
            Worth::Free | Worth::Lost => Put::Written,
            Worth::Holds(_) => Put::Evicted,
        }
    }

    /// Frees the slot of `stream`. Writer only.
    pub(super) fn forget(&self, stream: u64) {
        if let Some((slot, _)) = self.held(stream) {
            self.write(slot, FREE, None);
        }
    }

    /// Frees every slot. Writer only.
    pub(super) fn forget_all(&self) {
        let taken = self.slots.iter().filter(|slot| load_own(&slot.stream) != FREE);
        taken.for_each(|slot| self.write(slot, FREE, None));
    }

    fn held(&self, stream: u64) -> Option<(&Slot, Entry)> {
        let slot = self.slots.iter().find(|slot| load_own(&slot.stream) == stream)?;
        Some((slot, slot.own()))
    }

    fn write(&self, slot: &Slot, stream: u64, entry: Option<Entry>) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        assert!(sequence.is_multiple_of(2), "one writer: sequence {sequence} is odd");
        // Orders the odd sequence before the words, against the fence in `look`.
        fence(Ordering::Release);
        slot.stream.store(stream, Ordering::Relaxed);
        slot.packed.store(entry.map_or(0, Entry::packed), Ordering::Relaxed);
        slot.set.store(entry.map_or(0, |entry| entry.set.0), Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// As if the writer had been stopped in the middle of a write.
    #[cfg(all(test, loom))]
    pub(super) fn stop_in_a_write(&self) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a slot is worth to who needs one, least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Worth {
    /// It is free.
    Free,
    /// Nobody believes its entry any more.
    Lost,
    /// It tells of this set.
    Holds(SetVersion),
}

impl Worth {
    fn of(slot: &Slot, losses: Losses) -> Self {
        let entry = slot.own();
        match load_own(&slot.stream) {
            FREE => Self::Free,
            _ if entry.holds(losses) => Self::Holds(entry.set),
            _ => Self::Lost,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_unpacked_as_it_was_packed() {
        let largest = Losses(u64::MAX >> Losses::SHIFT);
        assert_eq!(largest.next(), Losses(0));
        for live in [0, 1, u32::MAX] {
            for owned in [Owned::Yes, Owned::No] {
                for losses in [Losses(0), Losses(1), largest] {
                    let entry = Entry { live, owned, losses, set: SetVersion(u64::MAX) };
                    assert_eq!(Entry::unpacked(entry.packed(), entry.set), entry);
                }
            }
        }
    }

    #[test]
    fn a_full_bucket_forgets_what_is_lost_and_then_the_oldest_set() {
        let (bucket, now) = (Bucket::default(), Losses(2));
        let entry = |owned, losses, set| Entry { live: 1, owned, losses, set: SetVersion(set) };
        bucket.put(1, entry(Owned::No, Losses(1), 10), now);
        bucket.put(2, entry(Owned::Yes, now, 20), now);
        bucket.put(3, entry(Owned::Yes, Losses(1), 30), now);
        bucket.put(4, entry(Owned::No, now, 40), now);
        assert_eq!(bucket.put(5, entry(Owned::No, now, 50), now), Put::Written);
        let newcomer = entry(Owned::No, now, 60);
        assert_eq!(bucket.put(6, newcomer, now), Put::Written);
        assert_eq!(bucket.look(3), Found::Nothing, "its losses are of before");
        assert_eq!(bucket.put(7, newcomer, now), Put::Evicted);
        assert_eq!(bucket.look(1), Found::Nothing, "its set is the oldest");
        for stream in [2, 4, 5, 6, 7] {
            assert!(matches!(bucket.look(stream), Found::Entry(_)), "stream {stream}");
        }
    }
}

/// `cargo xtask test` runs these; by hand: `RUSTFLAGS="--cfg loom" cargo test --target-dir
/// target/loom -p siloring-pubsub --release --lib loom_tests`.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::check::model::explore;

    fn of(number: u32) -> Entry {
        let (losses, set) = (Losses(u64::from(number)), SetVersion(u64::from(number)));
        Entry { live: number, owned: Owned::No, losses, set }
    }

    /// `read`, while `write` is under way in a bucket that holds `of(1)` of stream 1.
    fn beside(write: fn(&Bucket), read: fn(&Bucket)) {
        explore(move || {
            let bucket = Arc::new(Bucket::default());
            bucket.put(1, of(1), Losses(0));
            let writing = Arc::clone(&bucket);
            let thread = loom::thread::spawn(move || write(&writing));
            read(&bucket);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_reader_gets_one_write_whole_and_none_of_before_again() {
        let write = |bucket: &Bucket| assert_eq!(bucket.put(1, of(2), Losses(0)), Put::Written);
        beside(write, |bucket| {
            let mut last = 0;
            for found in [bucket.look(1), bucket.look(1)] {
                match found {
                    Found::Entry(entry) => {
                        assert_eq!(entry, of(entry.live), "a mixture");
                        assert!(entry.live >= last, "older than the one before");
                        last = entry.live;
                    }
                    Found::Nothing => panic!("the stream was there all the time"),
                    Found::Torn => {}
                }
            }
        });
    }

    #[test]
    fn a_reader_never_gets_the_count_of_another_stream() {
        let write = |bucket: &Bucket| {
            bucket.forget(1);
            bucket.put(2, of(2), Losses(0));
        };
        beside(write, |bucket| match bucket.look(1) {
            Found::Entry(entry) => assert_eq!(entry, of(1), "of stream 2"),
            Found::Nothing | Found::Torn => {}
        });
    }
}
