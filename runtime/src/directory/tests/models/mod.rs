//! Every order of steps of a few directories: the worlds of `handover.rs` and `claims.rs`.
//!
//! **State.** The directories of two or three silos of one shard each, as the product runs them,
//! the messages between them, the views that each has yet to see. **Steps.** The next change of the
//! membership; one silo sees the next view, or jumps to the newest; one pair's oldest messages
//! arrive; one of the commands is given; a pair's lanes break, with all that is on them; the next
//! timer of all fires, though messages are still on their way. What one input sends to one silo
//! arrives at once. **Rest.** When no change and no command is left and nothing is on its way, the
//! world runs on without faults for [`REST`], and must then be whole. **Bounds.** Those of
//! [`Plan`]. **Abstracted away.** Time passes only by timers; a silo that dies is Dead in the next
//! view; a second shard; look-ups that are cached.

mod claims;
mod handover;

use core::fmt::{self, Write};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use siloring_core::{
    ActivationNumber, Address, Endpoint, Generation, Incarnation, Moment, ShardIndex, SiloName,
    SiloRow, SiloStatus, View, ViewNumber,
};

use crate::directory::message::{Tell, Word};
use crate::directory::segments::Standing;
use crate::directory::span::{Key, Span, joined};
use crate::directory::{
    Defect, Directory, DirectoryConfig, DirectoryMessage, DirectoryOutput, Place, Planted, TakeOver,
};

/// How long a world runs on without faults until it must be whole.
const REST: Duration = Duration::from_secs(45);
/// Silos of a world, by generation.
const SILOS: [u64; 3] = [1, 2, 3];
/// Who has and keeps the other address.
const KEEPER: Generation = Generation(2);
/// The first view.
const FIRST: ViewNumber = ViewNumber(10);

/// What happens to the membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// A silo that was Joining is Active.
    Join(u64),
    /// It ends, and is Dead.
    Die(u64),
    /// It is Draining.
    Drain(u64),
}

/// What a silo is told to do, once, about the one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Register(u64),
    Unregister(u64),
    Lookup(u64),
    Claim(u64),
    TakeOver(u64),
    Release(u64),
}

impl Command {
    const fn silo(self) -> Generation {
        match self {
            Self::Register(silo)
            | Self::Unregister(silo)
            | Self::Lookup(silo)
            | Self::Claim(silo)
            | Self::TakeOver(silo)
            | Self::Release(silo) => Generation(silo),
        }
    }
}

/// What may happen in a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Silos that are Active in the first view.
    pub(super) active: &'static [u64],
    /// Given and carried out before the first step, one after the other.
    pub(super) before: &'static [Command],
    /// In this order, each at any time.
    pub(super) changes: &'static [Change],
    /// Each once, at any time, in any order.
    pub(super) commands: &'static [Command],
    /// How often lanes break.
    pub(super) cuts: u8,
    /// How often a timer fires while something is on its way.
    pub(super) timers: u8,
    pub(super) defect: Option<Defect>,
}

/// One thing that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Change(Change),
    Show(u64),
    Jump(u64),
    Deliver(u64, u64),
    Give(Command),
    Cut(u64, u64),
    Timer,
    Rest,
}

/// What one input sent to one silo.
#[derive(Debug)]
struct Parcel {
    messages: Vec<DirectoryMessage>,
    digest: u64,
}

/// What has been seen that must never be, and what should be seen.
#[expect(clippy::struct_excessive_bools, reason = "each is a rule or a mark of its own")]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Two served one position.
    pub(super) two_owners: bool,
    /// An owner denied a home that lives.
    pub(super) wrong_miss: bool,
    /// A number was given twice.
    pub(super) number_twice: bool,
    /// Two held the address though nobody took it over.
    pub(super) two_holders: bool,
    /// The world did not become whole.
    pub(super) unwhole: bool,
    pub(super) recovered: bool,
    pub(super) lost: bool,
    pub(super) refused: bool,
    pub(super) at_rest: bool,
}

