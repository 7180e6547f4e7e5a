//! The port between a shard and its data links.
//!
//! Implemented by the pump's link table; the runtime never sees a connection's bytes.

use siloring_core::address::Address;
use siloring_core::ids::Generation;
use siloring_core::wire::Header;

use crate::mail::ConnId;

/// A frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its header.
    pub header: Header,
    /// The address behind `header.source`, if there is one.
    pub source: Option<&'a Address>,
    /// The address behind `header.target`, if there is one.
    pub target: Option<&'a Address>,
    /// The body.
    pub body: &'a [u8],
    /// The extension block, padded and ended by its length.
    pub extensions: &'a [u8],
}

/// Where a frame stands in its link's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The link's connection.
    pub conn: ConnId,
    /// The offset of the frame's first byte: handed over once the kernel took more than that.
    pub position: u64,
}

/// Why a link did not take a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkRefusal {
    /// There is no link: ask for one and send again when it is up.
    NotUp,
    /// The link was there and is gone.
    Gone,
    /// Its backlog is full.
    Overloaded,
    /// The frame exceeds the limit of either side.
    TooLarge,
}

/// Whether a frame could be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retracted {
    /// It will never leave.
    Yes,
    /// The kernel had taken its first byte.
    HandedOver,
}

/// The data links of one shard.
pub trait Links {
    /// Sends a request on this shard's own link to `peer`.
    fn request(&mut self, peer: Generation, frame: &Outgoing<'_>) -> Result<Sent, LinkRefusal>;

    /// Sends an outcome on the link that brought its request.
    fn outcome(&mut self, conn: ConnId, frame: &Outgoing<'_>) -> Result<(), LinkRefusal>;

    /// Takes a request back that may still be in the send buffer.
    fn retract(&mut self, sent: Sent) -> Retracted;
}
