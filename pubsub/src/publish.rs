//! Publishing: a typed stream, and the window that brings an event to its outcome.
//!
//! A publish is a call to the stream's owner, sent again with the same number when the owner was
//! lost or moves, until its deadline: the body stays with the publisher until its outcome is known,
//! so that the death of an owner loses nothing that its publishers outlive. While this silo knows
//! of no consumer the header goes first, without the body; only the owner says that there is none.
//!
//! Contract: each publish has one outcome, at the level that was asked for; a publish that was
//! queued and fails later is told to its failure handler, or is a dead letter of the silo.

use core::fmt;
use core::future::{Future, IntoFuture};
use core::marker::PhantomData;
use core::pin::Pin;
use core::time::Duration;
use std::sync::Arc;

use futures_channel::oneshot;
use siloring_core::address::{Address, AddressError};
use siloring_core::body::Body;
use siloring_core::ids::{ActivationNumber, ShardIndex};
use siloring_core::limits::{
    DEADLINE_DEFAULT, EVENT_BYTES_MAX, REDELIVERY_BACKOFF_MAX, REDELIVERY_BACKOFF_MIN,
};
use siloring_core::outcome::{
    CallError, DeliveryFailure, FailedKind, IndeterminateKind, RejectedKind,
};
use siloring_core::ports::registry::SetVersion;
use siloring_core::schema::{Message, Schema};
use siloring_core::time::Moment;
use siloring_runtime::ctx::Sleep;
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;
use siloring_runtime::reference::GrainRef;

use crate::check::Liveness;
use crate::id::stream_address;
use crate::message::{Publish as Wire, Step, Took};
use crate::owner::{PUBLISH_SPEC, StreamOwner};
use crate::planted::is_planted;
use crate::shard::{OpenPublish, ShardStreams};
use crate::streams::{Set, Streams};

/// A place in a stream: the owner's number, and the event's position there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token {
    /// Which owner. Positions of different owners are not comparable.
    pub epoch: ActivationNumber,
    /// From 1, rising by one.
    pub position: u64,
}

/// What became of an event that was handled.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Published {
    /// Where it stood.
    pub token: Token,
    /// How many consumers handled it; at least one.
    pub handled: u32,
    /// How many did not.
    pub failed: u32,
    /// The first few of those: subscription key and failure.
    pub failures: Vec<(String, DeliveryFailure)>,
}

/// A stream of `M`s, seen from one silo. Cheap to clone, free to keep: it names an address and
/// holds nothing alive.
pub struct Stream<M> {
    pub(crate) address: Address,
    /// Made once: naming a grain parses its address.
    owner: GrainRef<StreamOwner>,
    pub(crate) handle: Handle,
    pub(crate) streams: Arc<Streams>,
    event: PhantomData<fn(&M)>,
}

impl<M> Clone for Stream<M> {
    fn clone(&self) -> Self {
        Self {
            address: self.address.clone(),
            owner: self.owner.clone(),
            handle: self.handle.clone(),
            streams: Arc::clone(&self.streams),
            event: PhantomData,
        }
    }
}

impl<M> fmt::Debug for Stream<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Stream({})", self.address)
    }
}

impl<M: Message> Stream<M> {
    /// The stream `key` of a namespace.
    ///
    /// # Errors
    /// If they make no address.
    pub fn new(
        handle: &Handle,
        streams: &Arc<Streams>,
        namespace: &str,
        key: &str,
    ) -> Result<Self, AddressError> {
        let address = stream_address(namespace, key)?;
        let owner = handle.grain::<StreamOwner>(address.id());
        let (handle, streams) = (handle.clone(), Arc::clone(streams));
        Ok(Self { address, owner, handle, streams, event: PhantomData })
    }

    /// The stream, from a turn or another future of a shard.
    ///
    /// # Errors
    /// If namespace and key make no address.
    ///
    /// # Panics
    /// Outside of a shard.
    pub fn here(namespace: &str, key: &str) -> Result<Self, AddressError> {
        let streams = Here::shared::<Streams>().expect("a silo's shards share its streams");
        Self::new(&Here::handle(), &streams, namespace, key)
    }

