//! A shard's thread: one executor, one long-lived task, the **pump**.
//!
//! Contract: the pump moves mail, bytes, store answers and time into its [`Node`], and what the
//! node wants out of it; it decides nothing. One turn: mail, links with input, deadlines, the
//! node's turns, effects, one write for each link that has something to send. Invariants: no call
//! here blocks but the one sleep; a link is written at most once a turn; what cannot be passed on
//! now is kept and passed on first thing in the next turn; while any is kept, links are not read.
//! Mail and frames take [`LOOP_TIME_MAX`] of a turn each at most, or one of them; of links that
//! have more, each gets its part in turn. With what it hands over the pump says since when it may
//! have waited: since the last look at which there was nothing.
//!
//! Idle links cost nothing: all of them are in one kernel set, on which the shard sleeps and which
//! a spinning pump asks once in [`SPINS_PER_LOOK`] pauses. Only the few links that had input last
//! are read on suspicion.
//!
//! A shard sleeps in one wait: over its links, the signal of its mailboxes, and the time until the
//! next deadline, a tick at most. *No lost wake*: the mailboxes are told before the wait that it
//! comes, whoever sends then signals, and a signal stays in the set until a look has seen it.
//!
//! Deliberately absent: accepting, dialling, handshakes (the control thread's), the engine
//! ([`super::reactor`]), and every decision about frames.

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use siloring_core::event::Event;
use siloring_core::limits::{
    HOT_LINKS_MAX, LEDGER_TICK, LINK_LINGER_MAX, LOOP_TIME_MAX, MAIL_PER_LOOP_MAX, MAILBOX_MAX,
    STORE_OPEN_MAX,
};
use siloring_core::ports::store::{StoreError, StoreRequest, StoreResult};
use siloring_core::sync::mailbox::{Parking, Receiver, Sender, Wake, mailbox};
use siloring_core::{Moment, ShardIndex};
use siloring_runtime::mail::ConnId;
use siloring_transport::net::Socket;

use super::clock;
use super::idle::{Idle, IdleState, Next};
use super::outbox::Outbox;
use super::reactor::{self, Engine, Placement, ReactorError};
use super::readiness::{self, Interest, Readiness};
use super::shared::Shared;
use super::signal::Signal;
use super::slots::Slots;
use super::threads;
use crate::pump::Unread;

mod links;

use links::Conn;

/// What the pump drives. All of it is sans-IO: time is an argument, effects come out.
pub(crate) trait Node {
    /// Mail from other threads.
    type Mail: Send + 'static;
    /// Mail to the control thread.
    type ControlMail: Send + 'static;
    /// What a finished handshake says of a link.
    type Link: Send + 'static;

    /// A link is there.
    fn attach(&mut self, now: Moment, conn: ConnId, link: Self::Link);
    /// Where the next bytes of a link go; `None` while it may not be read.
    fn receive_space(&mut self, now: Moment, conn: ConnId) -> Option<&mut [u8]>;
    /// So many bytes were put there.
    fn received(&mut self, now: Moment, conn: ConnId, count: usize);
    /// Takes some of the frames that were received; all of them are taken before more is.
    fn take_frames(&mut self, now: Moment, conn: ConnId) -> Unread;
    /// The mail or frames that are handed over next have come after this.
    fn set_came_after(&mut self, came_after: Moment);
    /// How much mail to hand over before the time is read again.
    fn turns_per_look(&self) -> usize;
    /// A turn of the pump that had something to do took so long.
    fn worked(&mut self, span: Duration);
    /// Requests that were refused for overload.
    fn refused_count(&self) -> u64;
    /// A link is gone.
    fn closed(&mut self, now: Moment, conn: ConnId, reason: &str);
    /// What a link has to send next: all of it, or a batch.
    fn unsent(&mut self, conn: ConnId) -> &[u8];
    /// How many bytes a link has to send in all.
    fn backlog_bytes(&self, conn: ConnId) -> usize;
    /// The kernel took so many bytes of it.
    fn sent(&mut self, conn: ConnId, count: usize);
    /// Frames that links have taken to send.
    fn frames_count(&self) -> u64;
    /// Mail has come.
    fn mail(&mut self, now: Moment, mail: Self::Mail);
    /// The store answered.
    fn stored(&mut self, now: Moment, ticket: u64, result: StoreResult);
    /// Input may be taken until then.
    fn set_lease(&mut self, until: Moment);
    /// Whether another thread has made a task ready since the last [`Node::run`].
    fn is_ready(&self) -> bool;
    /// Runs a bounded number of turns; whether more are ready.
    fn run(&mut self, now: Moment) -> bool;
    /// Deadlines up to `now` have come.
    fn tick(&mut self, now: Moment);
    /// When [`Node::tick`] is due.
    fn next_deadline(&self) -> Moment;
    /// Appends the links that have something to send since the last call.
    fn take_dirty(&mut self, dirty: &mut Vec<ConnId>);
    /// What the node wants done next.
    fn poll_effect(&mut self) -> Option<Effect<Self>>;
}

