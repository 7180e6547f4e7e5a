//! Where addresses live: one [`Directory`] per shard.
//!
//! Each is three things in one: the *partition* of the cluster's directory that this shard owns, a
//! *locator* for the addresses that others ask it about, and the *registrar* and *claims* of the
//! activations and hubs that live here.
//!
//! # Contract
//! Inputs are views, messages and time; commands are methods; effects are polled. A message to the
//! own endpoint never leaves: it is handled before the input that made it is done. Messages of one
//! pair of shards must arrive in order, and may be lost; each request is repeated until answered.
//!
//! # Invariants
//! - **One owner** (I6): at most one living shard serves a position of the ring; see `segments`.
//! - **No wrong miss**: a served range knows every home that a living silo holds in it. What is not
//!   known for sure waits; a wait ends by an answer, never by a guess.
//! - **One home** (I12): the newest number of an address is held by one shard; whoever holds an
//!   older one is told until it confirms.
//! - **Nothing is lost with an owner**: entries are rebuilt from what the living silos hold; no
//!   activation and no hub ends because the owner of its range did.
//!
//! # Bounds
//! Open look-ups, cached places, parked requests, tombstones and evictions have theirs in `limits`;
//! registrations and claims are as many as the shard has activations and hubs.
//!
//! Deliberately absent: placement, activations, hubs, deadlines of calls. An address is a hash
//! here: who asks keeps the text.

mod claims;
mod defect;
mod entries;
mod evictions;
mod handover;
mod locator;
mod message;
mod parked;
mod partition;
mod place;
mod recovery;
mod registrar;
mod schedule;
mod segments;
mod span;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use siloring_core::event::Event;
use siloring_core::{
    ActivationNumber, Address, AddressHash, ClaimNumber, Endpoint, Generation, Moment, SiloStatus,
    View, ViewNumber,
};

pub use claims::TakeOver;
#[cfg(feature = "planted")]
pub use defect::PlantedFault;
pub use defect::{Defect, Planted};
pub use message::{Ask, DirectoryMessage, Holds, Item, ItemState, Rest, Summary, Tell, Word};
pub use place::Place;
pub use span::{Key, Span};

use claims::Claims;
use handover::Piece;
pub(crate) use locator::KnownPlaces;

use locator::Locator;
use message::PIECE_ITEMS_MAX;
use parked::{Parked, Waiting};
use partition::{Handled, Partition};
use recovery::{Answer, piece};
use registrar::Registrar;
use step::{Caller, Outbox, Step};

/// What a directory is made with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DirectoryConfig {
    /// The shard it belongs to.
    pub endpoint: Endpoint,
    /// Seeds its jitter.
    pub seed: u64,
    /// Entries in one piece of a hand-over or of a recovery's answer, at least 1.
    pub piece_items: usize,
    /// A deliberate defect, in test builds.
    pub planted: Planted,
}

impl DirectoryConfig {
    /// Of the shard at `endpoint`.
    pub fn new(endpoint: Endpoint, seed: u64) -> Self {
        Self { endpoint, seed, piece_items: PIECE_ITEMS_MAX, planted: Planted::NONE }
    }
}

/// What a look-up says at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// From the cache; it may be stale.
    Cached(Place),
    /// [`DirectoryOutput::Located`] follows.
    Pending,
}

/// Why a look-up ended without saying where the address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unlocated {
    /// Too many look-ups are open. Nothing was sent; the caller answers `Overloaded`.
    #[error("too many look-ups are open")]
    Overloaded,
}

/// What a directory wants done or tells.
#[derive(Clone, PartialEq, Debug)]
pub enum DirectoryOutput {
    /// Send this over the control lane, or to another shard of this silo. Never to its own
    /// endpoint.
    Send(Endpoint, DirectoryMessage),
    /// A look-up ended, for all who wait for the address.
    Located {
        /// The address.
        address: Address,
        /// Its home; `None`: it has none, said by the owner of a stable range.
        result: Result<Option<Place>, Unlocated>,
        /// The view in which that was so.
        view: ViewNumber,
    },
    /// The activation is registered: it may load and run.
    Registered {
        /// The address.
        address: Address,
        /// The activation's number.
        number: ActivationNumber,
    },
    /// Another activation is the address's home: deactivate and forward.
    RegistrationLost {
        /// The address.
        address: Address,
        /// The home.
        winner: Place,
    },
    /// The claim is held.
    Claimed {
        /// The hub.
        address: Address,
        /// The claim's number.
        number: ClaimNumber,
    },
    /// Another live process holds the hub; the claim is dropped.
    ClaimRefused {
        /// The hub.
        address: Address,
        /// Who holds it.
        holder: Place,
    },
    /// Another process took the hub over; the claim is dropped.
    ClaimLost {
        /// The hub.
        address: Address,
        /// Who holds it.
        holder: Place,
    },
    /// The drain's hand-over is done: no range of ours is left.
    HandedOver,
    /// This silo answers no recovery: vote against it.
    Accuse(Generation),
    /// Somebody has this view: fetch it. Ignoring this costs time only.
    ViewWanted(ViewNumber),
    /// Something happened.
    Event(Event),
}

