//! The queue by example, and against a model: whatever happens, each consumer gets what it owes in
//! order, and each event is closed once.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use siloring_core::limits::{BATCH_EVENTS_MAX, EVENT_ATTEMPTS_MAX};
use siloring_core::outcome::FailedKind;

use super::*;
use crate::policy::Overflow;

const NOW: Moment = Moment::from_nanos(1_000_000_000);
const LATER: Duration = Duration::from_secs(3);

fn event(number: u64, base: u64) -> NewEvent {
    NewEvent {
        origin: Origin { lane: 7, number },
        base,
        attempts_before: 0,
        schema: Schema::NONE,
        body: Body::copy_of(&number.to_le_bytes()),
        deadline: NOW + Duration::from_secs(30),
        waiting: number,
        skipped: Vec::new(),
    }
}

fn queue() -> Queue {
    Queue::new(StreamPolicy::default())
}

fn closed(queue: &mut Queue) -> Vec<(u64, u32, u32)> {
    let mut all = Vec::new();
    while let Some(output) = queue.poll_output() {
        if let QueueOutput::Closed { waiting, summary } = output {
            all.extend(waiting.iter().map(|w| (*w, summary.handled, summary.failed)));
        }
    }
    all
}

fn ran(done: usize) -> Report {
    Report::Ran { done, failure: None, reply: None }
}

fn panicked() -> DeliveryFailure {
    DeliveryFailure::failed(FailedKind::HandlerFailed, "it panicked")
}

fn moving() -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::Moving, "elsewhere")
}

fn positions(ready: &[(ConsumerKey, Batch)], key: ConsumerKey) -> Vec<(u64, u8)> {
    ready
        .iter()
        .find(|(k, _)| *k == key)
        .map(|(_, batch)| batch.positions.clone())
        .unwrap_or_default()
}

#[test]
fn an_event_is_closed_when_every_consumer_is_through() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    let (b, ..) = queue.attach("b", true, None);
    assert_eq!(queue.publish(NOW, event(1, 1)), Published::Queued(1));
    assert_eq!(queue.take_ready(NOW).len(), 2);
    queue.report(NOW, a, ran(1));
    assert!(closed(&mut queue).is_empty(), "b is not through");
    queue.report(NOW, b, ran(1));
    assert_eq!(closed(&mut queue), [(1, 2, 0)]);
    assert!(queue.is_idle());
}

#[test]
fn without_consumers_nothing_is_taken_in() {
    let mut queue = queue();
    let Published::Refused(failure) = queue.publish(NOW, event(1, 1)) else { panic!("taken in") };
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::NoSubscriber));
    assert!(queue.is_idle());
}

#[test]
fn an_event_that_was_sent_again_is_known() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    assert_eq!(queue.publish(NOW, NewEvent { waiting: 99, ..event(1, 1) }), Published::Known(1));
    queue.take_ready(NOW);
    queue.report(NOW, a, ran(1));
    assert_eq!(closed(&mut queue), [(1, 1, 0), (99, 1, 0)], "both hear, it ran once");
    let Published::Closed(summary) = queue.publish(NOW, event(1, 1)) else { panic!("ran again") };
    assert_eq!((summary.position, summary.handled), (1, 1));
}

#[test]
fn an_early_number_waits_for_those_before_it_but_not_for_ever() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    assert_eq!(queue.publish(NOW, event(3, 1)), Published::Held);
    assert_eq!(queue.publish(NOW, event(1, 1)), Published::Queued(1));
    assert_eq!(queue.publish(NOW, event(2, 1)), Published::Queued(2));
    assert_eq!(positions(&queue.take_ready(NOW), a), [(1, 1), (2, 1), (3, 1)]);
    // 4 was given up by its publisher, which says so; 6 will not come and nobody says so.
    assert_eq!(queue.publish(NOW, event(5, 5)), Published::Queued(4));
    assert_eq!(queue.publish(NOW, event(7, 5)), Published::Held);
    assert_eq!(queue.next_wake(), NOW + LANE_HOLD_MAX);
    queue.expire(NOW + LANE_HOLD_MAX);
    assert_eq!(queue.next_position(), 6, "taken in");
}

