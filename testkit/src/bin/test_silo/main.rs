//! The silo that process tests run: it hosts a grain and hubs, and does what lines on its input
//! say.
//!
//! A line is `NUMBER VERB ARGUMENT…`; the answer is one JSON object with that number. Verbs run
//! side by side, each on a thread of its own. The first line printed says that the silo is active
//! and where. It ends as a silo does: SIGTERM drains it.
//!
//! | verb | does | answers |
//! |---|---|---|
//! | `call KEY MS` | calls the grain `KEY` with a deadline of `MS` | an outcome |
//! | `slow KEY WORK_MS MS` | as `call`, with a turn of `WORK_MS` | an outcome |
//! | `send ADDRESS MS BYTES` | sends a body of `BYTES` to a hub | an outcome |
//! | `leg ADDRESS LEG MS` | sends on a leg: `directed`, `stream`, `both` | an outcome |
//! | `series ADDRESS COUNT EVERY_MS MS` | sends `COUNT` times, every `EVERY_MS` | the outcomes |
//! | `legs ADDRESS COUNT EVERY_MS MS LEG` | as `series`, on a leg | the outcomes |
//! | `hub ADDRESS claim` or `take_over` | opens a hub that answers | `claimed`, or why not |
//! | `heard ADDRESS` | | how many deliveries the hub has had, and how it ended |
//! | `load THREADS KEYS` | calls grains without pause until `rest` | |
//! | `load_events THREADS KEYS` | publishes to streams without pause until `rest` | |
//! | `rest` | ends the load | how many ended how, and the longest |
//!
//! and those of [`streams`], [`chaos`], [`nuisance`], [`open_load`] and `lines`. Two binaries are
//! made of it, which differ in what a line is: `first.rs` and `next.rs`.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program of the tests: it measures real time, and what it prints is its answer"
)]

mod chaos;
mod grains;
mod nuisance;
mod open_load;
mod streams;

use std::collections::BTreeMap;
use std::future::Future;
use std::io::BufRead;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use siloring::prelude::*;
use siloring::{Idle, Metrics, SiloBuilder, Streams, Tls};

use grains::{Counter, CounterRef as _, Listener, Note, Parcel, Receipt, record};

/// Runs the silo until it has left.
pub(crate) fn run() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let silo = match start() {
        Ok(silo) => silo,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let desk = Arc::new(Desk::new(&silo));
    println!(
        "{}",
        json!({
            "active": silo.address(),
            "process": std::process::id(),
            "generation": silo.incarnation().generation.0,
        })
    );
    let reader = thread::Builder::new().name("commands".to_owned());
    reader.spawn(move || Desk::read(&desk)).expect("a thread can be started");
    silo.wait()
}

fn start() -> Result<Silo, StartError> {
    let setting = |name: &str, default: &str| {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments.nth(1).unwrap_or(default.to_owned())
    };
    let mut builder = Silo::builder()
        .cluster(setting("--cluster", "test"))
        .name(setting("--name", "silo"))
        .bind(setting("--bind", "127.0.0.1:0"))
        .store(setting("--store", "memory:"))
        .shards(setting("--shards", "1").parse().unwrap_or(1))
        .link(match setting("--link", "auto").as_str() {
            "tcp" => LinkMode::Tcp,
            "unix" => LinkMode::Unix,
            _ => LinkMode::Auto,
        })
        .add_stream_routed_kind("portal")
        .host::<Counter>()
        .host::<Listener>();
    builder = open_load::host(nuisance::host(chaos::host(builder)));
    if setting("--idle", "") == "park" {
        builder = builder.idle(Idle::Park);
    }
    let overload_delay = setting("--overload-delay-us", "");
    if !overload_delay.is_empty() {
        builder = builder.overload_delay(Duration::from_micros(number(&overload_delay)));
    }
    let journal = setting("--journal", "");
    if !journal.is_empty() {
        chaos::keep_journal(&journal, number(&setting("--process", "0")));
    }
    let advertised = setting("--advertise", "");
    if !advertised.is_empty() {
        builder = builder.advertise(advertised);
    }
    builder = crate::program::hosted(builder);
    let secret = setting("--secret", "");
    if !secret.is_empty() {
        builder = builder.secret(secret);
    }
    let advertise = setting("--advertise", "");
    if !advertise.is_empty() {
        builder = builder.advertise(advertise);
    }
    let tls = setting("--tls", "");
    if !tls.is_empty() {
        let file = |name| Path::new(&tls).join(name);
        let (ca, certificate, key) = (file("ca.pem"), file("certificate.pem"), file("key.pem"));
        builder = builder.tls(Tls { ca, certificate, key });
    }
    let defect = setting("--planted", "");
    if !defect.is_empty() {
        builder = plant(builder, &defect);
    }
    builder.start()
}

/// Plants the silo's streams with a defect.
#[cfg(feature = "planted")]
fn plant(builder: SiloBuilder, name: &str) -> SiloBuilder {
    builder.planted(siloring_testkit::sim::stream_defect(name).expect("tests name defects"))
}

