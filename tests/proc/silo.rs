//! A cluster of test silos, and what a test may ask of one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use siloring_core::ClusterId;
use siloring_core::limits::REGISTRY_PAGE_MAX;
use siloring_core::ports::registry::Subscription;
use siloring_core::ports::store::{StoreAnswer, StoreRequest};
use siloring_testkit::postgres::{PrivatePostgres, find_server};
use siloring_testkit::process::{Host, Process, Program, artifact, skip};

/// Longest wait for a silo to become active: the bound of a join that must evict stale rows.
pub(crate) const JOIN_TIME_MAX: Duration = Duration::from_mins(1);
/// Longest wait for a silo to leave: its drain's budget and a margin.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest wait for an answer: beyond the longest deadline that a test uses.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(45);

/// This test's own Postgres; `None`, which is told, if the machine has none. Ends with the process.
pub(crate) fn postgres(test: &str) -> Option<&'static PrivatePostgres> {
    static SERVER: OnceLock<Option<PrivatePostgres>> = OnceLock::new();
    let start = || {
        let Some(installation) = find_server() else {
            skip(test, "no PostgreSQL server is installed");
            return None;
        };
        let server = PrivatePostgres::start(&installation);
        Some(server.unwrap_or_else(|error| panic!("{error}")))
    };
    SERVER.get_or_init(start).as_ref()
}

/// Runs a scenario on a cluster of each store that several silos can share.
pub(crate) fn on_each_store(test: &str, name: &str, scenario: impl Fn(&Cluster)) {
    let began = Instant::now();
    scenario(&Cluster::new(name));
    tell(&format!("{test} on SQLite: {:?}", began.elapsed()));
    if let Some(server) = postgres(test) {
        let began = Instant::now();
        scenario(&Cluster::on_postgres(name, server));
        tell(&format!("{test} on Postgres: {:?}", began.elapsed()));
    }
}

/// Says what a test counted.
#[expect(clippy::print_stderr, reason = "for the person who reads what the run covered")]
pub(crate) fn tell(what: &str) {
    eprintln!("{what}");
}

/// Silos that share a store.
pub(crate) struct Cluster {
    /// Holds the file of an SQLite store.
    _folder: Option<tempfile::TempDir>,
    store: String,
    name: String,
    /// What its silos' streams do wrong.
    planted: Option<&'static str>,
}

impl Cluster {
    /// A cluster on SQLite whose tables exist.
    pub(crate) fn new(name: &str) -> Self {
        let cluster = Self::without_tables(name);
        siloring::migrate(&cluster.store).expect("the tables can be made");
        cluster
    }

    /// A cluster whose database nobody has migrated.
    pub(crate) fn without_tables(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let store = format!("sqlite:{}", folder.path().join("cluster.db").display());
        Self { _folder: Some(folder), store, name: unique(name), planted: None }
    }

    /// A cluster on a database of its own, whose tables exist.
    pub(crate) fn on_postgres(name: &str, server: &PrivatePostgres) -> Self {
        let migrate = |url: &str| siloring::migrate(url).map(drop).map_err(|e| e.to_string());
        let url = server.database(migrate).unwrap_or_else(|error| panic!("{error}"));
        Self::on(name, url)
    }

    /// A cluster on a store that is there already.
    pub(crate) fn on(name: &str, store: impl Into<String>) -> Self {
        Self { _folder: None, store: store.into(), name: unique(name), planted: None }
    }

    /// A cluster on SQLite whose silos have a defect.
    pub(crate) fn planted(name: &str, defect: &'static str) -> Self {
        Self { planted: Some(defect), ..Self::new(name) }
    }

    /// The name that its silos have of it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The store's URL.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// The rows of all subscriptions, as the store has them.
    pub(crate) fn rows(&self) -> Vec<Subscription> {
        let cluster = ClusterId::new(&*self.name).expect("tests name clusters");
        let mut store = siloring_storage::open(&self.store, &cluster).expect("the store opens");
        let request = StoreRequest::ListSubscriptions { after: None, limit: REGISTRY_PAGE_MAX };
        match store.execute(&request) {
            Ok(StoreAnswer::Subscriptions { rows, .. }) => rows,
            other => panic!("subscriptions are listed: {other:?}"),
        }
    }

    /// What runs a silo of this cluster on a free port of the loopback interface.
    pub(crate) fn program(&self, name: &str) -> Program {
        self.program_of(artifact("test_silo").expect("the test silo is built with the tests"), name)
    }

