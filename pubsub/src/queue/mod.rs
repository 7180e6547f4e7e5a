//! The queue of one stream: events in order, one cursor a consumer, publishers' lanes.
//!
//! Contract:
//! - inputs: [`Queue::publish`], [`Queue::attach`], [`Queue::detach`], [`Queue::take_ready`],
//!   [`Queue::report`], [`Queue::expire`], each with the time where it matters;
//! - effects: [`Queue::poll_output`]: events that are closed, dead letters, consumers to evict;
//! - invariants: positions rise by one; a consumer is handed each event that it owes in order, in
//!   one batch at a time; an event is closed once, when every consumer that was attached when it
//!   was taken in has confirmed it, lost it as a dead letter or been told of a gap; one number of
//!   a lane is taken in once, and in the order of the lane; an attempt is counted before its event
//!   is handed out and taken back only if the event certainly did not run;
//! - bounds: [`QUEUE_EVENTS_MAX`] and [`QUEUE_BYTES_MAX`] for what is not closed, beyond them
//!   `Overloaded`; `LANES_MAX` lanes; [`LANE_HELD_MAX`] events that wait for an earlier one of
//!   their lane; closed events stay for who rewinds, up to the policy's retention.

mod consumers;
mod lanes;
#[cfg(all(test, not(loom)))]
mod models;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use siloring_core::body::Body;
use siloring_core::limits::{
    LANE_HELD_MAX, LANE_HOLD_MAX, PUBLISH_FAILURES_MAX, QUEUE_BYTES_MAX, QUEUE_EVENTS_MAX,
};
use siloring_core::outcome::{DeliveryFailure, IndeterminateKind, RejectedKind};
use siloring_core::schema::Schema;
use siloring_core::time::Moment;

use crate::few::{Few, push_back};
use crate::policy::StreamPolicy;

use consumers::Consumer;
use lanes::Lane;

/// Names a consumer of one queue; never used again.
pub(crate) type ConsumerKey = u64;

/// Whoever asks for a consumer has just looked.
const ATTACHED: &str = "the consumer is attached";

/// A lane knows which of its events are.
const OPEN: &str = "the event is not closed";

/// Names somebody who waits for an event to be closed.
pub(crate) type Waiting = u64;

/// Who published an event, and its number there: what tells a frame that was sent again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Origin {
    /// The publisher: one incarnation's one shard.
    pub(crate) lane: u128,
    /// From 1, without holes.
    pub(crate) number: u64,
}

/// An event on its way into the queue.
#[derive(Debug)]
pub(crate) struct NewEvent {
    pub(crate) origin: Origin,
    /// The lowest number of the lane that has no outcome yet: earlier ones are not waited for.
    pub(crate) base: u64,
    /// How often it may have been handed out by earlier owners.
    pub(crate) attempts_before: u8,
    pub(crate) schema: Schema,
    pub(crate) body: Body,
    /// When its publisher stops waiting.
    pub(crate) deadline: Moment,
    /// Who waits for it to be closed.
    pub(crate) waiting: Waiting,
    /// Consumers that do not want it.
    pub(crate) skipped: Vec<ConsumerKey>,
}

/// What became of a publish.
#[derive(Debug, PartialEq)]
pub(crate) enum Published {
    /// Taken in, at this position.
    Queued(u64),
    /// Taken in before, and not closed: the waiting one hears with the others.
    Known(u64),
    /// Waits for an earlier one of its lane.
    Held,
    /// Closed before, like this.
    Closed(Summary),
    /// Not taken in.
    Refused(DeliveryFailure),
}

/// A consumer that did not handle an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConsumerFailure {
    /// Which consumer.
    pub(crate) consumer: ConsumerKey,
    /// Its subscription's key.
    pub(crate) key: Box<str>,
    /// Why.
    pub(crate) failure: DeliveryFailure,
}

/// How an event was closed.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Summary {
    /// Where it stood.
    pub(crate) position: u64,
    /// How many consumers handled it.
    pub(crate) handled: u32,
    /// How many did not.
    pub(crate) failed: u32,
    /// The first few of those.
    pub(crate) failures: Vec<ConsumerFailure>,
    /// What its last consumer answered, if that was more than a confirmation.
    pub(crate) reply: Option<(Schema, Body)>,
}

