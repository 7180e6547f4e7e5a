//! The harness: several control machines on virtual time, with lanes, a store and faults between
//! them.
//!
//! Deterministic: one seed, one queue ordered by time and number. After every step the invariants
//! of [`World::check`] hold, or the run panics with its seed.

use std::collections::{BTreeMap, BTreeSet};

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::limits::{
    DIAL_TIME_MAX, HANDSHAKE_TIME_MAX, LEASE, LINK_SILENCE_MAX, TABLE_READ_PERIOD,
};
use siloring_core::ports::store::{StoreError, StoreRequest, StoreResult};
use siloring_core::{Generation, Incarnation, Moment, SiloName, SiloStatus, ViewNumber};

use super::super::{
    Control, ControlConfig, ControlMessage, ControlOutput, Defect, Inquiry, JoinError, Reach,
    StoreTicket,
};
use super::store::SharedStore;

/// How the network treats bytes from one node to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut {
    /// They vanish.
    Drop,
    /// They are answered with a reset.
    Reject,
}

/// How the store treats the requests of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreFault {
    /// Refused at once: nothing is done.
    Down,
    /// No answer for ten seconds, then `Unavailable`; nothing is done.
    Hang,
    /// Done, but the answer is lost, with this chance in percent.
    LosesAnswers(u8),
    /// No answer, with this chance in percent, and done in half of the cases.
    LosesBoth(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Running,
    Paused,
    /// The process is gone; its host answers with resets.
    Killed,
    /// The host is gone: nothing answers.
    Vanished,
}

#[derive(Debug)]
enum Step {
    Tick(u64),
    Answer(StoreTicket, StoreResult),
    Message(Generation, ControlMessage, u64),
    Reached(Generation, Reach),
    Inquired(String, Inquiry),
    /// The store executes a request of the node.
    Execute(StoreTicket, StoreRequest),
    Dial(Generation, String),
    Inquire(String),
    /// A lane on which bytes vanished is given up.
    GiveUp(Generation, u64),
    /// A starved process gets the processor again.
    Wake,
    /// A process that left ends.
    End,
}

pub(super) struct Node {
    pub(super) control: Control,
    pub(super) name: SiloName,
    pub(super) address: String,
    pub(super) life: Life,
    pub(super) store_fault: Option<StoreFault>,
    /// Whether its advertised address leads to it.
    pub(super) is_routable: bool,
    /// Its clock is ahead of the world's by this much…
    skew: Duration,
    /// …and runs this much too fast, in thousandths.
    pub(super) drift_permille: u64,
    /// Every step of it comes up to this much late.
    pub(super) starved: Duration,
    ticks: u64,
    held: Vec<Step>,
    pub(super) me: Option<Incarnation>,
    pub(super) view: ViewNumber,
    statuses: BTreeMap<Generation, SiloStatus>,
    pub(super) serve_until: Moment,
    pub(super) started_at: Option<Moment>,
    pub(super) exited: Option<(Moment, u8)>,
    pub(super) left_at: Option<Moment>,
    pub(super) join_failed: Option<JoinError>,
    pub(super) events: Vec<(Moment, Event)>,
    pub(super) stalls: Vec<ControlOutput>,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) now: Moment,
    rng: fastrand::Rng,
    pub(super) nodes: Vec<Node>,
    pub(super) store: SharedStore,
    pub(super) cuts: BTreeMap<(usize, usize), Cut>,
    /// Extra one-way delay of every byte.
    pub(super) delay: Duration,
    /// Messages lost per hundred, although the lane stays up.
    pub(super) loss: u8,
    lanes: BTreeMap<(usize, usize), u64>,
    lane_count: u64,
    last_arrival: BTreeMap<(usize, usize), Moment>,
    queue: BTreeMap<(Moment, u64), (usize, Step)>,
    queued: u64,
    pub(super) steps: u64,
    seen: BTreeMap<ViewNumber, Vec<(Generation, SiloStatus)>>,
    /// When another silo first held a view without this one.
    buried_at: BTreeMap<Generation, Moment>,
    /// How long after another silo saw it Dead a silo may go on, beyond the lease.
    pub(super) propagation_max: Duration,
    /// Whether views of one number must be equal: not while a store that lost commits is unnoticed.
    pub(super) is_content_checked: bool,
}

pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(super) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            now: Moment::ZERO + seconds(1),
            rng: fastrand::Rng::with_seed(seed),
            nodes: Vec::new(),
            store: SharedStore::default(),
            cuts: BTreeMap::new(),
            delay: Duration::ZERO,
            loss: 0,
            lanes: BTreeMap::new(),
            lane_count: 0,
            last_arrival: BTreeMap::new(),
            queue: BTreeMap::new(),
            queued: 0,
            steps: 0,
            seen: BTreeMap::new(),
            buried_at: BTreeMap::new(),
            propagation_max: TABLE_READ_PERIOD + seconds(1),
            is_content_checked: true,
        }
    }

    /// A world of `count` Active silos.
    pub(super) fn started(seed: u64, count: usize) -> Self {
        let mut world = Self::new(seed);
        for _ in 0..count {
            let node = world.add();
            world.start(node);
        }
        assert!(world.run_until(seconds(60), |world| {
            world.nodes.iter().all(|node| node.started_at.is_some())
        }));
        world.run(seconds(6));
        world
    }

    pub(super) fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.rng
    }

    /// Adds a node with a name and an address of its own.
    pub(super) fn add(&mut self) -> usize {
        let index = self.nodes.len();
        self.add_as(&format!("silo-{index}"), &format!("10.0.0.{index}:7000"))
    }

    pub(super) fn add_as(&mut self, name: &str, address: &str) -> usize {
        let settings = vec![("ring_points".to_owned(), "30".to_owned())];
        self.add_with(name, address, settings)
    }

    pub(super) fn add_with(
        &mut self,
        name: &str,
        address: &str,
        settings: Vec<(String, String)>,
    ) -> usize {
        let name = SiloName::new(name).unwrap();
        let config = ControlConfig::new(name.clone(), address, "host", 2, settings);
        let rng = self.rng.fork();
        self.nodes.push(Node {
            control: Control::new(config, rng),
            name,
            address: address.to_owned(),
            life: Life::Running,
            store_fault: None,
            is_routable: true,
            skew: Duration::ZERO,
            drift_permille: 0,
            starved: Duration::ZERO,
            ticks: 0,
            held: Vec::new(),
            me: None,
            view: ViewNumber::ZERO,
            statuses: BTreeMap::new(),
            serve_until: Moment::ZERO,
            started_at: None,
            exited: None,
            left_at: None,
            join_failed: None,
            events: Vec::new(),
            stalls: Vec::new(),
        });
        self.nodes.len() - 1
    }

    /// Plants a defect, if there is one, in every node.
    pub(super) fn plant(&mut self, defect: Option<Defect>) {
        for node in 0..self.nodes.len() {
            self.plant_in(node, defect);
        }
    }

    pub(super) fn plant_in(&mut self, node: usize, defect: Option<Defect>) {
        if let Some(defect) = defect {
            self.nodes[node].control.plant(defect);
        }
    }

    /// Sets a clock ahead of the world's; before the start, or as a jump.
    pub(super) fn set_skew(&mut self, node: usize, skew: Duration) {
        self.nodes[node].skew = skew;
    }

    pub(super) fn start(&mut self, node: usize) {
        let local = self.local(node);
        self.nodes[node].control.start(local);
        self.drain(node);
    }

    pub(super) fn command(&mut self, node: usize, command: impl FnOnce(&mut Control, Moment)) {
        let local = self.local(node);
        command(&mut self.nodes[node].control, local);
        self.drain(node);
    }

    // ---- faults

    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node].life = Life::Killed;
        self.break_lanes(node);
    }

    pub(super) fn vanish(&mut self, node: usize) {
        self.nodes[node].life = Life::Vanished;
    }

    pub(super) fn pause(&mut self, node: usize) {
        self.nodes[node].life = Life::Paused;
    }

    pub(super) fn resume(&mut self, node: usize) {
        if self.nodes[node].life != Life::Paused {
            return;
        }
        self.nodes[node].life = Life::Running;
        // As after SIGCONT: what waited in the sockets comes first, and a timer at some point.
        let held = core::mem::take(&mut self.nodes[node].held);
        for step in held {
            self.push(millis(0), node, step);
        }
        let ticks = self.nodes[node].ticks;
        self.push(millis(1), node, Step::Tick(ticks));
    }

    /// Cuts both ways between each of `one` and each of `other`.
    pub(super) fn part(&mut self, one: &[usize], other: &[usize], cut: Cut) {
        for &a in one {
            for &b in other {
                self.cuts.insert((a, b), cut);
                self.cuts.insert((b, a), cut);
            }
        }
    }

    pub(super) fn heal(&mut self) {
        self.cuts.clear();
    }

    // ---- running

    pub(super) fn run(&mut self, span: Duration) {
        let never = |_: &Self| false;
        assert!(!self.run_until(span, never));
    }

    /// Runs until the condition holds, at most for `span`; tells whether it did.
    pub(super) fn run_until(&mut self, span: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + span;
        loop {
            if done(self) {
                return true;
            }
            match self.queue.first_key_value() {
                Some((&(at, _), _)) if at <= end => {}
                Some(_) | None => {
                    self.now = end;
                    return done(self);
                }
            }
            let ((at, _), (node, step)) = self.queue.pop_first().expect("just seen");
            self.now = self.now.max(at);
            self.steps += 1;
            self.step(node, step);
        }
    }

    // ---- what is read

    pub(super) fn generation(&self, node: usize) -> Generation {
        self.nodes[node].me.as_ref().expect("named").generation
    }

    pub(super) fn is_serving(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.life == Life::Running && node.exited.is_none() && self.now <= node.serve_until
    }

    pub(super) fn is_dead_in_store(&self, node: usize) -> bool {
        self.store.status(self.generation(node)) == Some(SiloStatus::Dead)
    }

    /// Whether every node that runs is Active in every view that a running node holds.
    pub(super) fn is_converged(&self) -> bool {
        let live = |node: &&Node| node.life == Life::Running && node.exited.is_none();
        let running: Vec<&Node> =
            self.nodes.iter().filter(live).filter(|node| node.me.is_some()).collect();
        let expected: BTreeSet<Generation> =
            running.iter().map(|node| node.me.as_ref().unwrap().generation).collect();
        running.iter().all(|node| {
            let active: BTreeSet<Generation> =
                node.control.view().active().map(|row| row.incarnation.generation).collect();
            active == expected && node.view == running[0].view
        })
    }

    pub(super) fn count_events(&self, node: usize, name: &str) -> usize {
        self.nodes[node].events.iter().filter(|(_, event)| event.name() == name).count()
    }

    // ---- within

    fn local(&self, node: usize) -> Moment {
        let node = &self.nodes[node];
        let drift = self.now.as_nanos() / 1000 * node.drift_permille;
        self.now + node.skew + Duration::from_nanos(drift)
    }

    fn push(&mut self, after: Duration, node: usize, step: Step) {
        self.queued += 1;
        self.queue.insert((self.now + after, self.queued), (node, step));
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(50..800)) + self.delay
    }

    fn step(&mut self, node: usize, step: Step) {
        // What the network and the store do needs no process.
        match step {
            Step::Execute(ticket, request) => return self.execute(node, ticket, &request),
            Step::Dial(to, address) => return self.dial(node, to, &address),
            Step::Inquire(address) => return self.inquire(node, address),
            Step::GiveUp(to, lane) => return self.give_up(node, to, lane),
            Step::Wake => return self.resume(node),
            Step::End => return self.end(node),
            Step::Tick(_)
            | Step::Answer(..)
            | Step::Message(..)
            | Step::Reached(..)
            | Step::Inquired(..) => {}
        }
        let starved = self.nodes[node].starved;
        if starved > Duration::ZERO && self.rng.u8(0..4) == 0 {
            // Everything that comes in meanwhile waits too.
            self.pause(node);
            let span = self.rng.u64(0..u64::try_from(starved.as_nanos()).unwrap());
            self.push(Duration::from_nanos(span), node, Step::Wake);
        }
        match self.nodes[node].life {
            Life::Running => {}
            Life::Paused => {
                if !matches!(step, Step::Tick(_)) {
                    self.nodes[node].held.push(step);
                }
                return;
            }
            Life::Killed | Life::Vanished => return,
        }
        let local = self.local(node);
        match step {
            Step::Tick(number) => {
                if number != self.nodes[node].ticks {
                    return;
                }
                self.nodes[node].control.tick(local);
            }
            Step::Answer(ticket, result) => {
                self.nodes[node].control.handle_store(local, ticket, result);
            }
            Step::Message(from, message, lane) => {
                let Some(sender) = self.index_of(from) else { return };
                if self.lanes.get(&pair(node, sender)) != Some(&lane) {
                    return;
                }
                self.nodes[node].control.handle_message(local, from, message);
            }
            Step::Reached(to, reach) => self.nodes[node].control.handle_reach(local, to, reach),
            Step::Inquired(address, inquiry) => {
                self.nodes[node].control.handle_inquiry(local, &address, inquiry);
            }
            Step::Execute(..)
            | Step::Dial(..)
            | Step::Inquire(_)
            | Step::GiveUp(..)
            | Step::Wake
            | Step::End => unreachable!("done above"),
        }
        self.drain(node);
    }

    fn drain(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].control.poll_output() {
            self.take(node, output);
        }
        let due = self.nodes[node].control.next_deadline();
        if due != Moment::NEVER {
            self.nodes[node].ticks += 1;
            let wait = due.since(self.local(node)) + Duration::from_micros(self.rng.u64(0..500));
            let ticks = self.nodes[node].ticks;
            self.push(wait, node, Step::Tick(ticks));
        }
        self.check(node);
    }

    fn take(&mut self, node: usize, output: ControlOutput) {
        let now = self.now;
        match output {
            ControlOutput::Store(ticket, request) => {
                let wait = self.latency();
                self.push(wait, node, Step::Execute(ticket, request));
            }
            ControlOutput::Send(to, message) => self.send(node, to, message),
            ControlOutput::Connect(to, address) => {
                let wait = self.latency();
                self.push(wait, node, Step::Dial(to, address));
            }
            ControlOutput::Reconnect(to, address) => {
                if let Some(other) = self.index_of(to)
                    && self.lanes.remove(&pair(node, other)).is_some()
                {
                    let from = self.generation(node);
                    self.tell(node, other, Step::Reached(from, Reach::Broken));
                }
                let wait = self.latency();
                self.push(wait, node, Step::Dial(to, address));
            }
            ControlOutput::Inquire(address) => {
                let wait = self.latency();
                self.push(wait, node, Step::Inquire(address));
            }
            ControlOutput::Named(me) => self.nodes[node].me = Some(me),
            ControlOutput::View(view) => self.take_view(node, &view),
            ControlOutput::Started => self.nodes[node].started_at = Some(now),
            ControlOutput::JoinFailed(error) => {
                self.nodes[node].join_failed = Some(error);
                self.end(node);
            }
            ControlOutput::ServeUntil(until) => {
                let local = self.local(node);
                assert!(until.since(local) <= LEASE, "seed {}: I-lease", self.seed);
                let node = &mut self.nodes[node];
                let skew = u64::try_from(node.skew.as_nanos()).unwrap();
                let nanos = until.as_nanos().saturating_sub(skew) / (1000 + node.drift_permille);
                node.serve_until = Moment::from_nanos(nanos * 1000);
            }
            ControlOutput::Left => {
                // What was sent before the end still arrives.
                self.nodes[node].left_at = Some(now);
                self.push(millis(20) + self.delay, node, Step::End);
            }
            ControlOutput::Exit(code) => {
                self.nodes[node].exited = Some((now, code));
                self.end(node);
            }
            ControlOutput::Event(event) => self.nodes[node].events.push((now, event)),
            ControlOutput::Stalled { .. } | ControlOutput::Abort { .. } => {
                self.nodes[node].stalls.push(output);
            }
        }
    }

    /// The process ends: its host answers with resets from now on.
    fn end(&mut self, node: usize) {
        self.nodes[node].life = Life::Killed;
        self.break_lanes(node);
    }

    /// I4 and I5 for one silo's views, and I4 across silos.
    fn take_view(&mut self, node: usize, view: &siloring_core::View) {
        let seed = self.seed;
        let content: Vec<(Generation, SiloStatus)> =
            view.rows().iter().map(|row| (row.incarnation.generation, row.status)).collect();
        let held = &mut self.nodes[node];
        assert!(view.number() > held.view, "seed {seed}: I4, a view goes forward: {view:?}");
        held.view = view.number();
        for &(generation, status) in &content {
            if status == SiloStatus::Dead {
                self.buried_at.entry(generation).or_insert(self.now);
            }
            let before = held.statuses.insert(generation, status);
            let dead = before == Some(SiloStatus::Dead);
            assert!(
                !dead || status == SiloStatus::Dead,
                "seed {seed}: I5, {generation:?} returned"
            );
        }
        if self.is_content_checked {
            let first = self.seen.entry(view.number()).or_insert_with(|| content.clone());
            assert_eq!(*first, content, "seed {seed}: I4, {:?} has one content", view.number());
        }
    }

    fn send(&mut self, node: usize, to: Generation, message: ControlMessage) {
        let Some(other) = self.index_of(to) else { return };
        let Some(&lane) = self.lanes.get(&pair(node, other)) else { return };
        let from = self.generation(node);
        match self.cuts.get(&(node, other)) {
            None if self.nodes[other].life == Life::Vanished => {
                self.push(LINK_SILENCE_MAX, node, Step::GiveUp(to, lane));
            }
            None => {
                if self.rng.u8(0..100) < self.loss {
                    return;
                }
                let mut at = self.now + self.latency();
                let last = self.last_arrival.entry((node, other)).or_insert(Moment::ZERO);
                at = at.max(*last);
                *last = at;
                self.queued += 1;
                let step = Step::Message(from, message, lane);
                self.queue.insert((at, self.queued), (other, step));
            }
            Some(Cut::Drop) => self.push(LINK_SILENCE_MAX, node, Step::GiveUp(to, lane)),
            Some(Cut::Reject) => self.break_lane(node, other),
        }
    }

    /// Bytes vanished on a lane five seconds ago: TCP gives up, unless the way is open again.
    fn give_up(&mut self, node: usize, to: Generation, lane: u64) {
        let Some(other) = self.index_of(to) else { return };
        let open =
            !self.cuts.contains_key(&(node, other)) && self.nodes[other].life != Life::Vanished;
        if !open && self.lanes.get(&pair(node, other)) == Some(&lane) {
            self.break_lane(node, other);
        }
    }

    fn break_lanes(&mut self, node: usize) {
        for other in 0..self.nodes.len() {
            if other != node {
                self.break_lane(node, other);
            }
        }
    }

    fn break_lane(&mut self, node: usize, other: usize) {
        if self.lanes.remove(&pair(node, other)).is_none() {
            return;
        }
        let (one, two) = (self.generation(node), self.generation(other));
        self.tell(node, other, Step::Reached(one, Reach::Broken));
        self.tell(other, node, Step::Reached(two, Reach::Broken));
    }

    /// News of the network for `to`, if bytes from `from` reach it.
    fn tell(&mut self, from: usize, to: usize, step: Step) {
        if self.cuts.get(&(from, to)) != Some(&Cut::Drop) {
            let wait = self.latency();
            self.push(wait, to, step);
        }
    }

    fn dial(&mut self, node: usize, to: Generation, address: &str) {
        let Some(me) = self.nodes[node].me.clone() else { return };
        let Some(other) = self.at_address(node, address) else {
            return self.push(DIAL_TIME_MAX, node, Step::Reached(to, Reach::Silent));
        };
        let wait = self.latency();
        if let Some(reach) = self.obstacle(node, other) {
            let wait = if reach == Reach::Silent { DIAL_TIME_MAX } else { wait };
            return self.push(wait, node, Step::Reached(to, reach));
        }
        let there = &self.nodes[other];
        if there.me.as_ref().is_none_or(|me| me.generation != to) {
            return self.push(wait, node, Step::Reached(to, Reach::Refused));
        }
        if there.control.view().is_gone(me.generation) {
            return self.push(wait, node, Step::Reached(to, Reach::Disowned));
        }
        if self.nodes[node].control.view().is_gone(to) {
            return self.push(wait, node, Step::Reached(to, Reach::Refused));
        }
        // A handshake is round trips: both hear bytes of the other.
        if let std::collections::btree_map::Entry::Vacant(vacant) =
            self.lanes.entry(pair(node, other))
        {
            self.lane_count += 1;
            vacant.insert(self.lane_count);
            self.push(wait, other, Step::Reached(me.generation, Reach::Connected));
        }
        self.push(wait, node, Step::Reached(to, Reach::Connected));
    }

    fn inquire(&mut self, node: usize, address: String) {
        let wait = self.latency();
        let found = self.at_address(node, &address).filter(|&other| {
            self.obstacle(node, other).is_none() && self.nodes[other].me.is_some()
        });
        if let Some(other) = found {
            let who = self.nodes[other].me.clone().expect("just seen");
            self.push(wait, node, Step::Inquired(address, Inquiry::Answered(who)));
        } else {
            let gone = self.at_address(node, &address).is_some();
            let wait = if gone { wait } else { HANDSHAKE_TIME_MAX };
            self.push(wait, node, Step::Inquired(address, Inquiry::Silent));
        }
    }

    /// What keeps a dial from its end.
    fn obstacle(&self, node: usize, other: usize) -> Option<Reach> {
        let cuts = [self.cuts.get(&(node, other)), self.cuts.get(&(other, node))];
        if cuts.contains(&Some(&Cut::Drop)) {
            return Some(Reach::Silent);
        }
        if cuts.contains(&Some(&Cut::Reject)) {
            return Some(Reach::Refused);
        }
        match self.nodes[other].life {
            Life::Running => None,
            Life::Paused | Life::Vanished => Some(Reach::Silent),
            Life::Killed => Some(Reach::Refused),
        }
    }

    /// The newest node that is, or was, at the address.
    fn at_address(&self, dialer: usize, address: &str) -> Option<usize> {
        (0..self.nodes.len()).rev().find(|&index| {
            let node = &self.nodes[index];
            index != dialer && node.address == address && node.is_routable
        })
    }

    fn index_of(&self, generation: Generation) -> Option<usize> {
        self.nodes
            .iter()
            .rposition(|node| node.me.as_ref().is_some_and(|me| me.generation == generation))
    }

    fn execute(&mut self, node: usize, ticket: StoreTicket, request: &StoreRequest) {
        let unavailable = |detail: &str| Err(StoreError::Unavailable { detail: detail.to_owned() });
        let wait = self.latency();
        match self.nodes[node].store_fault {
            Some(StoreFault::Down) => {
                self.push(wait, node, Step::Answer(ticket, unavailable("refused")));
            }
            Some(StoreFault::Hang) => {
                self.push(seconds(10), node, Step::Answer(ticket, unavailable("time out")));
            }
            Some(StoreFault::LosesAnswers(chance)) if self.rng.u8(0..100) < chance => {
                let _lost = self.store.execute(self.now, request);
                self.push(wait, node, Step::Answer(ticket, unavailable("connection lost")));
            }
            Some(StoreFault::LosesBoth(chance)) if self.rng.u8(0..100) < chance => {
                if self.rng.bool() {
                    let _lost = self.store.execute(self.now, request);
                }
                self.push(wait, node, Step::Answer(ticket, unavailable("connection lost")));
            }
            Some(StoreFault::LosesAnswers(_) | StoreFault::LosesBoth(_)) | None => {
                let result = self.store.execute(self.now, request);
                self.push(wait, node, Step::Answer(ticket, result));
            }
        }
    }

    /// The promise of the lease, after every step of `node`.
    fn check(&self, node: usize) {
        let Some(me) = self.nodes[node].me.as_ref() else { return };
        let Some(&dead_at) = self.buried_at.get(&me.generation) else { return };
        let bound = LEASE + self.propagation_max;
        let over = self.is_serving(node) && self.now.since(dead_at) > bound;
        assert!(
            !over,
            "seed {}: {me} goes on {:?} after another silo saw it Dead",
            self.seed,
            self.now.since(dead_at)
        );
    }
}

const fn pair(one: usize, other: usize) -> (usize, usize) {
    if one < other { (one, other) } else { (other, one) }
}
