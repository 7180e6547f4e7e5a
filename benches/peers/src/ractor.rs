//! ractor: a call of an actor in the same process. It is built with what its cluster needs, whose
//! peer is in this program too.

use anyhow::anyhow;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;

use crate::names::{LocalNames, local_names};
use crate::support::{Effort, Sample};
use crate::threads::{self, PAYLOAD, Payload};

/// The names of its loads.
pub(crate) const NAMES: LocalNames = local_names!("ractor");

#[derive(RactorMessage)]
enum Ask {
    Echo(Payload, RpcReplyPort<Payload>),
}

struct Echo;

impl Actor for Echo {
    type Msg = Ask;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Ask>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<Ask>,
        message: Ask,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let Ask::Echo(payload, reply) = message;
        reply.send(payload)?;
        Ok(())
    }
}

/// Times of calls on one thread.
pub(crate) fn same_thread(effort: Effort) -> anyhow::Result<Sample> {
    threads::same(effort, spawn, &ask)
}

/// Times of calls across two threads.
pub(crate) fn across_threads(effort: Effort) -> anyhow::Result<Sample> {
    threads::across(effort, spawn, &ask)
}

async fn spawn() -> anyhow::Result<ActorRef<Ask>> {
    let (actor, _) = Actor::spawn(None, Echo, ()).await?;
    Ok(actor)
}

async fn ask(actor: &ActorRef<Ask>) -> anyhow::Result<()> {
    let reply = ractor::call!(actor, Ask::Echo, PAYLOAD);
    reply.map(drop).map_err(|error| anyhow!("no reply: {error}"))
}
