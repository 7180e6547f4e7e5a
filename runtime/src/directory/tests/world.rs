//! Several silos of directories on virtual time: messages that are late, lost or cut off, views
//! that arrive late or are jumped over, and what must hold after each step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use siloring_core::event::Event;
use siloring_core::{
    ActivationNumber, Address, AddressHash, Endpoint, Generation, Incarnation, Moment, ShardIndex,
    SiloName, SiloRow, SiloStatus, View, ViewNumber,
};

use crate::directory::message::{Ask, Tell, Word};
use crate::directory::segments::Standing;
use crate::directory::span::{Key, Span, joined};
use crate::directory::{
    Directory, DirectoryConfig, DirectoryMessage, DirectoryOutput, Lookup, Place, Planted,
    TakeOver, Usage,
};

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) at: Moment,
    pub(super) from: Endpoint,
    pub(super) to: Endpoint,
    pub(super) message: DirectoryMessage,
}

/// What was told of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing yet.
    Open,
    /// That the address has no home.
    Absent,
    /// Its home.
    At(Place),
}

impl Answer {
    pub(super) const fn place(self) -> Option<Place> {
        match self {
            Self::At(place) => Some(place),
            Self::Open | Self::Absent => None,
        }
    }
}

/// How long things take, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    pub(super) message_us: (u64, u64),
    pub(super) view_us: (u64, u64),
}

/// Everything prompt and the same each time.
pub(super) const PROMPT: Delays = Delays { message_us: (1000, 1000), view_us: (100, 100) };
/// Everything late, and never in the same order.
pub(super) const ERRATIC: Delays = Delays { message_us: (100, 40_000), view_us: (500, 400_000) };

/// The silos, the wires between them, and what the directories have told.
pub(super) struct World {
    pub(super) now: Moment,
    pub(super) rng: fastrand::Rng,
    pub(super) delays: Delays,
    planted: Planted,
    shards: u16,
    rows: BTreeMap<Generation, SiloRow>,
    pub(super) view: Arc<View>,
    directories: BTreeMap<Endpoint, Directory>,
    lanes: BTreeMap<(Generation, Generation), VecDeque<Parcel>>,
    /// Pairs whose messages are dropped.
    pub(super) blocked: BTreeSet<(Generation, Generation)>,
    /// Silos that hear of no view.
    pub(super) blind: BTreeSet<Generation>,
    view_due: BTreeMap<Endpoint, Moment>,
    /// Who believes to hold what.
    pub(super) held: BTreeMap<AddressHash, BTreeMap<Endpoint, ActivationNumber>>,
    /// The newest number that anybody was told, by address.
    newest: BTreeMap<AddressHash, ActivationNumber>,
    /// What was told, until taken.
    pub(super) told: Vec<(Endpoint, DirectoryOutput)>,
    /// What was sent to other endpoints, until taken.
    pub(super) sent: Vec<Parcel>,
    /// What was said how often.
    pub(super) said: BTreeMap<&'static str, u64>,
    pub(super) accused: BTreeSet<Generation>,
    pub(super) handed_over: BTreeSet<Endpoint>,
    /// What must never be.
    pub(super) violations: Vec<String>,
    moved: bool,
}

// ---- silos and views
impl World {
    pub(super) fn new(seed: u64, shards: u16, delays: Delays, planted: Planted) -> Self {
        Self {
            now: Moment::from_nanos(1_000_000_000),
            rng: fastrand::Rng::with_seed(seed),
            delays,
            planted,
            shards,
            rows: BTreeMap::new(),
            view: Arc::default(),
            directories: BTreeMap::new(),
            lanes: BTreeMap::new(),
            blocked: BTreeSet::new(),
            blind: BTreeSet::new(),
            view_due: BTreeMap::new(),
            held: BTreeMap::new(),
            newest: BTreeMap::new(),
            told: Vec::new(),
            sent: Vec::new(),
            said: BTreeMap::new(),
            accused: BTreeSet::new(),
            handed_over: BTreeSet::new(),
            violations: Vec::new(),
            moved: false,
        }
    }

    /// A world of `silos` Active silos that has settled.
    pub(super) fn settled(silos: usize, shards: u16, planted: Planted) -> Self {
        let mut world = Self::new(7, shards, PROMPT, planted);
        for _ in 0..silos {
            let silo = world.join();
            world.set(silo, SiloStatus::Active);
        }
        world.run_for(Duration::from_secs(3));
        world.assert_whole();
        world
    }

