//! Events of streams in the ledger: what is published, who ran it, who was to.
//!
//! A publish is a delivery with one outcome and many runs, one for each subscription. Checked
//! besides what holds for all deliveries:
//!
//! - *no doubled run*: no handler runs twice for one event, subscription and attempt, whichever
//!   owners made them; a first attempt may come after a later one, of an owner that does not know
//!   that it was replaced, to an activation on its own silo;
//! - *order*: one source's events run in its order at each subscription, unless a connection has
//!   ended since;
//! - *I10*: an activation hears no owner older than one it has heard, and of one owner no first
//!   attempt at or before a place where it has been;
//! - *I11*: an event that was published after a subscription was acknowledged, and that nobody
//!   failed, has run for it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::hash::{HashMap, stable_u64};
use siloring_core::{ActivationNumber, Address, AddressHash, DeliveryFailure, Moment};
use siloring_runtime::envelope::EventInfo;

use super::{Certainty, DeliveryId, Direction, Ledger, Sent, Source, State};
use crate::sim::scene::{self, Scene};

/// A subscription of a stream.
type Key = (AddressHash, u64);

/// What is known of events beside their entries.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Attempts that ran, by event and subscription.
    runs: HashMap<(u64, Key), Vec<u8>>,
    /// The last event that ran, by source, subscription and activation.
    orders: HashMap<(Source, Key, ActivationNumber), u64>,
    /// How far an activation has come.
    cursors: HashMap<(Key, ActivationNumber), (ActivationNumber, u64)>,
    /// When each subscription was acknowledged; those that are being ended are out.
    acknowledged: BTreeMap<Key, Moment>,
}

fn key_of(stream: AddressHash, subscription: &str) -> Key {
    (stream, stable_u64(subscription.as_bytes()))
}

/// What became of an event, at its publisher.
#[derive(Clone, Copy, Debug)]
pub enum EventEnd<'a> {
    /// Every consumer is through with it; so many have not handled it.
    Through {
        /// How many.
        failed: u32,
    },
    /// Nobody has handled it.
    Failed(&'a DeliveryFailure),
}

impl Source {
    /// Enters a publish whose outcome is due within `budget`.
    pub fn published(self, stream: &Address, budget: Duration) -> Sent {
        scene::with(|scene| scene.ledger.borrow_mut().counts.published += 1);
        self.enter(stream, budget, Direction::Event)
    }
}

impl Sent {
    /// The outcome of a publish.
    pub fn close_event(self, end: EventEnd<'_>) {
        let id = self.id;
        match end {
            EventEnd::Failed(failure) => self.close(Some(failure)),
            EventEnd::Through { failed } => {
                self.close(None);
                if failed == 0 {
                    scene::with(|scene| check_all_ran(scene, id));
                }
            }
        }
    }
}

/// A subscription was acknowledged.
pub fn subscribed(stream: &Address, subscription: &str) {
    scene::with(|scene| {
        let key = key_of(stream.hash(), subscription);
        let now = scene.now.get();
        scene.ledger.borrow_mut().events.acknowledged.insert(key, now);
        scene.note(|| format!("{subscription} of {stream} is acknowledged"));
    });
}

/// A subscription is about to be ended, or may be.
pub fn unsubscribing(stream: &Address, subscription: &str) {
    scene::with(|scene| {
        let key = key_of(stream.hash(), subscription);
        scene.ledger.borrow_mut().events.acknowledged.remove(&key);
        scene.note(|| format!("{subscription} of {stream} is ended"));
    });
}

/// A handler runs an event, in the activation, or open hub, of this number.
pub fn ran_event(id: DeliveryId, event: &EventInfo, activation: ActivationNumber) {
    scene::with(|scene| {
        scene.note(|| format!("{id:?} ran in {activation:?} as {event:?}"));
        let broken = scene.ledger.borrow_mut().ran_event(scene, id.0, event, activation);
        if let Some(invariant) = broken {
            let text = scene.ledger.borrow().describe(id);
            scene.violate(invariant, format!("{text}: {event:?} in {activation:?}"));
        }
    });
}

fn check_all_ran(scene: &Rc<Scene>, id: DeliveryId) {
    let ledger = scene.ledger.borrow();
    let entry = ledger.entry(id.0);
    if matches!(entry.state, State::Orphaned) {
        return;
    }
    let (stream, sent) = (entry.target, entry.sent);
    let all = ledger.events.acknowledged.iter();
    let missing = all.into_iter().find(|(key, at)| {
        let is_due = key.0 == stream && **at < sent;
        // An owner that does not know of its death may acknowledge what the next one has not read.
        let excused = scene.lost_since(**at) || scene.may_be_a_zombies(**at);
        is_due && !excused && !ledger.events.runs.contains_key(&(id.0, **key))
    });
    if let Some((key, at)) = missing {
        let text = format!("{} for {key:?}, acknowledged at {at:?}", ledger.describe(id));
        drop(ledger);
        scene.violate("I11 after a subscription nothing is skipped", text);
    }
}

