//! Whether a stream has a subscriber, asked of the table that all threads of a silo read.
//!
//! Ten thousand streams are asked about at random, of a hundred thousand that are cached, one in
//! eight without a subscriber, while another thread puts ten thousand of those a second. What is
//! timed is a thousand checks, the draw of each stream included: the clock takes longer than a
//! check.

#[path = "support/allocations.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod allocations;
#[expect(dead_code, reason = "another bench uses all of it")]
mod support;
#[path = "support/writer.rs"]
mod writer;

use std::convert::Infallible;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use siloring_core::AddressHash;
use siloring_core::hash::HashMap;
use siloring_pubsub::check::{BYTES_PER_STREAM, CheckCache, Liveness};

use self::support::{Bench, Budget, Effort, Options, Row, Sample, measure, pin, unpin};
use self::writer::Writers;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const SHARD: &str = "1 000 checks from a shard";
const SHARD_TAIL: &str = "1 000 checks from a shard, p99 in ns";
const CHAIN: &str = "1 000 checks from a shard, each after the one before";
const FOREIGN: &str = "1 000 checks from a foreign thread";
const FOREIGN_TAIL: &str = "1 000 checks from a foreign thread, p99 in ns";
const COLD: &str = "1 000 checks of streams not cached";
const MAP: &str = "1 000 look-ups in a map of one thread";
const ALLOCATIONS: &str = "allocations of 1 000 checks";
const UNKNOWN: &str = "cached streams answered as unknown";
const BYTES: &str = "memory of a cached stream";

/// Checks that are timed together.
const BATCH: usize = 1_000;
const SHARDS: u16 = 2;
/// Streams of the table: its capacity.
const CACHED_COUNT: usize = 100_000;
/// Streams that are asked about.
const HOT_COUNT: usize = 10_000;

/// The table, what was put into it, and what is asked.
struct Scene {
    cache: Arc<CheckCache>,
    cached: Vec<AddressHash>,
    hot: Vec<AddressHash>,
    cold: Vec<AddressHash>,
}

fn main() -> anyhow::Result<ExitCode> {
    let (scene, writers) = scene();
    let map: HashMap<AddressHash, u32> = (scene.cached.iter().copied()).zip(0..).collect();
    let check = |streams: &[AddressHash], effort| {
        batches(streams, effort, |stream| scene.cache.check(stream))
    };

    let mut bench = Bench::new("checks for a subscriber", Options::from_arguments());
    bench.case(SHARD, |effort| pin(0).map(|()| check(&scene.hot, effort)));
    bench.case(FOREIGN, |effort| unpin().map(|()| check(&scene.hot, effort)));
    bench.case(MAP, |effort| {
        pin(0)?;
        Ok(batches(&scene.hot, effort, |stream| map.get(&stream)))
    });
    bench.case(CHAIN, |effort| pin(0).map(|()| chain(&scene, effort)));
    bench.case(COLD, |effort| pin(0).map(|()| check(&scene.cold, effort)));
    bench.case(SHARD_TAIL, |effort| pin(0).map(|()| tail(&check(&scene.hot, effort))));
    bench.case(FOREIGN_TAIL, |effort| unpin().map(|()| tail(&check(&scene.hot, effort))));
    bench.case(ALLOCATIONS, |_| Ok(allocations_of_a_batch(&scene)));
    bench.case(UNKNOWN, |_| Ok(Sample::Number(unknown_share(&scene) * 100.0)));
    bench.case(BYTES, |_| Ok(bytes_per_cached_stream(&scene)));
    for row in rows() {
        bench.row(row);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = scope.spawn(|| writers.put_beside(&scene.cached, &is_over));
        let code = bench.run();
        is_over.store(true, Ordering::Relaxed);
        writing.join().expect("the writer does not panic")?;
        Ok(code)
    })
}

