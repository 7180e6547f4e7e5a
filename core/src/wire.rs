//! The frame header, laid by hand, and the extension block behind the body.
//!
//! Byte table: `docs/wire.md`; the golden test below reads the same numbers. A frame is a 64-byte
//! header, the body, zero padding to a multiple of 16, then (if flagged) an extension block whose
//! last four bytes are its own length. Nothing here allocates.

use crate::address::AddressHash;
use crate::ids::{CorrelationId, MethodId};
use crate::limits::{FRAME_ALIGN, FRAME_BYTES_MAX, HEADER_BYTES};
use crate::schema::Schema;

/// First bytes after the length: tells a frame from noise.
pub const MAGIC: u16 = 0x5153;
/// The wire version that this build speaks.
pub const VERSION: u8 = 1;
/// The oldest wire version that this build speaks.
pub const VERSION_MIN: u8 = 1;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of a dialer: who it is and what it wants.
    Hello = 1,
    /// The acceptor's answer: who it is, and the dialer's nonce signed.
    HelloAck = 2,
    /// The dialer's answer to the acceptor's nonce: only now is the link up at the acceptor.
    HelloDone = 3,
    /// A handshake, or a link, is refused or closed, with the reason.
    Refuse = 4,
    /// Strings of addresses whose hashes follow.
    Dictionary = 5,
    /// The sender's view is now this one.
    View = 6,
    /// A delivery that wants an outcome.
    Request = 7,
    /// Outcome: handled, with the reply.
    Reply = 8,
    /// Outcome: not handled, with the failure.
    Failure = 9,
    /// A request that was taken back before it left: nothing follows from it.
    Void = 10,
    /// Control lane: are you there?
    Probe = 11,
    /// Control lane: yes, and this is my newest view.
    ProbeAnswer = 12,
    /// Control lane: membership (gossip, indirect probes, goodbyes).
    Membership = 13,
    /// Control lane: directory traffic between two shards.
    Directory = 14,
}

impl FrameKind {
    /// The kind with this code.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Hello,
            2 => Self::HelloAck,
            3 => Self::HelloDone,
            4 => Self::Refuse,
            5 => Self::Dictionary,
            6 => Self::View,
            7 => Self::Request,
            8 => Self::Reply,
            9 => Self::Failure,
            10 => Self::Void,
            11 => Self::Probe,
            12 => Self::ProbeAnswer,
            13 => Self::Membership,
            14 => Self::Directory,
            _ => return None,
        })
    }
}

/// Bit of `flags`: an extension block ends the frame.
pub const FLAG_EXTENSIONS: u16 = 1 << 4;
/// Bit of `flags`: nobody waits for the outcome; it goes to `on_failure` or is only counted.
pub const FLAG_ONE_WAY: u16 = 1 << 5;
/// Where the kind stands in a header.
pub const KIND_AT: usize = 7;
/// Low bits of `flags`: how many padding bytes follow the body.
const FLAG_PADDING_MASK: u16 = 0x000f;

/// The header of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is.
    pub kind: FrameKind,
    /// [`FLAG_EXTENSIONS`], [`FLAG_ONE_WAY`]; the padding bits are set by [`Header::encode`].
    pub flags: u16,
    /// Redirections this delivery has followed.
    pub forwards: u8,
    /// Attempt of this delivery, from 1; 0 where attempts make no sense.
    pub attempt: u8,
    /// The method, or the message type.
    pub method: MethodId,
    /// Names the open delivery at the request's sender.
    pub correlation: CorrelationId,
    /// What the body is.
    pub schema: Schema,
    /// The sender's address.
    pub source: AddressHash,
    /// The receiver's address.
    pub target: AddressHash,
}

/// Why bytes are no frame. The link that carried them is closed: its peer is broken or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not our magic: noise, or another protocol.
    #[error("bad magic {found:#06x}")]
    Magic {
        /// What stood there.
        found: u16,
    },
    /// A wire version that was not agreed.
    #[error("wire version {found} was not agreed")]
    Version {
        /// What stood there.
        found: u8,
    },
    /// A kind that this version does not know.
    #[error("unknown frame kind {found}")]
    Kind {
        /// What stood there.
        found: u8,
    },
    /// A length below the header, above the limit, or not a multiple of 16.
    #[error("frame length {found} is not valid (limit {limit})")]
    Length {
        /// What stood there.
        found: u32,
        /// The limit in force.
        limit: u32,
    },
    /// Padding or extensions that do not fit the length.
    #[error("padding or extensions exceed the frame")]
    Layout,
}

