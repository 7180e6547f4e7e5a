//! Silos with plain facts, and the moving of bytes between two handshakes.

use std::sync::Arc;

use siloring_core::limits::{DEADLINE_DEFAULT, FRAME_BYTES_MAX};
use siloring_core::view::SiloStatus;
use siloring_core::{
    ClusterId, Generation, Incarnation, ShardIndex, SiloName, SiloRow, View, ViewNumber,
};
use siloring_transport::{
    Established, Handshake, Link, LocalFacts, Purpose, Refusal, Role, Secret, Step, WireVersions,
};

/// The generations of the two silos of most tests.
pub(crate) const DIALER: u64 = 3;
pub(crate) const ACCEPTOR: u64 = 2;

pub(crate) fn incarnation(generation: u64) -> Incarnation {
    let name = SiloName::new(format!("silo-{generation}")).unwrap();
    Incarnation { name, generation: Generation(generation) }
}

pub(crate) fn facts(generation: u64) -> LocalFacts {
    LocalFacts {
        cluster: ClusterId::new("demo").unwrap(),
        incarnation: Some(incarnation(generation)),
        shards: 2,
        host: "host".into(),
        deadline_default: DEADLINE_DEFAULT,
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap(),
        secrets: Vec::new(),
        types: Vec::new(),
        wire: WireVersions::OURS,
        features: 0,
    }
}

pub(crate) fn secret(fill: u8) -> Secret {
    Secret::new(vec![fill; 32]).unwrap()
}

pub(crate) fn with_secrets(generation: u64, fills: &[u8]) -> LocalFacts {
    LocalFacts { secrets: fills.iter().copied().map(secret).collect(), ..facts(generation) }
}

pub(crate) fn row(generation: u64, status: SiloStatus) -> SiloRow {
    SiloRow {
        incarnation: incarnation(generation),
        status,
        advertised: "127.0.0.1:7000".into(),
        host: "host".into(),
        shards: 2,
        votes: Vec::new(),
        changed_in: ViewNumber(generation),
    }
}

pub(crate) fn view(rows: Vec<SiloRow>) -> View {
    View::new(ViewNumber(10), rows)
}

/// A view in which both silos are Active.
pub(crate) fn both_active() -> View {
    view(vec![row(DIALER, SiloStatus::Active), row(ACCEPTOR, SiloStatus::Active)])
}

pub(crate) fn data_purpose() -> Purpose {
    Purpose::Shard { from: ShardIndex(1), to: ShardIndex(0) }
}

pub(crate) fn dial(facts: LocalFacts) -> Handshake {
    Handshake::dial(Arc::new(facts), data_purpose(), None, [0xd1; 32])
}

pub(crate) fn accept(facts: LocalFacts) -> Handshake {
    Handshake::accept(Arc::new(facts), [0xac; 32])
}

/// Takes what is to be sent.
pub(crate) fn take(handshake: &mut Handshake) -> Vec<u8> {
    let bytes = handshake.unsent().to_vec();
    handshake.sent(bytes.len());
    bytes
}

/// How one side of a handshake ended.
#[derive(Debug)]
pub(crate) enum End {
    Open,
    Up(Box<Established>),
    Refused(Refusal),
}

impl End {
    pub(crate) fn up(self) -> Established {
        match self {
            Self::Up(established) => *established,
            Self::Open | Self::Refused(_) => panic!("not up: {self:?}"),
        }
    }

    pub(crate) fn refused(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Open | Self::Up(_) => panic!("not refused: {self:?}"),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// Hands bytes to a side that is still open, in pieces of the given sizes.
    pub(crate) fn feed(
        &mut self,
        side: &mut Handshake,
        bytes: &[u8],
        view: &View,
        mut piece_bytes: impl FnMut() -> usize,
    ) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece_bytes().clamp(1, rest.len()));
            rest = behind;
            match self {
                Self::Up(established) => established.leftover.extend_from_slice(piece),
                Self::Refused(_) => {}
                Self::Open => match side.handle_bytes(piece, view) {
                    Step::Continue => {}
                    Step::Up(established) => *self = Self::Up(Box::new(established)),
                    Step::Refused(refusal) => *self = Self::Refused(refusal),
                },
            }
        }
    }
}

/// Both ends of a finished exchange.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) dialer: End,
    pub(crate) acceptor: End,
}

/// Moves bytes in both directions until nothing moves.
pub(crate) fn exchange(dialer: &mut Handshake, acceptor: &mut Handshake, view: &View) -> Ends {
    exchange_in_pieces(dialer, acceptor, view, || usize::MAX)
}

pub(crate) fn exchange_in_pieces(
    dialer: &mut Handshake,
    acceptor: &mut Handshake,
    view: &View,
    mut piece_bytes: impl FnMut() -> usize,
) -> Ends {
    let mut ends = Ends { dialer: End::Open, acceptor: End::Open };
    loop {
        let mut to_acceptor = take(dialer);
        if let End::Up(established) = &mut ends.dialer {
            to_acceptor.append(&mut established.unsent);
        }
        let to_dialer = take(acceptor);
        if to_acceptor.is_empty() && to_dialer.is_empty() {
            return ends;
        }
        ends.acceptor.feed(acceptor, &to_acceptor, view, &mut piece_bytes);
        ends.dialer.feed(dialer, &to_dialer, view, &mut piece_bytes);
    }
}

/// Both ends of a link, without the bytes of its handshake.
pub(crate) struct Pair {
    pub(crate) dialer: Link,
    pub(crate) acceptor: Link,
}

pub(crate) fn links(dialer: LocalFacts, acceptor: LocalFacts, purpose: Purpose) -> Pair {
    let mut dialer = Handshake::dial(Arc::new(dialer), purpose, None, [0xd1; 32]);
    let mut acceptor = accept(acceptor);
    let ends = exchange(&mut dialer, &mut acceptor, &both_active());
    let (dialer, acceptor) = (ends.dialer.up(), ends.acceptor.up());
    assert_eq!((dialer.role, acceptor.role), (Role::Dialer, Role::Acceptor));
    Pair { dialer: Link::new(&dialer), acceptor: Link::new(&acceptor) }
}

pub(crate) fn data_links() -> Pair {
    links(facts(DIALER), facts(ACCEPTOR), data_purpose())
}

/// Moves all that is to be sent into the other end, as far as it has room.
pub(crate) fn carry(from: &mut Link, to: &mut Link) -> usize {
    carry_some(from, to, usize::MAX)
}

/// Moves at most `limit` bytes.
pub(crate) fn carry_some(from: &mut Link, to: &mut Link, limit: usize) -> usize {
    let space = to.receive_space();
    let count = space.len().min(from.unsent().len()).min(limit);
    space[..count].copy_from_slice(&from.unsent()[..count]);
    to.received(count);
    from.sent(count);
    count
}
