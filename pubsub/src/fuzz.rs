//! Shows every message of this crate to whoever tests how hostile bytes of it are read.
//!
//! Only with the feature `fuzz`: the messages are no part of the interface. Each is shown as a type
//! with a sample in which nothing is left out, so that its archive has every part.

use core::fmt::Debug;

use siloring_core::body::{DecodeOwned, Encode};

use crate::members::Refusal;
use crate::message::{
    Deliver, Listed, Publish, SetChanged, Subscribe, Subscribed, Took, Unsubscribe, WireBody,
    WireConsumer, WireConsumerFailure, WireEpoch, WireEvent, WireFailure, WireResult, WireSet,
    WireToken,
};

/// Who is shown the messages.
pub trait Messages {
    /// Takes one type, with a sample of it.
    fn message<T>(&mut self, name: &'static str, sample: &T)
    where
        T: Encode + DecodeOwned + PartialEq + Debug + 'static;
}

/// Shows all that publishers, owners, agents and subscribers send each other, always in one order.
pub fn show(messages: &mut impl Messages) {
    messages.message("publish", &publish());
    messages.message("took", &took());
    messages.message("subscribe", &subscribe());
    messages.message("subscribed", &Subscribed { version: 9, from: token(), missed: 2 });
    let unsubscribe = Unsubscribe { key: text(), owner: Some(3), version: 9 };
    messages.message("refusal", &Refusal::Invalid(text()));
    messages.message("unsubscribe", &unsubscribe);
    messages.message("listed", &vec![listed()]);
    messages.message("deliver", &deliver());
    messages.message("results", &vec![result()]);
    messages.message("set-changed", &SetChanged { stream: 7 << 64, set: set() });
}

/// Longer than what an archive keeps in place.
fn text() -> String {
    "a text that is not kept in place".to_owned()
}

fn failure() -> WireFailure {
    WireFailure { code: 2, view: Some(5), detail: text() }
}

const fn epoch() -> WireEpoch {
    WireEpoch { view: 5, counter: 6 }
}

const fn token() -> WireToken {
    WireToken { epoch: epoch(), position: 11 }
}

const fn set() -> WireSet {
    WireSet { version: 9, live: 2, has_owned: true }
}

fn body() -> WireBody {
    WireBody { schema: 0x0003_0002_0000_0001, bytes: vec![1; 24] }
}

fn publish() -> Publish {
    Publish {
        lane: 1 << 90,
        number: 4,
        base: 3,
        attempts_before: 1,
        queued: true,
        set: 9,
        schema: 0x0003_0002_0000_0001,
        body: Some(vec![1; 24]),
        silo: 2,
    }
}

fn took() -> Took {
    Took {
        set: set(),
        epoch: epoch(),
        step: 3,
        position: 11,
        handled: 1,
        failed: 1,
        failures: vec![WireConsumerFailure { key: text(), failure: failure() }],
        reply: Some(body()),
    }
}

fn subscribe() -> Subscribe {
    Subscribe {
        key: text(),
        consumer: "room/general".to_owned(),
        handler: 8,
        owner: Some(3),
        filter: text(),
        take_over: true,
        from: Some(token()),
    }
}

fn listed() -> Listed {
    Listed {
        key: text(),
        consumer: "room/general".to_owned(),
        owner: Some(3),
        filter: text(),
        version: 9,
        backlog: 1,
    }
}

fn deliver() -> Deliver {
    let event = WireEvent { position: 11, lane: 1 << 90, number: 4, schema: 1, body: vec![1; 24] };
    let consumer = WireConsumer {
        key: text(),
        address: "room/general".to_owned(),
        handler: 8,
        missed: 2,
        attempts: vec![1, 2],
    };
    Deliver {
        stream: "stream/chat/general".to_owned(),
        epoch: epoch(),
        events: vec![event.clone(), event],
        consumers: vec![consumer],
        patience_ms: 50,
    }
}

fn result() -> WireResult {
    WireResult { done: 1, is_running: false, failure: Some(failure()), reply: Some(body()) }
}
