//! Two silos in two processes: the caller in this one, the grain's in a peer.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use siloring::Idle;
use siloring::prelude::*;

use super::peer::{Peer, ready, wait_for_close};
use super::silos::{
    Cluster, Echo, EchoRef, KEY, Large, Payload, begin_on, call_times, rest, run_on, start_pinned,
};
use crate::support::{Effort, Sample, unpin};

/// A peer that is a silo and holds the grain. Arguments: cluster, file, link, idle.
const CALLEE: &str = "callee";
/// The silo of this process.
const CALLER: &str = "caller";
/// A peer with many shards, each with a link of its own to the shards of the grain's silo that it
/// calls. Arguments: cluster, file, key.
const CROWD: &str = "crowd";
/// A peer that is a silo and does nothing.
const IDLER: &str = "idler";

/// Links of the crowd; with the caller's own they are 64.
const CROWD_LINKS: u16 = 63;
/// A silo is idle after this: the tick has slowed.
const SETTLING_TIME: Duration = Duration::from_millis(1_500);
/// How long an idle silo is watched.
const WATCHED_TIME: Duration = Duration::from_secs(2);
/// The grain that the crowd calls: it lives on the measured silo.
const CROWDED_KEY: &str = "crowded";

/// Plays the peer `role`.
pub(crate) fn play(role: &str, arguments: &[String]) -> anyhow::Result<()> {
    match (role, arguments) {
        (CALLEE, [name, file, link, idle]) => {
            let cluster = Cluster { name: name.clone(), file: file.into() };
            let link = if link == "unix" { LinkMode::Unix } else { LinkMode::Tcp };
            let idle = if idle == "park" { Idle::Park } else { Idle::default() };
            let silo = start_pinned(cluster.silo(CALLEE, link, idle), 1)?;
            // Preferring its caller's silo, the grain lives here from now on.
            call_once(&silo.handle(), 0, KEY)?;
            serve(&silo)
        }
        (CROWD, [name, file]) => {
            unpin()?;
            let cluster = Cluster { name: name.clone(), file: file.into() };
            let builder = cluster.silo(CROWD, LinkMode::Tcp, Idle::Park);
            let silo = builder.shards(CROWD_LINKS).start()?;
            for shard in 0..CROWD_LINKS {
                call_once(&silo.handle(), shard, CROWDED_KEY)?;
            }
            serve(&silo)
        }
        (IDLER, []) => {
            unpin()?;
            serve(&Silo::builder().cluster("bench-idle").shards(1).start()?)
        }
        _ => bail!("nobody plays {role} with {arguments:?}"),
    }
}

fn serve(silo: &Silo) -> anyhow::Result<()> {
    ready(silo.address())?;
    wait_for_close();
    Ok(())
}

fn call_once(silo: &Handle, shard: u16, key: &str) -> anyhow::Result<()> {
    let echo = silo.grain::<Echo>(key);
    run_on(silo, shard, move || async move { echo.echo(Payload::new()).await.map(drop) })??;
    Ok(())
}

/// Two silos. Fields are dropped in order: the caller leaves before its peer is killed.
#[derive(Debug)]
pub(crate) struct Pair {
    caller: Silo,
    target: Peer,
    cluster: Cluster,
}

impl Pair {
    /// Starts both, the grain in the peer.
    pub(crate) fn start(folder: &Path, link: LinkMode, idle: Idle) -> anyhow::Result<Self> {
        Self::start_in(Cluster::new(folder)?, link, idle)
    }

    fn start_in(cluster: Cluster, link: LinkMode, idle: Idle) -> anyhow::Result<Self> {
        let link_name = if link == LinkMode::Unix { "unix" } else { "tcp" };
        let idle_name = if idle == Idle::Park { "park" } else { "adaptive" };
        let file = cluster.file.to_str().context("the folder's path is text")?;
        let target = Peer::start(CALLEE, &[&cluster.name, file, link_name, idle_name])?;
        let caller = start_pinned(cluster.silo(CALLER, link, idle), 0)?;
        call_once(&caller.handle(), 0, KEY)?;
        Ok(Self { caller, target, cluster })
    }

    /// Starts both, linked over TCP inside TLS.
    pub(crate) fn start_sealed(folder: &Path) -> anyhow::Result<Self> {
        let cluster = Cluster::new(folder)?;
        cluster.issue(&[CALLER, CALLEE])?;
        Self::start_in(cluster, LinkMode::Tcp, Idle::default())
    }

    /// The caller.
    pub(crate) fn handle(&self) -> Handle {
        self.caller.handle()
    }

