//! The stream leg: publish to handled beside a directed call, fan-out, and what publishing costs
//! the store.
//!
//! Two silos of one shard each, on processors of their own, over TCP on the loopback interface; the
//! consumer is a grain on the silo that does not publish. Both are in this process, so that what
//! each of them counts can be read.
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

#[expect(dead_code, reason = "the other bench uses all of it")]
#[path = "support/silos.rs"]
mod silos;
#[path = "support/sink.rs"]
mod sink;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use siloring::Idle;
use siloring::prelude::*;
use siloring::{Liveness, Stream};

use self::silos::{
    Cluster, Echo, EchoRef as _, KEY, Load, Payload, begin_on, call_times, rest, run_on,
    start_pinned, times_of,
};
use self::sink::{Sink, SinkRef as _};
use self::support::{Bench, Budget, Effort, Options, Row, Sample};

const LEG: &str = "publish to handled, one in flight";
const CALL: &str = "directed call, one in flight";
const SHARE: &str = "the check's share of the leg";
const LEG_RATE: &str = "publishes a second, 1024 in flight";
const CALL_RATE: &str = "directed calls a second, 1024 in flight";
const FRAMES: &str = "frames to a silo for one event of 1000 consumers";
const STORE: &str = "store requests of 100 000 publishes";
/// In flight at once.
const IN_FLIGHT: usize = 1024;
/// Consumers of the stream that fans out; half of them on each silo.
const CONSUMERS: usize = 1_000;
/// Publishes of which the store's requests are counted.
const COUNTED: u64 = 100_000;

/// Two silos: the publisher's and the consumer's.
struct Pair {
    publisher: Silo,
    consumer: Silo,
}

impl Pair {
    fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let silo = |name| cluster.silo(name, LinkMode::Tcp, Idle::default()).host::<Sink>();
        let consumer = start_pinned(silo("consumer"), 1)?;
        // Preferring their caller's silo, what is called here lives here from now on.
        let (echo, sink) = (consumer.handle().grain::<Echo>(KEY), consumer.stream("bench", KEY)?);
        run_on(&consumer.handle(), 0, move || async move {
            echo.echo(Payload::new()).await?;
            subscribe(&sink, KEY).await
        })??;
        let publisher = start_pinned(silo("publisher"), 0)?;
        Ok(Self { publisher, consumer })
    }

    fn stream(&self) -> anyhow::Result<Stream<Payload>> {
        Ok(self.publisher.stream("bench", KEY)?)
    }
}

/// Subscribes a sink, and brings it to this silo by its first event.
async fn subscribe(stream: &Stream<Payload>, key: &str) -> anyhow::Result<()> {
    stream.subscription(key).grain::<Sink>(key, Sink::TAKE).await?;
    stream.publish(&Payload::new()).await?;
    Ok(())
}

fn main() -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::new(folder.path())?;
    let pair = Pair::start(&cluster)?;
    let fan = fan_out(&pair)?;
    let mut bench = Bench::new("the stream leg", Options::from_arguments());
    bench.case(CALL, |effort| call_times(&pair.publisher.handle(), KEY, effort));
    bench.case(LEG, |effort| leg_times(&pair, effort));
    bench.case(SHARE, |effort| check_share(&pair, effort));
    bench.case(CALL_RATE, |effort| call_rate(&pair, effort));
    bench.case(LEG_RATE, |effort| leg_rate(&pair, effort));
    bench.case(FRAMES, |_| frames_of_one_event(&pair, &fan));
    bench.case(STORE, |_| store_requests(&pair));
    for row in rows() {
        bench.row(row);
    }
    let code = bench.run();
    for silo in [pair.publisher, pair.consumer] {
        silo.drain()?;
    }
    Ok(code)
}

fn rows() -> [Row; 5] {
    let row = |name, unit, divisor, against, budget| Row {
        name,
        case: name,
        unit,
        divisor,
        against,
        budget,
    };
    [
        row(LEG, "us", 1e3, Some(CALL), Budget::RatioAtMost(1.8)),
        row(SHARE, "% of the leg", 1.0, None, Budget::ValueAtMost(1.0)),
        row(LEG_RATE, "per s", 1.0, Some(CALL_RATE), Budget::RatioAtLeast(0.5)),
        row(FRAMES, "frames", 1.0, None, Budget::ValueAtMost(1.0)),
        row(STORE, "requests", 1.0, None, Budget::ValueAtMost(0.0)),
    ]
}

/// Times from a publish to its outcome, from a turn on the publisher's shard.
fn leg_times(pair: &Pair, effort: Effort) -> anyhow::Result<Sample> {
    let stream = pair.stream()?;
    let publish = async move || stream.publish(&Payload::new()).await.map(drop);
    times_of(&pair.publisher.handle(), publish, effort)
}

/// Time of the check by itself, in percent of the leg, both from this round.
fn check_share(pair: &Pair, effort: Effort) -> anyhow::Result<Sample> {
    let Sample::Latency(leg) = leg_times(pair, effort)? else {
        anyhow::bail!("the leg is timed");
    };
    let stream = pair.stream()?;
    let count = u32::try_from(effort.operation_count).unwrap_or(u32::MAX);
    let check = run_on(&pair.publisher.handle(), 0, move || async move {
        ensure!(matches!(stream.has_live_subscriber(), Liveness::Live(_)), "nobody is known");
        let began = Instant::now();
        for _ in 0..count {
            black_box(stream.has_live_subscriber());
        }
        Ok(began.elapsed() / count)
    })??;
    let leg = Duration::from_nanos(leg.value_at_quantile(0.5));
    Ok(Sample::Number(100.0 * check.as_secs_f64() / leg.as_secs_f64()))
}

