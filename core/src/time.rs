//! Time as an argument.
//!
//! A [`Moment`] is a reading of `CLOCK_BOOTTIME` in production and of the virtual clock in the
//! simulator. Moments of two machines are never compared.

use core::fmt;
use core::ops::{Add, AddAssign};
use core::time::Duration;

/// A reading of the monotonic clock that also runs while the machine is suspended, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);
    /// Later than every reading.
    pub const NEVER: Self = Self(u64::MAX);

    /// From nanoseconds since the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates at [`Moment::NEVER`].
    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return out.write_str("never");
        }
        write!(out, "{:?}", Duration::from_nanos(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        let second = Duration::from_secs(1);
        assert_eq!(Moment::NEVER + second, Moment::NEVER);
        assert_eq!(Moment::ZERO.since(Moment::ZERO + second), Duration::ZERO);
        assert_eq!((Moment::ZERO + second).since(Moment::ZERO), second);
    }
}