    /// A new silo, Joining.
    pub(super) fn join(&mut self) -> Generation {
        let generation = Generation::of(self.view.number().next());
        let row = SiloRow {
            incarnation: Incarnation { name: SiloName::new("pod").unwrap(), generation },
            status: SiloStatus::Joining,
            advertised: "127.0.0.1:7000".into(),
            host: "host".into(),
            shards: self.shards,
            votes: Vec::new(),
            changed_in: generation.view(),
        };
        self.rows.insert(generation, row);
        for shard in 0..self.shards {
            let endpoint = Endpoint { silo: generation, shard: ShardIndex(shard) };
            let mut config = DirectoryConfig::new(endpoint, self.rng.u64(..));
            config.planted = self.planted;
            config.piece_items = 2;
            self.directories.insert(endpoint, Directory::new(config));
        }
        self.publish();
        generation
    }

    /// Writes a silo's status.
    pub(super) fn set(&mut self, silo: Generation, status: SiloStatus) {
        self.rows.get_mut(&silo).unwrap().status = status;
        self.publish();
    }

    /// A view in which nothing but its number is new: somebody voted.
    pub(super) fn publish(&mut self) {
        let number: ViewNumber = self.view.number().next();
        self.view = Arc::new(View::new(number, self.rows.values().cloned().collect()));
        for endpoint in self.directories.keys() {
            let (low, high) = self.delays.view_us;
            let at = self.now + Duration::from_micros(self.rng.u64(low..=high));
            let due = self.view_due.entry(*endpoint).or_insert(at);
            *due = (*due).min(at);
        }
    }

    /// The process is gone; its row stays as it is.
    pub(super) fn kill(&mut self, silo: Generation) {
        self.directories.retain(|endpoint, _| endpoint.silo != silo);
        self.lanes.retain(|(from, to), _| *from != silo && *to != silo);
        self.view_due.retain(|endpoint, _| endpoint.silo != silo);
        self.told.retain(|(endpoint, _)| endpoint.silo != silo);
        for holders in self.held.values_mut() {
            holders.retain(|endpoint, _| endpoint.silo != silo);
        }
    }

    /// Killed, and declared Dead.
    pub(super) fn kill_and_bury(&mut self, silo: Generation) {
        self.kill(silo);
        self.set(silo, SiloStatus::Dead);
    }

    /// All that was on its way between the two is lost.
    pub(super) fn cut(&mut self, a: Generation, b: Generation) {
        self.lanes.remove(&(a, b));
        self.lanes.remove(&(b, a));
    }

    /// Nothing passes between the two any more.
    pub(super) fn block(&mut self, a: Generation, b: Generation) {
        self.cut(a, b);
        self.blocked.extend([(a, b), (b, a)]);
    }

    pub(super) fn lives(&self, silo: Generation) -> bool {
        self.directories.keys().any(|endpoint| endpoint.silo == silo)
    }

    /// Silos whose process lives and whose row says so.
    pub(super) fn silos(&self, status: SiloStatus) -> Vec<Generation> {
        let rows =
            self.rows.iter().filter(|(silo, row)| row.status == status && self.lives(**silo));
        rows.map(|(silo, _)| *silo).collect()
    }

    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.directories.keys().copied().collect()
    }

    pub(super) fn usage(&self, at: Endpoint) -> Usage {
        self.directories[&at].usage()
    }

    /// An address whose range in the newest view is owned by `owner`.
    pub(super) fn address_at(&self, owner: Endpoint) -> Address {
        self.addresses_at(owner).next().unwrap()
    }

    /// Addresses whose range in the newest view is owned by `owner`.
    pub(super) fn addresses_at(&self, owner: Endpoint) -> impl Iterator<Item = Address> + use<> {
        let view = Arc::clone(&self.view);
        (0..).map(|index| Address::of("portal", &format!("{index}")).unwrap()).filter(
            move |address| view.ring().owner(Key::of(address.hash()).position()) == Some(owner),
        )
    }
}

// ---- time
impl World {
    pub(super) fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    /// Runs until `done`, at most for `span`. Whether it was.
    pub(super) fn run_until(&mut self, span: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + span;
        while !done(self) {
            if !self.step(end) {
                self.now = end;
                return false;
            }
        }
        true
    }

