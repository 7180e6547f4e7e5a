//! Where the time of a call between two silos goes: nanoseconds and instructions of each stage.
//!
//! The machines of two silos stand in one thread, with a TCP connection over loopback between
//! them, and do what their pumps would let them do, one stage after the other. So nothing overlaps,
//! no processor is woken, and the kernel's stages are what its calls cost: what is missing to the
//! call of `silo_roundtrip` is the way from one processor to the other, and the pumps' looks.
//!
//! A round measures one stage of many calls, and leaves out what reading the clock costs. Parts of
//! stages are measured by themselves. Instructions are those of callgrind, which counts none of the
//! kernel's; without valgrind they are left out, and that is said.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a bench measures time, and says what it could not measure"
)]

#[path = "../tests/cost/silos.rs"]
#[expect(dead_code, reason = "the guards use all of it")]
mod silos;
#[expect(dead_code, reason = "the other bench uses all of it")]
mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use siloring::pump::Unread;
use siloring_core::wire::{FrameKind, Header};
use siloring_core::{Address, body};
use siloring_transport::{Class, Link, Role};

use self::silos::{CONN, Method, Payload, Side, Silos, established};
use self::support::{Bench, Budget, Effort, Options, Row, Sample, histogram, nanoseconds, pin};

/// Set for the run under callgrind.
const COUNTED_VARIABLE: &str = "SILORING_COUNTED";
/// Calls of that run.
const COUNTED_CALLS: u32 = 10_000;
/// Time that passes with each call.
const CALL_TIME: Duration = Duration::from_micros(10);
/// Repetitions of a part that is too short for a clock.
const BATCH: u32 = 100;

const WHOLE: &str = "a call, its stages one after another";
const WHOLE_COUNTED: &str = "instructions of a call, its stages one after another";

/// What happens in a call, or a part of that.
#[derive(Clone, Copy)]
struct Stage {
    name: &'static str,
    counted: &'static str,
    /// As callgrind finds it: inlined nowhere.
    function: &'static str,
    prepare: fn(&mut World),
    run: fn(&mut World),
    /// How often `run` does it.
    times: u32,
}

impl Stage {
    const fn of_call(
        name: &'static str,
        counted: &'static str,
        function: &'static str,
        run: fn(&mut World),
    ) -> Self {
        Self { name, counted, function, prepare: |_| {}, run, times: 1 }
    }

    const fn part(
        name: &'static str,
        counted: &'static str,
        function: &'static str,
        run: fn(&mut World),
    ) -> Self {
        Self { times: BATCH, ..Self::of_call(name, counted, function, run) }
    }
}

/// All of a call, in order.
const STAGES: [Stage; 7] = [
    Stage {
        prepare: |world| world.silos.pass(CALL_TIME),
        ..Stage::of_call(
            "submit: the caller's turn goes on, its next request is laid into the send buffer",
            "instructions: submit",
            "submit",
            World::submit,
        )
    },
    Stage::of_call(
        "flush and kernel: the caller writes",
        "instructions: the caller writes",
        "write_request",
        World::write_request,
    ),
    Stage::of_call(
        "kernel and receive: the callee reads",
        "instructions: the callee reads",
        "read_request",
        World::read_request,
    ),
    Stage::of_call(
        "dispatch and poll: the request is taken, its turn run, the reply laid down",
        "instructions: dispatch and poll",
        "answer",
        World::answer,
    ),
    Stage::of_call(
        "flush and kernel: the callee writes",
        "instructions: the callee writes",
        "write_reply",
        World::write_reply,
    ),
    Stage::of_call(
        "kernel and receive: the caller reads",
        "instructions: the caller reads",
        "read_reply",
        World::read_reply,
    ),
    Stage::of_call(
        "settle: the reply is taken, its caller woken",
        "instructions: settle",
        "settle",
        World::settle,
    ),
];

/// What those consist of, each twice in a call.
const PARTS: [Stage; 3] = [
    Stage::part(
        "part: encode, a body archived and laid into the send buffer with its frame",
        "instructions of the part: encode",
        "encode",
        World::encode,
    ),
    Stage {
        prepare: World::carry,
        ..Stage::part(
            "part: receive, a frame found and its header checked",
            "instructions of the part: receive",
            "decode",
            World::decode,
        )
    },
    Stage::part(
        "part: validate, a body checked before it is read in place",
        "instructions of the part: validate",
        "validate",
        World::validate,
    ),
];

/// The two silos, the connection between them, and what the parts are measured on.
struct World {
    silos: Silos,
    /// The connection's ends: the caller's, the callee's.
    ends: [TcpStream; 2],
    /// A link apart from those.
    link: [Link; 2],
    addresses: [Address; 2],
    body: body::Body,
}

