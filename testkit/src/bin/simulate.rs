//! Simulated runs from the command line: `cargo xtask sim`.
//!
//! ```text
//! --seed N        the run that a seed stands for
//! --seeds A..B    each of them; goes on after a failure, and ends with what they came to
//! --plan FILE     the run of a plan
//! --shrink        the smallest plan found that fails as this one does
//! --trace         tells every step, on standard error
//! --defect NAME   planted with it
//! --set "mix hubs" sets an option of drawn runs, as a line of a plan does
//! --json          the last line is the report as JSON
//! ```
//!
//! Ends with 0 if every promise was kept, with 1 if one was not, with 2 if it was asked for
//! something else. A failure prints its plan and the command that repeats it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what the program prints is its product"
)]

use std::io::Write as _;
use std::process::ExitCode;

use serde_json::json;
use siloring_testkit::sim::batch::Totals;
use siloring_testkit::sim::explore::{Demands, run, run_watched, shrink_failure};
use siloring_testkit::sim::{Failure, Options, Plan, Report, Swarm};

/// Runs between two lines that say how far a batch is.
const PROGRESS_EVERY: u64 = 50;

/// What was asked for.
#[derive(Debug, Default)]
struct Asked {
    seeds: Option<(u64, u64)>,
    plan: Option<Plan>,
    defect: Option<String>,
    set: Vec<String>,
    shrinks: bool,
    traces: bool,
    json: bool,
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(problem) => {
            eprintln!(
                "{problem}; the options are --seed, --seeds, --plan, --shrink, --trace, \
                       --defect, --set and --json"
            );
            return ExitCode::from(2);
        }
    };
    let failed = match (&asked.plan, asked.seeds) {
        (Some(plan), _) => run_one(&asked, plan.clone()),
        (None, Some((from, to))) if to == from + 1 => run_one(&asked, plan_of(&asked, from)),
        (None, Some((from, to))) => run_batch(&asked, from, to),
        (None, None) => {
            eprintln!("--seed, --seeds or --plan says what to run");
            return ExitCode::from(2);
        }
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seed" => {
                let text = value()?;
                let seed = text.parse().map_err(|error| format!("{text} is no seed: {error}"))?;
                asked.seeds = Some((seed, seed + 1));
            }
            "--seeds" => asked.seeds = Some(parse_range(&value()?)?),
            "--plan" => {
                let path = value()?;
                let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
                asked.plan = Some(Plan::parse(&text).map_err(|e| format!("{path}: {e}"))?);
            }
            "--defect" => asked.defect = Some(value()?),
            "--set" => {
                let line = value()?;
                Options::new(0).set(&line).map_err(|error| format!("{line}: {error}"))?;
                asked.set.push(line);
            }
            "--shrink" => asked.shrinks = true,
            "--trace" => asked.traces = true,
            "--json" => asked.json = true,
            _ => return Err(format!("{word} is no option")),
        }
    }
    Ok(asked)
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let range = text.split_once("..");
    let numbers = range.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    numbers.filter(|(from, to)| from < to).ok_or_else(|| format!("{text} is no range A..B"))
}

fn plan_of(asked: &Asked, seed: u64) -> Plan {
    let mut options = Options::drawn(seed);
    options.defect.clone_from(&asked.defect);
    for line in &asked.set {
        options.set(line).expect("tried when it was read");
    }
    Plan::from_seed(options)
}

/// Runs one plan and says what came of it; how many failed.
fn run_one(asked: &Asked, mut plan: Plan) -> u64 {
    if asked.defect.is_some() {
        plan.options.defect.clone_from(&asked.defect);
    }
    if asked.plan.is_none() {
        println!("{}", Swarm::drawn(plan.options.seed));
    }
    println!("{plan}");
    let sink = asked.traces.then(|| -> Box<dyn FnMut(&str)> {
        Box::new(|line: &str| {
            // Whoever reads the trace may have seen enough.
            drop(writeln!(std::io::stderr(), "{line}"));
        })
    });
    match run_watched(&plan, sink) {
        Ok(report) => {
            say(asked, &report, None);
            0
        }
        Err(failure) => {
            tell(asked, &failure);
            1
        }
    }
}

/// Runs each seed; how many failed.
fn run_batch(asked: &Asked, from: u64, to: u64) -> u64 {
    let (mut totals, mut failed) = (Totals::default(), 0);
    for seed in from..to {
        let plan = plan_of(asked, seed);
        match run(&plan) {
            Ok(report) => {
                totals.add(&plan.options, &report);
                let lacking = Demands::SMOKE.lacking(&plan.options, &report);
                if !lacking.is_empty() {
                    println!("seed {seed} proved little: {lacking:?}");
                }
            }
            Err(failure) => {
                failed += 1;
                println!("seed {seed}: {}", failure.violations[0]);
                if asked.shrinks {
                    println!("{}", shrink_failure(&failure));
                }
            }
        }
        let done = seed + 1 - from;
        if done.is_multiple_of(PROGRESS_EVERY) {
            eprintln!("{done} of {} runs, {failed} failed", to - from);
        }
    }
    println!("{totals}");
    for what in totals.never() {
        println!("never: {what}");
    }
    if asked.json {
        println!("{}", json!({ "runs": to - from, "failed": failed, "counts": totals.counts() }));
    }
    failed
}

fn tell(asked: &Asked, failure: &Failure) {
    println!("{failure}");
    if asked.shrinks {
        println!("the smallest plan found that fails so:\n{}", shrink_failure(failure));
    }
    let violated = failure.violations.first().map(ToString::to_string);
    say(asked, &failure.report, violated.as_deref());
}

fn say(asked: &Asked, report: &Report, violated: Option<&str>) {
    if asked.json {
        let trace_hash = format!("{:016x}", report.trace_hash);
        let counts = report.counted();
        println!("{}", json!({ "violated": violated, "trace": trace_hash, "counts": counts }));
    } else {
        println!("{report:#?}");
    }
}
