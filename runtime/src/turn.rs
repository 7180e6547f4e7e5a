//! One turn: the handling of one message by an activation.
//!
//! A [`Turn`] owns everything it needs, so that its future is `'static` and can wait in a slab. The
//! state is behind a `RefCell` that the activation's own rules keep from ever being contended: an
//! exclusive turn runs alone. The guards here are types of their own, held across awaits on
//! purpose.

use core::cell::{Ref, RefCell, RefMut};
use core::fmt;
use core::ops::{Deref, DerefMut};
use std::rc::Rc;

use siloring_core::body::{self, Body, Decode, DecodeOwned, Encode};
use siloring_core::ids::MethodId;
use siloring_core::outcome::{DeliveryFailure, FailedKind, RejectedKind};

use crate::ctx::Ctx;
use crate::grain::GrainType;

/// What a turn ends with: the reply's archive, or why there is none.
pub type TurnOutput = Result<Body, DeliveryFailure>;

/// One message on its way through one activation.
pub struct Turn<G> {
    state: Rc<RefCell<G>>,
    ctx: Ctx,
    method: MethodId,
    body: Body,
}

impl<G: GrainType> Turn<G> {
    pub(crate) const fn new(state: Rc<RefCell<G>>, ctx: Ctx, method: MethodId, body: Body) -> Self {
        Self { state, ctx, method, body }
    }

    /// Which method is called.
    pub const fn method(&self) -> MethodId {
        self.method
    }

    /// What the handler may know of its call and its silo.
    pub const fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    /// The arguments, validated, in place.
    pub fn arguments<A: Decode>(&self) -> Result<&A::Archived, DeliveryFailure> {
        self.body.access::<A>().map_err(|error| {
            DeliveryFailure::rejected(RejectedKind::RequestUndecodable, error.to_string())
        })
    }

    /// One argument, taken out of its archived form.
    pub fn owned<A: DecodeOwned>(&self, archived: &A::Archived) -> Result<A, DeliveryFailure> {
        body::owned::<A>(archived).map_err(|error| {
            DeliveryFailure::rejected(RejectedKind::RequestUndecodable, error.to_string())
        })
    }

    /// The state, for this turn alone.
    ///
    /// # Panics
    /// If another turn holds the state, which the activation does not let happen.
    pub fn exclusive(&self) -> StateMut<'_, G> {
        StateMut(self.state.try_borrow_mut().expect("turns do not overlap"))
    }

    /// The state, shared with other reading turns.
    ///
    /// # Panics
    /// If an exclusive turn holds the state, which the activation does not let happen.
    pub fn shared(&self) -> StateRef<'_, G> {
        StateRef(self.state.try_borrow().expect("exclusive turns run alone"))
    }

    /// Ends the turn with a reply.
    pub fn reply<T: Encode>(&self, value: &T) -> TurnOutput {
        Ok(Body::encode(value))
    }

    /// Ends a hook that the grain does not have.
    pub fn done(&self) -> TurnOutput {
        Ok(Body::empty())
    }

    /// Ends the activation hook as the grain decided.
    pub fn activated(&self, result: Result<(), String>) -> TurnOutput {
        match result {
            Ok(()) => Ok(Body::empty()),
            Err(reason) => Err(DeliveryFailure::failed(FailedKind::HandlerFailed, reason)),
        }
    }

    /// Ends an event's turn as the grain decided: after an error the stream delivers it again.
    pub fn handled<E: fmt::Display>(&self, result: Result<(), E>) -> TurnOutput {
        match result {
            Ok(()) => self.reply(&()),
            Err(error) => {
                Err(DeliveryFailure::failed(FailedKind::HandlerFailed, error.to_string()))
            }
        }
    }

    /// Ends a turn whose method this version of the grain does not have.
    pub fn unknown_method(&self) -> TurnOutput {
        Err(DeliveryFailure::rejected(
            RejectedKind::Incompatible,
            format!("{} has no method {:08x}", G::TYPE, self.method.0),
        ))
    }
}

impl<G: GrainType> fmt::Debug for Turn<G> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Turn({} {:?})", G::TYPE, self.method)
    }
}

/// The state during an exclusive turn.
#[derive(Debug)]
pub struct StateMut<'a, G>(RefMut<'a, G>);

impl<G> Deref for StateMut<'_, G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.0
    }
}

impl<G> DerefMut for StateMut<'_, G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.0
    }
}

/// The state during a shared turn.
#[derive(Debug)]
pub struct StateRef<'a, G>(Ref<'a, G>);

impl<G> Deref for StateRef<'_, G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.0
    }
}
