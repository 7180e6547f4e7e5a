//! Established links: framing, bounds, the dictionary, views, refusals.

use proptest::prelude::*;

use siloring_core::limits::{
    FRAME_BYTES_MAX, HEADER_BYTES, LINK_BACKLOG_BYTES_MAX, LINK_DICTIONARY_MAX,
    LINK_REPLY_RESERVE_BYTES, READ_CHUNK_BYTES,
};
use siloring_core::wire::{ExtensionWriter, Extensions, FrameError, FrameKind, Header, Tag};
use siloring_core::{Address, CorrelationId, ViewNumber};
use siloring_transport::{
    Class, Link, LinkError, LocalFacts, Purpose, Refusal, RefusalKind, RefusedBy, SendRefused,
};

use crate::fixture::{
    ACCEPTOR, DIALER, Pair, carry, carry_some, data_links, data_purpose, facts, links,
};

fn request(number: u64) -> Header {
    let mut header = Header::new(FrameKind::Request);
    header.correlation = CorrelationId(number);
    header
}

fn reply(number: u64) -> Header {
    Header { kind: FrameKind::Reply, ..request(number) }
}

fn push(link: &mut Link, number: u64, body: &[u8]) -> Result<u64, SendRefused> {
    let pushed = link.push(&request(number), None, None, body, &[], Class::Request);
    pushed.map(|position| position.0)
}

/// A body that tells which frame it belongs to.
fn body_of(number: u64, length: usize) -> Vec<u8> {
    let mut body = number.to_le_bytes().repeat(length.div_ceil(8));
    body.truncate(length);
    body
}

/// Reads every whole frame: number and body.
fn drain(link: &mut Link) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some(frame) = link.next_frame().unwrap() {
        let at = frame.body.as_ptr();
        assert!(frame.body.is_empty() || at.align_offset(16) == 0, "the body lies aligned");
        frames.push((frame.header.correlation.0, frame.body.to_vec()));
    }
    frames
}

/// Carries everything, reading after each step.
fn carry_all(from: &mut Link, to: &mut Link) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    while !from.unsent().is_empty() {
        let moved = carry(from, to);
        let read = drain(to);
        assert!(moved > 0 || !read.is_empty(), "neither moved nor read");
        frames.extend(read);
    }
    frames
}

/// The bytes of a few frames, with their addresses, view and extensions.
fn sample_stream() -> Vec<u8> {
    let Pair { mut dialer, .. } = data_links();
    let address = |text: &str| Address::parse(text).unwrap();
    let (ada, room) = (address("portal/ada"), address("chat.room/general"));
    let mut block = Vec::new();
    let mut writer = ExtensionWriter::new(&mut block);
    writer.push(Tag::DeadlineMs, &1500u32.to_le_bytes());
    let _block_bytes = writer.finish();
    dialer.push_view(ViewNumber(4));
    for number in 0..4 {
        let header = Header { source: ada.hash(), target: room.hash(), ..request(number) };
        let body = body_of(number, 100);
        dialer.push(&header, Some(&ada), Some(&room), &body, &block, Class::Request).unwrap();
    }
    dialer.unsent().to_vec()
}

/// Hands bytes to a fresh acceptor; tells how many frames it showed and how it ended.
fn read_stream(bytes: &[u8]) -> (usize, Result<(), LinkError>) {
    let Pair { mut acceptor, .. } = data_links();
    let mut frame_count = 0;
    let mut rest = bytes;
    loop {
        let space = acceptor.receive_space();
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        acceptor.received(count);
        rest = &rest[count..];
        loop {
            match acceptor.next_frame() {
                Ok(Some(_)) => frame_count += 1,
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(acceptor.next_frame().unwrap_err(), error, "it stays broken");
                    return (frame_count, Err(error));
                }
            }
        }
        if rest.is_empty() {
            return (frame_count, Ok(()));
        }
    }
}

#[test]
fn a_frame_arrives_with_its_names_view_and_extensions() {
    let Pair { mut acceptor, .. } = data_links();
    let bytes = sample_stream();
    acceptor.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    acceptor.received(bytes.len());
    let frame = acceptor.next_frame().unwrap().unwrap();
    assert_eq!(frame.body, body_of(0, 100));
    assert_eq!(frame.names.get(frame.header.source).unwrap().as_str(), "portal/ada");
    assert_eq!(frame.names.get(frame.header.target).unwrap().as_str(), "chat.room/general");
    let extensions: Vec<_> = Extensions::new(frame.extensions).collect();
    assert_eq!(extensions, [(Tag::DeadlineMs, &1500u32.to_le_bytes()[..])]);
    assert_eq!(acceptor.peer_view(), ViewNumber(4));
    assert_eq!(drain(&mut acceptor).len(), 3);
}

