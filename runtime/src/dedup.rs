//! What an activation or a hub has handled already: a stream's events by number, other requests by
//! key.
//!
//! Contract:
//! - [`Dedup::begin`] says of a request that carries an event or a key whether it is to be handled;
//!   [`Dedup::end`] takes how that ended, and gives back who else waits for it.
//! - A number of one subscription and origin that was handled is not handled again, and hears what
//!   was answered to it, if that was more than a confirmation; one that failed is, when it comes
//!   again. A number so far below the newest that the window does not reach it is
//!   taken for handled: the owner of a stream has fewer under way.
//! - An owner of a stream that is older than one that has delivered is refused, and so is an event
//!   that its owner had given up before it came: one that was never given to anybody, after a later
//!   one of the same owner, which hands out one after the other.
//! - A key's first outcome is its outcome, unless the request was refused before it ran.
//! - A request that is sent again, with a key that is not known, is handled only by the activation
//!   that it was handed over to, and only if that one has forgotten no key: else it may have been
//!   handled, and nobody can say.
//! - Bounds: [`EVENT_WINDOWS_MAX`] windows of [`EVENT_WINDOW`] numbers, [`EVENT_ANSWERS_MAX`]
//!   answers with [`EVENT_ANSWERS_BYTES_MAX`], [`IDEMPOTENCY_KEYS_MAX`]
//!   keys with [`IDEMPOTENCY_BYTES_MAX`] of outcomes (one alone may exceed it), and
//!   [`DUPLICATES_WAITING_MAX`] waiters of one request.
//!
//! Deliberately absent: how anybody is told; the store, which a grain itself may write keys to.

use std::collections::{BTreeMap, VecDeque};

use siloring_core::address::AddressHash;
use siloring_core::ids::ActivationNumber;
use siloring_core::limits::{
    DUPLICATES_WAITING_MAX, EVENT_ANSWERS_BYTES_MAX, EVENT_ANSWERS_MAX, EVENT_WINDOW,
    EVENT_WINDOWS_MAX, IDEMPOTENCY_BYTES_MAX, IDEMPOTENCY_KEYS_MAX,
};
use siloring_core::outcome::DeliveryFailure;

use crate::call::{CallResult, RawReply};
use crate::envelope::{Envelope, EventInfo, Idempotency, Sending};

/// How many numbers a window has.
const WIDTH: u64 = EVENT_WINDOW as u64;

/// What is to be done with a request.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Handle it, and say how that ended.
    Begin,
    /// It is being handled: who waits is told with the first.
    Attached,
    /// An event that was handled, or is older than the window reaches.
    Handled,
    /// A key whose outcome is known, or an event whose answer is.
    Known(CallResult),
    /// An event of an owner that is not its stream's any more.
    StaleOwner,
    /// An event that its owner has given up.
    GivenUp,
    /// It may have been handled, by an activation that is gone or has forgotten it.
    Unknowable,
    /// A bound is reached.
    Busy,
}

/// What one activation or hub has handled; `W` names who waits for an outcome.
#[derive(Debug)]
pub(crate) struct Dedup<W> {
    events: Events<W>,
    keys: Keys<W>,
}

impl<W: Copy> Default for Dedup<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: Copy> Dedup<W> {
    pub(crate) const fn new() -> Self {
        Self { events: Events::new(), keys: Keys::new() }
    }

    /// Whether to handle a request that carries an event or a key; `me` is the number of the
    /// activation or claim.
    ///
    /// # Panics
    /// If it carries neither.
    pub(crate) fn begin(
        &mut self,
        envelope: &Envelope,
        me: Option<ActivationNumber>,
        waiter: W,
    ) -> Admission {
        match (&envelope.event, envelope.idempotency) {
            (Some(event), _) => self.events.begin(event, waiter),
            (None, Some(idempotency)) => self.keys.begin(idempotency, me, waiter),
            (None, None) => unreachable!("only what is handled once is asked about"),
        }
    }

