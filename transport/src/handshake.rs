//! The handshake: who speaks to whom, for what, and whether they may.
//!
//! Three frames: the dialer's Hello, the acceptor's `HelloAck`, the dialer's `HelloDone`. With a
//! cluster secret the last two carry a signature over both nonces, both identities and everything
//! else that was said. The dialer's link is up when its acceptor's `HelloAck` holds, the acceptor's
//! when `HelloDone` does; a mere connection proves nothing.
//!
//! Inside TLS each side's certificate must name the cluster and the silo that it says it is.
//!
//! Invariants: an unknown peer costs at most [`HANDSHAKE_FRAME_BYTES_MAX`] bytes of buffer; nothing
//! is sent to a peer beyond the handshake before its answer holds; a refusal is told to the peer.
//! Deliberately absent: time-outs (the caller closes a handshake that takes longer than its limit),
//! sockets, and the choice among several links of one pair.

use core::time::Duration;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use siloring_core::limits::{HANDSHAKE_FRAME_BYTES_MAX, HEADER_BYTES};
use siloring_core::schema::Schema;
use siloring_core::wire::{FrameError, FrameKind, Header, Layout};
use siloring_core::{Generation, Incarnation, View};

use crate::facts::{LocalFacts, Purpose, Role};
use crate::greeting::{Answer, Facts, Hello, Peer, check_alive, frame, read, violation};
use crate::refusal::{Refusal, RefusalKind};
use crate::secret::{MAC_BYTES, Transcript};
use crate::tls::{PeerNames, is_tls};

/// What handed-in bytes led to.
#[derive(Debug)]
pub enum Step {
    /// More bytes are needed. There may be bytes to send.
    Continue,
    /// The link is up: give this to [`crate::Link::new`].
    Up(Established),
    /// It was refused: flush [`Handshake::unsent`], then close the connection.
    Refused(Refusal),
}

/// What both sides agreed on.
#[derive(Clone, Debug)]
pub struct Established {
    /// Who is there; `None` for an inquirer without an incarnation.
    pub peer: Option<Incarnation>,
    /// How many shards it has.
    pub peer_shards: u16,
    /// Its host and network namespace.
    pub peer_host: String,
    /// Schemas of the types that it hosts.
    pub peer_types: Vec<Schema>,
    /// The deadline of its requests that carry none.
    pub peer_deadline_default: Duration,
    /// The largest frame that it takes.
    pub peer_frame_bytes_max: u32,
    /// The largest frame that we take.
    pub frame_bytes_max: u32,
    /// The agreed wire version.
    pub version: u8,
    /// Features that both sides have.
    pub features: u64,
    /// What the link is for.
    pub purpose: Purpose,
    /// Which side we are.
    pub role: Role,
    /// Bytes of the handshake that are still to be sent, before anything else.
    pub unsent: Vec<u8>,
    /// Bytes that came behind the handshake: the first of the link.
    pub leftover: Vec<u8>,
}

impl Established {
    /// The peer's generation; [`Generation::NONE`] for an inquirer without one.
    pub fn peer_generation(&self) -> Generation {
        self.peer.as_ref().map_or(Generation::NONE, |peer| peer.generation)
    }
}

/// One side of a handshake under way.
#[derive(Debug)]
pub struct Handshake {
    local: Arc<LocalFacts>,
    state: State,
    /// The frame that is coming in; never more than one, never above the limit.
    received: Vec<u8>,
    unsent: Vec<u8>,
    sent_bytes: usize,
    certificate: Certificate,
}

/// The certificate of the peer.
#[derive(Debug)]
pub(crate) enum Certificate {
    /// The handshake does not ride inside TLS.
    NotAsked,
    /// It does, and the certificate has not held yet.
    Awaited,
    /// It has, and names these.
    Held(PeerNames),
}

#[derive(Debug)]
enum State {
    AwaitHello { nonce: [u8; 32] },
    AwaitAnswer { purpose: Purpose, expect: Option<Generation>, hello: [u8; 32] },
    AwaitDone { peer: Peer, purpose: Purpose, transcript: Transcript },
    Over,
}

/// A frame came that the state does not expect, or the connection moved on.
enum Progress {
    More(State),
    Up(Box<Peer>, Purpose, Role),
}

