//! The durable registry on Postgres: how many subscriptions a second, for how many commits; and
//! what an idle stream costs in memory.
//!
//! A thousand hubs of one silo subscribe at once, each to a stream that nine others share, and
//! unsubscribe. The server is a private one on this machine, with its default settings: each commit
//! is on the disk before it is answered. Without a server only the memory is measured, and said so.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench measures time, and says what it could not measure"
)]

#[path = "support/silos.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod silos;
#[path = "support/sink.rs"]
mod sink;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::cell::RefCell;
use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use postgres::{Client, NoTls};
use siloring::hub::HubBuilder;
use siloring::prelude::*;
use siloring_testkit::postgres::{PrivatePostgres, find_server};

use self::silos::{Payload, run_on, start_pinned};
use self::sink::Sink;
use self::support::{Bench, Budget, Options, Row, Sample};

const RATE: &str = "subscriptions a second, 1 000 hubs at once";
const SINGLE: &str = "single commits a second";
const COMMITS: &str = "commits of 1 000 subscriptions and 1 000 ends";
const IDLE: &str = "memory of an idle stream";
/// Hubs that subscribe at once.
const HUBS: usize = 1_000;
/// Hubs of one stream.
const SHARED_BY: usize = 10;
/// Commits of one row that are timed.
const SINGLES: u32 = 200;
/// Streams that lie idle.
const STREAMS: usize = 20_000;

fn main() -> anyhow::Result<ExitCode> {
    let server = find_server().map(|server| PrivatePostgres::start(&server)).transpose()?;
    let store = server.as_ref().map(durable_database).transpose()?;
    let silo = store.as_deref().map(silo_on).transpose()?;
    let client = store.as_deref().map(|url| Client::connect(url, NoTls)).transpose()?;
    let client = client.map(RefCell::new);
    let mut bench = Bench::new("the registry", Options::from_arguments());
    bench.case(IDLE, |_| idle_stream_bytes());
    bench.row(Row {
        name: IDLE,
        case: IDLE,
        unit: "bytes",
        divisor: 1.0,
        against: None,
        budget: Budget::ValueAtMost(1024.0),
    });
    let (Some(silo), Some(client)) = (&silo, &client) else {
        println!("without a Postgres server on this machine its rows are left out");
        return Ok(bench.run());
    };
    bench.case(SINGLE, |_| single_commits(&mut client.borrow_mut()));
    bench.case(RATE, |_| subscriptions(silo).map(|(rate, _)| Sample::Number(rate)));
    bench.case(COMMITS, |_| {
        let client = &mut client.borrow_mut();
        let before = transactions(client)?;
        let (_, operations) = subscriptions(silo)?;
        ensure!(operations == 2_000, "the row says how many");
        // The membership's heartbeat may be among them: it counts against us.
        Ok(Sample::Number(number(transactions(client)? - before)))
    });
    for row in rows() {
        bench.row(row);
    }
    // The silo drains when it is dropped.
    Ok(bench.run())
}

fn silo_on(url: &str) -> anyhow::Result<Silo> {
    siloring::migrate(url)?;
    let silo = Silo::builder().cluster("bench-registry").store(url);
    start_pinned(silo.host::<Sink>(), 0)
}

/// A database whose commits are on the disk when they are answered: the tests' server leaves that
/// out.
fn durable_database(server: &PrivatePostgres) -> anyhow::Result<String> {
    server.execute("ALTER SYSTEM SET fsync = on")?;
    server.execute("ALTER SYSTEM SET full_page_writes = on")?;
    server.execute("SELECT pg_reload_conf()")?;
    Ok(server.empty_database()?)
}

