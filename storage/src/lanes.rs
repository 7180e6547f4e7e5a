//! The machine behind the store's threads: queues, groups, deadlines, retirement, back-off, health.
//!
//! Three lanes, each with at most one worker that has a connection of its own: membership, loads
//! and writes, so that neither bulk of state nor a lock on it ever delays a heartbeat. Input:
//! requests, workers' results and ends, time. Output: what to start, run, answer and log.
//! Invariants: each request is answered exactly once, at the latest [`STORE_REQUEST_TIME_MAX`]
//! after it came; a request that was handed to a worker is never handed over again, since its
//! outcome is unknown; a worker that does not come back within [`STORE_HANG_AFTER`] is given up
//! with its group, and at most [`STORE_RETIRED_MAX`] such are waited for per lane; an idle one is
//! given up when another lane has lost the store. The caller bounds how many requests are in.
//! Deliberately absent: retries (the asking machine's decision), threads and clocks (the
//! driver's).

use core::time::Duration;
use std::collections::VecDeque;

use siloring_core::Moment;
use siloring_core::event::Event;
use siloring_core::limits::{
    STORE_GROUP_BYTES_MAX, STORE_GROUP_MAX, STORE_HANG_AFTER, STORE_RECONNECT_MAX,
    STORE_RECONNECT_MIN, STORE_REQUEST_TIME_MAX, STORE_RETIRED_MAX,
};
use siloring_core::ports::store::{StoreError, StoreRequest, StoreResult};

use crate::judge::{not_sent, unavailable};

/// Which of the store's threads does it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Lane {
    /// The table, heartbeats and settings.
    Membership,
    /// Loads of grain state, subscriptions and dead letters.
    Reader,
    /// Writes of them.
    Writer,
}

impl Lane {
    pub(crate) const ALL: [Self; 3] = [Self::Membership, Self::Reader, Self::Writer];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Membership => "membership",
            Self::Reader => "reader",
            Self::Writer => "writer",
        }
    }

    const fn of(request: &StoreRequest) -> Self {
        match request {
            StoreRequest::ReadTable
            | StoreRequest::WriteRow { .. }
            | StoreRequest::RemoveDead { .. }
            | StoreRequest::Heartbeat { .. }
            | StoreRequest::Settings { .. } => Self::Membership,
            StoreRequest::LoadState { .. }
            | StoreRequest::LoadSubscriptions { .. }
            | StoreRequest::ListSubscriptions { .. }
            | StoreRequest::ReadDeadLetters { .. } => Self::Reader,
            StoreRequest::WriteState { .. }
            | StoreRequest::WriteSubscription { .. }
            | StoreRequest::RemoveSubscription { .. }
            | StoreRequest::SweepSubscriptions { .. }
            | StoreRequest::WriteDeadLetter(_) => Self::Writer,
        }
    }
}

/// Names one worker of all that ever were.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct WorkerId(pub(crate) u64);

/// What the driver is to do.
#[derive(Debug)]
pub(crate) enum Output<T> {
    /// Start a worker.
    Start { lane: Lane, worker: WorkerId },
    /// Have a worker run a group. It has no other.
    Run { worker: WorkerId, group: Vec<StoreRequest> },
    /// Forget a worker: it ends once it comes back, and its results are for nobody.
    GiveUp { worker: WorkerId },
    /// Answer a request.
    Answer { ticket: T, result: StoreResult },
    /// Log.
    Event(Event),
}

/// The machine. `T` is what answers are addressed with.
#[derive(Debug)]
pub(crate) struct Lanes<T> {
    states: [LaneState<T>; 3],
    /// Entropy of the back-off.
    rng: fastrand::Rng,
    next_worker: u64,
    health: Health,
    outputs: VecDeque<Output<T>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Up,
    Down,
}

#[derive(Debug)]
struct LaneState<T> {
    lane: Lane,
    /// Not handed to a worker yet, oldest first.
    waiting: VecDeque<Waiting<T>>,
    worker: Worker<T>,
    retired: Vec<WorkerId>,
    /// No group is run before.
    retry_at: Moment,
    /// The longest wait after the next failure.
    backoff: Duration,
    health: Health,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: T,
    request: StoreRequest,
    expires: Moment,
}

#[derive(Debug)]
enum Worker<T> {
    None,
    Idle(WorkerId),
    Busy { id: WorkerId, group: Vec<Flying<T>>, overdue: Moment },
}

