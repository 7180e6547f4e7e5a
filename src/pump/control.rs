//! The control node: everything of a silo that is neither a shard nor I/O.
//!
//! It composes the control machine (membership, detector, lease) with what the machine speaks
//! through: dials, handshakes, one control lane for each peer, and the hand-over of data links to
//! the shards. The control thread and the simulator drive the same node.
//!
//! **Contract.** Inputs take the time; after every input the driver drains
//! [`ControlNode::poll_output`], then writes the connections of [`ControlNode::take_dirty`].
//! [`ControlNode::next_deadline`] says when the next [`ControlNode::tick`] is due. A connection is
//! named by the node and never again; input for one that the node has given up is ignored.
//!
//! **Invariants.** A lane is up only after the handshake with that very incarnation. Of two lanes
//! of one pair the one dialled by the lower generation survives. A dial that a shard asked for ends
//! in a link handed to it or in one [`ShardMail::LinkFailed`]. No lane, dial or handshake outlives
//! the view in which its peer is gone.
//!
//! **Bounds.** Handshakes accepted: `HANDSHAKES_PENDING_MAX`. Dials: one for each (shard, peer),
//! lane and inquiry. Directory messages that wait for a lane: `DIRECTORY_WAITING_MAX` a peer.
//!
//! The files: `knocks.rs` keeps those who dialled us, `handshakes.rs` shakes hands with them and
//! with those whom we dial (`dials.rs`), inside TLS if it is set (`sealed.rs`), `lanes.rs` speaks
//! on the lanes that come of it, `leave.rs` drains.
//!
//! Deliberately absent: sockets, threads, clocks; the choice of whom to probe, vote against or dial
//! (the machine's); requests and replies (the shards').

mod backoff;
mod conn;
mod dials;
mod handshakes;
mod knocks;
mod lanes;
mod leave;
mod sealed;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use siloring_core::event::Event;
use siloring_core::ports::store::{StoreRequest, StoreResult};
use siloring_core::window::LogWindow;
use siloring_core::{Endpoint, Generation, Incarnation, Moment, ShardIndex, View};
use siloring_runtime::control::{Control, ControlOutput, JoinError, Reach, StoreTicket};
use siloring_runtime::directory::DirectoryMessage;
use siloring_runtime::mail::{ConnId, ControlMail, ShardMail};
use siloring_transport::net::UnixName;
use siloring_transport::{Certificates, Established, LocalFacts, Refusal, RefusalKind, Session};

use self::backoff::Backoffs;
use self::conn::{Conn, Lane, State, Wanted};
use self::knocks::Knocks;
use self::leave::{Leave, LeaveStep};

/// Which sockets connect silos.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum LinkMode {
    /// Unix sockets between silos of one host and network namespace, else TCP.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// Unix sockets only: for a cluster on one host.
    Unix,
}

/// Where a dial goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// To an advertised `host:port`.
    Tcp(String),
    /// To an abstract Unix socket of this host.
    Unix(UnixName),
}

impl Route {
    const fn name(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "unix",
        }
    }
}

/// Why a dial failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialFault {
    /// Refused or reset: nobody listens there.
    Refused,
    /// Not answered, or not possible from here.
    Silent,
}

