//! The failure detector: whom this silo probes, what it hears, whom it suspects.
//!
//! **Contract.** Fed with everything heard and every change of a control lane; pushes probes, dials
//! and relays; tells who is suspected. It never votes: a suspicion becomes a vote only where the
//! table allows. **Invariants.** Bytes heard from a silo within misses × period end every suspicion
//! of it. A refused or reset lane only brings the indirect probe forward. No silo is suspected
//! while a third one reaches it. **Bounds.** `PROBE_TARGETS_MAX` probed at a time (all Active ones
//! while the lease is strained), one indirect probe per target, `RELAYS_MAX` probes for others.
//!
//! The indirect probe goes through up to two third silos that were heard of late; where there is
//! none it is one more direct probe on a new connection. Deliberately absent: gossip, store, clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::hash::stable_u64;
use siloring_core::limits::{
    HANDSHAKE_TIME_MAX, INDIRECT_THIRDS_MAX, ISOLATED_FACTOR, JOIN_TIME_MAX, PROBE_MISSES,
    PROBE_PERIOD, PROBE_TARGETS_MAX, RELAYS_MAX, SELF_HEALTH_MAX, SILOS_MAX,
};
use siloring_core::{Generation, Moment, SiloStatus, View, ViewNumber};

use super::desk::random_below;
use super::lease::Heard;
use super::message::{ControlMessage, ProbeNumber, Reached};
use super::{ControlOutput, Reach};

/// How many are probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reachout {
    /// Nobody: not Active yet.
    Nobody,
    /// The rings' choice.
    Rings,
    /// Every Active silo.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    Down,
    /// Since then.
    Dialing(Moment),
    Up,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Via {
    /// Third silos probe for us; so many have not answered.
    Thirds { number: ProbeNumber, open_count: usize },
    /// A new connection of our own.
    NewLane,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Indirect {
    via: Via,
    until: Moment,
}

/// Why a silo is suspected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Suspicion {
    pub(super) since: Moment,
    pub(super) reason: &'static str,
}

#[derive(Debug)]
struct Peer {
    address: String,
    lane: Lane,
    /// When bytes of it were last heard: what the lease counts.
    heard: Heard,
    /// Since when its silence counts against it: as `heard`, but not before it was watched, nor
    /// while this silo itself was stopped.
    quiet_since: Moment,
    /// From when on it is watched; `NEVER` if not at all.
    watch_from: Moment,
    /// When the next probe is due; `NEVER` while it is not watched.
    probe_at: Moment,
    /// Set while a probe period runs in which nothing was heard yet.
    awaiting: bool,
    /// Probes not answered yet, the newest last.
    sent: VecDeque<(ProbeNumber, Moment)>,
    misses: u32,
    indirect: Option<Indirect>,
    suspicion: Option<Suspicion>,
    /// Whether it was told that only third silos reach it.
    told_partial: bool,
    progress: Vec<u64>,
}

/// A probe that this silo makes for another.
#[derive(Debug)]
struct Relay {
    asker: Generation,
    number: ProbeNumber,
    target: Generation,
    until: Moment,
}

#[derive(Debug)]
pub(super) struct Detector {
    me: Generation,
    peers: BTreeMap<Generation, Peer>,
    relays: Vec<Relay>,
    numbers: u64,
    /// 1 is healthy; time-outs are this many times as long.
    health: u32,
    health_changed: Moment,
    rng: fastrand::Rng,
    #[cfg(any(test, feature = "planted"))]
    pub(super) defect: Option<super::Defect>,
}

/// Probes of one target whose answer may still renew the lease.
const SENT_MAX: usize = 8;

impl Detector {
    pub(super) fn new(rng: fastrand::Rng) -> Self {
        Self {
            me: Generation::NONE,
            peers: BTreeMap::new(),
            relays: Vec::new(),
            numbers: 0,
            health: 1,
            health_changed: Moment::ZERO,
            rng,
            #[cfg(any(test, feature = "planted"))]
            defect: None,
        }
    }

    /// This silo is `me` from now on.
    pub(super) const fn name(&mut self, me: Generation) {
        self.me = me;
    }

