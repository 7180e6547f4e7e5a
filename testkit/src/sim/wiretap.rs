//! What the bytes of a connection say, read where they leave their sender's program and without the
//! product's own link.
//!
//! Checked of every frame:
//! - *I17*: before the handshake is through on the sender's side nothing but the handshake is said,
//!   and after a refusal nothing at all. (Who is taken in by a handshake is the scenarios' to see.)
//! - *I3*: an answer names a request that came on this connection and has no answer yet.
//! - *I15*: so a failure is never answered by a failure: it opened nothing.
//!
//! Deliberately absent: bodies. A sender whose first bytes are no frame (programs of the world's
//! own tests) is not listened to.

use std::collections::BTreeSet;

use siloring_core::limits::HEADER_BYTES;
use siloring_core::wire::{FrameKind, Header};

/// How far a side has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Said {
    #[default]
    Nothing,
    /// Its `Hello`, or its `HelloAck`.
    Opened,
    /// The dialer's `HelloDone`.
    Proved,
    /// That it will have nothing to do with the other.
    Refused,
    /// No frames.
    Gibberish,
}

/// Which side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Dialer,
    Acceptor,
}

/// What one side has said.
#[derive(Debug)]
struct Spoken {
    said: Said,
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
    /// Bytes of the current frame that are still to come, its header left out.
    rest_bytes: usize,
    /// Requests that have no answer yet.
    open: BTreeSet<u64>,
}

impl Default for Spoken {
    fn default() -> Self {
        Self {
            said: Said::Nothing,
            head: [0; HEADER_BYTES],
            head_bytes: 0,
            rest_bytes: 0,
            open: BTreeSet::new(),
        }
    }
}

impl Spoken {
    /// Takes bytes up to the end of a header; the header, once it is whole, and what follows.
    fn next_header<'a>(&mut self, bytes: &'a [u8]) -> (Option<Header>, &'a [u8]) {
        let (_, bytes) = bytes.split_at(self.skip(bytes.len()));
        let count = bytes.len().min(HEADER_BYTES - self.head_bytes);
        let (now, later) = bytes.split_at(count);
        self.head[self.head_bytes..self.head_bytes + count].copy_from_slice(now);
        self.head_bytes += count;
        if self.head_bytes < HEADER_BYTES {
            return (None, later);
        }
        self.head_bytes = 0;
        let Ok(Some(layout)) = Header::decode(&self.head, siloring_core::limits::FRAME_BYTES_MAX)
        else {
            self.said = Said::Gibberish;
            return (None, &[]);
        };
        self.rest_bytes = layout.frame_bytes - HEADER_BYTES;
        (Some(layout.header), later)
    }

    /// How many of so many bytes belong to the current frame's rest.
    fn skip(&mut self, bytes: usize) -> usize {
        let count = bytes.min(self.rest_bytes);
        self.rest_bytes -= count;
        count
    }
}

/// Listens to one connection.
#[derive(Debug, Default)]
pub(super) struct Wiretap {
    dialer: Spoken,
    acceptor: Spoken,
    /// The dialer's `HelloDone` was said.
    is_proved: bool,
    /// Frames that were begun.
    frames_count: u64,
}

