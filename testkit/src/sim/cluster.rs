//! A simulated cluster: slots held by silos, a plan that happens to them, and the checks at the
//! end.
//!
//! A run has two phases. In the *safety* phase the plan's faults happen while the load goes on;
//! every invariant is checked at each step, but nothing needs to succeed. In the *liveness* phase
//! everything is healed, every slot has a silo again, and the cluster must converge: one view,
//! nothing open.
//!
//! The operator is modelled too: a silo that ends by itself is started again after a moment, and a
//! roll replaces silo by silo, newcomer first.

mod builder;
mod lasting;
mod rest;
mod silos;
mod watch;

pub use builder::ClusterBuilder;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::ports::store::{Store as _, StoreRequest, StoreResult};
use siloring_core::{ClusterId, Moment, SiloStatus};
use siloring_storage::MemoryStore;

use super::faults::Active;
use super::ledger::Counts;
use super::node::{Node, SiloShared};
use super::plan::{Fault, Options, Plan, Slot, Step};
use super::planted::Planted;
use super::release::Release;
use super::watches::Watches;
use super::world::{HostId, ProcessId, Violation, World};

use lasting::Replica;

/// A future of a silo's surrounding program.
pub(super) type ProgramFuture = Pin<Box<dyn Future<Output = ()>>>;
/// Makes the surrounding program of a silo; called once for each start, when the silo is Active.
pub(super) type MakeProgram = Rc<dyn Fn(Node) -> ProgramFuture>;

/// The world is looked at this often, besides at each step and due time.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// All slots of a new cluster are Active by then.
const START_MAX: Duration = Duration::from_mins(1);
/// A healed cluster has converged by then.
const CONVERGE_MAX: Duration = Duration::from_mins(2);
/// A future handed to [`Cluster::block_on`] ends by then.
const BLOCK_MAX: Duration = Duration::from_mins(5);

#[derive(Debug)]
struct SlotState {
    name: String,
    host: HostId,
    current: Option<ProcessId>,
    leaving: Vec<ProcessId>,
    generation_count: u32,
    restart_at: Moment,
    /// The plan ended it: only the plan, or the liveness phase, starts it again.
    down_on_purpose: bool,
}

#[derive(Debug)]
struct Roll {
    slots: VecDeque<Slot>,
    newcomer: Option<(Slot, ProcessId)>,
    old: Option<ProcessId>,
    drained: bool,
    step_ends: Moment,
}

/// What was done to the world.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Steps of the plan that happened.
    pub faults: u64,
    /// The same, by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Silos killed, with or without their machine.
    pub kills: u64,
    /// Rolls that went through all slots.
    pub rolls: u64,
    /// Silos that ended while they took ranges over or rebuilt them.
    pub interrupted: u64,
    /// Silos started.
    pub starts: u64,
    /// Silos that ended by themselves, by exit code.
    pub exits: BTreeMap<i32, u64>,
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The hash over everything that happened.
    pub trace_hash: u64,
    /// How many happenings it is over.
    pub trace_count: u64,
    /// Virtual time that passed.
    pub simulated: Duration,
    /// The deliveries.
    pub counts: Counts,
    /// The faults.
    pub tally: Tally,
    /// Store requests answered `Unavailable`.
    pub store_unavailable: u64,
    /// Of which were carried out: their answer was lost.
    pub store_answers_lost: u64,
    /// Store requests that broke off before they were carried out.
    pub store_requests_lost: u64,
    /// Connections reset in the middle of a write.
    pub connections_torn: u64,
    /// Rare paths taken, by name.
    pub rare: BTreeMap<&'static str, u64>,
    /// Connections dialled by the name of a Unix socket.
    pub dialled_by_name: usize,
    /// Events told, by name.
    pub events: BTreeMap<&'static str, u64>,
}

/// A run whose invariants did not hold, with all that is needed to repeat it.
#[derive(Debug)]
pub struct Failure {
    /// The plan, seed included.
    pub plan: Plan,
    /// What did not hold, in order.
    pub violations: Vec<Violation>,
    /// How far it came.
    pub report: Report,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for violation in &self.violations {
            writeln!(out, "violated: {violation}")?;
        }
        writeln!(out, "{:?}", self.report)?;
        writeln!(
            out,
            "to repeat it: cargo xtask sim --plan FILE [--shrink] [--trace], with this in FILE"
        )?;
        write!(out, "{}", self.plan)
    }
}

