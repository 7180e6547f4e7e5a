//! What the node dials: control lanes, data links, inquiries, each over the best route there is.
//!
//! One dial for each thing wanted. A dial that fails is told to whoever wanted it; it is not tried
//! again before its back-off is over. A Unix socket that cannot be reached is no failure while TCP
//! has not been tried.

use siloring_core::event::Event;
use siloring_core::limits::DIAL_TIME_MAX;
use siloring_core::{Generation, Moment, ShardIndex, SiloStatus};
use siloring_runtime::control::{Inquiry, Reach};
use siloring_runtime::mail::{ConnId, ShardMail};
use siloring_transport::net::UnixName;

use super::conn::{Cause, Conn, State, Wanted};
use super::{ControlNode, ControlNodeOutput, DialFault, LinkMode, Route};

impl ControlNode {
    /// A dial failed before it was connected.
    pub fn dial_failed(&mut self, now: Moment, conn: ConnId, fault: DialFault, reason: &str) {
        let Some(Conn { cause: Cause::Dial(wanted), over, .. }) = self.conns.remove(&conn) else {
            return;
        };
        self.dials.remove(&wanted);
        // A peer may be configured for TCP only, or not listen under its Unix name yet.
        if over == "unix"
            && self.mode == LinkMode::Auto
            && let Some(advertised) = self.advertised_of(&wanted)
        {
            return self.dial_over(now, wanted, Route::Tcp(advertised));
        }
        let reach = match fault {
            DialFault::Refused => Reach::Refused,
            DialFault::Silent => Reach::Silent,
        };
        self.give_up(now, &wanted, reach, reason);
        self.follow(now);
    }

    /// The machine wants a lane to `peer`.
    pub(super) fn connect(&mut self, now: Moment, peer: Generation, address: String) {
        if self.lanes.contains_key(&peer) {
            return self.machine.handle_reach(now, peer, Reach::Connected);
        }
        let route = self.route(peer, address);
        self.dial(now, Wanted::Lane(peer), route);
    }

    /// A shard wants a data link to `peer`.
    pub(super) fn open_link(&mut self, now: Moment, from: ShardIndex, peer: Generation) {
        let wanted = Wanted::Link { from, peer };
        let Some(advertised) = self.advertised_of(&wanted) else {
            let reason = format!("silo {peer} is not in view {}", self.view.number());
            return self.link_failed(from, peer, reason);
        };
        if let Some(reason) = self.backoffs.is_early(now, &wanted) {
            return self.link_failed(from, peer, reason);
        }
        let route = self.route(peer, advertised);
        self.dial(now, wanted, route);
    }

    pub(super) fn link_failed(&mut self, from: ShardIndex, peer: Generation, reason: String) {
        let mail = ShardMail::LinkFailed { peer, reason };
        self.outputs.push_back(ControlNodeOutput::Shard(from, mail));
    }

    /// The address of a dial's peer, if the view lists it as living.
    pub(super) fn advertised_of(&self, wanted: &Wanted) -> Option<String> {
        let row = self.view.silo(wanted.peer()?)?;
        (row.status != SiloStatus::Dead).then(|| row.advertised.clone())
    }

    pub(super) fn route(&self, peer: Generation, advertised: String) -> Route {
        let host = self.view.silo(peer).map(|row| row.host.as_str());
        let is_near = host == Some(self.facts.host.as_str());
        match self.mode {
            LinkMode::Tcp => Route::Tcp(advertised),
            LinkMode::Auto if !is_near => Route::Tcp(advertised),
            LinkMode::Auto | LinkMode::Unix => {
                Route::Unix(UnixName::of(&self.facts.cluster, peer, &advertised))
            }
        }
    }

    /// Dials unless such a dial is under way.
    pub(super) fn dial(&mut self, now: Moment, wanted: Wanted, route: Route) {
        if !self.dials.contains_key(&wanted) {
            self.dial_over(now, wanted, route);
        }
    }

    pub(super) fn dial_over(&mut self, now: Moment, wanted: Wanted, route: Route) {
        let conn = self.insert(Conn {
            state: State::Dialing,
            cause: Cause::Dial(wanted.clone()),
            session: None,
            over: route.name(),
            until: now + DIAL_TIME_MAX,
        });
        self.dials.insert(wanted, conn);
        self.outputs.push_back(ControlNodeOutput::Dial { conn, route });
    }

    /// A dial has come to nothing: whoever wanted it hears so.
    pub(super) fn give_up(&mut self, now: Moment, wanted: &Wanted, reach: Reach, reason: &str) {
        self.backoffs.failed(now, wanted, reason);
        if let Some(peer) = wanted.peer() {
            self.event(Event::DialFailed { peer, reason: reason.to_owned() });
        }
        match wanted {
            Wanted::Lane(peer) => {
                self.drop_waiting(*peer, reason);
                self.machine.handle_reach(now, *peer, reach);
            }
            Wanted::Link { from, peer } => self.link_failed(*from, *peer, reason.to_owned()),
            Wanted::Inquiry(address) => {
                self.machine.handle_inquiry(now, address, Inquiry::Silent);
            }
        }
    }
}
