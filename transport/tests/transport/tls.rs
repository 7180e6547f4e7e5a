//! TLS: who is let in, what a certificate must name, and what the kernel has taken of a stream.

use core::time::Duration;
use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use siloring_core::limits::{READ_CHUNK_BYTES, TLS_SEAL_BYTES_MAX};
use siloring_core::wire::{FrameKind, Header};
use siloring_testkit::certificates::{Authority, Issued, Validity};
use siloring_transport::{
    Certificates, CertificatesError, Class, Handshake, Link, LocalFacts, Pem, Purpose, Refusal,
    RefusalKind, RefusedBy, Session, SessionError, Step, TlsFile,
};

use crate::fixture::{
    ACCEPTOR, DIALER, accept, both_active, data_links, dial, facts, with_secrets,
};

const DIALER_URI: &str = "siloring://demo/silo-3";
const ACCEPTOR_URI: &str = "siloring://demo/silo-2";

/// The middle of 2026.
fn today() -> Duration {
    Duration::from_secs(1_780_000_000)
}

fn take_for(issued: &Issued, uri: &str) -> Result<Certificates, CertificatesError> {
    let (ca, certificate) = (issued.ca.as_bytes(), issued.certificate.as_bytes());
    Certificates::new(Pem { ca, certificate, key: issued.key.as_bytes() }, uri, today)
}

fn certificates(authority: &Authority, uri: &str) -> Certificates {
    take_for(&authority.issue(&[uri], Validity::Now), uri).unwrap()
}

/// The sessions of a dialer and an acceptor of one CA.
fn sessions() -> [Session; 2] {
    let authority = Authority::new("ca");
    let [dialer, acceptor] = [DIALER_URI, ACCEPTOR_URI].map(|uri| certificates(&authority, uri));
    [dialer.dial(), acceptor.accept()]
}

/// Everything that a session has to say.
fn take(session: &mut Session) -> Vec<u8> {
    let bytes = session.unsent().to_vec();
    session.sent(bytes.len());
    bytes
}

/// Everything that can be opened.
fn open(session: &mut Session) -> Result<Vec<u8>, SessionError> {
    let (mut opened, mut space) = (Vec::new(), [0; 1000]);
    loop {
        match session.open(&mut space)? {
            0 => return Ok(opened),
            count => opened.extend_from_slice(&space[..count]),
        }
    }
}

/// Moves bytes until nothing moves; the first fault of each side.
fn exchange(sessions: &mut [Session; 2]) -> [Option<SessionError>; 2] {
    let mut faults = [None, None];
    loop {
        let mut moved = false;
        for from in [0, 1] {
            let bytes = take(&mut sessions[from]);
            moved |= !bytes.is_empty();
            if bytes.is_empty() || faults[1 - from].is_some() {
                continue;
            }
            sessions[1 - from].feed(&bytes);
            faults[1 - from] = open(&mut sessions[1 - from]).err();
        }
        if !moved {
            return faults;
        }
    }
}

fn up() -> [Session; 2] {
    let mut sessions = sessions();
    assert_eq!(exchange(&mut sessions), [None, None]);
    assert!(sessions.iter().all(Session::is_up));
    sessions
}

#[test]
fn both_sides_see_what_the_others_certificate_names() {
    let mut sessions = sessions();
    assert!(sessions.iter().all(|session| session.peer_names().is_none() && !session.is_up()));
    assert_eq!(sessions[0].seal(b"early"), 0, "nothing is sealed for a peer that is not known");
    exchange(&mut sessions);
    let names = sessions.each_ref().map(|session| session.peer_names().unwrap().to_string());
    assert_eq!(names, [ACCEPTOR_URI, DIALER_URI]);
    assert_eq!(sessions[0].seal(b"hello"), 5);
    let sealed = take(&mut sessions[0]);
    assert!(!sealed.windows(5).any(|bytes| bytes == b"hello"), "sealed");
    sessions[1].feed(&sealed);
    assert_eq!(open(&mut sessions[1]).unwrap(), b"hello");
}

fn refused(fault: Option<SessionError>) -> Refusal {
    match fault.expect("a fault") {
        SessionError::Refused(refusal) => refusal,
        other @ (SessionError::Plain { .. } | SessionError::Closed) => panic!("{other:?}"),
    }
}