    /// A number for a question of this silo.
    pub(super) const fn number(&mut self) -> ProbeNumber {
        self.numbers += 1;
        ProbeNumber(self.numbers)
    }

    /// Whether the lane to `silo` is up.
    pub(super) fn is_up(&self, silo: Generation) -> bool {
        self.peers.get(&silo).is_some_and(|peer| peer.lane == Lane::Up)
    }

    /// Every silo to which a lane is up.
    pub(super) fn reachable(&self) -> impl Iterator<Item = Generation> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.lane == Lane::Up).map(|(silo, _)| *silo)
    }

    /// When `silo` was heard, as the lease counts it.
    pub(super) fn heard_at(&self, silo: Generation) -> Heard {
        self.peers.get(&silo).map_or(Heard::Never, |peer| peer.heard)
    }

    /// The progress counters of the silo's shards, as its last probe answer told them.
    pub(super) fn progress(&self, silo: Generation) -> Option<&[u64]> {
        self.peers.get(&silo).map(|peer| peer.progress.as_slice())
    }

    // ---- input

    /// Takes up a view: forgets the gone, chooses whom to probe.
    pub(super) fn handle_view(&mut self, now: Moment, view: &View, reachout: Reachout) {
        self.peers.retain(|silo, _| !view.is_gone(*silo));
        self.relays.retain(|relay| !view.is_gone(relay.target) && !view.is_gone(relay.asker));
        let targets = targets(self.me, view, reachout);
        let me = self.me;
        for row in view.living().filter(|row| row.incarnation.generation != me) {
            let silo = row.incarnation.generation;
            let watched = targets.contains(&silo);
            if !watched && !self.peers.contains_key(&silo) {
                continue;
            }
            // With the lease at stake there is no time to spread the first probes.
            let spread = match reachout {
                Reachout::Nobody | Reachout::Rings => PROBE_PERIOD / 2,
                Reachout::All => PROBE_PERIOD / 10,
            };
            let first = random_below(&mut self.rng, spread);
            let Some(peer) = self.peer(silo) else { continue };
            peer.address.clone_from(&row.advertised);
            if watched {
                peer.watch(now, row.status, first);
            } else {
                peer.watch_from = Moment::NEVER;
                peer.probe_at = Moment::NEVER;
                peer.rest();
            }
        }
    }

    /// Bytes of `silo` came in.
    pub(super) fn heard(
        &mut self,
        now: Moment,
        silo: Generation,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let Some(peer) = self.peer(silo) else { return };
        peer.hear(now);
        self.answer_relays(silo, Reached::Yes, out);
    }

    /// Bytes of `silo` came in on a shard's link: they speak against a suspicion, and prove nothing
    /// about now.
    pub(super) fn heard_on_link(&mut self, now: Moment, silo: Generation) {
        if let Some(peer) = self.peers.get_mut(&silo) {
            peer.break_silence(now);
        }
    }

    /// `silo` leaves in order.
    pub(super) fn handle_goodbye(&mut self, silo: Generation) {
        if let Some(peer) = self.peer(silo) {
            peer.heard = Heard::Goodbye;
        }
    }

    /// A probe of ours was answered; tells when it was sent.
    pub(super) fn handle_answer(
        &mut self,
        now: Moment,
        silo: Generation,
        number: ProbeNumber,
        progress: Vec<u64>,
    ) -> Option<Moment> {
        let period = self.period();
        let peer = self.peers.get_mut(&silo)?;
        peer.progress = progress;
        let at = peer.sent.iter().position(|(own, _)| *own == number)?;
        let (_, sent) = peer.sent[at];
        peer.sent.drain(..=at);
        // An answer later than its probe's period speaks of slowness, ours as likely as the peer's.
        if now.since(sent) > period {
            self.worsen(now);
        } else {
            self.recover(now);
        }
        Some(sent)
    }

    /// The lane to `silo` changed.
    pub(super) fn handle_reach(
        &mut self,
        now: Moment,
        view: &View,
        silo: Generation,
        reach: Reach,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let Some(peer) = self.peer(silo) else { return };
        match reach {
            Reach::Connected => {
                peer.lane = Lane::Up;
                let watched = peer.watch_from <= now;
                self.heard(now, silo, out);
                if watched {
                    self.probe(now, view.number(), silo, out);
                }
                self.probe_for_relays(now, view.number(), silo, out);
            }
            Reach::Broken | Reach::Refused | Reach::Silent | Reach::Disowned => {
                let answered = matches!(reach, Reach::Refused | Reach::Silent);
                peer.lane = Lane::Down;
                if answered {
                    self.answer_relays(silo, Reached::No, out);
                }
                self.hurry(now, view, silo, reach, out);
            }
        }
    }

    /// A third silo says what became of a relay.
    pub(super) fn handle_relay_answer(
        &mut self,
        now: Moment,
        number: ProbeNumber,
        reached: Reached,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let Some((&silo, peer)) = self.peers.iter_mut().find(|(_, peer)| peer.has_asked(number))
        else {
            return;
        };
        match reached {
            Reached::No => peer.third_failed(now),
            Reached::Yes => {
                peer.indirect = None;
                peer.suspicion = None;
                peer.misses = PROBE_MISSES - 1;
                if !core::mem::replace(&mut peer.told_partial, true) {
                    out.push_back(ControlOutput::Event(Event::ReachedByThirdOnly { silo }));
                }
            }
        }
    }

    /// `asker` wants `target` probed.
    pub(super) fn handle_relay(
        &mut self,
        now: Moment,
        view: &View,
        asker: Generation,
        number: ProbeNumber,
        target: Generation,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let Some(row) = view.silo(target).filter(|row| row.status != SiloStatus::Dead) else {
            return;
        };
        if target == self.me || self.relays.len() >= RELAYS_MAX {
            return;
        }
        let until = now + self.period();
        self.relays.push(Relay { asker, number, target, until });
        if self.is_up(target) {
            self.probe(now, view.number(), target, out);
        } else {
            self.dial(now, target, &row.advertised, out);
        }
    }

    /// This silo itself was stopped for `late`: silence of others in that time proves nothing.
    pub(super) fn forgive(&mut self, now: Moment, late: Duration) {
        self.worsen(now);
        for peer in self.peers.values_mut() {
            peer.quiet_since = (peer.quiet_since + late).min(now);
            peer.awaiting = false;
            peer.misses = 0;
            peer.suspicion = None;
            if let Some(indirect) = peer.indirect.as_mut() {
                indirect.until += late;
            }
        }
    }

    // ---- output

    /// When something is due here, later than `now`.
    pub(super) fn deadline(&self, now: Moment) -> Moment {
        let required = PROBE_PERIOD * PROBE_MISSES * self.health;
        let peers = self.peers.values().flat_map(|peer| {
            let indirect = peer.indirect.map_or(Moment::NEVER, |indirect| indirect.until);
            let ripe = |span| match peer.suspicion {
                Some(_) if peer.quiet_since + span > now => peer.quiet_since + span,
                Some(_) | None => Moment::NEVER,
            };
            [peer.probe_at, indirect, ripe(required), ripe(required * ISOLATED_FACTOR)]
        });
        let relays = self.relays.iter().map(|relay| relay.until);
        peers.chain(relays).min().unwrap_or(Moment::NEVER)
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Moment, view: &View, out: &mut VecDeque<ControlOutput>) {
        self.expire_relays(now, out);
        let due = |peer: &Peer| {
            peer.probe_at <= now || peer.indirect.is_some_and(|indirect| indirect.until <= now)
        };
        let due: Vec<Generation> =
            self.peers.iter().filter(|(_, peer)| due(peer)).map(|(silo, _)| *silo).collect();
        for silo in due {
            self.step(now, view, silo, out);
        }
    }

    /// The silos that are suspected, and have been quiet for long enough that a vote is allowed.
    pub(super) fn suspects(&self, now: Moment, view: &View) -> Vec<(Generation, Suspicion)> {
        let required = self.silence_required(now, view);
        let ripe = |peer: &&Peer| now.since(peer.quiet_since) >= required;
        self.peers
            .iter()
            .filter(|(_, peer)| ripe(peer))
            .filter_map(|(silo, peer)| Some((*silo, peer.suspicion?)))
            .collect()
    }

    /// Dials `silo` at `address` unless a lane is up or being made.
    pub(super) fn dial(
        &mut self,
        now: Moment,
        silo: Generation,
        address: &str,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let Some(peer) = self.peer(silo) else { return };
        address.clone_into(&mut peer.address);
        self.redial(now, silo, out);
    }

    // ---- within

    fn redial(&mut self, now: Moment, silo: Generation, out: &mut VecDeque<ControlOutput>) {
        let Some(peer) = self.peers.get_mut(&silo) else { return };
        let overdue = match peer.lane {
            Lane::Up => false,
            Lane::Down => true,
            // The report was lost.
            Lane::Dialing(since) => now.since(since) >= HANDSHAKE_TIME_MAX * 2,
        };
        if overdue {
            peer.lane = Lane::Dialing(now);
            out.push_back(ControlOutput::Connect(silo, peer.address.clone()));
        }
    }

    /// One period of one target is over: judge it and probe again.
    fn step(
        &mut self,
        now: Moment,
        view: &View,
        silo: Generation,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let period = self.period();
        let peer = self.peers.get_mut(&silo).expect("a peer that is due exists");
        if peer.indirect.take_if(|indirect| indirect.until <= now).is_some() {
            peer.suspect(now, "no answer, and no third silo that reaches it");
        }
        if peer.probe_at > now {
            return;
        }
        peer.probe_at = now + period;
        if core::mem::replace(&mut peer.awaiting, true) {
            peer.misses = peer.misses.saturating_add(1);
            let misses = peer.misses;
            out.push_back(ControlOutput::Event(Event::ProbeMissed { silo, misses }));
        }
        let last_allowed = peer.misses + 1 >= PROBE_MISSES && peer.indirect.is_none();
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::OneMissSuffices) && peer.misses > 0 {
            peer.suspect(now, "a probe was missed");
        }
        if self.is_up(silo) {
            self.probe(now, view.number(), silo, out);
        } else {
            self.redial(now, silo, out);
        }
        if last_allowed {
            self.probe_indirectly(now, view, silo, out);
        }
    }

    /// A lane ended: no need to wait out the misses, if the silo is watched.
    fn hurry(
        &mut self,
        now: Moment,
        view: &View,
        silo: Generation,
        reach: Reach,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let Some(peer) = self.peers.get_mut(&silo) else { return };
        if peer.watch_from > now || reach == Reach::Disowned {
            return;
        }
        let by_new_lane = peer.indirect.is_some_and(|indirect| indirect.via == Via::NewLane);
        match reach {
            Reach::Refused | Reach::Silent if by_new_lane => {
                peer.indirect = None;
                peer.suspect(now, "a new connection failed");
            }
            Reach::Broken | Reach::Refused if peer.indirect.is_none() => {
                peer.misses = peer.misses.max(PROBE_MISSES - 1);
                peer.awaiting = true;
                // A refusal of the dial that a suspicion made is not news.
                if peer.suspicion.is_none() {
                    self.probe_indirectly(now, view, silo, out);
                }
                if reach == Reach::Broken {
                    self.redial(now, silo, out);
                }
            }
            Reach::Connected | Reach::Broken | Reach::Refused | Reach::Silent | Reach::Disowned => {
            }
        }
    }

    fn probe_indirectly(
        &mut self,
        now: Moment,
        view: &View,
        silo: Generation,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let period = self.period();
        let number = self.number();
        let thirds = self.thirds(now, view, silo);
        let peer = self.peers.get_mut(&silo).expect("the probed is a peer");
        if !thirds.is_empty() {
            let via = Via::Thirds { number, open_count: thirds.len() };
            // A third silo takes a period of its own.
            peer.indirect = Some(Indirect { via, until: now + period * 2 });
            for third in thirds {
                let relay = ControlMessage::Relay { number, target: silo };
                out.push_back(ControlOutput::Send(third, relay));
            }
        } else if peer.suspicion.is_none() {
            peer.indirect = Some(Indirect { via: Via::NewLane, until: now + period });
            peer.lane = Lane::Dialing(now);
            out.push_back(ControlOutput::Reconnect(silo, peer.address.clone()));
        }
        // Else one new connection is enough of them: the dial under way is left its time.
    }

    /// Active silos that were heard of late, other than `silo`.
    fn thirds(&mut self, now: Moment, view: &View, silo: Generation) -> Vec<Generation> {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::NoThird) {
            return Vec::new();
        }
        let lately = PROBE_PERIOD * PROBE_MISSES * self.health;
        let candidates = view
            .active()
            .map(|row| row.incarnation.generation)
            .filter(|&third| third != silo && third != self.me && self.is_up(third))
            .filter(|&third| is_heard_within(self.heard_at(third), now, lately));
        let candidates: Vec<Generation> = candidates.collect();
        self.rng.choose_multiple(candidates, INDIRECT_THIRDS_MAX)
    }

    /// How long a silo must have been quiet before a vote against it is allowed.
    fn silence_required(&self, now: Moment, view: &View) -> Duration {
        #[cfg(any(test, feature = "planted"))]
        if matches!(
            self.defect,
            Some(super::Defect::BytesForbidNothing | super::Defect::OneMissSuffices)
        ) {
            return Duration::ZERO;
        }
        let required = PROBE_PERIOD * PROBE_MISSES * self.health;
        let watched = view.active().filter_map(|row| {
            let peer = self.peers.get(&row.incarnation.generation)?;
            (peer.watch_from <= now).then_some(peer)
        });
        // Two misses: of a cut that severs several lanes at once, no end is noticed long before
        // the others.
        let (mut count, mut silent_count) = (0, 0);
        for peer in watched {
            count += 1;
            silent_count += usize::from(peer.misses >= 2);
        }
        let isolated = count >= 2 && (count - silent_count) * 2 < count;
        if isolated { required * ISOLATED_FACTOR } else { required }
    }

    fn probe(
        &mut self,
        now: Moment,
        view: ViewNumber,
        silo: Generation,
        out: &mut VecDeque<ControlOutput>,
    ) {
        let number = self.number();
        let Some(peer) = self.peers.get_mut(&silo) else { return };
        if peer.sent.len() == SENT_MAX {
            peer.sent.pop_front();
        }
        peer.sent.push_back((number, now));
        out.push_back(ControlOutput::Send(silo, ControlMessage::Probe { number, view }));
    }

    fn probe_for_relays(
        &mut self,
        now: Moment,
        view: ViewNumber,
        silo: Generation,
        out: &mut VecDeque<ControlOutput>,
    ) {
        if self.relays.iter().any(|relay| relay.target == silo) {
            self.probe(now, view, silo, out);
        }
    }

    fn answer_relays(
        &mut self,
        target: Generation,
        reached: Reached,
        out: &mut VecDeque<ControlOutput>,
    ) {
        for relay in self.relays.extract_if(.., |relay| relay.target == target) {
            let answer = ControlMessage::RelayAnswer { number: relay.number, reached };
            out.push_back(ControlOutput::Send(relay.asker, answer));
        }
    }

    fn expire_relays(&mut self, now: Moment, out: &mut VecDeque<ControlOutput>) {
        for relay in self.relays.extract_if(.., |relay| relay.until <= now) {
            let number = relay.number;
            let answer = ControlMessage::RelayAnswer { number, reached: Reached::No };
            out.push_back(ControlOutput::Send(relay.asker, answer));
        }
    }

    fn worsen(&mut self, now: Moment) {
        if now.since(self.health_changed) >= PROBE_PERIOD {
            self.health = (self.health + 1).min(SELF_HEALTH_MAX);
            self.health_changed = now;
        }
    }

    fn recover(&mut self, now: Moment) {
        if self.health > 1 && now.since(self.health_changed) >= PROBE_PERIOD * self.health {
            self.health -= 1;
            self.health_changed = now;
        }
    }

    fn period(&self) -> Duration {
        PROBE_PERIOD * self.health
    }

    /// The peer's entry, made if there is none; none beyond the bound.
    fn peer(&mut self, silo: Generation) -> Option<&mut Peer> {
        let full = self.peers.len() >= SILOS_MAX * 2;
        if silo == self.me || (full && !self.peers.contains_key(&silo)) {
            return None;
        }
        Some(self.peers.entry(silo).or_insert_with(Peer::new))
    }
}

