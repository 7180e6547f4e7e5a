//! What a peer may say: the control machine and a directory, told anything at all.
//!
//! The peers have proved who they are and are broken or hostile: every message is well-formed and
//! none has to be true. Neither machine may panic, go back to an older view, believe that it may
//! serve longer than its lease, or do more for one message than a bound.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use siloring_core::limits::LEASE;
use siloring_core::ports::store::{Store, StoreAnswer, StoreError, StoreRequest};
use siloring_core::view::Vote;
use siloring_core::{
    ActivationNumber, Address, AddressHash, ClaimNumber, ClusterId, Endpoint, Generation, Moment,
    ShardIndex, SiloName, SiloRow, SiloStatus, View, ViewNumber,
};
use siloring_runtime::control::{
    Control, ControlConfig, ControlMessage, ControlOutput, ProbeNumber, Reach, Reached, ReadAge,
    ViewRows,
};
use siloring_runtime::directory::{
    Ask, Directory, DirectoryConfig, DirectoryMessage, DirectoryOutput, Holds, Item, ItemState,
    Key, Place, Rest, Span, Summary, TakeOver, Tell, Word,
};
use siloring_storage::MemoryStore;

use super::cast;
use super::tape::Tape;

/// Messages and local steps of one script.
const STEPS_MAX: usize = 200;
/// Effects of one input.
const OUTPUTS_MAX: usize = 4096;

pub(super) fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    match tape.below(2) {
        0 => talk_to_directory(&mut tape),
        _ => talk_to_control(&mut tape),
    }
}

// ---- the directory

fn talk_to_directory(tape: &mut Tape<'_>) {
    let mut shard = Shard::new();
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            return;
        }
        let before = shard.directory.view();
        shard.step(tape);
        assert!(shard.directory.view() >= before, "a view goes back");
        shard.drain();
    }
}

/// A directory, and what its shard has opened: it keeps to what it may ask for.
struct Shard {
    directory: Directory,
    view: Arc<View>,
    now: Moment,
    /// Activations and hubs that are registered, or about to be.
    open: BTreeSet<(Opened, Address)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Opened {
    Activation,
    Hub,
}

impl Shard {
    const ENDPOINT: Endpoint = Endpoint { silo: cast::OURS, shard: ShardIndex(0) };

    fn new() -> Self {
        let mut directory = Directory::new(DirectoryConfig::new(Self::ENDPOINT, 1));
        let (view, now) = (Arc::new(cast::view()), Moment::ZERO + Duration::from_secs(1));
        directory.handle_view(now, &view);
        Self { directory, view, now, open: BTreeSet::new() }
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(8) {
            0..=4 => {
                let from = endpoint(tape);
                self.directory.handle_message(self.now, from, directory_message(tape));
            }
            5 => self.act(tape),
            6 => {
                self.now += pause(tape);
                self.directory.tick(self.now);
            }
            _ => {
                self.view = Arc::new(next_view(&self.view, tape));
                self.directory.handle_view(self.now, &self.view);
            }
        }
    }

    /// What the shard itself does.
    fn act(&mut self, tape: &mut Tape<'_>) {
        let (address, now) = (address(tape), self.now);
        let activation = (Opened::Activation, address.clone());
        let hub = (Opened::Hub, address.clone());
        match tape.below(7) {
            0 if self.open.insert(activation.clone()) => self.directory.register(now, &address),
            1 if self.open.remove(&activation) => self.directory.unregister(now, &address),
            2 if self.open.insert(hub.clone()) => {
                self.directory.claim(now, &address, take_over(tape));
            }
            3 if self.open.remove(&hub) => self.directory.release(now, &address),
            4 => _ = self.directory.lookup(now, &address),
            5 => self.directory.refused(now, &address, place(tape)),
            _ => self.directory.learn(address.hash(), place(tape)),
        }
    }

