//! `siloring`: the operator's binary.
//!
//! One file per command. Each answers on standard output, for people or with `--json` as one
//! object; errors go to standard error, end with the remedy, and with `--json` are one object too.
//! Exit codes: 0 done, 1 not done, 2 the command line is wrong.

mod migrate;
mod prune;
mod registry;
mod subscriptions;

use std::io::{self, Write as _};
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
    Subscriptions(subscriptions::Arguments),
    Prune(prune::Arguments),
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
    let mut out = io::BufWriter::new(io::stdout().lock());
    let answer = match &arguments.command {
        Command::Migrate(arguments) => migrate::run(arguments, format, &mut out),
        Command::Subscriptions(arguments) => subscriptions::run(arguments, format, &mut out),
        Command::Prune(arguments) => prune::run(arguments, format, &mut out),
    };
    match answer.and_then(|()| Ok(out.flush()?)) {
        Err(error) if !is_closed_pipe(&error) => {
            complain(&error, format);
            ExitCode::FAILURE
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

/// Whether whoever reads the answer has heard enough of it.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

fn complain(error: &anyhow::Error, format: Format) {
    let text = match format {
        Format::People => format!("error: {error:#}"),
        Format::Json => serde_json::json!({ "error": format!("{error:#}") }).to_string(),
    };
    // Nobody is left to be told that standard error is closed.
    drop(writeln!(io::stderr(), "{text}"));
}
