//! What handlers ran: a file a pod, eight bytes a run, written before the handler answers.
//!
//! A `kill -9` takes everything a process remembers but not what it gave to the kernel, so the last
//! run before a kill is known too. That is where a message would be doubled if it ever were.

use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::path::Path;
use std::sync::OnceLock;

/// Bits of who handled it; the rest is the message's number.
const WHO_BITS: u32 = 24;
/// Of those, the lowest: which attempt it was, from 1 to what fits.
const ATTEMPT_BITS: u32 = 4;
const ATTEMPT_MASK: u32 = (1 << ATTEMPT_BITS) - 1;
/// Above them: whether it came over a stream.
const STREAM_BIT: u32 = 1 << ATTEMPT_BITS;
/// Above that: one more than the member's place, since a room has none.
const PLACE_SHIFT: u32 = ATTEMPT_BITS + 1;

/// Whose handler ran, for what came over which leg at which attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who(u32);

/// How a message came to its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Call,
    /// At this attempt: an event comes again when its first handling may be lost.
    Stream {
        attempt: u8,
    },
}

impl Who {
    /// A room: each post goes to one, so it needs no name.
    pub(crate) const ROOM: Self = Self(0);

    /// The hub of a member, by its place in the cast.
    pub(crate) fn member(place: u32, over: Over) -> Self {
        let fits = place + 1 < 1 << (WHO_BITS - PLACE_SHIFT);
        assert!(fits, "the cast fits into the bits of a run");
        let over = match over {
            Over::Call => 1,
            Over::Stream { attempt } => STREAM_BIT | u32::from(attempt).clamp(1, ATTEMPT_MASK),
        };
        Self((place + 1) << PLACE_SHIFT | over)
    }

    /// The same, whichever attempt.
    pub(crate) const fn of_any_attempt(self) -> Self {
        Self(self.0 & !ATTEMPT_MASK)
    }

    /// Whether it is a room.
    pub(crate) const fn is_room(self) -> bool {
        self.0 == Self::ROOM.0
    }

    /// Whether it came over a stream.
    pub(crate) const fn is_over_stream(self) -> bool {
        self.0 & STREAM_BIT != 0
    }
}

/// The process's journal.
#[derive(Debug, Default)]
pub(crate) struct Journal(OnceLock<File>);

impl Journal {
    /// Without a file: nobody asks for what ran.
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Begins to write to `path`.
    pub(crate) fn begin(&self, path: &Path) -> io::Result<()> {
        let file = File::options().append(true).create_new(true).open(path)?;
        self.0.set(file).expect("a process has one journal");
        Ok(())
    }

    /// A handler runs. The write ends in the kernel's memory: it takes a microsecond, no disk.
    pub(crate) fn ran(&self, who: Who, number: u64) {
        let Some(mut file) = self.0.get() else { return };
        let run = (number << WHO_BITS) | u64::from(who.0);
        file.write_all(&run.to_le_bytes()).expect("the temporary folder takes the journal");
    }
}

/// Reads what ran, run by run. A run that the process did not finish writing is not there.
pub(crate) fn read(path: &Path, mut each: impl FnMut(Who, u64)) -> io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    let mut run = [0; 8];
    loop {
        match file.read_exact(&mut run) {
            Ok(()) => {
                let run = u64::from_le_bytes(run);
                let who = u32::try_from(run & ((1 << WHO_BITS) - 1)).expect("24 bits");
                each(Who(who), run >> WHO_BITS);
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_is_read_back_up_to_a_torn_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.ran");
        let journal = Journal::new();
        journal.ran(Who::ROOM, 1);
        journal.begin(&path).unwrap();
        journal.ran(Who::ROOM, 2);
        let who = Who::member(88, Over::Stream { attempt: 2 });
        journal.ran(who, 35_525);
        File::options().append(true).open(&path).unwrap().write_all(b"torn").unwrap();
        let mut runs = Vec::new();
        read(&path, |who, number| runs.push((who, number))).unwrap();
        assert_eq!(runs, [(Who::ROOM, 2), (who, 35_525)]);
    }

    #[test]
    fn a_run_tells_who_over_which_leg_at_which_attempt() {
        let first = Who::member(0, Over::Stream { attempt: 1 });
        let again = Who::member(0, Over::Stream { attempt: 2 });
        let called = Who::member(0, Over::Call);
        assert!(first != again && first.of_any_attempt() == again.of_any_attempt());
        assert!(first.is_over_stream() && !called.is_over_stream() && !called.is_room());
        assert!(called.of_any_attempt() != first.of_any_attempt());
        assert!(called.of_any_attempt() != Who::ROOM && Who::ROOM.of_any_attempt() == Who::ROOM);
        assert!(Who::ROOM.is_room() && !Who::ROOM.is_over_stream());
        let far = Who::member(0, Over::Stream { attempt: 200 });
        assert_eq!(far.of_any_attempt(), first.of_any_attempt(), "attempts do not overflow");
    }
}