/// What a node wants done.
pub(crate) enum Effect<N: Node + ?Sized> {
    /// Mail to another shard of this silo.
    Shard(ShardIndex, N::Mail),
    /// Mail to the control thread.
    Control(N::ControlMail),
    /// Ask the store.
    Store(u64, StoreRequest),
    /// Send these last bytes on a link, as far as the kernel takes them in one go, and close it.
    Close {
        /// Which; the node has forgotten it.
        conn: ConnId,
        /// Why it is closed, for the peer; may be empty.
        last: Vec<u8>,
    },
    /// Count and log.
    Event(Event),
}

/// What comes into a shard's mailbox.
pub(crate) enum Post<N: Node> {
    /// For the node.
    Mail(N::Mail),
    /// An established link.
    Link(Box<NewLink<N::Link>>),
    /// Write out what is left and end.
    Stop,
}

/// A link as the control thread hands it over.
pub(crate) struct NewLink<L> {
    /// Its socket, non-blocking.
    pub(crate) socket: Socket,
    /// What the handshake said.
    pub(crate) link: L,
    /// Whether it may stay unread while its replies are not taken: true for accepted links. A
    /// dialled one is always read, else two silos could wait for each other.
    pub(crate) may_pause: bool,
}

/// An answer of the store, on its way back to the thread that asked.
pub(crate) type Stored = (u64, StoreResult);

/// Asks the store; the answer goes to the sender. Never blocks.
pub(crate) type AskStore = Box<dyn FnMut(u64, StoreRequest, Sender<Stored>) + Send>;

/// The sending sides of a shard's mailbox, and what its thread needs of it.
pub(crate) struct Letterbox<N: Node> {
    signal: Arc<Signal>,
    mail: Receiver<Post<N>>,
    stored: Receiver<Stored>,
    stored_sender: Sender<Stored>,
}

impl<N: Node> Letterbox<N> {
    fn has_some(&self) -> bool {
        !self.mail.is_empty() || !self.stored.is_empty()
    }

    /// A mailbox, and the way into it.
    pub(crate) fn new() -> io::Result<(Sender<Post<N>>, Self)> {
        let signal = Arc::new(Signal::new()?);
        let wake = || Arc::clone(&signal) as Arc<dyn Wake>;
        let (sender, mail) = mailbox(MAILBOX_MAX, wake());
        let (stored_sender, stored) = mailbox(STORE_OPEN_MAX, wake());
        Ok((sender, Self { signal, mail, stored, stored_sender }))
    }
}

/// What a pump is built of, its node aside.
pub(crate) struct Parts<N: Node> {
    /// Which shard.
    pub(crate) index: ShardIndex,
    /// Its mailbox.
    pub(crate) letterbox: Letterbox<N>,
    /// The mailboxes of all shards, its own included, by index.
    pub(crate) shards: Vec<Sender<Post<N>>>,
    /// The control thread's mailbox.
    pub(crate) control: Sender<N::ControlMail>,
    /// The store.
    pub(crate) store: AskStore,
    /// Numbers and counters.
    pub(crate) shared: Arc<Shared>,
    /// What it does while it has nothing to do.
    pub(crate) idle: Idle,
}