/// What the queue wants done.
#[derive(Debug, PartialEq)]
pub(crate) enum QueueOutput {
    /// Tell those who wait.
    Closed { waiting: Vec<Waiting>, summary: Summary },
    /// A held event could not be taken in after all.
    Refused { waiting: Waiting, failure: DeliveryFailure },
    /// An event that a consumer will not get any more.
    DeadLetter { consumer: ConsumerKey, letter: Letter, failure: DeliveryFailure },
    /// A consumer is gone for good, says this failure.
    Evict { consumer: ConsumerKey, failure: DeliveryFailure },
    /// A consumer was too slow: this many events it will not get.
    Gap { consumer: ConsumerKey, missed: u64 },
}

/// What a dead letter keeps of its event.
#[derive(Debug, PartialEq)]
pub(crate) struct Letter {
    pub(crate) origin: Origin,
    pub(crate) attempts: u8,
    pub(crate) schema: Schema,
    pub(crate) body: Body,
}

/// A batch for a consumer: these positions, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Batch {
    pub(crate) positions: Vec<(u64, u8)>,
    /// Events that the consumer was not given before the first one.
    pub(crate) missed: u64,
    /// The first one was handed out before, and may have run. So is the number of its attempts
    /// bounded: this one is to be waited for, and never [`Report::Running`].
    pub(crate) is_again: bool,
}

/// What came of a batch.
#[derive(Debug, PartialEq)]
pub(crate) enum Report {
    /// Of the batch's events the first `done` were handled; the next one ended so, those after it
    /// were not begun.
    Ran { done: usize, failure: Option<DeliveryFailure>, reply: Option<(Schema, Body)> },
    /// After the first `done` the consumer was still at work: it is asked again, and waited for.
    Running { done: usize },
    /// Nobody knows how far it came.
    Lost(DeliveryFailure),
}

#[derive(Debug)]
struct Entry {
    origin: Origin,
    attempts_before: u8,
    schema: Schema,
    /// No more than it has: it may be retained for long.
    body: Box<[u8]>,
    deadline: Moment,
    skipped: Vec<ConsumerKey>,
    /// Until every consumer is through with it. Apart, as closed ones stay for longer.
    open: Option<Box<Open>>,
}

/// What is needed of an event until it is closed.
#[derive(Debug)]
struct Open {
    /// Consumers that owe an answer.
    owing: usize,
    waiting: Vec<Waiting>,
    summary: Summary,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    policy: StreamPolicy,
    /// The position of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
    open_count: usize,
    open_bytes: usize,
    retained_bytes: usize,
    consumers: Few<ConsumerKey, Box<Consumer>>,
    next_consumer: ConsumerKey,
    lanes: Few<u128, Box<Lane>>,
    outputs: VecDeque<QueueOutput>,
    #[cfg(feature = "planted")]
    planted: crate::planted::Planted,
}

impl Queue {
    /// Plants a defect.
    #[cfg(feature = "planted")]
    pub(crate) const fn plant(&mut self, defect: crate::planted::Planted) {
        self.planted = defect;
    }

    #[cfg(feature = "planted")]
    const fn planted(&self) -> crate::planted::Planted {
        self.planted
    }

    /// An empty queue.
    pub(crate) fn new(policy: StreamPolicy) -> Self {
        Self {
            policy,
            first: 1,
            entries: VecDeque::new(),
            open_count: 0,
            open_bytes: 0,
            retained_bytes: 0,
            consumers: Few::new(),
            next_consumer: 0,
            lanes: Few::new(),
            outputs: VecDeque::new(),
            #[cfg(feature = "planted")]
            planted: crate::planted::Planted::None,
        }
    }

    /// The position of the next event.
    pub(crate) fn next_position(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// How many consumers there are.
    pub(crate) fn consumers_count(&self) -> usize {
        self.consumers.len()
    }

    /// Whether every event is closed and nobody waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.unsettled_count() == 0
    }

    /// Events that are not closed, or wait for an earlier one of their lane.
    pub(crate) fn unsettled_count(&self) -> usize {
        self.open_count + self.lanes.values().map(|lane| lane.held_count()).sum::<usize>()
    }