/// The directory of one shard.
#[derive(Debug)]
pub struct Directory {
    core: Core,
    partition: Partition,
    locator: Locator,
    registrar: Registrar,
    claims: Claims,
    parked: Parked,
    drain: Drain,
}

/// What every machine is handed, kept.
#[derive(Debug)]
struct Core {
    config: DirectoryConfig,
    view: Arc<View>,
    /// The newest view asked for.
    wanted: ViewNumber,
    rng: fastrand::Rng,
    outbox: Outbox,
}

impl Core {
    fn step(&mut self, now: Moment) -> Step<'_> {
        Step {
            now,
            me: self.config.endpoint,
            view: &self.view,
            rng: &mut self.rng,
            outbox: &mut self.outbox,
            piece_items_max: self.config.piece_items,
            planted: self.config.planted,
        }
    }

    /// Somebody has this view.
    fn want(&mut self, view: ViewNumber) {
        if view > self.view.number() && view > self.wanted {
            self.wanted = view;
            self.outbox.outputs.push_back(DirectoryOutput::ViewWanted(view));
        }
    }
}

/// How far the drain's hand-over is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drain {
    /// Not asked for.
    Not,
    /// Asked for.
    Begun,
    /// Told.
    Told,
}

impl Directory {
    /// A directory that has seen no view.
    ///
    /// # Panics
    /// If a piece may hold no entry, or more than fit.
    pub fn new(config: DirectoryConfig) -> Self {
        assert!(config.piece_items > 0, "a piece holds something");
        assert!(config.piece_items <= PIECE_ITEMS_MAX, "a piece fits its bound in bytes");
        let core = Core {
            config,
            view: Arc::default(),
            wanted: ViewNumber::ZERO,
            rng: fastrand::Rng::with_seed(config.seed),
            outbox: Outbox::default(),
        };
        Self {
            core,
            partition: Partition::default(),
            locator: Locator::default(),
            registrar: Registrar::default(),
            claims: Claims::default(),
            parked: Parked::default(),
            drain: Drain::Not,
        }
    }

    /// Does a fault to it, which the owners of hubs must get over.
    #[cfg(feature = "planted")]
    pub fn plant_fault(&mut self, fault: PlantedFault) {
        self.partition.plant_fault(fault);
    }

    /// The shard it belongs to.
    pub const fn endpoint(&self) -> Endpoint {
        self.core.config.endpoint
    }

    /// The next effect.
    pub fn poll_output(&mut self) -> Option<DirectoryOutput> {
        self.core.outbox.outputs.pop_front()
    }

    /// When [`Directory::tick`] is next due; [`Moment::NEVER`] if nothing is.
    pub fn next_deadline(&self) -> Moment {
        let deadlines = [
            self.partition.next_deadline(),
            self.locator.next_deadline(),
            self.registrar.next_deadline(),
            self.claims.next_deadline(),
        ];
        deadlines.into_iter().min().unwrap_or(Moment::NEVER)
    }

    /// The view it is in.
    pub fn view(&self) -> ViewNumber {
        self.core.view.number()
    }

    /// The parts of the ring that are served here, in that view.
    pub fn serving(&self) -> Vec<Span> {
        self.partition.serving()
    }

    /// How much is kept and under way: for metrics, and to see that nothing leaks.
    pub fn usage(&self) -> Usage {
        let (entries, tombstones) = self.partition.counts();
        let (hubs, closed) = self.claims.counts();
        Usage {
            entries,
            tombstones,
            activations: self.registrar.len(),
            hubs,
            closed,
            lookups: self.locator.pending_count(),
            parked: self.parked.len(),
            moving: self.partition.moving_count(),
            underway: self.partition.open_count() + self.registrar.open_count(),
        }
    }
}

/// How much a directory keeps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Addresses known in the ranges here, tombstones included.
    pub entries: usize,
    /// Of these, tombstones.
    pub tombstones: usize,
    /// Records of this shard's activations.
    pub activations: usize,
    /// Records of this shard's hubs.
    pub hubs: usize,
    /// Closed hubs of this shard that are remembered.
    pub closed: usize,
    /// Look-ups without an answer.
    pub lookups: usize,
    /// Requests that wait.
    pub parked: usize,
    /// Ranges moving in: taken over, or rebuilt.
    pub moving: usize,
    /// Ranges moving in, homes being asked or told, registrations without an answer.
    pub underway: usize,
}