#[test]
fn a_reply_is_laid_while_its_request_is_read_in_place() {
    let Pair { mut dialer, mut acceptor } = data_links();
    push(&mut dialer, 7, b"ping").unwrap();
    carry(&mut dialer, &mut acceptor);
    let (inbound, outbound) = acceptor.halves();
    while let Some(frame) = inbound.next_frame().unwrap() {
        let header = reply(frame.header.correlation.0);
        outbound.push(&header, None, None, frame.body, &[], Class::Outcome).unwrap();
    }
    assert_eq!(carry_all(&mut acceptor, &mut dialer), [(7, b"ping".to_vec())]);
}

#[test]
fn a_frame_larger_than_the_chunk_gets_a_buffer_that_goes_again() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let small = acceptor.inbound().buffer_bytes();
    let large = body_of(1, 3 * READ_CHUNK_BYTES + 5);
    push(&mut dialer, 0, &body_of(0, 1000)).unwrap();
    push(&mut dialer, 1, &large).unwrap();
    push(&mut dialer, 2, &body_of(2, 1000)).unwrap();
    carry(&mut dialer, &mut acceptor);
    assert_eq!(drain(&mut acceptor).len(), 1);
    carry(&mut dialer, &mut acceptor);
    assert!(acceptor.inbound().buffer_bytes() > small + large.len());
    assert_eq!(drain(&mut acceptor), [(1, large)]);
    assert_eq!(carry_all(&mut dialer, &mut acceptor), [(2, body_of(2, 1000))]);
    assert_eq!(acceptor.inbound().buffer_bytes(), small);
}

/// Method: the chunk is filled so that it ends within a header, or within a frame: the cut frame
/// moves to the start, and there is room for the rest of it.
#[test]
fn a_frame_cut_off_at_the_end_of_the_chunk_finds_room() {
    for (first_body, next_body) in [(48, 16), (0, 16), (16, READ_CHUNK_BYTES - 2 * HEADER_BYTES)] {
        let Pair { mut dialer, mut acceptor } = data_links();
        push(&mut dialer, 0, &body_of(0, first_body)).unwrap();
        for number in 1..=2 * (READ_CHUNK_BYTES / (next_body + HEADER_BYTES)) as u64 {
            push(&mut dialer, number, &body_of(number, next_body)).unwrap();
        }
        let chunk_bytes = carry(&mut dialer, &mut acceptor);
        assert_eq!(chunk_bytes, READ_CHUNK_BYTES);
        let read = drain(&mut acceptor);
        let read_bytes: usize = read.iter().map(|(_, body)| HEADER_BYTES + body.len()).sum();
        let rest = next_body + HEADER_BYTES - (chunk_bytes - read_bytes);
        assert!(acceptor.receive_space().len() >= rest, "{first_body} then {next_body}");
        let behind = carry_all(&mut dialer, &mut acceptor);
        assert_eq!(behind.first().map(|frame| frame.0), Some(read.len() as u64));
    }
}

/// The earlier it moves, the fewer bytes move.
#[test]
fn a_frame_that_will_not_fit_behind_another_moves_as_soon_as_that_is_known() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let (first, second) = (READ_CHUNK_BYTES / 4, READ_CHUNK_BYTES - HEADER_BYTES);
    push(&mut dialer, 0, &body_of(0, first)).unwrap();
    push(&mut dialer, 1, &body_of(1, second)).unwrap();
    let moved = carry_some(&mut dialer, &mut acceptor, first + 2 * HEADER_BYTES);
    assert_eq!((moved, drain(&mut acceptor).len()), (first + 2 * HEADER_BYTES, 1));
    assert_eq!(acceptor.receive_space().len(), second, "the rest fits in one go");
    assert_eq!(carry_all(&mut dialer, &mut acceptor), [(1, body_of(1, second))]);
}

