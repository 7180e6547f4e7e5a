//! A silo in a process of its own, and the hubs that it opens.
//!
//! It says `ready <generation>` once it is active and its hubs are reachable, and
//! `<hub> <leg> <number>` for each reply that a hub handles, before the reply is confirmed: what a
//! pipe has taken survives `kill -9`. At the end of its input it leaves.
#![expect(clippy::print_stdout, reason = "its output is read by the table")]

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::Context as _;
use siloring::prelude::*;
use siloring::{Idle, ShardIndex, SiloBuilder, Streams};

use super::SiloSettings;

/// A reply to a hub.
#[message(type = "table.reply")]
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) number: u64,
}

/// What all silos of the scenario have in common. Hubs of kind `portal` take both legs.
pub(crate) fn builder(settings: &SiloSettings) -> SiloBuilder {
    Silo::builder()
        .cluster(&settings.cluster)
        .name(&settings.name)
        .bind("127.0.0.1:0")
        .store(&settings.store)
        .shards(1)
        .idle(Idle::Park)
        .add_stream_routed_kind("portal")
}

/// The address of a hub.
pub(crate) fn portal(index: u32) -> String {
    format!("portal/{index}")
}

/// Runs until the end of the input.
pub(crate) fn run(settings: &SiloSettings) -> anyhow::Result<ExitCode> {
    let silo = builder(settings).start()?;
    for index in 0..settings.hubs {
        let (tell, opened) = channel();
        let (handle, streams) = (silo.handle(), Arc::clone(silo.streams()));
        silo.handle().spawn_on(ShardIndex(0), move || async move {
            match open(&handle, &streams, &portal(index)).await {
                Ok(hub) => {
                    drop(tell.send(Ok(())));
                    listen(hub).await;
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        })?;
        opened.recv().context("the shard has stopped")??;
    }
    println!("ready {}", silo.incarnation().generation);
    io::stdin().read_to_end(&mut Vec::new())?;
    silo.drain()?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a hub that can be called, and be reached over a stream of its own.
async fn open(handle: &Handle, streams: &Streams, address: &str) -> anyhow::Result<Hub> {
    let hub = handle.hub(address)?.open().await?;
    streams.reach(&hub, false).await?;
    Ok(hub)
}

async fn listen(mut hub: Hub) {
    while let Some(delivery) = hub.next().await {
        match delivery.message::<Reply>() {
            Ok(reply) => {
                let leg = if delivery.event().is_some() { "stream" } else { "directed" };
                println!("{} {leg} {}", hub.address(), reply.number);
                delivery.answer(&());
            }
            Err(failure) => delivery.refuse(failure),
        }
    }
}