impl Ledger {
    fn ran_event(
        &mut self,
        scene: &Rc<Scene>,
        id: u64,
        event: &EventInfo,
        activation: ActivationNumber,
    ) -> Option<&'static str> {
        let key = key_of(event.stream.hash(), &event.subscription);
        self.counts.event_runs += 1;
        self.note(scene.now.get(), id, key.1 ^ u64::from(event.attempt));
        let entry = self.entry_mut(id);
        entry.runs = entry.runs.saturating_add(1);
        entry.runner = scene.process.get();
        let (state, source, sent) = (entry.state, entry.source, entry.sent);
        let attempts = self.events.runs.entry((id, key)).or_default();
        if attempts.contains(&event.attempt) {
            return Some("no handler runs twice for one event, subscription and attempt");
        }
        attempts.push(event.attempt);
        if state == State::Closed(Certainty::Rejected) {
            return Some("a rejected delivery never ran");
        }
        let place = (event.epoch, event.position);
        let cursor = self.events.cursors.entry((key, activation)).or_insert((event.epoch, 0));
        let (epoch, position) = *cursor;
        *cursor = place.max(*cursor);
        if event.epoch < epoch {
            return Some("I10 an activation hears no older owner");
        }
        if event.epoch == epoch && event.attempt == 1 && event.position <= position {
            return Some("I10 a cursor never goes back");
        }
        let last = self.events.orders.insert((source, key, activation), id);
        let is_overtaken = event.attempt == 1 && last.is_some_and(|last| last > id);
        (is_overtaken && !scene.broke_anywhere_since(sent))
            .then_some("FIFO per source and subscription")
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::{RejectedKind, ViewNumber};

    use super::super::tests::on_a_scene;
    use super::*;

    fn stream() -> Address {
        Address::parse("stream/room/one").unwrap()
    }

    const BUDGET: Duration = Duration::from_secs(1);

    fn owner(view: u64) -> ActivationNumber {
        ActivationNumber { view: ViewNumber(view), counter: 1 }
    }

    fn event(epoch: u64, position: u64, attempt: u8) -> EventInfo {
        EventInfo {
            stream: stream(),
            subscription: "key".into(),
            epoch: owner(epoch),
            position,
            missed: 0,
            attempt,
            origin: 1,
            number: 1,
        }
    }

    #[test]
    fn an_event_that_each_subscription_ran_is_sound() {
        let scene = on_a_scene();
        subscribed(&stream(), "key");
        scene.now.set(Moment::from_nanos(5));
        let source = Source::new();
        for position in 1..=3 {
            let sent = source.published(&stream(), BUDGET);
            ran_event(sent.id(), &event(1, position, 1), owner(9));
            sent.close_event(EventEnd::Through { failed: 0 });
        }
        assert!(scene.is_sound());
        assert_eq!(scene.ledger.borrow().counts().event_runs, 3);
    }

    #[test]
    fn what_breaks_a_promise_to_a_subscription_is_seen() {
        let runs = |runs: &[(u64, u64, u8)]| {
            let scene = on_a_scene();
            let sent = Source::new().published(&stream(), BUDGET);
            for (epoch, position, attempt) in runs {
                ran_event(sent.id(), &event(*epoch, *position, *attempt), owner(9));
            }
            drop(sent);
            scene.is_sound()
        };
        assert!(runs(&[(1, 1, 1), (1, 1, 2), (2, 1, 3)]), "attempts, and a later owner");
        assert!(!runs(&[(1, 1, 1), (2, 1, 1)]), "one attempt twice");
        assert!(!runs(&[(1, 1, 2), (2, 1, 2)]), "one attempt twice, by two owners");
        assert!(!runs(&[(2, 1, 1), (1, 2, 2)]), "an older owner");
    }

    #[test]
    fn an_owner_that_does_not_know_that_it_was_replaced_may_run_its_own_attempt_elsewhere() {
        let scene = on_a_scene();
        let sent = Source::new().published(&stream(), BUDGET);
        ran_event(sent.id(), &event(2, 1, 6), owner(9));
        ran_event(sent.id(), &event(1, 1, 1), owner(8));
        assert!(scene.is_sound());
        drop(sent);
    }

    #[test]
    fn a_skipped_subscription_and_a_rejected_event_that_ran_are_seen() {
        let scene = on_a_scene();
        subscribed(&stream(), "key");
        scene.now.set(Moment::from_nanos(5));
        Source::new().published(&stream(), BUDGET).close_event(EventEnd::Through { failed: 1 });
        let sent = Source::new().published(&stream(), BUDGET);
        let failure = DeliveryFailure::rejected(RejectedKind::Draining, "");
        let id = sent.id();
        ran_event(id, &event(1, 1, 1), owner(9));
        sent.close_event(EventEnd::Failed(&failure));
        assert_eq!(scene.violations().len(), 2, "handled by nobody, and rejected but run");
        unsubscribing(&stream(), "key");
    }

    #[test]
    fn an_acknowledged_subscription_that_is_left_out_is_seen() {
        let scene = on_a_scene();
        subscribed(&stream(), "key");
        subscribed(&stream(), "other");
        scene.now.set(Moment::from_nanos(5));
        let sent = Source::new().published(&stream(), BUDGET);
        ran_event(sent.id(), &event(1, 1, 1), owner(9));
        sent.close_event(EventEnd::Through { failed: 0 });
        assert!(!scene.is_sound());
    }
}
