//! The load of a chaos run: calls, keyed calls, one-ways, stored state, hubs and streams, each
//! entered in the process' journal when it begins, when it runs and when its sender has heard.
//!
//! | verb | does | answers |
//! |---|---|---|
//! | `chaos RATE SILOS SEED` | begins the load: deliveries a second and shard, hubs to call | |
//! | `calm` | begins nothing new, and waits until all is heard | how many are not |
//! | `members N` | | what is in a stored set, or why that is not known |

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use siloring::ctx::Sleep;
use siloring::grain::GrainType;
use siloring::prelude::*;
use siloring::{ShardIndex, SiloBuilder, Stream};
use siloring_core::ActivationNumber;
use siloring_testkit::process::journal::{End, Journal, Sending, What};

use super::{Desk, block_on, number};

/// Every outcome of the load is due within this.
const BUDGET: Duration = Duration::from_secs(8);
/// And that of what a turn calls, within the turn's own.
const NESTED_BUDGET: Duration = Duration::from_secs(5);
/// How long a calmed load is waited for: its budget, and what a loaded machine adds.
const CALM_TIME_MAX: Duration = Duration::from_secs(20);
const CALM_PERIOD: Duration = Duration::from_millis(20);
const KEYS: u64 = 16;
/// Stored sets.
const SETS: u64 = 4;
const STREAMS: u64 = 4;
/// Grains that take a while, so many that they seldom wait for each other, and how long.
const DAWDLERS: u64 = 400;
const DAWDLE_MS_MAX: u64 = 1_500;
const NAMESPACE: &str = "chaos";
const HUB_KIND: &str = "portal";
/// A message to a hub that fills several segments, and how seldom it is.
const BALLAST_BYTES: usize = 192 * 1024;
const BALLAST_SHARE: u32 = 40;

/// This process' journal, if the run keeps one: a grain begins from `Default` and cannot be handed
/// it.
static JOURNAL: OnceLock<Journal> = OnceLock::new();
static IS_CALM: AtomicBool = AtomicBool::new(false);
static OPEN: AtomicU64 = AtomicU64::new(0);
static SOURCES: AtomicU32 = AtomicU32::new(0);

/// Keeps the journal of the run's process of this number.
pub(crate) fn keep_journal(path: &str, process: u64) {
    let journal = Journal::create(Path::new(path), process).expect("the run's folder is there");
    assert!(JOURNAL.set(journal).is_ok(), "a process keeps one journal");
}

/// Hosts the load's grains.
pub(crate) fn host(builder: SiloBuilder) -> SiloBuilder {
    let builder = builder.host::<Local>().host::<Hashed>().host::<Roaming>().host::<Set>();
    builder.host::<Relay>().host::<Consumer>()
}

fn note(what: &What) {
    if let Some(journal) = JOURNAL.get() {
        journal.add(what);
    }
}

fn next_source() -> u32 {
    SOURCES.fetch_add(1, Ordering::Relaxed)
}

/// A delivery of the load that was begun; dropped, its sender waits no more.
struct Sent {
    id: u64,
    is_open: bool,
}

impl Sent {
    fn begin(source: u32, sending: Sending, budget: Duration, target: &Address) -> Self {
        let id = JOURNAL.get().map_or(0, Journal::next_id);
        OPEN.fetch_add(1, Ordering::Relaxed);
        note(&What::Began { id, source, sending, budget, target: target.clone() });
        Self { id, is_open: true }
    }

