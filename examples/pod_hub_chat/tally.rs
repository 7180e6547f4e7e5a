//! What a pod counts, until the conductor hears of it.
//!
//! A grain begins from `Default` and has no way to be handed something, so this is the process's
//! one static. What was counted and not yet reported dies with the process; the conductor says so.

use std::mem;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use siloring::prelude::*;

use super::clock::now_us;
use super::journal::{Journal, Who};
use super::protocol::{Deliveries, Tally};

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
    to_room: Histogram<u64>,
    to_member: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        let inner = Inner {
            delivered: Deliveries::default(),
            to_room: histogram(),
            to_member: histogram(),
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
        self.lock().to_member.saturating_record(took_us);
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
                let kind = error.delivery().map_or("Refused", DeliveryFailure::name);
                *delivered.failed.entry(kind.to_owned()).or_default() += 1;
            }
        }
    }

    /// Takes what was counted since the last time.
    pub(crate) fn take(&self) -> Tally {
        let mut inner = self.lock();
        let delivered = mem::take(&mut inner.delivered);
        let (to_room_us, to_member_us) = (drain(&mut inner.to_room), drain(&mut inner.to_member));
        Tally { delivered, to_room_us, to_member_us }
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
