//! The pulling agent of a stream: takes what consumers are ready for and brings it to their silos.
//!
//! It is a task of the owner's activation that runs while there is something to hand out, and waits
//! for what comes first: a result, a new event, the time of a further attempt. Consumers of one
//! silo that stand at the same event share a frame; one that kept the others waiting, or failed,
//! has its own for that event, in which it is waited for. That a silo is gone shows in the result
//! of its frame.
//!
//! When its own silo leaves it waits a moment for what is under way, and then leaves the rest to
//! the next owner: a consumer that does not answer, perhaps because it waits for this very stream,
//! must not hold up everybody else for as long as turns may take.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use siloring_core::address::Address;
use siloring_core::body::Body;
use siloring_core::ids::{Endpoint, Generation, MethodId, ShardIndex};
use siloring_core::limits::{FRAME_PATIENCE, OWNER_LEAVES_AFTER};
use siloring_core::outcome::{CallError, DeliveryFailure, FailedKind, RejectedKind};
use siloring_core::ports::registry::SetVersion;
use siloring_core::schema::Schema;
use siloring_core::time::Moment;
use siloring_core::view::SiloStatus;
use siloring_runtime::ctx::{Ctx, Sleep};
use siloring_runtime::grain::ShardKey;
use siloring_runtime::here::Here;

use crate::agent::{self, Agent, Consumer, DELIVER_SPEC, Event, Given, Source, Timing};
use crate::members::Member;
use crate::message::{Deliver, WireConsumer, WireEpoch, WireEvent, WireResult};
use crate::owner::Owner;
use crate::planted::is_planted;
use crate::queue::{Batch, ConsumerKey, Report};

/// Makes sure that the pulling agent looks.
pub(crate) fn pull(owner: &Rc<Owner>, ctx: &Ctx) {
    if owner.pulling.replace(true) {
        owner.pull_asked.set(true);
        owner.pull_waker.borrow_mut().take().into_iter().for_each(core::task::Waker::wake);
        return;
    }
    ctx.spawn(run(Rc::clone(owner)));
}

type Flights = FuturesUnordered<LocalBoxFuture<'static, Landed>>;

/// A frame's results, one for each of its consumers.
struct Landed {
    /// With the row by which each was reached.
    consumers: Vec<(ConsumerKey, SetVersion)>,
    results: Result<Vec<Given>, DeliveryFailure>,
}

async fn run(owner: Rc<Owner>) {
    let mut flights = Flights::new();
    let mut wake_at = Moment::ZERO;
    let mut leave_at = Moment::NEVER;
    let mut views = Here::views();
    // The one that is known: later ones are news.
    views.next().await;
    loop {
        owner.pull_asked.set(false);
        if leave_at == Moment::NEVER && is_leaving() {
            leave_at = Here::now() + OWNER_LEAVES_AFTER;
        }
        if Here::now() >= leave_at && !is_planted!(owner.streams, OwnerStays) {
            owner.pulling.set(false);
            return owner.leave();
        }
        owner.judge();
        if Here::now() >= wake_at {
            owner.queue.borrow_mut().expire(Here::now());
        }
        launch(&owner, &mut flights);
        owner.carry_out();
        wake_at = owner.queue.borrow().next_wake();
        if flights.is_empty() && wake_at == Moment::NEVER {
            owner.pulling.set(false);
            return;
        }
        let mut timer = pin!(sleep_until(wake_at.min(leave_at)));
        let mut view = pin!(views.next());
        let landed = poll_fn(|cx| {
            if let Poll::Ready(Some(landed)) = flights.poll_next_unpin(cx) {
                return Poll::Ready(Some(landed));
            }
            let is_due = timer.as_mut().poll(cx).is_ready()
                || view.as_mut().poll(cx).is_ready()
                || is_asked(&owner, cx);
            if is_due { Poll::Ready(None) } else { Poll::Pending }
        });
        if let Some(landed) = landed.await {
            land(&owner, landed);
        }
    }
}

