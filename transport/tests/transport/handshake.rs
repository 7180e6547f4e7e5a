//! The handshake: what agrees, and what is refused with which reason on both sides.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use siloring_core::limits::{
    HANDSHAKE_FRAME_BYTES_MAX, HEADER_BYTES, HOST_BYTES_MAX, HOSTED_TYPES_MAX, NAME_BYTES_MAX,
};
use siloring_core::schema::Schema;
use siloring_core::versions::HostedType;
use siloring_core::view::SiloStatus;
use siloring_core::wire::{FrameKind, Header};
use siloring_core::{ClusterId, Generation, ShardIndex, SiloName, View, ViewNumber};
use siloring_transport::{
    FactsError, Handshake, Link, LinkError, LocalFacts, Purpose, RefusalKind, RefusedBy, Step,
    WireVersions,
};

use crate::fixture::{
    ACCEPTOR, DIALER, End, accept, both_active, data_purpose, dial, exchange, exchange_in_pieces,
    facts, incarnation, row, take, view, with_secrets,
};

/// Runs a handshake that must fail, and checks the reason on both sides.
fn assert_refused(
    mut dialer: Handshake,
    mut acceptor: Handshake,
    view: &View,
    kind: RefusalKind,
    by_acceptor: bool,
) {
    let ends = exchange(&mut dialer, &mut acceptor, view);
    let (at_dialer, at_acceptor) = (ends.dialer.refused(), ends.acceptor.refused());
    assert_eq!((at_dialer.kind, at_acceptor.kind), (kind, kind), "{at_dialer} / {at_acceptor}");
    let by = [RefusedBy::Peer, RefusedBy::Us];
    assert_eq!(at_dialer.by, by[usize::from(!by_acceptor)]);
    assert_eq!(at_acceptor.by, by[usize::from(by_acceptor)]);
    assert!(!at_dialer.detail.is_empty());
    assert_eq!(at_dialer.detail, at_acceptor.detail, "both sides log one text");
}

#[test]
fn both_sides_learn_each_others_facts() {
    let hosted = hosted("chat.line", 1, 7);
    let mut ours = with_secrets(DIALER, &[1]);
    ours.shards = 2;
    ours.host = "host-a".into();
    ours.deadline_default = Duration::from_millis(1500);
    ours.frame_bytes_max = 1 << 20;
    ours.types = vec![hosted.clone()];
    ours.features = 0b0110;
    let theirs = LocalFacts { features: 0b0011, ..with_secrets(ACCEPTOR, &[1]) };
    let (mut dialer, mut acceptor) = (dial(ours), accept(theirs));
    let ends = exchange(&mut dialer, &mut acceptor, &both_active());
    let (at_dialer, at_acceptor) = (ends.dialer.up(), ends.acceptor.up());
    assert_eq!(at_dialer.peer, Some(incarnation(ACCEPTOR)));
    assert_eq!(at_acceptor.peer, Some(incarnation(DIALER)));
    assert_eq!(at_acceptor.peer_host, "host-a");
    assert_eq!(at_acceptor.peer_deadline_default, Duration::from_millis(1500));
    assert_eq!(at_acceptor.peer_frame_bytes_max, 1 << 20);
    assert_eq!(at_dialer.frame_bytes_max, 1 << 20);
    assert_eq!(at_acceptor.peer_types, [hosted.schema]);
    assert_eq!((at_dialer.features, at_acceptor.features), (0b0010, 0b0010));
    assert_eq!((at_dialer.version, at_acceptor.version), (1, 1));
    assert_eq!((at_dialer.purpose, at_acceptor.purpose), (data_purpose(), data_purpose()));
    assert!(at_acceptor.leftover.is_empty());
}

#[test]
fn the_dialer_is_up_only_at_the_answer_and_the_acceptor_only_at_the_dialers_proof() {
    let view = both_active();
    let mut dialer = dial(with_secrets(DIALER, &[1]));
    let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
    let hello = take(&mut dialer);
    assert!(matches!(acceptor.handle_bytes(&hello, &view), Step::Continue));
    let answer = take(&mut acceptor);
    let (all_but_one, last) = answer.split_at(answer.len() - 1);
    assert!(matches!(dialer.handle_bytes(all_but_one, &view), Step::Continue));
    let Step::Up(established) = dialer.handle_bytes(last, &view) else {
        panic!("the answer holds");
    };
    assert!(dialer.unsent().is_empty(), "what remains to be sent goes with the link");
    assert!(matches!(acceptor.handle_bytes(&established.unsent, &view), Step::Up(_)));
}

