//! The shard that polls the current future, as that future may see and use it.
//!
//! What a part of the program needs that is built of futures on shards, such as streams: the time,
//! the view, the store, a place for what it keeps once a shard. Contract:
//! - every function but [`Here::shared`] and [`Here::is_of`] panics outside of a future that a
//!   shard of a silo polls;
//! - what is asked of the shard is staged and carried out after the poll, in order;
//! - [`Here::whereabouts`] and [`Here::view`] tell what the shard knows at this moment: other
//!   silos may know better.
//!
//! Deliberately absent: anything of the turn; that is its context's.

use core::any::{Any, TypeId};
use core::cell::RefCell;
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use siloring_core::address::Address;
use siloring_core::event::Event;
use siloring_core::ids::{Endpoint, ViewNumber};
use siloring_core::outcome::DeliveryFailure;
use siloring_core::ports::store::{StoreRequest, StoreResult};
use siloring_core::time::Moment;
use siloring_core::view::View;
use slab::Slab;

use crate::ctx::AskStore;
use crate::exec::local::{FailedDelivery, Local, Op, Until, current};
use crate::handle::Handle;

/// The shard that polls the current future.
#[derive(Clone, Copy, Debug)]
pub struct Here;

fn local() -> Rc<Local> {
    current(Rc::clone).expect("only a future that a shard polls has a shard")
}

impl Here {
    /// Which shard of which silo.
    pub fn endpoint() -> Endpoint {
        local().known.me
    }

    /// The time of the present poll.
    pub fn now() -> Moment {
        local().now.get()
    }

    /// The newest view that the shard knows.
    pub fn view() -> Arc<View> {
        Arc::clone(&local().known.view.borrow())
    }

    /// The current view, and then each newer one.
    pub fn views() -> Views {
        let local = local();
        let key = local.known.view_waiters.0.borrow_mut().insert(None);
        Views { local, key, seen: None }
    }

    /// A handle on the silo.
    pub fn handle() -> Handle {
        local().handle.clone()
    }

    /// Whether the current future is polled by a shard of the handle's silo.
    pub fn is_of(handle: &Handle) -> bool {
        current(|local| local.handle.is_same(handle)).unwrap_or(false)
    }

    /// Whether the silo drains: what its turns have begun goes on, and what is new is refused as
    /// [`RejectedKind::Draining`].
    ///
    /// [`RejectedKind::Draining`]: siloring_core::outcome::RejectedKind::Draining
    pub fn is_leaving() -> bool {
        local().known.is_leaving.get()
    }

    /// Where the address lives, as far as the shard knows without asking: it has the activation or
    /// hub itself, or remembers a place. A place may be stale.
    pub fn whereabouts(address: &Address) -> Option<Endpoint> {
        let (local, hash) = (local(), address.hash());
        let known = &local.known;
        if known.activations.borrow().contains_key(&hash) || known.hubs.borrow().contains(&hash) {
            return Some(known.me);
        }
        known.places.borrow().get(&hash).map(|place| place.endpoint)
    }

    /// Asks the silo's store. Unlike a grain's own state, an answer ends no activation.
    ///
    /// # Cancel safety
    /// Dropped, the request may or may not be carried out.
    pub async fn ask(request: StoreRequest) -> StoreResult {
        AskStore::new(request).await
    }

    /// Runs a future on this shard until it ends, or the shard stops. A panic in it is an event. So
    /// is that it is not run but dropped, as [`SPAWNED_MAX`] are.
    ///
    /// [`SPAWNED_MAX`]: siloring_core::limits::SPAWNED_MAX
    pub fn spawn(future: impl Future<Output = ()> + 'static) {
        local().stage(Op::Spawn { future: Box::pin(future), until: Until::ShardStops });
    }

    /// The shard's one value of the type, made when it is first asked for.
    pub fn extension<T: Default + 'static>() -> Rc<T> {
        local().known.extensions.get()
    }

    /// What the surrounding program shares with its shards under this type, if it does; `None` also
    /// outside of a shard.
    pub fn shared<T: Any + Send + Sync>() -> Option<Arc<T>> {
        current(|local| {
            let shared = &local.known.shared;
            shared.iter().find_map(|value| Arc::clone(value).downcast().ok())
        })
        .flatten()
    }

    /// Ends a delivery that somebody else answers for, as a one-way delivery ends that fails: it is
    /// counted, logged unless its target's were lately, and a dead letter.
    pub fn dead_letter(source: Option<&Address>, target: &Address, failure: DeliveryFailure) {
        let failed = FailedDelivery { source: source.cloned(), target: target.clone(), failure };
        local().stage(Op::DeadLetter(Box::new(failed)));
    }

    /// Tells of a delivery that has failed though it was tried several times, each by a call that
    /// was [`Call::one_of_several`]: it is counted, and logged unless its target's were lately.
    ///
    /// [`Call::one_of_several`]: crate::call::Call::one_of_several
    pub fn failed(source: Option<&Address>, target: &Address, failure: DeliveryFailure) {
        let failed = FailedDelivery { source: source.cloned(), target: target.clone(), failure };
        local().stage(Op::Failed(Box::new(failed)));
    }

    /// A draw of the shard's entropy.
    pub fn random() -> u64 {
        local().known.entropy.borrow_mut().u64(..)
    }

    /// Says that something happened.
    pub fn emit(event: Event) {
        local().stage(Op::Emit(Box::new(event)));
    }
}

/// The views of a shard, as they come. See [`Here::views`].
pub struct Views {
    local: Rc<Local>,
    key: usize,
    seen: Option<ViewNumber>,
}

impl Views {
    /// The current view at first; then the newest one, as soon as it is newer than the last that
    /// was given. Views in between may be skipped.
    ///
    /// # Cancel safety
    /// Dropped, no view is lost.
    pub async fn next(&mut self) -> Arc<View> {
        poll_fn(|cx| {
            let known = &self.local.known;
            let view = Arc::clone(&known.view.borrow());
            if self.seen.is_none_or(|seen| seen < view.number()) {
                self.seen = Some(view.number());
                return Poll::Ready(view);
            }
            known.view_waiters.0.borrow_mut()[self.key] = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.local.known.view_waiters.0.borrow_mut().remove(self.key);
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Views(after {:?})", self.seen)
    }
}

/// Who waits for a newer view: one place for each [`Views`].
#[derive(Debug, Default)]
pub(crate) struct ViewWaiters(RefCell<Slab<Option<Waker>>>);

impl ViewWaiters {
    /// There is a newer view.
    pub(crate) fn wake(&self) {
        // A waker may be of any kind, and look here: nothing is borrowed while one runs.
        let wakers: Vec<Waker> =
            self.0.borrow_mut().iter_mut().filter_map(|(_, waker)| waker.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// One value of each type that is asked for.
#[derive(Debug, Default)]
pub(crate) struct Extensions(RefCell<BTreeMap<TypeId, Rc<dyn Any>>>);

impl Extensions {
    fn get<T: Default + 'static>(&self) -> Rc<T> {
        let id = TypeId::of::<T>();
        if let Some(known) = self.0.borrow().get(&id) {
            return Rc::clone(known).downcast().expect("found under its own type");
        }
        // Making it may ask for others.
        let made: Rc<T> = Rc::default();
        let kept = Rc::clone(self.0.borrow_mut().entry(id).or_insert(made));
        kept.downcast().expect("found under its own type")
    }

    /// Drops them all.
    pub(crate) fn clear(&self) {
        let dropped = core::mem::take(&mut *self.0.borrow_mut());
        drop(dropped);
    }
}
