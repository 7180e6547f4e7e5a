//! One run: a cluster under load, what is done to it, and the verdict.
//!
//! The load is the test silo's (`chaos`); each silo keeps a journal. At the end the load is calmed,
//! the stored sets are read, and all journals go to the ledger that also judges simulated runs. A
//! run that is sound adds a line to the table of verdicts; one that is not keeps its journals and
//! says where.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use siloring_core::Moment;
use siloring_testkit::postgres::PrivatePostgres;
use siloring_testkit::process::history::{check_publishes, check_sets};
use siloring_testkit::process::journal::{self, What, now};
use siloring_testkit::process::{Host, Process, Program, Stream, artifact, figure};
use siloring_testkit::sim::ledger::replay::{Break, Life, Verdict, judge};

/// Longest wait for a silo to become active: the bound of a join that must evict stale rows.
pub(crate) const JOIN_TIME_MAX: Duration = Duration::from_mins(1);
/// Longest wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(45);
/// A killed, sleeping or cut-off silo is known to be gone by then.
pub(crate) const DETECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// A silo that slept ends by itself after it was woken within this.
pub(crate) const AWAKENING_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a silo to leave: its drain's budget and a margin.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(30);
/// The exit code of a silo that finds itself Dead.
pub(crate) const DEAD: i32 = 70;
/// Deliveries a second that each silo of a run begins, what its turns begin besides.
const RATE: u64 = 120;
/// Fewer deliveries than this are no load.
const SENT_MIN: u64 = 300;

/// A silo of a run.
pub(crate) struct Silo {
    pub(crate) process: Process,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) generation: u64,
    journal: PathBuf,
    ended: Option<Moment>,
    unscheduled: Vec<(Moment, Moment)>,
    questions: u64,
}

/// A question whose answer is still out.
#[derive(Clone, Copy)]
pub(crate) struct Asked(u64);

impl Silo {
    pub(crate) fn ask(&mut self, question: &str) -> Asked {
        self.questions += 1;
        let line = format!("{} {question}", self.questions);
        self.process.send_line(&line).unwrap_or_else(|error| panic!("{error}"));
        Asked(self.questions)
    }

    pub(crate) fn answer(&self, asked: Asked) -> Value {
        let mark = format!("\"number\":{}", asked.0);
        let is_it = |line: &str| line.split([',', '}']).any(|part| part.ends_with(&mark));
        let line = self.process.wait_for_line(ANSWER_TIME_MAX, is_it);
        let answer = parse(&line.unwrap_or_else(|error| panic!("{error}")));
        assert!(answer["error"].is_null(), "{answer}");
        answer
    }

    pub(crate) fn get(&mut self, question: &str) -> Value {
        let asked = self.ask(question);
        self.answer(asked)
    }

    /// How a call ended, as the caller heard.
    pub(crate) fn outcome(&mut self, question: &str) -> String {
        self.get(question)["outcome"].as_str().expect("an outcome").to_owned()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap_or_else(|error| panic!("{error}"));
        self.ended = Some(now());
    }

    /// Waits until it ends by itself; the exit code.
    pub(crate) fn wait_exit(&mut self, bound: Duration) -> Option<i32> {
        let status = self.process.wait_exit(bound).unwrap_or_else(|error| panic!("{error}"));
        self.ended = Some(now());
        status.code()
    }

    /// Its threads were kept from their work since then.
    pub(crate) fn was_away(&mut self, from: Moment) {
        self.unscheduled.push((from, now()));
    }

