//! Checks that take seconds: what must have happened by when, if nothing else went wrong meanwhile.
//!
//! - *Detection*: a silo that is killed, or stopped for long, is gone in everybody's view within
//!   the bound of the design.
//! - *P1*: what a killed silo was handling has its outcome by then, not only at its deadline.
//! - *No false death*: a silo that nothing was done to is not declared Dead.
//!
//! Each holds only while no other fault is about: a fault that begins before the check is due, or
//! was there shortly before, spoils it. What a fault excuses is decided here and nowhere else.

use std::collections::BTreeMap;
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
    /// Until when some fault may explain the death of a slot's silo.
    slots_until: BTreeMap<Slot, Moment>,
    /// Until when the way between two slots is slow, the lower one first.
    slow_until: BTreeMap<[Slot; 2], Moment>,
}

/// The slot whose silo is gone by this fault, for as long as a detection takes.
pub(super) fn ended_slot(fault: Fault) -> Option<Slot> {
    match fault {
        Fault::Kill(slot) | Fault::Vanish(slot) | Fault::Restart(slot) => Some(slot),
        Fault::Pause(slot, span) => (span > DETECTED_MAX).then_some(slot),
        Fault::Start(_)
        | Fault::Drain(_)
        | Fault::Roll
        | Fault::Version(..)
        | Fault::Jump(..)
        | Fault::Reset(..)
        | Fault::Tear(..)
        | Fault::HalfOpen(..)
        | Fault::Slow(..)
        | Fault::Late(..)
        | Fault::Mute(..)
        | Fault::Split(..)
        | Fault::Isolate(..)
        | Fault::Refuse(..)
        | Fault::Delay(..)
        | Fault::Lose(..)
        | Fault::Flap(..)
        | Fault::NoFiles(..)
        | Fault::HintsLost(_)
        | Fault::HintsDoubled(_)
        | Fault::HintsLate(..)
        | Fault::HintsForged(_)
        | Fault::StoreReset(_)
        | Fault::StoreDown(_)
        | Fault::StoreHang(_)
        | Fault::StoreDelay(..)
        | Fault::StoreLose(..)
        | Fault::StoreLag(_)
        | Fault::StoreCut(..) => None,
    }
}

/// Whom a fault may have declared Dead, beside the silo that it ends.
enum Excused {
    Nobody,
    /// Whoever holds one of these slots.
    Slots([Slot; 2]),
    /// The same, if the way between them is slow: a new connection takes its time three times.
    SlotsOnASlowWay([Slot; 2]),
    Anybody,
}

const fn excused(fault: Fault) -> Excused {
    match fault {
        Fault::Kill(_)
        | Fault::Vanish(_)
        | Fault::Start(_)
        | Fault::Restart(_)
        | Fault::Drain(_)
        | Fault::Roll
        | Fault::Version(_)
        | Fault::Delay(..)
        | Fault::NoFiles(..)
        | Fault::HintsLost(_)
        | Fault::HintsDoubled(_)
        | Fault::HintsLate(..)
        | Fault::HintsForged(_)
        | Fault::StoreReset(_) => Excused::Nobody,
        Fault::Reset(one, other) | Fault::Tear(one, other, ..) => {
            Excused::SlotsOnASlowWay([one, other])
        }
        // A silo that was stopped, or is slow, holds its own trouble against nobody else.
        Fault::Pause(slot, _) | Fault::Slow(slot, _, _) | Fault::Late(slot, _, _) => {
            Excused::Slots([slot, slot])
        }
        Fault::Jump(slot, _) => Excused::Slots([slot, slot]),
        // A new connection may take too long, on a slow way: then they cannot reach each other.
        Fault::HalfOpen(one, other) => Excused::Slots([one, other]),
        Fault::Mute(..)
        | Fault::Split(..)
        | Fault::Isolate(..)
        | Fault::Flap(..)
        | Fault::Refuse(..)
        | Fault::Lose(..)
        | Fault::StoreDown(_)
        | Fault::StoreHang(_)
        | Fault::StoreDelay(..)
        | Fault::StoreLose(..)
        | Fault::StoreCut(..)
        | Fault::StoreLag(_) => Excused::Anybody,
    }
}

impl Watches {
    /// A fault begins. What is watched for is spoilt by it, and what it does is not judged for a
    /// while.
    pub(super) fn fault(&mut self, now: Moment, fault: Fault) {
        if !matches!(fault, Fault::Start(_)) {
            self.gone.clear();
        }
        let span = fault.span().unwrap_or_default();
        self.disturbed_until = self.disturbed_until.max(now + span + SETTLED);
        let until = now + span + AFTERMATH;
        if let Fault::Delay(one, other, ..) = fault {
            let known = self.slow_until.entry(way(one, other)).or_default();
            *known = (*known).max(now + span);
        }
        match excused(fault) {
            Excused::Nobody => {}
            Excused::Slots(slots) => self.excuse(slots, until),
            Excused::SlotsOnASlowWay([one, other]) => {
                if self.slow_until.get(&way(one, other)).is_some_and(|&until| now < until) {
                    self.excuse([one, other], until);
                }
            }
            Excused::Anybody => self.excused_until = self.excused_until.max(until),
        }
    }

    fn excuse(&mut self, slots: [Slot; 2], until: Moment) {
        for slot in slots {
            let known = self.slots_until.entry(slot).or_default();
            *known = (*known).max(until);
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

    /// Whether the silo in a slot may have been declared Dead for good reason.
    pub(super) fn is_excused(&self, slot: Slot, now: Moment) -> bool {
        let until = self.slots_until.get(&slot).copied().unwrap_or_default();
        now < self.excused_until.max(until)
    }
}

fn way(one: Slot, other: Slot) -> [Slot; 2] {
    [one.min(other), one.max(other)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_excuses_a_death_on_a_slow_way_only() {
        let mut watches = Watches::default();
        watches.fault(Moment::ZERO, Fault::Reset(Slot(1), Slot(2)));
        assert!(!watches.is_excused(Slot(1), Moment::ZERO));
        let delay = Fault::Delay(Slot(2), Slot(1), Duration::from_millis(400), SETTLED);
        watches.fault(Moment::ZERO, delay);
        assert!(!watches.is_excused(Slot(1), Moment::ZERO));
        watches.fault(Moment::ZERO, Fault::Reset(Slot(1), Slot(2)));
        assert!(watches.is_excused(Slot(1), Moment::ZERO));
        assert!(!watches.is_excused(Slot(3), Moment::ZERO));
    }

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
        assert!(watches.is_excused(Slot(3), Moment::ZERO + AFTERMATH));
    }
}
