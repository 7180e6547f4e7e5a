//! Two silos of one shard each and the link from the first to the second, in one thread: what one
//! sends is copied to the other.
//!
//! Moving bytes and time allocates nothing once its buffers have grown, so that what is counted is
//! the silos' own. Deliberately absent: faults, delays, links cut short: the simulator has them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use siloring::prelude::*;
use siloring::pump::{NodeOutput, ShardNode, Unread};
use siloring_core::event::Event;
use siloring_core::limits::{DEADLINE_DEFAULT, FRAME_BYTES_MAX};
use siloring_core::view::{SiloRow, SiloStatus, View};
use siloring_core::wire::{FrameKind, Header, VERSION};
use siloring_core::{Endpoint, Generation, Incarnation, Moment, ShardIndex, SiloName, ViewNumber};
use siloring_runtime::exec::local::Unpark;
use siloring_runtime::handle::{Post, PostError};
use siloring_runtime::host::HostFactory;
use siloring_runtime::mail::{ConnId, ControlMail, ShardMail};
use siloring_runtime::shard::ShardConfig;
use siloring_transport::{Established, Purpose, Role};

/// The grain that is called.
const KEY: &str = "echo";
/// The link, at both of its ends.
pub(crate) const CONN: ConnId = ConnId(1);
/// Time that passes in a round: so much that a second, in which what is done now and then comes up,
/// is a thousand rounds.
const ROUND: Duration = Duration::from_millis(1);
/// Rounds without an outcome after which none will come.
const ROUNDS_MAX: u32 = 10_000;

/// What is sent, and comes back.
#[message(type = "cost.payload")]
pub(crate) struct Payload {
    bytes: [u8; 64],
}

impl Payload {
    /// Any 64 bytes.
    pub(crate) const fn new() -> Self {
        Self { bytes: [7; 64] }
    }
}

/// Answers at the first poll.
#[derive(Grain, Default)]
#[grain(type = "cost.echo")]
pub(crate) struct Echo {}

#[grain_methods]
impl Echo {
    /// The payload, read in place and sent back.
    pub(crate) async fn echo(&mut self, payload: &Archived<Payload>) -> Payload {
        Payload { bytes: payload.bytes }
    }

    /// The same, by way of one allocation.
    pub(crate) async fn boxed(&mut self, payload: &Archived<Payload>) -> Payload {
        let bytes = std::hint::black_box(Box::new(payload.bytes));
        Payload { bytes: *bytes }
    }
}

/// Which of [`Echo`]'s methods is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    Echo,
    Boxed,
}

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Has dialled the link.
    First,
    Second,
}

