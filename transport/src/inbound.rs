//! The receiving half of a link: bytes become whole frames, read in place.
//!
//! The kernel writes into one aligned chunk; frames are multiples of 16 bytes long, so each lies
//! aligned where it arrived and its body is read there without a copy. A frame cut off at the end
//! of the chunk moves to its start; a frame larger than the chunk gets a buffer of its own, which
//! is freed when the frame has been read.
//!
//! Invariants: a length is believed only after the magic and the limit were checked, so a peer
//! cannot make us allocate beyond one frame; each frame starts at a multiple of 16; dictionary and
//! view frames are taken in before any later frame is shown; after an error the link yields nothing
//! more. In steady state nothing is allocated. Deliberately absent: what frames mean.

use core::fmt;

use siloring_core::ViewNumber;
use siloring_core::limits::{FRAME_ALIGN, READ_CHUNK_BYTES};
use siloring_core::wire::{FrameError, FrameKind, Header, Layout};

use crate::facts::{Purpose, Role};
use crate::handshake::Established;
use crate::names::{DictionaryError, Names};
use crate::refusal::{Refusal, RefusalKind};

/// Room is made at the chunk's start when less than this remains at its end.
const READ_BYTES_MIN: usize = READ_CHUNK_BYTES / 2;

/// Why a link yields nothing more. It is closed: the peer is broken or hostile, or closed it
/// itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that may not come on this link, or not from this side.
    #[error("{kind:?} has no place on this link")]
    Misplaced {
        /// Its kind.
        kind: FrameKind,
    },
    /// A dictionary frame that is false.
    #[error(transparent)]
    Dictionary(#[from] DictionaryError),
    /// The peer went back to an older view.
    #[error("the peer went from view {known} back to {found}")]
    ViewWentBack {
        /// The view it had.
        known: ViewNumber,
        /// The view it told.
        found: ViewNumber,
    },
    /// The peer closed the link, with its reason.
    #[error(transparent)]
    Refused(Refusal),
}

impl LinkError {
    /// What to tell the peer before closing; `None` if it was the peer who closed.
    pub fn refusal(&self) -> Option<Refusal> {
        let kind = match self {
            Self::Refused(_) => return None,
            Self::Frame(FrameError::Version { .. }) => RefusalKind::VersionUnsupported,
            Self::Frame(FrameError::Length { found, limit }) if found > limit => {
                RefusalKind::TooLarge
            }
            Self::Frame(_)
            | Self::Misplaced { .. }
            | Self::Dictionary(_)
            | Self::ViewWentBack { .. } => RefusalKind::ProtocolViolation,
        };
        Some(Refusal::ours(kind, self.to_string()))
    }
}

/// A whole frame, in place.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its header.
    pub header: &'a Header,
    /// Its body: starts at a multiple of 16, so that an archive is read in place.
    pub body: &'a [u8],
    /// Its extension block, for [`siloring_core::wire::Extensions`].
    pub extensions: &'a [u8],
    /// The addresses that the peer has named.
    pub names: &'a Names,
}

/// Bytes that start at a multiple of [`FRAME_ALIGN`]. Untouched pages cost nothing.
struct Chunk {
    bytes: Vec<u8>,
    /// Where the first aligned byte is.
    base: usize,
}

impl Chunk {
    fn new(capacity: usize) -> Self {
        let bytes = vec![0; capacity + FRAME_ALIGN];
        let base = bytes.as_ptr().align_offset(FRAME_ALIGN);
        assert!(base < FRAME_ALIGN, "an aligned byte is among any 16");
        Self { bytes, base }
    }

    fn capacity(&self) -> usize {
        self.bytes.len() - FRAME_ALIGN
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        &self.bytes[self.base + from..self.base + to]
    }

    fn slice_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        &mut self.bytes[self.base + from..self.base + to]
    }
}

/// A frame with a buffer of its own.
struct Large {
    chunk: Chunk,
    filled: usize,
    /// It has been shown: freed at the next call.
    shown: bool,
}

impl Large {
    fn is_whole(&self) -> bool {
        self.filled == self.chunk.capacity()
    }
}

