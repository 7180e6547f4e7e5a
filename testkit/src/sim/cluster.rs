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

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::{ClusterId, Moment, SiloStatus};
use siloring_runtime::control::EXIT_DECLARED_DEAD;
use siloring_runtime::grain::Grain;
use siloring_runtime::host::HostFactory;
use siloring_storage::MemoryStore;

use super::faults::{Active, Effect};
use super::ledger::Counts;
use super::node::{Node, NodeSetup, SiloShared};
use super::plan::{Fault, Options, Plan, Slot, Step};
use super::planted::Planted;
use super::silo::{Silo, SiloSetup};
use super::trace::TraceSink;
use super::watches::{DETECTED_MAX, Gone, Watches, ended_slot};
use super::world::{HostId, Life, ProcessId, Violation, World, WorldSettings};

/// A future of a silo's surrounding program.
pub(super) type ProgramFuture = Pin<Box<dyn Future<Output = ()>>>;
/// Makes the surrounding program of a silo; called once for each start, when the silo is Active.
pub(super) type MakeProgram = Rc<dyn Fn(Node) -> ProgramFuture>;

/// How long the operator waits before a silo that ended by itself is started again.
const RESTART_AFTER: Duration = Duration::from_secs(2);
/// A roll waits this long for a newcomer, or for a silo that leaves; then it goes on.
const ROLL_STEP_MAX: Duration = Duration::from_secs(90);
/// The world is looked at this often, besides at each step and due time.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// All slots of a new cluster are Active by then.
const START_MAX: Duration = Duration::from_mins(1);
/// A healed cluster has converged by then.
const CONVERGE_MAX: Duration = Duration::from_mins(2);
/// A future handed to [`Cluster::block_on`] ends by then.
const BLOCK_MAX: Duration = Duration::from_mins(5);

/// Builds a [`Cluster`].
pub struct ClusterBuilder {
    plan: Plan,
    hosts: Vec<HostFactory>,
    programs: Vec<MakeProgram>,
    early_programs: Vec<MakeProgram>,
    sink: Option<TraceSink>,
    world: WorldSettings,
}

impl std::fmt::Debug for ClusterBuilder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ClusterBuilder").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl ClusterBuilder {
    /// Every silo hosts this grain type.
    #[must_use]
    pub fn host<G: Grain>(mut self) -> Self {
        self.hosts.push(HostFactory::of::<G>());
        self
    }

    /// Every silo's process runs this program, from the moment the silo is Active until it ends.
    #[must_use]
    pub fn program<F>(mut self, make: impl Fn(Node) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        self.programs.push(Rc::new(move |node| Box::pin(make(node))));
        self
    }

    /// Every silo's process runs this program too, from its start on: before the silo has joined.
    #[must_use]
    pub fn early_program<F>(mut self, make: impl Fn(Node) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        self.early_programs.push(Rc::new(move |node| Box::pin(make(node))));
        self
    }

    /// What happens to it.
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        self.world.seed = plan.options.seed;
        self.plan = plan;
        self
    }

    /// Tells every step of the run to `sink`.
    #[must_use]
    pub fn trace(mut self, sink: impl FnMut(&str) + 'static) -> Self {
        self.sink = Some(Box::new(sink));
        self
    }

    /// Keeps the events that silos tell, for [`Cluster::world`].
    #[must_use]
    pub const fn keep_events(mut self) -> Self {
        self.world.keep_events = true;
        self
    }

    /// Changes the settings of the world.
    #[must_use]
    pub fn world(mut self, change: impl FnOnce(&mut WorldSettings)) -> Self {
        change(&mut self.world);
        self
    }

    /// The cluster, with every slot empty.
    ///
    /// # Panics
    /// If the plan's options name an unknown defect.
    pub fn build(self) -> Cluster {
        let id = ClusterId::new("sim").expect("a plain name");
        let store = Box::new(MemoryStore::new(id.clone()));
        let mut world = World::new(self.world, store, self.sink);
        let slots = (1..=self.plan.options.silos)
            .map(|number| SlotState {
                name: format!("s{number}"),
                host: world.add_host(),
                current: None,
                leaving: Vec::new(),
                generation_count: 0,
                restart_at: Moment::NEVER,
                down_on_purpose: false,
            })
            .collect();
        let steps = self.plan.steps.iter().copied().collect();
        Cluster {
            id,
            world,
            options: self.plan.options.clone(),
            steps,
            hosts: self.hosts,
            programs: self.programs,
            early_programs: self.early_programs,
            planted: Planted::named(self.plan.options.defect.as_deref()),
            slots,
            silos: BTreeMap::new(),
            active: Vec::new(),
            touched: BTreeSet::new(),
            roll: None,
            began: Moment::ZERO,
            tally: Tally::default(),
            watches: Watches::default(),
            seen_active: BTreeSet::new(),
            plan: self.plan,
        }
    }
}

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
    /// Silos killed, with or without their machine.
    pub kills: u64,
    /// Rolls that went through all slots.
    pub rolls: u64,
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
            "to repeat it: SILORING_SEED={}, or SILORING_PLAN=FILE with",
            self.plan.options.seed
        )?;
        write!(out, "{}", self.plan)
    }
}