/// What the node wants done.
#[derive(Debug)]
pub enum ControlNodeOutput {
    /// Connect; answer with [`ControlNode::connected`] or [`ControlNode::dial_failed`].
    Dial {
        /// The connection's name from now on.
        conn: ConnId,
        /// Where to.
        route: Route,
    },
    /// Write what the connection has unsent, as far as it goes, and close it.
    Close(ConnId),
    /// The handshake of a data link is done: its socket belongs to a shard now.
    HandOff {
        /// The connection; it is no longer the node's.
        conn: ConnId,
        /// Whose it is.
        shard: ShardIndex,
        /// What the handshake said.
        established: Box<Established>,
        /// What seals it; `None` without TLS.
        session: Option<Box<Session>>,
    },
    /// Mail to a shard.
    Shard(ShardIndex, ShardMail),
    /// Ask the store; answer with [`ControlNode::stored`].
    Store(StoreTicket, StoreRequest),
    /// Shards may take input up to and including this moment.
    ServeUntil(Moment),
    /// Listen under this incarnation's Unix name too.
    Named(Incarnation),
    /// The silo is Active.
    Started,
    /// The silo could not join; the node has ended.
    JoinFailed {
        /// Why.
        error: JoinError,
        /// The last handshake that was refused while joining: often the cause.
        refusal: Option<Refusal>,
    },
    /// A shard made no progress for so long: say so, with what it runs.
    Stalled {
        /// Which.
        shard: ShardIndex,
        /// For how long.
        stalled: core::time::Duration,
    },
    /// End the process at once, with a core dump: a shard is stuck.
    Abort(ShardIndex),
    /// The drain is done; the node has ended.
    Left {
        /// Turns and deliveries that were cut off.
        unfinished_count: usize,
    },
    /// End the process with this code.
    Exit(u8),
    /// Count and log.
    Event(Event),
}

/// Unpredictable bytes for one handshake each: the operating system's in production.
pub type Nonces = Box<dyn FnMut() -> [u8; 32] + Send>;

/// See the module's head.
pub struct ControlNode {
    machine: Control,
    facts: Arc<LocalFacts>,
    advertised: String,
    mode: LinkMode,
    nonces: Nonces,
    /// TCP connections are sealed with these; `None` without TLS.
    certificates: Option<Certificates>,
    view: Arc<View>,
    conns: BTreeMap<ConnId, Conn>,
    conn_counter: u64,
    /// Dials and their handshakes under way.
    dials: BTreeMap<Wanted, ConnId>,
    /// Handshakes under way that others dialled.
    knocks: Knocks,
    /// Which failures of which peers were logged lately.
    failed_log: LogWindow<(String, &'static str)>,
    /// Lanes that are up.
    lanes: BTreeMap<Generation, Lane>,
    /// Directory messages for peers whose lane is being dialled.
    waiting: BTreeMap<Generation, VecDeque<(ShardIndex, Endpoint, DirectoryMessage)>>,
    backoffs: Backoffs,
    leave: Leave,
    /// The last refused handshake of a dial, and how many were refused for good while joining.
    refusal: Option<Refusal>,
    hopeless_count: u32,
    joining: bool,
    dirty: Vec<ConnId>,
    outputs: VecDeque<ControlNodeOutput>,
    /// A deliberate defect: a data link counts as up once it is connected, before its handshake.
    #[cfg(feature = "planted")]
    up_at_connect: bool,
    /// A deliberate defect of the rule that says which lane survives.
    #[cfg(test)]
    lane_defect: Option<lanes::LaneDefect>,
}

impl core::fmt::Debug for ControlNode {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("ControlNode")
            .field("incarnation", &self.facts.incarnation)
            .field("view", &self.view.number())
            .field("lanes", &self.lanes)
            .field("dials", &self.dials)
            .finish_non_exhaustive()
    }
}

impl ControlNode {
    /// A node around a control machine that has not been started. `facts` have no incarnation yet.
    ///
    /// # Panics
    /// If `facts` do not pass [`LocalFacts::check`].
    pub fn new(
        machine: Control,
        facts: LocalFacts,
        advertised: impl Into<String>,
        mode: LinkMode,
        nonces: Nonces,
    ) -> Self {
        assert_eq!(facts.check(), Ok(()), "facts are checked by the builder");
        let shards = facts.shards;
        Self {
            machine,
            facts: Arc::new(facts),
            advertised: advertised.into(),
            mode,
            nonces,
            certificates: None,
            view: Arc::default(),
            conns: BTreeMap::new(),
            conn_counter: 0,
            dials: BTreeMap::new(),
            knocks: Knocks::default(),
            failed_log: LogWindow::default(),
            lanes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            backoffs: Backoffs::default(),
            leave: Leave::new(shards),
            refusal: None,
            hopeless_count: 0,
            joining: true,
            dirty: Vec::new(),
            outputs: VecDeque::new(),
            #[cfg(feature = "planted")]
            up_at_connect: false,
            #[cfg(test)]
            lane_defect: None,
        }
    }