/// The receiving half of a link.
pub struct Inbound {
    chunk: Chunk,
    /// Bytes before `start` have been read, bytes from `end` on are free.
    start: usize,
    end: usize,
    large: Option<Large>,
    /// Of the frame that was found last.
    layout: Layout,
    names: Names,
    peer_view: ViewNumber,
    /// Bit `n`: frames of kind `n` may come.
    allowed: u32,
    frame_bytes_max: usize,
}

impl Inbound {
    pub(crate) fn new(established: &Established) -> Self {
        let mut inbound = Self {
            chunk: Chunk::new(READ_CHUNK_BYTES.max(established.leftover.len())),
            start: 0,
            end: 0,
            large: None,
            layout: Layout::NONE,
            names: Names::default(),
            peer_view: ViewNumber::ZERO,
            allowed: allowed(established.purpose, established.role),
            frame_bytes_max: established.frame_bytes_max as usize,
        };
        let leftover = &established.leftover;
        inbound.chunk.slice_mut(0, leftover.len()).copy_from_slice(leftover);
        inbound.end = leftover.len();
        inbound
    }

    /// Room for bytes of the peer's: at least one, unless whole frames wait to be read.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.free_shown();
        if self.large.is_none() {
            self.make_room();
        }
        if let Some(large) = &mut self.large {
            let (filled, capacity) = (large.filled, large.chunk.capacity());
            large.chunk.slice_mut(filled, capacity)
        } else {
            let (end, capacity) = (self.end, self.chunk.capacity());
            self.chunk.slice_mut(end, capacity)
        }
    }

    /// The peer's bytes are in the first `count` of [`Self::receive_space`].
    ///
    /// # Panics
    /// If there was less room.
    pub fn received(&mut self, count: usize) {
        if let Some(large) = &mut self.large {
            large.filled += count;
            assert!(large.filled <= large.chunk.capacity(), "more was received than fits");
        } else {
            self.end += count;
            assert!(self.end <= self.chunk.capacity(), "more was received than fits");
        }
    }

    /// The next whole frame; `None` if more bytes are needed.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, LinkError> {
        if !self.find()? {
            return Ok(None);
        }
        let layout = &self.layout;
        let (body, extensions) = if let Some(large) = &mut self.large {
            let parts = layout.split(large.chunk.slice(0, large.filled))?;
            large.shown = true;
            parts
        } else {
            let end = self.start + layout.frame_bytes;
            let parts = layout.split(self.chunk.slice(self.start, end))?;
            self.start = end;
            parts
        };
        Ok(Some(Frame { header: &layout.header, body, extensions, names: &self.names }))
    }

    /// The newest view that the peer has told: [`ViewNumber::ZERO`] before the first.
    pub const fn peer_view(&self) -> ViewNumber {
        self.peer_view
    }

    /// The addresses that the peer has named.
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// Bytes of buffer that this half holds, touched or not.
    pub fn buffer_bytes(&self) -> usize {
        self.chunk.capacity() + self.large.as_ref().map_or(0, |large| large.chunk.capacity())
    }

    /// Finds the next frame to show and takes in those before it. It lies in its own buffer if
    /// there is one, else at `start`.
    #[inline]
    fn find(&mut self) -> Result<bool, LinkError> {
        self.free_shown();
        loop {
            let (bytes, is_whole) = match &self.large {
                Some(large) => (large.chunk.slice(0, large.filled), large.is_whole()),
                None => (self.chunk.slice(self.start, self.end), true),
            };
            if !is_whole || !self.layout.read(bytes, self.frame_bytes_max)? {
                return Ok(false);
            }
            let Some(bytes) = bytes.get(..self.layout.frame_bytes) else {
                return Ok(false);
            };
            check_allowed(self.allowed, &self.layout, bytes)?;
            if !is_internal(self.layout.header.kind) {
                return Ok(true);
            }
            take_in(&mut self.names, &mut self.peer_view, &self.layout, bytes)?;
            if self.large.take().is_none() {
                self.start += self.layout.frame_bytes;
            }
        }
    }

    #[inline]
    fn free_shown(&mut self) {
        if self.large.as_ref().is_some_and(|large| large.shown) {
            self.large = None;
        }
    }

    /// Makes room behind the bytes that wait: at the start of the chunk, or in a buffer of its own
    /// for a frame that the chunk cannot hold.
    fn make_room(&mut self) {
        let (start, end) = (self.start, self.end);
        if start == end {
            (self.start, self.end) = (0, 0);
            return;
        }
        let frame_bytes = self.waiting_frame_bytes();
        if frame_bytes > self.chunk.capacity() {
            let mut large = Large { chunk: Chunk::new(frame_bytes), filled: 0, shown: false };
            let waiting = self.chunk.slice(start, end);
            large.chunk.slice_mut(0, waiting.len()).copy_from_slice(waiting);
            large.filled = waiting.len();
            self.large = Some(large);
            (self.start, self.end) = (0, 0);
            return;
        }
        let capacity = self.chunk.capacity();
        if start > 0 && (capacity - end < READ_BYTES_MIN || start + frame_bytes > capacity) {
            self.chunk.slice_mut(0, end).copy_within(start.., 0);
            (self.start, self.end) = (0, end - start);
        }
    }

    /// The length of the frame that waits first; 0 if unknown or not valid, which reading it will
    /// say.
    fn waiting_frame_bytes(&self) -> usize {
        match Header::decode(self.chunk.slice(self.start, self.end), self.frame_bytes_max) {
            Ok(Some(layout)) => layout.frame_bytes,
            Ok(None) | Err(_) => 0,
        }
    }
}