    /// Calls a second with `in_flight` under way on the caller's one shard.
    pub(crate) fn rate(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
        let call = async |echo: &GrainRef<Echo>| echo.echo(Payload::new()).await.map(drop);
        self.rate_of(call, in_flight, effort)
    }

    /// The same, for calls that carry a kilobyte there and back.
    pub(crate) fn rate_large(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
        let call = async |echo: &GrainRef<Echo>| echo.echo_large(Large::new()).await.map(drop);
        self.rate_of(call, in_flight, effort)
    }

    fn rate_of(
        &self,
        call: impl AsyncFn(&GrainRef<Echo>) -> Result<(), CallError> + Copy + Send + 'static,
        in_flight: usize,
        effort: Effort,
    ) -> anyhow::Result<Sample> {
        let silo = self.handle();
        let (goes_on, done) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let workers = (0..in_flight).map(|_| {
            let (goes_on, done) = (Arc::clone(&goes_on), Arc::clone(&done));
            let echo = silo.grain::<Echo>(KEY);
            begin_on(&silo, 0, move || async move {
                while goes_on.load(Ordering::Relaxed) {
                    call(&echo).await?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), CallError>(())
            })
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let warm_up_count = u64::try_from(effort.warm_up_count).unwrap_or(u64::MAX);
        let deadline = Instant::now() + Duration::from_mins(1);
        while done.load(Ordering::Relaxed) < warm_up_count {
            ensure!(Instant::now() < deadline, "calls do not come back");
            rest(Duration::from_millis(1));
        }
        let (began, before) = (Instant::now(), done.load(Ordering::Relaxed));
        rest(effort.time);
        let (elapsed, after) = (began.elapsed(), done.load(Ordering::Relaxed));
        goes_on.store(false, Ordering::Relaxed);
        for worker in workers {
            worker.recv().context("the silo ended")??;
        }
        let count = u32::try_from(after - before).expect("a round is short");
        Ok(Sample::Number(f64::from(count) / elapsed.as_secs_f64()))
    }
}

/// Times of calls of a silo whose shard has 64 links, 63 of them silent.
pub(crate) fn many_links(folder: &Path, effort: Effort) -> anyhow::Result<Sample> {
    let pair = Pair::start(folder, LinkMode::Tcp, Idle::default())?;
    // On the caller's silo, which every shard of the crowd then links with.
    call_once(&pair.handle(), 0, CROWDED_KEY)?;
    let file = pair.cluster.file.to_str().context("the folder's path is text")?;
    let crowd = Peer::start(CROWD, &[&pair.cluster.name, file])?;
    let times = call_times(&pair.handle(), KEY, effort)?;
    drop(crowd);
    Ok(times)
}

/// A silo whose peer was killed.
#[derive(Debug)]
pub(crate) struct Killed {
    _caller: Silo,
}

impl Killed {
    /// Kills a silo that owes an answer; how long its caller waits for an outcome then.
    pub(crate) fn measure(folder: &Path) -> anyhow::Result<(Self, Sample)> {
        let pair = Pair::start(folder, LinkMode::Tcp, Idle::default())?;
        let silo = pair.handle();
        let echo = silo.grain::<Echo>(KEY);
        let hanging = echo.clone();
        let ended = begin_on(&silo, 0, move || async move {
            let result = hanging.hang().await;
            (Instant::now(), result)
        })?;
        // Frames keep their order: the turn that hangs has begun once a later one is answered.
        run_on(&silo, 0, move || async move { echo.beat().await })??;
        let killed_at = Instant::now();
        drop(pair.target);
        let (ended_at, result) = ended.recv().context("the silo ended")?;
        ensure!(result.is_err(), "a killed silo has answered");
        let time = ended_at.saturating_duration_since(killed_at);
        Ok((Self { _caller: pair.caller }, Sample::Number(time.as_secs_f64() * 1e3)))
    }
}

/// The share of a core that an idle silo uses, in percent: all its threads, for one shard.
pub(crate) fn idle_share() -> anyhow::Result<Sample> {
    let idler = Peer::start(IDLER, &[])?;
    rest(SETTLING_TIME);
    let (began, before) = (Instant::now(), processor_time(idler.process())?);
    rest(WATCHED_TIME);
    let used = processor_time(idler.process())?.saturating_sub(before);
    Ok(Sample::Number(100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64()))
}

/// Time that all threads of a process have run so far, to the nanosecond.
fn processor_time(process: u32) -> anyhow::Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let ran = text.split(' ').next().context("the file is empty")?;
        total += Duration::from_nanos(ran.parse()?);
    }
    Ok(total)
}
