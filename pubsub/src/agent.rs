//! The agent of one shard: gives batches of events to consumers that live on its silo.
//!
//! An owner sends one frame to each silo that holds consumers, however many there are; its agent
//! calls each of them, in the order of the events, and stops at a consumer's first failure.
//! Contract:
//! - every consumer of a frame has one result: how many of the events it handled, and how the next
//!   one ended;
//! - consumers do not wait for each other: after the frame's patience the agent answers, and says
//!   who is still at work. What such a consumer has begun goes on; its owner asks again, in a
//!   frame of its own, and the consumer knows the event again;
//! - it keeps nothing: a consumer that has moved away is called wherever it is.
//!
//! Bound: a frame holds at most [`BATCH_EVENTS_MAX`] events.
//!
//! [`BATCH_EVENTS_MAX`]: siloring_core::limits::BATCH_EVENTS_MAX

use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use siloring_core::address::{Address, AddressHash};
use siloring_core::body::Body;
use siloring_core::ids::{ActivationNumber, MethodId};
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::ports::registry::SetVersion;
use siloring_core::schema::{Layout, Schema};
use siloring_runtime::ctx::Sleep;
use siloring_runtime::envelope::{Envelope, EventInfo};
use siloring_runtime::grain::{
    Access, Grain, GrainType, MethodSpec, Placement, ShardKey, Turn, TurnOutput,
};
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;
use siloring_runtime::reference::RawRequest;

use crate::message::{
    Deliver, SetChanged, WireBody, WireFailure, WireResult, of_deliver, of_results,
};
use crate::shard::ShardStreams;
use crate::streams::Set;

/// The grain of each shard that gives events to consumers.
#[derive(Debug, Default)]
pub(crate) struct Agent;

impl GrainType for Agent {
    const TYPE: &'static str = "stream.agent";
    const PLACEMENT: Placement = Placement::Shard;
    const REENTRANT: bool = true;
    const IDLE_AFTER: Option<Duration> = None;
    type Key = ShardKey;
}

const DELIVER: MethodId = MethodId::of("deliver");
const SET_CHANGED: MethodId = MethodId::of("set_changed");

/// Gives a batch to consumers.
pub(crate) const DELIVER_SPEC: MethodSpec = MethodSpec::of::<Agent>(
    "deliver",
    DELIVER,
    Deliver::LAYOUT,
    <Vec<WireResult>>::LAYOUT,
    Access::Shared,
)
.carries(Some(of_deliver), Some(of_results));
/// Tells the silo's check of a set.
pub(crate) const SET_CHANGED_SPEC: MethodSpec = MethodSpec::of::<Agent>(
    "set_changed",
    SET_CHANGED,
    SetChanged::LAYOUT,
    <() as Layout>::LAYOUT,
    Access::Shared,
);

impl Grain for Agent {
    const METHODS: &'static [MethodSpec] = &[DELIVER_SPEC, SET_CHANGED_SPEC];

    async fn dispatch(turn: Turn<Self>) -> TurnOutput {
        match turn.method() {
            siloring_runtime::grain::ACTIVATE | siloring_runtime::grain::DEACTIVATE => turn.done(),
            DELIVER => deliver(&turn).await,
            SET_CHANGED => {
                let changed = turn.arguments::<SetChanged>()?;
                let set = Set {
                    version: SetVersion(changed.set.version.to_native()),
                    live: changed.set.live.to_native(),
                    has_owned: changed.set.has_owned,
                };
                let stream = AddressHash(changed.stream.to_native());
                Here::extension::<ShardStreams>().learn(stream, set);
                turn.reply(&())
            }
            _ => turn.unknown_method(),
        }
    }
}

async fn deliver(turn: &Turn<Agent>) -> TurnOutput {
    let frame = turn.arguments::<Deliver>()?;
    let undecodable =
        |error: String| DeliveryFailure::rejected(RejectedKind::RequestUndecodable, error);
    let parse = |text: &str| Address::parse(text).map_err(|error| undecodable(error.to_string()));
    let events: Vec<Event<'_>> = frame
        .events
        .iter()
        .map(|event| Event {
            position: event.position.to_native(),
            lane: event.lane.to_native(),
            number: event.number.to_native(),
            schema: Schema::from_bits(event.schema.to_native()),
            body: event.body.as_slice(),
        })
        .collect();
    let mut consumers = Vec::with_capacity(frame.consumers.len());
    for consumer in frame.consumers.iter() {
        consumers.push(Consumer {
            key: consumer.key.as_str(),
            address: parse(consumer.address.as_str())?,
            handler: MethodId(consumer.handler.to_native()),
            missed: consumer.missed.to_native(),
            attempts: consumer.attempts.as_slice(),
        });
    }
    let from = Source {
        stream: parse(frame.stream.as_str())?,
        epoch: ActivationNumber {
            view: siloring_core::ids::ViewNumber(frame.epoch.view.to_native()),
            counter: frame.epoch.counter.to_native(),
        },
    };
    let patience = Duration::from_millis(u64::from(frame.patience_ms.to_native()));
    let timing = Timing { patience, deadline: turn.ctx().remaining() };
    let handle = turn.ctx().handle();
    let results = give_all(handle, &from, &events, &consumers, timing).await;
    turn.reply(&results.into_iter().map(WireResult::from).collect::<Vec<_>>())
}

