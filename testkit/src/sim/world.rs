//! The world: virtual time, processes and what happens to them.
//!
//! One thread, one event queue, one seed. A process is a [`Program`] of one or more *parts* (a
//! silo's threads): a part is run when an input waits for it or its deadline has come, on the clock
//! of its own host, and does everything through its [`Context`]. The world kills, pauses, slows and
//! restarts processes; [`super::network`] moves their bytes and [`super::store`] answers their
//! store requests.
//!
//! Invariants: time never goes back; a part runs only while its process is alive and unpaused; the
//! inputs of a part keep their order; the same seed, programs and calls give the same trace hash.
//!
//! Deliberately absent: threads, clocks, and any knowledge of silos (that is [`super::silo`]).

mod clock;
mod context;
mod lives;

pub use context::Context;

use clock::Clock;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use siloring_core::Moment;
use siloring_core::event::Event;
use siloring_core::ports::registry::RegistryHint;
use siloring_core::ports::store::{Store, StoreResult};
use siloring_core::schema::mix;

use super::hints::Listeners;
use super::ledger::Counts;
use super::network::{DialFailure, EndId, Ending, Network, NetworkSettings};
use super::plan::Hints;
use super::queue::EventQueue;
use super::random::Streams;
use super::rare::{self, IDLE_WAKE, RarePaths};
use super::scene::Scene;
use super::store::{StoreModel, StoreSettings};
use super::trace::{Code, Trace, TraceSink};

/// A machine of the world: it has an address, a clock, and at most one living process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u16);

/// One life of a program; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub u32);

/// One thread of a process, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part(pub u16);

/// What a part finds when it is run, in order of arrival.
#[derive(Debug)]
pub enum Input {
    /// Somebody connected to this process: part 0 has the connection.
    Accepted {
        /// Our end of it.
        end: EndId,
    },
    /// A dial of ours reached a listener.
    Connected {
        /// Our end of it.
        end: EndId,
    },
    /// A dial of ours failed; the end is closed.
    DialFailed {
        /// Our end of it.
        end: EndId,
        /// Why.
        failure: DialFailure,
    },
    /// Bytes have arrived: read until nothing comes, or no further one is told.
    Readable {
        /// Our end.
        end: EndId,
    },
    /// A write that was cut short may go on.
    Writable {
        /// Our end.
        end: EndId,
    },
    /// The connection is over; what arrived before a [`Ending::Finished`] can still be read.
    Closed {
        /// Our end.
        end: EndId,
        /// How it ended.
        ending: Ending,
    },
    /// The store answered.
    Store {
        /// As handed to [`Context::submit`].
        ticket: u64,
        /// Its answer.
        result: StoreResult,
    },
    /// Word of the registry of subscriptions, for whoever listens.
    Hint(RegistryHint),
    /// Somebody connected while no descriptor was left: it is closed. Part 0 gets it.
    TurnedAway,
    /// The process shall leave in order (SIGTERM). Part 0 gets it.
    Drain,
}

/// What runs in a process.
pub trait Program {
    /// Runs one part until nothing is left to do now; returns when it wants to be run again, on its
    /// own clock.
    fn run(&mut self, part: Part, context: &mut Context<'_>) -> Moment;
}

/// Where a process stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Runs.
    Running,
    /// Stopped (SIGSTOP): its clock goes on, its kernel accepts connections and bytes.
    Paused,
    /// Ended by itself, with this exit code.
    Exited(i32),
    /// Killed.
    Killed,
}

impl Life {
    /// Whether the process exists.
    pub const fn is_alive(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// Whether a process has descriptors for new connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Files {
    /// Enough.
    Enough,
    /// None.
    None,
}

/// Settings of a world.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorldSettings {
    /// Everything random follows from it.
    pub seed: u64,
    /// Latencies and buffers of connections.
    pub network: NetworkSettings,
    /// Latencies of the store.
    pub store: StoreSettings,
    /// Longest time from a wake to the run of the part that was woken.
    pub wake_latency_max: Duration,
    /// Largest drift of a host's clock, in parts per million either way.
    pub clock_drift_ppm_max: i32,
    /// Whether silos hear of changes in the registry.
    pub hints: Hints,
    /// Of a thousand times that a rare path could be taken, so many are.
    pub rare_per_mille: u16,
    /// Of a thousand times that an activation has nothing to do, so many end it.
    pub ends_per_mille: u16,
    /// Whether events are kept, for [`World::events`]; they are counted in any case.
    pub keep_events: bool,
}