impl World {
    fn new() -> anyhow::Result<Self> {
        let mut silos = Silos::with_grain_on(Side::Second);
        silos.keep_calling(Side::First, Method::Echo, 1);
        // Ends where the caller is woken and has not run yet.
        silos.run_until(100);
        let addresses = ["cost.caller/one", "cost.echo/one"].map(Address::parse);
        let [source, target] = addresses;
        Ok(Self {
            silos,
            ends: connected()?,
            link: [(Role::Dialer, Side::Second), (Role::Acceptor, Side::First)]
                .map(|(role, peer)| Link::new(&established(role, peer))),
            addresses: [source?, target?],
            body: body::Body::encode(&Payload::new()),
        })
    }

    /// Does all of `stages` once; how long one of them took.
    fn go(&mut self, stages: &[Stage], timed: &str) -> Duration {
        let mut time = Duration::ZERO;
        for stage in stages {
            (stage.prepare)(self);
            if stage.name == timed {
                let began = Instant::now();
                (stage.run)(self);
                time = began.elapsed();
            } else {
                (stage.run)(self);
            }
        }
        time
    }

    #[inline(never)]
    fn submit(&mut self) {
        let (node, now) = self.silos.node(Side::First);
        node.run(now);
        self.silos.carry_out(Side::First);
    }

    #[inline(never)]
    fn write_request(&mut self) {
        self.write(Side::First);
    }

    #[inline(never)]
    fn read_request(&mut self) {
        self.read(Side::Second);
    }

    #[inline(never)]
    fn answer(&mut self) {
        self.take(Side::Second);
        self.silos.carry_out(Side::Second);
    }

    #[inline(never)]
    fn write_reply(&mut self) {
        self.write(Side::Second);
    }

    #[inline(never)]
    fn read_reply(&mut self) {
        self.read(Side::First);
    }

    #[inline(never)]
    fn settle(&mut self) {
        self.take(Side::First);
    }

    fn write(&mut self, side: Side) {
        let end = &mut self.ends[usize::from(side == Side::Second)];
        let (node, _) = self.silos.node(side);
        let unsent = node.unsent(CONN);
        assert!(!unsent.is_empty(), "there is a frame to send");
        let count = end.write(unsent).expect("the connection takes a frame");
        assert_eq!(count, unsent.len(), "all of it");
        node.sent(CONN, count);
    }

    fn read(&mut self, side: Side) {
        let end = &mut self.ends[usize::from(side == Side::Second)];
        let (node, now) = self.silos.node(side);
        let space = node.receive_space(now, CONN).expect("the link is up");
        let count = loop {
            match end.read(space) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => break result.expect("the connection stands"),
            }
        };
        node.received(now, CONN, count);
    }

    fn take(&mut self, side: Side) {
        let (node, now) = self.silos.node(side);
        while node.take_frames(now, CONN) == Unread::Some {}
    }

    #[inline(never)]
    fn encode(&mut self) {
        let [source, target] = &self.addresses;
        let header = Header {
            source: source.hash(),
            target: target.hash(),
            ..Header::new(FrameKind::Request)
        };
        for _ in 0..BATCH {
            let body = body::Body::encode(black_box(&Payload::new()));
            let names = (Some(source), Some(target));
            let class = Class::Request;
            let pushed = self.link[0].push(&header, names.0, names.1, body.as_slice(), &[], class);
            pushed.expect("the link takes it");
        }
    }

    fn carry(&mut self) {
        let [from, to] = &mut self.link;
        let bytes = from.unsent();
        to.receive_space()[..bytes.len()].copy_from_slice(bytes);
        to.received(bytes.len());
        from.sent(from.unsent().len());
    }

    #[inline(never)]
    fn decode(&mut self) {
        for _ in 0..BATCH {
            let frame = self.link[1].next_frame().expect("a frame").expect("a whole one");
            black_box(frame);
        }
    }

    #[inline(never)]
    fn validate(&mut self) {
        for _ in 0..BATCH {
            black_box(black_box(&self.body).access::<Payload>()).expect("it is one");
        }
    }
}

/// Both ends of a connection over loopback, neither of which ever blocks.
fn connected() -> anyhow::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let dialled = TcpStream::connect(listener.local_addr()?)?;
    let (accepted, _) = listener.accept()?;
    let ends = [dialled, accepted];
    for end in &ends {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok(ends)
}

