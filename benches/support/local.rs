//! A silo whose grains are called from its own shards, for calls inside one process.

use anyhow::Context;
use siloring::prelude::*;
use siloring::{Idle, ShardIndex};

use crate::silos::{Echo, KEY};
use crate::support::processors;

/// Two shards, each on a processor of its own if there are two.
pub(crate) fn start() -> anyhow::Result<Silo> {
    let usable = processors();
    let (first, last) = usable.first().zip(usable.last()).context("no processor may be used")?;
    let builder = Silo::builder().cluster("bench-local").shards(2).cpus([*first, *last]);
    Ok(builder.idle(Idle::default()).host::<Echo>().start()?)
}

/// A key whose grain lives on a shard.
pub(crate) fn key_of_shard(silo: &Silo, shard: u16) -> anyhow::Result<String> {
    let handle = silo.handle();
    let keys = (0..1_000).map(|number| format!("{KEY}-{number}"));
    let mut fitting = keys.filter(|key| {
        let echo = handle.grain::<Echo>(key.as_str());
        let hash = echo.address().map(|address| address.hash().0);
        hash.is_ok_and(|hash| ShardIndex::of(hash, handle.shards()) == ShardIndex(shard))
    });
    fitting.next().context("a thousand keys miss a shard")
}
