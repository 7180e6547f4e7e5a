//! Handshakes: of those who knock and of our own dials, to their end.

use std::net::IpAddr;
use std::sync::Arc;

use siloring_core::Moment;
use siloring_core::event::Event;
use siloring_core::limits::HANDSHAKE_TIME_MAX;
use siloring_runtime::control::{Inquiry, Reach};
use siloring_runtime::mail::ConnId;
use siloring_transport::{
    Established, Handshake, Purpose, Refusal, RefusalKind, RefusedBy, Role, Step,
};

use super::conn::{Cause, Conn, State, Wanted};
use super::{ControlNode, ControlNodeOutput};

impl ControlNode {
    /// Somebody connected over `tcp` from an address, or over `unix`. Another connection may have
    /// to make room for it.
    pub fn accepted(&mut self, now: Moment, over: &'static str, source: Option<IpAddr>) -> ConnId {
        let shaking = Handshake::accept(Arc::clone(&self.facts), (self.nonces)());
        let (session, shaking) = self.seal(over, Role::Acceptor, shaking);
        let conn = self.insert(Conn {
            state: State::Shaking(shaking),
            cause: Cause::Accepted(source),
            session,
            over,
            until: now + HANDSHAKE_TIME_MAX,
        });
        if let Some(evicted) = self.knocks.enter(conn, source) {
            self.evict(now, evicted);
        }
        conn
    }

    /// Closes a connection whose handshake is not done, for a newcomer; it is told why.
    fn evict(&mut self, now: Moment, conn: ConnId) {
        self.tell_unfinished(now, conn, "others came, and too many are under way");
        let refusal = Refusal::ours(RefusalKind::Busy, "too many handshakes are under way");
        let waiting = self.conns.get(&conn).map_or(&[][..], Conn::plain);
        let last = [waiting, &refusal.to_frame()].concat();
        self.set_closing(conn, last);
    }

    /// Somebody was turned away before it was a connection of the node's.
    pub fn turned_away(&mut self, now: Moment, peer: String, reason: &'static str) {
        self.event(Event::HandshakeRefused { peer: peer.clone(), reason: reason.to_owned() });
        self.log_failed(now, peer, reason, reason.to_owned());
    }

    /// Counts a connection that is closed before its handshake is done, if others dialled it.
    pub(super) fn tell_unfinished(&mut self, now: Moment, conn: ConnId, reason: &'static str) {
        let Some(found) = self.conns.get(&conn) else {
            return;
        };
        if matches!(found.cause, Cause::Accepted(_)) {
            let peer = found.peer();
            self.event(Event::HandshakeUnfinished { peer: peer.clone(), reason });
            self.log_failed(now, peer, reason, reason.to_owned());
        }
    }

    /// Logs a handshake that came to nothing, unless a like one was logged lately.
    fn log_failed(&mut self, now: Moment, peer: String, kind: &'static str, reason: String) {
        let key = (peer, kind);
        if let Some(suppressed_count) = self.failed_log.admit(now, &key) {
            let peer = key.0;
            self.event(Event::HandshakesFailed { peer, reason, suppressed_count });
        }
    }

    /// A dial is connected: the handshake begins.
    pub fn connected(&mut self, now: Moment, conn: ConnId) {
        let Some(Conn { cause: Cause::Dial(wanted), over, .. }) = self.conns.get(&conn) else {
            return;
        };
        let (over, (purpose, expect)) = (*over, wanted.purpose(&self.view));
        let shaking = Handshake::dial(Arc::clone(&self.facts), purpose, expect, (self.nonces)());
        let (session, shaking) = self.seal(over, Role::Dialer, shaking);
        let found = self.conns.get_mut(&conn).expect("just looked up");
        found.state = State::Shaking(shaking);
        found.session = session;
        found.until = now + HANDSHAKE_TIME_MAX;
        self.dirty.push(conn);
        #[cfg(feature = "planted")]
        self.take_connect_for_up(conn);
    }

    /// Plants the defect that a data link counts as up once it is connected.
    #[cfg(feature = "planted")]
    pub const fn plant_up_at_connect(&mut self) {
        self.up_at_connect = true;
    }

    /// Hands a data link over although nobody has answered its Hello.
    #[cfg(feature = "planted")]
    fn take_connect_for_up(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get(&conn) else {
            return;
        };
        let Cause::Dial(wanted) = &found.cause else {
            return;
        };
        let (true, &Wanted::Link { from, peer }) = (self.up_at_connect, wanted) else {
            return;
        };
        let Some(row) = self.view.silo(peer) else {
            return;
        };
        let established = Box::new(Established {
            peer: Some(row.incarnation.clone()),
            peer_shards: row.shards,
            peer_host: row.host.clone(),
            peer_types: Vec::new(),
            peer_deadline_default: self.facts.deadline_default,
            peer_frame_bytes_max: self.facts.frame_bytes_max,
            frame_bytes_max: self.facts.frame_bytes_max,
            version: siloring_core::wire::VERSION,
            features: 0,
            purpose: wanted.purpose(&self.view).0,
            role: Role::Dialer,
            unsent: found.plain().to_vec(),
            leftover: Vec::new(),
        });
        self.end_handshake(conn);
        let session = self.conns.remove(&conn).and_then(|found| found.session);
        let output = ControlNodeOutput::HandOff { conn, shard: from, established, session };
        self.outputs.push_back(output);
    }

