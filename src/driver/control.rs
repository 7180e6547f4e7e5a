//! The control thread: the world of a [`ControlNode`].
//!
//! Contract: it accepts, dials, and moves bytes, mail, store answers and time into the node, and
//! what the node wants out of it. It sleeps in the kernel's readiness set, never in a ring: it must
//! live when a ring does not, since it is the one that reports a stuck shard. Invariants: nothing
//! here waits for a peer, a store or a name server; the listeners outlive every fault of those who
//! dial.
//!
//! Deliberately absent: decisions. Frames of data links (the shards').

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::process;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use siloring_core::event::Event;
use siloring_core::limits::{
    ACCEPT_PAUSE, ACCEPTS_PER_LOOK_MAX, LEDGER_TICK, LINK_LINGER_MAX, MAIL_PER_LOOP_MAX,
    MAILBOX_MAX, PROGRESS_PERIOD, READ_CHUNK_BYTES, STORE_OPEN_MAX, TLS_LOOK_PERIOD,
};
use siloring_core::ports::store::StoreResult;
use siloring_core::sync::mailbox::{Parking, Receiver, Sender, Wake, mailbox};
use siloring_core::{Incarnation, Moment, ShardIndex};
use siloring_runtime::control::{JoinError, StoreTicket};
use siloring_runtime::mail::{ConnId, ControlMail};
use siloring_storage::StoreClient;
use siloring_transport::net::{
    Accept, Dialed, Listener, Received, Socket, TurnedAway, UnixName, resolve,
};
use siloring_transport::{Refusal, Role};

use crate::pump::{ControlNode, ControlNodeOutput, DialFault, Route, ShardNode};

use super::certificates::CertificateFiles;
use super::clock;
use super::node::DataLink;
use super::outbox::Outbox;
use super::readiness::{Interest, Readiness, Ready};
use super::shard::{NewLink, Post};
use super::shared::Shared;
use super::signal::Signal;
use super::threads;

/// What the control thread tells the one who started the silo.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The silo is Active.
    Started(Incarnation),
    /// It could not join. Its threads end.
    JoinFailed {
        /// Why.
        error: JoinError,
        /// The last handshake that was refused, if any.
        refusal: Option<Refusal>,
    },
    /// It has left in order. Its threads end.
    Left {
        /// Turns and deliveries that were cut off.
        unfinished_count: usize,
    },
}

/// What comes back from threads that work for this one.
struct Resolved {
    conn: ConnId,
    addresses: io::Result<Vec<SocketAddr>>,
}

/// The receiving sides of the control thread's mailboxes.
pub(crate) struct ControlLetterbox {
    signal: Arc<Signal>,
    mail: Receiver<ControlMail>,
    stored: Receiver<(StoreTicket, StoreResult)>,
    stored_sender: Sender<(StoreTicket, StoreResult)>,
    resolved: Receiver<Resolved>,
    resolved_sender: Sender<Resolved>,
}

/// Names that may be looked up at once; further dials by name fail.
const LOOK_UPS_MAX: usize = 16;
const _: () = assert!(LOOK_UPS_MAX.is_power_of_two(), "as a mailbox takes it");

impl ControlLetterbox {
    /// A mailbox, and the way into it.
    pub(crate) fn new() -> io::Result<(Sender<ControlMail>, Self)> {
        let signal = Arc::new(Signal::new()?);
        let wake = || Arc::clone(&signal) as Arc<dyn Wake>;
        let (sender, mail) = mailbox(MAILBOX_MAX, wake());
        let (stored_sender, stored) = mailbox(STORE_OPEN_MAX, wake());
        let (resolved_sender, resolved) = mailbox(LOOK_UPS_MAX, wake());
        let parts = Self { signal, mail, stored, stored_sender, resolved, resolved_sender };
        Ok((sender, parts))
    }

    fn announce_park(&mut self) -> bool {
        self.mail.park() == Parking::Agreed
            && self.stored.park() == Parking::Agreed
            && self.resolved.park() == Parking::Agreed
    }

    fn unpark(&mut self) {
        self.mail.unpark();
        self.stored.unpark();
        self.resolved.unpark();
    }
}

