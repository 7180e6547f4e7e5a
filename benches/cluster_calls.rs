//! Clusters of real silos on one machine: calls a second over all of them, a call with one in
//! flight, and what an idle silo costs.
//!
//! Each silo is a process with one shard, and has one grain. The processors are dealt out to them
//! in turn: where there are fewer, silos share one, and what is seen of a larger cluster is what so
//! many silos cost that machine, not what a machine for each would give. Links are TCP over
//! loopback. A fixed number of calls is under way, spread evenly over the silos; each caller calls
//! the grains of all other silos in turn. One silo is this process.

#[path = "support/peer.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod peer;
#[path = "support/silos.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod silos;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;
#[path = "support/taken_in_turn.rs"]
mod taken_in_turn;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use siloring::prelude::*;
use siloring::{Idle, LinkMode};

use self::peer::{Peer, ready, take_orders};
use self::silos::{Cluster, Echo, EchoRef, Load, Payload, rest, run_on, start_pinned, times_of};
use self::support::{Bench, Budget, Effort, Options, Row, Sample, processors};
use self::taken_in_turn::TakenInTurn;

/// Silos of the clusters.
const SIZES: [u16; 4] = [2, 4, 8, 16];
/// A quick run has those of at most so many.
const QUICK_SIZE_MAX: u16 = 4;
/// Ratios are to a cluster of so many.
const BASE: u16 = SIZES[0];
/// Calls with one in flight are so many times fewer than elsewhere: where silos share a processor
/// each takes some ten times as long.
const CALLS_DIVISOR: usize = 10;
/// Calls under way, of all silos together.
const IN_FLIGHT: usize = 64;
/// Times that a round takes until silos are idle, and as long again that they are watched: in a
/// full run the tick has slowed by then.
const IDLE_TIMES: u32 = 2;

/// A peer that is a silo of the cluster. Arguments: the cluster's name and file, its number, and
/// how many silos there are. Orders are a [`Load`]; it answers with calls a second.
const MEMBER: &str = "member";

/// What is measured of a cluster.
#[derive(Clone, Copy)]
enum What {
    Rate,
    Times,
    Idle,
}

impl What {
    const ALL: [Self; 3] = [Self::Rate, Self::Times, Self::Idle];

