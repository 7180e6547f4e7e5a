//! Calls inside one process: on a shard, across shards, and what a call between silos allocates.

#[path = "support/allocations.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod allocations;
#[path = "support/local.rs"]
mod local;
#[path = "support/queue.rs"]
mod queue;
#[path = "support/silos.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod silos;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::process::ExitCode;

use siloring::Idle;
use siloring::prelude::*;

use self::silos::{Cluster, Echo, EchoRef, KEY, Payload, call_times, run_on, start_pinned};
use self::support::{Bench, Budget, Effort, Options, Row, Sample};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const SAME_SHARD: &str = "call on the same shard";
const CROSS_SHARD: &str = "call across shards";
const QUEUES: &str = "two threads and two queues";
const ALLOCATIONS: &str = "allocations of a call between silos";
/// Calls between two counts of allocations.
const BATCH: usize = 100;

/// Counts what its shard allocates.
#[derive(Grain, Default)]
#[grain(type = "bench.meter")]
struct Meter {}

#[grain_methods]
impl Meter {
    /// How often this shard's thread has allocated.
    async fn allocations(&self) -> u64 {
        allocations::count()
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    let local = local::start()?;
    let keys = [local::key_of_shard(&local, 0)?, local::key_of_shard(&local, 1)?];
    let cluster = Cluster::new(folder.path())?;
    let builder = |name| cluster.silo(name, LinkMode::Tcp, Idle::default()).host::<Meter>();
    let target = start_pinned(builder("target"), 1)?;
    // Preferring their caller's silo, the grains live there from now on.
    call_once(&target.handle())?;
    let caller = start_pinned(builder("caller"), 0)?;

    let mut bench = Bench::new("grain calls in one process", Options::from_arguments());
    bench.case(SAME_SHARD, |effort| call_times(&local.handle(), &keys[0], effort));
    bench.case(CROSS_SHARD, |effort| call_times(&local.handle(), &keys[1], effort));
    bench.case(QUEUES, queue::ping_pong);
    bench.case(ALLOCATIONS, |effort| allocations_per_call(&caller.handle(), effort));
    for row in rows() {
        bench.row(row);
    }
    let code = bench.run();
    for silo in [caller, target, local] {
        silo.drain()?;
    }
    Ok(code)
}

fn rows() -> [Row; 3] {
    [
        Row {
            name: SAME_SHARD,
            case: SAME_SHARD,
            unit: "ns",
            divisor: 1.0,
            against: None,
            budget: Budget::ValueAtMost(300.0),
        },
        Row {
            name: CROSS_SHARD,
            case: CROSS_SHARD,
            unit: "us",
            divisor: 1e3,
            against: Some(QUEUES),
            budget: Budget::RatioAtMost(1.5),
        },
        Row {
            name: ALLOCATIONS,
            case: ALLOCATIONS,
            unit: "per call",
            divisor: 1.0,
            against: None,
            budget: Budget::ValueAtMost(0.0),
        },
    ]
}

/// Calls both grains, so that they are activated.
fn call_once(silo: &Handle) -> anyhow::Result<()> {
    let (echo, meter) = (silo.grain::<Echo>(KEY), silo.grain::<Meter>(KEY));
    run_on(silo, 0, move || async move {
        echo.echo(Payload::new()).await?;
        meter.allocations().await
    })??;
    Ok(())
}

/// Allocations of both shards' threads in the median batch, without those of asking for them.
///
/// The executor's ring allocates for its timer whenever a shard passes through it: once in some
/// thousand calls while it spins. An allocation of the call's own would be in every batch.
fn allocations_per_call(silo: &Handle, effort: Effort) -> anyhow::Result<Sample> {
    let (echo, meter) = (silo.grain::<Echo>(KEY), silo.grain::<Meter>(KEY));
    run_on(silo, 0, move || async move {
        for _ in 0..effort.warm_up_count {
            echo.echo(Payload::new()).await?;
        }
        let (mut asking, mut batches) = (Vec::new(), Vec::new());
        for _ in 0..effort.operation_count / BATCH {
            asking.push(allocations_of(&echo, &meter, 0).await?);
            batches.push(allocations_of(&echo, &meter, BATCH).await?);
        }
        let allocations = median(batches).saturating_sub(median(asking));
        let number = |count| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        Ok(Sample::Number(number(allocations) / number(BATCH as u64)))
    })?
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    *values.get(values.len() / 2).expect("a round has at least one batch")
}

async fn allocations_of(
    echo: &GrainRef<Echo>,
    meter: &GrainRef<Meter>,
    count: usize,
) -> anyhow::Result<u64> {
    let there = meter.allocations().await?;
    let here = allocations::count();
    for _ in 0..count {
        echo.echo(Payload::new()).await?;
    }
    let here = allocations::count() - here;
    Ok(here + meter.allocations().await? - there)
}