#[test]
fn an_event_that_was_let_go_keeps_its_place_and_one_that_nobody_waits_for_is_refused() {
    let mut queue = queue();
    queue.attach("a", true, None);
    assert_eq!(queue.publish(NOW, event(3, 2)), Published::Held);
    assert!(queue.let_go(event(3, 2).origin));
    assert_eq!(queue.publish(NOW, event(4, 2)), Published::Held);
    queue.expire(NOW + LANE_HOLD_MAX);
    assert_eq!(queue.next_position(), 1, "the third is on its way");
    assert_eq!(queue.publish(NOW + LANE_HOLD_MAX, event(3, 2)), Published::Queued(1));
    assert_eq!(queue.next_position(), 3, "and the fourth behind it");
    let Published::Refused(failure) = queue.publish(NOW + LANE_HOLD_MAX, event(2, 2)) else {
        panic!("taken in behind the fourth");
    };
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::Overloaded));
    // One that was let go and does not come is not waited for twice.
    assert_eq!(queue.publish(NOW, event(6, 5)), Published::Held);
    assert!(queue.let_go(event(6, 5).origin));
    assert_eq!(queue.publish(NOW, event(7, 5)), Published::Held);
    queue.expire(NOW + LANE_HOLD_MAX);
    assert_eq!(queue.next_position(), 3);
    queue.expire(NOW + LANE_HOLD_MAX * 2);
    assert_eq!(queue.next_position(), 4, "the seventh");
}

/// An event was held for numbers that its publisher has done with since: a later one says so.
#[test]
fn what_was_held_is_taken_in_when_its_publisher_has_done_with_what_it_waits_for() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    assert_eq!(queue.publish(NOW, event(3, 1)), Published::Held);
    assert_eq!(queue.publish(NOW, event(4, 3)), Published::Queued(2), "behind the third");
    assert_eq!(positions(&queue.take_ready(NOW), a), [(1, 1), (2, 1)]);
    assert_eq!(queue.event(1).0.number, 3);
    assert_eq!(queue.next_wake(), Moment::NEVER, "nothing is held any more");
}

#[test]
fn an_event_that_was_let_go_is_taken_in_when_it_comes_again_and_its_lane_waits_no_longer_for_it() {
    let mut queue = queue();
    queue.attach("a", true, None);
    let Origin { lane, number } = event(3, 1).origin;
    assert_eq!(queue.publish(NOW, event(3, 1)), Published::Held);
    assert!(queue.let_go(Origin { lane, number }) && !queue.let_go(Origin { lane, number }));
    assert!(queue.is_idle());
    // Its publisher still waits for an earlier one, for too long in all.
    assert_eq!(queue.publish(NOW + LANE_HOLD_MAX / 2, event(3, 1)), Published::Held);
    assert_eq!(queue.next_wake(), NOW + LANE_HOLD_MAX);
    queue.expire(NOW + LANE_HOLD_MAX);
    assert_eq!(queue.next_position(), 2, "taken in");
    // Its publisher is gone.
    assert_eq!(queue.publish(NOW, event(6, 1)), Published::Held);
    assert!(queue.let_go(Origin { lane, number: 6 }));
    queue.expire(NOW + LANE_HOLD_MAX);
    queue.take_ready(NOW);
    assert_eq!(queue.next_wake(), Moment::NEVER, "nothing is waited for");
}

#[test]
fn a_late_frame_of_an_event_that_its_publisher_has_done_with_is_not_taken_in() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    queue.take_ready(NOW);
    queue.report(NOW, a, ran(1));
    // Its outcome was heard: it is not remembered any more.
    assert_eq!(queue.publish(NOW, event(2, 2)), Published::Queued(2));
    let Published::Refused(failure) = queue.publish(NOW, event(1, 1)) else {
        panic!("it runs again")
    };
    assert_eq!(failure.rejected_kind(), None, "it may have run");
    assert_eq!(queue.next_position(), 3);
}

