//! An established link: frames out, frames in.
//!
//! The two halves are independent, so that a frame can be read in place while its answer is laid
//! into the send buffer: see [`Link::halves`]. The methods of [`Link`] are theirs.

use siloring_core::wire::Header;
use siloring_core::{Address, ViewNumber};

use crate::handshake::Established;
use crate::inbound::{Frame, Inbound, LinkError};
use crate::outbound::{Class, Outbound, Position, SendRefused};
use crate::refusal::Refusal;

/// A link that is up.
#[derive(Debug)]
pub struct Link {
    inbound: Inbound,
    outbound: Outbound,
}

impl Link {
    /// A link as the handshake left it: with its unsent bytes, and what came behind it.
    pub fn new(established: &Established) -> Self {
        Self { inbound: Inbound::new(established), outbound: Outbound::new(established) }
    }

    /// The halves, to be kept apart.
    pub fn split(self) -> (Inbound, Outbound) {
        (self.inbound, self.outbound)
    }

    /// Both halves at once.
    pub const fn halves(&mut self) -> (&mut Inbound, &mut Outbound) {
        (&mut self.inbound, &mut self.outbound)
    }

    /// The receiving half.
    pub const fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// The sending half.
    pub const fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    /// See [`Outbound::push`].
    pub fn push(
        &mut self,
        header: &Header,
        source: Option<&Address>,
        target: Option<&Address>,
        body: &[u8],
        extensions: &[u8],
        class: Class,
    ) -> Result<Position, SendRefused> {
        self.outbound.push(header, source, target, body, extensions, class)
    }

    /// See [`Outbound::push_view`].
    pub fn push_view(&mut self, view: ViewNumber) {
        self.outbound.push_view(view);
    }

    /// See [`Outbound::push_refusal`].
    pub fn push_refusal(&mut self, refusal: &Refusal) {
        self.outbound.push_refusal(refusal);
    }

    /// See [`Outbound::unsent`].
    pub fn unsent(&self) -> &[u8] {
        self.outbound.unsent()
    }

    /// See [`Outbound::sent`].
    pub fn sent(&mut self, count: usize) {
        self.outbound.sent(count);
    }

    /// See [`Outbound::written`].
    pub const fn written(&self) -> u64 {
        self.outbound.written()
    }

    /// See [`Inbound::receive_space`].
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.inbound.receive_space()
    }

    /// See [`Inbound::received`].
    pub fn received(&mut self, count: usize) {
        self.inbound.received(count);
    }

    /// See [`Inbound::next_frame`].
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, LinkError> {
        self.inbound.next_frame()
    }

    /// See [`Inbound::peer_view`].
    pub const fn peer_view(&self) -> ViewNumber {
        self.inbound.peer_view()
    }
}
