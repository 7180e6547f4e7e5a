//! The store in memory: the model that the other stores are held to.
//!
//! A [`MemoryStore`] is a handle; clones share the rows, so that a simulated cluster has one store.
//! [`MemoryStore::solitary`] is what the URL `memory:` opens: a cluster of one by construction,
//! which refuses a second living silo. Each request is atomic under one lock, never held across a
//! call out. Deliberately absent: lost answers, delays and faults (a wrapper's business).

mod registry;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use siloring_core::ports::store::{
    Etag, Setting, StateKey, StateRecord, Store, StoreAnswer, StoreError, StoreRequest,
    StoreResult, Table, TableRow,
};
use siloring_core::{ActivationNumber, ClusterId, Generation, SiloRow, SiloStatus, ViewNumber};

use self::registry::Registry;
use crate::judge::{check_request, judge_row, refused};

/// Who may be in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Company {
    /// Any silos that share the handle.
    Shared,
    /// One silo name at a time.
    Solitary,
}

/// A store in memory. Clones share its content.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    cluster: ClusterId,
    company: Company,
    /// Guards all rows of all clusters; held for one request.
    clusters: Arc<Mutex<BTreeMap<ClusterId, Rows>>>,
}

/// What a [`MemoryStore`] held at one moment: to model a store that regresses.
#[derive(Clone, Debug)]
pub struct MemorySnapshot(BTreeMap<ClusterId, Rows>);

/// The rows of one cluster.
#[derive(Clone, Debug, Default)]
struct Rows {
    version: ViewNumber,
    silos: BTreeMap<Generation, TableRow>,
    settings: Vec<Setting>,
    states: BTreeMap<StateKey, State>,
    /// Planted: a fence is compared by its view alone.
    #[cfg(feature = "planted")]
    fences_by_view: bool,
    registry: Registry,
}

/// One record of grain state with its fence.
#[derive(Clone, Debug)]
struct State {
    fence: ActivationNumber,
    etag: Etag,
    record: Option<StateRecord>,
}

impl MemoryStore {
    /// An empty store that any number of silos may share through clones.
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, company: Company::Shared, clusters: Arc::default() }
    }

    /// An empty store for a cluster of one: a row of a second living silo is refused.
    pub fn solitary(cluster: ClusterId) -> Self {
        Self { company: Company::Solitary, ..Self::new(cluster) }
    }

    /// The same store as another cluster sees it.
    #[must_use]
    pub fn with_cluster(&self, cluster: ClusterId) -> Self {
        Self { cluster, ..self.clone() }
    }

    /// From now on a fence is compared by its view alone: two of one view are let through in any
    /// order.
    #[cfg(feature = "planted")]
    pub fn plant_fences_by_view(&self) {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.entry(self.cluster.clone()).or_default().fences_by_view = true;
    }

    /// What it holds now.
    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot(self.clusters.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Goes back to what it held: a fail-over to a replica that had not seen the last writes.
    pub fn restore(&self, snapshot: &MemorySnapshot) {
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.clone_from(&snapshot.0);
    }
}

impl Store for MemoryStore {
    fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    fn execute(&mut self, request: &StoreRequest) -> StoreResult {
        check_request(request)?;
        let mut clusters = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        clusters.entry(self.cluster.clone()).or_default().execute(self.company, request)
    }
}