/// A request that a worker has. `None`: answered before the worker was done.
#[derive(Debug)]
struct Flying<T> {
    ticket: Option<T>,
    expires: Moment,
}

impl<T> Lanes<T> {
    /// A machine whose jitter is drawn from `rng`.
    pub(crate) fn new(rng: fastrand::Rng) -> Self {
        Self {
            states: Lane::ALL.map(LaneState::new),
            rng,
            next_worker: 0,
            health: Health::Up,
            outputs: VecDeque::new(),
        }
    }

    /// Takes a request.
    pub(crate) fn handle_request(&mut self, now: Moment, ticket: T, request: StoreRequest) {
        let lane = Lane::of(&request);
        let expires = now + STORE_REQUEST_TIME_MAX;
        self.lane(lane).waiting.push_back(Waiting { ticket, request, expires });
        self.dispatch(now, lane);
    }

    /// Takes a worker's results, one for each request of its group.
    pub(crate) fn handle_results(
        &mut self,
        now: Moment,
        lane: Lane,
        worker: WorkerId,
        results: Vec<StoreResult>,
    ) {
        let state = self.lane(lane);
        let group = match core::mem::replace(&mut state.worker, Worker::None) {
            Worker::Busy { id, group, .. } if id == worker => group,
            // Given up: its requests have been answered.
            other @ (Worker::None | Worker::Idle(_) | Worker::Busy { .. }) => {
                state.worker = other;
                return;
            }
        };
        state.worker = Worker::Idle(worker);
        assert_eq!(group.len(), results.len(), "a result for each request of the group");
        let failure = results.iter().find_map(outage_detail);
        for (flying, result) in group.into_iter().zip(results) {
            if let Some(ticket) = flying.ticket {
                self.outputs.push_back(Output::Answer { ticket, result });
            }
        }
        match failure {
            Some(detail) => self.fail(now, lane, detail),
            None => self.succeed(now, lane),
        }
        self.dispatch(now, lane);
    }

    /// Takes note that a worker has ended: given up before, or died of itself.
    pub(crate) fn handle_end(&mut self, now: Moment, lane: Lane, worker: WorkerId) {
        let state = self.lane(lane);
        state.retired.retain(|retired| *retired != worker);
        let group = match core::mem::replace(&mut state.worker, Worker::None) {
            Worker::Busy { id, group, .. } if id == worker => Some(group),
            Worker::Idle(id) if id == worker => Some(Vec::new()),
            other @ (Worker::None | Worker::Idle(_) | Worker::Busy { .. }) => {
                state.worker = other;
                None
            }
        };
        if let Some(group) = group {
            let detail = format!("the {} thread of the store died", lane.name());
            self.answer_unavailable(group, &detail);
            self.fail(now, lane, detail);
        }
        self.dispatch(now, lane);
    }

    /// Lets time pass: ends what has expired, gives up what hangs, runs what has waited for its
    /// retry.
    pub(crate) fn tick(&mut self, now: Moment) {
        for lane in Lane::ALL {
            self.expire(now, lane);
            self.give_up_overdue(now, lane);
            self.dispatch(now, lane);
        }
    }

    /// When [`Self::tick`] is next due.
    pub(crate) fn next_deadline(&self) -> Moment {
        self.states.iter().map(LaneState::next_deadline).min().unwrap_or(Moment::NEVER)
    }

    /// Answers everything that is in as unavailable and gives every worker up: the silo is ending.
    pub(crate) fn abandon(&mut self, detail: &str) {
        for lane in Lane::ALL {
            let state = self.lane(lane);
            let waiting = core::mem::take(&mut state.waiting);
            let worker = core::mem::replace(&mut state.worker, Worker::None);
            for waiting in waiting {
                let result = Err(not_sent(detail));
                self.outputs.push_back(Output::Answer { ticket: waiting.ticket, result });
            }
            match worker {
                Worker::None => {}
                Worker::Idle(worker) => self.outputs.push_back(Output::GiveUp { worker }),
                Worker::Busy { id, group, .. } => {
                    self.answer_unavailable(group, detail);
                    self.outputs.push_back(Output::GiveUp { worker: id });
                }
            }
        }
    }