    /// Does the next thing that is due by `end`.
    fn step(&mut self, end: Moment) -> bool {
        let lane = self.lanes.iter().filter_map(|(lane, q)| Some((q.front()?.at, *lane))).min();
        let view = self.view_due.iter().map(|(endpoint, at)| (*at, *endpoint)).min();
        let tick = self.directories.values().map(|d| (d.next_deadline(), d.endpoint())).min();
        let lane_at = lane.map_or(Moment::NEVER, |(at, _)| at);
        let view_at = view.map_or(Moment::NEVER, |(at, _)| at);
        let tick_at = tick.map_or(Moment::NEVER, |(at, _)| at);
        let at = lane_at.min(view_at).min(tick_at);
        if at > end {
            return false;
        }
        self.now = self.now.max(at);
        match (lane, view, tick) {
            (Some((when, lane)), ..) if when == at => self.deliver(lane),
            (_, Some((when, endpoint)), _) if when == at => self.show(endpoint),
            (.., Some((_, endpoint))) => {
                let directory = self.directories.get_mut(&endpoint).unwrap();
                directory.tick(self.now);
                assert!(
                    directory.next_deadline() > self.now,
                    "I14: no timer overdue after its tick"
                );
                self.collect(endpoint);
            }
            _ => unreachable!("something was due"),
        }
        true
    }

    fn deliver(&mut self, lane: (Generation, Generation)) {
        let Some(parcel) = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front) else {
            return;
        };
        let Parcel { from, to, message, .. } = parcel;
        let Some(directory) = self.directories.get_mut(&to) else {
            return;
        };
        let bytes = message.encode();
        let message = DirectoryMessage::decode(bytes.as_slice()).unwrap();
        directory.handle_message(self.now, from, message);
        self.collect(to);
    }

    fn show(&mut self, endpoint: Endpoint) {
        self.view_due.remove(&endpoint);
        if self.blind.contains(&endpoint.silo) {
            return;
        }
        let view = Arc::clone(&self.view);
        self.directories.get_mut(&endpoint).unwrap().handle_view(self.now, &view);
        self.moved = true;
        self.collect(endpoint);
    }

    /// Shows the newest view to a silo now.
    pub(super) fn show_to(&mut self, silo: Generation) {
        self.blind.remove(&silo);
        for endpoint in self.endpoints().into_iter().filter(|endpoint| endpoint.silo == silo) {
            self.show(endpoint);
        }
    }
}

// ---- effects
impl World {
    fn collect(&mut self, at: Endpoint) {
        while let Some(output) = self.directories.get_mut(&at).unwrap().poll_output() {
            self.carry_out(at, output);
        }
        if core::mem::take(&mut self.moved) {
            self.check_owners();
        }
    }

    fn carry_out(&mut self, at: Endpoint, output: DirectoryOutput) {
        match &output {
            DirectoryOutput::Send(to, message) => {
                self.send(at, *to, message.clone());
                return;
            }
            DirectoryOutput::Located { address, result: Ok(None), .. } => {
                let owner = self.directories[&at]
                    .core
                    .view
                    .ring()
                    .owner(Key::of(address.hash()).position());
                if owner == Some(at) {
                    self.check_miss(at, address.hash());
                }
            }
            DirectoryOutput::Registered { address, number } => {
                self.hold(at, address.hash(), *number);
            }
            DirectoryOutput::Claimed { address, number } => {
                self.hold(at, address.hash(), Place::of_claim(at, *number).number);
            }
            DirectoryOutput::RegistrationLost { address, .. }
            | DirectoryOutput::ClaimRefused { address, .. }
            | DirectoryOutput::ClaimLost { address, .. } => self.let_go(at, address.hash()),
            DirectoryOutput::HandedOver => {
                self.handed_over.insert(at);
            }
            DirectoryOutput::Accuse(silo) => {
                self.accused.insert(*silo);
            }
            DirectoryOutput::ViewWanted(_) => {
                let soon = self.now + Duration::from_micros(200);
                let due = self.view_due.entry(at).or_insert(soon);
                *due = (*due).min(soon);
            }
            DirectoryOutput::Event(event) => {
                self.moved |= matches!(event, Event::RangeServed { .. });
                return;
            }
            DirectoryOutput::Located { .. } => {}
        }
        self.told.push((at, output));
    }

