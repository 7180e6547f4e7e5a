//! The clock of production: `CLOCK_BOOTTIME`, which also runs while the machine is suspended, so
//! that a silo that wakes from suspension sees the gap and fences itself.

#![expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]

use rustix::time::{ClockId, clock_gettime};
use siloring_core::time::Moment;

/// Reads the clock. Callers read it once per loop and pass the moment on.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the machine booted in the past");
    let nanos = u64::try_from(time.tv_nsec).expect("a fraction of a second");
    Moment::from_nanos(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_forward() {
        let first = now();
        while now() == first {}
        assert!(now() > first);
    }
}
