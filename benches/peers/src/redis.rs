//! Redis: request and reply as messages on two channels of its server.
//!
//! It knows no request and reply: a number at the front of each message tells which it answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncTypedCommands, Client, IntoConnectionInfo, Msg};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::names::{Names, names};
use crate::peer::ready;
use crate::remote::Remote;

/// The server's program.
pub(crate) const PROGRAM: &str = "redis-server";
/// What the far end listens to.
const REQUESTS: &str = "requests";
/// What the client listens to.
const REPLIES: &str = "replies";
/// Bytes of the number at the front.
const NUMBER_BYTES: usize = 8;

/// A client; its clones share both connections.
#[derive(Debug, Clone)]
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    open: Arc<Mutex<Open>>,
}

/// Who waits for which reply. The lock guards it between callers and the task that takes replies.
#[derive(Debug, Default)]
struct Open {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Vec<u8>>>,
}

fn client(broker: &str) -> anyhow::Result<Client> {
    let place = format!("redis://{broker}/").into_connection_info()?;
    let place = place.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Ok(Client::open(place)?)
}

/// What comes on a channel.
async fn listen(
    client: &Client,
    channel: &str,
) -> anyhow::Result<impl Stream<Item = Msg> + Unpin + use<>> {
    let mut listener = client.get_async_pubsub().await?;
    listener.subscribe(channel).await?;
    Ok(listener.into_on_message())
}

fn number_of(message: &[u8]) -> Option<u64> {
    message.first_chunk::<NUMBER_BYTES>().map(|bytes| u64::from_le_bytes(*bytes))
}

impl Remote for Redis {
    const NAMES: Names = names!("Redis publish and publish back");
    type Reply = Vec<u8>;

    fn broker() -> anyhow::Result<Option<Broker>> {
        let arguments = |port: u16| {
            let port = port.to_string();
            let quiet = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port"];
            quiet.iter().copied().chain([port.as_str()]).map(str::to_owned).collect()
        };
        Broker::start(PROGRAM, arguments).map(Some)
    }

    async fn serve(broker: &str) -> anyhow::Result<()> {
        let client = client(broker)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut requests = listen(&client, REQUESTS).await?;
        ready(broker)?;
        while let Some(first) = requests.next().await {
            let mut replies = redis::pipe();
            replies.publish(REPLIES, first.get_payload_bytes()).ignore();
            while let Some(Some(more)) = requests.next().now_or_never() {
                replies.publish(REPLIES, more.get_payload_bytes()).ignore();
            }
            replies.query_async::<()>(&mut connection).await?;
        }
        Ok(())
    }

    async fn connect(place: &str) -> anyhow::Result<Self> {
        let client = client(place)?;
        let connection = client.get_multiplexed_async_connection().await?;
        let mut replies = listen(&client, REPLIES).await?;
        let open = Arc::<Mutex<Open>>::default();
        let answered = Arc::clone(&open);
        tokio::spawn(async move {
            while let Some(reply) = replies.next().await {
                let reply = reply.get_payload_bytes().to_vec();
                let mut open = answered.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(waiting) = number_of(&reply).and_then(|at| open.waiting.remove(&at)) {
                    // Who has stopped waiting needs no reply.
                    drop(waiting.send(reply));
                }
            }
        });
        Ok(Self { connection, open })
    }

    fn another(&self) -> Self {
        self.clone()
    }

    async fn call(&mut self, payload: &Bytes) -> anyhow::Result<Vec<u8>> {
        let (sender, reply) = oneshot::channel();
        let mut message = payload.to_vec();
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.next += 1;
            let number = open.next;
            message[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
            open.waiting.insert(number, sender);
        }
        self.connection.publish(REQUESTS, message).await?;
        let mut reply = reply.await.context("the connection ended")?;
        // As it was asked for: the number is this client's own.
        reply[..NUMBER_BYTES].copy_from_slice(&payload[..NUMBER_BYTES]);
        Ok(reply)
    }
}