    fn end(mut self, failure: Option<&DeliveryFailure>, failed: u32, value: Option<u64>) {
        self.is_open = false;
        let end = End { code: failure.map_or(0, DeliveryFailure::code), failed, value };
        note(&What::Ended { id: self.id, end });
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.is_open {
            note(&What::Dropped { id: self.id });
        }
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes a call that the journal knows of.
async fn tracked<T, E>(
    source: u32,
    budget: Duration,
    target: Address,
    make: impl FnOnce(u64) -> Call<T, E>,
    value: impl FnOnce(&T) -> Option<u64>,
) -> Result<T, CallError<E>> {
    let sent = Sent::begin(source, Sending::Request, budget, &target);
    let result = make(sent.id).deadline(budget).await;
    let failure = result.as_ref().err().and_then(CallError::delivery);
    sent.end(failure, 0, result.as_ref().ok().and_then(value));
    result
}

const fn nothing<T>(_: &T) -> Option<u64> {
    None
}

fn ran(id: u64, attempt: u8) {
    note(&What::Ran { id, attempt });
}

fn address(kind: &str, id: impl std::fmt::Display) -> Address {
    Address::of(kind, &id.to_string()).expect("the load's addresses are plain")
}

macro_rules! counter {
    ($name:ident, $type:literal, $placement:literal) => {
        #[derive(Grain, Default)]
        #[grain(type = $type, key = u64, placement = $placement)]
        struct $name {
            count: u64,
        }

        #[grain_methods]
        impl $name {
            async fn count(&mut self, ctx: &Ctx, id: u64) -> u64 {
                ran(id, ctx.attempt());
                self.count += 1;
                self.count
            }
        }
    };
}

counter!(Local, "chaos.local", "prefer_local");
counter!(Hashed, "chaos.hashed", "hash");
counter!(Roaming, "chaos.roaming", "random");

/// What a set stores.
#[message(type = "chaos.members")]
#[derive(Default)]
struct Members {
    ids: Vec<u64>,
}

/// A set that survives its activation.
#[derive(Grain, Default)]
#[grain(type = "chaos.set", key = u64, placement = "random")]
struct Set {
    members: Members,
}

#[grain_methods]
impl Set {
    async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        let stored = ctx.load_state::<Members>("members").await;
        self.members = stored.map_err(|error| error.to_string())?.unwrap_or_default();
        Ok(())
    }

    async fn add(&mut self, ctx: &Ctx, id: u64) -> Result<u64, String> {
        ran(id, ctx.attempt());
        self.members.ids.push(id);
        let saved = ctx.save_state("members", &self.members).await;
        saved.map_err(|error| {
            // Whether it was stored is unknown: the next activation reads what is.
            ctx.deactivate();
            error.to_string()
        })?;
        Ok(self.members.ids.len() as u64)
    }

    async fn all(&self) -> Vec<u64> {
        self.members.ids.clone()
    }
}

/// Calls others in its turn.
#[derive(Grain, Default)]
#[grain(type = "chaos.relay", key = u64, placement = "random")]
struct Relay {
    source: Option<u32>,
}

#[grain_methods]
impl Relay {
    /// Takes a while: something is always under way.
    async fn dawdle(&mut self, ctx: &Ctx, id: u64, ms: u64) {
        ran(id, ctx.attempt());
        ctx.sleep(Duration::from_millis(ms)).await;
    }

    async fn relay(&mut self, ctx: &Ctx, id: u64, hub: u64) -> u64 {
        ran(id, ctx.attempt());
        let source = *self.source.get_or_insert_with(next_source);
        let key = id % KEYS;
        let call = |id| ctx.grain::<Hashed>(key).count(id);
        let target = address(Hashed::TYPE, key);
        let first = tracked(source, NESTED_BUDGET, target, call, nothing).await;
        let target = hub_address(hub);
        let to = ctx.hub_ref(target.as_str()).expect("the load's addresses are plain");
        let call = |id| to.send::<Ping, ()>(&Ping { id, ballast: Vec::new() });
        let second = tracked(source, NESTED_BUDGET, target, call, nothing).await;
        u64::from(first.is_ok()) + u64::from(second.is_ok())
    }
}

/// What is sent to hubs.
#[message(type = "chaos.ping")]
struct Ping {
    id: u64,
    ballast: Vec<u8>,
}

/// What is published.
#[message(type = "chaos.happened")]
struct Happened {
    id: u64,
}

/// Consumes streams.
#[derive(Grain, Default)]
#[grain(type = "chaos.consumer", key = u64, placement = "random")]
struct Consumer;

#[grain_methods]
impl Consumer {
    #[on_event]
    async fn on_happened(&mut self, ctx: &Ctx, event: Happened) {
        let info = ctx.event().expect("an event");
        ran_event(event.id, info, ctx.fence());
    }
}

fn ran_event(id: u64, info: &siloring::envelope::EventInfo, activation: ActivationNumber) {
    note(&What::RanEvent {
        id,
        attempt: info.attempt,
        stream: info.stream.clone(),
        key: info.subscription.to_string(),
        epoch: info.epoch,
        position: info.position,
        activation,
    });
}

fn hub_address(number: u64) -> Address {
    address(HUB_KIND, format_args!("chaos-{number}"))
}

fn stream(key: u64) -> Stream<Happened> {
    Stream::here(NAMESPACE, &key.to_string()).expect("the load's streams are plain")
}

/// Opens this silo's hub, subscribes it, and answers what comes.
async fn serve(handle: Handle, number: u64) {
    let hub = hub_address(number);
    let mut hub = match handle.hub(hub.as_str()).expect("plain").take_over().open().await {
        Ok(hub) => hub,
        Err(error) => return tracing::error!("the load's hub: {error:?}"),
    };
    let key = format!("hub-{number}");
    if let Err(error) = stream(STREAMS).subscription(key.as_str()).take_over().hub(&hub).await {
        tracing::warn!("the load's hub is not subscribed: {error:?}");
    }
    let Ok(claim) = hub.claimed().await else { return };
    let claim = ActivationNumber { view: claim.view, counter: claim.counter };
    while let Some(delivery) = hub.next().await {
        if let (Ok(event), Some(info)) = (delivery.message::<Happened>(), delivery.event()) {
            ran_event(event.id, info, claim);
            delivery.confirm();
            continue;
        }
        match delivery.message::<Ping>() {
            Ok(ping) => {
                ran(ping.id, delivery.attempt());
                delivery.answer(&());
            }
            Err(failure) => delivery.refuse(failure),
        }
    }
}

/// What one shard's load draws from.
struct Draws {
    handle: Handle,
    shard: ShardIndex,
    source: u32,
    silos: u64,
    random: fastrand::Rng,
}

impl Draws {
    /// Begins deliveries at a rate until the load is calmed.
    async fn run(mut self, rate: u64) {
        let period = Duration::from_secs(1) / u32::try_from(rate.max(1)).unwrap_or(u32::MAX);
        loop {
            Sleep::new(period.mul_f64(2.0 * self.random.f64())).await;
            let is_full = JOURNAL.get().is_some_and(Journal::is_full);
            if IS_CALM.load(Ordering::Relaxed) || is_full {
                return;
            }
            self.begin();
        }
    }

