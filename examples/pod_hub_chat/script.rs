//! What is said, by whom, where and when.

use std::collections::{BTreeMap, BTreeSet};

/// One thing said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Seconds from the start, as it was said.
    pub(crate) second: u64,
    pub(crate) room: String,
    pub(crate) member: String,
    pub(crate) text: String,
}

/// Everything said, in order; an error ends the play.
pub(crate) type Script = Box<dyn Iterator<Item = anyhow::Result<Event>>>;

/// Who plays, known before the play begins.
#[derive(Debug, Default)]
pub(crate) struct Cast {
    /// How many things are said.
    pub(crate) events: u64,
    /// The rooms of each member.
    pub(crate) members: BTreeMap<String, BTreeSet<String>>,
}

impl Cast {
    /// A member's place in the cast, and its rooms.
    pub(crate) fn place_and_rooms(&self, member: &str) -> (u32, Vec<String>) {
        let found = (0..).zip(&self.members).find(|(_, (name, _))| *name == member);
        let (place, (_, rooms)) = found.expect("only the cast has members");
        (place, rooms.iter().cloned().collect())
    }

    /// Takes one event into account.
    pub(crate) fn add(&mut self, event: &Event) {
        self.events += 1;
        match self.members.get_mut(&event.member) {
            Some(rooms) if rooms.contains(&event.room) => {}
            Some(rooms) => {
                rooms.insert(event.room.clone());
            }
            None => {
                self.members.insert(event.member.clone(), BTreeSet::from([event.room.clone()]));
            }
        }
    }
}
