//! The registrations of this shard's activations.
//!
//! - A registration is asked for until it is answered: again after [`DIRECTORY_RESEND_AFTER`], and
//!   at each view. An answer counts in the current view only: that is the barrier which lets a
//!   recovery rely on what this shard answered (see [`recovery`](super::recovery)).
//! - The end of an activation is told until it is confirmed; so is that of a lost registration of
//!   which a copy may still be on its way: or that copy would be granted to nobody.
//! - When ranges change hands, what is held there is asserted with the new owner, once and paced:
//!   an entry that was lost is back before anybody misses it. The losers among them are told.
//!
//! Bound: one record for each activation of the shard, and each that ended unconfirmed.
//! Deliberately absent: what an activation is. The shard starts and stops it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use siloring_core::limits::{
    ASSERT_DELAY, ASSERT_ITEMS_MAX, ASSERT_PERIOD, DIRECTORY_RESEND_AFTER,
};
use siloring_core::{ActivationNumber, Address, AddressHash, Endpoint, Moment, View, ViewNumber};

use super::DirectoryOutput;
use super::defect::Defect;
use super::message::{Ask, Holds, Item, ItemState};
use super::place::Place;
use super::schedule::Schedule;
use super::span::{Key, Span};
use super::step::Step;

/// The registrations.
#[derive(Debug, Default)]
pub(super) struct Registrar {
    activations: BTreeMap<Key, Activation>,
    /// Those that wait for an answer.
    schedule: Schedule<Key>,
    last_attempt: u64,
    walk: Option<Walk>,
}

#[derive(Debug)]
struct Activation {
    address: Address,
    attempt: u64,
    state: State,
    /// Sent in this state.
    tries: u32,
    due: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Asked for.
    Registering,
    /// Held.
    Registered(ActivationNumber),
    /// Ended; to be confirmed.
    Unregistering,
}

/// A walk over all registrations that asserts those whose owner is another than in `before`.
#[derive(Debug)]
struct Walk {
    before: Arc<View>,
    after: Option<Key>,
    due: Moment,
}

impl Registrar {
    /// Asks for the registration of a new activation.
    pub(super) fn register(&mut self, step: &mut Step<'_>, address: &Address) {
        let key = Key::of(address.hash());
        let known = self.activations.remove(&key);
        if let Some(ended) = known {
            assert_eq!(ended.state, State::Unregistering, "one activation of an address at a time");
            self.schedule.clear(key, ended.due);
        }
        self.last_attempt += 1;
        let (address, attempt) = (address.clone(), self.last_attempt);
        let (state, due) = (State::Registering, Moment::NEVER);
        self.activations.insert(key, Activation { address, attempt, state, tries: 0, due });
        self.ask(step, key);
    }

    /// The activation ended. If its registration was lost, there is nothing more to tell.
    pub(super) fn unregister(&mut self, step: &mut Step<'_>, hash: AddressHash) {
        let key = Key::of(hash);
        let open = |activation: &Activation| activation.state != State::Unregistering;
        if self.activations.get(&key).is_some_and(open) {
            if step.planted.has(Defect::EndsUntold) {
                self.remove(key);
                return;
            }
            self.end(step, key);
        }
    }

    fn end(&mut self, step: &mut Step<'_>, key: Key) {
        if let Some(activation) = self.activations.get_mut(&key) {
            (activation.state, activation.tries) = (State::Unregistering, 0);
            self.ask(step, key);
        }
    }

    /// Asks what is open about an address.
    fn ask(&mut self, step: &mut Step<'_>, key: Key) {
        let Some(activation) = self.activations.get_mut(&key) else {
            return;
        };
        let (hash, attempt) = (key.hash(), activation.attempt);
        let ask = match activation.state {
            State::Registering => Ask::Register { hash, attempt },
            State::Unregistering => Ask::Unregister { hash, attempt },
            State::Registered(_) => return,
        };
        self.schedule.set(key, &mut activation.due, step.now + DIRECTORY_RESEND_AFTER);
        if let Some(owner) = step.owner(key) {
            step.ask(owner, ask);
        }
    }

    fn remove(&mut self, key: Key) -> Option<Activation> {
        let activation = self.activations.remove(&key)?;
        self.schedule.clear(key, activation.due);
        Some(activation)
    }

    /// The range's owner names the winner, in our view.
    pub(super) fn registered(
        &mut self,
        step: &mut Step<'_>,
        hash: AddressHash,
        attempt: u64,
        winner: Place,
    ) {
        let key = Key::of(hash);
        let awaited = |a: &&mut Activation| a.attempt == attempt && a.state == State::Registering;
        let Some(activation) = self.activations.get_mut(&key).filter(awaited) else {
            return;
        };
        if winner.endpoint != step.me {
            let address = activation.address.clone();
            if activation.tries == 1 {
                self.remove(key);
            } else {
                self.end(step, key);
            }
            step.emit(DirectoryOutput::RegistrationLost { address, winner });
            return;
        }
        self.schedule.set(key, &mut activation.due, Moment::NEVER);
        activation.state = State::Registered(winner.number);
        let (address, number) = (activation.address.clone(), winner.number);
        step.emit(DirectoryOutput::Registered { address, number });
    }