#[test]
fn sizes_around_the_limit_pass_or_are_too_large() {
    let largest = FRAME_BYTES_MAX - HEADER_BYTES;
    let Pair { mut dialer, mut acceptor } = data_links();
    for length in [largest - 1, largest] {
        push(&mut dialer, 1, &body_of(1, length)).unwrap();
        let frames = carry_all(&mut dialer, &mut acceptor);
        assert_eq!(frames.len(), 1);
        assert!(frames[0].1 == body_of(1, length), "{length} bytes arrive as they were sent");
    }
    let over = body_of(1, largest + 1);
    assert_eq!(push(&mut dialer, 1, &over), Err(SendRefused::TooLarge));
    assert!(dialer.unsent().is_empty());
    let outcome = dialer.push(&request(1), None, None, &over, &[], Class::Outcome);
    assert_eq!(outcome, Err(SendRefused::TooLarge));
}

#[test]
fn the_smaller_limit_of_a_peer_is_kept_by_the_sender() {
    let small = LocalFacts { frame_bytes_max: 1 << 17, ..facts(ACCEPTOR) };
    let Pair { mut dialer, mut acceptor } = links(facts(DIALER), small, data_purpose());
    let largest = (1 << 17) - HEADER_BYTES;
    assert_eq!(push(&mut dialer, 1, &body_of(1, largest + 1)), Err(SendRefused::TooLarge));
    push(&mut dialer, 1, &body_of(1, largest)).unwrap();
    assert_eq!(carry_all(&mut dialer, &mut acceptor).len(), 1);
}

#[test]
fn a_frame_above_the_receivers_limit_closes_the_link_as_too_large() {
    let mut bytes = request(1).encode(0, 0).to_vec();
    let announced = u32::try_from(FRAME_BYTES_MAX + 16).unwrap();
    bytes[0..4].copy_from_slice(&announced.to_le_bytes());
    let (frame_count, end) = read_stream(&bytes);
    let error = end.unwrap_err();
    assert_eq!(frame_count, 0);
    assert!(matches!(error, LinkError::Frame(FrameError::Length { .. })));
    assert_eq!(error.refusal().unwrap().kind, RefusalKind::TooLarge);
}

/// Fills a link with requests of one size until it refuses.
fn fill(link: &mut Link, body_bytes: usize) -> u64 {
    let body = vec![0; body_bytes];
    let mut number = 0;
    while push(link, number, &body).is_ok() {
        number += 1;
    }
    number
}

#[test]
fn a_full_link_refuses_requests_and_still_takes_outcomes() {
    let Pair { mut dialer, .. } = data_links();
    let body_bytes = 1 << 20;
    let taken = fill(&mut dialer, body_bytes);
    let frame_bytes = body_bytes + HEADER_BYTES;
    assert_eq!(taken, (LINK_BACKLOG_BYTES_MAX / frame_bytes) as u64);
    let body = vec![0; body_bytes];
    assert_eq!(push(&mut dialer, 0, &body), Err(SendRefused::Overloaded));
    let mut outcomes = 0;
    while dialer.push(&request(0), None, None, &body, &[], Class::Outcome).is_ok() {
        outcomes += 1;
    }
    let all = (LINK_BACKLOG_BYTES_MAX + LINK_REPLY_RESERVE_BYTES) / frame_bytes;
    assert_eq!(taken + outcomes, all as u64);
    let waiting = dialer.unsent().len();
    assert!(waiting <= LINK_BACKLOG_BYTES_MAX + LINK_REPLY_RESERVE_BYTES);
    dialer.sent(waiting);
    assert!(push(&mut dialer, 0, &body).is_ok(), "an emptied link takes requests again");
}

#[test]
fn a_refused_push_changes_nothing() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let ada: Address = "portal/ada".parse().unwrap();
    let header = Header { source: ada.hash(), ..request(9) };
    let taken = fill(&mut dialer, 1 << 20);
    let _taken_small = fill(&mut dialer, 0);
    let before = dialer.unsent().len();
    let refused = dialer.push(&header, Some(&ada), None, &[], &[], Class::Request);
    assert_eq!((refused, dialer.unsent().len()), (Err(SendRefused::Overloaded), before));
    assert!(carry_all(&mut dialer, &mut acceptor).len() as u64 > taken);
    dialer.push(&header, Some(&ada), None, &[], &[], Class::Request).unwrap();
    carry(&mut dialer, &mut acceptor);
    let frame = acceptor.next_frame().unwrap().unwrap();
    assert_eq!(frame.names.get(ada.hash()), Some(&ada), "told with the frame that was taken");
}