#[test]
fn a_held_event_that_its_publisher_gives_up_is_not_taken_in() {
    let mut queue = queue();
    queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    assert_eq!(queue.publish(NOW, event(3, 1)), Published::Held);
    assert_eq!(queue.publish(NOW, event(4, 4)), Published::Queued(2));
    let Some(QueueOutput::Refused { waiting: 3, .. }) = queue.poll_output() else {
        panic!("3 waits for ever, or runs")
    };
}

#[test]
fn a_consumer_has_one_batch_at_a_time_of_a_bounded_size() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    let count = BATCH_EVENTS_MAX as u64 + 10;
    for number in 1..=count {
        queue.publish(NOW, event(number, 1));
    }
    assert_eq!(positions(&queue.take_ready(NOW), a).len(), BATCH_EVENTS_MAX);
    assert!(queue.take_ready(NOW).is_empty());
    queue.report(NOW, a, ran(BATCH_EVENTS_MAX));
    assert_eq!(positions(&queue.take_ready(NOW), a).len(), 10);
}

#[test]
fn a_handler_that_always_fails_makes_a_dead_letter_and_the_rest_flows() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    queue.publish(NOW, event(2, 1));
    let mut now = NOW;
    for attempt in 1..=EVENT_ATTEMPTS_MAX {
        let ready = queue.take_ready(now);
        assert_eq!(positions(&ready, a)[0], (1, attempt), "counted before it is handed out");
        assert_eq!(positions(&ready, a).len(), if attempt == 1 { 2 } else { 1 }, "then alone");
        queue.report(now, a, Report::Ran { done: 0, failure: Some(panicked()), reply: None });
        now += LATER;
    }
    let Some(QueueOutput::DeadLetter { letter, failure, .. }) = queue.poll_output() else {
        panic!("no dead letter")
    };
    assert_eq!((letter.attempts, failure), (EVENT_ATTEMPTS_MAX, panicked()));
    assert_eq!(closed(&mut queue), [(1, 0, 1)], "its publisher is told");
    assert_eq!(positions(&queue.take_ready(now), a), [(2, 1)], "the other one was not begun");
}

#[test]
fn one_that_is_not_waited_for_is_waited_for_next_and_so_makes_no_more_attempts_than_it_may() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    let (mut now, mut attempts) = (NOW, Vec::new());
    while let [(_, batch)] = &*queue.take_ready(now) {
        attempts.push(batch.positions[0].1);
        let failed = Report::Ran { done: 0, failure: Some(panicked()), reply: None };
        let report = if batch.is_again { failed } else { Report::Running { done: 0 } };
        queue.report(now, a, report);
        now += LATER;
    }
    assert_eq!(attempts, (1..=EVENT_ATTEMPTS_MAX).collect::<Vec<_>>());
    let Some(QueueOutput::DeadLetter { letter, .. }) = queue.poll_output() else {
        panic!("no dead letter")
    };
    assert_eq!(letter.attempts, EVENT_ATTEMPTS_MAX);
}

#[test]
fn what_did_not_run_is_no_attempt() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    let mut now = NOW;
    for _ in 0..2 * EVENT_ATTEMPTS_MAX {
        assert_eq!(positions(&queue.take_ready(now), a), [(1, 1)]);
        queue.report(now, a, Report::Lost(moving()));
        assert!(queue.take_ready(now).is_empty(), "not at once");
        now += LATER;
    }
    assert_eq!(queue.poll_output(), None);
}

#[test]
fn a_lost_batch_is_an_attempt_of_each_of_its_events() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", false, None);
    queue.publish(NOW, event(1, 1));
    queue.publish(NOW, event(2, 1));
    queue.take_ready(NOW);
    let lost = DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, "gone");
    queue.report(NOW, a, Report::Lost(lost));
    let now = NOW + LATER;
    assert_eq!(positions(&queue.take_ready(now), a), [(1, 2)], "one at a time, to find it");
    queue.report(now, a, ran(1));
    assert_eq!(positions(&queue.take_ready(now), a), [(2, 2)]);
}

