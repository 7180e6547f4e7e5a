//! What the futures of one shard share with it: staged operations, waiter slots, the ready queue.
//!
//! A future never reaches into the shard: it stages an [`Op`] and waits on a slot; the shard
//! carries the operations out after the poll. What it may look at without asking is in [`Known`].
//! Everything here is reached through [`current`], which is set while the shard polls.

use core::any::Any;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use siloring_core::address::{Address, AddressHash};
use siloring_core::event::Event;
use siloring_core::hash::{HashMap, HashSet};
use siloring_core::ids::{Endpoint, ShardIndex};
use siloring_core::outcome::DeliveryFailure;
use siloring_core::ports::store::{StoreRequest, StoreResult};
use siloring_core::time::Moment;
use siloring_core::view::View;

use crate::call::CallResult;
use crate::directory::KnownPlaces;
use crate::exec::tasks::{Spawned, TaskKey, Woken};
use crate::exec::wheel::TimerKey;
use crate::handle::Handle;
use crate::here::{Extensions, ViewWaiters};
use crate::mail::ShardMail;
use crate::parcel::Parcel;

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

impl Foreign {
    /// The task that was woken first. Of an empty queue, a pop would be a full fence.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Woken> {
        if self.ready.is_empty() {
            return None;
        }
        self.ready.pop().map(|index| Woken::ByWaker(TaskKey(index)))
    }
}

/// Names a shard among all of the process, so that a future polled elsewhere is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalId(u64);

impl LocalId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Names a waiter slot of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotKey(u32);

/// What a future asks of its shard.
pub(crate) enum Op {
    /// Send a request.
    Call(Parcel),
    /// Wake the slot when the time has come.
    Sleep { slot: SlotKey, until: Moment },
    /// Nobody waits any more for that time.
    EndSleep { slot: SlotKey, timer: TimerKey },
    /// Ask the store; its answer goes to the slot.
    Store { slot: SlotKey, request: Box<StoreRequest> },
    /// Run a future.
    Spawn { future: Spawned, until: Until },
    /// Something happened.
    Emit(Box<Event>),
    /// A one-way delivery that the future answers for has failed.
    DeadLetter(Box<FailedDelivery>),
    /// A delivery that the future made several calls for has failed, and its sender was told.
    Failed(Box<FailedDelivery>),
    /// Bring mail to a shard of this silo.
    Mail { shard: ShardIndex, mail: Box<ShardMail> },
}

const _: () = assert!(size_of::<Op>() <= 32, "an operation is small: it is moved three times");

/// How long a future runs, if it does not end before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// Until the activation that staged it ends.
    ActivationEnds,
    /// Until the shard stops.
    ShardStops,
}

/// A delivery that has failed.
#[derive(Debug)]
pub(crate) struct FailedDelivery {
    pub(crate) source: Option<Address>,
    pub(crate) target: Address,
    pub(crate) failure: DeliveryFailure,
}

/// What a shard's futures may know of it without asking.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) me: Endpoint,
    pub(crate) view: RefCell<Arc<View>>,
    pub(crate) view_waiters: ViewWaiters,
    /// The shard's activations.
    pub(crate) activations: RefCell<HashMap<AddressHash, u32>>,
    /// The shard's hubs.
    pub(crate) hubs: RefCell<HashSet<AddressHash>>,
    pub(crate) places: KnownPlaces,
    pub(crate) extensions: Extensions,
    /// The silo drains.
    pub(crate) is_leaving: Cell<bool>,
    /// What the surrounding program shares with all shards.
    pub(crate) shared: Vec<Arc<dyn Any + Send + Sync>>,
    pub(crate) entropy: RefCell<fastrand::Rng>,
}

impl Known {
    pub(crate) fn new(
        me: Endpoint,
        places: KnownPlaces,
        shared: Vec<Arc<dyn Any + Send + Sync>>,
        entropy: fastrand::Rng,
    ) -> Self {
        Self {
            me,
            view: RefCell::default(),
            view_waiters: ViewWaiters::default(),
            activations: RefCell::default(),
            hubs: RefCell::default(),
            places,
            extensions: Extensions::default(),
            is_leaving: Cell::new(false),
            shared,
            entropy: RefCell::new(entropy),
        }
    }
}