/// Whether this silo leaves, as the view says that everybody sees.
fn is_leaving() -> bool {
    Here::view().status(Here::endpoint().silo) == Some(SiloStatus::Draining)
}

async fn sleep_until(moment: Moment) {
    if moment == Moment::NEVER {
        return core::future::pending().await;
    }
    Sleep::new(moment.since(Here::now())).await;
}

fn is_asked(owner: &Owner, cx: &Context<'_>) -> bool {
    if owner.pull_asked.get() {
        return true;
    }
    *owner.pull_waker.borrow_mut() = Some(cx.waker().clone());
    false
}

/// What consumers that share a frame have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Together {
    silo: Generation,
    /// One that has a frame of its own: in a shared one it is not waited for longer than for the
    /// others, and an attempt that fails later would not be known to have failed.
    alone: Option<ConsumerKey>,
    positions: Vec<u64>,
}

/// Hands out what consumers are ready for, a frame for each silo and place in the queue.
fn launch(owner: &Rc<Owner>, flights: &mut Flights) {
    let ready = owner.queue.borrow_mut().take_ready(Here::now());
    let mut frames: BTreeMap<Together, Vec<(ConsumerKey, Batch)>> = BTreeMap::new();
    for (key, batch) in ready {
        let members = owner.members.borrow();
        let Some(member) = members.of(key) else { continue };
        let together = Together {
            silo: silo_of(&member.row.consumer, member.row.owner),
            alone: batch.is_again.then_some(key),
            positions: batch.positions.iter().map(|(position, _)| *position).collect(),
        };
        frames.entry(together).or_default().push((key, batch));
    }
    for (together, consumers) in frames {
        flights.push(fly(owner, &together, &consumers));
    }
}

/// Where a consumer is, as far as is known; whoever is nowhere is reached from here.
fn silo_of(consumer: &Address, owner: Option<Generation>) -> Generation {
    let place = owner.or_else(|| Here::whereabouts(consumer).map(|endpoint| endpoint.silo));
    let view = Here::view();
    place
        .filter(|silo| view.silo(*silo).is_some() && !view.is_gone(*silo))
        .unwrap_or_else(|| Here::endpoint().silo)
}

fn fly(
    owner: &Rc<Owner>,
    together: &Together,
    consumers: &[(ConsumerKey, Batch)],
) -> LocalBoxFuture<'static, Landed> {
    let queue = owner.queue.borrow();
    let events = together.positions.iter().map(|position| {
        let (origin, schema, body) = queue.event(*position);
        WireEvent {
            position: *position,
            lane: origin.lane,
            number: origin.number,
            schema: schema.to_bits(),
            body: body.to_vec(),
        }
    });
    let events = events.collect();
    let deadlines = consumers.iter().map(|(_, batch)| queue.deadline(batch));
    let deadline = deadlines.max().unwrap_or(Moment::ZERO).since(Here::now());
    let members = owner.members.borrow();
    let mut addresses = Vec::with_capacity(consumers.len());
    let mut wire = Vec::with_capacity(consumers.len());
    let mut keys = Vec::with_capacity(consumers.len());
    for (key, batch) in consumers {
        let Some(member) = members.of(*key) else { continue };
        keys.push((*key, member.row.version));
        addresses.push(member.row.consumer.clone());
        wire.push(WireConsumer {
            key: member.row.key.clone(),
            address: member.row.consumer.as_str().to_owned(),
            handler: member.row.handler.0,
            missed: batch.missed,
            attempts: batch.positions.iter().map(|(_, attempt)| *attempt).collect(),
        });
    }
    let patience =
        if is_planted!(owner.streams, SlowBlocksAll) { deadline } else { FRAME_PATIENCE };
    let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let frame = Deliver {
        stream: owner.stream.as_str().to_owned(),
        epoch: WireEpoch::from(owner.epoch),
        events,
        consumers: wire,
        patience_ms,
    };
    if together.silo == Here::endpoint().silo {
        let owner = Rc::clone(owner);
        return Box::pin(async move {
            let results = Ok(give_here(&owner, &frame, &addresses, deadline).await);
            Landed { consumers: keys, results }
        });
    }
    let shards = Here::view().silo(together.silo).map_or(1, |row| row.shards);
    // The link of this shard lands there: no further step to another shard.
    let shard = ShardIndex(Here::endpoint().shard.0 % shards);
    let agent = ShardKey(Endpoint { silo: together.silo, shard });
    let agent = Here::handle().grain::<Agent>(agent);
    Box::pin(async move {
        let call = agent.call::<_, Vec<WireResult>>(&DELIVER_SPEC, &frame).one_of_several();
        let call = call.deadline(deadline);
        let results = match call.await {
            Ok(results) => Ok(results.into_iter().map(Given::from).collect()),
            Err(CallError::Delivery(failure)) => Err(failure),
            Err(CallError::Handler(never)) => match never {},
        };
        Landed { consumers: keys, results }
    })
}

