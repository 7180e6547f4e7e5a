//! The built-in load: grains and hubs that tell the ledger what runs, and programs that call them.
//!
//! What it holds: counters under each placement, a durable set that the end of the run is compared
//! with, a relay that calls further (grain, then hub), a cycle that waits for itself, a handler
//! that is slower than its caller's deadline, one hub a slot, an address that nobody has, and
//! [`streams`]. Every delivery, nested ones included, is in the ledger.

mod begin;
mod streams;

use begin::begin;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use siloring::grain::GrainType;
use siloring::prelude::*;
use siloring_core::limits::DEADLINE_DEFAULT;
use siloring_core::{ActivationNumber, Address, AddressError, FailedKind, Moment, ViewNumber};
use siloring_runtime::call::Call;

use super::cluster::{Cluster, ClusterBuilder, Failure};
use super::history::{self, Place, Turn};
use super::ledger::{DeliveryId, Source, ran};
use super::node::Node;
use super::scene::{may_be_lost, violate, world_now};

/// Deadline of nested calls: shorter than that of the call they are made for.
const NESTED_BUDGET: Duration = Duration::from_secs(8);
/// How long that handler takes.
const SLOW_HANDLER: Duration = Duration::from_secs(1);
/// Hubs that silos take over from each other.
const ROAMERS: u16 = 3;
/// A claim is made by then, whatever happens meanwhile: the longest fault, and what it leaves
/// behind.
const CLAIM_MAX: Duration = Duration::from_secs(110);
/// A hub waits so long for its subscription before it serves.
const SUBSCRIBE_MAX: Duration = Duration::from_millis(300);
/// A probe of a healed cluster is answered by then.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Enters a delivery, makes the call for it, and closes it with the outcome.
///
/// # Errors
/// The call's.
pub async fn tracked<T, E>(
    source: Source,
    target: &Address,
    budget: Option<Duration>,
    make: impl FnOnce(DeliveryId) -> Call<T, E>,
) -> Result<T, CallError<E>> {
    let sent = source.sent(target, budget.unwrap_or(DEADLINE_DEFAULT));
    let mut call = make(sent.id());
    if let Some(budget) = budget {
        call = call.deadline(budget);
    }
    let result = call.await;
    sent.close(result.as_ref().err().and_then(CallError::delivery));
    result
}

/// As [`tracked`], for a target of the load: some failures cannot be, whatever happens to the
/// cluster.
async fn judged<T, E>(
    source: Source,
    target: &Address,
    budget: Option<Duration>,
    make: impl FnOnce(DeliveryId) -> Call<T, E>,
) -> Result<T, CallError<E>> {
    let result = tracked(source, target, budget, make).await;
    if let Err(CallError::Delivery(failure)) = &result {
        judge(target, failure);
    }
    result
}

/// As [`judged`], for a counter: what it answers is in one order.
async fn counted(
    source: Source,
    target: &Address,
    budget: Option<Duration>,
    make: impl FnOnce(DeliveryId) -> Call<Counted>,
) -> Result<Counted, CallError> {
    let begun = history::begin(target);
    let result = judged(source, target, budget, make).await;
    if let Ok(counted) = &result {
        history::answered(&begun, counted.place());
    }
    result
}

fn judge(target: &Address, failure: &DeliveryFailure) {
    let is_hub = target.kind().0 == HUB_KIND;
    let is_stream = target.kind().0 == siloring_pubsub::STREAM_KIND;
    let possible = match failure {
        DeliveryFailure::Rejected { kind, .. } => match kind {
            RejectedKind::Moving
            | RejectedKind::ConnectionLost
            | RejectedKind::Deactivating
            | RejectedKind::Draining
            | RejectedKind::Overloaded
            | RejectedKind::RegistryUnavailable
            | RejectedKind::IncarnationDead => true,
            // A grain is never absent: it is activated. Of a stream, its last consumer may be.
            RejectedKind::NotHere => is_hub || is_stream,
            RejectedKind::NoSubscriber => is_stream,
            RejectedKind::Incompatible
            | RejectedKind::TooLarge
            | RejectedKind::RequestUndecodable
            | RejectedKind::AccessDenied => false,
        },
        DeliveryFailure::Failed { kind, .. } => match kind {
            FailedKind::HandlerFailed | FailedKind::Deadlock => true,
            FailedKind::ReplyUndecodable => false,
        },
        DeliveryFailure::Indeterminate { .. } => true,
        DeliveryFailure::Unknown { .. } => false,
    };
    if !possible {
        violate("no failure that the load cannot cause", format!("{target}: {failure}"));
    }
}

