//! Faults that last: what several of them together do to the world.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use siloring_core::Moment;

use super::hints::HintFaults;
use super::network::Path;
use super::plan::{Fault, Slot};
use super::store::StoreFaults;
use super::world::{HostId, ProcessId};

/// A fault under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Active {
    pub(super) until: Moment,
    pub(super) effect: Effect,
    flaps: Option<Flaps>,
}

/// A fault that comes and goes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Flaps {
    period: Duration,
    next: Moment,
    is_off: bool,
}

/// Shortest period of a fault that comes and goes.
const FLAP_MIN: Duration = Duration::from_millis(1);

/// What it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Paused(ProcessId),
    Slowed(ProcessId, Duration),
    /// On each of these ways.
    Path(Vec<(HostId, HostId)>, Path),
    Late(ProcessId, Duration),
    NoFiles(ProcessId),
    Store(StoreFaults),
    Hints(HintFaults),
    StoreCut(HostId),
}

impl Active {
    /// The fault as it begins now; `None` if it does not last, or its slot is empty.
    pub(super) fn of(
        fault: Fault,
        now: Moment,
        hosts: &[HostId],
        process: impl Fn(Slot) -> Option<ProcessId>,
    ) -> Option<Self> {
        let host = |slot: Slot| hosts[usize::from(slot.0 - 1)];
        let way = |one: Slot, other: Slot| (host(one), host(other));
        let both = |one: Slot, other: Slot| vec![way(one, other), way(other, one)];
        let dropped = Path { dropped: true, ..Path::default() };
        let until = now + fault.span()?;
        let mut flaps = None;
        let effect = match fault {
            Fault::Pause(slot, _) => Effect::Paused(process(slot)?),
            Fault::Slow(slot, by, _) => Effect::Slowed(process(slot)?, by),
            Fault::Late(slot, by, _) => Effect::Late(process(slot)?, by),
            Fault::NoFiles(slot, _) => Effect::NoFiles(process(slot)?),
            Fault::Mute(from, to, _) => Effect::Path(vec![way(from, to)], dropped),
            Fault::Split(one, other, _) => Effect::Path(both(one, other), dropped),
            Fault::Flap(one, other, period, _) => {
                // A period of nothing would never let time pass.
                let period = period.max(FLAP_MIN);
                flaps = Some(Flaps { period, next: now + period, is_off: false });
                Effect::Path(both(one, other), dropped)
            }
            Fault::Isolate(slot, _) => {
                let others = hosts.iter().copied().filter(|other| *other != host(slot));
                let ways = others.flat_map(|other| [(host(slot), other), (other, host(slot))]);
                Effect::Path(ways.collect(), dropped)
            }
            Fault::Refuse(from, to, _) => {
                let refused = Path { refused: true, ..Path::default() };
                Effect::Path(vec![way(from, to)], refused)
            }
            Fault::Delay(one, other, delay, _) => {
                Effect::Path(both(one, other), Path { delay, ..Path::default() })
            }
            Fault::Lose(one, other, lost_per_mille, _) => {
                Effect::Path(both(one, other), Path { lost_per_mille, ..Path::default() })
            }
            Fault::StoreCut(slot, _) => Effect::StoreCut(host(slot)),
            Fault::StoreDown(_)
            | Fault::StoreHang(_)
            | Fault::StoreDelay(..)
            | Fault::StoreLose(..) => Effect::Store(store_effect(fault)),
            Fault::HintsLost(_)
            | Fault::HintsDoubled(_)
            | Fault::HintsLate(..)
            | Fault::HintsForged(_) => Effect::Hints(hint_effect(fault)),
            Fault::Kill(_)
            | Fault::Vanish(_)
            | Fault::Start(_)
            | Fault::Restart(_)
            | Fault::Drain(_)
            | Fault::Roll
            | Fault::Version(..)
            | Fault::Jump(..)
            | Fault::Reset(..)
            | Fault::Tear(..)
            | Fault::HalfOpen(..)
            | Fault::StoreReset(_)
            | Fault::StoreLag(_) => return None,
        };
        Some(Self { until, effect, flaps })
    }

    /// When it next comes, goes or ends.
    pub(super) fn next(&self) -> Moment {
        self.flaps.as_ref().map_or(self.until, |flaps| flaps.next.min(self.until))
    }

    /// Comes or goes, if it is time to.
    pub(super) fn turn(&mut self, now: Moment) {
        if let Some(flaps) = &mut self.flaps
            && flaps.next <= now
        {
            flaps.is_off = !flaps.is_off;
            flaps.next = now + flaps.period;
        }
    }

    fn is_on(&self) -> bool {
        self.flaps.as_ref().is_none_or(|flaps| !flaps.is_off)
    }
}

const fn store_effect(fault: Fault) -> StoreFaults {
    let mut faults =
        StoreFaults { down: false, hangs: false, delay: Duration::ZERO, lost_per_mille: 0 };
    if let Fault::StoreDelay(by, _) = fault {
        faults.delay = by;
    }
    if let Fault::StoreLose(lost, _) = fault {
        faults.lost_per_mille = lost;
    }
    faults.down = matches!(fault, Fault::StoreDown(_));
    faults.hangs = matches!(fault, Fault::StoreHang(_));
    faults
}

const fn hint_effect(fault: Fault) -> HintFaults {
    let late = if let Fault::HintsLate(by, _) = fault { by } else { Duration::ZERO };
    HintFaults {
        lost: matches!(fault, Fault::HintsLost(_)),
        doubled: matches!(fault, Fault::HintsDoubled(_)),
        late,
        forged: matches!(fault, Fault::HintsForged(_)),
    }
}

