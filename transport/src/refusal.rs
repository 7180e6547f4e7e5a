//! Refusals: why a handshake or a link is closed, told to both sides.
//!
//! A Refuse frame carries a stable code and a bounded text, so that any version can read any
//! other's. A refusal that the *peer* sent is a reason for a log line and nothing more: before the
//! handshake is done anybody may have written it, so no decision about a silo's life may rest on
//! one.

use core::fmt;

use siloring_core::MethodId;
use siloring_core::limits::{FAILURE_DETAIL_BYTES_MAX, FRAME_ALIGN};
use siloring_core::wire::{FrameKind, Header};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)+) => {
        /// Why a handshake or a link was refused.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum RefusalKind {
            $($(#[$doc])* $variant,)+
            /// A newer peer sent a code that this version does not know.
            Unknown(u16),
        }

        impl RefusalKind {
            /// Every kind that this version sends, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The stable code.
            pub const fn code(self) -> u16 {
                match self { $(Self::$variant => $code,)+ Self::Unknown(code) => code }
            }

            /// The kind's name, as used in logs and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                    Self::Unknown(_) => "Unknown",
                }
            }

            /// The kind with this code.
            pub const fn from_code(code: u16) -> Self {
                match code { $($code => Self::$variant,)+ _ => Self::Unknown(code) }
            }
        }
    };
}

kinds! {
    /// The peer is of another cluster: an address or a cluster id is configured wrongly.
    ForeignCluster = 1,
    /// The refused incarnation is Dead, or pruned, in the refuser's view.
    IncarnationDead = 2,
    /// Somebody else than the wanted incarnation answers at this address.
    UnexpectedIncarnation = 3,
    /// The peer claims a name, a shard count or a generation that the membership row contradicts.
    IdentityMismatch = 4,
    /// No wire version is spoken by both.
    VersionUnsupported = 5,
    /// No secret, a wrong one, or a replayed proof of one.
    BadCredential = 6,
    /// A type changed its layout without a new version: one side would misread the other.
    LayoutChanged = 7,
    /// A frame above the limit in force.
    TooLarge = 8,
    /// Bytes that are no frame, a frame that has no place here, or facts out of their bounds.
    ProtocolViolation = 9,
    /// The acceptor has no incarnation yet and takes inquiries only.
    NotJoined = 10,
    /// Another link of the same pair is the one that survives.
    Superseded = 11,
    /// The silo is leaving.
    Leaving = 12,
    /// Too many handshakes are under way.
    Busy = 13,
}

/// Who refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefusedBy {
    /// We did, and told the peer.
    Us,
    /// The peer did. Believed for logs only.
    Peer,
}

/// Why a handshake or a link was refused, and by whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why.
    pub kind: RefusalKind,
    /// By whom.
    pub by: RefusedBy,
    /// For people; bounded, not API. Of the peer's text, control characters are replaced.
    pub detail: Box<str>,
}

impl Refusal {
    /// A refusal by us. Of `detail` at most [`FAILURE_DETAIL_BYTES_MAX`] bytes are kept.
    pub fn ours(kind: RefusalKind, detail: impl Into<String>) -> Self {
        Self { kind, by: RefusedBy::Us, detail: bounded(detail.into()) }
    }

    /// The Refuse frame that tells the peer.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut header = Header::new(FrameKind::Refuse);
        header.method = MethodId(u32::from(self.kind.code()));
        let mut frame = header.encode(self.detail.len(), 0).to_vec();
        frame.extend_from_slice(self.detail.as_bytes());
        frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
        frame
    }

    /// Reads the peer's Refuse frame. Total: whatever the peer wrote is some refusal.
    pub(crate) fn from_frame(header: &Header, body: &[u8]) -> Self {
        let code = u16::try_from(header.method.0).unwrap_or(u16::MAX);
        let body = &body[..body.len().min(FAILURE_DETAIL_BYTES_MAX)];
        let detail = String::from_utf8_lossy(body).replace(char::is_control, "?");
        Self { kind: RefusalKind::from_code(code), by: RefusedBy::Peer, detail: bounded(detail) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            RefusedBy::Us => "by us",
            RefusedBy::Peer => "by the peer",
        };
        write!(out, "refused {by} as {}", self.kind.name())?;
        if let RefusalKind::Unknown(code) = self.kind {
            write!(out, " {code:#06x}")?;
        }
        if self.detail.is_empty() { Ok(()) } else { write!(out, ": {}", self.detail) }
    }
}

impl core::error::Error for Refusal {}

fn bounded(mut detail: String) -> Box<str> {
    if detail.len() > FAILURE_DETAIL_BYTES_MAX {
        let end = (0..=FAILURE_DETAIL_BYTES_MAX).rev().find(|&at| detail.is_char_boundary(at));
        detail.truncate(end.expect("0 is a boundary"));
    }
    detail.into_boxed_str()
}

#[cfg(test)]
mod tests {
    use siloring_core::limits::HANDSHAKE_FRAME_BYTES_MAX;

    use super::*;

    fn read(frame: &[u8]) -> Refusal {
        let layout = Header::decode(frame, HANDSHAKE_FRAME_BYTES_MAX).unwrap().unwrap();
        let (body, _) = layout.split(frame).unwrap();
        Refusal::from_frame(&layout.header, body)
    }

    /// The codes are on the wire: this table changes only by growing.
    #[test]
    fn codes_are_stable_and_survive_the_wire() {
        let codes: Vec<u16> = RefusalKind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        for &kind in RefusalKind::ALL {
            let told = read(&Refusal::ours(kind, "because").to_frame());
            assert_eq!((told.kind, told.by, &*told.detail), (kind, RefusedBy::Peer, "because"));
        }
        assert_eq!(RefusalKind::from_code(700), RefusalKind::Unknown(700));
    }

    #[test]
    fn a_hostile_text_is_cut_and_made_harmless() {
        let mut refusal = Refusal::ours(RefusalKind::Busy, "");
        refusal.detail = format!("a\u{1b}[31m\n{}", "ä".repeat(4000)).into();
        let told = read(&refusal.to_frame());
        assert!(told.detail.starts_with("a?[31m?ä"));
        assert!(told.detail.len() <= FAILURE_DETAIL_BYTES_MAX);
    }
}
