//! The conversation that comes along: a street plans its party.

use anyhow::Context as _;

use super::script::{Cast, Event, Script};

/// A line is `mm:ss room name: text`.
const TEXT: &str = include_str!("conversation.txt");
/// It was said in fourteen minutes; played this many times faster it takes half of one.
pub(crate) const SPEED_DEFAULT: f64 = 28.0;

/// The conversation and its cast.
pub(crate) fn read() -> anyhow::Result<(Cast, Script)> {
    let mut cast = Cast::default();
    for event in events() {
        cast.add(&event?);
    }
    Ok((cast, Box::new(events())))
}

fn events() -> impl Iterator<Item = anyhow::Result<Event>> {
    TEXT.lines().enumerate().map(|(index, line)| {
        event(line).with_context(|| format!("conversation.txt, line {}: {line:?}", index + 1))
    })
}

fn event(line: &str) -> Option<Event> {
    let (time, rest) = line.split_once(' ')?;
    let (minute, second) = time.split_once(':')?;
    let (room, rest) = rest.split_once(' ')?;
    let (member, text) = rest.split_once(": ")?;
    Some(Event {
        second: minute.parse::<u64>().ok()? * 60 + second.parse::<u64>().ok()?,
        room: room.to_owned(),
        member: member.to_owned(),
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conversation_can_be_read_and_runs_forwards() {
        let (cast, script) = read().unwrap();
        let events: Vec<Event> = script.map(Result::unwrap).collect();
        assert_eq!(cast.events, events.len() as u64);
        assert!(events.is_sorted_by_key(|event| event.second));
        assert!(cast.members.len() > 5, "a chat has more than one voice");
    }
}
