//! What was answered when: whether all of it can have happened in one order.
//!
//! Each answer of a key carries its *place* in the one order that the key's operations must have
//! had: for a grain the number of its activation and a count within; for a durable set the length
//! of its list. Linearizability then says: places are unique, and an operation that
//! began after another had been answered has a higher place. Both are checked as answers come, at
//! constant cost, without search: for operations that tell their place this is the whole of it
//! (Herlihy and Wing, *Linearizability: a correctness condition for concurrent objects*, 1990).
//!
//! An operation without an answer may have happened or not, and claims no place.
//!
//! Deliberately absent: what a program hears on a silo that is gone and does not know it yet.

use std::collections::{BTreeMap, BTreeSet};

use siloring_core::{ActivationNumber, Address};

use super::scene::{self, Scene};

/// Where in a key's order an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Place {
    /// Who carried it out.
    pub by: ActivationNumber,
    /// Which of that one's it was.
    pub count: u64,
}

/// An operation that has begun.
#[derive(Debug)]
#[must_use = "it is checked when it is answered"]
pub(super) struct Begun {
    key: Address,
    /// The highest place that had been answered when it began.
    after: Option<Place>,
}

/// The answers of every key.
#[derive(Debug, Default)]
pub(super) struct Histories {
    keys: BTreeMap<Address, History>,
}

#[derive(Debug, Default)]
struct History {
    highest: Option<Place>,
    taken: BTreeSet<Place>,
}

/// Places remembered of a key: older ones are far below what can still come.
const TAKEN_MAX: usize = 4 * 1024;

impl Histories {
    fn begin(&self, key: &Address) -> Begun {
        let after = self.keys.get(key).and_then(|history| history.highest);
        Begun { key: key.clone(), after }
    }

    /// Says what contradicts the answer.
    fn answered(&mut self, begun: &Begun, place: Place) -> Option<String> {
        let history = self.keys.entry(begun.key.clone()).or_default();
        history.highest = history.highest.max(Some(place));
        let is_first = history.taken.insert(place);
        if history.taken.len() > TAKEN_MAX {
            history.taken.pop_first();
        }
        if begun.after >= Some(place) {
            return Some(format!("{}: {place:?} after {:?}", begun.key, begun.after));
        }
        (!is_first).then(|| format!("{}: {place:?} twice", begun.key))
    }

    fn read(&mut self, begun: &Begun, place: Place) -> Option<String> {
        let history = self.keys.entry(begun.key.clone()).or_default();
        history.highest = history.highest.max(Some(place));
        let is_stale = begun.after > Some(place);
        is_stale.then(|| format!("{}: read {place:?} after {:?}", begun.key, begun.after))
    }
}

/// An operation on `key` begins; outside of a world it is checked against nothing.
pub(super) fn begin(key: &Address) -> Begun {
    let begun = scene::with(|scene| scene.histories.borrow().begin(key));
    begun.unwrap_or(Begun { key: key.clone(), after: None })
}

/// It is answered.
pub(super) fn answered(begun: &Begun, place: Place) {
    scene::with(|scene| {
        if is_beyond_the_view(scene) {
            return;
        }
        let contradiction = scene.histories.borrow_mut().answered(begun, place);
        if let Some(text) = contradiction {
            scene.violate("answers of one key are in one order", text);
        }
    });
}

/// It is answered with what it read, as of a place: no earlier than what was answered before it
/// began. Any number of reads have one place.
pub(super) fn read(begun: &Begun, place: Place) {
    scene::with(|scene| {
        if is_beyond_the_view(scene) {
            return;
        }
        let contradiction = scene.histories.borrow_mut().read(begun, place);
        if let Some(text) = contradiction {
            scene.violate("answers of one key are in one order", text);
        }
    });
}

/// Whether whoever hears the answer is on a silo that is gone and does not know it: what it hears
/// of its own activations nobody else accepts.
fn is_beyond_the_view(scene: &Scene) -> bool {
    scene.process.get().is_some_and(|process| scene.checks.borrow().is_gone(process))
}

/// Turns under way, of activations that have one at a time.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeSet<(Address, ActivationNumber)>);

/// A turn of an activation that has one at a time; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the turn ends with it"]
pub(super) struct Turn(Option<(Address, ActivationNumber)>);

impl Turn {
    /// *I8*: no other turn of this activation is under way.
    pub(super) fn begin(address: &Address, number: ActivationNumber) -> Self {
        let which = (address.clone(), number);
        let alone = scene::with(|scene| {
            let is_alone = scene.turns.borrow_mut().0.insert(which.clone());
            if !is_alone {
                scene.violate("I8 one turn at a time", format!("{address} {number:?}"));
            }
            is_alone
        });
        Self((alone == Some(true)).then_some(which))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(which) = self.0.take() {
            scene::with(|scene| scene.turns.borrow_mut().0.remove(&which));
        }
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::ViewNumber;

    use super::*;

    fn place(view: u64, count: u64) -> Place {
        Place { by: ActivationNumber { view: ViewNumber(view), counter: 1 }, count }
    }

    fn key() -> Address {
        Address::of("test", "one").unwrap()
    }

    #[test]
    fn operations_at_once_may_be_in_any_order_and_others_in_one() {
        let mut histories = Histories::default();
        let (first, second) = (histories.begin(&key()), histories.begin(&key()));
        assert_eq!(histories.answered(&second, place(1, 2)), None);
        assert_eq!(histories.answered(&first, place(1, 1)), None, "both were under way");
        let later = histories.begin(&key());
        assert!(histories.answered(&later, place(1, 1)).is_some(), "it began after two answers");
        let newer = histories.begin(&key());
        assert_eq!(histories.answered(&newer, place(2, 1)), None, "of a later activation");
        let stale = histories.begin(&key());
        assert!(histories.answered(&stale, place(1, 9)).is_some(), "of one that was replaced");
    }

    #[test]
    fn no_two_operations_have_one_place() {
        let mut histories = Histories::default();
        let (first, second) = (histories.begin(&key()), histories.begin(&key()));
        assert_eq!(histories.answered(&first, place(1, 1)), None);
        assert!(
            histories.answered(&second, place(1, 1)).is_some_and(|text| text.contains("twice"))
        );
    }
}
