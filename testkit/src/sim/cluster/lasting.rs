//! Faults that last: begun, ended, and done to the world together.

use std::collections::BTreeSet;
use std::time::Duration;

use siloring_core::Moment;
use siloring_storage::MemorySnapshot;

use super::super::faults::{self, Active, Effect};
use super::super::plan::{Fault, Slot};
use super::super::world::{Files, HostId, Life};
use super::Cluster;

/// A replica of the store that lags behind, and takes over.
#[derive(Debug)]
pub(super) struct Replica {
    held: MemorySnapshot,
    since: Moment,
    pub(super) until: Moment,
}

impl Cluster {
    /// From now on the store's replica hears of nothing.
    pub(super) fn begin_lagging(&mut self, span: Duration) {
        let since = self.world.now();
        let held = self.memory.snapshot();
        self.replica.get_or_insert(Replica { held, since, until: since + span });
    }

    /// The replica takes over: what was committed since it lagged is lost.
    pub(super) fn fail_over(&mut self, replica: &Replica) {
        self.memory.restore(&replica.held);
        self.world.store_went_back(replica.since);
    }

    pub(super) fn begin_lasting(&mut self, fault: Fault) {
        let now = self.world.now();
        let hosts: Vec<HostId> = self.slots.iter().map(|slot| slot.host).collect();
        let process = |slot: Slot| self.process(slot);
        let Some(active) = Active::of(fault, now, &hosts, process) else { return };
        if matches!(fault, Fault::Refuse(..))
            && let Effect::Path(pairs, _) = &active.effect
        {
            for (from, to) in pairs {
                self.world.core().cut_between(*from, *to);
            }
        }
        self.active.push(active);
        self.apply_active();
    }

    /// Makes the world's ailments what the active faults say, together.
    pub(super) fn apply_active(&mut self) {
        let paths = faults::paths(&self.active);
        let before = std::mem::take(&mut self.touched);
        for pair in before.iter().chain(paths.keys()).copied().collect::<BTreeSet<_>>() {
            let path = paths.get(&pair).copied().unwrap_or_default();
            self.world.core().set_path(pair.0, pair.1, path);
        }
        self.touched = paths.into_keys().collect();
        let (store, cut) = faults::store(&self.active);
        self.world.core().set_store_faults(store, cut);
        self.world.core().listeners.set_faults(faults::hints(&self.active));
        let paused = faults::paused(&self.active);
        let stalls = faults::stalls(&self.active);
        let delays = faults::delays(&self.active);
        let without = faults::without_files(&self.active);
        for process in self.silos.keys().copied() {
            match (self.world.life(process), paused.contains(&process)) {
                (Life::Running, true) => self.world.pause(process),
                (Life::Paused, false) => self.world.resume(process),
                (Life::Running | Life::Paused | Life::Exited(_) | Life::Killed, _) => {}
            }
            let stall = stalls.get(&process).copied().unwrap_or_default();
            if self.world.stall(process) != stall {
                self.world.slow(process, stall);
            }
            let late = delays.get(&process).copied().unwrap_or_default();
            if self.world.timers_late(process) != late {
                self.world.delay_timers(process, late);
            }
            let files = if without.contains(&process) { Files::None } else { Files::Enough };
            if self.world.files(process) != files {
                self.world.set_files(process, files);
            }
        }
    }
}