// ---- inputs
impl Directory {
    /// Takes up a view; one that is not newer than the last changes nothing.
    pub fn handle_view(&mut self, now: Moment, view: &Arc<View>) {
        if view.number() <= self.core.view.number() {
            return;
        }
        #[cfg(feature = "planted")]
        let view = &self.planted_view(view);
        let before = core::mem::replace(&mut self.core.view, Arc::clone(view));
        let step = &mut self.core.step(now);
        self.partition.change_view(step, &before);
        self.locator.change_view(step, &before);
        self.registrar.change_view(step, &before);
        self.claims.change_view(step, &before);
        for waiting in self.parked.take_all() {
            self.handle_ask(now, waiting);
        }
        self.settle(now);
    }

    /// Takes in what another shard's directory says.
    pub fn handle_message(&mut self, now: Moment, from: Endpoint, message: DirectoryMessage) {
        if self.core.view.is_gone(from.silo) {
            self.refuse(from.silo, "its silo is gone");
            return;
        }
        self.core.want(message.view);
        self.dispatch(now, from, message);
        self.settle(now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Moment) {
        let step = &mut self.core.step(now);
        self.partition.tick(step);
        self.locator.tick(step);
        self.registrar.tick(step);
        self.claims.tick(step);
        self.settle(now);
    }

    /// Handles what the directory said to itself, and what no longer has to wait.
    fn settle(&mut self, now: Moment) {
        loop {
            for span in self.partition.opened() {
                for waiting in self.parked.take(span) {
                    self.handle_ask(now, waiting);
                }
            }
            let Some(message) = self.core.outbox.own.pop_front() else {
                break;
            };
            self.dispatch(now, self.endpoint(), message);
        }
        self.tell_handed_over();
    }

    fn tell_handed_over(&mut self) {
        let here = self.core.view.status(self.endpoint().silo);
        let leaving = here != Some(SiloStatus::Active) && here != Some(SiloStatus::Joining);
        if self.drain == Drain::Begun && leaving && self.partition.is_empty() {
            self.drain = Drain::Told;
            self.core.outbox.outputs.push_back(DirectoryOutput::HandedOver);
        }
    }

    fn refuse(&mut self, peer: Generation, reason: &'static str) {
        let event = Event::DirectoryRefused { peer, reason };
        self.core.outbox.outputs.push_back(DirectoryOutput::Event(event));
    }
}

// ---- messages
impl Directory {
    fn dispatch(&mut self, now: Moment, from: Endpoint, message: DirectoryMessage) {
        let caller = Caller { endpoint: from, via: None };
        match message.word {
            Word::Ask(ask) => self.handle_ask(now, Waiting { caller, view: message.view, ask }),
            Word::Tell(tell) => self.handle_tell(now, caller, message.view, tell),
            Word::Relay { origin, to, message } => self.relay(now, from, origin, to, message),
        }
    }

    /// Passes a message on, or takes in what was passed on. One hop only.
    fn relay(
        &mut self,
        now: Moment,
        from: Endpoint,
        origin: Endpoint,
        to: Endpoint,
        message: Vec<u8>,
    ) {
        if to != self.endpoint() {
            if origin == from {
                self.core.step(now).send(to, Word::Relay { origin, to, message });
            } else {
                self.refuse(from.silo, "a relayed message for another shard");
            }
            return;
        }
        if self.core.view.is_gone(origin.silo) {
            self.refuse(origin.silo, "its silo is gone");
            return;
        }
        let caller = Caller { endpoint: origin, via: Some(from) };
        match DirectoryMessage::decode(&message) {
            Ok(DirectoryMessage { view, word: Word::Ask(ask) }) => {
                self.core.want(view);
                self.handle_ask(now, Waiting { caller, view, ask });
            }
            Ok(DirectoryMessage { view, word: Word::Tell(tell) }) => {
                self.core.want(view);
                self.handle_tell(now, caller, view, tell);
            }
            Ok(DirectoryMessage { word: Word::Relay { .. }, .. }) | Err(_) => {
                self.refuse(from.silo, "a relayed message that is none");
            }
        }
    }