    /// The stream's address.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Whether anybody subscribes, as far as this silo knows. From any thread; takes no lock, makes
    /// no call, allocates nothing. It is a hint: publishing says the truth.
    pub fn has_live_subscriber(&self) -> Liveness {
        self.streams.has_live_subscriber(&self.address)
    }

    /// Publishes an event: await it for its outcome, or ask for a receipt with
    /// [`Publish::queued`].
    pub fn publish(&self, event: &M) -> Publish {
        let stream = self.address.clone();
        let owner = self.owner.clone();
        let event = Event { stream, owner, schema: M::SCHEMA, body: Body::encode(event) };
        Publish { event, handle: self.handle.clone(), deadline: DEADLINE_DEFAULT }
    }
}

type OnFailure = Box<dyn FnOnce(DeliveryFailure) + Send>;

/// What travels of an event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) stream: Address,
    pub(crate) owner: GrainRef<StreamOwner>,
    pub(crate) schema: Schema,
    pub(crate) body: Body,
}

/// An event on its way to a stream. Does nothing until it is awaited.
///
/// # Cancel safety
/// Dropped while it is awaited in a turn, the event may or may not be handled, and is not sent
/// again; awaited elsewhere it goes on and only its outcome is dropped.
#[must_use = "a publish does nothing until it is awaited"]
#[derive(Debug)]
pub struct Publish {
    pub(crate) event: Event,
    pub(crate) handle: Handle,
    pub(crate) deadline: Duration,
}

/// An event on its way into a stream's queue. Does nothing until it is awaited.
///
/// # Cancel safety
/// As [`Publish`]; once the receipt is there the event goes on by itself.
#[must_use = "a publish does nothing until it is awaited"]
pub struct Queued {
    publish: Publish,
    on_failure: OnFailure,
}

impl fmt::Debug for Queued {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.publish.fmt(out)
    }
}

impl Publish {
    /// Gives it this long instead of 30 s.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Waits only until the owner has taken the event in. That is a receipt, not an outcome: the
    /// event is still brought to one, and if that is a failure, `on_failure` hears it, on a shard:
    /// it must not block.
    pub fn queued(self, on_failure: impl FnOnce(DeliveryFailure) + Send + 'static) -> Queued {
        Queued { publish: self, on_failure: Box::new(on_failure) }
    }

    /// Runs `work` with this publish on a shard: the current one, or the one that the stream hashes
    /// to, so that events of one thread keep their order.
    async fn on_shard<T, F>(
        self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<T, DeliveryFailure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DeliveryFailure>> + Send + 'static,
    {
        if Here::is_of(&self.handle) {
            return work(self).await;
        }
        Box::pin(self.elsewhere(work)).await
    }

    async fn elsewhere<T, F>(
        self,
        work: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<T, DeliveryFailure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DeliveryFailure>> + Send + 'static,
    {
        let shard = ShardIndex::of(self.event.stream.hash().0, self.handle.shards());
        let handle = self.handle.clone();
        let (tell, heard) = oneshot::channel();
        handle.spawn_on(shard, move || async move {
            // Nothing new leaves a silo that is leaving, as with calls; what a turn publishes does.
            let result = if Here::is_leaving() { Err(leaving()) } else { work(self).await };
            // Whoever asked may have stopped waiting.
            drop(tell.send(result));
        })?;
        heard.await.unwrap_or_else(|oneshot::Canceled| Err(stopped()))
    }
}

fn leaving() -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::Draining, "the silo is leaving")
}

/// What is heard when a silo stops before it has answered.
pub(crate) fn stopped() -> DeliveryFailure {
    let detail = "the silo stopped before the outcome came";
    DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, detail)
}

impl IntoFuture for Publish {
    type Output = Result<Published, DeliveryFailure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { outcome(&brought(self).await?) })
    }
}

impl IntoFuture for Queued {
    type Output = Result<Token, DeliveryFailure>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { publish, on_failure } = self;
        Box::pin(publish.on_shard(async |publish| {
            let mut window = Window::open(publish)?;
            let took = window.bring(Level::Queued).await?;
            if took.step != Step::Closed.code() {
                Here::spawn(window.follow(on_failure));
            } else if let Err(failure) = outcome(&took) {
                on_failure(failure);
            }
            Ok(token(&took))
        }))
    }
}