impl Peer {
    const fn new() -> Self {
        Self {
            address: String::new(),
            lane: Lane::Down,
            heard: Heard::Never,
            quiet_since: Moment::ZERO,
            watch_from: Moment::NEVER,
            probe_at: Moment::NEVER,
            awaiting: false,
            sent: VecDeque::new(),
            misses: 0,
            indirect: None,
            suspicion: None,
            told_partial: false,
            progress: Vec::new(),
        }
    }

    fn hear(&mut self, now: Moment) {
        if self.heard != Heard::Goodbye {
            self.heard = Heard::At(now);
        }
        self.break_silence(now);
    }

    const fn break_silence(&mut self, now: Moment) {
        self.quiet_since = now;
        self.told_partial = false;
        self.rest();
    }

    /// Watches it: at once if it is in service; a joiner only when it should have failed by itself,
    /// as it hosts nothing and knows better why it cannot join.
    fn watch(&mut self, now: Moment, status: SiloStatus, first: Duration) {
        let from = if status == SiloStatus::Joining { now + JOIN_TIME_MAX } else { now };
        if from < self.watch_from {
            self.watch_from = from;
            self.probe_at = from + first;
            self.quiet_since = self.quiet_since.max(from);
        }
    }

    const fn rest(&mut self) {
        self.awaiting = false;
        self.misses = 0;
        self.indirect = None;
        self.suspicion = None;
    }

