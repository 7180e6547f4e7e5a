//! The task slab: what can be polled, and its wakers.
//!
//! A slot keeps its waker when its task ends, so that a steady flow of turns allocates nothing. A
//! waker of an ended task may therefore wake its successor: a spurious poll, which futures allow.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::Waker;
use std::sync::Arc;
use std::task::Wake;

use siloring_core::sync::queued::Queued;

use super::local::{Foreign, Local, current};

/// Names a task of one shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TaskKey(pub(crate) u32);

/// A task that is to be polled, and what woke it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// An answer that it waits for: no waker took part.
    ByAnswer(TaskKey),
    /// Its waker, which queues it again only when this has been taken.
    ByWaker(TaskKey),
}

/// A future of the shard's own.
pub(crate) type Spawned = Pin<Box<dyn Future<Output = ()>>>;

/// What a task is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// A turn: its future waits in its host.
    Turn { host: u32, slot: u32, activation: u32 },
    /// A future of the surrounding program or of a grain's timer; `owner` is its activation.
    Spawned { owner: Option<u32> },
}

#[derive(Debug)]
struct TaskWake {
    index: u32,
    queued: Queued,
    foreign: Arc<Foreign>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.ask() {
            return;
        }
        if Local::is_current(&self.foreign) {
            let woken = Woken::ByWaker(TaskKey(self.index));
            current(|local| local.ready.borrow_mut().push_back(woken));
        } else {
            self.foreign.ready.push(self.index);
            self.foreign.unpark.unpark();
        }
    }
}

struct TaskSlot {
    wake: Arc<TaskWake>,
    waker: Waker,
    stage: Stage,
    task: Task,
    /// Of a task that is spawned, while it is not polled.
    future: Option<Spawned>,
}

/// Where the task of a slot stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// There is none.
    Free,
    Waiting,
    Polled,
}

impl fmt::Debug for TaskSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} {:?}", self.stage, self.task)
    }
}

/// The tasks of one shard.
#[derive(Debug)]
pub(crate) struct Tasks {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
    foreign: Arc<Foreign>,
}

impl Tasks {
    pub(crate) const fn new(foreign: Arc<Foreign>) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), foreign }
    }

    /// Adds a turn. It is not queued: the caller polls it.
    #[inline]
    pub(crate) fn insert(&mut self, task: Task) -> TaskKey {
        let key = self.free.pop().map_or_else(|| self.grow(), TaskKey);
        let slot = &mut self.slots[key.0 as usize];
        (slot.stage, slot.task) = (Stage::Waiting, task);
        key
    }

    /// Adds a future. It is not queued: the caller wakes it.
    pub(crate) fn spawn(&mut self, future: Spawned, owner: Option<u32>) -> TaskKey {
        let key = self.insert(Task::Spawned { owner });
        self.slots[key.0 as usize].future = Some(future);
        key
    }

    #[cold]
    fn grow(&mut self) -> TaskKey {
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 tasks");
        let foreign = Arc::clone(&self.foreign);
        let wake = Arc::new(TaskWake { index, queued: Queued::default(), foreign });
        let waker = Waker::from(Arc::clone(&wake));
        let (stage, task) = (Stage::Free, Task::Spawned { owner: None });
        self.slots.push(TaskSlot { wake, waker, stage, task, future: None });
        TaskKey(index)
    }

    /// The task, which is polled from now on; `None` if the wake came for one that has ended.
    #[inline]
    pub(crate) fn begin(&mut self, key: TaskKey) -> Option<Task> {
        let slot = &mut self.slots[key.0 as usize];
        if slot.stage != Stage::Waiting {
            return None;
        }
        slot.stage = Stage::Polled;
        Some(slot.task)
    }

    /// The future of a spawned task that is polled.
    #[inline]
    pub(crate) fn take_future(&mut self, key: TaskKey) -> Spawned {
        let future = self.slots[key.0 as usize].future.take();
        future.expect("a spawned task that is not polled yet has its future")
    }

    /// The task that was woken; its waker may queue it again from now on.
    #[inline]
    pub(crate) fn woken(&self, woken: Woken) -> TaskKey {
        match woken {
            Woken::ByAnswer(key) => key,
            Woken::ByWaker(key) => {
                self.slots[key.0 as usize].wake.queued.begin();
                key
            }
        }
    }

    /// A task that was polled is still pending.
    #[inline]
    pub(crate) fn suspend(&mut self, key: TaskKey) {
        let slot = &mut self.slots[key.0 as usize];
        assert!(slot.stage == Stage::Polled, "a task is polled by one poller");
        slot.stage = Stage::Waiting;
    }

    /// A spawned task that was polled is still pending.
    #[inline]
    pub(crate) fn put_back(&mut self, key: TaskKey, future: Spawned) {
        self.slots[key.0 as usize].future = Some(future);
        self.suspend(key);
    }

    /// Frees the slot of a task that ended as it was polled.
    #[inline]
    pub(crate) fn end(&mut self, key: TaskKey) {
        let slot = &mut self.slots[key.0 as usize];
        assert!(slot.stage == Stage::Polled, "an ended task was polled");
        slot.stage = Stage::Free;
        self.free.push(key.0);
    }

    /// Removes a task that is not being polled, and gives its future if it is spawned.
    pub(crate) fn remove(&mut self, key: TaskKey) -> Option<(Task, Option<Spawned>)> {
        let slot = &mut self.slots[key.0 as usize];
        if slot.stage != Stage::Waiting {
            return None;
        }
        slot.stage = Stage::Free;
        self.free.push(key.0);
        Some((slot.task, slot.future.take()))
    }

    #[inline]
    pub(crate) fn waker(&self, key: TaskKey) -> &Waker {
        &self.slots[key.0 as usize].waker
    }

    /// Tasks that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::local::Unpark;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use crossbeam_queue::SegQueue;

    #[derive(Debug, Default)]
    struct Counted(AtomicUsize);

    impl Unpark for Counted {
        fn unpark(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn spawned(tasks: &mut Tasks) -> TaskKey {
        tasks.spawn(Box::pin(async {}), None)
    }

    #[test]
    fn a_wake_from_another_thread_queues_once_and_unparks() {
        let unpark = Arc::new(Counted::default());
        let foreign =
            Arc::new(Foreign { ready: SegQueue::new(), unpark: Arc::clone(&unpark) as _ });
        let mut tasks = Tasks::new(Arc::clone(&foreign));
        let key = spawned(&mut tasks);
        tasks.waker(key).wake_by_ref();
        tasks.waker(key).wake_by_ref();
        let woken = foreign.pop().expect("queued");
        assert!(foreign.pop().is_none(), "once");
        assert_eq!(unpark.0.load(Ordering::Relaxed), 1);
        assert_eq!(tasks.woken(woken), key);
        assert!(tasks.begin(key).is_some());
        tasks.waker(key).wake_by_ref();
        assert_eq!(foreign.ready.pop(), Some(key.0), "a wake during the poll is kept");
    }

    #[test]
    fn a_slot_is_used_again_and_a_late_wake_finds_nothing() {
        let unpark = Arc::new(Counted::default());
        let foreign = Arc::new(Foreign { ready: SegQueue::new(), unpark });
        let mut tasks = Tasks::new(foreign);
        let first = spawned(&mut tasks);
        let _task = tasks.begin(first);
        tasks.end(first);
        assert!(tasks.begin(first).is_none());
        assert_eq!((spawned(&mut tasks), tasks.len()), (first, 1));
    }
}