    /// The range's owner confirms the end, in our view.
    pub(super) fn unregistered(&mut self, hash: AddressHash, attempt: u64) {
        let key = Key::of(hash);
        let ended = |a: &Activation| a.attempt == attempt && a.state == State::Unregistering;
        if self.activations.get(&key).is_some_and(ended) {
            self.remove(key);
        }
    }

    /// Another is the home of the address. Whether a registration of that attempt is still open:
    /// then its end is the confirmation.
    pub(super) fn evicted(
        &mut self,
        step: &mut Step<'_>,
        hash: AddressHash,
        attempt: u64,
        winner: Place,
    ) -> Holds {
        let key = Key::of(hash);
        let Some(activation) = self.activations.get(&key).filter(|a| a.attempt <= attempt) else {
            return Holds::No;
        };
        if activation.state != State::Unregistering {
            let address = activation.address.clone();
            self.end(step, key);
            step.emit(DirectoryOutput::RegistrationLost { address, winner });
        }
        Holds::Yes
    }

    /// Whether the activation of that attempt is here, or about to be.
    pub(super) fn holds(&self, hash: AddressHash, attempt: u64) -> Holds {
        let held = |a: &Activation| a.attempt == attempt && a.state != State::Unregistering;
        let held = self.activations.get(&Key::of(hash)).is_some_and(held);
        if held { Holds::Yes } else { Holds::No }
    }

    /// What is held in the spans behind a key.
    pub(super) fn report(&self, me: Endpoint, spans: &[Span], after: Option<Key>) -> Vec<Item> {
        spans
            .iter()
            .flat_map(|span| self.activations.range(span.keys()))
            .filter(|(key, _)| after.is_none_or(|after| **key > after))
            .filter_map(|(key, activation)| activation.item(*key, me))
            .collect()
    }

    /// A newer view: what is open is asked of its owner now, what is held is asserted later.
    pub(super) fn change_view(&mut self, step: &mut Step<'_>, before: &Arc<View>) {
        for key in self.schedule.keys() {
            self.ask(step, key);
        }
        if before.ring() == step.view.ring() || before.number() == ViewNumber::ZERO {
            return;
        }
        let before = self.walk.take().map_or_else(|| Arc::clone(before), |walk| walk.before);
        self.walk = Some(Walk { before, after: None, due: step.now + ASSERT_DELAY });
    }

    pub(super) fn tick(&mut self, step: &mut Step<'_>) {
        while let Some(key) = self.schedule.due(step.now) {
            self.ask(step, key);
        }
        if self.walk.as_ref().is_some_and(|walk| walk.due <= step.now) {
            self.walk_on(step);
        }
    }

    /// Asserts the next few.
    fn walk_on(&mut self, step: &mut Step<'_>) {
        let Some(mut walk) = self.walk.take() else {
            return;
        };
        let first = walk.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut by_owner: BTreeMap<Endpoint, Vec<Item>> = BTreeMap::new();
        let mut seen = 0;
        for (key, activation) in self.activations.range((first, Bound::Unbounded)) {
            if seen == ASSERT_ITEMS_MAX {
                break;
            }
            seen += 1;
            walk.after = Some(*key);
            let owner = step.owner(*key);
            let moved = walk.before.ring().owner(key.position()) != owner;
            if let (true, Some(owner), State::Registered(_)) = (moved, owner, activation.state) {
                by_owner.entry(owner).or_default().extend(activation.item(*key, step.me));
            }
        }
        for (owner, items) in by_owner {
            step.ask(owner, Ask::Assert { items });
        }
        if seen == ASSERT_ITEMS_MAX {
            walk.due = step.now + ASSERT_PERIOD;
            self.walk = Some(walk);
        }
    }

    pub(super) fn next_deadline(&self) -> Moment {
        let walk = self.walk.as_ref().map_or(Moment::NEVER, |walk| walk.due);
        self.schedule.next().min(walk)
    }

    /// How many activations have a record.
    pub(super) fn len(&self) -> usize {
        self.activations.len()
    }

    /// How many wait for an answer.
    pub(super) fn open_count(&self) -> usize {
        self.schedule.len()
    }
}

impl Activation {
    fn item(&self, key: Key, me: Endpoint) -> Option<Item> {
        let (number, state) = match self.state {
            State::Registered(number) => (number, ItemState::Registered),
            State::Registering => (NO_NUMBER, ItemState::Registering),
            State::Unregistering => return None,
        };
        let place = Place { endpoint: me, number };
        Some(Item { key, place, attempt: self.attempt, state })
    }
}

// An idle grain is to cost a kibibyte at most, all told.
const _: () = assert!(size_of::<Activation>() <= 128, "an idle activation's record is small");

/// Of what is only in flight.
pub(super) const NO_NUMBER: ActivationNumber =
    ActivationNumber { view: ViewNumber::ZERO, counter: 0 };
