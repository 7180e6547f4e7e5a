//! The store as the world sees it: any [`Store`] behind latency, outages and lost answers.
//!
//! A request is executed at one moment and answered at a later one. An outage keeps it from being
//! executed; a lost answer hides that it was: both are told as `Unavailable`, as a real store's
//! client would. Invariants are checked on what the store accepts: a Dead row stays Dead (I5), the
//! fence of a record never goes back (I7), and neither does the version of a subscription, removed
//! or not; versions of the table never go back unless the plan makes them (I4).
//!
//! Deliberately absent: what a store does inside; that is its conformance suite's business.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use siloring_core::hash::HashMap;
use siloring_core::limits::STORE_REQUEST_TIME_MAX;
use siloring_core::ports::registry::{RegistryHint, SetVersion};
use siloring_core::ports::store::{
    StateKey, Store, StoreAnswer, StoreError, StoreRequest, StoreResult, Table,
};
use siloring_core::{ActivationNumber, Address, Generation, Moment, SiloStatus, ViewNumber};

use super::trace::Code;
use super::world::{Core, Happening, HostId, Input, Part, ProcessId, nanos};

/// A store that goes on has done what it was asked before by then.
const STUCK_MAX: Duration = Duration::from_secs(2);

/// Latencies of the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreSettings {
    /// Shortest way to the store, or back.
    pub latency_min: Duration,
    /// Longest one without faults.
    pub latency_max: Duration,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self { latency_min: Duration::from_micros(200), latency_max: Duration::from_millis(3) }
    }
}

/// What ails the store; nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreFaults {
    /// It refuses connections: `NotSent` at once.
    pub down: bool,
    /// It accepts and never answers: `Unavailable` when the client gives up.
    pub hangs: bool,
    /// Added to each way.
    pub delay: Duration,
    /// Of a thousand answers, how many are lost after the effect.
    pub lost_per_mille: u16,
}

#[derive(Debug)]
struct Pending {
    process: ProcessId,
    part: Part,
    ticket: u64,
    request: Option<StoreRequest>,
    result: Option<StoreResult>,
    submitted: Moment,
}

/// Requests under way, and what was seen of the store's content.
pub(super) struct StoreModel {
    settings: StoreSettings,
    store: Box<dyn Store>,
    pub(super) faults: StoreFaults,
    /// Hosts that cannot reach the store.
    pub(super) cut: BTreeSet<HostId>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Requests that the store has taken and not begun with: whoever asked may have given up.
    stuck: Vec<StoreRequest>,
    /// The same, once it goes on.
    late: BTreeMap<u64, StoreRequest>,
    /// When the last request of a process and lane is executed: each lane is one connection.
    lanes: BTreeMap<(ProcessId, Lane), Moment>,
    statuses: BTreeMap<Generation, SiloStatus>,
    /// Every incarnation that was ever in the table.
    names: BTreeSet<Generation>,
    version: u64,
    fences: HashMap<StateKey, ActivationNumber>,
    /// The newest version of the registry, and of each subscription that ever was.
    registry: SetVersion,
    subscriptions: BTreeMap<(Address, String), SetVersion>,
    unavailable_count: u64,
    lost_count: u64,
    broken_off_count: u64,
}

impl std::fmt::Debug for StoreModel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "StoreModel({:?}, {} pending)", self.faults, self.pending.len())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lane {
    Read,
    Write,
}

const fn lane(request: &StoreRequest) -> Lane {
    match request {
        StoreRequest::ReadTable
        | StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::ReadDeadLetters { .. } => Lane::Read,
        StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. }
        | StoreRequest::LoadState { .. }
        | StoreRequest::WriteState { .. }
        | StoreRequest::WriteSubscription { .. }
        | StoreRequest::RemoveSubscription { .. }
        | StoreRequest::SweepSubscriptions { .. }
        | StoreRequest::WriteDeadLetter(_) => Lane::Write,
    }
}

impl StoreModel {
    pub(super) fn new(settings: StoreSettings, store: Box<dyn Store>) -> Self {
        Self {
            settings,
            store,
            faults: StoreFaults::default(),
            cut: BTreeSet::new(),
            pending: BTreeMap::new(),
            next: 0,
            stuck: Vec::new(),
            late: BTreeMap::new(),
            lanes: BTreeMap::new(),
            statuses: BTreeMap::new(),
            names: BTreeSet::new(),
            version: 0,
            fences: HashMap::default(),
            registry: SetVersion::default(),
            subscriptions: BTreeMap::new(),
            unavailable_count: 0,
            lost_count: 0,
            broken_off_count: 0,
        }
    }