/// What a slot's future waits for.
#[derive(Debug)]
pub(crate) enum Answer {
    Call(CallResult),
    Slept,
    Store(StoreResult),
}

/// Where a slot stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nobody has it.
    Free,
    Waiting,
    /// Waits for a time, which has this entry in the wheel.
    Sleeping(TimerKey),
    Done,
    /// The future is gone; the answer will be dropped, and counted by who brings it.
    Abandoned,
}

/// A place to wait at. It is written where it lies, piece by piece: a whole one that is moved there
/// costs more than it says.
#[derive(Debug)]
struct Slot {
    stage: Stage,
    /// Who is woken: the task that polled the slot with its own waker, which are by far the most,
    /// and need not be counted…
    task: TaskKey,
    /// …or a waker of another kind, such as of a future that polls many others.
    waker: Option<Waker>,
    answer: Option<Answer>,
}

impl Slot {
    const FREE: Self = Self { stage: Stage::Free, task: TaskKey(0), waker: None, answer: None };

    #[inline]
    fn set_wait(&mut self, wait: Wait<'_>) {
        match wait {
            Wait::Task(task) => {
                self.task = task;
                self.waker = None;
            }
            Wait::Waker(waker) => self.waker = Some(waker.clone()),
        }
    }
}

/// Who is to be woken.
#[derive(Clone, Copy, Debug)]
enum Wait<'a> {
    Task(TaskKey),
    Waker(&'a Waker),
}

/// The slots of one shard.
#[derive(Debug, Default)]
struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    #[inline]
    fn open(&mut self) -> (SlotKey, &mut Slot) {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.all[index as usize];
        slot.stage = Stage::Waiting;
        (SlotKey(index), slot)
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.all.len()).expect("fewer than 2^32 waiters");
        self.all.push(Slot::FREE);
        index
    }

    #[inline]
    fn get(&mut self, key: SlotKey) -> &mut Slot {
        &mut self.all[key.0 as usize]
    }

    #[inline]
    fn close(&mut self, key: SlotKey) {
        self.get(key).stage = Stage::Free;
        self.free.push(key.0);
    }
}

/// Whether anybody took an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    Yes,
    No,
}

/// The state that one shard shares with its futures.
pub(crate) struct Local {
    pub(crate) id: LocalId,
    pub(crate) now: Cell<Moment>,
    /// Tasks to poll. One that waits for several answers may be in it several times.
    pub(crate) ready: RefCell<VecDeque<Woken>>,
    pub(crate) foreign: Arc<Foreign>,
    pub(crate) ops: RefCell<Vec<Op>>,
    pub(crate) handle: Handle,
    pub(crate) known: Known,
    slots: RefCell<Slots>,
    /// The task that is being polled, and what its waker points to.
    polled: Cell<Option<(TaskKey, *const ())>>,
}

impl fmt::Debug for Local {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Local({} waiting)", self.slot_count())
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// Puts the shard that ran before back when dropped.
#[derive(Debug)]
#[must_use = "the shard is left when it is dropped"]
pub struct Entered(Option<Rc<Local>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Runs `work` with the shard whose future is being polled; `None` outside of any.
#[inline]
pub(crate) fn current<R>(work: impl FnOnce(&Rc<Local>) -> R) -> Option<R> {
    CURRENT.with_borrow(|current| current.as_ref().map(work))
}

impl Local {
    pub(crate) fn new(
        now: Moment,
        unpark: Arc<dyn Unpark>,
        handle: Handle,
        known: Known,
    ) -> Rc<Self> {
        Rc::new(Self {
            id: LocalId::next(),
            now: Cell::new(now),
            ready: RefCell::new(VecDeque::new()),
            foreign: Arc::new(Foreign { ready: SegQueue::new(), unpark }),
            ops: RefCell::new(Vec::new()),
            handle,
            known,
            slots: RefCell::default(),
            polled: Cell::new(None),
        })
    }

    /// Polls a task with its own waker. `poll` catches panics.
    #[inline]
    pub(crate) fn poll_task<R>(
        &self,
        task: TaskKey,
        waker: &Waker,
        poll: impl FnOnce(&mut Context<'_>) -> R,
    ) -> R {
        self.polled.set(Some((task, waker.data())));
        let polled = poll(&mut Context::from_waker(waker));
        self.polled.set(None);
        polled
    }

    #[inline]
    fn wait_of<'a>(&self, waker: &'a Waker) -> Wait<'a> {
        match self.polled.get() {
            Some((task, data)) if core::ptr::eq(data, waker.data()) => Wait::Task(task),
            Some(_) | None => Wait::Waker(waker),
        }
    }

    /// Makes this shard the current one until the guard is dropped.
    #[inline]
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        Entered(CURRENT.replace(Some(Rc::clone(self))))
    }

