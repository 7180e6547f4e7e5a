//! A call on its way from its caller: the future, and the request it becomes.
//!
//! A [`Call`] does nothing until it is polled. Polled inside a shard of the same silo it is staged
//! there; polled anywhere else it goes through the silo's [`Handle`], so that any thread of the
//! surrounding program may await it.

use core::convert::Infallible;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use siloring_core::address::{Address, AddressError, AddressHash};
use siloring_core::body::{Body, DecodeOwned, Undecodable};
use siloring_core::ids::MethodId;
use siloring_core::limits::{DEADLINE_MAX, OPEN_DELIVERIES_MAX};
use siloring_core::outcome::{
    CallError, DeliveryFailure, FailedKind, IndeterminateKind, RejectedKind,
};
use siloring_core::schema::Schema;

use crate::envelope::{Envelope, Idempotency, Sending};
use crate::exec::local::{Answer, LocalId, Op, SlotKey, current};
use crate::grain::Wanted;
use crate::parcel::Parcel;
use crate::reference::Target;
use crate::route::Sender;

/// A reply as it came.
#[derive(Debug)]
pub struct RawReply {
    /// What it is.
    pub schema: Schema,
    /// Its archive.
    pub body: Body,
}

/// The outcome of a request as its waiter gets it: the reply, or the failure.
pub type CallResult = Result<RawReply, DeliveryFailure>;

const _: () = assert!(
    size_of::<CallResult>() == size_of::<Result<Body, DeliveryFailure>>(),
    "the reply's schema takes no room of its own"
);

/// What takes the failure of a one-way delivery.
pub type OnFailure = Box<dyn FnOnce(DeliveryFailure) + Send>;

/// Who hears the outcome of a delivery.
#[derive(Default)]
pub enum Waiter {
    /// A future of this shard.
    Slot(SlotHandle),
    /// A future of another thread.
    Foreign(ForeignWaiter),
    /// One-way, with a failure handler.
    Callback(OnFailure),
    /// One-way: a failure is a dead letter.
    #[default]
    Nobody,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Slot(_) => "Slot",
            Self::Foreign(_) => "Foreign",
            Self::Callback(_) => "Callback",
            Self::Nobody => "Nobody",
        })
    }
}

/// A waiter slot of the shard that opened the delivery.
#[derive(Clone, Copy, Debug)]
pub struct SlotHandle(pub(crate) SlotKey);

/// Who makes a call again that has failed, and tells that it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Tries {
    /// The router, as far as that is safe; then the failure is told.
    #[default]
    Router,
    /// The router, and then the caller: a failure is not the end of it.
    RouterThenCaller,
    /// The caller alone.
    Caller,
}

/// What a caller asks for.
#[derive(Debug)]
pub struct CallRequest {
    /// To whom; `None` only in a parcel that has ended.
    pub(crate) to: Option<Arc<Target>>,
    /// From whom: a hub, or the activation whose turn calls; filled in by the shard for the latter.
    pub source: Option<Address>,
    /// Which method, or message type.
    pub method: MethodId,
    /// What the body is.
    pub arguments: Schema,
    /// What the reply must be; `None` takes any.
    pub reply: Option<Wanted>,
    /// The arguments' archive.
    pub body: Body,
    /// How long the caller gives it; `None` takes the silo's default.
    pub deadline: Option<Duration>,
    /// Identity, headers and trace.
    pub envelope: Option<Box<Envelope>>,
}

impl CallRequest {
    #[inline]
    fn to(&self) -> &Target {
        self.to.as_ref().expect("a parcel that is under way has a target")
    }

    /// To whom.
    #[inline]
    pub fn target(&self) -> &Address {
        &self.to().address
    }

    /// Drops what it holds.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.to, self.source, self.envelope) = (None, None, None);
        self.body = Body::empty();
    }

    /// The hash of its sender's address.
    #[inline]
    pub fn source_hash(&self) -> AddressHash {
        self.source.as_ref().map_or(AddressHash::NONE, Address::hash)
    }
}

