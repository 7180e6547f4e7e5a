//! The ledger that checks the promise, independent of the product's own.
//!
//! A workload enters each delivery when it sends it ([`Source::sent`]), a handler says that it runs
//! ([`ran`]), and the outcome closes the entry ([`Sent::close`]). Checked, at once:
//!
//! - *P0*: while the sender's process lives and is scheduled, exactly one outcome is observed
//!   within the delivery's budget and a grace; asked by the world at each due time;
//! - *no doubled run*: a handler runs at most once for one delivery;
//! - *rejected means never ran*, and *handled means ran*, whichever is seen first;
//! - *FIFO* per source, target and the process where the target is, among deliveries that were not
//!   sent again, unless a connection between their hosts ended meanwhile (the link's epoch);
//! - *a one-way that no failure handler took did run*.
//!
//! Publishes are deliveries too; what else is checked of them is in [`events`].
//!
//! Deliberately absent: any look into the product. What is not told here is not known here.

pub mod events;
pub mod replay;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::time::Duration;

use siloring_core::hash::HashMap;
use siloring_core::schema::mix;
use siloring_core::{Address, AddressHash, DeliveryFailure, Moment};

use super::scene::{self, Scene};
use super::world::ProcessId;

/// Grace: one tick of the product's ledger and the way to the program that waits.
const GRACE: Duration = Duration::from_millis(50);

/// Names one delivery in the whole world; put it into the message, and hand it to [`ran`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeliveryId(pub u64);

/// One sender whose deliveries to one target keep their order: an activation, a hub, a task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source(u64);

/// How a delivery ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Certainty {
    Handled,
    Rejected,
    Failed,
    Indeterminate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Closed(Certainty),
    /// The sender's process has ended, and its ledger with it.
    Orphaned,
    /// The sender stopped waiting: its turn or task was dropped.
    Abandoned,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Request,
    OneWay,
    /// A publish: it may run once for each subscription.
    Event,
}

#[derive(Debug)]
struct Entry {
    sender: ProcessId,
    source: Source,
    target: AddressHash,
    sent: Moment,
    due: Moment,
    state: State,
    direction: Direction,
    runs: u8,
    attempt: u8,
    /// Who ran it.
    runner: Option<ProcessId>,
}

/// What was counted in a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Deliveries entered.
    pub sent: u64,
    /// Of which handled.
    pub handled: u64,
    /// Of which failed, by the name of the kind.
    pub failed: BTreeMap<&'static str, u64>,
    /// Of which ended with their sender's process.
    pub orphaned: u64,
    /// Of which their sender dropped before the outcome.
    pub abandoned: u64,
    /// Handlers that ran, but for events.
    pub ran: u64,
    /// Of the deliveries, publishes.
    pub published: u64,
    /// Handlers that ran for them.
    pub event_runs: u64,
}

impl Counts {
    /// Deliveries whose outcome their sender heard.
    pub fn closed(&self) -> u64 {
        self.handled + self.failed.values().sum::<u64>()
    }

    /// Deliveries that are open.
    pub fn open(&self) -> u64 {
        self.sent - self.closed() - self.orphaned - self.abandoned
    }
}

/// Every delivery of a world.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
    due: BinaryHeap<Reverse<(Moment, u64)>>,
    /// The last delivery that ran, by source, target and who ran it.
    orders: HashMap<(Source, AddressHash, ProcessId), u64>,
    sources: u64,
    events: events::Events,
    counts: Counts,
    hash: u64,
}

impl Ledger {
    pub(super) const fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    /// The first moment at which an open delivery may be late.
    pub(super) fn next_due(&mut self) -> Moment {
        while let Some(Reverse((due, id))) = self.due.peek().copied() {
            if self.entry(id).state == State::Open {
                return due;
            }
            self.due.pop();
        }
        Moment::NEVER
    }

