//! Frames and their reassembly: the receiving half of a link under a peer that sends anything.
//!
//! The input is a script that lays a stream: raw bytes, long runs, well-formed headers, dictionary
//! entries that hold. The stream is read twice, all at once and in small pieces; both readings must
//! show the same frames and end the same way, and neither may hold more than a chunk and a frame.

use siloring_core::hash::stable_u64;
use siloring_core::limits::{FRAME_ALIGN, HEADER_BYTES, LINK_DICTIONARY_MAX, READ_CHUNK_BYTES};
use siloring_core::wire::{Extensions, FLAG_EXTENSIONS, FrameKind, Header, KIND_AT, Tag};
use siloring_core::{Address, CorrelationId, MethodId, ShardIndex, ViewNumber};
use siloring_transport::{
    Established, Frame, Inbound, Link, LinkError, Purpose, Refusal, RefusalKind, RefusedBy, Role,
};

use super::cast;
use super::tape::Tape;

/// Bytes of the longest stream: two frames that need a buffer of their own, and the chunk.
const STREAM_BYTES_MAX: usize = 3 * READ_CHUNK_BYTES;
/// The larger of the two limits, above the chunk: such frames get a buffer of their own.
const LARGE_FRAME_BYTES_MAX: usize = READ_CHUNK_BYTES + 64 * 1024;

pub(super) fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let established = established(&mut tape);
    let pieces = tape.byte();
    let stream = lay(&mut tape);
    let whole = read(&established, &stream, 0);
    let parts = read(&established, &stream, pieces);
    assert_eq!(whole.frames, parts.frames, "frames do not depend on how the bytes came");
    assert_eq!(whole.end, parts.end, "nor does the end");
    assert_eq!(whole.view, parts.view, "nor does the peer's view");
    assert_eq!(whole.names, parts.names, "nor what it named");
}

/// A link of any purpose and either role, with one of two limits.
fn established(tape: &mut Tape<'_>) -> Established {
    let choice = tape.byte();
    let purpose = match choice & 3 {
        0 => Purpose::Control,
        1 => Purpose::Inquiry,
        _ => Purpose::Shard { from: ShardIndex(0), to: ShardIndex(1) },
    };
    let limit = if choice & 8 == 0 { cast::FRAME_BYTES_MAX } else { LARGE_FRAME_BYTES_MAX };
    let limit = u32::try_from(limit).expect("a frame's length is 32 bits");
    let facts = cast::facts(cast::PEER, &[]);
    Established {
        peer: facts.incarnation,
        peer_shards: facts.shards,
        peer_host: facts.host,
        peer_types: vec![cast::SCHEMA],
        peer_deadline_default: facts.deadline_default,
        peer_frame_bytes_max: limit,
        frame_bytes_max: limit,
        version: 1,
        features: 0,
        purpose,
        role: if choice & 4 == 0 { Role::Dialer } else { Role::Acceptor },
        unsent: Vec::new(),
        leftover: Vec::new(),
    }
}

/// Lays the stream that the script says.
fn lay(tape: &mut Tape<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    while !tape.is_over() && stream.len() < STREAM_BYTES_MAX {
        match tape.below(8) {
            0..=2 => {
                let count = usize::from(tape.byte());
                stream.extend_from_slice(tape.bytes(count));
            }
            3 => {
                let count = usize::from(tape.short()) * 8;
                let fill = tape.byte();
                stream.resize((stream.len() + count).min(STREAM_BYTES_MAX), fill);
            }
            4 | 5 => stream.extend_from_slice(&header(tape)),
            6 => dictionary(tape, &mut stream),
            _ => {
                let (at, value) = (usize::from(tape.byte()), tape.byte());
                let at = stream.len().saturating_sub(at + 1);
                if let Some(byte) = stream.get_mut(at) {
                    *byte ^= value;
                }
            }
        }
    }
    stream
}

