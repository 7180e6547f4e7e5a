//! The part of the directory that this shard owns: entries, and which ranges are served.
//!
//! Handles the requests of its view; the composite has sorted out those of other views. What cannot
//! be handled now is given back to be parked: [`Partition::opened`] tells where to try again.
//!
//! - A registration is granted if the address has no living home; the answer is always the winner.
//! - A claim over a living holder is refused, unless it is a take-over; what carries a number
//!   changes nothing that has a newer one.
//! - Numbers are minted here, in the view of the grant, above every number known of the address.
//! - A miss in a served range is the truth: see [`segments`](super::segments).
//! - Whoever loses an address is told until it confirms: see [`evictions`](super::evictions).

use std::collections::BTreeMap;

use siloring_core::event::Event;
use siloring_core::limits::{DIRECTORY_RESEND_AFTER, TOMBSTONE_TIME};
use siloring_core::{
    ActivationNumber, AddressHash, ClaimNumber, Endpoint, Moment, View, ViewNumber,
};

use super::claims::TakeOver;
use super::defect::Defect;
use super::entries::{Entries, Entry, EntryState, until};
use super::evictions::Evictions;
use super::handover::{Handovers, Piece, Progress};
use super::message::{Ask, Holds, Item, ItemState, Summary, Tell};
use super::place::Place;
use super::recovery::{Answer, Recovered, Recoveries, judge};
use super::schedule::Schedule;
use super::segments::{Segments, Standing};
use super::span::{Key, Span, covers, inside};
use super::step::{Caller, Step, Succession, somebody_left};

/// What became of a request.
#[derive(Debug)]
pub(super) enum Handled {
    /// It was answered, or needs no answer.
    Done,
    /// It waits until its range, or its address, is opened.
    Later(Ask),
}

/// A home that is being asked whether it is one.
#[derive(Debug)]
struct Verification {
    place: Place,
    due: Moment,
}

/// The ranges of one shard.
#[derive(Debug, Default)]
pub(super) struct Partition {
    segments: Segments,
    entries: Entries,
    evictions: Evictions,
    handovers: Handovers,
    recoveries: Recoveries,
    verifying: BTreeMap<Key, Verification>,
    verify_schedule: Schedule<Key>,
    /// The last number minted.
    counter: u64,
    /// When givers remind their takers.
    offer_at: Option<Moment>,
    opened: Vec<Span>,
    #[cfg(feature = "planted")]
    claims_to_refuse: u32,
}

/// A claim as it came.
#[derive(Clone, Copy, Debug)]
struct ClaimAsk {
    attempt: u64,
    held: Option<ClaimNumber>,
    take_over: TakeOver,
}

/// What a claim comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClaimVerdict {
    /// It gets a new number.
    Grant,
    /// It keeps or gets back this number.
    Keep(ClaimNumber),
    /// Another holds the address.
    Refuse(Place),
}

// ---- requests
impl Partition {
    /// Does a fault to it.
    #[cfg(feature = "planted")]
    pub(super) fn plant_fault(&mut self, fault: super::defect::PlantedFault) {
        match fault {
            super::defect::PlantedFault::LoseEntries => self.entries = Entries::default(),
            super::defect::PlantedFault::RefuseClaims(count) => self.claims_to_refuse = count,
        }
    }

    /// Whether a request is a claim that a planted fault refuses.
    #[cfg(feature = "planted")]
    const fn is_to_be_refused(&mut self, ask: &Ask) -> bool {
        let refused = matches!(ask, Ask::Claim { .. }) && self.claims_to_refuse > 0;
        if refused {
            self.claims_to_refuse -= 1;
        }
        refused
    }

