//! The stream that the three models share: a queue, and the agent that pulls it.
//!
//! The kind of system: virtual actors with persistent streams. Rules, as such systems document
//! them:
//! - a publish puts the event into the queue, and that is its success; the queue is durable, so
//!   the event survives every silo;
//! - one agent in the cluster pulls the queue. It asks the list of subscribers once, keeps the
//!   answer, and is told of later changes. When silos come or go the queues are shared out anew,
//!   and the new agent begins without that knowledge;
//! - while the list does not answer the agent asks again, and events wait;
//! - an event with no subscriber is taken off the queue;
//! - a delivery that fails is tried again, for up to a minute; when the cluster knows that the
//!   subscriber's process is dead the agent unsubscribes it, and what it was owed is skipped.
//!
//! The publisher hears of none of this.

use std::collections::VecDeque;

use super::books::Books;
use super::scenario::Moment;

/// Whether a hub is on a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subscribed {
    Yes,
    No,
}

/// Who is to get a stream's events: here, whether the one hub is.
pub(crate) trait SubscriberList {
    /// What the list says when it is asked.
    fn read(&self) -> Subscribed;

    /// The agent takes the hub off the list.
    fn unsubscribe(&mut self);
}

/// A queue and its agent.
#[derive(Debug, Default)]
pub(crate) struct QueuedStream {
    queue: VecDeque<u64>,
    /// What the agent has heard from the list.
    known: Option<Subscribed>,
}

impl QueuedStream {
    /// Takes a reply in: for its publisher, that is success.
    pub(crate) fn publish(&mut self, number: u64) {
        self.queue.push_back(number);
    }

    /// The agent does what it can at this time.
    pub(crate) fn step(&mut self, now: Moment, list: &mut impl SubscriberList, books: &mut Books) {
        if now.list_is_lost() {
            self.known = None;
        }
        if self.known.is_none() && now.list_answers() {
            self.known = Some(list.read());
        }
        match self.known {
            Some(Subscribed::Yes) if now.hub_lives() => {
                self.queue.drain(..).for_each(|number| books.handled(number));
            }
            Some(Subscribed::Yes) if now.hub_is_known_dead() => {
                list.unsubscribe();
                self.known = Some(Subscribed::No);
                self.queue.clear();
            }
            Some(Subscribed::No) => self.queue.clear(),
            // Tried again.
            Some(Subscribed::Yes) | None => {}
        }
    }
}
