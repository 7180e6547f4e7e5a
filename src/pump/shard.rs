//! A shard with its data links: bytes in, turns, bytes out.
//!
//! Contract:
//! - inputs: [`ShardNode::attach`], [`ShardNode::received`] with [`ShardNode::take_frames`],
//!   [`ShardNode::closed`], [`ShardNode::mail`], [`ShardNode::tick`];
//! - work: [`ShardNode::run`];
//! - effects: [`ShardNode::poll_output`], and the bytes of the connections that
//!   [`ShardNode::take_dirty`] names;
//! - invariants: frames of one connection are taken in order; while the silo is fenced none is
//!   read; a connection whose peer is gone in the view is closed, which ends what was open on it; a
//!   peer whose link is closed for its fault is told why, if what waits before that is little;
//! - bounds: the links' own.
//!
//! Deliberately absent: sockets, handshakes (the control part's business), clocks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use siloring_core::event::Event;
use siloring_core::ids::{Generation, ShardIndex, ViewNumber};
use siloring_core::limits::{HEARD_PERIOD, LEDGER_TICK, LINK_LAST_BYTES_MAX};
use siloring_core::ports::store::StoreRequest;
use siloring_core::time::Moment;
use siloring_core::wire::FrameKind;
use siloring_runtime::directory::Directory;
use siloring_runtime::exec::local::Unpark;
use siloring_runtime::handle::Handle;
use siloring_runtime::links::{LinkRefusal, Links, Outgoing, Retracted, Sent};
use siloring_runtime::mail::{ConnId, ControlMail, ShardMail};
use siloring_runtime::shard::{
    Direction, IncomingRequest, Shard, ShardConfig, ShardOutput, ShardSizes,
};
use siloring_transport::{
    Class, Established, Frame, Inbound, Link, Outbound, Position, Refusal, RefusalKind, RefusedBy,
    Role, SendRefused, Session, SessionError,
};

use super::conns::Conns;

/// What a shard and its links want done.
#[derive(Debug)]
pub enum NodeOutput {
    /// Mail to another shard of the silo.
    Shard(ShardIndex, ShardMail),
    /// Mail to the control thread.
    Control(ControlMail),
    /// A question to the store; the answer comes as [`ShardMail::Store`].
    Store {
        /// Names the question.
        ticket: u64,
        /// What.
        request: StoreRequest,
    },
    /// Write these last bytes, as far as the kernel takes them in one go, and close the connection.
    /// It is forgotten here already.
    Close {
        /// Which.
        conn: ConnId,
        /// Why it is closed, for the peer, and what waited before that; may be empty.
        last: Vec<u8>,
    },
    /// Something happened.
    Event(Event),
}

/// The sending halves of a shard's links: what the runtime reaches through its port.
#[derive(Debug, Default)]
struct LinkTable {
    conns: Conns<Sending>,
    /// This shard's own link to each peer: the one that carries its requests.
    own: BTreeMap<Generation, ConnId>,
    dirty: Vec<ConnId>,
    /// Requests and outcomes that links have taken.
    frames_count: u64,
}

#[derive(Debug)]
struct Sending {
    outbound: Outbound,
    is_dirty: bool,
    /// Whether the receiving half has a session, which seals what is sent.
    is_sealed: bool,
}

impl LinkTable {
    fn push(
        &mut self,
        conn: ConnId,
        frame: &Outgoing<'_>,
        class: Class,
    ) -> Result<Sent, LinkRefusal> {
        let sending = self.conns.get_mut(conn).ok_or(LinkRefusal::Gone)?;
        let pushed = sending.outbound.push(
            &frame.header,
            frame.source,
            frame.target,
            frame.body,
            frame.extensions,
            class,
        );
        let position = pushed.map_err(|refused| match refused {
            SendRefused::Overloaded => LinkRefusal::Overloaded,
            SendRefused::TooLarge => LinkRefusal::TooLarge,
        })?;
        if !sending.is_dirty {
            sending.is_dirty = true;
            self.dirty.push(conn);
        }
        self.frames_count += 1;
        Ok(Sent { conn, position: position.0 })
    }

    fn tell_view(&mut self, view: ViewNumber) {
        for conn in self.conns.numbers().to_vec() {
            self.tell_view_to(conn, view);
        }
    }