fn address(kind: &str, id: impl std::fmt::Display) -> Address {
    Address::of(kind, &id.to_string()).expect("the load's addresses are plain")
}

/// Where an answer stands in the order of its grain's.
#[message(type = "sim.counted")]
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    view: u64,
    counter: u64,
    count: u64,
}

impl Counted {
    fn of(ctx: &Ctx, count: u64) -> Self {
        let ActivationNumber { view, counter } = ctx.fence();
        Self { view: view.0, counter, count }
    }

    fn place(self) -> Place {
        let by = ActivationNumber { view: ViewNumber(self.view), counter: self.counter };
        Place { by, count: self.count }
    }
}

/// The turn of a grain of the load.
fn turn(ctx: &Ctx, kind: &str) -> Turn {
    Turn::begin(&address(kind, ctx.key()), ctx.fence())
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident, $type:literal, $placement:literal) => {
        $(#[$doc])*
        #[derive(Grain, Default, Debug)]
        #[grain(type = $type, key = u64, placement = $placement)]
        pub struct $name {
            count: u64,
        }

        #[grain_methods]
        impl $name {
            /// Counts one delivery.
            pub async fn count(&mut self, ctx: &Ctx, id: u64) -> Counted {
                ran(DeliveryId(id), ctx.attempt());
                let _turn = turn(ctx, Self::TYPE);
                self.count += 1;
                Counted::of(ctx, self.count)
            }
        }
    };
}

counter! {
    /// A counter where it is called first.
    LocalCounter, "sim.local", "prefer_local"
}
counter! {
    /// A counter where its address hashes to.
    HashedCounter, "sim.hashed", "hash"
}
counter! {
    /// A counter anywhere.
    RandomCounter, "sim.random", "random"
}

/// What a durable set stores.
#[message(type = "sim.members")]
#[derive(Default, Debug)]
pub struct Members {
    ids: Vec<u64>,
}

/// A set that survives its activation: what was answered is in it, what was rejected is not.
#[derive(Grain, Default, Debug)]
#[grain(type = "sim.set", key = u64, placement = "random")]
pub struct DurableSet {
    members: Members,
}

#[grain_methods]
impl DurableSet {
    /// Loads what is stored.
    pub async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        let stored = ctx.load_state::<Members>("members").await;
        self.members = stored.map_err(|error| error.to_string())?.unwrap_or_default();
        Ok(())
    }

    /// Adds a delivery's own id.
    ///
    /// Its place in the set, from 1.
    pub async fn add(&mut self, ctx: &Ctx, id: u64) -> Result<u64, String> {
        ran(DeliveryId(id), ctx.attempt());
        let _turn = turn(ctx, Self::TYPE);
        self.members.ids.push(id);
        let saved = ctx.save_state("members", &self.members).await;
        saved.map_err(|error| {
            // Whether it was stored is unknown: the next activation reads what is.
            ctx.deactivate();
            error.to_string()
        })?;
        Ok(self.members.ids.len() as u64)
    }

    /// Everything in it, in order; a turn of its own, so that nothing is half added.
    pub async fn list(&mut self, ctx: &Ctx, id: u64) -> Vec<u64> {
        ran(DeliveryId(id), ctx.attempt());
        self.members.ids.clone()
    }

    /// Everything in it.
    pub async fn all(&self) -> Vec<u64> {
        self.members.ids.clone()
    }
}

/// A grain that calls others in its turn.
#[derive(Grain, Default, Debug)]
#[grain(type = "sim.relay", key = u64, placement = "random")]
pub struct Relay {
    own: Option<Source>,
}

impl Relay {
    fn own(&mut self) -> Source {
        *self.own.get_or_insert_default()
    }
}