/// A header that is well-formed, whatever follows it.
fn header(tape: &mut Tape<'_>) -> [u8; HEADER_BYTES] {
    let kind = FrameKind::from_code(tape.byte() % 16).unwrap_or(FrameKind::Request);
    let body_bytes = usize::from(tape.short()) * usize::from(tape.below(9));
    let extension_bytes = usize::from(tape.below(4)) * FRAME_ALIGN;
    let mut header = Header::new(kind);
    header.method = MethodId(u32::from(tape.byte()));
    header.correlation = CorrelationId(tape.number());
    header.encode(body_bytes, extension_bytes)
}

/// A dictionary frame with one entry, whose hash holds.
fn dictionary(tape: &mut Tape<'_>, stream: &mut Vec<u8>) {
    let starts_anew = MethodId(u32::from(tape.below(3)));
    let length = usize::from(tape.byte());
    let text = format!("name/{}", String::from_utf8_lossy(tape.bytes(length)));
    let Ok(address) = Address::parse(&text) else {
        return;
    };
    let mut body = address.hash().0.to_le_bytes().to_vec();
    body.extend_from_slice(&u16::try_from(text.len()).expect("an address is short").to_le_bytes());
    body.extend_from_slice(text.as_bytes());
    let mut header = Header::new(FrameKind::Dictionary);
    header.method = starts_anew;
    push(stream, &header, &body);
}

fn push(stream: &mut Vec<u8>, header: &Header, body: &[u8]) {
    stream.extend_from_slice(&header.encode(body.len(), 0));
    stream.extend_from_slice(body);
    stream.resize(stream.len().next_multiple_of(FRAME_ALIGN), 0);
}

/// What a reading showed.
struct Shown {
    /// Each frame's header, and a hash of its body and extensions.
    frames: Vec<(Header, u64, u64)>,
    /// Why it ended, if not with the stream.
    end: Option<LinkError>,
    view: ViewNumber,
    names: usize,
}

/// Reads a stream: as much at once as there is room for, or in pieces of up to so many bytes.
fn read(established: &Established, mut stream: &[u8], pieces: u8) -> Shown {
    let (mut inbound, _outbound) = Link::new(established).split();
    let limit = READ_CHUNK_BYTES + established.frame_bytes_max as usize;
    let mut shown = Shown { frames: Vec::new(), end: None, view: ViewNumber::ZERO, names: 0 };
    let mut turn = 0_usize;
    while !stream.is_empty() && shown.end.is_none() {
        let space = inbound.receive_space();
        assert!(!space.is_empty(), "there is room once whole frames have been read");
        let wanted = if pieces == 0 { usize::MAX } else { piece(pieces, turn) };
        let count = space.len().min(stream.len()).min(wanted);
        space[..count].copy_from_slice(&stream[..count]);
        inbound.received(count);
        stream = &stream[count..];
        turn += 1;
        take_frames(&mut inbound, &mut shown);
        let held = inbound.buffer_bytes();
        assert!(held <= limit, "{held} bytes are held where {limit} may be");
    }
    shown.view = inbound.peer_view();
    shown.names = inbound.names().len();
    if let Some(error) = &shown.end {
        check_end(error);
        assert_eq!(inbound.next_frame().err().as_ref(), Some(error), "an error is the last word");
    }
    shown
}

/// The size of a piece: mostly tiny, now and then large, so that long streams end.
const fn piece(pieces: u8, turn: usize) -> usize {
    if turn % 4 == 3 { 4096 * (1 + pieces as usize) } else { 1 + (turn * 7) % (pieces as usize) }
}

fn take_frames(inbound: &mut Inbound, shown: &mut Shown) {
    loop {
        match inbound.next_frame() {
            Ok(Some(frame)) => {
                check_frame(&frame);
                let (body, extensions) = (stable_u64(frame.body), stable_u64(frame.extensions));
                shown.frames.push((*frame.header, body, extensions));
            }
            Ok(None) => return,
            Err(error) => {
                shown.end = Some(error);
                return;
            }
        }
    }
}