    fn tell_view_to(&mut self, conn: ConnId, view: ViewNumber) {
        let Some(sending) = self.conns.get_mut(conn) else { return };
        sending.outbound.push_view(view);
        if !sending.is_dirty && !sending.outbound.unsent().is_empty() {
            sending.is_dirty = true;
            self.dirty.push(conn);
        }
    }
}

impl Links for LinkTable {
    fn request(&mut self, peer: Generation, frame: &Outgoing<'_>) -> Result<Sent, LinkRefusal> {
        let conn = *self.own.get(&peer).ok_or(LinkRefusal::NotUp)?;
        self.push(conn, frame, Class::Request)
    }

    fn outcome(&mut self, conn: ConnId, frame: &Outgoing<'_>) -> Result<(), LinkRefusal> {
        self.push(conn, frame, Class::Outcome).map(drop)
    }

    fn retract(&mut self, sent: Sent) -> Retracted {
        let Some(sending) = self.conns.get_mut(sent.conn) else { return Retracted::HandedOver };
        if sending.outbound.retract(Position(sent.position)) {
            Retracted::Yes
        } else {
            Retracted::HandedOver
        }
    }
}

#[derive(Debug)]
struct Receiving {
    inbound: Inbound,
    /// TLS, for both halves; `None` without.
    session: Option<Box<Session>>,
    peer: Generation,
    deadline_default: core::time::Duration,
    /// Whether it carries this shard's requests.
    role: Role,
    /// When the failure detector was last told that bytes have come.
    heard_told: Moment,
}

/// Whether frames that have come are left to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// They are: the time is read before they are.
    Some,
    /// None that is whole: the connection may be read.
    None,
}

impl Receiving {
    /// Opens more of what has come: whether there are new bytes to read frames from.
    fn open(&mut self) -> Result<bool, SessionError> {
        let Some(session) = &mut self.session else { return Ok(false) };
        let count = session.open(self.inbound.receive_space())?;
        self.inbound.received(count);
        Ok(count > 0)
    }

    /// Why the link's frames came to an end: for the event, and for the peer.
    fn end(error: &SessionError) -> (String, Option<Refusal>) {
        (error.to_string(), error.refusal().filter(|refusal| refusal.by == RefusedBy::Us).cloned())
    }
}

/// A shard with its data links.
#[derive(Debug)]
pub struct ShardNode {
    shard: Shard<LinkTable>,
    me: Generation,
    conns: Conns<Receiving>,
    outputs: VecDeque<NodeOutput>,
    /// The newest view that a peer told of and that was asked for.
    view_wanted: ViewNumber,
    /// When to look next whether a link to a silo that leaves is still needed.
    part_at: Moment,
}

impl ShardNode {
    /// Requests and outcomes that its links have taken.
    pub const fn frames_count(&self) -> u64 {
        self.shard.links.frames_count
    }

    /// Requests that were refused since they had waited too long.
    pub const fn refused_count(&self) -> u64 {
        self.shard.refused_count()
    }

    /// What is handed over next has come after this.
    pub const fn set_came_after(&mut self, came_after: Moment) {
        self.shard.set_came_after(came_after);
    }

    /// A loop that had something to do took so long.
    pub fn worked(&mut self, span: core::time::Duration) {
        self.shard.worked(span);
    }

    /// How much mail to hand over before the time is read again.
    pub fn turns_per_look(&self) -> usize {
        self.shard.turns_per_look()
    }

    /// A shard that knows no view yet and may not serve.
    pub fn new(now: Moment, config: ShardConfig, unpark: Arc<dyn Unpark>, handle: Handle) -> Self {
        let me = config.me.silo;
        Self {
            shard: Shard::new(now, config, LinkTable::default(), unpark, handle),
            me,
            conns: Conns::default(),
            outputs: VecDeque::new(),
            view_wanted: ViewNumber::ZERO,
            part_at: Moment::NEVER,
        }
    }

