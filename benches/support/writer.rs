//! Who writes a table of streams while others read it.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use siloring_core::{AddressHash, ShardIndex};
use siloring_pubsub::check::{CheckWriter, Owned, SetVersion};

use crate::support::pin;

/// Puts of all writers together.
const PUTS_PER_SECOND: u32 = 10_000;
/// Between two bursts of puts; each makes up for a late one.
const PAUSE: Duration = Duration::from_millis(1);

/// The writers of all partitions, driven by one thread, and the version that was written last.
#[derive(Debug)]
pub(crate) struct Writers {
    writers: Vec<CheckWriter>,
    set: SetVersion,
}

impl Writers {
    pub(crate) const fn new(writers: Vec<CheckWriter>) -> Self {
        Self { writers, set: SetVersion(0) }
    }

    /// Puts `stream` with a set of its own. One in eight streams has no subscriber.
    pub(crate) fn put(&mut self, stream: AddressHash) {
        self.set.0 += 1;
        let shards = u16::try_from(self.writers.len()).expect("there are few shards");
        let shard = usize::from(ShardIndex::of(stream.0, shards).0);
        let live = u32::from(!stream.0.is_multiple_of(8));
        self.writers[shard].put(stream, live, Owned::Yes, self.set);
    }

    /// Puts streams of these at random until told that it is over, from the last processor.
    pub(crate) fn put_beside(
        mut self,
        streams: &[AddressHash],
        is_over: &AtomicBool,
    ) -> anyhow::Result<()> {
        pin(1)?;
        let mut random = fastrand::Rng::with_seed(1);
        let (began, mut done_count) = (Instant::now(), 0);
        while !is_over.load(Ordering::Relaxed) {
            let due_count = began.elapsed() * PUTS_PER_SECOND;
            while done_count < due_count.as_secs() {
                self.put(streams[random.usize(..streams.len())]);
                done_count += 1;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}