/// Where a foreign thread waits for an outcome.
#[derive(Debug)]
struct ForeignSlot {
    /// Guards the outcome and the waker of one call; held for a few instructions by two threads.
    state: Mutex<ForeignState>,
}

#[derive(Debug)]
struct ForeignState {
    result: Option<CallResult>,
    waker: Option<Waker>,
}

impl ForeignSlot {
    const fn waking(waker: Waker) -> Self {
        Self { state: Mutex::new(ForeignState { result: None, waker: Some(waker) }) }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<CallResult> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The shard's end of a foreign call. Dropped unanswered it says so to its caller.
#[derive(Debug)]
pub struct ForeignWaiter(Option<Arc<ForeignSlot>>);

impl ForeignWaiter {
    /// Ends the call.
    pub fn complete(mut self, result: CallResult) {
        self.finish(result);
    }

    fn finish(&mut self, result: CallResult) {
        let Some(slot) = self.0.take() else { return };
        let waker = {
            let mut state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for ForeignWaiter {
    fn drop(&mut self) {
        self.finish(Err(DeliveryFailure::indeterminate(
            IndeterminateKind::LostAfterHandOver,
            "the silo stopped before the outcome came",
        )));
    }
}

#[derive(Debug)]
enum State {
    /// The parcel is taken out when it is sent, and the state is another then.
    Unsent(Option<Parcel>),
    Malformed(AddressError),
    Here {
        local: LocalId,
        slot: SlotKey,
    },
    Foreign(Arc<ForeignSlot>),
    Done,
}

/// A call: await it for its outcome, or send it [`Call::one_way`].
///
/// # Cancel safety
/// Dropped before the first poll, nothing is sent. Dropped later, the request goes on, its outcome
/// is counted and dropped.
#[must_use = "a call does nothing until it is awaited or sent one_way"]
pub struct Call<T, E = Infallible> {
    state: State,
    decode: fn(RawReply) -> Result<Result<T, E>, Undecodable>,
}

impl<T, E> fmt::Debug for Call<T, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Unsent(Some(parcel)) => write!(out, "Call({})", parcel.target()),
            State::Malformed(error) => write!(out, "Call({error})"),
            State::Here { .. } | State::Foreign(_) => out.write_str("Call(under way)"),
            State::Unsent(None) | State::Done => out.write_str("Call(ended)"),
        }
    }
}

impl<T: DecodeOwned> Call<T> {
    pub(crate) fn new(parcel: Parcel) -> Self {
        let decode = |reply: RawReply| reply.body.decode::<T>().map(Ok);
        Self { state: State::Unsent(Some(parcel)), decode }
    }
}

impl<T, E> Call<T, E>
where
    Result<T, E>: DecodeOwned,
{
    pub(crate) fn fallible(parcel: Parcel) -> Self {
        let decode = |reply: RawReply| reply.body.decode::<Result<T, E>>();
        Self { state: State::Unsent(Some(parcel)), decode }
    }
}

impl<T, E> Call<T, E> {
    pub(crate) fn malformed(error: AddressError) -> Self {
        Self { state: State::Malformed(error), decode: |_| Err(Undecodable) }
    }

    /// Gives the call this long instead of the silo's default; at most [`DEADLINE_MAX`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        if let State::Unsent(Some(parcel)) = &mut self.state {
            parcel.request.deadline = Some(deadline.min(DEADLINE_MAX));
        }
        self
    }

    /// Lets the call pass while its silo drains, as those of turns that have begun do: for work
    /// that was begun before, and whose calls are made by nobody's turn.
    pub fn begun_before(mut self) -> Self {
        if let State::Unsent(Some(parcel)) = &mut self.state {
            parcel.sender = Sender::Begun;
        }
        self
    }

    /// Says that the caller makes the call again if it fails, and tells itself what comes of that
    /// in the end: a failure of this one is no event.
    pub fn one_of_several(mut self) -> Self {
        if let State::Unsent(Some(parcel)) = &mut self.state {
            parcel.tries = Tries::RouterThenCaller;
        }
        self
    }

