//! The surrounding program of a simulated silo: futures that use its handle, on virtual time.
//!
//! A program that embeds a silo has threads and a runtime of its own. Here it is one part of the
//! process: its futures are polled when something wakes them, they sleep on the host's clock, and
//! they die with the process.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use siloring_core::Moment;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks that were woken, in order.
#[derive(Debug, Default)]
struct Ready {
    /// Guards the queue; wakers must be `Send`, though here all is one thread.
    queue: Mutex<VecDeque<usize>>,
}

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.task);
    }
}

/// The clock and the timers of a process's own program.
#[derive(Debug, Default)]
struct Timers {
    now: Cell<Moment>,
    next: Cell<u64>,
    heap: RefCell<BinaryHeap<Reverse<Timer>>>,
}

#[derive(Debug)]
struct Timer {
    at: Moment,
    sequence: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// What a program's futures use instead of a runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AppClock(Rc<Timers>);

impl AppClock {
    /// The time on this host.
    pub fn now(&self) -> Moment {
        self.0.now.get()
    }

    /// Waits on virtual time.
    ///
    /// # Cancel safety
    /// Dropped, it has no effect.
    pub fn sleep(&self, span: Duration) -> impl Future<Output = ()> + use<> {
        Sleep { timers: Rc::clone(&self.0), until: self.now() + span, set: false }
    }
}

struct Sleep {
    timers: Rc<Timers>,
    until: Moment,
    set: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timers.now.get() >= self.until {
            return Poll::Ready(());
        }
        if !self.set {
            self.set = true;
            let sequence = self.timers.next.get();
            self.timers.next.set(sequence + 1);
            let timer = Timer { at: self.until, sequence, waker: cx.waker().clone() };
            self.timers.heap.borrow_mut().push(Reverse(timer));
        }
        Poll::Pending
    }
}

/// The futures of one process.
pub(super) struct App {
    tasks: Vec<Option<(Task, Waker)>>,
    free: Vec<usize>,
    ready: Arc<Ready>,
    timers: Rc<Timers>,
}

impl fmt::Debug for App {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "App({} tasks)", self.tasks.len() - self.free.len())
    }
}

impl App {
    pub(super) fn new() -> Self {
        Self { tasks: Vec::new(), free: Vec::new(), ready: Arc::default(), timers: Rc::default() }
    }

    pub(super) fn clock(&self) -> AppClock {
        AppClock(Rc::clone(&self.timers))
    }

    pub(super) fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        let task = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: Arc::clone(&self.ready) }));
        self.tasks[task] = Some((Box::pin(future), waker.clone()));
        waker.wake();
    }

    /// Whether a task was woken since the last run.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Polls what is ready until nothing is; when the next timer fires.
    pub(super) fn run(&mut self, now: Moment) -> Moment {
        self.timers.now.set(now);
        self.fire(now);
        while let Some(task) = self.next_ready() {
            let Some((future, waker)) = &mut self.tasks[task] else {
                continue;
            };
            if future.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.tasks[task] = None;
                self.free.push(task);
            }
        }
        let heap = self.timers.heap.borrow();
        heap.peek().map_or(Moment::NEVER, |Reverse(timer)| timer.at)
    }

    fn fire(&self, now: Moment) {
        let mut heap = self.timers.heap.borrow_mut();
        while heap.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            if let Some(Reverse(timer)) = heap.pop() {
                timer.waker.wake();
            }
        }
    }

    fn next_ready(&self) -> Option<usize> {
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_sleeps_on_virtual_time() {
        let mut app = App::new();
        let done = Rc::new(Cell::new(Moment::ZERO));
        let (clock, seen) = (app.clock(), Rc::clone(&done));
        app.run(Moment::from_nanos(100));
        app.spawn(async move {
            clock.sleep(Duration::from_nanos(50)).await;
            seen.set(clock.now());
        });
        assert_eq!(app.run(Moment::from_nanos(100)), Moment::from_nanos(150));
        assert_eq!(done.get(), Moment::ZERO);
        assert_eq!(app.run(Moment::from_nanos(151)), Moment::NEVER);
        assert_eq!(done.get(), Moment::from_nanos(151));
    }
}
