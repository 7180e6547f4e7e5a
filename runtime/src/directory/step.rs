//! What each machine of a directory is handed while it handles one input.

use std::collections::VecDeque;

use siloring_core::event::Event;
use siloring_core::ports::rare::{self, Rare};
use siloring_core::{Endpoint, Generation, Moment, SiloStatus, View};

use super::DirectoryOutput;
use super::defect::Planted;
use super::message::{Ask, DirectoryMessage, Tell, Word};
use super::span::Key;

/// Messages for this shard itself, and effects for the shard to carry out, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Messages to the own endpoint, handled before the input is done.
    pub(super) own: VecDeque<DirectoryMessage>,
    /// Effects, until polled.
    pub(super) outputs: VecDeque<DirectoryOutput>,
}

/// One input being handled: the time, the view, who we are, and where effects go.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) now: Moment,
    pub(super) me: Endpoint,
    pub(super) view: &'a View,
    pub(super) rng: &'a mut fastrand::Rng,
    pub(super) outbox: &'a mut Outbox,
    pub(super) piece_items_max: usize,
    pub(super) planted: Planted,
}

impl Step<'_> {
    /// How many entries the next piece holds at most.
    pub(super) fn piece_items(&self) -> usize {
        if rare::is_asked(Rare::SmallPiece) { 1 } else { self.piece_items_max }
    }

    /// Asks `to`, in our view.
    pub(super) fn ask(&mut self, to: Endpoint, ask: Ask) {
        self.send(to, Word::Ask(ask));
    }

    /// Asks `to` through a third shard.
    pub(super) fn ask_through(&mut self, third: Endpoint, to: Endpoint, ask: Ask) {
        self.send_through(third, to, Word::Ask(ask));
    }

    /// Tells `to`, in our view.
    pub(super) fn tell(&mut self, to: Endpoint, tell: Tell) {
        self.send(to, Word::Tell(tell));
    }

    /// Answers whoever asked, on the way the question came.
    pub(super) fn answer(&mut self, caller: Caller, tell: Tell) {
        match caller.via {
            None => self.tell(caller.endpoint, tell),
            Some(third) => self.send_through(third, caller.endpoint, Word::Tell(tell)),
        }
    }

    /// Hands a word to `to`, or to ourselves.
    pub(super) fn send(&mut self, to: Endpoint, word: Word) {
        let message = DirectoryMessage { view: self.view.number(), word };
        if to == self.me {
            self.outbox.own.push_back(message);
        } else {
            self.emit(DirectoryOutput::Send(to, message));
        }
    }

    fn send_through(&mut self, third: Endpoint, to: Endpoint, word: Word) {
        let message = DirectoryMessage { view: self.view.number(), word };
        let message = message.encode().as_slice().to_vec();
        self.send(third, Word::Relay { origin: self.me, to, message });
    }

    pub(super) fn emit(&mut self, output: DirectoryOutput) {
        self.outbox.outputs.push_back(output);
    }

    pub(super) fn event(&mut self, event: Event) {
        self.emit(DirectoryOutput::Event(event));
    }

    /// Who owns the address's range; `None` while no silo is Active.
    pub(super) fn owner(&self, key: Key) -> Option<Endpoint> {
        self.view.ring().owner(key.position())
    }

    /// Whether the silo can still hold what it said it holds.
    pub(super) fn lives(&self, silo: Generation) -> bool {
        !self.view.is_gone(silo)
    }

    /// Whether the silo may hold activations and hubs, and has to answer for them.
    pub(super) fn may_hold(&self, silo: Generation) -> bool {
        match self.view.status(silo) {
            Some(SiloStatus::Active | SiloStatus::Draining) => true,
            Some(SiloStatus::Joining | SiloStatus::Dead) | None => false,
        }
    }
}

/// Who asked, and through whom the question came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Caller {
    pub(super) endpoint: Endpoint,
    pub(super) via: Option<Endpoint>,
}

/// Whether some silo may hold things in the one view and is gone in the next.
pub(super) fn somebody_left(before: &View, after: &View) -> bool {
    before.living().any(|row| after.is_gone(row.incarnation.generation))
}

/// Whether a view directly follows the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Succession {
    /// It is the next one.
    Next,
    /// Views were jumped over.
    Jump,
}

impl Succession {
    pub(super) fn of(before: &View, after: &View) -> Self {
        if before.number().next() == after.number() { Self::Next } else { Self::Jump }
    }
}