    /// Handles a request if it is of our view; tells an older asker; lets a newer one wait.
    fn handle_ask(&mut self, now: Moment, waiting: Waiting) {
        let Waiting { caller, view, ask } = waiting;
        if self.core.view.is_gone(caller.endpoint.silo) {
            self.refuse(caller.endpoint.silo, "its silo is gone");
            return;
        }
        if !ask.is_sound() {
            self.refuse(caller.endpoint.silo, "a request about impossible spans");
            return;
        }
        if view > self.core.view.number() {
            self.park(now, Waiting { caller, view, ask });
            return;
        }
        if view < self.core.view.number() {
            self.core.step(now).answer(caller, Tell::Newer);
            return;
        }
        if let Ask::RecoverAsk { recovery, spans, after } = ask {
            self.report(now, caller, recovery, &spans, after);
            return;
        }
        match self.partition.handle(&mut self.core.step(now), caller, ask) {
            Handled::Done => {}
            Handled::Later(ask) => self.park(now, Waiting { caller, view, ask }),
        }
    }

    fn park(&mut self, now: Moment, waiting: Waiting) {
        let caller = waiting.caller;
        if let Err(hash) = self.parked.keep(waiting) {
            self.core.step(now).answer(caller, Tell::Moving { hash });
        }
    }

    /// Answers a recovery: all that is held or remembered here in its spans.
    fn report(
        &mut self,
        now: Moment,
        caller: Caller,
        recovery: u64,
        spans: &[Span],
        after: Option<Key>,
    ) {
        let me = self.endpoint();
        let step = &mut self.core.step(now);
        let mut held = self.registrar.report(me, spans, after);
        held.extend(self.claims.report(step, spans, after));
        held.extend(self.partition.report(step, caller.endpoint, spans, after));
        let (items, rest) = piece(held, step.piece_items());
        step.answer(caller, Tell::RecoverAnswer { recovery, after, items, rest });
    }

    fn handle_tell(&mut self, now: Moment, caller: Caller, view: ViewNumber, tell: Tell) {
        let from = caller.endpoint;
        if !tell.is_sound() {
            self.refuse(from.silo, "an answer about an impossible span");
            return;
        }
        let current = view == self.core.view.number();
        let step = &mut self.core.step(now);
        match tell {
            Tell::Located { hash, place } => self.locator.located(step, view, hash, place),
            Tell::Verify { hash, place, attempt } => self.verify(now, from, hash, place, attempt),
            Tell::Verified { hash, place, holds } => self.partition.verified(hash, place, holds),
            Tell::Evict { hash, attempt, winner, .. } => {
                let registered = self.registrar.evicted(step, hash, attempt, winner);
                let claimed = self.claims.evicted(step, hash, attempt, winner);
                if (registered, claimed) == (Holds::No, Holds::No) {
                    step.tell(from, Tell::Evicted { hash, attempt });
                }
            }
            Tell::Evicted { hash, attempt } => self.partition.evicted(hash, from, attempt),
            Tell::Moving { hash } => self.claims.moving(step, hash),
            // The view is wanted by now; with it everything open is asked again.
            Tell::Newer => {}
            Tell::Registered { .. }
            | Tell::Unregistered { .. }
            | Tell::Claimed { .. }
            | Tell::ClaimRefused { .. }
            | Tell::Released { .. }
            | Tell::HandOverPiece { .. }
            | Tell::HandOverNone { .. }
            | Tell::RecoverAnswer { .. } => {
                if current {
                    self.handle_answer(now, caller, tell);
                }
            }
        }
    }

    /// Handles what counts in the current view only. What came late was asked again at the view.
    fn handle_answer(&mut self, now: Moment, caller: Caller, tell: Tell) {
        let from = caller.endpoint;
        let step = &mut self.core.step(now);
        match tell {
            Tell::Registered { hash, attempt, winner } => {
                self.registrar.registered(step, hash, attempt, winner);
            }
            Tell::Unregistered { hash, attempt } => self.registrar.unregistered(hash, attempt),
            Tell::Claimed { hash, attempt, number } => {
                self.claims.claimed(step, hash, attempt, number);
            }
            Tell::ClaimRefused { hash, attempt, holder } => {
                self.claims.refused(step, hash, attempt, holder);
            }
            Tell::Released { hash, attempt } => self.claims.released(hash, attempt),
            Tell::HandOverPiece { span, after, items, last } => {
                self.partition.handle_piece(step, from, Piece { span, after, items, last });
            }
            Tell::HandOverNone { span } => self.partition.handle_none(step, from, span),
            Tell::RecoverAnswer { recovery, after, items, rest } => {
                let answer = Answer { recovery, after, items, rest };
                self.partition.handle_answer(step, caller, answer);
            }
            Tell::Located { .. }
            | Tell::Moving { .. }
            | Tell::Newer
            | Tell::Verify { .. }
            | Tell::Verified { .. }
            | Tell::Evict { .. }
            | Tell::Evicted { .. } => unreachable!("handled in any view"),
        }
    }

