//! One shard: activations, hubs, ledger and directory part of one core, as one sans-IO machine.
//!
//! Contract:
//! - inputs: `handle_*` (mail, frames, link changes), [`Shard::tick`], each with the time;
//! - work: [`Shard::run`] polls what is ready, bounded, and says whether more is;
//! - effects: [`Shard::poll_output`], and frames through its [`Links`];
//! - invariants: every delivery it sent is in its ledger until exactly one outcome; every request
//!   it accepted is answered once; turns of one activation do not overlap unless both only read;
//!   nothing new is taken while the right to serve is out (`serve_until`), and nothing is created
//!   while it drains;
//! - bounds: `limits.rs`, each refused as `Overloaded` at once.
//!
//! The files: `outbound.rs` sends what this shard's code asks for, `settle.rs` ends it with one
//! outcome; `inbound.rs` takes what reaches it, `once.rs` knows what was handled already,
//! `turns.rs` runs activations, `mixed.rs` speaks with other versions of the program, `hubs.rs`
//! keeps hubs, `leave.rs` drains, `overload.rs` refuses what has waited too long.

mod activation;
mod config;
mod hubs;
mod inbound;
mod leave;
mod mixed;
mod once;
mod outbound;
mod overload;
mod running;
mod settle;
#[cfg(test)]
mod tests;
mod turns;

use core::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::event::Event;
use siloring_core::hash::{HashMap, HashSet};
use siloring_core::ids::{CorrelationId, Generation, ShardIndex};
use siloring_core::limits::{SPAWNED_MAX, SPAWNED_PER_ACTIVATION_MAX};
use siloring_core::ports::store::StoreRequest;
use siloring_core::time::Moment;
use siloring_core::versions::Versions;
use siloring_core::view::View;
use slab::Slab;

use crate::admission::Admission;
use crate::directory::{Directory, DirectoryConfig};
use crate::exec::local::{Answer, Entered, Known, Local, Op, SlotKey, Unpark, Until};
use crate::exec::tasks::{TaskKey, Tasks};
use crate::exec::wheel::Wheel;
use crate::handle::Handle;
use crate::host::{Host, HostFactory};
use crate::ledger::Ledger;
use crate::links::Links;
use crate::mail::{ConnId, ControlMail, Outcome, ReplyTo, Request, ShardMail};
use crate::placement::Placement;

#[cfg(feature = "planted")]
pub use config::Planted;
pub use config::ShardConfig;
pub use inbound::IncomingRequest;
pub use mixed::Direction;

use activation::Activation;
use hubs::HubEntry;
use leave::Leaving;
use mixed::OlderPeers;
use running::SpareLists;

/// Names an activation of one shard.
pub(crate) type ActivationKey = u32;

/// What a shard wants done.
#[derive(Debug)]
pub enum ShardOutput {
    /// Mail to another shard of the silo.
    Shard(ShardIndex, ShardMail),
    /// Mail to the control thread.
    Control(ControlMail),
    /// A question to the store; the answer comes as [`ShardMail::Store`].
    Store {
        /// Names the question.
        ticket: u64,
        /// What.
        request: StoreRequest,
    },
    /// Something happened.
    Event(Event),
}

/// What an entry of the wheel stands for.
#[derive(Debug)]
enum Timer {
    Retry(CorrelationId),
    Sleep(SlotKey),
    Idle(ActivationKey),
    /// In a box of its own: few wait at a time, and every entry takes as much as the largest.
    Gate(Box<AddressHash>),
    ResendOutcomes,
}

/// An outcome that its link has no room for yet.
#[derive(Debug)]
struct HeldOutcome {
    conn: ConnId,
    correlation: CorrelationId,
    source: Address,
    outcome: Outcome,
    until: Moment,
}

/// Sizes of a shard's tables: what a leak check compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShardSizes {
    /// Deliveries without an outcome.
    pub open_deliveries: usize,
    /// Activations, but for those that are of this shard alone.
    pub activations: usize,
    /// Hubs.
    pub hubs: usize,
    /// Tasks: turns that wait, and spawned futures.
    pub tasks: usize,
    /// Futures that wait for something.
    pub slots: usize,
    /// Timers.
    pub timers: usize,
    /// Outcomes that wait for room on their link.
    pub held_outcomes: usize,
    /// Requests that came while the right to serve was out.
    pub held_requests: usize,
}

/// Activations that are of this shard alone: their addresses name it.
#[derive(Debug)]
struct OwnGrains {
    /// Their kinds: a few, found faster without hashing.
    kinds: Vec<&'static str>,
    living_count: usize,
    /// How many there ever were.
    numbered: u64,
}

