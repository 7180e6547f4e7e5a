//! `ractor_cluster`: a call of an actor on another node, which its group makes known.

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, pg};
use ractor_cluster::{NodeServer, NodeServerMessage, RactorClusterMessage, client_connect};
use tokio::time::sleep;

use crate::broker::free_port;
use crate::names::{Names, names};
use crate::peer::ready;
use crate::remote::Remote;

/// What nodes know each other by.
const COOKIE: &str = "bench";
/// The group of the actor that is called.
const GROUP: &str = "echo";
/// How often the group is looked at until the other node has told of its actor.
const LOOK: Duration = Duration::from_millis(10);

#[derive(RactorClusterMessage)]
enum Ask {
    #[rpc]
    Echo(Vec<u8>, RpcReplyPort<Vec<u8>>),
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

/// A reference to the other node's actor.
#[derive(Debug, Clone)]
pub(crate) struct RactorCluster {
    echo: ActorRef<Ask>,
}

async fn node(name: &str, port: u16) -> anyhow::Result<ActorRef<NodeServerMessage>> {
    let [cookie, name, host] = [COOKIE, name, "localhost"].map(str::to_owned);
    let server = NodeServer::new(port, cookie, name, host, None, None)
        .with_listen_addr(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let (node, _) = Actor::spawn(None, server, ()).await?;
    Ok(node)
}

impl Remote for RactorCluster {
    const NAMES: Names = names!("ractor_cluster");
    type Reply = Vec<u8>;

    async fn serve(_broker: &str) -> anyhow::Result<()> {
        let port = free_port()?;
        node("far", port).await?;
        let (echo, _) = Actor::spawn(None, Echo, ()).await?;
        pg::join(GROUP.to_owned(), vec![echo.get_cell()]);
        ready(&format!("127.0.0.1:{port}"))?;
        pending().await
    }

    async fn connect(place: &str) -> anyhow::Result<Self> {
        let near = node("near", free_port()?).await?;
        client_connect(&near, place).await?;
        loop {
            if let Some(echo) = pg::get_members(&GROUP.to_owned()).pop() {
                return Ok(Self { echo: echo.into() });
            }
            sleep(LOOK).await;
        }
    }

    fn another(&self) -> Self {
        self.clone()
    }

    async fn call(&mut self, payload: &Bytes) -> anyhow::Result<Vec<u8>> {
        let reply = ractor::call!(self.echo, Ask::Echo, payload.to_vec());
        reply.map_err(|error| anyhow!("no reply: {error}"))
    }
}
