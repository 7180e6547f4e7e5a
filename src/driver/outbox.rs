//! Mail on its way to another thread, kept here while that thread's mailbox is full.
//!
//! What is kept is bounded by what can be open: its sender takes no new input while any is. A
//! mailbox that is closed belongs to a thread that has ended; what is sent there is dropped, and
//! whoever waits for it hears so from its `Drop`.

use std::collections::VecDeque;

use siloring_core::sync::mailbox::{SendError, Sender};

/// Mail for one thread.
pub(crate) struct Outbox<T> {
    sender: Sender<T>,
    kept: VecDeque<T>,
}

impl<T: Send> Outbox<T> {
    /// An empty one.
    pub(crate) const fn new(sender: Sender<T>) -> Self {
        Self { sender, kept: VecDeque::new() }
    }

    /// Passes on, in order. A closed mailbox belongs to a thread that has ended: nobody waits
    /// there.
    pub(crate) fn send(&mut self, value: T) {
        if !self.kept.is_empty() {
            self.kept.push_back(value);
            return;
        }
        match self.sender.send(value) {
            Ok(()) => {}
            Err(SendError::Full(value)) => self.kept.push_back(value),
            Err(SendError::Closed(value)) => drop(value),
        }
    }

    /// Passes on what was kept, as far as there is room.
    pub(crate) fn retry(&mut self) {
        while let Some(value) = self.kept.pop_front() {
            match self.sender.send(value) {
                Ok(()) => {}
                Err(SendError::Full(value)) => return self.kept.push_front(value),
                Err(SendError::Closed(value)) => drop(value),
            }
        }
    }

    /// How much is kept.
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use siloring_core::sync::mailbox::{Wake, mailbox};

    use super::*;

    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self) {}
    }

    #[test]
    fn mail_that_found_no_room_goes_first_and_in_order() {
        let (sender, mut receiver) = mailbox(2, Arc::new(Nobody));
        let mut outbox = Outbox::new(sender);
        for value in 0..5 {
            outbox.send(value);
        }
        assert_eq!(outbox.len(), 3);
        let mut got = Vec::new();
        while let Some(value) = receiver.receive() {
            got.push(value);
            outbox.retry();
        }
        assert_eq!((got, outbox.len()), (vec![0, 1, 2, 3, 4], 0));
    }
}
