//! What a failed delivery of an event means for its consumer: one pure decision.

use siloring_core::outcome::{DeliveryFailure, RejectedKind};

/// What to do with the event and its consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Hand it out again after a while.
    Again,
    /// Keep it as a dead letter; the consumer goes on with the next one.
    DeadLetter,
    /// The consumer is gone: its row may be removed, if the failure was decided in a view that
    /// could know of it.
    Evict,
}

/// Decides. `attempts` counts this one if it may have run; `is_owned` tells a hub, which is gone
/// when its process is, from a grain, which is never gone.
pub(crate) const fn verdict(
    failure: &DeliveryFailure,
    attempts: u8,
    attempts_max: u8,
    is_owned: bool,
) -> Verdict {
    if let Some(kind) = failure.rejected_kind() {
        // That its silo is gone says nothing of a grain but where it no longer is.
        let has_moved = !is_owned && matches!(kind, RejectedKind::IncarnationDead);
        if kind.is_transient() || has_moved {
            return Verdict::Again;
        }
        return if is_owned && kind.evicts_subscriber() {
            Verdict::Evict
        } else {
            Verdict::DeadLetter
        };
    }
    if attempts >= attempts_max { Verdict::DeadLetter } else { Verdict::Again }
}

#[cfg(test)]
mod tests {
    use siloring_core::outcome::{FailedKind, IndeterminateKind};

    use super::*;

    #[test]
    fn every_kind_has_its_verdict() {
        for kind in RejectedKind::ALL {
            let failure = DeliveryFailure::rejected(*kind, "x");
            let of_hub = verdict(&failure, 99, 5, true);
            let of_grain = verdict(&failure, 99, 5, false);
            if kind.is_transient() {
                assert_eq!((of_hub, of_grain), (Verdict::Again, Verdict::Again), "{kind:?}");
            } else if *kind == RejectedKind::IncarnationDead {
                assert_eq!((of_hub, of_grain), (Verdict::Evict, Verdict::Again), "{kind:?}");
            } else if kind.evicts_subscriber() {
                assert_eq!((of_hub, of_grain), (Verdict::Evict, Verdict::DeadLetter), "{kind:?}");
            } else {
                assert_eq!(of_hub, Verdict::DeadLetter, "{kind:?}");
            }
        }
        let failed = FailedKind::ALL.iter().map(|kind| DeliveryFailure::failed(*kind, "x"));
        let lost = IndeterminateKind::ALL.iter().map(|k| DeliveryFailure::indeterminate(*k, "x"));
        for failure in failed.chain(lost) {
            assert_eq!(verdict(&failure, 4, 5, true), Verdict::Again);
            assert_eq!(verdict(&failure, 5, 5, true), Verdict::DeadLetter, "counted attempts end");
        }
    }
}