    fn emit(&mut self, output: QueueOutput) {
        push_back(&mut self.outputs, output);
    }

    /// The next effect.
    pub(crate) fn poll_output(&mut self) -> Option<QueueOutput> {
        let output = self.outputs.pop_front();
        if output.is_none() {
            // An idle queue keeps no room for them.
            self.outputs = VecDeque::new();
        }
        output
    }

    /// Adds a consumer: it gets every event from now on, or from an earlier position that is still
    /// there. Says where it begins and how many events it asked for are gone.
    pub(crate) fn attach(
        &mut self,
        key: &str,
        is_owned: bool,
        from: Option<u64>,
    ) -> (ConsumerKey, u64, u64) {
        let next = self.next_position();
        let wanted = from.unwrap_or(next).min(next);
        let cursor = wanted.max(self.first);
        let missed = cursor - wanted;
        let consumer = self.next_consumer;
        self.next_consumer += 1;
        let attached = Consumer {
            key: key.into(),
            is_owned,
            cursor,
            owes_from: next,
            attempts: VecDeque::new(),
            busy: None,
            ready_at: Moment::ZERO,
            failures: 0,
            missed,
        };
        self.consumers.insert(consumer, Box::new(attached));
        (consumer, cursor, missed)
    }

    /// Removes a consumer: what it still owes ends with `failure`.
    pub(crate) fn detach(&mut self, consumer: ConsumerKey, failure: &DeliveryFailure) {
        let Some(gone) = self.consumers.remove(&consumer) else { return };
        for position in gone.cursor.max(gone.owes_from)..self.next_position() {
            let entry = &mut self.entries[index_of(self.first, position)];
            if entry.skipped.contains(&consumer) {
                continue;
            }
            let handed = gone.attempts.get(index_of(gone.cursor, position)).copied();
            let told = told(failure, handed.unwrap_or(0));
            note_failure(entry, consumer, &gone.key, &told);
            self.settle(position);
        }
        self.forget_closed();
    }

    fn take_in(&mut self, event: NewEvent) -> Published {
        if self.consumers.is_empty() {
            let detail = "the stream has no live subscriber";
            return Published::Refused(DeliveryFailure::rejected(
                RejectedKind::NoSubscriber,
                detail,
            ));
        }
        let bytes = event.body.len();
        if self.open_count >= QUEUE_EVENTS_MAX || self.open_bytes + bytes > QUEUE_BYTES_MAX {
            return refused("the stream's queue is full");
        }
        if !self.has_credit() {
            return refused("a consumer of the stream is too slow");
        }
        let position = self.next_position();
        let lane = self.lanes.get_or_default(event.origin.lane);
        lane.expected = lane.expected.max(event.origin.number + 1);
        lane.open.insert(event.origin.number, position);
        self.open_count += 1;
        self.open_bytes += bytes;
        let owing = self.consumers.len() - event.skipped.len();
        let summary = Summary { position, ..Summary::default() };
        let entry = Entry {
            origin: event.origin,
            attempts_before: event.attempts_before,
            schema: event.schema,
            body: event.body.as_slice().into(),
            deadline: event.deadline,
            skipped: event.skipped,
            open: Some(Box::new(Open { owing, waiting: vec![event.waiting], summary })),
        };
        push_back(&mut self.entries, entry);
        if owing == 0 {
            self.close(position);
        }
        Published::Queued(position)
    }

    /// An event as it is handed out: its origin, schema and body.
    pub(crate) fn event(&self, position: u64) -> (Origin, Schema, &[u8]) {
        let entry = &self.entries[index_of(self.first, position)];
        (entry.origin, entry.schema, &entry.body)
    }

    /// When the last of a batch's events is given up.
    pub(crate) fn deadline(&self, batch: &Batch) -> Moment {
        let deadlines = batch
            .positions
            .iter()
            .map(|(position, _)| self.entries[index_of(self.first, *position)].deadline);
        deadlines.max().unwrap_or(Moment::ZERO)
    }

