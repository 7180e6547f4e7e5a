//! Leaving in order: end what is idle, let turns finish, hand over, close hubs.
//!
//! The control thread leads: `BeginDrain`, then (all shards empty, or the turns' time is up)
//! `CloseHubs`, then the silo is declared Dead by itself.
//!
//! The other side of it: nobody sends a grain's request to a silo that leaves in its view, and
//! whoever has nothing open there any more closes its link. Who leaves waits for that: it goes when
//! nobody waits for it. A request that met the silo's end, or a reply that was slower than the news
//! of it, would be lost after it was handed over.

use siloring_core::SiloStatus;
use siloring_core::ids::Generation;
use siloring_core::limits::{
    DRAIN_CALLERS_TIME_MAX, DRAIN_HANDOVER_TIME_MAX, DRAIN_LAST_TURNS_TIME_MAX,
    DRAIN_TURNS_TIME_MAX, LEDGER_TICK,
};
use siloring_core::time::Moment;

use super::activation::Life;
use super::{ActivationKey, Shard, ShardOutput};
use crate::links::Links;
use crate::mail::{ConnId, ControlMail};

/// How far a shard has come in leaving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    No,
    /// Turns finish and ranges move, until `until` at the latest.
    Draining {
        until: Moment,
        handed_over: bool,
        check_at: Moment,
        /// How long the callers' links are waited for: from when nothing else was left.
        callers_until: Moment,
    },
    /// Told the control thread that nothing is left but hubs.
    Empty,
    /// Hubs are closed; the last turns end, until `until` at the latest.
    Closing {
        until: Moment,
        check_at: Moment,
    },
    /// Nothing is left.
    Closed,
}

impl Leaving {
    pub(super) const fn is_draining(self) -> bool {
        !matches!(self, Self::No)
    }

    /// Whether hubs are closed.
    pub(super) const fn is_closing(self) -> bool {
        matches!(self, Self::Closing { .. } | Self::Closed)
    }

    /// When [`Shard::check_leaving`] is to be called.
    pub(super) const fn check_due(self) -> Moment {
        match self {
            Self::Draining { check_at, .. } | Self::Closing { check_at, .. } => check_at,
            Self::No | Self::Empty | Self::Closed => Moment::NEVER,
        }
    }
}

impl<L: Links> Shard<L> {
    /// Takes nothing new from now on, and ends what is idle.
    pub(super) fn begin_drain(&mut self) {
        if self.leaving != Leaving::No {
            return;
        }
        self.leaving = Leaving::Draining {
            until: self.now + DRAIN_HANDOVER_TIME_MAX + DRAIN_TURNS_TIME_MAX,
            handed_over: false,
            check_at: self.now,
            callers_until: Moment::NEVER,
        };
        self.local.known.is_leaving.set(true);
        self.directory.begin_drain();
        self.pump_directory();
        self.end_idle();
        self.check_leaving();
    }

    /// Says how many links bring requests of others to this shard; asked for while it leaves.
    pub const fn set_callers_count(&mut self, count: usize) {
        self.callers_count = count;
    }

    /// Whether this shard leaves.
    pub const fn is_leaving(&self) -> bool {
        self.leaving.is_draining()
    }

    /// Other silos that leave in our view.
    pub fn leavers(&self) -> &[Generation] {
        &self.leavers
    }

    /// Whether a delivery waits for an outcome on this link.
    pub fn is_awaited(&self, conn: ConnId) -> bool {
        self.ledger.any(|open| open.is_sent_on(conn))
    }

    /// A newer view: who leaves in it.
    pub(super) fn note_leavers(&mut self) {
        let me = self.config.me.silo;
        let rows = self.view.living().filter(|row| row.status == SiloStatus::Draining);
        let leavers = rows.map(|row| row.incarnation.generation).filter(|silo| *silo != me);
        self.leavers = leavers.collect();
    }