    /// Whether nothing waits and nothing runs.
    pub(crate) fn is_empty(&self) -> bool {
        let busy = |state: &LaneState<T>| matches!(state.worker, Worker::Busy { .. });
        self.states.iter().all(|state| state.waiting.is_empty() && !busy(state))
    }

    /// The next thing to do.
    pub(crate) fn poll_output(&mut self) -> Option<Output<T>> {
        self.outputs.pop_front()
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState<T> {
        &mut self.states[lane as usize]
    }

    /// Hands the lane's worker what waits, if it may run.
    fn dispatch(&mut self, now: Moment, lane: Lane) {
        let next_worker = WorkerId(self.next_worker);
        let state = self.lane(lane);
        if state.waiting.is_empty() || now < state.retry_at {
            return;
        }
        let (id, is_new) = match state.worker {
            Worker::Idle(id) => (id, false),
            Worker::None if state.retired.len() < STORE_RETIRED_MAX => (next_worker, true),
            Worker::None | Worker::Busy { .. } => return,
        };
        let (flying, group) = state.take_group();
        state.worker = Worker::Busy { id, group: flying, overdue: now + STORE_HANG_AFTER };
        if is_new {
            self.next_worker += 1;
            self.outputs.push_back(Output::Start { lane, worker: id });
        }
        self.outputs.push_back(Output::Run { worker: id, group });
    }

    fn expire(&mut self, now: Moment, lane: Lane) {
        let state = self.lane(lane);
        let mut expired = Vec::new();
        while state.waiting.front().is_some_and(|waiting| waiting.expires <= now) {
            expired.extend(state.waiting.pop_front().map(|waiting| waiting.ticket));
        }
        let unsent = not_sent("it did not come to the request in time");
        let sent = unavailable("no answer in time; whether the change was made is unknown");
        let mut unanswered = Vec::new();
        if let Worker::Busy { group, .. } = &mut state.worker {
            let overdue = group.iter_mut().filter(|flying| flying.expires <= now);
            unanswered.extend(overdue.filter_map(|flying| flying.ticket.take()));
        }
        let expired = expired.into_iter().map(|ticket| (ticket, unsent.clone()));
        for (ticket, error) in expired.chain(unanswered.into_iter().map(|t| (t, sent.clone()))) {
            self.outputs.push_back(Output::Answer { ticket, result: Err(error) });
        }
    }

    fn give_up_overdue(&mut self, now: Moment, lane: Lane) {
        let state = self.lane(lane);
        let is_overdue = matches!(state.worker, Worker::Busy { overdue, .. } if overdue <= now);
        if !is_overdue {
            return;
        }
        let Worker::Busy { id, group, .. } = core::mem::replace(&mut state.worker, Worker::None)
        else {
            unreachable!("matched above");
        };
        state.retired.push(id);
        self.outputs.push_back(Output::GiveUp { worker: id });
        let detail = format!(
            "no answer within {STORE_HANG_AFTER:?}; whether the change was made is unknown"
        );
        self.answer_unavailable(group, &detail);
        self.fail(now, lane, detail);
    }

    fn answer_unavailable(&mut self, group: Vec<Flying<T>>, detail: &str) {
        for ticket in group.into_iter().filter_map(|flying| flying.ticket) {
            let result = Err(unavailable(detail));
            self.outputs.push_back(Output::Answer { ticket, result });
        }
    }

    /// A group failed: the lane waits, longer each time, never in step with other silos.
    fn fail(&mut self, now: Moment, lane: Lane, detail: String) {
        let share = self.rng.f64();
        let state = self.lane(lane);
        let half = state.backoff / 2;
        state.retry_at = now + half + half.mul_f64(share);
        state.backoff = (state.backoff * 2).min(STORE_RECONNECT_MAX);
        if core::mem::replace(&mut state.health, Health::Down) == Health::Up {
            self.give_up_idle(lane);
        }
        if self.health == Health::Up {
            self.health = Health::Down;
            self.outputs.push_back(Output::Event(Event::StoreUnavailable { detail }));
        }
    }

    /// Lanes that are idle begin with a new connection: what cut this lane's has cut theirs, and
    /// their first requests after the store's return would be the ones to find out.
    fn give_up_idle(&mut self, failed: Lane) {
        for state in self.states.iter_mut().filter(|state| state.lane != failed) {
            if let Worker::Idle(worker) = state.worker {
                state.worker = Worker::None;
                self.outputs.push_back(Output::GiveUp { worker });
            }
        }
    }

    /// A group went through: so a lane that has nothing to try with is taken to be well again.
    fn succeed(&mut self, now: Moment, lane: Lane) {
        for state in &mut self.states {
            if state.lane == lane || state.waiting.is_empty() {
                state.health = Health::Up;
                state.retry_at = now;
                state.backoff = STORE_RECONNECT_MIN;
            }
        }
        let all_up = self.states.iter().all(|state| state.health == Health::Up);
        if all_up && self.health == Health::Down {
            self.health = Health::Up;
            self.outputs.push_back(Output::Event(Event::StoreAvailable {}));
        }
    }
}

impl<T> LaneState<T> {
    fn new(lane: Lane) -> Self {
        Self {
            lane,
            waiting: VecDeque::new(),
            worker: Worker::None,
            retired: Vec::new(),
            retry_at: Moment::ZERO,
            backoff: STORE_RECONNECT_MIN,
            health: Health::Up,
        }
    }

