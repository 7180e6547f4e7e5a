//! Silos for the benches: a grain that echoes, and measuring on a shard.
//!
//! What is measured runs on a shard of the calling silo, so that no time of a foreign thread is in
//! it; the bench's own thread sleeps meanwhile.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use siloring::prelude::*;
use siloring::{Idle, ShardIndex, Tls};
use siloring_testkit::certificates::{Authority, Validity};

use crate::support::{Effort, Sample, histogram, nanoseconds, processors, unpin};

/// The key of the grain that is called.
pub(crate) const KEY: &str = "echo";

/// What is sent, and comes back.
#[message(type = "bench.payload")]
pub(crate) struct Payload {
    bytes: [u8; 64],
}

impl Payload {
    /// Any 64 bytes.
    pub(crate) const fn new() -> Self {
        Self { bytes: [7; 64] }
    }
}

/// A kilobyte of it.
#[message(type = "bench.large")]
pub(crate) struct Large {
    bytes: [u8; 1024],
}

impl Large {
    /// Any 1024 bytes.
    pub(crate) const fn new() -> Self {
        Self { bytes: [7; 1024] }
    }
}

/// As many bytes as are asked for.
#[message(type = "bench.bulk")]
#[derive(Clone)]
pub(crate) struct Bulk {
    bytes: Vec<u8>,
}

impl Bulk {
    /// Any bytes, so many.
    pub(crate) fn of(bytes_count: usize) -> Self {
        Self { bytes: vec![7; bytes_count] }
    }
}

/// Answers at the first poll, and never.
#[derive(Grain, Default)]
#[grain(type = "bench.echo")]
pub(crate) struct Echo {}

#[grain_methods]
impl Echo {
    /// The payload, read in place and sent back.
    pub(crate) async fn echo(&mut self, payload: &Archived<Payload>) -> Payload {
        Payload { bytes: payload.bytes }
    }

    /// The same, for a kilobyte.
    pub(crate) async fn echo_large(&mut self, payload: &Archived<Large>) -> Large {
        Large { bytes: payload.bytes }
    }

    /// The same, for any number of bytes.
    pub(crate) async fn echo_bulk(&mut self, payload: &Archived<Bulk>) -> Bulk {
        Bulk { bytes: payload.bytes.to_vec() }
    }

    /// Ends long after every bench, beside other turns.
    pub(crate) async fn hang(&self, ctx: &Ctx) -> u64 {
        ctx.sleep(Duration::from_mins(10)).await;
        0
    }

    /// Answers beside a turn that hangs.
    pub(crate) async fn beat(&self) -> u64 {
        1
    }
}

/// What silos of one cluster have in common. The folder that holds their store is its owner's.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    /// Its name.
    pub(crate) name: String,
    /// The file of its store.
    pub(crate) file: PathBuf,
}

impl Cluster {
    /// A new cluster, whose store lies in `folder`.
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}", std::process::id());
        let cluster = Self { file: folder.join(format!("{name}.db")), name };
        siloring::migrate(&cluster.store())?;
        Ok(cluster)
    }

    fn store(&self) -> String {
        format!("sqlite:{}", self.file.display())
    }

    /// A silo of the cluster.
    pub(crate) fn silo(&self, name: &str, link: LinkMode, idle: Idle) -> siloring::SiloBuilder {
        let builder = Silo::builder().cluster(&self.name).name(name).store(self.store());
        let builder = builder.link(link).idle(idle).host::<Echo>();
        let folder = self.certificates_of(name);
        if !folder.exists() {
            return builder;
        }
        let [ca, certificate, key] =
            ["ca.pem", "certificate.pem", "key.pem"].map(|file| folder.join(file));
        builder.tls(Tls { ca, certificate, key })
    }

    /// Lets its silos of these names link inside TLS.
    pub(crate) fn issue(&self, names: &[&str]) -> anyhow::Result<()> {
        let authority = Authority::new("bench");
        for name in names {
            let uri = format!("siloring://{}/{name}", self.name);
            let folder = self.certificates_of(name);
            std::fs::create_dir_all(&folder)?;
            authority.issue(&[&uri], Validity::Now).write(&folder)?;
        }
        Ok(())
    }

    /// The folder of a silo's certificates, if it has any.
    fn certificates_of(&self, name: &str) -> PathBuf {
        self.file.with_extension("tls").join(name)
    }
}

/// Starts a silo with one shard, on the processor `index` of those that this bench may use.
pub(crate) fn start_pinned(builder: siloring::SiloBuilder, index: usize) -> anyhow::Result<Silo> {
    unpin()?;
    let usable = processors();
    let processor = usable.get(index).or(usable.last()).copied().unwrap_or(0);
    Ok(builder.shards(1).cpus([processor]).start()?)
}