impl Rows {
    fn execute(&mut self, company: Company, request: &StoreRequest) -> StoreResult {
        match request {
            StoreRequest::ReadTable => Ok(StoreAnswer::Table(self.table())),
            StoreRequest::WriteRow { expected, next, row } => {
                if company == Company::Solitary {
                    self.judge_company(row)?;
                }
                self.write_row(*expected, *next, row)
            }
            StoreRequest::RemoveDead { expected, next, generations } => {
                self.remove_dead(*expected, *next, generations)
            }
            StoreRequest::Heartbeat { generation, counter } => {
                if let Some(row) = self.silos.get_mut(generation) {
                    row.heartbeat = row.heartbeat.max(*counter);
                }
                Ok(StoreAnswer::Done)
            }
            StoreRequest::Settings { ours } => {
                if self.settings.is_empty() {
                    self.settings.clone_from(ours);
                    self.settings.sort();
                }
                Ok(StoreAnswer::Settings(self.settings.clone()))
            }
            StoreRequest::LoadState { key, fence } => self.load_state(key, *fence),
            StoreRequest::WriteState { key, fence, etag, record } => {
                self.write_state(key, *fence, *etag, record.as_ref())
            }
            StoreRequest::LoadSubscriptions { stream } => self.registry.load(stream),
            StoreRequest::ListSubscriptions { after, limit } => {
                self.registry.list(after.as_ref(), *limit)
            }
            StoreRequest::WriteSubscription { row, expected } => {
                self.registry.write(row, *expected)
            }
            StoreRequest::RemoveSubscription { stream, key, owner, version } => {
                self.registry.remove(stream, key, *owner, *version)
            }
            StoreRequest::SweepSubscriptions { gone, view } => self.registry.sweep(gone, *view),
            StoreRequest::WriteDeadLetter(letter) => self.registry.write_letter(letter),
            StoreRequest::ReadDeadLetters { stream, limit } => {
                self.registry.read_letters(stream, *limit)
            }
        }
    }

    fn table(&self) -> Table {
        Table { version: self.version, rows: self.silos.values().cloned().collect() }
    }

    fn judge_company(&self, row: &SiloRow) -> Result<(), StoreError> {
        let name = &row.incarnation.name;
        let living = |other: &&TableRow| other.row.status != SiloStatus::Dead;
        let mut others = self.silos.values().filter(living).map(|other| &other.row.incarnation);
        match others.find(|other| other.name != *name) {
            Some(other) if row.status != SiloStatus::Dead => Err(refused(format!(
                "memory: is a cluster of one and {other} is in it: for a second silo {name} use \
                 sqlite:PATH (one host) or postgres://HOST/DB (many hosts)"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    fn write_row(&mut self, expected: ViewNumber, next: ViewNumber, row: &SiloRow) -> StoreResult {
        let generation = row.incarnation.generation;
        let status = self.silos.get(&generation).map(|old| old.row.status);
        judge_row(expected, next, row, self.version, status)?;
        let heartbeat = self.silos.get(&generation).map_or(0, |old| old.heartbeat);
        let row = SiloRow { changed_in: next, ..row.clone() };
        self.silos.insert(generation, TableRow { row, heartbeat });
        self.version = next;
        Ok(StoreAnswer::Done)
    }

    fn remove_dead(
        &mut self,
        expected: ViewNumber,
        next: ViewNumber,
        generations: &[Generation],
    ) -> StoreResult {
        if self.version != expected {
            return Err(StoreError::Conflict);
        }
        for generation in generations {
            if self.silos.get(generation).is_some_and(|row| row.row.status == SiloStatus::Dead) {
                self.silos.remove(generation);
            }
        }
        self.version = next;
        Ok(StoreAnswer::Done)
    }

    fn load_state(&mut self, key: &StateKey, fence: ActivationNumber) -> StoreResult {
        let empty = State { fence, etag: Etag(0), record: None };
        let state = self.states.entry(key.clone()).or_insert(empty);
        #[cfg(feature = "planted")]
        if self.fences_by_view && state.fence.view == fence.view {
            state.fence = fence;
        }
        if state.fence > fence {
            return Err(StoreError::Fenced);
        }
        state.fence = fence;
        Ok(StoreAnswer::State { record: state.record.clone(), etag: state.etag })
    }

    fn write_state(
        &mut self,
        key: &StateKey,
        fence: ActivationNumber,
        etag: Etag,
        record: Option<&StateRecord>,
    ) -> StoreResult {
        let state = self.states.get_mut(key).ok_or(StoreError::Fenced)?;
        if state.fence != fence {
            return Err(StoreError::Fenced);
        }
        if state.etag != etag {
            return Err(StoreError::Conflict);
        }
        state.etag = Etag(etag.0 + 1);
        state.record = record.cloned();
        Ok(StoreAnswer::Written(state.etag))
    }
}
