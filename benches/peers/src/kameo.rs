//! kameo: asking an actor in the same process.

use kameo::actor::{ActorRef, Spawn};
use kameo::message::{Context, Message};
use kameo::{Actor, Reply};

use crate::names::{LocalNames, local_names};
use crate::support::{Effort, Sample};
use crate::threads::{self, PAYLOAD, Payload};

/// The names of its loads.
pub(crate) const NAMES: LocalNames = local_names!("kameo");

#[derive(Actor)]
struct Echo;

#[derive(Reply)]
struct Carried(Payload);

impl Message<Carried> for Echo {
    type Reply = Carried;

    async fn handle(&mut self, message: Carried, _: &mut Context<Self, Carried>) -> Carried {
        message
    }
}

/// Times of asking on one thread.
pub(crate) fn same_thread(effort: Effort) -> anyhow::Result<Sample> {
    threads::same(effort, spawn, &ask)
}

/// Times of asking across two threads.
pub(crate) fn across_threads(effort: Effort) -> anyhow::Result<Sample> {
    threads::across(effort, spawn, &ask)
}

async fn spawn() -> anyhow::Result<ActorRef<Echo>> {
    Ok(Echo::spawn(Echo))
}

async fn ask(actor: &ActorRef<Echo>) -> anyhow::Result<()> {
    let Carried(payload) = actor.ask(Carried(PAYLOAD)).await?;
    anyhow::ensure!(payload == PAYLOAD, "the echo is not what was sent");
    Ok(())
}