async fn give_here(
    owner: &Owner,
    frame: &Deliver,
    addresses: &[Address],
    deadline: Duration,
) -> Vec<Given> {
    let source = Source { stream: owner.stream.clone(), epoch: owner.epoch };
    let events: Vec<Event<'_>> = frame
        .events
        .iter()
        .map(|event| Event {
            position: event.position,
            lane: event.lane,
            number: event.number,
            schema: Schema::from_bits(event.schema),
            body: &event.body,
        })
        .collect();
    let consumers: Vec<Consumer<'_>> = frame
        .consumers
        .iter()
        .zip(addresses)
        .map(|(consumer, address)| Consumer {
            key: &consumer.key,
            address: address.clone(),
            handler: MethodId(consumer.handler),
            missed: consumer.missed,
            attempts: &consumer.attempts,
        })
        .collect();
    let patience = Duration::from_millis(u64::from(frame.patience_ms));
    let timing = Timing { patience, deadline };
    agent::give_all(&Here::handle(), &source, &events, &consumers, timing).await
}

impl From<WireResult> for Given {
    fn from(wire: WireResult) -> Self {
        Self {
            done: wire.done as usize,
            is_running: wire.is_running,
            failure: wire.failure.map(DeliveryFailure::from),
            reply: wire
                .reply
                .map(|reply| (Schema::from_bits(reply.schema), Body::copy_of(&reply.bytes))),
        }
    }
}

/// A failure as it concerns the consumer now: that nobody is where its row was when the frame went
/// says nothing once the row is another, of a hub that has moved.
fn of_its_row(
    owner: &Owner,
    key: ConsumerKey,
    version: SetVersion,
    failure: DeliveryFailure,
) -> DeliveryFailure {
    let evicts = failure.rejected_kind().is_some_and(RejectedKind::evicts_subscriber);
    let is_same = |member: &Member| member.row.version == version;
    if !evicts || owner.members.borrow().of(key).is_none_or(is_same) {
        return failure;
    }
    if is_planted!(owner.streams, EvictsAnyRow) {
        return failure;
    }
    let detail = format!("its subscription has moved; where it was: {failure}");
    DeliveryFailure::rejected(RejectedKind::Moving, detail)
}

/// Tells the queue what came of a frame.
fn land(owner: &Rc<Owner>, landed: Landed) {
    let Landed { consumers, results } = landed;
    let mut results = results.map(Vec::into_iter);
    for (key, version) in consumers {
        let report = match &mut results {
            Err(failure) => Report::Lost(of_its_row(owner, key, version, failure.clone())),
            Ok(results) => match results.next() {
                Some(given) if given.is_running => Report::Running { done: given.done },
                Some(Given { done, failure, reply, .. }) => {
                    let failure = failure.map(|why| of_its_row(owner, key, version, why));
                    Report::Ran { done, failure, reply }
                }
                None => {
                    let detail = "the agent left a consumer out";
                    Report::Lost(DeliveryFailure::failed(FailedKind::ReplyUndecodable, detail))
                }
            },
        };
        owner.queue.borrow_mut().report(Here::now(), key, report);
    }
    // Before anything can take away a consumer that a dead letter names.
    owner.carry_out();
}