#[test]
fn a_secret_is_rotated_one_silo_at_a_time() {
    let (old, new) = (1, 2);
    let meet = |dialer: &[u8], acceptor: &[u8]| {
        let mut dialer = dial(with_secrets(DIALER, dialer));
        let mut acceptor = accept(with_secrets(ACCEPTOR, acceptor));
        let ends = exchange(&mut dialer, &mut acceptor, &both_active());
        ends.dialer.is_up() && ends.acceptor.is_up()
    };
    let steps = [&[old][..], &[old, new], &[new, old], &[new]];
    for pair in steps.windows(2) {
        assert!(meet(pair[0], pair[1]), "{pair:?}");
        assert!(meet(pair[1], pair[0]), "{pair:?}");
    }
    assert!(!meet(&[old], &[new]), "a skipped step is refused");
}

#[test]
fn a_wrong_secret_is_refused_on_both_sides() {
    let dialer = dial(with_secrets(DIALER, &[1]));
    let acceptor = accept(with_secrets(ACCEPTOR, &[2]));
    assert_refused(dialer, acceptor, &both_active(), RefusalKind::BadCredential, false);
}

/// The dialer knows the acceptor's secret but signs with one that the acceptor does not know: the
/// dialer is up before the acceptor refuses, and hears so on its link.
#[test]
fn a_wrong_proof_is_told_to_a_dialer_that_is_already_up() {
    let mut dialer = dial(with_secrets(DIALER, &[9, 1]));
    let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
    let view = both_active();
    let mut at_acceptor = End::Open;
    at_acceptor.feed(&mut acceptor, &take(&mut dialer), &view, || usize::MAX);
    let Step::Up(established) = dialer.handle_bytes(&take(&mut acceptor), &view) else {
        panic!("the acceptor's signature holds");
    };
    at_acceptor.feed(&mut acceptor, &established.unsent, &view, || usize::MAX);
    let refusal = at_acceptor.refused();
    assert_eq!((refusal.kind, refusal.by), (RefusalKind::BadCredential, RefusedBy::Us));
    let mut link = Link::new(&established);
    let told = take(&mut acceptor);
    link.receive_space()[..told.len()].copy_from_slice(&told);
    link.received(told.len());
    let Err(LinkError::Refused(heard)) = link.next_frame() else {
        panic!("the refusal was sent");
    };
    assert_eq!((heard.kind, heard.by), (RefusalKind::BadCredential, RefusedBy::Peer));
}

#[test]
fn a_side_without_a_secret_is_refused_by_one_with() {
    let view = both_active();
    let kind = RefusalKind::BadCredential;
    let armed = with_secrets(ACCEPTOR, &[1]);
    assert_refused(dial(facts(DIALER)), accept(armed), &view, kind, true);
    let armed = with_secrets(DIALER, &[1]);
    assert_refused(dial(armed), accept(facts(ACCEPTOR)), &view, kind, true);
}

/// What one meeting put on the wire.
struct Recorded {
    hello: Vec<u8>,
    answer: Vec<u8>,
    done: Vec<u8>,
}

fn record() -> Recorded {
    let view = both_active();
    let mut dialer = dial(with_secrets(DIALER, &[1]));
    let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
    let hello = take(&mut dialer);
    assert!(matches!(acceptor.handle_bytes(&hello, &view), Step::Continue));
    let answer = take(&mut acceptor);
    let Step::Up(established) = dialer.handle_bytes(&answer, &view) else {
        panic!("the answer holds");
    };
    Recorded { hello, answer, done: established.unsent }
}

#[test]
fn a_replayed_dialer_is_refused() {
    let Recorded { hello, done, .. } = record();
    let view = both_active();
    let mut acceptor = Handshake::accept(Arc::new(with_secrets(ACCEPTOR, &[1])), [0x5a; 32]);
    assert!(matches!(acceptor.handle_bytes(&hello, &view), Step::Continue));
    let _fresh_answer = take(&mut acceptor);
    let Step::Refused(refusal) = acceptor.handle_bytes(&done, &view) else {
        panic!("a proof of another nonce was taken");
    };
    assert_eq!((refusal.kind, refusal.by), (RefusalKind::BadCredential, RefusedBy::Us));
}

