//! The owner of a stream: its consumers, its queue and its pulling agent, as one grain.
//!
//! The directory makes it the only one in a view; its activation's number is the epoch that its
//! frames carry. Contract:
//! - a publish is taken in once ([`Queue`]), and answered when it is queued or when every consumer
//!   is through with it;
//! - a subscription is written to the registry before it is acknowledged, and its cursor is
//!   attached then; the set version is that of the registry's last write here;
//! - what the registry holds is read once, at the first turn: until it is, turns wait, and hear
//!   `RegistryUnavailable` if it cannot be, or before their callers' time has passed; a stream that
//!   is in memory needs no registry to flow;
//! - a row whose owner is gone in a view at least as new as the row's is no consumer;
//! - nothing is kept for a stream without consumers: its activation ends.
//!
//! `members.rs` holds who consumes, `flights.rs` carries batches out; the decisions are
//! `queue.rs`'s and `verdict.rs`'s.

use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Poll, Waker};
use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use siloring_core::address::Address;
use siloring_core::body::Body;
use siloring_core::ids::ActivationNumber;
use siloring_core::limits::LANE_ASK_AFTER;
use siloring_core::outcome::{DeliveryFailure, IndeterminateKind, RejectedKind};
use siloring_core::ports::rare::{self, Rare};
use siloring_core::schema::{Layout, Schema};
use siloring_runtime::ctx::{Ctx, Sleep};
use siloring_runtime::grain::{
    Access, Grain, GrainType, MethodId, MethodSpec, Placement, Turn, TurnOutput,
};
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;

use crate::few::Few;
use crate::flights;
use crate::members::{Members, Refusal};
use crate::message::{
    Listed, Publish, Step, Subscribe, Subscribed, Took, Unsubscribe, WireBody, WireConsumerFailure,
    WireEpoch, WireFailure, WireSet, of_publish, of_took,
};
use crate::planted::is_planted;
use crate::queue::{NewEvent, Origin, Published, Queue, QueueOutput, Summary, Waiting};
use crate::shard::ShardStreams;
use crate::streams::Streams;

/// The grain that owns a stream. Its key is `namespace/key`.
#[derive(Debug, Default)]
pub(crate) struct StreamOwner(RefCell<Option<Rc<Owner>>>);

impl GrainType for StreamOwner {
    const TYPE: &'static str = crate::id::STREAM_KIND;
    const PLACEMENT: Placement = Placement::Hash;
    const REENTRANT: bool = true;
    const IDLE_AFTER: Option<Duration> = None;
    type Key = String;
}

const PUBLISH: MethodId = MethodId::of("publish");
const SUBSCRIBE: MethodId = MethodId::of("subscribe");
const UNSUBSCRIBE: MethodId = MethodId::of("unsubscribe");
const LIST: MethodId = MethodId::of("list");
const REFRESH: MethodId = MethodId::of("refresh");

const fn spec(name: &'static str, id: MethodId, arguments: u64, reply: u64) -> MethodSpec {
    MethodSpec::of::<StreamOwner>(name, id, arguments, reply, Access::Shared)
}

pub(crate) const PUBLISH_SPEC: MethodSpec = spec("publish", PUBLISH, Publish::LAYOUT, Took::LAYOUT)
    .carries(Some(of_publish), Some(of_took));
pub(crate) const SUBSCRIBE_SPEC: MethodSpec =
    spec("subscribe", SUBSCRIBE, Subscribe::LAYOUT, <Result<Subscribed, Refusal>>::LAYOUT);
pub(crate) const UNSUBSCRIBE_SPEC: MethodSpec =
    spec("unsubscribe", UNSUBSCRIBE, Unsubscribe::LAYOUT, <Result<(), Refusal>>::LAYOUT);
pub(crate) const LIST_SPEC: MethodSpec =
    spec("list", LIST, <() as Layout>::LAYOUT, <Vec<Listed>>::LAYOUT);
pub(crate) const REFRESH_SPEC: MethodSpec =
    spec("refresh", REFRESH, <() as Layout>::LAYOUT, WireSet::LAYOUT);

