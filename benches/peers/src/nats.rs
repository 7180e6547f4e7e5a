//! NATS: request and reply through its server, which both ends connect to.

use anyhow::Context;
use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt;

use crate::broker::Broker;
use crate::names::{Names, names};
use crate::peer::ready;
use crate::remote::Remote;

/// The server's program.
pub(crate) const PROGRAM: &str = "nats-server";
/// What is asked.
const SUBJECT: &str = "echo";

/// A client; its clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Nats {
    client: Client,
}

impl Remote for Nats {
    const NAMES: Names = names!("NATS request/reply");
    type Reply = Bytes;

    fn broker() -> anyhow::Result<Option<Broker>> {
        let arguments = |port: u16| ["-a", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
        Broker::start(PROGRAM, |port| arguments(port).to_vec()).map(Some)
    }

    async fn serve(broker: &str) -> anyhow::Result<()> {
        let client = async_nats::connect(broker).await?;
        let mut requests = client.subscribe(SUBJECT).await?;
        client.flush().await?;
        ready(broker)?;
        while let Some(request) = requests.next().await {
            let place = request.reply.context("a request says where its reply goes")?;
            client.publish(place, request.payload).await?;
        }
        Ok(())
    }

    async fn connect(place: &str) -> anyhow::Result<Self> {
        Ok(Self { client: async_nats::connect(place).await? })
    }

    fn another(&self) -> Self {
        self.clone()
    }

    async fn call(&mut self, payload: &Bytes) -> anyhow::Result<Bytes> {
        Ok(self.client.request(SUBJECT, payload.clone()).await?.payload)
    }
}