/// What ails each way.
pub(super) fn paths(active: &[Active]) -> BTreeMap<(HostId, HostId), Path> {
    let mut merged = BTreeMap::new();
    for fault in active.iter().filter(|fault| fault.is_on()) {
        let Effect::Path(ways, path) = &fault.effect else {
            continue;
        };
        for way in ways.iter().filter(|(from, to)| from != to) {
            let known: &mut Path = merged.entry(*way).or_default();
            known.dropped |= path.dropped;
            known.refused |= path.refused;
            known.delay += path.delay;
            known.lost_per_mille = known.lost_per_mille.max(path.lost_per_mille);
        }
    }
    merged
}

/// What ails the store, and whom it is cut off from.
pub(super) fn store(active: &[Active]) -> (StoreFaults, BTreeSet<HostId>) {
    let mut merged = StoreFaults::default();
    let mut cut = BTreeSet::new();
    for fault in active {
        match &fault.effect {
            Effect::Store(faults) => {
                merged.down |= faults.down;
                merged.hangs |= faults.hangs;
                merged.delay += faults.delay;
                merged.lost_per_mille = merged.lost_per_mille.max(faults.lost_per_mille);
            }
            Effect::StoreCut(host) => {
                cut.insert(*host);
            }
            Effect::Paused(_)
            | Effect::Slowed(..)
            | Effect::Late(..)
            | Effect::NoFiles(_)
            | Effect::Hints(_)
            | Effect::Path(..) => {}
        }
    }
    (merged, cut)
}

/// Who is stopped.
pub(super) fn paused(active: &[Active]) -> BTreeSet<ProcessId> {
    let paused = active.iter().filter_map(|fault| match fault.effect {
        Effect::Paused(process) => Some(process),
        Effect::Slowed(..)
        | Effect::Late(..)
        | Effect::NoFiles(_)
        | Effect::Hints(_)
        | Effect::Path(..)
        | Effect::Store(_)
        | Effect::StoreCut(_) => None,
    });
    paused.collect()
}

/// Who has no descriptor left.
pub(super) fn without_files(active: &[Active]) -> BTreeSet<ProcessId> {
    let without = active.iter().filter_map(|fault| match fault.effect {
        Effect::NoFiles(process) => Some(process),
        Effect::Paused(_)
        | Effect::Slowed(..)
        | Effect::Late(..)
        | Effect::Hints(_)
        | Effect::Path(..)
        | Effect::Store(_)
        | Effect::StoreCut(_) => None,
    });
    without.collect()
}

/// How late the timers of each process may be.
pub(super) fn delays(active: &[Active]) -> BTreeMap<ProcessId, Duration> {
    let mut delays = BTreeMap::new();
    for fault in active {
        if let Effect::Late(process, by) = fault.effect {
            *delays.entry(process).or_default() += by;
        }
    }
    delays
}

/// What ails word of changes in the registry.
pub(super) fn hints(active: &[Active]) -> HintFaults {
    let mut merged = HintFaults::default();
    for fault in active {
        if let Effect::Hints(faults) = &fault.effect {
            merged.lost |= faults.lost;
            merged.doubled |= faults.doubled;
            merged.late += faults.late;
            merged.forged |= faults.forged;
        }
    }
    merged
}

/// How slow each process is.
pub(super) fn stalls(active: &[Active]) -> BTreeMap<ProcessId, Duration> {
    let mut stalls = BTreeMap::new();
    for fault in active {
        if let Effect::Slowed(process, by) = fault.effect {
            *stalls.entry(process).or_default() += by;
        }
    }
    stalls
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn faults_of_one_way_add_up_and_end_apart() {
        let hosts = [HostId(0), HostId(1)];
        let begin = |fault| Active::of(fault, Moment::ZERO, &hosts, |_| None).unwrap();
        let (one, other) = (Slot(1), Slot(2));
        let slow = begin(Fault::Delay(one, other, SECOND, SECOND));
        let mute = begin(Fault::Mute(one, other, 2 * SECOND));
        let there = paths(&[slow.clone(), mute.clone()])[&(hosts[0], hosts[1])];
        assert_eq!((there.dropped, there.delay), (true, SECOND));
        let back = paths(&[slow, mute.clone()])[&(hosts[1], hosts[0])];
        assert_eq!((back.dropped, back.delay), (false, SECOND));
        assert_eq!(paths(&[mute]).len(), 1);
    }

    #[test]
    fn a_way_that_flaps_is_there_every_other_period() {
        let hosts = [HostId(0), HostId(1)];
        let flap = Fault::Flap(Slot(1), Slot(2), SECOND, 5 * SECOND);
        let mut active = Active::of(flap, Moment::ZERO, &hosts, |_| None).unwrap();
        let mut dropped = Vec::new();
        for second in 0..5 {
            let now = Moment::ZERO + second * SECOND;
            active.turn(now);
            assert_eq!(active.next(), now + SECOND);
            dropped.push(!paths(std::slice::from_ref(&active)).is_empty());
        }
        assert_eq!(dropped, [true, false, true, false, true]);
    }

    #[test]
    fn a_slot_is_never_cut_off_from_itself() {
        let hosts = [HostId(0)];
        let alone =
            Active::of(Fault::Split(Slot(1), Slot(1), SECOND), Moment::ZERO, &hosts, |_| None);
        assert!(paths(&[alone.unwrap()]).is_empty());
    }
}
