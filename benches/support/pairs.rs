//! Two silos in two processes: the caller in this one, the grain's in a peer.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use siloring::Idle;
use siloring::prelude::*;

use super::peer::{Peer, ready, wait_for_close};
use super::silos::{
    Bulk, Cluster, Echo, EchoRef, KEY, Large, Load, Payload, begin_on, rest, run_on, start_pinned,
    times_of,
};
use crate::support::{Effort, Sample, unpin};

/// A peer that is a silo and holds the grain. Arguments: cluster, file, link, idle.
const CALLEE: &str = "callee";
/// The silo of this process.
const CALLER: &str = "caller";
/// A peer that is a silo and does nothing.
const IDLER: &str = "idler";

/// A silo is idle after this: the tick has slowed.
const SETTLING_TIME: Duration = Duration::from_millis(1_500);
/// How long an idle silo is watched.
const WATCHED_TIME: Duration = Duration::from_secs(2);

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

/// Calls a grain from a shard, and so opens the shard's link to it.
pub(crate) fn call_once(silo: &Handle, shard: u16, key: &str) -> anyhow::Result<()> {
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

    /// What its silos have in common.
    pub(crate) const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The caller.
    pub(crate) fn handle(&self) -> Handle {
        self.caller.handle()
    }

    /// Calls a second with `in_flight` under way on the caller's one shard.
    pub(crate) fn rate(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
        let caller = |_| {
            let echo = self.echo();
            async move || echo.echo(Payload::new()).await.map(drop)
        };
        Load::new(in_flight, effort).rate(&self.handle(), caller).map(Sample::Number)
    }

    /// The same, for calls that carry a kilobyte there and back.
    pub(crate) fn rate_large(&self, in_flight: usize, effort: Effort) -> anyhow::Result<Sample> {
        let caller = |_| {
            let echo = self.echo();
            async move || echo.echo_large(Large::new()).await.map(drop)
        };
        Load::new(in_flight, effort).rate(&self.handle(), caller).map(Sample::Number)
    }

    /// Times of calls that carry `bytes` there and back, one in flight.
    pub(crate) fn times_bulk(&self, bytes: usize, effort: Effort) -> anyhow::Result<Sample> {
        times_of(&self.handle(), self.bulk_caller(bytes), effort)
    }

    /// Calls a second that carry `bytes` there and back, with `in_flight` under way.
    pub(crate) fn rate_bulk(
        &self,
        bytes: usize,
        in_flight: usize,
        effort: Effort,
    ) -> anyhow::Result<Sample> {
        let caller = |_| self.bulk_caller(bytes);
        Load::new(in_flight, effort).rate(&self.handle(), caller).map(Sample::Number)
    }

    fn bulk_caller(
        &self,
        bytes: usize,
    ) -> impl AsyncFnMut() -> Result<(), CallError> + Send + use<> {
        let (echo, bulk) = (self.echo(), Bulk::of(bytes));
        async move || echo.echo_bulk(bulk.clone()).await.map(drop)
    }

    fn echo(&self) -> GrainRef<Echo> {
        self.handle().grain(KEY)
    }
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
    let (began, before) = (Instant::now(), idler.processor_time()?);
    rest(WATCHED_TIME);
    let used = idler.processor_time()?.saturating_sub(before);
    Ok(Sample::Number(100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64()))
}
