//! Faults that last: what several of them together do to the world.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use siloring_core::Moment;

use super::network::Path;
use super::plan::{Fault, Slot};
use super::store::StoreFaults;
use super::world::{HostId, ProcessId};

/// A fault under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Active {
    pub(super) until: Moment,
    pub(super) effect: Effect,
}

/// What it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Paused(ProcessId),
    Slowed(ProcessId, Duration),
    /// On each of these ways.
    Path(Vec<(HostId, HostId)>, Path),
    Store(StoreFaults),
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
        let (span, effect) = match fault {
            Fault::Pause(slot, span) => (span, Effect::Paused(process(slot)?)),
            Fault::Slow(slot, by, span) => (span, Effect::Slowed(process(slot)?, by)),
            Fault::Mute(from, to, span) => (span, Effect::Path(vec![way(from, to)], dropped)),
            Fault::Split(one, other, span) => (span, Effect::Path(both(one, other), dropped)),
            Fault::Isolate(slot, span) => {
                let others = hosts.iter().copied().filter(|other| *other != host(slot));
                let ways = others.flat_map(|other| [(host(slot), other), (other, host(slot))]);
                (span, Effect::Path(ways.collect(), dropped))
            }
            Fault::Refuse(from, to, span) => {
                let refused = Path { refused: true, ..Path::default() };
                (span, Effect::Path(vec![way(from, to)], refused))
            }
            Fault::Delay(one, other, delay, span) => {
                (span, Effect::Path(both(one, other), Path { delay, ..Path::default() }))
            }
            Fault::Lose(one, other, lost_per_mille, span) => {
                (span, Effect::Path(both(one, other), Path { lost_per_mille, ..Path::default() }))
            }
            Fault::StoreDown(span) => (span, store_effect(|faults| faults.down = true)),
            Fault::StoreHang(span) => (span, store_effect(|faults| faults.hangs = true)),
            Fault::StoreDelay(by, span) => (span, store_effect(|faults| faults.delay = by)),
            Fault::StoreLose(lost, span) => {
                (span, store_effect(|faults| faults.lost_per_mille = lost))
            }
            Fault::StoreCut(slot, span) => (span, Effect::StoreCut(host(slot))),
            Fault::Kill(_)
            | Fault::Vanish(_)
            | Fault::Start(_)
            | Fault::Drain(_)
            | Fault::Roll
            | Fault::Version(..)
            | Fault::Jump(..)
            | Fault::StoreLag(_)
            | Fault::Reset(..) => return None,
        };
        Some(Self { until: now + span, effect })
    }
}

fn store_effect(set: impl FnOnce(&mut StoreFaults)) -> Effect {
    let mut faults = StoreFaults::default();
    set(&mut faults);
    Effect::Store(faults)
}

/// What ails each way.
pub(super) fn paths(active: &[Active]) -> BTreeMap<(HostId, HostId), Path> {
    let mut merged = BTreeMap::new();
    for fault in active {
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
            Effect::Paused(_) | Effect::Slowed(..) | Effect::Path(..) => {}
        }
    }
    (merged, cut)
}

/// Who is stopped.
pub(super) fn paused(active: &[Active]) -> BTreeSet<ProcessId> {
    let paused = active.iter().filter_map(|fault| match fault.effect {
        Effect::Paused(process) => Some(process),
        Effect::Slowed(..) | Effect::Path(..) | Effect::Store(_) | Effect::StoreCut(_) => None,
    });
    paused.collect()
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
    fn a_slot_is_never_cut_off_from_itself() {
        let hosts = [HostId(0)];
        let alone =
            Active::of(Fault::Split(Slot(1), Slot(1), SECOND), Moment::ZERO, &hosts, |_| None);
        assert!(paths(&[alone.unwrap()]).is_empty());
    }
}
