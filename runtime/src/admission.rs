//! Whether a shard takes a new request: by how long what comes has waited for it.
//!
//! Caps in items and bytes bound what a shard holds, not how long it makes others wait: a queue
//! that never empties is as long as its cap lets it be, and everybody in it pays for that. So what
//! is watched is the wait itself, after Nichols and Jacobson, "Controlling Queue Delay" (ACM Queue
//! 10(5), 2012), as servers use it (Maurer, "Fail at Scale", ACM Queue 13(8), 2015).
//!
//! Contract:
//! - inputs: [`Admission::judge`] for each request that would begin work, with the time and a
//!   moment after which it came; [`Admission::stepped`], how many turns were run beside, and
//!   [`Admission::worked`], how long a loop took that had work; [`Admission::tick`];
//! - a request is *late* if it has waited for longer than [`Admission::delay_max`]: the setting, or
//!   [`TURNS_AHEAD`] usual turns where these are longer, so that a shard of slow turns is not taken
//!   for an overloaded one;
//! - refusing begins once all that came were late for [`OVERLOAD_INTERVAL`]: a burst that is
//!   worked off by then is none of its business. While it lasts only what is late is refused;
//! - it ends after an interval in which no more than one in [`LATE_SHARE`] was late;
//! - of those that are late one in [`LATE_TAKEN`] is taken: a shard that refusing alone keeps busy
//!   would do nothing else;
//! - bounds: a few numbers, whatever comes.
//!
//! Deliberately absent: what a shard's own futures ask of it, which is work already taken;
//! replies, control and directory traffic, which end work; requests that wait for one busy
//! activation, which the shard could serve at once: their bounds are the activation's queue and
//! their deadlines; the time that a request spent with its sender, which only that one knows.

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::limits::{
    LOOK_AFTER_WORK, LOOP_TIME_MAX, OVERLOAD_DELAY_MAX, OVERLOAD_INTERVAL, TURNS_PER_LOOK_MAX,
    TURNS_PER_LOOP_MAX,
};
use siloring_core::time::Moment;

/// So many usual turns may be ahead of a request: at four fifths of a shard's capacity, with
/// arrivals at random, one request in a thousand finds more.
const TURNS_AHEAD: u64 = 16;
/// Refusing ends when only one request in so many is late.
const LATE_SHARE: u64 = 16;
/// One in so many late requests is taken: too few to be seen in a percentile.
const LATE_TAKEN: u64 = 256;
/// The mean of a turn is over the last so many.
const TURNS_MEANT: u64 = 256;

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It begins.
    Admit,
    /// It is told `Overloaded`, and has not run.
    Refuse,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// What comes is taken in time.
    Open,
    /// All that came since the first of these moments was late; the second is the last of it.
    Late { since: Moment, last: Moment },
    /// What is late is refused; counted since `since`.
    Refusing { since: Moment, judged_count: u64, late_count: u64 },
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The setting.
    delay_target: Duration,
    state: State,
    /// What the last turns took, and how many they were.
    worked_ns: u64,
    worked_count: u64,
    /// Turns since [`Admission::worked`]: most requests run as they come, the rest is stepped.
    turns_count: u64,
    /// Requests that were refused, ever.
    refused_count: u64,
    event: Option<Event>,
}

impl Admission {
    pub(crate) const fn new(delay_target: Duration) -> Self {
        Self {
            delay_target,
            state: State::Open,
            worked_ns: 0,
            worked_count: 0,
            turns_count: 0,
            refused_count: 0,
            event: None,
        }
    }

    /// Whether a request that came after `came_after` may begin at `now`.
    #[inline]
    pub(crate) fn judge(&mut self, now: Moment, came_after: Moment) -> Verdict {
        if now.since(came_after) <= self.delay_target && self.state == State::Open {
            self.turns_count += 1;
            return Verdict::Admit;
        }
        self.judge_late(now, now.since(came_after))
    }

