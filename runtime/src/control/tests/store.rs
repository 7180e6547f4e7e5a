//! The store of the harness: one shared table under compare-and-set, with faults.

use std::collections::{BTreeMap, BTreeSet};

use siloring_core::ports::store::{
    Setting, StoreAnswer, StoreError, StoreRequest, StoreResult, Table, TableRow,
};
use siloring_core::{Generation, Moment, SiloRow, SiloStatus, ViewNumber};

/// The table, and what it must never show.
#[derive(Clone, Default)]
pub(super) struct SharedStore {
    pub(super) table: Table,
    settings: Vec<Setting>,
    /// When each row became Dead.
    pub(super) dead_at: BTreeMap<Generation, Moment>,
    made: BTreeSet<Generation>,
    /// Versions made, to bound how often views change.
    pub(super) commits: u64,
    pub(super) reads: u64,
}

impl SharedStore {
    pub(super) fn execute(&mut self, now: Moment, request: &StoreRequest) -> StoreResult {
        match request {
            StoreRequest::ReadTable => {
                self.reads += 1;
                Ok(StoreAnswer::Table(self.table.clone()))
            }
            StoreRequest::WriteRow { expected, next, row } => {
                self.write_row(now, *expected, *next, row)
            }
            StoreRequest::RemoveDead { expected, next, generations } => {
                check(*expected == self.table.version)?;
                self.table.rows.retain(|held| {
                    held.row.status != SiloStatus::Dead
                        || !generations.contains(&held.row.incarnation.generation)
                });
                self.table.version = *next;
                self.commits += 1;
                Ok(StoreAnswer::Done)
            }
            StoreRequest::Heartbeat { generation, counter } => {
                let rows = &mut self.table.rows;
                let held = rows.iter_mut().find(|h| h.row.incarnation.generation == *generation);
                if let Some(held) = held {
                    held.heartbeat = *counter;
                }
                Ok(StoreAnswer::Done)
            }
            StoreRequest::Settings { ours } => {
                if self.settings.is_empty() {
                    self.settings.clone_from(ours);
                }
                Ok(StoreAnswer::Settings(self.settings.clone()))
            }
            StoreRequest::LoadState { .. }
            | StoreRequest::WriteState { .. }
            | StoreRequest::LoadSubscriptions { .. }
            | StoreRequest::ListSubscriptions { .. }
            | StoreRequest::WriteSubscription { .. }
            | StoreRequest::RemoveSubscription { .. }
            | StoreRequest::SweepSubscriptions { .. }
            | StoreRequest::WriteDeadLetter(_)
            | StoreRequest::ReadDeadLetters { .. } => {
                panic!("the control machine keeps neither grain state nor subscriptions")
            }
        }
    }

    fn write_row(
        &mut self,
        now: Moment,
        expected: ViewNumber,
        next: ViewNumber,
        row: &SiloRow,
    ) -> StoreResult {
        check(expected == self.table.version)?;
        assert!(next > expected, "versions rise");
        let generation = row.incarnation.generation;
        let held =
            self.table.rows.iter_mut().find(|held| held.row.incarnation.generation == generation);
        if let Some(held) = held {
            assert_eq!(held.row.incarnation, row.incarnation, "a generation has one name");
            if held.row.status == SiloStatus::Dead && row.status != SiloStatus::Dead {
                return Err(StoreError::DeadStaysDead);
            }
            assert!(row.status >= held.row.status, "statuses move to the right");
            held.row = row.clone();
        } else {
            let is_new = generation == Generation::of(next);
            let is_lost = generation.view().lineage() < next.lineage();
            if !(is_new || is_lost || row.status == SiloStatus::Dead) {
                return Err(StoreError::DeadStaysDead);
            }
            if row.status == SiloStatus::Joining && next.lineage() == 0 {
                assert_eq!(generation, Generation::of(next), "named by its write");
                assert!(self.made.insert(generation), "a generation is made once");
            }
            self.table.rows.push(TableRow { row: row.clone(), heartbeat: 0 });
        }
        if row.status == SiloStatus::Dead {
            self.dead_at.entry(generation).or_insert(now);
        }
        self.table.version = next;
        self.commits += 1;
        Ok(StoreAnswer::Done)
    }

    pub(super) fn status(&self, generation: Generation) -> Option<SiloStatus> {
        let rows = self.table.rows.iter().map(|held| &held.row);
        let row = rows.into_iter().find(|row| row.incarnation.generation == generation);
        row.map(|row| row.status)
    }
}

fn check(holds: bool) -> Result<(), StoreError> {
    if holds { Ok(()) } else { Err(StoreError::Conflict) }
}
