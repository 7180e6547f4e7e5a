//! Outcomes of deliveries that this shard's code sent: what a try came to, whether there is another
//! one, and how the delivery's one outcome is told.

use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use siloring_core::address::{Address, AddressHash};
use siloring_core::body::Body;
use siloring_core::event::Event;
use siloring_core::ids::CorrelationId;
#[cfg(feature = "planted")]
use siloring_core::limits::DEADLINE_DEFAULT;
use siloring_core::limits::{
    FORWARDS_MAX, RETRY_BACKOFF_FACTOR, RETRY_BACKOFF_MAX, RETRY_BACKOFF_MIN, ROUTER_ATTEMPTS_MAX,
};
use siloring_core::outcome::{DeliveryFailure, FailedKind, IndeterminateKind, RejectedKind};
use siloring_core::ports::rare::{self, Mark, Rare};
use siloring_core::schema::Schema;
use siloring_core::time::Moment;
use siloring_core::versions;
use siloring_core::window::LogWindow;

use super::outbound::lost;
use super::{Shard, Timer};
use crate::call::{CallResult, RawReply, Tries, Waiter};
use crate::directory::Place;
use crate::envelope::Sending;
use crate::exec::local::{Answer, FailedDelivery, Taken};
use crate::grain::Wanted;
use crate::ledger::{OpenDelivery, Stage};
use crate::links::{Links, Retracted};
use crate::mail::{ConnId, Outcome};
use crate::parcel::Parcel;

impl<L: Links> Shard<L> {
    /// A connection is gone; the kernel had taken `written` bytes of what was sent on it.
    pub fn link_down(&mut self, now: Moment, conn: ConnId, written: u64) {
        let _entered = self.enter(now);
        self.drop_outcomes_of(conn);
        self.older_peers.part(conn);
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::OpenCallsSurviveTheirSilo {
            return;
        }
        let on_it = self.ledger.select(|open| open.is_sent_on(conn));
        for id in on_it {
            let Some(Stage::Sent { sent, .. }) = self.ledger.get(id).map(|open| open.stage) else {
                continue;
            };
            if sent.position < written {
                self.lost_after_hand_over(id);
            } else {
                self.forget_place(id);
                self.refused(id, lost("the link was lost before the request was handed over"));
            }
        }
        self.carry_out(None);
    }

    /// The request may have been handled, and its outcome will not come. One with a key is sent
    /// again: to the same activation, which knows what it has handled.
    fn lost_after_hand_over(&mut self, id: CorrelationId) {
        let detail = "the link was lost after the request had been handed over";
        let failure = lost_after(detail);
        let Some(open) = self.ledger.get_mut(id) else { return };
        let number = open.place.map(|place| place.number);
        let envelope = open.request.envelope.as_deref_mut();
        let Some(idempotency) = envelope.and_then(|envelope| envelope.idempotency.as_mut()) else {
            self.forget_place(id);
            return self.finish(id, Err(failure));
        };
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::AgainIsAnew {
            return self.try_later(id, failure);
        }
        if idempotency.sending == Sending::First {
            idempotency.sending = Sending::Again(number);
        }
        self.try_later(id, failure);
    }

    /// A new view may have settled what was moving.
    pub(super) fn retry_moving(&mut self) {
        let moving = self.ledger.select(|open| {
            open.stage == Stage::Backoff
                && open.last_refusal.as_deref().and_then(DeliveryFailure::rejected_kind)
                    == Some(RejectedKind::Moving)
        });
        for id in moving {
            self.retry_now(id);
        }
    }

    /// An outcome has come for a delivery of this shard, over a link or from within the silo. One
    /// that nobody was asked for there, as a peer that is broken may send, ends nothing.
    pub(super) fn resolve(&mut self, id: CorrelationId, over: Option<ConnId>, outcome: Outcome) {
        let Some(open) = self.ledger.get_mut(id) else { return self.tell_late(id) };
        let is_asked = match (open.stage, over) {
            (Stage::Sent { sent, .. }, Some(conn)) => sent.conn == conn,
            (Stage::Posted(_) | Stage::Delivered, None) => true,
            (
                Stage::Gated
                | Stage::Locating
                | Stage::Linking(_)
                | Stage::Backoff
                | Stage::Sent { .. }
                | Stage::Posted(_)
                | Stage::Delivered,
                _,
            ) => false,
        };
        if !is_asked {
            return self.tell_late(id);
        }
        match outcome.result {
            Ok(body) => {
                let schema = outcome.schema;
                let result = match open.request.reply {
                    Some(wanted) if schema != wanted.schema => reply_of(body, schema, wanted),
                    Some(_) | None => Ok(RawReply { schema, body }),
                };
                self.finish(id, result);
            }
            Err(failure) => {
                if let Some(place) = outcome.place {
                    self.redirect(id, *place, failure);
                } else {
                    self.refused(id, failure);
                }
            }
        }
    }

