//! The watch over this silo's own shards: which makes no progress, and since when.
//!
//! **Contract.** Fed with each shard's progress counter, which moves with each loop of its shard,
//! also of an idle one. A shard whose counter stands still for `STALL_REPORT_AFTER` is told once,
//! and once more when it has for as long as the silo allows. Deliberately absent: what the shard
//! runs.

use std::collections::VecDeque;

use core::time::Duration;

use siloring_core::limits::STALL_REPORT_AFTER;
use siloring_core::{Moment, ShardIndex};

use super::ControlOutput;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    Stalled,
    Abort,
}

#[derive(Debug)]
struct Shard {
    count: u64,
    since: Moment,
    told: Told,
}

#[derive(Debug)]
pub(super) struct Stalls {
    shards: Vec<Shard>,
    abort_after: Option<Duration>,
}

impl Stalls {
    pub(super) const fn new(abort_after: Option<Duration>) -> Self {
        Self { shards: Vec::new(), abort_after }
    }

    /// The counters as told last.
    pub(super) fn counts(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.count).collect()
    }

    /// The counters were read just now.
    pub(super) fn handle_progress(
        &mut self,
        now: Moment,
        counts: &[u64],
        out: &mut VecDeque<ControlOutput>,
    ) {
        for (index, &count) in counts.iter().enumerate() {
            match self.shards.get_mut(index) {
                Some(shard) if shard.count == count => self.check(now, index, out),
                Some(shard) => *shard = Shard { count, since: now, told: Told::Nothing },
                None => self.shards.push(Shard { count, since: now, told: Told::Nothing }),
            }
        }
    }

    /// The whole process was stopped: that was no shard's fault.
    pub(super) fn forgive(&mut self, now: Moment) {
        for shard in &mut self.shards {
            shard.since = now;
        }
    }

    fn check(&mut self, now: Moment, index: usize, out: &mut VecDeque<ControlOutput>) {
        let shard = &mut self.shards[index];
        let stalled = now.since(shard.since);
        let name = ShardIndex(u16::try_from(index).expect("at most SHARDS_MAX shards"));
        if shard.told == Told::Nothing && stalled >= STALL_REPORT_AFTER {
            shard.told = Told::Stalled;
            out.push_back(ControlOutput::Stalled { shard: name, stalled });
        }
        let is_over = self.abort_after.is_some_and(|after| stalled >= after);
        if is_over && shard.told != Told::Abort {
            shard.told = Told::Abort;
            out.push_back(ControlOutput::Abort { shard: name });
        }
    }
}
