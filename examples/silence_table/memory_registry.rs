//! Model: the list of subscribers lives in the memory of a silo.
//!
//! The kind of system: virtual actors whose stream registry is kept by the in-memory grain storage.
//! Its documented rule: what that storage holds is lost with the silo that holds it; whoever
//! subscribed has to do so again. A subscriber is not told, its handle stays valid, and a process
//! whose own connection never broke has no reason to subscribe again.

use super::books::{Books, Counts};
use super::queued::{QueuedStream, Subscribed, SubscriberList};
use super::scenario::{Moment, Trouble};

/// The list, gone when its silo goes. Its successor begins empty.
struct InMemory(Subscribed);

impl SubscriberList for InMemory {
    fn read(&self) -> Subscribed {
        self.0
    }

    fn unsubscribe(&mut self) {
        self.0 = Subscribed::No;
    }
}

/// What becomes of the replies.
pub(crate) fn run(trouble: Trouble) -> Counts {
    let mut list = InMemory(Subscribed::Yes);
    let (mut stream, mut books) = (QueuedStream::default(), Books::default());
    for moment in Moment::all(trouble) {
        if moment.list_is_lost() {
            list.0 = Subscribed::No;
        }
        if let Some(number) = moment.reply() {
            books.sent();
            stream.publish(number);
        }
        stream.step(moment, &mut list, &mut books);
    }
    books.counts()
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{REPLIES, TROUBLE_AT_REPLY};
    use super::*;

    #[test]
    fn every_reply_after_the_list_is_lost_is_silent() {
        for trouble in [Trouble::Roll, Trouble::KillList] {
            let counts = run(trouble);
            assert_eq!(counts.handled, TROUBLE_AT_REPLY, "until then all is well");
            assert_eq!(counts.silent, REPLIES - TROUBLE_AT_REPLY, "{trouble:?}");
            assert_eq!((counts.told, counts.wrongly_refused), (0, 0), "every signal is green");
        }
    }

    #[test]
    fn every_reply_to_a_killed_process_is_silent() {
        assert_eq!(run(Trouble::KillHub).silent, REPLIES - TROUBLE_AT_REPLY);
    }
}