fn rows() -> [Row; 2] {
    [
        Row {
            name: RATE,
            case: RATE,
            unit: "per s",
            divisor: 1.0,
            against: Some(SINGLE),
            // 5 000 where a machine does 500 single commits a second.
            budget: Budget::RatioAtLeast(10.0),
        },
        Row {
            name: COMMITS,
            case: COMMITS,
            unit: "commits",
            divisor: 1.0,
            against: None,
            // Twenty times fewer than operations.
            budget: Budget::ValueAtMost(100.0),
        },
    ]
}

/// Subscribes all hubs at once and ends their subscriptions: how many subscriptions a second, and
/// how many operations that were.
fn subscriptions(silo: &Silo) -> anyhow::Result<(f64, u32)> {
    let (handle, streams) = (silo.handle(), std::sync::Arc::clone(silo.streams()));
    run_on(&silo.handle(), 0, move || async move {
        let opened = (0..HUBS).map(|hub| handle.hub(&format!("mesh/bench-{hub}")));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        let hubs = try_join_all(opened.into_iter().map(HubBuilder::open)).await?;
        let stream = |hub: usize| {
            let key = format!("{}", hub / SHARED_BY);
            siloring::Stream::<Payload>::new(&handle, &streams, "bench-registry", &key)
        };
        let of = (0..HUBS).map(stream).collect::<Result<Vec<_>, _>>()?;
        let began = Instant::now();
        let subscribing = hubs
            .iter()
            .zip(&of)
            .map(|(hub, stream)| stream.subscription(hub.address().as_str()).hub(hub));
        let subscriptions = try_join_all(subscribing).await?;
        let elapsed = began.elapsed();
        let ending = of.iter().zip(&subscriptions).map(|(stream, s)| stream.unsubscribe(s));
        try_join_all(ending).await?;
        let count = u32::try_from(HUBS)?;
        anyhow::Ok((f64::from(count) / elapsed.as_secs_f64(), 2 * count))
    })?
}

fn single_commits(client: &mut Client) -> anyhow::Result<Sample> {
    client.batch_execute("CREATE TABLE IF NOT EXISTS bench_single (n bigint)")?;
    let began = Instant::now();
    for n in 0..i64::from(SINGLES) {
        client.execute("INSERT INTO bench_single VALUES ($1)", &[&n])?;
    }
    Ok(Sample::Number(f64::from(SINGLES) / began.elapsed().as_secs_f64()))
}

/// Transactions that have written something, this one included.
fn transactions(client: &mut Client) -> anyhow::Result<u64> {
    let row = client.query_one("SELECT pg_current_xact_id()::text", &[])?;
    Ok(row.get::<_, String>(0).parse()?)
}

/// What a stream with one subscription costs its silo once it has carried an event, on one shard
/// and the memory store, which holds the row.
fn idle_stream_bytes() -> anyhow::Result<Sample> {
    let silo = Silo::builder().cluster("bench-idle-streams").shards(1).host::<Sink>().start()?;
    let streams = std::sync::Arc::clone(silo.streams());
    let handle = silo.handle();
    let publish = move |from: usize, to: usize| {
        let (handle, streams) = (handle.clone(), std::sync::Arc::clone(&streams));
        run_on(&handle.clone(), 0, move || async move {
            for number in from..to {
                let key = number.to_string();
                let stream = siloring::Stream::<Payload>::new(&handle, &streams, "idle", &key)?;
                stream.subscription("sink").grain::<Sink>("sink", Sink::TAKE).await?;
                stream.publish(&Payload::new()).await?;
            }
            anyhow::Ok(())
        })?
    };
    // The first ones fill pools and tables.
    publish(0, STREAMS / 4)?;
    let before = resident_bytes()?;
    publish(STREAMS / 4, STREAMS + STREAMS / 4)?;
    let used = resident_bytes()?.saturating_sub(before);
    silo.drain()?;
    Ok(Sample::Number(number(used) / number(STREAMS as u64)))
}

/// What this process has in memory.
fn resident_bytes() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    ensure!(kibibytes > 0, "a process takes memory");
    Ok(kibibytes * 1024)
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