fn rows() -> [Row; 9] {
    let row = |name, case, budget| {
        let (unit, divisor, against) = ("ns", 1e3, None);
        Row { name, case, unit, divisor, against, budget }
    };
    let most = Budget::ValueAtMost;
    [
        Row { against: Some(MAP), ..row("check from a shard", SHARD, most(12.0)) },
        row("check from a shard, p99 of batches", SHARD_TAIL, most(100.0)),
        row("check from a shard, each after the one before", CHAIN, most(50.0)),
        row("check from a foreign thread", FOREIGN, most(25.0)),
        row("check from a foreign thread, p99 of batches", FOREIGN_TAIL, most(100.0)),
        row("check of a stream not cached", COLD, most(25.0)),
        Row { unit: "per check", ..row("allocations", ALLOCATIONS, most(0.0)) },
        Row { unit: "%", divisor: 1.0, ..row(UNKNOWN, UNKNOWN, most(2.0)) },
        Row { unit: "bytes", divisor: 1.0, ..row(BYTES, BYTES, most(256.0)) },
    ]
}

fn scene() -> (Scene, Writers) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut draw = |count| -> Vec<_> { (0..count).map(|_| AddressHash(random.u128(..))).collect() };
    let (cached, cold) = (draw(CACHED_COUNT), draw(HOT_COUNT));
    let hot = cached.iter().step_by(CACHED_COUNT / HOT_COUNT).copied().collect();
    let (cache, writers) = CheckCache::new(SHARDS, CACHED_COUNT / usize::from(SHARDS));
    let mut writers = Writers::new(writers);
    for stream in &cached {
        writers.put(*stream);
    }
    (Scene { cache, cached, hot, cold }, writers)
}

/// Times of batches of `ask` about streams at random. None depends on the one before, so that a
/// processor may be at several at once.
fn batches<R>(streams: &[AddressHash], effort: Effort, ask: impl Fn(AddressHash) -> R) -> Sample {
    let mut random = fastrand::Rng::with_seed(3);
    let Ok(sample) = measure(effort, || {
        for _ in 0..BATCH {
            black_box(ask(streams[random.usize(..streams.len())]));
        }
        Ok::<_, Infallible>(())
    });
    sample
}

/// Times of batches of checks in which each answer chooses one of two streams to ask about next.
fn chain(scene: &Scene, effort: Effort) -> Sample {
    let mut random = fastrand::Rng::with_seed(3);
    let mut choice = 0;
    let Ok(sample) = measure(effort, || {
        for _ in 0..BATCH {
            let pair = random.usize(..HOT_COUNT / 2) * 2;
            choice = usize::from(matches!(
                black_box(scene.cache.check(scene.hot[pair + choice])),
                Liveness::Live(_)
            ));
        }
        Ok::<_, Infallible>(())
    });
    sample
}

fn tail(sample: &Sample) -> Sample {
    match sample {
        Sample::Latency(times) => {
            let tail = u32::try_from(times.value_at_quantile(0.99)).unwrap_or(u32::MAX);
            Sample::Number(f64::from(tail))
        }
        Sample::Number(number) => Sample::Number(*number),
    }
}

fn allocations_of_a_batch(scene: &Scene) -> Sample {
    let before = allocations::count();
    for stream in &scene.hot[..BATCH] {
        black_box(scene.cache.check(*stream));
    }
    let count = allocations::count() - before;
    Sample::Number(f64::from(u32::try_from(count).unwrap_or(u32::MAX)))
}

fn unknown_share(scene: &Scene) -> f64 {
    let is_unknown = |stream: &&AddressHash| scene.cache.check(**stream) == Liveness::Unknown;
    let unknown_count = scene.cached.iter().filter(is_unknown).count();
    number(unknown_count) / number(CACHED_COUNT)
}

fn bytes_per_cached_stream(scene: &Scene) -> Sample {
    let known_count = number(CACHED_COUNT) * (1.0 - unknown_share(scene));
    Sample::Number(number(CACHED_COUNT * BYTES_PER_STREAM) / known_count)
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("the table is small"))
}
