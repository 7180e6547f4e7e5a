//! Handshakes: both roles, and somebody between them who has the wire but no secret.
//!
//! The input is a script of what that somebody does: carries bytes on, in pieces of any size; drops
//! them; forges frames; changes, replays and reorders what was said here, or in an earlier
//! handshake of the same two silos. Whatever is done, an acceptor is up only if its dialer is, a
//! dialer only if its acceptor answered that very Hello, and neither where the secrets differ. (Who
//! has none has no proof to ask for.)

use std::sync::Arc;

use siloring_core::limits::{
    DEADLINE_MAX, FAILURE_DETAIL_BYTES_MAX, FRAME_ALIGN, FRAME_BYTES_MAX,
    HANDSHAKE_FRAME_BYTES_MAX, HOST_BYTES_MAX, HOSTED_TYPES_MAX, SHARDS_MAX,
};
use siloring_core::wire::{FrameKind, Header};
use siloring_core::{ShardIndex, View};
use siloring_transport::{
    Established, Handshake, LocalFacts, Purpose, Refusal, RefusalKind, RefusedBy, Role, Step,
};

use super::cast;
use super::tape::Tape;

/// Steps of one script.
const STEPS_MAX: usize = 64;
/// Bytes that one side may have to send: two handshake frames and a refusal.
const UNSENT_BYTES_MAX: usize = 2 * HANDSHAKE_FRAME_BYTES_MAX + 1024;

/// Which secrets the two sides have: the first signs, all verify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Secrets {
    /// One, the same.
    Same,
    /// The acceptor signs with another, and verifies the dialer's.
    Rotated,
    /// One each, not the same.
    Different,
    /// None on either side: nothing is proved.
    None,
    /// Only the acceptor has one.
    OneSided,
}

impl Secrets {
    const fn dialer(self) -> &'static [u8] {
        match self {
            Self::Same => &[1],
            Self::Rotated => &[1, 2],
            Self::Different => &[3],
            Self::None | Self::OneSided => &[],
        }
    }

    const fn acceptor(self) -> &'static [u8] {
        match self {
            Self::Same | Self::Different | Self::OneSided => &[1],
            Self::Rotated => &[2, 1],
            Self::None => &[],
        }
    }
}

pub(super) fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let mut wire = Wire::new(&mut tape);
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            break;
        }
        wire.step(&mut tape);
        wire.check();
    }
}

/// One side with all that it was given and has said.
struct Side {
    role: Role,
    machine: Handshake,
    /// What it has said and nobody has carried on.
    said: Vec<u8>,
    end: Option<Result<Established, Refusal>>,
    /// The first bytes that it was given: as many as the other's first frame has.
    heard: Vec<u8>,
}

impl Side {
    fn new(role: Role, machine: Handshake) -> Self {
        let mut side = Self { role, machine, said: Vec::new(), end: None, heard: Vec::new() };
        side.collect();
        side
    }

    fn is_up(&self) -> bool {
        matches!(self.end, Some(Ok(_)))
    }

