//! The ledger: every delivery that a shard has sent and that has no outcome yet.
//!
//! The promise lives here and only here. Contract:
//! - [`Ledger::open`] enters a delivery and names it; [`Ledger::close`] takes it out, exactly once.
//!   A name of a closed delivery names nothing, so that a second outcome finds nobody.
//! - An open delivery keeps what it takes to send it again, until its outcome.
//! - Each has a deadline, rounded up to a tick: [`Ledger::overdue`] names it then, once, and the
//!   shard closes it. Almost every delivery is closed long before. So opening and closing touch one
//!   word of a plain array, and only a tick at which something may be due reads through it: at most
//!   2 MiB once a tick.
//! - Bound: [`OPEN_DELIVERIES_MAX`], which the shard asks for first.
//!
//! Deliberately absent: where a delivery goes (`route.rs`), what an outcome means
//! (`shard/outbound.rs`).

use core::fmt;

use siloring_core::address::{Address, AddressHash};
use siloring_core::ids::{CorrelationId, Generation, ShardIndex};
use siloring_core::limits::{LEDGER_TICK, OPEN_DELIVERIES_MAX};
use siloring_core::outcome::DeliveryFailure;
use siloring_core::time::Moment;
use slab::Slab;

use crate::call::{CallRequest, Tries, Waiter};
use crate::directory::Place;
use crate::envelope::Sending;
use crate::exec::wheel::TimerKey;
use crate::links::Sent;
use crate::mail::ConnId;
use crate::parcel::Parcel;
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
    /// Order of opening on this shard; its lower half tells apart the names of one place.
    sequence: u64,
    /// What was asked for. Kept until the outcome: a redirect or a retry sends it again.
    pub request: CallRequest,
    /// Its outcome comes at the latest one tick after this.
    pub deadline: Moment,
    /// When its present try began.
    pub tried: Moment,
    /// Its entry in the wheel while it waits to be tried again.
    pub retry_timer: Option<TimerKey>,
    /// Who hears the outcome.
    pub waiter: Waiter,
    /// Whether it passes while the silo drains.
    pub sender: Sender,
    /// Who tries again.
    pub(crate) tries: Tries,
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
    pub last_refusal: Option<Box<DeliveryFailure>>,
}

impl OpenDelivery {
    /// A delivery that has not been sent.
    #[inline]
    pub(crate) const fn new(request: CallRequest) -> Self {
        Self {
            sequence: 0,
            request,
            deadline: Moment::NEVER,
            tried: Moment::ZERO,
            retry_timer: None,
            waiter: Waiter::Nobody,
            sender: Sender::Program,
            tries: Tries::Router,
            owner: None,
            stage: Stage::Locating,
            place: None,
            attempts: 0,
            forwards: 0,
            last_refusal: None,
        }
    }

    /// Drops what it holds: it is as new, but for its request, which is none.
    #[inline]
    pub(crate) fn clear(&mut self) {
        // Every field is named, so that a new one cannot be forgotten.
        let Self {
            sequence,
            request,
            deadline,
            tried,
            retry_timer,
            waiter,
            sender,
            tries,
            owner,
            stage,
            place,
            attempts,
            forwards,
            last_refusal,
        } = self;
        request.clear();
        (*sequence, *deadline, *tried) = (0, Moment::NEVER, Moment::ZERO);
        (*retry_timer, *owner, *place, *last_refusal) = (None, None, None, None);
        *waiter = Waiter::Nobody;
        (*sender, *tries, *stage) = (Sender::Program, Tries::Router, Stage::Locating);
        (*attempts, *forwards) = (0, 0);
    }

    /// To whom.
    #[inline]
    pub fn target(&self) -> &Address {
        self.request.target()
    }

    /// Whether it went out on this connection and waits for its outcome there.
    pub fn is_sent_on(&self, conn: ConnId) -> bool {
        matches!(self.stage, Stage::Sent { sent, .. } if sent.conn == conn)
    }