#[test]
fn a_frame_is_handed_over_with_its_first_byte() {
    let Pair { mut dialer, .. } = data_links();
    let first = dialer.push(&request(1), None, None, b"x", &[], Class::Request).unwrap();
    let second = dialer.push(&request(2), None, None, b"x", &[], Class::Request).unwrap();
    assert!(!first.is_handed_over(dialer.written()));
    dialer.sent(1);
    assert!(first.is_handed_over(dialer.written()));
    dialer.sent(79);
    assert!(!second.is_handed_over(dialer.written()));
    dialer.sent(1);
    assert!(second.is_handed_over(dialer.written()));
    dialer.sent(79);
    assert!(dialer.unsent().is_empty());
    let third = dialer.push(&request(3), None, None, b"x", &[], Class::Request).unwrap();
    assert_eq!(third.0, dialer.written());
}

#[test]
fn a_frame_is_taken_back_until_its_first_byte_has_left() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let address = Address::parse("portal/ada").unwrap();
    let header = Header { source: address.hash(), ..request(1) };
    let body = body_of(1, 100);
    let first = dialer.push(&header, Some(&address), None, &body, &[], Class::Request).unwrap();
    push(&mut dialer, 2, &body_of(2, 100)).unwrap();
    let third = dialer.push(&request(3), None, None, &[], &[], Class::Request).unwrap();
    carry_some(&mut dialer, &mut acceptor, 1);
    assert!(dialer.halves().1.retract(first), "its dictionary has left, the frame has not");
    let third_start = usize::try_from(third.0 - dialer.written()).unwrap();
    carry_some(&mut dialer, &mut acceptor, third_start + 1);
    assert!(!dialer.halves().1.retract(third));
    carry(&mut dialer, &mut acceptor);
    let mut kinds = Vec::new();
    while let Some(frame) = acceptor.next_frame().unwrap() {
        kinds.push((frame.header.kind, frame.header.correlation.0));
    }
    let expected = [(FrameKind::Void, 1), (FrameKind::Request, 2), (FrameKind::Request, 3)];
    assert_eq!(kinds, expected);
    assert!(acceptor.inbound().names().get(address.hash()).is_some());
}

#[test]
fn a_view_is_told_once_before_later_frames_and_never_goes_back() {
    let Pair { mut dialer, mut acceptor } = data_links();
    dialer.push_view(ViewNumber(5));
    dialer.push_view(ViewNumber(5));
    dialer.push_view(ViewNumber(4));
    assert_eq!(dialer.unsent().len(), HEADER_BYTES);
    push(&mut dialer, 1, &[]).unwrap();
    dialer.push_view(ViewNumber(6));
    carry(&mut dialer, &mut acceptor);
    assert!(acceptor.next_frame().unwrap().is_some());
    assert_eq!(acceptor.peer_view(), ViewNumber(5), "the later one has not been reached");
    assert!(acceptor.next_frame().unwrap().is_none());
    assert_eq!(acceptor.peer_view(), ViewNumber(6));
}

#[test]
fn a_view_that_finds_the_link_full_goes_with_the_next_frame() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let body = vec![0; FRAME_BYTES_MAX - HEADER_BYTES];
    for _ in 0..4 {
        dialer.push(&request(0), None, None, &body, &[], Class::Outcome).unwrap();
    }
    let full = dialer.unsent().len();
    assert_eq!(full, LINK_BACKLOG_BYTES_MAX + LINK_REPLY_RESERVE_BYTES);
    dialer.push_view(ViewNumber(5));
    assert_eq!(dialer.unsent().len(), full, "the bound holds");
    assert_eq!(carry_all(&mut dialer, &mut acceptor).len(), 4);
    push(&mut dialer, 1, &[]).unwrap();
    assert_eq!(carry_all(&mut dialer, &mut acceptor).len(), 1);
    assert_eq!(acceptor.peer_view(), ViewNumber(5));
}

#[test]
fn a_peer_that_goes_back_to_an_older_view_is_refused() {
    let view_frame = |number: u64| {
        let mut header = Header::new(FrameKind::View);
        header.correlation = CorrelationId(number);
        header.encode(0, 0)
    };
    let (_, end) = read_stream(&[view_frame(6), view_frame(5)].concat());
    let known = ViewNumber(6);
    assert_eq!(end, Err(LinkError::ViewWentBack { known, found: ViewNumber(5) }));
}