impl Handshake {
    /// Dials for `purpose`. With `expect` only that incarnation will do. `nonce` must be fresh and
    /// unpredictable.
    ///
    /// # Panics
    /// If the facts do not pass [`LocalFacts::check`], or have no incarnation and `purpose` is not
    /// an inquiry.
    pub fn dial(
        local: Arc<LocalFacts>,
        purpose: Purpose,
        expect: Option<Generation>,
        nonce: [u8; 32],
    ) -> Self {
        assert_eq!(local.check(), Ok(()), "facts are checked at the start of the silo");
        assert!(
            local.incarnation.is_some() || purpose == Purpose::Inquiry,
            "a silo without an incarnation only inquires"
        );
        let hello = Hello {
            facts: Facts::of(&local),
            purpose,
            expect: expect.unwrap_or(Generation::NONE).0,
            authenticated: !local.secrets.is_empty(),
            nonce,
        };
        let unsent = frame(FrameKind::Hello, None, &hello);
        let state = State::AwaitAnswer { purpose, expect, hello: Sha256::digest(&unsent).into() };
        let certificate = Certificate::NotAsked;
        Self { local, state, received: Vec::new(), unsent, sent_bytes: 0, certificate }
    }

    /// Awaits a dialer. `nonce` must be fresh and unpredictable.
    ///
    /// # Panics
    /// If the facts do not pass [`LocalFacts::check`].
    pub fn accept(local: Arc<LocalFacts>, nonce: [u8; 32]) -> Self {
        assert_eq!(local.check(), Ok(()), "facts are checked at the start of the silo");
        let (received, unsent, certificate) = (Vec::new(), Vec::new(), Certificate::NotAsked);
        let state = State::AwaitHello { nonce };
        Self { local, state, received, unsent, sent_bytes: 0, certificate }
    }

    /// It rides inside TLS: a peer is refused unless its certificate names it.
    #[must_use]
    pub fn over_tls(self) -> Self {
        Self { certificate: Certificate::Awaited, ..self }
    }

    /// The peer's certificate has held; it names these.
    pub fn certificate_held(&mut self, names: PeerNames) {
        self.certificate = Certificate::Held(names);
    }

    /// Takes bytes that the peer sent. After [`Step::Up`] or [`Step::Refused`] the machine is done:
    /// further bytes are ignored.
    pub fn handle_bytes(&mut self, mut bytes: &[u8], view: &View) -> Step {
        loop {
            if matches!(self.state, State::Over) {
                return Step::Continue;
            }
            let layout = match self.take_frame(&mut bytes) {
                Ok(Some(layout)) => layout,
                Ok(None) => return Step::Continue,
                Err(refusal) => return self.refuse(refusal),
            };
            let frame = core::mem::take(&mut self.received);
            match self.handle_frame(&layout, &frame, view) {
                Ok(Progress::More(state)) => self.state = state,
                Ok(Progress::Up(peer, purpose, role)) => {
                    return Step::Up(self.establish(*peer, purpose, role, bytes));
                }
                Err(refusal) => return self.refuse(refusal),
            }
        }
    }