impl OwnGrains {
    fn of(hosts: &[Box<dyn Host>]) -> Self {
        let specs = hosts.iter().map(|host| host.spec());
        let own = specs.filter(|spec| spec.placement == Placement::Shard);
        Self { kinds: own.map(|spec| spec.kind).collect(), living_count: 0, numbered: 0 }
    }
}

/// The shard.
#[derive(Debug)]
pub struct Shard<L> {
    config: ShardConfig,
    /// Its data links.
    pub links: L,
    local: Rc<Local>,
    now: Moment,
    serve_until: Moment,
    admission: Admission,
    /// What is taken in next came after this.
    came_after: Moment,
    /// When a run last began that left something for the next.
    behind_since: Option<Moment>,
    view: Arc<View>,
    directory: Directory,
    /// It is not due before: asked anew whenever it was asked for something.
    directory_due: Moment,
    ledger: Ledger,
    wheel: Wheel<Timer>,
    expired: Vec<Timer>,
    hosts: Vec<Box<dyn Host>>,
    host_of: HashMap<String, u32>,
    hub_kinds: HashSet<String>,
    versions: Versions,
    older_peers: OlderPeers,
    activations: Slab<Activation>,
    /// For activations that begin turns.
    spare_lists: SpareLists,
    /// The address that was looked for last, and its activation if it has one here: a call on its
    /// own shard looks for it twice, and conversations go on.
    found: Cell<Option<(AddressHash, Option<ActivationKey>)>>,
    own: OwnGrains,
    hubs: HashMap<AddressHash, HubEntry>,
    tasks: Tasks,
    /// Activations that may be able to start a turn.
    runnable: VecDeque<ActivationKey>,
    /// Deliveries that wait for the directory, by target.
    locating: BTreeMap<AddressHash, Vec<CorrelationId>>,
    /// Deliveries that wait for a link, by peer, in order.
    linking: BTreeMap<Generation, VecDeque<CorrelationId>>,
    /// Deliveries that wait for their sending hub's claim.
    gated: BTreeMap<AddressHash, Vec<CorrelationId>>,
    /// Requests that came while the right to serve was out.
    held_requests: VecDeque<(Address, Request)>,
    held_outcomes: VecDeque<HeldOutcome>,
    store_slots: BTreeMap<u64, SlotKey>,
    store_tickets: u64,
    failure_log: settle::FailureLog,
    leaving: Leaving,
    /// Other silos that leave in our view.
    leavers: Vec<Generation>,
    /// How many links bring requests of others to this shard.
    callers_count: usize,
    entropy: fastrand::Rng,
    outputs: VecDeque<ShardOutput>,
    extensions: Vec<u8>,
    /// The activation whose name is where others see what the shard runs.
    named: Option<ActivationKey>,
    progress: u64,
    /// How many turns that began at once are on the stack.
    inline_depth: u32,
    /// Whose wakes the last step looked for first.
    foreign_first: bool,
    /// The hub that was refused last, and when.
    #[cfg(feature = "planted")]
    planted_refusal: Option<(Moment, AddressHash)>,
}

#[cfg(feature = "planted")]
fn directory_config(config: &ShardConfig) -> DirectoryConfig {
    let mut directory = DirectoryConfig::new(config.me, config.seed);
    directory.planted = config.planted_directory;
    directory
}

#[cfg(not(feature = "planted"))]
fn directory_config(config: &ShardConfig) -> DirectoryConfig {
    DirectoryConfig::new(config.me, config.seed)
}