pub(super) struct Town {
    plan: Plan,
    now: Moment,
    views: Vec<Arc<View>>,
    silos: BTreeMap<Generation, Directory>,
    lanes: BTreeMap<(Generation, Generation), VecDeque<Parcel>>,
    /// Of the input being handled.
    sent: BTreeMap<(Generation, Generation), Vec<DirectoryMessage>>,
    changed: usize,
    given: Vec<bool>,
    cuts: u8,
    timers: u8,
    held: BTreeMap<Generation, ActivationNumber>,
    newest: Option<ActivationNumber>,
    numbers: BTreeSet<ActivationNumber>,
    took_over: bool,
    pub(super) seen: Seen,
}

fn at(silo: Generation) -> Endpoint {
    Endpoint { silo, shard: ShardIndex(0) }
}

fn view(number: ViewNumber, statuses: &[(u64, SiloStatus)]) -> Arc<View> {
    let rows = statuses.iter().map(|&(silo, status)| SiloRow {
        incarnation: Incarnation {
            name: SiloName::new("pod").unwrap(),
            generation: Generation(silo),
        },
        status,
        advertised: String::new(),
        host: String::new(),
        shards: 1,
        votes: Vec::new(),
        changed_in: FIRST,
    });
    Arc::new(View::new(number, rows.collect()))
}

/// Two addresses in one range, which belongs to 1 while 3 is not on the ring, and to 3 when it is:
/// the one that commands are about, and one that silo 2 has and keeps.
fn addresses() -> &'static [Address; 2] {
    static ADDRESSES: OnceLock<[Address; 2]> = OnceLock::new();
    ADDRESSES.get_or_init(|| {
        let ring = |silos: &[u64]| {
            let active: Vec<_> = silos.iter().map(|silo| (*silo, SiloStatus::Active)).collect();
            view(FIRST, &active).ring().clone()
        };
        let (two, three) = (ring(&[1, 2]), ring(&[1, 2, 3]));
        let position = |address: &Address| Key::of(address.hash()).position();
        let all = || (0..).map(|index| Address::of("portal", &format!("{index}")).unwrap());
        let wanted = |address: &Address| {
            two.owner(position(address)).unwrap().silo == Generation(1)
                && three.owner(position(address)).unwrap().silo == Generation(3)
        };
        let one = all().find(wanted).unwrap();
        let (range, _) = three.range(position(&one)).unwrap();
        let is_beside = |other: &Address| range.contains(position(other)) && *other != one;
        let other = all().filter(wanted).find(is_beside).unwrap();
        [one, other]
    })
}

fn address() -> &'static Address {
    &addresses()[0]
}

fn other() -> &'static Address {
    &addresses()[1]
}

// ---- what happens
impl Town {
    pub(super) fn of(plan: Plan) -> Self {
        let mut town = Self {
            plan,
            now: Moment::from_nanos(1_000_000_000),
            views: Vec::new(),
            silos: BTreeMap::new(),
            lanes: BTreeMap::new(),
            sent: BTreeMap::new(),
            changed: 0,
            given: vec![false; plan.commands.len()],
            cuts: plan.cuts,
            timers: plan.timers,
            held: BTreeMap::new(),
            newest: None,
            numbers: BTreeSet::new(),
            took_over: false,
            seen: Seen::default(),
        };
        let status = |silo: &u64| {
            let is_active = plan.active.contains(silo);
            (*silo, if is_active { SiloStatus::Active } else { SiloStatus::Joining })
        };
        town.views.push(view(FIRST, &SILOS.map(|silo| status(&silo))));
        for silo in SILOS.map(Generation) {
            let mut config = DirectoryConfig::new(at(silo), silo.0);
            config.piece_items = 1;
            config.planted = plan.defect.map_or(Planted::NONE, Planted::with);
            town.silos.insert(silo, Directory::new(config));
        }
        for silo in SILOS {
            town.show(Generation(silo), 0);
        }
        town.run_for(REST);
        let now = town.now;
        town.silos.get_mut(&KEEPER).unwrap().register(now, other());
        town.collect(KEEPER);
        town.run_for(REST);
        for command in plan.before {
            town.give(*command);
            town.run_for(REST);
        }
        town.seen = Seen::default();
        town
    }

