//! The desk at the store: tickets, one table errand and one heartbeat under way, waits after
//! failures.
//!
//! **Contract.** An errand that is not answered within the store's own bound counts as answered
//! `Unavailable`; a later answer to its ticket is ignored. After any outcome but success the table
//! is unknown to the caller, who reads before it writes. Deliberately absent: what to ask, and
//! when.

use std::collections::VecDeque;

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::limits::{
    CONFLICT_BACKOFF_MAX, LEASE_RENEW_PERIOD, STORE_RECONNECT_MIN, STORE_REQUEST_TIME_MAX,
};
use siloring_core::ports::store::{
    Setting, StoreAnswer, StoreError, StoreRequest, StoreResult, Table,
};
use siloring_core::{Generation, Moment, SiloRow, ViewNumber};

use super::{ControlOutput, StoreTicket};

/// What a change does to the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Edit {
    /// Inserts or replaces the row of its generation.
    Row(SiloRow),
    /// Removes the rows of these, if Dead.
    Remove(Vec<Generation>),
}

/// Why a change is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// Our own first row.
    Joining,
    /// Our own next status.
    Status,
    /// A vote that does not suffice yet.
    Vote(&'static str),
    /// A death: voted, superseded by a restart, or stale.
    Death(&'static str),
    /// Clean-up of dead rows.
    Prune,
    /// The store lost what this silo had seen.
    Repair,
}

/// One write of the table under compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    pub(super) expected: ViewNumber,
    pub(super) next: ViewNumber,
    pub(super) edit: Edit,
    pub(super) why: Why,
}

impl Change {
    /// The version after `expected`, with `row` in it.
    pub(super) fn row(expected: ViewNumber, row: SiloRow, why: Why) -> Self {
        Self::row_as(expected, expected.next(), row, why)
    }

    /// Version `next` after `expected`, with `row` in it.
    pub(super) fn row_as(
        expected: ViewNumber,
        next: ViewNumber,
        mut row: SiloRow,
        why: Why,
    ) -> Self {
        assert!(next > expected, "a change raises the version");
        row.changed_in = next;
        Self { expected, next, edit: Edit::Row(row), why }
    }

    /// The version after `expected`, without these rows.
    pub(super) fn remove(expected: ViewNumber, generations: Vec<Generation>) -> Self {
        let edit = Edit::Remove(generations);
        Self { expected, next: expected.next(), edit, why: Why::Prune }
    }

    fn request(&self) -> StoreRequest {
        let (expected, next) = (self.expected, self.next);
        match &self.edit {
            Edit::Row(row) => StoreRequest::WriteRow { expected, next, row: row.clone() },
            Edit::Remove(generations) => {
                StoreRequest::RemoveDead { expected, next, generations: generations.clone() }
            }
        }
    }
}

/// What the store is asked concerning the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Errand {
    /// Lay down or compare the cluster's settings.
    Settings(Vec<Setting>),
    /// Read the table; with the count of views adopted before it was asked.
    Read(u64),
    /// Change it.
    Write(Change),
}

/// What became of an errand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Settled {
    /// Not of an errand under way: a heartbeat, or a late answer.
    Nothing,
    /// The settings that hold.
    Settings(Vec<Setting>),
    /// The table as it was at some time after `asked`.
    Table { table: Table, asked: Moment, adoptions: u64 },
    /// The change was made, at some time after `asked`.
    Written { change: Change, asked: Moment },
    /// Somebody else changed the table first.
    Lost,
    /// The store did not answer: whether a change was made is unknown.
    Unknown(Option<Change>),
    /// The store refused for good.
    Refused(Refusal),
}

/// Why a store refused for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// It lacks a table or phase.
    NotMigrated { missing: String, url: String },
    /// For another reason, in its words.
    Other(String),
}