    fn spawn<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F + Send + 'static) {
        // A silo that stops takes nothing more; nothing was begun then.
        if let Err(failure) = self.handle.spawn_on(self.shard, make) {
            tracing::debug!("the load begins nothing: {failure}");
        }
    }

    /// Begins one delivery of a kind drawn by its weight.
    fn begin(&mut self) {
        let (key, source, handle) = (self.random.u64(..KEYS), self.source, self.handle.clone());
        match self.random.u32(..100) {
            0..=14 => self.spawn(move || count::<Local>(source, handle, key)),
            15..=29 => self.spawn(move || count::<Hashed>(source, handle, key)),
            30..=39 => self.spawn(move || count::<Roaming>(source, handle, key)),
            40..=49 => self.spawn(move || keyed(source, handle, key)),
            50..=59 => self.spawn(move || add(source, handle, key % SETS)),
            60..=69 => one_way(source, &handle, key),
            70..=79 => {
                let key = key % (STREAMS + 1);
                self.spawn(move || publish(source, key));
            }
            80..=91 => {
                let hub = self.random.u64(..=self.silos);
                let is_heavy = self.random.u32(..BALLAST_SHARE) == 0;
                let ballast = if is_heavy { BALLAST_BYTES } else { 0 };
                self.spawn(move || tell(source, handle, hub, ballast));
            }
            92..=95 => {
                let (key, ms) = (self.random.u64(..DAWDLERS), self.random.u64(..DAWDLE_MS_MAX));
                self.spawn(move || dawdle(source, handle, key, ms));
            }
            _ => {
                let hub = self.random.u64(..self.silos);
                self.spawn(move || relay(source, handle, key, hub));
            }
        }
    }
}

/// A grain that counts.
trait Counts: GrainType<Key = u64> {
    fn counts(handle: &Handle, key: u64, id: u64) -> Call<u64>;
}

macro_rules! counts {
    ($($name:ident),*) => {
        $(impl Counts for $name {
            fn counts(handle: &Handle, key: u64, id: u64) -> Call<u64> {
                handle.grain::<Self>(key).count(id)
            }
        })*
    };
}

counts!(Local, Hashed, Roaming);

async fn count<G: Counts>(source: u32, handle: Handle, key: u64) {
    let call = |id| G::counts(&handle, key, id);
    drop(tracked(source, BUDGET, address(G::TYPE, key), call, nothing).await);
}

async fn keyed(source: u32, handle: Handle, key: u64) {
    let call = |id| Hashed::counts(&handle, key, id).idempotency_key(u128::from(id));
    drop(tracked(source, BUDGET, address(Hashed::TYPE, key), call, nothing).await);
}

