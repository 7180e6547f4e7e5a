//! A peer between two processes: the same small shape for each, and how it is measured.
//!
//! Both ends run tokio on one thread, since each is pinned to one processor: the client to the
//! first, the far end, and a broker if the peer needs one, to the second. Both are started by the
//! first case that needs them and kept to the end, as Siloring's are: some peers keep what they
//! know of others for as long as the process lives. Invariants: every wait is bounded, and what
//! fails names its peer.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::broker::Broker;
use crate::names::Names;
use crate::peer::{Peer, wait_for_close};
use crate::support::{Effort, Sample, histogram, nanoseconds, pin};

/// Until a client has found its far end: a few have to discover it first.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);
/// One round of the slowest peer takes some ten seconds.
const ROUND_TIME_MAX: Duration = Duration::from_mins(2);
/// How often the first answers are counted.
const WARM_UP_LOOK: Duration = Duration::from_millis(1);
/// Bytes of each request and each reply, unless more are asked for.
const SMALL_BYTES: usize = 64;
/// Bytes of the larger ones.
const LARGE_BYTES: usize = 1024;

/// The client of a peer, connected.
pub(crate) trait Remote: Sized + Send + 'static {
    /// The names of its loads.
    const NAMES: Names;
    /// What comes back.
    type Reply: AsRef<[u8]>;

    /// Starts the broker that both ends connect to, if the peer needs one.
    fn broker() -> anyhow::Result<Option<Broker>> {
        Ok(None)
    }

    /// Plays the far end, for as long as it is polled; says through `ready` where it is. It is told
    /// where its broker is, if it has one.
    fn serve(broker: &str) -> impl Future<Output = anyhow::Result<()>>;

    /// Connects to the far end that said it is at `place`.
    fn connect(place: &str) -> impl Future<Output = anyhow::Result<Self>>;

    /// A client for a task of its own.
    fn another(&self) -> Self;

    /// Sends `payload` and waits for what comes back.
    fn call(&mut self, payload: &Bytes)
    -> impl Future<Output = anyhow::Result<Self::Reply>> + Send;
}

/// Plays the far end of `R`, until the one who started this process is gone.
pub(crate) fn play<R: Remote>(broker: &str) -> anyhow::Result<()> {
    pin(1)?;
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = R::serve(broker) => result,
            closed = tokio::task::spawn_blocking(wait_for_close) => Ok(closed?),
        }
    });
    // Its blocking thread waits for an input that may stay open.
    runtime.shutdown_background();
    result
}

/// A runtime for the calling thread.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("tokio does not start")
}

/// A peer that is started by the first round that needs it.
#[derive(Debug)]
pub(crate) struct Kept<R> {
    open: RefCell<Option<Open<R>>>,
}

/// A running peer. Fields are dropped in order: whoever depends on another goes first.
#[derive(Debug)]
struct Open<R> {
    client: R,
    runtime: Runtime,
    _far: Peer,
    _broker: Option<Broker>,
}

impl<R: Remote> Open<R> {
    fn start() -> anyhow::Result<Self> {
        // A broker chooses no processor: it stays where it is started.
        pin(1)?;
        let broker = R::broker()?;
        pin(0)?;
        let place = broker.as_ref().map(Broker::place).unwrap_or_default();
        let far = Peer::start(R::NAMES.peer, &[place])?;
        let runtime = runtime()?;
        let connect = async { timeout(CONNECT_TIME_MAX, R::connect(far.place())).await };
        let client = runtime.block_on(connect).context("it does not connect in time")??;
        Ok(Self { client, runtime, _far: far, _broker: broker })
    }
}

impl<R> Default for Kept<R> {
    fn default() -> Self {
        Self { open: RefCell::new(None) }
    }
}

impl<R: Remote> Kept<R> {
    /// Times of calls, one in flight.
    pub(crate) fn latency(&self, effort: Effort) -> anyhow::Result<Sample> {
        let payload = Bytes::from(vec![7; SMALL_BYTES]);
        self.round(async |client: &mut R| times(effort, async || ask(client, &payload).await).await)
    }

    /// Calls a second with `in_flight` under way.
    pub(crate) fn rate(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
        let payload = Bytes::from(vec![7; SMALL_BYTES]);
        self.round(async |client: &mut R| rate(client, payload, in_flight, effort).await)
    }

