//! The store's threads: what feeds [`Lanes`] with requests, results and time.
//!
//! One thread, `siloring-store`, runs the machine and never blocks on a store; each lane's worker
//! is a thread with a store of its own, so that a server which accepts and says nothing costs that
//! thread and no more. Requests come through one bounded lock-free queue from any thread. Contract:
//! each submitted request is answered exactly once, on the `siloring-store` thread or, when it is
//! refused, on the submitting one; refused at once when too much is in. Deliberately absent:
//! retries.

#![expect(
    clippy::disallowed_methods,
    reason = "a driver owns threads, reads the clock, draws a seed"
)]

mod watch;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(feature = "planted")]
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::sync::{Parker, Unparker};
use siloring_core::event::Event;
use siloring_core::limits::{
    STORE_HANG_AFTER, STORE_QUEUE_BYTES_MAX, STORE_QUEUE_MAX, STORE_RETIRED_MAX,
    STORE_STATEMENT_TIME_MAX,
};
use siloring_core::ports::store::{Store, StoreError, StoreRequest, StoreResult};
use siloring_core::{ClusterId, Moment};

use crate::judge::{all, not_sent, unavailable};
use crate::lanes::{Lane, Lanes, Output, WorkerId, request_bytes};
use crate::memory::MemoryStore;
use crate::open::{OpenError, open_parsed};
use crate::url::StoreUrl;

pub use self::watch::RegistryWatch;

/// Returns of workers that may be under way at once: results and end of each.
const RETURNS_MAX: usize = 2 * (STORE_RETIRED_MAX + 1) * Lane::ALL.len();

/// Makes a store for a worker, on its thread.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn Store>, OpenError> + Send + Sync>;

/// Called once with what the store answered.
pub type OnAnswer = Box<dyn FnOnce(StoreResult) + Send>;

/// A store with its threads. Owns them: dropping it answers what is in and ends them.
pub struct StoreThreads {
    client: StoreClient,
    thread: Option<JoinHandle<()>>,
}

impl StoreThreads {
    /// Opens the store that `url` names and starts its threads.
    ///
    /// Fails as [`open`](crate::open()) does. `on_event` hears of the store's health, on the
    /// `siloring-store` thread; it must not block.
    pub fn start(
        url: &str,
        cluster: &ClusterId,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let url = StoreUrl::parse(url)?;
        let shown = url.to_string();
        let opener = opener(url, cluster.clone());
        let probe = Arc::clone(&opener);
        on_a_thread(STORE_HANG_AFTER, move || probe().map(drop))
            .unwrap_or_else(|silent| Err(OpenError::unreachable(&shown, silent.to_string())))?;
        Ok(Self::with_opener(opener, on_event))
    }

    /// Starts threads for stores that `opener` makes, each on the thread that uses it; a store that
    /// cannot be made is tried again with the next request.
    ///
    /// # Panics
    /// If the operating system starts no thread.
    pub fn with_opener(opener: Opener, on_event: impl FnMut(Event) + Send + 'static) -> Self {
        let parker = Parker::new();
        let inbox = Arc::new(Inbox {
            queue: ArrayQueue::new(STORE_QUEUE_MAX),
            open_count: AtomicUsize::new(0),
            open_bytes: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            unparker: parker.unparker().clone(),
        });
        let mut driver = Driver {
            inbox: Arc::clone(&inbox),
            returns: Arc::new(ArrayQueue::new(RETURNS_MAX)),
            lanes: Lanes::new(fastrand::Rng::new()),
            workers: BTreeMap::new(),
            opener,
            on_event: Box::new(on_event),
        };
        let thread = Builder::new()
            .name("siloring-store".into())
            .spawn(move || driver.run(&parker))
            .expect("the operating system starts a thread");
        Self { client: StoreClient { inbox }, thread: Some(thread) }
    }

    /// A handle for any thread.
    pub fn client(&self) -> StoreClient {
        self.client.clone()
    }
}

impl Drop for StoreThreads {
    /// Runs what is in for at most [`STORE_STATEMENT_TIME_MAX`], answers the rest as unavailable.
    fn drop(&mut self) {
        self.client.inbox.is_closed.store(true, Ordering::SeqCst);
        self.client.inbox.unparker.unpark();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the siloring-store thread panicked");
        }
    }
}

