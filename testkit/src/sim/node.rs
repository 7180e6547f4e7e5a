//! A silo's surroundings in the world: its mailboxes, its program, and what a test may look at.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use siloring_core::schema::Message;
use siloring_core::{Incarnation, Moment, ShardIndex, SiloStatus, View};
use siloring_pubsub::{Stream, Streams};
use siloring_runtime::exec::local::Unpark;
use siloring_runtime::handle::{Handle, Post, PostError};
use siloring_runtime::mail::ShardMail;
use siloring_transport::Established;

use super::app::AppClock;
use super::cluster::ProgramFuture;
use super::mail::Letters;
use super::network::EndId;
use super::plan::{Mix, Slot};
use super::random::stream;
use super::sizes::Sizes;
use super::world::{Part, ProcessId};

/// The mailbox of one shard. Wakes its shard when mail comes, or when a future of it was woken.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Guards the mail; [`Post`] is for any thread, though here all is one.
    mail: Mutex<Letters<Letter>>,
    /// A future of the shard was woken.
    called: AtomicBool,
}

/// What comes to a shard.
#[derive(Debug)]
pub(super) enum Letter {
    /// Mail of another thread.
    Mail(ShardMail),
    /// A link that the control thread has made.
    Link(EndId, Box<Established>),
}

impl Mailbox {
    fn letters(&self) -> MutexGuard<'_, Letters<Letter>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, from: Part, letter: Letter) {
        self.letters().push(from, letter);
    }

    pub(super) fn pop(&self) -> Option<Letter> {
        self.letters().pop()
    }

    /// When the next letter arrives.
    pub(super) fn next(&self) -> Moment {
        self.letters().next()
    }

    /// Whether its shard has to be run; asked once.
    pub(super) fn take_call(&self) -> bool {
        self.called.swap(false, Ordering::Relaxed)
    }
}

impl Unpark for Mailbox {
    fn unpark(&self) {
        self.called.store(true, Ordering::Relaxed);
    }
}

/// The mailboxes of a silo's shards.
#[derive(Debug)]
pub(super) struct Mailboxes {
    pub(super) shards: Vec<Arc<Mailbox>>,
    /// Mail that a program may have waiting at one shard.
    bound: usize,
    /// The part that runs, and so posts.
    running: AtomicU16,
    stopped: AtomicBool,
}

impl Mailboxes {
    pub(super) fn new(shards: u16, setup: &NodeSetup) -> Arc<Self> {
        let mailbox = |shard: u16| {
            let random = stream(setup.seed, &format!("mail {shard}"));
            let mail = Mutex::new(Letters::new(setup.mail_delay, random));
            Arc::new(Mailbox { mail, called: AtomicBool::new(false) })
        };
        Arc::new(Self {
            shards: (0..shards).map(mailbox).collect(),
            bound: setup.mailbox,
            running: AtomicU16::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// This part runs now: what is posted is from it.
    pub(super) fn runs(&self, part: Part) {
        self.running.store(part.0, Ordering::Relaxed);
    }

    /// The part that runs.
    pub(super) fn running(&self) -> Part {
        Part(self.running.load(Ordering::Relaxed))
    }

    /// The silo takes no more mail.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl Post for Mailboxes {
    fn post(&self, shard: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(PostError::Stopped(mail));
        }
        let mailbox = &self.shards[usize::from(shard.0)];
        let waiting = mailbox.letters().count();
        // An answer waits for room in a loop that only another thread can end: here it has room.
        let surely = matches!(mail, ShardMail::Answer { .. } | ShardMail::CloseHub(_));
        if waiting >= self.bound && !surely {
            return Err(PostError::Full(mail));
        }
        mailbox.push(self.running(), Letter::Mail(mail));
        Ok(())
    }

    fn shards(&self) -> u16 {
        u16::try_from(self.shards.len()).expect("made from a u16")
    }
}

/// A silo as the program around it sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) handle: Handle,
    pub(super) streams: Arc<Streams>,
    pub(super) clock: AppClock,
    pub(super) setup: NodeSetup,
    pub(super) spawned: Rc<Spawned>,
}

/// What a program may know of its place in the run.
#[derive(Clone, Debug)]
pub(super) struct NodeSetup {
    pub(super) slot: Slot,
    pub(super) seed: u64,
    pub(super) silo_count: u16,
    pub(super) load_per_second: u32,
    pub(super) mix: Mix,
    pub(super) body_bytes: usize,
    pub(super) mailbox: usize,
    pub(super) mail_delay: Duration,
}

/// Futures handed to the program and not yet taken up.
#[derive(Default)]
pub(super) struct Spawned {
    futures: RefCell<VecDeque<ProgramFuture>>,
}

impl std::fmt::Debug for Spawned {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Spawned({})", self.futures.borrow().len())
    }
}

impl Spawned {
    pub(super) fn push(&self, future: ProgramFuture) {
        self.futures.borrow_mut().push_back(future);
    }

    fn is_empty(&self) -> bool {
        self.futures.borrow().is_empty()
    }

    pub(super) fn pop(&self) -> Option<ProgramFuture> {
        self.futures.borrow_mut().pop_front()
    }
}