    /// Handles a request that was made in our view.
    pub(super) fn handle(&mut self, step: &mut Step<'_>, caller: Caller, ask: Ask) -> Handled {
        match ask {
            // A release must not overtake the claim it ends: all wait for the home that is asked.
            Ask::Lookup { hash }
            | Ask::Register { hash, .. }
            | Ask::Unregister { hash, .. }
            | Ask::Claim { hash, .. }
            | Ask::Release { hash, .. } => {
                let verifying = self.verifying.contains_key(&Key::of(hash));
                self.at(step, caller, hash, ask, !verifying)
            }
            Ask::Refused { hash, .. } => self.at(step, caller, hash, ask, true),
            Ask::Assert { items } => self.assert_items(step, caller, items),
            Ask::HandOverAsk { span, after } => {
                self.give(step, caller, span, after);
                Handled::Done
            }
            Ask::HandOverDone { spans } => {
                for span in self.segments.drop_given(&spans, caller.endpoint) {
                    self.entries.remove_span(span);
                }
                Handled::Done
            }
            Ask::Offer { spans } => {
                let serving = self.segments.serving();
                let spans: Vec<_> = spans.iter().flat_map(|s| inside(*s, &serving)).collect();
                if !spans.is_empty() {
                    step.ask(caller.endpoint, Ask::HandOverDone { spans });
                }
                Handled::Done
            }
            // Answered by the shard as a holder: the composite does not bring it here.
            Ask::RecoverAsk { .. } => Handled::Done,
        }
    }

    /// Handles a request about one address, if its range is served and `settled`.
    fn at(
        &mut self,
        step: &mut Step<'_>,
        caller: Caller,
        hash: AddressHash,
        ask: Ask,
        settled: bool,
    ) -> Handled {
        #[cfg(feature = "planted")]
        if self.is_to_be_refused(&ask) {
            step.answer(caller, Tell::Moving { hash });
            return Handled::Done;
        }
        match self.segments.standing(Key::of(hash).position()) {
            Some(Standing::Serving) if settled => {
                self.serve(step, caller, &ask);
                Handled::Done
            }
            Some(Standing::Acquiring)
                if matches!(ask, Ask::Lookup { .. })
                    && step.planted.has(Defect::AbsentWhileMoving) =>
            {
                self.serve(step, caller, &ask);
                Handled::Done
            }
            Some(Standing::Serving | Standing::Acquiring) => Handled::Later(ask),
            Some(Standing::Frozen { .. }) | None => {
                // Of one view, and yet mistaken about the owner: let it ask again.
                step.answer(caller, Tell::Moving { hash });
                Handled::Done
            }
        }
    }

    fn serve(&mut self, step: &mut Step<'_>, caller: Caller, ask: &Ask) {
        match *ask {
            Ask::Lookup { hash } => {
                let place = self.home(step, Key::of(hash));
                step.answer(caller, Tell::Located { hash, place });
            }
            Ask::Register { hash, attempt } => self.register(step, caller, hash, attempt),
            Ask::Unregister { hash, attempt } => {
                let key = Key::of(hash);
                if self.is_its(key, caller.endpoint, attempt) {
                    self.entries.remove(key);
                }
                self.evictions.confirmed(key, caller.endpoint, attempt);
                step.answer(caller, Tell::Unregistered { hash, attempt });
            }
            Ask::Claim { hash, attempt, held, take_over } => {
                self.claim(step, caller, hash, ClaimAsk { attempt, held, take_over });
            }
            Ask::Release { hash, attempt, number } => {
                self.release(step, caller.endpoint, Key::of(hash), attempt, number);
                self.evictions.confirmed(Key::of(hash), caller.endpoint, attempt);
                step.answer(caller, Tell::Released { hash, attempt });
            }
            Ask::Refused { hash, place } => self.verify(step, Key::of(hash), place),
            Ask::Assert { .. }
            | Ask::HandOverAsk { .. }
            | Ask::HandOverDone { .. }
            | Ask::Offer { .. }
            | Ask::RecoverAsk { .. } => unreachable!("of no single address"),
        }
    }

    /// The living home of an address.
    fn home(&self, step: &Step<'_>, key: Key) -> Option<Place> {
        let place = self.entries.get(key)?.home()?;
        step.lives(place.endpoint.silo).then_some(place)
    }

