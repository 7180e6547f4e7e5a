//! What a pod counts, until the conductor hears of it.
//!
//! A grain begins from `Default` and has no way to be handed something, so this is the process's
//! one static. What was counted and not yet reported dies with the process; the conductor says so.

use std::mem;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use siloring::prelude::*;
use siloring::{Liveness, Published};

use super::clock::now_us;
use super::journal::{Journal, Who};
use super::protocol::{Checks, Deliveries, Tally};

/// Longest latency that is told apart: twice the default deadline.
pub(crate) const LATENCY_US_MAX: u64 = 60_000_000;

/// The process's counts.
pub(crate) static TALLY: LazyLock<Counts> = LazyLock::new(Counts::new);

pub(crate) struct Counts {
    /// What handlers ran.
    pub(crate) journal: Journal,
    /// Guards the counts: a shard adds to them once a message, the reporter takes them a
    /// few times a second.
    inner: Mutex<Inner>,
}

struct Inner {
    delivered: Deliveries,
    published: Deliveries,
    to_subscribers: Deliveries,
    checks: Checks,
    to_room: Histogram<u64>,
    to_member: Histogram<u64>,
    publish: Histogram<u64>,
    to_subscriber: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        let inner = Inner {
            delivered: Deliveries::default(),
            published: Deliveries::default(),
            to_subscribers: Deliveries::default(),
            checks: Checks::default(),
            to_room: histogram(),
            to_member: histogram(),
            publish: histogram(),
            to_subscriber: histogram(),
        };
        Self { journal: Journal::new(), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A room's handler runs for this post.
    pub(crate) fn posted(&self, number: u64, sent_us: u64) {
        self.journal.ran(Who::ROOM, number);
        let took_us = now_us().saturating_sub(sent_us);
        self.lock().to_room.saturating_record(took_us);
    }

    /// A member's hub handles this line.
    pub(crate) fn heard(&self, member: Who, number: u64, sent_us: u64) {
        self.journal.ran(member, number);
        let took_us = now_us().saturating_sub(sent_us);
        let mut inner = self.lock();
        let Inner { to_member, to_subscriber, .. } = &mut *inner;
        let latency = if member.is_over_stream() { to_subscriber } else { to_member };
        latency.saturating_record(took_us);
    }

    /// A room begins a delivery.
    pub(crate) fn delivery_began(&self) {
        self.lock().delivered.sent += 1;
    }

    /// A room heard how a delivery ended.
    pub(crate) fn delivery_ended(&self, outcome: &Result<(), CallError>) {
        let delivered = &mut self.lock().delivered;
        match outcome {
            Ok(()) => delivered.handled += 1,
            Err(error) => {
                delivered.failed(error.delivery().map_or("Refused", DeliveryFailure::name), 1);
            }
        }
    }

    /// A room begins a publish; this is what the subscriber check says before.
    pub(crate) fn publish_began(&self, check: &Liveness) {
        let mut inner = self.lock();
        inner.published.sent += 1;
        match check {
            Liveness::Live(_) => inner.checks.live += 1,
            Liveness::None { .. } => inner.checks.none += 1,
            Liveness::Unknown => inner.checks.unknown += 1,
        }
    }

    /// A room heard how a publish ended.
    pub(crate) fn publish_ended(&self, outcome: &Result<Published, DeliveryFailure>, took_us: u64) {
        let mut inner = self.lock();
        inner.publish.saturating_record(took_us);
        match outcome {
            Ok(published) => {
                inner.published.handled += 1;
                let (handled, failed) = (u64::from(published.handled), u64::from(published.failed));
                let members = &mut inner.to_subscribers;
                members.sent += handled + failed;
                members.handled += handled;
                for (_, failure) in &published.failures {
                    members.failed(failure.name(), 1);
                }
                let unnamed = failed - published.failures.len() as u64;
                if unnamed > 0 {
                    members.failed("unnamed, as too many failed", unnamed);
                }
            }
            Err(failure) => inner.published.failed(failure.name(), 1),
        }
    }

    /// Takes what was counted since the last time.
    pub(crate) fn take(&self) -> Tally {
        let mut inner = self.lock();
        Tally {
            delivered: mem::take(&mut inner.delivered),
            to_room_us: drain(&mut inner.to_room),
            to_member_us: drain(&mut inner.to_member),
            published: mem::take(&mut inner.published),
            published_us: drain(&mut inner.publish),
            to_subscribers: mem::take(&mut inner.to_subscribers),
            to_subscriber_us: drain(&mut inner.to_subscriber),
            checks: mem::take(&mut inner.checks),
        }
    }
}

/// An empty histogram of microseconds, within one per cent.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("the bounds are in order")
}

fn drain(histogram: &mut Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    let pairs = recorded.map(|step| (step.value_iterated_to(), step.count_since_last_iteration()));
    let pairs = pairs.collect();
    histogram.reset();
    pairs
}