/// Runs `make`'s future on a shard; what it gives comes later.
pub(crate) fn begin_on<T: Send + 'static, F: Future<Output = T> + 'static>(
    silo: &Handle,
    shard: u16,
    make: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<Receiver<T>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let make = move || {
        let future = make();
        async move {
            // Nobody waits any more if the bench has failed.
            drop(sender.send(future.await));
        }
    };
    silo.spawn_on(ShardIndex(shard), make)?;
    Ok(receiver)
}

/// Runs `make`'s future on a shard, and waits for what it gives.
pub(crate) fn run_on<T: Send + 'static, F: Future<Output = T> + 'static>(
    silo: &Handle,
    shard: u16,
    make: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<T> {
    begin_on(silo, shard, make)?.recv().context("the silo ended")
}

/// Times of calls of `key` from shard 0 of a silo, one in flight.
pub(crate) fn call_times(silo: &Handle, key: &str, effort: Effort) -> anyhow::Result<Sample> {
    let echo = silo.grain::<Echo>(key);
    times_of(silo, async move || echo.echo(Payload::new()).await.map(drop), effort)
}

/// Times of calls, or of what else is asked of a silo's shard 0, one in flight.
pub(crate) fn times_of<E: Into<anyhow::Error>>(
    silo: &Handle,
    mut call: impl AsyncFnMut() -> Result<(), E> + Send + 'static,
    effort: Effort,
) -> anyhow::Result<Sample> {
    run_on(silo, 0, move || async move {
        for _ in 0..effort.warm_up_count {
            call().await.map_err(Into::into)?;
        }
        let mut times = histogram();
        let mut last = Instant::now();
        for _ in 0..effort.operation_count {
            call().await.map_err(Into::into)?;
            let now = Instant::now();
            times.saturating_record(nanoseconds(now - last));
            last = now;
        }
        Ok(Sample::Latency(times))
    })?
}

/// How many calls are under way at once, and how long that is watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    in_flight: usize,
    warm_up_count: usize,
    time: Duration,
}

impl Load {
    pub(crate) const fn new(in_flight: usize, effort: Effort) -> Self {
        Self { in_flight, warm_up_count: effort.warm_up_count, time: effort.time }
    }

    /// As an order to a peer.
    pub(crate) fn to_order(self) -> String {
        format!("{} {} {}", self.in_flight, self.warm_up_count, self.time.as_millis())
    }

    /// As a peer was ordered.
    pub(crate) fn of_order(order: &str) -> anyhow::Result<Self> {
        let numbers: Result<Vec<usize>, _> = order.split(' ').map(str::parse).collect();
        let [in_flight, warm_up_count, millis] = numbers?[..] else { bail!("{order} is no load") };
        Ok(Self { in_flight, warm_up_count, time: Duration::from_millis(millis as u64) })
    }

    /// Calls a second of a silo, or what else is asked of it, spread over its shards; each is made
    /// by the `caller` of its number.
    pub(crate) fn rate<C, E>(
        self,
        silo: &Handle,
        caller: impl Fn(usize) -> C,
    ) -> anyhow::Result<f64>
    where
        C: AsyncFnMut() -> Result<(), E> + Send + 'static,
        E: Into<anyhow::Error> + Send + 'static,
    {
        let (goes_on, done) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let shards = (0..silo.shards()).cycle();
        let workers = (0..self.in_flight).zip(shards).map(|(number, shard)| {
            let (goes_on, done) = (Arc::clone(&goes_on), Arc::clone(&done));
            let mut call = caller(number);
            begin_on(silo, shard, move || async move {
                while goes_on.load(Ordering::Relaxed) {
                    call().await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), E>(())
            })
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let deadline = Instant::now() + Duration::from_mins(1);
        while done.load(Ordering::Relaxed) < self.warm_up_count {
            ensure!(Instant::now() < deadline, "calls do not come back");
            rest(Duration::from_millis(1));
        }
        let (began, before) = (Instant::now(), done.load(Ordering::Relaxed));
        rest(self.time);
        let (elapsed, after) = (began.elapsed(), done.load(Ordering::Relaxed));
        goes_on.store(false, Ordering::Relaxed);
        for worker in workers {
            worker.recv().context("the silo ended")?.map_err(Into::into)?;
        }
        let count = u32::try_from(after - before).expect("a round is short");
        Ok(f64::from(count) / elapsed.as_secs_f64())
    }
}

/// Lets silos work while this thread sleeps.
pub(crate) fn rest(time: Duration) {
    std::thread::sleep(time);
}
