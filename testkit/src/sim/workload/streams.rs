//! The streams of the load: grains that subscribe and unsubscribe all the while, a hub of each
//! slot, and publishes to all of them.
//!
//! A subscription's key is used once, so that what the ledger knows of it is never in doubt: it is
//! acknowledged, and later it is being ended. One whose outcome nobody has heard is not counted on,
//! and ended with all others when the load is over.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use siloring::grain::GrainType;
use siloring::prelude::*;
use siloring_core::limits::DEADLINE_DEFAULT;
use siloring_core::ports::registry::RegistryHint;
use siloring_core::ports::store::{StoreAnswer, StoreRequest};
use siloring_core::{ActivationNumber, Address, ShardIndex};
use siloring_pubsub::{Stream, StreamUsage, Streams, Subscription, stream_address};

use super::super::cluster::{Cluster, Failure};
use super::super::ledger::events::{EventEnd, ran_event, subscribed, unsubscribing};
use super::super::ledger::{DeliveryId, Source};
use super::super::node::Node;
use super::super::scene::{may_be_lost, world_now};
use super::judge;

/// The namespace of the load's streams.
const NAMESPACE: &str = "load";
/// Streams with consumers that are grains.
const STREAMS: u64 = 6;
/// The key of the one whose consumers are the hubs of the slots.
const OF_HUBS: u64 = STREAMS;
/// Grains that consume.
const LISTENERS: u64 = 8;
/// Subscriptions of one stream, about.
const SUBSCRIPTIONS: usize = 3;
/// One in so many events fails when it comes first.
const FAILS_SHARE: u64 = 40;
/// One in so many fails however often it comes.
const POISON_SHARE: u64 = 499;
/// One in so many takes a while.
const SLOW_SHARE: u64 = 25;
/// How long that is: longer than a frame waits for it.
const SLOW_HANDLER: Duration = Duration::from_millis(60);
/// Owners have read their rows again by then.
const REFRESHED: Duration = Duration::from_secs(3);
/// A stream that is asked for its consumers answers by then.
const LIST_MAX: Duration = Duration::from_secs(10);

/// What the load publishes.
#[message(type = "sim.happened")]
#[derive(Debug)]
pub(super) struct Happened {
    /// Which delivery it is.
    pub(super) id: u64,
}

/// A grain that consumes streams.
#[derive(Grain, Default, Debug)]
#[grain(type = "sim.listener", key = u64, placement = "random", idle_after_s = 30)]
pub(super) struct Listener {}

#[grain_methods]
impl Listener {
    /// Takes an event: some fail, some take a while.
    #[on_event]
    async fn on_happened(&mut self, ctx: &Ctx, event: Happened) -> Result<(), String> {
        let info = ctx.event().expect("an event").clone();
        ran_event(DeliveryId(event.id), &info, ctx.fence());
        if event.id.is_multiple_of(SLOW_SHARE) {
            ctx.sleep(SLOW_HANDLER).await;
        }
        if event.id.is_multiple_of(POISON_SHARE) {
            return Err("whatever is tried".to_owned());
        }
        if info.attempt == 1 && event.id.is_multiple_of(FAILS_SHARE) {
            return Err("as one in forty does".to_owned());
        }
        Ok(())
    }
}

/// What the load remembers of its subscriptions.
#[derive(Debug, Default)]
pub(super) struct Memory {
    live: RefCell<VecDeque<(u64, Subscription)>>,
    keys: Cell<u64>,
    /// Programs that subscribe or unsubscribe.
    asking: Cell<usize>,
}

/// A program that waits for the answer of a stream's owner; ends with it.
struct Asking(Rc<Memory>);

impl Asking {
    fn of(memory: &Rc<Memory>) -> Self {
        memory.asking.set(memory.asking.get() + 1);
        Self(Rc::clone(memory))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.set(self.0.asking.get() - 1);
    }
}

fn address(stream: u64) -> Address {
    stream_address(NAMESPACE, &stream.to_string()).expect("the load's addresses are plain")
}

fn stream(node: &Node, stream: u64) -> Stream<Happened> {
    node.stream(NAMESPACE, &stream.to_string())
}

/// Subscribes a grain or ends a subscription, now and then, until `is_stopped`.
pub(super) async fn manage(node: Node, memory: Rc<Memory>, is_stopped: impl Fn() -> bool) {
    let mut random = node.random("subscriptions");
    loop {
        node.sleep(Duration::from_millis(random.u64(1_000..6_000))).await;
        if is_stopped() || node.load_per_second() == 0 {
            return;
        }
        let _asking = Asking::of(&memory);
        let is_full =
            memory.live.borrow().len() >= SUBSCRIPTIONS * usize::try_from(STREAMS).unwrap_or(1);
        let ended = if is_full { memory.live.borrow_mut().pop_front() } else { None };
        let Some((number, subscription)) = ended else {
            subscribe(&node, &memory, random.u64(..STREAMS), random.u64(..LISTENERS)).await;
            continue;
        };
        unsubscribing(&address(number), subscription.key());
        // Whether it succeeds or not, it is not counted on any more.
        drop(stream(&node, number).unsubscribe(&subscription).await);
    }
}