#[grain_methods]
impl Relay {
    /// Calls a counter, then the hub of a slot.
    pub async fn relay(&mut self, ctx: &Ctx, id: u64, counter: u64, slot: u16) -> u64 {
        ran(DeliveryId(id), ctx.attempt());
        let _turn = turn(ctx, Self::TYPE);
        let source = self.own();
        let target = address(HashedCounter::TYPE, counter);
        let call = |id: DeliveryId| ctx.grain::<HashedCounter>(counter).count(id.0);
        let first = counted(source, &target, Some(NESTED_BUDGET), call).await;
        let hub = hub_address(slot);
        let second = tell_hub(ctx.hub_ref(hub.as_str()), source, &hub, NESTED_BUDGET).await;
        u64::from(first.is_ok()) + u64::from(second.is_ok())
    }

    /// Calls the next of two relays, which calls this one: a chain that waits for itself.
    pub async fn cycle(&mut self, ctx: &Ctx, id: u64, depth: u8) -> bool {
        ran(DeliveryId(id), ctx.attempt());
        if depth == 0 {
            return false;
        }
        let source = self.own();
        let key: u64 = ctx.key().parse().unwrap_or_default();
        let other = key ^ 1;
        let target = address(Self::TYPE, other);
        let call = |id: DeliveryId| ctx.grain::<Self>(other).cycle(id.0, depth - 1);
        match judged(source, &target, Some(NESTED_BUDGET), call).await {
            Ok(found) => found,
            Err(error) => is_deadlock(error.delivery()),
        }
    }

    /// Takes longer than its caller waits.
    pub async fn dawdle(&mut self, ctx: &Ctx, id: u64) {
        ran(DeliveryId(id), ctx.attempt());
        let _turn = turn(ctx, Self::TYPE);
        ctx.sleep(SLOW_HANDLER).await;
    }
}

fn is_deadlock(failure: Option<&DeliveryFailure>) -> bool {
    matches!(failure, Some(DeliveryFailure::Failed { kind: FailedKind::Deadlock, .. }))
}

/// Takes a while in its only turn: something is always being handled.
#[derive(Grain, Default, Debug)]
#[grain(type = "sim.lingerer", key = u64, placement = "random", idle_after_s = 30)]
pub struct Lingerer {}

#[grain_methods]
impl Lingerer {
    /// Answers after so many milliseconds.
    pub async fn linger(&mut self, ctx: &Ctx, id: u64, wait_ms: u64) {
        ran(DeliveryId(id), ctx.attempt());
        let _turn = turn(ctx, Self::TYPE);
        ctx.sleep(Duration::from_millis(wait_ms)).await;
    }
}

/// What the load sends to hubs.
#[message(type = "sim.ping")]
#[derive(Debug)]
pub struct Ping {
    /// Which delivery it is.
    pub id: u64,
    /// Nothing, or much of it.
    pub ballast: Vec<u8>,
}

/// The kind of the load's hubs.
const HUB_KIND: &str = "portal";

/// The address of a slot's hub.
pub fn hub_address(slot: u16) -> Address {
    address(HUB_KIND, format_args!("s{slot}"))
}

fn roamer_address(number: u16) -> Address {
    address(HUB_KIND, format_args!("roamer-{number}"))
}

async fn tell_hub(
    hub: Result<HubRef, AddressError>,
    source: Source,
    target: &Address,
    budget: Duration,
) -> Result<(), CallError> {
    let hub = hub.expect("the load's addresses are plain");
    judged(source, target, Some(budget), |id| {
        hub.send::<Ping, ()>(&Ping { id: id.0, ballast: Vec::new() })
    })
    .await
}

/// The load, and what it remembers for the end of the run.
#[derive(Clone, Debug, Default)]
pub struct Workload(Rc<Memory>);

#[derive(Debug, Default)]
struct Memory {
    stopped: Cell<bool>,
    /// How many programs hold each roaming hub.
    roamers: [Cell<u16>; ROAMERS as usize],
    streams: Rc<streams::Memory>,
    /// The longest that each set was found.
    lists: RefCell<BTreeMap<u64, Vec<u64>>>,
    /// What was added to each set, and whether it must be, or must not be, in it.
    adds: RefCell<BTreeMap<u64, BTreeMap<u64, Presence>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    /// Unless the store lost what it committed between the two moments.
    Must {
        sent: Moment,
        heard: Moment,
    },
    MustNot,
    May,
}

