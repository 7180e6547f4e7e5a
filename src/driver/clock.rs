//! The clock of production: `CLOCK_BOOTTIME`, which also runs while the machine is suspended, so
//! that a silo that wakes from suspension sees the gap and fences itself.
//!
//! It is read without the C library, so that nothing that is loaded before it can move it. A test
//! that has to see it jump plants that ([`jump`]).

#![expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]

#[cfg(feature = "planted")]
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use siloring_core::time::Moment;

/// Reads the clock. Callers read it once per loop and pass the moment on.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the machine booted in the past");
    let nanos = u64::try_from(time.tv_nsec).expect("a fraction of a second");
    Moment::from_nanos(seconds * 1_000_000_000 + nanos + ahead_ns())
}

/// How far the clock has jumped.
#[cfg(feature = "planted")]
static AHEAD_NS: AtomicU64 = AtomicU64::new(0);

#[cfg(feature = "planted")]
fn ahead_ns() -> u64 {
    AHEAD_NS.load(Ordering::Relaxed)
}

#[cfg(not(feature = "planted"))]
const fn ahead_ns() -> u64 {
    0
}

/// Moves the clock of this process, the store's threads' included: as after a suspension.
#[cfg(feature = "planted")]
pub fn jump(by: Duration) {
    let nanos = u64::try_from(by.as_nanos()).expect("a jump fits");
    AHEAD_NS.fetch_add(nanos, Ordering::Relaxed);
    siloring_storage::jump_clock(by);
}

/// Reads the wall clock, as time since 1970: for certificates only, which are valid by the
/// calendar.
pub(crate) fn wall() -> Duration {
    let time = clock_gettime(ClockId::Realtime);
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
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
