//! Deliveries that this shard's code sends: opened, routed, handed to who brings them.

use core::time::Duration;
use std::rc::Rc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::ids::{CorrelationId, Endpoint, Generation, ShardIndex};
use siloring_core::limits::{DEADLINE_MAX, OPEN_CALLS_PER_ACTIVATION_MAX};
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::time::Moment;
use siloring_core::versions::Converted;
use siloring_core::wire::{FLAG_ONE_WAY, FrameKind, Header};

use super::inbound::not_here;
use super::{ActivationKey, Shard, ShardOutput};
use crate::call::{CallRequest, Waiter};
use crate::directory::{Lookup, Place};
use crate::envelope::{self, Envelope};
use crate::exec::tasks::TaskKey;
use crate::ledger::{OpenDelivery, Stage};
use crate::links::{LinkRefusal, Links, Outgoing};
use crate::mail::{ControlMail, ReplyTo, Request, ShardMail};
use crate::parcel::Parcel;
use crate::placement::{self, Placement, named_endpoint};
use crate::route::{Route, RouteInput, Sender, TargetKind, Whereabouts, route};

impl<L: Links> Shard<L> {
    /// Enters a delivery in the ledger and sends it on its way.
    pub(super) fn open_delivery(
        &mut self,
        mut parcel: Parcel,
        owner: Option<(ActivationKey, TaskKey)>,
    ) {
        let mut span = parcel.request.deadline.unwrap_or(self.config.deadline_default);
        span = span.min(DEADLINE_MAX);
        if let Some((activation, task)) = owner {
            let waits = matches!(parcel.waiter, Waiter::Slot(_));
            let inherited = self.inherit(activation, task, waits, &mut parcel.request, &mut span);
            if let Err(failure) = inherited {
                return self.tell(None, parcel, Err(failure));
            }
        }
        if let Some(Err(error)) = parcel.request.envelope.as_deref().map(Envelope::check) {
            let failure = DeliveryFailure::rejected(RejectedKind::TooLarge, error.to_string());
            return self.tell(None, parcel, Err(failure));
        }
        if self.ledger.is_full() {
            let failure =
                DeliveryFailure::rejected(RejectedKind::Overloaded, "too many open deliveries");
            return self.tell(None, parcel, Err(failure));
        }
        parcel.deadline = self.now + span;
        parcel.tried = self.now;
        if let Some((activation, _)) = owner {
            parcel.sender = Sender::Begun;
            parcel.owner = Some(activation);
            self.activations[activation as usize].open_calls += 1;
        }
        let id = self.ledger.open(parcel);
        self.dispatch(id);
    }

    /// Gives a call what it inherits of the turn that makes it: source, chain, envelope, deadline.
    fn inherit(
        &self,
        activation: ActivationKey,
        task: TaskKey,
        waits: bool,
        request: &mut CallRequest,
        span: &mut Duration,
    ) -> Result<(), DeliveryFailure> {
        let activation = &self.activations[activation as usize];
        if activation.open_calls >= OPEN_CALLS_PER_ACTIVATION_MAX {
            let detail = "too many open calls of one activation";
            return Err(DeliveryFailure::rejected(RejectedKind::Overloaded, detail));
        }
        request.source.get_or_insert_with(|| activation.shared.address.clone());
        let Some(turn) = activation.running.get(task) else {
            // A timer's future: nothing came in that could be handed on.
            return Ok(());
        };
        if waits {
            *span = (*span).min(turn.deadline.since(self.now));
        }
        let chained = waits && !turn.one_way && turn.source != AddressHash::NONE;
        if turn.envelope.is_none() && !chained {
            return Ok(());
        }
        let envelope = request.envelope.get_or_insert_default();
        if let Some(outer) = turn.envelope.as_deref() {
            if envelope.identity.is_none() {
                envelope.identity.clone_from(&outer.identity);
            }
            if envelope.headers.is_empty() {
                envelope.headers.clone_from(&outer.headers);
            }
            envelope.trace = envelope.trace.or(outer.trace);
            if chained {
                envelope.chain.clone_from(&outer.chain);
            }
        }
        if chained {
            envelope.chain.push(turn.source);
        }
        Ok(())
    }