#[cfg(not(feature = "planted"))]
fn plant(_builder: SiloBuilder, name: &str) -> SiloBuilder {
    panic!("defect {name}: build the test kit with its feature `planted`")
}

/// A hub of this process, as the desk remembers it.
#[derive(Default)]
struct HubRecord {
    deliveries: u64,
    ended: Option<String>,
}

/// One piece of a load: on which key, and its number.
pub(crate) type Once = fn(&Desk, u64, u64) -> Result<(), CallError>;

/// A load under way.
struct Load {
    goes_on: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Tally>>,
}

/// How many calls ended how, and the longest of them.
#[derive(Default)]
struct Tally {
    ends: BTreeMap<String, u64>,
    longest: Duration,
}

impl Tally {
    fn add(&mut self, result: Result<(), CallError>) {
        *self.ends.entry(streams::named(result)).or_default() += 1;
    }

    fn total(workers: Vec<JoinHandle<Self>>) -> Self {
        let mut total = Self::default();
        for worker in workers {
            let tally = worker.join().expect("a worker does not panic");
            total.longest = total.longest.max(tally.longest);
            for (end, count) in tally.ends {
                *total.ends.entry(end).or_default() += count;
            }
        }
        total
    }

    fn told(&self) -> Value {
        json!({ "ends": self.ends, "longest_ms": self.longest.as_secs_f64() * 1e3 })
    }
}

/// Takes lines and answers them.
pub(crate) struct Desk {
    pub(crate) handle: Handle,
    pub(crate) streams: Arc<Streams>,
    metrics: Metrics,
    /// Guards what hubs had: written by their threads, read by `heard`.
    hubs: Mutex<BTreeMap<String, HubRecord>>,
    /// Guards the one load under way.
    load: Mutex<Option<Load>>,
    draws: AtomicU64,
}

impl Desk {
    fn new(silo: &Silo) -> Self {
        Self {
            handle: silo.handle(),
            streams: Arc::clone(silo.streams()),
            metrics: silo.metrics(),
            hubs: Mutex::default(),
            load: Mutex::default(),
            draws: AtomicU64::new(0),
        }
    }