#[test]
fn no_attempt_has_the_number_of_one_that_a_lost_owner_may_have_made() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, NewEvent { attempts_before: 1, ..event(1, 1) });
    assert_eq!(positions(&queue.take_ready(NOW), a), [(1, EVENT_ATTEMPTS_MAX + 1)]);
}

#[test]
fn a_slow_consumer_makes_its_publisher_hear_or_gets_a_gap() {
    let policy = StreamPolicy { backlog_max: 2, ..StreamPolicy::default() };
    let mut refusing = Queue::new(policy);
    refusing.attach("a", true, None);
    assert_eq!(refusing.publish(NOW, event(1, 1)), Published::Queued(1));
    assert_eq!(refusing.publish(NOW, event(2, 1)), Published::Queued(2));
    let Published::Refused(failure) = refusing.publish(NOW, event(3, 1)) else { panic!("taken") };
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::Overloaded));

    let mut gapping = Queue::new(StreamPolicy { overflow: Overflow::Gap, ..policy });
    let (a, ..) = gapping.attach("a", true, None);
    for number in 1..=3 {
        assert_eq!(gapping.publish(NOW, event(number, 1)), Published::Queued(number));
    }
    assert_eq!(closed(&mut gapping), [(1, 0, 1), (2, 0, 1)], "their publishers are told");
    let ready = gapping.take_ready(NOW);
    assert_eq!((positions(&ready, a), ready[0].1.missed), (vec![(3, 1)], 2), "and the consumer");
    gapping.report(NOW, a, ran(1));
    gapping.publish(NOW, event(4, 1));
    assert_eq!(gapping.take_ready(NOW)[0].1.missed, 0, "once");
}

#[test]
fn a_gap_while_a_batch_is_out_leaves_the_batch_alone() {
    let policy =
        StreamPolicy { backlog_max: 2, overflow: Overflow::Gap, ..StreamPolicy::default() };
    let mut queue = Queue::new(policy);
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    assert_eq!(positions(&queue.take_ready(NOW), a), [(1, 1)]);
    for number in 2..=4 {
        queue.publish(NOW, event(number, 1));
    }
    queue.report(NOW, a, ran(1));
    let ready = queue.take_ready(NOW);
    let got = positions(&ready, a);
    assert_eq!(got.len() as u64 + ready[0].1.missed, 3, "handed out or told: {ready:?}");
}

#[test]
fn who_begins_earlier_gets_what_is_retained_and_owes_nothing_for_it() {
    let policy = StreamPolicy { retained_events: 2, ..StreamPolicy::default() };
    let mut queue = Queue::new(policy);
    let (a, ..) = queue.attach("a", true, None);
    for number in 1..=4 {
        queue.publish(NOW, event(number, 1));
        queue.take_ready(NOW);
        queue.report(NOW, a, ran(1));
    }
    assert_eq!(closed(&mut queue).len(), 4);
    let (b, from, missed) = queue.attach("b", true, Some(1));
    assert_eq!((from, missed), (3, 2), "two are retained, two are told of");
    assert_eq!(positions(&queue.take_ready(NOW), b), [(3, 1), (4, 1)]);
    queue.report(NOW, b, ran(2));
    assert!(closed(&mut queue).is_empty(), "their publishers have heard");
}

#[test]
fn a_consumer_that_goes_leaves_nobody_waiting() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    let (b, ..) = queue.attach("b", true, None);
    queue.publish(NOW, event(1, 1));
    queue.take_ready(NOW);
    queue.report(NOW, a, ran(1));
    queue.detach(b, &DeliveryFailure::rejected(RejectedKind::NoSubscriber, "gone"));
    assert_eq!(closed(&mut queue), [(1, 1, 1)]);
    queue.report(NOW, b, ran(1));
    assert!(closed(&mut queue).is_empty(), "its late answer closes nothing");
}

#[test]
fn what_may_have_run_is_not_told_as_rejected_when_its_consumer_goes() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", true, None);
    queue.publish(NOW, event(1, 1));
    queue.take_ready(NOW);
    queue.publish(NOW, event(2, 1));
    queue.detach(a, &DeliveryFailure::rejected(RejectedKind::NoSubscriber, "gone"));
    let mut told = Vec::new();
    while let Some(output) = queue.poll_output() {
        if let QueueOutput::Closed { summary, .. } = output {
            told.push(summary.failures[0].failure.name());
        }
    }
    assert_eq!(told, ["LostAfterHandOver", "NoSubscriber"]);
}