    /// Takes the deliveries that are due at `now` and still open.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<(DeliveryId, ProcessId)> {
        let mut late = Vec::new();
        while self.next_due() <= now {
            let Some(Reverse((_, id))) = self.due.pop() else {
                break;
            };
            late.push((DeliveryId(id), self.entry(id).sender));
        }
        late
    }

    /// The sender was not scheduled: look again later.
    pub(super) fn put_off(&mut self, id: DeliveryId, until: Moment) {
        self.due.push(Reverse((until, id.0)));
    }

    /// What is known of a delivery, for a violation's text.
    pub(super) fn describe(&self, id: DeliveryId) -> String {
        format!("{id:?} {:?}", self.entry(id.0))
    }

    /// The open deliveries that a process is handling.
    pub(super) fn handled_by(&self, process: ProcessId) -> Vec<DeliveryId> {
        let handled = |entry: &Entry| entry.state == State::Open && entry.runner == Some(process);
        let entries = (0..).zip(&self.entries).filter(|(_, entry)| handled(entry));
        entries.map(|(id, _)| DeliveryId(id)).collect()
    }

    /// The sender, if it has not heard yet and still could.
    pub(super) fn sender_waiting(&self, id: DeliveryId) -> Option<ProcessId> {
        let entry = self.entry(id.0);
        (entry.state == State::Open).then_some(entry.sender)
    }

    /// The open deliveries of a process end with it.
    pub(super) fn process_ended(&mut self, process: ProcessId) {
        // Deliveries older than the longest budget are closed: the search is over the recent ones.
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            if entry.sender == process && entry.state == State::Open {
                entry.state = State::Orphaned;
                self.counts.orphaned += 1;
            }
        }
    }

    fn entry(&self, id: u64) -> &Entry {
        &self.entries[usize::try_from(id).expect("ids are indices")]
    }

    fn entry_mut(&mut self, id: u64) -> &mut Entry {
        &mut self.entries[usize::try_from(id).expect("ids are indices")]
    }

    fn note(&mut self, now: Moment, id: u64, what: u64) {
        self.hash = mix(mix(mix(self.hash, now.as_nanos()), id), what);
    }

    fn enter(&mut self, entry: Entry) -> DeliveryId {
        let id = self.entries.len() as u64;
        self.counts.sent += 1;
        self.due.push(Reverse((entry.due, id)));
        self.note(entry.sent, id, 1);
        self.entries.push(entry);
        DeliveryId(id)
    }
}

impl Source {
    /// A sender that nobody else is.
    pub fn new() -> Self {
        let next = scene::with(|scene| {
            let mut ledger = scene.ledger.borrow_mut();
            ledger.sources += 1;
            ledger.sources
        });
        Self(next.unwrap_or_default())
    }

    /// Enters a request whose outcome is due within `budget`.
    pub fn sent(self, target: &Address, budget: Duration) -> Sent {
        self.enter(target, budget, Direction::Request)
    }

    /// Enters a one-way delivery: only its failure is told, within `budget`.
    pub fn sent_one_way(self, target: &Address, budget: Duration) -> Sent {
        self.enter(target, budget, Direction::OneWay)
    }

    fn enter(self, target: &Address, budget: Duration, direction: Direction) -> Sent {
        let id = scene::with(|scene| {
            let sent = scene.now.get();
            let entry = Entry {
                sender: scene.process.get().expect("a delivery is sent by a process"),
                source: self,
                target: target.hash(),
                sent,
                due: sent + budget + scene.drift(budget) + GRACE,
                state: State::Open,
                direction,
                runs: 0,
                attempt: 0,
                runner: None,
            };
            let id = scene.ledger.borrow_mut().enter(entry);
            scene.note(|| format!("{id:?} to {target} from {self:?}"));
            id
        });
        Sent { id: id.unwrap_or(DeliveryId(0)), open: id.is_some() }
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::new()
    }
}

/// A delivery that was sent and whose outcome is awaited.
#[derive(Debug)]
#[must_use = "a delivery is closed by its outcome"]
pub struct Sent {
    id: DeliveryId,
    open: bool,
}

