//! Where replies go that nobody hears of: one scenario, three older designs, and this library.
//!
//! Every 100 ms a reply goes to a hub, an address that one process owns, such as a browser's
//! circuit. A list somewhere in the cluster says that this process is to get it. Then something
//! happens to the cluster. The table says what became of each reply. What counts is *silent*: the
//! sender heard that all is well, or nothing, and the hub never handled the reply.
//!
//! The older designs are models: small, deterministic, with the retries and refreshes that such
//! systems document, and generous where the documents leave room. Each is a module with a test that
//! shows its loss. Siloring's own rows are measured on real silos, each in a process of its own,
//! that are rolled and killed; a silent or a wrongly refused reply there ends the program with 1.
//!
//! - [`scenario`]: what happens, and when. [`books`]: what became of each reply. [`table`]: how it
//!   is shown.
//! - [`queued`]: the stream that the models share. [`memory_registry`], [`durable_registry`],
//!   [`checked_registry`]: the models.
//! - [`cluster`]: the same on real silos. [`sender`]: the replies. [`process`]: the silos, and
//!   [`child`]: what runs in them.

mod books;
mod checked_registry;
mod child;
mod cluster;
mod durable_registry;
mod memory_registry;
mod process;
mod queued;
mod scenario;
mod sender;
mod table;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use books::Counts;
use scenario::Trouble;
use table::Row;

/// What becomes of replies to a hub when silos are rolled and killed: older designs and this one.
#[derive(Parser, Debug)]
#[command(name = "silence_table")]
struct Options {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Print the rows as JSON objects, one a line, and nothing else.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum Mode {
    /// A silo: started by the table, and told to leave by the end of its standard input.
    #[command(hide = true)]
    Silo(SiloSettings),
}

/// What a silo is told when it starts.
#[derive(Args, Debug, Clone)]
pub(crate) struct SiloSettings {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) cluster: String,
    #[arg(long)]
    pub(crate) store: String,
    /// How many hubs it opens.
    #[arg(long, default_value_t = 0)]
    pub(crate) hubs: u32,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if let Some(Mode::Silo(settings)) = &options.mode {
        return child::run(settings);
    }
    let measured = cluster::run_all()?;
    let mut rows = Vec::new();
    for (trouble, ours) in Trouble::ALL.into_iter().zip(&measured) {
        let models: [(&str, Counts); 3] = [
            ("model: registry in memory", memory_registry::run(trouble)),
            ("model: durable registry", durable_registry::run(trouble)),
            ("model: the same, with a check", checked_registry::run(trouble)),
        ];
        rows.extend(models.map(|(design, counts)| Row::new(trouble, design, counts)));
        rows.push(Row::new(trouble, "siloring: directed call", ours.directed.clone()));
        rows.push(Row::new(trouble, "siloring: stream leg", ours.stream.clone()));
    }
    table::show(&rows, options.json);
    let legs = measured.iter().flat_map(|ours| [&ours.directed, &ours.stream]);
    let is_kept = legs.into_iter().all(|counts| counts.silent == 0 && counts.wrongly_refused == 0);
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
