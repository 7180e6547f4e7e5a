//! What a process printed: two streams of lines, bounded, awaited by condition and never by
//! polling.
//!
//! Invariants: a line is handed to one waiter at most, the oldest that fits first; beyond
//! [`LOG_BYTES_MAX`] the oldest lines go and their count is kept; readers end with their stream.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use siloring_core::Moment;

use super::journal::now;

/// Bytes of output kept for one process: enough for every line of a run whose log is readable.
pub const LOG_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Which of a process' outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// The captured output of one process, shared with its two reader threads.
#[derive(Clone, Default)]
pub(super) struct Log {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Guards the captured lines: written by the readers, read by the test's thread.
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<Line>,
    kept_bytes: usize,
    dropped_count: usize,
    open_count: usize,
}

struct Line {
    /// When it was captured.
    at: Moment,
    stream: Stream,
    text: String,
    taken: bool,
}

impl Log {
    /// Reads `source` to its end on a thread of its own.
    pub(super) fn read(&self, stream: Stream, source: impl Read + Send + 'static) {
        self.lines().open_count += 1;
        let log = self.clone();
        let reader = thread::Builder::new().name("process log".to_owned());
        reader.spawn(move || log.read_to_end(stream, source)).expect("a thread can be started");
    }

    fn read_to_end(&self, stream: Stream, source: impl Read) {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        while source.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned();
            self.lines().push(Line { at: now(), stream, text, taken: false });
            self.shared.changed.notify_all();
            bytes.clear();
        }
        self.lines().open_count -= 1;
        self.shared.changed.notify_all();
    }

    /// The next line of `stream` that `wanted` accepts, unless the deadline passes or both streams
    /// end.
    pub(super) fn wait(
        &self,
        stream: Stream,
        deadline: Instant,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let mut lines = self.lines();
        loop {
            if let Some(text) = lines.take(stream, &wanted) {
                return Some(text);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            if lines.open_count == 0 {
                return None;
            }
            lines = self.shared.changed.wait_timeout(lines, left).expect("no reader panics").0;
        }
    }

    /// Waits until both streams ended, or the deadline.
    pub(super) fn settle(&self, deadline: Instant) {
        let mut lines = self.lines();
        while lines.open_count > 0 {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return;
            };
            lines = self.shared.changed.wait_timeout(lines, left).expect("no reader panics").0;
        }
    }

    pub(super) fn count(&self, stream: Stream, part: &str) -> usize {
        let lines = self.lines();
        lines.kept.iter().filter(|line| line.stream == stream && line.text.contains(part)).count()
    }

    pub(super) fn times(&self, stream: Stream, part: &str) -> Vec<(Moment, String)> {
        let lines = self.lines();
        let kept = lines.kept.iter();
        let wanted = kept.filter(|line| line.stream == stream && line.text.contains(part));
        wanted.map(|line| (line.at, line.text.clone())).collect()
    }

    pub(super) fn text(&self) -> String {
        let lines = self.lines();
        let mut text = String::new();
        if lines.dropped_count > 0 {
            writeln!(text, "({} older lines dropped)", lines.dropped_count).expect("into a string");
        }
        for line in &lines.kept {
            let mark = match line.stream {
                Stream::Output => "out",
                Stream::Error => "err",
            };
            writeln!(text, "{mark}| {}", line.text).expect("into a string");
        }
        text
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.shared.lines.lock().expect("no reader panics")
    }
}

impl Lines {
    fn push(&mut self, line: Line) {
        self.kept_bytes += line.text.len();
        self.kept.push_back(line);
        while self.kept_bytes > LOG_BYTES_MAX && self.kept.len() > 1 {
            let oldest = self.kept.pop_front().expect("more than one line");
            self.kept_bytes -= oldest.text.len();
            self.dropped_count += 1;
        }
    }

    /// Takes the first line of `stream` that is accepted and was not taken before.
    fn take(&mut self, stream: Stream, wanted: impl Fn(&str) -> bool) -> Option<String> {
        for line in self.kept.iter_mut().filter(|line| line.stream == stream && !line.taken) {
            if wanted(&line.text) {
                line.taken = true;
                return Some(line.text.clone());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_beyond_its_bound_keeps_the_newest_lines_and_says_so() {
        let mut lines = Lines::default();
        for number in 0..10 {
            let text = format!("{number}").repeat(LOG_BYTES_MAX / 4);
            lines.push(Line { at: now(), stream: Stream::Output, text, taken: false });
        }
        assert_eq!((lines.kept.len(), lines.dropped_count), (4, 6));
        assert!(lines.kept_bytes <= LOG_BYTES_MAX);
        assert!(lines.kept.back().is_some_and(|line| line.text.starts_with('9')));
    }

    #[test]
    fn bytes_that_are_no_text_do_not_end_the_log() {
        let log = Log::default();
        log.read(Stream::Error, &b"\xff\xfe\nafter"[..]);
        log.settle(Instant::now() + std::time::Duration::from_secs(10));
        assert_eq!(log.count(Stream::Error, "after"), 1);
    }
}
