//! The composite: one [`Control`] feeds its machines, and decides what the store is asked next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::limits::{
    DRAIN_CLOSE_TIME_MAX, HEARTBEAT_PERIOD, JOIN_READ_PERIOD, LEASE, LEASE_RENEW_PERIOD,
    PROBE_PERIOD, RECOVERY_ACCUSE_AFTER, SUSPECT_READ_PERIOD, TABLE_READ_PERIOD,
    TABLE_READ_SPACING,
};
use siloring_core::ports::rare::{self, Rare};
use siloring_core::ports::store::StoreResult;
use siloring_core::{Generation, Incarnation, Moment, SiloRow, SiloStatus, View, ViewNumber};

use super::desk::{Change, Desk, Edit, Errand, Refusal, Settled, Why};
use super::detector::{Detector, Reachout, Suspicion};
use super::dialback::Dialbacks;
use super::join::{Join, JoinError, Plan};
#[cfg(any(test, feature = "planted"))]
use super::lease::Heard;
use super::lease::Lease;
use super::membership::{Membership, Reading};
use super::message::{ControlMessage, ProbeNumber, ReadAge, ViewRows};
use super::stalls::Stalls;
use super::votes::{Decision, Electorate};
use super::{ControlConfig, ControlOutput, EXIT_DECLARED_DEAD, Inquiry, Reach, StoreTicket};

#[derive(Debug)]
enum Phase {
    /// Not started.
    Idle,
    Joining(Join),
    Active,
    /// Draining is written, or to be written.
    Draining,
    /// Dead is to be written until then.
    Leaving(Moment),
    /// Nothing is done any more.
    Ended,
}

/// The control machine of one silo.
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    rng: fastrand::Rng,
    phase: Phase,
    me: Option<Incarnation>,
    membership: Membership,
    desk: Desk,
    detector: Detector,
    reachout: Reachout,
    lease: Lease,
    /// When the store was asked for what last showed the table as we hold it.
    shown_at: Moment,
    /// When the last read was asked for, whatever became of it.
    read_at: Moment,
    /// Somebody showed a newer view.
    hinted: bool,
    heartbeats: u64,
    beat_at: Moment,
    /// Directory's accusations: since when.
    accusations: BTreeMap<Generation, Moment>,
    dialbacks: Dialbacks,
    stalls: Stalls,
    regressed: bool,
    now: Moment,
    due: Moment,
    out: VecDeque<ControlOutput>,
    #[cfg(any(test, feature = "planted"))]
    defect: Option<super::Defect>,
}

/// Two ticks are at least this far apart: nothing here needs finer time.
const TICK_MIN: Duration = Duration::from_millis(1);

impl Control {
    /// A machine that has not started. `rng` is its only entropy.
    pub fn new(config: ControlConfig, mut rng: fastrand::Rng) -> Self {
        let detector = Detector::new(rng.fork());
        let stalls = Stalls::new(config.stall_abort_after);
        Self {
            config,
            rng,
            phase: Phase::Idle,
            me: None,
            membership: Membership::new(),
            desk: Desk::new(),
            detector,
            reachout: Reachout::Nobody,
            lease: Lease::new(),
            shown_at: Moment::ZERO,
            read_at: Moment::ZERO,
            hinted: false,
            heartbeats: 0,
            beat_at: Moment::NEVER,
            accusations: BTreeMap::new(),
            dialbacks: Dialbacks::new(),
            stalls,
            regressed: false,
            now: Moment::ZERO,
            due: Moment::NEVER,
            out: VecDeque::new(),
            #[cfg(any(test, feature = "planted"))]
            defect: None,
        }
    }

