//! The same work by Siloring and by what people would pick instead, in one run.
//!
//! Each peer is used as its own documentation advises, and has a file of its own that says what had
//! to be chosen. Between two processes the client is pinned to the first processor and the far end
//! to the second; inside one process, caller and actor are on one thread, or on two. A request and
//! its reply are 64 bytes each where not said otherwise. Rows show Siloring's value against the
//! peer's: a peer that is faster is shown as faster.
//!
//! Not here: orlando, whose store links another version of SQLite than Siloring's, so that no
//! program can hold both; kameo between processes, whose nodes were not seen to find each other
//! when told of a place instead of by multicast; and peers whose server is not installed, which a
//! run names and counts.
#![expect(clippy::print_stderr, reason = "what is skipped is for the person at the terminal")]

mod actix;
mod broker;
mod glommio;
mod kameo;
#[path = "../../support/local.rs"]
mod local;
mod names;
mod nats;
#[path = "../../support/pairs.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod pairs;
#[path = "../../support/peer.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod peer;
#[path = "../../support/queue.rs"]
mod queue;
mod ractor;
mod ractor_cluster;
mod redis;
mod remote;
mod rio;
mod rows;
#[path = "../../support/silos.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod silos;
#[path = "../../support/sockets.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod sockets;
#[path = "../../support/mod.rs"]
#[expect(dead_code, reason = "other benches use all of it")]
mod support;
mod tarpc;
mod threads;
mod tonic;

use std::process::ExitCode;

use siloring::{Idle, LinkMode, Silo};

use self::names::Names;
use self::nats::Nats;
use self::pairs::Pair;
use self::ractor_cluster::RactorCluster;
use self::redis::Redis;
use self::remote::{Kept, Remote};
use self::rio::Rio;
use self::rows::{AHEAD, BLOCKING, BUSY, Budgets, FLOOR, QUEUES, SILORING, SILORING_LOCAL, TOKIO};
use self::silos::{KEY, call_times};
use self::sockets::MESSAGE_BYTES;
use self::support::{Bench, Budget, Options};
use self::tarpc::Tarpc;
use self::tonic::Tonic;

/// Calls under way at once where a rate is measured.
const FEW: usize = 64;
const MANY: usize = 1024;
/// Bytes of the larger requests and replies.
const LARGE_BYTES: usize = 1024;

fn main() -> anyhow::Result<ExitCode> {
    if let Some((role, arguments)) = peer::role() {
        play(&role, &arguments)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir()?;
    let pair = Pair::start(folder.path(), LinkMode::Tcp, Idle::default())?;
    let local = local::start()?;
    let peers = Peers::default();

    let mut bench = Bench::new("the same work by others", Options::from_arguments());
    siloring_cases(&mut bench, &pair, &local)?;
    floors(&mut bench);
    let skipped_count = peers.add_to(&mut bench);
    in_one_process(&mut bench);
    let code = bench.run();
    if skipped_count > 0 {
        eprintln!("{skipped_count} peers skipped");
    }
    Ok(code)
}

/// Plays the far end that this process was started as.
fn play(role: &str, arguments: &[String]) -> anyhow::Result<()> {
    type Play = fn(&str) -> anyhow::Result<()>;
    let remotes: [(Names, Play); 6] = [
        (Tonic::NAMES, remote::play::<Tonic>),
        (Tarpc::NAMES, remote::play::<Tarpc>),
        (RactorCluster::NAMES, remote::play::<RactorCluster>),
        (Rio::NAMES, remote::play::<Rio>),
        (Nats::NAMES, remote::play::<Nats>),
        (Redis::NAMES, remote::play::<Redis>),
    ];
    if role == glommio::NAMES.peer {
        return glommio::play();
    }
    if let Some((_, play)) = remotes.iter().find(|(names, _)| names.peer == role) {
        return play(arguments.first().map_or("", String::as_str));
    }
    sockets::play(role).unwrap_or_else(|| pairs::play(role, arguments))
}

fn siloring_cases<'a>(
    bench: &mut Bench<'a>,
    pair: &'a Pair,
    local: &'a Silo,
) -> anyhow::Result<()> {
    bench.case(SILORING.one.case, move |effort| call_times(&pair.handle(), KEY, effort));
    bench.case(SILORING.few.case, move |effort| pair.rate(FEW, effort));
    bench.case(SILORING.many.case, move |effort| pair.rate(MANY, effort));
    bench.case(SILORING.large.case, move |effort| pair.rate_large(MANY, effort));
    for (load, shard) in [(SILORING_LOCAL.same, 0), (SILORING_LOCAL.across, 1)] {
        let key = local::key_of_shard(local, shard)?;
        bench.case(load.case, move |effort| call_times(&local.handle(), &key, effort));
    }
    Ok(())
}