    pub(crate) fn pause(&self) {
        self.process.pause().unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn resume(&self) {
        self.process.resume().unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn lines(&self, part: &str) -> usize {
        self.process.line_count(Stream::Error, part)
    }

    /// Whether its log says that `name` was declared dead.
    pub(crate) fn has_declared_dead(&self, name: &str) -> bool {
        let lines = self.process.line_times(Stream::Error, "SiloDeclaredDead");
        lines.iter().any(|(_, line)| line.contains(name))
    }
}

/// A cluster under load.
pub(crate) struct Run {
    name: &'static str,
    folder: tempfile::TempDir,
    pub(crate) store: String,
    pub(crate) cluster: String,
    planted: Option<&'static str>,
    pub(crate) silos: Vec<Silo>,
    faults: BTreeMap<&'static str, u64>,
}

impl Run {
    /// On SQLite.
    pub(crate) fn new(name: &'static str) -> Self {
        let run = Self::on(name, String::new());
        let store = format!("sqlite:{}", run.folder.path().join("cluster.db").display());
        siloring::migrate(&store).expect("the tables can be made");
        Self { store, ..run }
    }

    /// On a database of a Postgres.
    pub(crate) fn on_postgres(name: &'static str, server: &PrivatePostgres) -> Self {
        let migrate = |url: &str| siloring::migrate(url).map(drop).map_err(|e| e.to_string());
        let url = server.database(migrate).unwrap_or_else(|error| panic!("{error}"));
        Self::on(name, url)
    }

    fn on(name: &'static str, store: String) -> Self {
        Self {
            name,
            folder: tempfile::tempdir().expect("a folder can be made"),
            store,
            cluster: format!("{name}-{}", std::process::id()),
            planted: None,
            silos: Vec::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Whose silos have a defect.
    pub(crate) fn planted(name: &'static str, defect: &'static str) -> Self {
        Self { planted: Some(defect), ..Self::new(name) }
    }

    /// What runs the next silo, in its journal's terms.
    pub(crate) fn program(&self, name: &str) -> Program {
        let binary = artifact("test_silo").expect("the test silo is built with the tests");
        let journal = self.journal(self.silos.len()).display().to_string();
        let process = self.silos.len().to_string();
        let arguments = [
            ["--cluster", &self.cluster],
            ["--name", name],
            ["--store", &self.store],
            ["--journal", &journal],
            ["--process", &process],
        ];
        let planted = self.planted.map(|defect| ["--planted", defect]);
        let program = Program::new(binary, name).arguments(arguments.as_flattened());
        program.arguments(planted.into_iter().flatten())
    }

    fn journal(&self, process: usize) -> PathBuf {
        self.folder.path().join(format!("{process}.journal"))
    }

    /// Starts a silo; where it is among the run's.
    pub(crate) fn start(&mut self, name: &str) -> usize {
        self.start_as(name, |program| program)
    }

    /// Starts a silo, arranged.
    pub(crate) fn start_as(
        &mut self,
        name: &str,
        arrange: impl FnOnce(Program) -> Program,
    ) -> usize {
        let process = arrange(self.program(name)).start().expect("the test silo starts");
        let line = process.wait_for_line(JOIN_TIME_MAX, |line| line.contains("\"active\""));
        let active = parse(&line.unwrap_or_else(|error| panic!("{error}")));
        self.silos.push(Silo {
            process,
            name: name.to_owned(),
            address: active["active"].as_str().expect("an address").to_owned(),
            generation: active["generation"].as_u64().expect("a number"),
            journal: self.journal(self.silos.len()),
            ended: None,
            unscheduled: Vec::new(),
            questions: 0,
        });
        self.silos.len() - 1
    }

    /// Begins the load on a silo.
    pub(crate) fn load(&mut self, silo: usize) {
        let count = self.silos.len();
        self.silos[silo].get(&format!("chaos {RATE} {count} 7"));
    }

    /// Starts a silo on a host of a bridge. Beyond loopback a secret is required.
    pub(crate) fn start_on(&mut self, host: &Host, name: &str) -> usize {
        let bind = format!("{}:7000", host.address());
        let arguments = ["--bind", bind.as_str(), "--secret", "correct horse battery staple"];
        self.start_as(name, |program| program.arguments(arguments).on(host))
    }

    /// Starts these silos, and the load on each.
    pub(crate) fn begin(&mut self, names: &[&str]) {
        for name in names {
            self.start(name);
        }
        self.load_all();
    }

    pub(crate) fn load_all(&mut self) {
        for silo in 0..self.silos.len() {
            self.load(silo);
        }
    }

    /// Counts a fault that the kernel, or the peer, says was one.
    pub(crate) fn fault(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    /// Silos that have not ended, by their places.
    pub(crate) fn living(&self) -> Vec<usize> {
        (0..self.silos.len()).filter(|silo| self.silos[*silo].ended.is_none()).collect()
    }

    /// How many living silos have declared one dead.
    pub(crate) fn deaths(&self) -> usize {
        let living = self.living();
        living.iter().map(|silo| self.silos[*silo].lines("SiloDeclaredDead")).sum()
    }

    /// Takes note of silos that ended by themselves, which only the dead do.
    pub(crate) fn reap(&mut self) {
        for silo in self.living() {
            let silo = &mut self.silos[silo];
            if silo.process.has_ended() {
                assert_eq!(silo.wait_exit(AWAKENING_TIME_MAX), Some(DEAD), "{}", silo.name);
            }
        }
    }

    /// Deliveries that a silo began after a moment and that another one ran.
    pub(crate) fn accepted_by_others(&self, silo: usize, after: Moment) -> Vec<u64> {
        let read = |silo: &Silo| journal::read(&silo.journal).expect("it keeps a journal");
        let begun = read(&self.silos[silo]).into_iter().filter(|entry| entry.at > after);
        let begun = begun.filter_map(|entry| match entry.what {
            What::Began { id, .. } => Some(id),
            What::Ran { .. }
            | What::RanEvent { .. }
            | What::Ended { .. }
            | What::Dropped { .. }
            | What::Subscribed { .. } => None,
        });
        let begun: BTreeSet<u64> = begun.collect();
        let others = (0..self.silos.len()).filter(|other| *other != silo);
        let runs = others.flat_map(|other| read(&self.silos[other]));
        let ids = runs.filter_map(|entry| match entry.what {
            What::Ran { id, .. } | What::RanEvent { id, .. } => Some(id),
            What::Began { .. }
            | What::Ended { .. }
            | What::Dropped { .. }
            | What::Subscribed { .. } => None,
        });
        let accepted: Vec<u64> = ids.filter(|id| begun.contains(id)).collect();
        tell(&format!("{} begun after it woke, {} taken by others", begun.len(), accepted.len()));
        accepted
    }

    /// Waits until some living silo has declared this one dead.
    pub(crate) fn await_death(&self, dead: usize) {
        let name = &self.silos[dead].name;
        let others = || self.living().into_iter().filter(|silo| *silo != dead);
        until("it is declared dead", 3 * DETECTION_TIME_MAX, || {
            others().any(|silo| self.silos[silo].has_declared_dead(name))
        });
    }

    /// Ends the run: every delivery was heard of, nothing ran twice, sets are as answered.
    pub(crate) fn end(self) {
        let (name, faults) = (self.name, self.faults.clone());
        let folder = self.folder.path().to_owned();
        let (verdict, kept) = self.judge();
        let Verdict { counts, silent, doubled, violations } = verdict;
        let is_sound = violations.is_empty();
        let told: Vec<String> =
            faults.iter().map(|(what, count)| format!("{what} {count}")).collect();
        let line = format!(
            "{}; sent {}, handled {}, with their silo {}; silent {silent}, doubled {doubled}: {}",
            told.join(", "),
            counts.sent,
            counts.handled,
            counts.orphaned,
            if is_sound { "sound" } else { "BROKEN" },
        );
        figure(&format!("chaos: {name}"), &line);
        figure("chaos: runs", 1);
        figure("chaos: deliveries begun", counts.sent);
        figure("chaos: deliveries handled", counts.handled);
        figure("chaos: deliveries silent", silent);
        figure("chaos: deliveries doubled", doubled);
        for (what, count) in &faults {
            figure(&format!("chaos: fault, {what}"), count);
        }
        tell(&format!("{line}; failed {:?}, events {}", counts.failed, counts.event_runs));
        if is_sound {
            drop(kept);
        } else {
            let _kept = kept.keep();
            panic!("journals are in {}:\n{}", folder.display(), violations.join("\n"));
        }
        assert!(counts.sent >= SENT_MIN, "the load was no load: {counts:?}");
        assert!(counts.handled >= counts.sent / 3, "hardly anything was handled: {counts:?}");
        assert_eq!((counts.open(), silent, doubled), (0, 0, 0));
    }

    /// Calms the load and judges the run; with the folder of its journals.
    pub(crate) fn judge(mut self) -> (Verdict, tempfile::TempDir) {
        let living = self.living();
        assert!(!living.is_empty(), "somebody is left to tell");
        let asked = living.iter().map(|silo| (*silo, self.silos[*silo].ask("calm")));
        for (silo, asked) in asked.collect::<Vec<_>>() {
            self.silos[silo].answer(asked);
        }
        let sets = self.read_sets(living[0]);
        let breaks = self.breaks();
        let lives: Vec<Life> = self.silos.iter().map(life).collect();
        let mut verdict = judge(&lives, &breaks);
        let journals: Vec<&[journal::Entry]> = lives.iter().map(|life| &*life.journal).collect();
        verdict.violations.extend(check_sets(&journals, &sets));
        verdict.violations.extend(check_publishes(&journals));
        (verdict, self.folder)
    }

    /// What is in the stored sets. They are readable again soon after whatever was done.
    fn read_sets(&mut self, silo: usize) -> BTreeMap<String, Vec<u64>> {
        let silo = &mut self.silos[silo];
        let mut read = |key: u64| {
            let (began, question) = (Instant::now(), format!("members {key}"));
            let answer = loop {
                let answer = silo.get(&question);
                if answer["members"].is_array() {
                    break answer;
                }
                assert!(began.elapsed() < JOIN_TIME_MAX, "a set cannot be read: {answer}");
                std::thread::sleep(Duration::from_millis(100));
            };
            let members = answer["members"].as_array().expect("a list").iter();
            members.map(|member| member.as_u64().expect("an id")).collect()
        };
        (0..4).map(|key| (format!("chaos.set/{key}"), read(key))).collect()
    }

    /// When connections between silos ended, as they say.
    fn breaks(&self) -> Vec<Break> {
        let place = |line: &str| {
            let peer = line.split("peer=").nth(1)?.split(' ').next()?;
            let is_it = |silo: &Silo| peer == format!("g{}", silo.generation);
            self.silos.iter().position(is_it)
        };
        let of_silo = |(one, silo): (usize, &Silo)| {
            let lines = silo.process.line_times(Stream::Error, "LinkDown").into_iter();
            let broken =
                |(at, line): (Moment, String)| Some(Break { at, one, other: place(&line)? });
            lines.filter_map(broken).collect::<Vec<Break>>()
        };
        self.silos.iter().enumerate().flat_map(of_silo).collect()
    }
}

fn life(silo: &Silo) -> Life {
    let journal = journal::read(&silo.journal);
    Life {
        name: silo.name.clone(),
        journal: journal.unwrap_or_else(|error| panic!("{}: {error}", silo.name)),
        ended: silo.ended,
        unscheduled: silo.unscheduled.clone(),
    }
}

/// Says what a test counted.
#[expect(clippy::print_stderr, reason = "for the person who reads what the run covered")]
pub(crate) fn tell(what: &str) {
    eprintln!("{what}");
}

/// Looks until it is so, for a bounded time.
pub(crate) fn until(what: &str, bound: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < bound, "not within {bound:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lets the run go on for a while: a fault must last to be one.
pub(crate) fn go_on(span: Duration) {
    std::thread::sleep(span);
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))
}