    /// Whether the entry is of this shard's attempt, or an earlier one.
    fn is_its(&self, key: Key, endpoint: Endpoint, attempt: u64) -> bool {
        self.entries
            .get(key)
            .is_some_and(|entry| entry.place.endpoint == endpoint && entry.attempt <= attempt)
    }

    fn register(&mut self, step: &mut Step<'_>, caller: Caller, hash: AddressHash, attempt: u64) {
        let key = Key::of(hash);
        let superseded = self.evictions.winner(key, caller.endpoint, attempt);
        let winner = match (superseded, self.home(step, key)) {
            (Some(winner), _) if step.lives(winner.endpoint.silo) => winner,
            (_, Some(home)) if !self.is_older_attempt(key, caller.endpoint, attempt) => home,
            (_, Some(_) | None) => {
                self.grant(step, key, caller.endpoint, attempt, EntryState::Registered)
            }
        };
        step.answer(caller, Tell::Registered { hash, attempt, winner });
    }

    /// Whether the entry is an earlier attempt of the same shard, which that shard has given up.
    fn is_older_attempt(&self, key: Key, endpoint: Endpoint, attempt: u64) -> bool {
        self.entries
            .get(key)
            .is_some_and(|entry| entry.place.endpoint == endpoint && entry.attempt < attempt)
    }

    fn grant(
        &mut self,
        step: &mut Step<'_>,
        key: Key,
        endpoint: Endpoint,
        attempt: u64,
        state: EntryState,
    ) -> Place {
        let number = if step.planted.has(Defect::NumbersRepeat) {
            ActivationNumber { view: step.view.number(), counter: 1 }
        } else {
            self.mint(step.view.number(), self.entries.get(key).map(|e| e.place.number))
        };
        let place = Place { endpoint, number };
        self.put(step, key, Entry { place, attempt, state });
        place
    }

    /// A number of this view, above `known`.
    fn mint(&mut self, view: ViewNumber, known: Option<ActivationNumber>) -> ActivationNumber {
        self.counter += 1;
        let number = ActivationNumber { view, counter: self.counter };
        match known.filter(|known| *known >= number) {
            None => number,
            Some(known) => {
                self.counter = self.counter.max(known.counter + 1);
                ActivationNumber { view: known.view, counter: self.counter }
            }
        }
    }

    fn put(&mut self, step: &mut Step<'_>, key: Key, entry: Entry) {
        if let Some(forgotten) = self.entries.put(key, entry) {
            step.event(Event::TombstoneDropped { address: forgotten.hash() });
        }
    }

    fn claim(&mut self, step: &mut Step<'_>, caller: Caller, hash: AddressHash, ask: ClaimAsk) {
        let (key, endpoint, attempt) = (Key::of(hash), caller.endpoint, ask.attempt);
        let before = self.entries.get(key).copied();
        let number = match self.judge_claim(step, key, endpoint, ask) {
            ClaimVerdict::Refuse(holder) => {
                step.answer(caller, Tell::ClaimRefused { hash, attempt, holder });
                return;
            }
            ClaimVerdict::Grant => {
                self.grant(step, key, endpoint, attempt, EntryState::Claimed).claim()
            }
            ClaimVerdict::Keep(number) => {
                let place = Place::of_claim(endpoint, number);
                self.put(step, key, Entry { place, attempt, state: EntryState::Claimed });
                number
            }
        };
        let replaced = before.filter(|b| b.home().is_some() && b.place.endpoint != endpoint);
        let is_told = !step.planted.has(Defect::LosersUntold);
        if let Some(entry) = replaced.filter(|b| is_told && step.lives(b.place.endpoint.silo)) {
            let winner = Place::of_claim(endpoint, number);
            self.evictions.begin(step, key, entry.place, entry.attempt, winner);
        }
        step.answer(caller, Tell::Claimed { hash, attempt, number });
    }