    /// Sends an open delivery where it belongs now.
    pub(super) fn dispatch(&mut self, id: CorrelationId) {
        if self.is_gated(id) {
            return;
        }
        if !self.leavers.is_empty() {
            self.forget_leaver(id);
        }
        let Some(open) = self.ledger.get(id) else { return };
        let (hash, bytes) = (open.target().hash(), open.request.body.len());
        let (target, place) = self.whereabouts(open.target());
        let input = RouteInput {
            target,
            is_draining: self.leaving.is_draining(),
            sender: open.sender,
            bytes,
        };
        match route(input) {
            Route::Here => {
                self.dispatch_waiting(hash);
                self.deliver_here(id);
            }
            // A silo that leaves does not come back: its own programs need not try again.
            Route::Draining => self.finish(id, Err(draining())),
            Route::TooLarge => self.finish(id, Err(too_large(bytes))),
            Route::Remembered => {
                self.dispatch_waiting(hash);
                self.send_to_place(id, place.expect("the place that is remembered"));
            }
            Route::Nowhere => self.finish(id, Err(no_such_shard())),
            Route::Named(endpoint) => self.send_to_named(id, endpoint),
            Route::Home if !open.is_sent_again() => self.send_to(id, self.home_of(hash)),
            Route::Home | Route::LookUp | Route::LookUpOrPlace => self.look_up(id),
        }
    }

    /// Where the target lives, with the place if one is remembered.
    fn whereabouts(&self, target: &Address) -> (Whereabouts, Option<Place>) {
        let hash = target.hash();
        if self.activation_at(hash).is_some() || self.hubs.contains_key(&hash) {
            return (Whereabouts::Here, None);
        }
        match self.directory.cached(hash) {
            place @ Some(_) => (Whereabouts::Remembered, place),
            None => (Whereabouts::Unknown(self.kind_of(target)), None),
        }
    }

    /// What waits for the directory goes first, now that the way is known without it: a later
    /// delivery does not overtake.
    #[inline]
    fn dispatch_waiting(&mut self, target: AddressHash) {
        if !self.locating.is_empty() {
            self.dispatch_located(target);
        }
    }

    #[cold]
    fn dispatch_located(&mut self, target: AddressHash) {
        for waiting in self.locating.remove(&target).unwrap_or_default() {
            self.dispatch(waiting);
        }
    }

    fn kind_of(&self, target: &Address) -> TargetKind {
        let kind = target.kind().0;
        if self.hub_kinds.contains(kind) {
            return TargetKind::Hub;
        }
        match self.host_of.get(kind) {
            Some(&host) => match self.hosts[host as usize].spec().placement {
                Placement::Shard => TargetKind::OfShard(named_endpoint(target)),
                placement @ (Placement::PreferLocal | Placement::Hash | Placement::Random) => {
                    TargetKind::Hosted(placement)
                }
            },
            None => TargetKind::Foreign,
        }
    }

    /// Forgets a grain's place on a silo that leaves: the directory knows better.
    fn forget_leaver(&mut self, id: CorrelationId) {
        let Some(hash) = self.ledger.get(id).map(|open| open.target().hash()) else { return };
        let Some(place) = self.directory.cached(hash) else { return };
        if self.takes_no_grains(place.endpoint.silo) && self.is_for_a_grain(id) {
            self.directory.forget(hash, Some(place));
        }
    }

    fn home_of(&self, hash: AddressHash) -> Endpoint {
        let shard = ShardIndex::of(hash.0, self.config.shards);
        Endpoint { silo: self.config.me.silo, shard }
    }

    pub(super) fn look_up(&mut self, id: CorrelationId) {
        let Some(target) = self.ledger.get(id).map(|open| open.target().clone()) else { return };
        match self.directory.lookup(self.now, &target) {
            Lookup::Cached(place) => self.send_to_place(id, place),
            Lookup::Pending => {
                self.set_stage(id, Stage::Locating);
                self.locating.entry(target.hash()).or_default().push(id);
                self.pump_directory();
            }
        }
    }