/// A program's hold on a roaming hub; ends with it.
struct Holding {
    memory: Rc<Memory>,
    number: u16,
}

impl Holding {
    fn of(memory: &Rc<Memory>, number: u16) -> Self {
        let count = &memory.roamers[usize::from(number)];
        count.set(count.get() + 1);
        Self { memory: Rc::clone(memory), number }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let count = &self.memory.roamers[usize::from(self.number)];
        count.set(count.get() - 1);
    }
}

impl Workload {
    /// A load that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets every silo of the cluster host the load's grains and run its program.
    #[must_use]
    pub fn install(&self, builder: ClusterBuilder) -> ClusterBuilder {
        let memory = Rc::clone(&self.0);
        builder
            .host::<LocalCounter>()
            .host::<HashedCounter>()
            .host::<RandomCounter>()
            .host::<DurableSet>()
            .host::<Relay>()
            .host::<Lingerer>()
            .host::<streams::Listener>()
            .program(move |node| program(node, Rc::clone(&memory)))
    }

    /// Begins nothing new.
    pub fn stop(&self) {
        self.0.stopped.set(true);
    }

    /// Stops the load and checks that nothing is left over: every delivery resolved, every set as
    /// answered, every hub and placement reachable at once from every slot.
    ///
    /// # Errors
    /// The first check that did not hold.
    pub fn verify(&self, cluster: &mut Cluster) -> Result<(), Failure> {
        self.stop();
        let budget = DEADLINE_DEFAULT + Duration::from_secs(5);
        cluster.run_until(budget, "every delivery is resolved", |cluster| {
            cluster.world().counts().open() == 0
        })?;
        self.probe(cluster)?;
        self.verify_sets(cluster)?;
        streams::verify(cluster, &self.0.streams)?;
        cluster.check_rest()
    }

    fn probe(&self, cluster: &mut Cluster) -> Result<(), Failure> {
        let held = (0..ROAMERS).filter(|number| self.0.roamers[usize::from(*number)].get() > 0);
        let slots = cluster.slots().map(|slot| hub_address(slot.0));
        let hubs: Vec<Address> = slots.chain(held.map(roamer_address)).collect();
        for slot in cluster.slots() {
            let hubs = hubs.clone();
            let failed = cluster.block_on(slot, move |node| probe(node, hubs))?;
            for what in failed {
                cluster.world_mut().violate("a fresh probe works within a second", what);
            }
        }
        cluster.run_for(Duration::ZERO)
    }

    fn verify_sets(&self, cluster: &mut Cluster) -> Result<(), Failure> {
        let adds = self.0.adds.borrow().clone();
        let slot = cluster.slots().next().expect("a cluster has slots");
        for (key, expected) in adds {
            let all = cluster.block_on(slot, move |node| async move {
                node.handle().grain::<DurableSet>(key).all().await
            })?;
            let found: BTreeSet<u64> = match all {
                Ok(found) => found.into_iter().collect(),
                Err(error) => {
                    cluster.world_mut().violate("a set can be read", error.to_string());
                    break;
                }
            };
            for (id, presence) in expected {
                let wrong = match presence {
                    Presence::Must { sent, heard } => {
                        !found.contains(&id) && !may_be_lost(sent, heard)
                    }
                    Presence::MustNot => found.contains(&id),
                    Presence::May => false,
                };
                if wrong {
                    let text = format!("set {key}, delivery {id}: {presence:?}");
                    cluster.world_mut().violate("a set holds what was answered", text);
                }
            }
        }
        cluster.run_for(Duration::ZERO)
    }
}

/// Reaches every kind of target once; names those that were not answered in time.
async fn probe(node: Node, hubs: Vec<Address>) -> Vec<String> {
    let mut failed = Vec::new();
    let source = Source::new();
    let began = node.now();
    for hub in hubs {
        let result = tell_hub(node.handle().hub_ref(hub.as_str()), source, &hub, PROBE_MAX).await;
        failed.extend(result.err().map(|error| format!("{hub} from {}: {error}", node.slot())));
    }
    for key in 0..4 {
        let key = 1_000_000 + u64::from(node.slot().0) * 100 + key;
        let target = address(RandomCounter::TYPE, key);
        let call = |id: DeliveryId| node.handle().grain::<RandomCounter>(key).count(id.0);
        let result = counted(source, &target, Some(PROBE_MAX), call).await;
        failed.extend(result.err().map(|error| format!("{target} from {}: {error}", node.slot())));
    }
    let took = node.now().since(began);
    if took > PROBE_MAX {
        failed.push(format!("the probes of {} took {took:?}", node.slot()));
    }
    failed
}

