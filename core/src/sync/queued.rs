//! Whether something is queued for a look: any thread asks for one, one thread looks.
//!
//! Contract:
//! - *Once.* Of those who ask before a look begins one is told to queue it.
//! - *Nothing is missed.* Whatever somebody did before asking is seen by a look that begins after,
//!   also if it was queued by another: that look's exchange reads what the asker wrote. A plain
//!   store would leave the look's own reads free to pass it by (loom-tested below).
//!
//! Deliberately absent: the queue, and how the looking thread is woken.

use super::model::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct Queued(AtomicBool);

impl Queued {
    /// Asks for a look; whether the caller is the one to queue it.
    #[inline]
    #[must_use]
    pub fn ask(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// The look begins: it has been taken from the queue, and whoever asks from now on queues it
    /// again.
    #[inline]
    pub fn begin(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_who_ask_before_a_look_queues_it() {
        let queued = Queued::default();
        assert!(queued.ask());
        assert!(!queued.ask());
        queued.begin();
        assert!(queued.ask());
    }
}

/// Seen to fail with a plain store in [`Queued::begin`], and with a relaxed exchange there or in
/// [`Queued::ask`].
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_done_before_asking_is_seen_by_a_look_that_begins_after() {
        loom::model(|| {
            let queued = Arc::new(Queued::default());
            let told = Arc::new(AtomicBool::new(false));
            assert!(queued.ask(), "another has asked before");
            let (asking, telling) = (Arc::clone(&queued), Arc::clone(&told));
            let thread = loom::thread::spawn(move || {
                telling.store(true, Ordering::Relaxed);
                asking.ask()
            });
            queued.begin();
            let is_seen = told.load(Ordering::Relaxed);
            let is_queued = thread.join().expect("it does not panic");
            assert!(is_seen || is_queued, "told and asked, and no look after it");
        });
    }
}
