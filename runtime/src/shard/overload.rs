//! What a shard refuses since it has too much to do; when, [`Admission`] says.
//!
//! Judged is what would begin work and comes from without: requests of links and of the silo's
//! other shards, and calls of the surrounding program's threads. A refusal says `Overloaded` at
//! once, has begun nothing, and, on a link, is made before anything is allocated for the request.
//!
//! [`Admission`]: crate::admission::Admission

use core::time::Duration;

use siloring_core::address::Address;
use siloring_core::ids::CorrelationId;
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::time::Moment;

use super::Shard;
use crate::admission::Verdict;
use crate::links::Links;
use crate::mail::{Outcome, ReplyTo, Request};
use crate::parcel::Parcel;

impl<L: Links> Shard<L> {
    /// What is taken in next, mail or frames, has come after this: it has not waited for longer.
    /// Without it nothing has waited.
    pub const fn set_came_after(&mut self, came_after: Moment) {
        self.came_after = came_after;
    }

    /// A loop that had something to do took so long.
    pub fn worked(&mut self, span: Duration) {
        self.admission.worked(span);
    }

    /// How many requests to take in before the time is read again.
    pub fn turns_per_look(&self) -> usize {
        self.admission.turns_per_look()
    }

    /// Requests that were refused, ever, since they had waited too long.
    pub const fn refused_count(&self) -> u64 {
        self.admission.refused_count()
    }

    /// Accepts a request of another shard.
    pub(super) fn accept_mail(&mut self, target: &Address, request: &mut Request) {
        if self.is_overloaded() {
            self.refuse(target, request, overloaded());
        } else {
            self.accept(target, request);
        }
    }

    /// Opens a delivery of another thread.
    pub(super) fn open_mail(&mut self, parcel: Parcel) {
        if self.is_overloaded() {
            self.tell(None, parcel, Err(overloaded()));
        } else {
            self.open_delivery(parcel, None);
        }
    }

    #[cold]
    pub(super) fn refuse_unread(
        &mut self,
        to: ReplyTo,
        correlation: CorrelationId,
        target: &Address,
    ) {
        self.respond(to, correlation, target, Outcome::failure(overloaded()));
    }

    /// Judges a request that would begin work: whether it has waited too long, and is refused.
    #[inline]
    pub(super) fn is_overloaded(&mut self) -> bool {
        // What the last run left behind waits before whatever comes.
        let came_after = self.behind_since.map_or(self.came_after, |at| at.min(self.came_after));
        let verdict = self.admission.judge(self.now, came_after);
        if verdict == Verdict::Refuse {
            self.tell_overload();
        }
        verdict == Verdict::Refuse
    }

    /// Tells that refusing began, or ended.
    pub(super) fn tell_overload(&mut self) {
        if let Some(event) = self.admission.poll_event() {
            self.emit(event);
        }
    }
}

fn overloaded() -> DeliveryFailure {
    let detail = "the shard is overloaded: what comes waits too long for it";
    DeliveryFailure::rejected(RejectedKind::Overloaded, detail)
}