#[derive(Debug)]
struct Flight {
    ticket: StoreTicket,
    errand: Errand,
    asked: Moment,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Health {
    Up,
    /// With what it said last.
    Down(String),
}

#[derive(Debug)]
pub(super) struct Desk {
    tickets: u64,
    flight: Option<Flight>,
    heartbeat: Option<(StoreTicket, Moment)>,
    resume_at: Moment,
    failures: u32,
    conflicts: u32,
    health: Health,
}

/// An errand may take this long: the store's own bound, and the way there and back.
const ERRAND_TIME_MAX: Duration =
    STORE_REQUEST_TIME_MAX.checked_add(Duration::from_secs(1)).expect("no overflow");

impl Desk {
    pub(super) const fn new() -> Self {
        Self {
            tickets: 0,
            flight: None,
            heartbeat: None,
            resume_at: Moment::ZERO,
            failures: 0,
            conflicts: 0,
            health: Health::Up,
        }
    }

    /// Whether an errand may be given now.
    pub(super) fn is_free(&self, now: Moment) -> bool {
        self.flight.is_none() && now >= self.resume_at
    }

    /// Whether a heartbeat may be given now.
    pub(super) const fn is_heartbeat_free(&self) -> bool {
        self.heartbeat.is_none()
    }

    /// What the store said last, while it is not available.
    pub(super) fn trouble(&self) -> Option<&str> {
        match &self.health {
            Health::Up => None,
            Health::Down(detail) => Some(detail),
        }
    }

    /// When something is due here.
    pub(super) fn deadline(&self) -> Moment {
        let flight = self.flight.as_ref().map_or(self.resume_at, |f| f.asked + ERRAND_TIME_MAX);
        let beat = self.heartbeat.map_or(Moment::NEVER, |(_, asked)| asked + ERRAND_TIME_MAX);
        flight.min(beat)
    }

    pub(super) fn ask(&mut self, now: Moment, errand: Errand, out: &mut VecDeque<ControlOutput>) {
        assert!(self.is_free(now), "one errand at a time");
        let request = match &errand {
            Errand::Settings(ours) => StoreRequest::Settings { ours: ours.clone() },
            Errand::Read(_) => StoreRequest::ReadTable,
            Errand::Write(change) => change.request(),
        };
        let ticket = self.ticket();
        self.flight = Some(Flight { ticket, errand, asked: now });
        out.push_back(ControlOutput::Store(ticket, request));
    }

    pub(super) fn beat(
        &mut self,
        now: Moment,
        generation: Generation,
        counter: u64,
        out: &mut VecDeque<ControlOutput>,
    ) {
        assert!(self.is_heartbeat_free(), "one heartbeat at a time");
        let ticket = self.ticket();
        self.heartbeat = Some((ticket, now));
        out.push_back(ControlOutput::Store(
            ticket,
            StoreRequest::Heartbeat { generation, counter },
        ));
    }

    /// Asks without waiting for the answer: the last word of a joiner that gives up.
    pub(super) fn ask_and_leave(&mut self, change: &Change, out: &mut VecDeque<ControlOutput>) {
        let ticket = self.ticket();
        out.push_back(ControlOutput::Store(ticket, change.request()));
    }

    pub(super) fn settle(
        &mut self,
        now: Moment,
        ticket: StoreTicket,
        result: StoreResult,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<ControlOutput>,
    ) -> Settled {
        if self.heartbeat.is_some_and(|(own, _)| own == ticket) {
            self.heartbeat = None;
            return Settled::Nothing;
        }
        let Some(flight) = self.flight.take_if(|flight| flight.ticket == ticket) else {
            return Settled::Nothing;
        };
        match result {
            Ok(answer) => {
                self.failures = 0;
                if self.health != Health::Up {
                    self.health = Health::Up;
                    out.push_back(ControlOutput::Event(Event::StoreAvailable {}));
                }
                self.answered(flight, answer)
            }
            Err(error) => self.failed(now, flight, error, rng, out),
        }
    }