async fn add(source: u32, handle: Handle, key: u64) {
    let call = |id| handle.grain::<Set>(key).add(id);
    drop(tracked(source, BUDGET, address(Set::TYPE, key), call, |count| Some(*count)).await);
}

async fn tell(source: u32, handle: Handle, hub: u64, ballast: usize) {
    let target = hub_address(hub);
    let to = handle.hub_ref(target.as_str()).expect("the load's addresses are plain");
    let call = |id| to.send::<Ping, ()>(&Ping { id, ballast: vec![0xba; ballast] });
    drop(tracked(source, BUDGET, target, call, nothing).await);
}

async fn relay(source: u32, handle: Handle, key: u64, hub: u64) {
    let call = |id| handle.grain::<Relay>(key).relay(id, hub);
    drop(tracked(source, BUDGET, address(Relay::TYPE, key), call, nothing).await);
}

async fn dawdle(source: u32, handle: Handle, key: u64, ms: u64) {
    let key = KEYS + key;
    let call = |id| handle.grain::<Relay>(key).dawdle(id, ms);
    drop(tracked(source, BUDGET, address(Relay::TYPE, key), call, nothing).await);
}

fn one_way(source: u32, handle: &Handle, key: u64) {
    let target = address(Hashed::TYPE, key);
    let sent = Sent::begin(source, Sending::OneWay, BUDGET, &target);
    let call = Hashed::counts(handle, key, sent.id).deadline(BUDGET);
    call.one_way_or(move |failure| sent.end(Some(&failure), 0, None));
}

async fn publish(source: u32, key: u64) {
    let stream = stream(key);
    let sent = Sent::begin(source, Sending::Publish, BUDGET, stream.address());
    match stream.publish(&Happened { id: sent.id }).deadline(BUDGET).await {
        Ok(published) => sent.end(None, published.failed, None),
        Err(failure) => sent.end(Some(&failure), 0, None),
    }
}

impl Desk {
    /// Obeys a verb of a chaos run.
    pub(crate) fn answer_of_chaos(self: &Arc<Self>, words: &[&str]) -> Value {
        match words {
            ["chaos", rate, silos, seed] => self.chaos(number(rate), number(silos), number(seed)),
            ["calm"] => calm(),
            ["members", key] => match block_on(self.handle.grain::<Set>(number(key)).all()) {
                Ok(members) => json!({ "members": members }),
                Err(error) => json!({ "unknown": error.to_string() }),
            },
            others => self.answer_of_nuisance(others),
        }
    }

    /// Subscribes grains to the load's streams, opens the hub, and begins.
    fn chaos(self: &Arc<Self>, rate: u64, silos: u64, seed: u64) -> Value {
        let process = JOURNAL.get().map_or(0, |journal| journal.next_id() >> 40);
        for key in 0..STREAMS {
            let stream =
                Stream::<Happened>::new(&self.handle, &self.streams, NAMESPACE, &key.to_string());
            let stream = stream.expect("the load's streams are plain");
            let name = format!("consumer-{process}");
            let making = stream.subscription(name.as_str()).deadline(BUDGET);
            let consumer = process * STREAMS + key;
            match block_on(making.grain::<Consumer>(consumer, Consumer::ON_HAPPENED)) {
                Ok(_) => note(&What::Subscribed { stream: stream.address().clone(), key: name }),
                Err(error) => return json!({ "error": format!("{error:?}") }),
            }
        }
        let handle = self.handle.clone();
        let serving = handle.clone();
        let served = handle.spawn_on(ShardIndex(0), move || serve(serving, process));
        for shard in (0..handle.shards()).map(ShardIndex) {
            let draws = Draws {
                handle: handle.clone(),
                shard,
                source: next_source(),
                silos,
                random: fastrand::Rng::with_seed(
                    seed.wrapping_add(process << 16 | u64::from(shard.0)),
                ),
            };
            let begun = handle.spawn_on(shard, move || draws.run(rate));
            if let Some(failure) = begun.err().or(served.as_ref().err().cloned()) {
                return json!({ "error": failure.to_string() });
            }
        }
        json!({ "chaos": "begun" })
    }
}

fn calm() -> Value {
    IS_CALM.store(true, Ordering::Relaxed);
    let began = Instant::now();
    while OPEN.load(Ordering::Relaxed) > 0 && began.elapsed() < CALM_TIME_MAX {
        thread::sleep(CALM_PERIOD);
    }
    json!({ "open": OPEN.load(Ordering::Relaxed) })
}
