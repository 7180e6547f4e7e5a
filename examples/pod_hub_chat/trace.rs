//! The traffic of a real chat: a CSV file of second, room, sender and bytes, read as a stream.
//!
//! The texts are gone, so each is made anew in its length.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::script::{Cast, Event, Script};

const HEADER: &str = "second,room,sender,bytes";
/// Longest text; a longer one in the file is a mistake in the file.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// What texts are made of.
const WORDS: &str = "it was said, it was heard, and then it was said again ";

/// The traffic and its cast. The file is read twice: once for the cast, once to play.
pub(crate) fn read(path: &Path) -> anyhow::Result<(Cast, Script)> {
    let mut cast = Cast::default();
    for event in events(path)? {
        cast.add(&event?);
    }
    Ok((cast, Box::new(events(path)?)))
}

fn events(path: &Path) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Event>> + use<>> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut lines = BufReader::new(file).lines();
    let header = lines.next().transpose()?.unwrap_or_default();
    if header.trim_end() != HEADER {
        bail!("{} is no trace: its first line must be {HEADER:?}", path.display());
    }
    let path: PathBuf = path.to_owned();
    Ok(lines.enumerate().map(move |(index, line)| {
        let line = line?;
        event(&line).with_context(|| format!("{}, line {}: {line:?}", path.display(), index + 2))
    }))
}

fn event(line: &str) -> anyhow::Result<Event> {
    let fields: Vec<&str> = line.trim_end().split(',').collect();
    let [second, room, member, bytes] = fields[..] else {
        bail!("{} fields instead of {HEADER:?}", fields.len());
    };
    let bytes: usize = bytes.parse().context("bytes is no number")?;
    if bytes > TEXT_BYTES_MAX {
        bail!("a text of {bytes} bytes is longer than {TEXT_BYTES_MAX}");
    }
    Ok(Event {
        second: second.parse().context("second is no number")?,
        room: room.to_owned(),
        member: member.to_owned(),
        text: WORDS.chars().cycle().take(bytes).collect(),
    })
}