impl<L: Links> Shard<L> {
    /// A shard that knows no view yet and may not serve.
    pub fn new(
        now: Moment,
        config: ShardConfig,
        links: L,
        unpark: Arc<dyn Unpark>,
        handle: Handle,
    ) -> Self {
        let hosts: Vec<_> = config.hosts.iter().map(HostFactory::make).collect();
        let host_of = (0..).zip(&config.hosts).map(|(i, h)| (h.kind().to_owned(), i)).collect();
        let directory = Directory::new(directory_config(&config));
        // Draws of its own, so that what futures draw changes nothing of the shard's.
        let entropy = fastrand::Rng::with_seed(!config.seed);
        let known = Known::new(config.me, directory.places(), config.shared.clone(), entropy);
        let local = Local::new(now, unpark, handle, known);
        Self {
            links,
            now,
            serve_until: Moment::ZERO,
            admission: Admission::new(config.overload_delay),
            came_after: Moment::NEVER,
            behind_since: None,
            view: Arc::new(View::default()),
            directory_due: directory.next_deadline(),
            directory,
            ledger: Ledger::new(),
            wheel: Wheel::new(now),
            expired: Vec::new(),
            host_of,
            versions: HostFactory::versions(&config.hosts, &config.messages),
            older_peers: OlderPeers::default(),
            hub_kinds: config.hub_kinds.iter().cloned().collect(),
            activations: Slab::new(),
            spare_lists: SpareLists::default(),
            found: Cell::new(None),
            own: OwnGrains::of(&hosts),
            hosts,
            hubs: HashMap::default(),
            tasks: Tasks::new(Arc::clone(&local.foreign)),
            runnable: VecDeque::new(),
            locating: BTreeMap::new(),
            linking: BTreeMap::new(),
            gated: BTreeMap::new(),
            held_requests: VecDeque::new(),
            held_outcomes: VecDeque::new(),
            store_slots: BTreeMap::new(),
            store_tickets: 0,
            failure_log: settle::FailureLog::default(),
            leaving: Leaving::No,
            leavers: Vec::new(),
            callers_count: 0,
            entropy: fastrand::Rng::with_seed(config.seed),
            outputs: VecDeque::new(),
            extensions: Vec::new(),
            named: None,
            progress: 0,
            inline_depth: 0,
            foreign_first: false,
            #[cfg(feature = "planted")]
            planted_refusal: None,
            local,
            config,
        }
    }

    /// Sets until when the silo has the right to serve.
    pub fn set_lease(&mut self, serve_until: Moment) {
        self.serve_until = serve_until;
    }

    /// Whether the right to serve is out: no frame is to be read then.
    pub fn is_fenced(&self, now: Moment) -> bool {
        now > self.serve_until
    }

    /// The newest view it knows.
    pub const fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Takes mail of another thread of the silo.
    pub fn handle_mail(&mut self, now: Moment, mail: ShardMail) {
        let _entered = self.enter(now);
        self.take_mail(mail);
        self.carry_out(None);
    }

    fn take_mail(&mut self, mail: ShardMail) {
        match mail {
            ShardMail::View(view) => self.handle_view(&view),
            ShardMail::Directory { from, message } => {
                self.directory.handle_message(self.now, from, message);
                self.pump_directory();
            }
            ShardMail::LinkFailed { peer, reason } => self.link_failed(peer, &reason),
            ShardMail::Request { target, mut request } => self.accept_mail(&target, &mut request),
            ShardMail::Outcome { to, correlation, source, outcome }
            | ShardMail::Answer { reply_to: to, correlation, source, outcome } => {
                self.respond(to, correlation, &source, outcome);
            }
            ShardMail::Call(parcel) => self.open_mail(parcel),
            ShardMail::OpenHub { hub, take_over } => self.open_hub(hub, take_over),
            ShardMail::CloseHub(address) => self.close_hub(&address),
            ShardMail::Store { ticket, result } => {
                if let Some(slot) = self.store_slots.remove(&ticket) {
                    self.local.answer(slot, Answer::Store(result));
                }
            }
            ShardMail::Spawn(make) => self.spawn(make(), None),
            ShardMail::BeginDrain => self.begin_drain(),
            ShardMail::CloseHubs => self.close_hubs(),
        }
    }

    /// Takes up a newer view.
    fn handle_view(&mut self, view: &Arc<View>) {
        if view.number() <= self.view.number() {
            return;
        }
        #[cfg(feature = "planted")]
        let somebody_left = self.view.living().any(|row| view.is_gone(row.incarnation.generation));
        self.view = Arc::clone(view);
        *self.local.known.view.borrow_mut() = Arc::clone(view);
        self.local.known.view_waiters.wake();
        self.directory.handle_view(self.now, view);
        self.pump_directory();
        #[cfg(feature = "planted")]
        if self.config.planted == Planted::DeathDeactivates && somebody_left {
            self.end_idle();
        }
        self.note_leavers();
        self.end_links_to_the_gone();
        self.retry_moving();
    }

    /// Runs what is ready, bounded by [`TURNS_PER_LOOP_MAX`]; true if more is.
    pub fn run(&mut self, now: Moment) -> bool {
        let _entered = self.enter(now);
        if !self.is_fenced(now) {
            self.accept_held();
        }
        let (mut more, before) = (true, self.progress);
        for _ in 0..self.admission.turns_per_loop() {
            if !self.step() {
                // What was held may have been too much for one run.
                more = self.is_ready();
                break;
            }
            self.progress += 1;
        }
        self.admission.stepped(self.progress - before);
        // What is left then is older than what comes: that waits behind it.
        self.behind_since = self.behind_since.or(Some(now)).filter(|_| more);
        more
    }