    /// The same, for calls that carry a kilobyte there and back.
    pub(crate) fn rate_large(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
        let payload = Bytes::from(vec![7; LARGE_BYTES]);
        self.round(async |client: &mut R| rate(client, payload, in_flight, effort).await)
    }

    fn round(
        &self,
        measure: impl AsyncFnOnce(&mut R) -> anyhow::Result<Sample>,
    ) -> anyhow::Result<Sample> {
        pin(0)?;
        let mut open = self.open.borrow_mut();
        if open.is_none() {
            let started = Open::start();
            *open = Some(started.with_context(|| format!("{} does not start", R::NAMES.peer))?);
        }
        let Open { client, runtime, .. } = open.as_mut().expect("it has been started");
        let round = async { timeout(ROUND_TIME_MAX, measure(client)).await };
        runtime.block_on(round).context("it takes too long")?
    }
}

/// Runs `operation` as often as `effort` says and records each one's time, from the end of the one
/// before.
pub(crate) async fn times(
    effort: Effort,
    mut operation: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Sample> {
    for _ in 0..effort.warm_up_count {
        operation().await?;
    }
    let mut times = histogram();
    let mut last = Instant::now();
    for _ in 0..effort.operation_count {
        operation().await?;
        let now = Instant::now();
        times.saturating_record(nanoseconds(now - last));
        last = now;
    }
    Ok(Sample::Latency(times))
}

/// Runs `batch`, which says how many operations it did, until the time of `effort` is over; the
/// result is operations per second.
pub(crate) async fn rate_of(
    effort: Effort,
    mut batch: impl AsyncFnMut() -> anyhow::Result<usize>,
) -> anyhow::Result<Sample> {
    let mut done_count = 0_usize;
    while done_count < effort.warm_up_count {
        done_count += batch().await?;
    }
    done_count = 0;
    let began = Instant::now();
    loop {
        done_count += batch().await?;
        let elapsed = began.elapsed();
        if elapsed >= effort.time {
            return Ok(per_second(u64::try_from(done_count)?, elapsed));
        }
    }
}

fn per_second(count: u64, elapsed: Duration) -> Sample {
    let count = u32::try_from(count).expect("a round is short");
    Sample::Number(f64::from(count) / elapsed.as_secs_f64())
}

async fn ask<R: Remote>(client: &mut R, payload: &Bytes) -> anyhow::Result<()> {
    let reply = client.call(payload).await?;
    ensure!(reply.as_ref() == payload.as_ref(), "the echo is not what was sent");
    Ok(())
}

/// What the tasks of a round share.
#[derive(Debug)]
struct Progress {
    goes_on: AtomicBool,
    done_count: AtomicU64,
}

async fn rate<R: Remote>(
    client: &R,
    payload: Bytes,
    in_flight: usize,
    effort: Effort,
) -> anyhow::Result<Sample> {
    let progress =
        Arc::new(Progress { goes_on: AtomicBool::new(true), done_count: AtomicU64::new(0) });
    let mut tasks = JoinSet::new();
    for _ in 0..in_flight {
        tasks.spawn(work(client.another(), payload.clone(), Arc::clone(&progress)));
    }
    let done_count = || progress.done_count.load(Ordering::Relaxed);
    let measured = async {
        let warm_up_count = u64::try_from(effort.warm_up_count).unwrap_or(u64::MAX);
        while done_count() < warm_up_count {
            sleep(WARM_UP_LOOK).await;
        }
        let (began, before) = (Instant::now(), done_count());
        sleep(effort.time).await;
        (began.elapsed(), done_count() - before)
    };
    let (elapsed, count) = tokio::select! {
        measured = measured => measured,
        Some(ended) = tasks.join_next() => {
            ended??;
            bail!("a task has ended before its round");
        }
    };
    progress.goes_on.store(false, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(per_second(count, elapsed))
}

/// Calls, one after the other, for as long as the round goes on.
async fn work<R: Remote>(
    mut client: R,
    payload: Bytes,
    progress: Arc<Progress>,
) -> anyhow::Result<()> {
    while progress.goes_on.load(Ordering::Relaxed) {
        ask(&mut client, &payload).await?;
        progress.done_count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
