//! Control lanes: one for each peer, and the frames on them.

#[cfg(test)]
use std::collections::VecDeque;

use siloring_core::event::Event;
use siloring_core::limits::DIRECTORY_WAITING_MAX;
use siloring_core::ports::rare::{self, Mark};
use siloring_core::{Endpoint, Generation, Moment, ShardIndex};
use siloring_runtime::control::{ControlMessage, Reach};
use siloring_runtime::directory::DirectoryMessage;
use siloring_runtime::mail::{ConnId, ShardMail};
use siloring_transport::{Established, Link, Refusal, RefusalKind, Role};

use super::conn::{self, Conn, Incoming, Lane, State, Wanted};
use super::{ControlNode, ControlNodeOutput};

/// A deliberate defect: a test that passes with it proves nothing.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LaneDefect {
    /// A lane that another one takes the place of stays open.
    BothSurvive,
    /// What waited for the lane is forgotten when it is up.
    WaitingForgotten,
    /// What waited for the lane is sent on each one that comes up.
    WaitingKept,
}

impl ControlNode {
    /// A lane is up, unless another of the pair survives it.
    pub(super) fn take_lane(&mut self, now: Moment, conn: ConnId, established: &Established) {
        let us = self.facts.incarnation.as_ref().map_or(Generation::NONE, |us| us.generation);
        let peer = established.peer_generation();
        let dialer = if established.role == Role::Dialer { us } else { peer };
        if let Some(old) = self.lanes.get(&peer).copied() {
            if old.dialer != dialer {
                rare::took(Mark::LanesCrossed);
            }
            if old.dialer != dialer && old.dialer == us.min(peer) {
                self.set_closing(conn, established.unsent.clone());
                return self.machine.handle_reach(now, peer, Reach::Connected);
            }
            #[cfg(test)]
            let is_refused = self.lane_defect != Some(LaneDefect::BothSurvive);
            #[cfg(not(test))]
            let is_refused = true;
            if is_refused {
                let detail = "another lane of the pair is up";
                self.refuse_lane(old.conn, RefusalKind::Superseded, detail);
            }
        }
        let found = self.conns.get_mut(&conn).expect("its handshake has just ended");
        found.state = State::Lane { link: Box::new(Link::new(established)), peer };
        found.until = Moment::NEVER;
        let over = found.over;
        self.lanes.insert(peer, Lane { conn, dialer });
        self.dirty.push(conn);
        self.link_up(established, over);
        // Our own dial would not survive the lower generation's.
        if peer < us
            && let Some(own) = self.dials.remove(&Wanted::Lane(peer))
        {
            rare::took(Mark::LanesCrossed);
            self.close(own);
        }
        self.machine.handle_reach(now, peer, Reach::Connected);
        let waiting = self.waiting.remove(&peer).unwrap_or_default();
        #[cfg(test)]
        let waiting = match self.lane_defect {
            Some(LaneDefect::WaitingForgotten) => VecDeque::new(),
            Some(LaneDefect::WaitingKept) => {
                self.waiting.insert(peer, waiting.clone());
                waiting
            }
            Some(LaneDefect::BothSurvive) | None => waiting,
        };
        for (from, to, message) in waiting {
            self.push_directory(peer, from, to, &message);
        }
        let incoming = match &mut self.conns.get_mut(&conn).expect("just set").state {
            State::Lane { link, .. } => conn::read_frames(link, &[]),
            State::Dialing | State::Shaking(_) | State::Closing { .. } => Incoming::default(),
        };
        self.take_incoming(now, conn, peer, incoming);
    }