    fn drain(&mut self) {
        let mut count = 0;
        while let Some(output) = self.directory.poll_output() {
            count += 1;
            assert!(count <= OUTPUTS_MAX, "one input has no end of effects");
            match output {
                DirectoryOutput::Send(to, _message) => {
                    assert_ne!(to, Self::ENDPOINT, "a directory sends itself nothing");
                }
                DirectoryOutput::RegistrationLost { address, .. } => {
                    self.open.remove(&(Opened::Activation, address));
                }
                DirectoryOutput::ClaimRefused { address, .. }
                | DirectoryOutput::ClaimLost { address, .. } => {
                    self.open.remove(&(Opened::Hub, address));
                }
                DirectoryOutput::Located { .. }
                | DirectoryOutput::Registered { .. }
                | DirectoryOutput::Claimed { .. }
                | DirectoryOutput::HandedOver
                | DirectoryOutput::Accuse(_)
                | DirectoryOutput::ViewWanted(_)
                | DirectoryOutput::Event(_) => {}
            }
        }
    }
}

/// The next view: some silo stands elsewhere.
fn next_view(view: &View, tape: &mut Tape<'_>) -> View {
    let mut rows = view.rows().to_vec();
    let index = usize::from(tape.byte()) % rows.len();
    let status = status(tape);
    let row = &mut rows[index];
    if row.incarnation.generation != cast::OURS && row.status < status {
        row.status = status;
    }
    View::new(ViewNumber(view.number().0 + 1), rows)
}

fn directory_message(tape: &mut Tape<'_>) -> DirectoryMessage {
    let view = view_number(tape);
    let word = match tape.below(16) {
        0 => Word::Relay { origin: endpoint(tape), to: endpoint(tape), message: inner(tape) },
        1..=8 => Word::Ask(ask(tape)),
        _ => Word::Tell(tell(tape)),
    };
    DirectoryMessage { view, word }
}

/// What is passed on: a message, or bytes that are none.
fn inner(tape: &mut Tape<'_>) -> Vec<u8> {
    if tape.is_odd() {
        return tape.bytes(40).to_vec();
    }
    let view = view_number(tape);
    DirectoryMessage { view, word: Word::Ask(ask(tape)) }.encode().as_slice().to_vec()
}

fn ask(tape: &mut Tape<'_>) -> Ask {
    let (hash, attempt) = (address(tape).hash(), tape.number());
    match tape.below(11) {
        0 => Ask::Lookup { hash },
        1 => Ask::Register { hash, attempt },
        2 => Ask::Unregister { hash, attempt },
        3 => {
            let held = tape.is_odd().then(|| claim_number(tape));
            Ask::Claim { hash, attempt, held, take_over: take_over(tape) }
        }
        4 => {
            let number = tape.is_odd().then(|| claim_number(tape));
            Ask::Release { hash, attempt, number }
        }
        5 => Ask::Refused { hash, place: place(tape) },
        6 => Ask::Assert { items: items(tape) },
        7 => Ask::HandOverAsk { span: span(tape), after: key(tape) },
        8 => Ask::HandOverDone { spans: spans(tape) },
        9 => Ask::Offer { spans: spans(tape) },
        _ => Ask::RecoverAsk { recovery: tape.number(), spans: spans(tape), after: key(tape) },
    }
}

fn tell(tape: &mut Tape<'_>) -> Tell {
    let (hash, attempt) = (address(tape).hash(), tape.number());
    match tape.below(15) {
        0 => Tell::Located { hash, place: tape.is_odd().then(|| place(tape)) },
        1 => Tell::Registered { hash, attempt, winner: place(tape) },
        2 => Tell::Unregistered { hash, attempt },
        3 => Tell::Claimed { hash, attempt, number: claim_number(tape) },
        4 => Tell::ClaimRefused { hash, attempt, holder: place(tape) },
        5 => Tell::Released { hash, attempt },
        6 => Tell::Moving { hash },
        7 => Tell::Newer,
        8 => Tell::Verify { hash, place: place(tape), attempt },
        9 => {
            let holds = if tape.is_odd() { Holds::Yes } else { Holds::No };
            Tell::Verified { hash, place: place(tape), holds }
        }
        10 => {
            let number = place(tape).number;
            Tell::Evict { hash, attempt, number, winner: place(tape) }
        }
        11 => Tell::Evicted { hash, attempt },
        12 => Tell::HandOverPiece {
            span: span(tape),
            after: key(tape),
            items: items(tape),
            last: tape.is_odd().then(|| summary(tape)),
        },
        13 => Tell::HandOverNone { span: span(tape) },
        _ => Tell::RecoverAnswer {
            recovery: tape.number(),
            after: key(tape),
            items: items(tape),
            rest: if tape.is_odd() { Rest::More } else { Rest::None },
        },
    }
}

fn address(tape: &mut Tape<'_>) -> Address {
    let number = tape.below(6);
    Address::parse(&format!("room/{number}")).expect("an address")
}

fn endpoint(tape: &mut Tape<'_>) -> Endpoint {
    let shard = ShardIndex(if tape.is_odd() { tape.short() } else { tape.short() % 2 });
    Endpoint { silo: generation(tape), shard }
}

fn generation(tape: &mut Tape<'_>) -> Generation {
    match tape.below(6) {
        0 | 1 => cast::PEER,
        2 => cast::OTHER,
        3 => cast::GONE,
        4 => cast::OURS,
        _ => Generation(tape.number()),
    }
}

fn view_number(tape: &mut Tape<'_>) -> ViewNumber {
    match tape.below(4) {
        0 | 1 => cast::VIEW,
        2 => ViewNumber(cast::VIEW.0 + u64::from(tape.below(4))),
        _ => ViewNumber(tape.number()),
    }
}

fn place(tape: &mut Tape<'_>) -> Place {
    let number = ActivationNumber { view: view_number(tape), counter: tape.number() };
    Place { endpoint: endpoint(tape), number }
}

fn claim_number(tape: &mut Tape<'_>) -> ClaimNumber {
    ClaimNumber { view: view_number(tape), counter: tape.number() }
}

fn take_over(tape: &mut Tape<'_>) -> TakeOver {
    if tape.is_odd() { TakeOver::Yes } else { TakeOver::No }
}

fn key(tape: &mut Tape<'_>) -> Option<Key> {
    match tape.below(3) {
        0 => None,
        1 => Some(Key::of(address(tape).hash())),
        _ => Some(Key(u128::from(tape.number()) << 64 | u128::from(tape.number()))),
    }
}

/// Any span, also one that ends before it begins.
fn span(tape: &mut Tape<'_>) -> Span {
    match tape.below(4) {
        0 => Span::WHOLE,
        1 => {
            let at = position(address(tape).hash());
            Span { first: at, last: at }
        }
        _ => Span { first: tape.number(), last: tape.number() },
    }
}

const fn position(hash: AddressHash) -> u64 {
    siloring_core::ring::position(hash)
}

fn spans(tape: &mut Tape<'_>) -> Vec<Span> {
    (0..tape.below(4)).map(|_| span(tape)).collect()
}

fn items(tape: &mut Tape<'_>) -> Vec<Item> {
    (0..tape.below(4)).map(|_| item(tape)).collect()
}

fn item(tape: &mut Tape<'_>) -> Item {
    let state = match tape.below(5) {
        0 => ItemState::Registered,
        1 => ItemState::Registering,
        2 => ItemState::Claimed,
        3 => ItemState::Claiming,
        _ => ItemState::Released { left_ms: tape.number() },
    };
    let key = key(tape).unwrap_or(Key(0));
    Item { key, place: place(tape), attempt: tape.number(), state }
}

fn summary(tape: &mut Tape<'_>) -> Summary {
    Summary { count: tape.number(), hash: tape.number() }
}

fn pause(tape: &mut Tape<'_>) -> Duration {
    let millis = tape.short();
    Duration::from_millis(if tape.is_odd() { u64::from(millis) } else { u64::from(millis) / 64 })
}

fn status(tape: &mut Tape<'_>) -> SiloStatus {
    match tape.below(4) {
        0 => SiloStatus::Joining,
        1 => SiloStatus::Active,
        2 => SiloStatus::Draining,
        _ => SiloStatus::Dead,
    }
}

// ---- the control machine

fn talk_to_control(tape: &mut Tape<'_>) {
    let mut silo = Silo::new();
    for _ in 0..STEPS_MAX {
        if tape.is_over() || silo.has_ended {
            return;
        }
        let before = silo.control.view().number();
        silo.step(tape);
        silo.drain();
        assert!(silo.control.view().number() >= before, "a view goes back");
    }
}

/// A control machine with a store of its own, in a cluster where others are Active.
struct Silo {
    control: Control,
    store: MemoryStore,
    is_store_down: bool,
    now: Moment,
    has_ended: bool,
}

impl Silo {
    fn new() -> Self {
        let mut store = MemoryStore::new(ClusterId::new("fuzz").expect("a plain name"));
        let peers = [
            (cast::GONE, SiloStatus::Dead),
            (cast::PEER, SiloStatus::Active),
            (cast::OTHER, SiloStatus::Active),
        ];
        let mut version = ViewNumber::ZERO;
        for (silo, status) in peers {
            for status in [SiloStatus::Joining, status] {
                let next = version.next();
                let mut row = cast::row(silo, status);
                row.incarnation.generation = peer(silo);
                let request = StoreRequest::WriteRow { expected: version, next, row };
                store.execute(&request).expect("a first write");
                version = next;
            }
        }
        let name = SiloName::new("silo-2").expect("a plain name");
        let config = ControlConfig::new(name, "127.0.0.1:7002", "host", cast::SHARDS, Vec::new());
        let control = Control::new(config, fastrand::Rng::with_seed(1));
        let now = Moment::ZERO + Duration::from_secs(1);
        let mut silo = Self { control, store, is_store_down: false, now, has_ended: false };
        silo.control.start(now);
        silo.join();
        silo
    }