    /// Takes how a request ended that was begun; gives who else waits for that.
    pub(crate) fn end(&mut self, envelope: &Envelope, outcome: &CallResult) -> Vec<W> {
        match (&envelope.event, envelope.idempotency) {
            (Some(event), _) => self.events.end(event, outcome),
            (None, Some(Idempotency { key, .. })) => self.keys.end(key, outcome),
            (None, None) => Vec::new(),
        }
    }
}

impl Envelope {
    /// Whether the request is one to be handled once.
    #[inline]
    pub(crate) const fn is_handled_once(&self) -> bool {
        self.event.is_some() || self.idempotency.is_some()
    }
}

/// A request that is being handled: who else waits.
#[derive(Debug)]
struct Underway<W> {
    number: u64,
    waiters: Vec<W>,
}

fn attach<W>(waiters: &mut Vec<W>, waiter: W) -> Admission {
    if waiters.len() >= DUPLICATES_WAITING_MAX {
        return Admission::Busy;
    }
    waiters.push(waiter);
    Admission::Attached
}

/// The events of all subscriptions.
#[derive(Debug)]
struct Events<W> {
    subscriptions: Vec<Subscription<W>>,
    /// Counts uses, to find the least recent.
    uses: u64,
    /// What was answered to events that were handled, the newest last.
    answers: VecDeque<Answer>,
    answers_bytes: usize,
}

/// More than a confirmation: what a hub has answered to an event.
#[derive(Debug)]
struct Answer {
    stream: AddressHash,
    key: Box<str>,
    origin: u128,
    number: u64,
    reply: RawReply,
}

impl Answer {
    fn is_to(&self, event: &EventInfo) -> bool {
        let is_it = self.number == event.number && self.origin == event.origin;
        is_it && self.stream == event.stream.hash() && self.key == event.subscription
    }
}

#[derive(Debug)]
struct Subscription<W> {
    stream: AddressHash,
    key: Box<str>,
    /// The newest owner that has delivered, and how far it came.
    epoch: ActivationNumber,
    position: u64,
    windows: Vec<Window<W>>,
}

impl<W> Subscription<W> {
    fn is_of(&self, event: &EventInfo) -> bool {
        self.stream == event.stream.hash() && self.key == event.subscription
    }
}

impl<W: Copy> Events<W> {
    const fn new() -> Self {
        Self { subscriptions: Vec::new(), uses: 0, answers: VecDeque::new(), answers_bytes: 0 }
    }

    fn begin(&mut self, event: &EventInfo, waiter: W) -> Admission {
        let known = self.subscriptions.iter().position(|subscription| subscription.is_of(event));
        if let Some(at) = known {
            let subscription = &mut self.subscriptions[at];
            if event.epoch < subscription.epoch {
                return Admission::StaleOwner;
            }
            if subscription.is_behind(event) {
                return Admission::GivenUp;
            }
            if event.epoch > subscription.epoch {
                (subscription.epoch, subscription.position) = (event.epoch, 0);
            }
            subscription.position = subscription.position.max(event.position);
        }
        self.uses += 1;
        let uses = self.uses;
        if let Some(window) = known.and_then(|at| self.subscriptions[at].window(event.origin)) {
            window.used = uses;
            let admission = window.begin(event.number, waiter);
            let is_handled = matches!(admission, Admission::Handled);
            return if is_handled { self.answered(event) } else { admission };
        }
        if self.window_count() >= EVENT_WINDOWS_MAX && !self.forget_least_used() {
            return Admission::Busy;
        }
        let mut window = Window::new(event.origin, uses);
        let admission = window.begin(event.number, waiter);
        self.subscription_of(event).windows.push(window);
        admission
    }

    fn end(&mut self, event: &EventInfo, outcome: &CallResult) -> Vec<W> {
        let found = self.subscriptions.iter_mut().find(|subscription| subscription.is_of(event));
        let window = found.and_then(|subscription| subscription.window(event.origin));
        let waiters = window.map(|window| window.end(event.number, outcome.is_ok()));
        if let Ok(reply) = outcome
            && !reply.body.is_empty()
        {
            self.keep(event, reply);
        }
        waiters.unwrap_or_default()
    }

