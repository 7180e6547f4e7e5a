//! The route of a delivery to a hub: a directed call first, the stream leg where that may help.
//!
//! A hub that wants to be reached while the directory does not know it, such as one of a process
//! without a claim or of an older release in a roll, subscribes to a stream of its own
//! ([`Streams::reach`]). Which leg is next is one pure decision, [`next_leg`]; each leg ends in an
//! outcome of its own, and the last one is what the sender hears. There is no third leg, and no
//! answer to a failed answer.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use siloring_core::address::{Address, AddressError};
use siloring_core::body::Body;
use siloring_core::limits::DEADLINE_DEFAULT;
use siloring_core::outcome::{CallError, DeliveryFailure, FailedKind, RejectedKind};
use siloring_core::schema::{Message, Schema};
use siloring_core::versions;
use siloring_runtime::hub::Hub;
use siloring_runtime::reference::HubRef;

use crate::id::stream_address;
use crate::message::Took;
use crate::owner::StreamOwner;
use crate::publish::{Event, Publish, brought};
use crate::streams::Streams;
use crate::subscribe::{SubscribeError, Subscription, Wanted};

/// The namespace of hubs' own streams: the key is the hub's address.
const HUBS: &str = "hub";
/// The key of a hub's subscription of its own stream: a new process of the hub replaces it.
const OWN: &str = "hub";

/// Which way a delivery to a hub may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Leg {
    /// To the holder of the hub's claim, only.
    Directed,
    /// Over the hub's own stream, only.
    Stream,
    /// To the holder of the claim; if there is none, over the hub's own stream.
    #[default]
    Both,
}

/// What a delivery does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Directed,
    Stream,
    /// The last leg's outcome is the delivery's.
    Tell,
}

/// Decides which leg is next. `directed` and `stream` are the failures of the legs so far.
pub(crate) fn next_leg(
    leg: Leg,
    is_stream_routed: bool,
    directed: Option<&DeliveryFailure>,
    stream: Option<&DeliveryFailure>,
) -> Next {
    let takes_stream = is_stream_routed && leg != Leg::Directed && stream.is_none();
    match directed {
        // A kind that takes no stream leg is called, whatever was asked for.
        None if leg == Leg::Stream && is_stream_routed => {
            if takes_stream {
                Next::Stream
            } else {
                Next::Tell
            }
        }
        None => Next::Directed,
        // Nobody holds the claim: all that the stream leg can mend.
        Some(failure) if takes_stream && leg == Leg::Both => match failure.rejected_kind() {
            Some(RejectedKind::NotHere | RejectedKind::IncarnationDead) => Next::Stream,
            Some(_) | None => Next::Tell,
        },
        Some(_) => Next::Tell,
    }
}

/// The stream of a hub's own.
fn stream_of(hub: &Address) -> Result<Address, AddressError> {
    stream_address(HUBS, hub.as_str())
}

/// A hub as a sender reaches it, on whichever leg. See [`Streams::route`].
#[derive(Clone)]
pub struct HubRoute {
    hub: HubRef,
    streams: Arc<Streams>,
    leg: Leg,
    deadline: Duration,
}

impl fmt::Debug for HubRoute {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "HubRoute({}, {:?})", self.hub.address(), self.leg)
    }
}

impl Streams {
    /// The route to a hub. Kinds that were not added as stream-routed are called only.
    pub fn route(self: &Arc<Self>, hub: HubRef) -> HubRoute {
        let streams = Arc::clone(self);
        HubRoute { hub, streams, leg: Leg::default(), deadline: DEADLINE_DEFAULT }
    }

    /// Makes a hub reachable over a stream of its own, until its silo is gone. A later process of
    /// the same hub replaces it: at once if this one is dead, with `take_over` if it lives.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    ///
    /// # Cancel safety
    /// Dropped, the hub may or may not be reachable.
    pub async fn reach(&self, hub: &Hub, take_over: bool) -> Result<Subscription, SubscribeError> {
        let stream = stream_of(hub.address());
        let invalid = |error: AddressError| SubscribeError::Invalid { detail: error.to_string() };
        let stream = stream.map_err(invalid)?;
        Wanted::new(stream, hub.handle(), OWN.to_owned()).take_over(take_over).hub(hub).await
    }
}