impl Grain for StreamOwner {
    const METHODS: &'static [MethodSpec] =
        &[PUBLISH_SPEC, SUBSCRIBE_SPEC, UNSUBSCRIBE_SPEC, LIST_SPEC, REFRESH_SPEC];

    async fn dispatch(turn: Turn<Self>) -> TurnOutput {
        let method = turn.method();
        if method == siloring_runtime::grain::DEACTIVATE {
            return turn.done();
        }
        if method == siloring_runtime::grain::ACTIVATE {
            let owner = Owner::of(turn.ctx());
            Here::extension::<ShardStreams>().owns(&owner);
            *turn.shared().0.borrow_mut() = Some(owner);
            return turn.done();
        }
        let owner = turn.shared().0.borrow().clone();
        let owner = owner.expect("made by the activation hook");
        if owner.has_left.get() {
            turn.ctx().deactivate();
            let detail = "the stream's owner leaves with its silo";
            return Err(DeliveryFailure::rejected(RejectedKind::Draining, detail));
        }
        let ready = owner.ready(turn.ctx()).await;
        if !is_planted!(owner.streams, UnreadMeansNone) {
            ready?;
        }
        let until = Here::now() + turn.ctx().remaining();
        match method {
            PUBLISH => owner.publish(&turn).await,
            SUBSCRIBE => {
                let arguments = turn.owned::<Subscribe>(turn.arguments::<Subscribe>()?)?;
                // Apart, as all turns have room for the largest of these futures.
                let result = Box::pin(owner.subscribe(arguments, until)).await?;
                #[cfg(feature = "planted")]
                if is_planted!(owner.streams, CursorAfterAnswer) {
                    owner.attach_late();
                    return turn.reply(&result);
                }
                owner.after(turn.ctx());
                turn.reply(&result)
            }
            UNSUBSCRIBE => {
                let arguments = turn.owned::<Unsubscribe>(turn.arguments::<Unsubscribe>()?)?;
                let result = Box::pin(owner.unsubscribe(&arguments, until)).await?;
                owner.after(turn.ctx());
                turn.reply(&result)
            }
            LIST => {
                owner.after(turn.ctx());
                turn.reply(&owner.list())
            }
            REFRESH => {
                Box::pin(owner.load()).await?;
                owner.after(turn.ctx());
                turn.reply(&owner.set())
            }
            _ => turn.unknown_method(),
        }
    }
}

/// Of a caller's time, one part in so many is waited for the registry: what is left brings the
/// answer that it was not read, also where machines are busy.
const WAIT_SHARE: u32 = 2;

/// How far the registry has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loaded {
    No,
    UnderWay,
    Yes,
}

/// What a turn waits for.
#[derive(Debug)]
enum Ticket {
    Waiting(Option<Waker>),
    Ended(Result<Summary, DeliveryFailure>),
}

/// The state of a stream at its owner.
#[derive(Debug)]
pub(crate) struct Owner {
    handle: Handle,
    pub(crate) stream: Address,
    pub(crate) streams: Arc<Streams>,
    pub(crate) epoch: ActivationNumber,
    pub(crate) queue: RefCell<Queue>,
    pub(crate) members: RefCell<Members>,
    loaded: Cell<Loaded>,
    /// Its silo leaves, and so has it: whoever asks goes to the next owner.
    has_left: Cell<bool>,
    /// Wait until the registry has been read, or could not be.
    load_waiters: RefCell<Vec<Waker>>,
    tickets: RefCell<Few<Waiting, Ticket>>,
    next_ticket: Cell<Waiting>,
    /// The pulling agent, when it runs.
    pub(crate) pulling: Cell<bool>,
    pub(crate) pull_asked: Cell<bool>,
    pub(crate) pull_waker: RefCell<Option<Waker>>,
}