/// A header with the sizes that its frame has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The header.
    pub header: Header,
    /// The whole frame.
    pub frame_bytes: usize,
}

/// Bytes of a whole frame with `body_bytes` of body and `extension_bytes` of extension block.
#[inline]
pub const fn frame_bytes(body_bytes: usize, extension_bytes: usize) -> usize {
    HEADER_BYTES + body_bytes.next_multiple_of(FRAME_ALIGN) + extension_bytes
}

impl Header {
    /// A header with everything zero but the kind.
    pub const fn new(kind: FrameKind) -> Self {
        Self {
            kind,
            flags: 0,
            forwards: 0,
            attempt: 0,
            method: MethodId(0),
            correlation: CorrelationId(0),
            schema: Schema::NONE,
            source: AddressHash::NONE,
            target: AddressHash::NONE,
        }
    }

    /// Lays the header of a frame with so many bytes of body and extension block.
    ///
    /// # Panics
    /// If the frame would exceed [`FRAME_BYTES_MAX`], or the extension block is not padded.
    #[inline]
    pub fn encode(&self, body_bytes: usize, extension_bytes: usize) -> [u8; HEADER_BYTES] {
        assert!(extension_bytes.is_multiple_of(FRAME_ALIGN), "an extension block is padded");
        let total = frame_bytes(body_bytes, extension_bytes);
        assert!(total <= FRAME_BYTES_MAX, "frame of {total} bytes exceeds the limit");
        let padding = body_bytes.next_multiple_of(FRAME_ALIGN) - body_bytes;
        let mut flags = self.flags & !(FLAG_PADDING_MASK | FLAG_EXTENSIONS);
        flags |= u16::try_from(padding).expect("less than FRAME_ALIGN");
        if extension_bytes > 0 {
            flags |= FLAG_EXTENSIONS;
        }
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&u32::try_from(total).expect("checked above").to_le_bytes());
        out[4..6].copy_from_slice(&MAGIC.to_le_bytes());
        out[6] = VERSION;
        out[7] = self.kind as u8;
        out[8..10].copy_from_slice(&flags.to_le_bytes());
        out[10] = self.forwards;
        out[11] = self.attempt;
        out[12..16].copy_from_slice(&self.method.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.correlation.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.schema.to_bits().to_le_bytes());
        out[32..48].copy_from_slice(&self.source.0.to_le_bytes());
        out[48..64].copy_from_slice(&self.target.0.to_le_bytes());
        out
    }

    /// Reads the header at the start of `bytes`; `None` if fewer than 64 are there.
    #[inline]
    pub fn decode(bytes: &[u8], frame_bytes_max: usize) -> Result<Option<Layout>, FrameError> {
        let mut layout = Layout::NONE;
        Ok(layout.read(bytes, frame_bytes_max)?.then_some(layout))
    }
}

#[inline]
fn cut<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("every field ends within the header")
}

impl Layout {
    /// Of no frame.
    pub const NONE: Self = Self { header: Header::new(FrameKind::Void), frame_bytes: 0 };

    /// Becomes that of the header at the start of `bytes`; false, and nothing changed, if fewer
    /// than 64 are there. Read to where it stays: a header that is moved as soon as it was read
    /// costs more than its reading.
    #[inline]
    pub fn read(&mut self, bytes: &[u8], frame_bytes_max: usize) -> Result<bool, FrameError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(false);
        };
        let magic = u16::from_le_bytes(cut(bytes, 4));
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        if bytes[6] < VERSION_MIN || bytes[6] > VERSION {
            return Err(FrameError::Version { found: bytes[6] });
        }
        let kind = FrameKind::from_code(bytes[7]).ok_or(FrameError::Kind { found: bytes[7] })?;
        let length = u32::from_le_bytes(cut(bytes, 0));
        let total = length as usize;
        if total < HEADER_BYTES || total > frame_bytes_max || !total.is_multiple_of(FRAME_ALIGN) {
            let limit = u32::try_from(frame_bytes_max).unwrap_or(u32::MAX);
            return Err(FrameError::Length { found: length, limit });
        }
        self.frame_bytes = total;
        self.header.kind = kind;
        self.header.flags = u16::from_le_bytes(cut(bytes, 8));
        self.header.forwards = bytes[10];
        self.header.attempt = bytes[11];
        self.header.method = MethodId(u32::from_le_bytes(cut(bytes, 12)));
        self.header.correlation = CorrelationId(u64::from_le_bytes(cut(bytes, 16)));
        self.header.schema = Schema::from_bits(u64::from_le_bytes(cut(bytes, 24)));
        self.header.source = AddressHash(u128::from_le_bytes(cut(bytes, 32)));
        self.header.target = AddressHash(u128::from_le_bytes(cut(bytes, 48)));
        Ok(true)
    }

    /// Splits a whole frame into body and extension block (without its length).
    #[inline]
    pub fn split<'a>(&self, frame: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), FrameError> {
        assert_eq!(frame.len(), self.frame_bytes, "split takes exactly one frame");
        let rest = &frame[HEADER_BYTES..];
        let (padded, extensions) = if self.header.flags & FLAG_EXTENSIONS == 0 {
            (rest, &[][..])
        } else {
            split_extensions(rest)?
        };
        let padding = usize::from(self.header.flags & FLAG_PADDING_MASK);
        let body_bytes = padded.len().checked_sub(padding).ok_or(FrameError::Layout)?;
        Ok((&padded[..body_bytes], extensions))
    }
}