    /// The target is elsewhere: follow, a bounded number of times.
    fn redirect(&mut self, id: CorrelationId, place: Place, failure: DeliveryFailure) {
        let Some(open) = self.ledger.get_mut(id) else { return };
        let target = open.target().hash();
        #[cfg(feature = "planted")]
        let is_learnt = self.config.planted != super::Planted::RedirectUnlearnt;
        #[cfg(not(feature = "planted"))]
        let is_learnt = true;
        if is_learnt {
            self.directory.learn(target, place);
        }
        if open.forwards >= FORWARDS_MAX || rare::is_asked(Rare::NoRedirect) {
            rare::took(Mark::ForwardLimit);
            return self.refused(id, failure);
        }
        open.forwards += 1;
        self.send_to_place(id, place);
    }

    /// A try has failed: ends the delivery, or tries again later.
    pub(super) fn refused(&mut self, id: CorrelationId, failure: DeliveryFailure) {
        if failure.rejected_kind() == Some(RejectedKind::NotHere) && self.look_again(id) {
            return;
        }
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::DrainIsFinal
            && failure.rejected_kind() == Some(RejectedKind::Draining)
        {
            return self.finish(id, Err(failure));
        }
        // One that may have run already is worth another try: it is told of a doubt otherwise.
        let is_tried_again = failure.is_tried_again()
            || (failure.is_transient()
                && self.ledger.get(id).is_some_and(OpenDelivery::is_sent_again));
        if !is_tried_again {
            return self.finish(id, Err(failure));
        }
        self.try_later(id, failure);
    }

    /// Waits, and tries again; ends with `failure` if there is no other try. One that is sent too
    /// late for its answer would turn the certainty that nothing ran into a doubt: a try has at
    /// least half as long as the wait before it.
    fn try_later(&mut self, id: CorrelationId, failure: DeliveryFailure) {
        self.forget_place(id);
        let Some(open) = self.ledger.get_mut(id) else { return };
        if open.tries == Tries::Caller {
            return self.finish(id, Err(failure));
        }
        let tries = u32::from(open.attempts).max(1);
        let wait = backoff(tries, &mut self.entropy);
        let again = self.now + wait + time_of_next_try(open, &failure, wait, self.now);
        if tries >= ROUTER_ATTEMPTS_MAX || again > open.deadline {
            return self.finish(id, Err(failure));
        }
        open.stage = Stage::Backoff;
        open.attempts = open.attempts.max(1);
        open.last_refusal = Some(Box::new(failure));
        open.retry_timer = Some(self.wheel.insert(self.now + wait, Timer::Retry(id)));
    }

    /// A remembered place was wrong: the directory is asked once more, and told. So it is asked of
    /// a hub that has ended on this shard: another process may have taken it over.
    fn look_again(&mut self, id: CorrelationId) -> bool {
        let Some(open) = self.ledger.get_mut(id) else { return false };
        let (place, stage) = (open.place.take(), open.stage);
        if open.forwards >= FORWARDS_MAX || (place.is_none() && !self.was_with_a_hub(id, stage)) {
            return false;
        }
        let Some(open) = self.ledger.get_mut(id) else { return false };
        open.forwards += 1;
        let target = open.target().clone();
        if let Some(place) = place {
            self.directory.refused(self.now, &target, place);
            self.pump_directory();
        }
        self.look_up(id);
        true
    }

    fn was_with_a_hub(&self, id: CorrelationId, stage: Stage) -> bool {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::EndedHubIsFinal {
            return false;
        }
        stage == Stage::Delivered && self.is_for_a_hub(id)
    }

    pub(super) fn forget_place(&mut self, id: CorrelationId) {
        let Some(open) = self.ledger.get_mut(id) else { return };
        let (target, place) = (open.target().hash(), open.place.take());
        self.directory.forget(target, place);
    }

    /// Tries again.
    pub(super) fn retry_now(&mut self, id: CorrelationId) {
        let Some(open) = self.ledger.get_mut(id) else { return };
        assert_eq!(open.stage, Stage::Backoff, "only what waits is tried again");
        open.stage = Stage::Locating;
        open.tried = self.now;
        // The bound is one try's: what moved during earlier ones says nothing about the next.
        open.forwards = 0;
        if let Some(timer) = open.retry_timer.take() {
            self.wheel.cancel(timer);
        }
        self.dispatch(id);
    }