    /// The name of a case. It lives as long as the program, as others' do.
    fn of(self, size: u16) -> &'static str {
        let name = match self {
            Self::Rate => "calls a second, 64 in flight",
            Self::Times => "call to all others in turn, one in flight",
            Self::Idle => "an idle silo",
        };
        format!("{name}, {size} real silos").leak()
    }

    fn row(self, size: u16) -> Row {
        let (unit, divisor, budget) = match self {
            Self::Rate => ("per s", 1.0, Budget::None),
            Self::Times => ("us", 1e3, Budget::None),
            Self::Idle => ("% of a core", 1.0, Budget::ValueBelow(0.5)),
        };
        let (name, case) = (self.of(size), self.of(size));
        Row { name, case, unit, divisor, against: Some(self.of(BASE)), budget }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some((role, arguments)) = peer::role() {
        match (role.as_str(), arguments.as_slice()) {
            (MEMBER, [name, file, number, size]) => {
                let cluster = Cluster { name: name.clone(), file: file.into() };
                member(&cluster, number.parse()?, size.parse()?)?;
            }
            _ => bail!("nobody plays {role} with {arguments:?}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir()?;
    let options = Options::from_arguments();
    let sizes = options.sizes(&SIZES, QUICK_SIZE_MAX);
    let kept = &TakenInTurn::new();
    let start = &|size| Together::start(folder.path(), size);
    let mut bench = Bench::new("clusters of real silos on one machine", options);
    for size in sizes {
        for what in What::ALL {
            bench.case(what.of(size), move |effort| {
                kept.of(size, || start(size), |together| together.measure(what, effort))
            });
            bench.row(what.row(size));
        }
    }
    Ok(bench.run())
}

/// All silos of a cluster. Fields are dropped in order: the first one leaves before the others are
/// killed.
struct Together {
    first: Silo,
    others: Vec<Peer>,
    size: u16,
}

impl Together {
    fn start(folder: &Path, size: u16) -> anyhow::Result<Self> {
        let cluster = Cluster::new(folder)?;
        let file = cluster.file.to_str().context("the folder's path is text")?;
        let start = |number: u16| {
            Peer::start(MEMBER, &[&cluster.name, file, &number.to_string(), &size.to_string()])
        };
        let others = (1..size).map(start).collect::<Result<_, _>>()?;
        Ok(Self { first: start_silo(&cluster, 0)?, others, size })
    }

    fn measure(&mut self, what: What, effort: Effort) -> anyhow::Result<Sample> {
        match what {
            What::Rate => self.rate(effort),
            What::Times => {
                let operation_count = effort.operation_count / CALLS_DIVISOR;
                let warm_up_count = effort.warm_up_count / CALLS_DIVISOR;
                let effort = Effort { warm_up_count, operation_count, ..effort };
                times_of(&self.first.handle(), caller(&self.first, 0, self.size, 0), effort)
            }
            What::Idle => self.idle_share(IDLE_TIMES * effort.time),
        }
    }

    fn rate(&mut self, effort: Effort) -> anyhow::Result<Sample> {
        let load = Load::new(IN_FLIGHT / usize::from(self.size), effort);
        for other in &mut self.others {
            other.order(&load.to_order())?;
        }
        let mut rate = rate(&self.first, 0, self.size, load)?;
        for other in &mut self.others {
            rate += other.answer()?.parse::<f64>()?;
        }
        Ok(Sample::Number(rate))
    }

    /// The share of a core that each of the other silos uses, in percent, after `time` and for as
    /// long.
    fn idle_share(&self, time: Duration) -> anyhow::Result<Sample> {
        let used =
            || self.others.iter().map(Peer::processor_time).sum::<anyhow::Result<Duration>>();
        rest(time);
        let before = used()?;
        rest(time);
        let used = used()?.saturating_sub(before);
        let each = f64::from(self.size - 1) * time.as_secs_f64();
        Ok(Sample::Number(100.0 * used.as_secs_f64() / each))
    }
}

/// Is one silo of a cluster.
fn member(cluster: &Cluster, number: u16, size: u16) -> anyhow::Result<()> {
    let silo = start_silo(cluster, number)?;
    ready(silo.address())?;
    take_orders(|order| Ok(rate(&silo, number, size, Load::of_order(order)?)?.to_string()))
}

/// Starts a silo, and its grain: preferring its caller's silo, it lives there from then on.
fn start_silo(cluster: &Cluster, number: u16) -> anyhow::Result<Silo> {
    let builder = cluster.silo(&format!("silo-{number}"), LinkMode::Tcp, Idle::default());
    let silo = start_pinned(builder, usize::from(number) % processors().len())?;
    let own = silo.handle().grain::<Echo>(key(number));
    run_on(&silo.handle(), 0, move || async move { own.beat().await })??;
    Ok(silo)
}

fn rate(silo: &Silo, number: u16, size: u16, load: Load) -> anyhow::Result<f64> {
    load.rate(&silo.handle(), |worker| caller(silo, number, size, worker))
}

/// Calls the grains of all silos but `number` in turn, each worker beginning with another one.
fn caller(
    silo: &Silo,
    number: u16,
    size: u16,
    worker: usize,
) -> impl AsyncFnMut() -> Result<(), CallError> + Send + use<> {
    let others = (0..size).filter(|other| *other != number);
    let others: Vec<_> = others.map(|other| silo.handle().grain::<Echo>(key(other))).collect();
    let mut next = worker;
    async move || {
        next = (next + 1) % others.len();
        others[next].echo(Payload::new()).await.map(drop)
    }
}

/// The key of the grain that lives on a silo.
fn key(number: u16) -> String {
    format!("echo-{number}")
}