#[test]
fn a_dictionary_at_its_bound_starts_anew_on_both_sides() {
    let Pair { mut dialer, mut acceptor } = data_links();
    let ada: Address = "portal/ada".parse().unwrap();
    for number in 0..LINK_DICTIONARY_MAX + 100 {
        let room = Address::of("room", &number.to_string()).unwrap();
        let header = Header { source: ada.hash(), target: room.hash(), ..request(1) };
        dialer.push(&header, Some(&ada), Some(&room), &[], &[], Class::Request).unwrap();
        carry(&mut dialer, &mut acceptor);
        let frame = acceptor.next_frame().unwrap().unwrap();
        assert_eq!(frame.names.get(ada.hash()), Some(&ada), "{number}");
        assert_eq!(frame.names.get(room.hash()), Some(&room), "{number}");
        assert!(frame.names.len() <= LINK_DICTIONARY_MAX);
    }
    assert_eq!(acceptor.inbound().names().len(), 102, "ada, the room at the bound, 100 behind it");
}

#[test]
fn kinds_pass_only_where_they_belong() {
    use FrameKind::{
        Directory, Failure, Hello, HelloAck, HelloDone, Membership, Probe, ProbeAnswer, Reply,
        Request, Void,
    };
    let all = [
        Hello,
        HelloAck,
        HelloDone,
        Request,
        Reply,
        Failure,
        Void,
        Probe,
        ProbeAnswer,
        Membership,
        Directory,
    ];
    let control = [Probe, ProbeAnswer, Membership, Directory];
    let inquiry = [Probe, ProbeAnswer, Membership];
    let table: [(Purpose, &[FrameKind], &[FrameKind]); 3] = [
        (data_purpose(), &[Request, Void], &[Reply, Failure]),
        (Purpose::Control, &control, &control),
        (Purpose::Inquiry, &inquiry, &inquiry),
    ];
    for (purpose, from_dialer, from_acceptor) in table {
        for kind in all {
            let Pair { mut dialer, mut acceptor } = links(facts(DIALER), facts(ACCEPTOR), purpose);
            let frame = Header::new(kind);
            dialer.push(&frame, None, None, &[], &[], Class::Request).unwrap();
            acceptor.push(&frame, None, None, &[], &[], Class::Request).unwrap();
            carry(&mut dialer, &mut acceptor);
            carry(&mut acceptor, &mut dialer);
            for (end, allowed) in [(&mut acceptor, from_dialer), (&mut dialer, from_acceptor)] {
                let passed = end.next_frame().map(|frame| frame.is_some());
                if allowed.contains(&kind) {
                    assert_eq!(passed, Ok(true), "{purpose:?} {kind:?}");
                } else {
                    assert_eq!(passed, Err(LinkError::Misplaced { kind }), "{purpose:?}");
                }
            }
        }
    }
}

#[test]
fn a_frame_whose_parts_exceed_it_is_refused_and_hides_what_follows() {
    let mut padded = request(1).encode(0, 0);
    padded[8] = 15;
    let mut extended = request(1).encode(0, 0);
    extended[8] = 16;
    for broken in [padded, extended] {
        let (frame_count, end) = read_stream(&[broken, request(2).encode(0, 0)].concat());
        assert_eq!((frame_count, end), (0, Err(LinkError::Frame(FrameError::Layout))));
    }
}

#[test]
fn a_link_closed_with_a_reason_tells_it_after_what_was_sent_before() {
    let Pair { mut dialer, mut acceptor } = data_links();
    push(&mut dialer, 1, &[]).unwrap();
    dialer.push_refusal(&Refusal::ours(RefusalKind::Leaving, "bye"));
    carry(&mut dialer, &mut acceptor);
    assert!(acceptor.next_frame().unwrap().is_some());
    let Err(LinkError::Refused(refusal)) = acceptor.next_frame() else {
        panic!("the refusal was sent");
    };
    assert_eq!((refusal.kind, refusal.by), (RefusalKind::Leaving, RefusedBy::Peer));
    assert_eq!(LinkError::Refused(refusal).refusal(), None, "a refusal is not answered");
}