    /// Gives up what nobody waits for any more, and what was held for too long.
    pub(crate) fn expire(&mut self, now: Moment) {
        let keys: Vec<ConsumerKey> = self.consumers.keys().copied().collect();
        for key in keys {
            while let Some((position, attempts)) = self.overdue(now, key) {
                let detail = "no attempt was confirmed before the publisher's deadline";
                let failure = if attempts == 0 {
                    DeliveryFailure::rejected(RejectedKind::Overloaded, detail)
                } else {
                    DeliveryFailure::indeterminate(IndeterminateKind::TimedOut, detail)
                };
                self.bury(key, position, attempts, &failure);
            }
        }
        self.expire_held(now);
        self.forget_closed();
    }

    /// When [`Queue::take_ready`] or [`Queue::expire`] may have something to do again.
    pub(crate) fn next_wake(&self) -> Moment {
        let next = self.next_position();
        let waiting = self
            .consumers
            .iter()
            .filter(|(_, consumer)| consumer.busy.is_none() && consumer.cursor < next);
        let consumers = waiting.map(|(_, consumer)| {
            let entry = self.entries.get(self.index(consumer.cursor));
            let deadline = entry.map_or(Moment::NEVER, |entry| entry.deadline);
            consumer.ready_at.min(deadline)
        });
        let held = self.lanes.values().filter_map(|lane| lane.held_since);
        let held = held.map(|since| since + LANE_HOLD_MAX);
        consumers.chain(held).min().unwrap_or(Moment::NEVER)
    }

    fn index(&self, position: u64) -> usize {
        index_of(self.first, position)
    }

    /// One answer fewer is owed for an event.
    fn settle(&mut self, position: u64) {
        let entry = &mut self.entries[index_of(self.first, position)];
        let Some(open) = &mut entry.open else { return };
        open.owing = open.owing.saturating_sub(1);
        if open.owing == 0 {
            self.close(position);
        }
    }

    fn close(&mut self, position: u64) {
        let entry = &mut self.entries[index_of(self.first, position)];
        let Some(open) = entry.open.take() else { return };
        let Open { waiting, summary, .. } = *open;
        let bytes = entry.body.len();
        let lane = self.lanes.get_mut(&entry.origin.lane).expect("a lane with open events stays");
        lane.open.remove(&entry.origin.number);
        if lane.closed.len() >= LANE_HELD_MAX {
            lane.closed.pop_first();
        }
        lane.closed.insert(entry.origin.number, summary.clone());
        self.open_count -= 1;
        self.open_bytes -= bytes;
        self.retained_bytes += bytes;
        self.emit(QueueOutput::Closed { waiting, summary });
    }

    /// Lets closed events go that nobody reads and that are more than the policy keeps.
    fn forget_closed(&mut self) {
        let read_from = self.consumers.values().map(|consumer| consumer.cursor).min();
        let read_from = read_from.unwrap_or_else(|| self.next_position());
        while let Some(entry) = self.entries.front() {
            let is_open = entry.open.is_some();
            let is_kept = self.entries.len() <= self.policy.retained_events
                && self.retained_bytes <= self.policy.retained_bytes;
            if is_open || self.first >= read_from || is_kept {
                return;
            }
            self.retained_bytes -= entry.body.len();
            self.entries.pop_front();
            self.first += 1;
        }
    }
}

fn index_of(first: u64, position: u64) -> usize {
    usize::try_from(position - first).expect("bounded by QUEUE_EVENTS_MAX")
}

fn refused(detail: &str) -> Published {
    Published::Refused(DeliveryFailure::rejected(RejectedKind::Overloaded, detail))
}

/// A failure as it is told of an event that was handed out so often: what may have run before is
/// not rejected, whatever became of it last.
fn told(failure: &DeliveryFailure, handed: u8) -> DeliveryFailure {
    if handed == 0 || failure.rejected_kind().is_none() {
        return failure.clone();
    }
    let detail = format!("it was handed out and may have run; then: {failure}");
    DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, detail)
}

fn note_failure(entry: &mut Entry, consumer: ConsumerKey, key: &str, failure: &DeliveryFailure) {
    let Some(Open { summary, .. }) = entry.open.as_deref_mut() else { return };
    summary.failed += 1;
    if summary.failures.len() < PUBLISH_FAILURES_MAX {
        let failure = failure.clone();
        summary.failures.push(ConsumerFailure { consumer, key: key.into(), failure });
    }
}