impl Owner {
    fn of(ctx: &Ctx) -> Rc<Self> {
        let stream = ctx.address().clone();
        let streams = Here::shared::<Streams>();
        // A silo that hosts the type has streams; a test's shard may not.
        let streams = streams.unwrap_or_else(|| crate::StreamsBuilder::default().build(1));
        let policy = streams.policy_of(&stream);
        Here::extension::<ShardStreams>().owner_came(&stream, ctx.fence());
        #[cfg_attr(not(feature = "planted"), expect(unused_mut, reason = "only a defect is set"))]
        let mut queue = Queue::new(policy);
        #[cfg(feature = "planted")]
        queue.plant(streams.planted());
        Rc::new(Self {
            handle: ctx.handle().clone(),
            epoch: ctx.fence(),
            queue: RefCell::new(queue),
            members: RefCell::default(),
            loaded: Cell::new(Loaded::No),
            has_left: Cell::new(false),
            load_waiters: RefCell::default(),
            tickets: RefCell::default(),
            next_ticket: Cell::new(0),
            pulling: Cell::new(false),
            pull_asked: Cell::new(false),
            pull_waker: RefCell::default(),
            stream,
            streams,
        })
    }

    /// Waits until the registry's rows of the stream are here, for as long as the turn's caller
    /// does: it hears why not, rather than that its time has passed.
    async fn ready(&self, ctx: &Ctx) -> Result<(), DeliveryFailure> {
        if self.loaded.get() == Loaded::Yes {
            return Ok(());
        }
        let late = Sleep::new(ctx.remaining() / WAIT_SHARE);
        Box::pin(self.read_first_until(late)).await
    }

    async fn read_first_until(&self, late: Sleep) -> Result<(), DeliveryFailure> {
        let (mut late, mut reading) = (pin!(late), pin!(self.read_first()));
        poll_fn(|cx| {
            if let Poll::Ready(result) = reading.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            let detail = "the registry was not read in the caller's time";
            let failure = || DeliveryFailure::rejected(RejectedKind::RegistryUnavailable, detail);
            late.as_mut().poll(cx).map(|()| Err(failure()))
        })
        .await
    }