impl WorldSettings {
    /// The usual settings under `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            network: NetworkSettings::default(),
            store: StoreSettings::default(),
            wake_latency_max: Duration::from_micros(30),
            clock_drift_ppm_max: 200,
            hints: Hints::Off,
            rare_per_mille: 0,
            ends_per_mille: 0,
            keep_events: false,
        }
    }
}

/// An invariant that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// When, on the world's clock.
    pub at: Moment,
    /// Its name.
    pub invariant: &'static str,
    /// What was found.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} at {:?}: {}", self.invariant, self.at, self.detail)
    }
}

/// An event that a process told, as kept.
#[derive(Clone, PartialEq, Debug)]
pub struct KeptEvent {
    /// When, on the world's clock.
    pub at: Moment,
    /// Who told it.
    pub process: ProcessId,
    /// What.
    pub event: Event,
}

/// A sender that was paused or slow hears this long after it is well again.
const OVERDUE_GRACE: Duration = Duration::from_millis(100);
/// Events kept at most: a run that tells more than this is looked at by its counters.
const EVENTS_KEPT_MAX: usize = 256 * 1024;

/// A happening to come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    Wake { process: ProcessId, part: Part },
    Syn { end: EndId },
    DialAnswer { end: EndId, accepted: bool },
    Arrive { end: EndId, bytes: usize },
    Ended { end: EndId, ending: Ending },
    Writable { end: EndId },
    Silence { end: EndId, token: u32 },
    StoreDo { request: u64 },
    StoreAnswer { request: u64 },
    StoreLate { request: u64 },
    Hint { process: ProcessId, hint: RegistryHint },
    LookAtRegistry,
}

#[derive(Debug)]
struct PartState {
    inbox: VecDeque<Input>,
    /// When it is run next; [`Moment::NEVER`] if nothing asks for it.
    wake_at: Moment,
    busy_until: Moment,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) host: HostId,
    pub(super) life: Life,
    parts: Vec<PartState>,
    clock: Clock,
    /// Added to every run of a part: a machine short of cycles.
    stall: Duration,
    /// What it waits for by the clock comes up to so much later.
    late: Duration,
    /// Whether it can open no connection.
    pub(super) no_files: bool,
    /// When it was last resumed, or last stopped being slow.
    undisturbed_since: Moment,
    started_at: Moment,
    paused_at: Moment,
    pub(super) ends: Vec<EndId>,
    exit: Option<i32>,
}

#[derive(Debug)]
struct Host {
    address: String,
    process: Option<ProcessId>,
}

/// Everything but the programs: what a program reaches through its [`Context`].
#[derive(Debug)]
pub(super) struct Core {
    pub(super) now: Moment,
    pub(super) queue: EventQueue<Happening>,
    pub(super) trace: Trace,
    pub(super) random: Streams,
    pub(super) network: Network,
    pub(super) store: StoreModel,
    pub(super) listeners: Listeners,
    hosts: Vec<Host>,
    /// Who listens under a name.
    pub(super) names: BTreeMap<String, ProcessId>,
    processes: Vec<Process>,
    settings: WorldSettings,
    pub(super) scene: Rc<Scene>,
    event_counts: BTreeMap<&'static str, u64>,
    events: Vec<KeptEvent>,
    run_count: u64,
    pub(super) bytes_written: u64,
    /// Connections that were reset in the middle of a write.
    pub(super) torn_count: u64,
}

impl Core {
    pub(super) fn process(&self, process: ProcessId) -> &Process {
        &self.processes[process.0 as usize]
    }

