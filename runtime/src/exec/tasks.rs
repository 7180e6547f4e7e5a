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
pub(crate) enum Task {
    /// A turn: its future waits in its host.
    Turn { host: u32, slot: u32, activation: u32 },
    /// A future of the surrounding program or of a grain's timer; `owner` is its activation.
    Spawned { future: Spawned, owner: Option<u32> },
}

impl fmt::Debug for Task {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn { activation, .. } => write!(out, "Turn(activation {activation})"),
            Self::Spawned { .. } => out.write_str("Spawned"),
        }
    }
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

#[derive(Debug)]
struct TaskSlot {
    wake: Arc<TaskWake>,
    waker: Waker,
    task: Option<Task>,
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

    /// Adds a task. It is not queued: the caller polls it, or wakes it.
    #[inline]
    pub(crate) fn insert(&mut self, task: Task) -> TaskKey {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize].task = Some(task);
            return TaskKey(index);
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 tasks");
        let wake = Arc::new(TaskWake {
            index,
            queued: Queued::default(),
            foreign: Arc::clone(&self.foreign),
        });
        let waker = Waker::from(Arc::clone(&wake));
        self.slots.push(TaskSlot { wake, waker, task: Some(task) });
        TaskKey(index)
    }

    /// Takes the task out to be polled; `None` if the wake came for one that has ended.
    #[inline]
    pub(crate) fn begin(&mut self, key: TaskKey) -> Option<Task> {
        self.slots[key.0 as usize].task.take()
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

    /// Puts a task back that is still pending.
    #[inline]
    pub(crate) fn suspend(&mut self, key: TaskKey, task: Task) {
        let slot = &mut self.slots[key.0 as usize];
        assert!(slot.task.is_none(), "a task is polled by one poller");
        slot.task = Some(task);
    }

    /// Frees the slot of a task that ended while it was taken out.
    #[inline]
    pub(crate) fn end(&mut self, key: TaskKey) {
        assert!(self.slots[key.0 as usize].task.is_none(), "an ended task was taken out");
        self.free.push(key.0);
    }

    /// Removes a task that is not being polled.
    pub(crate) fn remove(&mut self, key: TaskKey) -> Option<Task> {
        let task = self.slots[key.0 as usize].task.take()?;
        self.free.push(key.0);
        Some(task)
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

    fn spawned() -> Task {
        Task::Spawned { future: Box::pin(async {}), owner: None }
    }

    #[test]
    fn a_wake_from_another_thread_queues_once_and_unparks() {
        let unpark = Arc::new(Counted::default());
        let foreign =
            Arc::new(Foreign { ready: SegQueue::new(), unpark: Arc::clone(&unpark) as _ });
        let mut tasks = Tasks::new(Arc::clone(&foreign));
        let key = tasks.insert(spawned());
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
        let first = tasks.insert(spawned());
        let _task = tasks.begin(first);
        tasks.end(first);
        assert!(tasks.begin(first).is_none());
        assert_eq!((tasks.insert(spawned()), tasks.len()), (first, 1));
    }
}
