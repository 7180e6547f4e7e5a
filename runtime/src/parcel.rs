//! A delivery on its way from its caller's future to the ledger and out of it, as one pointer.
//!
//! A call would otherwise move some two hundred bytes a dozen times, from the reference that builds
//! it to the ledger that ends it. What has just been written in small pieces is slow to read in
//! large ones, so that each move costs more than its bytes. A [`Parcel`] is built once, in place.
//!
//! Its allocation is used again: a dropped parcel goes to a bounded free list of its thread, so
//! that a steady flow of calls made on a shard allocates nothing. One made by another thread of the
//! program is dropped on a shard, and costs its thread an allocation.

use core::cell::RefCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

use siloring_core::limits::PARCELS_POOLED_MAX;

use crate::call::CallRequest;
use crate::ledger::OpenDelivery;

type Shell = Box<Option<OpenDelivery>>;

thread_local! {
    static POOL: RefCell<Vec<Shell>> = const { RefCell::new(Vec::new()) };
}

/// A delivery that has not been sent, or has no outcome yet.
pub struct Parcel(Option<Shell>);

impl Parcel {
    /// A request that has not been sent.
    #[inline]
    pub fn new(request: CallRequest) -> Self {
        let mut shell = POOL.with(|pool| pool.borrow_mut().pop()).unwrap_or_else(|| Box::new(None));
        *shell = Some(OpenDelivery::new(request));
        Self(Some(shell))
    }
}

impl Deref for Parcel {
    type Target = OpenDelivery;

    #[inline]
    fn deref(&self) -> &OpenDelivery {
        self.0.as_deref().and_then(Option::as_ref).expect("full until it is dropped")
    }
}

impl DerefMut for Parcel {
    #[inline]
    fn deref_mut(&mut self) -> &mut OpenDelivery {
        self.0.as_deref_mut().and_then(Option::as_mut).expect("full until it is dropped")
    }
}

impl Drop for Parcel {
    #[inline]
    fn drop(&mut self) {
        let Some(mut shell) = self.0.take() else { return };
        *shell = None;
        // The thread may be ending: its list is gone then, and the shell is simply freed.
        let _gone = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < PARCELS_POOLED_MAX {
                pool.push(shell);
            }
        });
    }
}

impl fmt::Debug for Parcel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Parcel({})", self.target())
    }
}

#[cfg(test)]
mod tests {
    use crate::reference::tests::parcel;

    #[test]
    fn dropped_parcels_are_used_again() {
        let first = parcel("room/a");
        let place = core::ptr::from_ref(&*first);
        drop(first);
        let second = parcel("room/b");
        assert_eq!(second.target().as_str(), "room/b");
        assert_eq!(core::ptr::from_ref(&*second), place);
    }
}