    /// New TCP connections are sealed with these; the ones there are stay as they are.
    pub fn set_certificates(&mut self, certificates: Certificates) {
        self.certificates = Some(certificates);
    }

    /// Begins to join.
    pub fn start(&mut self, now: Moment) {
        self.machine.start(now);
        self.follow(now);
    }

    /// The silo's incarnation, once its row is written.
    pub fn incarnation(&self) -> Option<&Incarnation> {
        self.facts.incarnation.as_ref()
    }

    /// Where a connection's unsent bytes are; empty for one that is not the node's.
    pub fn unsent(&mut self, conn: ConnId) -> &[u8] {
        self.conns.get_mut(&conn).map_or(&[], Conn::unsent)
    }

    /// The kernel took so many of them.
    pub fn sent(&mut self, conn: ConnId, count: usize) {
        if let Some(found) = self.conns.get_mut(&conn) {
            found.sent(count);
        }
    }

    /// Appends the connections that have something to send since the last call.
    pub fn take_dirty(&mut self, dirty: &mut Vec<ConnId>) {
        dirty.append(&mut self.dirty);
    }

    /// What the node wants done next.
    pub fn poll_output(&mut self) -> Option<ControlNodeOutput> {
        self.outputs.pop_front()
    }

    /// A connection ended: the peer closed it, or the kernel gave it up.
    pub fn closed(&mut self, now: Moment, conn: ConnId, reason: &str) {
        self.lose(now, conn, reason);
        self.follow(now);
    }

    /// Bytes have come.
    pub fn receive(&mut self, now: Moment, conn: ConnId, bytes: &[u8]) {
        match self.conns.get(&conn) {
            None => return,
            Some(found) if found.session.is_some() => self.receive_sealed(now, conn, bytes),
            Some(_) => self.receive_plain(now, conn, bytes),
        }
        self.follow(now);
    }

    fn receive_plain(&mut self, now: Moment, conn: ConnId, bytes: &[u8]) {
        let found = self.conns.get_mut(&conn).expect("looked up by the caller");
        match &mut found.state {
            State::Dialing | State::Closing { .. } => {}
            State::Shaking(shaking) => {
                let step = shaking.handle_bytes(bytes, &self.view);
                self.knocks.spoke(conn);
                self.dirty.push(conn);
                self.take_step(now, conn, step);
            }
            State::Lane { link, peer } => {
                let (peer, incoming) = (*peer, conn::read_frames(link, bytes));
                self.machine.heard(now, peer);
                self.take_incoming(now, conn, peer, incoming);
            }
        }
    }

    /// Mail of a shard or of the surrounding program.
    pub fn mail(&mut self, now: Moment, mail: ControlMail) {
        match mail {
            ControlMail::OpenLink { from, peer } => self.open_link(now, from, peer),
            ControlMail::Directory { from, to, message } => {
                self.send_directory(now, from, to, message);
            }
            ControlMail::ViewWanted(_) => self.machine.notified(now),
            ControlMail::Heard(peer) => self.machine.heard_on_link(now, peer),
            ControlMail::Accuse(peer) => self.machine.accuse(now, peer),
            ControlMail::Drain => self.begin_leave(now),
            ControlMail::ShardEmpty(shard) => self.leave.shard_empty(shard),
            ControlMail::ShardClosed { shard, unfinished_count } => {
                self.leave.shard_closed(shard, unfinished_count);
            }
        }
        self.follow(now);
    }

    /// The store answered.
    pub fn stored(&mut self, now: Moment, ticket: StoreTicket, result: StoreResult) {
        self.machine.handle_store(now, ticket, result);
        self.follow(now);
    }

    /// The progress counters of the shards.
    pub fn progress(&mut self, now: Moment, counters: &[u64]) {
        self.machine.handle_progress(now, counters);
        self.follow(now);
    }

    /// The store says that its table has changed.
    pub fn notified(&mut self, now: Moment) {
        self.machine.notified(now);
        self.follow(now);
    }