#[test]
fn a_replayed_acceptor_is_refused() {
    let Recorded { answer, .. } = record();
    let facts = Arc::new(with_secrets(DIALER, &[1]));
    let mut dialer = Handshake::dial(facts, data_purpose(), None, [0x5a; 32]);
    let _fresh_hello = take(&mut dialer);
    let Step::Refused(refusal) = dialer.handle_bytes(&answer, &both_active()) else {
        panic!("an answer to another nonce was taken");
    };
    assert_eq!(refusal.kind, RefusalKind::BadCredential);
}

#[test]
fn a_reflected_signature_is_refused() {
    let view = both_active();
    let mut dialer = dial(with_secrets(DIALER, &[1]));
    let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
    assert!(matches!(acceptor.handle_bytes(&take(&mut dialer), &view), Step::Continue));
    let answer = take(&mut acceptor);
    let mut done = Header::new(FrameKind::HelloDone).encode(32, 0).to_vec();
    done.extend_from_slice(&answer[HEADER_BYTES..HEADER_BYTES + 32]);
    let Step::Refused(refusal) = acceptor.handle_bytes(&done, &view) else {
        panic!("the acceptor's own signature was taken as the dialer's");
    };
    assert_eq!(refusal.kind, RefusalKind::BadCredential);
}

#[test]
fn a_foreign_cluster_is_refused_on_both_sides_and_named_before_any_other_fault() {
    let mut foreign = with_secrets(DIALER, &[7]);
    foreign.cluster = ClusterId::new("other").unwrap();
    let acceptor = accept(with_secrets(ACCEPTOR, &[1]));
    let dead = view(vec![row(DIALER, SiloStatus::Dead)]);
    assert_refused(dial(foreign), acceptor, &dead, RefusalKind::ForeignCluster, true);
}

#[test]
fn another_wire_version_is_refused() {
    let Recorded { mut hello, .. } = record();
    hello[6] = 2;
    let mut acceptor = accept(facts(ACCEPTOR));
    let Step::Refused(refusal) = acceptor.handle_bytes(&hello, &both_active()) else {
        panic!("version 2 was taken");
    };
    assert_eq!(refusal.kind, RefusalKind::VersionUnsupported);
    let mut dialer = dial(facts(DIALER));
    let Step::Refused(heard) = dialer.handle_bytes(&take(&mut acceptor), &both_active()) else {
        panic!("the refusal was sent");
    };
    assert_eq!((heard.kind, heard.by), (RefusalKind::VersionUnsupported, RefusedBy::Peer));
}

#[test]
fn a_dead_incarnation_is_refused_whichever_side_it_is() {
    let kind = RefusalKind::IncarnationDead;
    for status_row in [Some(SiloStatus::Dead), None] {
        let rows = |alive: u64, dead: u64| {
            let mut rows = vec![row(alive, SiloStatus::Active)];
            rows.extend(status_row.map(|status| row(dead, status)));
            view(rows)
        };
        let dead_dialer = rows(ACCEPTOR, DIALER);
        assert_refused(dial(facts(DIALER)), accept(facts(ACCEPTOR)), &dead_dialer, kind, true);
        let dead_acceptor = rows(DIALER, ACCEPTOR);
        assert_refused(dial(facts(DIALER)), accept(facts(ACCEPTOR)), &dead_acceptor, kind, false);
    }
}

#[test]
fn a_dialer_that_dies_during_the_handshake_is_refused() {
    let mut dialer = dial(facts(DIALER));
    let mut acceptor = accept(facts(ACCEPTOR));
    let alive = both_active();
    assert!(matches!(acceptor.handle_bytes(&take(&mut dialer), &alive), Step::Continue));
    let Step::Up(established) = dialer.handle_bytes(&take(&mut acceptor), &alive) else {
        panic!("both live");
    };
    let dead = View::new(ViewNumber(11), vec![row(DIALER, SiloStatus::Dead)]);
    let Step::Refused(refusal) = acceptor.handle_bytes(&established.unsent, &dead) else {
        panic!("a dead dialer was taken");
    };
    assert_eq!(refusal.kind, RefusalKind::IncarnationDead);
}

#[test]
fn a_joiner_newer_than_the_view_is_taken() {
    let old = View::new(ViewNumber(2), vec![row(ACCEPTOR, SiloStatus::Active)]);
    let ends = exchange(&mut dial(facts(DIALER)), &mut accept(facts(ACCEPTOR)), &old);
    assert!(ends.dialer.is_up() && ends.acceptor.is_up());
}