impl Sent {
    /// Which delivery.
    pub const fn id(&self) -> DeliveryId {
        self.id
    }

    /// The outcome: handled, or the failure.
    pub fn close(mut self, failure: Option<&DeliveryFailure>) {
        if std::mem::take(&mut self.open) {
            scene::with(|scene| close(scene, self.id, failure));
        }
    }
}

impl Drop for Sent {
    /// A request: its sender no longer waits. A one-way: no failure handler was called.
    fn drop(&mut self) {
        if self.open {
            scene::with(|scene| dropped(scene, self.id));
        }
    }
}

/// A handler runs a delivery, in its `attempt`.
pub fn ran(id: DeliveryId, attempt: u8) {
    scene::with(|scene| {
        let broken = scene.ledger.borrow_mut().ran(scene, id.0, attempt);
        scene.note(|| format!("{id:?} ran in attempt {attempt}"));
        if let Some(invariant) = broken {
            let text = scene.ledger.borrow().describe(id);
            scene.violate(invariant, text);
        }
    });
}

fn close(scene: &Rc<Scene>, id: DeliveryId, failure: Option<&DeliveryFailure>) {
    let broken = scene.ledger.borrow_mut().closed(scene.now.get(), id.0, failure);
    scene.note(|| format!("{id:?} ended: {failure:?}"));
    if let Some(invariant) = broken {
        let text = scene.ledger.borrow().describe(id);
        let outcome = failure.map_or_else(|| "handled".to_owned(), ToString::to_string);
        scene.violate(invariant, format!("{text}: {outcome}"));
    }
}

fn dropped(scene: &Rc<Scene>, id: DeliveryId) {
    let mut ledger = scene.ledger.borrow_mut();
    let entry = ledger.entry_mut(id.0);
    if entry.state != State::Open {
        return;
    }
    if entry.direction != Direction::OneWay {
        entry.state = State::Abandoned;
        ledger.counts.abandoned += 1;
        return;
    }
    let has_run = entry.runs > 0;
    entry.state = State::Closed(Certainty::Handled);
    ledger.counts.handled += 1;
    if !has_run {
        let text = ledger.describe(id);
        drop(ledger);
        scene.violate("a one-way whose failure nobody heard did run", text);
    }
}

fn certainty(failure: Option<&DeliveryFailure>) -> Certainty {
    match failure {
        None => Certainty::Handled,
        Some(DeliveryFailure::Rejected { .. }) => Certainty::Rejected,
        Some(DeliveryFailure::Failed { .. }) => Certainty::Failed,
        Some(DeliveryFailure::Indeterminate { .. } | DeliveryFailure::Unknown { .. }) => {
            Certainty::Indeterminate
        }
    }
}

impl Ledger {
    fn closed(
        &mut self,
        now: Moment,
        id: u64,
        failure: Option<&DeliveryFailure>,
    ) -> Option<&'static str> {
        let certainty = certainty(failure);
        self.note(now, id, 2 + certainty as u64);
        let entry = self.entry_mut(id);
        let (before, runs) = (entry.state, entry.runs);
        if before == State::Orphaned {
            return None;
        }
        entry.state = State::Closed(certainty);
        match failure {
            None => self.counts.handled += 1,
            Some(failure) => *self.counts.failed.entry(failure.name()).or_default() += 1,
        }
        match (before, certainty) {
            (State::Closed(_) | State::Abandoned, _) => Some("P0 exactly one outcome"),
            (State::Open | State::Orphaned, Certainty::Rejected) if runs > 0 => {
                Some("a rejected delivery never ran")
            }
            (State::Open | State::Orphaned, Certainty::Handled) if runs == 0 => {
                Some("a handled delivery ran")
            }
            (State::Open | State::Orphaned, _) => None,
        }
    }

    fn ran(&mut self, scene: &Rc<Scene>, id: u64, attempt: u8) -> Option<&'static str> {
        self.counts.ran += 1;
        self.note(scene.now.get(), id, 8 + u64::from(attempt));
        let entry = self.entry_mut(id);
        entry.runs = entry.runs.saturating_add(1);
        entry.attempt = attempt;
        entry.runner = scene.process.get();
        if entry.runs > 1 {
            return Some("no handler runs twice for one delivery");
        }
        if entry.state == State::Closed(Certainty::Rejected) {
            return Some("a rejected delivery never ran");
        }
        let runner = scene.process.get()?;
        let key = (entry.source, entry.target, runner);
        let (sender, sent) = (entry.sender, entry.sent);
        let last = self.orders.get(&key).copied();
        if last.is_none_or(|last| last < id) {
            self.orders.insert(key, id);
            return None;
        }
        let excused = attempt > 1 || scene.broke_since(sender, runner, sent);
        (!excused).then_some("FIFO per source activation and target")
    }
}