impl Side {
    const fn generation(self) -> Generation {
        match self {
            Self::First => Generation(1),
            Self::Second => Generation(2),
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    const fn role(self) -> Role {
        match self {
            Self::First => Role::Dialer,
            Self::Second => Role::Acceptor,
        }
    }
}

/// A shard's mail; the only mailbox of its silo.
#[derive(Debug, Default)]
struct Mailbox {
    /// Guards the mail; [`Post`] is for any thread, though here all is one.
    mail: Mutex<VecDeque<ShardMail>>,
}

impl Mailbox {
    fn take(&self) -> Option<ShardMail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Post for Mailbox {
    fn post(&self, _shard: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner).push_back(mail);
        Ok(())
    }

    fn shards(&self) -> u16 {
        1
    }
}

impl Unpark for Mailbox {
    fn unpark(&self) {}
}

#[derive(Debug)]
struct Silo {
    side: Side,
    node: ShardNode,
    mailbox: Arc<Mailbox>,
    handle: Handle,
    dirty: Vec<ConnId>,
}

impl Silo {
    fn new(now: Moment, side: Side) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let handle = Handle::new(Arc::<Mailbox>::clone(&mailbox));
        let me = Endpoint { silo: side.generation(), shard: ShardIndex(0) };
        let mut config = ShardConfig::new(me, 1, 7);
        config.hosts = vec![HostFactory::of::<Echo>()];
        let unpark = Arc::<Mailbox>::clone(&mailbox);
        let mut node = ShardNode::new(now, config, unpark, handle.clone());
        node.set_lease(Moment::NEVER);
        node.mail(now, ShardMail::View(view()));
        node.attach(now, CONN, &established(side.role(), side.other()), None);
        Self { side, node, mailbox, handle, dirty: Vec::new() }
    }

    /// Lets it work, and brings what it sends to the other.
    fn work(&mut self, now: Moment, other: &mut Self) {
        if self.node.next_deadline() <= now {
            self.node.tick(now);
        }
        while let Some(mail) = self.mailbox.take() {
            self.node.mail(now, mail);
        }
        self.node.run(now);
        while let Some(output) = self.node.poll_output() {
            self.take_output(now, output, other);
        }
        self.node.take_dirty(&mut self.dirty);
        for conn in self.dirty.drain(..) {
            let bytes = self.node.unsent(conn);
            other.receive(now, bytes);
            let count = bytes.len();
            self.node.sent(conn, count);
        }
    }

    /// Bytes have come.
    fn receive(&mut self, now: Moment, bytes: &[u8]) {
        let space = self.node.receive_space(now, CONN).expect("the link is up");
        space[..bytes.len()].copy_from_slice(bytes);
        self.node.received(now, CONN, bytes.len());
        while self.node.take_frames(now, CONN) == Unread::Some {}
    }

    fn take_output(&mut self, now: Moment, output: NodeOutput, other: &mut Self) {
        match output {
            NodeOutput::Shard(_, mail) => self.node.mail(now, mail),
            NodeOutput::Control(ControlMail::Directory { from, to, message }) => {
                let from = Endpoint { silo: self.side.generation(), shard: from };
                let mail = ShardMail::Directory { from, message };
                let is_own = to.silo == self.side.generation();
                if is_own { self.node.mail(now, mail) } else { other.node.mail(now, mail) }
            }
            NodeOutput::Event(Event::FuturePanicked { message }) => panic!("{message}"),
            NodeOutput::Close { last, .. } => panic!("the link was closed: {last:?}"),
            // Of a control thread and a store there is no need.
            NodeOutput::Control(_) | NodeOutput::Store { .. } | NodeOutput::Event(_) => {}
        }
    }
}

/// The two silos.
#[derive(Debug)]
pub(crate) struct Silos {
    now: Moment,
    first: Silo,
    second: Silo,
    /// Calls that were answered.
    done: Arc<AtomicU64>,
}

impl Silos {
    /// Both serve, and the grain lives on one of them.
    pub(crate) fn with_grain_on(side: Side) -> Self {
        let now = Moment::ZERO + Duration::from_secs(100);
        let [first, second] = [Side::First, Side::Second].map(|side| Silo::new(now, side));
        let mut silos = Self { now, first, second, done: Arc::default() };
        // It prefers the silo that calls it first.
        silos.call(side, 1);
        silos.run_until(1);
        silos
    }

    fn of(&self, side: Side) -> &Silo {
        match side {
            Side::First => &self.first,
            Side::Second => &self.second,
        }
    }

    /// Lets a silo call the grain so many times from now on, one after the other.
    pub(crate) fn call(&self, side: Side, count: u64) {
        self.spawn(side, Method::Echo, count);
    }

    /// Lets a silo have so many calls of the grain under way from now on.
    pub(crate) fn keep_calling(&self, side: Side, method: Method, in_flight: usize) {
        for _ in 0..in_flight {
            self.spawn(side, method, u64::MAX);
        }
    }

