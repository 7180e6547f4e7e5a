//! Model: the durable list, and a check for a subscriber before each publish.
//!
//! The kind of system: the one of [`durable_registry`](super::durable_registry), whose message
//! layer asks the list "does anybody subscribe?" before it publishes a reply, and refuses what has
//! no subscriber. Its rules:
//! - the check trusts the row: who is on the list is taken to be alive;
//! - it has a time limit, as every reply waits for it; within that it asks again. Without an answer
//!   it counts as "nobody";
//! - the sender of a refused reply hears an error, and a negative answer (NACK) goes to the hub
//!   that waits for the reply. That is a message to a hub like any other, so it takes the same way,
//!   check included, twice at most. A NACK that is refused is a line in a trace.

use super::books::{Books, Counts};
use super::durable_registry::Row;
use super::queued::{QueuedStream, Subscribed, SubscriberList};
use super::scenario::{Moment, Trouble};

/// The check's time limit: many times what it takes when the list is warm.
const CHECK_TIME_MAX_MS: u64 = 400;
/// A refused NACK is sent again after this long, once.
const NACK_AGAIN_AFTER_MS: u64 = 400;
/// How often a NACK is sent.
const NACK_TRIES: u32 = 2;

/// What waits for its check.
#[derive(Debug, Clone, Copy)]
enum Checked {
    Reply(u64),
    Nack { tries_left: u32 },
}

/// A check under way.
#[derive(Debug)]
struct Check {
    what: Checked,
    from_ms: u64,
}

/// The message layer.
#[derive(Debug, Default)]
struct Layer {
    checks: Vec<Check>,
    stream: QueuedStream,
    books: Books,
}

impl Layer {
    fn send(&mut self, number: u64, now: Moment) {
        self.books.sent();
        self.checks.push(Check { what: Checked::Reply(number), from_ms: now.ms });
    }

    fn step(&mut self, now: Moment, row: &Row) {
        for check in std::mem::take(&mut self.checks) {
            let is_over = now.ms >= check.from_ms + CHECK_TIME_MAX_MS;
            if now.ms < check.from_ms || !(now.list_answers() || is_over) {
                self.checks.push(check);
            } else if now.list_answers() && row.read() == Subscribed::Yes {
                // A NACK that passed is on its way: here it always arrives, if the hub lives.
                if let Checked::Reply(number) = check.what {
                    self.stream.publish(number);
                }
            } else {
                self.refuse(check.what, now);
            }
        }
    }

    fn refuse(&mut self, what: Checked, now: Moment) {
        let (tries_left, from_ms) = match what {
            Checked::Reply(number) => {
                self.books.refused(number, now.hub_lives());
                (NACK_TRIES, now.ms)
            }
            Checked::Nack { tries_left } => (tries_left, now.ms + NACK_AGAIN_AFTER_MS),
        };
        match tries_left.checked_sub(1) {
            Some(tries_left) => {
                self.checks.push(Check { what: Checked::Nack { tries_left }, from_ms });
            }
            None if now.hub_lives() => self.books.nack_lost(),
            // Nobody waits any more.
            None => {}
        }
    }
}

/// What becomes of the replies.
pub(crate) fn run(trouble: Trouble) -> Counts {
    let mut row = Row::written();
    let mut layer = Layer::default();
    for moment in Moment::all(trouble) {
        if let Some(number) = moment.reply() {
            layer.send(number, moment);
        }
        layer.step(moment, &row);
        layer.stream.step(moment, &mut row, &mut layer.books);
    }
    layer.books.counts()
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{DETECTED_AFTER_MS, REPLIES, REPLY_PERIOD_MS, TROUBLE_AT_REPLY};
    use super::*;

    #[test]
    fn replies_to_a_killed_process_are_silent_as_long_as_its_row_is_there() {
        let counts = run(Trouble::KillHub);
        let unnoticed = DETECTED_AFTER_MS / REPLY_PERIOD_MS;
        assert_eq!(counts.silent, unnoticed + 1, "the check said yes");
        assert_eq!(counts.told, REPLIES - TROUBLE_AT_REPLY - counts.silent, "then it says no");
        assert_eq!(counts.wrongly_refused, 0);
    }

    #[test]
    fn a_list_that_does_not_answer_refuses_replies_to_a_living_hub() {
        for trouble in [Trouble::Roll, Trouble::KillList] {
            let counts = run(trouble);
            assert!(counts.wrongly_refused > 0 && counts.silent == 0, "{trouble:?}: {counts:?}");
            assert_eq!(counts.handled + counts.told, REPLIES);
        }
    }

    #[test]
    fn a_nack_takes_the_way_that_is_closed_and_is_lost_there() {
        let counts = run(Trouble::KillList);
        let lost = counts.nacks_lost.unwrap();
        assert!(0 < lost && lost < counts.wrongly_refused, "some come late enough: {counts:?}");
    }
}
