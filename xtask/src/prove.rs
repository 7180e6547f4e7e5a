//! `cargo xtask prove`: every test in its longer form, and the table of what was proved.
//!
//! A test that has a longer form takes it when a variable is set, and adds what it counted to a
//! file, a line a figure. The table is made of that file: nothing in it is written by hand.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::step::{self, Counted, PROFILE, Step};
use crate::{driver, fuzz};

/// Names the file to which tests add what they counted. The test kit writes it.
const FIGURES_VARIABLE: &str = "SILORING_FIGURES";
/// Where the table is kept.
const DOCUMENT: &str = "docs/testing.md";
/// The lines of the document between which it stands.
const MARKS: [&str; 2] = ["<!-- figures -->", "<!-- end of figures -->"];

/// How long each fuzz target runs, if there is time.
const FUZZ_SECONDS_MAX: u32 = 300;
/// How long it runs in any case: as in the checks.
const FUZZ_SECONDS_MIN: u32 = 20;
/// What is kept for the fuzzers of the whole time.
const FUZZ_TIME: Duration = Duration::from_mins(6);
/// A batch that is given less proves less than the checks do.
const MINUTES_MIN: i64 = 40;

/// How long, and what to do with the table.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Put the table into docs/testing.md, if nothing failed.
    #[arg(long)]
    record: bool,
    /// How long all may take, building included: tests that have not ended by then are ended, and
    /// failed; the fuzzers share what the tests leave.
    #[arg(long, default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u32).range(MINUTES_MIN..))]
    minutes: u32,
}

/// The test kit reads the variable.
const LONG: &[(&str, &str)] = &[("SILORING_LONG", "1")];

const TEST_WITH_NEXTEST: Step = Step {
    name: "long tests",
    arguments: &[
        "nextest",
        "run",
        "--profile",
        "long",
        "--cargo-profile",
        PROFILE,
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--color",
        "never",
        "--show-progress",
        "none",
        // Who waits for hours sees what has ended, of how many, and how long it took.
        "--status-level",
        "pass",
    ],
    counted: Counted::AsPrinted,
    variables: LONG,
};

const TEST_WITH_CARGO: Step = Step {
    name: "long tests",
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
        "--",
        "--test-threads",
        "1",
    ],
    counted: Counted::AsPrinted,
    variables: LONG,
};

/// Runs what takes hours, and prints what it counted.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let figures = step::empty_file(root, "figures.txt")?;
    let has_nextest = driver::has_program("cargo-nextest");
    let tests = if has_nextest { &TEST_WITH_NEXTEST } else { &TEST_WITH_CARGO };
    let whole = Duration::from_mins(u64::from(options.minutes));
    let files = [(FIGURES_VARIABLE, &*figures)];
    let mut report = step::run(root, &[tests], &files, whole.saturating_sub(FUZZ_TIME))?;
    let mut text = std::fs::read_to_string(&figures).context("cannot read the figures")?;
    let left = fuzz::seconds_within(whole.saturating_sub(report.time()));
    for (target, executions) in report.fuzz(root, left.clamp(FUZZ_SECONDS_MIN, FUZZ_SECONDS_MAX)) {
        writeln!(text, "fuzz: {target}, executions\t{executions}").expect("a string takes it");
    }
    let code = report.print();
    let table = table(&text)?;
    println!("\n{table}");
    if options.record {
        ensure!(code == ExitCode::SUCCESS, "something failed: the table was not recorded");
        record(root, &table)?;
    }
    Ok(code)
}

/// The figures as a table of the document, in the order of their names: a line is a name, a tab,
/// and a value. What several tests have counted under one name is added up; what is no whole number
/// is a row each time.
fn table(figures: &str) -> anyhow::Result<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut rows = Vec::new();
    for line in figures.lines() {
        let figure = line.split_once('\t').with_context(|| format!("not a figure: {line:?}"))?;
        match (figure.0, figure.1.parse::<u64>()) {
            (name, Ok(count)) => *counts.entry(name).or_default() += count,
            (name, Err(_)) => rows.push((name, figure.1.to_owned())),
        }
    }
    rows.extend(counts.into_iter().map(|(name, count)| (name, count.to_string())));
    rows.sort_unstable();
    let rows = rows.iter().map(|(name, value)| format!("| {name} | {value} |\n"));
    Ok(format!("| what | figure |\n|---|---|\n{}", rows.collect::<String>()))
}

fn record(root: &Path, table: &str) -> anyhow::Result<()> {
    let path = root.join(DOCUMENT);
    let text = std::fs::read_to_string(&path).context("cannot read the document")?;
    let text = replaced(&text, table).context("the document has no place for the figures")?;
    std::fs::write(&path, text).context("cannot write the document")
}

/// `text` with `table` between its marks.
fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}\n\n{table}\n{}{after}", MARKS[0], MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_become_a_table_in_their_place() {
        let table = table("b: seeds\t2\na: hours\t1.5\n").expect("they are figures");
        assert_eq!(table, "| what | figure |\n|---|---|\n| a: hours | 1.5 |\n| b: seeds | 2 |\n");
        let text = format!("before\n{}\nold\n{}\nafter", MARKS[0], MARKS[1]);
        let once = replaced(&text, &table).expect("the marks are there");
        assert!(once.starts_with("before\n") && once.ends_with("\nafter") && !once.contains("old"));
        assert_eq!(replaced(&once, &table).as_deref(), Some(&*once));
        assert_eq!(replaced("no marks", &table), None);
    }

    #[test]
    fn whole_numbers_of_one_name_are_added_up_and_nothing_else_is() {
        let table = table("b\t2\na\t0\nb\t40\na\t0\nc\t1.5\nc\t0.5\n").expect("figures");
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| a | 0 |", "| b | 42 |", "| c | 0.5 |", "| c | 1.5 |"]);
    }

    #[test]
    fn what_is_no_figure_is_an_error() {
        assert!(table("no tab").is_err());
    }
}
