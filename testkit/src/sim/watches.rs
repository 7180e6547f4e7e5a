//! Checks that take seconds: what must have happened by when, if nothing else went wrong meanwhile.
//!
//! - *Detection*: a silo that is killed, or stopped for long, is gone in everybody's view within
//!   the bound of the design.
//! - *P1*: what a killed silo was handling has its outcome by then, not only at its deadline.
//! - *No false death*: a silo that nothing was done to is not declared Dead.
//!
//! Each holds only while no other fault is about: a fault that begins before the check is due, or
//! was there shortly before, spoils it. What a fault excuses is decided here and nowhere else.

use std::time::Duration;

use siloring_core::{Generation, Moment};

use super::ledger::DeliveryId;
use super::plan::{Fault, Slot};
use super::world::ProcessId;

/// A silo that is gone is Dead for all by then: the bound of the design, and the news of it.
pub(super) const DETECTED_MAX: Duration = Duration::from_secs(11);
/// A fault that ended less than this ago may still explain a late detection.
const SETTLED: Duration = Duration::from_secs(15);
/// A fault that ended less than this ago may still explain a death.
const AFTERMATH: Duration = Duration::from_secs(40);

/// A silo that is gone, as its survivors should know soon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gone {
    pub(super) process: ProcessId,
    pub(super) generation: Generation,
    pub(super) due: Moment,
    /// What it was handling.
    pub(super) handling: Vec<DeliveryId>,
}

/// What is watched for.
#[derive(Debug, Default)]
pub(super) struct Watches {
    gone: Vec<Gone>,
    /// Until when some fault may explain a late detection.
    disturbed_until: Moment,
    /// Until when some fault may explain a death.
    excused_until: Moment,
}

/// How long a fault lasts; zero for one that is done at once.
const fn span(fault: Fault) -> Duration {
    match fault {
        Fault::Kill(_)
        | Fault::Vanish(_)
        | Fault::Start(_)
        | Fault::Drain(_)
        | Fault::Roll
        | Fault::Version(..)
        | Fault::Jump(..)
        | Fault::Reset(..) => Duration::ZERO,
        Fault::Pause(_, span)
        | Fault::Slow(_, _, span)
        | Fault::Mute(_, _, span)
        | Fault::Split(_, _, span)
        | Fault::Isolate(_, span)
        | Fault::Refuse(_, _, span)
        | Fault::Delay(_, _, _, span)
        | Fault::Lose(_, _, _, span)
        | Fault::StoreDown(span)
        | Fault::StoreHang(span)
        | Fault::StoreDelay(_, span)
        | Fault::StoreLose(_, span)
        | Fault::StoreLag(span)
        | Fault::StoreCut(_, span) => span,
    }
}

/// The slot whose silo is gone by this fault, for as long as a detection takes.
pub(super) fn ended_slot(fault: Fault) -> Option<Slot> {
    match fault {
        Fault::Kill(slot) | Fault::Vanish(slot) => Some(slot),
        Fault::Pause(slot, span) => (span > DETECTED_MAX).then_some(slot),
        Fault::Start(_)
        | Fault::Drain(_)
        | Fault::Roll
        | Fault::Version(..)
        | Fault::Jump(..)
        | Fault::Reset(..)
        | Fault::Slow(..)
        | Fault::Mute(..)
        | Fault::Split(..)
        | Fault::Isolate(..)
        | Fault::Refuse(..)
        | Fault::Delay(..)
        | Fault::Lose(..)
        | Fault::StoreDown(_)
        | Fault::StoreHang(_)
        | Fault::StoreDelay(..)
        | Fault::StoreLose(..)
        | Fault::StoreLag(_)
        | Fault::StoreCut(..) => None,
    }
}

/// Whether nobody may be declared Dead because of it but the silo that it ends.
const fn is_harmless(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Kill(_)
            | Fault::Vanish(_)
            | Fault::Start(_)
            | Fault::Drain(_)
            | Fault::Roll
            | Fault::Version(..)
            | Fault::Delay(..)
            | Fault::Reset(..)
    )
}

impl Watches {
    /// A fault begins. What is watched for is spoilt by it, and what it does is not judged for a
    /// while.
    pub(super) fn fault(&mut self, now: Moment, fault: Fault) {
        if !matches!(fault, Fault::Start(_)) {
            self.gone.clear();
        }
        self.disturbed_until = self.disturbed_until.max(now + span(fault) + SETTLED);
        if !is_harmless(fault) {
            self.excused_until = self.excused_until.max(now + span(fault) + AFTERMATH);
        }
    }

    /// Whether no earlier fault may explain what is seen from now on; asked before the fault is
    /// told.
    pub(super) fn is_calm(&self, now: Moment) -> bool {
        now >= self.disturbed_until
    }

    /// A silo went: watched for until it is known.
    pub(super) fn gone(&mut self, gone: Gone) {
        self.gone.push(gone);
    }

    /// Those whose end must be known by now.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Gone> {
        let (due, later) = std::mem::take(&mut self.gone).into_iter().partition(|g| g.due <= now);
        self.gone = later;
        due
    }

    /// Whether a silo may have been declared Dead for good reason.
    pub(super) fn is_excused(&self, now: Moment) -> bool {
        now < self.excused_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_fault_spoils_what_is_watched_for() {
        let gone = Gone {
            process: ProcessId(1),
            generation: Generation(3),
            due: Moment::ZERO + DETECTED_MAX,
            handling: Vec::new(),
        };
        let mut watches = Watches::default();
        watches.gone(gone.clone());
        assert_eq!(watches.take_due(Moment::ZERO), []);
        assert_eq!(watches.take_due(gone.due), std::slice::from_ref(&gone));
        watches.gone(gone);
        watches.fault(Moment::ZERO, Fault::Split(Slot(1), Slot(2), DETECTED_MAX));
        assert_eq!(watches.take_due(Moment::NEVER), []);
        assert!(watches.is_excused(Moment::ZERO + AFTERMATH));
    }
}
