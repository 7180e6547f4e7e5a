//! tonic: a unary call over one HTTP/2 connection, with its generated code.
//!
//! Its server allows 200 calls at once unless told otherwise, which would queue most of 1024.

use anyhow::Context;
use bytes::Bytes;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::names::{Names, names};
use crate::peer::ready;
use crate::remote::Remote;

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    unreachable_pub,
    unused_qualifications,
    reason = "it is generated"
)]
mod proto {
    tonic::include_proto!("siloring.peers");
}

use self::proto::Payload;
use self::proto::echo_client::EchoClient;
use self::proto::echo_server::{Echo, EchoServer};

/// Calls that one connection may have under way.
const STREAMS_MAX: u32 = 4096;

/// A client; its clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Tonic {
    client: EchoClient<Channel>,
}

struct Service;

#[tonic::async_trait]
impl Echo for Service {
    async fn call(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

impl Remote for Tonic {
    const NAMES: Names = names!("tonic unary");
    type Reply = Bytes;

    async fn serve(_broker: &str) -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        ready(&listener.local_addr()?.to_string())?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let mut server = Server::builder().max_concurrent_streams(STREAMS_MAX);
        let calls = server.add_service(EchoServer::new(Service));
        calls.serve_with_incoming(incoming).await.context("the server ended")
    }

    async fn connect(place: &str) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{place}"))?.connect().await?;
        Ok(Self { client: EchoClient::new(channel) })
    }

    fn another(&self) -> Self {
        self.clone()
    }

    async fn call(&mut self, payload: &Bytes) -> anyhow::Result<Bytes> {
        let reply = self.client.call(Payload { bytes: payload.clone() }).await?;
        Ok(reply.into_inner().bytes)
    }
}
