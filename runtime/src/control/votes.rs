//! Votes: who may accuse whom, which votes are fresh, how many are needed.
//!
//! Pure functions of a table and of how long each counter has stood still at this reader.
//! **Rules.** Accusers of a silo are the Active others that beat. Needed are `VOTES_NEEDED` of
//! them, or all if they are fewer, but at least one. A vote is fresh while its author is Active and
//! beats and has counted at most `VOTE_AGE_MAX_HEARTBEATS` since. A silo with a fresh vote against
//! itself does not vote, and its votes do not count; it is needed all the same, else one silo could
//! vote all others dead one by one, each accusation making the next death cheaper. As the accused
//! do not vote, some silo always stays unaccused; votes against its side are not renewed, so its
//! side wins. Deliberately absent: clocks; the decision whom to suspect.

use std::collections::BTreeMap;

use core::time::Duration;

use siloring_core::limits::{
    ELIGIBLE_HEARTBEATS, HEARTBEAT_PERIOD, VOTE_AGE_MAX_HEARTBEATS, VOTES_NEEDED,
};
use siloring_core::ports::store::Table;
use siloring_core::view::Vote;
use siloring_core::{Generation, Moment, SiloRow, SiloStatus};

/// A heartbeat counter as this reader saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beat {
    /// Its value at the last read.
    pub(super) counter: u64,
    /// For how long of this reader's reading it has stood still.
    pub(super) still: Duration,
    /// When the last read was asked for that showed it lower: it moved later than that.
    pub(super) moved_after: Moment,
}

/// So long a counter may stand still until its silo is no accuser any more.
pub(super) const STILL_MAX: Duration =
    HEARTBEAT_PERIOD.checked_mul(ELIGIBLE_HEARTBEATS).expect("no overflow");

/// What to do about a suspect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// Nothing: the row is Dead or gone, we may not vote, or our vote stands.
    Wait,
    /// Write this row: our vote is in it.
    Vote(SiloRow),
    /// Write this row: the votes suffice and it is Dead.
    Declare(SiloRow),
}

/// The silos of a table as voters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Electorate<'a> {
    pub(super) table: &'a Table,
    pub(super) beats: &'a BTreeMap<Generation, Beat>,
    #[cfg(any(test, feature = "planted"))]
    pub(super) defect: Option<super::Defect>,
}

impl Electorate<'_> {
    /// How many votes make `against` Dead.
    fn needed(&self, against: Generation) -> usize {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::VotesFixed) {
            return VOTES_NEEDED;
        }
        let silos = self.table.rows.iter().map(|row| row.row.incarnation.generation);
        silos.filter(|&by| self.is_accuser(by, against)).count().clamp(1, VOTES_NEEDED)
    }

    /// What `me` does about `against`, which it suspects.
    pub(super) fn decide(&self, me: Generation, against: Generation) -> Decision {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::NeverVotes) {
            return Decision::Wait;
        }
        let (Some(accused), Some(heartbeat)) = (self.row(against), self.table.heartbeat(me)) else {
            return Decision::Wait;
        };
        if accused.status == SiloStatus::Dead || !self.may_vote(me, against) {
            return Decision::Wait;
        }
        let mine = accused.votes.iter().find(|vote| vote.by == me);
        let mut row = accused.clone();
        row.votes.retain(|vote| vote.by != me && self.is_fresh(*vote));
        row.votes.push(Vote { by: me, heartbeat });
        let counted = row.votes.iter().filter(|vote| self.may_vote(vote.by, against)).count();
        if counted >= self.needed(against) {
            row.status = SiloStatus::Dead;
            return Decision::Declare(row);
        }
        // Renewed well before it is stale, and not at each beat: each vote makes a view.
        let stands = mine.is_some_and(|vote| {
            heartbeat.saturating_sub(vote.heartbeat) * 2 <= VOTE_AGE_MAX_HEARTBEATS
        });
        if stands { Decision::Wait } else { Decision::Vote(row) }
    }

    /// Whether `by` is one of those whose votes are needed against `against`.
    fn is_accuser(&self, by: Generation, against: Generation) -> bool {
        by != against && self.is_active(by) && self.is_beating(by)
    }

    /// Whether a vote of `by` against `against` counts.
    fn may_vote(&self, by: Generation, against: Generation) -> bool {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::AccusedVotes) {
            return self.is_accuser(by, against);
        }
        self.is_accuser(by, against) && !self.is_accused(by)
    }

    fn is_accused(&self, silo: Generation) -> bool {
        self.row(silo).is_some_and(|row| row.votes.iter().any(|vote| self.is_fresh(*vote)))
    }

    fn is_fresh(&self, vote: Vote) -> bool {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::VotesNeverExpire) {
            return true;
        }
        let Some(counter) = self.table.heartbeat(vote.by) else { return false };
        let age = counter.saturating_sub(vote.heartbeat);
        age <= VOTE_AGE_MAX_HEARTBEATS && self.is_active(vote.by) && self.is_beating(vote.by)
    }

    fn is_active(&self, silo: Generation) -> bool {
        self.row(silo).is_some_and(|row| row.status == SiloStatus::Active)
    }

    fn is_beating(&self, silo: Generation) -> bool {
        self.beats.get(&silo).is_none_or(|beat| beat.still < STILL_MAX)
    }

    fn row(&self, silo: Generation) -> Option<&SiloRow> {
        let rows = self.table.rows.iter().map(|row| &row.row);
        rows.into_iter().find(|row| row.incarnation.generation == silo)
    }
}
