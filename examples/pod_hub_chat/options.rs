//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Posts under way at once: enough to keep two cores busy, few enough that nothing queues for long.
const IN_FLIGHT_DEFAULT: usize = 64;

/// A chat on pods and hubs: rolled, killed, and nothing silent.
#[derive(Parser, Debug)]
#[command(name = "pod_hub_chat")]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) mode: Option<Mode>,
    /// Replay this file (second,room,sender,bytes) instead of the conversation that comes along.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Play this many times faster than it was said. Without it the conversation takes half a
    /// minute (28 times), and a trace goes as fast as it will.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) speed: Option<f64>,
    /// memory: is not enough here. sqlite:PATH, postgres://…, or `postgres` for a private server;
    /// without it, a SQLite file in a temporary folder.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// How a room passes lines on: calls to each other member's hub, the room's stream that all
    /// members' hubs subscribe to, or each line both ways.
    #[arg(long, value_enum, default_value_t = Legs::Directed)]
    pub(crate) leg: Legs,
    /// How often a newcomer replaces the oldest pod.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) rolls: u32,
    /// How often a pod is killed with `kill -9` and started again.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) kills: u32,
    /// For how long the private server of `--store postgres` is stopped in the middle of the talk.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) outage: Option<u64>,
    /// Pods to begin with.
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=16))]
    pub(crate) pods: u32,
    /// Posts under way at once.
    #[arg(long, value_name = "N", default_value_t = IN_FLIGHT_DEFAULT, value_parser = at_least_one)]
    pub(crate) in_flight: usize,
    /// Print the table as one JSON object and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Talk by hand: run this in two terminals.
    #[arg(long)]
    #[arg(conflicts_with_all = ["json", "trace", "speed", "rolls", "kills", "outage"])]
    #[arg(conflicts_with_all = ["pods", "leg"])]
    pub(crate) interactive: bool,
    /// Your name with `--interactive`.
    #[arg(long, value_name = "NAME", requires = "interactive")]
    pub(crate) name: Option<String>,
}

/// How a room passes lines on.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Legs {
    Directed,
    Stream,
    Both,
}

impl Legs {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Directed => "directed",
            Self::Stream => "stream",
            Self::Both => "both",
        }
    }

    /// Whether lines are delivered by calls.
    pub(crate) const fn has_calls(self) -> bool {
        matches!(self, Self::Directed | Self::Both)
    }

    /// Whether lines are published on streams.
    pub(crate) const fn has_streams(self) -> bool {
        matches!(self, Self::Stream | Self::Both)
    }
}

/// What else this program can be.
#[derive(Subcommand, Debug)]
pub(crate) enum Mode {
    /// A pod: started by the conductor, spoken to on its standard input.
    #[command(hide = true)]
    Pod(PodSettings),
}

/// What a pod is told when it starts.
#[derive(Args, Debug, Clone)]
pub(crate) struct PodSettings {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) cluster: String,
    #[arg(long)]
    pub(crate) store: String,
    #[arg(long)]
    pub(crate) journal: PathBuf,
    #[arg(long, value_enum)]
    pub(crate) leg: Legs,
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("write a number above 0".to_owned())
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("write a number above 0".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}
