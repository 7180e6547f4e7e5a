//! What the scenarios of streams share: consumers that say what they have heard, publishers, and a
//! look at the registry.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_core::ids::ActivationNumber;
use siloring_core::ports::registry::{DeadLetter, SetVersion};
use siloring_core::ports::store::{StoreAnswer, StoreRequest};
use siloring_core::{Generation, ShardIndex, ViewNumber};
use siloring_pubsub::{
    Published, Stream, StreamUsage, Streams, SubscribeError, Subscription, stream_address,
};
use siloring_testkit::sim::{Cluster, Node, Slot};

use super::scenario::Note;

/// The namespace of the scenarios' streams.
pub(crate) const ROOM: &str = "room";
/// One whose slow consumers lose events.
pub(crate) const GAPPY: &str = "gappy";

/// An event that a handler was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    pub(crate) number: u64,
    pub(crate) attempt: u8,
    pub(crate) missed: u64,
    pub(crate) epoch: ActivationNumber,
}

/// What a handler does with an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Manner {
    /// Handles it.
    #[default]
    Well,
    /// Takes so long.
    Slow(Duration),
    /// Fails with this number, the first time.
    FailsOnce(u64),
    /// Fails with this number, always.
    Fails(u64),
    /// Fails with everything from this number on.
    FailsFrom(u64),
}

thread_local! {
    /// A grain is made by its type's `Default`: what it tells goes here, by its key and the key of
    /// its subscription.
    static GIVEN: RefCell<BTreeMap<(String, String), Vec<Given>>> =
        const { RefCell::new(BTreeMap::new()) };
    static MANNERS: RefCell<BTreeMap<String, Manner>> = const { RefCell::new(BTreeMap::new()) };
    static ACTIVATED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Forgets what an earlier run of the scenario has left.
pub(crate) fn begin() {
    GIVEN.take();
    MANNERS.take();
    ACTIVATED.take();
}

/// What a grain was given under a subscription, in order.
pub(crate) fn given(grain: &str, subscription: &str) -> Vec<Given> {
    let key = (grain.to_owned(), subscription.to_owned());
    GIVEN.with_borrow(|all| all.get(&key).cloned().unwrap_or_default())
}

/// Their numbers.
pub(crate) fn numbers(grain: &str, subscription: &str) -> Vec<u64> {
    given(grain, subscription).iter().map(|given| given.number).collect()
}

/// How a grain is to treat events from now on.
pub(crate) fn set_manner(grain: &str, manner: Manner) {
    MANNERS.with_borrow_mut(|manners| manners.insert(grain.to_owned(), manner));
}

/// How often the grain was activated.
pub(crate) fn activations(grain: &str) -> usize {
    ACTIVATED.with_borrow(|all| all.iter().filter(|key| *key == grain).count())
}

/// A grain that consumes streams. It is idle after five seconds.
#[derive(Grain, Default, Debug)]
#[grain(type = "test.listener", idle_after_s = 5)]
pub(crate) struct Listener {
    attached: bool,
}

#[grain_methods]
impl Listener {
    /// Takes a moment, so that an event could come first.
    pub(crate) async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        ctx.sleep(Duration::from_millis(20)).await;
        ACTIVATED.with_borrow_mut(|all| all.push(ctx.key().to_owned()));
        self.attached = true;
        Ok(())
    }

    /// Lives here from now on.
    pub(crate) async fn wake(&mut self) {}

    /// Ends this activation.
    pub(crate) async fn leave(&mut self, ctx: &Ctx) {
        ctx.deactivate();
    }

    /// Subscribes itself.
    pub(crate) async fn join(&mut self, ctx: &Ctx, stream: String, key: String) -> bool {
        let stream = Stream::<Note>::here(ROOM, &stream).expect("a plain name");
        stream.subscription(key).this_grain(ctx, Self::ON_NOTE).await.is_ok()
    }

    /// Publishes from its turn; how many handled it.
    pub(crate) async fn say(&mut self, stream: String, number: u64) -> u32 {
        let stream = Stream::<Note>::here(ROOM, &stream).expect("a plain name");
        let published = stream.publish(&Note { number, bytes: Vec::new() }).await;
        published.map_or(0, |published| published.handled)
    }

    #[on_event]
    pub(crate) async fn on_note(&mut self, ctx: &Ctx, note: Note) -> Result<(), String> {
        assert!(self.attached, "an event finds the grain activated");
        let event = ctx.event().expect("an event").clone();
        let given = Given {
            number: note.number,
            attempt: event.attempt,
            missed: event.missed,
            epoch: event.epoch,
        };
        let key = (ctx.key().to_owned(), event.subscription.to_string());
        GIVEN.with_borrow_mut(|all| all.entry(key).or_default().push(given));
        let manner = MANNERS.with_borrow(|all| all.get(ctx.key()).copied().unwrap_or_default());
        let fails = match manner {
            Manner::Well => false,
            Manner::Slow(span) => {
                ctx.sleep(span).await;
                false
            }
            Manner::FailsOnce(number) => note.number == number && event.attempt == 1,
            Manner::Fails(number) => note.number == number,
            Manner::FailsFrom(number) => note.number >= number,
        };
        if fails { Err("as it was told to".to_owned()) } else { Ok(()) }
    }
}