    /// Requests answered `Unavailable`, and those of them that had an effect.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.unavailable_count, self.lost_count)
    }

    /// Requests answered `Unavailable` that had none, since their connection was reset.
    pub(super) const fn requests_lost(&self) -> u64 {
        self.broken_off_count
    }

    /// Whether it answers anybody.
    pub(super) const fn is_up(&self) -> bool {
        !self.faults.down && !self.faults.hangs
    }

    /// Whether the table ever had this incarnation.
    pub(super) fn had(&self, generation: Generation) -> bool {
        self.names.contains(&generation)
    }

    /// The store lost its last versions: what they were is forgotten here too. The version it shows
    /// now.
    pub(super) fn went_back(&mut self) -> Option<ViewNumber> {
        let table = self.table()?;
        let rows = table.rows.iter().map(|row| &row.row);
        self.statuses = rows.map(|row| (row.incarnation.generation, row.status)).collect();
        self.version = table.version.0;
        self.fences.clear();
        self.registry = SetVersion::default();
        self.subscriptions.clear();
        Some(table.version)
    }

    /// The membership table as it stands, past every fault.
    pub(super) fn table(&mut self) -> Option<Table> {
        match self.store.execute(&StoreRequest::ReadTable) {
            Ok(StoreAnswer::Table(table)) => Some(table),
            Ok(_) | Err(_) => None,
        }
    }

    /// Looks at what a request has changed; the name and detail of an invariant that broke.
    fn examine(&mut self, request: &StoreRequest) -> Option<(&'static str, String)> {
        match request {
            StoreRequest::WriteRow { .. } | StoreRequest::RemoveDead { .. } => self.examine_table(),
            StoreRequest::LoadState { key, fence }
            | StoreRequest::WriteState { key, fence, .. } => {
                let highest = self.fences.entry(key.clone()).or_insert(*fence);
                let before = std::mem::replace(highest, (*highest).max(*fence));
                (before > *fence).then(|| {
                    let detail = format!("{key:?}: {fence:?} accepted after {before:?}");
                    ("I7 accepted fence never goes back", detail)
                })
            }
            StoreRequest::WriteSubscription { row, .. } => self.examine_stream(&row.stream),
            StoreRequest::RemoveSubscription { stream, .. } => self.examine_stream(stream),
            StoreRequest::ReadTable
            | StoreRequest::Heartbeat { .. }
            | StoreRequest::Settings { .. }
            | StoreRequest::LoadSubscriptions { .. }
            | StoreRequest::ListSubscriptions { .. }
            | StoreRequest::SweepSubscriptions { .. }
            | StoreRequest::WriteDeadLetter(_)
            | StoreRequest::ReadDeadLetters { .. } => None,
        }
    }

    /// After a change of one of its subscriptions.
    fn examine_stream(&mut self, stream: &Address) -> Option<(&'static str, String)> {
        let load = StoreRequest::LoadSubscriptions { stream: stream.clone() };
        let Ok(StoreAnswer::Subscriptions { rows, version }) = self.store.execute(&load) else {
            return None;
        };
        let before = std::mem::replace(&mut self.registry, version);
        if version <= before {
            let detail = format!("{stream}: {version:?} after {before:?}");
            return Some(("each change of a subscription makes a higher version", detail));
        }
        for row in rows {
            let before = self.subscriptions.insert((row.stream, row.key.clone()), row.version);
            if before.is_some_and(|before| before > row.version) || row.version > version {
                let detail = format!("{stream} {}: {:?} after {before:?}", row.key, row.version);
                return Some(("the version of a subscription never goes back", detail));
            }
        }
        None
    }

    fn examine_table(&mut self) -> Option<(&'static str, String)> {
        let table = self.table()?;
        let version = table.version.0;
        if version <= self.version {
            let detail = format!("{version} after {}", self.version);
            return Some(("I4 each change of a row makes a higher version", detail));
        }
        self.version = version;
        for row in &table.rows {
            let (who, status) = (row.row.incarnation.generation, row.row.status);
            self.names.insert(who);
            let before = self.statuses.insert(who, status);
            if before.is_some_and(|before| before > status) {
                let detail = format!("{who}: {status:?} after {before:?}");
                return Some(("I5 a status moves forward only", detail));
            }
        }
        None
    }
}

fn unavailable(detail: &str) -> StoreResult {
    Err(StoreError::Unavailable { detail: detail.into() })
}

impl Core {
    pub(super) fn submit(
        &mut self,
        process: ProcessId,
        part: Part,
        ticket: u64,
        request: StoreRequest,
    ) {
        let lane = lane(&request);
        let earliest = self.now + self.store_latency();
        self.store.next += 1;
        let id = self.store.next;
        let last = self.store.lanes.entry((process, lane)).or_default();
        *last = (*last).max(earliest);
        self.queue.push(*last, Happening::StoreDo { request: id });
        let submitted = self.now;
        let request = Some(request);
        let pending = Pending { process, part, ticket, request, result: None, submitted };
        self.store.pending.insert(id, pending);
    }