    /// Bytes to send to the peer.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent[self.sent_bytes..]
    }

    /// The first `count` bytes of [`Self::unsent`] have been sent.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, count: usize) {
        assert!(count <= self.unsent().len(), "more was sent than there was");
        self.sent_bytes += count;
    }

    /// Bytes of the peer's that are held: at most [`HANDSHAKE_FRAME_BYTES_MAX`].
    pub fn held_bytes(&self) -> usize {
        self.received.capacity()
    }

    /// Moves bytes of one frame from `input` into the buffer; says so when the frame is whole.
    fn take_frame(&mut self, input: &mut &[u8]) -> Result<Option<Layout>, Refusal> {
        self.fill(input, HEADER_BYTES);
        let is_first = matches!(self.state, State::AwaitHello { .. } | State::AwaitAnswer { .. });
        if is_first && is_tls(&self.received) {
            return Err(bad_credential(TLS_PEER));
        }
        let layout =
            Header::decode(&self.received, HANDSHAKE_FRAME_BYTES_MAX).map_err(refusal_of)?;
        let Some(layout) = layout else {
            return Ok(None);
        };
        self.fill(input, layout.frame_bytes);
        Ok((self.received.len() == layout.frame_bytes).then_some(layout))
    }

    fn fill(&mut self, input: &mut &[u8], target_bytes: usize) {
        assert!(target_bytes <= HANDSHAKE_FRAME_BYTES_MAX, "the length was checked");
        let missing = target_bytes.saturating_sub(self.received.len());
        let (taken, rest) = input.split_at(missing.min(input.len()));
        if !taken.is_empty() {
            // The exact size once it is known: the vector must not double beyond the limit.
            self.received.reserve_exact(missing);
            self.received.extend_from_slice(taken);
        }
        *input = rest;
    }

    fn handle_frame(
        &mut self,
        layout: &Layout,
        frame: &[u8],
        view: &View,
    ) -> Result<Progress, Refusal> {
        let (body, _extensions) = layout.split(frame).map_err(refusal_of)?;
        let kind = layout.header.kind;
        if kind == FrameKind::Refuse {
            return Err(Refusal::from_frame(&layout.header, body));
        }
        let spoke_early = !self.unsent().is_empty();
        match core::mem::replace(&mut self.state, State::Over) {
            State::AwaitHello { nonce } if kind == FrameKind::Hello => {
                self.handle_hello(frame, body, nonce, view)
            }
            State::AwaitAnswer { .. } | State::AwaitDone { .. } if spoke_early => {
                Err(violation("the peer answered before it was spoken to"))
            }
            State::AwaitAnswer { purpose, expect, hello } if kind == FrameKind::HelloAck => {
                let wanted = Wanted { purpose, expect };
                let peer = self.handle_answer(frame, body, wanted, hello, view)?;
                Ok(Progress::Up(Box::new(peer), purpose, Role::Dialer))
            }
            State::AwaitDone { peer, purpose, transcript } if kind == FrameKind::HelloDone => {
                self.handle_done(body, &peer, &transcript, view)?;
                Ok(Progress::Up(Box::new(peer), purpose, Role::Acceptor))
            }
            State::AwaitHello { .. }
            | State::AwaitAnswer { .. }
            | State::AwaitDone { .. }
            | State::Over => Err(violation(format!("{kind:?} has no place here"))),
        }
    }

    /// The acceptor's half: checks the dialer, and answers with our facts, signed.
    fn handle_hello(
        &mut self,
        hello_frame: &[u8],
        body: &[u8],
        nonce: [u8; 32],
        view: &View,
    ) -> Result<Progress, Refusal> {
        let hello: Hello = read(FrameKind::Hello, body)?;
        let purpose = hello.purpose;
        let peer = hello.facts.check(&self.local, view, &self.certificate)?;
        check_purpose(purpose, peer.shards, self.local.shards)?;
        self.check_wanted(Generation(hello.expect), purpose)?;
        if peer.incarnation.is_none() && purpose != Purpose::Inquiry {
            return Err(violation("a peer without an incarnation may only inquire"));
        }
        if hello.authenticated == self.local.secrets.is_empty() {
            return Err(bad_credential(if hello.authenticated {
                "the dialer has a cluster secret and we have none: configure it on both"
            } else {
                "the dialer has no cluster secret and we have one: configure it on both"
            }));
        }
        let answer = Answer { facts: Facts::of(&self.local), nonce };
        let blank = self.local.secrets.first().map(|_| [0; MAC_BYTES]);
        let blank_frame = frame(FrameKind::HelloAck, blank, &answer);
        let transcript = Transcript {
            hello: Sha256::digest(hello_frame).into(),
            answer: Sha256::digest(&blank_frame).into(),
        };
        let signature =
            self.local.secrets.first().map(|secret| secret.sign(Role::Acceptor, &transcript));
        self.unsent.extend_from_slice(&frame(FrameKind::HelloAck, signature, &answer));
        Ok(Progress::More(State::AwaitDone { peer, purpose, transcript }))
    }

    /// The dialer's half: checks the acceptor's facts and signature, and signs in turn.
    fn handle_answer(
        &mut self,
        answer_frame: &[u8],
        body: &[u8],
        Wanted { purpose, expect }: Wanted,
        hello: [u8; 32],
        view: &View,
    ) -> Result<Peer, Refusal> {
        let authenticated = !self.local.secrets.is_empty();
        let mut blank_frame = answer_frame.to_vec();
        let mut archive = body;
        let mut signature = None;
        if authenticated {
            let (found, rest) = body
                .split_first_chunk::<MAC_BYTES>()
                .ok_or_else(|| bad_credential("the acceptor signed nothing"))?;
            signature = Some(*found);
            archive = rest;
            blank_frame[HEADER_BYTES..HEADER_BYTES + MAC_BYTES].fill(0);
        }
        let transcript = Transcript { hello, answer: Sha256::digest(&blank_frame).into() };
        if let Some(signature) = signature {
            self.check_signature(Role::Acceptor, &transcript, &signature)?;
        }
        let answer: Answer = read(FrameKind::HelloAck, archive)?;
        let peer = answer.facts.check(&self.local, view, &self.certificate)?;
        check_expected(expect, purpose, peer.incarnation.as_ref())?;
        check_purpose(purpose, self.local.shards, peer.shards)?;
        let signature =
            self.local.secrets.first().map(|secret| secret.sign(Role::Dialer, &transcript));
        self.unsent.extend_from_slice(&frame(FrameKind::HelloDone, signature, &()));
        Ok(peer)
    }

    /// The acceptor's end: the dialer's signature, and once more whether it lives, as the view may
    /// have moved since Hello.
    fn handle_done(
        &self,
        body: &[u8],
        peer: &Peer,
        transcript: &Transcript,
        view: &View,
    ) -> Result<(), Refusal> {
        if self.local.secrets.is_empty() {
            if !body.is_empty() {
                return Err(violation("HelloDone carries a signature nobody agreed on"));
            }
        } else {
            let signature: &[u8; MAC_BYTES] =
                body.as_array().ok_or_else(|| bad_credential("the dialer signed nothing"))?;
            self.check_signature(Role::Dialer, transcript, signature)?;
        }
        peer.incarnation.as_ref().map_or(Ok(()), |peer| check_alive(peer, view))
    }

    fn check_signature(
        &self,
        role: Role,
        transcript: &Transcript,
        signature: &[u8; MAC_BYTES],
    ) -> Result<(), Refusal> {
        // Every secret is tried, so that the time tells nothing of which one held.
        let held = self
            .local
            .secrets
            .iter()
            .fold(false, |held, secret| secret.verify(role, transcript, signature) | held);
        if held {
            return Ok(());
        }
        Err(bad_credential("the peer's signature holds under none of our cluster secrets"))
    }

    /// Whether we are the one whom the dialer wants.
    fn check_wanted(&self, wanted: Generation, purpose: Purpose) -> Result<(), Refusal> {
        let Some(us) = &self.local.incarnation else {
            if purpose == Purpose::Inquiry && wanted == Generation::NONE {
                return Ok(());
            }
            let detail = "this silo has no incarnation yet and answers inquiries only";
            return Err(Refusal::ours(RefusalKind::NotJoined, detail));
        };
        if wanted == Generation::NONE || wanted == us.generation {
            return Ok(());
        }
        let detail = format!("{us} answers here, not generation {wanted}");
        Err(Refusal::ours(RefusalKind::UnexpectedIncarnation, detail))
    }

    /// Ends the handshake, and tells the peer unless it told us.
    fn refuse(&mut self, refusal: Refusal) -> Step {
        self.state = State::Over;
        self.received = Vec::new();
        match refusal.by {
            crate::RefusedBy::Us => self.unsent.extend_from_slice(&refusal.to_frame()),
            crate::RefusedBy::Peer => self.sent_bytes = self.unsent.len(),
        }
        Step::Refused(refusal)
    }

    fn establish(
        &mut self,
        peer: Peer,
        purpose: Purpose,
        role: Role,
        leftover: &[u8],
    ) -> Established {
        self.state = State::Over;
        let unsent = self.unsent().to_vec();
        self.sent_bytes = self.unsent.len();
        Established {
            peer: peer.incarnation,
            peer_shards: peer.shards,
            peer_host: peer.host,
            peer_types: peer.types,
            peer_deadline_default: peer.deadline_default,
            peer_frame_bytes_max: peer.frame_bytes_max,
            frame_bytes_max: self.local.frame_bytes_max,
            version: peer.version,
            features: peer.features,
            purpose,
            role,
            unsent,
            leftover: leftover.to_vec(),
        }
    }
}

