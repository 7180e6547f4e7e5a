#![allow(unused_variables, reason = "only the signatures matter here")]

use siloring::prelude::*;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

#[grain_methods]
impl Room {
    async fn on_activate(&mut self) {}

    async fn on_deactivate(&self, reason: String) {}
}

#[derive(Grain, Default)]
#[grain(type = "chat.hall")]
struct Hall;

#[grain_methods]
impl Hall {
    async fn on_activate(&mut self) -> Result<(), u32> {
        Ok(())
    }

    async fn on_deactivate(&mut self) -> bool {
        true
    }
}

#[derive(Grain, Default)]
#[grain(type = "chat.lobby")]
struct Lobby;

#[grain_methods]
impl Lobby {
    async fn on_activate(&mut self) -> Result<(), u32> {
        Ok(())
    }
}

fn main() {}
