//! `siloring subscriptions URL --cluster NAME`: lists who is subscribed to what.

use std::io::Write;

use siloring_core::ports::registry::Subscription;

use crate::Format;
use crate::registry::{Counts, Liveness, Registry, walk};

/// Lists the subscriptions of a cluster, by stream and key
///
/// Rows are shown as they are read, so a list may be of any length. A hub's subscription names the
/// silo that owns it; it is dead when that silo is Dead or gone in the cluster's table, and then
/// every silo ignores it (`siloring prune` removes it). A grain's is owned by nobody (`-`).
///
/// Reads only; the rights of a silo's login are enough.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  siloring subscriptions postgres://app@db.example/app --cluster prod
  siloring subscriptions sqlite:/var/lib/app/silo.db --cluster prod --json

Exit codes: 0 listed, 1 not (the text says why and what to do), 2 wrong command line.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    registry: Registry,
}

/// Lists to `out`.
pub(crate) fn run(
    arguments: &Arguments,
    format: Format,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let registry = &arguments.registry;
    let mut store = registry.open()?;
    match format {
        Format::People => {
            people_row(out, ["STREAM", "KEY", "CONSUMER", "OWNER", "LIVENESS"])?;
            let (counts, _) = walk(&mut *store, |row, liveness| for_people(out, row, liveness))?;
            summary(out, registry, counts)
        }
        Format::Json => {
            write!(out, "{{\"cluster\":\"{}\",\"subscriptions\":[", registry.cluster)?;
            let mut separator = "";
            let (counts, view) = walk(&mut *store, |row, liveness| {
                write!(out, "{separator}{}", as_json(row, liveness))?;
                separator = ",";
                Ok(())
            })?;
            let Counts { grains, live, dead, unknown } = counts;
            writeln!(
                out,
                "],\"view\":\"{}\",\"grains\":{grains},\"live\":{live},\"dead\":{dead},\
                 \"unknown\":{unknown}}}",
                view.number()
            )?;
            Ok(())
        }
    }
}

fn people_row(out: &mut dyn Write, columns: [&str; 5]) -> anyhow::Result<()> {
    let [stream, key, consumer, owner, liveness] = columns;
    Ok(writeln!(out, "{stream:<36}  {key:<24}  {consumer:<36}  {owner:>8}  {liveness}")?)
}

fn for_people(out: &mut dyn Write, row: &Subscription, liveness: Liveness) -> anyhow::Result<()> {
    let owner = row.owner.map_or_else(|| "-".to_owned(), |owner| owner.to_string());
    let (stream, consumer) = (row.stream.as_str(), row.consumer.as_str());
    people_row(out, [stream, &row.key, consumer, &owner, liveness.name()])
}

fn summary(out: &mut dyn Write, registry: &Registry, counts: Counts) -> anyhow::Result<()> {
    let Counts { grains, live, dead, unknown } = counts;
    let all = grains + live + dead + unknown;
    writeln!(
        out,
        "{all} subscriptions: {grains} of grains, {live} live, {dead} dead, {unknown} unknown"
    )?;
    if dead > 0 {
        let (url, cluster) = (registry.shown()?, &registry.cluster);
        writeln!(out, "to remove the dead ones: `siloring prune {url} --cluster {cluster}`")?;
    }
    Ok(())
}

fn as_json(row: &Subscription, liveness: Liveness) -> serde_json::Value {
    serde_json::json!({
        "stream": row.stream.as_str(),
        "key": row.key,
        "consumer": row.consumer.as_str(),
        "owner": row.owner.map(|owner| owner.to_string()),
        "liveness": (liveness != Liveness::Grain).then(|| liveness.name()),
        "view": row.view.to_string(),
        "filter": row.filter,
        "version": row.version.0,
    })
}
