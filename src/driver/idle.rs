//! When a pump goes on, spins, passes through its engine, or sleeps.
//!
//! Spinning buys latency only while input comes often: the window is open while the moving average
//! of the gap between two inputs is below twice the window, and shut otherwise, so that a silo with
//! rare traffic uses no processor while it waits.

use core::time::Duration;

use siloring_core::Moment;
use siloring_core::limits::{LEDGER_TICK, SHARD_IDLE_AFTER, SHARD_IDLE_TICK, SHARD_SPIN_MAX};

/// What a shard does while it has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Idle {
    /// Sleeps at once: where shards share their processors with each other or with anything else.
    Park,
    /// Looks for input for at most `max` after the last one, while input comes often; then sleeps.
    Adaptive {
        /// The longest spin.
        max: Duration,
    },
    /// Never sleeps: for processors that nothing else uses.
    Spin,
}

impl Default for Idle {
    fn default() -> Self {
        Self::Adaptive { max: SHARD_SPIN_MAX }
    }
}

/// Between two trips through the engine, whose own work nothing waits for: as often as an idle
/// shard wakes anyway.
const TRIP_PERIOD: Duration = SHARD_IDLE_TICK;

/// What the pump does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Takes its next turn at once.
    Turn,
    /// Passes through the engine without sleeping, then takes its next turn.
    Trip,
    /// Sleeps until input, or at most so long.
    Park(Duration),
}

/// The state of the decision.
#[derive(Debug)]
pub(crate) struct IdleState {
    policy: Idle,
    /// When input came last.
    input_at: Moment,
    /// When the pump last passed through the engine.
    trip_at: Moment,
    /// Moving average of the gap between inputs.
    gap_ns: u64,
}

/// A gap counts as at most this long, so that few inputs are enough to open the window again.
const GAP_NS_MAX: u64 = 1_000_000;
/// Weight of the newest gap: one in eight smooths bursts and still follows within a dozen inputs.
const GAP_WEIGHT: u64 = 8;

impl IdleState {
    /// Of a pump that starts at `now`.
    pub(crate) const fn new(policy: Idle, now: Moment) -> Self {
        Self { policy, input_at: now, trip_at: now, gap_ns: GAP_NS_MAX }
    }

    /// Input has come.
    pub(crate) fn input(&mut self, now: Moment) {
        let gap_ns = now.as_nanos().saturating_sub(self.input_at.as_nanos()).min(GAP_NS_MAX);
        self.gap_ns = (self.gap_ns * (GAP_WEIGHT - 1) + gap_ns) / GAP_WEIGHT;
        self.input_at = now;
    }

    /// The pump has passed through the engine.
    pub(crate) const fn tripped(&mut self, now: Moment) {
        self.trip_at = now;
    }

    /// What to do now. `busy`: the last turn did something, or has left something to do.
    pub(crate) fn next(&self, now: Moment, busy: bool) -> Next {
        if now.since(self.trip_at) >= TRIP_PERIOD {
            return Next::Trip;
        }
        if busy || self.spins(now) {
            return Next::Turn;
        }
        let quiet = now.since(self.input_at) >= SHARD_IDLE_AFTER;
        Next::Park(if quiet { SHARD_IDLE_TICK } else { LEDGER_TICK })
    }

    fn spins(&self, now: Moment) -> bool {
        match self.policy {
            Idle::Park => false,
            Idle::Spin => true,
            Idle::Adaptive { max } => {
                Duration::from_nanos(self.gap_ns) < max * 2 && now.since(self.input_at) < max
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(100);

    fn after(state: &mut IdleState, gap: Duration, count: u32) -> Moment {
        for _ in 0..count {
            let now = state.input_at + gap;
            state.input(now);
        }
        state.tripped(state.input_at);
        state.input_at
    }

    #[test]
    fn the_window_opens_within_a_dozen_inputs_and_shuts_after_its_length() {
        let mut state = IdleState::new(Idle::Adaptive { max: MAX }, Moment::ZERO);
        assert_eq!(state.next(Moment::ZERO, false), Next::Park(LEDGER_TICK));
        let now = after(&mut state, Duration::from_micros(60), 16);
        assert_eq!(state.next(now, false), Next::Turn);
        assert_eq!(state.next(now + MAX, false), Next::Park(LEDGER_TICK));
    }

    #[test]
    fn rare_input_never_spins_and_silence_slows_the_tick() {
        let mut state = IdleState::new(Idle::Adaptive { max: MAX }, Moment::ZERO);
        let now = after(&mut state, Duration::from_millis(1), 100);
        assert_eq!(state.next(now, false), Next::Park(LEDGER_TICK));
        let later = now + SHARD_IDLE_AFTER;
        state.tripped(later);
        assert_eq!(state.next(later, false), Next::Park(SHARD_IDLE_TICK));
    }

    #[test]
    fn every_pump_passes_through_its_engine_once_a_period_whatever_it_does() {
        for (policy, idle) in [(Idle::Spin, Next::Turn), (Idle::Park, Next::Park(LEDGER_TICK))] {
            let mut state = IdleState::new(policy, Moment::ZERO);
            assert_eq!(state.next(Moment::ZERO, false), idle);
            let now = Moment::ZERO + TRIP_PERIOD;
            assert_eq!(state.next(now, false), Next::Trip);
            assert_eq!(state.next(now, true), Next::Trip);
            state.tripped(now);
            assert_eq!(state.next(now, false), idle);
        }
    }
}