async fn subscribe(node: &Node, memory: &Memory, number: u64, listener: u64) {
    let key = memory.keys.replace(memory.keys.get() + 1);
    let key = format!("{}-{key}", Listener::TYPE);
    let subscribing = stream(node, number).subscription(key.as_str());
    let began = world_now().unwrap_or_default();
    let made = subscribing.grain::<Listener>(listener, Listener::ON_HAPPENED).await;
    if let Ok(subscription) = made {
        // The store may have lost it before its answer came.
        if may_be_lost(began, world_now().unwrap_or_default()) {
            return;
        }
        subscribed(&address(number), &key);
        memory.live.borrow_mut().push_back((number, subscription));
    }
}

/// Subscribes the hub of a slot, in place of the one that was there before.
pub(super) async fn subscribe_hub(node: &Node, hub: &Hub) {
    let stream = stream(node, OF_HUBS);
    let subscribing = stream.subscription(hub.address().as_str()).take_over();
    // A silo that leaves, or a store that is down: the hub is not subscribed this time.
    drop(subscribing.hub(hub).await);
}

/// Takes an event that came to a hub; gives back what is none.
pub(super) fn take(delivery: Delivery, claim: ActivationNumber) -> Option<Delivery> {
    let Some(info) = delivery.event() else { return Some(delivery) };
    match delivery.message::<Happened>() {
        Ok(event) => {
            ran_event(DeliveryId(event.id), info, claim);
            delivery.confirm();
        }
        Err(failure) => delivery.refuse(failure),
    }
    None
}

/// Publishes an event to one of the streams.
pub(super) fn publish(node: &Node, source: Source, random: &mut fastrand::Rng) {
    let number = random.u64(..=STREAMS);
    let stream = stream(node, number);
    node.spawn(async move {
        let sent = source.published(stream.address(), DEADLINE_DEFAULT);
        let published = stream.publish(&Happened { id: sent.id().0 }).await;
        match &published {
            Ok(published) => sent.close_event(EventEnd::Through { failed: published.failed }),
            Err(failure) => {
                judge(stream.address(), failure);
                sent.close_event(EventEnd::Failed(failure));
            }
        }
    });
}

/// Ends every subscription of a grain; then nothing of any event is left.
pub(super) fn verify(cluster: &mut Cluster, memory: &Memory) -> Result<(), Failure> {
    cluster.run_until(DEADLINE_DEFAULT + LIST_MAX, "every subscriber has its answer", |_| {
        memory.asking.get() == 0
    })?;
    let slots: Vec<_> = cluster.slots().collect();
    // As the store's driver does once it has reached the store again: a row whose write had no
    // answer is known to its owner from then on.
    for slot in &slots {
        cluster.block_on(*slot, |node| async move {
            Streams::hinted(node.handle(), RegistryHint::Everything);
        })?;
    }
    cluster.run_for(REFRESHED)?;
    let slot = slots[0];
    for number in 0..STREAMS {
        let ended = cluster.block_on(slot, move |node| end_all(node, number))?;
        if let Err(text) = ended {
            cluster.world_mut().violate("a stream can be asked for its subscriptions", text);
        }
        let rows = cluster.ask_store(&StoreRequest::LoadSubscriptions { stream: address(number) });
        let is_empty =
            matches!(&rows, Ok(StoreAnswer::Subscriptions { rows, .. }) if rows.is_empty());
        if !is_empty {
            let text = format!("{rows:?}");
            cluster.world_mut().violate("a subscription that was ended has no row", text);
        }
    }
    cluster.run_for(Duration::from_secs(1))?;
    let shards = cluster.options().shards;
    let mut sum = StreamUsage::default();
    for (slot, shard) in slots.iter().flat_map(|slot| (0..shards).map(|shard| (*slot, shard))) {
        let usage = cluster.block_on(slot, move |node| async move {
            Streams::usage(node.handle(), ShardIndex(shard)).await
        })?;
        let Ok(usage) = usage else { continue };
        sum.owners += usage.owners;
        sum.consumers += usage.consumers;
        sum.publishes += usage.publishes + usage.window_bytes + usage.events + usage.waiting;
    }
    if sum.publishes > 0 || sum.owners > 1 || sum.consumers > slots.len() {
        let text = format!("{sum:?}");
        cluster.world_mut().violate("nothing is left of events that have their outcome", text);
    }
    cluster.run_for(Duration::ZERO)
}

async fn end_all(node: Node, number: u64) -> Result<(), String> {
    let stream = stream(&node, number);
    let began = node.now();
    let listed = stream.subscriptions().await.map_err(|failure| failure.to_string())?;
    for listed in listed {
        let subscription = listed.subscription;
        unsubscribing(stream.address(), subscription.key());
        let ended = stream.unsubscribe(&subscription).await;
        ended.map_err(|error| format!("{}: {error}", subscription.key()))?;
    }
    let took = node.now().since(began);
    if took > LIST_MAX { Err(format!("it took {took:?}")) } else { Ok(()) }
}