    /// Does one piece of work; false if there is none.
    fn step(&mut self) -> bool {
        if !self.is_fenced(self.now)
            && let Some(activation) = self.runnable.pop_front()
        {
            self.start_turns(activation);
            return true;
        }
        if !self.local.ops.borrow().is_empty() {
            self.carry_out(None);
            return true;
        }
        // Neither the shard's own wakes nor those of other threads hold the others off.
        self.foreign_first = !self.foreign_first;
        let own = || self.local.ready.borrow_mut().pop_front();
        let foreign = || self.local.foreign.pop();
        let woken =
            if self.foreign_first { foreign().or_else(own) } else { own().or_else(foreign) };
        let Some(woken) = woken else { return false };
        self.poll_task(self.tasks.woken(woken));
        true
    }

    /// Lets time pass: deadlines, retries, sleeps, the directory's own periods.
    pub fn tick(&mut self, now: Moment) {
        let _entered = self.enter(now);
        for id in self.ledger.overdue(now) {
            self.deadline_passed(id);
            self.carry_out(None);
        }
        let mut expired = core::mem::take(&mut self.expired);
        self.wheel.expire(now, &mut expired);
        for timer in expired.drain(..) {
            match timer {
                Timer::Retry(id) => self.retry_now(id),
                Timer::Sleep(slot) => {
                    self.local.answer(slot, Answer::Slept);
                }
                Timer::Idle(activation) => self.check_idle(activation),
                Timer::Gate(hub) => self.gate_expired(*hub),
                Timer::ResendOutcomes => self.resend_outcomes(),
            }
            self.carry_out(None);
        }
        self.expired = expired;
        debug_assert!(self.directory_due <= self.directory.next_deadline(), "it was not asked");
        self.directory.tick(now);
        self.pump_directory();
        self.check_leaving();
        self.admission.tick(now);
        self.tell_overload();
        self.carry_out(None);
    }

    /// When [`Shard::tick`] has something to do.
    pub fn next_deadline(&self) -> Moment {
        let open = self.ledger.next_deadline().min(self.wheel.next_deadline());
        let due = open.min(self.directory_due).min(self.leaving.check_due());
        due.min(self.admission.next_deadline())
    }

    /// Whether [`Shard::run`] has something to do.
    pub fn is_ready(&self) -> bool {
        let has_turns = !self.runnable.is_empty() || !self.held_requests.is_empty();
        (has_turns && !self.is_fenced(self.now))
            || !self.local.ops.borrow().is_empty()
            || !self.local.ready.borrow().is_empty()
            || !self.local.foreign.ready.is_empty()
    }

    /// What it wants done next.
    pub fn poll_output(&mut self) -> Option<ShardOutput> {
        self.outputs.pop_front()
    }

    /// Does a fault to its directory.
    #[cfg(feature = "planted")]
    pub fn plant_fault(&mut self, fault: crate::directory::PlantedFault) {
        self.directory.plant_fault(fault);
        self.directory_due = self.directory.next_deadline();
    }

    /// Counts up while the shard works; with nothing to do it stands still.
    pub const fn progress(&self) -> u64 {
        self.progress
    }

    /// Sizes of its tables.
    pub fn sizes(&self) -> ShardSizes {
        ShardSizes {
            open_deliveries: self.ledger.len(),
            activations: self.activations.len() - self.own.living_count,
            hubs: self.hubs.len(),
            tasks: self.tasks.len(),
            slots: self.local.slot_count(),
            timers: self.wheel.len(),
            held_outcomes: self.held_outcomes.len(),
            held_requests: self.held_requests.len(),
        }
    }

    /// Its directory, to look at.
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Makes this shard the one that futures of this thread find, until the guard is dropped; for
    /// the `take_*` methods, of which many belong to one moment.
    pub fn enter(&mut self, now: Moment) -> Entered {
        assert!(now >= self.now, "time does not go back: {now:?} after {:?}", self.now);
        self.now = now;
        self.local.now.set(now);
        self.local.enter()
    }

    fn emit(&mut self, event: Event) {
        self.outputs.push_back(ShardOutput::Event(event));
    }