#[test]
fn an_event_that_nobody_can_be_given_ends_at_its_deadline() {
    let mut queue = queue();
    let (a, ..) = queue.attach("a", false, None);
    queue.publish(NOW, event(1, 1));
    queue.take_ready(NOW);
    queue.report(NOW, a, Report::Lost(moving()));
    let deadline = NOW + Duration::from_secs(30);
    queue.expire(deadline);
    let Some(QueueOutput::DeadLetter { failure, .. }) = queue.poll_output() else {
        panic!("it waits for ever")
    };
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::Overloaded), "it never ran");
    assert_eq!(closed(&mut queue), [(1, 0, 1)]);
}

/// What happens to a queue, drawn.
#[derive(Clone, Debug)]
enum Step {
    Publish { early: bool },
    Again(u64),
    Attach,
    Detach(usize),
    Take,
    Report { which: usize, done: usize, how: u8 },
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<bool>().prop_map(|early| Step::Publish { early }),
        1 => (1..200u64).prop_map(Step::Again),
        1 => Just(Step::Attach),
        1 => (0..4usize).prop_map(Step::Detach),
        4 => Just(Step::Take),
        6 => (0..4usize, 0..6usize, 0..8u8).prop_map(|(which, done, how)| Step::Report {
            which,
            done,
            how
        }),
        2 => Just(Step::Wait),
    ]
}

/// What a model of the queue's consumers and publishers knows.
#[derive(Default)]
struct Model {
    now: u64,
    next_number: u64,
    skipped_number: Option<u64>,
    /// Numbers without an outcome.
    open: BTreeSet<u64>,
    /// Batches that are out.
    out: BTreeMap<ConsumerKey, Batch>,
    attached: Vec<ConsumerKey>,
    /// What each has confirmed, or lost: the last position.
    through: BTreeMap<ConsumerKey, u64>,
    /// Every hand-out that may have run: consumer, position, attempt.
    begun: BTreeSet<(ConsumerKey, u64, u8)>,
}

impl Model {
    fn moment(&self) -> Moment {
        NOW + Duration::from_millis(self.now)
    }

    fn publish(&mut self, queue: &mut Queue, number: u64) {
        let base = self.open.first().copied().unwrap_or(number).min(number);
        self.open.insert(number);
        let deadline = self.moment() + Duration::from_secs(20);
        let event = NewEvent { deadline, waiting: number, ..event(number, base) };
        match queue.publish(self.moment(), event) {
            Published::Refused(_) => drop(self.open.remove(&number)),
            Published::Closed(_) => panic!("{number} has no outcome yet"),
            Published::Queued(_) | Published::Known(_) | Published::Held => {}
        }
    }

    fn take_outputs(&mut self, queue: &mut Queue) {
        while let Some(output) = queue.poll_output() {
            match output {
                QueueOutput::Closed { waiting, .. } => {
                    for number in waiting.into_iter().filter(|number| *number != 0) {
                        assert!(self.open.remove(&number), "{number} was closed twice");
                    }
                }
                QueueOutput::Refused { waiting, .. } => drop(self.open.remove(&waiting)),
                QueueOutput::DeadLetter { .. }
                | QueueOutput::Evict { .. }
                | QueueOutput::Gap { .. } => {}
            }
        }
    }