    /// Takes a connection whose handshake for a link of this shard is done.
    /// With a session its bytes are sealed.
    pub fn attach(
        &mut self,
        now: Moment,
        conn: ConnId,
        established: &Established,
        mut session: Option<Box<Session>>,
    ) {
        let peer = established.peer_generation();
        if self.shard.view().is_gone(peer) || peer == Generation::NONE {
            let mut last = [established.unsent.clone(), gone().to_frame()].concat();
            if let Some(session) = &mut session {
                last = session.finish(&last);
            }
            self.outputs.push_back(NodeOutput::Close { conn, last });
            return;
        }
        if let Some(session) = &mut session {
            session.start_counting();
        }
        let (inbound, outbound) = Link::new(established).split();
        let (deadline_default, role) = (established.peer_deadline_default, established.role);
        let heard_told = Moment::ZERO;
        let is_sealed = session.is_some();
        let receiving = Receiving { inbound, session, peer, deadline_default, role, heard_told };
        self.conns.insert(conn, receiving);
        self.shard.links.conns.insert(conn, Sending { outbound, is_dirty: false, is_sealed });
        let view = self.shard.view().number();
        self.shard.links.tell_view_to(conn, view);
        let direction = match established.role {
            Role::Dialer => Direction::Own,
            Role::Acceptor => Direction::Theirs,
        };
        self.shard.meet(conn, peer, direction, &established.peer_types);
        if established.role == Role::Dialer {
            if let Some(older) = self.shard.links.own.insert(peer, conn) {
                let detail = "another link of the pair is up";
                self.close(now, older, Some(&Refusal::ours(RefusalKind::Superseded, detail)));
            }
            self.shard.link_up(now, peer);
            if self.shard.leavers().contains(&peer) {
                self.part_at = now;
            }
        }
        // Few at most: what came with the last of the handshake.
        while self.take_frames(now, conn) == Unread::Some {}
    }

    /// Room for bytes of a connection; `None` while nothing may be read from it.
    pub fn receive_space(&mut self, now: Moment, conn: ConnId) -> Option<&mut [u8]> {
        if self.shard.is_fenced(now) {
            return None;
        }
        let receiving = self.conns.get_mut(conn)?;
        Some(match &mut receiving.session {
            None => receiving.inbound.receive_space(),
            Some(session) => session.receive_space(),
        })
    }

    /// So many bytes were put into [`ShardNode::receive_space`]. Their frames are taken by
    /// [`ShardNode::take_frames`], all of them before there may be more bytes.
    pub fn received(&mut self, now: Moment, conn: ConnId, count: usize) {
        let Some(receiving) = self.conns.get_mut(conn) else { return };
        match &mut receiving.session {
            None => receiving.inbound.received(count),
            Some(session) => session.received(count),
        }
        if now.since(receiving.heard_told) >= HEARD_PERIOD {
            receiving.heard_told = now;
            self.outputs.push_back(NodeOutput::Control(ControlMail::Heard(receiving.peer)));
        }
    }

    /// Takes frames that have come, as many as should be taken before the time is read again.
    pub fn take_frames(&mut self, now: Moment, conn: ConnId) -> Unread {
        let Some(receiving) = self.conns.get_mut(conn) else { return Unread::None };
        let entered = self.shard.enter(now);
        let mut left = self.shard.turns_per_look();
        let fault = loop {
            if left == 0 {
                return Unread::Some;
            }
            left -= 1;
            match receiving.inbound.next_frame() {
                Ok(Some(frame)) => {
                    let default = receiving.deadline_default;
                    if let Err(reason) = take_frame(&mut self.shard, conn, &frame, default) {
                        let kind = RefusalKind::ProtocolViolation;
                        break Some((reason.to_owned(), Some(Refusal::ours(kind, reason))));
                    }
                }
                Ok(None) => match receiving.open() {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(error) => break Some(Receiving::end(&error)),
                },
                Err(error) => break Some((error.to_string(), error.refusal())),
            }
        };
        drop(entered);
        let (peer, peer_view) = (receiving.peer, receiving.inbound.peer_view());
        if peer_view > self.shard.view().number() && peer_view > self.view_wanted {
            self.view_wanted = peer_view;
            self.outputs.push_back(NodeOutput::Control(ControlMail::ViewWanted(peer_view)));
        }
        if let Some((reason, refusal)) = fault {
            // Without a refusal of ours it was the peer who closed, with its reason.
            let event = match refusal {
                Some(_) => Event::FrameRefused { peer, reason },
                None => Event::LinkDown { peer, reason },
            };
            self.outputs.push_back(NodeOutput::Event(event));
            self.close(now, conn, refusal.as_ref());
        }
        Unread::None
    }

    /// Closes a connection, and tells the peer why.
    fn close(&mut self, now: Moment, conn: ConnId, refusal: Option<&Refusal>) {
        let last = refusal.and_then(|refusal| self.last_bytes(conn, refusal)).unwrap_or_default();
        self.drop_conn(now, conn);
        self.outputs.push_back(NodeOutput::Close { conn, last });
    }