    /// Takes what one transaction may: at least one request, then up to the bounds.
    fn take_group(&mut self) -> (Vec<Flying<T>>, Vec<StoreRequest>) {
        let mut flying = Vec::new();
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.waiting.front() {
            bytes += request_bytes(&next.request);
            let is_full = group.len() == STORE_GROUP_MAX || bytes > STORE_GROUP_BYTES_MAX;
            if is_full && !group.is_empty() {
                break;
            }
            let next = self.waiting.pop_front().expect("it has a front");
            flying.push(Flying { ticket: Some(next.ticket), expires: next.expires });
            group.push(next.request);
        }
        (flying, group)
    }

    fn next_deadline(&self) -> Moment {
        let expiry = self.waiting.front().map(|waiting| waiting.expires);
        let (may_run, worker) = match &self.worker {
            Worker::None => (self.retired.len() < STORE_RETIRED_MAX, None),
            Worker::Idle(_) => (true, None),
            Worker::Busy { group, overdue, .. } => {
                let open = group.iter().filter(|flying| flying.ticket.is_some());
                let first = open.map(|flying| flying.expires).min();
                (false, Some(first.unwrap_or(Moment::NEVER).min(*overdue)))
            }
        };
        let retry = (may_run && !self.waiting.is_empty()).then_some(self.retry_at);
        [expiry, worker, retry].into_iter().flatten().min().unwrap_or(Moment::NEVER)
    }
}

/// The bytes of state or body in a request, which is what can be large in one.
pub(crate) fn request_bytes(request: &StoreRequest) -> usize {
    match request {
        StoreRequest::WriteState { record, .. } => {
            record.as_ref().map_or(0, |record| record.bytes.len())
        }
        StoreRequest::ReadTable
        | StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. }
        | StoreRequest::LoadState { .. }
        | StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::WriteSubscription { .. }
        | StoreRequest::RemoveSubscription { .. }
        | StoreRequest::SweepSubscriptions { .. }
        | StoreRequest::ReadDeadLetters { .. } => 0,
        StoreRequest::WriteDeadLetter(letter) => letter.body.len(),
    }
}

