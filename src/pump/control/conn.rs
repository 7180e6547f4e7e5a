//! One connection of the control node, and the frames of its lanes.

use core::fmt;
use std::net::IpAddr;

use siloring_core::ids::MethodId;
use siloring_core::rkyv::rancor;
use siloring_core::rkyv::{from_bytes, to_bytes};
use siloring_core::wire::{FrameKind, Header};
use siloring_core::{Generation, Moment, ShardIndex, View};
use siloring_runtime::control::ControlMessage;
use siloring_runtime::directory::DirectoryMessage;
use siloring_runtime::mail::ConnId;
use siloring_transport::{
    Class, Handshake, Link, LinkError, Purpose, Refusal, RefusalKind, SendRefused, Session,
};

/// What a dial is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Wanted {
    /// The control lane to a silo.
    Lane(Generation),
    /// A shard's data link to a silo.
    Link { from: ShardIndex, peer: Generation },
    /// Who is at this address?
    Inquiry(String),
}

impl Wanted {
    /// Whom it is for, if that is known.
    pub(super) const fn peer(&self) -> Option<Generation> {
        match self {
            Self::Lane(peer) | Self::Link { peer, .. } => Some(*peer),
            Self::Inquiry(_) => None,
        }
    }

    /// What the handshake is for, and with whom only. A link lands on shard `i mod M`.
    pub(super) fn purpose(&self, view: &View) -> (Purpose, Option<Generation>) {
        let purpose = match self {
            Self::Lane(_) => Purpose::Control,
            Self::Link { from, peer } => {
                let shards = view.silo(*peer).map_or(1, |row| row.shards.max(1));
                Purpose::Shard { from: *from, to: ShardIndex(from.0 % shards) }
            }
            Self::Inquiry(_) => Purpose::Inquiry,
        };
        (purpose, self.peer())
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lane(peer) => write!(out, "control lane to {peer}"),
            Self::Link { from, peer } => write!(out, "link of shard {from} to {peer}"),
            Self::Inquiry(address) => write!(out, "inquiry at {address}"),
        }
    }
}

/// Why a connection's handshake is under way.
#[derive(Debug)]
pub(super) enum Cause {
    /// Somebody dialled us, over TCP from there.
    Accepted(Option<IpAddr>),
    /// We dialled.
    Dial(Wanted),
    /// It is under way no more.
    Over,
}

#[derive(Debug)]
pub(super) enum State {
    /// The driver connects.
    Dialing,
    /// Who is it?
    Shaking(Box<Handshake>),
    /// An established control lane.
    Lane { link: Box<Link>, peer: Generation },
    /// The last bytes, then the end.
    Closing { unsent: Vec<u8>, sent_bytes: usize },
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    pub(super) cause: Cause,
    /// What seals it; `None` without TLS.
    pub(super) session: Option<Box<Session>>,
    /// `tcp` or `unix`.
    pub(super) over: &'static str,
    /// When it is given up.
    pub(super) until: Moment,
}

impl Conn {
    /// Who is at the other end, as far as known.
    pub(super) fn peer(&self) -> String {
        match &self.cause {
            Cause::Accepted(Some(source)) => format!("dialer at {source}"),
            Cause::Accepted(None) | Cause::Over => format!("dialer over {}", self.over),
            Cause::Dial(wanted) => wanted.to_string(),
        }
    }

    /// What waits, before it is sealed.
    pub(super) fn plain(&self) -> &[u8] {
        match &self.state {
            State::Dialing => &[],
            State::Shaking(shaking) => shaking.unsent(),
            State::Lane { link, .. } => link.unsent(),
            State::Closing { unsent, sent_bytes } => &unsent[*sent_bytes..],
        }
    }

    /// Bytes for the kernel.
    pub(super) fn unsent(&mut self) -> &[u8] {
        let Some(mut session) = self.session.take() else {
            return self.plain();
        };
        let sealed = session.seal(self.plain());
        self.take_plain(sealed);
        self.session.insert(session).unsent()
    }

    pub(super) fn sent(&mut self, count: usize) {
        match &mut self.session {
            None => self.take_plain(count),
            Some(session) => drop(session.sent(count)),
        }
    }

    /// So much of what waited has left, or is sealed: on a lane nobody asks which.
    fn take_plain(&mut self, count: usize) {
        match &mut self.state {
            State::Dialing => assert_eq!(count, 0, "nothing is sent before the connection"),
            State::Shaking(shaking) => shaking.sent(count),
            State::Lane { link, .. } => link.sent(count),
            State::Closing { sent_bytes, .. } => *sent_bytes += count,
        }
    }
}