    pub(super) fn take_incoming(
        &mut self,
        now: Moment,
        conn: ConnId,
        peer: Generation,
        incoming: Incoming,
    ) {
        for message in incoming.control {
            self.machine.handle_message(now, peer, message);
        }
        for (from, to, message) in incoming.directory {
            let from = Endpoint { silo: peer, shard: from };
            if to.0 < self.facts.shards {
                let mail = ShardMail::Directory { from, message };
                self.outputs.push_back(ControlNodeOutput::Shard(to, mail));
            } else {
                self.directory_dropped(peer, format!("this silo has no shard {to}"));
            }
        }
        let Some(error) = incoming.error else {
            return;
        };
        let reason = error.to_string();
        // Without a refusal of ours it was the peer who closed, with its reason.
        if let Some(refusal) = error.refusal() {
            self.event(Event::FrameRefused { peer, reason: reason.clone() });
            self.push_refusal(conn, &refusal);
        }
        self.lose(now, conn, &reason);
        self.close(conn);
    }

    pub(super) fn send_control(&mut self, peer: Generation, message: &ControlMessage) {
        let view = self.view.number();
        let Some((conn, link)) = self.lane(peer) else {
            // Said by the machine's contract: a timer makes up for it.
            return;
        };
        link.push_view(view);
        let pushed = conn::push_control(link, message);
        self.dirty.push(conn);
        if let Err(error) = pushed {
            let reason = format!("{}: {error}", message.name());
            self.event(Event::ControlMessageDropped { peer, reason });
        }
    }

    /// Sends a directory message on the peer's lane; dials one if there is none.
    pub(super) fn send_directory(
        &mut self,
        now: Moment,
        from: ShardIndex,
        to: Endpoint,
        message: DirectoryMessage,
    ) {
        let peer = to.silo;
        if self.lanes.contains_key(&peer) {
            return self.push_directory(peer, from, to, &message);
        }
        let wanted = Wanted::Lane(peer);
        let Some(advertised) = self.advertised_of(&wanted) else {
            return self.directory_dropped(peer, "it is not in our view".into());
        };
        if !self.dials.contains_key(&wanted) {
            if let Some(reason) = self.backoffs.is_early(now, &wanted) {
                return self.directory_dropped(peer, reason);
            }
            let route = self.route(peer, advertised);
            self.dial(now, wanted, route);
        }
        let waiting = self.waiting.entry(peer).or_default();
        waiting.push_back((from, to, message));
        if waiting.len() > DIRECTORY_WAITING_MAX {
            waiting.pop_front();
            self.directory_dropped(peer, format!("{DIRECTORY_WAITING_MAX} wait for its lane"));
        }
    }

    pub(super) fn push_directory(
        &mut self,
        peer: Generation,
        from: ShardIndex,
        to: Endpoint,
        message: &DirectoryMessage,
    ) {
        let view = self.view.number();
        let (conn, link) = self.lane(peer).expect("the caller has seen it");
        link.push_view(view);
        let pushed = conn::push_directory(link, from, to.shard, message);
        self.dirty.push(conn);
        if let Err(error) = pushed {
            self.directory_dropped(peer, error.to_string());
        }
    }

    pub(super) fn drop_waiting(&mut self, peer: Generation, reason: &str) {
        for _ in self.waiting.remove(&peer).unwrap_or_default() {
            self.directory_dropped(peer, reason.to_owned());
        }
    }

    pub(super) fn directory_dropped(&mut self, peer: Generation, reason: String) {
        self.event(Event::DirectoryMessageDropped { peer, reason });
    }

    pub(super) fn lane(&mut self, peer: Generation) -> Option<(ConnId, &mut Link)> {
        let conn = self.lanes.get(&peer)?.conn;
        match &mut self.conns.get_mut(&conn)?.state {
            State::Lane { link, .. } => Some((conn, link)),
            State::Dialing | State::Shaking(_) | State::Closing { .. } => None,
        }
    }

    pub(super) fn push_refusal(&mut self, conn: ConnId, refusal: &Refusal) {
        if let Some(Conn { state: State::Lane { link, .. }, .. }) = self.conns.get_mut(&conn) {
            link.push_refusal(refusal);
        }
    }

    pub(super) fn refuse_lane(&mut self, conn: ConnId, kind: RefusalKind, detail: &str) {
        self.push_refusal(conn, &Refusal::ours(kind, detail));
        self.close(conn);
    }
}
