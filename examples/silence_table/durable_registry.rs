//! Model: the list of subscribers is a table of a durable store.
//!
//! The kind of system: virtual actors whose stream registry is kept by a durable grain storage. Its
//! documented rule: subscriptions survive all silos, and last until they are removed. So a roll
//! loses nothing; and a process that was killed stays subscribed, since it cannot say that it went.

use super::books::{Books, Counts};
use super::queued::{QueuedStream, Subscribed, SubscriberList};
use super::scenario::{Moment, Trouble};

/// The list's one row: whichever silo serves the list reads it from the store.
pub(crate) struct Row(Subscribed);

impl Row {
    /// Written when the hub subscribed.
    pub(crate) const fn written() -> Self {
        Self(Subscribed::Yes)
    }
}

impl SubscriberList for Row {
    fn read(&self) -> Subscribed {
        self.0
    }

    fn unsubscribe(&mut self) {
        self.0 = Subscribed::No;
    }
}

/// What becomes of the replies.
pub(crate) fn run(trouble: Trouble) -> Counts {
    let mut row = Row::written();
    let (mut stream, mut books) = (QueuedStream::default(), Books::default());
    for moment in Moment::all(trouble) {
        if let Some(number) = moment.reply() {
            books.sent();
            stream.publish(number);
        }
        stream.step(moment, &mut row, &mut books);
    }
    books.counts()
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{REPLIES, TROUBLE_AT_REPLY};
    use super::*;

    #[test]
    fn rows_survive_the_silo_that_serves_them() {
        for trouble in [Trouble::Roll, Trouble::KillList] {
            assert_eq!(run(trouble).handled, REPLIES, "{trouble:?}");
        }
    }

    #[test]
    fn a_killed_process_stays_subscribed_and_every_reply_to_it_is_silent() {
        let counts = run(Trouble::KillHub);
        assert_eq!(counts.handled, TROUBLE_AT_REPLY);
        assert_eq!((counts.silent, counts.told), (REPLIES - TROUBLE_AT_REPLY, 0));
    }
}
