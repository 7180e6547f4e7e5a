//! Consumers of the queue: what each is handed, and what came of it.
//!
//! A consumer has one batch at a time. Its attempts are counted when a batch is made, and taken
//! back for events that certainly were not begun; after a failure it gets one event at a time, so
//! that the one that fails is found. Slow ones are dealt with as the policy says.

use std::collections::VecDeque;

use siloring_core::body::Body;
use siloring_core::limits::{
    BATCH_BYTES_MAX, BATCH_EVENTS_MAX, REDELIVERY_BACKOFF_MAX, REDELIVERY_BACKOFF_MIN,
};
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::ports::rare::{self, Rare};
use siloring_core::schema::Schema;
use siloring_core::time::Moment;

use super::{
    ATTACHED, Batch, ConsumerKey, Entry, Letter, Queue, QueueOutput, Report, index_of,
    note_failure, told,
};
use crate::few::push_back;
use crate::planted::is_planted;
use crate::policy::Overflow;
use crate::verdict::{Verdict, verdict};

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) key: Box<str>,
    /// Hub consumers may be evicted.
    pub(super) is_owned: bool,
    /// The next event for it.
    pub(super) cursor: u64,
    /// From here on its answers close events.
    pub(super) owes_from: u64,
    /// Hand-outs of the events from the cursor on.
    pub(super) attempts: VecDeque<u8>,
    /// The batch that it has.
    pub(super) busy: Option<Batch>,
    /// Not to be handed anything before.
    pub(super) ready_at: Moment,
    /// Tries in a row that failed.
    pub(super) failures: u32,
    /// Events dropped before the cursor that it has not been told of.
    pub(super) missed: u64,
}

impl Queue {
    /// Hands out what consumers are ready for.
    pub(crate) fn take_ready(&mut self, now: Moment) -> Vec<(ConsumerKey, Batch)> {
        // Once for all the reports of a frame.
        self.forget_closed();
        let next = self.next_position();
        let mut ready = Vec::new();
        let is_held = is_planted!(self, RefusalBlocksAll)
            && self.consumers.values().any(|consumer| consumer.failures > 0);
        for (&key, consumer) in self.consumers.iter_mut() {
            if is_held && consumer.failures == 0 {
                continue;
            }
            if consumer.busy.is_some() || consumer.cursor >= next || now < consumer.ready_at {
                continue;
            }
            let entries = (&self.entries, self.first);
            let batch = fill(key, consumer, entries, self.policy.attempts_max);
            if batch.positions.is_empty() {
                continue;
            }
            consumer.busy = Some(batch.clone());
            ready.push((key, batch));
        }
        ready
    }

    /// Takes what came of a consumer's batch.
    pub(crate) fn report(&mut self, now: Moment, key: ConsumerKey, report: Report) {
        let Some(consumer) = self.consumers.get_mut(&key) else { return };
        let Some(batch) = consumer.busy.take() else { return };
        match report {
            Report::Ran { done, failure, reply } => {
                let (done, failure) = if is_planted!(self, FailureCounts) && failure.is_some() {
                    (done + 1, None)
                } else {
                    (done, failure)
                };
                self.confirm(key, &batch, done, reply);
                let began = failure.as_ref().is_some_and(|failure| self.counts(failure));
                let unbegun = batch.positions.get(done + usize::from(began)..).unwrap_or_default();
                take_back(self.consumers.get_mut(&key).expect(ATTACHED), unbegun);
                match failure {
                    Some(failure) => self.failed(now, key, &failure),
                    None => self.consumers.get_mut(&key).expect(ATTACHED).failures = 0,
                }
            }
            Report::Running { done } => {
                self.confirm(key, &batch, done, None);
                // The one that it is at has begun: should it be lost, the next is another attempt.
                let unbegun = batch.positions.get(done + 1..).unwrap_or_default();
                take_back(self.consumers.get_mut(&key).expect(ATTACHED), unbegun);
            }
            Report::Lost(failure) => {
                if !self.counts(&failure) {
                    take_back(self.consumers.get_mut(&key).expect(ATTACHED), &batch.positions);
                }
                self.failed(now, key, &failure);
            }
        }
    }

    /// Whether an attempt that ended so is one: it may have run.
    fn counts(&self, failure: &DeliveryFailure) -> bool {
        let is_lost = matches!(failure, DeliveryFailure::Indeterminate { .. });
        failure.rejected_kind().is_none() && !(is_lost && is_planted!(self, AttemptAfterSend))
    }