    /// The deadline has passed: the delivery ends now, whatever it waited for.
    pub(super) fn deadline_passed(&mut self, id: CorrelationId) {
        let Some(open) = self.ledger.get(id) else { return };
        let stage = open.stage;
        #[cfg(feature = "planted")]
        self.resend_at_deadline(id, stage);
        let unsent = match stage {
            Stage::Sent { sent, .. } => self.links.retract(sent) == Retracted::Yes,
            Stage::Posted(_) | Stage::Delivered => false,
            Stage::Gated | Stage::Locating | Stage::Linking(_) | Stage::Backoff => true,
        };
        let failure = if unsent {
            let last = self.ledger.get_mut(id).and_then(|open| open.last_refusal.take());
            last.map_or_else(|| unsent_at_deadline(stage), |last| *last)
        } else {
            let detail = "the deadline passed after the request had been handed over";
            DeliveryFailure::indeterminate(IndeterminateKind::TimedOut, detail)
        };
        self.finish(id, Err(failure));
    }

    #[cfg(feature = "planted")]
    fn resend_at_deadline(&mut self, id: CorrelationId, stage: Stage) {
        if self.config.planted != super::Planted::ResentAtDeadline {
            return;
        }
        if let (Stage::Sent { peer, .. }, Some(open)) = (stage, self.ledger.get_mut(id)) {
            open.deadline = self.now + DEADLINE_DEFAULT;
            self.send_over_link(id, peer);
        }
    }

    /// Ends a delivery: its one outcome is told.
    pub(super) fn finish(&mut self, id: CorrelationId, mut result: CallResult) {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::RefusalsSwallowed
            && matches!(result, Err(DeliveryFailure::Rejected { .. }))
        {
            return;
        }
        let Some(open) = self.ledger.close(id) else { return };
        if let Err(failure @ DeliveryFailure::Rejected { .. }) = &result
            && open.is_sent_again()
        {
            // An earlier sending of it may have run, whatever became of the later ones.
            result = Err(lost_after(format!("its link was lost; sent again: {failure}")));
        }
        if let Some(retry) = open.retry_timer {
            self.wheel.cancel(retry);
        }
        self.leave_queues(id, &open);
        if let Some(owner) = open.owner
            && let Some(activation) = self.activations.get_mut(owner as usize)
        {
            activation.open_calls = activation.open_calls.saturating_sub(1);
        }
        self.tell(Some(id), open, result);
    }

    fn leave_queues(&mut self, id: CorrelationId, open: &OpenDelivery) {
        match open.stage {
            Stage::Locating => {
                let target = open.target().hash();
                remove_from(&mut self.locating, &target, id);
                if !self.locating.contains_key(&target) {
                    self.directory.abandon(target);
                }
            }
            Stage::Gated => remove_from(&mut self.gated, &open.source_hash(), id),
            Stage::Linking(peer) => {
                if let Some(waiting) = self.linking.get_mut(&peer) {
                    waiting.retain(|waiting| *waiting != id);
                }
            }
            Stage::Sent { .. } | Stage::Posted(_) | Stage::Delivered | Stage::Backoff => {}
        }
    }

    /// Tells an outcome to who waits for it; `id` is missing if the delivery was never entered.
    pub(super) fn tell(
        &mut self,
        id: Option<CorrelationId>,
        mut parcel: Parcel,
        result: CallResult,
    ) {
        if let Err(failure) = &result
            && parcel.tries == Tries::Router
        {
            self.tell_failed(parcel.request.source.as_ref(), parcel.target(), failure);
        }
        if let Waiter::Slot(slot) = parcel.waiter {
            let taken = self.local.answer(slot.0, Answer::Call(result));
            if let (Taken::No, Some(id)) = (taken, id) {
                self.tell_late(id);
            }
            return parcel.end();
        }
        match (core::mem::take(&mut parcel.waiter), result) {
            (Waiter::Slot(_), _) => unreachable!("told above"),
            (Waiter::Foreign(waiter), result) => waiter.complete(result),
            (Waiter::Callback(on_failure), Err(failure)) => {
                // The program's own code: a panic in it ends nothing of ours.
                let told = catch_unwind(AssertUnwindSafe(|| on_failure(failure)));
                if let Err(panic) = told {
                    let message = crate::host::panic_message(&*panic);
                    let target = parcel.target().clone();
                    self.emit(Event::HandlerPanicked { target, message });
                }
            }
            (Waiter::Nobody, Err(failure)) => {
                let (source, target) = (parcel.request.source.clone(), parcel.target().clone());
                self.emit(Event::DeadLetter { source, target, failure });
            }
            (Waiter::Callback(_) | Waiter::Nobody, Ok(_)) => {}
        }
        parcel.end();
    }