/// Why a shard did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShardError {
    /// No thread, or none of the descriptors that its pump needs.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
    /// No executor.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
}

/// Starts a shard's thread, and returns once its executor stands. `make` builds the node there, as
/// what it owns never leaves its thread; it may wait for what it needs, or say that there is none.
pub(crate) fn start<N: Node + 'static>(
    placement: Placement,
    parts: Parts<N>,
    make: impl FnOnce() -> Option<N> + Send + 'static,
) -> Result<JoinHandle<()>, ShardError> {
    let (tell, heard) = mpsc::sync_channel(1);
    let name = format!("siloring-{}", parts.index);
    let thread = threads::start(name, move || {
        let told = |result| drop(tell.send(result));
        reactor::run(placement, told, async move {
            let Some(node) = make() else {
                return;
            };
            let pump = Pump::new(parts, node).expect("descriptors for the pump");
            pump.run().await;
        });
    })?;
    heard.recv().expect("the thread tells before it ends")?;
    Ok(thread)
}

const MAIL_TOKEN: u64 = u64::MAX;
/// Looks at the kernel's set are this many pauses apart, or as many turns with a few reads each:
/// 2 to 6 µs, at a tenth of their cost.
const SPINS_PER_LOOK: u32 = 64;
/// A turn that reads links on suspicion counts as so many pauses.
const SPINS_PER_READING: u32 = 4;
/// Under load, looks are at most this far apart, so that no link waits for a busy one.
const LOOK_PERIOD: Duration = Duration::from_micros(50);

/// A shard's loop and all it owns.
struct Pump<N: Node> {
    index: ShardIndex,
    node: N,
    letterbox: Letterbox<N>,
    shards: Vec<Outbox<Post<N>>>,
    control: Outbox<N::ControlMail>,
    store: AskStore,
    store_open: usize,
    shared: Arc<Shared>,
    idle: IdleState,
    readiness: Readiness,
    conns: Slots<Conn>,
    /// Read at every turn.
    hot: Vec<ConnId>,
    /// Found readable by the last look.
    ready: Vec<ConnId>,
    /// Links of which something that was read is not taken yet.
    unread: VecDeque<ConnId>,
    dirty: Vec<ConnId>,
    /// The time as it was last read.
    now: Moment,
    looked_at: Moment,
    /// When the pump last woke: what woke it came no earlier.
    woken_at: Moment,
    /// When there was no mail last.
    mail_taken_at: Moment,
    /// When deadlines were last looked at.
    ticked_at: Moment,
    stop_at: Option<Moment>,
}

impl<N: Node> Pump<N> {
    /// Builds the pump. Called on its own thread.
    fn new(parts: Parts<N>, node: N) -> io::Result<Self> {
        let now = clock::now();
        let readiness = Readiness::new()?;
        readiness.add(&*parts.letterbox.signal, MAIL_TOKEN, Interest::Signal)?;
        Ok(Self {
            index: parts.index,
            node,
            letterbox: parts.letterbox,
            shards: parts.shards.into_iter().map(Outbox::new).collect(),
            control: Outbox::new(parts.control),
            store: parts.store,
            store_open: 0,
            shared: parts.shared,
            idle: IdleState::new(parts.idle, now),
            readiness,
            conns: Slots::new(),
            hot: Vec::with_capacity(HOT_LINKS_MAX),
            ready: Vec::new(),
            unread: VecDeque::new(),
            dirty: Vec::new(),
            now,
            looked_at: Moment::ZERO,
            woken_at: now,
            mail_taken_at: now,
            ticked_at: Moment::ZERO,
            stop_at: None,
        })
    }

