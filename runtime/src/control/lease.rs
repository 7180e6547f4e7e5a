//! The right to serve: a lease of `LEASE` that ends by itself.
//!
//! **Rules.** Renewed by a store read that shows our row in service, from when it was asked; by a
//! probe answer of a peer that made such a read, from when *that* was asked as far as its age and
//! our probe's send time tell. With neither, the silo serves on only while the Active silos that it
//! has not heard within the lease are fewer than the votes needed against it. These fall to one
//! while the store is not reached: nobody is then seen to beat, and whoever does reach the store
//! may decide alone. Else it is fenced, until one of the two renewals. What is granted never
//! reaches further than the lease from now, so that a silo that wakes from a pause finds it over.
//! Deliberately absent: who is heard, and what is needed.

use std::collections::VecDeque;

use core::time::Duration;

use siloring_core::Moment;
use siloring_core::event::Event;
use siloring_core::limits::{LEASE, LEASE_RENEW_PERIOD};

use super::ControlOutput;

/// When an Active silo was last heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// Never.
    Never,
    /// Then.
    At(Moment),
    /// It said goodbye: it counts as heard.
    Goodbye,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Not Active yet, or left.
    Idle,
    Serving,
    /// Since then.
    Fenced(Moment),
}

#[derive(Debug)]
pub(super) struct Lease {
    standing: Standing,
    store_until: Moment,
    peer_until: Moment,
    /// What was told last.
    told: Moment,
}

/// A grant that moved by less is not told again: it would only cost every shard a look.
const GRANT_STEP: Duration = Duration::from_millis(50);

impl Lease {
    pub(super) const fn new() -> Self {
        Self {
            standing: Standing::Idle,
            store_until: Moment::ZERO,
            peer_until: Moment::ZERO,
            told: Moment::ZERO,
        }
    }

    /// This silo is Active, as a write asked at `asked` shows.
    pub(super) fn begin(&mut self, asked: Moment) {
        assert_eq!(self.standing, Standing::Idle, "an incarnation becomes Active once");
        self.standing = Standing::Serving;
        self.renew_from_store(asked);
    }

    /// The right is given up.
    pub(super) fn end(&mut self, now: Moment, out: &mut VecDeque<ControlOutput>) {
        if self.standing != Standing::Idle {
            self.standing = Standing::Idle;
            self.tell(now.min(self.told), out);
        }
    }

    /// Until when the grant told last reaches.
    pub(super) const fn until(&self) -> Moment {
        self.told
    }

    /// The store, asked at `asked`, showed our row in service.
    pub(super) fn renew_from_store(&mut self, asked: Moment) {
        self.store_until = self.store_until.max(asked + LEASE);
    }

    /// A peer, probed at `sent`, had asked the store `age` before it answered, with the same
    /// result.
    pub(super) fn renew_from_peer(&mut self, sent: Moment, age: Duration) {
        self.peer_until = self.peer_until.max(sent + LEASE.saturating_sub(age));
    }

    /// When the store is to be read next for the lease's sake.
    pub(super) fn read_due(&self) -> Moment {
        match self.standing {
            Standing::Idle => Moment::NEVER,
            Standing::Serving | Standing::Fenced(_) => {
                // From the store: after one period, so that one may be lost. From peers: as long as
                // one period remains, so that silos that hear each other share one's reads.
                let own = before(self.store_until, LEASE.saturating_sub(LEASE_RENEW_PERIOD));
                own.max(before(self.peer_until, LEASE_RENEW_PERIOD))
            }
        }
    }

    /// Whether renewals have been missing for so long that more peers should be asked.
    pub(super) fn is_strained(&self, now: Moment) -> bool {
        let granted = self.store_until.max(self.peer_until);
        self.standing != Standing::Idle && granted < now + LEASE_RENEW_PERIOD * 4 / 5
    }

