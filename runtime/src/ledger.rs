//! The ledger: every delivery that a shard has sent and that has no outcome yet.
//!
//! The promise lives here and only here. Contract:
//! - [`Ledger::open`] enters a delivery and names it; [`Ledger::close`] takes it out, exactly once.
//!   A name of a closed delivery names nothing, so that a second outcome finds nobody.
//! - An open delivery keeps what it takes to send it again, until its outcome.
//! - Each has a deadline in the shard's wheel; the shard closes it at the latest one tick after.
//! - Bound: [`OPEN_DELIVERIES_MAX`]; at it `open` gives the delivery back.
//!
//! Deliberately absent: where a delivery goes (`route.rs`), what an outcome means
//! (`shard/outbound.rs`).

use core::fmt;

use siloring_core::address::{Address, AddressHash};
use siloring_core::body::Body;
use siloring_core::ids::{CorrelationId, Generation, MethodId, ShardIndex};
use siloring_core::limits::OPEN_DELIVERIES_MAX;
use siloring_core::outcome::DeliveryFailure;
use siloring_core::schema::Schema;
use siloring_core::time::Moment;
use slab::Slab;

use crate::call::Waiter;
use crate::directory::Place;
use crate::envelope::Envelope;
use crate::exec::wheel::TimerKey;
use crate::links::Sent;
use crate::route::Sender;

/// How far a delivery has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Waits for its sending hub's claim.
    Gated,
    /// Waits for the directory.
    Locating,
    /// Waits for a link.
    Linking(Generation),
    /// On a link, perhaps handed over.
    Sent {
        /// To whom.
        peer: Generation,
        /// Where in the stream.
        sent: Sent,
    },
    /// With another shard of this silo.
    Posted(ShardIndex),
    /// With an activation or hub of this shard.
    Delivered,
    /// Waits before it is tried again.
    Backoff,
}

/// An open delivery.
#[derive(Debug)]
pub struct OpenDelivery {
    /// Order of opening on this shard.
    pub sequence: u64,
    /// To whom.
    pub target: Address,
    /// From whom.
    pub source: Option<Address>,
    /// Which method, or message type.
    pub method: MethodId,
    /// What the body is.
    pub arguments: Schema,
    /// What the reply must be.
    pub reply: Schema,
    /// The arguments' archive; empty while it is with an activation of this shard.
    pub body: Body,
    /// Identity, headers, chain, trace.
    pub envelope: Option<Box<Envelope>>,
    /// Its outcome comes at the latest one tick after this.
    pub deadline: Moment,
    /// Its entry in the wheel.
    pub deadline_timer: TimerKey,
    /// Its entry in the wheel while it waits to be tried again.
    pub retry_timer: Option<TimerKey>,
    /// Who hears the outcome.
    pub waiter: Waiter,
    /// Whether it passes while the silo drains.
    pub sender: Sender,
    /// The activation whose turn sent it.
    pub owner: Option<u32>,
    /// How far it has come.
    pub stage: Stage,
    /// The place it went to, if the directory named one.
    pub place: Option<Place>,
    /// How often it has been sent.
    pub attempts: u8,
    /// Redirections that the present try has followed.
    pub forwards: u8,
    /// The last transient refusal.
    pub last_refusal: Option<DeliveryFailure>,
}

impl OpenDelivery {
    /// Whether nobody's turn waits for it.
    pub const fn is_one_way(&self) -> bool {
        matches!(self.waiter, Waiter::Nobody | Waiter::Callback(_))
    }

    /// The hash of its sender's address.
    pub fn source_hash(&self) -> AddressHash {
        self.source.as_ref().map_or(AddressHash::NONE, Address::hash)
    }
}

struct Entry {
    reuse: u32,
    delivery: OpenDelivery,
}

/// The open deliveries of one shard.
pub struct Ledger {
    entries: Slab<Entry>,
    opened: u64,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ledger({} open of {})", self.len(), self.opened)
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// An empty ledger.
    pub const fn new() -> Self {
        Self { entries: Slab::new(), opened: 0 }
    }

    /// The name that the next delivery will have, if there is room.
    pub fn next_id(&self) -> Option<CorrelationId> {
        if self.entries.len() >= OPEN_DELIVERIES_MAX {
            return None;
        }
        Some(id(self.entries.vacant_key(), reuse(self.opened)))
    }

