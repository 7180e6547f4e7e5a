#![allow(unused_variables, reason = "only the signatures matter here")]

use siloring::prelude::*;

#[message(type = "chat.line")]
struct Line {
    from: String,
}

struct Unmarked;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

#[grain_methods]
impl Room {
    #[on_event]
    async fn on_nothing(&mut self, ctx: &Ctx) {}

    #[on_event]
    async fn on_two(&mut self, line: Line, more: Line) {}

    #[on_event]
    async fn on_value(&mut self, line: Line) -> u64 {
        7
    }

    #[on_event]
    async fn on_number(&mut self, line: Line) -> Result<u64, String> {
        Ok(7)
    }

    #[on_event(durable)]
    async fn on_settings(&mut self, line: Line) {}

    #[on_event]
    #[method(id = "say")]
    async fn on_line(&mut self, line: Line) {}

    #[method(id = "say")]
    async fn post(&mut self) {}
}

#[derive(Grain, Default)]
#[grain(type = "chat.hall")]
struct Hall;

#[grain_methods]
impl Hall {
    #[on_event]
    async fn on_error(&mut self, line: Line) -> Result<(), Unmarked> {
        Ok(())
    }

    #[on_event]
    async fn on_unmarked(&mut self, count: u64) {}
}

#[derive(Grain, Default)]
#[grain(type = "chat.lobby")]
struct Lobby;

#[grain_methods]
impl Lobby {
    #[on_event]
    async fn on_line(&mut self, line: Line) {}
}

fn call(lobby: GrainRef<Lobby>) {
    lobby.on_line(Line { from: String::new() });
}

fn main() {}
