//! The clock of a host.

use siloring_core::Moment;

/// A clock that starts anywhere, drifts, and may jump forward.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) offset_ns: u64,
    pub(super) drift_ppm: i32,
}

impl Clock {
    pub(super) fn read(self, now: Moment) -> Moment {
        let drift = i128::from(now.as_nanos()) * i128::from(self.drift_ppm) / 1_000_000;
        let local = i128::from(self.offset_ns) + i128::from(now.as_nanos()) + drift;
        Moment::from_nanos(u64::try_from(local).expect("a drift is smaller than the time"))
    }

    /// The first moment at which this clock shows `local` or more.
    pub(super) fn when(self, local: Moment) -> Moment {
        if local == Moment::NEVER {
            return Moment::NEVER;
        }
        let elapsed = i128::from(local.as_nanos()) - i128::from(self.offset_ns);
        let rate = 1_000_000 + i128::from(self.drift_ppm);
        let now = (elapsed * 1_000_000 + rate - 1).div_euclid(rate) + 1;
        Moment::from_nanos(u64::try_from(now.max(0)).unwrap_or(u64::MAX))
    }
}
