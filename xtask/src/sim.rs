//! `cargo xtask sim`: builds the simulator's program and runs it.
//!
//! What it can be asked is said by the program itself, `testkit/src/bin/simulate.rs`; here nothing
//! of it is known. It is built as the tests are, planted defects included.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::step::PROFILE;

const RUN: &[&str] = &[
    "run",
    "--quiet",
    "--profile",
    PROFILE,
    "--locked",
    "--package",
    "siloring-testkit",
    "--features",
    "planted",
    "--bin",
    "simulate",
    "--",
];

pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(RUN).args(arguments);
    let status = command.status().context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