/// The Unix name of an incarnation of this silo.
pub(crate) type UnixNamer = Box<dyn Fn(&Incarnation) -> UnixName + Send>;
/// Hears the incarnation when it is known.
pub(crate) type OnNamed = Box<dyn FnOnce(&Incarnation) + Send>;

/// What the control thread is built of.
pub(crate) struct ControlParts {
    /// The machine.
    pub(crate) node: ControlNode,
    /// Its mailbox.
    pub(crate) letterbox: ControlLetterbox,
    /// Bound already, so that a taken port stops the start.
    pub(crate) listener: Listener,
    /// Where to listen too, once the incarnation is known; `None` without Unix sockets.
    pub(crate) unix: Option<UnixNamer>,
    /// The shards' mailboxes.
    pub(crate) shards: Vec<Sender<Post<ShardNode>>>,
    /// The store.
    pub(crate) store: StoreClient,
    /// Numbers and counters.
    pub(crate) shared: Arc<Shared>,
    /// Called once when the incarnation is known: lets the shards build their nodes.
    pub(crate) named: OnNamed,
    /// Hears how the silo fares.
    pub(crate) notices: mpsc::SyncSender<Notice>,
    /// The files of the certificates that the node has; `None` without TLS.
    pub(crate) certificates: Option<CertificateFiles>,
}

/// Starts the control thread.
pub(crate) fn start(parts: ControlParts) -> io::Result<JoinHandle<()>> {
    let (tell, told) = mpsc::sync_channel(1);
    let thread = threads::start("siloring-control".into(), move || {
        let (control, result) = match ControlThread::new(parts) {
            Ok(control) => (Some(control), Ok(())),
            Err(error) => (None, Err(error)),
        };
        tell.send(result).expect("the starter waits");
        if let Some(mut control) = control {
            control.run();
        }
    })?;
    told.recv().expect("the thread tells before it ends")?;
    Ok(thread)
}

const SIGNAL_TOKEN: u64 = u64::MAX;
/// Tokens of listeners: this minus their index. Connections count from 1.
const LISTENER_TOKEN: u64 = u64::MAX - 1;

#[derive(Debug)]
enum Phase {
    /// Being connected; these addresses are next if it fails.
    Dialing(VecDeque<SocketAddr>),
    /// In the node's hands.
    Open,
    /// The last bytes, until then.
    Closing(Moment),
}

struct Conn {
    socket: Option<Socket>,
    phase: Phase,
    watch: Interest,
}

struct ControlThread {
    node: ControlNode,
    letterbox: ControlLetterbox,
    readiness: Readiness,
    listeners: Vec<Listener>,
    unix: Option<UnixNamer>,
    /// No accepting before: descriptors ran out.
    accept_at: Option<Moment>,
    conns: BTreeMap<ConnId, Conn>,
    shards: Vec<Outbox<Post<ShardNode>>>,
    store: StoreClient,
    shared: Arc<Shared>,
    named: Option<OnNamed>,
    notices: mpsc::SyncSender<Notice>,
    certificates: Option<CertificateFiles>,
    /// When they were looked at last.
    certificates_at: Moment,
    /// The shards have begun to count.
    shards_run: bool,
    progress_at: Moment,
    chunk: Box<[u8]>,
    dirty: Vec<ConnId>,
    ready: Vec<Ready>,
    look_ups: usize,
    /// The node has ended: what is left is written, then the thread ends.
    end_at: Option<Moment>,
}

impl ControlThread {
    fn new(parts: ControlParts) -> io::Result<Self> {
        let readiness = Readiness::new()?;
        readiness.add(&*parts.letterbox.signal, SIGNAL_TOKEN, Interest::Signal)?;
        readiness.add(&parts.listener, LISTENER_TOKEN, Interest::Read)?;
        Ok(Self {
            node: parts.node,
            letterbox: parts.letterbox,
            readiness,
            listeners: vec![parts.listener],
            unix: parts.unix,
            accept_at: None,
            conns: BTreeMap::new(),
            shards: parts.shards.into_iter().map(Outbox::new).collect(),
            store: parts.store,
            shared: parts.shared,
            named: Some(parts.named),
            notices: parts.notices,
            certificates: parts.certificates,
            certificates_at: Moment::ZERO,
            shards_run: false,
            progress_at: Moment::ZERO,
            chunk: vec![0; READ_CHUNK_BYTES].into_boxed_slice(),
            dirty: Vec::new(),
            ready: Vec::new(),
            look_ups: 0,
            end_at: None,
        })
    }

