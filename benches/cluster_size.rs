//! What a silo costs as its cluster grows: frames and bytes at rest, and what a silo that joins, or
//! dies, costs each of the others, and how soon all know.
//!
//! The clusters are simulated: the nodes are those of production, time and network are not, so
//! that a hundred silos fit one machine and every run gives the same figures. Two shards a silo,
//! nothing to do. At rest is a minute; a change is counted until every silo has the same view and
//! for a while longer, less what the silos that are left say at rest in such a time: in a small
//! cluster one silo more or less is much of that.

#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use siloring::prelude::*;
use siloring_core::Moment;
use siloring_testkit::sim::{Cluster, Fault, Options as Run, Plan, Slot};

use self::support::{Bench, Budget, Options, Row, Sample};

/// Silos of the clusters, the one that comes and goes included.
const SIZES: [u16; 4] = [3, 10, 30, 100];
/// A quick run has those of at most so many.
const QUICK_SIZE_MAX: u16 = 30;
/// Ratios are to a cluster of so many.
const BASE: u16 = 10;
/// After the start, until nothing of it is left.
const SETTLING_TIME: Duration = Duration::from_secs(30);
const REST_TIME: Duration = Duration::from_mins(1);
/// A change is over by then.
const CHANGE_TIME_MAX: Duration = Duration::from_mins(2);
/// What a change leads to after all know of it comes by then.
const AFTERMATH: Duration = Duration::from_secs(10);

/// Makes a silo host something.
#[derive(Grain, Default)]
#[grain(type = "bench.nothing")]
struct Nothing {}

#[grain_methods]
impl Nothing {
    /// Does nothing.
    async fn nothing(&self) {}
}

/// What is measured of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    RestFrames,
    RestBytes,
    JoinFrames,
    JoinTime,
    DeathFrames,
    DeathTime,
}

impl What {
    const ALL: [Self; 6] = [
        Self::RestFrames,
        Self::RestBytes,
        Self::JoinFrames,
        Self::JoinTime,
        Self::DeathFrames,
        Self::DeathTime,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::RestFrames => "frames a silo and second at rest",
            Self::RestBytes => "bytes a silo and second at rest",
            Self::JoinFrames => "frames a silo when one joins",
            Self::JoinTime => "until all know that one has joined",
            Self::DeathFrames => "frames a silo when one dies",
            Self::DeathTime => "until all know that one is dead",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::RestFrames | Self::RestBytes => "per s",
            Self::JoinFrames | Self::DeathFrames => "frames",
            Self::JoinTime | Self::DeathTime => "s",
        }
    }
}

/// What was found of a cluster of one size.
type Costs = BTreeMap<What, f64>;

fn main() -> ExitCode {
    let options = Options::from_arguments();
    let sizes = options.sizes(&SIZES, QUICK_SIZE_MAX);
    // Every run of a size is the same: one is enough for all rounds and cases.
    let known: RefCell<BTreeMap<u16, Costs>> = RefCell::default();
    let cost = &|size, what| -> anyhow::Result<Sample> {
        if !known.borrow().contains_key(&size) {
            let costs = costs(size)?;
            known.borrow_mut().insert(size, costs);
        }
        Ok(Sample::Number(known.borrow()[&size][&what]))
    };
    let mut bench = Bench::new("the size of a cluster, simulated", options);
    for what in What::ALL {
        for &size in &sizes {
            bench.case(case(what, size), move |_| cost(size, what));
            bench.row(row(what, size));
        }
    }
    bench.run()
}

/// The name of a case. It lives as long as the program, as others' do.
fn case(what: What, size: u16) -> &'static str {
    format!("{}, {size} silos", what.name()).leak()
}

fn row(what: What, size: u16) -> Row {
    let name = case(what, size);
    // No more than the logarithm of the size, to a hundredth.
    let growth = (f64::from(size).log2() / f64::from(BASE).log2()).max(1.0);
    Row {
        name,
        case: name,
        unit: what.unit(),
        divisor: 1.0,
        against: Some(case(what, BASE)),
        budget: Budget::RatioAtMost((growth * 100.0).round() / 100.0),
    }
}