    fn spawn(&mut self, future: crate::exec::tasks::Spawned, owner: Option<ActivationKey>) {
        let owner_count = owner.map_or(0, |owner| self.activations[owner as usize].timers.len());
        if owner_count >= SPAWNED_PER_ACTIVATION_MAX || self.tasks.len() >= SPAWNED_MAX {
            let by = owner.map(|owner| self.activations[owner as usize].shared.address.clone());
            self.emit(Event::SpawnRefused { by });
            return turns::discard(future);
        }
        let task = self.tasks.spawn(future, owner);
        if let Some(owner) = owner {
            self.activations[owner as usize].timers.push(task);
        }
        self.tasks.waker(task).wake_by_ref();
    }

    /// Carries out what futures staged; `owner` is the activation whose turn was polled.
    fn carry_out(&mut self, owner: Option<(ActivationKey, TaskKey)>) {
        let mut ops = {
            let mut staged = self.local.ops.borrow_mut();
            if staged.is_empty() {
                return;
            }
            core::mem::take(&mut *staged)
        };
        for op in ops.drain(..) {
            self.carry_out_one(op, owner);
        }
        // What carrying out staged anew is nobody's turn's: the next step does it; the buffer is
        // kept.
        let mut staged = self.local.ops.borrow_mut();
        if staged.is_empty() {
            *staged = ops;
        }
    }

    fn carry_out_one(&mut self, op: Op, owner: Option<(ActivationKey, TaskKey)>) {
        // What was staged before may have ended the activation, and its place may be another's.
        let living = owner.filter(|(key, task)| {
            let activation = self.activations.get(*key as usize);
            activation.is_some_and(|activation| activation.owns(*task))
        });
        match op {
            Op::Call(parcel) => self.open_delivery(parcel, living),
            Op::Sleep { slot, until } => {
                let timer = self.wheel.insert(until, Timer::Sleep(slot));
                self.local.sleeps(slot, timer);
            }
            // One that has expired by now is being answered.
            Op::EndSleep { slot, timer } => {
                if self.wheel.cancel(timer).is_some() {
                    self.local.answer(slot, Answer::Slept);
                }
            }
            Op::Store { slot, request } => {
                let ticket = self.store_tickets;
                self.store_tickets += 1;
                self.store_slots.insert(ticket, slot);
                self.outputs.push_back(ShardOutput::Store { ticket, request: *request });
            }
            // It goes on until its activation ends, which it has.
            Op::Spawn { future, until: Until::ActivationEnds }
                if owner.is_some() && living.is_none() =>
            {
                turns::discard(future);
            }
            Op::Spawn { future, until: Until::ActivationEnds } => {
                self.spawn(future, living.map(|(activation, _)| activation));
            }
            Op::Spawn { future, until: Until::ShardStops } => self.spawn(future, None),
            Op::Emit(event) => self.emit(*event),
            Op::DeadLetter(failed) => self.dead_letter(*failed),
            Op::Failed(failed) => self.failed(&failed),
            Op::Mail { shard, mail } if shard == self.config.me.shard => {
                self.take_mail(*mail);
            }
            Op::Mail { shard, mail } => self.outputs.push_back(ShardOutput::Shard(shard, *mail)),
        }
    }

    /// Brings an outcome to who waits for it.
    fn respond(
        &mut self,
        to: ReplyTo,
        correlation: CorrelationId,
        source: &Address,
        outcome: Outcome,
    ) {
        #[cfg(feature = "planted")]
        if self.config.planted == Planted::RefusalsSwallowed && outcome.result.is_err() {
            return;
        }
        let shard = match to {
            ReplyTo::Ledger(shard) | ReplyTo::Link { shard, .. } => shard,
        };
        if shard != self.config.me.shard {
            let source = source.clone();
            let mail = ShardMail::Outcome { to, correlation, source, outcome };
            self.outputs.push_back(ShardOutput::Shard(shard, mail));
            return;
        }
        match to {
            ReplyTo::Ledger(_) => self.resolve(correlation, None, outcome),
            ReplyTo::Link { conn, .. } => self.send_outcome(conn, correlation, source, outcome),
        }
    }

    fn tell_late(&mut self, correlation: CorrelationId) {
        self.emit(Event::LateReply { correlation: correlation.0 });
    }
}

impl<L> Drop for Shard<L> {
    fn drop(&mut self) {
        // Futures that are dropped now abandon their slots: they need their shard to be current.
        let _entered = self.local.enter();
        self.activations.clear();
        self.hosts.clear();
        let foreign = Arc::clone(&self.local.foreign);
        self.tasks = Tasks::new(foreign);
        // Last: what is dropped before may look there.
        self.local.known.extensions.clear();
    }
}
