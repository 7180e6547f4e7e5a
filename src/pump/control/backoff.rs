//! How long not to dial again after a dial failed.
//!
//! The wait doubles from `DIAL_BACKOFF_MIN` to `DIAL_BACKOFF_MAX` with each failure in a row.
//! Whoever asks within it hears the last failure at once instead of waiting for the same one again.
//! Bounded by the dials there can be; entries of peers that are gone are dropped.

use std::collections::BTreeMap;

use siloring_core::limits::{DIAL_BACKOFF_MAX, DIAL_BACKOFF_MIN};
use siloring_core::{Generation, Moment};

use super::conn::Wanted;

#[derive(Debug)]
struct Failed {
    count: u32,
    until: Moment,
    reason: String,
}

/// The failures of dials that were not followed by a success.
#[derive(Debug, Default)]
pub(super) struct Backoffs(BTreeMap<Wanted, Failed>);

impl Backoffs {
    pub(super) fn failed(&mut self, now: Moment, wanted: &Wanted, reason: &str) {
        if wanted.peer().is_none() {
            return;
        }
        let count = self.0.get(wanted).map_or(0, |failed| failed.count);
        let wait = DIAL_BACKOFF_MIN.saturating_mul(1 << count.min(16)).min(DIAL_BACKOFF_MAX);
        let failed = Failed { count: count + 1, until: now + wait, reason: reason.to_owned() };
        self.0.insert(wanted.clone(), failed);
    }

    pub(super) fn succeeded(&mut self, wanted: &Wanted) {
        self.0.remove(wanted);
    }

    /// Why not to dial now; `None`: dial.
    pub(super) fn is_early(&self, now: Moment, wanted: &Wanted) -> Option<String> {
        let failed = self.0.get(wanted)?;
        (now < failed.until).then(|| failed.reason.clone())
    }

    /// Keeps the failures of those peers only.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Generation) -> bool) {
        self.0.retain(|wanted, _| wanted.peer().is_some_and(&mut keep));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_to_its_bound_and_ends_with_a_success() {
        let mut backoffs = Backoffs::default();
        let (wanted, mut now) = (Wanted::Lane(Generation(3)), Moment::ZERO);
        let mut waits = Vec::new();
        for _ in 0..8 {
            backoffs.failed(now, &wanted, "refused");
            let from = now;
            while backoffs.is_early(now, &wanted).is_some() {
                now += DIAL_BACKOFF_MIN;
            }
            waits.push(now.since(from));
        }
        assert_eq!(waits[0], DIAL_BACKOFF_MIN);
        assert_eq!(waits[1], DIAL_BACKOFF_MIN * 2);
        assert_eq!(waits[7], DIAL_BACKOFF_MAX);
        backoffs.succeeded(&wanted);
        assert_eq!(backoffs.is_early(Moment::ZERO, &wanted), None);
    }
}
