//! What publishers, owners, agents and subscribers send each other.
//!
//! Both sides of each are grains of this crate, and every silo hosts them; the version of a method
//! is raised with each change here. The program's own bodies travel inside: [`of_publish`] and its
//! like give them to a silo that hands them down to an older one.

use siloring_core::body::Body;
use siloring_core::hash::stable_u64;
use siloring_core::ids::{ActivationNumber, ViewNumber};
use siloring_core::outcome::DeliveryFailure;
use siloring_core::schema::{Layout, Schema, mix};
use siloring_core::versions::Converted;

macro_rules! travels {
    ($($(#[$doc:meta])* struct $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    })+) => { $(
        $(#[$doc])*
        #[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Debug)]
        #[rkyv(attr(allow(missing_docs, reason = "the owned form has them")))]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

        impl Layout for $name {
            const LAYOUT: u64 = {
                let mut hash = stable_u64(stringify!($name).as_bytes());
                $(
                    hash = mix(hash, stable_u64(stringify!($field).as_bytes()));
                    hash = mix(hash, <$type as Layout>::LAYOUT);
                )*
                hash
            };
        }
    )+ };
}

travels! {
    /// A failure as data.
    struct WireFailure {
        code: u16,
        view: Option<u64>,
        detail: String,
    }

    /// An owner's number.
    struct WireEpoch {
        view: u64,
        counter: u64,
    }

    /// What an owner says of its stream's consumers.
    struct WireSet {
        version: u64,
        live: u32,
        /// Whether hubs are among them: those are gone with their silos.
        has_owned: bool,
    }

    /// An archive of the program's.
    struct WireBody {
        schema: u64,
        bytes: Vec<u8>,
    }

    /// To the owner: take this event in.
    struct Publish {
        lane: u128,
        number: u64,
        base: u64,
        attempts_before: u8,
        /// Answer when it is taken in, not when it is handled.
        queued: bool,
        /// The set version that the publisher's silo knows; 0 for none.
        set: u64,
        schema: u64,
        /// Left out while the publisher's silo knows of no consumer.
        body: Option<Vec<u8>>,
        /// The publisher's silo, which wants to hear of changes of the set.
        silo: u64,
    }

    /// A consumer that did not handle an event.
    struct WireConsumerFailure {
        key: String,
        failure: WireFailure,
    }

    /// The owner's answer to a publish.
    struct Took {
        set: WireSet,
        epoch: WireEpoch,
        /// See [`Step`].
        step: u8,
        position: u64,
        handled: u32,
        failed: u32,
        failures: Vec<WireConsumerFailure>,
        reply: Option<WireBody>,
    }

    /// To the owner: this consumer wants the stream's events.
    struct Subscribe {
        key: String,
        consumer: String,
        handler: u32,
        owner: Option<u64>,
        filter: String,
        take_over: bool,
        /// Begin at this event of this epoch.
        from: Option<WireToken>,
    }

    /// A place in a stream.
    struct WireToken {
        epoch: WireEpoch,
        position: u64,
    }

    /// The owner's answer: the cursor is attached.
    struct Subscribed {
        version: u64,
        from: WireToken,
        missed: u64,
    }

    /// To the owner: this subscription ends.
    struct Unsubscribe {
        key: String,
        owner: Option<u64>,
        version: u64,
    }

    /// A subscription as the owner lists it.
    struct Listed {
        key: String,
        consumer: String,
        owner: Option<u64>,
        filter: String,
        version: u64,
        /// Events before it that it has not confirmed.
        backlog: u64,
    }

    /// An event on its way to consumers.
    struct WireEvent {
        position: u64,
        lane: u128,
        number: u64,
        schema: u64,
        body: Vec<u8>,
    }

    /// A consumer of a batch.
    struct WireConsumer {
        key: String,
        address: String,
        handler: u32,
        missed: u64,
        /// One for each event of the batch.
        attempts: Vec<u8>,
    }

    /// To an agent: give these events to these consumers.
    struct Deliver {
        stream: String,
        epoch: WireEpoch,
        events: Vec<WireEvent>,
        consumers: Vec<WireConsumer>,
        /// How long consumers that have finished wait for the others.
        patience_ms: u32,
    }

    /// What came of one consumer's batch.
    struct WireResult {
        done: u32,
        is_running: bool,
        failure: Option<WireFailure>,
        reply: Option<WireBody>,
    }

    /// To an agent: a stream's set has changed.
    struct SetChanged {
        stream: u128,
        set: WireSet,
    }
}

/// What hands a body inside another one down.
type HandDown<'a> = dyn FnMut(Schema, &[u8]) -> Option<Converted> + 'a;

/// The event inside a publish.
pub(crate) fn of_publish(body: &Body, hand_down: &mut HandDown<'_>) -> Option<Body> {
    let mut publish = body.decode::<Publish>().ok()?;
    let event = publish.body.as_ref()?;
    let Converted { schema, body } = hand_down(Schema::from_bits(publish.schema), event)?;
    publish.schema = schema.to_bits();
    publish.body = Some(body.as_slice().to_vec());
    Some(Body::encode(&publish))
}

/// The events inside a batch.
pub(crate) fn of_deliver(body: &Body, hand_down: &mut HandDown<'_>) -> Option<Body> {
    let mut deliver = body.decode::<Deliver>().ok()?;
    let mut is_changed = false;
    for event in &mut deliver.events {
        let handed_down = hand_down(Schema::from_bits(event.schema), &event.body);
        if let Some(Converted { schema, body }) = handed_down {
            event.schema = schema.to_bits();
            event.body = body.as_slice().to_vec();
            is_changed = true;
        }
    }
    is_changed.then(|| Body::encode(&deliver))
}

/// The reply inside what an owner answers to a publish.
pub(crate) fn of_took(body: &Body, hand_down: &mut HandDown<'_>) -> Option<Body> {
    let mut took = body.decode::<Took>().ok()?;
    took.reply = Some(took.reply.as_ref()?.handed_down(hand_down)?);
    Some(Body::encode(&took))
}

/// The replies inside what came of a batch.
pub(crate) fn of_results(body: &Body, hand_down: &mut HandDown<'_>) -> Option<Body> {
    let mut results = body.decode::<Vec<WireResult>>().ok()?;
    let mut is_changed = false;
    for reply in results.iter_mut().filter_map(|result| result.reply.as_mut()) {
        if let Some(handed_down) = reply.handed_down(hand_down) {
            *reply = handed_down;
            is_changed = true;
        }
    }
    is_changed.then(|| Body::encode(&results))
}

impl WireBody {
    fn handed_down(&self, hand_down: &mut HandDown<'_>) -> Option<Self> {
        let Converted { schema, body } = hand_down(Schema::from_bits(self.schema), &self.bytes)?;
        Some(Self { schema: schema.to_bits(), bytes: body.as_slice().to_vec() })
    }
}

/// How far a publish has come, in [`Took`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nobody subscribes: nothing was taken in.
    NoSubscriber,
    /// Somebody does: the body is wanted.
    SendBody,
    /// Taken in.
    Queued,
    /// Every consumer is through with it.
    Closed,
}

impl Step {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::NoSubscriber => 0,
            Self::SendBody => 1,
            Self::Queued => 2,
            Self::Closed => 3,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::NoSubscriber),
            1 => Some(Self::SendBody),
            2 => Some(Self::Queued),
            3 => Some(Self::Closed),
            _ => None,
        }
    }
}

impl From<&DeliveryFailure> for WireFailure {
    fn from(failure: &DeliveryFailure) -> Self {
        let view = failure.view().map(|view| view.0);
        Self { code: failure.code(), view, detail: failure.detail().to_owned() }
    }
}

impl From<WireFailure> for DeliveryFailure {
    fn from(wire: WireFailure) -> Self {
        Self::from_code(wire.code, wire.view.map(ViewNumber), wire.detail)
    }
}

impl From<ActivationNumber> for WireEpoch {
    fn from(number: ActivationNumber) -> Self {
        Self { view: number.view.0, counter: number.counter }
    }
}

impl From<&WireEpoch> for ActivationNumber {
    fn from(wire: &WireEpoch) -> Self {
        Self { view: ViewNumber(wire.view), counter: wire.counter }
    }
}