/// What the dialer dialed for.
#[derive(Clone, Copy)]
struct Wanted {
    purpose: Purpose,
    expect: Option<Generation>,
}

/// Whether the acceptor is the one whom the dialer wants.
fn check_expected(
    expect: Option<Generation>,
    purpose: Purpose,
    found: Option<&Incarnation>,
) -> Result<(), Refusal> {
    match (expect, found) {
        (Some(expected), Some(found)) if found.generation != expected => {
            let detail = format!("{found} answers here, not generation {expected}");
            Err(Refusal::ours(RefusalKind::UnexpectedIncarnation, detail))
        }
        (None, None) if purpose == Purpose::Inquiry => Ok(()),
        (_, None) => {
            let detail = "the peer has no incarnation yet";
            Err(Refusal::ours(RefusalKind::NotJoined, detail))
        }
        (_, Some(_)) => Ok(()),
    }
}

/// Whether the shards that `purpose` names exist on both sides.
fn check_purpose(
    purpose: Purpose,
    dialer_shards: u16,
    acceptor_shards: u16,
) -> Result<(), Refusal> {
    match purpose {
        Purpose::Shard { from, to } if from.0 >= dialer_shards || to.0 >= acceptor_shards => {
            Err(violation(format!(
                "link from shard {from} of {dialer_shards} to shard {to} of {acceptor_shards}"
            )))
        }
        Purpose::Shard { .. } | Purpose::Control | Purpose::Inquiry => Ok(()),
    }
}

const TLS_PEER: &str = "the peer speaks TLS and this silo does not: set tls on both";

fn bad_credential(detail: &str) -> Refusal {
    Refusal::ours(RefusalKind::BadCredential, detail)
}

fn refusal_of(error: FrameError) -> Refusal {
    let kind = match error {
        FrameError::Length { found, limit } if found > limit => RefusalKind::TooLarge,
        FrameError::Version { .. } => RefusalKind::VersionUnsupported,
        FrameError::Length { .. }
        | FrameError::Magic { .. }
        | FrameError::Kind { .. }
        | FrameError::Layout => RefusalKind::ProtocolViolation,
    };
    Refusal::ours(kind, error.to_string())
}
