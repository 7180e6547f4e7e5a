//! The books: what was sent and what became of it.
//!
//! A post is *silent* if no outcome came within its deadline and a grace, while the pod it was sent
//! from lived. The books of a pod that is killed die with it: what it had under way is *lost with
//! its sender* and counted apart. A delivery from a room to a member is kept in the books of the
//! room's pod, and its pod's drain is the moment to find it silent. *Doubled* is every run of a
//! handler for a number that it, or its predecessor on another pod, had handled before. An event of
//! a stream that was handled comes *again*, marked with a higher attempt, when a pod died before
//! word of that had come: that is told apart, and no doubling.
//!
//! The outcomes are not taken at their word: what was told to be handled is compared with what the
//! pods' journals say has run; the excess is silent.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::clock::micros;
use super::crew::PodId;
use super::journal::Who;
use super::protocol::{Checks, Deliveries, Outcome, PROBES, Tally};
use super::ranges::{Added, Ranges};
use super::tally::histogram;

/// The default deadline of a call, and two seconds for the ledger's tick and for this program's
/// pipes.
const OUTCOME_WITHIN: Duration = Duration::from_secs(32);

/// One direction of the talk.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) sent: u64,
    pub(crate) handled: u64,
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) silent: u64,
    pub(crate) doubled: u64,
    /// Handled before, at an earlier attempt.
    pub(crate) again: u64,
    pub(crate) lost_with_sender: u64,
    /// Messages that have run, each counted once.
    ran: u64,
    /// From the sender to the handler, in microseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Leg {
    fn new() -> Self {
        Self {
            sent: 0,
            handled: 0,
            failed: BTreeMap::new(),
            silent: 0,
            doubled: 0,
            again: 0,
            lost_with_sender: 0,
            ran: 0,
            latency: histogram(),
        }
    }

    fn close(&mut self, deliveries: Deliveries) {
        self.sent += deliveries.sent;
        self.handled += deliveries.handled;
        for (kind, count) in deliveries.failed {
            *self.failed.entry(kind).or_default() += count;
        }
    }
}

/// What was done to the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A newcomer joins, the oldest pod's members move to it, the oldest drains.
    Roll,
    /// The pod with the most members is killed; they move to the others, and it starts again.
    Kill,
    /// The store is stopped, and started again.
    Outage,
}

/// Something was done to the pods.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    /// In words.
    pub(crate) what: String,
    pub(crate) began_us: u64,
    /// How long it took until everything stood again; 0 while it lasts.
    pub(crate) took_us: u64,
    /// The longest that a room with posts waiting handled none of them.
    pub(crate) outage_us: u64,
    /// Of each pod that was up afterwards, how many of its probes came back.
    pub(crate) probes: Vec<u32>,
}

#[derive(Debug)]
struct Sent {
    pod: PodId,
    room: String,
    at_us: u64,
}

#[derive(Debug, Default)]
struct RoomState {
    waiting: u64,
    /// Since when nothing was handled although something waited.
    quiet_since_us: Option<u64>,
}

/// The books.
#[derive(Debug)]
pub(crate) struct Score {
    pub(crate) to_room: Leg,
    /// By calls.
    pub(crate) to_member: Leg,
    /// Publishes; their latency is until their outcome.
    pub(crate) to_stream: Leg,
    /// From a stream to its subscribers, as the outcomes of publishes have it.
    pub(crate) to_subscriber: Leg,
    pub(crate) checks: Checks,
    /// From posting until every member of the room had been delivered to, in microseconds.
    pub(crate) answered: Histogram<u64>,
    pub(crate) troubles: Vec<Trouble>,
    open: BTreeMap<u64, Sent>,
    rooms: BTreeMap<String, RoomState>,
    /// What each pod's rooms have under way: deliveries, and publishes.
    under_way: BTreeMap<PodId, (Deliveries, Deliveries)>,
    /// What has run, by whom.
    ran: BTreeMap<Who, Ranges>,
    /// The same at whichever attempt.
    ran_at_all: BTreeMap<Who, Ranges>,
}