    pub(super) fn process_mut(&mut self, process: ProcessId) -> &mut Process {
        &mut self.processes[process.0 as usize]
    }

    pub(super) fn listener(&self, host: HostId) -> Option<ProcessId> {
        self.hosts[usize::from(host.0)].process
    }

    /// The host at an address, or that of who listens under a name.
    pub(super) fn host_at(&self, address: &str) -> Option<HostId> {
        if let Some(process) = self.names.get(address) {
            let process = self.process(*process);
            return process.life.is_alive().then_some(process.host);
        }
        let index = self.hosts.iter().position(|host| host.address == address)?;
        u16::try_from(index).ok().map(HostId)
    }

    /// Puts an input before a part and wakes it. A process that has ended gets nothing.
    pub(super) fn give(&mut self, process: ProcessId, part: Part, input: Input) {
        let state = self.process_mut(process);
        if state.life.is_alive() {
            state.parts[usize::from(part.0)].inbox.push_back(input);
            self.wake_soon(process, part);
        }
    }

    fn wake_soon(&mut self, process: ProcessId, part: Part) {
        let late = nanos(self.settings.wake_latency_max);
        let at = self.now + Duration::from_nanos(self.random.schedule.u64(..=late));
        self.wake(process, part, at);
    }

    fn wake(&mut self, process: ProcessId, part: Part, at: Moment) {
        let now = self.now;
        let state = &mut self.processes[process.0 as usize];
        if state.life != Life::Running {
            return; // A paused process is woken as a whole when it goes on.
        }
        let part_state = &mut state.parts[usize::from(part.0)];
        let at = at.max(part_state.busy_until).max(now);
        if at < part_state.wake_at {
            part_state.wake_at = at;
            self.queue.push(at, Happening::Wake { process, part });
        }
    }

    pub(super) fn violate(&mut self, invariant: &'static str, detail: impl Into<String>) {
        self.scene.violate(invariant, detail);
    }

    fn told(&mut self, process: ProcessId, event: Event) {
        if matches!(event, Event::SiloDeclaredDead { .. }) {
            self.scene.deaths.borrow_mut().push(self.now);
        }
        let name = event.name();
        *self.event_counts.entry(name).or_default() += 1;
        let hash = siloring_core::hash::stable_u64(name.as_bytes());
        self.trace.enter(self.now, Code::Event, u64::from(process.0), hash);
        self.trace.note(self.now, || format!("{process:?} {event}"));
        if self.settings.keep_events && self.events.len() < EVENTS_KEPT_MAX {
            self.events.push(KeptEvent { at: self.now, process, event });
        }
    }

    /// The moment when `process` gets to run a due part, or `None` for a stale wake.
    fn due(&mut self, process: ProcessId, part: Part) -> bool {
        let now = self.now;
        let state = &mut self.processes[process.0 as usize];
        let part_state = &mut state.parts[usize::from(part.0)];
        if state.life != Life::Running || part_state.wake_at != now {
            return false;
        }
        part_state.wake_at = Moment::NEVER;
        true
    }

    /// After a run: how long it took, and when the part wants to be run again.
    fn ran(&mut self, process: ProcessId, part: Part, deadline: Moment) {
        let cost = Duration::from_nanos(self.random.schedule.u64(500..5_000));
        let now = self.now;
        let state = &mut self.processes[process.0 as usize];
        let busy_until = now + cost + state.stall;
        let part_state = &mut state.parts[usize::from(part.0)];
        part_state.busy_until = busy_until;
        let waiting = !part_state.inbox.is_empty();
        if self.scene.rare.borrow_mut().is_asked(IDLE_WAKE) {
            self.wake(process, part, busy_until);
        }
        let state = &mut self.processes[process.0 as usize];
        let part_state = &mut state.parts[usize::from(part.0)];
        let late = nanos(state.late);
        let mut at = if waiting { busy_until } else { state.clock.when(deadline) };
        if late > 0 && !waiting && at != Moment::NEVER {
            at += Duration::from_nanos(self.random.schedule.u64(..=late));
        }
        if part_state.wake_at <= busy_until {
            // Woken by itself meanwhile: no sooner than it is done.
            part_state.wake_at = Moment::NEVER;
            self.wake(process, part, busy_until);
        }
        if at != Moment::NEVER {
            self.wake(process, part, at);
        }
    }
}

