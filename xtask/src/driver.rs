//! Runs programs: with a bound on their time, their output shown as it comes, and their time
//! measured.
#![expect(clippy::disallowed_methods, reason = "the one place of the tasks that reads a clock")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;

/// What a program did.
#[derive(Debug)]
pub(crate) struct Run {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// Both of its outputs, in the order in which they came.
    pub(crate) output: String,
    /// How long it took.
    pub(crate) time: Duration,
}

/// A program in the workspace's folder that is ended when `bound` has passed.
pub(crate) fn program(root: &Path, bound: Duration, name: &str, arguments: &[&str]) -> Command {
    // coreutils' `timeout`: in the foreground, so that an interrupt at the terminal reaches all.
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=30"]).arg(bound.as_secs().to_string());
    command.arg(name).args(arguments).current_dir(root);
    // What cargo says of this package: dependencies that look at it would be built anew for it.
    let of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Runs `command`, showing its output while it comes.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<Run> {
    let began = Instant::now();
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let error_writer = writer.try_clone().context("cannot clone a pipe")?;
    let mut child = command
        .stdout(writer)
        .stderr(error_writer)
        .spawn()
        .context("cannot run `timeout`, of coreutils")?;
    // The command holds the pipe's writing ends, which must close for the reading end to end.
    command.stdout(std::process::Stdio::inherit()).stderr(std::process::Stdio::inherit());
    let mut output = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let bytes = line.context("cannot read a program's output")?;
        let line = String::from_utf8_lossy(&bytes);
        println!("{line}");
        output.push_str(&line);
        output.push('\n');
    }
    let status = child.wait().context("cannot wait for a program")?;
    Ok(Run { status, output, time: began.elapsed() })
}

/// Runs `what` and says how long it took.
pub(crate) fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = what();
    (done, began.elapsed())
}

/// The folder into which cargo builds.
pub(crate) fn build_folder(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Whether `name` can be run at all.
pub(crate) fn has_program(name: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
}
