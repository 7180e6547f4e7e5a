//! Connections inside TLS: ciphertext to their sessions, what is opened to handshake and lane.
//!
//! TCP connections are sealed if the silo has certificates. Unix sockets are not: their bytes stay
//! in the kernel, which has told whose process is at the other end, and whoever could read them
//! there could read the silo's key too.
//!
//! The time limit of a handshake holds for TLS and the handshake inside together.

use siloring_core::Moment;
use siloring_core::event::Event;
use siloring_core::limits::TLS_RECORD_BYTES_MAX;
use siloring_runtime::mail::ConnId;
use siloring_transport::{Handshake, RefusedBy, Role, Session, SessionError};

use super::conn::{Conn, State};
use super::{ControlNode, ControlNodeOutput};

impl ControlNode {
    /// The session of a new connection, and its handshake prepared for it.
    pub(super) fn seal(
        &self,
        over: &'static str,
        role: Role,
        shaking: Handshake,
    ) -> (Option<Box<Session>>, Box<Handshake>) {
        let Some(certificates) = self.certificates.as_ref().filter(|_| over == "tcp") else {
            return (None, Box::new(shaking));
        };
        let session = match role {
            Role::Dialer => certificates.dial(),
            Role::Acceptor => certificates.accept(),
        };
        (Some(Box::new(session)), Box::new(shaking.over_tls()))
    }

    pub(super) fn receive_sealed(&mut self, now: Moment, conn: ConnId, bytes: &[u8]) {
        if let Some(session) = self.session(conn) {
            session.feed(bytes);
        }
        self.knocks.spoke(conn);
        let mut space = vec![0; TLS_RECORD_BYTES_MAX];
        while let Some(session) = self.session(conn) {
            let opened = session.open(&mut space);
            // A handshake goes on by itself, and an alert is to be told.
            self.dirty.push(conn);
            match opened {
                Ok(0) => return,
                Ok(count) => {
                    self.tell_names(conn);
                    self.receive_plain(now, conn, &space[..count]);
                }
                Err(fault) => return self.take_fault(now, conn, &fault),
            }
        }
    }

    /// Lets a handshake under way know whom the peer's certificate names.
    fn tell_names(&mut self, conn: ConnId) {
        if let Some(Conn { state: State::Shaking(shaking), session: Some(session), .. }) =
            self.conns.get_mut(&conn)
            && let Some(names) = session.peer_names()
        {
            shaking.certificate_held(names);
        }
    }

    fn session(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.conns.get_mut(&conn)?.session.as_deref_mut()
    }

    fn take_fault(&mut self, now: Moment, conn: ConnId, fault: &SessionError) {
        let Some(Conn { state, session, .. }) = self.conns.get_mut(&conn) else {
            return;
        };
        let mut last = Vec::new();
        if let SessionError::Plain { answer } = fault {
            // Told without TLS, which the peer does not speak. What waited for TLS never leaves.
            *session = None;
            if answer.by == RefusedBy::Us {
                last = answer.to_frame();
            }
        }
        match (&*state, fault.refusal()) {
            (State::Shaking(_), Some(refusal)) => self.refuse(now, conn, refusal, last),
            (State::Lane { peer, .. }, Some(refusal)) => {
                let (peer, reason) = (*peer, refusal.to_string());
                self.event(Event::FrameRefused { peer, reason: reason.clone() });
                self.lose(now, conn, &reason);
                self.set_closing(conn, last);
            }
            (State::Shaking(_) | State::Lane { .. }, None) => {
                self.lose(now, conn, &fault.to_string());
                self.outputs.push_back(ControlNodeOutput::Close(conn));
            }
            (State::Dialing | State::Closing { .. }, _) => {}
        }
    }
}