    /// Fences at once: time has passed in which anything may have been decided.
    pub(super) fn fence(
        &mut self,
        now: Moment,
        reason: &'static str,
        out: &mut VecDeque<ControlOutput>,
    ) {
        if self.standing != Standing::Serving {
            return;
        }
        self.standing = Standing::Fenced(now);
        out.push_back(ControlOutput::Event(Event::Fenced { reason }));
        self.tell(now.min(self.told), out);
    }

    /// Grants, ends or leaves the right, as things stand.
    pub(super) fn update(
        &mut self,
        now: Moment,
        others: Vec<Heard>,
        needed: usize,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let renewed = self.store_until.max(self.peer_until);
        match self.standing {
            Standing::Idle => {}
            Standing::Fenced(since) => {
                if renewed > now {
                    self.standing = Standing::Serving;
                    let fenced_ns = u64::try_from(now.since(since).as_nanos()).unwrap_or(u64::MAX);
                    out.push_back(ControlOutput::Event(Event::Unfenced { fenced_ns }));
                    self.tell(renewed.min(now + LEASE), out);
                }
            }
            Standing::Serving => {
                let until = renewed.max(quorum_until(others, needed)).min(now + LEASE);
                if until <= now {
                    self.fence(now, "neither the store nor enough peers", out);
                } else if self.told + GRANT_STEP <= until || self.told > until {
                    self.tell(until, out);
                }
            }
        }
    }

    fn tell(&mut self, until: Moment, out: &mut VecDeque<ControlOutput>) {
        self.told = until;
        out.push_back(ControlOutput::ServeUntil(until));
    }
}

/// Until when fewer than `needed` of the others count as not heard.
fn quorum_until(others: Vec<Heard>, needed: usize) -> Moment {
    assert!(needed > 0, "at least one vote is needed");
    let mut ends: Vec<Moment> = others
        .into_iter()
        .map(|heard| match heard {
            Heard::Never => Moment::ZERO,
            Heard::At(at) => at + LEASE,
            Heard::Goodbye => Moment::NEVER,
        })
        .collect();
    ends.sort_unstable();
    ends.get(needed - 1).copied().unwrap_or(Moment::NEVER)
}

fn before(moment: Moment, span: Duration) -> Moment {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos(moment.as_nanos().saturating_sub(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_silo_serves_on_while_too_few_are_unheard_to_vote_it_dead() {
        let heard = |h: &[u64]| h.iter().map(|&m| Heard::At(at(m))).collect::<Vec<_>>();
        assert_eq!(quorum_until(heard(&[1000, 4000, 2000]), 2), at(3500));
        assert_eq!(quorum_until(heard(&[1000]), 1), at(2500));
        assert_eq!(quorum_until(heard(&[1000]), 2), Moment::NEVER);
        assert_eq!(quorum_until(vec![Heard::Goodbye], 1), Moment::NEVER);
        assert_eq!(quorum_until(vec![Heard::Never], 1), Moment::ZERO);
        assert_eq!(quorum_until(Vec::new(), 1), Moment::NEVER, "alone: nobody can vote");
    }

    #[test]
    fn a_grant_never_reaches_further_than_the_lease_from_now() {
        let mut out = VecDeque::new();
        let mut lease = Lease::new();
        lease.begin(at(100));
        lease.update(at(5000), Vec::new(), 1, &mut out);
        assert_eq!(lease.until(), at(6500));
    }

    #[test]
    fn a_fenced_silo_needs_a_renewal_and_not_only_company() {
        let mut out = VecDeque::new();
        let mut lease = Lease::new();
        lease.begin(at(0));
        lease.update(at(1), vec![Heard::Never], 1, &mut out);
        lease.update(at(1600), vec![Heard::Never], 1, &mut out);
        assert!(out.iter().any(|o| matches!(o, ControlOutput::Event(Event::Fenced { .. }))));
        lease.update(at(1700), vec![Heard::At(at(1700))], 1, &mut out);
        assert!(lease.until() < at(1600), "hearing again is not enough");
        lease.renew_from_peer(at(1700), Duration::from_millis(500));
        lease.update(at(1750), vec![Heard::At(at(1700))], 1, &mut out);
        assert_eq!(lease.until(), at(2700));
    }
}