    fn run(&mut self) {
        let mut now = clock::now();
        self.node.start(now);
        self.take_outputs(now);
        while !self.is_done(now) {
            self.sleep(now);
            now = clock::now();
            self.take_mail(now);
            self.take_ready(now);
            self.take_time(now);
            self.take_outputs(now);
        }
    }

    fn is_done(&self, now: Moment) -> bool {
        self.end_at.is_some_and(|end_at| {
            let kept = self.shards.iter().any(|shard| shard.len() > 0);
            now >= end_at || (self.conns.is_empty() && !kept)
        })
    }

    // ---- what comes in

    /// Sleeps until something is ready or due.
    fn sleep(&mut self, now: Moment) {
        let kept = self.shards.iter().any(|shard| shard.len() > 0);
        let closing = self.conns.values().any(|conn| matches!(conn.phase, Phase::Closing(_)));
        let mut until = self.node.next_deadline().min(self.progress_at + PROGRESS_PERIOD);
        if kept || closing || self.accept_at.is_some() || self.end_at.is_some() {
            until = until.min(now + LEDGER_TICK);
        }
        let wait = if self.letterbox.announce_park() { until.since(now) } else { Duration::ZERO };
        self.readiness.look(wait).expect("an epoll set can be asked");
        self.letterbox.unpark();
        self.ready.clear();
        self.ready.extend(self.readiness.found());
    }

    fn take_mail(&mut self, now: Moment) {
        while let Some((ticket, result)) = self.letterbox.stored.receive() {
            self.node.stored(now, ticket, result);
        }
        while let Some(resolved) = self.letterbox.resolved.receive() {
            self.look_ups -= 1;
            match resolved.addresses {
                Ok(addresses) => self.dial_next(now, resolved.conn, addresses.into()),
                Err(error) => self.dial_failed(now, resolved.conn, &error),
            }
        }
        for _ in 0..MAIL_PER_LOOP_MAX {
            let Some(mail) = self.letterbox.mail.receive() else {
                return;
            };
            self.node.mail(now, mail);
        }
    }