impl Node {
    /// Calls grains and opens hubs of the silo.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The stream `key` of a namespace, as the silo's program sees it.
    ///
    /// # Panics
    /// If they make no address.
    pub fn stream<M: Message>(&self, namespace: &str, key: &str) -> Stream<M> {
        Stream::new(&self.handle, &self.streams, namespace, key).expect("a stream's name")
    }

    /// The silo's streams.
    pub const fn streams(&self) -> &Arc<Streams> {
        &self.streams
    }

    /// The time on this silo's host.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Waits on virtual time.
    ///
    /// # Cancel safety
    /// Dropped, it has no effect.
    pub fn sleep(&self, span: Duration) -> impl Future<Output = ()> + use<> {
        self.clock.sleep(span)
    }

    /// Runs another future of the program. It dies with the process.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.spawned.push(Box::pin(future));
    }

    /// Entropy of this start of the silo, for one concern of the program.
    pub fn random(&self, concern: &str) -> fastrand::Rng {
        stream(self.setup.seed, concern)
    }

    /// The slot that the silo holds.
    pub const fn slot(&self) -> Slot {
        self.setup.slot
    }

    /// How many slots the cluster has.
    pub const fn silo_count(&self) -> u16 {
        self.setup.silo_count
    }

    /// What most of the load is.
    pub const fn mix(&self) -> Mix {
        self.setup.mix
    }

    /// Bytes of the largest message of the load.
    pub const fn body_bytes(&self) -> usize {
        self.setup.body_bytes
    }

    /// The load that the run's options ask for, over the whole cluster.
    pub const fn load_per_second(&self) -> u32 {
        self.setup.load_per_second
    }
}

/// What is known of one start of a silo, for the cluster and for tests.
#[derive(Debug)]
pub struct SiloShared {
    node: Node,
    app_part: Part,
    process: Cell<Option<ProcessId>>,
    incarnation: RefCell<Option<Incarnation>>,
    view: RefCell<Arc<View>>,
    join_error: RefCell<Option<String>>,
    sizes: RefCell<Vec<Sizes>>,
    wire_versions: RefCell<BTreeSet<u8>>,
    /// What was done to its directory, in order.
    #[cfg(feature = "planted")]
    pub(super) faults: RefCell<Vec<siloring_runtime::directory::PlantedFault>>,
}

impl SiloShared {
    pub(super) fn new(node: Node, app_part: Part) -> Rc<Self> {
        Rc::new(Self {
            node,
            app_part,
            process: Cell::new(None),
            incarnation: RefCell::new(None),
            view: RefCell::new(Arc::default()),
            join_error: RefCell::new(None),
            sizes: RefCell::new(Vec::new()),
            wire_versions: RefCell::default(),
            #[cfg(feature = "planted")]
            faults: RefCell::default(),
        })
    }

    pub(super) fn started_as(&self, process: ProcessId) {
        self.process.set(Some(process));
    }

    pub(super) const fn app_part(&self) -> Part {
        self.app_part
    }

    pub(super) fn spawn(&self, future: ProgramFuture) {
        self.node.spawned.push(future);
    }

    pub(super) fn next_spawned(&self) -> Option<ProgramFuture> {
        self.node.spawned.pop()
    }

    pub(super) fn has_spawned(&self) -> bool {
        !self.node.spawned.is_empty()
    }

    pub(super) fn named(&self, incarnation: Incarnation) {
        *self.incarnation.borrow_mut() = Some(incarnation);
    }

    pub(super) fn join_failed(&self, error: String) {
        *self.join_error.borrow_mut() = Some(error);
    }

    /// Takes up a view; the one before.
    pub(super) fn seen(&self, view: Arc<View>) -> Arc<View> {
        self.view.replace(view)
    }

    pub(super) fn measured(&self, shard: usize, sizes: Sizes) {
        let mut all = self.sizes.borrow_mut();
        if all.len() <= shard {
            all.resize(shard + 1, Sizes::default());
        }
        all[shard] = sizes;
    }

    pub(super) fn agreed(&self, wire_version: u8) {
        self.wire_versions.borrow_mut().insert(wire_version);
    }

    /// The silo as its program sees it.
    pub fn node(&self) -> Node {
        self.node.clone()
    }

    /// What its shards share.
    pub(super) fn streams(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.node.streams) as _
    }

    /// Which process it is.
    pub const fn process(&self) -> Option<ProcessId> {
        self.process.get()
    }

    /// Who it is; `None` before its Joining row.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation.borrow().clone()
    }

    /// The newest view it has.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Where it stands in its own view.
    pub fn status(&self) -> Option<SiloStatus> {
        let incarnation = self.incarnation.borrow();
        self.view.borrow().status(incarnation.as_ref()?.generation)
    }

    /// Why it could not join, if it could not.
    pub fn join_error(&self) -> Option<String> {
        self.join_error.borrow().clone()
    }

    /// The wire versions of the data links that it has had.
    pub fn wire_versions(&self) -> BTreeSet<u8> {
        self.wire_versions.borrow().clone()
    }

    /// Sizes of its shards' tables, as of each shard's last run.
    pub fn sizes(&self) -> Vec<Sizes> {
        self.sizes.borrow().clone()
    }
}
