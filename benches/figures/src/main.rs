//! Makes plots and tables of what a run of the benches has found.
//!
//! Contract: the folder that is given holds the files that the benches' `--results` wrote; this
//! adds `env.json`, what machine it was, and one SVG a plot. With `--record` all of it is kept
//! under `benches/results/`, in a folder named after the machine, and the documents' tables are
//! made anew between their marks. Invariant: no number is written that is not in the files.
//!
//! Deliberately absent: any measuring.
#![expect(clippy::print_stdout, reason = "it says what it wrote")]

mod documents;
mod machine;
mod plots;
mod results;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;

use machine::Machine;
use results::Results;

/// Makes plots and tables of what a run of the benches has found.
#[derive(Debug, Parser)]
#[command(name = "siloring-figures")]
struct Arguments {
    /// The folder into which the benches wrote.
    results: PathBuf,
    /// Keeps everything in the repository whose folder this is, and makes its tables anew.
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let results = Results::read(&arguments.results)?;
    let machine = Machine::this();
    let environment = serde_json::to_string_pretty(&machine)? + "\n";
    write(&arguments.results.join("env.json"), &environment)?;
    for plot in plots::draw(&results, &arguments.results)? {
        println!("{}", plot.display());
    }
    if let Some(root) = &arguments.record {
        let kept = Path::new("benches/results").join(machine.folder());
        keep(&arguments.results, &root.join(&kept))?;
        for document in documents::update(root, &kept, &results, &machine)? {
            println!("{}", document.display());
        }
    }
    Ok(())
}

/// Copies the files of a run to where they are kept, in place of those of the run before.
fn keep(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot empty {}", to.display()))?;
    }
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?;
        fs::copy(&path, to.join(name))
            .with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