#[test]
fn an_unexpected_generation_is_refused_on_both_sides() {
    let expect = |generation: u64| {
        let facts = Arc::new(facts(DIALER));
        Handshake::dial(facts, data_purpose(), Some(Generation(generation)), [0xd1; 32])
    };
    let kind = RefusalKind::UnexpectedIncarnation;
    assert_refused(expect(1), accept(facts(ACCEPTOR)), &both_active(), kind, true);
    let ends = exchange(&mut expect(ACCEPTOR), &mut accept(facts(ACCEPTOR)), &both_active());
    assert!(ends.dialer.is_up() && ends.acceptor.is_up());
}

/// An acceptor that does not look whom the dialer wants is found out by the dialer.
#[test]
fn an_answer_of_another_generation_than_wanted_is_refused_by_the_dialer() {
    let view = both_active();
    let mut acceptor = accept(facts(ACCEPTOR));
    let to_anybody = take(&mut dial(facts(DIALER)));
    assert!(matches!(acceptor.handle_bytes(&to_anybody, &view), Step::Continue));
    let answer = take(&mut acceptor);
    let facts = Arc::new(facts(DIALER));
    let mut dialer = Handshake::dial(facts, data_purpose(), Some(Generation(1)), [0xd1; 32]);
    let _to_the_first = take(&mut dialer);
    let Step::Refused(refusal) = dialer.handle_bytes(&answer, &view) else {
        panic!("somebody else was taken");
    };
    assert_eq!(refusal.kind, RefusalKind::UnexpectedIncarnation);
}

#[test]
fn a_claim_that_the_membership_row_contradicts_is_refused() {
    let kind = RefusalKind::IdentityMismatch;
    let mut impostor = facts(DIALER);
    impostor.incarnation.as_mut().unwrap().name = SiloName::new("silo-x").unwrap();
    assert_refused(dial(impostor), accept(facts(ACCEPTOR)), &both_active(), kind, true);
    let grown = LocalFacts { shards: 3, ..facts(DIALER) };
    assert_refused(dial(grown), accept(facts(ACCEPTOR)), &both_active(), kind, true);
    assert_refused(dial(facts(ACCEPTOR)), accept(facts(ACCEPTOR)), &both_active(), kind, true);
}

fn hosted(name: &str, version: u16, layout: u64) -> HostedType {
    HostedType { schema: Schema::of(name, version, layout), layout, name: name.to_owned() }
}

#[test]
fn a_layout_changed_without_a_version_is_refused() {
    let hosting = |generation: u64, version: u16, layout: u64| LocalFacts {
        types: vec![hosted("a", 1, 1), hosted("chat.line", version, layout)],
        ..facts(generation)
    };
    let ours = accept(hosting(ACCEPTOR, 1, 5));
    let kind = RefusalKind::LayoutChanged;
    assert_refused(dial(hosting(DIALER, 1, 6)), ours, &both_active(), kind, true);
    let (mut dialer, mut acceptor) = (dial(hosting(DIALER, 2, 6)), accept(hosting(ACCEPTOR, 1, 5)));
    let ends = exchange(&mut dialer, &mut acceptor, &both_active());
    assert!(ends.dialer.is_up() && ends.acceptor.is_up(), "two versions live side by side");
}

/// Two layouts whose 16 bits in a header are equal are told apart all the same, and the refusal
/// names the type as people know it.
#[test]
fn layouts_are_compared_whole() {
    let hosting = |generation: u64, layout: u64| LocalFacts {
        types: vec![hosted("chat.line", 1, layout)],
        ..facts(generation)
    };
    let (one, other) = (0x1111, 0x2222_0000_2222_1111);
    let fold = |layout| Schema::of("chat.line", 1, layout);
    assert_eq!(fold(one), fold(other), "a header cannot tell them apart");
    let (mut dialer, mut acceptor) = (dial(hosting(DIALER, one)), accept(hosting(ACCEPTOR, other)));
    let ends = exchange(&mut dialer, &mut acceptor, &both_active());
    let refusal = ends.acceptor.refused();
    assert_eq!(refusal.kind, RefusalKind::LayoutChanged);
    assert!(refusal.detail.starts_with("chat.line (type "), "{refusal}");
    assert!(refusal.detail.ends_with("give the changed one a new version"), "{refusal}");
}

