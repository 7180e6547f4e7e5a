//! Plans: the options of a run and its faults, as text.
//!
//! A plan is recorded from a seed ([`Plan::from_seed`]), written, read, replayed and shrunk. One
//! line is one option (`seed 42`) or one step (`at 12.5s kill s2`); `#` starts a comment. The
//! parser is total: every text is a plan or a [`PlanError`] that names its line. Slots are called
//! `s1`, `s2`, …: a slot is a place in the cluster, held by one silo after another.
//!
//! A line that is not there has the value of the usual run ([`Options::new`]).

mod draw;
mod fault;
mod options;
mod span;

pub use draw::Swarm;
pub use fault::Fault;
pub use options::{Hints, Hosts, Mix, Options};

use std::fmt;
use std::time::Duration;

use span::{Span, parse_span};

/// A place in the cluster, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u16);

impl fmt::Display for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "s{}", self.0)
    }
}

/// A fault and when it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Since the start of the safety phase.
    pub at: Duration,
    /// What.
    pub fault: Fault,
}

/// The options of a run and its steps, in order of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The options.
    pub options: Options,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Why a text is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}: {text:?}")]
pub struct PlanError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
    /// The line.
    pub text: String,
}

impl Plan {
    /// A plan without faults.
    pub const fn calm(options: Options) -> Self {
        Self { options, steps: Vec::new() }
    }

    /// Adds a step; steps may be added in any order.
    #[must_use]
    pub fn at(mut self, at: Duration, fault: Fault) -> Self {
        self.steps.push(Step { at, fault });
        self.steps.sort_by_key(|step| step.at);
        self
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// The first line that is neither an option nor a step.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut plan = Self::calm(Options::new(0));
        let mut lines = Vec::new();
        for (index, full) in text.lines().enumerate() {
            let bare = full.split('#').next().unwrap_or_default();
            let words: Vec<&str> = bare.split_whitespace().collect();
            let parsed = match words.as_slice() {
                [] => Ok(()),
                ["at", at, fault @ ..] => parse_step(at, fault).map(|step| {
                    plan.steps.push(step);
                    lines.push((index + 1, full));
                }),
                [name, value] => plan.options.parse(name, value),
                _ => Err("neither an option nor a step"),
            };
            parsed.map_err(|problem| PlanError { line: index + 1, problem, text: full.into() })?;
        }
        // Options may follow the steps: only now it is known how many slots there are.
        let silos = plan.options.silos;
        for (step, (line, text)) in plan.steps.iter().zip(lines) {
            if step.fault.slots().into_iter().flatten().any(|slot| slot.0 > silos) {
                let problem = "no such slot: the cluster has fewer";
                return Err(PlanError { line, problem, text: text.into() });
            }
        }
        plan.steps.sort_by_key(|step| step.at);
        Ok(plan)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.options)?;
        for step in &self.steps {
            writeln!(out, "at {} {}", Span(step.at), step.fault)?;
        }
        Ok(())
    }
}

fn parse_step(at: &str, words: &[&str]) -> Result<Step, &'static str> {
    Ok(Step { at: parse_span(at)?, fault: Fault::parse(words)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drawn_plan_reads_back_as_itself() {
        for seed in 0..200 {
            let plan = Plan::from_seed(Options::drawn(seed));
            assert_eq!(Plan::parse(&plan.to_string()), Ok(plan));
        }
    }

    #[test]
    fn a_drawn_plan_has_five_faults_a_kill_and_a_roll() {
        for seed in 0..500 {
            let plan = Plan::from_seed(Options::drawn(seed));
            let killed = |step: &Step| matches!(step.fault, Fault::Kill(_) | Fault::Vanish(_));
            assert!(plan.steps.len() >= 5, "seed {seed}");
            assert!(plan.steps.iter().any(killed), "seed {seed}");
            assert!(plan.steps.iter().any(|step| step.fault == Fault::Roll), "seed {seed}");
        }
    }

    #[test]
    fn a_line_that_is_no_plan_is_named() {
        let broken = "seed 1\nat 5s kill s1 # fine\nat 5 kill s1\n";
        let error = Plan::parse(broken).unwrap_err();
        assert_eq!((error.line, error.problem), (3, "a span needs a unit"));
        let absent = Plan::parse("at 5s reset s1 s3\nsilos 2\n").unwrap_err();
        assert_eq!((absent.line, absent.text.as_str()), (1, "at 5s reset s1 s3"));
        for text in [
            "at 5s kill 1",
            "at 5s fly s1",
            "silos 0",
            "speed 3",
            "body 16000001",
            "at 5s lose s1 s2 1001 for 1s",
        ] {
            assert!(Plan::parse(text).is_err(), "{text}");
        }
    }
}
