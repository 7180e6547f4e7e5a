//! The clock of this example: one reading that all processes of the machine share.
#![expect(clippy::disallowed_methods, reason = "a program at the edge reads the clock itself")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of the monotonic clock, the same for every process of this machine.
pub(crate) fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the machine started in the past");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are positive");
    seconds * 1_000_000 + nanos / 1_000
}

/// `span` in microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
