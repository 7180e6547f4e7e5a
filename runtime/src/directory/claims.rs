//! The claims of this shard's hubs.
//!
//! - A claim is made only once the silo is Active, and made until it is answered: again after
//!   [`DIRECTORY_RESEND_AFTER`] and at each view, one in flight at a time. It is never given up.
//! - A held claim is asserted again when its range has a new owner (after a jitter that grows with
//!   the cluster, so that not all hubs do so at once) and every [`CLAIM_LEASE`].
//! - Another's claim ends it: before it was held as refused, afterwards as lost.
//! - The end of a hub is told until it is confirmed; so is that of a lost claim of which a copy may
//!   still be on its way: or that copy would be granted to nobody.
//! - A closed hub is remembered for [`TOMBSTONE_TIME`], so that a recovery learns of it.
//!
//! Bound: one record for each hub of the shard and each closed one not confirmed, and
//! [`TOMBSTONES_MAX`] remembered ones. Deliberately absent: what a hub is. The shard opens and
//! closes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::limits::{
    CLAIM_JITTER_MAX, CLAIM_JITTER_PER_SILO, CLAIM_LEASE, CLAIM_TRIES_QUIET,
    DIRECTORY_RESEND_AFTER, TOMBSTONE_TIME, TOMBSTONES_MAX,
};
use siloring_core::{Address, AddressHash, ClaimNumber, Endpoint, Moment, View};

use super::DirectoryOutput;
use super::defect::Defect;
use super::entries::left_ms;
use super::message::{Ask, Holds, Item, ItemState};
use super::place::Place;
use super::registrar::NO_NUMBER;
use super::schedule::Schedule;
use super::span::{Key, Span};
use super::step::Step;

/// Whether a claim replaces a living holder.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// A living holder keeps the hub.
    No,
    /// A living holder loses it.
    Yes,
}

/// The claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    hubs: BTreeMap<Key, Hub>,
    schedule: Schedule<Key>,
    last_attempt: u64,
    closed: BTreeMap<Key, Closed>,
    closed_schedule: Schedule<Key>,
}

#[derive(Debug)]
struct Hub {
    address: Address,
    attempt: u64,
    take_over: TakeOver,
    state: State,
    /// Sent without an answer.
    tries: u32,
    due: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The silo is not Active yet.
    Waiting,
    /// Asked for.
    Claiming,
    /// Held.
    Held(ClaimNumber),
    /// Held, and asserted again: the answer is open.
    Asserting(ClaimNumber),
    /// Closed; to be confirmed.
    Releasing(Option<ClaimNumber>),
}

/// A closed hub, remembered.
#[derive(Debug)]
struct Closed {
    number: ClaimNumber,
    attempt: u64,
    until: Moment,
}

impl Claims {
    /// Claims a hub.
    pub(super) fn claim(&mut self, step: &mut Step<'_>, address: &Address, take_over: TakeOver) {
        let key = Key::of(address.hash());
        if let Some(closed) = self.remove(key) {
            let is_closed = matches!(closed.state, State::Releasing(_));
            assert!(is_closed, "one hub of an address at a time");
        }
        self.last_attempt += 1;
        let (address, attempt) = (address.clone(), self.last_attempt);
        let (state, due) = (State::Waiting, Moment::NEVER);
        self.hubs.insert(key, Hub { address, attempt, take_over, state, tries: 0, due });
        if step.may_hold(step.me.silo) || step.planted.has(Defect::ClaimBeforeActive) {
            self.ask(step, key);
        }
    }

    /// The hub is closed.
    pub(super) fn release(&mut self, step: &mut Step<'_>, hash: AddressHash) {
        let key = Key::of(hash);
        let Some(hub) = self.hubs.get_mut(&key) else {
            return;
        };
        let number = match hub.state {
            State::Releasing(_) => return,
            State::Waiting => {
                self.remove(key);
                return;
            }
            State::Claiming => None,
            State::Held(number) | State::Asserting(number) => Some(number),
        };
        let attempt = hub.attempt;
        if let Some(number) = number.filter(|_| !step.planted.has(Defect::NoTombstone)) {
            self.remember(step, key, number, attempt);
        }
        self.end(step, key, number);
    }

    fn end(&mut self, step: &mut Step<'_>, key: Key, number: Option<ClaimNumber>) {
        if let Some(hub) = self.hubs.get_mut(&key) {
            (hub.state, hub.tries) = (State::Releasing(number), 0);
            self.ask(step, key);
        }
    }

    fn remember(&mut self, step: &mut Step<'_>, key: Key, number: ClaimNumber, attempt: u64) {
        self.forget_closed(key);
        let mut closed = Closed { number, attempt, until: Moment::NEVER };
        self.closed_schedule.set(key, &mut closed.until, step.now + TOMBSTONE_TIME);
        self.closed.insert(key, closed);
        if self.closed.len() > TOMBSTONES_MAX
            && let Some(earliest) = self.closed_schedule.first()
        {
            self.forget_closed(earliest);
            step.event(Event::TombstoneDropped { address: earliest.hash() });
        }
    }

