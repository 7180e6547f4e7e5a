//! Homes that were superseded and have not yet confirmed that they know.
//!
//! Told again after [`DIRECTORY_RESEND_AFTER`] until confirmed, or until the silo is gone. The end
//! of the superseded registration or claim confirms: until then a late copy of it is refused. At
//! most [`EVICTIONS_MAX`] are remembered; one more is told once, and hears it again when it asserts
//! itself.

use std::collections::BTreeMap;

use siloring_core::limits::{DIRECTORY_RESEND_AFTER, EVICTIONS_MAX};
use siloring_core::{ActivationNumber, Endpoint, Moment};

use super::message::Tell;
use super::place::Place;
use super::schedule::Schedule;
use super::span::Key;
use super::step::Step;

type Whom = (Key, Endpoint);

/// The unconfirmed ones.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    open: BTreeMap<Whom, Eviction>,
    schedule: Schedule<Whom>,
}

#[derive(Clone, Copy, Debug)]
struct Eviction {
    attempt: u64,
    number: ActivationNumber,
    winner: Place,
    due: Moment,
}

impl Evictions {
    /// Tells `loser`, that shard's registration or claim `attempt`, that it is superseded.
    pub(super) fn begin(
        &mut self,
        step: &mut Step<'_>,
        key: Key,
        loser: Place,
        attempt: u64,
        winner: Place,
    ) {
        let whom = (key, loser.endpoint);
        self.end(whom);
        let mut eviction = Eviction { attempt, number: loser.number, winner, due: Moment::NEVER };
        tell(step, whom, &eviction);
        if self.open.len() < EVICTIONS_MAX {
            self.schedule.set(whom, &mut eviction.due, step.now + DIRECTORY_RESEND_AFTER);
            self.open.insert(whom, eviction);
        }
    }

    /// Who superseded the shard's `attempt`, if it has not yet confirmed.
    pub(super) fn winner(&self, key: Key, endpoint: Endpoint, attempt: u64) -> Option<Place> {
        let eviction = self.open.get(&(key, endpoint))?;
        (attempt <= eviction.attempt).then_some(eviction.winner)
    }

    /// The shard knows.
    pub(super) fn confirmed(&mut self, key: Key, endpoint: Endpoint, attempt: u64) {
        let whom = (key, endpoint);
        if self.open.get(&whom).is_some_and(|eviction| eviction.attempt <= attempt) {
            self.end(whom);
        }
    }

    fn end(&mut self, whom: Whom) {
        if let Some(eviction) = self.open.remove(&whom) {
            self.schedule.clear(whom, eviction.due);
        }
    }

    /// A newer view: who is gone need not know.
    pub(super) fn change_view(&mut self, step: &Step<'_>) {
        let gone: Vec<_> =
            self.open.keys().filter(|(_, at)| !step.lives(at.silo)).copied().collect();
        for whom in gone {
            self.end(whom);
        }
    }

    pub(super) fn tick(&mut self, step: &mut Step<'_>) {
        while let Some(whom) = self.schedule.due(step.now) {
            let eviction = self.open.get_mut(&whom).expect("what is due is open");
            self.schedule.set(whom, &mut eviction.due, step.now + DIRECTORY_RESEND_AFTER);
            tell(step, whom, eviction);
        }
    }

    pub(super) fn next_deadline(&self) -> Moment {
        self.schedule.next()
    }

    /// How many are unconfirmed.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

fn tell(step: &mut Step<'_>, (key, endpoint): Whom, eviction: &Eviction) {
    let Eviction { attempt, number, winner, .. } = *eviction;
    step.tell(endpoint, Tell::Evict { hash: key.hash(), attempt, number, winner });
}
