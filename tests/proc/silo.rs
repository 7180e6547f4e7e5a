//! A cluster of test silos, and what a test may ask of one.

use std::time::Duration;

use serde_json::Value;
use siloring_testkit::process::{Host, Process, Program, artifact};

/// Longest wait for a silo to become active: the bound of a join that must evict stale rows.
pub(crate) const JOIN_TIME_MAX: Duration = Duration::from_mins(1);
/// Longest wait for a silo to leave: its drain's budget and a margin.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest wait for an answer: beyond the longest deadline that a test uses.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(45);

/// Silos that share a folder, and in it a store.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    name: String,
}

impl Cluster {
    /// A cluster on SQLite whose tables exist.
    pub(crate) fn new(name: &str) -> Self {
        let cluster = Self::without_tables(name);
        siloring::migrate(&cluster.store()).expect("the tables can be made");
        cluster
    }

    /// A cluster whose database nobody has migrated.
    pub(crate) fn without_tables(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        // The process' id keeps the abstract sockets of two runs apart.
        Self { folder, name: format!("{name}-{}", std::process::id()) }
    }

    /// The store's URL.
    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("cluster.db").display())
    }

    /// What runs a silo of this cluster on a free port of the loopback interface.
    pub(crate) fn program(&self, name: &str) -> Program {
        let binary = artifact("test_silo").expect("the test silo is built with the tests");
        let (store, cluster) = (self.store(), self.name.as_str());
        let arguments = ["--cluster", cluster, "--name", name, "--store", &store];
        Program::new(binary, name).arguments(arguments)
    }

    /// Starts a silo and waits until it is active.
    pub(crate) fn start(&self, name: &str) -> Silo {
        Silo::start(&self.program(name))
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
    fn read(answer: &Value) -> Self {
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
    questions: u64,
}

impl Silo {
    fn start(program: &Program) -> Self {
        let process = program.start().expect("the test silo starts");
        let line = process.wait_for_line(JOIN_TIME_MAX, |line| line.contains("\"active\""));
        let active: Value = parse(&line.unwrap_or_else(|error| panic!("{error}")));
        let address = active["active"].as_str().expect("an address").to_owned();
        Self { process, address, questions: 0 }
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

    /// Asks it to leave, and checks that it did in order.
    pub(crate) fn drain(mut self) {
        let status = self.process.drain(DRAIN_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(status.code(), Some(0), "a drained silo exits with 0");
    }
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))
}