/// An invariant that a frame breaks.
pub(super) type Broken = (&'static str, String);

impl Wiretap {
    /// One side's program has written these bytes; says what of it should not be.
    pub(super) fn written(&mut self, side: Side, bytes: &[u8]) -> Option<Broken> {
        let (mut left, mut broken) = (bytes, None);
        while !left.is_empty() && self.side(side).said != Said::Gibberish {
            let (header, later) = self.side(side).next_header(left);
            left = later;
            self.frames_count += u64::from(header.is_some());
            broken = broken.or(header.and_then(|header| self.frame(side, &header)));
        }
        broken
    }

    /// Frames that both sides have begun.
    pub(super) const fn frames_count(&self) -> u64 {
        self.frames_count
    }

    fn side(&mut self, side: Side) -> &mut Spoken {
        match side {
            Side::Dialer => &mut self.dialer,
            Side::Acceptor => &mut self.acceptor,
        }
    }

    fn frame(&mut self, side: Side, header: &Header) -> Option<Broken> {
        if !self.is_its_turn(side, header.kind) {
            let (dialer, acceptor) = (self.dialer.said, self.acceptor.said);
            let text = format!("{side:?} says {:?} after {dialer:?}, {acceptor:?}", header.kind);
            return Some(("I17 nothing is said before the handshake is through", text));
        }
        let (said, peer) = match side {
            Side::Dialer => (&mut self.dialer, &mut self.acceptor),
            Side::Acceptor => (&mut self.acceptor, &mut self.dialer),
        };
        match header.kind {
            FrameKind::Hello | FrameKind::HelloAck => said.said = Said::Opened,
            FrameKind::HelloDone => {
                said.said = Said::Proved;
                self.is_proved = true;
            }
            FrameKind::Refuse => said.said = Said::Refused,
            FrameKind::Request => _ = said.open.insert(header.correlation.0),
            FrameKind::Reply | FrameKind::Failure => {
                if !peer.open.remove(&header.correlation.0) {
                    let text = format!("{side:?} answers {:?}: {header:?}", header.correlation);
                    return Some(("I3 an answer is to an open request", text));
                }
            }
            FrameKind::Dictionary
            | FrameKind::View
            | FrameKind::Void
            | FrameKind::Probe
            | FrameKind::ProbeAnswer
            | FrameKind::Membership
            | FrameKind::Directory => {}
        }
        None
    }

    fn is_its_turn(&self, side: Side, kind: FrameKind) -> bool {
        // What a side says crosses a refusal that it has not read yet.
        let is_through = match side {
            Side::Dialer => self.dialer.said == Said::Proved,
            Side::Acceptor => self.acceptor.said == Said::Opened && self.is_proved,
        };
        let own = match side {
            Side::Dialer => self.dialer.said,
            Side::Acceptor => self.acceptor.said,
        };
        match kind {
            FrameKind::Hello => side == Side::Dialer && own == Said::Nothing,
            FrameKind::HelloAck => {
                side == Side::Acceptor && own == Said::Nothing && self.dialer.said == Said::Opened
            }
            FrameKind::HelloDone => {
                side == Side::Dialer && own == Said::Opened && self.acceptor.said == Said::Opened
            }
            FrameKind::Refuse => own != Said::Refused,
            FrameKind::Dictionary
            | FrameKind::View
            | FrameKind::Request
            | FrameKind::Reply
            | FrameKind::Failure
            | FrameKind::Void
            | FrameKind::Probe
            | FrameKind::ProbeAnswer
            | FrameKind::Membership
            | FrameKind::Directory => is_through,
        }
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::ids::CorrelationId;

    use super::*;

    fn frame(kind: FrameKind, correlation: u64, body_bytes: usize) -> Vec<u8> {
        let header = Header { correlation: CorrelationId(correlation), ..Header::new(kind) };
        let mut bytes = header.encode(body_bytes, 0).to_vec();
        bytes.resize(HEADER_BYTES + body_bytes.next_multiple_of(16), 0xee);
        bytes
    }

    fn say(
        tap: &mut Wiretap,
        side: Side,
        kind: FrameKind,
        correlation: u64,
    ) -> Option<&'static str> {
        // In pieces, as a full pipe takes them.
        let bytes = frame(kind, correlation, 100);
        let (front, back) = bytes.split_at(40);
        assert_eq!(tap.written(side, front), None, "a part of a header says nothing");
        tap.written(side, back).map(|(invariant, _)| invariant)
    }

    fn linked() -> Wiretap {
        let mut tap = Wiretap::default();
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::Hello, 0), None);
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::HelloAck, 0), None);
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::HelloDone, 0), None);
        tap
    }

    #[test]
    fn a_request_is_answered_once_and_an_answer_is_not_answered() {
        let mut tap = linked();
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::Request, 7), None);
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::Failure, 7), None);
        for (side, kind, correlation) in [
            (Side::Acceptor, FrameKind::Reply, 7),
            (Side::Dialer, FrameKind::Failure, 7),
            (Side::Acceptor, FrameKind::Reply, 8),
        ] {
            let broken = say(&mut tap, side, kind, correlation);
            assert_eq!(broken, Some("I3 an answer is to an open request"), "{side:?} {kind:?}");
        }
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::Request, 7), None, "sent again");
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::Reply, 7), None);
    }

    #[test]
    fn nothing_is_said_before_the_handshake_is_through_or_after_a_refusal() {
        let early = Some("I17 nothing is said before the handshake is through");
        let mut tap = Wiretap::default();
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::Request, 1), early);
        let mut tap = Wiretap::default();
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::Hello, 0), None);
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::HelloDone, 0), early, "unanswered");
        let mut tap = Wiretap::default();
        assert_eq!(say(&mut tap, Side::Dialer, FrameKind::Hello, 0), None);
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::HelloAck, 0), None);
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::Request, 1), early, "unproved");
        let mut tap = linked();
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::Refuse, 0), None);
        assert_eq!(say(&mut tap, Side::Acceptor, FrameKind::View, 0), early, "it has refused");
    }

    #[test]
    fn what_is_no_frame_is_not_listened_to() {
        let mut tap = Wiretap::default();
        assert_eq!(tap.written(Side::Dialer, &[7; 200]), None);
        assert_eq!(tap.written(Side::Dialer, &frame(FrameKind::Request, 1, 0)), None);
    }
}
