//! What became of each reply.

use std::collections::BTreeSet;

use serde::Serialize;

/// What became of all replies. Each was sent, and then handled, told, or silent.
#[derive(Serialize, Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    /// The hub handled it.
    pub(crate) handled: u64,
    /// The hub did not handle it, and the sender does not know.
    pub(crate) silent: u64,
    /// The sender was told that nobody is there although the hub was. Part of `told`.
    pub(crate) wrongly_refused: u64,
    /// The sender was told that it was not handled, or may not have been.
    pub(crate) told: u64,
    /// The living hub waits for a reply that was refused, and word of that was lost too. `None`
    /// where no such word is needed: whoever waits has an outcome by its own deadline.
    pub(crate) nacks_lost: Option<u64>,
}

/// The books of a model.
#[derive(Debug, Default)]
pub(crate) struct Books {
    sent: u64,
    handled: BTreeSet<u64>,
    told: BTreeSet<u64>,
    wrongly_refused: u64,
    nacks_lost: u64,
}

impl Books {
    /// The sender sends a reply.
    pub(crate) fn sent(&mut self) {
        self.sent += 1;
    }

    /// The hub handles a reply.
    pub(crate) fn handled(&mut self, number: u64) {
        self.handled.insert(number);
    }

    /// The sender hears that nobody is there.
    pub(crate) fn refused(&mut self, number: u64, hub_lives: bool) {
        self.told.insert(number);
        self.wrongly_refused += u64::from(hub_lives);
    }

    /// Word of a refusal does not reach the hub, which waits.
    pub(crate) fn nack_lost(&mut self) {
        self.nacks_lost += 1;
    }

    /// The totals.
    pub(crate) fn counts(&self) -> Counts {
        let unhandled = self.told.difference(&self.handled).count() as u64;
        let handled = self.handled.len() as u64;
        Counts {
            sent: self.sent,
            handled,
            silent: self.sent - handled - unhandled,
            wrongly_refused: self.wrongly_refused,
            told: unhandled,
            nacks_lost: Some(self.nacks_lost),
        }
    }
}