    /// Runs until [`Post::Stop`]. Cancel safety: none; it is run to its end.
    async fn run(mut self) {
        let engine = Engine::new();
        let mut spins = 0;
        let mut worked_since = None;
        loop {
            // Read before anything is taken in: a shard that was stopped sees first that it was.
            let began = self.read_clock();
            if let Some(since) = worked_since {
                self.node.worked(began.since(since));
            }
            if self.is_done(began) {
                break;
            }
            let look = spins >= SPINS_PER_LOOK;
            let input = self.take_input(look);
            let now = self.now;
            let more = self.work(now, input);
            if look || input || more {
                spins = 0;
            }
            if input {
                self.idle.input(now);
            }
            worked_since = (input || more).then_some(began);
            match self.idle.next(now, input || more) {
                Next::Turn if input || more => {}
                Next::Turn => spins += self.spin(),
                Next::Trip => {
                    engine.trip().await;
                    self.idle.tripped(clock::now());
                }
                Next::Park(tick) => {
                    self.park(now, tick);
                    spins = 0;
                }
            }
        }
        engine.close().await;
    }

    /// Pauses before the next idle turn; how often. While no link is read on suspicion only other
    /// threads can bring something soon: to look for that alone leaves more of the core to whatever
    /// shares it, which is often the thread that is waited for.
    fn spin(&self) -> u32 {
        if !self.hot.is_empty() {
            core::hint::spin_loop();
            return SPINS_PER_READING;
        }
        for count in 1..SPINS_PER_LOOK {
            core::hint::spin_loop();
            if self.letterbox.has_some() || self.node.is_ready() {
                return count;
            }
        }
        SPINS_PER_LOOK
    }

    fn read_clock(&mut self) -> Moment {
        self.now = clock::now();
        self.now
    }

    /// Takes what has come: mail, store answers, bytes. Whether there was any.
    fn take_input(&mut self, look: bool) -> bool {
        let (frames, refused) = (self.node.frames_count(), self.node.refused_count());
        self.shared.turn_begun(self.index, frames, refused);
        self.node.set_lease(self.shared.serve_until());
        let kept = self.retry();
        let mut input = self.take_mail();
        let now = self.now;
        if look || now.since(self.looked_at) >= LOOK_PERIOD {
            self.look(now);
        }
        if kept == 0 && !self.is_fenced(now) {
            input |= self.read_links(now);
            self.take_frames();
            input |= !self.unread.is_empty();
        }
        input
    }

    /// Whether the right to serve has run out: links are not read, so that nothing is accepted.
    fn is_fenced(&self, now: Moment) -> bool {
        now > self.shared.serve_until()
    }

    /// Lets the node work, and does what it wants done. Whether it has more to do.
    fn work(&mut self, now: Moment, input: bool) -> bool {
        if input || now.since(self.ticked_at) >= LOOK_PERIOD {
            self.ticked_at = now;
            if self.node.next_deadline() <= now {
                self.node.tick(now);
            }
        }
        let more = self.node.run(now);
        while let Some(effect) = self.node.poll_effect() {
            self.take_effect(now, effect);
        }
        self.node.take_dirty(&mut self.dirty);
        let links_count = self.conns.len();
        while let Some(conn) = self.dirty.pop() {
            self.write(now, conn);
        }
        let is_any_lost = self.conns.len() < links_count;
        more || is_any_lost
    }

    /// Passes on what was kept; how much still is.
    fn retry(&mut self) -> usize {
        self.control.retry();
        for shard in &mut self.shards {
            shard.retry();
        }
        self.control.len() + self.shards.iter().map(Outbox::len).sum::<usize>()
    }

    fn take_mail(&mut self) -> bool {
        let mut any = false;
        let began = self.now;
        while let Some((ticket, result)) = self.letterbox.stored.receive() {
            self.store_open -= 1;
            self.node.stored(began, ticket, result);
            any = true;
        }
        self.node.set_came_after(self.mail_taken_at.max(self.woken_at));
        let (mut unlooked, looks_after) = (0, self.node.turns_per_look());
        for _ in 0..MAIL_PER_LOOP_MAX {
            let Some(post) = self.letterbox.mail.receive() else {
                self.mail_taken_at = self.now;
                break;
            };
            any = true;
            match post {
                Post::Mail(mail) => self.node.mail(self.now, mail),
                Post::Link(new) => self.attach(self.now, *new),
                Post::Stop => self.stop_at = Some(self.now),
            }
            unlooked += 1;
            if unlooked >= looks_after {
                unlooked = 0;
                if self.read_clock().since(began) >= LOOP_TIME_MAX {
                    break;
                }
            }
        }
        any
    }