#[cfg(test)]
pub(super) use tests::on_a_scene;

#[cfg(test)]
mod tests {
    use siloring_core::RejectedKind;

    use super::super::world::HostId;
    use super::*;

    pub(in super::super) fn on_a_scene() -> Rc<Scene> {
        let scene = Rc::new(Scene::default());
        scene.hosts.borrow_mut().push(HostId(0));
        scene.process.set(Some(ProcessId(0)));
        scene.enter();
        scene
    }

    fn target() -> Address {
        Address::parse("test/one").unwrap()
    }

    const BUDGET: Duration = Duration::from_secs(1);

    fn rejected() -> DeliveryFailure {
        DeliveryFailure::rejected(RejectedKind::Draining, "")
    }

    #[test]
    fn a_delivery_that_ran_and_was_handled_is_sound() {
        let scene = on_a_scene();
        let sent = Source::new().sent(&target(), BUDGET);
        ran(sent.id(), 1);
        sent.close(None);
        assert!(scene.is_sound());
        assert_eq!(
            (scene.ledger.borrow().counts().handled, scene.ledger.borrow().counts().open()),
            (1, 0)
        );
    }

    #[test]
    fn a_doubled_run_is_seen() {
        let scene = on_a_scene();
        let sent = Source::new().sent(&target(), BUDGET);
        ran(sent.id(), 1);
        ran(sent.id(), 2);
        assert!(!scene.is_sound());
        drop(sent);
    }

    #[test]
    fn a_rejected_delivery_that_runs_is_seen_in_either_order() {
        for ran_first in [true, false] {
            let scene = on_a_scene();
            let sent = Source::new().sent(&target(), BUDGET);
            let id = sent.id();
            if ran_first {
                ran(id, 1);
            }
            sent.close(Some(&rejected()));
            if !ran_first {
                ran(id, 1);
            }
            assert!(!scene.is_sound(), "ran first: {ran_first}");
        }
    }

    #[test]
    fn a_delivery_overtaken_by_a_later_one_is_seen_unless_it_was_sent_again() {
        for (attempt, sound) in [(1, false), (2, true)] {
            let scene = on_a_scene();
            scene.now.set(Moment::from_nanos(5));
            let source = Source::new();
            let (first, second) = (source.sent(&target(), BUDGET), source.sent(&target(), BUDGET));
            ran(second.id(), 1);
            ran(first.id(), attempt);
            assert_eq!(scene.is_sound(), sound, "attempt {attempt}");
            drop((first, second));
        }
    }

    #[test]
    fn an_open_delivery_is_due_after_its_budget_and_not_before() {
        let scene = on_a_scene();
        let sent = Source::new().sent(&target(), BUDGET);
        let early = scene.ledger.borrow_mut().take_due(Moment::ZERO + BUDGET);
        assert!(early.is_empty());
        let late = scene.ledger.borrow_mut().take_due(Moment::ZERO + 2 * BUDGET);
        assert_eq!(late, [(sent.id(), ProcessId(0))]);
        drop(sent);
    }

    #[test]
    fn a_silent_one_way_is_seen() {
        let scene = on_a_scene();
        drop(Source::new().sent_one_way(&target(), BUDGET));
        assert!(!scene.is_sound());
    }
}
