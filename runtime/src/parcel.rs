//! A delivery on its way from its caller's future to the ledger and out of it, as one pointer.
//!
//! A call would otherwise move some two hundred bytes a dozen times, from the reference that builds
//! it to the ledger that ends it. What has just been written in small pieces is slow to read in
//! large ones, so that each move costs more than its bytes. A [`Parcel`] is built once, in place.
//!
//! Its allocation is used again: a parcel that has [ended](Parcel::end) goes to a bounded free list
//! of its thread, so that a steady flow of calls made on a shard allocates nothing. One made by
//! another thread of the program ends on a shard, and costs its thread an allocation. One that is
//! dropped instead is simply freed.

use core::cell::RefCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

use siloring_core::limits::PARCELS_POOLED_MAX;

use crate::call::CallRequest;
use crate::ledger::OpenDelivery;

thread_local! {
    /// Cleared deliveries.
    static POOL: RefCell<Vec<Parcel>> = const { RefCell::new(Vec::new()) };
}

/// A delivery that has not been sent, or has no outcome yet.
pub struct Parcel(Box<OpenDelivery>);

impl Parcel {
    /// A request that has not been sent.
    #[inline]
    pub fn new(request: CallRequest) -> Self {
        match POOL.with(|pool| pool.borrow_mut().pop()) {
            Some(mut parcel) => {
                parcel.request = request;
                parcel
            }
            None => Self(Box::new(OpenDelivery::new(request))),
        }
    }

    /// Drops what is in it, and keeps its allocation for another.
    #[inline]
    pub fn end(mut self) {
        self.clear();
        // The thread may be ending: its list is gone then, and the parcel is simply freed.
        let _gone = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < PARCELS_POOLED_MAX {
                pool.push(self);
            }
        });
    }
}

impl Deref for Parcel {
    type Target = OpenDelivery;

    #[inline]
    fn deref(&self) -> &OpenDelivery {
        &self.0
    }
}

impl DerefMut for Parcel {
    #[inline]
    fn deref_mut(&mut self) -> &mut OpenDelivery {
        &mut self.0
    }
}

impl fmt::Debug for Parcel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Parcel({})", self.target())
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::sync::Arc;

    use siloring_core::body::Body;
    use siloring_core::ids::{ActivationNumber, Endpoint, Generation, ShardIndex, ViewNumber};
    use siloring_core::outcome::{DeliveryFailure, RejectedKind};

    use super::POOL;
    use crate::call::{Tries, Waiter};
    use crate::directory::Place;
    use crate::ledger::Stage;
    use crate::reference::tests::parcel;
    use crate::route::Sender;

    #[test]
    fn a_parcel_that_ended_is_used_again_and_has_nothing_of_before() {
        let mut first = parcel("room/a");
        let new = format!("{:?}", *first);
        let place = core::ptr::from_ref(&*first);
        first.request.deadline = Some(Duration::ZERO);
        first.request.envelope = Some(Box::default());
        first.waiter = Waiter::Callback(Box::new(drop));
        first.sender = Sender::Begun;
        first.tries = Tries::Caller;
        first.owner = Some(1);
        first.stage = Stage::Delivered;
        first.place = Some(Place {
            endpoint: Endpoint { silo: Generation(1), shard: ShardIndex(0) },
            number: ActivationNumber { view: ViewNumber(1), counter: 1 },
        });
        (first.attempts, first.forwards) = (1, 1);
        first.last_refusal = Some(Box::new(DeliveryFailure::rejected(RejectedKind::Moving, "")));
        first.end();
        let second = parcel("room/a");
        assert_eq!(core::ptr::from_ref(&*second), place);
        assert_eq!(format!("{:?}", *second), new);
    }

    #[test]
    fn a_parcel_that_ended_holds_neither_its_target_nor_its_body() {
        let mut parcel = parcel("room/a");
        let target = parcel.request.to.as_ref().map(Arc::downgrade).unwrap();
        parcel.request.body = Body::copy_of(&[7; 64]);
        parcel.end();
        assert_eq!(target.strong_count(), 0);
        POOL.with_borrow(|pool| assert!(pool[0].request.body.is_empty()));
    }
}
