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

use siloring_core::address::{Address, AddressError};
use siloring_core::body::{Body, DecodeOwned, Undecodable};
use siloring_core::ids::MethodId;
use siloring_core::limits::{DEADLINE_MAX, OPEN_DELIVERIES_MAX};
use siloring_core::outcome::{
    CallError, DeliveryFailure, FailedKind, IndeterminateKind, RejectedKind,
};
use siloring_core::schema::Schema;

use crate::envelope::Envelope;
use crate::exec::local::{Answer, Local, Op, SlotKey, current};
use crate::reference::Target;

/// The outcome of a request as its waiter gets it: the reply's archive, or the failure.
pub type CallResult = Result<Body, DeliveryFailure>;

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

/// A request as its caller hands it to a shard.
#[derive(Debug)]
pub struct CallRequest {
    /// To whom.
    pub target: Address,
    /// From whom: a hub, or the activation whose turn calls; filled in by the shard for the latter.
    pub source: Option<Address>,
    /// Which method, or message type.
    pub method: MethodId,
    /// What the body is.
    pub arguments: Schema,
    /// What the reply must be.
    pub reply: Schema,
    /// The arguments' archive.
    pub body: Body,
    /// How long the caller gives it; `None` takes the silo's default.
    pub deadline: Option<Duration>,
    /// Identity, headers and trace.
    pub envelope: Option<Box<Envelope>>,
}

/// Where a foreign thread waits for an outcome.
#[derive(Debug, Default)]
struct ForeignSlot {
    /// Guards the outcome and the waker of one call; held for a few instructions by two threads.
    state: Mutex<ForeignState>,
}

#[derive(Debug, Default)]
struct ForeignState {
    result: Option<CallResult>,
    waker: Option<Waker>,
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
    Unsent(CallRequest),
    Malformed(AddressError),
    Here { local: LocalId, slot: SlotKey },
    Foreign(Arc<ForeignSlot>),
    Done,
}

/// Which shard a slot belongs to, so that a call polled elsewhere is noticed.
#[derive(Clone, Debug)]
struct LocalId(Arc<crate::exec::local::Foreign>);

/// A call: await it for its outcome, or send it [`Call::one_way`].
///
/// # Cancel safety
/// Dropped before the first poll, nothing is sent. Dropped later, the request goes on, its outcome
/// is counted and dropped.
#[must_use = "a call does nothing until it is awaited or sent one_way"]
pub struct Call<T, E = Infallible> {
    state: State,
    target: Option<Arc<Target>>,
    decode: fn(&Body) -> Result<Result<T, E>, Undecodable>,
}

impl<T, E> fmt::Debug for Call<T, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => write!(out, "Call({})", target.address),
            None => out.write_str("Call(malformed address)"),
        }
    }
}

impl<T: DecodeOwned> Call<T> {
    pub(crate) fn new(target: Arc<Target>, request: CallRequest) -> Self {
        let decode = |body: &Body| body.decode::<T>().map(Ok);
        Self { state: State::Unsent(request), target: Some(target), decode }
    }
}

impl<T, E> Call<T, E>
where
    Result<T, E>: DecodeOwned,
{
    pub(crate) fn fallible(target: Arc<Target>, request: CallRequest) -> Self {
        let decode = |body: &Body| body.decode::<Result<T, E>>();
        Self { state: State::Unsent(request), target: Some(target), decode }
    }
}

impl<T, E> Call<T, E> {
    pub(crate) fn malformed(error: AddressError) -> Self {
        Self { state: State::Malformed(error), target: None, decode: |_| Err(Undecodable) }
    }

