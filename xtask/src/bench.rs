//! `cargo xtask bench`: the benches and what they are compared with, optimised as a release is.
//!
//! Each bench interleaves its own cases, and pins what it measures; they run one after another.
//! What they found is left as files in the build's folder, with plots; `--record` keeps it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use crate::driver;
use crate::step::PROFILE;

/// Building included.
const BENCH_TIME_MAX: Duration = Duration::from_hours(2);

/// The same work by other libraries: a workspace of its own, for what it is built of.
const PEERS: &str = "peers";
const PEERS_MANIFEST: &str = "benches/peers/Cargo.toml";
/// The folder of the results, beside the build.
const RESULTS: &str = "bench-results";

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Few and short rounds: shows that the benches work, measures nothing.
    #[arg(long)]
    quick: bool,
    /// One JSON object a row instead of tables.
    #[arg(long)]
    json: bool,
    /// Keeps results and plots under benches/results/, in a folder named after the machine, and
    /// makes the tables of docs/performance.md and README.md of them.
    #[arg(long, conflicts_with_all = ["quick", "json", "name"])]
    record: bool,
    /// One bench only, by its name; `peers` is the one of other libraries.
    name: Option<String>,
}

/// Runs the benches.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let name = options.name.as_deref();
    let folder = results_folder(root)?;
    let mut passed_on = vec!["--results", folder.to_str().context("the folder's path is text")?];
    passed_on.extend(options.quick.then_some("--quick"));
    passed_on.extend(options.json.then_some("--json"));
    if name != Some(PEERS) {
        let which = name.map_or(vec!["--benches"], |name| vec!["--bench", name]);
        let arguments = [&["bench", "--locked", "--package", "siloring"], &which[..]].concat();
        cargo(root, &arguments, &passed_on, Stdio::inherit())?;
    }
    if name.is_none_or(|name| name == PEERS) {
        let arguments =
            ["run", "--locked", "--profile", "bench", "--manifest-path", PEERS_MANIFEST];
        cargo(root, &arguments, &passed_on, Stdio::inherit())?;
    }
    let arguments = ["run", "--locked", "--profile", PROFILE, "--package", "siloring-figures"];
    let mut passed_on = vec![passed_on[1]];
    if options.record {
        passed_on.extend(["--record", root.to_str().context("the folder's path is text")?]);
    }
    let output = if options.json { Stdio::null() } else { Stdio::inherit() };
    cargo(root, &arguments, &passed_on, output)?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of the results, without those of the run before.
fn results_folder(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = driver::build_folder(root).join(RESULTS);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("cannot remove the results of the run before")?;
    }
    std::fs::create_dir_all(&folder).context("cannot make the folder of the results")?;
    Ok(folder)
}

/// Runs cargo at the terminal, where there is one, so that progress is seen.
fn cargo(root: &Path, arguments: &[&str], passed_on: &[&str], output: Stdio) -> anyhow::Result<()> {
    let mut command: Command = driver::program(root, BENCH_TIME_MAX, "cargo", arguments);
    let status = command.arg("--").args(passed_on).stdout(output).status();
    let status = status.context("cannot run `timeout`, of coreutils")?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}