impl fmt::Debug for StoreThreads {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StoreThreads").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Submits requests to a store's threads, from any thread.
#[derive(Clone)]
pub struct StoreClient {
    inbox: Arc<Inbox>,
}

impl StoreClient {
    /// Submits a request; never blocks.
    ///
    /// `on_answer` is called exactly once: on this thread, before this returns, with
    /// [`StoreError::NotSent`] when too much is in or the threads have ended, else on the
    /// `siloring-store` thread. It must neither block nor panic.
    pub fn submit(
        &self,
        request: StoreRequest,
        on_answer: impl FnOnce(StoreResult) + Send + 'static,
    ) {
        let bytes = request_bytes(&request);
        let ticket =
            Ticket { on_answer: Some(Box::new(on_answer)), bytes, inbox: Arc::clone(&self.inbox) };
        let count = self.inbox.open_count.fetch_add(1, Ordering::SeqCst);
        let open_bytes = self.inbox.open_bytes.fetch_add(bytes, Ordering::SeqCst);
        if count >= STORE_QUEUE_MAX || open_bytes.saturating_add(bytes) > STORE_QUEUE_BYTES_MAX {
            return ticket.answer(Err(not_sent("too many requests wait for the store")));
        }
        if let Err((ticket, _)) = self.inbox.queue.push((ticket, request)) {
            return ticket.answer(Err(not_sent("the store's queue is full")));
        }
        self.inbox.unparker.unpark();
        // Closed in between: the threads may have looked for the last time before the push.
        if self.inbox.is_closed.load(Ordering::SeqCst) {
            self.inbox.refuse_all();
        }
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.inbox.open_count.load(Ordering::Relaxed);
        out.debug_struct("StoreClient").field("open_count", &count).finish_non_exhaustive()
    }
}

/// What submitters and the `siloring-store` thread share.
struct Inbox {
    queue: ArrayQueue<(Ticket, StoreRequest)>,
    /// Requests not answered yet, queued or with a worker: at most [`STORE_QUEUE_MAX`].
    open_count: AtomicUsize,
    /// Bytes of state in them: at most [`STORE_QUEUE_BYTES_MAX`].
    open_bytes: AtomicUsize,
    is_closed: AtomicBool,
    unparker: Unparker,
}

impl Inbox {
    fn refuse_all(&self) {
        while let Some((ticket, _)) = self.queue.pop() {
            ticket.answer(Err(not_sent(ENDED)));
        }
    }
}

/// Why a request has no other answer.
const ENDED: &str = "the store's threads have ended";

/// The right to answer a request: dropped unanswered, it answers that the outcome is unknown.
struct Ticket {
    on_answer: Option<OnAnswer>,
    bytes: usize,
    inbox: Arc<Inbox>,
}

impl Ticket {
    fn answer(mut self, result: StoreResult) {
        self.take(result);
    }

    fn take(&mut self, result: StoreResult) {
        if let Some(on_answer) = self.on_answer.take() {
            self.inbox.open_count.fetch_sub(1, Ordering::SeqCst);
            self.inbox.open_bytes.fetch_sub(self.bytes, Ordering::SeqCst);
            on_answer(result);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.take(Err(unavailable(ENDED)));
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ticket").finish_non_exhaustive()
    }
}

/// What comes back from a worker.
enum Return {
    Results { lane: Lane, worker: WorkerId, results: Vec<StoreResult> },
    Ended { lane: Lane, worker: WorkerId },
}

/// The `siloring-store` thread.
struct Driver {
    inbox: Arc<Inbox>,
    returns: Arc<ArrayQueue<Return>>,
    lanes: Lanes<Ticket>,
    /// Those not given up: where their groups go.
    workers: BTreeMap<WorkerId, SyncSender<Vec<StoreRequest>>>,
    opener: Opener,
    on_event: Box<dyn FnMut(Event) + Send>,
}

impl Driver {
    fn run(&mut self, parker: &Parker) {
        let mut ends_at = None;
        loop {
            let now = now();
            self.take_in(now);
            self.lanes.tick(now);
            self.give_out();
            if self.inbox.is_closed.load(Ordering::SeqCst) {
                let ends_at = *ends_at.get_or_insert(now + STORE_STATEMENT_TIME_MAX);
                let is_done = self.lanes.is_empty() && self.inbox.queue.is_empty();
                if is_done || now >= ends_at {
                    break;
                }
                park(parker, self.lanes.next_deadline().min(ends_at), now);
            } else {
                park(parker, self.lanes.next_deadline(), now);
            }
        }
        self.lanes.abandon("the silo is ending; whether the change was made is unknown");
        self.give_out();
        self.inbox.refuse_all();
    }

    fn take_in(&mut self, now: Moment) {
        for _ in 0..RETURNS_MAX {
            match self.returns.pop() {
                Some(Return::Results { lane, worker, results }) => {
                    self.lanes.handle_results(now, lane, worker, results);
                }
                Some(Return::Ended { lane, worker }) => {
                    self.workers.remove(&worker);
                    self.lanes.handle_end(now, lane, worker);
                }
                None => break,
            }
        }
        for _ in 0..STORE_QUEUE_MAX {
            match self.inbox.queue.pop() {
                Some((ticket, request)) => self.lanes.handle_request(now, ticket, request),
                None => break,
            }
        }
    }