    /// Sends identity, headers and trace with the call.
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        if let State::Unsent(Some(parcel)) = &mut self.state {
            let sent = parcel.request.envelope.get_or_insert_default();
            let idempotency = sent.idempotency.take();
            **sent = envelope;
            sent.idempotency = sent.idempotency.take().or(idempotency);
        }
        self
    }

    /// Gives the request a key that names it: draw one at random for each request, and keep it when
    /// the same request is made again.
    ///
    /// The receiving activation or hub handles a key once, and answers each further request with it
    /// by the first outcome. So the router may send such a request again when the link was lost
    /// that it had been handed over to: to that same activation only. If it is gone, the outcome is
    /// `LostAfterHandOver`, as without a key.
    pub fn idempotency_key(mut self, key: u128) -> Self {
        if let State::Unsent(Some(parcel)) = &mut self.state {
            let envelope = parcel.request.envelope.get_or_insert_default();
            envelope.idempotency = Some(Idempotency { key, sending: Sending::First });
        }
        self
    }

    /// Sends the call without waiting; a failure becomes a dead letter.
    ///
    /// # Errors
    /// If it could not even be handed in: the silo has stopped, its mailbox is full, the address is
    /// none. Nothing was sent then, and nobody else is told. A call made in a turn is always handed
    /// in, unless its address is none.
    pub fn one_way(self) -> Result<(), DeliveryFailure> {
        self.send(Waiter::Nobody).map_err(|(failure, _nobody)| failure)
    }

    /// Sends the call without waiting; a failure goes to `on_failure`, which runs on a shard or,
    /// where the call could not even be handed in, on this thread. It must not block.
    pub fn one_way_or(self, on_failure: impl FnOnce(DeliveryFailure) + Send + 'static) {
        if let Err((failure, Waiter::Callback(on_failure))) =
            self.send(Waiter::Callback(Box::new(on_failure)))
        {
            on_failure(failure);
        }
    }

    fn send(mut self, waiter: Waiter) -> Result<(), (DeliveryFailure, Waiter)> {
        match core::mem::replace(&mut self.state, State::Done) {
            State::Unsent(Some(mut parcel)) => {
                parcel.waiter = waiter;
                send(parcel)
            }
            State::Malformed(error) => Err((malformed(&error), waiter)),
            State::Unsent(None) | State::Here { .. } | State::Foreign(_) | State::Done => {
                unreachable!("a call that was polled is not sent again")
            }
        }
    }

    fn finish(&mut self, result: CallResult) -> Result<T, CallError<E>> {
        self.state = State::Done;
        match (self.decode)(result?) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(CallError::Handler(error)),
            Err(undecodable) => Err(CallError::Delivery(DeliveryFailure::failed(
                FailedKind::ReplyUndecodable,
                undecodable.to_string(),
            ))),
        }
    }

    /// Hands the request to a shard; `waker` is woken when the outcome is there.
    fn start(&mut self, mut parcel: Parcel, waker: &Waker) -> Result<(), DeliveryFailure> {
        if let Some(local) = parcel.request.to().local() {
            let slot = local.open_slot(waker);
            parcel.waiter = Waiter::Slot(SlotHandle(slot));
            local.stage(Op::Call(parcel));
            self.state = State::Here { local: local.id, slot };
            return Ok(());
        }
        let slot = Arc::new(ForeignSlot::waking(waker.clone()));
        parcel.waiter = Waiter::Foreign(ForeignWaiter(Some(Arc::clone(&slot))));
        let handle = parcel.request.to().handle.clone();
        // A refused waiter would answer for itself; the refusal says more.
        handle.send(parcel).map_err(|(failure, _waiter)| failure)?;
        self.state = State::Foreign(slot);
        Ok(())
    }
}

