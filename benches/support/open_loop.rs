//! Calls at a steady pace, whatever becomes of the calls before: an open loop.
//!
//! Each call has a time at which it is due, and its latency is taken from that time: what a slow
//! answer holds up counts as late, and nothing is left out because its caller waited
//! ("coordinated omission", as the manual of `HdrHistogram` calls that). A fixed number of workers
//! make the calls; one that is late takes the oldest that is due.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use siloring::prelude::*;

use crate::silos::{Echo, EchoRef, KEY, Payload, begin_on, run_on};
use crate::support::{Effort, Sample, histogram, nanoseconds};

/// Calls that can be under way at once.
const WORKERS: usize = 1024;
/// Of the most calls a second, in hundredths.
const SHARE: u32 = 80;

/// Latencies at [`SHARE`] of the most calls that the same workers make in a second.
pub(crate) fn latencies(silo: &Handle, effort: Effort) -> anyhow::Result<Sample> {
    let peak = run(silo, Pace::new(Duration::ZERO, effort.time))?;
    let count = u32::try_from(peak.times.len()).context("a round is short")?;
    let interval = peak.ended.saturating_duration_since(peak.begun) * 100 / (count.max(1) * SHARE);
    Ok(Sample::Latency(run(silo, Pace::new(interval, effort.time))?.times))
}

/// When calls are due, and how late they were answered.
struct Pace {
    begun: Instant,
    /// Of the answer that came last.
    ended: Instant,
    interval: Duration,
    length: Duration,
    /// Calls that were given to workers.
    given: u32,
    times: Histogram<u64>,
    idle: VecDeque<Waker>,
}

impl Pace {
    fn new(interval: Duration, length: Duration) -> Self {
        let (begun, times) = (Instant::now(), histogram());
        Self { begun, ended: begun, interval, length, given: 0, times, idle: VecDeque::new() }
    }

    /// The next call that is due.
    fn next(&mut self, now: Instant, cx: &Context<'_>) -> Poll<Option<Instant>> {
        let due =
            if self.interval.is_zero() { now } else { self.begun + self.interval * self.given };
        if due.saturating_duration_since(self.begun) >= self.length {
            return Poll::Ready(None);
        }
        if due > now {
            self.idle.push_back(cx.waker().clone());
            return Poll::Pending;
        }
        self.given += 1;
        Poll::Ready(Some(due))
    }

    fn answered(&mut self, due: Instant) {
        self.ended = Instant::now();
        self.times.saturating_record(nanoseconds(self.ended.saturating_duration_since(due)));
    }

    /// Wakes a worker for each call that is due by now, and all at the end; whether it is.
    fn wake(&mut self, now: Instant) -> bool {
        let is_over = now.saturating_duration_since(self.begun) >= self.length;
        let mut due = self.begun + self.interval * self.given;
        while is_over || due <= now {
            let Some(waker) = self.idle.pop_front() else { break };
            waker.wake();
            due += self.interval;
        }
        is_over
    }
}

/// Runs one loop to its end.
fn run(silo: &Handle, pace: Pace) -> anyhow::Result<Pace> {
    let pace = Arc::new(Mutex::new(pace));
    let workers = (0..WORKERS).map(|_| {
        let (pace, echo) = (Arc::clone(&pace), silo.grain::<Echo>(KEY));
        begin_on(silo, 0, move || async move {
            while let Some(due) = poll_fn(|cx| lock(&pace).next(Instant::now(), cx)).await {
                echo.echo(Payload::new()).await?;
                lock(&pace).answered(due);
            }
            Ok::<(), CallError>(())
        })
    });
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    let waking = Arc::clone(&pace);
    run_on(silo, 0, move || {
        poll_fn(move |cx| {
            if lock(&waking).wake(Instant::now()) {
                return Poll::Ready(());
            }
            // Looks again after what is ready now.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    })?;
    for worker in workers {
        worker.recv().context("the silo ended")??;
    }
    let pace = Arc::into_inner(pace).context("the workers have ended")?;
    Ok(pace.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock(pace: &Mutex<Pace>) -> MutexGuard<'_, Pace> {
    pace.lock().unwrap_or_else(PoisonError::into_inner)
}