    fn verify(
        &mut self,
        now: Moment,
        from: Endpoint,
        hash: AddressHash,
        place: Place,
        attempt: u64,
    ) {
        let holds = match (self.registrar.holds(hash, attempt), self.claims.holds(hash, attempt)) {
            (Holds::No, Holds::No) => Holds::No,
            (Holds::Yes, _) | (_, Holds::Yes) => Holds::Yes,
        };
        self.core.step(now).tell(from, Tell::Verified { hash, place, holds });
    }
}

// ---- commands
impl Directory {
    /// Where the address lives: from the cache, or by asking. A hit is one probe of one map; all
    /// who ask for one address share one look-up, and one [`DirectoryOutput::Located`].
    #[inline]
    pub fn lookup(&mut self, now: Moment, address: &Address) -> Lookup {
        match self.cached(address.hash()) {
            Some(place) => Lookup::Cached(place),
            None => self.ask_where(now, address),
        }
    }

    /// The cached place, which may be stale. Asks nobody.
    #[inline]
    pub fn cached(&self, hash: AddressHash) -> Option<Place> {
        self.locator.cached(hash)
    }

    /// The cache, for the shard's futures to look at.
    pub(crate) fn places(&self) -> KnownPlaces {
        self.locator.places()
    }

    #[cold]
    fn ask_where(&mut self, now: Moment, address: &Address) -> Lookup {
        let lookup = self.locator.lookup(&mut self.core.step(now), address);
        self.settle(now);
        lookup
    }

    /// Nobody waits for the address any more: the look-up ends without a word.
    pub fn abandon(&mut self, hash: AddressHash) {
        self.locator.abandon(hash);
    }

    /// Somebody said where it lives: remembered, unless a newer home is known.
    pub fn learn(&mut self, hash: AddressHash, place: Place) {
        if !self.core.view.is_gone(place.endpoint.silo) {
            self.locator.learn(hash, place);
        }
    }

    /// It does not live there (`None`: wherever the cache says).
    pub fn forget(&mut self, hash: AddressHash, place: Option<Place>) {
        self.locator.forget(hash, place);
    }

    /// The place answered `NotHere`: forgotten here, and the range's owner asks it. Look-ups of the
    /// address wait for that.
    pub fn refused(&mut self, now: Moment, address: &Address, place: Place) {
        let (hash, planted) = (address.hash(), self.core.config.planted);
        if !planted.has(Defect::CacheKeptOnRefusal) {
            self.locator.forget(hash, Some(place));
        }
        let step = &mut self.core.step(now);
        if let Some(owner) = step.owner(Key::of(hash)) {
            step.ask(owner, Ask::Refused { hash, place });
        }
        self.settle(now);
    }

    /// Asks to be the home of a new activation. [`DirectoryOutput::Registered`] follows, with the
    /// number to load under, or [`DirectoryOutput::RegistrationLost`]; the latter may still follow
    /// the former.
    ///
    /// # Panics
    /// If an activation of the address is registered, or being registered, by this shard.
    pub fn register(&mut self, now: Moment, address: &Address) {
        self.registrar.register(&mut self.core.step(now), address);
        self.settle(now);
    }

    /// The activation ended. Nothing follows; told until the range's owner knows.
    pub fn unregister(&mut self, now: Moment, address: &Address) {
        self.registrar.unregister(&mut self.core.step(now), address.hash());
        self.settle(now);
    }

    /// Claims a hub, once the silo is Active. [`DirectoryOutput::Claimed`] or
    /// [`DirectoryOutput::ClaimRefused`] follows; after the former maybe, at any time,
    /// [`DirectoryOutput::ClaimLost`].
    ///
    /// # Panics
    /// If a hub of the address is open on this shard.
    pub fn claim(&mut self, now: Moment, address: &Address, take_over: TakeOver) {
        self.claims.claim(&mut self.core.step(now), address, take_over);
        self.settle(now);
    }

    /// The hub is closed. Nothing follows; told until the range's owner knows.
    pub fn release(&mut self, now: Moment, address: &Address) {
        self.claims.release(&mut self.core.step(now), address.hash());
        self.settle(now);
    }

    /// [`DirectoryOutput::HandedOver`] is wanted once the silo is Draining and no range is left
    /// here.
    pub fn begin_drain(&mut self) {
        if self.drain == Drain::Not {
            self.drain = Drain::Begun;
        }
        self.tell_handed_over();
    }
}