    fn spawn(&self, side: Side, method: Method, count: u64) {
        let handle = &self.of(side).handle;
        let (echo, done) = (handle.grain::<Echo>(KEY), Arc::clone(&self.done));
        let spawned = handle.spawn_on(ShardIndex(0), move || async move {
            for _ in 0..count {
                let payload = Payload::new();
                let call = match method {
                    Method::Echo => echo.echo(payload),
                    Method::Boxed => echo.boxed(payload),
                };
                assert_eq!(call.await.expect("it is handled").bytes, [7; 64]);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        spawned.expect("the mailbox takes it");
    }

    /// Calls that were answered.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Lets time pass until so many calls were answered.
    pub(crate) fn run_until(&mut self, done: u64) {
        let mut idle = 0;
        while self.done() < done {
            let before = self.done();
            self.now += ROUND;
            self.first.work(self.now, &mut self.second);
            self.second.work(self.now, &mut self.first);
            idle = if self.done() > before { 0 } else { idle + 1 };
            assert!(idle < ROUNDS_MAX, "no call is answered any more, of {before}");
        }
    }

    /// Lets time pass, and does what is due.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.now += span;
        for silo in [&mut self.first, &mut self.second] {
            if silo.node.next_deadline() <= self.now {
                silo.node.tick(self.now);
            }
        }
    }

    /// The machine of one of them, and the time it is there.
    pub(crate) const fn node(&mut self, side: Side) -> (&mut ShardNode, Moment) {
        let silo = match side {
            Side::First => &mut self.first,
            Side::Second => &mut self.second,
        };
        (&mut silo.node, self.now)
    }

    /// Does what one of them wants done, its bytes aside.
    pub(crate) fn carry_out(&mut self, side: Side) {
        let (silo, other) = match side {
            Side::First => (&mut self.first, &mut self.second),
            Side::Second => (&mut self.second, &mut self.first),
        };
        while let Some(output) = silo.node.poll_output() {
            silo.take_output(self.now, output, other);
        }
        silo.node.take_dirty(&mut silo.dirty);
        silo.dirty.clear();
    }

    /// A request of the first, as it waits to be sent.
    pub(crate) fn request(&mut self) -> Vec<u8> {
        self.call(Side::First, 1);
        while let Some(mail) = self.first.mailbox.take() {
            self.first.node.mail(self.now, mail);
        }
        self.first.node.run(self.now);
        let request = self.first.node.unsent(CONN).to_vec();
        assert_eq!(kind(&request), Some(FrameKind::Request));
        request
    }

    /// Lets the second take a request, run its turn, and lay the reply into its send buffer.
    pub(crate) fn answer(&mut self, request: &[u8]) -> &[u8] {
        self.second.receive(self.now, request);
        self.second.node.unsent(CONN)
    }

    /// What the second had to send is sent.
    pub(crate) fn answered(&mut self) {
        self.second.node.take_dirty(&mut self.second.dirty);
        self.second.dirty.clear();
        let count = self.second.node.unsent(CONN).len();
        self.second.node.sent(CONN, count);
    }
}

/// Of the only frame in there.
pub(crate) fn kind(bytes: &[u8]) -> Option<FrameKind> {
    let layout = Header::decode(bytes, FRAME_BYTES_MAX).expect("a frame")?;
    assert_eq!(layout.frame_bytes, bytes.len(), "one frame");
    Some(layout.header.kind)
}

fn incarnation(side: Side) -> Incarnation {
    let generation = side.generation();
    let name = SiloName::new(format!("silo-{generation}")).expect("a name");
    Incarnation { name, generation }
}

fn view() -> Arc<View> {
    let number = ViewNumber(2);
    let row = |side| SiloRow {
        incarnation: incarnation(side),
        status: SiloStatus::Active,
        advertised: "10.0.0.1:7000".into(),
        host: "host".into(),
        shards: 1,
        votes: Vec::new(),
        changed_in: number,
    };
    Arc::new(View::new(number, vec![row(Side::First), row(Side::Second)]))
}

/// A link of shards that is up, as one end of it knows it.
pub(crate) fn established(role: Role, peer: Side) -> Established {
    let frame_bytes_max = u32::try_from(FRAME_BYTES_MAX).expect("16 MiB");
    Established {
        peer: Some(incarnation(peer)),
        peer_shards: 1,
        peer_host: "host".into(),
        peer_types: HostFactory::versions(&[HostFactory::of::<Echo>()], &[])
            .told()
            .into_iter()
            .map(|hosted| hosted.schema)
            .collect(),
        peer_deadline_default: DEADLINE_DEFAULT,
        peer_frame_bytes_max: frame_bytes_max,
        frame_bytes_max,
        version: VERSION,
        features: 0,
        purpose: Purpose::Shard { from: ShardIndex(0), to: ShardIndex(0) },
        role,
        unsent: Vec::new(),
        leftover: Vec::new(),
    }
}