/// Brings an event to where every consumer is through with it.
pub(crate) async fn brought(publish: Publish) -> Result<Took, DeliveryFailure> {
    let took = publish.on_shard(async |publish| {
        let mut window = Window::open(publish)?;
        window.bring(Level::Handled).await
    });
    let took = took.await?;
    outcome(&took).map(|_published| took)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Queued,
    Handled,
}

/// A publish without an outcome: keeps its event and sends it as often as that takes.
struct Window {
    event: Event,
    streams: Option<Arc<Streams>>,
    open: OpenPublish,
    until: Moment,
    /// Sends whose events may have been handed out by an owner that was lost.
    attempts_before: u8,
    /// Whether this owner has said that it has the body, or somebody who wants it.
    knows_body: bool,
}

impl Window {
    fn open(publish: Publish) -> Result<Self, DeliveryFailure> {
        let Publish { event, deadline, .. } = publish;
        if event.body.len() > EVENT_BYTES_MAX {
            let detail = format!("an event has at most {EVENT_BYTES_MAX} bytes");
            return Err(DeliveryFailure::rejected(RejectedKind::TooLarge, detail));
        }
        let open = ShardStreams::open(event.stream.hash(), event.body.len())?;
        Ok(Self {
            streams: Here::shared::<Streams>(),
            open,
            until: Here::now() + deadline,
            attempts_before: 0,
            knows_body: false,
            event,
        })
    }

    /// Brings an event that was queued to its outcome.
    async fn follow(mut self, on_failure: OnFailure) {
        self.knows_body = false;
        let result = self.bring(Level::Handled).await.and_then(|took| outcome(&took));
        if let Err(failure) = result {
            on_failure(failure);
        }
    }

    /// Sends the event until the owner answers for it at the level, or the deadline has passed.
    async fn bring(&mut self, level: Level) -> Result<Took, DeliveryFailure> {
        let brought = self.bring_to_an_owner(level).await;
        let failure = match brought {
            Ok(took) => match outcome(&took) {
                Err(failure) if level == Level::Handled => failure,
                Ok(_) | Err(_) => return Ok(took),
            },
            Err(failure) => failure,
        };
        let was_handed_on = self.attempts_before > 0 || self.open.is_queued;
        let failure = if failure.rejected_kind().is_none() || !was_handed_on {
            failure
        } else {
            let detail = format!("an owner that was lost may have handed it out; then: {failure}");
            DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, detail)
        };
        Here::failed(None, &self.event.stream, failure.clone());
        Err(failure)
    }

    async fn bring_to_an_owner(&mut self, level: Level) -> Result<Took, DeliveryFailure> {
        let mut wait = REDELIVERY_BACKOFF_MIN;
        // What follows a receipt needs no body: the owner has it, unless it is another one.
        let mut header_first = level == Level::Handled && self.open.is_queued;
        loop {
            let knows_nobody = matches!(self.check(), Liveness::None { .. });
            header_first |= knows_nobody && !self.knows_body;
            if knows_nobody && self.streams.as_ref().is_some_and(|s| is_planted!(s, CheckTrusted)) {
                let detail = "the check knows of no subscriber";
                return Err(DeliveryFailure::rejected(RejectedKind::NoSubscriber, detail));
            }
            let remaining = self.until.since(Here::now());
            let request = self.request(level, !header_first);
            let call = self.event.owner.call::<_, Took>(&PUBLISH_SPEC, &request);
            // Whether the event may leave a silo that is leaving was asked when it was new.
            let call = call.begun_before().one_of_several().deadline(remaining);
            let failure = match call.await {
                Ok(took) => {
                    self.learn(&took);
                    match Step::from_code(took.step) {
                        Some(Step::NoSubscriber) => return Err(no_subscriber(&took)),
                        Some(Step::SendBody) => {
                            if core::mem::take(&mut self.open.is_queued) {
                                // The owner that had it is lost.
                                self.attempts_before = self.attempts_before.saturating_add(1);
                            }
                            header_first = false;
                            self.knows_body = true;
                            continue;
                        }
                        Some(Step::Queued) => {
                            self.open.is_queued = true;
                            return Ok(took);
                        }
                        Some(Step::Closed) => {
                            self.open.is_queued = false;
                            return Ok(took);
                        }
                        None => return Err(unknown_step(took.step)),
                    }
                }
                Err(CallError::Delivery(failure)) => failure,
                Err(CallError::Handler(never)) => match never {},
            };
            let is_final = self.streams.as_ref().is_some_and(|s| is_planted!(s, NoWindow));
            if is_final || !may_send_again(&failure) || Here::now() + wait >= self.until {
                return Err(failure);
            }
            if failure.rejected_kind().is_none() {
                self.attempts_before = self.attempts_before.saturating_add(1);
            }
            Sleep::new(wait).await;
            wait = (wait * 2).min(REDELIVERY_BACKOFF_MAX);
        }
    }

    fn check(&self) -> Liveness {
        let stream = self.event.stream.hash();
        self.streams.as_ref().map_or(Liveness::Unknown, |streams| streams.check(stream))
    }

    fn request(&self, level: Level, with_body: bool) -> Wire {
        let set = match self.check() {
            Liveness::None { set, .. } => set.0,
            Liveness::Live(_) | Liveness::Unknown => 0,
        };
        Wire {
            lane: OpenPublish::lane(),
            number: self.open.number,
            base: self.open.base(),
            attempts_before: self.attempts_before,
            queued: level == Level::Queued,
            set,
            schema: self.event.schema.to_bits(),
            body: with_body.then(|| self.event.body.as_slice().to_vec()),
            silo: Here::endpoint().silo.0,
        }
    }

    /// Takes up what the owner says of its set, if this silo knew otherwise.
    fn learn(&self, took: &Took) {
        let set = Set {
            version: SetVersion(took.set.version),
            live: took.set.live,
            has_owned: took.set.has_owned,
        };
        let is_known = match self.check() {
            Liveness::Live(live) => live == set.live,
            Liveness::None { set: known, .. } => set.live == 0 && known == set.version,
            Liveness::Unknown => false,
        };
        if !is_known {
            Here::extension::<ShardStreams>().learn(self.event.stream.hash(), set);
        }
    }
}