    /// Plants a defect.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, defect: super::Defect) {
        self.defect = Some(defect);
        self.detector.defect = Some(defect);
        self.membership.defect = Some(defect);
    }

    // ---- what is read

    /// The newest view; empty, number zero, before the silo has its row.
    pub fn view(&self) -> &Arc<View> {
        self.membership.view()
    }

    /// Who this silo is, once its row is in the table.
    pub const fn incarnation(&self) -> Option<&Incarnation> {
        self.me.as_ref()
    }

    /// Where this silo stands in its newest view.
    pub fn status(&self) -> Option<SiloStatus> {
        self.view().status(self.me.as_ref()?.generation)
    }

    /// Until when input may be accepted, as told last.
    pub const fn serve_until(&self) -> Moment {
        self.lease.until()
    }

    /// The progress counters of a silo's shards, as its last probe answer told them.
    pub fn peer_progress(&self, silo: Generation) -> Option<&[u64]> {
        self.detector.progress(silo)
    }

    /// When the next [`Control::tick`] is due; `NEVER` before the start and after the end.
    pub const fn next_deadline(&self) -> Moment {
        self.due
    }

    /// The next thing to do; drained after every input, in order.
    pub fn poll_output(&mut self) -> Option<ControlOutput> {
        self.out.pop_front()
    }

    // ---- input

    /// Begins to join. The listener at the advertised address is bound already.
    ///
    /// # Panics
    /// If it was started before.
    pub fn start(&mut self, now: Moment) {
        assert!(matches!(self.phase, Phase::Idle), "a machine is started once");
        self.now = now;
        self.due = now;
        self.phase = Phase::Joining(Join::new(now));
        self.advance(now);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Moment) {
        if self.enter(now) {
            self.advance(now);
        }
    }

    /// The store's answer to the request with that ticket.
    pub fn handle_store(&mut self, now: Moment, ticket: StoreTicket, result: StoreResult) {
        if !self.enter(now) {
            return;
        }
        let settled = self.desk.settle(now, ticket, result, &mut self.rng, &mut self.out);
        self.settled(now, settled);
        self.advance(now);
    }

    /// A message came in on the control lane of `from`, whose handshake proved who it is.
    pub fn handle_message(&mut self, now: Moment, from: Generation, message: ControlMessage) {
        if !self.enter(now) || self.me.is_none() {
            return;
        }
        if self.view().is_gone(from) {
            self.receive_from_gone(now, from, message);
        } else {
            self.detector.heard(now, from, &mut self.out);
            self.receive(now, from, message);
        }
        self.advance(now);
    }

    /// The control lane to a silo came up, broke, or could not be made.
    pub fn handle_reach(&mut self, now: Moment, silo: Generation, reach: Reach) {
        if !self.enter(now) || self.me.is_none() || self.view().is_gone(silo) {
            return;
        }
        let view = Arc::clone(self.membership.view());
        self.detector.handle_reach(now, &view, silo, reach, &mut self.out);
        if reach == Reach::Disowned {
            self.hinted = true;
        }
        if let Phase::Joining(join) = &mut self.phase
            && reach == Reach::Connected
        {
            join.hasten(now, silo);
        }
        self.advance(now);
    }

    /// Who answered at an address that was inquired about.
    pub fn handle_inquiry(&mut self, now: Moment, address: &str, inquiry: Inquiry) {
        if !self.enter(now) {
            return;
        }
        self.dialbacks.handle_inquiry(address, &inquiry, &mut self.out);
        if let Phase::Joining(join) = &mut self.phase
            && let Err(error) = join.handle_inquiry(&self.config.name, address, inquiry)
        {
            self.fail(now, error);
        }
        self.advance(now);
    }

    /// Bytes of that silo came in just now, on a control lane.
    pub fn heard(&mut self, now: Moment, silo: Generation) {
        if self.enter(now) && self.me.is_some() && !self.view().is_gone(silo) {
            self.detector.heard(now, silo, &mut self.out);
        }
    }

    /// Bytes of that silo came in on a shard's link, lately: they may have waited there behind a
    /// long turn. They end a suspicion; the right to serve takes younger proof.
    pub fn heard_on_link(&mut self, now: Moment, silo: Generation) {
        if self.enter(now) && self.me.is_some() && !self.view().is_gone(silo) {
            self.detector.heard_on_link(now, silo);
        }
    }

    /// The progress counters of this silo's shards, read just now. A counter moves with each loop
    /// of its shard, also of an idle one.
    pub fn handle_progress(&mut self, now: Moment, counts: &[u64]) {
        if self.enter(now) {
            self.stalls.handle_progress(now, counts, &mut self.out);
        }
    }

    /// The store says that the table changed: it is read soon.
    pub fn notified(&mut self, now: Moment) {
        if self.enter(now) {
            self.hinted = true;
            self.advance(now);
        }
    }

    /// A silo that answers probes leaves the directory's recovery without an answer.
    pub fn accuse(&mut self, now: Moment, silo: Generation) {
        if self.enter(now) && matches!(self.phase, Phase::Active) && !self.view().is_gone(silo) {
            self.accusations.entry(silo).or_insert(now);
            self.advance(now);
        }
    }

    /// Begins to leave: writes Draining. A silo that has not joined yet gives up at once.
    pub fn begin_drain(&mut self, now: Moment) {
        if !self.enter(now) {
            return;
        }
        match self.phase {
            Phase::Idle | Phase::Joining(_) => self.fail(now, JoinError::Cancelled),
            Phase::Active => self.phase = Phase::Draining,
            Phase::Draining | Phase::Leaving(_) | Phase::Ended => {}
        }
        self.advance(now);
    }

    /// Ends the leave: writes Dead, tells all, then [`ControlOutput::Left`].
    pub fn finish_drain(&mut self, now: Moment) {
        if !self.enter(now) {
            return;
        }
        match self.phase {
            Phase::Idle | Phase::Joining(_) => self.fail(now, JoinError::Cancelled),
            Phase::Active | Phase::Draining => {
                self.phase = Phase::Leaving(now + DRAIN_CLOSE_TIME_MAX);
            }
            Phase::Leaving(_) | Phase::Ended => {}
        }
        self.advance(now);
    }

    // ---- time

    /// Takes the time before any input; tells whether there is anything left to do.
    fn enter(&mut self, now: Moment) -> bool {
        if matches!(self.phase, Phase::Idle | Phase::Ended) {
            return false;
        }
        let gap = now.since(self.now);
        let late = now.since(self.due);
        self.now = self.now.max(now);
        if gap > LEASE {
            self.fence(now, "clock gap");
        }
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::LateTimersTrusted) {
            return true;
        }
        if late > PROBE_PERIOD / 2 {
            self.detector.forgive(now, gap);
            self.stalls.forgive(now);
        }
        true
    }

    /// Does what follows from the last input, and sets the next deadline.
    fn advance(&mut self, now: Moment) {
        self.advance_join(now);
        self.advance_detector(now);
        self.expire(now);
        self.advance_lease(now);
        self.consult(now);
        self.due = self.deadline(now);
    }

    fn deadline(&self, now: Moment) -> Moment {
        let phase = match &self.phase {
            Phase::Idle | Phase::Ended => return Moment::NEVER,
            Phase::Joining(join) => join.deadline(now),
            Phase::Leaving(until) => *until,
            Phase::Active | Phase::Draining => Moment::NEVER,
        };
        let store = if self.desk.is_free(now) { self.read_due(now) } else { self.desk.deadline() };
        let beat = if self.desk.is_heartbeat_free() { self.beat_at } else { Moment::NEVER };
        let lease = Some(self.lease.until()).filter(|until| *until > now);
        let detector = self.detector.deadline(now);
        // Often enough that a gap of the clock is seen as one.
        [phase, store, beat, detector, self.dialbacks.deadline(), now + LEASE_RENEW_PERIOD]
            .into_iter()
            .chain(lease)
            .min()
            .map_or(Moment::NEVER, |due| due.max(now + TICK_MIN))
    }

    fn expire(&mut self, now: Moment) {
        self.dialbacks.tick(now, &mut self.out);
        self.accusations.retain(|_, since| now.since(*since) < RECOVERY_ACCUSE_AFTER);
        if let Phase::Leaving(until) = self.phase
            && now >= until
        {
            self.left(now);
        }
    }

    // ---- joining and leaving

    fn advance_join(&mut self, now: Moment) {
        let Phase::Joining(join) = &mut self.phase else { return };
        if now >= join.until() {
            let me = self.me.as_ref().map(|me| me.generation);
            let trouble = self.desk.trouble();
            let error = join.overdue(&self.config, me, self.membership.view(), trouble);
            return self.fail(now, error);
        }
        if let Some(me) = &self.me {
            let view = self.membership.view();
            join.prove(now, me.generation, view, &mut self.detector, &mut self.out);
        }
    }

    /// The join has failed: no living row is left behind, as far as one request can see to it.
    fn fail(&mut self, now: Moment, error: JoinError) {
        let view = self.membership.view();
        if let Some(row) = self.me.as_ref().and_then(|me| view.silo(me.generation)) {
            let row = SiloRow { status: SiloStatus::Dead, ..row.clone() };
            let change = Change::row(view.number(), row, Why::Status);
            self.desk.ask_and_leave(&change, &mut self.out);
        }
        self.out.push_back(ControlOutput::JoinFailed(error));
        self.end(now);
    }

    /// The store shows our row in service, asked at `asked`.
    fn in_service(&mut self, now: Moment, asked: Moment) {
        if !matches!(self.phase, Phase::Joining(_)) {
            return self.lease.renew_from_store(asked);
        }
        self.phase = Phase::Active;
        self.lease.begin(asked);
        self.reach_out(now, Reachout::Rings);
        self.out.push_back(ControlOutput::Started);
    }

    /// Our row is Dead or missing in `view`.
    fn own_gone(&mut self, now: Moment, view: ViewNumber) {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::IgnoresOwnDeath) {
            return;
        }
        let Some(silo) = self.me.clone() else { return };
        match self.phase {
            Phase::Idle | Phase::Ended => {}
            // As was wanted, if a write of ours took effect whose answer was lost.
            Phase::Leaving(_) => self.left(now),
            Phase::Joining(_) | Phase::Active | Phase::Draining => {
                self.out
                    .push_back(ControlOutput::Event(Event::DeclaredDeadByOthers { silo, view }));
                self.out.push_back(ControlOutput::Exit(EXIT_DECLARED_DEAD));
                self.end(now);
            }
        }
    }

    fn left(&mut self, now: Moment) {
        let peers: Vec<Generation> = self.detector.reachable().collect();
        for peer in peers {
            self.out.push_back(ControlOutput::Send(peer, ControlMessage::Goodbye));
        }
        self.out.push_back(ControlOutput::Left);
        self.end(now);
    }

    fn end(&mut self, now: Moment) {
        self.lease.end(now, &mut self.out);
        self.phase = Phase::Ended;
        self.due = Moment::NEVER;
    }

    // ---- messages

    fn receive(&mut self, now: Moment, from: Generation, message: ControlMessage) {
        match message {
            ControlMessage::Probe { number, view } => self.answer_probe(now, from, number, view),
            ControlMessage::ProbeAnswer { number, view, read, progress, newer } => {
                let sent = self.detector.handle_answer(now, from, number, progress);
                #[cfg(any(test, feature = "planted"))]
                let read = read.filter(|_| self.defect != Some(super::Defect::StoreAloneRenews));
                if let (Some(sent), Some(read)) = (sent, read) {
                    self.lease.renew_from_peer(sent, read.age());
                }
                self.compare(from, view);
                if let Some(rows) = newer {
                    self.take_view(now, rows);
                }
            }
            ControlMessage::Relay { number, target } => {
                let view = Arc::clone(self.membership.view());
                self.detector.handle_relay(now, &view, from, number, target, &mut self.out);
            }
            ControlMessage::RelayAnswer { number, reached } => {
                self.detector.handle_relay_answer(now, number, reached, &mut self.out);
            }
            ControlMessage::Newer(rows) => self.take_view(now, rows),
            ControlMessage::ReachBack { number, view } => self.dial_back(now, from, number, view),
            ControlMessage::ReachedBack { number, reached } => {
                if let Phase::Joining(join) = &mut self.phase {
                    join.handle_reached_back(from, number, reached);
                }
            }
            ControlMessage::Goodbye => self.detector.handle_goodbye(from),
        }
    }

    /// A silo that slept through its own death is told. A view is a view, whoever sends it; and it
    /// is not answered, lest two that hold each other Dead never end.
    fn receive_from_gone(&mut self, now: Moment, from: Generation, message: ControlMessage) {
        match message {
            ControlMessage::Newer(rows) => self.take_view(now, rows),
            ControlMessage::Probe { .. }
            | ControlMessage::Relay { .. }
            | ControlMessage::ReachBack { .. } => {
                let view = ViewRows::of(self.view());
                self.out.push_back(ControlOutput::Send(from, ControlMessage::Newer(view)));
            }
            ControlMessage::ProbeAnswer { .. }
            | ControlMessage::RelayAnswer { .. }
            | ControlMessage::ReachedBack { .. }
            | ControlMessage::Goodbye => {}
        }
    }

    fn answer_probe(
        &mut self,
        now: Moment,
        from: Generation,
        number: ProbeNumber,
        theirs: ViewNumber,
    ) {
        let view = self.membership.view();
        let age = now.since(self.shown_at);
        let shown = is_in_service(view.status(from)) && !self.regressed && age < LEASE;
        let answer = ControlMessage::ProbeAnswer {
            number,
            view: view.number(),
            read: shown.then(|| ReadAge::of(age)),
            progress: self.stalls.counts(),
            newer: (view.number() > theirs).then(|| ViewRows::of(view)),
        };
        self.out.push_back(ControlOutput::Send(from, answer));
        self.hinted |= theirs > self.view().number();
    }

    /// A peer said which view it holds.
    fn compare(&mut self, from: Generation, theirs: ViewNumber) {
        let view = self.membership.view();
        if theirs < view.number() {
            let newer = ControlMessage::Newer(ViewRows::of(view));
            self.out.push_back(ControlOutput::Send(from, newer));
        }
        self.hinted |= theirs > self.view().number();
    }

    /// A joiner asks to be dialled at the address it advertises.
    fn dial_back(
        &mut self,
        now: Moment,
        from: Generation,
        number: ProbeNumber,
        theirs: ViewNumber,
    ) {
        match self.membership.view().silo(from) {
            Some(row) => self.dialbacks.ask(now, from, number, &row.advertised, &mut self.out),
            // It asks again, when we know it.
            None => self.hinted |= theirs > self.view().number(),
        }
    }

    fn take_view(&mut self, now: Moment, rows: ViewRows) {
        let (Some(me), Some(view)) = (self.me.as_ref(), rows.view()) else { return };
        match self.membership.take_view(now, me, view) {
            Reading::Adopted => self.adopted(now),
            Reading::Known => {}
            Reading::OwnGone(view) => self.own_gone(now, view),
            Reading::Overtaken | Reading::Regressed | Reading::Unreadable => self.hinted = true,
        }
    }

    // ---- the view

    /// A newer view was adopted.
    fn adopted(&mut self, now: Moment) {
        let view = Arc::clone(self.membership.view());
        self.accusations.retain(|silo, _| !view.is_gone(*silo));
        self.detector.handle_view(now, &view, self.reachout);
        if self.me.is_none() {
            return;
        }
        let (number, active_count) = (view.number(), view.active().count());
        self.out.push_back(ControlOutput::Event(Event::ViewChanged { view: number, active_count }));
        self.out.push_back(ControlOutput::View(view));
    }

    fn advance_detector(&mut self, now: Moment) {
        if self.me.is_none() || matches!(self.phase, Phase::Ended) {
            return;
        }
        if matches!(self.phase, Phase::Active | Phase::Draining) {
            let strained = self.lease.is_strained(now);
            let reachout = if strained { Reachout::All } else { Reachout::Rings };
            if reachout != self.reachout {
                self.reach_out(now, reachout);
            }
        }
        let view = Arc::clone(self.membership.view());
        self.detector.tick(now, &view, &mut self.out);
    }

    fn reach_out(&mut self, now: Moment, reachout: Reachout) {
        self.reachout = reachout;
        self.detector.handle_view(now, self.membership.view(), reachout);
    }

    // ---- the right to serve

    fn fence(&mut self, now: Moment, reason: &'static str) {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::ServesForever) {
            return;
        }
        self.lease.fence(now, reason, &mut self.out);
    }

    fn advance_lease(&mut self, now: Moment) {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::ServesForever) {
            self.lease.renew_from_store(now);
        }
        let Some(me) = self.me.as_ref().map(|me| me.generation) else { return };
        let view = self.membership.view();
        let others = view.active().map(|row| row.incarnation.generation).filter(|&silo| silo != me);
        let others: Vec<_> = others.map(|silo| self.detector.heard_at(silo)).collect();
        let needed = self.membership.votes_needed(now, me);
        #[cfg(any(test, feature = "planted"))]
        let (others, needed) = self.planted_lease(others, needed);
        self.lease.update(now, others, needed, &mut self.out);
    }

    // ---- the store

    /// Gives the store its next errand, if it is free and there is one.
    fn consult(&mut self, now: Moment) {
        let settled = self.desk.expire(now, &mut self.rng, &mut self.out);
        self.settled(now, settled);
        if matches!(self.phase, Phase::Idle | Phase::Ended) {
            return;
        }
        self.beat(now);
        if !self.desk.is_free(now) {
            return;
        }
        if let Phase::Joining(join) = &self.phase
            && join.wants_settings()
        {
            let errand = Errand::Settings(self.config.settings.clone());
            return self.desk.ask(now, errand, &mut self.out);
        }
        if let Some(change) = self.next_change(now) {
            return self.desk.ask(now, Errand::Write(change), &mut self.out);
        }
        self.hinted |= rare::is_asked(Rare::ReadNow);
        if !matches!(self.phase, Phase::Ended) && now >= self.read_due(now) {
            self.read_at = now;
            self.hinted = false;
            let errand = Errand::Read(self.membership.adoptions());
            self.desk.ask(now, errand, &mut self.out);
        }
    }

    fn beat(&mut self, now: Moment) {
        let Some(me) = self.me.as_ref().map(|me| me.generation) else { return };
        if now >= self.beat_at && self.desk.is_heartbeat_free() {
            self.heartbeats += 1;
            self.beat_at = now + HEARTBEAT_PERIOD;
            self.desk.beat(now, me, self.heartbeats, &mut self.out);
        }
    }

    /// When the table is to be read next.
    fn read_due(&self, now: Moment) -> Moment {
        let asked = self.membership.asked();
        let mut due = (asked + TABLE_READ_PERIOD).min(self.lease.read_due());
        if self.hinted {
            due = due.min(self.read_at + TABLE_READ_SPACING);
        }
        let suspects = self.suspects(now);
        if let Some(last) = suspects.iter().map(|(_, suspicion)| suspicion.since).max() {
            due = due.min(if last > asked { now } else { asked + SUSPECT_READ_PERIOD });
        }
        if matches!(self.phase, Phase::Joining(_)) {
            due = due.min(asked + JOIN_READ_PERIOD);
        }
        let wants_table = self.regressed || !suspects.is_empty() || self.wants_write();
        if wants_table && self.membership.table().is_none() {
            due = due.min(now);
        }
        due
    }

    fn wants_write(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Ended | Phase::Active => false,
            Phase::Joining(_) | Phase::Leaving(_) => true,
            Phase::Draining => self.status() != Some(SiloStatus::Draining),
        }
    }

    /// The next change of the table that this silo wants, on the table at hand.
    fn next_change(&mut self, now: Moment) -> Option<Change> {
        if matches!(self.phase, Phase::Joining(_)) && !self.regressed {
            return self.next_change_of_joiner(now);
        }
        let table = self.membership.table()?;
        let me = self.me.as_ref()?.generation;
        if self.regressed {
            return self.membership.repair(me);
        }
        let own = self.view().silo(me)?;
        let wanted = match self.phase {
            Phase::Idle | Phase::Ended | Phase::Joining(_) | Phase::Active => SiloStatus::Active,
            Phase::Draining => SiloStatus::Draining,
            Phase::Leaving(_) => SiloStatus::Dead,
        };
        if own.status < wanted {
            let row = table.rows.iter().find(|row| row.row.incarnation.generation == me)?;
            let row = SiloRow { status: wanted, ..row.row.clone() };
            return Some(Change::row(table.version, row, Why::Status));
        }
        self.next_verdict(now, me).or_else(|| self.membership.prune(now, me))
    }

    fn next_change_of_joiner(&mut self, now: Moment) -> Option<Change> {
        let Phase::Joining(join) = &mut self.phase else { return None };
        let table = self.membership.table()?;
        #[cfg(any(test, feature = "planted"))]
        let table = &planted_table(self.defect, &self.config, table);
        let own = self.me.as_ref().and_then(|me| self.membership.view().silo(me.generation));
        let plan = match own {
            None => join.plan_row(now, &self.config, table, &mut self.rng),
            Some(own) => join.plan_active(now, own, table, self.membership.beats(), &self.detector),
        };
        match plan {
            Plan::Wait => None,
            Plan::Write(change) => Some(change),
            Plan::Inquire(address) => {
                self.out.push_back(ControlOutput::Inquire(address));
                None
            }
            Plan::Fail(error) => {
                self.fail(now, error);
                None
            }
        }
    }

    /// The next vote or death to be written.
    fn next_verdict(&self, now: Moment, me: Generation) -> Option<Change> {
        let table = self.membership.table()?;
        let asked = self.membership.asked();
        let electorate = self.electorate()?;
        self.suspects(now).into_iter().filter(|(_, suspicion)| suspicion.since <= asked).find_map(
            |(silo, suspicion)| match electorate.decide(me, silo) {
                Decision::Wait => None,
                Decision::Vote(row) => {
                    Some(Change::row(table.version, row, Why::Vote(suspicion.reason)))
                }
                Decision::Declare(row) => {
                    Some(Change::row(table.version, row, Why::Death(suspicion.reason)))
                }
            },
        )
    }

    /// Whom this silo would vote against, if the table allows.
    fn suspects(&self, now: Moment) -> Vec<(Generation, Suspicion)> {
        if !matches!(self.phase, Phase::Active) {
            return Vec::new();
        }
        let mut suspects = self.detector.suspects(now, self.view());
        suspects.extend(
            self.accusations.iter().map(|(&silo, &since)| {
                (silo, Suspicion { since, reason: "recovery answer missing" })
            }),
        );
        suspects
    }

    fn electorate(&self) -> Option<Electorate<'_>> {
        Some(Electorate {
            table: self.membership.table()?,
            beats: self.membership.beats(),
            #[cfg(any(test, feature = "planted"))]
            defect: self.defect,
        })
    }

    // ---- the store's answers

    fn settled(&mut self, now: Moment, settled: Settled) {
        #[cfg(any(test, feature = "planted"))]
        let settled = self.planted(settled);
        match settled {
            Settled::Nothing | Settled::Unknown(None) => {}
            Settled::Settings(theirs) => {
                if let Phase::Joining(join) = &mut self.phase
                    && let Err(error) = join.handle_settings(&self.config, &theirs)
                {
                    self.fail(now, error);
                }
            }
            Settled::Table { table, asked, adoptions } => {
                let me = self.me.as_ref();
                let reading = self.membership.take_table(now, me, asked, adoptions, table);
                self.read(now, asked, reading);
            }
            Settled::Written { change, asked } => self.written(now, asked, &change),
            // Read before anything is written again: a change of unknown outcome may have been
            // made.
            Settled::Lost | Settled::Unknown(Some(_)) => self.membership.forget_table(),
            Settled::Refused(refusal) => self.refused(now, refusal),
        }
    }

    #[cfg(any(test, feature = "planted"))]
    fn planted_lease(&self, others: Vec<Heard>, needed: usize) -> (Vec<Heard>, usize) {
        if self.defect == Some(super::Defect::StoreAloneRenews) {
            return (vec![Heard::Never], 1);
        }
        (others, needed)
    }

    #[cfg(any(test, feature = "planted"))]
    fn planted(&self, settled: Settled) -> Settled {
        let assumed = self.defect == Some(super::Defect::UnknownCommitAssumed);
        if let Settled::Unknown(Some(change)) = &settled
            && assumed
        {
            return Settled::Written { change: change.clone(), asked: self.now };
        }
        settled
    }

    fn refused(&mut self, now: Moment, refusal: Refusal) {
        self.membership.forget_table();
        if matches!(self.phase, Phase::Joining(_)) {
            let error = match refusal {
                Refusal::NotMigrated { missing, url } => JoinError::NotMigrated { missing, url },
                Refusal::Other(detail) => JoinError::StoreRefused { detail },
            };
            self.fail(now, error);
        }
    }

    fn written(&mut self, now: Moment, asked: Moment, change: &Change) {
        let peers: Vec<Generation> = self.detector.reachable().collect();
        if let (Why::Joining, Edit::Row(row)) = (change.why, &change.edit) {
            self.named(now, row.incarnation.clone(), change.next);
        }
        self.tell_change(change);
        let reading = self.membership.take_change(now, change);
        if reading == Reading::Adopted {
            // Before the view is told here: that closes the lane to whoever is Dead in it.
            let view = ViewRows::of(self.membership.view());
            for peer in peers {
                let newer = ControlMessage::Newer(view.clone());
                self.out.push_back(ControlOutput::Send(peer, newer));
            }
        }
        self.read(now, asked, reading);
        if let Phase::Leaving(_) = self.phase
            && self.status() == Some(SiloStatus::Dead)
        {
            self.left(now);
        }
    }

    fn named(&mut self, now: Moment, me: Incarnation, view: ViewNumber) {
        self.detector.name(me.generation);
        self.beat_at = now;
        self.out.push_back(ControlOutput::Named(me.clone()));
        self.out.push_back(ControlOutput::Event(Event::SiloJoining { silo: me.clone(), view }));
        self.me = Some(me);
    }

    fn tell_change(&mut self, change: &Change) {
        let Edit::Row(row) = &change.edit else { return };
        let silo = row.incarnation.clone();
        let event = match change.why {
            Why::Status => {
                let (status, view) = (row.status, change.next);
                Event::SiloStatusChanged { silo, status, view }
            }
            Why::Vote(reason) => Event::SiloAccused { silo, reason },
            Why::Death(reason) => Event::SiloDeclaredDead { silo, reason },
            Why::Joining | Why::Prune | Why::Repair => return,
        };
        self.out.push_back(ControlOutput::Event(event));
    }

    /// What the table at hand, asked for at `asked`, means.
    fn read(&mut self, now: Moment, asked: Moment, reading: Reading) {
        let was_regressed = core::mem::replace(&mut self.regressed, false);
        match reading {
            Reading::Adopted => {
                self.adopted(now);
                self.shown(now, asked);
            }
            Reading::Known => self.shown(now, asked),
            Reading::Overtaken | Reading::Unreadable => self.hinted = true,
            Reading::OwnGone(view) => self.own_gone(now, view),
            Reading::Regressed if self.me.is_none() => self.membership.forget(),
            Reading::Regressed => {
                self.regressed = true;
                if !was_regressed {
                    let seen = self.view().number();
                    let found = self.membership.table().map_or(seen, |table| table.version);
                    self.out.push_back(ControlOutput::Event(Event::StoreRegressed { seen, found }));
                }
            }
        }
    }

    /// The store holds what we hold.
    fn shown(&mut self, now: Moment, asked: Moment) {
        self.shown_at = self.shown_at.max(asked);
        let Some(me) = self.me.as_ref().map(|me| me.generation) else { return };
        if is_in_service(self.view().status(me)) {
            self.in_service(now, asked);
        }
    }
}

/// The table as a joiner sees it: with the defect that ignores the older rows of its name, without
/// them.
#[cfg(any(test, feature = "planted"))]
fn planted_table(
    defect: Option<super::Defect>,
    config: &ControlConfig,
    table: &siloring_core::ports::store::Table,
) -> siloring_core::ports::store::Table {
    let mut table = table.clone();
    if defect == Some(super::Defect::OldRowKept) {
        table.rows.retain(|row| row.row.incarnation.name != config.name);
    }
    table
}

fn is_in_service(status: Option<SiloStatus>) -> bool {
    match status {
        Some(SiloStatus::Active | SiloStatus::Draining) => true,
        Some(SiloStatus::Joining | SiloStatus::Dead) | None => false,
    }
}
