//! Bodies of other versions: taken up where they come in, handed down where they go to an older
//! silo.
//!
//! Contract:
//! - a request is run as what its method takes now, or not at all: of an older signature it is
//!   taken up, of any other it is `Incompatible`; its reply has the version that it was asked in;
//! - what goes over a link to a silo that has only an older version is handed down first. What
//!   cannot be is not sent: the sender hears `Incompatible`, or `ReplyUndecodable` of a turn that
//!   has run;
//! - while every peer has what this silo has, nothing is kept and nothing is looked for.
//!
//! Bound: one entry a link.

use std::collections::BTreeMap;
use std::rc::Rc;

use siloring_core::body::Body;
use siloring_core::ids::{CorrelationId, Generation};
use siloring_core::outcome::{DeliveryFailure, FailedKind};
use siloring_core::schema::Schema;
use siloring_core::versions::{Converted, Older, PeerVersions, Unconvertible};

use super::Shard;
use crate::grain::MethodSpec;
use crate::host::HostSpec;
use crate::links::Links;
use crate::mail::{ConnId, Outcome, Request};
use crate::turn::TurnOutput;

/// The peers whose program has not all that ours has, by link.
#[derive(Debug, Default)]
pub(super) struct OlderPeers {
    conns: BTreeMap<ConnId, Rc<PeerVersions>>,
    /// Those of the links that carry this shard's requests.
    own: BTreeMap<Generation, ConnId>,
}

impl OlderPeers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// A link is gone.
    pub(super) fn part(&mut self, conn: ConnId) {
        if self.conns.remove(&conn).is_some() {
            self.own.retain(|_, own| *own != conn);
        }
    }

    #[cold]
    fn request(
        &self,
        peer: Generation,
        schema: Schema,
        body: &Body,
    ) -> Result<Option<Converted>, Unconvertible> {
        let Some(versions) = self.own.get(&peer).and_then(|conn| self.conns.get(conn)) else {
            return Ok(None);
        };
        versions.hand_down(schema, body)
    }

    /// An outcome as the peer of the link has it.
    #[cold]
    pub(super) fn outcome(&self, conn: ConnId, mut outcome: Outcome) -> Outcome {
        let (Some(versions), Ok(body)) = (self.conns.get(&conn), &outcome.result) else {
            return outcome;
        };
        match versions.hand_down(outcome.schema, body) {
            Ok(None) => {}
            Ok(Some(Converted { schema, body })) => {
                outcome.schema = schema;
                outcome.result = Ok(body);
            }
            Err(error) => outcome = Outcome::failure(unanswerable(&error)),
        }
        outcome
    }
}

impl<L: Links> Shard<L> {
    /// A link is up to, or from, a silo that has these types. `Own` carries this shard's requests.
    pub fn meet(&mut self, conn: ConnId, peer: Generation, direction: Direction, types: &[Schema]) {
        let Some(versions) = self.versions.towards(types) else { return };
        self.older_peers.conns.insert(conn, Rc::new(versions));
        match direction {
            Direction::Own => drop(self.older_peers.own.insert(peer, conn)),
            Direction::Theirs => {}
        }
    }

    /// An open delivery's body as the peer has it; `None` if it goes as it is.
    #[inline]
    pub(super) fn handed_down(
        &self,
        id: CorrelationId,
        peer: Generation,
    ) -> Result<Option<Converted>, DeliveryFailure> {
        if self.older_peers.is_empty() {
            return Ok(None);
        }
        let Some(open) = self.ledger.get(id) else { return Ok(None) };
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::NothingHandedDown {
            return Ok(None);
        }
        let (schema, body) = (open.request.arguments, &open.request.body);
        self.older_peers.request(peer, schema, body).map_err(|error| {
            let detail = format!("{} has an older version: {error}", open.target());
            DeliveryFailure::rejected(error.rejection(), detail)
        })
    }

    /// Whether a request is what the method takes now.
    #[inline]
    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "the planted form looks at the configuration")]
    pub(super) fn is_present(&self, method: &MethodSpec, request: &Request) -> bool {
        method.arguments == request.schema
    }

    #[cfg(feature = "planted")]
    pub(super) fn is_present(&self, method: &MethodSpec, request: &Request) -> bool {
        method.arguments == request.schema || self.config.planted == super::Planted::VersionsUnread
    }
}

/// Makes a request of another version one that the method takes; the version of its reply, if that
/// is an older one.
#[cold]
pub(super) fn take_up(
    host: &HostSpec,
    method: &MethodSpec,
    request: &mut Request,
) -> Result<Option<&'static Older>, DeliveryFailure> {
    let found = method.older(request.schema).ok_or(Unconvertible::NoPath);
    let taken_up = found.and_then(|found| Ok((found, (found.arguments.up)(&request.body)?)));
    match taken_up {
        Ok((found, body)) => {
            request.body = body;
            request.schema = method.arguments;
            Ok(found.reply)
        }
        Err(error) => {
            let (kind, name) = (host.kind, method.name);
            let (takes, found) = (method.arguments, request.schema);
            let detail = format!("{kind}/{name} takes {takes:?}, not {found:?}: {error}");
            Err(DeliveryFailure::rejected(error.rejection(), detail))
        }
    }
}

/// Whose requests a link carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// This shard's.
    Own,
    /// The peer's.
    Theirs,
}

/// A turn's reply in the version that was asked for.
#[cold]
pub(super) fn reply_as(older: &Older, output: TurnOutput) -> TurnOutput {
    let down = older.down.ok_or(Unconvertible::NoPath);
    output.and_then(|body| down.and_then(|down| down(&body)).map_err(|error| unanswerable(&error)))
}

fn unanswerable(error: &Unconvertible) -> DeliveryFailure {
    let detail = format!("the caller has an older version of the reply: {error}");
    DeliveryFailure::failed(FailedKind::ReplyUndecodable, detail)
}
