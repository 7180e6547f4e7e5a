//! The sending half of a link: one contiguous, bounded buffer of whole frames.
//!
//! Frames are laid straight into the buffer; the driver sends what is in it with one call per turn
//! of its loop. Positions in the stream tell what has been handed over: a frame is handed over once
//! the kernel has taken its first byte. Under TLS what a record was made of leaves the buffer when
//! it is sealed, and counts as taken when the kernel takes the record's first byte.
//!
//! Invariants: a refused push changes nothing; requests leave [`LINK_REPLY_RESERVE_BYTES`] free for
//! outcomes; a frame's addresses, and the sender's view, are told before it. In steady state
//! nothing is allocated. Deliberately absent: retries, deadlines, sockets.

use core::fmt;

use siloring_core::limits::{
    FRAME_ALIGN, FRAME_BYTES_MAX, HEADER_BYTES, LINK_BACKLOG_BYTES_MAX, LINK_BUFFER_KEEP_BYTES,
    LINK_REPLY_RESERVE_BYTES,
};
use siloring_core::wire::{FrameKind, Header, KIND_AT, frame_bytes};
use siloring_core::{Address, CorrelationId, ViewNumber};

use crate::handshake::Established;
use crate::names::Told;
use crate::refusal::Refusal;

/// Where a frame begins in the stream of a link, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position(pub u64);

impl Position {
    /// Whether the kernel has taken the frame's first byte, when it has taken `written` bytes in
    /// all.
    pub const fn is_handed_over(self, written: u64) -> bool {
        written > self.0
    }
}

/// Which bound a frame is held to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// New work: refused once [`LINK_BACKLOG_BYTES_MAX`] bytes wait.
    Request,
    /// The end of work done: may use the reserve as well.
    Outcome,
}

impl Class {
    const fn bound_bytes(self) -> usize {
        match self {
            Self::Request => LINK_BACKLOG_BYTES_MAX,
            Self::Outcome => LINK_BACKLOG_BYTES_MAX + LINK_REPLY_RESERVE_BYTES,
        }
    }
}

/// Why a frame was not queued. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendRefused {
    /// Too many bytes wait on this link. The peer is slow: try again later, or give up.
    #[error("too many bytes wait on the link")]
    Overloaded,
    /// The frame exceeds what this link may carry. It never will: do not try again.
    #[error("the frame exceeds the link's limit")]
    TooLarge,
}

/// The sending half of a link.
pub struct Outbound {
    /// Bytes before `head` have left: they are sent, or sealed.
    buffer: Vec<u8>,
    head: usize,
    /// How many bytes of the stream have left the buffer.
    left: u64,
    /// How many of those the kernel has taken: all, without TLS.
    written: u64,
    told: Told,
    /// The sender's view: the one to tell, and the one that the peer knows.
    view: ViewNumber,
    view_told: ViewNumber,
    frame_bytes_max: usize,
}

impl Outbound {
    pub(crate) fn new(established: &Established) -> Self {
        Self {
            buffer: established.unsent.clone(),
            head: 0,
            left: 0,
            written: 0,
            told: Told::default(),
            view: ViewNumber::ZERO,
            view_told: ViewNumber::ZERO,
            frame_bytes_max: (established.peer_frame_bytes_max as usize).min(FRAME_BYTES_MAX),
        }
    }