    /// Ends a one-way delivery of which a future of this shard says that it failed.
    pub(super) fn dead_letter(&mut self, failed: FailedDelivery) {
        self.failed(&failed);
        let FailedDelivery { source, target, failure } = failed;
        self.emit(Event::DeadLetter { source, target, failure });
    }

    /// Tells of a delivery of which a future of this shard says that it failed, all tries together.
    pub(super) fn failed(&mut self, failed: &FailedDelivery) {
        let FailedDelivery { source, target, failure } = failed;
        self.tell_failed(source.as_ref(), target, failure);
    }

    /// Counts a failure, and logs it unless its target's were logged lately.
    fn tell_failed(
        &mut self,
        source: Option<&Address>,
        target: &Address,
        failure: &DeliveryFailure,
    ) {
        let source = source.cloned();
        let told =
            Event::DeliveryFailed { source, target: target.clone(), failure: failure.clone() };
        self.emit(told);
        self.log_failed(target, failure);
    }

    fn log_failed(&mut self, target: &Address, failure: &DeliveryFailure) {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::EveryFailureLogged {
            self.failure_log = FailureLog::default();
        }
        if let Some(suppressed_count) = self.failure_log.admit(self.now, &target.hash()) {
            let (target, failure) = (target.clone(), failure.clone());
            self.emit(Event::DeliveriesFailed { target, failure, suppressed_count });
        }
    }
}

/// What another try has, at least. That the registry is away is waited out at the target: there the
/// next try takes as long as the last.
fn time_of_next_try(
    open: &OpenDelivery,
    failure: &DeliveryFailure,
    wait: Duration,
    now: Moment,
) -> Duration {
    if failure.rejected_kind() == Some(RejectedKind::RegistryUnavailable) {
        now.since(open.tried).max(wait / 2)
    } else {
        wait / 2
    }
}

/// How long to wait after the `tries`-th try: exponential, with up to a quarter of jitter.
fn backoff(tries: u32, entropy: &mut fastrand::Rng) -> Duration {
    let factor = RETRY_BACKOFF_FACTOR.saturating_pow(tries.saturating_sub(1));
    let wait = RETRY_BACKOFF_MIN.saturating_mul(factor).min(RETRY_BACKOFF_MAX);
    wait.mul_f64(1.0 - entropy.f64() / 4.0)
}

fn remove_from<K: Ord>(waiting: &mut BTreeMap<K, Vec<CorrelationId>>, key: &K, id: CorrelationId) {
    if let Some(ids) = waiting.get_mut(key) {
        ids.retain(|waiting| *waiting != id);
        if ids.is_empty() {
            waiting.remove(key);
        }
    }
}

fn lost_after(detail: impl Into<String>) -> DeliveryFailure {
    DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, detail)
}

/// A reply of another version than wanted, taken up.
#[cold]
fn reply_of(body: Body, found: Schema, wanted: Wanted) -> CallResult {
    match versions::taken_up(body, found, wanted.schema, wanted.older) {
        Ok(body) => Ok(RawReply { schema: wanted.schema, body }),
        Err(error) => {
            let detail = format!("reply {found:?} is not {:?}: {error}", wanted.schema);
            Err(DeliveryFailure::failed(FailedKind::ReplyUndecodable, detail))
        }
    }
}

fn unsent_at_deadline(stage: Stage) -> DeliveryFailure {
    let (kind, detail) = match stage {
        Stage::Gated => (RejectedKind::Moving, "the sending hub was not claimed by the deadline"),
        Stage::Locating => (RejectedKind::Moving, "the directory had no answer by the deadline"),
        Stage::Linking(_) => (RejectedKind::ConnectionLost, "no link was up by the deadline"),
        Stage::Sent { .. } => {
            (RejectedKind::ConnectionLost, "the link took nothing by the deadline")
        }
        Stage::Posted(_) | Stage::Delivered | Stage::Backoff => {
            (RejectedKind::Moving, "refused until the deadline")
        }
    };
    DeliveryFailure::rejected(kind, detail)
}

/// When a target's failures were last logged.
pub(super) type FailureLog = LogWindow<AddressHash>;