    /// Whether the silo takes no new requests for grains.
    #[inline]
    pub(super) fn takes_no_grains(&self, silo: Generation) -> bool {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::LeaversCalled {
            return false;
        }
        !self.leavers.is_empty() && self.leavers.contains(&silo)
    }

    pub(super) fn end_idle(&mut self) {
        let idle: Vec<ActivationKey> = self
            .activations
            .iter()
            .filter(|(_, activation)| activation.is_idle() && !self.is_of_shard(activation.host))
            .map(|(key, _)| u32::try_from(key).expect("bounded by ACTIVATIONS_MAX"))
            .collect();
        for key in idle {
            if self.activations[key as usize].life == Life::Active {
                self.deactivate(key);
            }
        }
    }

    /// The directory has nothing of this shard's left.
    pub(super) fn handed_over(&mut self) {
        if let Leaving::Draining { handed_over, .. } = &mut self.leaving {
            *handed_over = true;
        }
        self.check_leaving();
    }

    /// Goes on once nothing is left to wait for, or the time is up.
    pub(super) fn check_leaving(&mut self) {
        // Turns and deliveries end without a word to this module: it looks again.
        let next = self.now + LEDGER_TICK;
        match &mut self.leaving {
            Leaving::Draining { until, handed_over, check_at, .. } => {
                *check_at = next;
                let (until, handed_over) = (*until, *handed_over);
                self.check_empty(until, handed_over);
            }
            Leaving::Closing { until, check_at } => {
                *check_at = next;
                let until = *until;
                self.check_closed(until);
            }
            Leaving::No | Leaving::Empty | Leaving::Closed => {}
        }
    }

    /// Tells the control thread once nothing is left but hubs.
    fn check_empty(&mut self, until: Moment, handed_over: bool) {
        self.end_idle();
        let is_empty = self.activations.len() == self.own.living_count
            && self.ledger.is_empty()
            && self.held_outcomes.is_empty();
        if (is_empty && handed_over && self.has_no_callers()) || self.now >= until {
            self.leaving = Leaving::Empty;
            let mail = ControlMail::ShardEmpty(self.config.me.shard);
            self.outputs.push_back(ShardOutput::Control(mail));
        }
    }

    /// Whether nobody waits for this shard, or all that is left to wait for has taken too long.
    fn has_no_callers(&mut self) -> bool {
        let Leaving::Draining { callers_until, .. } = &mut self.leaving else { return true };
        *callers_until = (*callers_until).min(self.now + DRAIN_CALLERS_TIME_MAX);
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::CallersNotAwaited {
            return true;
        }
        self.callers_count == 0 || self.now >= *callers_until
    }

    /// Hubs are closed: turns that waited for them end now.
    pub(super) fn hubs_closed(&mut self) {
        if self.leaving.is_closing() {
            return;
        }
        let until = self.now + DRAIN_LAST_TURNS_TIME_MAX;
        self.leaving = Leaving::Closing { until, check_at: self.now };
        self.check_leaving();
    }

    /// What has not ended in its time is cut off and told.
    fn check_closed(&mut self, until: Moment) {
        let is_idle = self.activations.iter().all(|(_, activation)| activation.is_idle());
        if !is_idle && self.now < until {
            return;
        }
        self.leaving = Leaving::Closed;
        let unfinished_count = self.cut_off_all();
        let mail = ControlMail::ShardClosed { shard: self.config.me.shard, unfinished_count };
        self.outputs.push_back(ShardOutput::Control(mail));
    }

    fn cut_off_all(&mut self) -> usize {
        let mut count = 0;
        let keys: Vec<usize> = self.activations.iter().map(|(key, _)| key).collect();
        for key in keys {
            let key = u32::try_from(key).expect("bounded by ACTIVATIONS_MAX");
            let reason = "the silo's time to leave was up";
            if self.activations.contains(key as usize) {
                count += self.cut_off_turns(key, reason);
                self.remove_activation(key, reason);
            }
        }
        count
    }
}