    fn judge_claim(
        &self,
        step: &Step<'_>,
        key: Key,
        endpoint: Endpoint,
        ask: ClaimAsk,
    ) -> ClaimVerdict {
        let anybody = step.planted.has(Defect::LastWriterWins);
        if let Some(winner) = self.evictions.winner(key, endpoint, ask.attempt)
            && !anybody
        {
            return ClaimVerdict::Refuse(winner);
        }
        let fresh = ask.held.map_or(ClaimVerdict::Grant, ClaimVerdict::Keep);
        let Some(entry) = self.entries.get(key) else {
            return fresh;
        };
        let known = entry.place.claim();
        let newest = ask.held.is_some_and(|held| held > known)
            || (ask.held.is_some() && step.planted.has(Defect::AddressOnly));
        let itself = entry.place.endpoint == endpoint
            || (entry.place.endpoint.shard == endpoint.shard
                && step.planted.has(Defect::NoIncarnation));
        match (entry.home(), ask.held) {
            (None, None) => ClaimVerdict::Grant,
            (Some(_), None) if itself && ask.attempt > entry.attempt => ClaimVerdict::Grant,
            (Some(_), _) if itself && ask.attempt == entry.attempt && !newest => {
                ClaimVerdict::Keep(known)
            }
            (Some(home), None) if !itself => {
                let replaces = ask.take_over == TakeOver::Yes || anybody;
                let free = replaces || !step.lives(home.endpoint.silo);
                if free { ClaimVerdict::Grant } else { ClaimVerdict::Refuse(home) }
            }
            (Some(home), Some(_)) if !itself && !step.lives(home.endpoint.silo) => fresh,
            (_, Some(_)) if newest => fresh,
            (Some(_) | None, Some(_) | None) => ClaimVerdict::Refuse(entry.place),
        }
    }

    fn release(
        &mut self,
        step: &mut Step<'_>,
        endpoint: Endpoint,
        key: Key,
        attempt: u64,
        number: Option<ClaimNumber>,
    ) {
        let known = self.entries.get(key).copied();
        let by_address = step.planted.has(Defect::AddressOnly);
        let place = match known {
            Some(entry) if self.is_its(key, endpoint, attempt) || by_address => Some(entry.place),
            Some(_) => None,
            None => number.map(|number| Place::of_claim(endpoint, number)),
        };
        let Some(place) = place else { return };
        if step.planted.has(Defect::NoTombstone) {
            self.entries.remove(key);
            return;
        }
        let state = EntryState::Released { until: step.now + TOMBSTONE_TIME };
        self.put(step, key, Entry { place, attempt, state });
    }

    /// What a holder says it holds, of its own accord.
    fn assert_items(&mut self, step: &mut Step<'_>, caller: Caller, items: Vec<Item>) -> Handled {
        let mut later = Vec::new();
        for item in items {
            match self.segments.standing(item.key.position()) {
                Some(Standing::Serving) if item.place.endpoint == caller.endpoint => {
                    self.assert_item(step, item);
                }
                Some(Standing::Acquiring) => later.push(item),
                Some(Standing::Serving | Standing::Frozen { .. }) | None => {}
            }
        }
        if later.is_empty() { Handled::Done } else { Handled::Later(Ask::Assert { items: later }) }
    }

    fn assert_item(&mut self, step: &mut Step<'_>, item: Item) {
        let state = match item.state {
            ItemState::Registered => EntryState::Registered,
            ItemState::Claimed => EntryState::Claimed,
            ItemState::Registering | ItemState::Claiming | ItemState::Released { .. } => return,
        };
        let entry = Entry { place: item.place, attempt: item.attempt, state };
        let known = self.entries.get(item.key).copied();
        match known {
            None => self.put(step, item.key, entry),
            Some(known) if known.place == item.place => {}
            Some(known) if known.place.number < item.place.number => {
                self.put(step, item.key, entry);
                self.evict(step, item.key, &known, item.place);
            }
            Some(known) if known.home().is_some_and(|p| !step.lives(p.endpoint.silo)) => {
                self.put(step, item.key, entry);
            }
            Some(known) => self.evict(step, item.key, &entry, known.place),
        }
    }