/// Whether the event goes out again: the owner knows it by its number.
const fn may_send_again(failure: &DeliveryFailure) -> bool {
    match failure {
        DeliveryFailure::Rejected { kind, .. } => {
            kind.is_transient() || matches!(kind, RejectedKind::IncarnationDead)
        }
        DeliveryFailure::Indeterminate { kind, .. } => {
            matches!(kind, IndeterminateKind::LostAfterHandOver)
        }
        // The owner itself was cut off, or failed: its consumers' failures come as its answer.
        DeliveryFailure::Failed { kind, .. } => matches!(kind, FailedKind::HandlerFailed),
        DeliveryFailure::Unknown { .. } => false,
    }
}

fn token(took: &Took) -> Token {
    Token { epoch: ActivationNumber::from(&took.epoch), position: took.position }
}

fn outcome(took: &Took) -> Result<Published, DeliveryFailure> {
    let failures = took
        .failures
        .iter()
        .map(|failed| (failed.key.clone(), DeliveryFailure::from(failed.failure.clone())));
    let failures: Vec<_> = failures.collect();
    if took.handled == 0 {
        // Nobody handled it, though one may have run; or there was nobody who wants it.
        let may_have_run = |(_, failure): &&(_, DeliveryFailure)| failure.rejected_kind().is_none();
        let worst = failures.iter().find(may_have_run).or_else(|| failures.first());
        if let Some((_, failure)) = worst {
            return Err(failure.clone());
        }
        let detail = "every subscriber's filter refused the event";
        return Err(DeliveryFailure::rejected(RejectedKind::NoSubscriber, detail));
    }
    let (handled, failed) = (took.handled, took.failed);
    Ok(Published { token: token(took), handled, failed, failures })
}

fn no_subscriber(took: &Took) -> DeliveryFailure {
    let detail = format!("the stream has no live subscriber (set version {})", took.set.version);
    let view = Here::view().number();
    DeliveryFailure::rejected_in(RejectedKind::NoSubscriber, view, detail)
}

fn unknown_step(step: u8) -> DeliveryFailure {
    let detail = format!("the owner answered with step {step}, which this version does not know");
    DeliveryFailure::failed(FailedKind::ReplyUndecodable, detail)
}