fn outage_detail(result: &StoreResult) -> Option<String> {
    match result {
        Err(StoreError::NotSent { detail } | StoreError::Unavailable { detail }) => {
            Some(detail.clone())
        }
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::ports::store::StoreAnswer;
    use siloring_core::{Address, ViewNumber};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What came out, in short.
    #[derive(Debug, Default)]
    struct Seen {
        started: Vec<Lane>,
        groups: Vec<(WorkerId, usize)>,
        given_up: Vec<WorkerId>,
        answers: Vec<(u32, bool)>,
        events: Vec<&'static str>,
    }

    fn drain(lanes: &mut Lanes<u32>) -> Seen {
        let mut seen = Seen::default();
        while let Some(output) = lanes.poll_output() {
            match output {
                Output::Start { lane, .. } => seen.started.push(lane),
                Output::Run { worker, group } => seen.groups.push((worker, group.len())),
                Output::GiveUp { worker } => seen.given_up.push(worker),
                Output::Answer { ticket, result } => seen.answers.push((ticket, result.is_ok())),
                Output::Event(event) => seen.events.push(event.name()),
            }
        }
        seen
    }

    fn lanes() -> Lanes<u32> {
        Lanes::new(fastrand::Rng::with_seed(7))
    }

    fn done(count: usize) -> Vec<StoreResult> {
        (0..count).map(|_| Ok(StoreAnswer::Done)).collect()
    }

    fn down(count: usize) -> Vec<StoreResult> {
        (0..count).map(|_| Err(unavailable("down"))).collect()
    }

    #[test]
    fn what_waits_while_a_group_runs_becomes_the_next_group() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        for ticket in 0..5 {
            lanes.handle_request(now, ticket, StoreRequest::ReadTable);
        }
        let seen = drain(&mut lanes);
        assert_eq!(
            (seen.started, &seen.groups[..]),
            (vec![Lane::Membership], &[(WorkerId(0), 1)][..])
        );
        lanes.handle_results(now, Lane::Membership, WorkerId(0), done(1));
        let seen = drain(&mut lanes);
        assert_eq!((seen.answers, seen.groups), (vec![(0, true)], vec![(WorkerId(0), 4)]));
    }

    #[test]
    fn subscriptions_are_loaded_and_written_beside_each_other_and_never_before_a_heartbeat() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        let stream = Address::of("stream", "orders/7").unwrap();
        let gone = Vec::new();
        let view = ViewNumber(1);
        let load = StoreRequest::LoadSubscriptions { stream: stream.clone() };
        let letters = StoreRequest::ReadDeadLetters { stream, limit: 1 };
        let sweep = StoreRequest::SweepSubscriptions { gone, view };
        for (ticket, request) in [load, letters, sweep].into_iter().enumerate() {
            lanes.handle_request(now, u32::try_from(ticket).unwrap(), request);
        }
        assert_eq!(drain(&mut lanes).started, [Lane::Reader, Lane::Writer]);
        lanes.handle_request(now, 9, StoreRequest::ReadTable);
        assert_eq!(drain(&mut lanes).started, [Lane::Membership], "it waits for none of them");
    }

    /// One lane finds the store gone: the connection of an idle one is as dead, and would be found
    /// so by its first request after the store's return.
    #[test]
    fn an_idle_lane_begins_anew_when_another_finds_the_store_gone() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        let stream = Address::of("stream", "orders/7").unwrap();
        let load = StoreRequest::LoadSubscriptions { stream };
        lanes.handle_request(now, 1, load.clone());
        lanes.handle_results(now, Lane::Reader, WorkerId(0), done(1));
        lanes.handle_request(now, 2, StoreRequest::ReadTable);
        drain(&mut lanes);
        lanes.handle_results(now, Lane::Membership, WorkerId(1), down(1));
        assert_eq!(drain(&mut lanes).given_up, [WorkerId(0)], "the reader's");
        lanes.handle_end(now, Lane::Reader, WorkerId(0));
        let mut later = now + STORE_RECONNECT_MAX;
        lanes.handle_request(later, 3, StoreRequest::ReadTable);
        lanes.handle_results(later, Lane::Membership, WorkerId(1), down(1));
        assert!(drain(&mut lanes).given_up.is_empty(), "nobody is left");
        later += STORE_RECONNECT_MAX;
        lanes.handle_request(later, 4, load);
        let seen = drain(&mut lanes);
        assert_eq!((seen.started, seen.groups), (vec![Lane::Reader], vec![(WorkerId(2), 1)]));
    }

    #[test]
    fn a_hanging_worker_is_given_up_and_its_late_results_are_for_nobody() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        lanes.handle_request(now, 1, StoreRequest::ReadTable);
        drain(&mut lanes);
        assert_eq!(lanes.next_deadline(), now + STORE_HANG_AFTER);
        let later = now + STORE_HANG_AFTER;
        lanes.tick(later);
        let seen = drain(&mut lanes);
        assert_eq!((seen.given_up, seen.answers), (vec![WorkerId(0)], vec![(1, false)]));
        assert_eq!(seen.events, ["StoreUnavailable"]);
        lanes.handle_results(later, Lane::Membership, WorkerId(0), done(1));
        assert!(drain(&mut lanes).answers.is_empty(), "answered once already");
        lanes.handle_request(later, 2, StoreRequest::ReadTable);
        lanes.tick(later + STORE_RECONNECT_MAX);
        assert_eq!(drain(&mut lanes).groups, vec![(WorkerId(1), 1)], "a new worker takes over");
    }

    #[test]
    fn workers_given_up_are_bounded_and_the_lane_comes_back_when_one_ends() {
        let (mut lanes, mut now) = (lanes(), Moment::ZERO + SECOND);
        for _ in 0..STORE_RETIRED_MAX {
            lanes.handle_request(now, 0, StoreRequest::ReadTable);
            now += STORE_RECONNECT_MAX;
            lanes.tick(now);
            now += STORE_HANG_AFTER;
            lanes.tick(now);
        }
        assert_eq!(drain(&mut lanes).given_up.len(), STORE_RETIRED_MAX);
        lanes.handle_request(now, 1, StoreRequest::ReadTable);
        now += STORE_RECONNECT_MAX;
        lanes.tick(now);
        assert!(drain(&mut lanes).groups.is_empty(), "no thread is left to start");
        lanes.handle_end(now, Lane::Membership, WorkerId(0));
        assert_eq!(drain(&mut lanes).groups.len(), 1);
    }

    #[test]
    fn every_request_is_answered_by_its_deadline_also_without_a_worker() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        lanes.handle_request(now, 1, StoreRequest::ReadTable);
        lanes.handle_request(now + SECOND, 2, StoreRequest::ReadTable);
        lanes.handle_results(now + SECOND, Lane::Membership, WorkerId(0), down(1));
        let mut at = now + SECOND;
        while lanes.next_deadline() < now + SECOND + STORE_REQUEST_TIME_MAX {
            at = lanes.next_deadline();
            lanes.tick(at);
        }
        assert!(at > now, "it ran again after the back-off");
        lanes.tick(now + SECOND + STORE_REQUEST_TIME_MAX);
        assert_eq!(drain(&mut lanes).answers, vec![(1, false), (2, false)]);
        assert!(lanes.is_empty());
    }

    #[test]
    fn the_wait_after_a_failure_grows_to_its_bound_and_is_jittered() {
        let (mut lanes, mut now) = (lanes(), Moment::ZERO + SECOND);
        let mut waits = Vec::new();
        for ticket in 0..8 {
            lanes.handle_request(now, ticket, StoreRequest::ReadTable);
            lanes.handle_results(now, Lane::Membership, WorkerId(0), down(1));
            lanes.handle_request(now, 100 + ticket, StoreRequest::ReadTable);
            let retry = lanes.next_deadline();
            waits.push(retry.since(now));
            now = retry;
            lanes.tick(now);
            lanes.handle_results(now, Lane::Membership, WorkerId(0), down(1));
            now += STORE_RECONNECT_MAX;
        }
        assert!(waits[0] >= STORE_RECONNECT_MIN / 2 && waits[0] <= STORE_RECONNECT_MIN);
        assert!(waits.iter().all(|wait| *wait <= STORE_RECONNECT_MAX), "{waits:?}");
        assert!(waits[7] >= STORE_RECONNECT_MAX / 2 && waits[6] != waits[7], "{waits:?}");
    }

    #[test]
    fn health_changes_are_told_once_each() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        for round in 0..2 {
            lanes.handle_request(now + SECOND * 3 * round, round, StoreRequest::ReadTable);
            let at = now + SECOND * 3 * round;
            lanes.tick(at);
            lanes.handle_results(at, Lane::Membership, WorkerId(0), down(1));
        }
        assert_eq!(drain(&mut lanes).events, ["StoreUnavailable"]);
        let at = now + SECOND * 9;
        lanes.handle_request(at, 9, StoreRequest::ReadTable);
        lanes.handle_results(at, Lane::Membership, WorkerId(0), done(1));
        assert_eq!(drain(&mut lanes).events, ["StoreAvailable"]);
    }

    #[test]
    fn a_worker_that_dies_answers_nothing_wrong_and_is_replaced() {
        let (mut lanes, now) = (lanes(), Moment::ZERO + SECOND);
        lanes.handle_request(now, 1, StoreRequest::ReadTable);
        lanes.handle_end(now, Lane::Membership, WorkerId(0));
        assert_eq!(drain(&mut lanes).answers, vec![(1, false)]);
        lanes.handle_request(now, 2, StoreRequest::ReadTable);
        lanes.tick(now + STORE_RECONNECT_MAX);
        assert_eq!(drain(&mut lanes).groups, vec![(WorkerId(1), 1)]);
    }
}