    pub(super) fn take_step(&mut self, now: Moment, conn: ConnId, step: Step) {
        match step {
            Step::Continue => {}
            Step::Up(established) => self.take_up(now, conn, established),
            Step::Refused(refusal) => self.take_refusal(now, conn, &refusal),
        }
    }

    /// The handshake has laid the refusal behind what waits.
    fn take_refusal(&mut self, now: Moment, conn: ConnId, refusal: &Refusal) {
        let last = self.conns.get(&conn).map_or_else(Vec::new, |found| found.plain().to_vec());
        self.refuse(now, conn, refusal, last);
    }

    /// A handshake is refused, by whomever; `last` is what the peer is told.
    pub(super) fn refuse(&mut self, now: Moment, conn: ConnId, refusal: &Refusal, last: Vec<u8>) {
        let peer = self.conns.get(&conn).expect("a step comes from a connection").peer();
        let wanted = self.end_handshake(conn);
        let reason = refusal.to_string();
        self.event(Event::HandshakeRefused { peer: peer.clone(), reason: reason.clone() });
        self.log_failed(now, peer, refusal.kind.name(), reason);
        self.set_closing(conn, last);
        if let Some(wanted) = wanted {
            self.refusal = Some(refusal.clone());
            self.give_up(now, &wanted, reach_of(refusal), &refusal.to_string());
            self.judge_join(now, &wanted, refusal.kind);
        }
    }

    /// A lane refused for what only an operator can change will be refused again: a join that needs
    /// it ends now, not when its time is up.
    pub(super) fn judge_join(&mut self, now: Moment, wanted: &Wanted, kind: RefusalKind) {
        if !self.joining || !matches!(wanted, Wanted::Lane(_)) || !is_hopeless(kind) {
            return;
        }
        self.hopeless_count += 1;
        if self.hopeless_count == HOPELESS_MAX {
            self.machine.begin_drain(now);
        }
    }

    /// A handshake is over, one way or the other: what it was dialled for, if it was.
    pub(super) fn end_handshake(&mut self, conn: ConnId) -> Option<Wanted> {
        let found = self.conns.get_mut(&conn)?;
        match core::mem::replace(&mut found.cause, Cause::Over) {
            Cause::Over => None,
            Cause::Accepted(_) => {
                self.knocks.leave(conn);
                None
            }
            Cause::Dial(wanted) => {
                self.dials.remove(&wanted);
                Some(wanted)
            }
        }
    }

    pub(super) fn take_up(&mut self, now: Moment, conn: ConnId, established: Established) {
        let wanted = self.end_handshake(conn);
        if let Some(wanted) = &wanted {
            self.backoffs.succeeded(wanted);
        }
        match established.purpose {
            Purpose::Inquiry => {
                if let Some(Wanted::Inquiry(address)) = &wanted {
                    let who = established.peer.clone();
                    let answer = who.map_or(Inquiry::Silent, Inquiry::Answered);
                    self.machine.handle_inquiry(now, address, answer);
                }
                self.set_closing(conn, established.unsent);
            }
            Purpose::Control => self.take_lane(now, conn, &established),
            Purpose::Shard { from, to } => {
                let found = self.conns.remove(&conn).expect("its handshake has just ended");
                self.link_up(&established, found.over);
                let shard = if established.role == Role::Dialer { from } else { to };
                let (established, session) = (Box::new(established), found.session);
                let output = ControlNodeOutput::HandOff { conn, shard, established, session };
                self.outputs.push_back(output);
            }
        }
    }

    pub(super) fn link_up(&mut self, established: &Established, over: &'static str) {
        if let Some(peer) = established.peer.clone() {
            self.event(Event::LinkUp { peer, over });
        }
    }
}

/// More than one, as the peer may be on its way down.
const HOPELESS_MAX: u32 = 3;

/// Whether a refusal stands until somebody changes a configuration or a program.
const fn is_hopeless(kind: RefusalKind) -> bool {
    matches!(
        kind,
        RefusalKind::ForeignCluster
            | RefusalKind::BadCredential
            | RefusalKind::VersionUnsupported
            | RefusalKind::LayoutChanged
    )
}

/// What a refused dial says of the peer's life. What the peer says of itself is a hint at most.
fn reach_of(refusal: &Refusal) -> Reach {
    match (refusal.kind, refusal.by) {
        (RefusalKind::IncarnationDead, RefusedBy::Peer) => Reach::Disowned,
        (RefusalKind::UnexpectedIncarnation | RefusalKind::NotJoined, _) => Reach::Refused,
        (
            RefusalKind::IncarnationDead
            | RefusalKind::ForeignCluster
            | RefusalKind::IdentityMismatch
            | RefusalKind::VersionUnsupported
            | RefusalKind::BadCredential
            | RefusalKind::LayoutChanged
            | RefusalKind::TooLarge
            | RefusalKind::ProtocolViolation
            | RefusalKind::Superseded
            | RefusalKind::Leaving
            | RefusalKind::Busy
            | RefusalKind::Unknown(_),
            RefusedBy::Us | RefusedBy::Peer,
        ) => Reach::Silent,
    }
}