/// A lane that is up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) conn: ConnId,
    /// Whose dial it is.
    pub(super) dialer: Generation,
}

/// What came on a lane.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    pub(super) control: Vec<ControlMessage>,
    pub(super) directory: Vec<(ShardIndex, ShardIndex, DirectoryMessage)>,
    /// What came behind is not read: the lane is closed.
    pub(super) error: Option<LaneError>,
}

/// Why a lane is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaneError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the body of a {0:?} frame is none")]
    Body(FrameKind),
}

impl LaneError {
    /// What the peer is told, unless it is the one who closed.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Link(error) => error.refusal(),
            Self::Body(_) => Some(Refusal::ours(RefusalKind::ProtocolViolation, self.to_string())),
        }
    }
}

/// Puts bytes into a lane and reads the frames that are whole.
pub(super) fn read_frames(link: &mut Link, mut bytes: &[u8]) -> Incoming {
    let mut incoming = Incoming::default();
    loop {
        let space = link.receive_space();
        let count = space.len().min(bytes.len());
        let (taken, rest) = bytes.split_at(count);
        space[..count].copy_from_slice(taken);
        link.received(count);
        bytes = rest;
        while incoming.error.is_none() && read_frame(link, &mut incoming) {}
        if bytes.is_empty() || incoming.error.is_some() {
            return incoming;
        }
    }
}

/// Reads one frame; whether there was one.
fn read_frame(link: &mut Link, incoming: &mut Incoming) -> bool {
    let frame = match link.next_frame() {
        Ok(Some(frame)) => frame,
        Ok(None) => return false,
        Err(error) => {
            incoming.error = Some(error.into());
            return false;
        }
    };
    let kind = frame.header.kind;
    let read = if kind == FrameKind::Directory {
        let (from, to) = unpack_shards(frame.header.method);
        from_bytes::<DirectoryMessage, rancor::Error>(frame.body)
            .map(|message| incoming.directory.push((from, to, message)))
    } else {
        from_bytes::<ControlMessage, rancor::Error>(frame.body)
            .map(|message| incoming.control.push(message))
    };
    if read.is_err() {
        incoming.error = Some(LaneError::Body(kind));
    }
    read.is_ok()
}

/// Queues a control message.
pub(super) fn push_control(link: &mut Link, message: &ControlMessage) -> Result<(), SendRefused> {
    let kind = match message {
        ControlMessage::Probe { .. } => FrameKind::Probe,
        ControlMessage::ProbeAnswer { .. } => FrameKind::ProbeAnswer,
        ControlMessage::Relay { .. }
        | ControlMessage::RelayAnswer { .. }
        | ControlMessage::Newer(_)
        | ControlMessage::ReachBack { .. }
        | ControlMessage::ReachedBack { .. }
        | ControlMessage::Goodbye => FrameKind::Membership,
    };
    let body = to_bytes::<rancor::Error>(message).expect("a message in memory has an archive");
    link.push(&Header::new(kind), None, None, &body, &[], Class::Outcome).map(drop)
}

/// Queues a directory message between two shards.
pub(super) fn push_directory(
    link: &mut Link,
    from: ShardIndex,
    to: ShardIndex,
    message: &DirectoryMessage,
) -> Result<(), SendRefused> {
    let mut header = Header::new(FrameKind::Directory);
    header.method = pack_shards(from, to);
    let body = to_bytes::<rancor::Error>(message).expect("a message in memory has an archive");
    link.push(&header, None, None, &body, &[], Class::Request).map(drop)
}

/// A directory frame has no method: its field holds the shards, the sender's above the receiver's.
fn pack_shards(from: ShardIndex, to: ShardIndex) -> MethodId {
    MethodId(u32::from(from.0) << 16 | u32::from(to.0))
}

#[expect(clippy::cast_possible_truncation, reason = "each half is taken by itself")]
const fn unpack_shards(method: MethodId) -> (ShardIndex, ShardIndex) {
    (ShardIndex((method.0 >> 16) as u16), ShardIndex(method.0 as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shards_of_a_directory_frame_stand_in_its_method() {
        let packed = pack_shards(ShardIndex(3), ShardIndex(511));
        assert_eq!(packed, MethodId(0x0003_01ff));
        assert_eq!(unpack_shards(packed), (ShardIndex(3), ShardIndex(511)));
    }
}