/// What a listening hub has seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    given: Rc<RefCell<Vec<Given>>>,
    close: Rc<Cell<bool>>,
    subscription: Rc<RefCell<Option<Subscription>>>,
}

impl Heard {
    /// Number and attempt of each event, in order.
    pub(crate) fn all(&self) -> Vec<(u64, u8)> {
        self.given.borrow().iter().map(|given| (given.number, given.attempt)).collect()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.all().iter().map(|(number, _)| *number).collect()
    }

    /// Closes the hub within a few milliseconds.
    pub(crate) fn close(&self) {
        self.close.set(true);
    }

    /// Its subscription.
    pub(crate) fn subscription(&self) -> Subscription {
        self.subscription.borrow().clone().expect("it has subscribed")
    }
}

/// Opens a hub in a slot's program, subscribes it under its address, and confirms every event.
pub(crate) fn listen(
    cluster: &mut Cluster,
    slot: Slot,
    hub: &'static str,
    key: &'static str,
) -> Result<Heard, Box<dyn std::error::Error>> {
    let heard = Heard::default();
    let seen = heard.clone();
    cluster.block_on(slot, move |node| async move {
        let hub = node.handle().hub(hub)?.open().await?;
        let stream = node.stream::<Note>(ROOM, key);
        let subscription = stream.subscription(hub.address().as_str()).hub(&hub).await?;
        *seen.subscription.borrow_mut() = Some(subscription);
        node.spawn(confirm_all(node.clone(), hub, seen));
        Ok::<_, Box<dyn std::error::Error>>(())
    })??;
    Ok(heard)
}

/// Confirms what comes to the hub until it ends or is to be closed.
pub(crate) async fn confirm_all(node: Node, mut hub: Hub, heard: Heard) {
    loop {
        let mut next = std::pin::pin!(hub.next());
        let delivery = loop {
            let mut pause = std::pin::pin!(node.sleep(Duration::from_millis(2)));
            let turn = std::future::poll_fn(|cx| {
                if let std::task::Poll::Ready(delivery) = next.as_mut().poll(cx) {
                    return std::task::Poll::Ready(Some(delivery));
                }
                pause.as_mut().poll(cx).map(|()| None)
            });
            match turn.await {
                Some(delivery) => break delivery,
                None if heard.close.get() => return,
                None => {}
            }
        };
        let Some(delivery) = delivery else { return };
        let event = delivery.event().map(|event| (event.attempt, event.missed, event.epoch));
        if let (Ok(note), Some((attempt, missed, epoch))) = (delivery.message::<Note>(), event) {
            let given = Given { number: note.number, attempt, missed, epoch };
            heard.given.borrow_mut().push(given);
            delivery.confirm();
        }
    }
}

/// Subscribes a grain, from a slot.
pub(crate) fn subscribe(
    cluster: &mut Cluster,
    slot: Slot,
    grain: &'static str,
    stream: &'static str,
    key: &'static str,
) -> Result<Subscription, Box<dyn std::error::Error>> {
    Ok(cluster
        .block_on(slot, move |node| async move { join(&node, grain, stream, key).await })??)
}

/// As [`subscribe`], in a program.
pub(crate) async fn join(
    node: &Node,
    grain: &str,
    stream: &str,
    key: &str,
) -> Result<Subscription, SubscribeError> {
    let stream = node.stream::<Note>(ROOM, stream);
    let subscribing = stream.subscription(key).deadline(Duration::from_secs(8));
    subscribing.grain::<Listener>(grain, Listener::ON_NOTE).await
}

/// Lets a grain live in a slot.
pub(crate) fn wake(
    cluster: &mut Cluster,
    slot: Slot,
    grain: &'static str,
) -> Result<(), Box<dyn std::error::Error>> {
    Ok(cluster.block_on(slot, move |node| async move {
        node.handle().grain::<Listener>(grain).wake().await
    })??)
}

fn note(number: u64) -> Note {
    Note { number, bytes: Vec::new() }
}

/// Publishes a note and waits for its outcome.
pub(crate) async fn publish(
    node: &Node,
    key: &str,
    number: u64,
) -> Result<Published, DeliveryFailure> {
    node.stream::<Note>(ROOM, key).publish(&note(number)).await
}