    /// Whether it may have been handled before: it has a key, and was handed over to a link that
    /// was lost.
    pub fn is_sent_again(&self) -> bool {
        let idempotency = self.request.envelope.as_deref().and_then(|e| e.idempotency);
        idempotency.is_some_and(|idempotency| idempotency.sending != Sending::First)
    }

    /// Whether nobody's turn waits for it.
    #[inline]
    pub const fn is_one_way(&self) -> bool {
        matches!(self.waiter, Waiter::Nobody | Waiter::Callback(_))
    }

    /// The hash of its sender's address.
    #[inline]
    pub fn source_hash(&self) -> AddressHash {
        self.request.source_hash()
    }
}

/// The open deliveries of one shard.
pub struct Ledger {
    entries: Slab<Parcel>,
    /// The tick at which each place of the slab is due; [`Moment::NEVER`] for a free one. Apart
    /// from the entries, so that to look for what is due reads little.
    due: Vec<Moment>,
    /// No open delivery is due before. It may be one that was closed since.
    earliest: Moment,
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
        Self { entries: Slab::new(), due: Vec::new(), earliest: Moment::NEVER, opened: 0 }
    }

    /// Whether there is no room for another delivery.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= OPEN_DELIVERIES_MAX
    }

    /// Enters a delivery and names it.
    ///
    /// # Panics
    /// If the ledger is full: ask [`Ledger::is_full`] first.
    #[inline]
    pub fn open(&mut self, mut delivery: Parcel) -> CorrelationId {
        assert!(!self.is_full(), "the ledger has room");
        let due = tick_after(delivery.deadline);
        let sequence = self.opened;
        delivery.sequence = sequence;
        let key = self.entries.insert(delivery);
        if key == self.due.len() {
            self.due.push(due);
        } else {
            self.due[key] = due;
        }
        self.earliest = self.earliest.min(due);
        self.opened += 1;
        id(key, reuse(sequence))
    }

    /// The open delivery of this name.
    #[inline]
    pub fn get(&self, id: CorrelationId) -> Option<&OpenDelivery> {
        let (key, named) = parts(id);
        self.entries.get(key).map(|open| &**open).filter(|open| reuse(open.sequence) == named)
    }

    /// The open delivery of this name.
    #[inline]
    pub fn get_mut(&mut self, id: CorrelationId) -> Option<&mut OpenDelivery> {
        let (key, named) = parts(id);
        let open = self.entries.get_mut(key).map(|open| &mut **open)?;
        (reuse(open.sequence) == named).then_some(open)
    }

    /// Takes a delivery out, to be told its outcome; `None` if it has been.
    #[inline]
    pub fn close(&mut self, id: CorrelationId) -> Option<Parcel> {
        self.get(id)?;
        let (key, _) = parts(id);
        self.due[key] = Moment::NEVER;
        Some(self.entries.remove(key))
    }

    /// When [`Ledger::overdue`] may find something; [`Moment::NEVER`] if none is open.
    #[inline]
    pub fn next_deadline(&self) -> Moment {
        if self.entries.is_empty() { Moment::NEVER } else { self.earliest }
    }

    /// The open deliveries whose deadline has passed, in order of opening: each once, at the first
    /// tick that is not before its deadline.
    pub fn overdue(&mut self, now: Moment) -> Vec<CorrelationId> {
        if now < self.next_deadline() {
            return Vec::new();
        }
        let mut earliest = Moment::NEVER;
        let mut found = Vec::new();
        for (key, due) in self.due.iter_mut().enumerate() {
            if *due <= now {
                *due = Moment::NEVER;
                found.push((self.entries[key].sequence, key));
            } else {
                earliest = earliest.min(*due);
            }
        }
        self.earliest = earliest;
        in_order(found)
    }

    /// Whether `chosen` picks any open delivery.
    pub fn any(&self, chosen: impl Fn(&OpenDelivery) -> bool) -> bool {
        self.entries.iter().any(|(_, open)| chosen(open))
    }

    /// The open deliveries that `chosen` picks, in order of opening.
    pub fn select(&self, chosen: impl Fn(&OpenDelivery) -> bool) -> Vec<CorrelationId> {
        let found = self.entries.iter().filter(|(_, open)| chosen(open));
        in_order(found.map(|(key, open)| (open.sequence, key)).collect())
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

/// Names of the deliveries with these sequence numbers and places, in order of opening.
fn in_order(mut found: Vec<(u64, usize)>) -> Vec<CorrelationId> {
    found.sort_unstable();
    found.into_iter().map(|(sequence, key)| id(key, reuse(sequence))).collect()
}

/// The first tick that is not before `deadline`.
#[inline]
fn tick_after(deadline: Moment) -> Moment {
    #[expect(clippy::cast_possible_truncation, reason = "a tick of 584 years is not meant")]
    const TICK_NANOS: u64 = LEDGER_TICK.as_nanos() as u64;
    Moment::from_nanos(deadline.as_nanos().div_ceil(TICK_NANOS).saturating_mul(TICK_NANOS))
}

/// The high half of a name: differs between the deliveries that use one slot.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn reuse(sequence: u64) -> u32 {
    sequence as u32
}

