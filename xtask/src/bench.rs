//! `cargo xtask bench`: the benches, optimised as a release is.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::driver;

const BENCH_TIME_MAX: Duration = Duration::from_hours(1);

/// Every bench; `--benches` would also run the unit tests' harness.
const BENCHES: &[&str] =
    &["silo_roundtrip", "grain_call", "subscriber_check", "stream_leg", "registry"];

/// What to pass on to the benches.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Few and short rounds: shows that the benches work, measures nothing.
    #[arg(long)]
    quick: bool,
    /// One JSON object a row instead of tables.
    #[arg(long)]
    json: bool,
    /// One bench only, by its name.
    name: Option<String>,
}

/// Runs the benches.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let mut arguments = vec!["bench", "--package", "siloring"];
    match &options.name {
        Some(name) => arguments.extend(["--bench", name]),
        None => arguments.extend(BENCHES.iter().flat_map(|bench| ["--bench", bench])),
    }
    arguments.push("--");
    if options.quick {
        arguments.push("--quick");
    }
    if options.json {
        arguments.push("--json");
    }
    let run = driver::run(&mut driver::program(root, BENCH_TIME_MAX, "cargo", &arguments))?;
    Ok(if run.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