    fn store_latency(&mut self) -> Duration {
        let settings = &self.store.settings;
        let span = nanos(settings.latency_min)..=nanos(settings.latency_max);
        Duration::from_nanos(self.random.store.u64(span)) + self.store.faults.delay
    }

    pub(super) fn store_reached(&self, process: ProcessId) -> bool {
        !self.store.cut.contains(&self.process(process).host)
    }

    pub(super) fn store_do(&mut self, id: u64) {
        let Some(pending) = self.store.pending.get_mut(&id) else {
            return;
        };
        let Some(request) = pending.request.take() else {
            return; // Its connection was reset.
        };
        let (process, submitted) = (pending.process, pending.submitted);
        let faults = self.store.faults;
        let gone = !self.process(process).life.is_alive() && self.random.store.bool();
        let mut at = self.now + self.store_latency();
        let result = if gone {
            unavailable("the client is gone")
        } else if faults.hangs || !self.store_reached(process) {
            at = at.max(submitted + STORE_REQUEST_TIME_MAX);
            if self.store_reached(process) && self.random.store.bool() {
                self.store.stuck.push(request);
            }
            unavailable("no answer in time")
        } else if faults.down {
            Err(StoreError::NotSent { detail: "connection refused".into() })
        } else {
            self.execute(&request)
        };
        self.trace.enter(self.now, Code::StoreDone, id, u64::from(result.is_ok()));
        let lost = result.is_ok() && self.random.store.u16(..1000) < faults.lost_per_mille;
        let result = if lost { self.lose() } else { result };
        self.answer_at(id, result, at);
    }

    fn execute(&mut self, request: &StoreRequest) -> StoreResult {
        let result = self.store.store.execute(request);
        if result.is_ok()
            && let Some((invariant, detail)) = self.store.examine(request)
        {
            self.violate(invariant, detail);
        }
        self.tell_of(request, &result);
        result
    }

    /// Whoever listens is told of a change.
    fn tell_of(&mut self, request: &StoreRequest, result: &StoreResult) {
        let newest = match result {
            Ok(StoreAnswer::Registered(version)) => Some(*version),
            Ok(_) => None,
            Err(_) => return,
        };
        match request {
            StoreRequest::WriteSubscription { row, .. } => {
                self.registry_changed(RegistryHint::Stream(row.stream.hash()), newest);
            }
            StoreRequest::RemoveSubscription { stream, .. } => {
                self.registry_changed(RegistryHint::Stream(stream.hash()), newest);
            }
            StoreRequest::SweepSubscriptions { .. } => {
                if matches!(result, Ok(StoreAnswer::Swept { count: 1.. })) {
                    self.registry_changed(RegistryHint::Everything, newest);
                }
            }
            StoreRequest::ReadTable
            | StoreRequest::Heartbeat { .. }
            | StoreRequest::Settings { .. }
            | StoreRequest::LoadSubscriptions { .. }
            | StoreRequest::ListSubscriptions { .. }
            | StoreRequest::WriteRow { .. }
            | StoreRequest::RemoveDead { .. }
            | StoreRequest::LoadState { .. }
            | StoreRequest::WriteState { .. }
            | StoreRequest::WriteDeadLetter(_)
            | StoreRequest::ReadDeadLetters { .. } => {}
        }
    }

    /// The connections of a process to the store are reset: what was asked on them was carried out,
    /// or was not, and its answer is lost.
    pub(super) fn reset_store(&mut self, process: ProcessId) {
        let open = self.store.pending.iter().filter(|(_, pending)| pending.process == process);
        for id in open.map(|(id, _)| *id).collect::<Vec<_>>() {
            let is_carried_out = self.random.store.bool();
            let request = self.store.pending.get_mut(&id).and_then(|it| it.request.take());
            let reached = self.store.is_up() && self.store_reached(process);
            let was_made = request.is_none();
            let made = request
                .filter(|_| is_carried_out && reached)
                .is_some_and(|request| self.execute(&request).is_ok());
            let result = if was_made || made { self.lose() } else { self.break_off() };
            self.answer_at(id, result, self.now);
        }
        self.listeners.disconnect(process);
    }

    /// What ails the store, and whom it is cut off from, is now this. Once it hangs no more it does
    /// what it was asked before, each at its own moment.
    pub(super) fn set_store_faults(&mut self, faults: StoreFaults, cut: BTreeSet<HostId>) {
        self.store.faults = faults;
        self.store.cut = cut;
        if faults.hangs {
            return;
        }
        for request in std::mem::take(&mut self.store.stuck) {
            self.store.next += 1;
            let id = self.store.next;
            let late = Duration::from_nanos(self.random.store.u64(..=nanos(STUCK_MAX)));
            self.store.late.insert(id, request);
            self.queue.push(self.now + late, Happening::StoreLate { request: id });
        }
    }