#[test]
fn one_id_with_two_layouts_is_no_set_of_types() {
    let types = vec![hosted("chat.line", 1, 5), hosted("chat.line", 2, 6)];
    let sound = LocalFacts { types, ..facts(DIALER) };
    assert_eq!(sound.check(), Ok(()));
    let clash = HostedType { name: "chat.post".to_owned(), ..hosted("chat.line", 2, 7) };
    let mut clashing = sound;
    clashing.types.push(clash);
    let error = clashing.check().unwrap_err();
    assert!(matches!(error, FactsError::TypesClash { version: 2, .. }), "{error}");
    assert!(error.to_string().contains("\"chat.line\" and \"chat.post\""), "{error}");
}

/// The wire version of a link is the highest that both speak, while a roll brings a new one.
#[test]
fn two_ranges_of_wire_versions_agree_on_the_highest_common_one() {
    let speaking = |generation, lowest, highest| LocalFacts {
        wire: WireVersions { lowest, highest },
        ..facts(generation)
    };
    for ((lowest, highest), agreed) in [((1, 1), 1), ((1, 2), 2), ((2, 3), 2)] {
        let (mut dialer, mut acceptor) =
            (dial(speaking(DIALER, lowest, highest)), accept(speaking(ACCEPTOR, 1, 2)));
        let ends = exchange(&mut dialer, &mut acceptor, &both_active());
        assert_eq!((ends.dialer.up().version, ends.acceptor.up().version), (agreed, agreed));
    }
    let (old, new) = (dial(speaking(DIALER, 1, 1)), accept(speaking(ACCEPTOR, 2, 3)));
    assert_refused(old, new, &both_active(), RefusalKind::VersionUnsupported, true);
}

#[test]
fn a_shard_that_does_not_exist_is_refused() {
    for (from, to) in [(0, 2), (2, 0)] {
        let purpose = Purpose::Shard { from: ShardIndex(from), to: ShardIndex(to) };
        let dialer = Handshake::dial(Arc::new(facts(DIALER)), purpose, None, [0; 32]);
        let acceptor = accept(facts(ACCEPTOR));
        let kind = RefusalKind::ProtocolViolation;
        assert_refused(dialer, acceptor, &both_active(), kind, true);
    }
}

#[test]
fn one_without_an_incarnation_inquires_and_is_inquired_only() {
    let nobody = || LocalFacts { incarnation: None, ..facts(DIALER) };
    let inquire =
        |facts: LocalFacts| Handshake::dial(Arc::new(facts), Purpose::Inquiry, None, [0xd1; 32]);
    let ends = exchange(&mut inquire(nobody()), &mut accept(facts(ACCEPTOR)), &both_active());
    let (at_inquirer, at_acceptor) = (ends.dialer.up(), ends.acceptor.up());
    assert_eq!(at_inquirer.peer, Some(incarnation(ACCEPTOR)));
    assert_eq!((at_acceptor.peer.clone(), at_acceptor.peer_generation()), (None, Generation::NONE));
    let ends = exchange(&mut inquire(nobody()), &mut accept(nobody()), &both_active());
    assert_eq!(ends.dialer.up().peer, None);
    let acceptor = accept(nobody());
    let kind = RefusalKind::NotJoined;
    assert_refused(dial(facts(DIALER)), acceptor, &both_active(), kind, true);
}

#[test]
fn the_largest_honest_facts_fit_their_frame() {
    let bits = (0..HOSTED_TYPES_MAX as u64).map(Schema::from_bits);
    let types: Vec<_> =
        bits.map(|schema| HostedType { schema, layout: 1, name: "a type".to_owned() }).collect();
    let largest = |generation: u64| {
        let mut facts = with_secrets(generation, &[1]);
        facts.cluster = ClusterId::new("c".repeat(NAME_BYTES_MAX)).unwrap();
        facts.host = "h".repeat(HOST_BYTES_MAX);
        facts.types.clone_from(&types);
        facts
    };
    let (mut dialer, mut acceptor) = (dial(largest(DIALER)), accept(largest(ACCEPTOR)));
    let ends = exchange(&mut dialer, &mut acceptor, &both_active());
    let schemas: Vec<_> = types.iter().map(|hosted| hosted.schema).collect();
    assert_eq!(ends.dialer.up().peer_types, schemas);
    let mut too_many = largest(DIALER);
    too_many.types.push(hosted("one more", 1, 1));
    assert_eq!(too_many.check(), Err(FactsError::Types { found: HOSTED_TYPES_MAX + 1 }));
    let unnamed = LocalFacts { host: "h".repeat(HOST_BYTES_MAX + 1), ..facts(DIALER) };
    assert!(matches!(unnamed.check(), Err(FactsError::Host { .. })));
}