fn split_extensions(rest: &[u8]) -> Result<(&[u8], &[u8]), FrameError> {
    let (front, length) = rest.split_last_chunk::<4>().ok_or(FrameError::Layout)?;
    let length = u32::from_le_bytes(*length) as usize;
    if length < FRAME_ALIGN || length > rest.len() || !length.is_multiple_of(FRAME_ALIGN) {
        return Err(FrameError::Layout);
    }
    let start = rest.len() - length;
    Ok((&rest[..start], &front[start..]))
}

/// What an extension entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tag {
    /// Milliseconds that remain until the deadline: `u32`.
    DeadlineMs = 1,
    /// Trace context: 25 bytes (version, trace id, span id, flags).
    Trace = 2,
    /// Identity of the caller: UTF-8.
    Identity = 3,
    /// One header: length of the name (`u8`), name, value; both UTF-8.
    Header = 4,
    /// One ancestor in the call chain: a 128-bit address hash.
    Ancestor = 5,
    /// The correct place of the target: silo `u64`, shard `u16`, activation view `u64`, counter
    /// `u64`.
    Place = 6,
    /// The view in which a failure was decided: `u64`.
    View = 7,
    /// What makes the request a stream's event: the owner's activation view and counter, position,
    /// missed, origin's number (`u64` each), origin (`u128`), attempt (`u8`), length of the
    /// subscription's key (`u8`), the key, the stream's address; both UTF-8.
    Event = 8,
    /// Idempotency key: `u128`. Of a request sent again also the view and counter (`u64` each) of
    /// the activation that it was handed over to, zero if that is not known.
    IdempotencyKey = 9,
}

impl Tag {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::DeadlineMs,
            2 => Self::Trace,
            3 => Self::Identity,
            4 => Self::Header,
            5 => Self::Ancestor,
            6 => Self::Place,
            7 => Self::View,
            8 => Self::Event,
            9 => Self::IdempotencyKey,
            _ => return None,
        })
    }
}

/// Writes an extension block: entries of tag, 16-bit length, value; a zero tag ends them.
#[derive(Debug)]
pub struct ExtensionWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> ExtensionWriter<'a> {
    /// Starts a block at the end of `out`.
    pub const fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start }
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// If `value` is longer than 65 535 bytes.
    pub fn push(&mut self, tag: Tag, value: &[u8]) {
        self.out.push(tag as u8);
        let length = u16::try_from(value.len()).expect("an extension value is at most 64 KiB");
        self.out.extend_from_slice(&length.to_le_bytes());
        self.out.extend_from_slice(value);
    }

    /// Pads the block and ends it with its length. Without entries there is no block.
    pub fn finish(self) -> usize {
        let used = self.out.len() - self.start;
        if used == 0 {
            return 0;
        }
        let total = (used + 4).next_multiple_of(FRAME_ALIGN);
        self.out.resize(self.start + total - 4, 0);
        let length = u32::try_from(total).expect("bounded by EXTENSION_BYTES_MAX");
        self.out.extend_from_slice(&length.to_le_bytes());
        total
    }
}

/// Reads the entries of an extension block. Unknown tags are skipped, as a newer peer may send
/// them.
#[derive(Debug, Clone)]
pub struct Extensions<'a>(&'a [u8]);

