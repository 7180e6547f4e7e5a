//! Everything the macros accept, in one grain.

#![deny(warnings, missing_docs, missing_debug_implementations, clippy::pedantic)]

use siloring::prelude::*;

/// Why a line was refused.
#[message(type = "chat.room_error")]
#[derive(Debug, PartialEq)]
pub enum RoomError {
    /// Nobody has that name.
    NotAMember(String),
    /// Too many of something.
    TooMany(u32, String),
    /// Closed for good.
    Closed,
}

/// One line.
#[message(type = "chat.line", version = 2)]
#[derive(Debug, Clone)]
pub struct Line {
    /// Who.
    pub from: String,
    /// What.
    pub text: String,
    /// A name that needs quoting.
    pub r#type: Option<[u8; 4]>,
}

/// A room.
#[derive(Grain, Default, Debug)]
#[grain(
    type = "chat.room",
    key = u64,
    placement = "hash",
    reentrant,
    idle_after_s = 60
)]
pub struct Room {
    members: Vec<String>,
}

#[grain_methods]
impl Room {
    async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        let _ = ctx;
        Ok(())
    }

    async fn on_deactivate(&mut self) {
        self.members.clear();
    }

    /// Adds a member.
    pub async fn join(&mut self, name: String) -> u64 {
        self.members.push(name);
        self.members.len() as u64
    }

    /// Says how many there are.
    pub async fn count(&self) -> u64 {
        self.members.len() as u64
    }

    /// Posts a line.
    ///
    /// # Errors
    /// Who is not a member may not.
    pub async fn post(
        &mut self,
        ctx: &Ctx,
        line: &Archived<Line>,
        mut times: u32,
    ) -> Result<u64, RoomError> {
        let _ = ctx;
        times += 1;
        if self.members.iter().any(|member| line.from == member.as_str()) {
            Ok(u64::from(times))
        } else {
            Err(RoomError::NotAMember(line.from.to_string()))
        }
    }

    /// Parameters may be called like anything in the expansion.
    pub async fn r#move(&mut self, turn: String, state: u8, arguments: (u8, u8), reply: bool) {
        drop((turn, state, arguments, reply));
    }

    /// Takes events in place.
    ///
    /// # Errors
    /// If the text is no number.
    #[on_event]
    pub async fn on_line(
        &mut self,
        ctx: &Ctx,
        line: &Archived<Line>,
    ) -> Result<(), std::num::ParseIntError> {
        let _ = ctx.event().map(|event| event.number);
        self.members.push(line.from.to_string());
        line.text.as_str().parse().map(|_: u64| ())
    }

    /// Takes events by value.
    #[on_event]
    #[method(id = "old_line")]
    async fn on_owned(&self, line: Line, ctx: &Ctx) {
        drop((line, ctx.event()));
    }

    /// Renamed, with the old id.
    #[method(id = "shut")]
    pub async fn close(&mut self) {}
}

/// A room without methods, hooks or settings.
#[derive(Grain, Default, Debug)]
#[grain(type = "chat.empty")]
struct Empty;

#[grain_methods]
impl Empty {}

/// Calls compile.
pub fn calls(room: &GrainRef<Room>, line: Line) -> (Call<u64>, Call<u64, RoomError>) {
    let _moved: Call<()> = room.r#move(String::new(), 1, (2, 3), true);
    (room.join("ada".into()), room.post(line, 1))
}

#[test]
fn all_that_is_documented_becomes_methods() {
    assert_eq!(<Room as siloring::grain::Grain>::METHODS.len(), 7);
    let line: siloring::grain::EventMethod<Room, Line> = Room::ON_LINE;
    assert_eq!(line.id, siloring::MethodId::of("on_line"));
    assert_eq!(Room::ON_OWNED.id, siloring::MethodId::of("old_line"));
    assert!(<Empty as siloring::grain::Grain>::METHODS.is_empty());
}