    /// The directory has answered.
    pub(super) fn located(
        &mut self,
        target: &Address,
        found: &Result<Option<Place>, DeliveryFailure>,
    ) {
        let waiting = self.locating.remove(&target.hash()).unwrap_or_default();
        for id in waiting {
            match found {
                Ok(Some(place)) => self.send_to_place(id, *place),
                Ok(None) => self.place_or_refuse(id, target),
                Err(failure) => self.refused(id, failure.clone()),
            }
        }
    }

    fn place_or_refuse(&mut self, id: CorrelationId, target: &Address) {
        if self.ledger.get(id).is_some_and(OpenDelivery::is_sent_again) {
            // Whoever it was handed over to is gone: nobody else may begin to handle it.
            return self.finish(id, Err(not_here(target, "its activation is gone")));
        }
        let placement = match self.kind_of(target) {
            TargetKind::Hub => {
                let detail = format!("nobody holds {target}");
                let view = self.view.number();
                let failure = DeliveryFailure::rejected_in(RejectedKind::NotHere, view, detail);
                return self.finish(id, Err(failure));
            }
            TargetKind::Hosted(placement) => placement,
            TargetKind::OfShard(_) => return self.finish(id, Err(no_such_shard())),
            TargetKind::Foreign => Placement::Random,
        };
        let me = self.config.me.silo;
        let hash = target.hash();
        match placement::place(placement, hash, me, &self.view) {
            Some(endpoint) => self.send_to(id, endpoint),
            None => self.refused(
                id,
                DeliveryFailure::rejected(RejectedKind::Moving, "no silo is active yet"),
            ),
        }
    }

    pub(super) fn send_to_place(&mut self, id: CorrelationId, place: Place) {
        if let Some(open) = self.ledger.get_mut(id) {
            open.place = Some(place);
            self.send_to(id, place.endpoint);
        }
    }

    /// Sends to a shard that the target's address names: to that one, or nowhere.
    fn send_to_named(&mut self, id: CorrelationId, to: Endpoint) {
        let me = self.config.me.silo;
        if to.silo == me && to.shard.0 >= self.config.shards {
            self.finish(id, Err(no_such_shard()));
        } else if to.silo != me && self.view.is_gone(to.silo) {
            let (kind, view) = (RejectedKind::IncarnationDead, self.view.number());
            let failure = DeliveryFailure::rejected_in(kind, view, "the target's silo is gone");
            self.finish(id, Err(failure));
        } else {
            self.send_to(id, to);
        }
    }

    fn send_to(&mut self, id: CorrelationId, to: Endpoint) {
        if to.silo == self.config.me.silo && to.shard.0 >= self.config.shards {
            // A place that a peer made up.
            self.forget_place(id);
            let detail = "the place that was named has no such shard";
            self.refused(id, DeliveryFailure::rejected(RejectedKind::Moving, detail));
        } else if to.silo == self.config.me.silo {
            if to.shard == self.config.me.shard {
                self.deliver_here(id);
            } else {
                self.post_to(id, to.shard);
            }
        } else if self.view.is_gone(to.silo) {
            self.forget_place(id);
            self.refused(id, lost("the target's silo is gone"));
        } else {
            self.send_over_link(id, to.silo);
        }
    }

    /// Hands the delivery to this shard's own activation or hub.
    fn deliver_here(&mut self, id: CorrelationId) {
        let me = self.config.me.shard;
        let Some(open) = self.ledger.get_mut(id) else { return };
        open.stage = Stage::Delivered;
        open.attempts = open.attempts.saturating_add(1);
        let (hash, mut request) = (open.target().hash(), request_of(open, id, me));
        // The activation's own address is cheaper to hold on to: it is of this shard alone.
        if let Some(key) = self.activation_at(hash) {
            let shared = Rc::clone(&self.activations[key as usize].shared);
            return self.accept(&shared.address, &mut request);
        }
        let Some(target) = self.ledger.get(id).map(|open| open.target().clone()) else { return };
        self.accept(&target, &mut request);
    }