#[test]
fn no_secret_is_shown_by_any_debug_output() {
    let facts = LocalFacts {
        secrets: vec![siloring_transport::Secret::new("correct-horse-battery").unwrap()],
        ..facts(DIALER)
    };
    let shown = format!("{facts:?} {:?}", dial(facts.clone()));
    assert!(!shown.contains("correct-horse"), "{shown}");
    assert!(!shown.contains(&format!("{:?}", b"correct-horse-battery")), "{shown}");
}

/// Hands `bytes` to a fresh acceptor.
fn accept_bytes(bytes: &[u8]) -> (End, Handshake) {
    let mut acceptor = accept(facts(ACCEPTOR));
    let mut end = End::Open;
    end.feed(&mut acceptor, bytes, &both_active(), || usize::MAX);
    (end, acceptor)
}

#[test]
fn frames_that_have_no_place_are_refused() {
    for kind in [FrameKind::HelloAck, FrameKind::HelloDone, FrameKind::Request, FrameKind::Probe] {
        let (end, _) = accept_bytes(&Header::new(kind).encode(0, 0));
        assert_eq!(end.refused().kind, RefusalKind::ProtocolViolation, "{kind:?}");
    }
}

#[test]
fn a_dialer_that_does_not_await_the_answer_is_refused() {
    let mut bytes = take(&mut dial(facts(DIALER)));
    bytes.extend_from_slice(&Header::new(FrameKind::HelloDone).encode(0, 0));
    let (end, _) = accept_bytes(&bytes);
    assert_eq!(end.refused().kind, RefusalKind::ProtocolViolation);
}

#[test]
fn a_machine_that_is_done_ignores_what_comes() {
    let (end, mut acceptor) = accept_bytes(&[0xff; 64]);
    assert_eq!(end.refused().kind, RefusalKind::ProtocolViolation);
    assert!(matches!(acceptor.handle_bytes(&[0; 4096], &both_active()), Step::Continue));
    assert_eq!(acceptor.held_bytes(), 0);
}

#[test]
fn an_unknown_peer_costs_one_handshake_frame_at_most() {
    let announce = |frame_bytes: usize| {
        let mut header = Header::new(FrameKind::Hello).encode(0, 0);
        header[0..4].copy_from_slice(&u32::try_from(frame_bytes).unwrap().to_le_bytes());
        let mut bytes = header.to_vec();
        bytes.resize(HEADER_BYTES + 1024 * 1024, 0xee);
        accept_bytes(&bytes)
    };
    let (end, _) = announce(HANDSHAKE_FRAME_BYTES_MAX + 16);
    assert_eq!(end.refused().kind, RefusalKind::TooLarge);
    let (end, _) = announce(HANDSHAKE_FRAME_BYTES_MAX);
    assert_eq!(end.refused().kind, RefusalKind::ProtocolViolation, "whole, but no Hello");
    let mut header = Header::new(FrameKind::Hello).encode(0, 0);
    let most = u32::try_from(HANDSHAKE_FRAME_BYTES_MAX).unwrap();
    header[0..4].copy_from_slice(&most.to_le_bytes());
    let mut bytes = header.to_vec();
    bytes.resize(HANDSHAKE_FRAME_BYTES_MAX - 1, 0);
    let (end, acceptor) = accept_bytes(&bytes);
    assert!(matches!(end, End::Open));
    assert_eq!(acceptor.held_bytes(), HANDSHAKE_FRAME_BYTES_MAX);
}

