//! Signs of life: whether lines still come to a pod, wherever the rooms are that send them.
//!
//! A pod that is probed opens a hub of its own, has rooms send to it the way that lines go, one
//! after another, and closes it. A probe passes if the room heard that the sign came.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use siloring::Streams;
use siloring::prelude::*;

use super::options::Legs;
use super::pod::hear;
use super::protocol::{PROBES, Report};
use super::room::{Line, Probe, Room, RoomRef as _, portal};

/// What a pod probes with.
pub(crate) struct Prober {
    pub(crate) silo: Handle,
    pub(crate) streams: Arc<Streams>,
    pub(crate) legs: Legs,
    /// Of its hub, and of the stream that the hub hears.
    pub(crate) name: String,
}

impl Prober {
    /// Asks each room, over and over until [`PROBES`] were asked.
    pub(crate) async fn probe(&self, rooms: &[String]) -> Report {
        match self.signs_of_life(rooms).await {
            Ok((passed, failed)) => Report::Probed { passed, failed },
            Err(error) => Report::Probed { passed: 0, failed: vec![format!("{error:#}")] },
        }
    }

    async fn signs_of_life(&self, rooms: &[String]) -> anyhow::Result<(u32, Vec<String>)> {
        let hub = self.silo.hub(&portal(&self.name))?.take_over().open().await?;
        let heard = if self.legs.has_streams() {
            Some(hear(&hub, &self.streams, &self.name, &self.name).await?)
        } else {
            None
        };
        let signs = match select(pin!(self.ask(rooms)), pin!(answer(hub))).await {
            Either::Left((signs, _)) => signs,
            Either::Right(((), _)) => anyhow::bail!("the hub was closed while it was probed"),
        };
        if let Some((stream, subscription)) = heard {
            stream.unsubscribe(&subscription).await?;
        }
        Ok(signs)
    }

    /// How many came back, and how the others ended.
    async fn ask(&self, rooms: &[String]) -> (u32, Vec<String>) {
        let (mut passed, mut failed) = (0, Vec::new());
        for room in rooms.iter().cycle().take(PROBES as usize) {
            let probe = Probe {
                name: self.name.clone(),
                by_calls: self.legs.has_calls(),
                by_stream: self.legs.has_streams(),
            };
            match self.silo.grain::<Room>(room.as_str()).probe(probe).await {
                Ok(()) => passed += 1,
                Err(error) => failed.push(format!("{room}: {error}")),
            }
        }
        (passed, failed)
    }
}

/// Takes what comes until it is closed.
async fn answer(mut hub: Hub) {
    while let Some(delivery) = hub.next().await {
        match delivery.access::<Line>().map(drop) {
            Ok(()) => delivery.answer(&()),
            Err(failure) => delivery.refuse(failure),
        }
    }
}