    fn take(&mut self, queue: &mut Queue) {
        for (key, batch) in queue.take_ready(self.moment()) {
            assert!(self.attached.contains(&key) && !self.out.contains_key(&key));
            let through = self.through.get(&key).copied().unwrap_or(0);
            assert!(batch.positions[0].0 > through, "{key} was handed {batch:?} after {through}");
            assert!(batch.positions.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let most = StreamPolicy::default().attempts_max;
            assert!(
                batch.positions.iter().all(|(_, attempt)| *attempt <= most),
                "{key}: {batch:?}"
            );
            self.out.insert(key, batch);
        }
    }

    fn report(&mut self, queue: &mut Queue, which: usize, done: usize, how: u8) {
        let Some((&key, batch)) = self.out.iter().nth(which) else { return };
        let batch = batch.clone();
        self.out.remove(&key);
        let done = done.min(batch.positions.len());
        let lost = DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, "gone");
        let (began, report) = match how {
            0 => (done + 1, Report::Ran { done, failure: Some(panicked()), reply: None }),
            1 => (done, Report::Ran { done, failure: Some(moving()), reply: None }),
            // One that is handed out again is waited for.
            2 if !batch.is_again => (done, Report::Running { done }),
            3 => (batch.positions.len(), Report::Lost(lost)),
            4 => (0, Report::Lost(moving())),
            _ => (batch.positions.len(), ran(batch.positions.len())),
        };
        if done == batch.positions.len() && how < 3 {
            self.begin(key, &batch, done);
            queue.report(self.moment(), key, ran(done));
        } else {
            self.begin(key, &batch, began);
            queue.report(self.moment(), key, report);
        }
    }

    /// Those events of a batch ran, or may have.
    fn begin(&mut self, key: ConsumerKey, batch: &Batch, count: usize) {
        for (position, attempt) in batch.positions.iter().take(count) {
            let is_new = self.begun.insert((key, *position, *attempt));
            assert!(is_new, "{key} ran {position} twice in attempt {attempt}");
        }
    }

    fn carry_out(&mut self, queue: &mut Queue, step: &Step) {
        match step {
            Step::Publish { early } => {
                let number = self.skipped_number.take().unwrap_or_else(|| {
                    self.next_number += 1;
                    self.next_number
                });
                if *early {
                    // This one comes later; the next one comes first.
                    self.skipped_number = Some(number);
                    self.open.insert(number);
                    self.next_number += 1;
                    let next = self.next_number;
                    self.publish(queue, next);
                } else {
                    self.publish(queue, number);
                }
            }
            Step::Again(number) => {
                if self.open.contains(number) && self.skipped_number != Some(*number) {
                    // Its publisher asks again: an outcome comes for each asking.
                    let base = self.open.first().copied().unwrap_or(*number);
                    let waiting = queue.join(Origin { lane: 7, number: *number }, 0);
                    assert!(!matches!(waiting, Some(Published::Closed(_))) || base > *number);
                }
            }
            Step::Attach if self.attached.len() < 4 => {
                let (key, from, _) = queue.attach("k", self.now.is_multiple_of(2), None);
                self.attached.push(key);
                self.through.insert(key, from - 1);
            }
            Step::Detach(which) if *which < self.attached.len() => {
                let key = self.attached.remove(*which);
                self.out.remove(&key);
                queue.detach(key, &moving());
            }
            Step::Attach | Step::Detach(_) => {}
            Step::Take => self.take(queue),
            Step::Report { which, done, how } => self.report(queue, *which, *done, *how),
            Step::Wait => {
                self.now += 700;
                queue.expire(self.moment());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever is done to it: no event runs twice in one attempt, each is closed once, and when
    /// consumers answer again nothing is left.
    #[test]
    fn every_event_is_closed_once_whatever_happens(steps in prop::collection::vec(step(), 1..120)) {
        let mut queue = queue();
        let mut model = Model::default();
        for step in &steps {
            model.carry_out(&mut queue, step);
            model.take_outputs(&mut queue);
        }
        // Everybody answers from now on, and time passes.
        for _ in 0..200 {
            model.now += 700;
            queue.expire(model.moment());
            model.take(&mut queue);
            let busy: Vec<ConsumerKey> = model.out.keys().copied().collect();
            for _ in busy {
                model.report(&mut queue, 0, 0, 9);
            }
            model.take_outputs(&mut queue);
        }
        if let Some(number) = model.skipped_number {
            model.open.remove(&number);
        }
        prop_assert!(model.open.is_empty(), "without an outcome: {:?}", model.open);
        prop_assert!(queue.is_idle());
    }
}
