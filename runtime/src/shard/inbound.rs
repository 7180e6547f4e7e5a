//! Requests that reach this shard, and outcomes that leave it: accepted or refused, answered once.

use std::collections::VecDeque;
use std::rc::Rc;

use siloring_core::address::Address;
use siloring_core::event::Event;
use siloring_core::ids::{CorrelationId, MethodId, ShardIndex};
use siloring_core::limits::{
    ACTIVATIONS_MAX, DEADLINE_DEFAULT, HELD_REQUESTS_MAX, INLINE_TURNS_MAX, LEDGER_TICK,
    TURNS_PER_LOOP_MAX,
};
use siloring_core::outcome::{DeliveryFailure, FailedKind, IndeterminateKind, RejectedKind};
use siloring_core::wire::{FLAG_ONE_WAY, FrameKind, Header};

use super::activation::{Activation, Life};
use super::{HeldOutcome, Shard, ShardOutput, Timer};
use crate::ctx::ActivationShared;
use crate::envelope;
use crate::filter::{FilterCall, Verdict};
use crate::links::{LinkRefusal, Links, Outgoing};
use crate::mail::{ConnId, Outcome, ReplyTo, Request, ShardMail};
use crate::placement::{Placement, named_endpoint};

/// A request frame as the pump hands it over.
#[derive(Debug)]
pub struct IncomingRequest<'a> {
    /// The connection it came on.
    pub conn: ConnId,
    /// Its header.
    pub header: &'a Header,
    /// The target, from the link's dictionary.
    pub target: &'a Address,
    /// The body.
    pub body: &'a [u8],
    /// The extension block.
    pub extensions: &'a [u8],
    /// Deadline of the peer's requests that name none.
    pub deadline_default: core::time::Duration,
}

impl<L: Links> Shard<L> {
    /// Takes a request from a link, with the shard entered; or refuses it, before anything is
    /// allocated for it.
    pub fn take_request(&mut self, incoming: &IncomingRequest<'_>) {
        let shard = self.config.me.shard;
        let reply_to = ReplyTo::Link { shard, conn: incoming.conn };
        if self.is_overloaded() {
            return self.refuse_unread(reply_to, incoming.header.correlation, incoming.target);
        }
        let parts = if incoming.extensions.is_empty() {
            envelope::Parts::default()
        } else {
            envelope::read(incoming.extensions)
        };
        let header = incoming.header;
        let mut request = Request {
            source: header.source,
            method: header.method,
            schema: header.schema,
            body: siloring_core::body::Body::copy_of(incoming.body),
            deadline: self.now + parts.deadline.unwrap_or(incoming.deadline_default),
            correlation: header.correlation,
            reply_to,
            one_way: header.flags & FLAG_ONE_WAY != 0,
            attempt: header.attempt,
            forwards: header.forwards,
            envelope: parts.envelope,
        };
        let home = self.home_shard(incoming.target);
        if home == shard {
            self.accept(incoming.target, &mut request);
        } else {
            let mail = ShardMail::Request { target: incoming.target.clone(), request };
            self.outputs.push_back(ShardOutput::Shard(home, mail));
        }
        self.carry_out(None);
    }

    /// The shard of this silo where the target is, or would be.
    fn home_shard(&self, target: &Address) -> ShardIndex {
        if self.activation_at(target.hash()).is_some() {
            return self.config.me.shard;
        }
        let by_hash = ShardIndex::of(target.hash().0, self.config.shards);
        if !self.own.kinds.contains(&target.kind().0) {
            return by_hash;
        }
        // One that names another silo, or no shard, is refused wherever it comes to.
        named_endpoint(target)
            .filter(|named| named.silo == self.config.me.silo && named.shard.0 < self.config.shards)
            .map_or(by_hash, |named| named.shard)
    }

    /// Takes the outcome of a request of this shard from a link, with the shard entered.
    pub fn take_outcome(&mut self, conn: ConnId, header: &Header, body: &[u8], extensions: &[u8]) {
        let outcome = match header.kind {
            FrameKind::Reply => {
                let body = siloring_core::body::Body::copy_of(body);
                Outcome { result: Ok(body), schema: header.schema, place: None }
            }
            FrameKind::Failure => read_failure(header, body, extensions),
            FrameKind::Hello
            | FrameKind::HelloAck
            | FrameKind::HelloDone
            | FrameKind::Refuse
            | FrameKind::Dictionary
            | FrameKind::View
            | FrameKind::Request
            | FrameKind::Void
            | FrameKind::Probe
            | FrameKind::ProbeAnswer
            | FrameKind::Membership
            | FrameKind::Directory => unreachable!("the pump hands over outcomes only"),
        };
        self.resolve(header.correlation, Some(conn), outcome);
        self.carry_out(None);
    }