/// Runs a cluster of `size` silos: at rest, without its last one, and with it again.
fn costs(size: u16) -> anyhow::Result<Costs> {
    let mut run = Run::new(1);
    (run.silos, run.load_per_second) = (size, 0);
    let mut cluster = Cluster::builder().plan(Plan::calm(run)).host::<Nothing>().build();
    cluster.start()?;
    cluster.run_for(SETTLING_TIME)?;
    let rest = at_rest(&mut cluster, size)?;
    let (last, others) = (Slot(size), size - 1);
    let gone = cluster.silo(last).and_then(|silo| silo.incarnation());
    let gone = gone.ok_or_else(|| anyhow::anyhow!("the last silo is not there"))?.generation;
    let knows = move |cluster: &Cluster| {
        let silos = (1..size).filter_map(|slot| cluster.silo(Slot(slot)));
        silos.map(|silo| silo.view()).all(|view| view.is_gone(gone))
    };
    let death = Change::make(&mut cluster, Fault::Kill(last), knows)?;
    let rest_without = at_rest(&mut cluster, others)?;
    let join = Change::make(&mut cluster, Fault::Start(last), Cluster::is_whole)?;
    Ok(Costs::from([
        (What::RestFrames, rest.frames),
        (What::RestBytes, rest.bytes),
        (What::DeathFrames, death.frames(others, &rest_without)),
        (What::DeathTime, death.until_known.as_secs_f64()),
        (What::JoinFrames, join.frames(size, &rest)),
        (What::JoinTime, join.until_known.as_secs_f64()),
    ]))
}

/// What each of so many silos says in a second when nothing happens.
fn at_rest(cluster: &mut Cluster, silos: u16) -> anyhow::Result<Rate> {
    let before = Said::by(cluster);
    cluster.run_for(REST_TIME)?;
    Ok(Said::by(cluster).since(before).of_each(silos, REST_TIME))
}

/// What all silos have said.
#[derive(Clone, Copy)]
struct Said {
    frames: u64,
    bytes: u64,
}

/// What one silo says in a second.
struct Rate {
    frames: f64,
    bytes: f64,
}

impl Said {
    fn by(cluster: &Cluster) -> Self {
        let world = cluster.world();
        Self { frames: world.frames_written(), bytes: world.bytes_written() }
    }

    const fn since(self, before: Self) -> Self {
        Self { frames: self.frames - before.frames, bytes: self.bytes - before.bytes }
    }

    fn of_each(self, silos: u16, span: Duration) -> Rate {
        let each = f64::from(silos) * span.as_secs_f64();
        Rate { frames: number(self.frames) / each, bytes: number(self.bytes) / each }
    }
}

/// What a change of the cluster led to.
struct Change {
    until_known: Duration,
    span: Duration,
    frames: u64,
}

impl Change {
    fn make(
        cluster: &mut Cluster,
        fault: Fault,
        is_known: impl Fn(&Cluster) -> bool,
    ) -> anyhow::Result<Self> {
        let (began, before) = (now(cluster), Said::by(cluster));
        cluster.inflict(fault);
        cluster.run_until(CHANGE_TIME_MAX, "all know", is_known)?;
        let until_known = now(cluster).since(began);
        cluster.run_for(AFTERMATH)?;
        let (span, frames) = (now(cluster).since(began), Said::by(cluster).since(before).frames);
        Ok(Self { until_known, span, frames })
    }

    /// What it cost each of so many silos, beyond what they say at rest.
    fn frames(&self, silos: u16, rest: &Rate) -> f64 {
        number(self.frames) / f64::from(silos) - rest.frames * self.span.as_secs_f64()
    }
}

fn now(cluster: &Cluster) -> Moment {
    cluster.world().now()
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
