//! Tasks of the project: `cargo xtask test`, `cargo xtask prove`, `cargo xtask sim`,
//! `cargo xtask fuzz`, `cargo xtask tidy`, `cargo xtask bench`.
//!
//! Small on purpose, because every task waits for it to be built: it knows no crate of the
//! workspace, runs cargo as a person would, and reads the repository as text.
#![expect(clippy::print_stdout, reason = "what a task prints is its product")]

mod bench;
mod driver;
mod fuzz;
mod prove;
mod setup;
mod sim;
mod step;
mod tally;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Tasks of the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Sets up what is missing, then runs every check and test there is.
    ///
    /// As root, PostgreSQL, iproute2 and nftables are installed from the distribution's packages if
    /// they are missing. What was skipped is printed with its reason; with `CI` set a skip is a
    /// failure. Ends with one line: `N passed, N failed`.
    Test,
    /// Runs every test in its longer form and prints the table of what was proved.
    ///
    /// Two hours at most. Each test is told when it has ended, one that takes long each minute. If
    /// something failed, the table is printed and not recorded.
    Prove(prove::Options),
    /// Builds the fuzzers and runs each for a while, from the kept inputs on.
    Fuzz(fuzz::Options),
    /// Runs the simulator; its own `--help` tells what it can be asked.
    #[command(disable_help_flag = true)]
    Sim {
        /// `--seed N`, `--seeds A..B` or `--plan FILE`, and more.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Checks the rules that are about the repository as text.
    Tidy,
    /// Runs the benches and prints their tables.
    Bench(bench::Options),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> anyhow::Result<ExitCode> {
    let root = root()?;
    match task {
        Task::Test => test::run(&root),
        Task::Prove(options) => prove::run(&root, options),
        Task::Fuzz(options) => fuzz::run(&root, options),
        Task::Sim { arguments } => sim::run(&root, arguments),
        Task::Tidy => tidy::run(&root),
        Task::Bench(options) => bench::run(&root, options),
    }
}

/// The workspace's folder: the one above this package.
fn root() -> anyhow::Result<PathBuf> {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    Ok(package.parent().context("the package lies in the workspace")?.to_owned())
}