    async fn read_first(&self) -> Result<(), DeliveryFailure> {
        while self.loaded.get() == Loaded::UnderWay {
            let mut asked = false;
            poll_fn(|cx| {
                if core::mem::replace(&mut asked, true) {
                    return Poll::Ready(());
                }
                self.load_waiters.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
        if self.loaded.get() == Loaded::Yes {
            return Ok(());
        }
        self.loaded.set(Loaded::UnderWay);
        // Dropped by its deadline, the next turn begins anew.
        let loading = Loading(self);
        #[cfg(not(feature = "planted"))]
        let result = self.load().await;
        #[cfg(feature = "planted")]
        let result = self.planted_load().await;
        if result.is_ok() {
            self.loaded.set(Loaded::Yes);
        }
        drop(loading);
        result
    }

    /// After a turn that may have changed who consumes, or what there is to hand out.
    fn after(self: &Rc<Self>, ctx: &Ctx) {
        self.carry_out();
        self.tell_watchers(ctx);
        if self.queue.borrow().consumers_count() == 0 && self.queue.borrow().is_idle() {
            ctx.deactivate();
            return;
        }
        flights::pull(self, ctx);
    }

    pub(crate) fn set(&self) -> WireSet {
        let set = self.members.borrow().set();
        WireSet { version: set.version.0, live: set.live, has_owned: set.has_owned }
    }

    async fn publish(self: &Rc<Self>, turn: &Turn<StreamOwner>) -> TurnOutput {
        let publish = turn.arguments::<Publish>()?;
        #[cfg(feature = "planted")]
        self.planted_gate().await;
        if is_planted!(self.streams, RegistryTrusted) {
            self.load().await?;
        }
        if rare::is_asked(Rare::ReadSubscriptions) {
            Here::extension::<ShardStreams>().doubted(&self.stream);
        }
        self.judge();
        self.members.borrow_mut().watch(publish.silo.to_native(), publish.set.to_native());
        let answer = |step: Step, summary: &Summary| self.took(step, summary);
        if self.queue.borrow().consumers_count() == 0 {
            let took = answer(Step::NoSubscriber, &Summary::default());
            if is_planted!(self.streams, NobodySuffices) {
                let summary = Summary { handled: 1, ..Summary::default() };
                return turn.reply(&answer(Step::Closed, &summary));
            }
            #[cfg(feature = "planted")]
            if is_planted!(self.streams, PublisherRows) {
                self.write_publisher(publish.silo.to_native()).await;
                return turn.reply(&took);
            }
            self.after(turn.ctx());
            return turn.reply(&took);
        }
        let Some(body) = publish.body.as_ref() else {
            if let Some(known) = self.known(publish) {
                return self.tell_when_closed(turn, known).await;
            }
            return turn.reply(&answer(Step::SendBody, &Summary::default()));
        };
        let (schema, body) =
            (Schema::from_bits(publish.schema.to_native()), Body::copy_of(body.as_slice()));
        let skipped = self.members.borrow().uninterested(&self.streams, schema, &body);
        let outcome = self.wait();
        let waiting = outcome.waiting;
        let event = NewEvent {
            origin: origin(publish),
            base: publish.base.to_native(),
            attempts_before: publish.attempts_before,
            schema,
            body,
            deadline: Here::now() + turn.ctx().remaining(),
            waiting,
            skipped,
        };
        let published = self.queue.borrow_mut().publish(Here::now(), event);
        self.carry_out();
        flights::pull(self, turn.ctx());
        if is_planted!(self.streams, Unconfirmed) {
            let handled = u32::try_from(self.queue.borrow().consumers_count()).unwrap_or(u32::MAX);
            let summary = Summary { position: 1, handled, ..Summary::default() };
            return turn.reply(&answer(Step::Closed, &summary));
        }
        match published {
            Published::Refused(failure) => return Err(failure),
            Published::Closed(summary) => return turn.reply(&answer(Step::Closed, &summary)),
            Published::Queued(position) | Published::Known(position) if publish.queued => {
                let summary = Summary { position, ..Summary::default() };
                return turn.reply(&answer(Step::Queued, &summary));
            }
            Published::Held => return self.tell_when_in_turn(turn, outcome, origin(publish)).await,
            Published::Queued(_) | Published::Known(_) => {}
        }
        self.tell_when_closed(turn, outcome).await
    }

    /// Lets the event wait for earlier ones of its lane, for a moment. Then it is asked for anew:
    /// an earlier one may have its outcome from the last owner, and its publisher says so.
    async fn tell_when_in_turn(
        &self,
        turn: &Turn<StreamOwner>,
        mut outcome: Outcome,
        origin: Origin,
    ) -> TurnOutput {
        let mut late = pin!(Sleep::new(LANE_ASK_AFTER));
        let in_time = poll_fn(|cx| match pin!(&mut outcome).poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        });
        match in_time.await {
            Some(result) => self.tell(turn, result),
            None if self.queue.borrow_mut().let_go(origin) => {
                turn.reply(&self.took(Step::SendBody, &Summary::default()))
            }
            None => self.tell_when_closed(turn, outcome).await,
        }
    }

    /// Waits until every consumer is through with the event, or this owner leaves.
    async fn tell_when_closed(&self, turn: &Turn<StreamOwner>, outcome: Outcome) -> TurnOutput {
        self.tell(turn, outcome.await)
    }

    fn tell(
        &self,
        turn: &Turn<StreamOwner>,
        result: Result<Summary, DeliveryFailure>,
    ) -> TurnOutput {
        if self.has_left.get() {
            turn.ctx().deactivate();
        }
        turn.reply(&self.took(Step::Closed, &result?))
    }

    /// The outcome of an event that was taken in before, if it is known.
    fn known(self: &Rc<Self>, publish: &<Publish as rkyv::Archive>::Archived) -> Option<Outcome> {
        let outcome = self.wait();
        let waiting = outcome.waiting;
        match self.queue.borrow_mut().join(origin(publish), waiting) {
            Some(Published::Closed(summary)) => {
                self.end(waiting, Ok(summary));
                Some(outcome)
            }
            Some(_) => Some(outcome),
            None => None,
        }
    }

    fn took(&self, step: Step, summary: &Summary) -> Took {
        let failures = summary.failures.iter().map(|failed| WireConsumerFailure {
            key: failed.key.to_string(),
            failure: WireFailure::from(&failed.failure),
        });
        Took {
            set: self.set(),
            epoch: WireEpoch::from(self.epoch),
            step: step.code(),
            position: summary.position,
            handled: summary.handled,
            failed: summary.failed,
            failures: failures.collect(),
            reply: summary.reply.as_ref().map(|(schema, body)| WireBody {
                schema: schema.to_bits(),
                bytes: body.as_slice().to_vec(),
            }),
        }
    }

    /// Gives up what it waits for: publishers bring it to the next owner, which the directory can
    /// have once the last turn here has ended.
    pub(crate) fn leave(&self) {
        self.has_left.set(true);
        let waiting: Vec<Waiting> = self.tickets.borrow().keys().copied().collect();
        for waiting in waiting {
            let detail = "the stream's owner left with its silo";
            let kind = IndeterminateKind::LostAfterHandOver;
            self.end(waiting, Err(DeliveryFailure::indeterminate(kind, detail)));
        }
    }

    /// Carries out what the queue wants.
    pub(crate) fn carry_out(self: &Rc<Self>) {
        loop {
            let Some(output) = self.queue.borrow_mut().poll_output() else { return };
            match output {
                QueueOutput::Closed { waiting, summary } => {
                    let last = waiting.len().saturating_sub(1);
                    let mut summary = Some(summary);
                    for (index, waiting) in waiting.into_iter().enumerate() {
                        let one = if index == last { summary.take() } else { summary.clone() };
                        self.end(waiting, Ok(one.unwrap_or_default()));
                    }
                }
                QueueOutput::Refused { waiting, failure } => self.end(waiting, Err(failure)),
                QueueOutput::DeadLetter { consumer, letter, failure } => {
                    self.bury(consumer, &letter, &failure);
                }
                QueueOutput::Evict { consumer, failure } => self.evict(consumer, &failure),
                QueueOutput::Gap { consumer, missed } => self.told_gap(consumer, missed),
            }
        }
    }

    /// A place for an outcome. Its name is never used again: the queue may remember it for longer.
    fn wait(self: &Rc<Self>) -> Outcome {
        let waiting = self.next_ticket.get();
        self.next_ticket.set(waiting + 1);
        self.tickets.borrow_mut().insert(waiting, Ticket::Waiting(None));
        Outcome { owner: Rc::clone(self), waiting }
    }

    /// Turns that wait for an outcome.
    pub(crate) fn waiting_count(&self) -> usize {
        self.tickets.borrow().len()
    }

    fn end(&self, waiting: Waiting, result: Result<Summary, DeliveryFailure>) {
        let mut tickets = self.tickets.borrow_mut();
        let Some(ticket) = tickets.get_mut(&waiting) else { return };
        if let Ticket::Waiting(waker) = core::mem::replace(ticket, Ticket::Ended(result)) {
            drop(tickets);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

fn origin(publish: &<Publish as rkyv::Archive>::Archived) -> Origin {
    Origin { lane: publish.lane.to_native(), number: publish.number.to_native() }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Outside of its shard, the shard is going too.
        if Here::is_of(&self.handle) {
            Here::extension::<ShardStreams>().owner_went(&self.stream, self.epoch);
        }
    }
}

/// A load under way. Dropped, those who wait look again.
struct Loading<'a>(&'a Owner);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if self.0.loaded.get() == Loaded::UnderWay {
            self.0.loaded.set(Loaded::No);
        }
        let waiters = core::mem::take(&mut *self.0.load_waiters.borrow_mut());
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// How an event ends, for the turn that waits for it.
struct Outcome {
    owner: Rc<Owner>,
    waiting: Waiting,
}

impl Future for Outcome {
    type Output = Result<Summary, DeliveryFailure>;

    fn poll(
        self: core::pin::Pin<&mut Self>,
        cx: &mut core::task::Context<'_>,
    ) -> Poll<Self::Output> {
        let mut tickets = self.owner.tickets.borrow_mut();
        if let Some(Ticket::Waiting(waker)) = tickets.get_mut(&self.waiting) {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let Some(Ticket::Ended(result)) = tickets.remove(&self.waiting) else {
            unreachable!("a ticket lives until its outcome is taken");
        };
        Poll::Ready(result)
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        self.owner.tickets.borrow_mut().remove(&self.waiting);
    }
}