/// Hands the request to a shard: the current one if it is of this silo.
fn send(parcel: Parcel) -> Result<(), (DeliveryFailure, Waiter)> {
    if let Some(local) = parcel.request.to().local() {
        local.stage(Op::Call(parcel));
        return Ok(());
    }
    let handle = parcel.request.to().handle.clone();
    handle.send(parcel)
}

fn malformed(error: &AddressError) -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::NotHere, error.to_string())
}

impl<T, E> Future for Call<T, E> {
    type Output = Result<T, CallError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match &this.state {
            State::Here { local, slot } => {
                let (local, slot) = (*local, *slot);
                match current(|now| (now.id == local).then(|| now.poll_slot(slot, cx))).flatten() {
                    Some(Poll::Ready(Answer::Call(result))) => Poll::Ready(this.finish(result)),
                    Some(Poll::Ready(Answer::Slept | Answer::Store(_))) => {
                        unreachable!("a call's slot is answered by its outcome")
                    }
                    Some(Poll::Pending) => Poll::Pending,
                    None => panic!("a call that began on a shard was polled outside of it"),
                }
            }
            State::Foreign(slot) => match slot.poll(cx) {
                Poll::Ready(result) => Poll::Ready(this.finish(result)),
                Poll::Pending => Poll::Pending,
            },
            State::Unsent(_) | State::Malformed(_) | State::Done => this.poll_unsent(cx),
        }
    }
}

/// A call whose reply is taken as it comes. See [`RawRef::send`].
///
/// # Cancel safety
/// As of [`Call`].
///
/// [`RawRef::send`]: crate::reference::RawRef::send
#[must_use = "a call does nothing until it is awaited"]
#[derive(Debug)]
pub struct RawCall(Call<RawReply>);

impl RawCall {
    pub(crate) fn new(parcel: Parcel) -> Self {
        Self(Call { state: State::Unsent(Some(parcel)), decode: |reply| Ok(Ok(reply)) })
    }

    /// As [`Call::deadline`].
    pub fn deadline(self, deadline: Duration) -> Self {
        Self(self.0.deadline(deadline))
    }

    /// As [`Call::envelope`].
    pub fn envelope(self, envelope: Envelope) -> Self {
        Self(self.0.envelope(envelope))
    }

    /// As [`Call::idempotency_key`].
    pub fn idempotency_key(self, key: u128) -> Self {
        Self(self.0.idempotency_key(key))
    }

    /// As [`Call::one_of_several`]; and the router leaves the further tries to the caller: whatever
    /// refuses the call for the moment ends it.
    pub fn one_try(mut self) -> Self {
        if let State::Unsent(Some(parcel)) = &mut self.0.state {
            parcel.tries = Tries::Caller;
        }
        self
    }
}

impl Future for RawCall {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        Pin::new(&mut self.0).poll(cx).map_err(|error| match error {
            CallError::Delivery(failure) => failure,
            CallError::Handler(never) => match never {},
        })
    }
}

impl<T, E> Call<T, E> {
    fn poll_unsent(&mut self, cx: &Context<'_>) -> Poll<Result<T, CallError<E>>> {
        let failure = match &mut self.state {
            State::Unsent(parcel) => {
                let parcel = parcel.take().expect("it is sent once");
                match self.start(parcel, cx.waker()) {
                    Ok(()) => return Poll::Pending,
                    Err(failure) => failure,
                }
            }
            State::Malformed(error) => malformed(error),
            State::Done => panic!("a call was polled after it had ended"),
            State::Here { .. } | State::Foreign(_) => unreachable!("those were sent"),
        };
        self.state = State::Done;
        Poll::Ready(Err(failure.into()))
    }
}

impl<T, E> Drop for Call<T, E> {
    fn drop(&mut self) {
        if let State::Here { local, slot } = self.state {
            // Outside of its shard nobody can free the slot: it stays as long as the shard.
            current(|now| {
                if now.id == local {
                    now.abandon(slot);
                }
            });
        }
    }
}

const _: () = assert!(OPEN_DELIVERIES_MAX < u32::MAX as usize, "slots are named by 32 bits");
