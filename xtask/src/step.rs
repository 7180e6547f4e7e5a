//! Steps: runs of cargo that are counted, and the report of a task that is made of them.
//!
//! Everything is bounded in time; a step that fails does not hide the next.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;

use crate::tally::Tally;
use crate::{driver, fuzz, setup};

/// One step of the checks, building included, on a slow machine.
pub(crate) const STEP_TIME_MAX: Duration = Duration::from_mins(40);
/// The profile of everything that is linked.
pub(crate) const PROFILE: &str = "ci";
/// Names the file to which a test that could not run adds a line. The test kit writes it.
const SKIPS_VARIABLE: &str = "SILORING_SKIPS";

/// How a step's result is counted.
#[derive(Clone, Copy)]
pub(crate) enum Counted {
    /// It is one check.
    AsOne,
    /// It prints what it counted.
    AsPrinted,
}

/// A run of cargo.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) counted: Counted,
    /// Of its environment.
    pub(crate) variables: &'static [(&'static str, &'static str)],
}

/// Sets up what is missing and runs the steps, with `files` named in their environment, each for
/// `bound` at most. Of the task they are all but the last step: that is [`Report::fuzz`].
pub(crate) fn run(
    root: &Path,
    steps: &[&Step],
    files: &[(&str, &Path)],
    bound: Duration,
) -> anyhow::Result<Report> {
    let unavailable = setup::run(root)?;
    let mut report = Report { unavailable, steps_count: steps.len() + 1, ..Report::default() };
    let skips = empty_file(root, "skipped-tests.txt")?;
    for step in steps {
        let mut command = driver::program(root, bound, "cargo", step.arguments);
        command.envs(step.variables.iter().copied()).env(SKIPS_VARIABLE, &skips);
        report.run(command.envs(files.iter().copied()), step)?;
    }
    let text = std::fs::read_to_string(&skips).context("cannot read what was skipped")?;
    report.skipped = text.lines().map(str::to_owned).collect();
    Ok(report)
}

/// An empty file for the tests to add to, beside the build.
pub(crate) fn empty_file(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let target = driver::build_folder(root);
    std::fs::create_dir_all(&target).context("cannot make the build's folder")?;
    let path = target.join(name);
    std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// What the run has found so far.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    unavailable: Vec<String>,
    skipped: Vec<String>,
    /// Steps of the task, those to come included.
    steps_count: usize,
}

struct Row {
    name: &'static str,
    tally: Tally,
    time: Duration,
}

impl Report {
    fn run(&mut self, command: &mut Command, step: &Step) -> anyhow::Result<()> {
        self.begin(step.name, &format!("cargo {}", step.arguments.join(" ")));
        let run = driver::run(command)?;
        let is_ok = run.status.success();
        let tally = match step.counted {
            Counted::AsOne => Tally::of_check(is_ok),
            Counted::AsPrinted => Tally::of_run(&run.output, is_ok),
        };
        self.rows.push(Row { name: step.name, tally, time: run.time });
        Ok(())
    }

    /// How long all has taken so far.
    pub(crate) fn time(&self) -> Duration {
        self.rows.iter().map(|row| row.time).sum()
    }

    /// Says which step comes, of how many, and when.
    fn begin(&self, name: &str, what: &str) {
        let (number, seconds) = (self.rows.len() + 1, self.time().as_secs());
        println!("\n==== {number} of {}, after {seconds} s: {name}: {what}", self.steps_count);
    }

    /// Runs each fuzz target for so long; what each did. A machine that cannot build them says so:
    /// what they found before is replayed by the tests in any case.
    pub(crate) fn fuzz(&mut self, root: &Path, seconds: u32) -> Vec<(&'static str, u64)> {
        self.begin("fuzz", &format!("each target for {seconds} s"));
        if let Some(missing) = fuzz::missing() {
            self.unavailable.push(missing.to_owned());
            return Vec::new();
        }
        let (fuzzed, time) = driver::timed(|| fuzz::all(root, seconds));
        let (tally, executions) = match fuzzed {
            Ok(fuzzed) => {
                let (passed, failed) = (fuzzed.held, fuzzed.failed);
                (Tally { passed, failed, ..Tally::default() }, fuzzed.executions)
            }
            Err(error) => {
                println!("error: {error:#}");
                (Tally::of_check(false), Vec::new())
            }
        };
        self.rows.push(Row { name: "fuzz", tally, time });
        executions
    }

    /// Prints the table, what was skipped, and the last line. A skip in CI is a failure.
    pub(crate) fn print(&self) -> ExitCode {
        println!("\n{:<16}{:>9}{:>9}{:>9}{:>10}", "step", "passed", "failed", "skipped", "seconds");
        let mut total = Tally::default();
        for row in &self.rows {
            let Tally { passed, failed, skipped, .. } = row.tally;
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
        } else if is_ci() {
            println!("{skips} skipped: in CI that is a failure");
            total.failed += skips;
        }
        if total.deferred > 0 {
            println!("{} tests take their time in `cargo xtask prove`", total.deferred);
        }
        println!("{} passed, {} failed", total.passed, total.failed);
        if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}