    fn send(&mut self, from: Endpoint, to: Endpoint, message: DirectoryMessage) {
        assert_ne!(from, to, "what a directory says to itself never leaves it");
        if let Word::Tell(Tell::Located { hash, place: None }) = &message.word {
            self.check_miss(from, *hash);
        }
        if let Word::Tell(Tell::Evict { hash, winner, .. }) = &message.word {
            let newest = self.newest.entry(*hash).or_insert(winner.number);
            *newest = winner.number.max(*newest);
        }
        let (low, high) = self.delays.message_us;
        let at = self.now + Duration::from_micros(self.rng.u64(low..=high));
        let mut parcel = Parcel { at, from, to, message };
        *self.said.entry(name(&parcel.message.word)).or_default() += 1;
        self.sent.push(parcel.clone());
        let lane = (from.silo, to.silo);
        if self.blocked.contains(&lane) || !self.lives(to.silo) {
            return;
        }
        let lane = self.lanes.entry(lane).or_default();
        parcel.at = lane.back().map_or(at, |last| last.at.max(at));
        lane.push_back(parcel);
    }

    fn hold(&mut self, at: Endpoint, hash: AddressHash, number: ActivationNumber) {
        let holders = self.held.entry(hash).or_default();
        let newest = self.newest.entry(hash).or_insert(number);
        *newest = number.max(*newest);
        let same = holders.values().any(|known| *known == number);
        holders.insert(at, number);
        if same {
            self.violations.push(format!("I12: {hash:?} has the number {number:?} twice"));
        }
    }

    fn let_go(&mut self, at: Endpoint, hash: AddressHash) {
        if let Some(holders) = self.held.get_mut(&hash) {
            holders.remove(&at);
        }
    }

    /// Who holds an address, newest last.
    pub(super) fn holders(&self, hash: AddressHash) -> Vec<Place> {
        let Some(holders) = self.held.get(&hash) else {
            return Vec::new();
        };
        let mut all: Vec<_> = holders
            .iter()
            .map(|(endpoint, number)| Place { endpoint: *endpoint, number: *number })
            .collect();
        all.sort_unstable_by_key(|place| place.number);
        all
    }
}

// ---- commands
impl World {
    /// Runs a command of one directory.
    pub(super) fn at<T>(
        &mut self,
        at: Endpoint,
        command: impl FnOnce(&mut Directory, Moment) -> T,
    ) -> T {
        let result = command(self.directories.get_mut(&at).unwrap(), self.now);
        self.collect(at);
        result
    }

    pub(super) fn lookup(&mut self, at: Endpoint, address: &Address) -> Lookup {
        self.at(at, |directory, now| directory.lookup(now, address))
    }

    pub(super) fn register(&mut self, at: Endpoint, address: &Address) {
        self.at(at, |directory, now| directory.register(now, address));
    }

    pub(super) fn unregister(&mut self, at: Endpoint, address: &Address) {
        self.let_go(at, address.hash());
        self.at(at, |directory, now| directory.unregister(now, address));
    }

    pub(super) fn claim(&mut self, at: Endpoint, address: &Address, take_over: TakeOver) {
        self.at(at, |directory, now| {
            directory.claim(now, address, take_over);
        });
    }

    pub(super) fn release(&mut self, at: Endpoint, address: &Address) {
        self.let_go(at, address.hash());
        self.at(at, |directory, now| directory.release(now, address));
    }

    /// Asks without the cache, and waits for the answer.
    pub(super) fn find(&mut self, at: Endpoint, address: &Address) -> Option<Place> {
        self.at(at, |directory, _| directory.forget(address.hash(), None));
        self.told.clear();
        self.lookup(at, address);
        let found = |world: &Self| world.located(at, address) != Answer::Open;
        let minute = Duration::from_mins(1);
        assert!(self.run_until(minute, found), "{address} is looked up in vain");
        self.located(at, address).place()
    }

    /// What was told of a look-up.
    pub(super) fn located(&self, at: Endpoint, address: &Address) -> Answer {
        let answer = self.told.iter().find_map(|(who, output)| {
            if let DirectoryOutput::Located { address: asked, result, .. } = output
                && *who == at
                && asked == address
            {
                return Some(result.unwrap().map_or(Answer::Absent, Answer::At));
            }
            None
        });
        answer.unwrap_or(Answer::Open)
    }

