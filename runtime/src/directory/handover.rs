//! Taking a span over from the shard that served it last.
//!
//! The taker asks piece by piece; each piece begins behind the last key of the one before, so that
//! a repeated question gets a repeated answer and the giver keeps nothing for it. The hand-over
//! counts only with the last piece, whose count and hash must match what arrived. A giver that has
//! not the whole span, is gone, or is silent for [`RECOVERY_RELAY_AFTER`] makes the span one to
//! recover; the pieces are dropped.
//!
//! The giver's side is [`segments`](super::segments): a span is frozen from the moment it is
//! another's.

use std::collections::BTreeMap;

use siloring_core::limits::{DIRECTORY_RESEND_AFTER, RECOVERY_RELAY_AFTER};
use siloring_core::{Endpoint, Moment};

use super::message::{Ask, Item, Summary};
use super::span::{Key, Span, covers, inside};
use super::step::{Step, Succession};

/// One piece as it came.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) span: Span,
    pub(super) after: Option<Key>,
    pub(super) items: Vec<Item>,
    pub(super) last: Option<Summary>,
}

/// What a message or the passing of time did.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Nothing, or one more piece.
    Underway,
    /// The span is here, whole: these are its entries.
    Whole {
        /// Which span.
        span: Span,
        /// Who gave it.
        giver: Endpoint,
        /// Its entries.
        items: Vec<Item>,
    },
    /// It must be recovered.
    Broken(Span),
}

/// The spans being taken.
#[derive(Debug, Default)]
pub(super) struct Handovers(BTreeMap<u64, Taking>);

#[derive(Debug)]
struct Taking {
    span: Span,
    giver: Endpoint,
    after: Option<Key>,
    items: Vec<Item>,
    summary: Summary,
    asked: Moment,
    heard: Moment,
}

impl Taking {
    fn ask(&mut self, step: &mut Step<'_>) {
        self.asked = step.now;
        step.ask(self.giver, Ask::HandOverAsk { span: self.span, after: self.after });
    }

    /// When to ask again, or to give up.
    fn due(&self) -> Moment {
        (self.asked + DIRECTORY_RESEND_AFTER).min(self.heard + RECOVERY_RELAY_AFTER)
    }
}

impl Handovers {
    /// Begins to take `span` from `giver`.
    pub(super) fn begin(&mut self, step: &mut Step<'_>, span: Span, giver: Endpoint) {
        let mut taking = Taking {
            span,
            giver,
            after: None,
            items: Vec::new(),
            summary: Summary::default(),
            asked: step.now,
            heard: step.now,
        };
        taking.ask(step);
        self.0.insert(span.first, taking);
    }

    /// The giver sent a piece.
    pub(super) fn handle_piece(
        &mut self,
        step: &mut Step<'_>,
        from: Endpoint,
        piece: Piece,
    ) -> Progress {
        let Some(taking) = self.awaited(from, piece.span) else {
            return Progress::Underway;
        };
        if taking.after != piece.after {
            return Progress::Underway;
        }
        taking.heard = step.now;
        taking.after = piece.items.last().map_or(taking.after, |item| Some(item.key));
        for item in piece.items {
            taking.summary.add(&item);
            taking.items.push(item);
        }
        let Some(whole) = piece.last else {
            taking.ask(step);
            return Progress::Underway;
        };
        let taking = self.0.remove(&piece.span.first).expect("found above");
        if taking.summary != whole {
            return Progress::Broken(taking.span);
        }
        Progress::Whole { span: taking.span, giver: taking.giver, items: taking.items }
    }

    /// The giver has not the whole span.
    pub(super) fn handle_none(&mut self, from: Endpoint, span: Span) -> Progress {
        if self.awaited(from, span).is_none() {
            return Progress::Underway;
        }
        self.0.remove(&span.first);
        Progress::Broken(span)
    }

    fn awaited(&mut self, from: Endpoint, span: Span) -> Option<&mut Taking> {
        self.0.get_mut(&span.first).filter(|taking| taking.span == span && taking.giver == from)
    }

    /// A newer view: `acquiring` is what is still to come in. Spans that changed their shape begin
    /// anew, and so do all after a jump over views, in which the giver may have served them again;
    /// those whose giver is gone are returned.
    pub(super) fn change_view(
        &mut self,
        step: &mut Step<'_>,
        acquiring: &[Span],
        change: Succession,
    ) -> Vec<Span> {
        let mut broken = Vec::new();
        for mut taking in core::mem::take(&mut self.0).into_values() {
            if !step.may_hold(taking.giver.silo) {
                broken.extend(inside(taking.span, acquiring));
            } else if change == Succession::Next && covers(acquiring, taking.span) {
                taking.ask(step);
                self.0.insert(taking.span.first, taking);
            } else {
                for part in inside(taking.span, acquiring) {
                    self.begin(step, part, taking.giver);
                }
            }
        }
        broken
    }

    /// Asks again, and gives silent givers up: their spans are returned.
    pub(super) fn tick(&mut self, step: &mut Step<'_>) -> Vec<Span> {
        let mut broken = Vec::new();
        let now = step.now;
        for taking in self.0.values_mut().filter(|taking| taking.due() <= now) {
            if taking.heard + RECOVERY_RELAY_AFTER <= step.now {
                broken.push(taking.span);
            } else {
                taking.ask(step);
            }
        }
        for span in &broken {
            self.0.remove(&span.first);
        }
        broken
    }

    pub(super) fn next_deadline(&self) -> Moment {
        self.0.values().map(Taking::due).min().unwrap_or(Moment::NEVER)
    }

    /// The spans being taken.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.values().map(|taking| taking.span)
    }
}
