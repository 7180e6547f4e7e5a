//! `siloring prune URL --cluster NAME`: removes the subscriptions that dead silos have left.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::bail;
use siloring_core::limits::SWEEP_OWNERS_MAX;
use siloring_core::ports::store::{Store, StoreAnswer, StoreRequest};
use siloring_core::{Generation, ViewNumber};

use crate::Format;
use crate::registry::{Counts, Liveness, Registry, walk};

/// Removes the subscriptions of silos that are gone
///
/// Every silo ignores them anyway and removes those it comes across; this removes all of them. What
/// belongs to a grain or to a silo that is in the cluster's table and not Dead stays, and so does
/// what was registered after the view that says who is gone. It may be run at any time, any number
/// of times and while the cluster runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  siloring prune postgres://app@db.example/app --cluster prod --dry-run
  siloring prune sqlite:/var/lib/app/silo.db --cluster prod --json

Exit codes: 0 done, 1 not done (the text says why and what to do), 2 wrong command line.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    registry: Registry,

    /// Only says what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Removes, then answers with what was removed.
pub(crate) fn run(
    arguments: &Arguments,
    format: Format,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut store = arguments.registry.open()?;
    let mut gone = BTreeSet::new();
    let (counts, view) = walk(&mut *store, |row, liveness| {
        if liveness == Liveness::Dead {
            gone.extend(row.owner);
        }
        Ok(())
    })?;
    let removed = if arguments.dry_run {
        counts.dead
    } else {
        let gone: Vec<Generation> = gone.iter().copied().collect();
        sweep(&mut *store, &gone, view.number())?
    };
    let text = match format {
        Format::People => for_people(arguments, removed, &gone, counts),
        Format::Json => as_json(arguments, removed, &gone, counts),
    };
    Ok(writeln!(out, "{text}")?)
}

fn sweep(store: &mut dyn Store, gone: &[Generation], view: ViewNumber) -> anyhow::Result<u64> {
    let mut removed = 0;
    for gone in gone.chunks(SWEEP_OWNERS_MAX) {
        let request = StoreRequest::SweepSubscriptions { gone: gone.to_vec(), view };
        let StoreAnswer::Swept { count } = store.execute(&request)? else {
            bail!("the store did not answer a sweep with a count");
        };
        removed += count;
    }
    Ok(removed)
}

fn for_people(
    arguments: &Arguments,
    removed: u64,
    gone: &BTreeSet<Generation>,
    counts: Counts,
) -> String {
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    let Counts { grains, live, unknown, .. } = counts;
    format!(
        "{verb} {removed} subscriptions of {} dead silos; kept {live} of living silos, {grains} of \
         grains, {unknown} that no view can judge",
        gone.len()
    )
}

fn as_json(
    arguments: &Arguments,
    removed: u64,
    gone: &BTreeSet<Generation>,
    counts: Counts,
) -> String {
    serde_json::json!({
        "cluster": arguments.registry.cluster.as_str(),
        "dry_run": arguments.dry_run,
        "removed": removed,
        "dead_silos": gone.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "kept": { "live": counts.live, "grains": counts.grains, "unknown": counts.unknown },
    })
    .to_string()
}
