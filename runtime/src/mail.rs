//! What the threads of one silo send each other: values, moved, never shared.

use core::fmt;
use std::sync::Arc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::body::Body;
use siloring_core::ids::{CorrelationId, Endpoint, Generation, MethodId, ShardIndex, ViewNumber};
use siloring_core::outcome::DeliveryFailure;
use siloring_core::ports::store::StoreResult;
use siloring_core::schema::Schema;
use siloring_core::time::Moment;
use siloring_core::view::View;

use crate::call::{CallResult, RawReply};
use crate::directory::{DirectoryMessage, Place, TakeOver};
use crate::envelope::{Envelope, Sending};
use crate::exec::tasks::Spawned;
use crate::hub::HubShared;
use crate::parcel::Parcel;

/// Names a connection of one node; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// Where the outcome of a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReplyTo {
    /// The ledger of a shard of this silo.
    Ledger(ShardIndex),
    /// The link that a shard of this silo received it on.
    Link {
        /// The shard that has the link.
        shard: ShardIndex,
        /// The link's connection.
        conn: ConnId,
    },
}

/// A request that has reached the silo where its target is, or may be activated. Whom it is for is
/// told beside it: as long as it does not wait, whoever has it has the address too.
#[derive(Debug)]
pub struct Request {
    /// From whom.
    pub source: AddressHash,
    /// Which method, or message type.
    pub method: MethodId,
    /// What the body is.
    pub schema: Schema,
    /// The arguments' archive.
    pub body: Body,
    /// Not to be started after this.
    pub deadline: Moment,
    /// Names the open delivery at the sender.
    pub correlation: CorrelationId,
    /// Where the outcome goes.
    pub reply_to: ReplyTo,
    /// Whether the sender's turn waits for the outcome.
    pub one_way: bool,
    /// From 1.
    pub attempt: u8,
    /// Redirections followed.
    pub forwards: u8,
    /// Identity, headers, chain, trace.
    pub envelope: Option<Box<Envelope>>,
}

impl Request {
    /// Moves it out to where it waits; what is left is to be forgotten. On its way it is lent, as a
    /// request that begins at once need not be moved.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        Self { body: core::mem::take(&mut self.body), envelope: self.envelope.take(), ..*self }
    }

    /// Whether it may have been handled before, by the activation that it names or an unknown one.
    pub(crate) fn is_sent_again(&self) -> bool {
        let idempotency = self.envelope.as_deref().and_then(|envelope| envelope.idempotency);
        idempotency.is_some_and(|idempotency| idempotency.sending != Sending::First)
    }

    /// Who is to hear its outcome.
    pub(crate) const fn asker(&self) -> Asker {
        Asker { reply_to: self.reply_to, correlation: self.correlation }
    }
}

/// Who is to hear an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    pub(crate) reply_to: ReplyTo,
    pub(crate) correlation: CorrelationId,
}

/// What became of a request.
#[derive(Debug)]
pub struct Outcome {
    /// The reply, or the failure.
    pub result: Result<Body, DeliveryFailure>,
    /// What the reply is.
    pub schema: Schema,
    /// Where the target really is, if the request was at the wrong place: rare, and kept apart.
    pub place: Option<Box<Place>>,
}

impl Outcome {
    /// A failure without a better place.
    pub const fn failure(failure: DeliveryFailure) -> Self {
        Self { result: Err(failure), schema: Schema::NONE, place: None }
    }

    /// The outcome that somebody was told.
    pub(crate) fn of(result: CallResult) -> Self {
        match result {
            Ok(RawReply { schema, body }) => Self { result: Ok(body), schema, place: None },
            Err(failure) => Self::failure(failure),
        }
    }

    /// As its waiter gets it.
    pub(crate) fn into_result(self) -> CallResult {
        let schema = self.schema;
        self.result.map(|body| RawReply { schema, body })
    }
}

/// Mail to a shard.
pub enum ShardMail {
    /// A newer view.
    View(Arc<View>),
    /// A directory message of a shard, of this silo or another.
    Directory {
        /// Who sent it.
        from: Endpoint,
        /// What.
        message: DirectoryMessage,
    },
    /// A dial for a data link of this shard failed.
    LinkFailed {
        /// To whom.
        peer: Generation,
        /// Why.
        reason: String,
    },
    /// A request whose target belongs to this shard.
    Request {
        /// To whom.
        target: Address,
        /// What.
        request: Request,
    },
    /// The outcome of a request that this shard's ledger or link waits for.
    Outcome {
        /// Ledger or link of this shard.
        to: ReplyTo,
        /// Which request.
        correlation: CorrelationId,
        /// Who answered.
        source: Address,
        /// What.
        outcome: Outcome,
    },
    /// A request of the surrounding program.
    Call(Parcel),
    /// The surrounding program opens a hub.
    OpenHub {
        /// The hub.
        hub: Arc<HubShared>,
        /// Whether it replaces another holder.
        take_over: TakeOver,
    },
    /// The surrounding program closed a hub.
    CloseHub(Address),
    /// A hub answered a delivery.
    Answer {
        /// Where the answer goes.
        reply_to: ReplyTo,
        /// Which request.
        correlation: CorrelationId,
        /// The hub.
        source: Address,
        /// What.
        outcome: Outcome,
    },
    /// The store answered.
    Store {
        /// To which question of this shard.
        ticket: u64,
        /// What.
        result: StoreResult,
    },
    /// Runs a future on this shard.
    Spawn(Box<dyn FnOnce() -> Spawned + Send>),
    /// The silo drains: take nothing new, end what is idle.
    BeginDrain,
    /// The turns' time is up, or they have ended: close the hubs.
    CloseHubs,
}

impl ShardMail {
    /// Its kind's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::View(_) => "View",
            Self::Directory { .. } => "Directory",
            Self::LinkFailed { .. } => "LinkFailed",
            Self::Request { .. } => "Request",
            Self::Outcome { .. } => "Outcome",
            Self::Call(_) => "Call",
            Self::OpenHub { .. } => "OpenHub",
            Self::CloseHub(_) => "CloseHub",
            Self::Answer { .. } => "Answer",
            Self::Store { .. } => "Store",
            Self::Spawn(_) => "Spawn",
            Self::BeginDrain => "BeginDrain",
            Self::CloseHubs => "CloseHubs",
        }
    }
}

impl fmt::Debug for ShardMail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Mail to the control thread.
#[derive(Debug)]
pub enum ControlMail {
    /// A shard needs a data link.
    OpenLink {
        /// Which shard.
        from: ShardIndex,
        /// To whom.
        peer: Generation,
    },
    /// A directory message to a shard of another silo.
    Directory {
        /// Which shard sends.
        from: ShardIndex,
        /// To whom.
        to: Endpoint,
        /// What.
        message: DirectoryMessage,
    },
    /// Somebody has this view: read the table.
    ViewWanted(ViewNumber),
    /// Bytes of a silo came in on a shard's link.
    Heard(Generation),
    /// A silo does not answer a recovery.
    Accuse(Generation),
    /// The surrounding program wants the silo to leave.
    Drain,
    /// A shard has no activations, open deliveries or ranges left; hubs may still be open.
    ShardEmpty(ShardIndex),
    /// A shard's hubs are closed: it is done.
    ShardClosed {
        /// Which shard.
        shard: ShardIndex,
        /// Turns and deliveries cut off.
        unfinished_count: usize,
    },
}