#[inline]
fn id(key: usize, reuse: u32) -> CorrelationId {
    let key = u32::try_from(key).expect("bounded by OPEN_DELIVERIES_MAX");
    CorrelationId(u64::from(reuse) << 32 | u64::from(key))
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are cut out of the name")]
#[inline]
const fn parts(id: CorrelationId) -> (usize, u32) {
    (id.0 as u32 as usize, (id.0 >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;

    use crate::reference::tests::parcel as delivery;

    fn due_at(deadline: Moment) -> Parcel {
        let mut parcel = delivery("room/a");
        parcel.deadline = deadline;
        parcel
    }

    fn ms(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_delivery_is_closed_exactly_once() {
        let mut ledger = Ledger::new();
        let id = ledger.open(delivery("room/a"));
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

    #[test]
    fn a_delivery_is_overdue_once_at_the_tick_after_its_deadline() {
        let mut ledger = Ledger::new();
        let id = ledger.open(due_at(ms(25)));
        let closed = ledger.open(due_at(ms(25)));
        ledger.close(closed);
        assert_eq!((ledger.overdue(ms(29)), ledger.next_deadline()), (vec![], ms(30)));
        assert_eq!((ledger.overdue(ms(30)), ledger.overdue(ms(90))), (vec![id], vec![]));
        assert_eq!(ledger.next_deadline(), Moment::NEVER);
        assert!(ledger.close(id).is_some());
    }

    proptest! {
        #[test]
        fn no_deadline_is_missed_or_early(
            deliveries in prop::collection::vec((0u64..40_000, any::<bool>()), 1..60),
            steps in prop::collection::vec(1u64..3_000, 1..40),
        ) {
            let mut ledger = Ledger::new();
            let mut now = 0;
            let mut open = Vec::new();
            let mut pending = deliveries.into_iter();
            for step in steps.into_iter().chain([1, 100_000]) {
                if let Some((after, is_closed)) = pending.next() {
                    let id = ledger.open(due_at(ms(now + after)));
                    if is_closed { ledger.close(id); } else { open.push((id, now + after)); }
                }
                let promised = ledger.next_deadline();
                now += step;
                let found = ledger.overdue(ms(now));
                let expected: Vec<_> = open
                    .iter()
                    .filter(|(_, deadline)| tick_after(ms(*deadline)) <= ms(now))
                    .map(|(id, _)| *id)
                    .collect();
                prop_assert!(expected.is_empty() || promised <= ms(now), "promised too late");
                open.retain(|(id, _)| !expected.contains(id));
                prop_assert_eq!(&found, &expected);
                for id in found {
                    prop_assert!(ledger.close(id).is_some());
                }
            }
            prop_assert_eq!(ledger.len(), open.len());
        }
    }
}