    fn confirm(
        &mut self,
        key: ConsumerKey,
        batch: &Batch,
        done: usize,
        mut reply: Option<(Schema, Body)>,
    ) {
        let done = done.min(batch.positions.len());
        if done > 0 {
            let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
            consumer.missed -= batch.missed.min(consumer.missed);
        }
        let last = done.checked_sub(1);
        for (index, &(position, _)) in batch.positions[..done].iter().enumerate() {
            let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
            advance(consumer, position + 1);
            if position >= consumer.owes_from {
                let entry = &mut self.entries[index_of(self.first, position)];
                if let Some(open) = &mut entry.open {
                    open.summary.handled += 1;
                    if Some(index) == last && reply.is_some() {
                        open.summary.reply = reply.take();
                    }
                }
                self.settle(position);
            }
        }
        self.pass_skipped(key);
    }

    /// The event at the consumer's cursor was not handled.
    fn failed(&mut self, now: Moment, key: ConsumerKey, failure: &DeliveryFailure) {
        let position = self.pass_skipped(key);
        let Some(entry) = self.entries.get(self.index(position)) else { return };
        let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
        let handed = consumer.attempts.front().copied().unwrap_or(0);
        let attempts = entry.attempts_before.saturating_add(handed);
        let verdict = verdict(failure, attempts, self.policy.attempts_max, consumer.is_owned);
        #[cfg(feature = "planted")]
        let verdict = self.planted_verdict(key, failure, verdict);
        let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
        consumer.failures = consumer.failures.saturating_add(1);
        match verdict {
            Verdict::Again => {
                let wait =
                    REDELIVERY_BACKOFF_MIN * 2u32.saturating_pow(consumer.failures.min(10) - 1);
                consumer.ready_at = now + wait.min(REDELIVERY_BACKOFF_MAX);
            }
            Verdict::DeadLetter => self.bury(key, position, attempts, failure),
            Verdict::Evict => {
                // Until its owner has judged the row, it is left alone.
                consumer.ready_at = now + REDELIVERY_BACKOFF_MAX;
                self.emit(QueueOutput::Evict { consumer: key, failure: failure.clone() });
            }
        }
    }

    #[cfg(feature = "planted")]
    fn planted_verdict(
        &self,
        key: ConsumerKey,
        failure: &DeliveryFailure,
        verdict: Verdict,
    ) -> Verdict {
        let is_owned = self.consumers.get(&key).is_some_and(|consumer| consumer.is_owned);
        if is_planted!(self, EvictOnTransient) && is_owned && failure.is_transient() {
            return Verdict::Evict;
        }
        if is_planted!(self, NoDeadLetters) && verdict == Verdict::DeadLetter {
            return Verdict::Again;
        }
        verdict
    }

    /// A consumer will not get this event any more.
    pub(super) fn bury(
        &mut self,
        key: ConsumerKey,
        position: u64,
        attempts: u8,
        failure: &DeliveryFailure,
    ) {
        let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
        consumer.failures = 0;
        consumer.ready_at = Moment::ZERO;
        let name = consumer.key.clone();
        let owes = position >= consumer.owes_from;
        advance(consumer, position + 1);
        let entry = &mut self.entries[index_of(self.first, position)];
        let letter = Letter {
            origin: entry.origin,
            attempts,
            schema: entry.schema,
            body: Body::copy_of(&entry.body),
        };
        let output = QueueOutput::DeadLetter { consumer: key, letter, failure: failure.clone() };
        push_back(&mut self.outputs, output);
        if owes {
            note_failure(entry, key, &name, &told(failure, attempts));
            self.settle(position);
        }
    }

    /// The event that an idle consumer owes next, if its publisher has stopped waiting.
    pub(super) fn overdue(&mut self, now: Moment, key: ConsumerKey) -> Option<(u64, u8)> {
        if self.consumers.get(&key)?.busy.is_some() {
            return None;
        }
        let position = self.pass_skipped(key);
        let entry = self.entries.get(self.index(position))?;
        let consumer = self.consumers.get(&key).expect(ATTACHED);
        let handed = consumer.attempts.front().copied().unwrap_or(0);
        let is_late = position >= consumer.owes_from && now >= entry.deadline;
        is_late.then_some((position, entry.attempts_before.saturating_add(handed)))
    }

    /// Moves a consumer past events that it does not want; says where it stands then.
    pub(super) fn pass_skipped(&mut self, key: ConsumerKey) -> u64 {
        let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
        while let Some(entry) = self.entries.get(index_of(self.first, consumer.cursor))
            && entry.skipped.contains(&key)
        {
            let next = consumer.cursor + 1;
            advance(consumer, next);
        }
        consumer.cursor
    }