/// How publishes ended, by number.
pub(crate) type Ended = Rc<RefCell<BTreeMap<u64, Result<Published, DeliveryFailure>>>>;

/// Publishes these numbers at a pace, without waiting for outcomes: they come to `ended`.
pub(crate) async fn publish_each(
    node: Node,
    (namespace, key): (&'static str, &'static str),
    numbers: std::ops::RangeInclusive<u64>,
    pace: Duration,
    ended: Ended,
) {
    for number in numbers {
        let (publisher, ended) = (node.clone(), Rc::clone(&ended));
        node.spawn(async move {
            let stream = publisher.stream::<Note>(namespace, key);
            let outcome = stream.publish(&note(number)).await;
            ended.borrow_mut().insert(number, outcome);
        });
        node.sleep(pace).await;
    }
}

/// The registry's rows of a stream.
pub(crate) fn rows(
    cluster: &mut Cluster,
    key: &str,
) -> Vec<siloring_core::ports::registry::Subscription> {
    let stream = stream_address(ROOM, key).expect("a plain name");
    match cluster.ask_store(&StoreRequest::LoadSubscriptions { stream }) {
        Ok(StoreAnswer::Subscriptions { rows, .. }) => rows,
        other => panic!("{other:?}"),
    }
}

/// Writes a row past everybody.
pub(crate) fn write_row(
    cluster: &mut Cluster,
    stream: &str,
    key: &str,
    consumer: &str,
    (owner, view): (Option<Generation>, ViewNumber),
) {
    let handler =
        if owner.is_some() { siloring_core::ids::MethodId(0) } else { Listener::ON_NOTE.id };
    let row = siloring_core::ports::registry::Subscription {
        stream: stream_address(ROOM, stream).expect("a plain name"),
        key: key.to_owned(),
        consumer: Address::parse(consumer).expect("a plain address"),
        handler,
        owner,
        view,
        filter: String::new(),
        operation: 1,
        version: SetVersion(0),
    };
    let written = cluster.ask_store(&StoreRequest::WriteSubscription { row, expected: None });
    assert!(matches!(written, Ok(StoreAnswer::Registered(_))), "{written:?}");
}

/// What was kept of events that a consumer did not take.
pub(crate) fn dead_letters(cluster: &mut Cluster, key: &str) -> Vec<DeadLetter> {
    let stream = stream_address(ROOM, key).expect("a plain name");
    match cluster.ask_store(&StoreRequest::ReadDeadLetters { stream, limit: 100 }) {
        Ok(StoreAnswer::DeadLetters(letters)) => letters,
        other => panic!("{other:?}"),
    }
}

/// What the shards of each slot's silo keep of streams.
pub(crate) fn usage(
    cluster: &mut Cluster,
    slot: Slot,
) -> Result<StreamUsage, Box<dyn std::error::Error>> {
    let shards = cluster.options().shards;
    let mut sum = StreamUsage::default();
    for shard in 0..shards {
        let one = cluster.block_on(slot, move |node| async move {
            Streams::usage(node.handle(), ShardIndex(shard)).await
        })??;
        sum.publishes += one.publishes;
        sum.window_bytes += one.window_bytes;
        sum.owners += one.owners;
        sum.consumers += one.consumers;
        sum.events += one.events;
        sum.waiting += one.waiting;
    }
    Ok(sum)
}

/// The slot whose silo owns the cluster's only stream.
pub(crate) fn owner_of_all(cluster: &mut Cluster) -> Result<Slot, Box<dyn std::error::Error>> {
    let slots: Vec<Slot> = cluster.slots().collect();
    for slot in slots {
        if cluster.process(slot).is_some() && usage(cluster, slot)?.owners > 0 {
            return Ok(slot);
        }
    }
    Err("nobody owns a stream".into())
}

/// A key of a stream that hashes to the silo of `slot`, in the view of another.
pub(crate) fn stream_on(cluster: &Cluster, slot: Slot) -> &'static str {
    streams_on(cluster, slot)[0]
}

/// Such keys.
pub(crate) fn streams_on(cluster: &Cluster, slot: Slot) -> Vec<&'static str> {
    let silo = cluster.silo(slot).expect("a silo lives in the slot");
    let view = silo.view();
    let me = silo.incarnation().expect("it has joined").generation;
    let all = (0..400).map(|number| &*format!("k{number}").leak());
    all.filter(|key| {
        let address = stream_address(ROOM, key).expect("a plain name");
        let placement = siloring_runtime::placement::Placement::Hash;
        let place = siloring_runtime::placement::place(placement, address.hash(), me, &view);
        place.is_some_and(|place| place.silo == me)
    })
    .collect()
}

/// The numbers from `first` to `last`.
pub(crate) fn range(first: u64, last: u64) -> Vec<u64> {
    (first..=last).collect()
}