    fn give_out(&mut self) {
        while let Some(output) = self.lanes.poll_output() {
            match output {
                Output::Start { lane, worker } => self.start_worker(lane, worker),
                Output::Run { worker, group } => {
                    // One that died is reported by its end, which answers the group.
                    if let Some(sender) = self.workers.get(&worker)
                        && sender.try_send(group).is_err()
                    {
                        tracing::debug!(?worker, "a store's thread died before its group");
                    }
                }
                Output::GiveUp { worker } => drop(self.workers.remove(&worker)),
                Output::Answer { ticket, result } => ticket.answer(result),
                Output::Event(event) => (self.on_event)(event),
            }
        }
    }

    fn start_worker(&mut self, lane: Lane, id: WorkerId) {
        let (sender, groups) = sync_channel(1);
        let worker = Worker {
            lane,
            id,
            opener: Arc::clone(&self.opener),
            returns: Arc::clone(&self.returns),
            unparker: self.inbox.unparker.clone(),
        };
        let name = format!("siloring-{}", lane.name());
        // A thread that cannot be started drops the worker, which reports its end.
        match Builder::new().name(name).spawn(move || worker.run(&groups)) {
            Ok(_detached) => {
                self.workers.insert(id, sender);
            }
            Err(error) => tracing::error!(%error, "no thread for the store"),
        }
    }
}

/// A worker's thread: a store of its own, one group at a time. Its end is always reported.
struct Worker {
    lane: Lane,
    id: WorkerId,
    opener: Opener,
    returns: Arc<ArrayQueue<Return>>,
    unparker: Unparker,
}

impl Worker {
    fn run(self, groups: &Receiver<Vec<StoreRequest>>) {
        let mut store = None;
        while let Ok(group) = groups.recv() {
            let results = self.run_group(&mut store, &group);
            self.give_back(Return::Results { lane: self.lane, worker: self.id, results });
        }
    }

    fn run_group(
        &self,
        slot: &mut Option<Box<dyn Store>>,
        group: &[StoreRequest],
    ) -> Vec<StoreResult> {
        let store = match slot.take().map_or_else(|| (self.opener)(), Ok) {
            Ok(store) => slot.insert(store),
            Err(error) => return all(&StoreError::from(error), group.len()),
        };
        let results = store.execute_group(group);
        assert_eq!(results.len(), group.len(), "a store answers each request");
        results
    }

    fn give_back(&self, it: Return) {
        let is_full = self.returns.push(it).is_err();
        assert!(!is_full, "each worker has at most one result and one end under way");
        self.unparker.unpark();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.give_back(Return::Ended { lane: self.lane, worker: self.id });
    }
}

/// How a URL's stores are made. The workers of `memory:` share one.
fn opener(url: StoreUrl, cluster: ClusterId) -> Opener {
    match url {
        StoreUrl::Memory => {
            let store = MemoryStore::solitary(cluster);
            Arc::new(move || Ok(Box::new(store.clone())))
        }
        StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => {
            Arc::new(move || open_parsed(&url, &cluster))
        }
    }
}

/// Why a thread did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Silent {
    /// It is still at it; it ends by itself.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// It panicked, or was not started.
    #[error("the thread that asked died")]
    Died,
}

/// Runs `work` on a thread of its own for at most `time_max`; after that the thread is left to end
/// by itself. So a caller on any runtime may block on what must not run inside one.
pub(crate) fn on_a_thread<T: Send + 'static>(
    time_max: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Silent> {
    let (sender, receiver) = sync_channel(1);
    let spawned = Builder::new().name("siloring-store-open".into()).spawn(move || {
        // The receiver may have given up: then the value is for nobody.
        drop(sender.try_send(work()));
    });
    if spawned.is_err() {
        return Err(Silent::Died);
    }
    receiver.recv_timeout(time_max).map_err(|error| match error {
        RecvTimeoutError::Timeout => Silent::Slow(time_max),
        RecvTimeoutError::Disconnected => Silent::Died,
    })
}

fn park(parker: &Parker, until: Moment, now: Moment) {
    if until == Moment::NEVER {
        parker.park();
    } else {
        parker.park_timeout(until.since(now));
    }
}

/// The clock that also runs while the machine is suspended.
fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since_boot = Duration::try_from(time).expect("the time since boot is never negative");
    Moment::ZERO + since_boot + ahead()
}

/// How far the clock has jumped, in nanoseconds.
#[cfg(feature = "planted")]
static AHEAD_NS: AtomicU64 = AtomicU64::new(0);

#[cfg(feature = "planted")]
fn ahead() -> Duration {
    Duration::from_nanos(AHEAD_NS.load(Ordering::Relaxed))
}

#[cfg(not(feature = "planted"))]
const fn ahead() -> Duration {
    Duration::ZERO
}

/// Moves the clock of this process' store threads: as after a suspension.
#[cfg(feature = "planted")]
pub fn jump_clock(by: Duration) {
    let nanos = u64::try_from(by.as_nanos()).expect("a jump fits");
    AHEAD_NS.fetch_add(nanos, Ordering::Relaxed);
}
