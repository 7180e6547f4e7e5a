//! What the load begins, and how often.

use std::rc::Rc;
use std::time::Duration;

use siloring::grain::GrainType;
use siloring::prelude::*;
use siloring_core::limits::DEADLINE_DEFAULT;
use siloring_core::{ActivationNumber, Address, Moment, ViewNumber};
use siloring_runtime::call::Call;

use super::super::history::{self, Place};
use super::super::ledger::{DeliveryId, Source};
use super::super::node::Node;
use super::super::plan::Mix;
use super::super::scene::{may_be_lost, violate, world_now};
use super::{
    Counted, DurableSet, DurableSetRef, HUB_KIND, HashedCounter, HashedCounterRef, Lingerer,
    LingererRef, LocalCounter, LocalCounterRef, Memory, Ping, Presence, ROAMERS, RandomCounter,
    RandomCounterRef, Relay, RelayRef, address, counted, hub_address, judge, judged,
    roamer_address, streams,
};

/// Deadline of calls to the handler that is slower.
const HASTY_BUDGET: Duration = Duration::from_millis(400);
/// One in so many messages to hubs is as large as the run has them: it keeps a slow link busy.
const BALLAST_SHARE: u16 = 100;
/// Keys of each kind of counter.
const KEYS: u64 = 24;
/// Keys of the durable sets.
const SETS: u64 = 8;

/// What the load begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Local,
    Hashed,
    Random,
    Keyed,
    Publish,
    Add,
    List,
    OneWay,
    Tell,
    Rare,
}

/// How often each is begun, in a thousand, and the mix that does more of it.
const KINDS: [(Kind, u16, Mix); 10] = [
    (Kind::Local, 240, Mix::Calls),
    (Kind::Hashed, 100, Mix::Calls),
    (Kind::Random, 100, Mix::Calls),
    (Kind::Keyed, 40, Mix::Calls),
    (Kind::Publish, 50, Mix::Streams),
    (Kind::Add, 80, Mix::State),
    (Kind::List, 20, Mix::State),
    (Kind::OneWay, 80, Mix::OneWay),
    (Kind::Tell, 170, Mix::Hubs),
    (Kind::Rare, 120, Mix::Even),
];
/// What a mix does more of it does so many times as often.
const MORE: u16 = 4;

/// A kind drawn by its weight.
fn draw(mix: Mix, random: &mut fastrand::Rng) -> Kind {
    let more = |of: Mix| if of == mix && of != Mix::Even { MORE } else { 1 };
    let sum: u16 = KINDS.iter().map(|(_, weight, of)| weight * more(*of)).sum();
    let mut drawn = random.u16(..sum);
    for (kind, weight, of) in KINDS {
        let weight = weight * more(of);
        if drawn < weight {
            return kind;
        }
        drawn -= weight;
    }
    unreachable!("a number below the sum of the weights is one of theirs")
}