impl<'a> Extensions<'a> {
    /// Over a block as [`Layout::split`] gives it.
    pub const fn new(block: &'a [u8]) -> Self {
        Self(block)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = (Tag, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&code, rest) = self.0.split_first()?;
            let (length, rest) = rest.split_first_chunk::<2>()?;
            let length = usize::from(u16::from_le_bytes(*length));
            if code == 0 || rest.len() < length {
                return None;
            }
            let (value, rest) = rest.split_at(length);
            self.0 = rest;
            if let Some(tag) = Tag::from_code(code) {
                return Some((tag, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Header {
        Header {
            kind: FrameKind::Request,
            flags: FLAG_ONE_WAY,
            forwards: 1,
            attempt: 2,
            method: MethodId(0x0403_0201),
            correlation: CorrelationId(0x0807_0605_0403_0201),
            schema: Schema { type_id: 0xaabb_ccdd, version: 3, fingerprint: 0x1122 },
            source: AddressHash(0x0102),
            target: AddressHash(u128::MAX - 1),
        }
    }

    /// The numbers of `docs/wire.md`.
    #[test]
    fn the_header_is_laid_as_documented() {
        let bytes = sample().encode(5, 0);
        assert_eq!(bytes[0..4], 80u32.to_le_bytes());
        assert_eq!(bytes[4..8], [0x53, 0x51, 1, 7]);
        assert_eq!(bytes[8..10], (FLAG_ONE_WAY | 0b1011).to_le_bytes());
        assert_eq!(bytes[10..12], [1, 2]);
        assert_eq!(bytes[12..16], [1, 2, 3, 4]);
        assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[24..32], [0xdd, 0xcc, 0xbb, 0xaa, 3, 0, 0x22, 0x11]);
        assert_eq!(bytes[32..34], [0x02, 0x01]);
        assert_eq!(bytes[48..50], [0xfe, 0xff]);
    }

    #[test]
    fn a_frame_splits_into_what_was_put_in() {
        let mut block = Vec::new();
        let mut writer = ExtensionWriter::new(&mut block);
        writer.push(Tag::DeadlineMs, &1500u32.to_le_bytes());
        writer.push(Tag::Identity, b"alice");
        assert_eq!(writer.finish(), 32);
        let mut frame = sample().encode(5, block.len()).to_vec();
        frame.extend_from_slice(b"hello");
        frame.resize(HEADER_BYTES + 16, 0);
        frame.extend_from_slice(&block);
        let layout = Header::decode(&frame, FRAME_BYTES_MAX).unwrap().unwrap();
        let (body, extensions) = layout.split(&frame).unwrap();
        assert_eq!(body, b"hello");
        let entries: Vec<_> = Extensions::new(extensions).collect();
        assert_eq!(
            entries,
            [(Tag::DeadlineMs, &1500u32.to_le_bytes()[..]), (Tag::Identity, &b"alice"[..])]
        );
    }

    #[test]
    fn faults_are_named() {
        let good = sample().encode(0, 0);
        let with = |at: usize, value: u8| {
            let mut bad = good;
            bad[at] = value;
            Header::decode(&bad, FRAME_BYTES_MAX)
        };
        assert!(matches!(with(4, 0), Err(FrameError::Magic { .. })));
        assert!(matches!(with(6, 9), Err(FrameError::Version { found: 9 })));
        assert!(matches!(with(7, 99), Err(FrameError::Kind { found: 99 })));
        assert!(matches!(with(0, 65), Err(FrameError::Length { found: 65, .. })));
        assert!(matches!(with(3, 0xff), Err(FrameError::Length { .. })));
        assert_eq!(Header::decode(&good[..63], FRAME_BYTES_MAX), Ok(None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_reader(mut bytes in prop::collection::vec(any::<u8>(), 64..256)) {
            bytes.truncate(bytes.len() / 16 * 16);
            let length = u32::try_from(bytes.len()).unwrap();
            bytes[0..4].copy_from_slice(&length.to_le_bytes());
            bytes[4..6].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[6] = VERSION;
            if let Ok(Some(layout)) = Header::decode(&bytes, FRAME_BYTES_MAX)
                && let Ok((body, extensions)) = layout.split(&bytes)
            {
                prop_assert!(body.len() + extensions.len() <= bytes.len() - HEADER_BYTES);
                let _count = Extensions::new(extensions).count();
            }
        }
    }
}