    /// Deadlines up to `now` have come.
    pub fn tick(&mut self, now: Moment) {
        self.machine.tick(now);
        let late = self.conns.iter().filter(|(_, found)| found.until <= now);
        let late: Vec<ConnId> = late.map(|(conn, _)| *conn).collect();
        for conn in late {
            self.time_out(now, conn);
        }
        self.follow(now);
    }

    /// When [`ControlNode::tick`] is due.
    pub fn next_deadline(&self) -> Moment {
        let conns = self.conns.values().map(|found| found.until);
        let first = conns.chain([self.machine.next_deadline(), self.leave.next_deadline()]).min();
        first.expect("the chain has two moments of its own")
    }

    // ---- what the machine wants

    /// Does what the machine wants, until it wants nothing more, then lets a leave go on.
    fn follow(&mut self, now: Moment) {
        loop {
            while let Some(output) = self.machine.poll_output() {
                self.take_output(now, output);
            }
            let us = self.facts.incarnation.as_ref();
            let status = us.and_then(|us| self.view.status(us.generation));
            let Some(step) = self.leave.poll(now, status) else {
                return;
            };
            self.take_leave_step(now, step);
        }
    }

    fn take_output(&mut self, now: Moment, output: ControlOutput) {
        let out = match output {
            ControlOutput::Send(peer, message) => return self.send_control(peer, &message),
            ControlOutput::Connect(peer, address) => return self.connect(now, peer, address),
            ControlOutput::Reconnect(peer, address) => {
                if let Some(lane) = self.lanes.remove(&peer) {
                    self.close(lane.conn);
                }
                return self.connect(now, peer, address);
            }
            ControlOutput::Inquire(address) => {
                let wanted = Wanted::Inquiry(address.clone());
                return self.dial(now, wanted, Route::Tcp(address));
            }
            ControlOutput::View(view) => return self.take_view(now, view),
            ControlOutput::Named(incarnation) => {
                let mut facts = (*self.facts).clone();
                facts.incarnation = Some(incarnation.clone());
                self.facts = Arc::new(facts);
                ControlNodeOutput::Named(incarnation)
            }
            ControlOutput::Store(ticket, request) => ControlNodeOutput::Store(ticket, request),
            ControlOutput::Started => {
                self.joining = false;
                ControlNodeOutput::Started
            }
            ControlOutput::JoinFailed(error) => {
                ControlNodeOutput::JoinFailed { error, refusal: self.refusal.take() }
            }
            ControlOutput::ServeUntil(until) => ControlNodeOutput::ServeUntil(until),
            ControlOutput::Stalled { shard, stalled } => {
                ControlNodeOutput::Stalled { shard, stalled }
            }
            ControlOutput::Abort { shard } => ControlNodeOutput::Abort(shard),
            ControlOutput::Left => {
                ControlNodeOutput::Left { unfinished_count: self.leave.unfinished_count() }
            }
            ControlOutput::Exit(code) => ControlNodeOutput::Exit(code),
            ControlOutput::Event(event) => ControlNodeOutput::Event(event),
        };
        self.outputs.push_back(out);
    }

    /// A newer view: the shards hear of it, and whoever is gone in it is cut off.
    fn take_view(&mut self, now: Moment, view: Arc<View>) {
        self.view = view;
        for index in 0..self.facts.shards {
            let mail = ShardMail::View(Arc::clone(&self.view));
            self.outputs.push_back(ControlNodeOutput::Shard(ShardIndex(index), mail));
        }
        let gone = |peer: Generation| self.view.is_gone(peer);
        let lanes: Vec<Generation> =
            self.lanes.keys().copied().filter(|peer| gone(*peer)).collect();
        let dials = self.dials.iter().filter(|(wanted, _)| wanted.peer().is_some_and(gone));
        let dials: Vec<ConnId> = dials.map(|(_, conn)| *conn).collect();
        self.backoffs.retain(|peer| !gone(peer));
        for peer in lanes {
            let lane = self.lanes.remove(&peer).expect("listed above");
            let reason = "the peer is gone in our view";
            self.event(Event::LinkDown { peer, reason: reason.to_owned() });
            self.refuse_lane(lane.conn, RefusalKind::IncarnationDead, reason);
        }
        for conn in dials {
            self.lose(now, conn, "the peer is gone in our view");
            self.outputs.push_back(ControlNodeOutput::Close(conn));
        }
    }