    /// Joins: its peers are reached, and reach back.
    fn join(&mut self) {
        for _ in 0..200 {
            self.drain();
            self.now += Duration::from_millis(50);
            for silo in [cast::PEER, cast::OTHER].map(peer) {
                self.control.handle_reach(self.now, silo, Reach::Connected);
                for number in 0..64 {
                    let number = ProbeNumber(number);
                    let reached = Reached::Yes;
                    let message = ControlMessage::ReachedBack { number, reached };
                    self.control.handle_message(self.now, silo, message);
                }
            }
            self.control.tick(self.now);
            if self.control.status() == Some(SiloStatus::Active) {
                return;
            }
        }
        panic!("the silo joins: {:?}", self.control);
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        let from = peer(generation(tape));
        match tape.below(8) {
            0..=3 => self.control.handle_message(self.now, from, control_message(tape)),
            4 => self.control.handle_reach(self.now, from, reach(tape)),
            5 => {
                self.control.heard(self.now, from);
                self.control.accuse(self.now, from);
            }
            6 => self.is_store_down = tape.is_odd(),
            _ => {
                self.now += pause(tape);
                self.control.tick(self.now);
            }
        }
    }

    /// Does what it wants done, the store's part at once.
    fn drain(&mut self) {
        let mut count = 0;
        while let Some(output) = self.control.poll_output() {
            count += 1;
            assert!(count <= OUTPUTS_MAX, "one input has no end of effects");
            match output {
                ControlOutput::Store(ticket, request) => {
                    let result = self.answer(&request);
                    self.control.handle_store(self.now, ticket, result);
                }
                ControlOutput::ServeUntil(until) => {
                    assert!(until <= self.now + LEASE, "it serves longer than its lease");
                }
                ControlOutput::JoinFailed(_) | ControlOutput::Left | ControlOutput::Exit(_) => {
                    self.has_ended = true;
                }
                ControlOutput::Send(..)
                | ControlOutput::Connect(..)
                | ControlOutput::Reconnect(..)
                | ControlOutput::Inquire(_)
                | ControlOutput::Named(_)
                | ControlOutput::View(_)
                | ControlOutput::Started
                | ControlOutput::Stalled { .. }
                | ControlOutput::Abort { .. }
                | ControlOutput::Event(_) => {}
            }
        }
    }