fn main() -> anyhow::Result<ExitCode> {
    if std::env::var_os(COUNTED_VARIABLE).is_some() {
        be_counted()?;
        return Ok(ExitCode::SUCCESS);
    }
    pin(0)?;
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    let counts = has_valgrind.then(counted).transpose()?;
    if counts.is_none() {
        eprintln!("without valgrind instructions are left out");
    }
    let mut bench = Bench::new("the stages of a call", Options::from_arguments());
    bench.case(WHOLE, whole);
    for stages in [&STAGES[..], &PARTS] {
        for stage in stages {
            bench.case(stage.name, |effort| times(stages, stage, effort));
        }
    }
    if let Some(counts) = &counts {
        let count = |stage: &Stage| counts[stage.function];
        for stage in STAGES.iter().chain(&PARTS) {
            bench.case(stage.counted, move |_| Ok(Sample::Number(count(stage))));
        }
        bench.case(WHOLE_COUNTED, move |_| Ok(Sample::Number(STAGES.iter().map(count).sum())));
    }
    for row in rows(has_valgrind) {
        bench.row(row);
    }
    Ok(bench.run())
}

fn rows(has_valgrind: bool) -> Vec<Row> {
    let row = |case, unit, against| Row {
        name: case,
        case,
        unit,
        divisor: 1.0,
        against: Some(against),
        budget: Budget::None,
    };
    let mut rows = Vec::new();
    for stage in STAGES.iter().chain(&PARTS) {
        rows.push(row(stage.name, "ns", WHOLE));
        if has_valgrind {
            rows.push(row(stage.counted, "instructions", WHOLE_COUNTED));
        }
    }
    rows
}

/// Nanoseconds of whole calls.
fn whole(effort: Effort) -> anyhow::Result<Sample> {
    let mut world = World::new()?;
    measured(effort, 1, || {
        let began = Instant::now();
        world.go(&STAGES, "");
        began.elapsed()
    })
}

/// Nanoseconds of one of `stages`.
fn times(stages: &[Stage], stage: &Stage, effort: Effort) -> anyhow::Result<Sample> {
    let mut world = World::new()?;
    measured(effort, stage.times, || world.go(stages, stage.name))
}

/// What `operation` says it took, of which it does so many, without what the clock takes.
fn measured(
    effort: Effort,
    times: u32,
    mut operation: impl FnMut() -> Duration,
) -> anyhow::Result<Sample> {
    let mut clock = histogram();
    for _ in 0..effort.operation_count {
        clock.record(nanoseconds(Instant::now().elapsed()))?;
    }
    let clock = Duration::from_nanos(clock.value_at_quantile(0.5));
    for _ in 0..effort.warm_up_count {
        operation();
    }
    let mut found = histogram();
    for _ in 0..effort.operation_count {
        let time = operation().saturating_sub(clock) / times;
        found.saturating_record(nanoseconds(time));
    }
    Ok(Sample::Latency(found))
}

/// Instructions of each stage, by its function: of one run, as another would say the same.
fn counted() -> anyhow::Result<BTreeMap<&'static str, f64>> {
    let counts = tempfile::NamedTempFile::new()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", counts.path().display()))
        .arg(std::env::current_exe()?)
        .env(COUNTED_VARIABLE, "")
        .output()
        .context("valgrind does not start")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the counted run failed: {text}");
    let text = std::fs::read_to_string(counts.path())?;
    let of = |stage: &Stage| {
        let calls = calls(&text, stage.function);
        let (calls, instructions) = calls.with_context(|| format!("no {}", stage.function))?;
        let done = f64::from(calls) * f64::from(stage.times);
        anyhow::Ok((stage.function, f64::from(instructions) / done))
    };
    STAGES.iter().chain(&PARTS).map(of).collect()
}

/// How often callgrind saw a function of [`World`] called, and the instructions of all its calls,
/// what it called included. The format: <https://valgrind.org/docs/manual/cl-format.html>.
fn calls(text: &str, function: &str) -> Option<(u32, u32)> {
    let mut lines = text.lines();
    let name = format!("World::{function}");
    lines.find(|line| line.starts_with("cfn=") && line.ends_with(&name))?;
    let calls = lines.next()?.strip_prefix("calls=")?.split(' ').next()?;
    let instructions = lines.next()?.split(' ').nth(1)?;
    Some((calls.parse().ok()?, instructions.parse().ok()?))
}

/// The run that callgrind counts.
fn be_counted() -> anyhow::Result<()> {
    let mut world = World::new()?;
    for _ in 0..COUNTED_CALLS {
        world.go(&STAGES, "");
    }
    for _ in 0..COUNTED_CALLS / BATCH {
        world.go(&PARTS, "");
    }
    Ok(())
}
