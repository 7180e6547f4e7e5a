//! `siloring migrate URL`: brings a store to this version's schema.

use std::io::Write;

use anyhow::Context as _;
use siloring_core::ClusterId;
use siloring_core::ports::store::Table;
use siloring_storage::{Report, migrate, open};

use crate::Format;
use crate::registry::read_table;

/// Creates the tables of a store, or what is missing of them
///
/// Run it before the silos of a new version start. The phases (membership, subscriptions, grain
/// state) are applied in order, each in one transaction under the store's lock and verified before
/// it is committed. It may be run at any time, any number of times and by several at once; what is
/// complete is left alone.
///
/// The login needs the right to create tables; a silo's own does not: SELECT on `siloring_phase`
/// and SELECT, INSERT, UPDATE, DELETE on the other siloring tables are enough for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  siloring migrate sqlite:/var/lib/app/silo.db
  siloring migrate postgres://deploy@db.example/app --cluster prod
  siloring migrate 'postgresql:///app?host=/run/postgresql' --json

Exit codes: 0 complete, 1 not complete (the text says why and what to do), 2 wrong command line.")]
pub(crate) struct Arguments {
    #[arg(
        env = "SILORING_STORE",
        hide_env_values = true,
        help = "The store: sqlite:PATH or postgres://USER@HOST/DB (memory: needs no migration)"
    )]
    url: String,

    /// Afterwards opens the store as this cluster's silos do, and shows its view
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    cluster: Option<ClusterId>,
}

pub(crate) fn cluster_id(text: &str) -> Result<ClusterId, siloring_core::ids::NameError> {
    ClusterId::new(text)
}

/// Migrates, then answers with what was done.
pub(crate) fn run(
    arguments: &Arguments,
    format: Format,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let report = migrate(&arguments.url)?;
    let seen = match &arguments.cluster {
        Some(cluster) => Some((cluster, read(&arguments.url, cluster)?)),
        None => None,
    };
    let text = match format {
        Format::People => for_people(&report, seen.as_ref()),
        Format::Json => as_json(&report, seen.as_ref()),
    };
    Ok(writeln!(out, "{text}")?)
}

fn read(url: &str, cluster: &ClusterId) -> anyhow::Result<Table> {
    let mut store = open(url, cluster)?;
    read_table(&mut *store).context("the store was migrated, but")
}

fn for_people(report: &Report, seen: Option<&(&ClusterId, Table)>) -> String {
    let mut lines = vec![format!("{} is complete", report.url)];
    for phase in &report.phases {
        lines.push(format!("  {:<13} {}", phase.phase.name(), phase.outcome.name()));
    }
    if let Some((cluster, table)) = seen {
        let silos = table.rows.len();
        lines.push(format!("cluster {cluster}: view {}, {silos} silos", table.version));
    }
    lines.join("\n")
}

fn as_json(report: &Report, seen: Option<&(&ClusterId, Table)>) -> String {
    let phases: Vec<_> = report
        .phases
        .iter()
        .map(|phase| {
            serde_json::json!({
                "phase": phase.phase.name(),
                "outcome": phase.outcome.name().replace(' ', "_"),
            })
        })
        .collect();
    let cluster = seen.map(|(cluster, table)| {
        serde_json::json!({
            "id": cluster.as_str(),
            "view": table.version.to_string(),
            "silos": table.rows.len(),
        })
    });
    serde_json::json!({ "url": report.url, "phases": phases, "cluster": cluster }).to_string()
}