    fn read(desk: &Arc<Self>) {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let desk = Arc::clone(desk);
            let one = thread::Builder::new().name("command".to_owned());
            one.spawn(move || desk.obey(&line)).expect("a thread can be started");
        }
    }

    fn obey(self: &Arc<Self>, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let (number, rest) = words.split_first().expect("a line has a first word");
        let mut answer = self.answer(rest);
        answer["number"] = number.parse::<u64>().unwrap_or(0).into();
        println!("{answer}");
    }

    fn answer(self: &Arc<Self>, words: &[&str]) -> Value {
        match words {
            ["call", key, ms] => self.call(key, ms),
            ["slow", key, work_ms, ms] => self.slow(key, work_ms, ms),
            ["send", address, ms, bytes] => self.send(address, ms, bytes),
            ["leg", address, leg, ms] => self.send_on(address, leg, ms),
            ["series", address, count, every, ms] => self.series(address, count, every, ms, None),
            ["legs", address, count, every, ms, leg] => {
                self.series(address, count, every, ms, Some(leg))
            }
            ["hub", address, how] => self.hub(address, how),
            ["heard", address] => self.heard(address),
            ["load", threads, keys] => self.load(threads, keys, Self::call_once),
            ["load_events", threads, keys] => self.load(threads, keys, Self::publish_once),
            ["rest"] => self.rest(),
            ["take" | "own" | "keep" | "kept" | "join" | "put" | "last" | "load_lines", ..] => {
                self.answer_of_lines(words)
            }
            others => self.answer_of_open_load(others),
        }
    }

    fn call(&self, key: &str, ms: &str) -> Value {
        timed(self.handle.grain::<Counter>(key).add().deadline(millis(ms)))
    }

    fn slow(&self, key: &str, work_ms: &str, ms: &str) -> Value {
        let counter = self.handle.grain::<Counter>(key);
        timed(counter.add_slowly(number(work_ms)).deadline(millis(ms)))
    }

    fn send(&self, address: &str, ms: &str, bytes: &str) -> Value {
        let bytes = vec![7; usize::try_from(number(bytes)).expect("sizes fit")];
        let hub = match self.handle.hub_ref(address) {
            Ok(hub) => hub,
            Err(error) => return json!({ "error": error.to_string() }),
        };
        let call = hub.send::<Parcel, Receipt>(&Parcel { bytes }).deadline(millis(ms));
        timed(async { call.await.map(|receipt| u64::from(receipt.process)) })
    }

    fn send_on(&self, address: &str, leg: &str, ms: &str) -> Value {
        let route = self.route(address, leg, ms);
        timed(async {
            let receipt = route.send::<Parcel, Receipt>(&Parcel { bytes: vec![7; 64] }).await;
            receipt.map(|receipt| u64::from(receipt.process)).map_err(CallError::Delivery)
        })
    }

    /// A series does not wait for its outcomes: a slow one delays no later send.
    fn series(
        self: &Arc<Self>,
        address: &str,
        count: &str,
        every: &str,
        ms: &str,
        leg: Option<&str>,
    ) -> Value {
        let sends = (0..number(count)).map(|_| {
            let (desk, address, ms) = (Arc::clone(self), address.to_owned(), ms.to_owned());
            let leg = leg.map(str::to_owned);
            let send = thread::Builder::new().name("send".to_owned());
            let started = send.spawn(move || match leg {
                Some(leg) => desk.send_on(&address, &leg, &ms),
                None => desk.send(&address, &ms, "64"),
            });
            thread::sleep(millis(every));
            started.expect("a thread can be started")
        });
        let sends: Vec<JoinHandle<Value>> = sends.collect();
        let ended = sends.into_iter().map(|send| send.join().expect("a send does not panic"));
        json!({ "series": ended.collect::<Vec<Value>>() })
    }

    fn hub(self: &Arc<Self>, address: &str, how: &str) -> Value {
        match self.open(address, how) {
            Err(error) => json!({ "hub": format!("{error:?}") }),
            Ok(hub) => {
                self.serve_apart(address, hub);
                json!({ "hub": "claimed" })
            }
        }
    }

    fn open(&self, address: &str, how: &str) -> Result<Hub, HubError> {
        let builder = self.handle.hub(address).expect("tests name hubs");
        let builder = if how == "take_over" { builder.take_over() } else { builder };
        block_on(builder.open())
    }

    fn serve_apart(self: &Arc<Self>, address: &str, hub: Hub) {
        self.hubs().insert(address.to_owned(), HubRecord::default());
        let (desk, address) = (Arc::clone(self), address.to_owned());
        let server = thread::Builder::new().name("hub".to_owned());
        let started = server.spawn(move || desk.serve(&address, hub));
        started.expect("a thread can be started");
    }

    fn serve(&self, address: &str, mut hub: Hub) {
        while let Some(delivery) = block_on(hub.next()) {
            if let Some(record) = self.hubs().get_mut(address) {
                record.deliveries += 1;
            }
            if let (Ok(note), Some(event)) = (delivery.message::<Note>(), delivery.event()) {
                record(address, note.number, event);
                delivery.confirm();
                continue;
            }
            match delivery.message::<Parcel>() {
                Ok(_) => delivery.answer(&Receipt { process: std::process::id() }),
                Err(failure) => delivery.refuse(failure),
            }
        }
        if let Some(record) = self.hubs().get_mut(address) {
            record.ended = Some(format!("{:?}", hub.ended()));
        }
    }

    fn heard(&self, address: &str) -> Value {
        match self.hubs().get(address) {
            Some(record) => json!({ "deliveries": record.deliveries, "ended": record.ended }),
            None => json!({ "error": "no such hub here" }),
        }
    }

    pub(crate) fn load(self: &Arc<Self>, threads: &str, keys: &str, once: Once) -> Value {
        let goes_on = Arc::new(AtomicBool::new(true));
        let keys = number(keys);
        let workers = (0..number(threads)).map(|_| {
            let (desk, goes_on) = (Arc::clone(self), Arc::clone(&goes_on));
            let worker = thread::Builder::new().name("load".to_owned());
            let started = worker.spawn(move || desk.work(&goes_on, keys, once));
            started.expect("a thread can be started")
        });
        let load = Load { workers: workers.collect(), goes_on };
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = Some(load);
        json!({ "load": "begun" })
    }

    fn work(&self, goes_on: &AtomicBool, keys: u64, once: Once) -> Tally {
        let mut tally = Tally::default();
        while goes_on.load(Ordering::Relaxed) {
            // Every key in turn, spread by an odd factor, over all workers.
            let draw = self.draws.fetch_add(1, Ordering::Relaxed);
            let began = Instant::now();
            tally.add(once(self, draw.wrapping_mul(0x9e37_79b9) % keys, draw));
            tally.longest = tally.longest.max(began.elapsed());
        }
        tally
    }

    fn call_once(&self, key: u64, _draw: u64) -> Result<(), CallError> {
        block_on(self.handle.grain::<Counter>(format!("load-{key}")).add()).map(drop)
    }

    fn rest(&self) -> Value {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(load) = load else { return json!({ "error": "no load" }) };
        load.goes_on.store(false, Ordering::Relaxed);
        Tally::total(load.workers).told()
    }

    fn hubs(&self) -> MutexGuard<'_, BTreeMap<String, HubRecord>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Awaits a call and tells how it ended, and when.
pub(crate) fn timed(call: impl Future<Output = Result<u64, CallError>>) -> Value {
    let began = Instant::now();
    let result = block_on(call);
    let ms = began.elapsed().as_secs_f64() * 1e3;
    match result {
        Ok(value) => json!({ "outcome": "handled", "value": value, "ms": ms }),
        Err(error) => json!({ "outcome": ending(&error), "detail": error.to_string(), "ms": ms }),
    }
}

fn ending(error: &CallError) -> String {
    error.delivery().map_or("Handler", |failure| failure.name()).to_owned()
}

pub(crate) fn number(word: &str) -> u64 {
    word.parse().expect("the test writes numbers")
}

pub(crate) fn millis(word: &str) -> Duration {
    Duration::from_millis(number(word))
}

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until it is woken.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
