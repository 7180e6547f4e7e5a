//! Messages and methods that changed, and what they were.

#![deny(warnings, missing_docs, missing_debug_implementations, clippy::pedantic)]

use siloring::grain::Grain as _;
use siloring::prelude::*;
use siloring::schema::Message as _;
use siloring::versions::{FromVersion, Unconvertible};

/// A line, at first.
#[message(type = "chat.line")]
#[derive(Debug, PartialEq)]
pub struct LineV1 {
    /// What.
    pub text: String,
}

/// A line, then.
#[message(type = "chat.line", version = 2)]
#[derive(Debug, PartialEq)]
pub struct LineV2 {
    /// What.
    pub text: String,
    /// How.
    pub loud: bool,
}

/// A line.
#[message(type = "chat.line", version = 3, was(LineV2), reads(LineV1))]
#[derive(Debug, PartialEq)]
pub struct Line {
    /// How.
    pub loudness: u8,
    /// What.
    pub text: String,
}

impl From<LineV1> for Line {
    fn from(old: LineV1) -> Self {
        Self { loudness: 0, text: old.text }
    }
}

impl From<LineV2> for Line {
    fn from(old: LineV2) -> Self {
        Self { loudness: u8::from(old.loud), text: old.text }
    }
}

impl TryFrom<Line> for LineV2 {
    type Error = String;

    fn try_from(new: Line) -> Result<Self, String> {
        match new.loudness {
            0 | 1 => Ok(Self { text: new.text, loud: new.loudness == 1 }),
            louder => Err(format!("nobody was {louder} loud then")),
        }
    }
}

/// A room.
#[derive(Grain, Default, Debug)]
#[grain(type = "chat.room")]
pub struct Room;

#[grain_methods]
impl Room {
    /// Posts lines: a parameter changed, one is new, one is gone, the reply is wider.
    #[method(version = 3)]
    #[was(1, fn(lines: Vec<LineV2>, urgent: bool) -> u32)]
    #[was(2, fn(lines: Vec<Line>) -> u32)]
    pub async fn post(&mut self, lines: Vec<Line>, topic: Option<String>) -> u64 {
        drop(topic);
        lines.len() as u64
    }

    /// Is of another version without having been anything that is still understood.
    #[method(id = "shut", version = 2)]
    pub async fn close(&mut self) {}

    /// Takes events of all versions.
    #[on_event]
    pub async fn on_line(&mut self, line: &Archived<Line>) {
        let _ = line.loudness;
    }
}

#[test]
fn what_was_is_understood_and_the_new_version_is_known() {
    assert_eq!(Line::OLDER.len(), 2);
    let quiet = LineV2 { text: "a".into(), loud: false };
    assert_eq!(Line::from_version(quiet), Ok(Line { loudness: 0, text: "a".into() }));
    let louder = LineV2::from_version(Line { loudness: 3, text: "a".into() });
    assert_eq!(louder, Err(Unconvertible::Refused("nobody was 3 loud then".into())));
    let post = Room::METHODS[0];
    assert_eq!((post.arguments.version, post.reply.version), (3, 3));
    assert_eq!(Room::METHODS[1].arguments.version, 2);
    assert_eq!(Room::METHODS[2].arguments, Line::SCHEMA);
}