    fn forget_closed(&mut self, key: Key) {
        if let Some(closed) = self.closed.remove(&key) {
            self.closed_schedule.clear(key, closed.until);
        }
    }

    fn remove(&mut self, key: Key) -> Option<Hub> {
        let hub = self.hubs.remove(&key)?;
        self.schedule.clear(key, hub.due);
        Some(hub)
    }

    /// Says what is to be said about a hub, and when to say it again.
    fn ask(&mut self, step: &mut Step<'_>, key: Key) {
        let Some(hub) = self.hubs.get_mut(&key) else {
            return;
        };
        let (hash, attempt, take_over) = (key.hash(), hub.attempt, hub.take_over);
        let ask = match hub.state {
            State::Waiting | State::Claiming => {
                hub.state = State::Claiming;
                Ask::Claim { hash, attempt, held: None, take_over }
            }
            State::Held(number) | State::Asserting(number) => {
                hub.state = State::Asserting(number);
                Ask::Claim { hash, attempt, held: Some(number), take_over: TakeOver::No }
            }
            State::Releasing(number) => Ask::Release { hash, attempt, number },
        };
        if hub.tries >= 6 && step.planted.has(Defect::ClaimGivesUp) {
            self.schedule.set(key, &mut hub.due, Moment::NEVER);
            return;
        }
        hub.tries = hub.tries.saturating_add(1);
        if hub.tries >= CLAIM_TRIES_QUIET && hub.tries.is_power_of_two() {
            let (address, tries) = (hub.address.clone(), hub.tries);
            step.event(Event::HubClaimUnanswered { address, tries });
        }
        self.schedule.set(key, &mut hub.due, step.now + DIRECTORY_RESEND_AFTER);
        if let Some(owner) = step.owner(key) {
            step.ask(owner, ask);
        }
    }

    /// The range's owner grants the claim, in our view.
    pub(super) fn claimed(
        &mut self,
        step: &mut Step<'_>,
        hash: AddressHash,
        attempt: u64,
        number: ClaimNumber,
    ) {
        let key = Key::of(hash);
        let Some(hub) = self.hubs.get_mut(&key).filter(|hub| hub.attempt == attempt) else {
            return;
        };
        match hub.state {
            State::Claiming => {
                let address = hub.address.clone();
                step.event(Event::HubClaimed { address: address.clone(), number });
                step.emit(DirectoryOutput::Claimed { address, number });
            }
            State::Asserting(_) => {}
            State::Waiting | State::Held(_) | State::Releasing(_) => return,
        }
        (hub.state, hub.tries) = (State::Held(number), 0);
        let once = step.planted.has(Defect::ClaimOnceOnly);
        let again = if once { Moment::NEVER } else { step.now + CLAIM_LEASE };
        self.schedule.set(key, &mut hub.due, again);
    }

    /// The range's owner says who holds the hub, in our view.
    pub(super) fn refused(
        &mut self,
        step: &mut Step<'_>,
        hash: AddressHash,
        attempt: u64,
        holder: Place,
    ) {
        let key = Key::of(hash);
        let Some(hub) = self.hubs.get(&key).filter(|hub| hub.attempt == attempt) else {
            return;
        };
        if step.planted.has(Defect::RefusalRetried) {
            return;
        }
        // The one copy that was sent is answered: there is nothing to take back.
        if hub.state == State::Claiming && hub.tries == 1 {
            let address = hub.address.clone();
            self.remove(key);
            step.emit(DirectoryOutput::ClaimRefused { address, holder });
        } else {
            self.lose(step, key, holder);
        }
    }

    /// Another has taken the hub over. Whether a claim of that attempt is still open: then its end
    /// is the confirmation.
    pub(super) fn evicted(
        &mut self,
        step: &mut Step<'_>,
        hash: AddressHash,
        attempt: u64,
        winner: Place,
    ) -> Holds {
        let key = Key::of(hash);
        if self.hubs.get(&key).is_none_or(|hub| hub.attempt > attempt) {
            return Holds::No;
        }
        self.lose(step, key, winner);
        Holds::Yes
    }

    fn lose(&mut self, step: &mut Step<'_>, key: Key, holder: Place) {
        let Some(hub) = self.hubs.get(&key) else {
            return;
        };
        let address = hub.address.clone();
        let output = match hub.state {
            State::Waiting | State::Claiming => DirectoryOutput::ClaimRefused { address, holder },
            State::Held(_) | State::Asserting(_) => DirectoryOutput::ClaimLost { address, holder },
            // It was closed anyway.
            State::Releasing(_) => return,
        };
        self.end(step, key, None);
        step.emit(output);
    }

