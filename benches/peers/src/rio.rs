//! rio-rs: a request to a service object.
//!
//! Members and placements are held in memory, which spares it its database. A client asks one
//! thing at a time over its connection, so that many in flight are as many clients.

use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use rio_rs::client::Client;
use rio_rs::cluster::storage::Member;
use rio_rs::cluster::storage::local::LocalStorage;
use rio_rs::object_placement::local::LocalObjectPlacement;
use rio_rs::prelude::*;
use serde::{Deserialize, Serialize};

use crate::names::{Names, names};
use crate::peer::ready;
use crate::remote::Remote;

#[derive(TypeName, WithId, Default)]
struct Echo {
    id: String,
}

#[derive(TypeName, Message, Serialize, Deserialize)]
struct Payload {
    bytes: Bytes,
}

#[async_trait]
impl Handler<Payload> for Echo {
    type Returns = Payload;
    type Error = NoopError;

    async fn handle(&mut self, message: Payload, _: Arc<AppData>) -> Result<Payload, NoopError> {
        Ok(message)
    }
}

/// A client with a connection of its own.
pub(crate) struct Rio {
    members: LocalStorage,
    client: Client<LocalStorage>,
}

impl Rio {
    fn of(members: LocalStorage) -> Self {
        Self { client: Client::new(members.clone()), members }
    }
}

impl Remote for Rio {
    const NAMES: Names = names!("rio-rs");
    type Reply = Bytes;

    async fn serve(_broker: &str) -> anyhow::Result<()> {
        let mut registry = Registry::new();
        registry.add_type::<Echo>();
        registry.add_handler::<Echo, Payload>();
        let members = LocalStorage::default();
        let mut server = Server::builder()
            .address("127.0.0.1:0".to_owned())
            .registry(registry)
            .cluster_provider(PeerToPeerClusterProvider::builder().members_storage(members).build())
            .object_placement_provider(LocalObjectPlacement::default())
            .build();
        server.prepare().await?;
        let listener = server.bind().await?;
        ready(&listener.local_addr()?.to_string())?;
        server.run(listener).await.context("the server ended")
    }

    async fn connect(place: &str) -> anyhow::Result<Self> {
        let (host, port) = place.split_once(':').context("a place has a port")?;
        let mut far = Member::new(host.to_owned(), port.to_owned());
        far.set_active(true);
        let members = LocalStorage::default();
        members.push(far).await?;
        Ok(Self::of(members))
    }

    fn another(&self) -> Self {
        Self::of(self.members.clone())
    }

    async fn call(&mut self, payload: &Bytes) -> anyhow::Result<Bytes> {
        let payload = Payload { bytes: payload.clone() };
        let reply: Payload = self.client.send::<_, NoopError>("Echo", "1", &payload).await?;
        Ok(reply.bytes)
    }
}