impl std::error::Error for Failure {}

/// A cluster in a world of its own.
pub struct Cluster {
    id: ClusterId,
    world: World,
    /// The store's content, past every fault.
    memory: MemoryStore,
    /// While the store's replica lags behind.
    replica: Option<Replica>,
    options: Options,
    plan: Plan,
    steps: VecDeque<Step>,
    releases: Vec<Release>,
    /// The one that silos are started with.
    release: usize,
    planted: Planted,
    slots: Vec<SlotState>,
    silos: BTreeMap<ProcessId, Rc<SiloShared>>,
    active: Vec<Active>,
    touched: BTreeSet<(HostId, HostId)>,
    roll: Option<Roll>,
    began: Moment,
    tally: Tally,
    watches: Watches,
    /// Silos that were Active at some look.
    seen_active: BTreeSet<ProcessId>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields = (&self.world, &self.options, &self.slots, &self.active, &self.roll);
        write!(out, "Cluster{fields:?}")
    }
}

impl Cluster {
    /// The world, to look at.
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// The world, to do something to it that no plan has a word for.
    pub const fn world_mut(&mut self) -> &mut World {
        &mut self.world
    }

    /// The options of the run.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Every slot.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (1..=self.options.silos).map(Slot)
    }

    /// The process that holds a slot.
    pub fn process(&self, slot: Slot) -> Option<ProcessId> {
        let current = self.slots[index(slot)].current?;
        self.world.life(current).is_alive().then_some(current)
    }

    /// What is known of the silo that holds a slot.
    pub fn silo(&self, slot: Slot) -> Option<Rc<SiloShared>> {
        self.process(slot).and_then(|process| self.silos.get(&process)).map(Rc::clone)
    }

    /// What is known of any silo that was ever started.
    pub fn silo_of(&self, process: ProcessId) -> Option<Rc<SiloShared>> {
        self.silos.get(&process).map(Rc::clone)
    }

    /// Starts a silo in every empty slot and waits until all are Active.
    ///
    /// # Errors
    /// If they are not within a minute, or an invariant breaks.
    pub fn start(&mut self) -> Result<(), Failure> {
        for slot in self.slots() {
            self.start_slot(slot);
        }
        self.run_until(START_MAX, "every slot becomes Active", Self::is_whole)?;
        self.began = self.world.now();
        Ok(())
    }

    /// Runs the plan's safety phase, then the liveness phase.
    ///
    /// # Errors
    /// The first invariant that did not hold.
    pub fn run_plan(&mut self) -> Result<(), Failure> {
        let end = self.began + self.options.safety;
        self.advance(end)?;
        self.heal();
        self.run_until(CONVERGE_MAX, "a healed cluster converges", Self::is_whole)
    }

    /// Runs for a span, with whatever the plan does in it.
    ///
    /// # Errors
    /// The first invariant that did not hold.
    pub fn run_for(&mut self, span: Duration) -> Result<(), Failure> {
        self.advance(self.world.now() + span)
    }

    /// Runs until a condition holds; looks four times a second.
    ///
    /// # Errors
    /// If it does not within `limit`, or an invariant breaks.
    pub fn run_until(
        &mut self,
        limit: Duration,
        what: &'static str,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> Result<(), Failure> {
        let end = self.world.now() + limit;
        while !holds(self) {
            if self.world.now() >= end {
                let state = self.describe();
                self.world.violate(what, state);
            }
            self.advance(end.min(self.world.now() + LOOK_PERIOD))?;
        }
        Ok(())
    }

    /// Runs a future in the program of a slot's silo until it ends.
    ///
    /// # Errors
    /// If it has not ended after five minutes (its silo may be gone), or an invariant breaks.
    ///
    /// # Panics
    /// If no silo lives in the slot.
    pub fn block_on<F, T>(&mut self, slot: Slot, make: impl FnOnce(Node) -> F) -> Result<T, Failure>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        let result = self.spawn(slot, make);
        let done = Rc::clone(&result);
        let end = self.world.now() + BLOCK_MAX;
        while done.borrow().is_none() {
            if self.world.now() >= end {
                self.world.violate("a future ends", "block_on waited five minutes");
            }
            self.advance(self.world.now() + Duration::from_millis(1))?;
        }
        let value = result.borrow_mut().take();
        Ok(value.expect("looked at above"))
    }

    /// Starts a future in the program of a slot's silo; its result appears where the return points.
    ///
    /// # Panics
    /// If no silo lives in the slot.
    pub fn spawn<F, T>(
        &mut self,
        slot: Slot,
        make: impl FnOnce(Node) -> F,
    ) -> Rc<RefCell<Option<T>>>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        let process = self.process(slot).expect("a silo lives in the slot");
        let shared = Rc::clone(&self.silos[&process]);
        let result = Rc::new(RefCell::new(None));
        let slot_of_result = Rc::clone(&result);
        let future = make(shared.node());
        shared.spawn(Box::pin(async move {
            let value = future.await;
            *slot_of_result.borrow_mut() = Some(value);
        }));
        self.world.wake(process, shared.app_part());
        result
    }

    /// Asks the store, past every fault and unseen by the run.
    ///
    /// # Errors
    /// The store's.
    pub fn ask_store(&mut self, request: &StoreRequest) -> StoreResult {
        self.memory.execute(request)
    }

    /// Does to the cluster what a step of a plan would.
    pub fn inflict(&mut self, fault: Fault) {
        self.world.enter_fault(&fault.to_string());
        self.tally.faults += 1;
        *self.tally.kinds.entry(fault.name()).or_default() += 1;
        self.watch(fault);
        match fault {
            Fault::Kill(slot) => self.end_slot(slot, World::kill),
            Fault::Vanish(slot) => self.end_slot(slot, World::vanish),
            Fault::Start(slot) => self.start_slot(slot),
            Fault::Restart(slot) => {
                self.end_slot(slot, World::kill);
                self.start_slot(slot);
            }
            Fault::Drain(slot) => self.drain_slot(slot),
            Fault::Roll => self.begin_roll(),
            Fault::Version(number) => self.set_version(number),
            Fault::Jump(slot, by) => {
                if let Some(process) = self.process(slot) {
                    self.world.jump(process, by);
                }
            }
            Fault::Reset(one, other) => {
                let (one, other) = (self.host(one), self.host(other));
                self.world.core().cut_between(one, other);
            }
            Fault::Tear(one, other) => {
                let (one, other) = (self.host(one), self.host(other));
                self.world.core().tear_between(one, other);
            }
            Fault::HalfOpen(one, other) => {
                let (one, other) = (self.host(one), self.host(other));
                self.world.core().forget_between(one, other);
            }
            Fault::StoreReset(slot) => {
                if let Some(process) = self.process(slot) {
                    self.world.core().reset_store(process);
                }
            }
            Fault::Pause(..)
            | Fault::Slow(..)
            | Fault::Late(..)
            | Fault::Mute(..)
            | Fault::Split(..)
            | Fault::Isolate(..)
            | Fault::Flap(..)
            | Fault::Refuse(..)
            | Fault::Delay(..)
            | Fault::Lose(..)
            | Fault::NoFiles(..)
            | Fault::HintsLost(_)
            | Fault::HintsDoubled(_)
            | Fault::HintsLate(..)
            | Fault::HintsForged(_)
            | Fault::StoreDown(..)
            | Fault::StoreHang(..)
            | Fault::StoreDelay(..)
            | Fault::StoreLose(..)
            | Fault::StoreCut(..) => self.begin_lasting(fault),
            Fault::StoreLag(span) => self.begin_lagging(span),
        }
    }

    /// Does something to each directory of a slot's silo that no plan has a word for, since none
    /// but a defect causes it.
    #[cfg(feature = "planted")]
    pub fn plant_fault(&mut self, slot: Slot, fault: siloring_runtime::directory::PlantedFault) {
        let Some(silo) = self.silo(slot) else { return };
        silo.faults.borrow_mut().push(fault);
        for part in 1..=self.options.shards {
            if let Some(process) = silo.process() {
                self.world.wake(process, super::world::Part(part));
            }
        }
    }

    /// Ends every fault and fills every slot.
    pub fn heal(&mut self) {
        self.world.note(|| "healed".to_owned());
        self.steps.clear();
        self.active.clear();
        self.replica = None;
        self.world.core().end_tears();
        self.apply_active();
        for slot in self.slots() {
            self.start_slot(slot);
        }
    }

    /// Whether every slot has an Active silo, all silos have one view, and nobody else is in it.
    pub fn is_whole(&self) -> bool {
        let silos: Vec<_> = self.slots().filter_map(|slot| self.silo(slot)).collect();
        let mut views = silos.iter().map(|silo| silo.view());
        let Some(first) = views.next() else { return false };
        let settled = silos.len() == self.slots.len()
            && silos.iter().all(|silo| silo.status() == Some(SiloStatus::Active))
            && views.all(|view| view.number() == first.number())
            && first.living().count() == self.slots.len();
        settled && self.roll.is_none()
    }

    /// What the run has come to so far.
    pub fn report(&self) -> Report {
        let core = self.world.core_ref();
        let (store_unavailable, store_answers_lost) = core.store.counts();
        Report {
            store_requests_lost: core.store.requests_lost(),
            connections_torn: core.torn_count,
            rare: core.scene.rare.borrow().counts().clone(),
            store_unavailable,
            store_answers_lost,
            dialled_by_name: self.world.core_ref().network.named_count(),
            trace_hash: self.world.trace_hash(),
            trace_count: self.world.trace_count(),
            simulated: self.world.now().since(Moment::ZERO),
            counts: self.world.counts(),
            tally: self.tally.clone(),
            events: self.world.event_counts().clone(),
        }
    }

    /// The failure that a broken invariant makes of this run.
    pub fn failure(&self) -> Failure {
        Failure {
            plan: self.plan.clone(),
            violations: self.world.violations(),
            report: self.report(),
        }
    }

    fn describe(&self) -> String {
        let slot = |slot: Slot| match self.silo(slot) {
            Some(silo) => format!("{slot}: {:?} at view {}", silo.status(), silo.view().number()),
            None => format!("{slot}: empty"),
        };
        let slots: Vec<String> = self.slots().map(slot).collect();
        format!("{}; {} deliveries open", slots.join(", "), self.world.counts().open())
    }
}