proptest! {
    /// Method: the same handshake, its bytes cut at random places, ends the same; frames sent right
    /// behind it are the first of the link.
    #[test]
    fn a_handshake_does_not_depend_on_how_its_bytes_are_cut(
        pieces in prop::collection::vec(1usize..200, 1..40),
        behind in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut dialer = dial(with_secrets(DIALER, &[1]));
        let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
        let mut sizes = pieces.iter().copied().cycle();
        let mut ends = exchange_in_pieces(&mut dialer, &mut acceptor, &both_active(), || {
            sizes.next().unwrap()
        });
        ends.acceptor.feed(&mut acceptor, &behind, &both_active(), || usize::MAX);
        let (dialer, acceptor) = (ends.dialer.up(), ends.acceptor.up());
        prop_assert_eq!(dialer.peer, Some(incarnation(ACCEPTOR)));
        prop_assert_eq!(acceptor.leftover, behind);
    }

    /// Method: what an acceptor is sent in one piece with frames behind the proof.
    #[test]
    fn what_comes_with_the_proof_is_left_over(
        behind in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let Recorded { hello, mut done, .. } = record();
        let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
        prop_assert!(matches!(acceptor.handle_bytes(&hello, &both_active()), Step::Continue));
        let _answer = take(&mut acceptor);
        done.extend_from_slice(&behind);
        let Step::Up(established) = acceptor.handle_bytes(&done, &both_active()) else {
            panic!("the same nonces give the same proof");
        };
        prop_assert_eq!(established.leftover, behind);
    }

    #[test]
    fn a_truncated_handshake_is_never_up(part in 0.0f64..1.0) {
        let Recorded { hello, done, .. } = record();
        let view = both_active();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of it")]
        #[expect(clippy::cast_precision_loss, reason = "a part of it")]
        let cut = |bytes: &[u8]| (bytes.len() as f64 * part) as usize;
        let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
        prop_assert!(matches!(acceptor.handle_bytes(&hello[..cut(&hello)], &view), Step::Continue));
        let rest = &hello[cut(&hello)..];
        prop_assert!(matches!(acceptor.handle_bytes(rest, &view), Step::Continue));
        let _answer = take(&mut acceptor);
        prop_assert!(matches!(acceptor.handle_bytes(&done[..cut(&done)], &view), Step::Continue));
    }

    #[test]
    fn garbage_is_never_up_and_costs_at_most_a_frame(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        framed in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if framed {
            // Past the header, so that the archive's check is reached.
            bytes.truncate(bytes.len() / 16 * 16);
            let mut hello = Header::new(FrameKind::Hello).encode(bytes.len(), 0).to_vec();
            hello.append(&mut bytes);
            bytes = hello;
        }
        let (end, acceptor) = accept_bytes(&bytes);
        prop_assert!(!end.is_up());
        prop_assert!(acceptor.held_bytes() <= HANDSHAKE_FRAME_BYTES_MAX);
        let mut dialer = dial(facts(DIALER));
        let _hello = take(&mut dialer);
        prop_assert!(!matches!(dialer.handle_bytes(&bytes, &both_active()), Step::Up(_)));
    }

    /// Every byte of Hello and `HelloAck` is signed, header and padding included.
    #[test]
    fn no_byte_of_a_signed_handshake_can_be_changed(
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let view = both_active();
        let mut dialer = dial(with_secrets(DIALER, &[1]));
        let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
        let mut ends = exchange_changed(&mut dialer, &mut acceptor, &view, at, flip, true);
        prop_assert!(!ends.1.is_up(), "a changed Hello: {:?}", ends.1);
        let mut dialer = dial(with_secrets(DIALER, &[1]));
        let mut acceptor = accept(with_secrets(ACCEPTOR, &[1]));
        ends = exchange_changed(&mut dialer, &mut acceptor, &view, at, flip, false);
        prop_assert!(!ends.0.is_up(), "a changed HelloAck: {:?}", ends.0);
    }
}

/// A handshake in which one byte of Hello, or of the answer, is changed under way.
fn exchange_changed(
    dialer: &mut Handshake,
    acceptor: &mut Handshake,
    view: &View,
    at: prop::sample::Index,
    flip: u8,
    in_hello: bool,
) -> (End, End) {
    let (mut at_dialer, mut at_acceptor) = (End::Open, End::Open);
    let mut hello = take(dialer);
    if in_hello {
        let place = at.index(hello.len());
        hello[place] ^= flip;
    }
    at_acceptor.feed(acceptor, &hello, view, || usize::MAX);
    let mut answer = take(acceptor);
    if !in_hello && !answer.is_empty() {
        let place = at.index(answer.len());
        answer[place] ^= flip;
    }
    at_dialer.feed(dialer, &answer, view, || usize::MAX);
    if let End::Up(established) = &at_dialer {
        at_acceptor.feed(acceptor, &established.unsent.clone(), view, || usize::MAX);
    }
    (at_dialer, at_acceptor)
}
