//! Calls between two silos that are two processes, against echoes over bare sockets and tokio.

#[path = "support/open_loop.rs"]
mod open_loop;
#[path = "support/pairs.rs"]
#[expect(dead_code, reason = "the peers use all of it")]
mod pairs;
#[path = "support/peer.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod peer;
#[path = "support/silos.rs"]
#[expect(dead_code, reason = "the other bench uses all of it")]
mod silos;
#[path = "support/sockets.rs"]
#[expect(dead_code, reason = "the peers use all of it")]
mod sockets;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::process::ExitCode;

use siloring::{Idle, LinkMode};

use self::pairs::{Killed, Pair, idle_share};
use self::silos::{KEY, call_times};
use self::sockets::MESSAGE_BYTES;
use self::support::{Bench, Budget, Effort, Options, Row};

/// Calls under way at once, and frames of tokio's echo.
const MANY_IN_FLIGHT: usize = 1024;
const FEW_IN_FLIGHT: usize = 64;
/// Bytes of the larger requests and replies.
const BULK_BYTES: usize = 64 * 1024;
/// Operations of a round with those: each takes as long as several small ones.
const BULK_DIVISOR: usize = 10;

const TCP: &str = "call over TCP, spin window on";
const TCP_TAIL: &str = "the same, p99.9";
const FLOOR_TAIL: &str = "raw busy-polling TCP, p99.9";
const OPEN: &str = "call at 80 % of the most, open loop: p50";
const OPEN_TAIL: &str = "the same, p99.9 of the open loop";
const TCP_PARK: &str = "call over TCP, spin window off";
const UNIX: &str = "call over Unix sockets, spin window on";
const TLS: &str = "call over TCP inside TLS, spin window on";
const TLS_MANY: &str = "calls a second inside TLS, 1024 in flight";
const MANY: &str = "calls a second, 1024 in flight";
const FEW: &str = "calls a second, 64 in flight";
const BULK: &str = "call that carries 64 KiB there and back";
const BULK_FEW: &str = "calls a second of 64 KiB, 64 in flight";
const KILL: &str = "outcome after kill -9";
const IDLE: &str = "an idle silo";
const TOKIO_ONE: &str = "tokio framed echo, one in flight";
const TOKIO_MANY: &str = "tokio framed echo, 1024 in flight";
const TOKIO_FEW: &str = "tokio framed echo, 64 in flight";
const TOKIO_BULK: &str = "tokio framed echo of 64 KiB, one in flight";
const TOKIO_BULK_FEW: &str = "tokio framed echo of 64 KiB, 64 in flight";

fn main() -> anyhow::Result<ExitCode> {
    if let Some((role, arguments)) = peer::role() {
        sockets::play(&role).unwrap_or_else(|| pairs::play(&role, &arguments))?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir()?;
    let tcp = Pair::start(folder.path(), LinkMode::Tcp, Idle::default())?;
    let park = Pair::start(folder.path(), LinkMode::Tcp, Idle::Park)?;
    let tls = Pair::start_sealed(folder.path())?;
    let unix = Pair::start(folder.path(), LinkMode::Unix, Idle::default())?;
    // Silos whose peer was killed leave at the end: they have to find out first that it is dead.
    let mut killed = Vec::new();

    let mut bench = Bench::new("grain calls between two silos", Options::from_arguments());
    bench.case(sockets::TCP_BUSY, sockets::tcp_busy);
    bench.case(TCP, |effort| call_times(&tcp.handle(), KEY, effort));
    bench.case(TLS, |effort| call_times(&tls.handle(), KEY, effort));
    bench.case(TOKIO_ONE, |effort| sockets::tokio_one(MESSAGE_BYTES, effort));
    bench.case(sockets::TCP_BLOCKING, sockets::tcp_blocking);
    bench.case(TCP_PARK, |effort| call_times(&park.handle(), KEY, effort));
    bench.case(sockets::UNIX_BUSY, sockets::unix_busy);
    bench.case(UNIX, |effort| call_times(&unix.handle(), KEY, effort));
    for (tokio_name, name, in_flight) in
        [(TOKIO_FEW, FEW, FEW_IN_FLIGHT), (TOKIO_MANY, MANY, MANY_IN_FLIGHT)]
    {
        let (tokio, pair) = (sockets::tokio_many, &tcp);
        bench.case(tokio_name, move |effort| tokio(in_flight, MESSAGE_BYTES, effort));
        bench.case(name, move |effort| pair.rate(in_flight, effort));
    }
    bench.case(TLS_MANY, |effort| tls.rate(MANY_IN_FLIGHT, effort));
    bench.case(TOKIO_BULK, |effort| sockets::tokio_one(BULK_BYTES, less(effort)));
    bench.case(BULK, |effort| tcp.times_bulk(BULK_BYTES, less(effort)));
    bench.case(TOKIO_BULK_FEW, |effort| {
        sockets::tokio_many(FEW_IN_FLIGHT, BULK_BYTES, less(effort))
    });
    bench.case(BULK_FEW, |effort| tcp.rate_bulk(BULK_BYTES, FEW_IN_FLIGHT, less(effort)));
    bench.case(OPEN, |effort| open_loop::latencies(&tcp.handle(), effort));
    bench.case(KILL, |_| {
        let (silo, time) = Killed::measure(folder.path())?;
        killed.push(silo);
        Ok(time)
    });
    bench.case(IDLE, |_| idle_share());
    bench.tail(TCP_TAIL, TCP);
    bench.tail(FLOOR_TAIL, sockets::TCP_BUSY);
    bench.tail(OPEN_TAIL, OPEN);
    for row in rows() {
        bench.row(row);
    }
    Ok(bench.run())
}

/// What a round with larger bodies does.
const fn less(effort: Effort) -> Effort {
    Effort {
        warm_up_count: effort.warm_up_count / BULK_DIVISOR,
        operation_count: effort.operation_count / BULK_DIVISOR,
        ..effort
    }
}

fn rows() -> Vec<Row> {
    let latency = |case, against, budget| Row {
        name: case,
        case,
        unit: "us",
        divisor: 1e3,
        against: Some(against),
        budget,
    };
    let number =
        |case, unit, against, budget| Row { name: case, case, unit, divisor: 1.0, against, budget };
    vec![
        latency(TCP, sockets::TCP_BUSY, Budget::RatioAtMost(1.15)),
        latency(TCP_TAIL, FLOOR_TAIL, Budget::RatioAtMost(1.5)),
        latency(TCP, TOKIO_ONE, Budget::RatioBelow(0.6)),
        latency(TLS, TCP, Budget::RatioAtMost(1.3)),
        latency(TCP_PARK, sockets::TCP_BLOCKING, Budget::RatioAtMost(1.4)),
        latency(UNIX, sockets::UNIX_BUSY, Budget::RatioAtMost(1.4)),
        latency(OPEN_TAIL, OPEN, Budget::RatioAtMost(10.0)),
        number(MANY, "per s", Some(TOKIO_MANY), Budget::RatioAtLeast(1.1)),
        number(FEW, "per s", Some(TOKIO_FEW), Budget::RatioAtLeast(1.3)),
        latency(BULK, TOKIO_BULK, Budget::RatioBelow(1.0)),
        number(BULK_FEW, "per s", Some(TOKIO_BULK_FEW), Budget::RatioAtLeast(1.0)),
        number(TLS_MANY, "per s", Some(MANY), Budget::RatioAtLeast(0.6)),
        number(KILL, "ms", None, Budget::ValueAtMost(5.0)),
        number(IDLE, "% of a core", None, Budget::ValueBelow(0.5)),
    ]
}