    /// The reason behind what still waits: outcomes that others wait for. Requests that wait count
    /// as never sent, and may be sent again elsewhere: behind them nothing is told.
    fn last_bytes(&mut self, conn: ConnId, refusal: &Refusal) -> Option<Vec<u8>> {
        let backlog_bytes = self.backlog_bytes(conn);
        let receiving = self.conns.get_mut(conn)?;
        let may_be_sent = match receiving.role {
            Role::Dialer => backlog_bytes == 0,
            Role::Acceptor => backlog_bytes <= LINK_LAST_BYTES_MAX,
        };
        if !may_be_sent {
            return None;
        }
        let unsent = self.shard.links.conns.get(conn)?.outbound.unsent();
        let last = [unsent, &refusal.to_frame()].concat();
        Some(match &mut receiving.session {
            None => last,
            Some(session) => session.finish(&last),
        })
    }

    /// A connection is gone: what was open on it ends.
    pub fn closed(&mut self, now: Moment, conn: ConnId, reason: &str) {
        if let Some(receiving) = self.conns.get(conn) {
            let (peer, reason) = (receiving.peer, reason.to_owned());
            self.outputs.push_back(NodeOutput::Event(Event::LinkDown { peer, reason }));
            self.drop_conn(now, conn);
        }
    }

    fn drop_conn(&mut self, now: Moment, conn: ConnId) {
        let Some(receiving) = self.conns.remove(conn) else { return };
        let links = &mut self.shard.links;
        let sending = links.conns.remove(conn).expect("both halves are kept together");
        if links.own.get(&receiving.peer) == Some(&conn) {
            links.own.remove(&receiving.peer);
        }
        self.shard.link_down(now, conn, sending.outbound.written());
    }

    /// Bytes to send on a connection; under TLS a batch of them, which is sealed by this.
    pub fn unsent(&mut self, conn: ConnId) -> &[u8] {
        let Some(sending) = self.shard.links.conns.get_mut(conn) else { return &[] };
        if !sending.is_sealed {
            return sending.outbound.unsent();
        }
        let Some(session) = session_of(&mut self.conns, conn) else { return &[] };
        let sealed = session.seal(sending.outbound.unsent());
        sending.outbound.sealed(sealed);
        session.unsent()
    }

    /// The kernel took so many of [`ShardNode::unsent`].
    pub fn sent(&mut self, conn: ConnId, count: usize) {
        let Some(sending) = self.shard.links.conns.get_mut(conn) else { return };
        if !sending.is_sealed {
            return sending.outbound.sent(count);
        }
        if let Some(session) = session_of(&mut self.conns, conn) {
            sending.outbound.handed_over(session.sent(count));
        }
    }

    /// How many bytes wait on a connection.
    pub fn backlog_bytes(&self, conn: ConnId) -> usize {
        let Some(sending) = self.shard.links.conns.get(conn) else { return 0 };
        let waiting = sending.outbound.backlog_bytes();
        if !sending.is_sealed {
            return waiting;
        }
        let session = self.conns.get(conn).and_then(|receiving| receiving.session.as_deref());
        waiting + session.map_or(0, |session| session.unsent().len())
    }

    /// Moves the connections that have new bytes to send into `out`.
    pub fn take_dirty(&mut self, out: &mut Vec<ConnId>) {
        for conn in &self.shard.links.dirty {
            if let Some(sending) = self.shard.links.conns.get_mut(*conn) {
                sending.is_dirty = false;
                out.push(*conn);
            }
        }
        self.shard.links.dirty.clear();
    }

    /// Takes mail of another thread of the silo.
    pub fn mail(&mut self, now: Moment, mail: ShardMail) {
        let before = self.shard.view().number();
        self.shard.handle_mail(now, mail);
        if self.shard.view().number() > before {
            self.take_up_view(now);
        }
    }

    fn take_up_view(&mut self, now: Moment) {
        let view = Arc::clone(self.shard.view());
        let conns = self.conns.iter().map(|(conn, receiving)| (conn, receiving.peer));
        let gone_conns: Vec<_> = conns.filter(|(_, peer)| view.is_gone(*peer)).collect();
        for (conn, peer) in gone_conns {
            let reason = PEER_GONE.to_owned();
            self.outputs.push_back(NodeOutput::Event(Event::LinkDown { peer, reason }));
            self.close(now, conn, Some(&gone()));
        }
        self.shard.links.tell_view(view.number());
        self.part_at = now;
    }

