//! Dials of joiners' advertised addresses, on their behalf: a joiner proves that it can be reached.
//!
//! **Contract.** Each question is answered once, or repeated by its joiner. **Bounds.**
//! `INQUIRIES_MAX` addresses at a time, each for `HANDSHAKE_TIME_MAX`; beyond it a question is
//! dropped and comes again. Deliberately absent: whether the asker may join.

use std::collections::{BTreeMap, VecDeque};

use siloring_core::limits::{HANDSHAKE_TIME_MAX, INQUIRIES_MAX};
use siloring_core::{Generation, Moment};

use super::message::{ControlMessage, ProbeNumber, Reached};
use super::{ControlOutput, Inquiry};

#[derive(Debug)]
struct Dialback {
    askers: Vec<(Generation, ProbeNumber)>,
    until: Moment,
}

#[derive(Debug)]
pub(super) struct Dialbacks {
    open: BTreeMap<String, Dialback>,
}

impl Dialbacks {
    pub(super) const fn new() -> Self {
        Self { open: BTreeMap::new() }
    }

    /// When something is due here.
    pub(super) fn deadline(&self) -> Moment {
        self.open.values().map(|dialback| dialback.until).min().unwrap_or(Moment::NEVER)
    }

    /// `asker`, which advertises `address`, wants to be dialled there.
    pub(super) fn ask(
        &mut self,
        now: Moment,
        asker: Generation,
        number: ProbeNumber,
        address: &str,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let room = self.open.len() < INQUIRIES_MAX;
        match self.open.get_mut(address) {
            Some(dialback) => {
                dialback.askers.retain(|(known, _)| *known != asker);
                dialback.askers.push((asker, number));
            }
            None if room => {
                let until = now + HANDSHAKE_TIME_MAX;
                let dialback = Dialback { askers: vec![(asker, number)], until };
                self.open.insert(address.to_owned(), dialback);
                out.push_back(ControlOutput::Inquire(address.to_owned()));
            }
            // It asks again.
            None => {}
        }
    }

    /// A dial found who answers at an address.
    pub(super) fn handle_inquiry(
        &mut self,
        address: &str,
        inquiry: &Inquiry,
        out: &mut VecDeque<ControlOutput>,
    ) {
        if let Some(dialback) = self.open.remove(address) {
            dialback.answer(inquiry, out);
        }
    }

    /// Gives up on what was not answered in time.
    pub(super) fn tick(&mut self, now: Moment, out: &mut VecDeque<ControlOutput>) {
        for (_, dialback) in self.open.extract_if(.., |_, dialback| dialback.until <= now) {
            dialback.answer(&Inquiry::Silent, out);
        }
    }
}

impl Dialback {
    fn answer(self, inquiry: &Inquiry, out: &mut VecDeque<ControlOutput>) {
        for (asker, number) in self.askers {
            let reached = match inquiry {
                Inquiry::Answered(who) if who.generation == asker => Reached::Yes,
                Inquiry::Answered(_) | Inquiry::Silent => Reached::No,
            };
            let answer = ControlMessage::ReachedBack { number, reached };
            out.push_back(ControlOutput::Send(asker, answer));
        }
    }
}