/// A seeded, single-threaded world of processes.
pub struct World {
    core: Core,
    programs: Vec<Option<Box<dyn Program>>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("World")
            .field("now", &self.core.now)
            .field("trace", &self.core.trace)
            .finish_non_exhaustive()
    }
}

impl World {
    /// An empty world at time zero, with a store.
    pub fn new(settings: WorldSettings, store: Box<dyn Store>, sink: Option<TraceSink>) -> Self {
        let core = Core {
            now: Moment::ZERO,
            queue: EventQueue::new(),
            trace: Trace::new(sink),
            random: Streams::new(settings.seed),
            network: Network::new(settings.network.clone()),
            store: StoreModel::new(settings.store.clone(), store),
            listeners: Listeners::new(settings.hints),
            hosts: Vec::new(),
            names: BTreeMap::new(),
            processes: Vec::new(),
            settings,
            scene: Rc::default(),
            event_counts: BTreeMap::new(),
            events: Vec::new(),
            run_count: 0,
            bytes_written: 0,
            torn_count: 0,
        };
        core.scene.watched.set(core.trace.is_watched());
        *core.scene.rare.borrow_mut() = RarePaths::new(
            core.settings.seed,
            core.settings.rare_per_mille,
            core.settings.ends_per_mille,
        );
        core.scene.drift_ppm.set(core.settings.clock_drift_ppm_max.unsigned_abs());
        Self { core, programs: Vec::new() }
    }

    /// The world's time.
    pub const fn now(&self) -> Moment {
        self.core.now
    }

    /// The program of a living process.
    pub fn program(&mut self, process: ProcessId) -> Option<&mut dyn Program> {
        match &mut self.programs[process.0 as usize] {
            Some(program) => Some(program.as_mut()),
            None => None,
        }
    }

    /// Runs what happens up to and including `until`, and stops at the first violation.
    pub fn run_until(&mut self, until: Moment) {
        self.core.scene.enter();
        rare::enter();
        while self.core.scene.is_sound() {
            let Some((at, happening)) = self.core.queue.pop_until(until) else {
                self.core.now = self.core.now.max(until);
                self.core.scene.now.set(self.core.now);
                return;
            };
            assert!(at >= self.core.now, "time never goes back");
            self.core.now = at;
            self.core.scene.now.set(at);
            self.happen(happening);
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Wake { process, part } => {
                if self.core.due(process, part) {
                    self.run(process, part);
                }
            }
            Happening::Syn { end } => self.core.syn_arrived(end),
            Happening::DialAnswer { end, accepted } => self.core.dial_answered(end, accepted),
            Happening::Arrive { end, bytes } => self.core.arrived(end, bytes),
            Happening::Ended { end, ending } => self.core.end_arrived(end, ending),
            Happening::Writable { end } => self.core.writable(end),
            Happening::Silence { end, token } => self.core.silence_ended(end, token),
            Happening::StoreDo { request } => self.core.store_do(request),
            Happening::StoreAnswer { request } => self.core.store_answer(request),
            Happening::StoreLate { request } => self.core.store_late(request),
            Happening::Hint { process, hint } => self.core.hint_arrived(process, hint),
            Happening::LookAtRegistry => self.core.look_at_registry(),
        }
    }

