//! Whether anybody subscribes to a stream, asked before each publish: a table that any thread of
//! the silo reads without a call, a lock or an allocation.
//!
//! Contract:
//! - *Inputs.* Each shard's [`CheckWriter`] is told what the owners of streams say
//!   ([`CheckWriter::put`], [`CheckWriter::forget`]) and each view ([`CheckWriter::view`]). It
//!   writes the partition of the streams that hash to its shard ([`ShardIndex::of`]), alone.
//! - *Output.* [`CheckCache::check`], from any thread.
//! - *An answer is of one moment.* [`Liveness::Live`] and [`Liveness::None`] are what was put for
//!   this stream, whole, and were true in the view that the answer names: never another stream's,
//!   never a part of two puts, never a count of a view judged in another one.
//! - *What a view ended is not believed.* Once [`CheckWriter::view`] was told that somebody is
//!   gone, no entry of before with owned rows is answered any more. That is two stores and no walk:
//!   entries carry the number of losses that they know of.
//! - *It never refuses and never waits.* [`Liveness::Unknown`] is always a permitted answer, and
//!   the one to fail open on: the stream is not cached, a view ended its entry, its bucket was full
//!   and others were newer, or its writer was there in each of [`TRIES`] tries (also if it was
//!   stopped in the middle of a write). A cached `None` is a hint too: only the stream's owner says
//!   that there is no subscriber.
//!
//! Layout: a partition is an array of buckets of 128 bytes, each a sequence and five slots of three
//! words: the half of the stream's 128-bit hash that chooses no bucket, a packed count (32 bits of
//! count, owned, 31 bits of losses), and the set's version. Two streams are taken for one
//! only if they share 64 bits of hash and the bucket. There is a bucket for each
//! [`STREAMS_PER_BUCKET`] streams of the capacity, [`BYTES_PER_STREAM`] bytes a stream; a bucket
//! with more than five forgets the one of the oldest set. Beside them a partition has its view and
//! its losses, on lines of their own. See `bucket.rs` for the protocol between the threads.
//!
//! Deliberately absent: the set itself, who reads it from the store and when, events (who fails
//! open knows of what), and time: an entry ages by views and versions, not by a clock.
//!
//! [`ShardIndex::of`]: siloring_core::ShardIndex::of

mod bucket;
mod cache;

use siloring_core::ViewNumber;

pub use cache::{
    BYTES_PER_STREAM, CAPACITY_MAX, CheckCache, CheckWriter, STREAMS_PER_BUCKET, TRIES,
};

pub use siloring_core::ports::registry::SetVersion;

/// Whether a stream has a live subscriber, as far as this silo knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liveness {
    /// So many.
    Live(u32),
    /// None is known.
    None {
        /// The view in which the owners of the set's rows were judged.
        view: ViewNumber,
        /// The set.
        set: SetVersion,
    },
    /// Nothing is known: assume that there is one.
    Unknown,
}

/// Whether a set has rows that live and die with a silo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owned {
    /// Some: the count holds until a view in which somebody is gone.
    Yes,
    /// None: views do not change the count.
    No,
}

/// Whether a silo of the view before is in a view no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// All are there, and perhaps more.
    Nobody,
    /// One is Dead or absent: what it owned is not counted any more.
    Somebody,
}

#[cfg(not(loom))]
mod model {
    pub(super) use core::hint::spin_loop;
    pub(super) use core::sync::atomic::{AtomicU64, Ordering, fence};

    /// What the calling thread, the only one that stores to `word`, stored last.
    pub(super) fn load_own(word: &AtomicU64) -> u64 {
        word.load(Ordering::Relaxed)
    }
}

/// Loom looks for a store's race with the last access before it only: the writer's own load would
/// hide the readers'. An addition of nothing is an access whose own races it looks for.
#[cfg(loom)]
mod model {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};

    pub(super) fn load_own(word: &AtomicU64) -> u64 {
        word.fetch_add(0, Ordering::Relaxed)
    }

    /// Three preemptions reach every ordering that the tests tell apart; more take minutes.
    #[cfg(test)]
    pub(super) fn explore(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }
}