    /// The range's owner confirms the release, in our view.
    pub(super) fn released(&mut self, hash: AddressHash, attempt: u64) {
        let key = Key::of(hash);
        let done = |hub: &Hub| hub.attempt == attempt && matches!(hub.state, State::Releasing(_));
        if self.hubs.get(&key).is_some_and(done) {
            self.remove(key);
        }
    }

    /// The range's owner cannot handle a request about the hub now: it is asked again when due.
    pub(super) fn moving(&mut self, step: &Step<'_>, hash: AddressHash) {
        if step.planted.has(Defect::SingleAttach) {
            self.remove(Key::of(hash));
        }
    }

    /// Whether the hub of that attempt is here, or about to be.
    pub(super) fn holds(&self, hash: AddressHash, attempt: u64) -> Holds {
        let held = |hub: &Hub| hub.attempt == attempt && !matches!(hub.state, State::Releasing(_));
        if self.hubs.get(&Key::of(hash)).is_some_and(held) { Holds::Yes } else { Holds::No }
    }

    /// What is held, claimed or closed in the spans behind a key.
    pub(super) fn report(&self, step: &Step<'_>, spans: &[Span], after: Option<Key>) -> Vec<Item> {
        let (me, now) = (step.me, step.now);
        let hubs = spans
            .iter()
            .flat_map(|span| self.hubs.range(span.keys()))
            .filter_map(|(key, hub)| hub.item(*key, me));
        let closed = spans
            .iter()
            .flat_map(|span| self.closed.range(span.keys()))
            .map(|(key, closed)| closed.item(*key, me, now));
        hubs.chain(closed).filter(|item| after.is_none_or(|after| item.key > after)).collect()
    }

    /// A newer view: what is open is asked of its owner now; what is held, soon, if its owner is
    /// new.
    pub(super) fn change_view(&mut self, step: &mut Step<'_>, before: &Arc<View>) {
        let may_hold = step.may_hold(step.me.silo);
        let same_ring = before.ring() == step.view.ring();
        let keys: Vec<_> = self.hubs.keys().copied().collect();
        for key in keys {
            let hub = self.hubs.get_mut(&key).expect("listed above");
            match hub.state {
                State::Waiting if may_hold => self.ask(step, key),
                State::Waiting => {}
                State::Claiming | State::Asserting(_) | State::Releasing(_) => {
                    if !step.planted.has(Defect::NoSwitch) {
                        self.ask(step, key);
                    }
                    if step.planted.has(Defect::AskedTwice) {
                        self.ask(step, key);
                    }
                }
                State::Held(_) => {
                    let owner = step.owner(key);
                    let moved = !same_ring && before.ring().owner(key.position()) != owner;
                    if moved && !step.planted.has(Defect::ClaimOnceOnly) {
                        let at = step.now + jitter(step);
                        self.schedule.set(key, &mut hub.due, at);
                    }
                }
            }
        }
    }

    pub(super) fn tick(&mut self, step: &mut Step<'_>) {
        while let Some(key) = self.schedule.due(step.now) {
            self.ask(step, key);
        }
        while let Some(key) = self.closed_schedule.due(step.now) {
            self.forget_closed(key);
        }
    }

    pub(super) fn next_deadline(&self) -> Moment {
        self.schedule.next().min(self.closed_schedule.next())
    }

    /// How many hubs have a record, and how many closed ones are remembered.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.hubs.len(), self.closed.len())
    }
}

/// How long a held claim waits before it is asserted with a new owner.
fn jitter(step: &mut Step<'_>) -> Duration {
    let silos = u32::try_from(step.view.active().count()).unwrap_or(u32::MAX);
    let window = CLAIM_JITTER_PER_SILO.saturating_mul(silos).min(CLAIM_JITTER_MAX);
    let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(step.rng.u64(0..=window_ns))
}

impl Hub {
    fn item(&self, key: Key, me: Endpoint) -> Option<Item> {
        let (place, state) = match self.state {
            State::Held(number) | State::Asserting(number) => {
                (Place::of_claim(me, number), ItemState::Claimed)
            }
            State::Claiming => (Place { endpoint: me, number: NO_NUMBER }, ItemState::Claiming),
            State::Waiting | State::Releasing(_) => return None,
        };
        Some(Item { key, place, attempt: self.attempt, state })
    }
}

// An idle hub is to cost a kibibyte at most, all told.
const _: () = assert!(size_of::<Hub>() <= 160, "an idle hub's record is small");

impl Closed {
    fn item(&self, key: Key, me: Endpoint, now: Moment) -> Item {
        let place = Place::of_claim(me, self.number);
        let state = ItemState::Released { left_ms: left_ms(self.until, now) };
        Item { key, place, attempt: self.attempt, state }
    }
}
