//! Where addresses live, as far as this shard knows: a bounded cache, and look-ups in flight.
//!
//! - A hit is one probe of one map.
//! - A look-up is asked again after [`DIRECTORY_RESEND_AFTER`] and at each view, until it is
//!   answered or nobody waits for it.
//! - That an address has no home is believed in the current view only; where a home is, in any.
//! - Bounds: [`PLACE_CACHE_MAX`] places, the oldest making room; [`OPEN_DELIVERIES_MAX`] look-ups,
//!   since each open delivery waits for one at most.
//!
//! Deliberately absent: who waits. The shard keeps that.

use core::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use siloring_core::hash::HashMap;
use siloring_core::limits::{DIRECTORY_RESEND_AFTER, OPEN_DELIVERIES_MAX, PLACE_CACHE_MAX};
use siloring_core::{Address, AddressHash, Moment, View, ViewNumber};

use super::message::Ask;
use super::place::Place;
use super::schedule::Schedule;
use super::span::Key;
use super::step::{Step, somebody_left};
use super::{DirectoryOutput, Lookup, Unlocated};

/// Places that a shard remembers: its locator writes them, its futures may look.
pub(crate) type KnownPlaces = Rc<RefCell<HashMap<AddressHash, Place>>>;

/// The cache and the look-ups in flight.
#[derive(Debug, Default)]
pub(super) struct Locator {
    places: KnownPlaces,
    /// In order of arrival; may name places that were forgotten since.
    order: VecDeque<AddressHash>,
    pending: BTreeMap<Key, Pending>,
    schedule: Schedule<Key>,
}

#[derive(Debug)]
struct Pending {
    address: Address,
    due: Moment,
}

impl Locator {
    /// The cache, to look at.
    pub(super) fn places(&self) -> KnownPlaces {
        Rc::clone(&self.places)
    }

    /// The cached place.
    #[inline]
    pub(super) fn cached(&self, hash: AddressHash) -> Option<Place> {
        self.places.borrow().get(&hash).copied()
    }

    /// The cached place, or a look-up.
    pub(super) fn lookup(&mut self, step: &mut Step<'_>, address: &Address) -> Lookup {
        if let Some(place) = self.cached(address.hash()) {
            return Lookup::Cached(place);
        }
        let key = Key::of(address.hash());
        if self.pending.contains_key(&key) {
            return Lookup::Pending;
        }
        if self.pending.len() >= OPEN_DELIVERIES_MAX {
            let (result, view) = (Err(Unlocated::Overloaded), step.view.number());
            step.emit(DirectoryOutput::Located { address: address.clone(), result, view });
            return Lookup::Pending;
        }
        self.pending.insert(key, Pending { address: address.clone(), due: Moment::NEVER });
        self.ask(step, key);
        Lookup::Pending
    }

    fn ask(&mut self, step: &mut Step<'_>, key: Key) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        self.schedule.set(key, &mut pending.due, step.now + DIRECTORY_RESEND_AFTER);
        if let Some(owner) = step.owner(key) {
            step.ask(owner, Ask::Lookup { hash: key.hash() });
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn abandon(&mut self, hash: AddressHash) {
        drop(self.take(Key::of(hash)));
    }

    fn take(&mut self, key: Key) -> Option<Pending> {
        let pending = self.pending.remove(&key)?;
        self.schedule.clear(key, pending.due);
        Some(pending)
    }

    /// A home that somebody named; an older one than the cached changes nothing.
    pub(super) fn learn(&mut self, hash: AddressHash, place: Place) {
        if self.cached(hash).is_none_or(|known| known.number < place.number) {
            self.keep(hash, place);
        }
    }

    fn keep(&mut self, hash: AddressHash, place: Place) {
        let mut places = self.places.borrow_mut();
        if places.insert(hash, place).is_some() {
            return;
        }
        self.order.push_back(hash);
        while places.len() > PLACE_CACHE_MAX {
            let oldest = self.order.pop_front().expect("each cached place is in the order");
            places.remove(&oldest);
        }
        if self.order.len() > 2 * PLACE_CACHE_MAX {
            self.order = places.keys().copied().collect();
        }
    }

    /// The address does not live there (`None`: wherever the cache says).
    pub(super) fn forget(&mut self, hash: AddressHash, place: Option<Place>) {
        if place.is_none_or(|place| self.cached(hash) == Some(place)) {
            self.places.borrow_mut().remove(&hash);
        }
    }

    /// The range's owner answers.
    pub(super) fn located(
        &mut self,
        step: &mut Step<'_>,
        view: ViewNumber,
        hash: AddressHash,
        place: Option<Place>,
    ) {
        let believed = match place {
            Some(place) => step.lives(place.endpoint.silo),
            None => view == step.view.number(),
        };
        let Some(pending) = believed.then(|| self.take(Key::of(hash))).flatten() else {
            return;
        };
        match place {
            Some(place) => self.keep(hash, place),
            None => self.forget(hash, None),
        }
        step.emit(DirectoryOutput::Located { address: pending.address, result: Ok(place), view });
    }

    /// A newer view: places on silos that left are forgotten, look-ups are asked again.
    pub(super) fn change_view(&mut self, step: &mut Step<'_>, before: &View) {
        if somebody_left(before, step.view) {
            self.places.borrow_mut().retain(|_, place| step.lives(place.endpoint.silo));
        }
        for key in self.schedule.keys() {
            self.ask(step, key);
        }
    }

    pub(super) fn tick(&mut self, step: &mut Step<'_>) {
        while let Some(key) = self.schedule.due(step.now) {
            self.ask(step, key);
        }
    }

    pub(super) fn next_deadline(&self) -> Moment {
        self.schedule.next()
    }

    /// How many look-ups are open.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::{ActivationNumber, Endpoint, Generation, ShardIndex};

    fn place(counter: u64) -> Place {
        let endpoint = Endpoint { silo: Generation(1), shard: ShardIndex(0) };
        Place { endpoint, number: ActivationNumber { view: ViewNumber(1), counter } }
    }

    #[test]
    fn the_cache_is_bounded_and_the_oldest_makes_room() {
        let mut locator = Locator::default();
        let beyond = 10;
        for index in 0..PLACE_CACHE_MAX as u128 + beyond {
            locator.learn(AddressHash(index), place(1));
        }
        assert_eq!(locator.places.borrow().len(), PLACE_CACHE_MAX);
        assert_eq!(locator.cached(AddressHash(beyond - 1)), None);
        assert_eq!(locator.cached(AddressHash(beyond)), Some(place(1)));
    }

    #[test]
    fn forgetting_and_learning_again_does_not_grow_the_order() {
        let mut locator = Locator::default();
        for counter in 0..3 * PLACE_CACHE_MAX as u64 {
            locator.learn(AddressHash(7), place(counter));
            locator.forget(AddressHash(7), None);
        }
        assert!(locator.order.len() <= 2 * PLACE_CACHE_MAX);
    }

    #[test]
    fn only_the_named_place_is_forgotten() {
        let mut locator = Locator::default();
        locator.learn(AddressHash(7), place(2));
        locator.forget(AddressHash(7), Some(place(1)));
        assert_eq!(locator.cached(AddressHash(7)), Some(place(2)));
        locator.forget(AddressHash(7), Some(place(2)));
        assert_eq!(locator.cached(AddressHash(7)), None);
    }
}