/// Whose events they are.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) stream: Address,
    pub(crate) epoch: ActivationNumber,
}

/// An event in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) position: u64,
    pub(crate) lane: u128,
    pub(crate) number: u64,
    pub(crate) schema: Schema,
    pub(crate) body: &'a [u8],
}

/// A consumer in a frame.
#[derive(Clone, Debug)]
pub(crate) struct Consumer<'a> {
    pub(crate) key: &'a str,
    pub(crate) address: Address,
    pub(crate) handler: MethodId,
    pub(crate) missed: u64,
    pub(crate) attempts: &'a [u8],
}

/// How long a frame may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How long consumers that have finished wait for others.
    pub(crate) patience: Duration,
    /// How long a consumer has.
    pub(crate) deadline: Duration,
}

/// What came of a consumer's batch.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) done: usize,
    pub(crate) is_running: bool,
    pub(crate) failure: Option<DeliveryFailure>,
    /// What the consumer answered to the last of them, if that was more than a confirmation.
    pub(crate) reply: Option<(Schema, Body)>,
}

impl From<Given> for WireResult {
    fn from(given: Given) -> Self {
        Self {
            done: u32::try_from(given.done).expect("bounded by BATCH_EVENTS_MAX"),
            is_running: given.is_running,
            failure: given.failure.as_ref().map(WireFailure::from),
            reply: given.reply.map(|(schema, body)| WireBody {
                schema: schema.to_bits(),
                bytes: body.as_slice().to_vec(),
            }),
        }
    }
}

/// Gives the events to each consumer, all at once, and waits as long as the timing says.
pub(crate) async fn give_all(
    handle: &Handle,
    from: &Source,
    events: &[Event<'_>],
    consumers: &[Consumer<'_>],
    timing: Timing,
) -> Vec<Given> {
    if let [consumer] = consumers {
        return vec![give(handle, from, events, consumer, timing.deadline, &Cell::new(0)).await];
    }
    let done: Vec<Cell<usize>> = consumers.iter().map(|_| Cell::new(0)).collect();
    let mut given: Vec<Option<Given>> = consumers.iter().map(|_| None).collect();
    let mut at_work: FuturesUnordered<_> = (0..consumers.len())
        .map(|index| {
            let (consumer, done) = (&consumers[index], &done[index]);
            async move {
                (index, give(handle, from, events, consumer, timing.deadline, done).await)
            }
        })
        .collect();
    let mut patience = pin!(Sleep::new(timing.patience));
    loop {
        let next = poll_fn(|cx| match at_work.poll_next_unpin(cx) {
            Poll::Ready(next) => Poll::Ready(next),
            Poll::Pending => patience.as_mut().poll(cx).map(|()| None),
        });
        let Some((index, result)) = next.await else { break };
        given[index] = Some(result);
    }
    let running =
        |done: &Cell<usize>| Given { done: done.get(), is_running: true, ..Given::default() };
    given
        .into_iter()
        .zip(&done)
        .map(|(given, done)| given.unwrap_or_else(|| running(done)))
        .collect()
}

/// Gives a consumer the events in order, until one fails. `done` counts those that it has handled.
async fn give(
    handle: &Handle,
    from: &Source,
    events: &[Event<'_>],
    consumer: &Consumer<'_>,
    deadline: Duration,
    done: &Cell<usize>,
) -> Given {
    let until = Here::now() + deadline;
    let target = handle.raw(consumer.address.clone());
    let mut given = Given::default();
    for (event, attempt) in events.iter().zip(consumer.attempts) {
        let info = EventInfo {
            stream: from.stream.clone(),
            subscription: consumer.key.into(),
            epoch: from.epoch,
            position: event.position,
            missed: if done.get() == 0 { consumer.missed } else { 0 },
            attempt: *attempt,
            origin: event.lane,
            number: event.number,
        };
        let envelope = Envelope { event: Some(Arc::new(info)), ..Envelope::default() };
        let is_hub = consumer.handler == HUB;
        let method = if is_hub { MethodId(event.schema.type_id) } else { consumer.handler };
        #[cfg(feature = "planted")]
        if !is_hub && Here::extension::<ShardStreams>().gives_to_nobody_idle(&consumer.address) {
            let failure = DeliveryFailure::rejected(RejectedKind::NotHere, "it is not active");
            given.failure = Some(failure);
            break;
        }
        let request = RawRequest { method, schema: event.schema, body: Body::copy_of(event.body) };
        // The event's owner tries again, and says what comes of it. A call that goes on by itself
        // could outlive what its consumer knows: an owner that is refused as an old one must not
        // come back to another activation, which knows of no later one.
        let call = target.send(request).envelope(envelope).one_try();
        let call = call.deadline(until.since(Here::now()));
        match call.await {
            Ok(reply) => {
                done.set(done.get() + 1);
                if !reply.body.is_empty() {
                    // A result has room for one reply: the events behind this one come again.
                    given.reply = Some((reply.schema, reply.body));
                    break;
                }
            }
            Err(failure) => {
                given.failure = Some(failure);
                break;
            }
        }
    }
    given.done = done.get();
    given
}

/// The handler of consumers that are hubs: they take messages by their type.
pub(crate) const HUB: MethodId = MethodId(0);