    fn has_asked(&self, asked: ProbeNumber) -> bool {
        self.indirect.is_some_and(|indirect| match indirect.via {
            Via::Thirds { number, .. } => number == asked,
            Via::NewLane => false,
        })
    }

    /// One of the third silos did not reach it: the last one makes the suspicion.
    fn third_failed(&mut self, now: Moment) {
        let Some(Indirect { via: Via::Thirds { open_count, .. }, .. }) = &mut self.indirect else {
            return;
        };
        *open_count -= 1;
        if *open_count == 0 {
            self.indirect = None;
            self.suspect(now, "no answer, also not to a third silo");
        }
    }

    fn suspect(&mut self, now: Moment, reason: &'static str) {
        self.misses = self.misses.max(PROBE_MISSES);
        self.suspicion.get_or_insert(Suspicion { since: now, reason });
    }
}

fn is_heard_within(heard: Heard, now: Moment, span: Duration) -> bool {
    match heard {
        Heard::Never => false,
        Heard::At(at) => now.since(at) < span,
        Heard::Goodbye => true,
    }
}

/// Whom `me` probes: its successors on `PROBE_TARGETS_MAX` seeded rings of the living silos, and
/// whoever has votes against it, so that a lone accuser's suspicion is checked by others.
fn targets(me: Generation, view: &View, reachout: Reachout) -> BTreeSet<Generation> {
    if reachout == Reachout::Nobody {
        return BTreeSet::new();
    }
    let living = || view.living().filter(|row| row.incarnation.generation != me);
    let all = |row: &&siloring_core::SiloRow| {
        reachout == Reachout::All && row.status == SiloStatus::Active
    };
    let mut targets: BTreeSet<Generation> = living()
        .filter(|row| all(row) || !row.votes.is_empty())
        .map(|row| row.incarnation.generation)
        .collect();
    let others: Vec<Generation> = living().map(|row| row.incarnation.generation).collect();
    if others.len() <= PROBE_TARGETS_MAX {
        targets.extend(others);
        return targets;
    }
    let mut chosen: BTreeSet<Generation> = BTreeSet::new();
    for ring in 0..PROBE_TARGETS_MAX as u64 {
        let from = point(ring, me);
        let after = |silo: Generation| point(ring, silo).wrapping_sub(from);
        let next = others.iter().filter(|silo| !chosen.contains(*silo));
        chosen.extend(next.min_by_key(|&&silo| (after(silo), silo)));
    }
    targets.extend(chosen);
    targets
}

fn point(ring: u64, silo: Generation) -> u64 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&ring.to_le_bytes());
    seed[8..].copy_from_slice(&silo.0.to_le_bytes());
    stable_u64(&seed)
}