    /// The same for another binary.
    pub(crate) fn program_of(&self, binary: PathBuf, name: &str) -> Program {
        let arguments =
            ["--cluster", self.name.as_str(), "--name", name, "--store", self.store.as_str()];
        let planted = self.planted.map(|defect| ["--planted", defect]);
        Program::new(binary, name).arguments(arguments).arguments(planted.into_iter().flatten())
    }

    /// Starts a silo and waits until it is active.
    pub(crate) fn start(&self, name: &str) -> Silo {
        Silo::start(&self.program(name))
    }

    /// Starts a silo of another binary.
    pub(crate) fn start_binary(&self, binary: &str, name: &str) -> Silo {
        let binary = artifact(binary).expect("the test silos are built with the tests");
        Silo::start(&self.program_of(binary, name))
    }

    /// Starts a silo with further arguments.
    pub(crate) fn start_with(&self, name: &str, arguments: &[&str]) -> Silo {
        Silo::start(&self.program(name).arguments(arguments))
    }

    /// Starts a silo on a port that is known already.
    pub(crate) fn start_at(&self, name: &str, bind: &str) -> Silo {
        self.start_with(name, &["--bind", bind])
    }

    /// Starts a silo on a host of a bridge. Beyond loopback a secret is required.
    pub(crate) fn start_on(&self, host: &Host, name: &str) -> Silo {
        let bind = format!("{}:7000", host.address());
        let arguments = ["--bind", bind.as_str(), "--secret", "correct horse battery staple"];
        Silo::start(&self.program(name).arguments(arguments).on(host))
    }
}

/// The process' id keeps the abstract sockets of two runs apart.
fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// An event as a consumer handled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// The test's.
    pub(crate) number: u64,
    /// From 1.
    pub(crate) attempt: u64,
    /// Which owner brought it.
    pub(crate) epoch: (u64, u64),
}

/// Looks until it is so, for a bounded time.
pub(crate) fn until(what: &str, bound: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < bound, "not within {bound:?}: {what}");
    }
}

/// How a call ended, and after how long.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `handled`, or the failure's kind.
    pub(crate) how: String,
    /// What was answered, if it was handled.
    pub(crate) value: Option<u64>,
    /// From call to outcome, at the caller.
    pub(crate) time: Duration,
}

impl Ended {
    pub(crate) fn read(answer: &Value) -> Self {
        let ms = answer["ms"].as_f64().expect("a time");
        Self {
            how: answer["outcome"].as_str().expect("an outcome").to_owned(),
            value: answer["value"].as_u64(),
            time: Duration::from_secs_f64(ms / 1e3),
        }
    }
}

/// A question whose answer is still out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked(u64);

/// An active test silo.
pub(crate) struct Silo {
    /// Its process.
    pub(crate) process: Process,
    /// Where it listens.
    pub(crate) address: String,
    /// Which incarnation it is.
    pub(crate) generation: u64,
    questions: u64,
}

impl Silo {
    fn start(program: &Program) -> Self {
        let process = program.start().expect("the test silo starts");
        let line = process.wait_for_line(JOIN_TIME_MAX, |line| line.contains("\"active\""));
        let active: Value = parse(&line.unwrap_or_else(|error| panic!("{error}")));
        let address = active["active"].as_str().expect("an address").to_owned();
        let generation = active["generation"].as_u64().expect("a number");
        Self { process, address, generation, questions: 0 }
    }

    /// Asks something; the answer comes from [`Self::answer`].
    pub(crate) fn ask(&mut self, question: &str) -> Asked {
        self.questions += 1;
        let line = format!("{} {question}", self.questions);
        self.process.send_line(&line).unwrap_or_else(|error| panic!("{error}"));
        Asked(self.questions)
    }

    /// The answer to a question, whatever other answers come before it.
    pub(crate) fn answer(&mut self, asked: Asked) -> Value {
        let mark = format!("\"number\":{}", asked.0);
        let is_it = |line: &str| line.split([',', '}']).any(|part| part.ends_with(&mark));
        let line = self.process.wait_for_line(ANSWER_TIME_MAX, is_it);
        let answer = parse(&line.unwrap_or_else(|error| panic!("{error}")));
        assert!(answer["error"].is_null(), "{answer}");
        answer
    }

    /// Asks, and awaits the answer.
    pub(crate) fn get(&mut self, question: &str) -> Value {
        let asked = self.ask(question);
        self.answer(asked)
    }

    /// Asks for a call, and awaits how it ended.
    pub(crate) fn outcome(&mut self, question: &str) -> Ended {
        let asked = self.ask(question);
        self.ended(asked)
    }

