//! Hubs: addresses that a process owns, with a queue of deliveries for its program.
//!
//! A hub lives on the shard that its address hashes to; its program reads deliveries from any
//! thread. The right to answer is a value, [`Delivery`]: dropped unanswered it sends a failure, so
//! that the sender always hears.
//!
//! Bound: [`HUB_QUEUE_MAX`] deliveries wait; a further one is `Overloaded`, at once.

use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use siloring_core::address::{Address, AddressError, AddressHash};
use siloring_core::body::Body;
use siloring_core::ids::{ActivationNumber, ClaimNumber, Generation, ShardIndex};
use siloring_core::limits::HUB_QUEUE_MAX;
use siloring_core::outcome::{DeliveryFailure, FailedKind, RejectedKind};
use siloring_core::schema::{Message, Schema};
use siloring_core::versions::{self, Converted, Unconvertible};

use crate::call::CallResult;
use crate::dedup::{Admission, Dedup, copy_of};
use crate::directory::TakeOver;
use crate::envelope::{Envelope, EventInfo};
use crate::exec::local::{Op, current};
use crate::grain::{GrainType, IntoKey};
use crate::handle::{Handle, PostError};
use crate::mail::{Asker, Outcome, ReplyTo, Request, ShardMail};
use crate::reference::{GrainRef, HubRef};

/// Why a hub is not, or no longer, there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Another live process holds the address. Nothing was changed; take it over if it is yours.
    #[error("the address is claimed by silo {holder}: open it with take_over() if it is yours")]
    AlreadyClaimed {
        /// Who holds it.
        holder: Generation,
    },
    /// Another process took the address over. Deliveries now go there; this hub is closed.
    #[error("the claim was taken over by silo {holder}")]
    ClaimLost {
        /// Who holds it now.
        holder: Generation,
    },
    /// This process already has an open hub at the address. Close it first.
    #[error("this process already has an open hub at the address")]
    AlreadyOpen,
    /// The address is of no hub kind. Use one, or add the kind to the silo's settings.
    #[error(
        "the address is of no hub kind: use mesh, portal, client, cache or import, or add the kind"
    )]
    NoHubKind,
    /// Too much waits for the hub's shard. Nothing was changed; open it again in a moment.
    #[error("the mailbox of the hub's shard is full: open the hub again")]
    Overloaded,
    /// The silo is leaving, or has stopped: open the hub in another process.
    #[error("the silo is leaving: open the hub in another process")]
    SiloStopping,
    /// The program closed the hub.
    #[error("the hub is closed")]
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    Pending,
    Held(ClaimNumber),
    Ended(HubError),
}

#[derive(Debug)]
struct HubState {
    claim: Claim,
    deliveries: VecDeque<Delivery>,
    wakers: Vec<Waker>,
    /// What was handled already of what is handled once.
    handled: Option<Box<Dedup<Asker>>>,
}

/// Why a delivery was not queued.
#[derive(Debug)]
pub(crate) enum PushRefused {
    Full,
    Ended,
    /// It is handled once, and was before or is being.
    Duplicate(Admission),
}

/// What a hub's shard and its program share.
#[derive(Debug)]
pub struct HubShared {
    address: Address,
    handle: Handle,
    /// Guards the queue and the claim's state: one push and one pop a delivery, from two threads.
    state: Mutex<HubState>,
}