    /// Accepts a request for a target of this shard, or answers why not.
    pub(super) fn accept(&mut self, target: &Address, request: &mut Request) {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::EverythingRefused {
            return self.refuse(target, request, not_here(target, "everything is refused"));
        }
        if self.is_fenced(self.now) {
            return self.hold(target, request);
        }
        if self.held_requests.is_empty() {
            return self.accept_now(target, request);
        }
        // Behind those that came while the right to serve was out.
        self.held_requests.push_back((target.clone(), request.take()));
        self.accept_held();
    }

    /// Keeps a request until the right to serve is back.
    fn hold(&mut self, target: &Address, request: &mut Request) {
        if self.held_requests.len() < HELD_REQUESTS_MAX {
            self.held_requests.push_back((target.clone(), request.take()));
        } else {
            let detail = "the silo may not serve now, and too many requests wait for that";
            let failure = DeliveryFailure::rejected(RejectedKind::Overloaded, detail);
            self.refuse(target, request, failure);
        }
    }

    /// Accepts what was held while the right to serve was out, in order.
    pub(super) fn accept_held(&mut self) {
        // One at a time: what a turn sends meanwhile queues behind those that still wait.
        for _ in 0..TURNS_PER_LOOP_MAX {
            let Some((target, mut request)) = self.held_requests.pop_front() else { return };
            self.accept_now(&target, &mut request);
        }
    }

    /// Accepts what had been accepted already: before anything that came later and is held.
    pub(super) fn accept_again(&mut self, target: &Address, requests: VecDeque<Request>) {
        for request in requests.into_iter().rev() {
            self.held_requests.push_front((target.clone(), request));
        }
        if !self.is_fenced(self.now) {
            self.accept_held();
        }
    }

    fn accept_now(&mut self, target: &Address, request: &mut Request) {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::InboundDroppedAtStop
            && self.leaving.is_draining()
            && matches!(request.reply_to, ReplyTo::Link { .. })
        {
            return;
        }
        if request.deadline < self.now {
            return self.refuse_expired(target, request);
        }
        if self.is_denied(target, request) {
            self.emit(Event::AccessDenied { target: target.clone() });
            let failure = DeliveryFailure::rejected(RejectedKind::AccessDenied, "by the filter");
            return self.refuse(target, request, failure);
        }
        let hash = target.hash();
        if self.hubs.contains_key(&hash) {
            return self.deliver_to_hub(target, request);
        }
        if let Some(activation) = self.activation_at(hash) {
            return self.enqueue(activation, target, request);
        }
        self.activate_for(target, request);
    }

    fn refuse_expired(&mut self, target: &Address, request: &Request) {
        self.emit(Event::ExpiredUnstarted { target: target.clone() });
        let failure = DeliveryFailure::indeterminate(
            IndeterminateKind::TimedOut,
            "the deadline had passed when the request could have begun",
        );
        self.refuse(target, request, failure);
    }

    fn is_denied(&self, target: &Address, request: &Request) -> bool {
        let Some(filter) = &self.config.filter else { return false };
        let call = FilterCall {
            target,
            source: request.source,
            method: request.method,
            envelope: request.envelope.as_deref(),
        };
        filter.check(&call) == Verdict::Deny
    }