    /// Tells the home of `loser` that it is none any more, if that is news.
    fn evict(&mut self, step: &mut Step<'_>, key: Key, loser: &Entry, winner: Place) {
        let Some(home) = loser.home() else { return };
        let is_told = !step.planted.has(Defect::LosersUntold);
        if is_told && home.endpoint != winner.endpoint && step.lives(home.endpoint.silo) {
            self.evictions.begin(step, key, home, loser.attempt, winner);
        }
    }
}

// ---- homes that are asked
impl Partition {
    /// Somebody was refused by the home of an address: asks it.
    fn verify(&mut self, step: &mut Step<'_>, key: Key, place: Place) {
        let is_home = self.home(step, key) == Some(place);
        if !is_home || self.verifying.contains_key(&key) {
            return;
        }
        self.verifying.insert(key, Verification { place, due: Moment::NEVER });
        self.ask_home(step, key);
    }

    fn ask_home(&mut self, step: &mut Step<'_>, key: Key) {
        let verification = self.verifying.get_mut(&key).expect("asked while it is open");
        self.verify_schedule.set(key, &mut verification.due, step.now + DIRECTORY_RESEND_AFTER);
        let place = verification.place;
        match self.entries.get(key).filter(|entry| entry.home() == Some(place)) {
            Some(entry) => {
                let (hash, attempt) = (key.hash(), entry.attempt);
                step.tell(place.endpoint, Tell::Verify { hash, place, attempt });
            }
            None => self.end_verification(key),
        }
    }

    /// The home answers.
    pub(super) fn verified(&mut self, hash: AddressHash, place: Place, holds: Holds) {
        let key = Key::of(hash);
        if self.verifying.get(&key).is_none_or(|verification| verification.place != place) {
            return;
        }
        self.end_verification(key);
        let is_home = self.entries.get(key).is_some_and(|entry| entry.home() == Some(place));
        if is_home && holds == Holds::No {
            self.entries.remove(key);
        }
    }

    fn end_verification(&mut self, key: Key) {
        if let Some(verification) = self.verifying.remove(&key) {
            self.verify_schedule.clear(key, verification.due);
            self.opened.push(Span::point(key.position()));
        }
    }

    /// A loser knows.
    pub(super) fn evicted(&mut self, hash: AddressHash, from: Endpoint, attempt: u64) {
        self.evictions.confirmed(Key::of(hash), from, attempt);
    }
}

// ---- ranges that move
impl Partition {
    /// A newer view.
    pub(super) fn change_view(&mut self, step: &mut Step<'_>, before: &View) {
        let change = self.segments.change(step.me, before.ring(), step.view.ring(), step.planted);
        for span in change.dropped {
            self.entries.remove_span(span);
        }
        if somebody_left(before, step.view) {
            self.entries.begin_sweep(step.now);
        }
        self.evictions.change_view(step);
        for key in self.verify_schedule.keys() {
            let serving = self.segments.standing(key.position()) == Some(Standing::Serving);
            let place = self.verifying.get(&key).map(|verification| verification.place);
            if !serving || place.is_none_or(|place| self.home(step, key) != Some(place)) {
                self.end_verification(key);
            }
        }
        let succession = Succession::of(before, step.view);
        let acquiring = self.segments.acquiring();
        let mut recover = self.handovers.change_view(step, &acquiring, succession);
        let done = self.recoveries.change_view(step, &acquiring, succession);
        for (span, giver) in change.wanted {
            match giver.filter(|giver| step.may_hold(giver.silo)) {
                Some(giver) => self.handovers.begin(step, span, giver),
                None => recover.push(span),
            }
        }
        self.recover(step, recover);
        for recovered in done {
            self.recovered(step, recovered);
        }
        self.remind_later(step);
    }

    fn recover(&mut self, step: &mut Step<'_>, spans: Vec<Span>) {
        if !spans.is_empty() {
            self.recoveries.begin(step, spans);
        }
    }

    fn remind_later(&mut self, step: &Step<'_>) {
        let kept = !self.segments.offers().is_empty();
        self.offer_at = kept.then(|| step.now + DIRECTORY_RESEND_AFTER);
    }