/// Dictionary and view frames are taken in here and never shown.
const fn is_internal(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Dictionary | FrameKind::View)
}

fn take_in(
    names: &mut Names,
    peer_view: &mut ViewNumber,
    layout: &Layout,
    bytes: &[u8],
) -> Result<(), LinkError> {
    let (body, _extensions) = layout.split(bytes)?;
    if layout.header.kind == FrameKind::Dictionary {
        return Ok(names.handle_frame(&layout.header, body)?);
    }
    let found = ViewNumber(layout.header.correlation.0);
    if found < *peer_view {
        return Err(LinkError::ViewWentBack { known: *peer_view, found });
    }
    *peer_view = found;
    Ok(())
}

/// Refuses a kind that may not come here. A Refuse frame always may, and ends the link.
#[inline]
fn check_allowed(allowed: u32, layout: &Layout, bytes: &[u8]) -> Result<(), LinkError> {
    let kind = layout.header.kind;
    if allowed & bit(kind) != 0 {
        return Ok(());
    }
    if kind == FrameKind::Refuse {
        let (body, _extensions) = layout.split(bytes)?;
        return Err(LinkError::Refused(Refusal::from_frame(&layout.header, body)));
    }
    Err(LinkError::Misplaced { kind })
}

const fn bit(kind: FrameKind) -> u32 {
    1 << kind as u32
}

/// Which kinds may come on a link: a data link carries its dialer's requests one way and their
/// outcomes the other, control traffic has links of its own.
const fn allowed(purpose: Purpose, role: Role) -> u32 {
    let always = bit(FrameKind::Dictionary) | bit(FrameKind::View);
    let probes = bit(FrameKind::Probe) | bit(FrameKind::ProbeAnswer) | bit(FrameKind::Membership);
    always
        | match (purpose, role) {
            (Purpose::Control, _) => probes | bit(FrameKind::Directory),
            (Purpose::Inquiry, _) => probes,
            (Purpose::Shard { .. }, Role::Dialer) => {
                bit(FrameKind::Reply) | bit(FrameKind::Failure)
            }
            (Purpose::Shard { .. }, Role::Acceptor) => {
                bit(FrameKind::Request) | bit(FrameKind::Void)
            }
        }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Inbound")
            .field("waiting_bytes", &(self.end - self.start))
            .field("names", &self.names.len())
            .field("peer_view", &self.peer_view)
            .finish_non_exhaustive()
    }
}
