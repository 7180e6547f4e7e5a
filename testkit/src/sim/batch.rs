//! Many runs together: what they came to, and what none of them did.
//!
//! A batch that never ran a nemesis, never took a rare path, or never saw what only trouble brings
//! about has proved less than it seems: [`Totals::never`] names these.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use siloring_core::{FailedKind, IndeterminateKind, RejectedKind};

use super::cluster::Report;
use super::plan::{Fault, Options};

/// What a batch must have seen: by what is counted, each at least once.
const MARKS: &[&str] = &[
    "a zombie ends with 70",
    "a silo is fenced",
    "a silo ends while it takes or rebuilds ranges",
    "a write without an answer was made",
    "a write without an answer was not made",
    "forward limit",
    "lanes crossed",
    "a dead letter is kept",
    "the store went back",
    "a connection is torn",
    "a link is dialled by name",
];

/// What no run can produce, each with its reason.
const BEYOND: &[(&str, &str)] = &[
    ("failed Incompatible", "every silo of a run hosts one version of each type"),
    ("failed TooLarge", "the load sends nothing beyond the limit: a test of its own does (W2)"),
    ("failed RequestUndecodable", "senders and hosts share their types"),
    ("failed ReplyUndecodable", "senders and hosts share their types"),
    ("failed AccessDenied", "the load's silos have no filter"),
    ("failed IncarnationDead", "the load calls nothing whose address names a silo"),
    ("failed Deactivating", "the router tries again, and finds the next activation"),
    ("failed Unknown", "it is the code of a later version"),
    ("fault version", "the load is one release: scenarios of their own mix two"),
];

/// Totals over many runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Virtual time.
    pub simulated: Duration,
    counts: BTreeMap<String, u64>,
}

impl Report {
    /// Everything that is counted of the run, by name.
    pub fn counted(&self) -> BTreeMap<String, u64> {
        let event = |name: &str| self.events.get(name).copied().unwrap_or(0);
        let exit = |code| self.tally.exits.get(&code).copied().unwrap_or(0);
        let mut all: BTreeMap<String, u64> = [
            ("sent", self.counts.sent),
            ("handled", self.counts.handled),
            ("without an outcome", self.counts.open()),
            ("published", self.counts.published),
            ("faults", self.tally.faults),
            ("rolls that went through", self.tally.rolls),
            ("a zombie ends with 70", exit(70)),
            ("a silo is fenced", event("Fenced")),
            ("a silo ends while it takes or rebuilds ranges", self.tally.interrupted),
            ("a write without an answer was made", self.store_answers_lost),
            ("a write without an answer was not made", self.store_requests_lost),
            ("a dead letter is kept", event("DeadLetterKept")),
            ("the store went back", event("StoreRegressed")),
            ("a connection is torn", self.connections_torn),
            ("a link is dialled by name", self.dialled_by_name as u64),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
        let kinds = self.tally.kinds.iter().map(|(name, count)| (format!("fault {name}"), *count));
        all.extend(kinds);
        let failed = self.counts.failed.iter();
        all.extend(failed.map(|(name, count)| (format!("failed {name}"), *count)));
        all.extend(self.rare.iter().map(|(name, count)| ((*name).to_owned(), *count)));
        all
    }
}

impl Totals {
    /// Adds a run.
    pub fn add(&mut self, options: &Options, report: &Report) {
        self.runs += 1;
        self.simulated += report.simulated;
        for (name, count) in report.counted() {
            *self.counts.entry(name).or_default() += count;
        }
        *self.counts.entry(format!("runs of {} silos", options.silos)).or_default() += 1;
    }

    /// Adds other totals.
    pub fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        self.simulated += other.simulated;
        for (name, count) in &other.counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
    }

    /// How often something was counted.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Everything that was counted.
    pub const fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    /// What should have happened in a batch and never did.
    pub fn never(&self) -> Vec<String> {
        let beyond = |name: &str| BEYOND.iter().any(|(known, _)| *known == name);
        let rejected = RejectedKind::ALL.iter().map(|kind| kind.name());
        let failed = FailedKind::ALL.iter().map(|kind| kind.name());
        let indeterminate = IndeterminateKind::ALL.iter().map(|kind| kind.name());
        let kinds = rejected.chain(failed).chain(indeterminate);
        let mut all: Vec<String> = MARKS.iter().map(|mark| (*mark).to_owned()).collect();
        all.extend(kinds.map(|name| format!("failed {name}")));
        all.extend(Fault::NAMES.iter().map(|name| format!("fault {name}")));
        all.extend(super::rare::names().map(str::to_owned));
        all.retain(|name| self.count(name) == 0 && !beyond(name));
        all
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs() / 3600;
        writeln!(out, "{} runs, {hours} simulated hours", self.runs)?;
        for (name, count) in &self.counts {
            writeln!(out, "{count:>12} {name}")?;
        }
        Ok(())
    }
}