    fn answer(&mut self, request: &StoreRequest) -> Result<StoreAnswer, StoreError> {
        if self.is_store_down {
            return Err(StoreError::NotSent { detail: "down".to_owned() });
        }
        self.store.execute(request)
    }
}

/// The generation that the store gave to one of the cast.
const fn peer(silo: Generation) -> Generation {
    match silo {
        cast::GONE => Generation(1),
        cast::PEER => Generation(3),
        cast::OTHER => Generation(5),
        cast::OURS => Generation(7),
        _ => silo,
    }
}

fn reach(tape: &mut Tape<'_>) -> Reach {
    match tape.below(5) {
        0 => Reach::Connected,
        1 => Reach::Broken,
        2 => Reach::Refused,
        3 => Reach::Silent,
        _ => Reach::Disowned,
    }
}

fn control_message(tape: &mut Tape<'_>) -> ControlMessage {
    let (number, view) = (ProbeNumber(tape.number()), view_number(tape));
    let reached = if tape.is_odd() { Reached::Yes } else { Reached::No };
    match tape.below(8) {
        0 => ControlMessage::Probe { number, view },
        1 => ControlMessage::ProbeAnswer {
            number,
            view,
            read: tape.is_odd().then(|| ReadAge { nanos: tape.number() }),
            progress: (0..tape.below(4)).map(|_| tape.number()).collect(),
            newer: tape.is_odd().then(|| view_rows(tape)),
        },
        2 => ControlMessage::Relay { number, target: peer(generation(tape)) },
        3 => ControlMessage::RelayAnswer { number, reached },
        4 => ControlMessage::Newer(view_rows(tape)),
        5 => ControlMessage::ReachBack { number, view },
        6 => ControlMessage::ReachedBack { number, reached },
        _ => ControlMessage::Goodbye,
    }
}

fn view_rows(tape: &mut Tape<'_>) -> ViewRows {
    let number = view_number(tape);
    let rows = (0..tape.below(6)).map(|_| silo_row(tape)).collect();
    ViewRows { number, rows }
}

fn silo_row(tape: &mut Tape<'_>) -> SiloRow {
    let silo = generation(tape);
    let status = status(tape);
    let mut row = cast::row(silo, status);
    row.incarnation.generation = peer(silo);
    if tape.is_odd() {
        row.shards = tape.short();
        let vote =
            |tape: &mut Tape<'_>| Vote { by: peer(generation(tape)), heartbeat: tape.number() };
        row.votes = (0..tape.below(4)).map(|_| vote(tape)).collect();
        row.changed_in = view_number(tape);
    }
    row
}

/// Short talks in which every message occurs, true ones first.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for machine in 0..2 {
        for step in 0..8_u8 {
            for variant in 0..16_u8 {
                let word = [step, 0, variant, 0, variant, step, 1, variant, 0, 1, 2];
                seeds.push([&[machine], &word.repeat(3)[..]].concat());
            }
        }
    }
    seeds
}