impl HubShared {
    /// The hub's address.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut HubState)) {
        let wakers = {
            let mut state = self.lock();
            change(&mut state);
            core::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn claimed(&self, number: ClaimNumber) {
        self.update(|state| {
            if !matches!(state.claim, Claim::Ended(_)) {
                state.claim = Claim::Held(number);
            }
        });
    }

    pub(crate) fn ended(&self) -> Option<HubError> {
        match self.lock().claim {
            Claim::Ended(error) => Some(error),
            Claim::Pending | Claim::Held(_) => None,
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        matches!(self.lock().claim, Claim::Held(_))
    }

    /// Ends the hub; deliveries that nobody has read are given back to be refused.
    pub(crate) fn end(&self, error: HubError) -> VecDeque<Delivery> {
        let mut unread = VecDeque::new();
        self.update(|state| {
            if !matches!(state.claim, Claim::Ended(_)) {
                state.claim = Claim::Ended(error);
            }
            unread = core::mem::take(&mut state.deliveries);
        });
        unread
    }

    /// Queues a delivery for the program, or gives it back as refused.
    pub(crate) fn push(self: &Arc<Self>, request: Request) -> Result<(), (Request, PushRefused)> {
        let mut state = self.lock();
        if matches!(state.claim, Claim::Ended(_)) {
            return Err((request, PushRefused::Ended));
        }
        if state.deliveries.len() >= HUB_QUEUE_MAX {
            return Err((request, PushRefused::Full));
        }
        if let Some(admission) = state.begin_once(&request) {
            return Err((request, PushRefused::Duplicate(admission)));
        }
        state.deliveries.push_back(Delivery::new(Arc::clone(self), request));
        let wakers = core::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

impl HubState {
    /// What becomes of a request that is handled once, if it is not to be handled now.
    fn begin_once(&mut self, request: &Request) -> Option<Admission> {
        let envelope = request.envelope.as_deref().filter(|e| e.is_handled_once())?;
        let number = match self.claim {
            Claim::Held(ClaimNumber { view, counter }) => Some(ActivationNumber { view, counter }),
            Claim::Pending | Claim::Ended(_) => None,
        };
        let handled = self.handled.get_or_insert_default();
        match handled.begin(envelope, number, request.asker()) {
            Admission::Begin => None,
            other @ (Admission::Attached
            | Admission::Handled
            | Admission::Known(_)
            | Admission::StaleOwner
            | Admission::GivenUp
            | Admission::Unknowable
            | Admission::Busy) => Some(other),
        }
    }

    /// Who else waits for the outcome of a request that has ended.
    fn end_once(&mut self, request: &Request, result: &CallResult) -> Vec<Asker> {
        let envelope = request.envelope.as_deref().filter(|e| e.is_handled_once());
        let handled = envelope.zip(self.handled.as_deref_mut());
        handled.map(|(envelope, handled)| handled.end(envelope, result)).unwrap_or_default()
    }
}

/// Opens a hub: [`HubBuilder::open`] waits for the claim, [`HubBuilder::start`] does not.
#[derive(Debug)]
pub struct HubBuilder {
    handle: Handle,
    address: Address,
    take_over: TakeOver,
}

impl HubBuilder {
    pub(crate) const fn new(handle: Handle, address: Address) -> Self {
        Self { handle, address, take_over: TakeOver::No }
    }

    /// Replaces a live holder; it hears `ClaimLost`. Over a dead one a plain claim succeeds anyway.
    #[must_use]
    pub const fn take_over(mut self) -> Self {
        self.take_over = TakeOver::Yes;
        self
    }

    /// Opens the hub and returns before it is claimed: deliveries come once it is, and what it
    /// sends before is held until then.
    ///
    /// # Errors
    /// [`HubError::Overloaded`] if the shard's mailbox is full, [`HubError::SiloStopping`] if the
    /// silo takes no mail any more.
    pub fn start(self) -> Result<Hub, HubError> {
        let state = HubState {
            claim: Claim::Pending,
            deliveries: VecDeque::new(),
            wakers: Vec::new(),
            handled: None,
        };
        let shared = Arc::new(HubShared {
            address: self.address,
            handle: self.handle.clone(),
            state: Mutex::new(state),
        });
        let mail = ShardMail::OpenHub { hub: Arc::clone(&shared), take_over: self.take_over };
        let home = self.handle.home(&shared.address);
        match self.handle.post(home, mail) {
            Ok(()) => Ok(Hub { shared }),
            Err(PostError::Full(_)) => Err(HubError::Overloaded),
            Err(PostError::Stopped(_)) => Err(HubError::SiloStopping),
        }
    }

    /// Opens the hub and waits until it is claimed.
    ///
    /// # Cancel safety
    /// Dropped, the hub is closed again.
    pub async fn open(self) -> Result<Hub, HubError> {
        let hub = self.start()?;
        hub.claimed().await?;
        Ok(hub)
    }
}

/// An open hub of this process. Dropped, it is closed.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<HubShared>,
}

impl Hub {
    /// The hub's address.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Waits until the claim is held.
    ///
    /// # Cancel safety
    /// Dropped, it has no effect.
    pub async fn claimed(&self) -> Result<ClaimNumber, HubError> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            match state.claim {
                Claim::Held(number) => Poll::Ready(Ok(number)),
                Claim::Ended(error) => Poll::Ready(Err(error)),
                Claim::Pending => {
                    register(&mut state.wakers, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The next delivery; `None` once the hub has ended, see [`Hub::ended`].
    ///
    /// # Cancel safety
    /// Dropped, no delivery is lost.
    pub async fn next(&mut self) -> Option<Delivery> {
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if let Some(delivery) = state.deliveries.pop_front() {
                return Poll::Ready(Some(delivery));
            }
            if matches!(state.claim, Claim::Ended(_)) {
                return Poll::Ready(None);
            }
            register(&mut state.wakers, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Why the hub has ended, if it has.
    pub fn ended(&self) -> Option<HubError> {
        self.shared.ended()
    }

    /// A handle on the silo.
    pub fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    /// A typed reference to a grain; calls through it come from this hub.
    pub fn grain<G: GrainType>(&self, key: impl IntoKey<G::Key>) -> GrainRef<G> {
        GrainRef::new(&self.shared.handle, Some(&self.shared.address), key)
    }

    /// A reference to another hub; messages through it come from this hub.
    pub fn hub_ref(&self, address: &str) -> Result<HubRef, AddressError> {
        let address = Address::parse(address)?;
        Ok(HubRef::new(&self.shared.handle, Some(&self.shared.address), address))
    }

    /// Closes the hub: its address answers `NotHere` from then on. Unread deliveries are refused.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let unread = self.shared.end(HubError::Closed);
        for delivery in unread {
            delivery.refuse(closed(&self.shared.address));
        }
        let home = self.shared.handle.home(&self.shared.address);
        let mail = ShardMail::CloseHub(self.shared.address.clone());
        post_surely(&self.shared.handle, home, mail);
    }
}

fn closed(address: &Address) -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::NotHere, format!("hub {address} is closed"))
}

fn register(wakers: &mut Vec<Waker>, waker: &Waker) {
    if !wakers.iter().any(|known| known.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

/// A message that a hub has to answer.
///
/// Dropped unanswered it sends `HandlerFailed`.
#[must_use = "a delivery dropped unanswered sends a failure to its sender"]
pub struct Delivery {
    hub: Arc<HubShared>,
    request: Option<Request>,
    /// The message as it was last read in place, if it came in an older version.
    taken_up: OnceLock<Converted>,
}

impl Delivery {
    const fn new(hub: Arc<HubShared>, request: Request) -> Self {
        Self { hub, request: Some(request), taken_up: OnceLock::new() }
    }

    fn request(&self) -> &Request {
        self.request.as_ref().expect("a delivery has its request until it is answered")
    }

    /// What the message came as.
    pub fn schema(&self) -> Schema {
        self.request().schema
    }

    /// Who sent it.
    pub fn source(&self) -> AddressHash {
        self.request().source
    }

    /// From 1; more only if it was sent again: by the router, or an event by its stream.
    pub fn attempt(&self) -> u8 {
        self.event().map_or(self.request().attempt, |event| event.attempt)
    }

    /// What makes the message a stream's event, if it is one: confirm it then.
    pub fn event(&self) -> Option<&EventInfo> {
        self.envelope()?.event.as_deref()
    }

    /// Identity, headers and trace, if any travel with it.
    pub fn envelope(&self) -> Option<&Envelope> {
        self.request().envelope.as_deref()
    }

    /// The message, taken out of its archive; one of an older version becomes an `M` first.
    ///
    /// # Errors
    /// `Incompatible` if it is of another type, or of a version or layout that does not become an
    /// `M`; `RequestUndecodable` if the bytes are no archive. Hand the failure to
    /// [`Delivery::refuse`] to tell the sender.
    pub fn message<M: Message>(&self) -> Result<M, DeliveryFailure> {
        let decoded = self.body_of::<M>()?.decode::<M>();
        decoded.map_err(|error| self.refusal::<M>(&error.into()))
    }

    /// The message, validated, in place; one of an older version becomes an `M` first.
    ///
    /// # Errors
    /// As [`Delivery::message`].
    pub fn access<M: Message>(&self) -> Result<&rkyv::Archived<M>, DeliveryFailure> {
        let access = self.body_of::<M>()?.access::<M>();
        access.map_err(|error| self.refusal::<M>(&error.into()))
    }

    fn body_of<M: Message>(&self) -> Result<&Body, DeliveryFailure> {
        let Request { schema, body, .. } = self.request();
        if *schema == M::SCHEMA {
            return Ok(body);
        }
        if let Some(Converted { schema, body }) = self.taken_up.get()
            && *schema == M::SCHEMA
        {
            return Ok(body);
        }
        let up = versions::taken_up(body.clone(), *schema, M::SCHEMA, M::OLDER);
        let body = up.map_err(|error| self.refusal::<M>(&error))?;
        let taken_up = self.taken_up.get_or_init(|| Converted { schema: M::SCHEMA, body });
        // It is of one type: as a second one it is not read.
        (taken_up.schema == M::SCHEMA)
            .then_some(&taken_up.body)
            .ok_or_else(|| self.refusal::<M>(&Unconvertible::NoPath))
    }

    fn refusal<M: Message>(&self, error: &Unconvertible) -> DeliveryFailure {
        let detail = format!("{:?} is not {} {:?}: {error}", self.schema(), M::TYPE, M::SCHEMA);
        DeliveryFailure::rejected(error.rejection(), detail)
    }

    /// Answers: the sender hears that its message was handled.
    pub fn answer<R: Message>(mut self, reply: &R) {
        let outcome = Outcome { result: Ok(Body::encode(reply)), schema: R::SCHEMA, place: None };
        self.finish(outcome);
    }

    /// Confirms an event: the stream need not deliver it again.
    pub fn confirm(self) {
        self.answer(&());
    }

    /// Refuses: the sender hears the failure.
    pub fn refuse(mut self, failure: DeliveryFailure) {
        self.finish(Outcome::failure(failure));
    }

    fn finish(&mut self, outcome: Outcome) {
        let Some(request) = self.request.take() else { return };
        if request.envelope.as_deref().is_none_or(|envelope| !envelope.is_handled_once()) {
            return self.tell(request.asker(), outcome);
        }
        let result = outcome.into_result();
        let others = self.hub.lock().end_once(&request, &result);
        for other in others {
            self.tell(other, Outcome::of(copy_of(&result)));
        }
        self.tell(request.asker(), Outcome::of(result));
    }

    fn tell(&self, asker: Asker, outcome: Outcome) {
        let Asker { reply_to, correlation } = asker;
        let shard = match reply_to {
            ReplyTo::Ledger(shard) | ReplyTo::Link { shard, .. } => shard,
        };
        let source = self.hub.address.clone();
        let mail = ShardMail::Answer { reply_to, correlation, source, outcome };
        post_surely(&self.hub.handle, shard, mail);
    }
}

/// Brings mail that must not be dropped for load: a sender waits for it. Its amount is bounded by
/// the deliveries accepted, so waiting for room ends. On a shard of the silo it is staged: a shard
/// never waits for itself.
fn post_surely(handle: &Handle, shard: ShardIndex, mail: ShardMail) {
    let mut mail = Some(mail);
    current(|local| {
        if handle.is_same(&local.handle)
            && let Some(mail) = mail.take()
        {
            local.stage(Op::Mail { shard, mail: Box::new(mail) });
        }
    });
    while let Some(unsent) = mail.take() {
        match handle.post(shard, unsent) {
            // A stopped silo's ledger and links are gone: its senders have heard.
            Ok(()) | Err(PostError::Stopped(_)) => {}
            Err(PostError::Full(back)) => {
                mail = Some(back);
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.finish(Outcome::failure(DeliveryFailure::failed(
            FailedKind::HandlerFailed,
            "the hub dropped the delivery unanswered",
        )));
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Delivery to {}", self.hub.address)
    }
}