/// What has no actors, and no calls either.
fn floors(bench: &mut Bench<'_>) {
    bench.case(BUSY.one.case, sockets::tcp_busy);
    bench.case(BLOCKING.one.case, sockets::tcp_blocking);
    bench.case(TOKIO.one.case, |effort| sockets::tokio_one(MESSAGE_BYTES, effort));
    bench.case(glommio::NAMES.one.case, glommio::one);
    for in_flight in [FEW, MANY] {
        let load = |names: Names| if in_flight == FEW { names.few } else { names.many };
        bench.case(load(BUSY).case, move |effort| sockets::tcp_busy_many(in_flight, effort));
        bench
            .case(load(BLOCKING).case, move |effort| sockets::tcp_blocking_many(in_flight, effort));
        let tokio = move |effort| sockets::tokio_many(in_flight, MESSAGE_BYTES, effort);
        bench.case(load(TOKIO).case, tokio);
        bench.case(load(glommio::NAMES).case, move |effort| glommio::many(in_flight, effort));
    }
    bench.case(TOKIO.large.case, |effort| sockets::tokio_many(MANY, LARGE_BYTES, effort));

    let busy = Budgets { one: Budget::RatioAtMost(1.15), ..FLOOR };
    let tokio =
        Budgets { few: Budget::RatioAtLeast(1.3), many: Budget::RatioAtLeast(1.1), ..AHEAD };
    let floors = [(BUSY, busy), (BLOCKING, FLOOR), (TOKIO, tokio), (glommio::NAMES, FLOOR)];
    for row in floors.iter().flat_map(|(names, budgets)| rows::between_processes(names, *budgets)) {
        bench.row(row);
    }
    bench.row(rows::large(&TOKIO, Budget::RatioAtLeast(1.5)));
}

/// The peers between two processes.
#[derive(Default)]
struct Peers {
    tonic: Kept<Tonic>,
    tarpc: Kept<Tarpc>,
    ractor_cluster: Kept<RactorCluster>,
    rio: Kept<Rio>,
    nats: Kept<Nats>,
    redis: Kept<Redis>,
}

impl Peers {
    /// Adds the cases and rows of all that can run here; how many cannot.
    fn add_to<'a>(&'a self, bench: &mut Bench<'a>) -> usize {
        let times = |many| Budgets { many: Budget::RatioAtLeast(many), ..AHEAD };
        self.tonic.add_to(bench, times(80.0));
        self.tarpc.add_to(bench, times(12.0));
        self.ractor_cluster.add_to(bench, times(35.0));
        self.rio.add_to(bench, AHEAD);
        self.tonic.add_large_to(bench);
        self.tarpc.add_large_to(bench);
        let skipped = [
            self.nats.add_if_installed(bench, nats::PROGRAM),
            self.redis.add_if_installed(bench, redis::PROGRAM),
        ];
        skipped.iter().filter(|added| !**added).count()
    }
}

impl<R: Remote> Kept<R> {
    fn add_to<'a>(&'a self, bench: &mut Bench<'a>, budgets: Budgets) {
        bench.case(R::NAMES.one.case, move |effort| self.latency(effort));
        bench.case(R::NAMES.few.case, move |effort| self.rate(FEW, effort));
        bench.case(R::NAMES.many.case, move |effort| self.rate(MANY, effort));
        for row in rows::between_processes(&R::NAMES, budgets) {
            bench.row(row);
        }
    }

    fn add_large_to<'a>(&'a self, bench: &mut Bench<'a>) {
        bench.case(R::NAMES.large.case, move |effort| self.rate_large(MANY, effort));
        bench.row(rows::large(&R::NAMES, AHEAD.many));
    }

    /// Whether its server is installed; says so if it is not.
    fn add_if_installed<'a>(&'a self, bench: &mut Bench<'a>, program: &str) -> bool {
        let is_installed = broker::is_installed(program);
        if is_installed {
            self.add_to(bench, AHEAD);
        } else {
            eprintln!("skipped {}: {program} is not installed", R::NAMES.peer);
        }
        is_installed
    }
}

fn in_one_process(bench: &mut Bench<'_>) {
    bench.case(QUEUES, queue::ping_pong);
    bench.case(actix::NAMES.same.case, actix::same_thread);
    bench.case(actix::NAMES.across.case, actix::across_threads);
    bench.case(kameo::NAMES.same.case, kameo::same_thread);
    bench.case(kameo::NAMES.across.case, kameo::across_threads);
    bench.case(ractor::NAMES.same.case, ractor::same_thread);
    bench.case(ractor::NAMES.across.case, ractor::across_threads);
    bench.row(rows::queues());
    for names in [actix::NAMES, kameo::NAMES, ractor::NAMES] {
        for row in rows::in_one_process(&names) {
            bench.row(row);
        }
    }
}