    fn run(&mut self, process: ProcessId, part: Part) {
        self.core.run_count += 1;
        let which = u64::from(process.0) << 16 | u64::from(part.0);
        self.core.trace.enter(self.core.now, Code::Run, which, 0);
        let program = &mut self.programs[process.0 as usize];
        let Some(running) = program else { return };
        self.core.scene.process.set(Some(process));
        let deadline = running.run(part, &mut Context { core: &mut self.core, process, part });
        self.core.scene.process.set(None);
        if self.core.scene.watched.get() {
            for note in self.core.scene.take_notes() {
                self.core.trace.note(self.core.now, || note);
            }
        }
        match self.core.process(process).exit {
            None => self.core.ran(process, part, deadline),
            Some(code) => self.end(process, Life::Exited(code)),
        }
    }

    /// Reports an invariant that does not hold; the run stops.
    pub fn violate(&mut self, invariant: &'static str, detail: impl Into<String>) {
        self.core.violate(invariant, detail);
    }

    /// Invariants that did not hold.
    pub fn violations(&self) -> Vec<Violation> {
        self.core.scene.violations()
    }

    /// What the deliveries of this world came to so far.
    pub fn counts(&self) -> Counts {
        self.core.scene.ledger.borrow().counts().clone()
    }

    /// The first moment at which an open delivery may be late.
    pub fn next_due(&self) -> Moment {
        self.core.scene.ledger.borrow_mut().next_due()
    }

    /// Checks P0 for the deliveries that are due: their senders have heard, or could not.
    pub fn check_due(&mut self) {
        let now = self.core.now;
        let due = self.core.scene.ledger.borrow_mut().take_due(now);
        for (id, sender) in due {
            let heard_by = match self.life(sender) {
                Life::Exited(_) | Life::Killed => continue,
                Life::Running | Life::Paused => self.undisturbed_since(sender),
            };
            // A sender that was not scheduled hears within the grace after it is again.
            let heard_by = heard_by.map_or(now + OVERDUE_GRACE, |since| since + OVERDUE_GRACE);
            if heard_by > now {
                self.core.scene.ledger.borrow_mut().put_off(id, heard_by);
            } else {
                let text = self.core.scene.ledger.borrow().describe(id);
                self.core.violate("P0 an outcome within budget and grace", text);
            }
        }
    }

    /// How often an event was told.
    pub fn event_count(&self, name: &str) -> u64 {
        self.core.event_counts.get(name).copied().unwrap_or(0)
    }

    /// Every kind of event told, with its count.
    pub const fn event_counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.core.event_counts
    }

    /// The events kept; none unless [`WorldSettings::keep_events`].
    pub fn events(&self) -> &[KeptEvent] {
        &self.core.events
    }

    /// The hash over everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        mix(self.core.trace.hash(), self.core.scene.ledger.borrow().hash())
    }

    /// How many happenings the hash is over.
    pub const fn trace_count(&self) -> u64 {
        self.core.trace.count()
    }

    /// How many bytes were written to connections.
    pub const fn bytes_written(&self) -> u64 {
        self.core.bytes_written
    }

    /// How many frames were begun on connections.
    pub fn frames_written(&self) -> u64 {
        self.core.network.frames_count()
    }

    /// How often a part was run.
    pub const fn run_count(&self) -> u64 {
        self.core.run_count
    }

    /// Says something to whoever watches the run.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        self.core.trace.note(self.core.now, text);
    }

    /// Enters a fault that is about to be done.
    pub(super) fn enter_fault(&mut self, fault: &str) {
        let what = siloring_core::hash::stable_u64(fault.as_bytes());
        self.core.trace.enter(self.core.now, Code::Fault, 0, what);
        self.core.trace.note(self.core.now, || format!("fault: {fault}"));
    }

    /// The store lost what it had committed since then.
    pub(super) fn store_went_back(&mut self, since: Moment) {
        self.core.listeners.disconnect_all();
        if let Some(kept) = self.core.store.went_back() {
            self.core.scene.checks.borrow_mut().lineage_lost(kept);
        }
        self.core.scene.losses.borrow_mut().push((since, self.core.now));
        self.core.trace.enter(self.core.now, Code::Fault, 1, since.as_nanos());
    }

    pub(super) const fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    pub(super) const fn core_ref(&self) -> &Core {
        &self.core
    }
}

/// Nanoseconds of a span; saturating.
pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