#[test]
fn a_stream_cut_in_the_middle_of_a_frame_shows_the_whole_ones_only() {
    let bytes = sample_stream();
    let (whole, end) = read_stream(&bytes);
    assert_eq!((whole, end), (4, Ok(())));
    for cut in 0..bytes.len() {
        let (frame_count, end) = read_stream(&bytes[..cut]);
        assert_eq!(end, Ok(()), "cut at {cut}");
        assert!(frame_count < 4, "cut at {cut}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Method: frames of many sizes, some larger than the chunk, are carried in pieces of random
    /// sizes; what is read is what was pushed, in order, each body aligned.
    #[test]
    fn frames_do_not_depend_on_how_the_stream_is_cut(
        lengths in prop::collection::vec(
            prop_oneof![8 => 0usize..300, 2 => 0usize..40_000, 1 => 200_000usize..600_000], 1..60),
        pieces in prop::collection::vec(
            prop_oneof![2 => 1usize..100, 2 => 1usize..10_000, 1 => 1usize..400_000], 1..40),
    ) {
        let Pair { mut dialer, mut acceptor } = data_links();
        let sent: Vec<(u64, Vec<u8>)> = lengths
            .iter()
            .zip(0u64..)
            .map(|(&length, number)| (number, body_of(number, length)))
            .collect();
        for (number, body) in &sent {
            push(&mut dialer, *number, body).unwrap();
        }
        let mut read = Vec::new();
        let mut sizes = pieces.iter().copied().cycle();
        // Reading lags behind by a piece now and then, so that several frames wait in the chunk.
        let mut lag = false;
        while !dialer.unsent().is_empty() {
            let space = acceptor.receive_space();
            let count = sizes.next().unwrap().min(space.len()).min(dialer.unsent().len());
            space[..count].copy_from_slice(&dialer.unsent()[..count]);
            acceptor.received(count);
            dialer.sent(count);
            lag = !lag && count > 0;
            if !lag {
                let frames = drain(&mut acceptor);
                prop_assert!(count > 0 || !frames.is_empty(), "neither moved nor read");
                read.extend(frames);
            }
        }
        read.extend(drain(&mut acceptor));
        prop_assert!(read == sent, "read {} of {} frames", read.len(), sent.len());
    }

}

proptest! {
    /// Method: random pushes interleaved with partial sends never mix up the stream.
    #[test]
    fn the_send_buffer_is_a_queue_of_bytes(
        steps in prop::collection::vec((0usize..3000, 0.0f64..1.0), 1..200),
    ) {
        let Pair { mut dialer, .. } = data_links();
        let (mut pushed, mut taken) = (Vec::new(), Vec::new());
        for ((length, part), number) in steps.into_iter().zip(0u64..) {
            let body = body_of(number, length);
            pushed.extend_from_slice(&request(number).encode(length, 0));
            pushed.extend_from_slice(&body);
            pushed.resize(pushed.len().next_multiple_of(16), 0);
            push(&mut dialer, number, &body).unwrap();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part")]
            #[expect(clippy::cast_precision_loss, reason = "a part")]
            let count = (dialer.unsent().len() as f64 * part) as usize;
            taken.extend_from_slice(&dialer.unsent()[..count]);
            dialer.sent(count);
            prop_assert_eq!(dialer.written(), taken.len() as u64);
        }
        taken.extend_from_slice(dialer.unsent());
        prop_assert!(taken == pushed);
    }

    #[test]
    fn a_changed_stream_never_panics_and_never_shows_more_frames(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = sample_stream();
        for (at, value) in changes {
            let place = at.index(bytes.len());
            bytes[place] = value;
        }
        let (frame_count, end) = read_stream(&bytes);
        prop_assert!(frame_count <= bytes.len() / HEADER_BYTES);
        if let Err(error) = end {
            prop_assert!(error.refusal().is_some() || matches!(error, LinkError::Refused(_)));
        }
    }

    #[test]
    fn garbage_is_refused_at_its_first_header(
        bytes in prop::collection::vec(any::<u8>(), 64..4000),
    ) {
        prop_assume!(bytes[4..6] != [0x53, 0x51]);
        let (frame_count, end) = read_stream(&bytes);
        prop_assert_eq!(frame_count, 0);
        let is_magic = matches!(end, Err(LinkError::Frame(FrameError::Magic { .. })));
        prop_assert!(is_magic, "{:?}", end);
    }
}