    pub(super) fn possible(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.seen.at_rest {
            return steps;
        }
        steps.extend(self.lanes.keys().map(|(from, to)| Step::Deliver(from.0, to.0)));
        for (silo, directory) in &self.silos {
            let behind = self.behind(directory);
            steps.extend((behind > 0).then_some(Step::Show(silo.0)));
            steps.extend((behind > 1).then_some(Step::Jump(silo.0)));
        }
        steps.extend(self.plan.changes.get(self.changed).map(|change| Step::Change(*change)));
        let commands = self.plan.commands.iter().zip(&self.given);
        let open = commands.filter(|(command, given)| !**given && self.may(**command));
        steps.extend(open.map(|(command, _)| Step::Give(*command)));
        let is_quiet = steps.is_empty();
        if self.cuts > 0 {
            steps.extend(self.pairs().into_iter().map(|(one, other)| Step::Cut(one, other)));
        }
        if self.timers > 0 && !is_quiet && self.next_timer().0 != Moment::NEVER {
            steps.push(Step::Timer);
        }
        if is_quiet {
            steps.push(Step::Rest);
        }
        steps
    }

    pub(super) fn happen(&mut self, step: Step) {
        match step {
            Step::Change(change) => self.change(change),
            Step::Show(silo) => {
                let silo = Generation(silo);
                let next = self.views.len() - self.behind(&self.silos[&silo]);
                self.show(silo, next);
            }
            Step::Jump(silo) => self.show(Generation(silo), self.views.len() - 1),
            Step::Deliver(from, to) => self.deliver(Generation(from), Generation(to)),
            Step::Give(command) => {
                let index = self.plan.commands.iter().position(|one| *one == command).unwrap();
                self.given[index] = true;
                self.give(command);
            }
            Step::Cut(one, other) => {
                self.cuts -= 1;
                self.lanes.remove(&(Generation(one), Generation(other)));
                self.lanes.remove(&(Generation(other), Generation(one)));
            }
            Step::Timer => {
                self.timers -= 1;
                self.fire();
            }
            Step::Rest => {
                self.run_for(REST);
                self.seen.at_rest = true;
                self.seen.unwhole = !self.is_whole();
            }
        }
    }

    fn pairs(&self) -> BTreeSet<(u64, u64)> {
        self.lanes.keys().map(|(a, b)| (a.0.min(b.0), a.0.max(b.0))).collect()
    }

    /// How many views it has not seen.
    fn behind(&self, directory: &Directory) -> usize {
        let seen = directory.view().0.saturating_sub(FIRST.0);
        self.views.len() - 1 - usize::try_from(seen).unwrap()
    }

    /// Whether a command can be given: whoever registers or claims has nothing of it open.
    fn may(&self, command: Command) -> bool {
        let Some(directory) = self.silos.get(&command.silo()) else { return false };
        let usage = directory.usage();
        match command {
            Command::Register(_) => {
                usage.activations == usize::from(directory.endpoint().silo == KEEPER)
            }
            Command::Claim(_) | Command::TakeOver(_) => usage.hubs == 0,
            Command::Unregister(_) | Command::Release(_) => self.held.contains_key(&command.silo()),
            Command::Lookup(_) => true,
        }
    }

    fn give(&mut self, command: Command) {
        let (silo, now) = (command.silo(), self.now);
        let directory = self.silos.get_mut(&silo).unwrap();
        match command {
            Command::Register(_) => directory.register(now, address()),
            Command::Unregister(_) => directory.unregister(now, address()),
            Command::Lookup(_) => drop(directory.lookup(now, address())),
            Command::Claim(_) => directory.claim(now, address(), TakeOver::No),
            Command::TakeOver(_) => directory.claim(now, address(), TakeOver::Yes),
            Command::Release(_) => directory.release(now, address()),
        }
        match command {
            Command::Unregister(_) | Command::Release(_) => drop(self.held.remove(&silo)),
            Command::TakeOver(_) => self.took_over = true,
            Command::Register(_) | Command::Lookup(_) | Command::Claim(_) => {}
        }
        self.collect(silo);
    }