fn index(slot: Slot) -> usize {
    usize::from(slot.0 - 1)
}

/// Time.
impl Cluster {
    /// Runs until `end`, stopping where something has to be done or looked at.
    fn advance(&mut self, end: Moment) -> Result<(), Failure> {
        while self.world.violations().is_empty() {
            let now = self.world.now();
            self.take_due_steps(now);
            self.operate(now);
            if now >= end {
                break;
            }
            self.world.run_until(self.next_stop(end));
            self.world.check_due();
        }
        if self.world.violations().is_empty() { Ok(()) } else { Err(self.failure()) }
    }

    fn next_stop(&self, end: Moment) -> Moment {
        let now = self.world.now();
        // Before it began no step is due, however early it is: to stop at one would be for ever.
        let step = self.steps.front().filter(|_| self.began > Moment::ZERO);
        let step = step.map_or(Moment::NEVER, |step| self.began + step.at);
        let lasting = self.active.iter().map(Active::next).min();
        let stops = [
            end,
            now + LOOK_PERIOD,
            step,
            lasting.unwrap_or(Moment::NEVER),
            self.replica.as_ref().map_or(Moment::NEVER, |replica| replica.until),
            self.world.next_due().max(now + Duration::from_nanos(1)),
        ];
        stops.into_iter().min().expect("there are stops")
    }

    fn take_due_steps(&mut self, now: Moment) {
        while let Some(step) = self.steps.front().copied()
            && self.began > Moment::ZERO
            && self.began + step.at <= now
        {
            self.steps.pop_front();
            self.inflict(step.fault);
        }
        if self.active.iter().any(|active| active.next() <= now) {
            self.active.retain(|active| active.until > now);
            self.active.iter_mut().for_each(|active| active.turn(now));
            self.apply_active();
        }
        if let Some(replica) = self.replica.take_if(|replica| replica.until <= now) {
            self.fail_over(&replica);
        }
    }
}
