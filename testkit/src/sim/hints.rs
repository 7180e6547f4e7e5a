//! Word of changed subscriptions, as the thread that listens to a store's server hears it.
//!
//! What that thread does with connections is done here, to the machine that it feeds
//! ([`Watch`]): it connects, listens and then looks at the newest version; it takes what is told,
//! and looks again once in a while. Word can be lost, doubled, late or forged; a store that cannot
//! be reached, or went back, ends the connection.
//!
//! Checked: word of each change comes within [`TOLD_MAX`], unless it was hindered.

use std::collections::BTreeMap;
use std::time::Duration;

use siloring_core::limits::REGISTRY_POLL_PERIOD;
use siloring_core::ports::registry::{RegistryHint, SetVersion};
use siloring_core::{AddressHash, Moment};
use siloring_storage::Watch;

use super::plan::Hints;
use super::world::{Core, Happening, Input, Life, Part, ProcessId, nanos};

/// Longest way of a word without faults.
const WAY_MAX: Duration = Duration::from_millis(20);
/// Longest time from the look at a new connection to the next step of its thread.
const STEP_MAX: Duration = Duration::from_millis(50);
/// Word of a change has come by then: a look that is just over, the next one, and the way.
const TOLD_MAX: Duration = Duration::from_millis(2 * 2_000 + 200);

/// What ails word of changes; nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HintFaults {
    pub(super) lost: bool,
    pub(super) doubled: bool,
    pub(super) late: Duration,
    pub(super) forged: bool,
}

#[derive(Debug)]
struct Listener {
    part: Part,
    watch: Watch,
    /// From when on it hears what is told; [`Moment::NEVER`] while it has no connection.
    hears_from: Moment,
    /// Changes that it has had no word of, and when that is too late.
    owed: BTreeMap<AddressHash, Moment>,
}

/// Who listens.
#[derive(Debug)]
pub(super) struct Listeners {
    hints: Hints,
    faults: HintFaults,
    /// A connection looks before it listens: planted.
    pub(super) looks_first: bool,
    all: BTreeMap<ProcessId, Listener>,
    newest: SetVersion,
}

impl Listeners {
    pub(super) const fn new(hints: Hints) -> Self {
        let faults =
            HintFaults { lost: false, doubled: false, late: Duration::ZERO, forged: false };
        Self { hints, faults, looks_first: false, all: BTreeMap::new(), newest: SetVersion(0) }
    }

    /// What ails word of changes is now this. A connection on which something was lost, or held up,
    /// has ended by then: word of one change is never lost where that of a later one comes.
    pub(super) fn set_faults(&mut self, faults: HintFaults) {
        if self.faults != faults && (self.faults.lost || !self.faults.late.is_zero()) {
            self.disconnect_all();
        }
        self.faults = faults;
    }

    /// The store is another one now, or has restarted: whoever was connected is not.
    pub(super) fn disconnect_all(&mut self) {
        for listener in self.all.values_mut() {
            listener.hears_from = Moment::NEVER;
            listener.owed.clear();
        }
    }

    /// The connection of one process is lost.
    pub(super) fn disconnect(&mut self, process: ProcessId) {
        if let Some(listener) = self.all.get_mut(&process) {
            listener.hears_from = Moment::NEVER;
            listener.owed.clear();
        }
    }
}

impl Core {
    /// From now on a part of a process hears of changes in the registry, if the run has hints.
    pub(super) fn listen_to_registry(&mut self, process: ProcessId, part: Part) {
        if self.listeners.hints == Hints::Off {
            return;
        }
        if self.listeners.all.is_empty() {
            self.queue.push(self.now + REGISTRY_POLL_PERIOD, Happening::LookAtRegistry);
        }
        let listener = Listener {
            part,
            watch: Watch::default(),
            hears_from: Moment::NEVER,
            owed: BTreeMap::new(),
        };
        self.listeners.all.insert(process, listener);
        self.connect_listener(process);
    }

    fn connect_listener(&mut self, process: ProcessId) {
        if !self.store.is_up() || !self.store_reached(process) {
            return;
        }
        let (now, newest) = (self.now, self.listeners.newest);
        let step = Duration::from_nanos(self.random.hints.u64(..=nanos(STEP_MAX)));
        let looks_first = self.listeners.looks_first;
        let Some(listener) = self.listeners.all.get_mut(&process) else { return };
        listener.hears_from = if looks_first { now + step } else { now };
        let hint = listener.watch.handle_connection(newest);
        self.send_hint(process, hint);
    }