    fn post_to(&mut self, id: CorrelationId, shard: ShardIndex) {
        let me = self.config.me.shard;
        let Some(open) = self.ledger.get_mut(id) else { return };
        open.stage = Stage::Posted(shard);
        open.attempts = open.attempts.saturating_add(1);
        let (target, request) = (open.target().clone(), request_of(open, id, me));
        self.outputs.push_back(ShardOutput::Shard(shard, ShardMail::Request { target, request }));
    }

    pub(super) fn send_over_link(&mut self, id: CorrelationId, peer: Generation) {
        #[cfg(feature = "planted")]
        if self.is_behind_another(id) {
            let detail = "another delivery is under way";
            return self.refused(id, DeliveryFailure::rejected(RejectedKind::Overloaded, detail));
        }
        if self.takes_no_grains(peer) && self.is_for_a_grain(id) {
            return self.refused_unsent(id);
        }
        if self.linking.get(&peer).is_some_and(|waiting| !waiting.is_empty()) {
            return self.wait_for_link(id, peer);
        }
        let handed_down = match self.handed_down(id, peer) {
            Ok(handed_down) => handed_down,
            Err(failure) => return self.finish(id, Err(failure)),
        };
        match self.try_link(id, peer, handed_down.as_ref()) {
            Ok(()) => {}
            Err(LinkRefusal::NotUp | LinkRefusal::Gone) => self.wait_for_link(id, peer),
            Err(LinkRefusal::Overloaded) => self.refused(
                id,
                DeliveryFailure::rejected(RejectedKind::Overloaded, "the link's backlog is full"),
            ),
            Err(LinkRefusal::TooLarge) => {
                let bytes = self.ledger.get(id).map_or(0, |open| open.request.body.len());
                self.finish(id, Err(too_large(bytes)));
            }
        }
    }

    /// Whether the target is a grain that may be activated elsewhere.
    fn is_for_a_grain(&self, id: CorrelationId) -> bool {
        self.ledger.get(id).is_some_and(|open| match self.kind_of(open.target()) {
            TargetKind::Hub | TargetKind::OfShard(_) => false,
            TargetKind::Hosted(_) | TargetKind::Foreign => true,
        })
    }

    /// Whether the target is a hub.
    pub(super) fn is_for_a_hub(&self, id: CorrelationId) -> bool {
        let open = self.ledger.get(id);
        open.is_some_and(|open| self.hub_kinds.contains(open.target().kind().0))
    }

    /// As the silo itself, which leaves, would refuse it.
    fn refused_unsent(&mut self, id: CorrelationId) {
        let Some(open) = self.ledger.get_mut(id) else { return };
        open.attempts = open.attempts.saturating_add(1);
        self.refused(id, draining());
    }

    #[cfg(feature = "planted")]
    fn is_behind_another(&self, id: CorrelationId) -> bool {
        let is_sent = |open: &OpenDelivery| matches!(open.stage, Stage::Sent { .. });
        self.config.planted == super::Planted::OneLegAtATime
            && self.ledger.select(is_sent).into_iter().any(|other| other != id)
    }

    fn try_link(
        &mut self,
        id: CorrelationId,
        peer: Generation,
        handed_down: Option<&Converted>,
    ) -> Result<(), LinkRefusal> {
        let Some(open) = self.ledger.get_mut(id) else { return Ok(()) };
        let (schema, body) = match handed_down {
            Some(Converted { schema, body }) => (*schema, body),
            None => (open.request.arguments, &open.request.body),
        };
        self.extensions.clear();
        let remaining = open.deadline.since(self.now);
        // Told to the peer in the handshake; a retry has less left and says so.
        let is_default = remaining == self.config.deadline_default;
        envelope::write_request(
            (!is_default).then_some(remaining),
            open.request.envelope.as_deref(),
            &mut self.extensions,
        );
        let header = Header {
            flags: if open.is_one_way() { FLAG_ONE_WAY } else { 0 },
            forwards: open.forwards,
            attempt: open.attempts.saturating_add(1),
            method: open.request.method,
            correlation: id,
            schema,
            source: open.source_hash(),
            target: open.target().hash(),
            ..Header::new(FrameKind::Request)
        };
        let frame = Outgoing {
            header,
            source: open.request.source.as_ref(),
            target: Some(open.target()),
            body: body.as_slice(),
            extensions: &self.extensions,
        };
        let sent = self.links.request(peer, &frame)?;
        open.stage = Stage::Sent { peer, sent };
        open.attempts = open.attempts.saturating_add(1);
        Ok(())
    }