impl HubRoute {
    /// Chooses the leg. Default: [`Leg::Both`].
    #[must_use]
    pub const fn leg(mut self, leg: Leg) -> Self {
        self.leg = leg;
        self
    }

    /// Gives all legs together this long instead of 30 s.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Delivers a message; the outcome is the hub's answer.
    ///
    /// # Cancel safety
    /// Dropped, the message may or may not be handled.
    pub async fn send<M: Message, R: Message>(&self, message: &M) -> Result<R, DeliveryFailure> {
        let is_stream_routed = self.streams.is_stream_routed(self.hub.address().kind().0);
        let (mut directed, mut stream): (Option<DeliveryFailure>, Option<DeliveryFailure>) =
            (None, None);
        loop {
            let next = next_leg(self.leg, is_stream_routed, directed.as_ref(), stream.as_ref());
            match next {
                Next::Directed => {
                    let call = self.hub.send::<M, R>(message).deadline(self.deadline);
                    match call.await {
                        Ok(reply) => return Ok(reply),
                        Err(CallError::Delivery(failure)) => directed = Some(failure),
                        Err(CallError::Handler(never)) => match never {},
                    }
                }
                Next::Stream => match self.over_stream(message).await {
                    Ok(took) => return reply(&took),
                    Err(failure) => stream = Some(failure),
                },
                Next::Tell => {
                    let failure = stream.or(directed);
                    return Err(failure.expect("a delivery is told after a leg"));
                }
            }
        }
    }

    async fn over_stream<M: Message>(&self, message: &M) -> Result<Took, DeliveryFailure> {
        let stream = stream_of(self.hub.address());
        let stream = stream
            .map_err(|error| DeliveryFailure::rejected(RejectedKind::NotHere, error.to_string()))?;
        let handle = self.hub.handle().clone();
        let owner = handle.grain::<StreamOwner>(stream.id());
        let event = Event { stream, owner, schema: M::SCHEMA, body: Body::encode(message) };
        brought(Publish { event, handle, deadline: self.deadline }).await
    }
}

/// What the hub answered.
fn reply<R: Message>(took: &Took) -> Result<R, DeliveryFailure> {
    let (schema, bytes) = took.reply.as_ref().map_or((<()>::SCHEMA, &[][..]), |reply| {
        (Schema::from_bits(reply.schema), reply.bytes.as_slice())
    });
    let undecodable =
        |detail: String| DeliveryFailure::failed(FailedKind::ReplyUndecodable, detail);
    versions::read::<R>(Body::copy_of(bytes), schema).map_err(|error| {
        undecodable(format!("the reply is {schema:?}, not {:?}: {error}", R::SCHEMA))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decision_table_holds() {
        let fail = |kind| Some(DeliveryFailure::rejected(kind, "x"));
        let not_here = fail(RejectedKind::NotHere);
        let dead = fail(RejectedKind::IncarnationDead);
        let moving = fail(RejectedKind::Moving);
        let none = fail(RejectedKind::NoSubscriber);
        let lost = Some(DeliveryFailure::failed(FailedKind::HandlerFailed, "x"));
        let table = [
            // leg, stream-routed kind, directed so far, stream so far, next
            (Leg::Both, true, None, None, Next::Directed),
            (Leg::Both, true, not_here.clone(), None, Next::Stream),
            (Leg::Both, true, dead, None, Next::Stream),
            (Leg::Both, true, not_here.clone(), none.clone(), Next::Tell),
            (Leg::Both, true, moving, None, Next::Tell),
            (Leg::Both, true, lost, None, Next::Tell),
            (Leg::Both, false, None, None, Next::Directed),
            (Leg::Both, false, not_here.clone(), None, Next::Tell),
            (Leg::Directed, true, None, None, Next::Directed),
            (Leg::Directed, true, not_here.clone(), None, Next::Tell),
            (Leg::Stream, true, None, None, Next::Stream),
            (Leg::Stream, true, None, none, Next::Tell),
            (Leg::Stream, false, None, None, Next::Directed),
            (Leg::Stream, false, not_here, None, Next::Tell),
        ];
        for (leg, routed, directed, stream, next) in table {
            let found = next_leg(leg, routed, directed.as_ref(), stream.as_ref());
            assert_eq!(found, next, "{leg:?} {routed} {directed:?} {stream:?}");
        }
    }
}