    /// Answers a taker.
    fn give(&mut self, step: &mut Step<'_>, caller: Caller, span: Span, after: Option<Key>) {
        if !covers(&self.segments.frozen_for(caller.endpoint), span) {
            step.answer(caller, Tell::HandOverNone { span });
            return;
        }
        let behind = self.entries.items(span, after, step.now);
        let items_max = step.piece_items();
        let mut items: Vec<_> = behind.take(items_max + 1).collect();
        let is_last = items.len() <= items_max;
        items.truncate(items_max);
        if step.planted.has(Defect::MemoryRegistry) {
            self.segments.give(&[span], caller.endpoint);
            let (items, last) = (Vec::new(), Some(Summary::default()));
            step.answer(caller, Tell::HandOverPiece { span, after, items, last });
            return;
        }
        let last = is_last.then(|| {
            let mut whole = Summary::default();
            self.entries.items(span, None, step.now).for_each(|item| whole.add(&item));
            whole
        });
        if is_last {
            self.segments.give(&[span], caller.endpoint);
        }
        step.answer(caller, Tell::HandOverPiece { span, after, items, last });
    }

    /// A giver sent a piece.
    pub(super) fn handle_piece(&mut self, step: &mut Step<'_>, from: Endpoint, piece: Piece) {
        let progress = self.handovers.handle_piece(step, from, piece);
        self.progress(step, progress);
    }

    /// A giver has nothing to give.
    pub(super) fn handle_none(&mut self, step: &mut Step<'_>, from: Endpoint, span: Span) {
        let progress = self.handovers.handle_none(from, span);
        self.progress(step, progress);
    }

    fn progress(&mut self, step: &mut Step<'_>, progress: Progress) {
        match progress {
            Progress::Underway => {}
            Progress::Broken(span) => self.recover(step, vec![span]),
            Progress::Whole { span, giver, items } => {
                for item in &items {
                    self.install(step, item);
                }
                self.open(step, &[span], items.len());
                step.ask(giver, Ask::HandOverDone { spans: vec![span] });
            }
        }
    }

    /// Asks the holders of a recovery's spans: what this shard's own partition still knows there.
    /// From the answer on the asker may serve them.
    pub(super) fn report(
        &mut self,
        step: &Step<'_>,
        asker: Endpoint,
        spans: &[Span],
        after: Option<Key>,
    ) -> Vec<Item> {
        self.segments.give(spans, asker);
        let items = spans.iter().flat_map(|span| self.entries.items(*span, after, step.now));
        items.filter(|item| matches!(item.state, ItemState::Released { .. })).collect()
    }

    /// A shard answers a recovery.
    pub(super) fn handle_answer(&mut self, step: &mut Step<'_>, caller: Caller, answer: Answer) {
        if let Some(recovered) = self.recoveries.handle_answer(step, caller, answer) {
            self.recovered(step, recovered);
        }
    }

    fn recovered(&mut self, step: &mut Step<'_>, recovered: Recovered) {
        let Recovered { spans, mut items } = recovered;
        let lives = |item: &Item| step.lives(item.place.endpoint.silo);
        let released = |item: &Item| matches!(item.state, ItemState::Released { .. });
        items.retain(|item| {
            let position = item.key.position();
            (lives(item) || released(item)) && spans.iter().any(|span| span.contains(position))
        });
        items.sort_by_key(|item| item.key);
        let mut count = 0;
        for same in items.chunk_by(|a, b| a.key == b.key) {
            let Some(verdict) = judge(same, step.planted) else { continue };
            count += 1;
            let winner = self.install(step, &verdict.winner);
            let is_told = !step.planted.has(Defect::LosersUntold);
            for loser in verdict.losers.into_iter().filter(|_| is_told) {
                self.evictions.begin(step, loser.key, loser.place, loser.attempt, winner);
            }
        }
        self.open(step, &spans, count);
    }

