//! The durable registry on Postgres: how many subscriptions a second, for how many commits; and
//! what an idle stream costs in memory.
//!
//! A thousand hubs of one silo subscribe at once, each to a stream that nine others share, and
//! unsubscribe. The server is a private one on this machine, with its default settings: each commit
//! is on the disk before it is answered, which is asked of the server and asserted. How long that
//! takes is the machine's: single commits a second stand beside the rate, and the row of commits
//! says what a slower disk would cost. Without a server only the memory is measured, and said so.
//!
//! An idle stream has one subscription, has carried one event of 64 bytes, which it retains, and
//! has nothing under way; its silo has one shard and the memory store, which holds the row. All
//! streams have one consumer, whose own memory is not the streams'. What is counted is what the
//! process holds at its allocator; what is resident is told of the first round, as memory that one
//! round gives back is the next one's.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench measures time, and says what it could not measure"
)]

#[path = "support/allocations.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod allocations;
#[path = "support/resident.rs"]
mod resident;
#[path = "support/silos.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod silos;
#[path = "support/sink.rs"]
mod sink;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use futures_util::future::try_join_all;
use postgres::{Client, NoTls};
use siloring::hub::HubBuilder;
use siloring::prelude::*;
use siloring_testkit::postgres::{PrivatePostgres, find_server};

use self::resident::resident_bytes;
use self::silos::{Payload, run_on, start_pinned};
use self::sink::Sink;
use self::support::{Bench, Budget, Effort, Options, Row, Sample};

const RATE: &str = "subscriptions a second, 1 000 hubs at once";
const SINGLE: &str = "single commits a second";
const COMMITS: &str = "commits of 1 000 subscriptions and 1 000 ends";
const IDLE: &str = "memory of an idle stream, silo of 1 shard";
const RESIDENT: &str = "the same, resident";
const NOBODY: &str = "memory of a stream that nobody subscribes to";
/// Hubs that subscribe at once.
const HUBS: usize = 1_000;
/// Hubs of one stream.
const SHARED_BY: usize = 10;
/// Commits of one row that are timed.
const SINGLES: u32 = 200;
/// Streams that are measured, for each operation that is asked for: 90 000 in a full run.
const STREAMS_PER_OPERATION: usize = 3;
/// Streams that lie idle before those: they fill pools and tables.
const STREAMS_BEFORE: usize = 10_000;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn main() -> anyhow::Result<ExitCode> {
    let server = find_server().map(|server| PrivatePostgres::start(&server)).transpose()?;
    let store = server.as_ref().map(durable_database).transpose()?;
    let silo = store.as_deref().map(silo_on).transpose()?;
    let client = store.as_deref().map(|url| Client::connect(url, NoTls)).transpose()?;
    let client = client.map(RefCell::new);
    let mut bench = Bench::new("the registry", Options::from_arguments());
    let resident = Cell::new(None);
    bench.case(IDLE, |effort| {
        let idle = memory_of(Subscribed::Yes, effort)?;
        resident.set(resident.get().or(Some(idle.resident)));
        Ok(Sample::Number(idle.held))
    });
    bench.case(RESIDENT, |effort| {
        let measure = || Ok(memory_of(Subscribed::Yes, effort)?.resident);
        let measured = resident.get().map_or_else(measure, Ok);
        measured.inspect(|measured| resident.set(Some(*measured))).map(Sample::Number)
    });
    bench.case(NOBODY, |effort| {
        memory_of(Subscribed::No, effort).map(|idle| Sample::Number(idle.held))
    });
    for row in memory_rows() {
        bench.row(row);
    }
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

/// Whether a commit is on the disk when it is answered, says the server.
fn ensure_durable(client: &mut Client) -> anyhow::Result<()> {
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String = client.query_one(&format!("SHOW {setting}"), &[])?.get(0);
        ensure!(value == "on", "{setting} is {value}");
    }
    Ok(())
}

fn memory_rows() -> [Row; 3] {
    let row = |name, most| Row {
        name,
        case: name,
        unit: "bytes",
        divisor: 1.0,
        against: None,
        budget: Budget::ValueAtMost(most),
    };
    // Nothing stays; what the last ones are about to give back is shared by all.
    [row(IDLE, 1024.0), row(RESIDENT, 1024.0), row(NOBODY, 1.0)]
}

fn rows() -> [Row; 2] {
    [
        Row {
            name: RATE,
            case: RATE,
            unit: "per s",
            divisor: 1.0,
            against: Some(SINGLE),
            // Meant of a machine that does 500 single commits a second: compare.
            budget: Budget::ValueAtLeast(5_000.0),
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
    ensure_durable(client)?;
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

/// Whether somebody subscribes to the streams that are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscribed {
    Yes,
    No,
}

/// What a stream costs its silo, in bytes.
struct Memory {
    held: f64,
    resident: f64,
}

/// What a stream costs its silo once an event was published to it.
fn memory_of(subscribed: Subscribed, effort: Effort) -> anyhow::Result<Memory> {
    let count = effort.operation_count * STREAMS_PER_OPERATION;
    let silo = Silo::builder().cluster("bench-idle-streams").shards(1).host::<Sink>().start()?;
    let streams = std::sync::Arc::clone(silo.streams());
    let handle = silo.handle();
    let publish = move |from: usize, to: usize| {
        let (handle, streams) = (handle.clone(), std::sync::Arc::clone(&streams));
        run_on(&handle.clone(), 0, move || async move {
            for number in from..to {
                let key = number.to_string();
                let stream = siloring::Stream::<Payload>::new(&handle, &streams, "idle", &key)?;
                if subscribed == Subscribed::Yes {
                    stream.subscription("sink").grain::<Sink>("sink", Sink::TAKE).await?;
                }
                let handled = stream.publish(&Payload::new()).await.is_ok();
                ensure!(handled == (subscribed == Subscribed::Yes), "{key} was handled: {handled}");
            }
            Ok(())
        })?
    };
    publish(0, STREAMS_BEFORE)?;
    let (held, resident) = (allocations::held_bytes(), resident_bytes()?);
    publish(STREAMS_BEFORE, STREAMS_BEFORE + count)?;
    let held = allocations::held_bytes().saturating_sub(held);
    let resident = resident_bytes()?.saturating_sub(resident);
    silo.drain()?;
    let streams = number(count as u64);
    Ok(Memory { held: number(held as u64) / streams, resident: number(resident) / streams })
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
