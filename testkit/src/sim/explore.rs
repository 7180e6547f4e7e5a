//! Whole runs under the built-in load: from a seed or a plan, twice, many, replayed, shrunk.
//!
//! A run that breaks an invariant, or panics, is a [`Failure`] that says how to repeat it by
//! `cargo xtask sim`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cluster::{Cluster, Failure, Report};
use super::plan::{Options, Plan};
use super::shrink::shrink;
use super::trace::TraceSink;
use super::workload::Workload;
use crate::panicked;

/// What every smoke run must have had, or it proved nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demands {
    /// Deliveries in each simulated second, over the safety phase.
    pub per_second: u64,
    /// Steps of the plan.
    pub faults: u64,
    /// Silos killed.
    pub kills: u64,
    /// Rolls that went through.
    pub rolls: u64,
}

impl Demands {
    /// Of a run of ten simulated minutes.
    pub const SMOKE: Self = Self { per_second: 20, faults: 5, kills: 1, rolls: 1 };

    /// What a run lacks; empty if nothing.
    pub fn lacking(&self, options: &Options, report: &Report) -> Vec<String> {
        let sent = report.counts.sent;
        let needed = self.per_second * options.safety.as_secs();
        let pairs = [
            ("deliveries", sent, needed),
            ("faults", report.tally.faults, self.faults),
            ("kills", report.tally.kills, self.kills),
            ("rolls", report.tally.rolls, self.rolls),
        ];
        let short = pairs.into_iter().filter(|(_, had, needed)| had < needed);
        short.map(|(what, had, needed)| format!("{had} {what} of {needed}")).collect()
    }
}

/// Runs a plan under the built-in load, both phases and the checks at the end.
///
/// # Errors
/// The first invariant that did not hold; a panic is one.
pub fn run(plan: &Plan) -> Result<Report, Box<Failure>> {
    run_watched(plan, None)
}

/// As [`run`], telling every step to `sink`.
///
/// # Errors
/// As [`run`].
pub fn run_watched(plan: &Plan, sink: Option<TraceSink>) -> Result<Report, Box<Failure>> {
    let workload = Workload::new();
    let mut builder = workload.install(Cluster::builder().plan(plan.clone()));
    if let Some(sink) = sink {
        builder = builder.trace(sink);
    }
    let mut cluster = builder.build();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        cluster.start()?;
        cluster.run_plan()?;
        workload.verify(&mut cluster)
    }));
    match ran {
        Ok(Ok(())) => Ok(cluster.report()),
        Ok(Err(failure)) => Err(Box::new(failure)),
        Err(panic) => {
            let text = panicked::text(&*panic).to_owned();
            cluster.world_mut().violate("nothing panics", text);
            Err(Box::new(cluster.failure()))
        }
    }
}

/// Runs a plan twice; the reports are equal, trace hashes included.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// If the two runs differ: something in the world is not deterministic.
pub fn run_twice(plan: &Plan) -> Result<Report, Box<Failure>> {
    let first = run(plan)?;
    let second = run(plan)?;
    assert_eq!(first, second, "one plan has one trace; seed {}", plan.options.seed);
    Ok(first)
}

/// The smallest plan found that breaks the same invariant as `failure`.
pub fn shrink_failure(failure: &Failure) -> Plan {
    let broken = failure.violations.first().map(|violation| violation.invariant);
    shrink(&failure.plan, |candidate| match run(candidate) {
        Ok(_) => false,
        Err(found) => found.violations.first().map(|violation| violation.invariant) == broken,
    })
}

/// Whether `SILORING_TRACE` asks for every step.
pub fn trace_asked() -> bool {
    std::env::var("SILORING_TRACE").is_ok_and(|value| value != "0")
}