    /// How a call asked for before ended.
    pub(crate) fn ended(&mut self, asked: Asked) -> Ended {
        Ended::read(&self.answer(asked))
    }

    /// Asks for a series of sends, and awaits how each ended.
    pub(crate) fn series(&mut self, arguments: &str) -> Vec<Ended> {
        let answer = self.get(&format!("series {arguments}"));
        answer["series"].as_array().expect("a list").iter().map(Ended::read).collect()
    }

    /// Opens a hub here; `claimed`, or the error.
    pub(crate) fn hub(&mut self, address: &str, how: &str) -> String {
        self.get(&format!("hub {address} {how}"))["hub"].as_str().expect("a result").to_owned()
    }

    /// How many deliveries a hub here has had.
    pub(crate) fn heard(&mut self, address: &str) -> u64 {
        self.get(&format!("heard {address}"))["deliveries"].as_u64().expect("a count")
    }

    /// Asks for something that is done or refused, and awaits which.
    pub(crate) fn result(&mut self, question: &str) -> String {
        self.get(question)["result"].as_str().expect("a result").to_owned()
    }

    /// Subscribes a grain to a stream under a key.
    pub(crate) fn subscribe(&mut self, stream: &str, key: &str, grain: &str) {
        let result = self.result(&format!("subscribe {stream} {key} {grain} 10000"));
        assert_eq!(result, "subscribed", "{key} to {stream}");
    }

    /// Publishes an event; how it ended, with the count of consumers that handled it.
    pub(crate) fn publish(&mut self, stream: &str, number: u64) -> Ended {
        self.outcome(&format!("publish {stream} {number} 0 10000"))
    }

    /// The keys of a stream's subscriptions with their silos; zero for grains.
    pub(crate) fn subscriptions(&mut self, stream: &str) -> BTreeMap<String, u64> {
        let answer = self.get(&format!("subscriptions {stream}"));
        let listed = answer["subscriptions"].as_object();
        let listed = listed.unwrap_or_else(|| panic!("{answer}")).iter();
        listed.map(|(key, silo)| (key.clone(), silo.as_u64().expect("a number"))).collect()
    }

    /// What a consumer has handled in this silo's process.
    pub(crate) fn events(&mut self, name: &str) -> Vec<Event> {
        let answer = self.get(&format!("events {name}"));
        let number = |value: &Value| value.as_u64().expect("a number");
        let events = answer["events"].as_array().expect("a list").iter();
        let event = |event: &Value| Event {
            number: number(&event[0]),
            attempt: number(&event[1]),
            epoch: (number(&event[2][0]), number(&event[2][1])),
        };
        events.map(event).collect()
    }

    /// The numbers of those events, sorted.
    pub(crate) fn numbers(&mut self, name: &str) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.events(name).iter().map(|event| event.number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// How many ended how, as a load or a pour tells.
    pub(crate) fn tally(&mut self, question: &str) -> BTreeMap<String, u64> {
        let answer = self.get(question);
        let ends = answer["ends"].as_object().expect("a map").iter();
        ends.map(|(end, count)| (end.clone(), count.as_u64().expect("a number"))).collect()
    }

    /// A metric's sum.
    pub(crate) fn metric(&mut self, name: &str) -> u64 {
        self.get(&format!("metric {name}"))["value"].as_u64().expect("a number")
    }

    /// Which incarnation has an activation, as this silo knows; zero: unknown here.
    pub(crate) fn owner(&mut self, address: &str) -> u64 {
        self.get(&format!("owner {address}"))["silo"].as_u64().expect("a number")
    }

    /// Makes a grain that is nowhere yet live on this silo.
    pub(crate) fn settle(&mut self, grain: &str) {
        let at = self.outcome(&format!("at {grain} 10000"));
        assert_eq!(at.value, Some(u64::from(self.process.pid())), "{grain}: {at:?}");
    }

    /// Subscribes the grain to streams named after `name` until one of them has its owner on the
    /// silo `owner`; which.
    pub(crate) fn stream_owned_by(&mut self, owner: u64, name: &str, grain: &str) -> String {
        let mut names = (0..64).map(|number| format!("{name}-{number}"));
        let found = names.find(|stream| {
            self.subscribe(stream, grain, grain);
            assert_eq!(self.publish(stream, 0).how, "handled");
            self.owner(&format!("stream/room/{stream}")) == owner
        });
        found.expect("of 64 streams each silo owns some")
    }

    /// Asks it to leave, and checks that it did in order.
    pub(crate) fn drain(mut self) {
        let status = self.process.drain(DRAIN_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(status.code(), Some(0), "a drained silo exits with 0");
    }
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))
}