    fn wait_for_link(&mut self, id: CorrelationId, peer: Generation) {
        self.set_stage(id, Stage::Linking(peer));
        let waiting = self.linking.entry(peer).or_default();
        if waiting.is_empty() {
            let mail = ControlMail::OpenLink { from: self.config.me.shard, peer };
            self.outputs.push_back(ShardOutput::Control(mail));
        }
        waiting.push_back(id);
    }

    /// This shard's own link to `peer` is up: what waited goes out, in order.
    pub fn link_up(&mut self, now: Moment, peer: Generation) {
        let _entered = self.enter(now);
        for id in self.linking.remove(&peer).unwrap_or_default() {
            if self.ledger.get(id).is_some_and(|open| open.stage == Stage::Linking(peer)) {
                self.send_over_link(id, peer);
            }
        }
        self.carry_out(None);
    }

    /// This shard's own link to `peer` could not be opened.
    pub(super) fn link_failed(&mut self, peer: Generation, reason: &str) {
        for id in self.linking.remove(&peer).unwrap_or_default() {
            if self.ledger.get(id).is_some_and(|open| open.stage == Stage::Linking(peer)) {
                self.forget_place(id);
                self.refused(id, lost(reason));
            }
        }
    }

    /// Deliveries that wait for a link to a silo that is gone need not wait longer.
    pub(super) fn end_links_to_the_gone(&mut self) {
        let gone: Vec<Generation> =
            self.linking.keys().copied().filter(|peer| self.view.is_gone(*peer)).collect();
        for peer in gone {
            self.link_failed(peer, "the target's silo is gone");
        }
    }

    /// Holds a delivery of a hub that is not claimed yet, so that no answer can overtake the path
    /// it must come back on.
    #[inline]
    fn is_gated(&mut self, id: CorrelationId) -> bool {
        !self.hubs.is_empty() && self.is_gated_by_its_hub(id)
    }

    fn is_gated_by_its_hub(&mut self, id: CorrelationId) -> bool {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::NoOutboundGate {
            return false;
        }
        let Some(open) = self.ledger.get(id) else { return true };
        let Some(source) = open.request.source.as_ref() else { return false };
        let hash = source.hash();
        let Some(hub) = self.hubs.get(&hash) else { return false };
        if hub.may_send(self.now) {
            return false;
        }
        self.set_stage(id, Stage::Gated);
        self.gated.entry(hash).or_default().push(id);
        true
    }

    /// The hub may send now: claimed, or it has waited long enough.
    pub(super) fn open_gate(&mut self, hub: AddressHash) {
        for id in self.gated.remove(&hub).unwrap_or_default() {
            if self.ledger.get(id).is_some_and(|open| open.stage == Stage::Gated) {
                self.dispatch(id);
            }
        }
    }

    fn set_stage(&mut self, id: CorrelationId, stage: Stage) {
        if let Some(open) = self.ledger.get_mut(id) {
            open.stage = stage;
        }
    }
}

/// The request that an open delivery becomes within its own silo.
fn request_of(open: &OpenDelivery, id: CorrelationId, me: ShardIndex) -> Request {
    Request {
        source: open.source_hash(),
        method: open.request.method,
        schema: open.request.arguments,
        body: open.request.body.clone(),
        deadline: open.deadline,
        correlation: id,
        reply_to: ReplyTo::Ledger(me),
        one_way: open.is_one_way(),
        attempt: open.attempts,
        forwards: open.forwards,
        envelope: open.request.envelope.clone(),
    }
}

fn no_such_shard() -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::NotHere, "the address names no shard of a silo")
}

fn draining() -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::Draining, "the silo is leaving")
}

pub(super) fn lost(reason: &str) -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::ConnectionLost, reason)
}

fn too_large(bytes: usize) -> DeliveryFailure {
    DeliveryFailure::rejected(
        RejectedKind::TooLarge,
        format!("{bytes} bytes exceed the frame limit"),
    )
}
