//! `cargo xtask test`: every check and test of the project, in order of how soon they tell
//! something. `cargo xtask prove`: tests that have a longer form, in that form.
//!
//! Two builds serve nearly all steps, each without debug information: the linter's, and one of the
//! profile `ci` (optimised, with debug assertions), in which tests, simulated runs, examples and
//! the benches' smoke run are linked. The models of what crosses threads are a small third one.
//! Everything is bounded in time; a step that fails does not hide the next.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;

use crate::tally::Tally;
use crate::{driver, setup};

/// One step, building included, on a slow machine.
const STEP_TIME_MAX: Duration = Duration::from_mins(40);
/// The profile of everything that is linked.
pub(crate) const PROFILE: &str = "ci";
/// Names the file to which a test that could not run adds a line. The test kit writes it.
const SKIPS_VARIABLE: &str = "SILORING_SKIPS";

/// How a step's result is counted.
#[derive(Clone, Copy)]
enum Counted {
    /// It is one check.
    AsOne,
    /// It prints what it counted.
    AsPrinted,
}

struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    counted: Counted,
    /// Of its environment.
    variables: &'static [(&'static str, &'static str)],
}

const FORMAT: Step = Step {
    name: "format",
    arguments: &["fmt", "--all", "--check"],
    counted: Counted::AsOne,
    variables: &[],
};

const LINT: Step = Step {
    name: "lint",
    arguments: &[
        "clippy",
        "--profile",
        PROFILE,
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ],
    counted: Counted::AsOne,
    variables: &[],
};

const TEST_WITH_NEXTEST: Step = Step {
    name: "test",
    arguments: &[
        "nextest",
        "run",
        "--cargo-profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--color",
        "never",
        "--show-progress",
        "none",
    ],
    counted: Counted::AsPrinted,
    variables: &[],
};

const TEST_WITH_CARGO: Step = Step {
    name: "test",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
    ],
    counted: Counted::AsPrinted,
    variables: &[],
};

const DOCUMENTATION: Step = Step {
    name: "documentation",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--doc",
    ],
    counted: Counted::AsPrinted,
    variables: &[],
};

/// Every interleaving of what crosses threads, in a small build of its own.
const INTERLEAVINGS: Step = Step {
    name: "interleavings",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--locked",
        "--target-dir",
        "target/loom",
        "--package",
        "siloring-core",
        "--package",
        "siloring-pubsub",
        "--lib",
        "loom_tests",
    ],
    counted: Counted::AsPrinted,
    variables: &[("RUSTFLAGS", "--cfg loom")],
};

const BENCH_SMOKE: Step = Step {
    name: "bench smoke",
    arguments: &[
        "bench",
        "--profile",
        PROFILE,
        "--locked",
        "--package",
        "siloring",
        "--bench",
        "silo_roundtrip",
        "--bench",
        "grain_call",
        "--bench",
        "subscriber_check",
        "--bench",
        "stream_leg",
        "--bench",
        "registry",
        "--",
        "--quick",
    ],
    counted: Counted::AsOne,
    variables: &[],
};

/// What the tests run.
const BUILD: Step = Step {
    name: "build",
    arguments: &["build", "--profile", PROFILE, "--workspace", "--locked", "--all-targets"],
    counted: Counted::AsOne,
    variables: &[],
};

/// The tests that have a longer form, one after the other. The test kit reads the variable.
const LONG_TESTS: Step = Step {
    name: "long tests",
    arguments: &[
        "test",
        "--profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--test",
        "proc",
        "--test",
        "examples",
        "postgres",
        "--",
        "--test-threads",
        "1",
    ],
    counted: Counted::AsPrinted,
    variables: &[("SILORING_LONG", "1")],
};

/// Runs what takes minutes.
pub(crate) fn prove(root: &Path) -> anyhow::Result<ExitCode> {
    let mut report = Report { unavailable: setup::run(root)?, ..Report::default() };
    let skips = skips_file(root)?;
    for step in [BUILD, LONG_TESTS] {
        report.run(root, &step, &skips)?;
    }
    report.skipped = read_skips(&skips)?;
    Ok(report.print(is_ci()))
}

/// Runs everything.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let mut report = Report { unavailable: setup::run(root)?, ..Report::default() };
    let skips = skips_file(root)?;
    let test =
        if driver::has_program("cargo-nextest") { TEST_WITH_NEXTEST } else { TEST_WITH_CARGO };
    for step in [FORMAT, LINT, INTERLEAVINGS, test, DOCUMENTATION, BENCH_SMOKE] {
        report.run(root, &step, &skips)?;
    }
    report.skipped = read_skips(&skips)?;
    Ok(report.print(is_ci()))
}

/// What the run has found so far.
#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    unavailable: Vec<String>,
    skipped: Vec<String>,
}

struct Row {
    name: &'static str,
    tally: Tally,
    time: Duration,
}

impl Report {
    fn run(&mut self, root: &Path, step: &Step, skips: &Path) -> anyhow::Result<()> {
        println!("\n==== {}: cargo {}", step.name, step.arguments.join(" "));
        let run = driver::run(&mut command(root, step, skips))?;
        let is_ok = run.status.success();
        let tally = match step.counted {
            Counted::AsOne => Tally::of_check(is_ok),
            Counted::AsPrinted => Tally::of_run(&run.output, is_ok),
        };
        self.rows.push(Row { name: step.name, tally, time: run.time });
        Ok(())
    }

    /// Prints the table, what was skipped, and the last line. A skip in CI is a failure.
    fn print(&self, is_ci: bool) -> ExitCode {
        println!("\n{:<16}{:>9}{:>9}{:>9}{:>10}", "step", "passed", "failed", "skipped", "seconds");
        let mut total = Tally::default();
        for row in &self.rows {
            let Tally { passed, failed, skipped } = row.tally;
            let seconds = row.time.as_secs_f64();
            println!("{:<16}{passed:>9}{failed:>9}{skipped:>9}{seconds:>10.1}", row.name);
            total += row.tally;
        }
        println!();
        for missing in &self.unavailable {
            println!("not installed, so skipped: {missing}");
        }
        for skip in &self.skipped {
            println!("skipped {skip}");
        }
        let skips = u64::try_from(self.skipped.len()).unwrap_or(u64::MAX) + total.skipped;
        if skips == 0 {
            println!("nothing was skipped");
        } else if is_ci {
            println!("{skips} skipped: in CI that is a failure");
            total.failed += skips;
        }
        println!("{} passed, {} failed", total.passed, total.failed);
        if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn command(root: &Path, step: &Step, skips: &Path) -> Command {
    let mut command = driver::program(root, STEP_TIME_MAX, "cargo", step.arguments);
    command.env(SKIPS_VARIABLE, skips);
    command.envs(step.variables.iter().copied());
    command
}

/// An empty file for the tests to add to, beside the build.
fn skips_file(root: &Path) -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    std::fs::create_dir_all(&target).context("cannot make the build's folder")?;
    let path = target.join("skipped-tests.txt");
    std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn read_skips(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path).context("cannot read what was skipped")?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}