fn call_rate(pair: &Pair, effort: Effort) -> anyhow::Result<Sample> {
    let silo = pair.publisher.handle();
    let caller = |_| {
        let echo = silo.grain::<Echo>(KEY);
        async move || echo.echo(Payload::new()).await.map(drop)
    };
    Load::new(IN_FLIGHT, effort).rate(&silo, caller).map(Sample::Number)
}

fn leg_rate(pair: &Pair, effort: Effort) -> anyhow::Result<Sample> {
    let stream = pair.stream()?;
    let publisher = |_| {
        let stream = stream.clone();
        async move || stream.publish(&Payload::new()).await.map(drop)
    };
    Load::new(IN_FLIGHT, effort).rate(&pair.publisher.handle(), publisher).map(Sample::Number)
}

/// A stream of many consumers, half of them on each silo, that the publisher's silo owns.
fn fan_out(pair: &Pair) -> anyhow::Result<Stream<Payload>> {
    for number in 0..64 {
        let key = format!("fan-{number}");
        let stream = pair.publisher.stream::<Payload>("bench", &key)?;
        add_consumers(&pair.publisher, &stream, 0)?;
        let publisher = stream.clone();
        publish_on(pair, &publisher)?;
        let before = frames(&pair.publisher)?;
        publish_on(pair, &publisher)?;
        if frames(&pair.publisher)? == before {
            add_consumers(&pair.consumer, &pair.consumer.stream("bench", &key)?, 1)?;
            // The owner learns where they are.
            publish_on(pair, &stream)?;
            publish_on(pair, &stream)?;
            return Ok(stream);
        }
    }
    anyhow::bail!("none of 64 streams is the publisher's silo's")
}

fn add_consumers(silo: &Silo, stream: &Stream<Payload>, half: usize) -> anyhow::Result<()> {
    let (sinks, stream) = (silo.handle(), stream.clone());
    run_on(&silo.handle(), 0, move || async move {
        for number in 0..CONSUMERS / 2 {
            let key = format!("{}-{half}-{number}", stream.address().id());
            // Preferring its caller's silo it lives here.
            sinks.grain::<Sink>(key.as_str()).wake().await?;
            stream.subscription(key.as_str()).grain::<Sink>(key.as_str(), Sink::TAKE).await?;
        }
        Ok::<(), anyhow::Error>(())
    })?
}

fn publish_on(pair: &Pair, stream: &Stream<Payload>) -> anyhow::Result<u32> {
    let stream = stream.clone();
    let published = run_on(&pair.publisher.handle(), 0, move || async move {
        stream.publish(&Payload::new()).await
    });
    let published = published??;
    ensure!(published.failed == 0, "{published:?}");
    Ok(published.handled)
}

/// Frames that the stream's silo sends the other one for an event, publish and answers apart.
fn frames_of_one_event(pair: &Pair, fan: &Stream<Payload>) -> anyhow::Result<Sample> {
    let before = frames(&pair.publisher)?;
    let handled = publish_on(pair, fan)?;
    ensure!(handled as usize == CONSUMERS, "{handled} consumers");
    Ok(Sample::Number(number(frames(&pair.publisher)? - before)))
}

/// Requests to the store that the shards make while events are published, beyond those that they
/// make in as long a time when nothing is.
fn store_requests(pair: &Pair) -> anyhow::Result<Sample> {
    let began = (Instant::now(), requests(pair)?);
    let stream = pair.stream()?;
    let workers = (0..IN_FLIGHT).map(|_| {
        let stream = stream.clone();
        begin_on(&pair.publisher.handle(), 0, move || async move {
            for _ in 0..COUNTED.div_ceil(IN_FLIGHT as u64) {
                stream.publish(&Payload::new()).await?;
            }
            Ok::<(), anyhow::Error>(())
        })
    });
    for worker in workers.collect::<Result<Vec<_>, _>>()? {
        worker.recv().context("the silo ended")??;
    }
    let (busy, idle_from) = (requests(pair)? - began.1, requests(pair)?);
    rest(began.0.elapsed());
    let idle = requests(pair)? - idle_from;
    Ok(Sample::Number(number(busy.saturating_sub(idle))))
}

fn requests(pair: &Pair) -> anyhow::Result<u64> {
    let of = |silo| counted(silo, "siloring_shard_store_requests_total");
    Ok(of(&pair.publisher)? + of(&pair.consumer)?)
}

fn frames(silo: &Silo) -> anyhow::Result<u64> {
    // What the last turn of the shard sent is counted in its next one.
    rest(Duration::from_millis(120));
    counted(silo, "siloring_shard_frames_total")
}

/// The sum of a counter over a silo's shards.
fn counted(silo: &Silo, family: &str) -> anyhow::Result<u64> {
    let text = silo.metrics_text();
    let lines = text.lines().filter(|line| line.starts_with(family));
    let values = lines.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
    values.sum::<Result<u64, _>>().context("a counter is no number")
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