    #[cold]
    fn judge_late(&mut self, now: Moment, waited: Duration) -> Verdict {
        let is_late = waited > self.delay_max();
        self.state = match self.state {
            State::Open | State::Late { .. } if !is_late => State::Open,
            State::Open => State::Late { since: now, last: now },
            State::Late { last, .. } if now.since(last) >= OVERLOAD_INTERVAL => {
                State::Late { since: now, last: now }
            }
            State::Late { since, .. } if now.since(since) < OVERLOAD_INTERVAL => {
                State::Late { since, last: now }
            }
            State::Late { .. } => {
                let waited_us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
                self.event = Some(Event::OverloadStarted { waited_us });
                State::Refusing { since: now, judged_count: 0, late_count: 0 }
            }
            refusing @ State::Refusing { .. } => refusing,
        };
        if let State::Refusing { judged_count, late_count, .. } = &mut self.state {
            *judged_count += 1;
            *late_count += u64::from(is_late);
            if is_late && !late_count.is_multiple_of(LATE_TAKEN) {
                self.refused_count += 1;
                return Verdict::Refuse;
            }
        }
        self.turns_count += 1;
        Verdict::Admit
    }

    /// So many turns were run that no request began as it came: of what had waited, and of futures.
    #[inline]
    pub(crate) const fn stepped(&mut self, count: u64) {
        self.turns_count += count;
    }

    /// A loop that had something to do took so long.
    pub(crate) fn worked(&mut self, span: Duration) {
        self.worked_ns = self.worked_ns.saturating_add(nanos(span));
        self.worked_count += self.turns_count;
        self.turns_count = 0;
        while self.worked_count >= TURNS_MEANT {
            self.worked_ns /= 2;
            self.worked_count /= 2;
        }
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, now: Moment) {
        let State::Refusing { since, judged_count, late_count } = self.state else { return };
        if now.since(since) < OVERLOAD_INTERVAL {
            return;
        }
        self.state = if late_count * LATE_SHARE <= judged_count {
            self.event = Some(Event::OverloadEnded { refused_count: self.refused_count });
            State::Open
        } else {
            State::Refusing { since: now, judged_count: 0, late_count: 0 }
        };
    }

    /// When [`Admission::tick`] has something to do.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Moment {
        match self.state {
            State::Open | State::Late { .. } => Moment::NEVER,
            State::Refusing { since, .. } => since + OVERLOAD_INTERVAL,
        }
    }

    /// That refusing began, or ended.
    pub(crate) const fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Requests that were refused, ever.
    pub(crate) const fn refused_count(&self) -> u64 {
        self.refused_count
    }

    /// How many requests to take before the time is read again.
    pub(crate) fn turns_per_look(&self) -> usize {
        turns_in(LOOK_AFTER_WORK, self.mean_ns(), TURNS_PER_LOOK_MAX)
    }

    /// How many steps to make before the links are looked at again.
    pub(crate) fn turns_per_loop(&self) -> usize {
        turns_in(LOOP_TIME_MAX, self.mean_ns(), TURNS_PER_LOOP_MAX)
    }

    /// How long a request may have waited.
    fn delay_max(&self) -> Duration {
        let turns = Duration::from_nanos(self.mean_ns().saturating_mul(TURNS_AHEAD));
        self.delay_target.max(turns.min(OVERLOAD_DELAY_MAX))
    }

    /// What a turn costs the shard, all in all. Asked in each loop: a division and no more.
    fn mean_ns(&self) -> u64 {
        self.worked_ns.checked_div(self.worked_count).unwrap_or_default()
    }
}

/// How many turns fit a span: one at least, and no more than `most`.
fn turns_in(span: Duration, turn_ns: u64, most: usize) -> usize {
    let fitting = nanos(span).checked_div(turn_ns);
    fitting.and_then(|count| usize::try_from(count).ok()).map_or(most, |count| count.clamp(1, most))
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
