//! tarpc: a call over one TCP connection with its bincode transport.
//!
//! Its client holds 1000 calls under way and queues 100 unless told otherwise, which would be in
//! the way of 1024.

use anyhow::Context;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tarpc::server::{self, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::LengthDelimitedCodec;

use crate::names::{Names, names};
use crate::peer::ready;
use crate::remote::Remote;

/// Calls under way, and queued on either side.
const CALLS_MAX: usize = 4096;

#[tarpc::service]
trait Echo {
    async fn call(payload: Bytes) -> Bytes;
}

#[derive(Clone)]
struct Service;

impl Echo for Service {
    async fn call(self, _: context::Context, payload: Bytes) -> Bytes {
        payload
    }
}

/// A client; its clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Tarpc {
    client: EchoClient,
}

type Transport<Item, SinkItem> =
    serde_transport::Transport<TcpStream, Item, SinkItem, Bincode<Item, SinkItem>>;

/// The transport that `tarpc::serde_transport::tcp` makes, but without Nagle's algorithm.
fn transport<Item, SinkItem>(stream: TcpStream) -> anyhow::Result<Transport<Item, SinkItem>>
where
    Item: for<'de> Deserialize<'de>,
    SinkItem: Serialize,
{
    stream.set_nodelay(true)?;
    let frames = LengthDelimitedCodec::builder().new_framed(stream);
    Ok(serde_transport::new(frames, Bincode::default()))
}

impl Remote for Tarpc {
    const NAMES: Names = names!("tarpc");
    type Reply = Bytes;

    async fn serve(_broker: &str) -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        ready(&listener.local_addr()?.to_string())?;
        let (stream, _) = listener.accept().await?;
        let settings = server::Config { pending_response_buffer: CALLS_MAX };
        let requests = settings.channel(transport(stream)?).execute(Service.serve());
        requests
            .for_each(async |request| {
                tokio::spawn(request);
            })
            .await;
        Ok(())
    }

    async fn connect(place: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(place).await?;
        let mut settings = client::Config::default();
        settings.max_in_flight_requests = CALLS_MAX;
        settings.pending_request_buffer = CALLS_MAX;
        Ok(Self { client: EchoClient::new(settings, transport(stream)?).spawn() })
    }

    fn another(&self) -> Self {
        self.clone()
    }

    async fn call(&mut self, payload: &Bytes) -> anyhow::Result<Bytes> {
        let reply = self.client.call(context::current(), payload.clone());
        reply.await.context("no reply")
    }
}
