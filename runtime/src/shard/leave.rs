//! Leaving in order: end what is idle, let turns finish, hand over, close hubs.
//!
//! The control thread leads: `BeginDrain`, then (all shards empty, or the turns' time is up)
//! `CloseHubs`, then the silo is declared Dead by itself.

use siloring_core::limits::{DRAIN_HANDOVER_TIME_MAX, DRAIN_TURNS_TIME_MAX, LEDGER_TICK};
use siloring_core::time::Moment;

use super::activation::Life;
use super::{ActivationKey, Shard, ShardOutput};
use crate::links::Links;
use crate::mail::ControlMail;

/// How far a shard has come in leaving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    No,
    /// Turns finish and ranges move, until `until` at the latest.
    Draining {
        until: Moment,
        handed_over: bool,
        check_at: Moment,
    },
    /// Told the control thread that nothing is left but hubs.
    Empty,
    /// Hubs are closed.
    Closed,
}

impl Leaving {
    pub(super) const fn is_draining(self) -> bool {
        !matches!(self, Self::No)
    }

    /// When [`Shard::check_leaving`] is to be called.
    pub(super) const fn check_due(self) -> Moment {
        match self {
            Self::Draining { check_at, .. } => check_at,
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
        let until = self.now + DRAIN_HANDOVER_TIME_MAX + DRAIN_TURNS_TIME_MAX;
        self.leaving = Leaving::Draining { until, handed_over: false, check_at: self.now };
        self.directory.begin_drain();
        self.pump_directory();
        self.end_idle();
        self.check_leaving();
    }

    fn end_idle(&mut self) {
        let idle: Vec<ActivationKey> = self
            .activations
            .iter()
            .filter(|(_, activation)| activation.is_idle())
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

    /// Tells the control thread once nothing is left, or the time is up.
    pub(super) fn check_leaving(&mut self) {
        let Leaving::Draining { until, handed_over, check_at } = &mut self.leaving else { return };
        // Turns and deliveries end without a word to this module: it looks again.
        *check_at = self.now + LEDGER_TICK;
        let (until, handed_over) = (*until, *handed_over);
        self.end_idle();
        let is_empty =
            self.activations.is_empty() && self.ledger.is_empty() && self.held_outcomes.is_empty();
        if (is_empty && handed_over) || self.now >= until {
            self.leaving = Leaving::Empty;
            let mail = ControlMail::ShardEmpty(self.config.me.shard);
            self.outputs.push_back(ShardOutput::Control(mail));
        }
    }

    /// Hubs are closed: what has not ended is cut off and told.
    pub(super) fn hubs_closed(&mut self) {
        if self.leaving == Leaving::Closed {
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
