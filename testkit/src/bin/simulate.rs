//! Simulated runs from the command line: `cargo xtask sim`, whose `--help` tells the options.
//!
//! Ends with 0 if every promise was kept, with 1 if one was not, with 2 if it was asked for
//! something else. A failure prints its plan and the command that repeats it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what the program prints is its product"
)]

use std::io::Write as _;
use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use siloring_testkit::sim::batch::Totals;
use siloring_testkit::sim::explore::{Demands, run, run_watched, shrink_failure};
use siloring_testkit::sim::{Failure, Options, Plan, Report, Swarm};

/// Runs between two lines that say how far a batch is.
const PROGRESS_EVERY: u64 = 50;

/// Runs whole clusters on virtual time, under faults, and checks every promise after each step.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim")]
struct Asked {
    #[command(flatten)]
    what: What,
    /// After a failure, looks for the smallest plan that fails in the same way.
    #[arg(long)]
    shrink: bool,
    /// Tells every step, on standard error.
    #[arg(long, conflicts_with = "seeds")]
    trace: bool,
    /// Plants a defect, by its name: the checks should find it.
    #[arg(long, value_name = "NAME")]
    defect: Option<String>,
    /// Sets an option of a drawn run, as a line of a plan does: "mix hubs".
    #[arg(long, value_name = "LINE", value_parser = parse_option, conflicts_with = "plan")]
    set: Vec<String>,
    /// Prints the report as one JSON object, on the last line.
    #[arg(long)]
    json: bool,
}

/// One of these.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct What {
    /// The run that a seed stands for.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The runs of these seeds; goes on after a failure, and ends with what they came to.
    #[arg(long, value_name = "A..B", value_parser = parse_range)]
    seeds: Option<Range<u64>>,
    /// The run of a plan in a file.
    #[arg(long, value_name = "FILE", value_parser = parse_plan)]
    plan: Option<Plan>,
}

fn main() -> ExitCode {
    let asked = Asked::parse();
    let kept = match (&asked.what.plan, asked.what.seed, &asked.what.seeds) {
        (Some(plan), _, _) => run_one(&asked, plan.clone()),
        (None, Some(seed), _) => {
            println!("{}", Swarm::drawn(seed));
            run_one(&asked, plan_of(&asked, seed))
        }
        (None, None, seeds) => run_batch(&asked, seeds.clone().unwrap_or_default()),
    };
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse_plan(path: &str) -> Result<Plan, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    Plan::parse(&text).map_err(|error| error.to_string())
}

fn parse_option(line: &str) -> Result<String, String> {
    Options::new(0).set(line).map_err(ToString::to_string)?;
    Ok(line.to_owned())
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..");
    let numbers = range.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(|| "it is no range A..B".to_owned())
}

fn plan_of(asked: &Asked, seed: u64) -> Plan {
    let mut options = Options::drawn(seed);
    options.defect.clone_from(&asked.defect);
    for line in &asked.set {
        options.set(line).expect("tried when it was read");
    }
    Plan::from_seed(options)
}

/// Runs one plan and says what came of it; whether every promise was kept.
fn run_one(asked: &Asked, mut plan: Plan) -> bool {
    if asked.defect.is_some() {
        plan.options.defect.clone_from(&asked.defect);
    }
    println!("{plan}");
    let sink = asked.trace.then(|| -> Box<dyn FnMut(&str)> {
        Box::new(|line: &str| {
            // Whoever reads the trace may have seen enough.
            drop(writeln!(std::io::stderr(), "{line}"));
        })
    });
    match run_watched(&plan, sink) {
        Ok(report) => {
            say(asked, &report, None);
            true
        }
        Err(failure) => {
            tell(asked, &failure);
            false
        }
    }
}

/// Runs each seed; whether every promise was kept.
fn run_batch(asked: &Asked, seeds: Range<u64>) -> bool {
    let (mut totals, mut failed, runs) = (Totals::default(), 0_u64, seeds.end - seeds.start);
    for (seed, done) in seeds.zip(1_u64..) {
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
                if asked.shrink {
                    println!("{}", shrink_failure(&failure));
                }
            }
        }
        if done.is_multiple_of(PROGRESS_EVERY) {
            eprintln!("{done} of {runs} runs, {failed} failed");
        }
    }
    println!("{totals}");
    for what in totals.never() {
        println!("never: {what}");
    }
    if asked.json {
        println!("{}", json!({ "runs": runs, "failed": failed, "counts": totals.counts() }));
    }
    failed == 0
}

fn tell(asked: &Asked, failure: &Failure) {
    println!("{failure}");
    if asked.shrink {
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