    /// What an event hears that was handled before.
    #[cold]
    fn answered(&self, event: &EventInfo) -> Admission {
        let answer = self.answers.iter().rev().find(|answer| answer.is_to(event));
        answer
            .map_or(Admission::Handled, |answer| Admission::Known(Ok(copy_of_reply(&answer.reply))))
    }

    fn keep(&mut self, event: &EventInfo, reply: &RawReply) {
        self.answers_bytes += reply.body.len();
        self.answers.push_back(Answer {
            stream: event.stream.hash(),
            key: event.subscription.clone(),
            origin: event.origin,
            number: event.number,
            reply: copy_of_reply(reply),
        });
        while self.answers.len() > EVENT_ANSWERS_MAX
            || (self.answers_bytes > EVENT_ANSWERS_BYTES_MAX && self.answers.len() > 1)
        {
            let forgotten = self.answers.pop_front();
            self.answers_bytes -= forgotten.map_or(0, |answer| answer.reply.body.len());
        }
    }

    fn subscription_of(&mut self, event: &EventInfo) -> &mut Subscription<W> {
        let known = self.subscriptions.iter().position(|subscription| subscription.is_of(event));
        let at = known.unwrap_or_else(|| {
            self.subscriptions.push(Subscription {
                stream: event.stream.hash(),
                key: event.subscription.clone(),
                epoch: event.epoch,
                position: event.position,
                windows: Vec::new(),
            });
            self.subscriptions.len() - 1
        });
        &mut self.subscriptions[at]
    }

    fn window_count(&self) -> usize {
        self.subscriptions.iter().map(|subscription| subscription.windows.len()).sum()
    }

    /// Makes room for a window; false if an event of each is being handled.
    fn forget_least_used(&mut self) -> bool {
        let windows = self.subscriptions.iter().flat_map(|subscription| &subscription.windows);
        let idle = windows.filter(|window| window.underway.is_empty());
        let Some(least) = idle.map(|window| window.used).min() else { return false };
        for subscription in &mut self.subscriptions {
            subscription.windows.retain(|window| window.used != least);
        }
        self.subscriptions.retain(|subscription| !subscription.windows.is_empty());
        true
    }
}

impl<W> Subscription<W> {
    fn window(&mut self, origin: u128) -> Option<&mut Window<W>> {
        self.windows.iter_mut().find(|window| window.origin == origin)
    }

    /// Whether an event of the same owner that nobody was given before comes after a later one.
    fn is_behind(&self, event: &EventInfo) -> bool {
        let is_first = event.epoch == self.epoch && event.attempt == 1;
        is_first && event.position < self.position
    }
}

/// Which of the newest numbers of one origin were handled.
#[derive(Debug)]
struct Window<W> {
    origin: u128,
    /// The newest number that was handled.
    newest: Option<u64>,
    /// One bit for each of the newest numbers, where its remainder stands.
    handled: [u64; EVENT_WINDOW / 64],
    underway: Vec<Underway<W>>,
    used: u64,
}

const fn bit_of(number: u64) -> (usize, u64) {
    let place = (number % WIDTH) as usize;
    (place / 64, 1 << (place % 64))
}

impl<W: Copy> Window<W> {
    const fn new(origin: u128, used: u64) -> Self {
        Self { origin, newest: None, handled: [0; EVENT_WINDOW / 64], underway: Vec::new(), used }
    }

    fn begin(&mut self, number: u64, waiter: W) -> Admission {
        if let Some(first) = self.underway.iter_mut().find(|first| first.number == number) {
            return attach(&mut first.waiters, waiter);
        }
        if self.was_handled(number) {
            return Admission::Handled;
        }
        self.underway.push(Underway { number, waiters: Vec::new() });
        Admission::Begin
    }

    fn was_handled(&self, number: u64) -> bool {
        let Some(newest) = self.newest.filter(|newest| number <= *newest) else { return false };
        let (word, bit) = bit_of(number);
        newest - number >= WIDTH || self.handled[word] & bit != 0
    }

    fn end(&mut self, number: u64, is_ok: bool) -> Vec<W> {
        let Some(at) = self.underway.iter().position(|first| first.number == number) else {
            return Vec::new();
        };
        if is_ok {
            self.note_handled(number);
        }
        self.underway.swap_remove(at).waiters
    }

