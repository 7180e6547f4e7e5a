//! Requests that wait: for a view this shard does not have yet, for a range that is moving in, or
//! for a home that is being asked whether it is one.
//!
//! A second copy of a request replaces the first. Bounded by [`DIRECTORY_PARKED_MAX`]; beyond it
//! the asker is told to ask again.

use std::collections::BTreeMap;

use siloring_core::limits::DIRECTORY_PARKED_MAX;
use siloring_core::{AddressHash, Endpoint, ViewNumber};

use super::message::Ask;
use super::span::{Key, Span};
use super::step::Caller;

/// A request that waits, and the view it was made in.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) caller: Caller,
    pub(super) view: ViewNumber,
    pub(super) ask: Ask,
}

/// Which request of which shard about one address.
type Slot = (u8, Endpoint, u64);

/// The requests, by address.
#[derive(Debug, Default)]
pub(super) struct Parked {
    waiting: BTreeMap<Key, BTreeMap<Slot, Waiting>>,
    count: usize,
}

impl Parked {
    /// Keeps a request, or says about which address its asker must ask again.
    pub(super) fn keep(&mut self, request: Waiting) -> Result<(), AddressHash> {
        let (key, slot) = slot_of(&request);
        let known = self.waiting.get(&key).is_some_and(|slots| slots.contains_key(&slot));
        if !known {
            if self.count >= DIRECTORY_PARKED_MAX {
                return Err(key.hash());
            }
            self.count += 1;
        }
        self.waiting.entry(key).or_default().insert(slot, request);
        Ok(())
    }

    /// Takes out everything.
    pub(super) fn take_all(&mut self) -> Vec<Waiting> {
        self.count = 0;
        let all = core::mem::take(&mut self.waiting);
        all.into_values().flat_map(BTreeMap::into_values).collect()
    }

    /// Takes out what waits in the span.
    pub(super) fn take(&mut self, span: Span) -> Vec<Waiting> {
        let keys: Vec<_> = self.waiting.range(span.keys()).map(|(key, _)| *key).collect();
        let all: Vec<_> = keys
            .iter()
            .filter_map(|key| self.waiting.remove(key))
            .flat_map(BTreeMap::into_values)
            .collect();
        self.count -= all.len();
        all
    }

    /// How many wait.
    pub(super) const fn len(&self) -> usize {
        self.count
    }
}

/// Where a request waits. What waits for one address is tried again in this order: an end comes
/// after the beginning it may be the end of, and ends nothing that began later.
fn slot_of(request: &Waiting) -> (Key, Slot) {
    let (key, kind, extra) = match &request.ask {
        Ask::Lookup { hash } => (Key::of(*hash), 0, 0),
        Ask::Register { hash, attempt } => (Key::of(*hash), 1, *attempt),
        Ask::Claim { hash, attempt, .. } => (Key::of(*hash), 2, *attempt),
        Ask::Assert { items } => (items.first().map_or(Key(0), |item| item.key), 3, 0),
        Ask::Unregister { hash, attempt } => (Key::of(*hash), 4, *attempt),
        Ask::Release { hash, attempt, .. } => (Key::of(*hash), 5, *attempt),
        Ask::Refused { hash, .. } => (Key::of(*hash), 6, 0),
        Ask::HandOverAsk { span, .. } => (*span.keys().start(), 7, 0),
        Ask::HandOverDone { spans } => (first_key(spans), 8, 0),
        Ask::Offer { spans } => (first_key(spans), 9, 0),
        Ask::RecoverAsk { recovery, spans, .. } => (first_key(spans), 10, *recovery),
    };
    (key, (kind, request.caller.endpoint, extra))
}

fn first_key(spans: &[Span]) -> Key {
    spans.first().map_or(Key(0), |span| *span.keys().start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::{Generation, ShardIndex};

    fn lookup(position: u64) -> Waiting {
        let endpoint = Endpoint { silo: Generation(1), shard: ShardIndex(0) };
        let caller = Caller { endpoint, via: None };
        let hash = AddressHash(u128::from(position));
        Waiting { caller, view: ViewNumber(1), ask: Ask::Lookup { hash } }
    }

    #[test]
    fn a_copy_replaces_and_a_span_takes_out_its_own() {
        let mut parked = Parked::default();
        for position in [5, 7, 7, 9] {
            parked.keep(lookup(position)).unwrap();
        }
        assert_eq!(parked.len(), 3);
        let taken = parked.take(Span { first: 6, last: 9 });
        assert_eq!(taken.len(), 2);
        assert_eq!(parked.len(), 1);
        assert_eq!(parked.take_all().len(), 1);
        assert_eq!(parked.len(), 0);
    }

    #[test]
    fn a_request_beyond_the_bound_is_sent_back_and_a_copy_of_a_known_one_is_not() {
        let mut parked = Parked::default();
        for position in 0..DIRECTORY_PARKED_MAX as u64 {
            parked.keep(lookup(position)).unwrap();
        }
        assert_eq!(parked.keep(lookup(3)), Ok(()));
        let beyond = DIRECTORY_PARKED_MAX as u64;
        assert_eq!(parked.keep(lookup(beyond)), Err(AddressHash(u128::from(beyond))));
        assert_eq!(parked.len(), DIRECTORY_PARKED_MAX);
    }
}