    /// Gives the call this long instead of the silo's default; at most [`DEADLINE_MAX`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        if let State::Unsent(request) = &mut self.state {
            request.deadline = Some(deadline.min(DEADLINE_MAX));
        }
        self
    }

    /// Sends identity, headers and trace with the call.
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        if let State::Unsent(request) = &mut self.state {
            request.envelope = Some(Box::new(envelope));
        }
        self
    }

    /// Sends the call without waiting; a failure becomes a dead letter.
    pub fn one_way(self) {
        self.send(Waiter::Nobody);
    }

    /// Sends the call without waiting; a failure goes to `on_failure`, which runs on a shard or,
    /// where the call could not even be handed in, on this thread. It must not block.
    pub fn one_way_or(self, on_failure: impl FnOnce(DeliveryFailure) + Send + 'static) {
        self.send(Waiter::Callback(Box::new(on_failure)));
    }

    fn send(mut self, waiter: Waiter) {
        match core::mem::replace(&mut self.state, State::Done) {
            State::Unsent(request) => {
                let target = self.target.as_ref().expect("an unsent call has a target");
                let Err((failure, waiter)) = target.send(request, waiter) else { return };
                if let Waiter::Callback(on_failure) = waiter {
                    on_failure(failure);
                }
            }
            State::Malformed(error) => {
                if let Waiter::Callback(on_failure) = waiter {
                    on_failure(malformed(&error));
                }
            }
            State::Here { .. } | State::Foreign(_) | State::Done => {
                unreachable!("a call that was polled is not sent again")
            }
        }
    }

    fn finish(&mut self, result: CallResult) -> Result<T, CallError<E>> {
        self.state = State::Done;
        let body = result?;
        match (self.decode)(&body) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(CallError::Handler(error)),
            Err(undecodable) => Err(CallError::Delivery(DeliveryFailure::failed(
                FailedKind::ReplyUndecodable,
                undecodable.to_string(),
            ))),
        }
    }

    fn start(&mut self, request: CallRequest) -> Result<(), DeliveryFailure> {
        let target = self.target.as_ref().expect("an unsent call has a target");
        if let Some(local) = target.local() {
            self.state = stage(&local, request);
            return Ok(());
        }
        let slot = Arc::new(ForeignSlot::default());
        let waiter = Waiter::Foreign(ForeignWaiter(Some(Arc::clone(&slot))));
        // A refused waiter would answer for itself; the refusal says more.
        target.send(request, waiter).map_err(|(failure, _waiter)| failure)?;
        self.state = State::Foreign(slot);
        Ok(())
    }
}

fn stage(local: &Local, request: CallRequest) -> State {
    let slot = local.open_slot();
    local.stage(Op::Call { request, waiter: Waiter::Slot(SlotHandle(slot)) });
    State::Here { local: LocalId(Arc::clone(&local.foreign)), slot }
}

fn malformed(error: &AddressError) -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::NotHere, error.to_string())
}

impl<T, E> Future for Call<T, E> {
    type Output = Result<T, CallError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match core::mem::replace(&mut this.state, State::Done) {
            State::Unsent(request) => {
                if let Err(failure) = this.start(request) {
                    return Poll::Ready(Err(failure.into()));
                }
                self.poll(cx)
            }
            State::Malformed(error) => Poll::Ready(Err(malformed(&error).into())),
            State::Here { local, slot } => {
                let polled = current(|now| {
                    Arc::ptr_eq(&now.foreign, &local.0).then(|| now.poll_slot(slot, cx))
                });
                match polled.flatten() {
                    Some(Poll::Ready(Answer::Call(result))) => Poll::Ready(this.finish(result)),
                    Some(Poll::Ready(Answer::Slept | Answer::Store(_))) => {
                        unreachable!("a call's slot is answered by its outcome")
                    }
                    Some(Poll::Pending) => {
                        this.state = State::Here { local, slot };
                        Poll::Pending
                    }
                    None => panic!("a call that began on a shard was polled outside of it"),
                }
            }
            State::Foreign(slot) => {
                let mut state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(result) = state.result.take() {
                    drop(state);
                    return Poll::Ready(this.finish(result));
                }
                state.waker = Some(cx.waker().clone());
                drop(state);
                this.state = State::Foreign(slot);
                Poll::Pending
            }
            State::Done => panic!("a call was polled after it had ended"),
        }
    }
}

impl<T, E> Drop for Call<T, E> {
    fn drop(&mut self) {
        if let State::Here { local, slot } = &self.state {
            // Outside of its shard the slot stays until its outcome comes and finds nobody.
            current(|now| {
                if Arc::ptr_eq(&now.foreign, &local.0) {
                    now.abandon(*slot);
                }
            });
        }
    }
}

const _: () = assert!(OPEN_DELIVERIES_MAX < u32::MAX as usize, "slots are named by 32 bits");