async fn program(node: Node, memory: Rc<Memory>) {
    node.spawn(hub(node.clone()));
    node.spawn(roam(node.clone(), Rc::clone(&memory)));
    let stopped = Rc::clone(&memory);
    let subscriptions = Rc::clone(&memory.streams);
    node.spawn(streams::manage(node.clone(), subscriptions, move || stopped.stopped.get()));
    let mut random = node.random("load");
    let period = Duration::from_secs(u64::from(node.silo_count())) / node.load_per_second().max(1);
    let source = Source::new();
    while node.load_per_second() > 0 {
        let pause = period.mul_f64(2.0 * random.f64());
        node.sleep(pause).await;
        if memory.stopped.get() {
            return;
        }
        begin(&node, &memory, source, &mut random);
    }
}

/// Opens the slot's hub and answers what comes. The newcomer of a slot takes it over; one that lost
/// it opens it again once nobody has it.
async fn hub(node: Node) {
    let address = hub_address(node.slot().0);
    let builder = || node.handle().hub(address.as_str()).expect("the load's addresses are plain");
    let mut opened = builder().take_over().open().await;
    loop {
        match opened {
            Ok(mut hub) => {
                // If that takes long it may or may not be subscribed, and serves meanwhile.
                within(&node, SUBSCRIBE_MAX, streams::subscribe_hub(&node, &hub)).await;
                if let Ok(claim) = hub.claimed().await {
                    let claim = ActivationNumber { view: claim.view, counter: claim.counter };
                    serve(&mut hub, claim).await;
                }
            }
            Err(HubError::SiloStopping) => return,
            Err(_) => {}
        }
        node.sleep(Duration::from_millis(300)).await;
        opened = builder().open().await;
    }
}

/// Answers what comes to a hub, events and other messages, until it ends.
async fn serve(hub: &mut Hub, claim: ActivationNumber) {
    while let Some(delivery) = hub.next().await {
        if let Some(delivery) = streams::take(delivery, claim) {
            answer(delivery);
        }
    }
}

/// Takes one of the roaming hubs over, now and then, and keeps it until another silo does.
async fn roam(node: Node, memory: Rc<Memory>) {
    let mut random = node.random("roam");
    loop {
        node.sleep(Duration::from_millis(random.u64(5_000..40_000))).await;
        if memory.stopped.get() || node.load_per_second() == 0 {
            return;
        }
        let number = random.u16(..ROAMERS);
        let address = roamer_address(number);
        let builder = node.handle().hub(address.as_str()).expect("the load's addresses are plain");
        let began = world_now();
        let opened = within(&node, CLAIM_MAX, builder.take_over().open()).await;
        // The clock of this host may have jumped: the world's has not.
        let is_late = world_now().zip(began).is_some_and(|(now, at)| now.since(at) > CLAIM_MAX / 2);
        match opened {
            Some(Ok(hub)) => node.spawn(keep(hub, Holding::of(&memory, number))),
            None if is_late => {
                violate("a claim is made in the end", format!("{address} by {}", node.slot()));
            }
            // Another take-over was faster, or the silo leaves, or it is given up after a jump.
            Some(Err(_)) | None => {}
        }
    }
}

async fn keep(mut hub: Hub, _presence: Holding) {
    while let Some(delivery) = hub.next().await {
        answer(delivery);
    }
}

/// The future's value, unless it takes longer.
async fn within<T>(node: &Node, span: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut pause = pin!(node.sleep(span));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => pause.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn answer(delivery: Delivery) {
    match delivery.message::<Ping>() {
        Ok(ping) => {
            ran(DeliveryId(ping.id), delivery.attempt());
            delivery.answer(&());
        }
        Err(failure) => delivery.refuse(failure),
    }
}