    // ---- leaving

    fn begin_leave(&mut self, now: Moment) {
        if self.leave.begin(now) {
            self.event(Event::DrainStarted {});
            self.machine.begin_drain(now);
        }
    }

    fn take_leave_step(&mut self, now: Moment, step: LeaveStep) {
        let mail = match step {
            LeaveStep::BeginDrain => || ShardMail::BeginDrain,
            LeaveStep::CloseHubs => || ShardMail::CloseHubs,
            LeaveStep::Overran(step) => return self.event(Event::DrainOverran { step }),
            LeaveStep::Finish { unfinished_count } => {
                self.event(Event::Drained { unfinished_count });
                return self.machine.finish_drain(now);
            }
        };
        for index in 0..self.facts.shards {
            self.outputs.push_back(ControlNodeOutput::Shard(ShardIndex(index), mail()));
        }
    }

    // ---- ends

    /// A dial or handshake took too long.
    fn time_out(&mut self, now: Moment, conn: ConnId) {
        let state = self.conns.get(&conn).map(|found| &found.state);
        let reason = match state {
            Some(State::Dialing) => "no connection in time",
            Some(State::Shaking(_)) => "no handshake in time",
            Some(State::Closing { .. } | State::Lane { .. }) => "not closed in time",
            None => return,
        };
        self.tell_unfinished(now, conn, reason);
        self.lose(now, conn, reason);
        self.outputs.push_back(ControlNodeOutput::Close(conn));
    }

    /// A connection is of no use any more: whoever relied on it hears so.
    fn lose(&mut self, now: Moment, conn: ConnId, reason: &str) {
        let wanted = self.end_handshake(conn);
        let Some(found) = self.conns.get_mut(&conn) else {
            return;
        };
        if let State::Lane { peer, .. } = &found.state {
            let peer = *peer;
            if self.lanes.get(&peer).is_some_and(|lane| lane.conn == conn) {
                self.lanes.remove(&peer);
                self.event(Event::LinkDown { peer, reason: reason.to_owned() });
                self.machine.handle_reach(now, peer, Reach::Broken);
            }
            return;
        }
        let reach = match found.state {
            State::Dialing => Reach::Silent,
            State::Shaking(_) | State::Closing { .. } | State::Lane { .. } => {
                if found.until <= now { Reach::Silent } else { Reach::Refused }
            }
        };
        self.conns.remove(&conn);
        if let Some(wanted) = wanted {
            self.give_up(now, &wanted, reach, reason);
        }
    }

    /// Lets a connection go after its last bytes.
    fn close(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get(&conn) else {
            return;
        };
        let unsent = found.plain().to_vec();
        self.set_closing(conn, unsent);
    }

    /// The driver writes `unsent` as far as the kernel takes it at once, and closes.
    fn set_closing(&mut self, conn: ConnId, unsent: Vec<u8>) {
        self.end_handshake(conn);
        let Some(found) = self.conns.get_mut(&conn) else {
            return;
        };
        found.state = State::Closing { unsent, sent_bytes: 0 };
        self.outputs.push_back(ControlNodeOutput::Close(conn));
    }

    /// The driver has closed the connection.
    pub fn forget(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
    }

    fn insert(&mut self, found: Conn) -> ConnId {
        self.conn_counter += 1;
        let conn = ConnId(self.conn_counter);
        self.conns.insert(conn, found);
        conn
    }

    fn event(&mut self, event: Event) {
        self.outputs.push_back(ControlNodeOutput::Event(event));
    }

    /// The address that this silo advertises.
    pub fn advertised(&self) -> &str {
        &self.advertised
    }
}

#[cfg(test)]
mod tests;