    fn take_time(&mut self, now: Moment) {
        for shard in &mut self.shards {
            shard.retry();
        }
        if now.since(self.progress_at) >= PROGRESS_PERIOD {
            self.progress_at = now;
            if self.shards_run {
                self.node.progress(now, &self.shared.progress());
            }
        }
        if self.node.next_deadline() <= now {
            self.node.tick(now);
        }
        if now.since(self.certificates_at) >= TLS_LOOK_PERIOD {
            self.certificates_at = now;
            self.renew_certificates();
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.watch_listeners(Interest::Read);
        }
        let late = self.conns.iter().filter(|(_, conn)| match conn.phase {
            Phase::Closing(until) => until <= now,
            Phase::Dialing(_) | Phase::Open => false,
        });
        let late: Vec<ConnId> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.drop_conn(id);
        }
    }

    fn renew_certificates(&mut self) {
        match self.certificates.as_mut().and_then(CertificateFiles::read_changed) {
            None => {}
            Some(Ok(certificates)) => {
                self.node.set_certificates(certificates);
                self.shared.record(&Event::CertificatesRenewed {});
            }
            Some(Err(error)) => {
                self.shared.record(&Event::CertificatesKept { reason: error.to_string() });
            }
        }
    }

    /// Connections first, then those who wait to be accepted: they may take the places of others.
    fn take_ready(&mut self, now: Moment) {
        self.ready.sort_unstable_by_key(|ready| Reverse(ready.token));
        while let Some(ready) = self.ready.pop() {
            if ready.token == SIGNAL_TOKEN {
                continue;
            }
            let listener = usize::try_from(LISTENER_TOKEN - ready.token).unwrap_or(usize::MAX);
            if listener < self.listeners.len() {
                self.accept(now, listener);
            } else {
                self.take_ready_conn(now, ready);
            }
        }
    }

    fn take_ready_conn(&mut self, now: Moment, ready: Ready) {
        let id = ConnId(ready.token);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match conn.phase {
            Phase::Dialing(_) => self.take_dialed(now, id),
            Phase::Open | Phase::Closing(_) => {
                if ready.writable {
                    self.write(now, id);
                }
                if ready.readable {
                    self.read(now, id);
                }
            }
        }
    }

    fn read(&mut self, now: Moment, id: ConnId) {
        let Some(Conn { socket: Some(socket), phase: Phase::Open, .. }) = self.conns.get(&id)
        else {
            return;
        };
        match socket.receive(&mut self.chunk) {
            Ok(Received::Bytes(count)) => self.node.receive(now, id, &self.chunk[..count]),
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) => self.lose(now, id, "the peer closed it"),
            Err(error) => self.lose(now, id, &error.to_string()),
        }
    }

    fn write(&mut self, now: Moment, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let Some(socket) = &conn.socket else {
            return;
        };
        match socket.send(self.node.unsent(id)) {
            Ok(count) => self.node.sent(id, count),
            Err(error) => return self.lose(now, id, &error.to_string()),
        }
        let is_empty = self.node.unsent(id).is_empty();
        let watch = if is_empty { Interest::Read } else { Interest::Both };
        if is_empty && matches!(conn.phase, Phase::Closing(_)) {
            return self.drop_conn(id);
        }
        if watch != conn.watch {
            conn.watch = watch;
            self.readiness.change(socket, id.0, watch).expect("it is in the set");
        }
    }

    fn lose(&mut self, now: Moment, id: ConnId, reason: &str) {
        self.conns.remove(&id);
        self.node.closed(now, id, reason);
        self.node.forget(id);
    }

    fn drop_conn(&mut self, id: ConnId) {
        self.conns.remove(&id);
        self.node.forget(id);
    }

    // ---- accepting and dialling

    fn accept(&mut self, now: Moment, listener: usize) {
        for _ in 0..ACCEPTS_PER_LOOK_MAX {
            let accepted = self.listeners[listener].accept().expect("the listener is sound");
            match accepted {
                Accept::Connection { socket, from } => self.greet(now, socket, from),
                Accept::Nothing => return,
                Accept::TurnedAway(why) => self.turned_away(now, why),
            }
            if self.accept_at.is_some() {
                return;
            }
        }
    }

    /// Whoever has spoken already is heard before the next one is accepted.
    fn greet(&mut self, now: Moment, socket: Socket, from: Option<SocketAddr>) {
        let source = from.map(|from| from.ip());
        let id = self.node.accepted(now, socket.over().name(), source);
        self.open(now, id, socket, Interest::Read, Phase::Open);
        self.read(now, id);
        self.take_outputs(now);
    }

    fn turned_away(&mut self, now: Moment, why: TurnedAway) {
        let (peer, reason) = match why {
            TurnedAway::Gone => return,
            TurnedAway::ForeignUser { uid } => (format!("user {uid}"), "a process of another user"),
            TurnedAway::OutOfDescriptors => {
                self.accept_at = Some(now + ACCEPT_PAUSE);
                self.watch_listeners(Interest::Nothing);
                ("unknown".to_owned(), "no descriptor is left: raise the limit")
            }
        };
        self.node.turned_away(now, peer, reason);
    }

    fn watch_listeners(&self, interest: Interest) {
        for (listener, token) in self.listeners.iter().zip((0..=LISTENER_TOKEN).rev()) {
            self.readiness.change(listener, token, interest).expect("it is in the set");
        }
    }

    fn dial(&mut self, now: Moment, id: ConnId, route: Route) {
        match route {
            Route::Unix(name) => match Socket::dial_unix(&name) {
                Ok(socket) => self.open(now, id, socket, Interest::Write, dialing([].into())),
                Err(error) => self.dial_failed(now, id, &error),
            },
            Route::Tcp(advertised) => match advertised.parse() {
                Ok(address) => self.dial_next(now, id, [address].into()),
                Err(_) => self.look_up(now, id, advertised),
            },
        }
    }

    /// Finds the addresses of a host name, on a thread of its own: a name server may take seconds.
    fn look_up(&mut self, now: Moment, id: ConnId, advertised: String) {
        if self.look_ups == LOOK_UPS_MAX {
            let error = io::Error::other(format!("{LOOK_UPS_MAX} names are being looked up"));
            return self.dial_failed(now, id, &error);
        }
        let sender = self.letterbox.resolved_sender.clone();
        let started = threads::start("siloring-names".into(), move || {
            let addresses = resolve(&advertised);
            // Room for each look-up; a closed mailbox belongs to a silo that has ended.
            drop(sender.send(Resolved { conn: id, addresses }));
        });
        match started {
            Ok(thread) => {
                drop(thread);
                self.look_ups += 1;
                let phase = dialing([].into());
                self.conns.insert(id, Conn { socket: None, phase, watch: Interest::Write });
            }
            Err(error) => self.dial_failed(now, id, &error),
        }
    }

    /// Dials the first of the addresses that can be dialled.
    fn dial_next(&mut self, now: Moment, id: ConnId, mut addresses: VecDeque<SocketAddr>) {
        self.conns.remove(&id);
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        while let Some(address) = addresses.pop_front() {
            match Socket::dial_tcp(address) {
                Ok(socket) => {
                    let phase = Phase::Dialing(addresses);
                    return self.open(now, id, socket, Interest::Write, phase);
                }
                Err(error) => failed = error,
            }
        }
        self.dial_failed(now, id, &failed);
    }

    /// A dial's socket is writable: connected, or failed.
    fn take_dialed(&mut self, now: Moment, id: ConnId) {
        let Some(Conn { socket: Some(socket), phase, .. }) = self.conns.get_mut(&id) else {
            return;
        };
        match socket.dialed() {
            Ok(Dialed::Pending) => {}
            Ok(Dialed::Connected) => {
                *phase = Phase::Open;
                self.node.connected(now, id);
            }
            Err(error) => {
                let rest = match phase {
                    Phase::Dialing(rest) => core::mem::take(rest),
                    Phase::Open | Phase::Closing(_) => VecDeque::new(),
                };
                if rest.is_empty() {
                    self.dial_failed(now, id, &error);
                } else {
                    self.dial_next(now, id, rest);
                }
            }
        }
    }

    fn dial_failed(&mut self, now: Moment, id: ConnId, error: &io::Error) {
        self.conns.remove(&id);
        let refusals = [io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset];
        let is_refused = refusals.contains(&error.kind());
        let fault = if is_refused { DialFault::Refused } else { DialFault::Silent };
        self.node.dial_failed(now, id, fault, &error.to_string());
    }

    fn open(&mut self, now: Moment, id: ConnId, socket: Socket, watch: Interest, phase: Phase) {
        if let Err(error) = self.readiness.add(&socket, id.0, watch) {
            return self.lose(now, id, &error.to_string());
        }
        self.conns.insert(id, Conn { socket: Some(socket), phase, watch });
    }

    // ---- what goes out

    fn take_outputs(&mut self, now: Moment) {
        loop {
            while let Some(output) = self.node.poll_output() {
                self.take_output(now, output);
            }
            self.node.take_dirty(&mut self.dirty);
            let Some(id) = self.dirty.pop() else {
                return;
            };
            self.write(now, id);
        }
    }

    fn take_output(&mut self, now: Moment, output: ControlNodeOutput) {
        match output {
            ControlNodeOutput::Dial { conn, route } => self.dial(now, conn, route),
            ControlNodeOutput::Close(conn) => self.begin_close(now, conn),
            ControlNodeOutput::HandOff { conn, shard, established, session } => {
                self.hand_off(conn, shard, DataLink { established, session });
            }
            ControlNodeOutput::Shard(shard, mail) => self.post(shard, Post::Mail(mail)),
            ControlNodeOutput::Store(ticket, request) => {
                let answers = self.letterbox.stored_sender.clone();
                // The machine has two requests open at most; their answers always find room.
                let answer = move |result| drop(answers.send((ticket, result)));
                self.store.submit(request, answer);
            }
            ControlNodeOutput::ServeUntil(until) => self.shared.set_serve_until(until),
            ControlNodeOutput::Named(incarnation) => self.take_name(&incarnation),
            ControlNodeOutput::Started => {
                let who = self.node.incarnation().expect("Named comes first").clone();
                self.tell(Notice::Started(who));
            }
            ControlNodeOutput::JoinFailed { error, refusal } => {
                self.end(now, Notice::JoinFailed { error, refusal });
            }
            ControlNodeOutput::Left { unfinished_count } => {
                self.end(now, Notice::Left { unfinished_count });
            }
            ControlNodeOutput::Stalled { shard, stalled } => {
                let stalled_ms = u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX);
                let running = self.shared.running(shard);
                self.shared.record(&Event::ShardStalled { shard, running, stalled_ms });
            }
            ControlNodeOutput::Abort(shard) => {
                let running = self.shared.running(shard);
                tracing::error!(target: "siloring", %shard, running, "a shard is stuck: aborting");
                process::abort();
            }
            ControlNodeOutput::Exit(code) => exit(code),
            ControlNodeOutput::Event(event) => self.shared.record(&event),
        }
    }

    fn post(&mut self, shard: ShardIndex, post: Post<ShardNode>) {
        self.shards[usize::from(shard.0)].send(post);
    }

    fn begin_close(&mut self, now: Moment, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return self.node.forget(id);
        };
        if matches!(conn.phase, Phase::Dialing(_)) {
            return self.drop_conn(id);
        }
        conn.phase = Phase::Closing(now + LINK_LINGER_MAX);
        self.write(now, id);
    }

    fn hand_off(&mut self, id: ConnId, shard: ShardIndex, link: DataLink) {
        let Some(conn) = self.conns.remove(&id) else {
            // Its handshake and the silo ended in one look: `end` has closed it.
            assert!(self.end_at.is_some(), "a handed-over connection is open");
            return;
        };
        let socket = conn.socket.expect("an open connection has a socket");
        self.readiness.remove(&socket).expect("it is in the set");
        let may_pause = link.established.role == Role::Acceptor;
        let new = NewLink { socket, link, may_pause };
        self.post(shard, Post::Link(Box::new(new)));
    }

    fn take_name(&mut self, incarnation: &Incarnation) {
        if let Some(unix) = &self.unix {
            match Listener::unix(&unix(incarnation)) {
                Ok(listener) => {
                    let token = LISTENER_TOKEN - self.listeners.len() as u64;
                    self.readiness
                        .add(&listener, token, Interest::Read)
                        .expect("a fresh descriptor enters the set");
                    self.listeners.push(listener);
                }
                // Peers fall back to TCP.
                Err(error) => {
                    tracing::warn!(target: "siloring", %error, "no Unix socket to listen on");
                }
            }
        }
        if let Some(named) = self.named.take() {
            named(incarnation);
            self.shards_run = true;
        }
    }

    fn end(&mut self, now: Moment, notice: Notice) {
        self.end_at = Some(now + LINK_LINGER_MAX);
        self.shared.set_serve_until(Moment::ZERO);
        self.named = None;
        for shard in &mut self.shards {
            shard.send(Post::Stop);
        }
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            self.begin_close(now, id);
        }
        self.tell(notice);
    }

    fn tell(&self, notice: Notice) {
        // Whoever started the silo may have stopped listening.
        drop(self.notices.send(notice));
    }
}

const fn dialing(rest: VecDeque<SocketAddr>) -> Phase {
    Phase::Dialing(rest)
}

#[expect(clippy::exit, reason = "a silo that was declared Dead ends at once, always")]
fn exit(code: u8) -> ! {
    tracing::error!(target: "siloring", code, "this silo was declared Dead: the process ends");
    process::exit(code.into())
}
