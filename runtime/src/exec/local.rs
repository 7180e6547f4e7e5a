//! What the futures of one shard share with it: staged operations, waiter slots, the ready queue.
//!
//! A future never reaches into the shard: it stages an [`Op`] and waits on a slot; the shard
//! carries the operations out after the poll. Everything here is reached through [`current`], which
//! is set while the shard polls.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use siloring_core::ids::ShardIndex;
use siloring_core::ports::store::{StoreRequest, StoreResult};
use siloring_core::time::Moment;
use slab::Slab;

use crate::call::{CallRequest, CallResult, Waiter};
use crate::exec::tasks::Spawned;
use crate::handle::Handle;
use crate::mail::ShardMail;

/// Wakes the shard's thread if it is parked. May be called from any thread, at any time.
pub trait Unpark: Send + Sync + fmt::Debug {
    /// Makes the shard run soon. Spurious calls are harmless.
    fn unpark(&self);
}

/// The part of a shard's ready queue that other threads push to.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// Bounded: a task is in it at most once.
    pub(crate) ready: SegQueue<u32>,
    pub(crate) unpark: Arc<dyn Unpark>,
}

/// Names a waiter slot of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotKey(u32);

/// What a future asks of its shard.
pub(crate) enum Op {
    /// Send a request.
    Call { request: CallRequest, waiter: Waiter },
    /// Wake the slot when the time has come.
    Sleep { slot: SlotKey, until: Moment },
    /// Ask the store; its answer goes to the slot.
    Store { slot: SlotKey, request: StoreRequest },
    /// Run a future until the activation that staged it ends.
    Spawn(Spawned),
    /// Bring mail to a shard of this silo.
    Mail { shard: ShardIndex, mail: ShardMail },
}

/// What a slot's future waits for.
#[derive(Debug)]
pub(crate) enum Answer {
    Call(CallResult),
    Slept,
    Store(StoreResult),
}

#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Done(Answer),
    /// The future is gone; the answer will be dropped, and counted by who brings it.
    Abandoned,
}

/// Whether anybody took an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    Yes,
    No,
}

/// The state that one shard shares with its futures.
pub(crate) struct Local {
    pub(crate) now: Cell<Moment>,
    pub(crate) ready: RefCell<VecDeque<u32>>,
    pub(crate) foreign: Arc<Foreign>,
    pub(crate) ops: RefCell<Vec<Op>>,
    pub(crate) handle: Handle,
    slots: RefCell<Slab<Slot>>,
}

impl fmt::Debug for Local {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Local({} waiting)", self.slots.borrow().len())
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// Puts the shard that ran before back when dropped.
#[derive(Debug)]
pub(crate) struct Entered(Option<Rc<Local>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Runs `work` with the shard whose future is being polled; `None` outside of any.
pub(crate) fn current<R>(work: impl FnOnce(&Rc<Local>) -> R) -> Option<R> {
    CURRENT.with_borrow(|current| current.as_ref().map(work))
}

impl Local {
    pub(crate) fn new(now: Moment, unpark: Arc<dyn Unpark>, handle: Handle) -> Rc<Self> {
        Rc::new(Self {
            now: Cell::new(now),
            ready: RefCell::new(VecDeque::new()),
            foreign: Arc::new(Foreign { ready: SegQueue::new(), unpark }),
            ops: RefCell::new(Vec::new()),
            handle,
            slots: RefCell::new(Slab::new()),
        })
    }

    /// Makes this shard the current one until the guard is dropped.
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        Entered(CURRENT.replace(Some(Rc::clone(self))))
    }

    pub(crate) fn is_current(foreign: &Arc<Foreign>) -> bool {
        current(|local| Arc::ptr_eq(&local.foreign, foreign)).unwrap_or(false)
    }

    pub(crate) fn stage(&self, op: Op) {
        self.ops.borrow_mut().push(op);
    }

    /// A slot to wait on.
    pub(crate) fn open_slot(&self) -> SlotKey {
        let index = self.slots.borrow_mut().insert(Slot::Waiting(None));
        SlotKey(u32::try_from(index).expect("fewer than 2^32 waiters"))
    }

    /// Stages a sleep and gives its slot.
    pub(crate) fn sleep(&self, span: Duration) -> SlotKey {
        let slot = self.open_slot();
        self.stage(Op::Sleep { slot, until: self.now.get() + span });
        slot
    }

    /// Takes the slot's answer and frees it, or registers to be woken.
    pub(crate) fn poll_slot(&self, key: SlotKey, cx: &Context<'_>) -> Poll<Answer> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(key.0 as usize).expect("a slot lives until it is taken");
        match slot {
            Slot::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Slot::Done(_) => match slots.remove(key.0 as usize) {
                Slot::Done(answer) => Poll::Ready(answer),
                Slot::Waiting(_) | Slot::Abandoned => unreachable!("matched above"),
            },
            Slot::Abandoned => unreachable!("an abandoned slot has no future"),
        }
    }

    /// The slot's future is gone.
    pub(crate) fn abandon(&self, key: SlotKey) {
        let mut slots = self.slots.borrow_mut();
        match slots.get(key.0 as usize) {
            Some(Slot::Waiting(_)) => slots[key.0 as usize] = Slot::Abandoned,
            Some(Slot::Done(_)) => drop(slots.remove(key.0 as usize)),
            Some(Slot::Abandoned) | None => unreachable!("a slot has one future"),
        }
    }

    /// Brings the slot its answer.
    pub(crate) fn answer(&self, key: SlotKey, answer: Answer) -> Taken {
        let mut slots = self.slots.borrow_mut();
        match core::mem::replace(&mut slots[key.0 as usize], Slot::Done(answer)) {
            Slot::Waiting(waker) => {
                drop(slots);
                if let Some(waker) = waker {
                    waker.wake();
                }
                Taken::Yes
            }
            Slot::Abandoned => {
                drop(slots.remove(key.0 as usize));
                Taken::No
            }
            Slot::Done(_) => unreachable!("a slot is answered once"),
        }
    }

    /// Slots in use: for leak checks.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.borrow().len()
    }
}