    /// Whether every consumer may be given one more; with [`Overflow::Gap`] room is made.
    pub(super) fn has_credit(&mut self) -> bool {
        let next = self.next_position();
        let limit = self.policy.backlog_max;
        let slow: Vec<ConsumerKey> = self
            .consumers
            .iter()
            .filter(|(_, consumer)| next - consumer.cursor >= limit)
            .map(|(key, _)| *key)
            .collect();
        match self.policy.overflow {
            Overflow::Refuse => slow.is_empty(),
            Overflow::Gap => {
                for consumer in slow {
                    self.skip_backlog(consumer);
                }
                true
            }
        }
    }

    /// Drops what a slow consumer has not been handed yet.
    fn skip_backlog(&mut self, key: ConsumerKey) {
        let next = self.next_position();
        let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
        let busy_until = consumer.busy.as_ref().and_then(|batch| batch.positions.last());
        let from = busy_until.map_or(consumer.cursor, |(last, _)| last + 1);
        let name = consumer.key.clone();
        let (owes_from, cursor) = (consumer.owes_from, consumer.cursor);
        let attempts = consumer.attempts.clone();
        let detail = "the consumer was too slow: it is told of the gap";
        let failure = DeliveryFailure::rejected(RejectedKind::Overloaded, detail);
        let mut missed = 0;
        for position in from..next {
            let entry = &mut self.entries[index_of(self.first, position)];
            if entry.skipped.contains(&key) {
                continue;
            }
            missed += 1;
            if position >= owes_from {
                let handed = attempts.get(index_of(cursor, position)).copied().unwrap_or(0);
                note_failure(entry, key, &name, &told(&failure, handed));
                self.settle(position);
            }
            // It passes this one without an answer.
            self.entries[index_of(self.first, position)].skipped.push(key);
        }
        if !is_planted!(self, GapUntold) {
            self.consumers.get_mut(&key).expect(ATTACHED).missed += missed;
        }
        let consumer = self.consumers.get_mut(&key).expect(ATTACHED);
        if consumer.busy.is_none() {
            consumer.cursor = next;
            consumer.attempts.clear();
        }
        if missed > 0 {
            self.emit(QueueOutput::Gap { consumer: key, missed });
        }
        self.forget_closed();
    }

    /// How many events a consumer has before it.
    pub(crate) fn backlog(&self, consumer: ConsumerKey) -> u64 {
        let cursor = self.consumers.get(&consumer).map(|consumer| consumer.cursor);
        cursor.map_or(0, |cursor| self.next_position() - cursor)
    }
}

/// Moves a consumer's cursor.
fn advance(consumer: &mut Consumer, to: u64) {
    let passed = usize::try_from(to - consumer.cursor).unwrap_or(usize::MAX);
    consumer.attempts.drain(..passed.min(consumer.attempts.len()));
    consumer.cursor = to;
}

/// Takes back the attempts of a batch's events that certainly were not begun.
fn take_back(consumer: &mut Consumer, unbegun: &[(u64, u8)]) {
    for (position, _) in unbegun {
        if let Some(attempt) = consumer.attempts.get_mut(index_of(consumer.cursor, *position)) {
            *attempt = attempt.saturating_sub(1);
        }
    }
}

/// The next batch of a consumer, counted as handed out. `entries` are those of the queue, from the
/// position beside them on.
fn fill(
    key: ConsumerKey,
    consumer: &mut Consumer,
    (entries, first): (&VecDeque<Entry>, u64),
    attempts_max: u8,
) -> Batch {
    let is_again = consumer.attempts.front().is_some_and(|attempts| *attempts > 0);
    let mut batch = Batch { positions: Vec::new(), missed: consumer.missed, is_again };
    let mut bytes = 0;
    // Whichever event made the last try fail, it is found by going one at a time.
    let is_small = is_again || rare::is_asked(Rare::SmallBatch);
    let limit = if is_small { 1 } else { BATCH_EVENTS_MAX };
    let from = index_of(first, consumer.cursor);
    for (index, entry) in entries.iter().enumerate().skip(from) {
        let position = first + index as u64;
        if entry.skipped.contains(&key) {
            if batch.positions.is_empty() {
                advance(consumer, position + 1);
            }
            continue;
        }
        bytes += entry.body.len();
        let is_full = batch.positions.len() >= limit || bytes > BATCH_BYTES_MAX;
        if is_full && !batch.positions.is_empty() {
            break;
        }
        let at = index_of(consumer.cursor, position);
        consumer.attempts.resize(consumer.attempts.len().max(at + 1), 0);
        let attempt = &mut consumer.attempts[at];
        *attempt = attempt.saturating_add(1);
        // Each owner that was lost may have made all its attempts, and no more, as a further one is
        // waited for and counts: no number is used twice.
        let before = entry.attempts_before.saturating_mul(attempts_max);
        batch.positions.push((position, before.saturating_add(*attempt)));
    }
    batch
}