    fn note_handled(&mut self, number: u64) {
        let newest = self.newest.unwrap_or(number);
        if number > newest {
            // The places of the numbers in between were those of numbers that fall out now.
            for skipped in (newest + 1..=number).take(EVENT_WINDOW) {
                let (word, bit) = bit_of(skipped);
                self.handled[word] &= !bit;
            }
        } else if newest - number >= WIDTH {
            return;
        }
        self.newest = Some(newest.max(number));
        let (word, bit) = bit_of(number);
        self.handled[word] |= bit;
    }
}

/// The keys of requests.
#[derive(Debug)]
struct Keys<W> {
    entries: BTreeMap<u128, Key<W>>,
    /// Keys whose outcome is known, in the order in which they became so.
    ended: VecDeque<u128>,
    /// Bytes of the outcomes.
    bytes: usize,
    has_forgotten: bool,
}

#[derive(Debug)]
enum Key<W> {
    Underway(Vec<W>),
    Ended(CallResult),
}

impl<W: Copy> Keys<W> {
    const fn new() -> Self {
        Self { entries: BTreeMap::new(), ended: VecDeque::new(), bytes: 0, has_forgotten: false }
    }

    fn begin(
        &mut self,
        idempotency: Idempotency,
        me: Option<ActivationNumber>,
        waiter: W,
    ) -> Admission {
        match self.entries.get_mut(&idempotency.key) {
            Some(Key::Underway(waiters)) => return attach(waiters, waiter),
            Some(Key::Ended(outcome)) => return Admission::Known(copy_of(outcome)),
            None => {}
        }
        let may_begin = match idempotency.sending {
            Sending::First => true,
            Sending::Again(to) => to.is_some() && to == me && !self.has_forgotten,
        };
        if !may_begin {
            return Admission::Unknowable;
        }
        if self.entries.len() >= IDEMPOTENCY_KEYS_MAX && !self.forget_first() {
            return Admission::Busy;
        }
        self.entries.insert(idempotency.key, Key::Underway(Vec::new()));
        Admission::Begin
    }

    fn end(&mut self, key: u128, outcome: &CallResult) -> Vec<W> {
        let Some(Key::Underway(waiters)) = self.entries.remove(&key) else {
            unreachable!("a key ends that was begun");
        };
        if !matches!(outcome, Err(DeliveryFailure::Rejected { .. })) {
            self.bytes += bytes_of(outcome);
            self.entries.insert(key, Key::Ended(copy_of(outcome)));
            self.ended.push_back(key);
            while self.bytes > IDEMPOTENCY_BYTES_MAX && self.ended.len() > 1 {
                self.forget_first();
            }
        }
        waiters
    }

    /// Makes room for a key; false if all are being handled.
    fn forget_first(&mut self) -> bool {
        let Some(key) = self.ended.pop_front() else { return false };
        if let Some(Key::Ended(outcome)) = self.entries.remove(&key) {
            self.bytes -= bytes_of(&outcome);
        }
        self.has_forgotten = true;
        true
    }
}

fn bytes_of(outcome: &CallResult) -> usize {
    match outcome {
        Ok(reply) => reply.body.len(),
        Err(failure) => failure.detail().len(),
    }
}

/// The same outcome for another one who waits.
pub(crate) fn copy_of(outcome: &CallResult) -> CallResult {
    match outcome {
        Ok(reply) => Ok(copy_of_reply(reply)),
        Err(failure) => Err(failure.clone()),
    }
}