fn check_frame(frame: &Frame<'_>) {
    let Frame { header, body, extensions, names } = *frame;
    let aligned = body.is_empty() || body.as_ptr().align_offset(FRAME_ALIGN) == 0;
    assert!(aligned, "a body lies where its archive can be read");
    assert!(names.len() <= LINK_DICTIONARY_MAX, "names are bounded");
    for hash in [header.source, header.target] {
        assert!(names.get(hash).is_none_or(|name| name.hash() == hash), "a name has its hash");
    }
    let has_block = header.flags & FLAG_EXTENSIONS != 0;
    assert_eq!(has_block, !extensions.is_empty(), "extensions are flagged");
    let block_bytes = if has_block { extensions.len() + 4 } else { 0 };
    let laid = header.encode(body.len(), block_bytes);
    let again = Header::decode(&laid, usize::MAX).expect("our own header").expect("whole");
    assert_eq!(again.header, *header, "a header that was read is laid as it was");
    let entries: usize = Extensions::new(extensions).map(|(_, value)| 3 + value.len()).sum();
    assert!(entries <= extensions.len(), "entries lie in their block");
}

/// A link ends with a reason that can be told, unless the peer ended it.
fn check_end(error: &LinkError) {
    assert!(!error.to_string().is_empty(), "an end has a reason");
    match (error, error.refusal()) {
        (LinkError::Refused(refusal), None) => assert_eq!(refusal.by, RefusedBy::Peer),
        (_, Some(refusal)) => {
            let frame = refusal.to_frame();
            let layout = Header::decode(&frame, cast::FRAME_BYTES_MAX).expect("our own frame");
            assert_eq!(layout.map(|layout| layout.header.kind), Some(FrameKind::Refuse));
        }
        (_, None) => panic!("{error} is told to nobody"),
    }
}

/// One script for each kind of frame and link, laid by our own sending half where it can.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for choice in 0..16 {
        for pieces in [1, 13] {
            let mut seed = vec![choice, pieces];
            literal(&mut seed, &conversation());
            seeds.push(seed);
        }
    }
    // A dictionary that starts anew, a view that goes back, a long frame, a broken header.
    seeds.push([&[2, 5, 6, 0, 3][..], b"abc", &[6, 1, 1], b"x", &[6, 2, 1], b"y"].concat());
    seeds.push(vec![0, 3, 4, 6, 0, 0, 0, 0, 0, 9, 4, 6, 0, 0, 0, 0, 0, 8]);
    seeds.push(vec![14, 200, 4, 7, 255, 255, 5, 1, 0, 1, 3, 255, 255, 0]);
    seeds.push(vec![4, 7, 4, 11, 0, 0, 0, 0, 0, 0, 7, 63, 1]);
    seeds
}

/// Frames of every kind that passes on some link, one after the other.
fn conversation() -> Vec<u8> {
    let mut stream = Vec::new();
    for code in 5..=14 {
        let kind = FrameKind::from_code(code).expect("a kind of a link");
        if kind == FrameKind::Dictionary {
            let name = Address::parse("room/general").expect("an address");
            let mut body = name.hash().0.to_le_bytes().to_vec();
            body.extend_from_slice(&12_u16.to_le_bytes());
            body.extend_from_slice(b"room/general");
            push(&mut stream, &Header::new(kind), &body);
            continue;
        }
        let mut header = Header::new(kind);
        header.correlation = CorrelationId(u64::from(code));
        let mut block = Vec::new();
        let mut writer = siloring_core::wire::ExtensionWriter::new(&mut block);
        writer.push(Tag::DeadlineMs, &1500_u32.to_le_bytes());
        let block_bytes = writer.finish();
        stream.extend_from_slice(&header.encode(16, block_bytes));
        assert_eq!(stream[stream.len() - HEADER_BYTES + KIND_AT], code);
        stream.extend_from_slice(&[code; 16]);
        stream.extend_from_slice(&block);
    }
    stream.extend_from_slice(&Refusal::ours(RefusalKind::Leaving, "bye").to_frame());
    stream
}

/// Bytes as the script says them.
fn literal(seed: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.chunks(255) {
        seed.push(0);
        seed.push(u8::try_from(part.len()).expect("a chunk of 255"));
        seed.extend_from_slice(part);
    }
}