impl std::error::Error for Failure {}

/// A cluster in a world of its own.
pub struct Cluster {
    id: ClusterId,
    world: World,
    options: Options,
    plan: Plan,
    steps: VecDeque<Step>,
    hosts: Vec<HostFactory>,
    programs: Vec<MakeProgram>,
    early_programs: Vec<MakeProgram>,
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
    /// A builder of a cluster with the usual options.
    pub fn builder() -> ClusterBuilder {
        let plan = Plan::calm(Options::new(1));
        ClusterBuilder {
            world: WorldSettings::new(plan.options.seed),
            plan,
            hosts: Vec::new(),
            programs: Vec::new(),
            early_programs: Vec::new(),
            sink: None,
        }
    }

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

    /// Does to the cluster what a step of a plan would.
    pub fn inflict(&mut self, fault: Fault) {
        self.world.enter_fault(&fault.to_string());
        self.tally.faults += 1;
        self.watch(fault);
        match fault {
            Fault::Kill(slot) => self.end_slot(slot, World::kill),
            Fault::Vanish(slot) => self.end_slot(slot, World::vanish),
            Fault::Start(slot) => self.start_slot(slot),
            Fault::Drain(slot) => self.drain_slot(slot),
            Fault::Roll => self.begin_roll(),
            Fault::Jump(slot, by) => {
                if let Some(process) = self.process(slot) {
                    self.world.jump(process, by);
                }
            }
            Fault::Reset(one, other) => {
                let (one, other) = (self.host(one), self.host(other));
                self.world.core().cut_between(one, other);
            }
            Fault::Pause(..)
            | Fault::Slow(..)
            | Fault::Mute(..)
            | Fault::Split(..)
            | Fault::Isolate(..)
            | Fault::Refuse(..)
            | Fault::Delay(..)
            | Fault::Lose(..)
            | Fault::StoreDown(..)
            | Fault::StoreHang(..)
            | Fault::StoreDelay(..)
            | Fault::StoreLose(..)
            | Fault::StoreCut(..) => self.begin_lasting(fault),
        }
    }