    /// Makes the activation that the request is for, if this is a place for it.
    fn activate_for(&mut self, target: &Address, request: &mut Request) {
        let kind = target.kind().0;
        if self.hub_kinds.contains(kind) {
            #[cfg(feature = "planted")]
            if self.is_refused_already(target) {
                return;
            }
            let view = self.view.number();
            let detail = format!("{target} is not here");
            let failure = DeliveryFailure::rejected_in(RejectedKind::NotHere, view, detail);
            return self.refuse(target, request, failure);
        }
        let Some(&host) = self.host_of.get(kind) else {
            let failure = not_here(target, "no grain type of that kind is hosted here");
            return self.refuse(target, request, failure);
        };
        let is_of_shard = self.is_of_shard(host);
        if request.is_sent_again() {
            return self.refuse(target, request, not_here(target, "its activation is gone"));
        }
        if is_of_shard && named_endpoint(target) != Some(self.config.me) {
            let failure = not_here(target, "it names another shard, or none");
            return self.refuse(target, request, failure);
        }
        if self.refuses_new(host) && !self.is_drain_late() {
            let failure = DeliveryFailure::rejected(RejectedKind::Draining, "the silo is leaving");
            return self.refuse(target, request, failure);
        }
        if self.activations.len() >= ACTIVATIONS_MAX {
            let failure = DeliveryFailure::rejected(RejectedKind::Overloaded, "too many grains");
            return self.refuse(target, request, failure);
        }
        let shared = ActivationShared::new(target.clone(), self.local.handle.clone());
        let key = self.activations.insert(Activation::new(shared, host, self.now));
        let key = u32::try_from(key).expect("bounded by ACTIVATIONS_MAX");
        self.local.known.activations.borrow_mut().insert(target.hash(), key);
        self.found.set(None);
        self.enqueue(key, target, request);
        if is_of_shard {
            return self.register_of_shard(key);
        }
        self.directory.register(self.now, target);
        self.pump_directory();
    }

    /// Whether the type's grains are each of one shard.
    pub(super) fn is_of_shard(&self, host: u32) -> bool {
        self.hosts[host as usize].spec().placement == Placement::Shard
    }

    /// Whether a grain of the type takes no new requests: its silo leaves. A grain of a shard takes
    /// them as long as hubs do.
    fn refuses_new(&self, host: u32) -> bool {
        self.leaving.is_draining() && (self.leaving.is_closing() || !self.is_of_shard(host))
    }

    #[cfg(feature = "planted")]
    fn is_refused_already(&mut self, target: &Address) -> bool {
        let refusal = Some((self.now, target.hash()));
        let last = core::mem::replace(&mut self.planted_refusal, refusal);
        self.config.planted == super::Planted::DeactivateOnRefusal && last == refusal
    }

    #[cfg(feature = "planted")]
    fn is_drain_late(&self) -> bool {
        self.config.planted == super::Planted::DrainAfterActivation
    }

    #[cfg(not(feature = "planted"))]
    #[expect(clippy::unused_self, reason = "the planted form looks at the configuration")]
    const fn is_drain_late(&self) -> bool {
        false
    }

    /// Queues a request at an activation of this shard, which is its target's.
    fn enqueue(&mut self, key: super::ActivationKey, target: &Address, request: &mut Request) {
        if self.leaving.is_draining()
            && !matches!(request.reply_to, ReplyTo::Ledger(_))
            && self.refuses_new(self.activations[key as usize].host)
        {
            let failure = DeliveryFailure::rejected(RejectedKind::Draining, "the silo is leaving");
            return self.refuse(target, request, failure);
        }
        if self.may_start_at_once(key, request.method) {
            self.inline_depth += 1;
            self.start_request(key, request);
            self.inline_depth -= 1;
            return;
        }
        let activation = &mut self.activations[key as usize];
        if activation.push(request).is_err() {
            let detail = "too many requests wait for the grain";
            let failure = DeliveryFailure::rejected(RejectedKind::Overloaded, detail);
            return self.refuse(target, request, failure);
        }
        if activation.life == Life::Active && !activation.queued {
            activation.queued = true;
            self.runnable.push_back(key);
        }
    }

    /// Whether a request's turn may begin without waiting in the queue: nothing is ahead of it, and
    /// the turns that led here are not nested too deep.
    fn may_start_at_once(&self, key: super::ActivationKey, method: MethodId) -> bool {
        let activation = &self.activations[key as usize];
        activation.life == Life::Active
            && activation.queue.is_empty()
            && self.inline_depth < INLINE_TURNS_MAX
            && (activation.running.is_empty()
                || activation.admits(self.access_of(activation.host, method)))
    }

    /// Answers a request that does not run.
    pub(super) fn refuse(&mut self, target: &Address, request: &Request, failure: DeliveryFailure) {
        let outcome = Outcome::failure(failure);
        self.respond(request.reply_to, request.correlation, target, outcome);
    }

    /// Answers a request to an activation of this shard that does not run.
    pub(super) fn refuse_of(
        &mut self,
        key: super::ActivationKey,
        request: &Request,
        failure: DeliveryFailure,
    ) {
        let shared = Rc::clone(&self.activations[key as usize].shared);
        self.refuse(&shared.address, request, failure);
    }