    /// Subscriptions of a stream, or of any, have changed.
    pub(super) fn registry_changed(&mut self, what: RegistryHint, newest: Option<SetVersion>) {
        if self.listeners.hints == Hints::Off {
            return;
        }
        if let Some(newest) = newest {
            self.listeners.newest = newest;
        }
        let (now, faults) = (self.now, self.listeners.faults);
        let mut hear = Vec::new();
        for (process, listener) in &mut self.listeners.all {
            if listener.hears_from == Moment::NEVER {
                continue;
            }
            if let RegistryHint::Stream(stream) = what {
                listener.owed.entry(stream).or_insert(now + TOLD_MAX);
            }
            if listener.hears_from <= now && !faults.lost {
                hear.push(*process);
            }
        }
        for process in hear {
            for _ in 0..if faults.doubled { 2 } else { 1 } {
                let way = Duration::from_nanos(self.random.hints.u64(..=nanos(WAY_MAX)));
                let late = Duration::from_nanos(self.random.hints.u64(..=nanos(faults.late)));
                let at = now + way + late;
                self.queue.push(at, Happening::Hint { process, hint: what });
            }
        }
    }

    /// What the server told arrives.
    pub(super) fn hint_arrived(&mut self, process: ProcessId, hint: RegistryHint) {
        if !self.store_reached(process) {
            return self.listeners.disconnect(process);
        }
        let Some(listener) = self.listeners.all.get_mut(&process) else { return };
        if listener.hears_from == Moment::NEVER {
            return; // It was told to a connection that is no more.
        }
        let hint = listener.watch.handle_hint(hint);
        self.send_hint(process, hint);
    }

    fn send_hint(&mut self, process: ProcessId, hint: RegistryHint) {
        let Some(listener) = self.listeners.all.get_mut(&process) else { return };
        match hint {
            RegistryHint::Stream(stream) => drop(listener.owed.remove(&stream)),
            RegistryHint::Everything => listener.owed.clear(),
        }
        let part = listener.part;
        self.give(process, part, Input::Hint(hint));
    }

    /// The threads look at the newest version; who lost its connection makes it anew.
    pub(super) fn look_at_registry(&mut self) {
        self.queue.push(self.now + REGISTRY_POLL_PERIOD, Happening::LookAtRegistry);
        let ended = |core: &Self, process: &ProcessId| !core.process(*process).life.is_alive();
        let gone: Vec<_> =
            self.listeners.all.keys().filter(|it| ended(self, it)).copied().collect();
        for process in gone {
            self.listeners.all.remove(&process);
        }
        for process in self.listeners.all.keys().copied().collect::<Vec<_>>() {
            self.look(process);
        }
    }

    fn look(&mut self, process: ProcessId) {
        let is_reached = self.store.is_up() && self.store_reached(process);
        let is_running = self.process(process).life == Life::Running;
        let (now, newest, faults) = (self.now, self.listeners.newest, self.listeners.faults);
        let forged = faults.forged.then(|| match self.random.hints.u8(..4) {
            0 => RegistryHint::Everything,
            _ => RegistryHint::Stream(AddressHash(self.random.hints.u128(..))),
        });
        let Some(listener) = self.listeners.all.get_mut(&process) else { return };
        if !is_running || !is_reached {
            listener.owed.clear();
        }
        if !is_running {
            return; // Its thread stands still, its connection does not.
        }
        if !is_reached {
            listener.hears_from = Moment::NEVER;
            return;
        }
        if listener.hears_from == Moment::NEVER {
            return self.connect_listener(process);
        }
        let seen = listener.watch.handle_version(newest);
        let overdue = listener.owed.values().any(|due| *due <= now);
        for hint in seen.into_iter().chain(forged) {
            self.send_hint(process, hint);
        }
        if faults.lost || !faults.late.is_zero() {
            // What was told of another change explains the version of one that was lost: only a
            // connection that ends tells of it.
            self.listeners.disconnect(process);
        } else if overdue && seen.is_none() {
            let text = format!("{process:?} has no word of a change after {TOLD_MAX:?}");
            self.violate("word of a changed subscription comes", text);
        }
    }
}