    /// The entry of an address vanishes at its owner.
    pub(super) fn drop_entry(&mut self, address: &Address) {
        let key = Key::of(address.hash());
        let owner = self.view.ring().owner(key.position()).unwrap();
        self.directories.get_mut(&owner).unwrap().partition.drop_entry(key);
    }

    /// Messages about an address that were sent since this was last asked, as they were sent.
    pub(super) fn asks(&mut self, wanted: impl Fn(&Ask) -> bool) -> Vec<Parcel> {
        let sent = core::mem::take(&mut self.sent);
        let wanted = |parcel: &Parcel| match &parcel.message.word {
            Word::Ask(ask) => wanted(ask),
            Word::Tell(_) | Word::Relay { .. } => false,
        };
        sent.into_iter().filter(wanted).collect()
    }
}

// ---- what must hold
impl World {
    /// I6: at most one living shard serves a position.
    fn check_owners(&mut self) {
        let mut all: Vec<(Span, Endpoint)> = Vec::new();
        for (endpoint, directory) in &self.directories {
            // A silo that is Dead in the newest view has fenced itself before.
            if !self.view.is_gone(endpoint.silo) {
                let segments = directory.partition.segments().all();
                let serving = segments.iter().filter(|s| s.standing == Standing::Serving);
                all.extend(serving.map(|segment| (segment.span, *endpoint)));
            }
        }
        all.sort_unstable();
        for pair in all.windows(2) {
            if pair[0].0.last >= pair[1].0.first {
                self.violations.push(format!("I6: two owners: {pair:?}"));
            }
        }
    }

    /// A miss is the truth. Whoever was superseded and has not heard of it yet is no home.
    fn check_miss(&mut self, owner: Endpoint, hash: AddressHash) {
        let view = &self.directories[&owner].core.view;
        let newest = self.newest.get(&hash).copied();
        let is_home =
            |place: &&Place| Some(place.number) == newest && !view.is_gone(place.endpoint.silo);
        if let Some(holder) = self.holders(hash).iter().find(is_home) {
            self.violations.push(format!("wrong miss: {owner:?} denies {hash:?} at {holder:?}"));
        }
    }

    /// The ring is served, whole.
    pub(super) fn assert_whole(&self) {
        let serving = self.directories.values().flat_map(|d| d.partition.segments().serving());
        assert_eq!(joined(serving), vec![Span::WHOLE], "the ring is whole");
    }

    /// Nothing is under way, and each directory knows what is held and no more.
    pub(super) fn check_rest(&mut self) {
        let held: usize = self.held.values().map(BTreeMap::len).sum();
        let mut entries = 0;
        for directory in self.directories.values() {
            let usage = directory.usage();
            entries += usage.entries - usage.tombstones;
            if usage.lookups + usage.parked + usage.underway > 0 {
                self.violations
                    .push(format!("{:?} is not at rest: {usage:?}", directory.endpoint()));
            }
        }
        if entries != held {
            self.violations.push(format!("{entries} entries for {held} homes"));
        }
        let doubles: Vec<_> = self.held.iter().filter(|(_, holders)| holders.len() > 1).collect();
        if !doubles.is_empty() {
            self.violations.push(format!("I12: two homes: {doubles:?}"));
        }
    }

    pub(super) fn assert_sound(&self) {
        assert_eq!(self.violations, Vec::<String>::new());
    }
}

/// What a word is called where its kind matters.
fn name(word: &Word) -> &'static str {
    match word {
        Word::Relay { .. } => "relay",
        Word::Tell(Tell::Newer) => "newer",
        Word::Tell(Tell::Evict { .. }) => "evict",
        Word::Tell(Tell::Verify { .. }) => "verify",
        Word::Tell(Tell::HandOverPiece { .. }) => "piece",
        Word::Tell(Tell::HandOverNone { .. }) => "nothing to give",
        Word::Tell(Tell::RecoverAnswer { .. }) => "recovery answer",
        Word::Ask(Ask::Offer { .. }) => "offer",
        Word::Ask(Ask::Assert { .. }) => "assert",
        Word::Tell(_) => "other answers",
        Word::Ask(_) => "other questions",
    }
}