    fn attach(&mut self, now: Moment, new: NewLink<N::Link>) {
        let NewLink { socket, link, may_pause } = new;
        let watch = Interest::Read;
        let conn = self.conns.insert(|_| Conn::new(socket, now, watch, may_pause));
        self.node.attach(now, conn, link);
        let found = self.conns.get_mut(conn).expect("just inserted");
        if let Err(error) = self.readiness.add(&found.socket, conn.0, watch) {
            self.lose(now, conn, &error.to_string());
        }
        self.shared.set_links(self.index, self.conns.len());
    }

    /// A link is gone: tells the node.
    fn lose(&mut self, now: Moment, conn: ConnId, reason: &str) {
        self.drop_conn(conn);
        self.node.closed(now, conn, reason);
    }

    fn drop_conn(&mut self, conn: ConnId) {
        self.hot.retain(|hot| *hot != conn);
        // Closing the socket, of which there is no duplicate, also takes it out of the kernel's
        // set.
        drop(self.conns.remove(conn));
        self.shared.set_links(self.index, self.conns.len());
    }

    fn take_effect(&mut self, now: Moment, effect: Effect<N>) {
        match effect {
            Effect::Shard(shard, mail) => {
                self.shards[usize::from(shard.0)].send(Post::Mail(mail));
            }
            Effect::Control(mail) => self.control.send(mail),
            Effect::Store(ticket, request) => self.ask_store(now, ticket, request),
            Effect::Close { conn, last } => {
                if let Some(found) = self.conns.get_mut(conn) {
                    // The peer may be gone, or take nothing more: it is told if it can be.
                    drop(found.socket.send(&last));
                }
                self.drop_conn(conn);
            }
            Effect::Event(event) => self.shared.record(&event),
        }
    }

    fn ask_store(&mut self, now: Moment, ticket: u64, request: StoreRequest) {
        if self.store_open < STORE_OPEN_MAX {
            self.store_open += 1;
            self.shared.store_asked(self.index);
            (self.store)(ticket, request, self.letterbox.stored_sender.clone());
        } else {
            let detail = format!("this shard has {STORE_OPEN_MAX} requests open");
            self.node.stored(now, ticket, Err(StoreError::NotSent { detail }));
        }
    }

    /// Sleeps until input, the node's next deadline, or a tick.
    fn park(&mut self, now: Moment, tick: Duration) {
        let deadline = self.node.next_deadline();
        if deadline > now && self.announce_park() {
            self.shared.parked(self.index);
            self.hot.clear();
            self.sleep(now, tick.min(deadline.since(now)));
        }
        self.letterbox.mail.unpark();
        self.letterbox.stored.unpark();
        self.ticked_at = Moment::ZERO;
    }

    fn sleep(&mut self, now: Moment, wait: Duration) {
        if self.is_fenced(now) {
            // Links with input that may not be read would end every other sleep at once; so nothing
            // ends this one, and mail waits for it.
            readiness::rest(wait.min(LEDGER_TICK));
            self.woken_at = self.read_clock();
        } else {
            self.readiness.look(wait).expect("an epoll set can be asked");
            self.woken_at = self.read_clock();
            self.looked_at = self.woken_at;
            self.take_found(self.woken_at);
        }
    }

    /// Whether the pump may sleep: the next mail, answer or foreign wake ends it.
    fn announce_park(&mut self) -> bool {
        self.letterbox.stored.park() == Parking::Agreed
            && self.letterbox.mail.park() == Parking::Agreed
            && !self.node.is_ready()
    }

    /// Whether the pump was told to stop, and what it had to send is sent or has lingered enough.
    fn is_done(&self, now: Moment) -> bool {
        let Some(stop_at) = self.stop_at else {
            return false;
        };
        let unsent = self.conns.ids().any(|conn| self.node.backlog_bytes(conn) > 0);
        let kept = self.control.len() > 0 || self.shards.iter().any(|shard| shard.len() > 0);
        !(unsent || kept) || now.since(stop_at) >= LINK_LINGER_MAX
    }
}

#[cfg(test)]
mod tests;
