//! Hubs of this shard, and what the directory says of activations and claims.

use std::sync::Arc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::event::Event;
use siloring_core::limits::HUB_OUTBOUND_GATE_MAX;
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::time::Moment;

use super::{Shard, ShardOutput};
use crate::directory::{DirectoryOutput, TakeOver, Unlocated};
use crate::hub::{HubError, HubShared, PushRefused};
use crate::links::Links;
use crate::mail::{ControlMail, Request, ShardMail};

/// A hub as its shard keeps it.
#[derive(Debug)]
pub(super) struct HubEntry {
    pub(super) shared: Arc<HubShared>,
    /// Outbound is held until then, unless the claim is held earlier.
    gate_until: Moment,
    told_unclaimed: bool,
}

impl HubEntry {
    pub(super) fn may_send(&self, now: Moment) -> bool {
        now >= self.gate_until || self.shared.is_claimed()
    }
}

impl<L: Links> Shard<L> {
    /// The surrounding program opens a hub.
    pub(super) fn open_hub(&mut self, shared: Arc<HubShared>, take_over: TakeOver) {
        let hash = shared.address().hash();
        if self.leaving.is_draining() {
            drop(shared.end(HubError::SiloStopping));
        } else if !self.hub_kinds.contains(shared.address().kind().0) {
            drop(shared.end(HubError::NoHubKind));
        } else if self.hubs.contains_key(&hash) {
            drop(shared.end(HubError::AlreadyOpen));
        } else {
            let address = shared.address().clone();
            let gate_until = self.now + HUB_OUTBOUND_GATE_MAX;
            self.local.known.hubs.borrow_mut().insert(hash);
            self.hubs.insert(hash, HubEntry { shared, gate_until, told_unclaimed: false });
            self.wheel.insert(gate_until, super::Timer::Gate(Box::new(hash)));
            self.directory.claim(self.now, &address, take_over);
            self.pump_directory();
        }
    }

    /// The surrounding program closed a hub, or it ended.
    pub(super) fn close_hub(&mut self, address: &Address) {
        // A hub opened anew at the address is not the one that was closed.
        let is_ended = |hub: &HubEntry| hub.shared.ended().is_some();
        if self.hubs.get(&address.hash()).is_some_and(is_ended) {
            self.remove_hub(address.hash());
            self.directory.release(self.now, address);
            self.pump_directory();
            self.open_gate(address.hash());
        }
    }

    fn remove_hub(&mut self, hash: AddressHash) -> Option<HubEntry> {
        self.local.known.hubs.borrow_mut().remove(&hash);
        self.hubs.remove(&hash)
    }

    fn end_hub(&mut self, address: &Address, error: HubError) {
        let Some(hub) = self.remove_hub(address.hash()) else { return };
        for delivery in hub.shared.end(error) {
            let view = self.view.number();
            let detail = format!("{address} is not here: {error}");
            delivery.refuse(DeliveryFailure::rejected_in(RejectedKind::NotHere, view, detail));
        }
        self.open_gate(address.hash());
    }

    /// Hands a request to the hub's program.
    pub(super) fn deliver_to_hub(&mut self, target: &Address, request: &mut Request) {
        let hub = &self.hubs[&target.hash()];
        let Err((request, refused)) = hub.shared.push(request.take()) else { return };
        let view = self.view.number();
        let (kind, detail) = match refused {
            PushRefused::Full => (RejectedKind::Overloaded, "too many deliveries wait for the hub"),
            PushRefused::Ended => (RejectedKind::NotHere, "the hub is closed"),
            PushRefused::Duplicate(admission) => {
                return self.answer_duplicate(admission, target, &request);
            }
        };
        self.refuse(target, &request, DeliveryFailure::rejected_in(kind, view, detail));
    }

    /// A hub's outbound has waited as long as it may.
    pub(super) fn gate_expired(&mut self, hash: AddressHash) {
        let Some(hub) = self.hubs.get_mut(&hash) else { return };
        let waits = self.gated.contains_key(&hash);
        if waits && !hub.shared.is_claimed() && !hub.told_unclaimed {
            hub.told_unclaimed = true;
            let address = hub.shared.address().clone();
            self.emit(Event::HubSentUnclaimed { address });
        }
        self.open_gate(hash);
    }

    /// Carries out what the directory wants.
    pub(super) fn pump_directory(&mut self) {
        while let Some(output) = self.directory.poll_output() {
            self.carry_out_directory(output);
        }
        self.directory_due = self.directory.next_deadline();
    }

    fn carry_out_directory(&mut self, output: DirectoryOutput) {
        match output {
            DirectoryOutput::Send(to, message) if to.silo == self.config.me.silo => {
                let from = self.config.me;
                let mail = ShardMail::Directory { from, message };
                self.outputs.push_back(ShardOutput::Shard(to.shard, mail));
            }
            DirectoryOutput::Send(to, message) => {
                let from = self.config.me.shard;
                let mail = ControlMail::Directory { from, to, message };
                self.outputs.push_back(ShardOutput::Control(mail));
            }
            DirectoryOutput::Located { address, result, .. } => {
                let overloaded = |error: Unlocated| {
                    DeliveryFailure::rejected(RejectedKind::Overloaded, error.to_string())
                };
                self.located(&address, &result.map_err(overloaded));
            }
            DirectoryOutput::Registered { address, number } => {
                self.registered(address.hash(), number);
            }
            DirectoryOutput::RegistrationLost { address, winner } => {
                self.registration_lost(address.hash(), winner);
            }
            DirectoryOutput::Claimed { address, number } => self.hub_claimed(&address, number),
            DirectoryOutput::ClaimRefused { address, holder } => {
                let holder = holder.endpoint.silo;
                self.emit(Event::HubClaimRefused { address: address.clone(), holder });
                self.end_hub(&address, HubError::AlreadyClaimed { holder });
            }
            DirectoryOutput::ClaimLost { address, holder } => {
                let holder = holder.endpoint.silo;
                self.emit(Event::HubClaimLost { address: address.clone(), holder });
                self.end_hub(&address, HubError::ClaimLost { holder });
            }
            DirectoryOutput::HandedOver => self.handed_over(),
            DirectoryOutput::Accuse(silo) => {
                self.outputs.push_back(ShardOutput::Control(ControlMail::Accuse(silo)));
            }
            DirectoryOutput::ViewWanted(view) => {
                self.outputs.push_back(ShardOutput::Control(ControlMail::ViewWanted(view)));
            }
            DirectoryOutput::Event(event) => self.emit(event),
        }
    }

    fn hub_claimed(&mut self, address: &Address, number: siloring_core::ids::ClaimNumber) {
        let Some(hub) = self.hubs.get(&address.hash()) else { return };
        hub.shared.claimed(number);
        self.open_gate(address.hash());
    }

    /// The turns are over: the hubs close, their programs open them elsewhere.
    pub(super) fn close_hubs(&mut self) {
        let mut open: Vec<Address> =
            self.hubs.values().map(|hub| hub.shared.address().clone()).collect();
        open.sort_unstable();
        for address in open {
            self.end_hub(&address, HubError::SiloStopping);
            self.directory.release(self.now, &address);
        }
        self.pump_directory();
        self.hubs_closed();
    }
}