/// What both sides say when one of them shows a certificate of another CA.
fn of_another_ca(foreign: usize) -> [Refusal; 2] {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let authority = |side| if side == foreign { &theirs } else { &ours };
    let mut sessions = [
        certificates(authority(0), DIALER_URI).dial(),
        certificates(authority(1), ACCEPTOR_URI).accept(),
    ];
    exchange(&mut sessions).map(refused)
}

#[test]
fn a_certificate_of_another_ca_is_refused_by_the_dialer_first_and_told_to_the_acceptor() {
    for foreign in [0, 1] {
        let [dialer, acceptor] = of_another_ca(foreign);
        assert_eq!((dialer.kind, dialer.by), (RefusalKind::BadCredential, RefusedBy::Us));
        assert_eq!((acceptor.kind, acceptor.by), (RefusalKind::BadCredential, RefusedBy::Peer));
        assert!(dialer.detail.contains("UnknownIssuer"), "{dialer}");
    }
}

/// A dialer of somebody else's making: the buffered face of rustls, with whatever certificate.
fn stranger(ca: &str, shown: Option<&Issued>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyAcceptor(provider)));
    let config = match shown {
        None => config.with_no_client_auth(),
        Some(issued) => {
            let chain =
                vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    ClientConnection::new(Arc::new(config), ServerName::try_from("x").unwrap()).unwrap()
}

/// Trusts everybody.
#[derive(Debug)]
struct AnyAcceptor(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyAcceptor {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        unreachable!("TLS 1.3 only")
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Lets a stranger dial our acceptor; the acceptor, what it said last, and what the stranger heard.
fn let_in(
    authority: &Authority,
    shown: Option<&Issued>,
) -> (Session, Option<SessionError>, String) {
    let mut stranger = stranger(&authority.pem(), shown);
    let mut acceptor = certificates(authority, ACCEPTOR_URI).accept();
    let (mut fault, mut heard) = (None, String::new());
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while stranger.wants_write() {
            stranger.write_tls(&mut bytes).unwrap();
        }
        if fault.is_none() && !bytes.is_empty() {
            acceptor.feed(&bytes);
            fault = open(&mut acceptor).err();
        }
        let answer = take(&mut acceptor);
        stranger.read_tls(&mut &*answer).unwrap();
        if let Err(error) = stranger.process_new_packets() {
            heard = error.to_string();
        }
    }
    (acceptor, fault, heard)
}

#[test]
fn a_stranger_with_a_certificate_of_the_cluster_is_let_in() {
    let authority = Authority::new("ca");
    let shown = authority.issue(&[DIALER_URI], Validity::Now);
    let (acceptor, fault, heard) = let_in(&authority, Some(&shown));
    assert_eq!((fault, heard.as_str(), acceptor.is_up()), (None, "", true));
}

#[test]
fn a_dialer_whose_certificate_does_not_hold_is_told_why_although_it_believes_to_be_connected() {
    let authority = Authority::new("ca");
    let expired = authority.issue(&[DIALER_URI], Validity::Past);
    let early = authority.issue(&[DIALER_URI], Validity::Future);
    let foreign = Authority::new("another").issue(&[DIALER_URI], Validity::Now);
    let server_only = [ExtendedKeyUsagePurpose::ServerAuth];
    let misused = authority.issue_for(&[DIALER_URI], Validity::Now, &server_only);
    for (shown, ours, theirs) in [
        (None, "shows no certificate", "CertificateRequired"),
        (Some(&expired), "expired", "CertificateExpired"),
        (Some(&early), "not valid yet", "CertificateExpired"),
        (Some(&foreign), "UnknownIssuer", "UnknownCA"),
        (Some(&misused), "client authentication", "UnsupportedCertificate"),
    ] {
        let (acceptor, fault, heard) = let_in(&authority, shown);
        let refusal = refused(fault);
        assert_eq!((refusal.kind, refusal.by), (RefusalKind::BadCredential, RefusedBy::Us));
        assert!(refusal.detail.contains(ours), "{refusal} lacks {ours}");
        assert!(heard.contains(theirs), "{heard} lacks {theirs}");
        assert!(!acceptor.is_up());
    }
}

#[test]
fn a_wrong_certificate_of_ones_own_is_refused_with_the_file_and_the_remedy() {
    let authority = Authority::new("ca");
    let good = || authority.issue(&[DIALER_URI], Validity::Now);
    let error = |issued: Issued| take_for(&issued, DIALER_URI).unwrap_err();
    assert!(take_for(&good(), DIALER_URI).is_ok());

    let other_key = Issued { key: good().key, ..good() };
    assert_eq!(error(other_key), CertificatesError::KeyMismatch);
    assert_eq!(error(authority.issue(&[DIALER_URI], Validity::Past)), CertificatesError::Expired);
    let early = authority.issue(&[DIALER_URI], Validity::Future);
    assert_eq!(error(early), CertificatesError::NotYetValid);
    let foreign = Issued { ca: Authority::new("another").pem(), ..good() };
    assert!(matches!(error(foreign), CertificatesError::Untrusted { .. }));
    for usage in [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth] {
        let half = authority.issue_for(&[DIALER_URI], Validity::Now, &[usage]);
        assert!(matches!(error(half), CertificatesError::Untrusted { .. }));
    }
    let unnamed = error(authority.issue(&[ACCEPTOR_URI], Validity::Now));
    assert!(unnamed.to_string().contains(ACCEPTOR_URI) && unnamed.file() == TlsFile::Certificate);
    assert!(unnamed.to_string().ends_with(&format!("subjectAltName=URI:{DIALER_URI}")));
    for (issued, file) in [
        (Issued { ca: "none".into(), ..good() }, TlsFile::Ca),
        (Issued { certificate: good().key, ..good() }, TlsFile::Certificate),
        (Issued { key: good().certificate, ..good() }, TlsFile::Key),
    ] {
        let error = error(issued);
        assert!(matches!(error, CertificatesError::Malformed { .. }), "{error:?}");
        assert_eq!(error.file(), file);
    }
}

/// One end of a link inside TLS.
struct End {
    session: Session,
    handshake: Handshake,
    step: Option<Step>,
}

impl End {
    fn new(session: Session, handshake: Handshake) -> Self {
        Self { session, handshake: handshake.over_tls(), step: None }
    }

    fn take(&mut self) -> Vec<u8> {
        let sealed = self.session.seal(self.handshake.unsent());
        self.handshake.sent(sealed);
        if let Some(Step::Up(established)) = &mut self.step {
            self.session.seal(&core::mem::take(&mut established.unsent));
        }
        take(&mut self.session)
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.session.feed(bytes);
        let opened = open(&mut self.session).unwrap();
        if let Some(names) = self.session.peer_names() {
            self.handshake.certificate_held(names);
        }
        if self.step.is_none() && !opened.is_empty() {
            match self.handshake.handle_bytes(&opened, &both_active()) {
                Step::Continue => {}
                step @ (Step::Up(_) | Step::Refused(_)) => self.step = Some(step),
            }
        }
    }
}

/// Shakes hands inside TLS; each side with the URIs of its certificate.
fn shake(uris: [&[&str]; 2], facts: [LocalFacts; 2]) -> [Step; 2] {
    let authority = Authority::new("ca");
    let [dialer, acceptor] =
        uris.map(|uris| take_for(&authority.issue(uris, Validity::Now), uris[0]).unwrap());
    let [dialer_facts, acceptor_facts] = facts;
    let mut ends = [
        End::new(dialer.dial(), dial(dialer_facts)),
        End::new(acceptor.accept(), accept(acceptor_facts)),
    ];
    for from in [0, 1].repeat(8) {
        let bytes = ends[from].take();
        ends[1 - from].feed(&bytes);
    }
    ends.map(|end| end.step.expect("it came to an end"))
}

fn kinds(steps: &[Step; 2]) -> [Option<(RefusalKind, RefusedBy)>; 2] {
    steps.each_ref().map(|step| match step {
        Step::Refused(refusal) => Some((refusal.kind, refusal.by)),
        Step::Up(_) | Step::Continue => None,
    })
}

#[test]
fn a_silo_is_who_its_certificate_names() {
    let both = || [facts(DIALER), facts(ACCEPTOR)];
    let steps = shake([&[DIALER_URI], &[ACCEPTOR_URI]], both());
    assert_eq!(kinds(&steps), [None, None]);
    let shared: &[&str] = &["siloring://demo/silo-9", DIALER_URI, ACCEPTOR_URI];
    assert_eq!(kinds(&shake([shared, shared], both())), [None, None], "one for several silos");

    let mismatch = |by| Some((RefusalKind::IdentityMismatch, by));
    let dialer_lies = [mismatch(RefusedBy::Peer), mismatch(RefusedBy::Us)];
    let acceptor_lies = [mismatch(RefusedBy::Us), None];
    for other in ["siloring://demo/silo-4", "siloring://demo2/silo-3", "siloring://demo/SILO-3"] {
        assert_eq!(kinds(&shake([&[other], &[ACCEPTOR_URI]], both())), dialer_lies, "{other}");
    }
    let steps = shake([&[DIALER_URI], &["siloring://demo/silo-4"]], both());
    assert_eq!(kinds(&steps)[0], acceptor_lies[0]);
    assert_eq!(kinds(&steps)[1], mismatch(RefusedBy::Peer), "and is told");
}

#[test]
fn an_inquirer_without_a_name_needs_a_certificate_of_the_cluster() {
    let inquire = |uri: &'static str| {
        let authority = Authority::new("ca");
        let nobody = LocalFacts { incarnation: None, ..facts(DIALER) };
        let handshake = Handshake::dial(Arc::new(nobody), Purpose::Inquiry, None, [1; 32]);
        let mut dialer = End::new(certificates(&authority, uri).dial(), handshake);
        let mut acceptor =
            End::new(certificates(&authority, ACCEPTOR_URI).accept(), accept(facts(ACCEPTOR)));
        for _ in 0..6 {
            acceptor.feed(&dialer.take());
            dialer.feed(&acceptor.take());
        }
        matches!(acceptor.step, Some(Step::Up(_)))
    };
    assert!(inquire(DIALER_URI));
    assert!(!inquire("siloring://other/silo-3"));
}

#[test]
fn a_secret_is_checked_inside_tls_too() {
    let named: [&[&str]; 2] = [&[DIALER_URI], &[ACCEPTOR_URI]];
    let with = |dialer, acceptor| {
        kinds(&shake(named, [with_secrets(DIALER, dialer), with_secrets(ACCEPTOR, acceptor)]))
    };
    assert_eq!(with(&[1], &[1]), [None, None]);
    assert_eq!(with(&[1], &[2])[0].map(|refused| refused.0), Some(RefusalKind::BadCredential));
}

#[test]
fn a_side_without_tls_and_one_with_it_tell_each_other() {
    let authority = Authority::new("ca");
    // A plain dialer at an acceptor with TLS.
    let mut plain = dial(facts(DIALER));
    let mut sealed = certificates(&authority, ACCEPTOR_URI).accept();
    sealed.feed(plain.unsent());
    let SessionError::Plain { answer } = open(&mut sealed).unwrap_err() else { panic!("plain") };
    assert!(answer.by == RefusedBy::Us && answer.detail.ends_with("set tls on both"), "{answer}");
    let Step::Refused(told) = plain.handle_bytes(&answer.to_frame(), &both_active()) else {
        panic!("told");
    };
    assert_eq!((told.kind, told.by), (RefusalKind::BadCredential, RefusedBy::Peer));
    // A dialer with TLS at a plain acceptor.
    let mut sealed = certificates(&authority, DIALER_URI).dial();
    let mut plain = accept(facts(ACCEPTOR));
    let Step::Refused(answer) = plain.handle_bytes(&take(&mut sealed), &both_active()) else {
        panic!("refused");
    };
    assert!(answer.kind == RefusalKind::BadCredential, "{answer}");
    sealed.feed(plain.unsent());
    let SessionError::Plain { answer: told } = open(&mut sealed).unwrap_err() else {
        panic!("plain");
    };
    assert_eq!((told.kind, told.by), (RefusalKind::BadCredential, RefusedBy::Peer));
    assert_eq!(told.detail, answer.detail);
}

#[test]
fn a_peer_that_is_not_known_cannot_make_us_hold_more_than_a_handshake() {
    let mut acceptor = certificates(&Authority::new("ca"), ACCEPTOR_URI).accept();
    // A message of 60 000 bytes, announced and never ended, in records of a few bytes each.
    let pieces = [&[1, 0, 0xea, 0x60][..], &vec![0; 59_000]].concat();
    let mut held_most = 0;
    let fault = pieces.chunks_exact(4).find_map(|piece| {
        acceptor.feed(&[&[22, 3, 3, 0, 4][..], piece].concat());
        let fault = open(&mut acceptor).err();
        held_most = held_most.max(acceptor.held_bytes());
        fault
    });
    assert_eq!(refused(fault).kind, RefusalKind::TooLarge);
    assert!(held_most <= 65 * 1024, "{held_most}");
    // The same, and then as much as one read can bring.
    let mut acceptor = certificates(&Authority::new("ca"), ACCEPTOR_URI).accept();
    let record = |piece: &[u8]| [&[22, 3, 3, 0, 4][..], piece].concat();
    let first: Vec<u8> = pieces.chunks_exact(4).take(7_000).flat_map(record).collect();
    acceptor.feed(&first);
    assert_eq!(open(&mut acceptor), Ok(Vec::new()));
    acceptor.feed(&record(&[0; 4]).repeat(READ_CHUNK_BYTES / 9));
    assert!(open(&mut acceptor).is_err());
}

/// Frames of a link under TLS, taken by a kernel that takes as much as it likes.
struct Stream {
    session: Session,
    link: Link,
    /// Ciphertext that the kernel has taken.
    taken: Vec<u8>,
    /// Where records begin, and how much plaintext the ones before them held.
    records: Vec<(usize, u64)>,
}

impl Stream {
    fn write(&mut self, most: usize) {
        let before = self.taken.len() + self.session.unsent().len();
        let sealed = self.session.seal(self.link.unsent());
        self.link.halves().1.sealed(sealed);
        let mut at = before;
        let ciphertext = &self.session.unsent()[before - self.taken.len()..];
        let (mut rest, mut plain) = (ciphertext, self.records.last().map_or(0, |last| last.1));
        while let [_, _, _, high, low, ..] = *rest {
            let length = usize::from(high) << 8 | usize::from(low);
            plain += (length - 17) as u64;
            self.records.push((at, plain));
            at += 5 + length;
            rest = &rest[5 + length..];
        }
        let count = most.min(self.session.unsent().len());
        self.taken.extend_from_slice(&self.session.unsent()[..count]);
        let handed_over = self.session.sent(count);
        self.link.halves().1.handed_over(handed_over);
    }

    /// What the kernel has begun to take, as the records themselves tell.
    fn handed_over(&self) -> u64 {
        let begun = self.records.iter().rev().find(|record| record.0 < self.taken.len());
        begun.map_or(0, |record| record.1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever is pushed and however much the kernel takes: a position is handed over exactly when
    /// the first byte of its record has left, what left is what the peer opens, and a frame can be
    /// taken back exactly while it is not sealed.
    #[test]
    fn a_frame_is_handed_over_with_the_first_byte_of_its_record(
        steps in prop::collection::vec(
            (0usize..40_000, prop_oneof![Just(0), 1usize..60, 1usize..40_000, Just(usize::MAX)]),
            1..24,
        ),
        pieces in prop::collection::vec(1usize..70_000, 1..9),
    ) {
        let [mut dialer, mut acceptor] = up();
        dialer.start_counting();
        let mut stream = Stream {
            session: dialer,
            link: data_links().dialer,
            taken: Vec::new(),
            records: Vec::new(),
        };
        let mut expected = Vec::new();
        for (body_bytes, most) in steps {
            let body = vec![expected.len().to_le_bytes()[0]; body_bytes];
            let waiting = stream.link.unsent().len();
            let position = stream
                .link
                .push(&Header::new(FrameKind::Request), None, None, &body, &[], Class::Request)
                .unwrap();
            expected.extend_from_slice(&stream.link.unsent()[waiting..]);
            stream.write(most);
            prop_assert_eq!(stream.link.written(), stream.handed_over());
            let left = (expected.len() - stream.link.unsent().len()) as u64;
            let taken_back = stream.link.halves().1.retract(position);
            prop_assert_eq!(taken_back, position.0 >= left);
            prop_assert!(!(taken_back && position.is_handed_over(stream.link.written())));
            let tail = stream.link.unsent();
            let at = expected.len() - tail.len();
            expected[at..].copy_from_slice(tail);
        }
        while !(stream.link.unsent().is_empty() && stream.session.unsent().is_empty()) {
            stream.write(usize::MAX);
        }
        prop_assert_eq!(stream.link.written(), expected.len() as u64);
        let (mut opened, mut sizes) = (Vec::new(), pieces.iter().cycle());
        let mut rest = &*stream.taken;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            rest = behind;
            acceptor.feed(piece);
            opened.extend(open(&mut acceptor).unwrap());
        }
        prop_assert!(opened == expected, "what was sealed is what is opened");
    }

    /// No garbage, at no place, opens as anything or panics.
    #[test]
    fn changed_or_foreign_bytes_end_the_session(
        at in 0usize..600,
        change in 1u8..,
        cut in 0usize..600,
    ) {
        let [mut dialer, mut acceptor] = up();
        assert_eq!(dialer.seal(&[7; 560]), 560);
        let mut sealed = take(&mut dialer);
        let at = at.min(sealed.len() - 1);
        let cut = cut.min(sealed.len() - 1);
        let whole = sealed.clone();
        // Cut off: nothing is opened, and nothing is wrong yet.
        acceptor.feed(&sealed[..cut]);
        prop_assert_eq!(open(&mut acceptor), Ok(Vec::new()));
        if at >= cut {
            sealed[at] ^= change;
        }
        acceptor.feed(&sealed[cut..]);
        match open(&mut acceptor) {
            Ok(opened) if sealed == whole => prop_assert_eq!(opened, [7; 560]),
            // A longer length waits for what never comes; the type and version of a record may be
            // changed in ways that the seal does not cover.
            Ok(opened) => prop_assert!(opened.is_empty() || at < 3),
            Err(SessionError::Refused(refusal)) => {
                prop_assert_eq!(refusal.kind, RefusalKind::ProtocolViolation);
                prop_assert!(open(&mut acceptor).is_err(), "it stays ended");
                prop_assert!(!acceptor.unsent().is_empty(), "the peer is told");
            }
            Err(other @ (SessionError::Plain { .. } | SessionError::Closed)) => {
                prop_assert!(false, "{other:?}");
            }
        }
    }
}

#[test]
fn what_is_sealed_waits_alone_and_one_last_write_takes_everything() {
    let [mut dialer, mut acceptor] = up();
    dialer.start_counting();
    let plain = vec![3; TLS_SEAL_BYTES_MAX + 5];
    assert_eq!(dialer.seal(&plain), TLS_SEAL_BYTES_MAX);
    assert_eq!(dialer.seal(&plain), 0, "the records before have not left");
    let first = take(&mut dialer);
    let rest = &plain[TLS_SEAL_BYTES_MAX..];
    assert_eq!(dialer.seal(rest), rest.len());
    let last = [&first, &*dialer.finish(&[b"because", &*plain].concat())].concat();
    let mut opened = Vec::new();
    for piece in last.chunks(100_000) {
        acceptor.feed(piece);
        opened.extend(open(&mut acceptor).unwrap());
    }
    assert_eq!(opened, [&plain, &b"because"[..], &plain].concat());
}

#[test]
fn a_peer_that_says_it_closes_has_closed() {
    let authority = Authority::new("ca");
    let shown = authority.issue(&[DIALER_URI], Validity::Now);
    let mut stranger = stranger(&authority.pem(), Some(&shown));
    let mut acceptor = certificates(&authority, ACCEPTOR_URI).accept();
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while stranger.wants_write() {
            stranger.write_tls(&mut bytes).unwrap();
        }
        acceptor.feed(&bytes);
        open(&mut acceptor).unwrap();
        stranger.read_tls(&mut &*take(&mut acceptor)).unwrap();
        stranger.process_new_packets().unwrap();
    }
    stranger.writer().write_all(b"last").unwrap();
    stranger.send_close_notify();
    let mut bytes = Vec::new();
    while stranger.wants_write() {
        stranger.write_tls(&mut bytes).unwrap();
    }
    acceptor.feed(&bytes);
    let mut space = [0; 100];
    assert_eq!(acceptor.open(&mut space), Ok(4), "what came before is given out first");
    assert_eq!(acceptor.open(&mut space), Err(SessionError::Closed));
}