    /// Gives up on what the store has not answered for too long.
    pub(super) fn expire(
        &mut self,
        now: Moment,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<ControlOutput>,
    ) -> Settled {
        self.heartbeat.take_if(|(_, asked)| now.since(*asked) >= ERRAND_TIME_MAX);
        let overdue = |flight: &mut Flight| now.since(flight.asked) >= ERRAND_TIME_MAX;
        match self.flight.take_if(overdue) {
            Some(flight) => self.unknown(now, flight, "no answer in time".into(), rng, out),
            None => Settled::Nothing,
        }
    }

    fn answered(&mut self, flight: Flight, answer: StoreAnswer) -> Settled {
        let asked = flight.asked;
        match (flight.errand, answer) {
            (Errand::Settings(_), StoreAnswer::Settings(settings)) => Settled::Settings(settings),
            (Errand::Read(adoptions), StoreAnswer::Table(table)) => {
                Settled::Table { table, asked, adoptions }
            }
            (Errand::Write(change), StoreAnswer::Done) => {
                self.conflicts = 0;
                Settled::Written { change, asked }
            }
            (errand, answer) => {
                let detail = format!("{answer:?} is no answer to {errand:?}");
                Settled::Refused(Refusal::Other(detail))
            }
        }
    }

    fn failed(
        &mut self,
        now: Moment,
        flight: Flight,
        error: StoreError,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<ControlOutput>,
    ) -> Settled {
        match error {
            StoreError::NotSent { detail } | StoreError::Unavailable { detail } => {
                self.unknown(now, flight, detail, rng, out)
            }
            StoreError::Conflict | StoreError::DeadStaysDead | StoreError::Fenced => {
                self.conflicts = self.conflicts.saturating_add(1);
                let most = Duration::from_millis(1 << self.conflicts.min(6));
                self.resume_at = now + random_below(rng, most.min(CONFLICT_BACKOFF_MAX));
                Settled::Lost
            }
            // Also a refusal may end, when an operator repairs what it names: it is asked again.
            StoreError::NotMigrated { missing, url } => {
                self.back_off(now, format!("it lacks {missing}"), rng, out);
                Settled::Refused(Refusal::NotMigrated { missing, url })
            }
            StoreError::Refused { detail } => {
                self.back_off(now, detail.clone(), rng, out);
                Settled::Refused(Refusal::Other(detail))
            }
            // A kind that was added to the port later: nothing is known of what it did.
            other => self.unknown(now, flight, other.to_string(), rng, out),
        }
    }

    fn unknown(
        &mut self,
        now: Moment,
        flight: Flight,
        detail: String,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<ControlOutput>,
    ) -> Settled {
        self.back_off(now, detail, rng, out);
        match flight.errand {
            Errand::Write(change) => Settled::Unknown(Some(change)),
            Errand::Settings(_) | Errand::Read(_) => Settled::Unknown(None),
        }
    }

    fn back_off(
        &mut self,
        now: Moment,
        detail: String,
        rng: &mut fastrand::Rng,
        out: &mut VecDeque<ControlOutput>,
    ) {
        if self.health == Health::Up {
            let detail = detail.clone();
            out.push_back(ControlOutput::Event(Event::StoreUnavailable { detail }));
        }
        self.health = Health::Down(detail);
        let wait = STORE_RECONNECT_MIN * (1 << self.failures.min(3));
        self.failures = self.failures.saturating_add(1);
        // Not longer than a renewal of the lease may wait.
        let wait = wait.min(LEASE_RENEW_PERIOD);
        self.resume_at = now + wait / 2 + random_below(rng, wait / 2);
    }

    fn ticket(&mut self) -> StoreTicket {
        self.tickets += 1;
        StoreTicket(self.tickets)
    }
}

/// A random duration below `bound`.
pub(super) fn random_below(rng: &mut fastrand::Rng, bound: Duration) -> Duration {
    let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(rng.u64(0..nanos.max(1)))
}