    /// Puts an outcome on the link that brought its request.
    pub(super) fn send_outcome(
        &mut self,
        conn: ConnId,
        correlation: CorrelationId,
        source: &Address,
        mut outcome: Outcome,
    ) {
        if !self.older_peers.is_empty() {
            outcome = self.older_peers.outcome(conn, outcome);
        }
        match self.try_outcome(conn, correlation, source, &outcome) {
            Ok(()) => {}
            Err(LinkRefusal::Gone | LinkRefusal::NotUp) => {
                self.orphan(source, correlation, &outcome);
            }
            Err(LinkRefusal::Overloaded) => self.hold_outcome(conn, correlation, source, outcome),
            Err(LinkRefusal::TooLarge) => {
                let detail = "the reply exceeds the frame limit";
                let failure = DeliveryFailure::failed(FailedKind::ReplyUndecodable, detail);
                self.send_outcome(conn, correlation, source, Outcome::failure(failure));
            }
        }
    }

    fn try_outcome(
        &mut self,
        conn: ConnId,
        correlation: CorrelationId,
        source: &Address,
        outcome: &Outcome,
    ) -> Result<(), LinkRefusal> {
        self.extensions.clear();
        let (kind, method, body) = match &outcome.result {
            Ok(body) => (FrameKind::Reply, 0, body.as_slice()),
            Err(failure) => {
                let place = outcome.place.as_deref().copied();
                envelope::write_failure(failure.view(), place, &mut self.extensions);
                (FrameKind::Failure, u32::from(failure.code()), failure.detail().as_bytes())
            }
        };
        let header = Header {
            method: MethodId(method),
            correlation,
            schema: outcome.schema,
            source: source.hash(),
            ..Header::new(kind)
        };
        // The caller knows whom it asked: the address's string need not travel back.
        let frame =
            Outgoing { header, source: None, target: None, body, extensions: &self.extensions };
        self.links.outcome(conn, &frame)
    }

    /// The caller heard when the link broke; what is left to tell is told once, here.
    fn orphan(&mut self, source: &Address, correlation: CorrelationId, outcome: &Outcome) {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::OrphansUntold {
            return;
        }
        let failure = match &outcome.result {
            Err(failure) => failure.clone(),
            Ok(_) => DeliveryFailure::rejected(
                RejectedKind::ConnectionLost,
                "the link that brought the request is gone",
            ),
        };
        let source = source.clone();
        self.emit(Event::ReplyOrphaned { source, correlation: correlation.0, failure });
    }

    fn hold_outcome(
        &mut self,
        conn: ConnId,
        correlation: CorrelationId,
        source: &Address,
        outcome: Outcome,
    ) {
        if self.held_outcomes.is_empty() {
            self.wheel.insert(self.now + LEDGER_TICK, Timer::ResendOutcomes);
        }
        let until = self.now + DEADLINE_DEFAULT;
        let source = source.clone();
        let held = HeldOutcome { conn, correlation, source, outcome, until };
        self.held_outcomes.push_back(held);
    }

    pub(super) fn resend_outcomes(&mut self) {
        for held in core::mem::take(&mut self.held_outcomes) {
            if held.until < self.now {
                self.orphan(&held.source, held.correlation, &held.outcome);
            } else {
                self.send_outcome(held.conn, held.correlation, &held.source, held.outcome);
            }
        }
    }

    /// A link is gone: outcomes that waited for room on it are orphaned now.
    pub(super) fn drop_outcomes_of(&mut self, conn: ConnId) {
        let held = core::mem::take(&mut self.held_outcomes);
        let (gone, kept): (VecDeque<_>, _) = held.into_iter().partition(|h| h.conn == conn);
        self.held_outcomes = kept;
        for held in gone {
            self.orphan(&held.source, held.correlation, &held.outcome);
        }
    }
}

pub(super) fn not_here(target: &Address, why: &str) -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::NotHere, format!("{target}: {why}"))
}

fn read_failure(header: &Header, body: &[u8], extensions: &[u8]) -> Outcome {
    let parts = envelope::read(extensions);
    let detail = String::from_utf8_lossy(body);
    // The code is 16 bits in a 32-bit field; a larger one is no code we know.
    let code = u16::try_from(header.method.0).unwrap_or(u16::MAX);
    let failure = DeliveryFailure::from_code(code, parts.view, detail);
    Outcome { result: Err(failure), schema: header.schema, place: parts.place.map(Box::new) }
}