    fn change(&mut self, change: Change) {
        self.changed += 1;
        let last = self.views.last().unwrap();
        let mut statuses: Vec<(u64, SiloStatus)> =
            last.rows().iter().map(|row| (row.incarnation.generation.0, row.status)).collect();
        let (silo, status) = match change {
            Change::Join(silo) => (silo, SiloStatus::Active),
            Change::Drain(silo) => (silo, SiloStatus::Draining),
            Change::Die(silo) => (silo, SiloStatus::Dead),
        };
        statuses.iter_mut().filter(|(one, _)| *one == silo).for_each(|(_, s)| *s = status);
        self.views.push(view(last.number().next(), &statuses));
        if status == SiloStatus::Dead {
            let dead = Generation(silo);
            self.silos.remove(&dead);
            self.lanes.retain(|(from, to), _| *from != dead && *to != dead);
            self.held.remove(&dead);
        }
    }

    fn show(&mut self, silo: Generation, index: usize) {
        let view = Arc::clone(&self.views[index]);
        let now = self.now;
        self.silos.get_mut(&silo).unwrap().handle_view(now, &view);
        self.collect(silo);
    }

    fn deliver(&mut self, from: Generation, to: Generation) {
        let lane = self.lanes.get_mut(&(from, to)).unwrap();
        let parcel = lane.pop_front().unwrap();
        if lane.is_empty() {
            self.lanes.remove(&(from, to));
        }
        for message in parcel.messages {
            let now = self.now;
            self.silos.get_mut(&to).unwrap().handle_message(now, at(from), message);
            self.carry_out(to);
        }
        self.dispatch();
    }

    fn next_timer(&self) -> (Moment, Generation) {
        let due = self.silos.iter().map(|(silo, directory)| (directory.next_deadline(), *silo));
        due.min().unwrap_or((Moment::NEVER, Generation::NONE))
    }

    fn fire(&mut self) {
        let (due, silo) = self.next_timer();
        self.now = self.now.max(due);
        let now = self.now;
        self.silos.get_mut(&silo).unwrap().tick(now);
        self.collect(silo);
    }

    /// Runs without faults.
    fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            if let Some((from, to)) = self.lanes.keys().next().copied() {
                self.deliver(from, to);
            } else if self.next_timer().0 <= end {
                self.fire();
            } else {
                break;
            }
        }
        self.now = end;
    }
}

// ---- effects
impl Town {
    fn collect(&mut self, silo: Generation) {
        self.carry_out(silo);
        self.dispatch();
    }

    fn carry_out(&mut self, silo: Generation) {
        while let Some(output) = self.silos.get_mut(&silo).unwrap().poll_output() {
            match output {
                DirectoryOutput::Send(to, message) => {
                    if let Word::Tell(Tell::Located { place: None, .. }) = message.word {
                        self.check_miss(silo);
                    }
                    self.sent.entry((silo, to.silo)).or_default().push(message);
                }
                DirectoryOutput::Located { result: Ok(None), .. } => {
                    let position = Key::of(address().hash()).position();
                    let view = &self.silos[&silo].core.view;
                    if view.ring().owner(position) == Some(at(silo)) {
                        self.check_miss(silo);
                    }
                }
                DirectoryOutput::Registered { address: one, .. } if one == *other() => {}
                DirectoryOutput::Registered { number, .. } => self.hold(silo, number),
                DirectoryOutput::Claimed { number, .. } => {
                    self.hold(silo, Place::of_claim(at(silo), number).number);
                }
                DirectoryOutput::RegistrationLost { .. } | DirectoryOutput::ClaimLost { .. } => {
                    self.seen.lost = true;
                    self.held.remove(&silo);
                }
                DirectoryOutput::ClaimRefused { .. } => {
                    self.seen.refused = true;
                    self.held.remove(&silo);
                }
                DirectoryOutput::Event(event) => {
                    self.seen.recovered |= event.name() == "RangeRecovering";
                    if event.name() == "RangeServed" {
                        self.check_owners();
                    }
                }
                DirectoryOutput::Located { .. }
                | DirectoryOutput::HandedOver
                | DirectoryOutput::Accuse(_)
                | DirectoryOutput::ViewWanted(_) => {}
            }
        }
        self.check_owners();
    }