fn copy_of_reply(reply: &RawReply) -> RawReply {
    RawReply { schema: reply.schema, body: reply.body.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use siloring_core::address::Address;
    use siloring_core::body::Body;
    use siloring_core::ids::ViewNumber;
    use siloring_core::outcome::{FailedKind, RejectedKind};
    use siloring_core::schema::Schema;

    use super::*;

    const ME: ActivationNumber = ActivationNumber { view: ViewNumber(3), counter: 7 };
    const LATER: ActivationNumber = ActivationNumber { view: ViewNumber(3), counter: 8 };

    fn event(origin: u128, number: u64) -> EventInfo {
        EventInfo {
            stream: Address::parse("stream/chat/general").unwrap(),
            subscription: "me".into(),
            epoch: ME,
            position: 0,
            missed: 0,
            attempt: 1,
            origin,
            number,
        }
    }

    fn key(key: u128, sending: Sending) -> Envelope {
        Envelope { idempotency: Some(Idempotency { key, sending }), ..Envelope::default() }
    }

    fn reply(value: u64) -> RawReply {
        RawReply { schema: Schema::NONE, body: Body::encode(&value) }
    }

    fn confirmation() -> RawReply {
        RawReply { schema: Schema::NONE, body: Body::encode(&()) }
    }

    fn failure() -> DeliveryFailure {
        DeliveryFailure::failed(FailedKind::HandlerFailed, "broken")
    }

    /// Begins and ends; whether it was handled.
    fn handle(events: &mut Events<u32>, event: &EventInfo) -> bool {
        let begun = events.begin(event, 0);
        assert!(matches!(begun, Admission::Begin | Admission::Handled), "{begun:?}");
        events.end(event, &Ok(confirmation()));
        matches!(begun, Admission::Begin)
    }

    #[test]
    fn an_event_is_handled_once_whatever_the_order_and_the_gaps() {
        let mut events = Events::new();
        let numbers = [5, 7, 6, 1500, 600, 5, 600, 1500, 7, 476, 477, 477, 10_000, 9_000];
        let handled: Vec<u64> =
            numbers.into_iter().filter(|number| handle(&mut events, &event(1, *number))).collect();
        // 476 is below the window of 1500, 9000 is in that of 10000.
        assert_eq!(handled, [5, 7, 6, 1500, 600, 477, 10_000, 9_000]);
        assert!(handle(&mut events, &event(2, 5)), "another origin counts for itself");
        let other = EventInfo { subscription: "other".into(), ..event(1, 5) };
        assert!(handle(&mut events, &other), "and another subscription");
        let other = EventInfo { stream: Address::parse("stream/a/b").unwrap(), ..event(1, 5) };
        assert!(handle(&mut events, &other), "and another stream");
    }

    #[test]
    fn who_asks_for_an_event_that_is_being_handled_waits_for_its_end() {
        let mut events = Events::new();
        assert!(matches!(events.begin(&event(1, 5), 10), Admission::Begin));
        assert!(matches!(events.begin(&event(1, 5), 11), Admission::Attached));
        assert!(matches!(events.begin(&event(1, 6), 12), Admission::Begin));
        assert_eq!(events.end(&event(1, 5), &Err(failure())), [11]);
        assert!(matches!(events.begin(&event(1, 5), 13), Admission::Begin), "it failed");
        for waiter in 0..u32::try_from(DUPLICATES_WAITING_MAX).unwrap() {
            assert!(matches!(events.begin(&event(1, 5), waiter), Admission::Attached));
        }
        assert!(matches!(events.begin(&event(1, 5), 99), Admission::Busy));
        assert_eq!(events.end(&event(1, 5), &Ok(confirmation())).len(), DUPLICATES_WAITING_MAX);
        assert!(matches!(events.begin(&event(1, 5), 14), Admission::Handled));
    }

    #[test]
    fn an_event_that_was_answered_hears_its_answer_again() {
        let mut events = Events::new();
        let max = u64::try_from(EVENT_ANSWERS_MAX).unwrap();
        for number in 0..=max {
            assert!(matches!(events.begin(&event(1, number), 0), Admission::Begin));
            events.end(&event(1, number), &Ok(reply(number)));
        }
        assert!(matches!(events.begin(&event(1, 0), 0), Admission::Handled), "it had made room");
        for number in 1..=max {
            let Admission::Known(Ok(known)) = events.begin(&event(1, number), 0) else {
                panic!("{number} was answered");
            };
            assert_eq!(known.body.decode::<u64>().unwrap(), number);
        }
        assert!(handle(&mut events, &event(2, 5)), "not another origin's");
        assert!(matches!(events.begin(&event(2, 5), 0), Admission::Handled));
        let body = Body::copy_of(&vec![7; EVENT_ANSWERS_BYTES_MAX * 2]);
        assert!(matches!(events.begin(&event(3, 5), 0), Admission::Begin));
        events.end(&event(3, 5), &Ok(RawReply { schema: Schema::NONE, body }));
        assert_eq!(events.answers.len(), 1, "one alone may exceed the bytes");
        assert!(matches!(events.begin(&event(3, 5), 0), Admission::Known(_)));
    }

    #[test]
    fn an_owner_older_than_one_that_has_delivered_is_refused() {
        let mut events = Events::new();
        assert!(handle(&mut events, &event(1, 5)));
        assert!(handle(&mut events, &EventInfo { epoch: LATER, ..event(1, 6) }));
        assert!(matches!(events.begin(&event(1, 7), 0), Admission::StaleOwner));
        assert!(matches!(events.begin(&event(9, 7), 0), Admission::StaleOwner), "any origin");
        let other = EventInfo { subscription: "other".into(), ..event(1, 5) };
        assert!(handle(&mut events, &other), "of that subscription only");
    }

    #[test]
    fn an_event_that_was_given_up_is_refused_and_one_that_comes_again_is_not() {
        let mut events = Events::new();
        let at = |position, attempt| EventInfo { position, attempt, ..event(1, position) };
        assert!(handle(&mut events, &at(9, 1)));
        assert!(matches!(events.begin(&at(11, 1), 0), Admission::Begin));
        assert!(matches!(events.begin(&at(10, 1), 0), Admission::GivenUp));
        assert!(matches!(events.begin(&at(10, 2), 0), Admission::Begin), "nobody knew, so again");
        events.end(&at(11, 1), &Err(failure()));
        assert!(matches!(events.begin(&at(11, 1), 0), Admission::Begin), "where it stands");
        assert!(handle(&mut events, &EventInfo { epoch: LATER, ..at(3, 1) }), "its own count");
        assert!(handle(&mut events, &EventInfo { epoch: LATER, ..at(4, 1) }));
        assert!(matches!(events.begin(&at(12, 1), 0), Admission::StaleOwner));
    }

    #[test]
    fn windows_are_bounded_and_the_least_used_goes() {
        let mut events = Events::new();
        let max = u128::try_from(EVENT_WINDOWS_MAX).unwrap();
        for origin in 0..max {
            assert!(handle(&mut events, &event(origin, 5)));
        }
        assert!(!handle(&mut events, &event(0, 5)), "used again");
        assert!(handle(&mut events, &event(max, 5)));
        assert_eq!(events.window_count(), EVENT_WINDOWS_MAX);
        assert!(!handle(&mut events, &event(0, 5)), "kept");
        assert!(handle(&mut events, &event(1, 5)), "the least used had made room");
        for origin in 0..max {
            let begun = events.begin(&event(1000 + origin, 5), 0);
            assert!(matches!(begun, Admission::Begin), "{begun:?}");
        }
        assert!(matches!(events.begin(&event(5000, 5), 0), Admission::Busy), "all are in use");
        events.end(&event(1000, 5), &Err(failure()));
        assert!(matches!(events.begin(&event(5000, 5), 0), Admission::Begin));
    }

    #[test]
    fn a_key_is_answered_by_its_first_outcome() {
        let mut keys: Dedup<u32> = Dedup::new();
        for (name, outcome) in [(1, Ok(reply(5))), (2, Err(failure()))] {
            let request = key(name, Sending::First);
            assert!(matches!(keys.begin(&request, Some(ME), 10), Admission::Begin));
            assert!(matches!(keys.begin(&request, Some(ME), 11), Admission::Attached));
            assert_eq!(keys.end(&request, &outcome), [11]);
            for sending in [Sending::First, Sending::Again(None), Sending::Again(Some(LATER))] {
                let Admission::Known(known) = keys.begin(&key(name, sending), Some(ME), 12) else {
                    panic!("it is known");
                };
                assert_eq!(known.is_ok(), outcome.is_ok());
            }
        }
        let refused = key(3, Sending::First);
        assert!(matches!(keys.begin(&refused, Some(ME), 10), Admission::Begin));
        let rejected = DeliveryFailure::rejected(RejectedKind::Incompatible, "no");
        keys.end(&refused, &Err(rejected));
        assert!(matches!(keys.begin(&refused, Some(ME), 10), Admission::Begin), "it did not run");
    }

    #[test]
    fn a_request_sent_again_is_begun_by_the_one_it_was_handed_to_and_by_nobody_else() {
        let begin = |sending, me| Dedup::<u32>::new().begin(&key(1, sending), me, 0);
        let to = |number| Sending::Again(Some(number));
        assert!(matches!(begin(to(ME), Some(ME)), Admission::Begin));
        assert!(matches!(begin(to(ME), Some(LATER)), Admission::Unknowable));
        assert!(matches!(begin(to(ME), None), Admission::Unknowable));
        assert!(matches!(begin(Sending::Again(None), None), Admission::Unknowable));
        assert!(matches!(begin(Sending::Again(None), Some(ME)), Admission::Unknowable));
    }

    #[test]
    fn keys_are_bounded_and_one_that_forgot_says_that_it_cannot_know() {
        let mut keys: Dedup<u32> = Dedup::new();
        let max = u128::try_from(IDEMPOTENCY_KEYS_MAX).unwrap();
        for name in 0..max {
            let request = key(name, Sending::First);
            assert!(matches!(keys.begin(&request, Some(ME), 0), Admission::Begin));
            keys.end(&request, &Ok(reply(1)));
        }
        let again = Sending::Again(Some(ME));
        let unknown = keys.begin(&key(max, again), Some(ME), 0);
        assert!(matches!(unknown, Admission::Begin), "it was certainly not handled");
        assert_eq!(keys.keys.entries.len(), IDEMPOTENCY_KEYS_MAX);
        let first = keys.begin(&key(0, again), Some(ME), 0);
        assert!(matches!(first, Admission::Unknowable), "it had made room");
        assert!(matches!(keys.begin(&key(1, again), Some(ME), 0), Admission::Known(_)));
    }

    #[test]
    fn the_bytes_of_outcomes_are_bounded() {
        let mut keys: Keys<u32> = Keys::new();
        let large = || {
            let body = Body::copy_of(&vec![7; IDEMPOTENCY_BYTES_MAX / 2]);
            Ok(RawReply { schema: Schema::NONE, body })
        };
        let first = |key| Idempotency { key, sending: Sending::First };
        for key in 0..3 {
            assert!(matches!(keys.begin(first(key), Some(ME), 0), Admission::Begin));
            keys.end(key, &large());
        }
        assert_eq!((keys.ended.len(), keys.bytes), (2, IDEMPOTENCY_BYTES_MAX));
        assert!(matches!(keys.begin(first(9), Some(ME), 0), Admission::Begin));
        let body = Body::copy_of(&vec![7; IDEMPOTENCY_BYTES_MAX * 2]);
        keys.end(9, &Ok(RawReply { schema: Schema::NONE, body }));
        assert_eq!((keys.ended.len(), keys.entries.len()), (1, 1), "one alone may exceed them");
    }

    proptest! {
        /// Against a plain set, with numbers that never fall out of the window.
        #[test]
        fn within_the_window_each_number_is_handled_once(
            start in 0..u64::MAX - 100_000,
            steps in prop::collection::vec((0..WIDTH, any::<bool>()), 1..300),
        ) {
            let mut events = Events::new();
            let mut handled = std::collections::BTreeSet::new();
            let mut newest = start + WIDTH;
            for (back, fails) in steps {
                let number = newest - back;
                let begun = events.begin(&event(1, number), 0);
                prop_assert_eq!(matches!(begun, Admission::Begin), !handled.contains(&number));
                if matches!(begun, Admission::Begin) {
                    let outcome = if fails { Err(failure()) } else { Ok(confirmation()) };
                    events.end(&event(1, number), &outcome);
                    if !fails { handled.insert(number); }
                }
                if back % 7 == 0 { newest += back / 7; }
            }
        }
    }
}