/// Begins one delivery.
pub(super) fn begin(node: &Node, memory: &Rc<Memory>, source: Source, random: &mut fastrand::Rng) {
    let key = random.u64(..KEYS);
    let handle = node.handle().clone();
    match draw(node.mix(), random) {
        Kind::Local => {
            let target = address(LocalCounter::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<LocalCounter>(key).count(id.0);
            node.spawn(count(source, target, call));
        }
        Kind::Hashed => {
            let target = address(HashedCounter::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<HashedCounter>(key).count(id.0);
            node.spawn(count(source, target, call));
        }
        Kind::Random => {
            let target = address(RandomCounter::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<RandomCounter>(key).count(id.0);
            node.spawn(count(source, target, call));
        }
        Kind::Keyed => {
            let target = address(HashedCounter::TYPE, key);
            let call = move |id: DeliveryId| {
                handle.grain::<HashedCounter>(key).count(id.0).idempotency_key(u128::from(id.0))
            };
            node.spawn(count(source, target, call));
        }
        Kind::Publish => streams::publish(node, source, random),
        Kind::Add => node.spawn(add(handle, Rc::clone(memory), source, key % SETS)),
        Kind::List => node.spawn(list(handle, Rc::clone(memory), source, key % SETS)),
        Kind::OneWay => one_way(&handle, source, key),
        Kind::Tell => tell(node, source, random),
        Kind::Rare => begin_rare(node, source, random),
    }
}

async fn count(source: Source, target: Address, make: impl FnOnce(DeliveryId) -> Call<Counted>) {
    drop(counted(source, &target, None, make).await);
}

async fn settle<T, E>(
    source: Source,
    target: Address,
    budget: Option<Duration>,
    make: impl FnOnce(DeliveryId) -> Call<T, E>,
) {
    drop(judged(source, &target, budget, make).await);
}

/// Sends to the hub of a slot, to a roaming one, or to one that nobody has; seldom a lot at once.
fn tell(node: &Node, source: Source, random: &mut fastrand::Rng) {
    let hub = match random.u8(..10) {
        0..=4 => hub_address(random.u16(1..=node.silo_count())),
        5..=7 => roamer_address(random.u16(..ROAMERS)),
        _ => address(HUB_KIND, format_args!("nobody-{}", random.u64(..KEYS))),
    };
    let ballast = if random.u16(..BALLAST_SHARE) == 0 { node.body_bytes() } else { 0 };
    let to = node.handle().hub_ref(hub.as_str()).expect("the load's addresses are plain");
    let call =
        move |id: DeliveryId| to.send::<Ping, ()>(&Ping { id: id.0, ballast: vec![0xba; ballast] });
    node.spawn(settle(source, hub, None, call));
}

/// The kinds that take long, call further, or wait for themselves.
fn begin_rare(node: &Node, source: Source, random: &mut fastrand::Rng) {
    let key = random.u64(..KEYS);
    let handle = node.handle().clone();
    match random.u8(..12) {
        0..=6 => {
            let slot = random.u16(1..=node.silo_count());
            let target = address(Relay::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<Relay>(key).relay(id.0, key, slot);
            node.spawn(settle(source, target, None, call));
        }
        7 | 8 => {
            let key = 10_000 + key;
            let target = address(Relay::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<Relay>(key).cycle(id.0, 2);
            node.spawn(settle(source, target, None, call));
        }
        9 | 10 => {
            let key = 20_000 + key;
            let target = address(Relay::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<Relay>(key).dawdle(id.0);
            node.spawn(settle(source, target, Some(HASTY_BUDGET), call));
        }
        _ => {
            let key = random.u64(..1_000);
            let wait_ms = random.u64(1_000..8_000);
            let target = address(Lingerer::TYPE, key);
            let call = move |id: DeliveryId| handle.grain::<Lingerer>(key).linger(id.0, wait_ms);
            node.spawn(settle(source, target, None, call));
        }
    }
}

/// The place in the order of a set, whoever adds to it.
const fn place_in_set(count: u64) -> Place {
    Place { by: ActivationNumber { view: ViewNumber(0), counter: 0 }, count }
}

/// Whether the store has lost what was committed: sets are then shorter than was answered.
fn store_went_back() -> bool {
    may_be_lost(Moment::ZERO, world_now().unwrap_or_default())
}

/// Reads a set: it goes on where every earlier answer left it.
async fn list(handle: Handle, memory: Rc<Memory>, source: Source, key: u64) {
    let target = address(DurableSet::TYPE, key);
    let begun = history::begin(&target);
    let call = |id: DeliveryId| handle.grain::<DurableSet>(key).list(id.0);
    let Ok(found) = judged(source, &target, None, call).await else { return };
    if store_went_back() {
        return;
    }
    history::read(&begun, place_in_set(found.len() as u64));
    let mut lists = memory.lists.borrow_mut();
    let longest = lists.entry(key).or_default();
    let common = longest.len().min(found.len());
    if longest[..common] != found[..common] {
        violate("a set only grows at its end", format!("{target}: {longest:?}, then {found:?}"));
    }
    if found.len() > longest.len() {
        *longest = found;
    }
}

async fn add(handle: Handle, memory: Rc<Memory>, source: Source, key: u64) {
    let target = address(DurableSet::TYPE, key);
    let begun = history::begin(&target);
    let (mut entered, sent) = (0, world_now().unwrap_or_default());
    let result = judged(source, &target, None, |id| {
        entered = id.0;
        // Until its outcome is known it may be in the set.
        memory.adds.borrow_mut().entry(key).or_default().insert(id.0, Presence::May);
        handle.grain::<DurableSet>(key).add(id.0)
    })
    .await;
    if let (Ok(count), false) = (&result, store_went_back()) {
        history::answered(&begun, place_in_set(*count));
    }
    let presence = match result {
        Ok(_) => Presence::Must { sent, heard: world_now().unwrap_or_default() },
        Err(CallError::Delivery(failure)) if failure.rejected_kind().is_some() => Presence::MustNot,
        Err(CallError::Delivery(_) | CallError::Handler(_)) => Presence::May,
    };
    memory.adds.borrow_mut().entry(key).or_default().insert(entered, presence);
}

fn one_way(handle: &Handle, source: Source, key: u64) {
    let target = address(HashedCounter::TYPE, key);
    let sent = source.sent_one_way(&target, DEADLINE_DEFAULT);
    let id = sent.id();
    let call = handle.grain::<HashedCounter>(key).count(id.0);
    call.one_way_or(move |failure| {
        judge(&target, &failure);
        sent.close(Some(&failure));
    });
}
