//! What a thread runs, as another thread reads it when the first is stuck.
//!
//! Plain stores on one side, plain loads on the other: what is read while the writer moves on may
//! be torn, and says so to nobody, as it is read only of a thread that has not moved for seconds.
//! Deliberately absent: everything longer than [`TEXT_BYTES_MAX`].

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of the text that are kept.
pub const TEXT_BYTES_MAX: usize = 8 * WORDS;
const WORDS: usize = 8;

/// A text of bounded length that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Running {
    words: [AtomicU64; WORDS],
    length: AtomicUsize,
    shown: AtomicBool,
}

impl Running {
    /// What the writer runs from the next [`Running::begin`] on is called `text`.
    pub fn name(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
        for (word, chunk) in self.words.iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        self.length.store(bytes.len(), Ordering::Release);
    }

    /// The writer runs what it named last.
    pub fn begin(&self) {
        self.shown.store(true, Ordering::Release);
    }

    /// The writer runs nothing.
    pub fn end(&self) {
        self.shown.store(false, Ordering::Release);
    }

    /// What the writer runs; empty if nothing.
    pub fn text(&self) -> String {
        if !self.shown.load(Ordering::Acquire) {
            return String::new();
        }
        let length = self.length.load(Ordering::Acquire);
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(length).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_written_and_cut_at_its_bound() {
        let running = Running::default();
        assert_eq!(running.text(), "");
        running.name("chat.room/general");
        assert_eq!(running.text(), "");
        running.begin();
        assert_eq!(running.text(), "chat.room/general");
        running.name(&"x".repeat(TEXT_BYTES_MAX + 9));
        assert_eq!(running.text(), "x".repeat(TEXT_BYTES_MAX));
        running.end();
        assert_eq!(running.text(), "");
    }
}
