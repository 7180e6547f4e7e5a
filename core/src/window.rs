//! Lines of a log that would repeat: one for each key and window, with how many were left out.
//!
//! Contract: [`LogWindow::admit`] counts an occurrence and says whether a line is due. The log is
//! windowed, what is counted or answered never. Bound: [`LOG_WINDOW_KEYS_MAX`] keys; beyond it the
//! one logged longest ago is forgotten, with the count of what it left out.

use std::collections::BTreeMap;

use crate::limits::{LOG_WINDOW, LOG_WINDOW_KEYS_MAX};
use crate::time::Moment;

/// When each key was last logged, and how often it has occurred since.
#[derive(Debug)]
pub struct LogWindow<K> {
    keys: BTreeMap<K, (Moment, u64)>,
}

impl<K> Default for LogWindow<K> {
    fn default() -> Self {
        Self { keys: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> LogWindow<K> {
    /// Counts an occurrence; `Some` if a line is due, with how many occurrences had none before it.
    pub fn admit(&mut self, now: Moment, key: &K) -> Option<u64> {
        if let Some((logged, suppressed_count)) = self.keys.get_mut(key) {
            if now.since(*logged) < LOG_WINDOW {
                *suppressed_count += 1;
                return None;
            }
            *logged = now;
            return Some(core::mem::take(suppressed_count));
        }
        if self.keys.len() >= LOG_WINDOW_KEYS_MAX {
            let oldest = self.keys.iter().min_by_key(|(_, (logged, _))| *logged);
            let oldest = oldest.map(|(key, _)| key.clone());
            if let Some(key) = oldest {
                self.keys.remove(&key);
            }
        }
        self.keys.insert(key.clone(), (now, 0));
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_key_has_one_line_a_window_that_counts_those_left_out() {
        let mut window = LogWindow::default();
        let now = Moment::ZERO;
        assert_eq!(window.admit(now, &"a"), Some(0));
        assert_eq!(window.admit(now + LOG_WINDOW / 2, &"a"), None);
        assert_eq!(window.admit(now + LOG_WINDOW / 2, &"b"), Some(0), "another key");
        assert_eq!(window.admit(now + LOG_WINDOW, &"a"), Some(1));
        assert_eq!(window.admit(now + LOG_WINDOW, &"a"), None);
    }

    #[test]
    fn the_key_logged_longest_ago_makes_room() {
        let mut window = LogWindow::default();
        for key in 0..=LOG_WINDOW_KEYS_MAX {
            let now = Moment::ZERO + Duration::from_millis(key as u64);
            assert_eq!(window.admit(now, &key), Some(0));
        }
        let now = Moment::ZERO + LOG_WINDOW / 2;
        assert_eq!(window.admit(now, &LOG_WINDOW_KEYS_MAX), None);
        assert_eq!(window.admit(now, &0), Some(0), "forgotten, so logged anew");
    }
}