    /// Queues a frame and says where in the stream it begins.
    ///
    /// `source` and `target` are told to the peer if it does not know them; without one, its hash
    /// in the header travels alone. `extensions` is a whole block, as written by
    /// [`siloring_core::wire::ExtensionWriter`].
    ///
    /// # Panics
    /// If an address given does not have the hash in the header, or the block is not padded.
    #[inline]
    pub fn push(
        &mut self,
        header: &Header,
        source: Option<&Address>,
        target: Option<&Address>,
        body: &[u8],
        extensions: &[u8],
        class: Class,
    ) -> Result<Position, SendRefused> {
        assert!(source.is_none_or(|address| address.hash() == header.source), "source and hash");
        assert!(target.is_none_or(|address| address.hash() == header.target), "target and hash");
        let frame_bytes = frame_bytes(body.len(), extensions.len());
        if frame_bytes > self.frame_bytes_max {
            return Err(SendRefused::TooLarge);
        }
        let fresh = self.told.fresh(source, target);
        let dictionary_bytes = fresh.frame_bytes();
        let needed = self.view_bytes() + dictionary_bytes + frame_bytes;
        if self.backlog_bytes() + needed > class.bound_bytes() {
            return Err(SendRefused::Overloaded);
        }
        self.make_room(needed);
        self.lay_view();
        if dictionary_bytes > 0 {
            self.told.tell(&fresh, &mut self.buffer);
        }
        let position = self.end();
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&header.encode(body.len(), extensions.len()));
        self.buffer.extend_from_slice(body);
        let padding = body.len().next_multiple_of(FRAME_ALIGN) - body.len();
        if padding > 0 {
            self.buffer.extend_from_slice(&[0; FRAME_ALIGN][..padding]);
        }
        if !extensions.is_empty() {
            self.buffer.extend_from_slice(extensions);
        }
        assert_eq!(self.buffer.len() - start, frame_bytes, "a frame is as long as it says");
        Ok(position)
    }

    /// Takes a frame back: it becomes [`FrameKind::Void`], which the peer skips. False, and nothing
    /// changed, if it has been handed over, or will be as it is sealed.
    ///
    /// # Panics
    /// If no frame of this link begins at `position`.
    pub fn retract(&mut self, position: Position) -> bool {
        if position.is_handed_over(self.left) {
            return false;
        }
        let ahead = usize::try_from(position.0 - self.left).expect("within the backlog");
        let start = self.head + ahead;
        let frame = self.buffer.get_mut(start..start + HEADER_BYTES).expect("a whole frame waits");
        frame[KIND_AT] = FrameKind::Void as u8;
        true
    }

    /// Our view is now `view`: the peer is told before any later frame. An older one than before is
    /// ignored. Never refused: on a link that is full the frame goes with the next that fits.
    pub fn push_view(&mut self, view: ViewNumber) {
        self.view = self.view.max(view);
        if self.backlog_bytes() + self.view_bytes() <= Class::Outcome.bound_bytes() {
            self.make_room(HEADER_BYTES);
            self.lay_view();
        }
    }

    /// Queues the reason for which the link is about to be closed. Nothing may be pushed behind it.
    pub fn push_refusal(&mut self, refusal: &Refusal) {
        self.buffer.extend_from_slice(&refusal.to_frame());
    }

    /// Bytes to send.
    pub fn unsent(&self) -> &[u8] {
        &self.buffer[self.head..]
    }

    /// The kernel has taken the first `count` bytes of [`Self::unsent`].
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, count: usize) {
        self.sealed(count);
        self.handed_over(count);
    }

    /// A TLS session has sealed the first `count` bytes of [`Self::unsent`]; the kernel has taken
    /// none of them yet.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sealed(&mut self, count: usize) {
        assert!(count <= self.backlog_bytes(), "more was sent than there was");
        self.head += count;
        self.left += count as u64;
        if self.head == self.buffer.len() {
            self.head = 0;
            self.buffer.clear();
            if self.buffer.capacity() > LINK_BUFFER_KEEP_BYTES {
                self.buffer.shrink_to(LINK_BUFFER_KEEP_BYTES);
            }
        }
    }

    /// The kernel has begun to take the records of the next `count` bytes that were sealed.
    ///
    /// # Panics
    /// If fewer were.
    #[inline]
    pub fn handed_over(&mut self, count: usize) {
        self.written += count as u64;
        assert!(self.written <= self.left, "more was handed over than has left");
    }

    /// How many bytes of the stream the kernel has taken.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// How many bytes wait.
    pub fn backlog_bytes(&self) -> usize {
        self.buffer.len() - self.head
    }

    /// The largest frame that this link may carry.
    pub const fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Where the next frame would begin.
    #[inline]
    fn end(&self) -> Position {
        Position(self.left + self.backlog_bytes() as u64)
    }

    /// Bytes of the View frame that is due.
    #[inline]
    fn view_bytes(&self) -> usize {
        if self.view == self.view_told { 0 } else { HEADER_BYTES }
    }

    #[inline]
    fn lay_view(&mut self) {
        if self.view != self.view_told {
            let mut header = Header::new(FrameKind::View);
            header.correlation = CorrelationId(self.view.0);
            self.buffer.extend_from_slice(&header.encode(0, 0));
            self.view_told = self.view;
        }
    }

    /// Makes `needed` bytes fit: by moving what waits to the front if that is the smaller part of
    /// the buffer, which costs less than was sent since the last time, else by growing.
    #[inline]
    fn make_room(&mut self, needed: usize) {
        if self.buffer.capacity() - self.buffer.len() >= needed {
            return;
        }
        let waiting = self.backlog_bytes();
        if self.head > waiting {
            self.buffer.copy_within(self.head.., 0);
            self.buffer.truncate(waiting);
            self.head = 0;
        }
        self.buffer.reserve(needed);
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Outbound")
            .field("written", &self.written)
            .field("backlog_bytes", &self.backlog_bytes())
            .field("view_told", &self.view_told)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::facts::{Purpose, Role};

    fn outbound() -> Outbound {
        Outbound::new(&Established {
            peer: None,
            peer_shards: 1,
            peer_host: String::new(),
            peer_types: Vec::new(),
            peer_deadline_default: Duration::from_secs(30),
            peer_frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap(),
            frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap(),
            version: 1,
            features: 0,
            purpose: Purpose::Control,
            role: Role::Dialer,
            unsent: Vec::new(),
            leftover: Vec::new(),
        })
    }

    fn push(outbound: &mut Outbound, body: &[u8]) -> Result<Position, SendRefused> {
        outbound.push(&Header::new(FrameKind::Probe), None, None, body, &[], Class::Request)
    }

    #[test]
    fn a_burst_does_not_stay_resident() {
        let mut outbound = outbound();
        let body = vec![0; 1 << 20];
        while push(&mut outbound, &body).is_ok() {}
        assert!(outbound.buffer.capacity() > LINK_BUFFER_KEEP_BYTES);
        outbound.sent(outbound.unsent().len());
        assert!(outbound.buffer.capacity() <= LINK_BUFFER_KEEP_BYTES);
    }

    /// Method: a link that is never empty, as under steady load.
    #[test]
    fn a_link_that_is_never_empty_uses_its_buffer_again() {
        let mut outbound = outbound();
        for _ in 0..8 {
            push(&mut outbound, &[0; 1000]).unwrap();
        }
        let frame_bytes = outbound.unsent().len() / 8;
        for _ in 0..10_000 {
            outbound.sent(frame_bytes);
            push(&mut outbound, &[0; 1000]).unwrap();
        }
        assert!(outbound.buffer.capacity() <= 64 * frame_bytes, "{}", outbound.buffer.capacity());
    }
}