    fn give(&mut self, bytes: &[u8], view: &View) {
        let was_over = self.end.is_some();
        if self.heard.len() < HANDSHAKE_FRAME_BYTES_MAX {
            self.heard.extend_from_slice(bytes);
        }
        let step = self.machine.handle_bytes(bytes, view);
        assert!(
            !was_over || matches!(step, Step::Continue),
            "what has ended stays as it ended: {step:?}"
        );
        let held = self.machine.held_bytes();
        assert!(held <= HANDSHAKE_FRAME_BYTES_MAX, "{held} bytes are held of an unknown peer");
        let unsent = self.machine.unsent().len();
        assert!(unsent <= UNSENT_BYTES_MAX, "{unsent} bytes wait for an unknown peer");
        match step {
            Step::Continue => {}
            Step::Up(mut established) => {
                check_established(self.role, &established);
                self.said.append(&mut established.unsent);
                self.end = Some(Ok(established));
            }
            Step::Refused(refusal) => {
                self.check_refusal(&refusal);
                self.end = Some(Err(refusal));
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        let unsent = self.machine.unsent().to_vec();
        self.machine.sent(unsent.len());
        self.said.extend(unsent);
    }

    /// A refusal has a reason; ours is told to the peer, the peer's ends all talk.
    fn check_refusal(&self, refusal: &Refusal) {
        assert!(refusal.detail.len() <= FAILURE_DETAIL_BYTES_MAX, "a reason is bounded");
        match refusal.by {
            RefusedBy::Us => {
                assert!(!refusal.detail.is_empty(), "a reason is given");
                let told = self.machine.unsent().ends_with(&refusal.to_frame());
                assert!(told, "a refusal is told to the peer");
            }
            RefusedBy::Peer => {
                assert!(self.machine.unsent().is_empty(), "nothing is said to who has refused");
                assert!(!refusal.detail.chars().any(char::is_control), "it can be printed");
            }
        }
    }
}

fn check_established(role: Role, established: &Established) {
    assert_eq!(established.role, role);
    assert!((1..=SHARDS_MAX).contains(&established.peer_shards), "shards are in range");
    assert!(established.peer_host.len() <= HOST_BYTES_MAX, "the host is bounded");
    assert!(established.peer_types.len() <= HOSTED_TYPES_MAX, "types are bounded");
    let deadline = established.peer_deadline_default;
    assert!(!deadline.is_zero() && deadline <= DEADLINE_MAX, "a deadline is in range");
    let frame_bytes = established.peer_frame_bytes_max as usize;
    assert!((HANDSHAKE_FRAME_BYTES_MAX..=FRAME_BYTES_MAX).contains(&frame_bytes), "a limit too");
    let ours = if role == Role::Acceptor { cast::OURS } else { cast::PEER };
    let generation = established.peer_generation();
    assert_ne!(generation, ours, "nobody is us");
    assert_ne!(generation, cast::GONE, "nobody is one who is gone");
    if established.peer.is_none() {
        assert_eq!(established.purpose, Purpose::Inquiry, "who has no name only inquires");
    }
}

const fn other(role: Role) -> Role {
    match role {
        Role::Dialer => Role::Acceptor,
        Role::Acceptor => Role::Dialer,
    }
}

/// The two sides and what may be sent between them.
struct Wire {
    secrets: Secrets,
    dialer: Side,
    acceptor: Side,
    view: View,
    hello: Vec<u8>,
    /// Frames of this handshake and of an earlier one.
    recorded: Vec<Vec<u8>>,
}

impl Wire {
    fn new(tape: &mut Tape<'_>) -> Self {
        let secrets = match tape.below(8) {
            0..=3 => Secrets::Same,
            4 => Secrets::Rotated,
            5 => Secrets::Different,
            6 => Secrets::None,
            _ => Secrets::OneSided,
        };
        let purpose = match tape.below(4) {
            0 => Purpose::Control,
            1 => Purpose::Inquiry,
            _ => Purpose::Shard { from: ShardIndex(0), to: ShardIndex(1) },
        };
        let expect = tape.is_odd().then_some(cast::OURS);
        let dialer = Arc::new(cast::facts(cast::PEER, secrets.dialer()));
        let acceptor = Arc::new(cast::facts(cast::OURS, secrets.acceptor()));
        let recorded = earlier(&dialer, &acceptor, purpose);
        let machine = Handshake::dial(dialer, purpose, expect, [0xd1; 32]);
        let dialer = Side::new(Role::Dialer, machine);
        let acceptor = Side::new(Role::Acceptor, Handshake::accept(acceptor, [0xac; 32]));
        let hello = dialer.said.clone();
        let mut wire = Self { secrets, dialer, acceptor, view: cast::view(), hello, recorded };
        wire.record();
        wire
    }

    /// Keeps what is being said, to be replayed.
    fn record(&mut self) {
        for said in [&self.dialer.said, &self.acceptor.said] {
            if !said.is_empty() && self.recorded.len() < 16 && !self.recorded.contains(said) {
                self.recorded.push(said.clone());
            }
        }
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        let choice = tape.byte();
        let to = if choice & 1 == 0 { Role::Acceptor } else { Role::Dialer };
        match choice / 2 % 8 {
            0..=2 => {
                let count = match tape.byte() {
                    0 => usize::MAX,
                    count => usize::from(count),
                };
                self.carry(to, count);
            }
            3 => self.side(other(to)).said.clear(),
            4 => self.replay(to, tape),
            5 => self.forge(to, tape),
            6 => {
                let count = usize::from(tape.byte());
                let bytes = tape.bytes(count);
                self.give(to, bytes);
            }
            _ => self.change(other(to), tape),
        }
        self.record();
    }

    const fn side(&mut self, role: Role) -> &mut Side {
        match role {
            Role::Dialer => &mut self.dialer,
            Role::Acceptor => &mut self.acceptor,
        }
    }

    fn give(&mut self, to: Role, bytes: &[u8]) {
        match to {
            Role::Dialer => self.dialer.give(bytes, &self.view),
            Role::Acceptor => self.acceptor.give(bytes, &self.view),
        }
    }

    /// Carries on what the other side has said.
    fn carry(&mut self, to: Role, count: usize) {
        let said = &mut self.side(other(to)).said;
        let bytes: Vec<u8> = said.drain(..count.min(said.len())).collect();
        self.give(to, &bytes);
    }

    /// Says a recorded frame again, perhaps changed in one place.
    fn replay(&mut self, to: Role, tape: &mut Tape<'_>) {
        let index = usize::from(tape.byte()) % self.recorded.len();
        let (at, value) = (usize::from(tape.short()), tape.byte());
        let mut bytes = self.recorded[index].clone();
        let length = bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at % length) {
            *byte ^= value;
        }
        self.give(to, &bytes);
    }

    /// A frame of the script's own, well-formed.
    fn forge(&mut self, to: Role, tape: &mut Tape<'_>) {
        let kind = FrameKind::from_code(tape.byte() % 16).unwrap_or(FrameKind::Hello);
        let count = usize::from(tape.byte()) * 2;
        let body = tape.bytes(count);
        let mut frame = Header::new(kind).encode(body.len(), 0).to_vec();
        frame.extend_from_slice(body);
        frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
        self.give(to, &frame);
    }

    /// Changes one byte of what is under way.
    fn change(&mut self, from: Role, tape: &mut Tape<'_>) {
        let (at, value) = (usize::from(tape.short()), tape.byte());
        let said = &mut self.side(from).said;
        let length = said.len().max(1);
        if let Some(byte) = said.get_mut(at % length) {
            *byte ^= value;
        }
    }

    fn check(&self) {
        let Self { secrets, dialer, acceptor, hello, .. } = self;
        match secrets {
            Secrets::None => {}
            Secrets::Different => {
                assert!(!dialer.is_up(), "a dialer is up without its acceptor's secret");
                assert!(!acceptor.is_up(), "an acceptor is up without its dialer's secret");
            }
            // A dialer that has no secret believes whoever answers.
            Secrets::OneSided => {
                assert!(!acceptor.is_up(), "an acceptor is up without its dialer's secret");
            }
            Secrets::Same | Secrets::Rotated => {
                let answered = acceptor.heard.starts_with(hello);
                assert!(answered || !dialer.is_up(), "a dialer is up that nobody answered");
                let proved = answered && dialer.is_up();
                assert!(proved || !acceptor.is_up(), "an acceptor is up without a proof");
            }
        }
        for side in [dialer, acceptor] {
            if let Some(Err(refusal)) = &side.end {
                let peers = refusal.by == RefusedBy::Peer;
                let unknown = matches!(refusal.kind, RefusalKind::Unknown(_));
                assert!(peers || !unknown, "our own reasons are known ones");
            }
        }
    }
}

/// The three frames of a handshake that went well, with other nonces.
fn earlier(dialer: &Arc<LocalFacts>, acceptor: &Arc<LocalFacts>, purpose: Purpose) -> Vec<Vec<u8>> {
    let view = cast::view();
    let machine = Handshake::dial(Arc::clone(dialer), purpose, None, [0xd0; 32]);
    let mut dialer = Side::new(Role::Dialer, machine);
    let mut acceptor =
        Side::new(Role::Acceptor, Handshake::accept(Arc::clone(acceptor), [0xa0; 32]));
    let hello = std::mem::take(&mut dialer.said);
    acceptor.give(&hello, &view);
    let answer = std::mem::take(&mut acceptor.said);
    dialer.give(&answer, &view);
    let done = std::mem::take(&mut dialer.said);
    acceptor.give(&done, &view);
    vec![hello, answer, done]
}

/// Scripts of what somebody on the wire would do, for each pair of secrets.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    // Carry all to the acceptor, then to the dialer; replay to either; drop; change; forge.
    const TO_ACCEPTOR: [u8; 2] = [0, 0];
    const TO_DIALER: [u8; 2] = [1, 0];
    let replay = |to: u8, index: u8| vec![8 + to, index, 0, 0, 0];
    let whole = [TO_ACCEPTOR, TO_DIALER, TO_ACCEPTOR].concat();
    let mut scripts = vec![
        whole.clone(),
        [&whole[..2], &[7], &replay(1, 1)].concat(),
        [&whole[..4], &[6], &replay(0, 2)].concat(),
        [replay(0, 0), vec![1, 0, 7], replay(1, 1), replay(0, 2)].concat(),
        [&[14, 100, 0, 1][..], &whole].concat(),
        [&whole[..2], &[15, 150, 0, 1], &whole[2..]].concat(),
        [&whole[..4], &[14, 70, 0, 1], &whole[4..]].concat(),
        [replay(0, 3), replay(0, 3)].concat(),
        vec![10, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0],
        vec![12, 8, 0, 0, 0, 0, 0, 0, 0, 0],
        vec![11, 4, 2, b'n', b'o', 0, 0],
    ];
    scripts.push([0, 7].repeat(40).into_iter().chain(whole).collect());
    let mut seeds = Vec::new();
    for secrets in 3..8 {
        for purpose in 0..3 {
            let start = [secrets, purpose, purpose & 1];
            seeds.extend(scripts.iter().map(|script| [&start[..], script].concat()));
        }
    }
    seeds
}