    /// The store does what nobody waits for any more.
    pub(super) fn store_late(&mut self, id: u64) {
        let Some(request) = self.store.late.remove(&id) else { return };
        let is_ok = self.execute(&request).is_ok();
        self.store.lost_count += u64::from(is_ok);
        self.trace.enter(self.now, Code::StoreDone, id, u64::from(is_ok));
    }

    fn break_off(&mut self) -> StoreResult {
        self.store.broken_off_count += 1;
        unavailable("the connection broke")
    }

    fn lose(&mut self) -> StoreResult {
        self.store.lost_count += 1;
        unavailable("the connection broke before the answer")
    }

    fn answer_at(&mut self, id: u64, result: StoreResult, at: Moment) {
        if let Some(pending) = self.store.pending.get_mut(&id) {
            pending.result = Some(result);
            self.queue.push(at, Happening::StoreAnswer { request: id });
        }
    }

    pub(super) fn store_answer(&mut self, id: u64) {
        let Some(pending) = self.store.pending.get(&id) else {
            return;
        };
        let (submitted, answered) = (pending.submitted, matches!(pending.result, Some(Ok(_))));
        let give_up = submitted + STORE_REQUEST_TIME_MAX;
        if answered && !self.store_reached(pending.process) {
            // The answer found no way back: the client gives up when its time is over.
            let result = self.lose();
            self.answer_at(id, result, give_up.max(self.now));
            return;
        }
        let pending = self.store.pending.remove(&id).expect("looked at above");
        let result = pending.result.expect("set when it was executed");
        let failed =
            matches!(result, Err(StoreError::NotSent { .. } | StoreError::Unavailable { .. }));
        self.store.unavailable_count += u64::from(failed);
        let ok = u64::from(result.is_ok());
        self.trace.enter(self.now, Code::StoreAnswered, id, ok);
        let input = Input::Store { ticket: pending.ticket, result };
        self.give(pending.process, pending.part, input);
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::ids::MethodId;
    use siloring_core::ports::registry::Subscription;
    use siloring_core::{ClusterId, Generation};
    use siloring_storage::MemoryStore;

    use super::*;

    fn write(key: &str, expected: Option<SetVersion>) -> StoreRequest {
        let row = Subscription {
            stream: Address::parse("stream/orders/7").unwrap(),
            key: key.into(),
            consumer: Address::parse("portal/p").unwrap(),
            handler: MethodId(0),
            owner: Some(Generation(1)),
            view: ViewNumber(1),
            filter: String::new(),
            operation: 1,
            version: SetVersion(0),
        };
        StoreRequest::WriteSubscription { row, expected }
    }

    #[test]
    fn a_registry_that_mints_a_version_again_is_noticed() {
        let store = MemoryStore::new(ClusterId::new("a").unwrap());
        let mut model = StoreModel::new(StoreSettings::default(), Box::new(store.clone()));
        let mut change = |request: StoreRequest| {
            let answer = model.store.execute(&request);
            assert!(matches!(answer, Ok(StoreAnswer::Registered(_))), "{answer:?}");
            model.examine(&request)
        };
        assert_eq!(change(write("a", None)), None);
        let lost = store.snapshot();
        assert_eq!(change(write("a", Some(SetVersion(1)))), None);
        assert_eq!(change(write("b", None)), None);
        store.restore(&lost);
        let (invariant, detail) = change(write("c", None)).expect("version 2 was given before");
        assert!(invariant.contains("higher version"), "{invariant}: {detail}");
    }

    #[test]
    fn a_subscription_that_goes_back_is_noticed() {
        let store = MemoryStore::new(ClusterId::new("a").unwrap());
        let mut model = StoreModel::new(StoreSettings::default(), Box::new(store.clone()));
        let mut handle = store.clone();
        for request in [write("a", None), write("a", Some(SetVersion(1)))] {
            handle.execute(&request).unwrap();
            assert_eq!(model.examine(&request), None);
        }
        // The row is an older one, the registry itself is ahead.
        let older = MemoryStore::new(ClusterId::new("a").unwrap());
        let mut handle = older.clone();
        handle.execute(&write("a", None)).unwrap();
        for key in ["b", "c"] {
            handle.execute(&write(key, None)).unwrap();
        }
        store.restore(&older.snapshot());
        let found = model.examine(&write("a", None));
        assert!(found.is_some_and(|(it, _)| it.contains("never goes back")));
    }
}
