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

/// Whose handler ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who(u32);

impl Who {
    /// A room: each post goes to one, so it needs no name.
    pub(crate) const ROOM: Self = Self(0);

    /// The hub of a member, by its place in the cast.
    pub(crate) fn member(place: u32) -> Self {
        assert!(place < (1 << WHO_BITS) - 1, "the cast fits into the bits of a run");
        Self(place + 1)
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
        journal.ran(Who::member(88), 35_525);
        File::options().append(true).open(&path).unwrap().write_all(b"torn").unwrap();
        let mut runs = Vec::new();
        read(&path, |who, number| runs.push((who, number))).unwrap();
        assert_eq!(runs, [(Who::ROOM, 2), (Who::member(88), 35_525)]);
    }
}
