//! `siloring`: the operator's binary.
//!
//! One file per command. Each answers on standard output, for people or with `--json` as one
//! object; errors go to standard error, end with the remedy, and with `--json` are one object too.
//! Exit codes: 0 done, 1 not done, 2 the command line is wrong.

mod migrate;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Operates siloring clusters.
#[derive(Debug, Parser)]
#[command(name = "siloring", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Answers with one JSON object, errors included
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Migrate(migrate::Arguments),
}

/// How a command answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    People,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let format = if arguments.json { Format::Json } else { Format::People };
    let answer = match &arguments.command {
        Command::Migrate(arguments) => migrate::run(arguments, format),
    };
    match answer.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error, format);
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn complain(error: &anyhow::Error, format: Format) {
    let text = match format {
        Format::People => format!("error: {error:#}"),
        Format::Json => serde_json::json!({ "error": format!("{error:#}") }).to_string(),
    };
    // Nobody is left to be told that standard error is closed.
    drop(writeln!(std::io::stderr(), "{text}"));
}
