//! Two silos of one cluster: calls across, then one of them leaves in order.
//!
//! In production each silo is a process; here both live in one, so that a single command shows
//! both. They share a SQLite file in a temporary folder: that is all a cluster on one host needs.
#![expect(clippy::print_stdout, reason = "it talks to a person")]

use std::path::Path;

use siloring::prelude::*;

/// Counts visits. Placed by the hash of its key, so half of the counters live on either silo.
#[derive(Grain, Default)]
#[grain(type = "demo.counter", key = u64, placement = "hash")]
struct Counter {
    visits: u64,
}

/// What survives the silo that a counter lived on.
#[message(type = "demo.visits")]
struct Visits {
    count: u64,
}

/// The visit could not be stored, so it was not counted.
#[message(type = "demo.not_stored")]
#[derive(Debug, thiserror::Error)]
#[error("the visit was not stored: {reason}")]
struct NotStored {
    reason: String,
}

#[grain_methods]
impl Counter {
    async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        let stored = ctx.load_state::<Visits>("visits").await;
        let stored = stored.map_err(|error| error.to_string())?;
        self.visits = stored.map_or(0, |visits| visits.count);
        Ok(())
    }

    /// Counts one visit. One that could not be stored is the method's own error, not the call's.
    async fn visit(&mut self, ctx: &Ctx) -> Result<u64, NotStored> {
        let count = self.visits + 1;
        let saved = ctx.save_state("visits", &Visits { count }).await;
        saved.map_err(|error| NotStored { reason: error.to_string() })?;
        self.visits = count;
        Ok(count)
    }
}

fn silo(name: &str, store: &str, cluster: &str) -> Result<Silo, StartError> {
    Silo::builder()
        .cluster(cluster)
        .name(name)
        .bind("127.0.0.1:0")
        .store(store)
        .host::<Counter>()
        .start()
}

fn store_in(folder: &Path) -> anyhow::Result<String> {
    let store = format!("sqlite:{}", folder.join("cluster.db").display());
    siloring::migrate(&store)?;
    Ok(store)
}

/// Visits eight counters from `handle` and says what each one answered.
async fn visit_all(handle: &Handle) -> Result<Vec<u64>, CallError<NotStored>> {
    let mut counts = Vec::new();
    for key in 0..8u64 {
        counts.push(handle.grain::<Counter>(key).visit().await?);
    }
    Ok(counts)
}

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = store_in(folder.path())?;
    let cluster = format!("two-silos-{}", std::process::id());
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;

    let first = silo("first", &store, &cluster)?;
    let second = silo("second", &store, &cluster)?;
    println!("both silos are active");

    let counts = runtime.block_on(visit_all(&first.handle()))?;
    println!("visited from the first silo:  {counts:?}");
    let counts = runtime.block_on(visit_all(&second.handle()))?;
    println!("visited from the second silo: {counts:?}");

    first.drain()?;
    println!("the first silo has left");
    let counts = runtime.block_on(visit_all(&second.handle()))?;
    println!("visited again:                {counts:?}");
    anyhow::ensure!(counts == [3; 8], "a visit was lost: {counts:?}");

    second.drain()?;
    println!("nothing was lost");
    Ok(())
}