    /// Enters a delivery under the name that [`Ledger::next_id`] gave.
    ///
    /// # Panics
    /// If the ledger is full: ask `next_id` first.
    pub fn open(&mut self, mut delivery: OpenDelivery) -> CorrelationId {
        let expected = self.next_id().expect("the ledger has room");
        delivery.sequence = self.opened;
        let key = self.entries.insert(Entry { reuse: reuse(self.opened), delivery });
        let given = id(key, reuse(self.opened));
        assert_eq!(given, expected, "a delivery has the name it was promised");
        self.opened += 1;
        given
    }

    /// The open delivery of this name.
    pub fn get(&self, id: CorrelationId) -> Option<&OpenDelivery> {
        let (key, reuse) = parts(id);
        let entry = self.entries.get(key)?;
        (entry.reuse == reuse).then_some(&entry.delivery)
    }

    /// The open delivery of this name.
    pub fn get_mut(&mut self, id: CorrelationId) -> Option<&mut OpenDelivery> {
        let (key, reuse) = parts(id);
        let entry = self.entries.get_mut(key)?;
        (entry.reuse == reuse).then_some(&mut entry.delivery)
    }

    /// Takes a delivery out, to be told its outcome; `None` if it has been.
    pub fn close(&mut self, id: CorrelationId) -> Option<OpenDelivery> {
        self.get(id)?;
        Some(self.entries.remove(parts(id).0).delivery)
    }

    /// The open deliveries that `chosen` picks, in order of opening.
    pub fn select(&self, chosen: impl Fn(&OpenDelivery) -> bool) -> Vec<CorrelationId> {
        let mut found: Vec<(u64, CorrelationId)> = self
            .entries
            .iter()
            .filter(|(_, entry)| chosen(&entry.delivery))
            .map(|(key, entry)| (entry.delivery.sequence, id(key, entry.reuse)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many were ever opened.
    pub const fn opened_count(&self) -> u64 {
        self.opened
    }
}

/// The high half of a name: differs between the deliveries that use one slot.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn reuse(opened: u64) -> u32 {
    opened as u32
}

fn id(key: usize, reuse: u32) -> CorrelationId {
    let key = u32::try_from(key).expect("bounded by OPEN_DELIVERIES_MAX");
    CorrelationId(u64::from(reuse) << 32 | u64::from(key))
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are cut out of the name")]
const fn parts(id: CorrelationId) -> (usize, u32) {
    (id.0 as u32 as usize, (id.0 >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::wheel::Wheel;

    fn delivery(target: &str) -> OpenDelivery {
        let mut wheel = Wheel::new(Moment::ZERO);
        OpenDelivery {
            sequence: 0,
            target: Address::parse(target).unwrap(),
            source: None,
            method: MethodId(1),
            arguments: Schema::NONE,
            reply: Schema::NONE,
            body: Body::empty(),
            envelope: None,
            deadline: Moment::ZERO,
            deadline_timer: wheel.insert(Moment::ZERO, ()),
            retry_timer: None,
            waiter: Waiter::Nobody,
            sender: Sender::Program,
            owner: None,
            stage: Stage::Locating,
            place: None,
            attempts: 0,
            forwards: 0,
            last_refusal: None,
        }
    }

    #[test]
    fn a_delivery_is_closed_exactly_once() {
        let mut ledger = Ledger::new();
        let promised = ledger.next_id();
        let id = ledger.open(delivery("room/a"));
        assert_eq!(Some(id), promised);
        assert!(ledger.close(id).is_some());
        assert!(ledger.close(id).is_none());
        assert!(ledger.is_empty());
    }

    #[test]
    fn an_old_name_never_names_a_new_delivery() {
        let mut ledger = Ledger::new();
        let old = ledger.open(delivery("room/a"));
        ledger.close(old);
        let new = ledger.open(delivery("room/b"));
        assert_ne!(old, new, "the slot is the same, the name is not");
        assert!(ledger.get(old).is_none());
        assert!(ledger.close(old).is_none());
        assert!(ledger.get(new).is_some());
    }

    #[test]
    fn deliveries_are_selected_in_order_of_opening() {
        let mut ledger = Ledger::new();
        let ids = ["room/a", "room/b", "room/c"].map(|target| ledger.open(delivery(target)));
        ledger.close(ids[0]);
        let late = ledger.open(delivery("room/d"));
        assert_eq!(ledger.select(|_| true), [ids[1], ids[2], late]);
    }
}