    /// Puts what the input sent on its way.
    fn dispatch(&mut self) {
        for ((from, to), messages) in core::mem::take(&mut self.sent) {
            if self.silos.contains_key(&to) {
                let mut hasher = DefaultHasher::new();
                format!("{messages:?}").hash(&mut hasher);
                let parcel = Parcel { messages, digest: hasher.finish() };
                self.lanes.entry((from, to)).or_default().push_back(parcel);
            }
        }
    }

    fn hold(&mut self, silo: Generation, number: ActivationNumber) {
        self.held.insert(silo, number);
        self.newest = self.newest.max(Some(number));
        self.seen.number_twice |= !self.numbers.insert(number);
        self.seen.two_holders |= self.held.len() > 1 && !self.took_over;
    }
}

// ---- what must hold
impl Town {
    /// I6. A silo that is Dead is gone, and one that lives has not been fenced.
    fn check_owners(&mut self) {
        let mut all: Vec<Span> = Vec::new();
        for directory in self.silos.values() {
            let segments = directory.partition.segments().all();
            let serving = segments.iter().filter(|s| s.standing == Standing::Serving);
            all.extend(serving.map(|segment| segment.span));
        }
        all.sort_unstable();
        self.seen.two_owners |= all.windows(2).any(|pair| pair[0].last >= pair[1].first);
    }

    /// Whoever was superseded and has not heard of it is no home.
    fn check_miss(&mut self, owner: Generation) {
        let view = &self.silos[&owner].core.view;
        let is_home = |(silo, number): (&Generation, &ActivationNumber)| {
            Some(*number) == self.newest && !view.is_gone(*silo)
        };
        self.seen.wrong_miss |= self.held.iter().any(is_home);
    }

    /// The ring is served whole, nothing is under way, and the owner of the address names who holds
    /// it.
    fn is_whole(&self) -> bool {
        let newest = self.views.last().unwrap();
        let serving = self.silos.values().flat_map(|d| d.partition.segments().serving());
        let usages = || self.silos.values().map(Directory::usage);
        let idle = usages().all(|u| u.lookups + u.parked + u.underway == 0);
        let entries: usize = usages().map(|usage| usage.entries - usage.tombstones).sum();
        let homes: usize = usages().map(|usage| usage.activations + usage.hubs).sum();
        let owner = newest.ring().owner(Key::of(address().hash()).position());
        let named = |address| self.silos[&owner?.silo].partition.place(address);
        let held = self.held.iter().map(|(silo, number)| (at(*silo), *number)).next();
        let kept = self.silos.contains_key(&KEEPER);
        joined(serving) == [Span::WHOLE]
            && idle
            && self.held.len() <= 1
            && entries == self.held.len() + usize::from(kept)
            && homes == entries
            && named(address()).map(|place| (place.endpoint, place.number)) == held
            && named(other()).is_some() == kept
    }

    pub(super) fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{:?}{:?}{:?}", self.now, self.seen, self.held)?;
        write!(out, "{}{:?}{}{}", self.changed, self.given, self.cuts, self.timers)?;
        for (lane, parcels) in &self.lanes {
            write!(out, "{lane:?}")?;
            parcels.iter().try_for_each(|parcel| write!(out, "{:x} ", parcel.digest))?;
        }
        for (silo, directory) in &self.silos {
            let draw = directory.core.rng.clone().u64(..);
            write!(out, "{silo:?}{:?}{:?}{draw:x}", directory.view(), directory.core.wanted)?;
            directory.partition.print(out)?;
            write!(out, "{:?}{:?}", directory.locator, directory.registrar)?;
            write!(out, "{:?}{:?}{:?}", directory.claims, directory.parked, directory.drain)?;
        }
        Ok(())
    }
}