    /// Sets until when the silo has the right to serve.
    pub fn set_lease(&mut self, serve_until: Moment) {
        self.shard.set_lease(serve_until);
    }

    /// Runs what is ready, bounded; true if more is.
    pub fn run(&mut self, now: Moment) -> bool {
        self.shard.run(now)
    }

    /// Whether [`ShardNode::run`] has something to do.
    pub fn is_ready(&self) -> bool {
        self.shard.is_ready()
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Moment) {
        if self.shard.is_leaving() {
            let callers = self.conns.iter().filter(|(_, conn)| conn.role == Role::Acceptor);
            self.shard.set_callers_count(callers.count());
        }
        self.part_with_leavers(now);
        self.shard.tick(now);
    }

    /// When [`ShardNode::tick`] has something to do.
    pub fn next_deadline(&self) -> Moment {
        self.shard.next_deadline().min(self.part_at)
    }

    /// Closes our own links to silos that leave, once nothing of ours is open there: they wait for
    /// that.
    fn part_with_leavers(&mut self, now: Moment) {
        if now < self.part_at {
            return;
        }
        let own = |peer: &Generation| self.shard.links.own.get(peer).copied();
        let links: Vec<ConnId> = self.shard.leavers().iter().filter_map(own).collect();
        self.part_at = if links.is_empty() { Moment::NEVER } else { now + LEDGER_TICK };
        for conn in links {
            if !self.shard.is_awaited(conn) {
                self.close(now, conn, None);
            }
        }
    }

    /// What it wants done next.
    pub fn poll_output(&mut self) -> Option<NodeOutput> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        Some(match self.shard.poll_output()? {
            ShardOutput::Shard(shard, mail) => NodeOutput::Shard(shard, mail),
            ShardOutput::Control(mail) => NodeOutput::Control(mail),
            ShardOutput::Store { ticket, request } => NodeOutput::Store { ticket, request },
            ShardOutput::Event(event) => NodeOutput::Event(event),
        })
    }

    /// Does a fault to the shard's directory.
    #[cfg(feature = "planted")]
    pub fn plant_fault(&mut self, fault: siloring_runtime::directory::PlantedFault) {
        self.shard.plant_fault(fault);
    }

    /// Counts up while the shard works.
    pub const fn progress(&self) -> u64 {
        self.shard.progress()
    }

    /// Connections that are attached.
    pub fn conn_count(&self) -> usize {
        self.conns.len()
    }

    /// Sizes of the shard's tables.
    pub fn sizes(&self) -> ShardSizes {
        self.shard.sizes()
    }

    /// The shard's directory, to look at.
    pub const fn directory(&self) -> &Directory {
        self.shard.directory()
    }

    /// The silo it belongs to.
    pub const fn silo(&self) -> Generation {
        self.me
    }
}

fn session_of(conns: &mut Conns<Receiving>, conn: ConnId) -> Option<&mut Session> {
    conns.get_mut(conn)?.session.as_deref_mut()
}

const PEER_GONE: &str = "the peer is gone in the view";

fn gone() -> Refusal {
    Refusal::ours(RefusalKind::IncarnationDead, PEER_GONE)
}

fn take_frame(
    shard: &mut Shard<LinkTable>,
    conn: ConnId,
    frame: &Frame<'_>,
    deadline_default: core::time::Duration,
) -> Result<(), &'static str> {
    match frame.header.kind {
        FrameKind::Request => {
            let target = frame.names.get(frame.header.target).ok_or("a target without a name")?;
            shard.take_request(&IncomingRequest {
                conn,
                header: frame.header,
                target,
                body: frame.body,
                extensions: frame.extensions,
                deadline_default,
            });
            Ok(())
        }
        FrameKind::Reply | FrameKind::Failure => {
            shard.take_outcome(conn, frame.header, frame.body, frame.extensions);
            Ok(())
        }
        FrameKind::Void => Ok(()),
        FrameKind::Hello
        | FrameKind::HelloAck
        | FrameKind::HelloDone
        | FrameKind::Refuse
        | FrameKind::Dictionary
        | FrameKind::View
        | FrameKind::Probe
        | FrameKind::ProbeAnswer
        | FrameKind::Membership
        | FrameKind::Directory => Err("a frame of that kind has no place on a data link"),
    }
}

#[cfg(test)]
mod tests;