    #[inline]
    pub(crate) fn is_current(foreign: &Arc<Foreign>) -> bool {
        current(|local| Arc::ptr_eq(&local.foreign, foreign)).unwrap_or(false)
    }

    #[inline]
    pub(crate) fn stage(&self, op: Op) {
        self.ops.borrow_mut().push(op);
    }

    /// A slot to wait on, which wakes `waker`.
    #[inline]
    pub(crate) fn open_slot(&self, waker: &Waker) -> SlotKey {
        let mut slots = self.slots.borrow_mut();
        let (key, slot) = slots.open();
        slot.set_wait(self.wait_of(waker));
        key
    }

    /// Stages a sleep and gives its slot, which wakes `waker`.
    pub(crate) fn sleep(&self, span: Duration, waker: &Waker) -> SlotKey {
        let slot = self.open_slot(waker);
        self.stage(Op::Sleep { slot, until: self.now.get() + span });
        slot
    }

    /// Takes the slot's answer and frees it, or registers to be woken.
    #[inline]
    pub(crate) fn poll_slot(&self, key: SlotKey, cx: &Context<'_>) -> Poll<Answer> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        match slot.stage {
            Stage::Waiting | Stage::Sleeping(_) => {
                slot.set_wait(self.wait_of(cx.waker()));
                Poll::Pending
            }
            Stage::Done => {
                let answer = slot.answer.take().expect("what is done has its answer");
                slots.close(key);
                Poll::Ready(answer)
            }
            Stage::Free => unreachable!("a slot lives until it is taken"),
            Stage::Abandoned => unreachable!("an abandoned slot has no future"),
        }
    }

    /// The time that the slot waits for is in the wheel.
    pub(crate) fn sleeps(&self, key: SlotKey, timer: TimerKey) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        if slot.stage == Stage::Waiting {
            slot.stage = Stage::Sleeping(timer);
        }
    }

    /// The slot's future is gone.
    pub(crate) fn abandon(&self, key: SlotKey) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        (slot.waker, slot.answer) = (None, None);
        match core::mem::replace(&mut slot.stage, Stage::Abandoned) {
            Stage::Waiting => {}
            Stage::Sleeping(timer) => self.stage(Op::EndSleep { slot: key, timer }),
            Stage::Done => slots.close(key),
            Stage::Abandoned | Stage::Free => unreachable!("a slot has one future"),
        }
    }

    /// Brings the slot its answer.
    #[inline]
    pub(crate) fn answer(&self, key: SlotKey, answer: Answer) -> Taken {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        match slot.stage {
            Stage::Waiting | Stage::Sleeping(_) => {
                slot.stage = Stage::Done;
                slot.answer = Some(answer);
                let (task, waker) = (slot.task, slot.waker.take());
                drop(slots);
                match waker {
                    None => self.answered(task),
                    Some(waker) => waker.wake(),
                }
                Taken::Yes
            }
            Stage::Abandoned => {
                slots.close(key);
                Taken::No
            }
            Stage::Done | Stage::Free => unreachable!("a slot is answered once"),
        }
    }

    fn answered(&self, task: TaskKey) {
        let mut ready = self.ready.borrow_mut();
        // Of many answers that come at once, one poll takes all.
        if ready.back() != Some(&Woken::ByAnswer(task)) {
            ready.push_back(Woken::ByAnswer(task));
        }
    }

    /// Slots in use: for leak checks.
    pub(crate) fn slot_count(&self) -> usize {
        let slots = self.slots.borrow();
        slots.all.len() - slots.free.len()
    }
}