    /// Makes the directory of a slot's silo lose every entry that it owns: a fault that no plan has
    /// a word for, since none but a defect causes it.
    #[cfg(feature = "planted")]
    pub fn lose_directory(&mut self, slot: Slot) {
        let Some(silo) = self.silo(slot) else { return };
        silo.losses.set(silo.losses.get() + 1);
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
        let (store_unavailable, store_answers_lost) = self.world.core_ref().store.counts();
        Report {
            store_unavailable,
            store_answers_lost,
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
        let step = self.steps.front().map_or(Moment::NEVER, |step| self.began + step.at);
        let lasting = self.active.iter().map(|active| active.until).min();
        let stops = [
            end,
            now + LOOK_PERIOD,
            step,
            lasting.unwrap_or(Moment::NEVER),
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
        if self.active.iter().any(|active| active.until <= now) {
            self.active.retain(|active| active.until > now);
            self.apply_active();
        }
    }

    /// What an operator does: restarts what ended by itself, goes on with a roll.
    fn operate(&mut self, now: Moment) {
        for slot in self.slots() {
            self.note_exit(slot, now);
            if self.slots[index(slot)].restart_at <= now {
                self.start_slot(slot);
            }
        }
        if let Some(roll) = self.roll.take() {
            self.roll = self.go_on_rolling(roll, now);
        }
        for gone in self.watches.take_due(now) {
            self.check_known(&gone);
        }
        self.check_newcomers();
    }

    fn note_exit(&mut self, slot: Slot, now: Moment) {
        let state = &mut self.slots[index(slot)];
        if let Some(process) = state.current
            && let Life::Exited(code) = self.world.life(process)
        {
            state.current = None;
            *self.tally.exits.entry(code).or_default() += 1;
            if !state.down_on_purpose {
                state.restart_at = now + RESTART_AFTER;
            }
            if code == i32::from(EXIT_DECLARED_DEAD) && !self.watches.is_excused(now) {
                self.world.violate("nobody dies of nothing", format!("{slot} ended with {code}"));
            }
        }
        state.leaving.retain(|process| self.world.life(*process).is_alive());
    }
}

/// Watches.
impl Cluster {
    /// Begins to watch for what a fault must lead to, if it comes alone.
    fn watch(&mut self, fault: Fault) {
        let now = self.world.now();
        let is_alone = self.watches.is_calm(now) && self.roll.is_none() && self.is_whole();
        self.watches.fault(now, fault);
        let process = ended_slot(fault).filter(|_| is_alone).and_then(|slot| self.process(slot));
        let Some(process) = process else { return };
        let incarnation = self.silos[&process].incarnation();
        let Some(incarnation) = incarnation else { return };
        // What a stopped silo handles may still end well.
        let handling = if matches!(fault, Fault::Pause(..)) {
            Vec::new()
        } else {
            self.world.core_ref().scene.ledger.borrow().handled_by(process)
        };
        let generation = incarnation.generation;
        self.watches.gone(Gone { process, generation, due: now + DETECTED_MAX, handling });
    }

    /// A silo that has become Active has heard from every Active silo: none was stopped all the
    /// while.
    fn check_newcomers(&mut self) {
        let active = |silo: &Rc<SiloShared>| silo.status() == Some(SiloStatus::Active);
        let newcomers: Vec<_> = self
            .silos
            .iter()
            .filter(|(process, silo)| !self.seen_active.contains(process) && active(silo))
            .map(|(process, silo)| (*process, silo.view()))
            .collect();
        for (newcomer, view) in newcomers {
            self.seen_active.insert(newcomer);
            let began = self.world.started_at(newcomer);
            for (process, silo) in &self.silos {
                let unheard = self.world.paused_since(*process).is_some_and(|at| at <= began);
                let listed = silo.incarnation().and_then(|who| view.status(who.generation));
                if unheard && listed == Some(SiloStatus::Active) {
                    let text = format!("{newcomer:?} joined, {process:?} was stopped");
                    self.world.violate("a joiner has heard from every Active silo", text);
                    return;
                }
            }
        }
    }

    /// A silo went a while ago, and nothing else happened: everybody knows by now.
    fn check_known(&mut self, gone: &Gone) {
        for slot in self.slots() {
            let Some(silo) = self.silo(slot) else { continue };
            let is_well = silo.process() != Some(gone.process)
                && silo.status() == Some(SiloStatus::Active)
                && silo.process().is_some_and(|p| self.world.undisturbed_since(p).is_some());
            if is_well && !silo.view().is_gone(gone.generation) {
                let text = format!("{slot} does not know that {} is gone", gone.generation);
                self.world.violate("a silo that is gone is Dead within the bound", text);
            }
        }
        for id in &gone.handling {
            let scene = Rc::clone(&self.world.core_ref().scene);
            let sender = scene.ledger.borrow().sender_waiting(*id);
            if sender.is_some_and(|sender| self.world.undisturbed_since(sender).is_some()) {
                let text = scene.ledger.borrow().describe(*id);
                self.world.violate("P1 an outcome soon after its silo has gone", text);
            }
        }
    }
}

/// Silos.
impl Cluster {
    fn host(&self, slot: Slot) -> HostId {
        self.slots[index(slot)].host
    }

    /// Starts a silo in an empty slot. In one whose silo is leaving, a newcomer takes its place.
    fn start_slot(&mut self, slot: Slot) {
        match self.process(slot) {
            None => self.launch(slot),
            Some(process) if self.slots[index(slot)].down_on_purpose => {
                let state = &mut self.slots[index(slot)];
                state.leaving.push(process);
                self.move_slot(slot);
                self.launch(slot);
            }
            Some(_) => {}
        }
    }

    /// The slot's next silo is another one: a new name on a new machine.
    fn move_slot(&mut self, slot: Slot) {
        let host = self.world.add_host();
        let state = &mut self.slots[index(slot)];
        state.generation_count += 1;
        state.name = format!("{slot}.{}", state.generation_count);
        state.host = host;
        state.current = None;
        self.apply_active();
    }

    fn launch(&mut self, slot: Slot) {
        let state = &mut self.slots[index(slot)];
        state.restart_at = Moment::NEVER;
        state.down_on_purpose = false;
        self.tally.starts += 1;
        let setup = SiloSetup {
            cluster: self.id.clone(),
            node: NodeSetup {
                slot,
                seed: self.options.seed ^ (self.tally.starts << 32),
                silo_count: self.options.silos,
                load_per_second: self.options.load_per_second,
            },
            name: state.name.clone(),
            address: self.world.address(state.host).to_owned(),
            shards: self.options.shards,
            hosts: self.hosts.clone(),
            programs: self.programs.clone(),
            early_programs: self.early_programs.clone(),
            planted: self.planted,
        };
        let (silo, shared) = Silo::new(setup);
        let process = self.world.start(state.host, silo.parts(), Box::new(silo));
        shared.started_as(process);
        self.silos.insert(process, shared);
        self.slots[index(slot)].current = Some(process);
    }

    fn end_slot(&mut self, slot: Slot, end: fn(&mut World, ProcessId)) {
        if let Some(process) = self.process(slot) {
            self.tally.kills += 1;
            end(&mut self.world, process);
            let state = &mut self.slots[index(slot)];
            state.current = None;
            state.down_on_purpose = true;
            state.restart_at = Moment::NEVER;
        }
    }

    fn drain_slot(&mut self, slot: Slot) {
        if let Some(process) = self.process(slot) {
            self.slots[index(slot)].down_on_purpose = true;
            self.world.drain(process);
        }
    }

    fn begin_roll(&mut self) {
        if self.roll.is_none() {
            self.roll = Some(Roll {
                slots: self.slots().collect(),
                newcomer: None,
                old: None,
                drained: false,
                step_ends: Moment::NEVER,
            });
        }
    }

    fn go_on_rolling(&mut self, mut roll: Roll, now: Moment) -> Option<Roll> {
        let is_over = now >= roll.step_ends;
        if let Some((_, newcomer)) = roll.newcomer {
            let status = self.silos.get(&newcomer).and_then(|silo| silo.status());
            let gone = !self.world.life(newcomer).is_alive();
            if status == Some(SiloStatus::Active) || gone || is_over {
                roll.newcomer = None;
                roll.step_ends = now + ROLL_STEP_MAX;
                if let Some(old) = roll.old.filter(|old| self.world.life(*old).is_alive()) {
                    self.world.drain(old);
                    roll.drained = true;
                }
            }
            return Some(roll);
        }
        let leaving = roll.old.is_some_and(|old| self.world.life(old).is_alive());
        if leaving && !is_over {
            return Some(roll);
        }
        let Some(slot) = roll.slots.pop_front() else {
            self.tally.rolls += 1;
            return None;
        };
        roll.old = self.process(slot);
        if let Some(old) = roll.old {
            self.slots[index(slot)].leaving.push(old);
            self.move_slot(slot);
        }
        self.start_slot(slot);
        roll.newcomer = self.process(slot).map(|process| (slot, process));
        roll.step_ends = now + ROLL_STEP_MAX;
        Some(roll)
    }
}

/// Faults that last.
impl Cluster {
    fn begin_lasting(&mut self, fault: Fault) {
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
    fn apply_active(&mut self) {
        let paths = super::faults::paths(&self.active);
        let before = std::mem::take(&mut self.touched);
        for pair in before.iter().chain(paths.keys()).copied().collect::<BTreeSet<_>>() {
            let path = paths.get(&pair).copied().unwrap_or_default();
            self.world.core().set_path(pair.0, pair.1, path);
        }
        self.touched = paths.into_keys().collect();
        let (store, cut) = super::faults::store(&self.active);
        let model = &mut self.world.core().store;
        model.faults = store;
        model.cut = cut;
        let paused = super::faults::paused(&self.active);
        let stalls = super::faults::stalls(&self.active);
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
        }
    }
}
