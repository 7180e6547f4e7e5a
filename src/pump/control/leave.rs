//! The steps of a drain, each with its budget.
//!
//! Not ready → Draining in the view → shards take nothing new, finish and hand over → hubs close →
//! the row becomes Dead. A step that overruns its budget is reported and the next one begins: a
//! drain ends in any case. The budgets add up to the drain's (asserted in `limits`).

use core::time::Duration;
use std::collections::BTreeSet;

use siloring_core::limits::{
    DRAIN_CLOSE_TIME_MAX, DRAIN_HANDOVER_TIME_MAX, DRAIN_TURNS_TIME_MAX, DRAIN_VIEW_TIME_MAX,
};
use siloring_core::{Moment, ShardIndex, SiloStatus};

/// Handing over and finishing turns go on side by side, behind the announcement.
const WORK_TIME_MAX: Duration = Duration::from_secs(
    DRAIN_HANDOVER_TIME_MAX.as_secs() + DRAIN_TURNS_TIME_MAX.as_secs()
        - DRAIN_VIEW_TIME_MAX.as_secs(),
);

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaveStep {
    /// Tell the shards to drain.
    BeginDrain,
    /// Tell the shards to close their hubs.
    CloseHubs,
    /// A step overran its budget; the next one follows.
    Overran(&'static str),
    /// Write the row Dead.
    Finish { unfinished_count: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Staying,
    /// The row is being written Draining.
    Announced,
    /// Shards finish and hand over.
    Working,
    /// Hubs close.
    Closing,
    Finished,
}

/// Where the drain stands.
#[derive(Debug)]
pub(super) struct Leave {
    stage: Stage,
    shards: u16,
    /// When the stage is over in any case.
    until: Moment,
    empty: BTreeSet<ShardIndex>,
    closed: BTreeSet<ShardIndex>,
    unfinished_count: usize,
    overran_reported: bool,
}

impl Leave {
    pub(super) const fn new(shards: u16) -> Self {
        Self {
            stage: Stage::Staying,
            shards,
            until: Moment::NEVER,
            empty: BTreeSet::new(),
            closed: BTreeSet::new(),
            unfinished_count: 0,
            overran_reported: false,
        }
    }

    /// Begins; `false` if it has begun already.
    pub(super) fn begin(&mut self, now: Moment) -> bool {
        let begins = self.stage == Stage::Staying;
        if begins {
            self.enter(Stage::Announced, now + DRAIN_VIEW_TIME_MAX);
        }
        begins
    }

    pub(super) fn shard_empty(&mut self, shard: ShardIndex) {
        self.empty.insert(shard);
    }

    pub(super) fn shard_closed(&mut self, shard: ShardIndex, unfinished_count: usize) {
        if self.closed.insert(shard) {
            self.unfinished_count += unfinished_count;
        }
    }

    /// Turns and deliveries that the shards cut off.
    pub(super) const fn unfinished_count(&self) -> usize {
        self.unfinished_count
    }

    pub(super) const fn next_deadline(&self) -> Moment {
        self.until
    }

    /// The next step, if its time has come. `status` is this silo's in the current view.
    pub(super) fn poll(&mut self, now: Moment, status: Option<SiloStatus>) -> Option<LeaveStep> {
        let (is_done, name) = match self.stage {
            Stage::Staying | Stage::Finished => return None,
            Stage::Announced => (status >= Some(SiloStatus::Draining), "announce"),
            Stage::Working => (self.empty.len() >= usize::from(self.shards), "finish turns"),
            Stage::Closing => (self.closed.len() >= usize::from(self.shards), "close hubs"),
        };
        if !is_done {
            if now < self.until {
                return None;
            }
            if !core::mem::replace(&mut self.overran_reported, true) {
                return Some(LeaveStep::Overran(name));
            }
        }
        Some(match self.stage {
            Stage::Announced => {
                self.enter(Stage::Working, now + WORK_TIME_MAX);
                LeaveStep::BeginDrain
            }
            Stage::Working => {
                self.enter(Stage::Closing, now + DRAIN_CLOSE_TIME_MAX);
                LeaveStep::CloseHubs
            }
            Stage::Closing | Stage::Staying | Stage::Finished => {
                self.enter(Stage::Finished, Moment::NEVER);
                LeaveStep::Finish { unfinished_count: self.unfinished_count }
            }
        })
    }

    const fn enter(&mut self, stage: Stage, until: Moment) {
        self.stage = stage;
        self.until = until;
        self.overran_reported = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAINING: Option<SiloStatus> = Some(SiloStatus::Draining);

    #[test]
    fn a_drain_goes_step_by_step_as_shards_report() {
        let mut leave = Leave::new(2);
        let now = Moment::ZERO;
        assert!(leave.begin(now));
        assert!(!leave.begin(now), "only once");
        assert_eq!(leave.poll(now, Some(SiloStatus::Active)), None);
        assert_eq!(leave.poll(now, DRAINING), Some(LeaveStep::BeginDrain));
        leave.shard_empty(ShardIndex(1));
        leave.shard_empty(ShardIndex(1));
        assert_eq!(leave.poll(now, DRAINING), None, "shard 0 still works");
        leave.shard_empty(ShardIndex(0));
        assert_eq!(leave.poll(now, DRAINING), Some(LeaveStep::CloseHubs));
        leave.shard_closed(ShardIndex(0), 2);
        leave.shard_closed(ShardIndex(1), 1);
        let finish = LeaveStep::Finish { unfinished_count: 3 };
        assert_eq!(leave.poll(now, DRAINING), Some(finish));
        assert_eq!(leave.poll(now, DRAINING), None);
    }

    #[test]
    fn a_drain_ends_within_its_budget_though_nothing_answers() {
        let mut leave = Leave::new(1);
        let (mut now, mut steps) = (Moment::ZERO, Vec::new());
        leave.begin(now);
        while leave.next_deadline() != Moment::NEVER {
            now = leave.next_deadline();
            steps.extend(leave.poll(now, Some(SiloStatus::Active)));
        }
        assert_eq!(
            steps,
            [
                LeaveStep::Overran("announce"),
                LeaveStep::BeginDrain,
                LeaveStep::Overran("finish turns"),
                LeaveStep::CloseHubs,
                LeaveStep::Overran("close hubs"),
                LeaveStep::Finish { unfinished_count: 0 },
            ]
        );
        assert!(now.since(Moment::ZERO) <= siloring_core::limits::DRAIN_TIME_MAX);
    }
}