    /// Writes down what arrived. What was only in flight is granted: nobody else was told
    /// otherwise.
    fn install(&mut self, step: &mut Step<'_>, item: &Item) -> Place {
        let Item { key, place, attempt, state } = *item;
        let state = match state {
            ItemState::Registering => {
                return self.grant(step, key, place.endpoint, attempt, EntryState::Registered);
            }
            ItemState::Claiming => {
                return self.grant(step, key, place.endpoint, attempt, EntryState::Claimed);
            }
            ItemState::Registered => EntryState::Registered,
            ItemState::Claimed => EntryState::Claimed,
            ItemState::Released { left_ms } => {
                EntryState::Released { until: until(step.now, left_ms) }
            }
        };
        let kept = matches!(state, EntryState::Released { .. }) || step.lives(place.endpoint.silo);
        if kept {
            self.put(step, key, Entry { place, attempt, state });
        }
        place
    }

    fn open(&mut self, step: &mut Step<'_>, spans: &[Span], entries: usize) {
        self.segments.open(spans);
        self.opened.extend_from_slice(spans);
        step.event(Event::RangeServed { view: step.view.number(), entries });
    }

    /// Where parked requests can be tried again.
    pub(super) fn opened(&mut self) -> Vec<Span> {
        core::mem::take(&mut self.opened)
    }

    /// Whether no range is here any more, neither ours nor kept for another.
    pub(super) const fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

// ---- time
impl Partition {
    pub(super) fn tick(&mut self, step: &mut Step<'_>) {
        let broken = self.handovers.tick(step);
        self.recover(step, broken);
        self.recoveries.tick(step);
        self.evictions.tick(step);
        while let Some(key) = self.verify_schedule.due(step.now) {
            self.ask_home(step, key);
        }
        if self.offer_at.is_some_and(|at| at <= step.now) {
            for (taker, spans) in self.segments.offers() {
                step.ask(taker, Ask::Offer { spans });
            }
            self.remind_later(step);
        }
        self.entries.expire(step.now);
        // What is kept for a taker is left as it is: the pieces must add up.
        let segments = &self.segments;
        self.entries.sweep(step.now, |key, place| {
            let serving = segments.standing(key.position()) == Some(Standing::Serving);
            serving && !step.lives(place.endpoint.silo)
        });
    }

    pub(super) fn next_deadline(&self) -> Moment {
        [
            self.handovers.next_deadline(),
            self.recoveries.next_deadline(),
            self.evictions.next_deadline(),
            self.verify_schedule.next(),
            self.offer_at.unwrap_or(Moment::NEVER),
            self.entries.next_deadline(),
        ]
        .into_iter()
        .min()
        .unwrap_or(Moment::NEVER)
    }
}

// ---- what is there
impl Partition {
    /// The parts that are served.
    pub(super) fn serving(&self) -> Vec<Span> {
        self.segments.serving()
    }

    /// How many addresses are known here, and how many of them are only remembered.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.tombstone_count())
    }

    /// How many ranges move in.
    pub(super) fn moving_count(&self) -> usize {
        self.handovers.spans().count() + self.recoveries.spans().count()
    }

    /// How many things are under way.
    pub(super) fn open_count(&self) -> usize {
        self.moving_count() + self.evictions.len() + self.verifying.len()
    }
}

#[cfg(test)]
impl Partition {
    pub(super) const fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Where an address is, says its entry.
    pub(super) fn place(&self, address: &siloring_core::Address) -> Option<Place> {
        self.entries.get(Key::of(address.hash()))?.home()
    }

    /// Writes all that decides about its future.
    pub(super) fn print(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        for segment in self.segments.all() {
            write!(out, "{:x}{:?}", segment.span.first, segment.standing)?;
        }
        write!(out, "{:?}{:?}{:?}", self.entries, self.evictions, self.handovers)?;
        write!(out, "{:?}{:?}{}", self.recoveries, self.verifying, self.counter)?;
        write!(out, "{:?}{:?}", self.offer_at, self.opened)
    }

    /// A fault: the entry vanishes.
    pub(super) fn drop_entry(&mut self, key: Key) {
        self.entries.remove(key);
    }
}
