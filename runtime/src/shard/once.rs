//! Requests that an activation or hub handles once: a stream's events, and what has a key.
//!
//! What was handled is in `dedup.rs`; here duplicates are answered and who waits is told. A request
//! is looked at when its turn is to begin, so that one that waits in the queue behind another of
//! the same key finds that one's outcome.

use std::rc::Rc;

use siloring_core::address::Address;
use siloring_core::body::Body;
use siloring_core::event::Event;
use siloring_core::outcome::{DeliveryFailure, IndeterminateKind, RejectedKind};
use siloring_core::schema::{Message, Schema};

use super::activation::TurnReply;
use super::mixed::reply_as;
use super::{ActivationKey, Shard};
use crate::call::RawReply;
use crate::dedup::{Admission, copy_of};
use crate::envelope::Envelope;
use crate::links::Links;
use crate::mail::{Asker, Outcome, Request};
use crate::turn::TurnOutput;

impl<L: Links> Shard<L> {
    /// Whether the request's turn begins. If not, it was answered, or waits for the turn that is
    /// handling it.
    #[inline]
    pub(super) fn is_to_begin(&mut self, key: ActivationKey, request: &Request) -> bool {
        match request.envelope.as_deref() {
            Some(envelope) if self.is_handled_once(envelope) => {
                self.begin_once(key, envelope, request)
            }
            Some(_) | None => true,
        }
    }

    fn is_handled_once(&self, envelope: &Envelope) -> bool {
        let is_known =
            if envelope.event.is_some() { self.knows_events() } else { self.knows_keys() };
        envelope.is_handled_once() && is_known
    }

    #[cfg(feature = "planted")]
    fn knows_events(&self) -> bool {
        self.config.planted != super::Planted::EventsUnknown
    }

    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "the planted form looks at the configuration")]
    const fn knows_events(&self) -> bool {
        true
    }

    #[cfg(feature = "planted")]
    fn knows_keys(&self) -> bool {
        self.config.planted != super::Planted::KeysUnknown
    }

    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "the planted form looks at the configuration")]
    const fn knows_keys(&self) -> bool {
        true
    }

    #[cold]
    fn begin_once(&mut self, key: ActivationKey, envelope: &Envelope, request: &Request) -> bool {
        let activation = &mut self.activations[key as usize];
        let number = Some(activation.shared.number.get());
        let dedup = activation.handled.get_or_insert_default();
        let admission = dedup.begin(envelope, number, request.asker());
        #[cfg(feature = "planted")]
        if matches!(admission, Admission::StaleOwner)
            && self.config.planted == super::Planted::StaleOwnersHeard
        {
            return true;
        }
        if matches!(admission, Admission::Begin) {
            return true;
        }
        let shared = Rc::clone(&activation.shared);
        self.answer_duplicate(admission, &shared.address, request);
        false
    }

    /// Answers a request that is not handled again.
    pub(super) fn answer_duplicate(
        &mut self,
        admission: Admission,
        target: &Address,
        request: &Request,
    ) {
        #[cfg(feature = "planted")]
        let admission = self.planted_admission(admission, request);
        if let Some(event) = request.envelope.as_deref().and_then(|e| e.event.as_deref()) {
            let (target, stream) = (target.clone(), event.stream.clone());
            self.emit(match admission {
                Admission::StaleOwner => {
                    Event::StaleOwnerRefused { target, stream, epoch: event.epoch }
                }
                Admission::GivenUp => {
                    Event::LateEventRefused { target, stream, position: event.position }
                }
                Admission::Begin
                | Admission::Attached
                | Admission::Handled
                | Admission::Known(_)
                | Admission::Unknowable
                | Admission::Busy => Event::EventDuplicate { target, stream, number: event.number },
            });
        } else {
            self.emit(Event::KeyDuplicate { target: target.clone() });
        }
        if let Some(outcome) = outcome_of(admission) {
            self.respond(request.reply_to, request.correlation, target, outcome);
        }
    }

    #[cfg(feature = "planted")]
    fn planted_admission(&self, admission: Admission, request: &Request) -> Admission {
        let is_planted = self.config.planted == super::Planted::AnswersForgotten;
        let is_event = request.envelope.as_deref().is_some_and(|e| e.event.is_some());
        let is_known = matches!(admission, Admission::Known(_));
        if is_planted && is_event && is_known { Admission::Handled } else { admission }
    }

    /// Answers a turn's request, and who else asked for the same.
    pub(super) fn answer_turn(
        &mut self,
        key: ActivationKey,
        reply: TurnReply,
        envelope: Option<&Envelope>,
        output: TurnOutput,
    ) {
        let shared = Rc::clone(&self.activations[key as usize].shared);
        let (output, schema) = match reply.older {
            None => (output, reply.schema),
            Some(older) => (reply_as(older, output), older.schema),
        };
        let schema = if output.is_ok() { schema } else { Schema::NONE };
        let mut outcome = Outcome { result: output, schema, place: None };
        if let Some(envelope) = envelope.filter(|envelope| self.is_handled_once(envelope)) {
            outcome = self.end_once(key, envelope, outcome, &shared.address);
        }
        self.respond(reply.to, reply.correlation, &shared.address, outcome);
    }

    #[cold]
    fn end_once(
        &mut self,
        key: ActivationKey,
        envelope: &Envelope,
        outcome: Outcome,
        address: &Address,
    ) -> Outcome {
        let result = outcome.into_result();
        let handled = self.activations[key as usize].handled.as_deref_mut();
        let askers = handled.map(|handled| handled.end(envelope, &result)).unwrap_or_default();
        for Asker { reply_to, correlation } in askers {
            self.respond(reply_to, correlation, address, Outcome::of(copy_of(&result)));
        }
        Outcome::of(result)
    }
}

/// What a request hears that is not handled again; `None` if it waits.
fn outcome_of(admission: Admission) -> Option<Outcome> {
    let refused = |kind, detail| Some(Outcome::failure(DeliveryFailure::rejected(kind, detail)));
    match admission {
        Admission::Begin => unreachable!("what begins is no duplicate"),
        Admission::Attached => None,
        Admission::Handled => {
            let body = Body::encode(&());
            Some(Outcome::of(Ok(RawReply { schema: <()>::SCHEMA, body })))
        }
        Admission::Known(result) => Some(Outcome::of(result)),
        // The stream has moved, though its old owner does not know yet.
        Admission::StaleOwner => {
            refused(RejectedKind::Moving, "a later owner of the stream has delivered")
        }
        // Its owner has told what became of it: nobody waits for this answer.
        Admission::GivenUp => {
            refused(RejectedKind::Moving, "a later event of the stream has been delivered")
        }
        Admission::Unknowable => Some(Outcome::failure(DeliveryFailure::indeterminate(
            IndeterminateKind::LostAfterHandOver,
            "it was handed over before, and this activation does not know it",
        ))),
        Admission::Busy => refused(
            RejectedKind::Overloaded,
            "too many requests that are handled once are under way",
        ),
    }
}
