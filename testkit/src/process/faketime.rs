//! A wall clock that a test moves, for programs that read theirs through the C library.
//!
//! Needs `libfaketime` from the distribution. What a program reads of monotonic clocks is left
//! alone. A silo's own clock is read without the C library and cannot be moved so; its log's is.

use std::io;
use std::path::{Path, PathBuf};

use super::Program;

/// Where distributions put it, one folder an architecture.
const LIBRARIES: &str = "/usr/lib";

/// The wall clock of some programs, as far ahead of the machine's as its file says.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    folder: tempfile::TempDir,
}

impl WallClock {
    /// A clock that shows the machine's time; `None` if `libfaketime` is not installed.
    pub fn find() -> Option<Self> {
        let folders = std::fs::read_dir(LIBRARIES).ok()?.filter_map(Result::ok);
        let library = |folder: PathBuf| folder.join("faketime/libfaketime.so.1");
        let library = folders.map(|entry| library(entry.path())).find(|path| path.is_file())?;
        let clock = Self { library, folder: tempfile::tempdir().ok()? };
        clock.jump_to(0).ok()?;
        Some(clock)
    }

    /// What a program's environment needs to read it.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// The program with this clock.
    pub fn worn_by(&self, program: Program) -> Program {
        let environment = self.environment().into_iter();
        environment.fold(program, |program, (name, value)| program.environment(name, value))
    }

    /// Shows so many seconds more than the machine's, or fewer, from now on.
    pub fn jump_to(&self, ahead_s: i64) -> io::Result<()> {
        // Replaced as a whole: a program may be reading it.
        let next = self.folder.path().join("next");
        std::fs::write(&next, format!("{ahead_s:+}\n"))?;
        std::fs::rename(next, self.file())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ahead")
    }

    /// Lets a server of another user read it.
    pub fn open_to_all(&self) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        };
        open(self.folder.path(), 0o755)
    }
}

#[cfg(test)]
mod tests {
    use super::super::skip;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_program_reads_what_the_test_says() {
        let Some(clock) = WallClock::find() else {
            return skip("a_program_reads_what_the_test_says", "libfaketime is not installed");
        };
        clock.jump_to(10 * 365 * 86_400).unwrap();
        let year = || {
            let program = Program::new("date", "date").argument("+%Y");
            let process = clock.worn_by(program).start().unwrap();
            let line = process.wait_for_line(Duration::from_secs(10), |_| true).unwrap();
            line.parse::<u32>().unwrap()
        };
        let later = year();
        clock.jump_to(0).unwrap();
        assert!((9..=11).contains(&(later - year())), "{later}");
    }
}