impl Score {
    pub(crate) fn new() -> Self {
        Self {
            to_room: Leg::new(),
            to_member: Leg::new(),
            to_stream: Leg::new(),
            to_subscriber: Leg::new(),
            checks: Checks::default(),
            answered: histogram(),
            troubles: Vec::new(),
            open: BTreeMap::new(),
            rooms: BTreeMap::new(),
            under_way: BTreeMap::new(),
            ran: BTreeMap::new(),
            ran_at_all: BTreeMap::new(),
        }
    }

    /// Posts without an outcome so far.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// All legs, with their names.
    pub(crate) const fn legs(&self) -> [(&'static str, &Leg); 4] {
        [
            ("member → room", &self.to_room),
            ("room → member", &self.to_member),
            ("room → stream", &self.to_stream),
            ("stream → member", &self.to_subscriber),
        ]
    }

    /// Silent and doubled, all legs together.
    pub(crate) fn broken_promises(&self) -> (u64, u64) {
        let legs = self.legs().map(|(_, leg)| leg);
        let silent = legs.iter().map(|leg| leg.silent).sum();
        (silent, legs.iter().map(|leg| leg.doubled).sum())
    }

    /// Probes that did not come back.
    pub(crate) fn probes_failed(&self) -> u32 {
        let probes = self.troubles.iter().flat_map(|trouble| &trouble.probes);
        probes.map(|passed| PROBES - passed).sum()
    }

    /// A post goes to a pod.
    pub(crate) fn sent(&mut self, number: u64, pod: PodId, room: &str, now_us: u64) {
        self.to_room.sent += 1;
        let state = self.rooms.entry(room.to_owned()).or_default();
        state.waiting += 1;
        state.quiet_since_us.get_or_insert(now_us);
        self.open.insert(number, Sent { pod, room: room.to_owned(), at_us: now_us });
    }

    /// A post has ended. One that was found silent before stays silent.
    pub(crate) fn said(&mut self, number: u64, outcome: Outcome, took_us: u64, now_us: u64) {
        let Some(sent) = self.open.remove(&number) else {
            return;
        };
        let quiet = self.room_heard(&sent.room, matches!(outcome, Outcome::Handled), now_us);
        match outcome {
            Outcome::Handled => {
                self.to_room.handled += 1;
                self.answered.saturating_record(took_us);
                if let Some(trouble) = self.troubles.last_mut() {
                    let since_us = quiet.map_or(0, |since| now_us - since.max(trouble.began_us));
                    trouble.outage_us = trouble.outage_us.max(since_us);
                }
            }
            Outcome::Failed(kind) => *self.to_room.failed.entry(kind).or_default() += 1,
        }
    }

    /// Since when the room was quiet, if it was; a post that was handled ends that.
    fn room_heard(&mut self, room: &str, handled: bool, now_us: u64) -> Option<u64> {
        let state = self.rooms.get_mut(room).expect("a post goes to a room before it ends");
        state.waiting -= 1;
        let quiet = state.quiet_since_us;
        if handled {
            state.quiet_since_us = (state.waiting > 0).then_some(now_us);
        }
        quiet
    }

    /// Takes what a pod counted.
    pub(crate) fn tally(&mut self, pod: PodId, tally: Tally) {
        record(&mut self.to_room.latency, &tally.to_room_us);
        record(&mut self.to_member.latency, &tally.to_member_us);
        record(&mut self.to_stream.latency, &tally.published_us);
        record(&mut self.to_subscriber.latency, &tally.to_subscriber_us);
        self.to_subscriber.close(tally.to_subscribers);
        self.checks.add(tally.checks);
        let (delivered, published) = self.under_way.entry(pod).or_default();
        delivered.add(tally.delivered);
        published.add(tally.published);
    }

    /// A handler ran.
    pub(crate) fn ran(&mut self, who: Who, number: u64) {
        let leg = match (who.is_room(), who.is_over_stream()) {
            (true, _) => &mut self.to_room,
            (false, true) => &mut self.to_subscriber,
            (false, false) => &mut self.to_member,
        };
        let at_all = self.ran_at_all.entry(who.of_any_attempt()).or_default().add(number);
        let at_this = self.ran.entry(who).or_default().add(number);
        match (at_all, at_this) {
            (Added::New, _) => leg.ran += 1,
            (Added::Again, Added::New) => leg.again += 1,
            (Added::Again, Added::Again) => leg.doubled += 1,
        }
    }

    /// All journals have been read: what was told to be handled and has not run is silent.
    pub(crate) fn compare(&mut self) {
        for leg in [&mut self.to_room, &mut self.to_member, &mut self.to_subscriber] {
            leg.silent += leg.handled.saturating_sub(leg.ran);
        }
    }

    /// Finds posts whose outcome should have come.
    pub(crate) fn overdue(&mut self, now_us: u64) {
        let limit_us = micros(OUTCOME_WITHIN);
        while let Some(entry) = self.open.first_entry()
            && entry.get().at_us + limit_us < now_us
        {
            let sent = entry.remove();
            self.to_room.silent += 1;
            self.room_heard(&sent.room, false, now_us);
        }
    }

    /// A pod was killed: its books end here.
    pub(crate) fn killed(&mut self, pod: PodId, now_us: u64) {
        let lost: Vec<u64> = self.open_of(pod);
        for number in lost {
            let sent = self.open.remove(&number).expect("found above");
            self.to_room.lost_with_sender += 1;
            self.room_heard(&sent.room, false, now_us);
        }
        let (delivered, published) = self.under_way.remove(&pod).unwrap_or_default();
        self.to_member.lost_with_sender += delivered.open();
        self.to_stream.lost_with_sender += published.open();
        self.to_member.close(delivered);
        self.to_stream.close(published);
    }

    /// A pod has drained: whatever has no outcome now never gets one.
    pub(crate) fn drained(&mut self, pod: PodId, now_us: u64) {
        for number in self.open_of(pod) {
            let sent = self.open.remove(&number).expect("found above");
            self.to_room.silent += 1;
            self.room_heard(&sent.room, false, now_us);
        }
        let (delivered, published) = self.under_way.remove(&pod).unwrap_or_default();
        self.to_member.silent += delivered.open();
        self.to_stream.silent += published.open();
        self.to_member.close(delivered);
        self.to_stream.close(published);
    }

    fn open_of(&self, pod: PodId) -> Vec<u64> {
        let of_pod = self.open.iter().filter(|(_, sent)| sent.pod == pod);
        of_pod.map(|(number, _)| *number).collect()
    }
}

fn record(histogram: &mut Histogram<u64>, counts: &[(u64, u64)]) {
    for &(value, count) in counts {
        histogram.saturating_record_n(value, count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::Over;
    use super::*;

    fn trouble() -> Trouble {
        Trouble {
            kind: Kind::Kill,
            what: String::new(),
            began_us: 100,
            took_us: 0,
            outage_us: 0,
            probes: Vec::new(),
        }
    }

    fn tally(sent: u64, handled: u64) -> Tally {
        let delivered = Deliveries { sent, handled, failed: BTreeMap::new() };
        Tally { delivered, ..Tally::default() }
    }

    #[test]
    fn a_post_without_an_outcome_is_silent_unless_its_sender_died() {
        let (lived, died) = (PodId::first(), PodId::first().next());
        let mut score = Score::new();
        score.sent(1, lived, "lobby", 0);
        score.sent(2, died, "lobby", 0);
        score.sent(3, lived, "lobby", 0);
        score.killed(died, 10);
        score.said(3, Outcome::Handled, 5, 10);
        score.overdue(micros(OUTCOME_WITHIN));
        assert_eq!(score.to_room.silent, 0, "it may still come");
        score.overdue(micros(OUTCOME_WITHIN) + 1);
        assert_eq!((score.to_room.silent, score.to_room.lost_with_sender), (1, 1));
        assert_eq!((score.to_room.handled, score.open()), (1, 0));
    }

    #[test]
    fn a_delivery_open_when_its_pod_has_drained_is_silent() {
        let (drained, killed) = (PodId::first(), PodId::first().next());
        let mut score = Score::new();
        score.tally(drained, tally(5, 3));
        score.tally(drained, tally(0, 1));
        score.tally(killed, tally(4, 2));
        score.drained(drained, 0);
        score.killed(killed, 0);
        assert_eq!((score.to_member.silent, score.to_member.lost_with_sender), (1, 2));
        assert_eq!((score.to_member.sent, score.to_member.handled), (9, 6));
    }

    #[test]
    fn a_handler_that_ran_twice_for_one_number_is_doubled() {
        let mut score = Score::new();
        score.ran(Who::ROOM, 7);
        score.ran(Who::member(0, Over::Call), 7);
        score.ran(Who::member(1, Over::Call), 7);
        assert_eq!(score.broken_promises(), (0, 0));
        score.ran(Who::member(0, Over::Call), 7);
        score.ran(Who::ROOM, 7);
        assert_eq!((score.to_room.doubled, score.to_member.doubled), (1, 1));
    }

    #[test]
    fn an_event_handled_again_is_doubled_only_at_the_same_attempt() {
        let mut score = Score::new();
        score.ran(Who::member(0, Over::Call), 7);
        score.ran(Who::member(0, Over::Stream { attempt: 1 }), 7);
        assert_eq!((score.to_subscriber.doubled, score.to_subscriber.again), (0, 0));
        score.ran(Who::member(0, Over::Stream { attempt: 2 }), 7);
        assert_eq!((score.to_subscriber.doubled, score.to_subscriber.again), (0, 1));
        score.ran(Who::member(0, Over::Stream { attempt: 2 }), 7);
        assert_eq!((score.to_subscriber.doubled, score.to_member.doubled), (1, 0));
    }

    #[test]
    fn an_outcome_without_a_run_is_silent() {
        let mut score = Score::new();
        let to_subscribers = Deliveries { sent: 2, handled: 2, failed: BTreeMap::new() };
        score.tally(PodId::first(), Tally { to_subscribers, ..Tally::default() });
        score.ran(Who::member(0, Over::Stream { attempt: 1 }), 7);
        score.ran(Who::member(0, Over::Stream { attempt: 2 }), 7);
        score.compare();
        assert_eq!(score.broken_promises(), (1, 0), "one member's run is missing");
    }

    #[test]
    fn a_publish_open_when_its_pod_has_drained_is_silent() {
        let mut score = Score::new();
        let published = Deliveries { sent: 2, handled: 1, failed: BTreeMap::new() };
        score.tally(PodId::first(), Tally { published, ..Tally::default() });
        score.drained(PodId::first(), 0);
        assert_eq!((score.to_stream.sent, score.to_stream.silent), (2, 1));
    }

    #[test]
    fn a_probe_that_did_not_come_back_is_counted() {
        let mut score = Score::new();
        for passed in [PROBES, PROBES - 3] {
            score.troubles.push(trouble());
            score.troubles[0].probes.push(passed);
        }
        assert_eq!(score.probes_failed(), 3);
    }

    #[test]
    fn an_outage_is_how_long_a_waiting_room_handled_nothing() {
        let pod = PodId::first();
        let mut score = Score::new();
        score.troubles.push(trouble());
        score.sent(1, pod, "lobby", 50);
        score.sent(2, pod, "lobby", 120);
        score.said(1, Outcome::Failed("TimedOut".into()), 0, 300);
        score.said(2, Outcome::Handled, 0, 400);
        assert_eq!(score.troubles[0].outage_us, 300, "what was quiet before does not count");
    }
}
