//! What one shard keeps of its silo's streams: the lanes of its publishers, its part of the
//! subscriber check, and which owners live here.
//!
//! Contract:
//! - numbers of a lane rise by one and are given once; the lowest one without an outcome is told
//!   with each publish, so that an owner waits for no number that will not come;
//! - bound: what the shard's open publishes hold is at most [`PUBLISH_WINDOW_BYTES_MAX`] bytes and
//!   [`PUBLISHES_OPEN_MAX`] events a stream; beyond that `Overloaded`.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::event::Event;
use siloring_core::hash::HashMap;
use siloring_core::ids::{ActivationNumber, ShardIndex};
use siloring_core::limits::{PUBLISH_WINDOW_BYTES_MAX, PUBLISHES_OPEN_MAX, REFRESH_DELAY};
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::ports::registry::RegistryHint;
use siloring_core::view::{SiloRow, View};
use siloring_runtime::ctx::Sleep;
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;

use crate::check::{CheckWriter, Gone, Owned};
use crate::message::WireSet;
use crate::owner::{Owner, REFRESH_SPEC, StreamOwner};
use crate::streams::{Set, Streams};
use crate::sweep;

/// The streams of one shard.
pub(crate) struct ShardStreams {
    streams: Option<Arc<Streams>>,
    writer: RefCell<Option<CheckWriter>>,
    lanes: RefCell<HashMap<AddressHash, Lane>>,
    /// No lane has given a number from here on. Lanes that end leave it behind.
    unused: Cell<u64>,
    window_bytes: Cell<usize>,
    /// Streams that have their owner on this shard.
    owners: RefCell<BTreeMap<AddressHash, (Address, ActivationNumber)>>,
    /// Those whose rows may have been changed by somebody else.
    stale: RefCell<BTreeSet<AddressHash>>,
    is_refreshing: Cell<bool>,
    /// Their state, to be counted.
    counted: RefCell<Vec<Weak<Owner>>>,
}

/// What one shard keeps of streams: nothing of a publish or an event that has its outcome.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StreamUsage {
    /// Publishes of its futures without an outcome.
    pub publishes: usize,
    /// Bytes that they hold.
    pub window_bytes: usize,
    /// Streams that it owns.
    pub owners: usize,
    /// Their consumers.
    pub consumers: usize,
    /// Events that a consumer of theirs owes an answer for, or that wait for an earlier one.
    pub events: usize,
    /// Turns of theirs that wait for an outcome.
    pub waiting: usize,
}

#[derive(Debug)]
struct Lane {
    next: u64,
    open: BTreeSet<u64>,
}

impl fmt::Debug for ShardStreams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ShardStreams({} lanes)", self.lanes.borrow().len())
    }
}

impl Default for ShardStreams {
    fn default() -> Self {
        let streams = Here::shared::<Streams>();
        let writer = streams.as_ref().and_then(|s| s.take_writer(Here::endpoint().shard));
        Self {
            streams,
            writer: RefCell::new(writer),
            lanes: RefCell::default(),
            unused: Cell::new(1),
            window_bytes: Cell::new(0),
            owners: RefCell::default(),
            stale: RefCell::default(),
            is_refreshing: Cell::new(false),
            counted: RefCell::default(),
        }
    }
}

impl ShardStreams {
    /// Takes up what an owner says of a set, whichever shard's part of the check it belongs to.
    pub(crate) fn learn(&self, stream: AddressHash, set: Set) {
        let handle = Here::handle();
        let home = ShardIndex::of(stream.0, handle.shards());
        if home == Here::endpoint().shard {
            return self.write(stream, set);
        }
        let write = move || async move { Here::extension::<Self>().write(stream, set) };
        // A mailbox that is full now loses a hint: the check says `Unknown`, or the next one tells.
        drop(handle.spawn_on(home, write));
    }

    fn write(&self, stream: AddressHash, set: Set) {
        if let Some(writer) = &mut *self.writer.borrow_mut() {
            let owned = if set.has_owned { Owned::Yes } else { Owned::No };
            let evicted = writer.evicted_count();
            writer.put(stream, set.live, owned, set.version);
            if writer.evicted_count() > evicted {
                Here::emit(Event::CheckEntryEvicted { stream });
            }
        }
    }

    /// Opens a publish on this shard: gives it its number, and room in the window.
    pub(crate) fn open(stream: AddressHash, bytes: usize) -> Result<OpenPublish, DeliveryFailure> {
        let overloaded = |detail| DeliveryFailure::rejected(RejectedKind::Overloaded, detail);
        let shard = Here::extension::<Self>();
        if shard.window_bytes.get() + bytes > PUBLISH_WINDOW_BYTES_MAX {
            return Err(overloaded("the shard's open publishes hold too many bytes"));
        }
        let mut lanes = shard.lanes.borrow_mut();
        // Above every number that an earlier lane of this shard and stream may have given.
        let next = shard.unused.get();
        let lane = lanes.entry(stream).or_insert_with(|| Lane { next, open: BTreeSet::new() });
        if lane.open.len() >= PUBLISHES_OPEN_MAX {
            return Err(overloaded("too many publishes to the stream have no outcome yet"));
        }
        let number = lane.next;
        lane.next += 1;
        lane.open.insert(number);
        shard.window_bytes.set(shard.window_bytes.get() + bytes);
        let (handle, shard) = (Here::handle(), Here::endpoint().shard);
        Ok(OpenPublish { handle, shard, stream, number, bytes, is_queued: false })
    }

    /// The shard owns one more stream.
    pub(crate) fn owns(&self, owner: &Rc<Owner>) {
        let mut owners = self.counted.borrow_mut();
        // Before it grows: what looks through all of them is paid for by as many that came.
        if owners.len() == owners.capacity() {
            owners.retain(|owner| owner.strong_count() > 0);
            let living = owners.len();
            owners.reserve(living);
        }
        owners.push(Rc::downgrade(owner));
    }

    pub(crate) fn usage(&self) -> StreamUsage {
        let lanes = self.lanes.borrow();
        let mut usage = StreamUsage {
            publishes: lanes.values().map(|lane| lane.open.len()).sum(),
            window_bytes: self.window_bytes.get(),
            ..StreamUsage::default()
        };
        for owner in self.counted.borrow().iter().filter_map(Weak::upgrade) {
            usage.owners += 1;
            usage.waiting += owner.waiting_count();
            usage.consumers += owner.queue.borrow().consumers_count();
            usage.events += owner.queue.borrow().unsettled_count();
        }
        usage
    }

    fn close(&self, stream: AddressHash, number: u64, bytes: usize) {
        let mut lanes = self.lanes.borrow_mut();
        // A shard that has stopped knows none any more.
        let Some(lane) = lanes.get_mut(&stream) else { return };
        if !lane.open.remove(&number) {
            return;
        }
        if lane.open.is_empty() {
            self.unused.set(self.unused.get().max(lane.next));
            lanes.remove(&stream);
        }
        self.window_bytes.set(self.window_bytes.get() - bytes);
    }

    /// A stream has its owner here now.
    pub(crate) fn owner_came(&self, stream: &Address, epoch: ActivationNumber) {
        self.owners.borrow_mut().insert(stream.hash(), (stream.clone(), epoch));
    }

    /// Lets the stream's owner read its rows, if it is here; whether it did.
    async fn reads_again(&self, stream: AddressHash) -> bool {
        let known = self.owners.borrow().get(&stream).map(|(stream, _)| stream.clone());
        let Some(stream) = known else { return true };
        let owner = Here::handle().grain::<StreamOwner>(stream.id());
        let read = owner.call::<_, WireSet>(&REFRESH_SPEC, &()).one_of_several().await;
        read.is_ok() || !self.owners.borrow().contains_key(&stream.hash())
    }

    /// That owner is gone; another one may have come.
    pub(crate) fn owner_went(&self, stream: &Address, epoch: ActivationNumber) {
        let mut owners = self.owners.borrow_mut();
        if owners.get(&stream.hash()).is_some_and(|(_, known)| *known == epoch) {
            owners.remove(&stream.hash());
        }
    }

    /// Somebody may have changed rows of the registry: owners on this shard read them again, soon,
    /// once for many such hints.
    pub(crate) fn hinted(&self, hint: RegistryHint) {
        let owners = self.owners.borrow();
        self.look_soon(|stale| match hint {
            RegistryHint::Stream(stream) => {
                stale.extend(owners.get(&stream).map(|(stream, _)| stream.hash()));
            }
            RegistryHint::Everything => stale.extend(owners.keys()),
        });
    }

    /// The store has lost what it had said: versions of sets begin anew, and owners tell it what it
    /// has forgotten.
    fn store_went_back(&self) {
        if let Some(writer) = &mut *self.writer.borrow_mut() {
            writer.forget_all();
        }
        self.hinted(RegistryHint::Everything);
    }

    /// The owner of a stream does not know what the registry has of it.
    pub(crate) fn doubted(&self, stream: &Address) {
        self.look_soon(|stale| stale.extend([stream.hash()]));
    }

    fn look_soon(&self, note: impl FnOnce(&mut BTreeSet<AddressHash>)) {
        let mut stale = self.stale.borrow_mut();
        note(&mut stale);
        if !stale.is_empty() && !self.is_refreshing.replace(true) {
            Here::spawn(refresh());
        }
    }

    /// A defect: whether the consumer is left out, as it is not active here.
    #[cfg(feature = "planted")]
    pub(crate) fn gives_to_nobody_idle(&self, consumer: &Address) -> bool {
        let is_planted =
            self.streams.as_ref().is_some_and(|s| crate::planted::is_planted!(s, OnlyActive));
        is_planted && Here::whereabouts(consumer).is_none()
    }

    fn view_changed(&self, before: Option<&View>, view: &View) {
        if before.is_some_and(|before| before.number().lineage() < view.number().lineage()) {
            self.store_went_back();
        }
        let Some(writer) = &mut *self.writer.borrow_mut() else { return };
        let is_gone = |row: &SiloRow| view.is_gone(row.incarnation.generation);
        let somebody_went = before.is_some_and(|before| before.living().any(is_gone));
        writer.view(view.number(), if somebody_went { Gone::Somebody } else { Gone::Nobody });
    }
}

/// A publish without an outcome. Dropped, its number is given up.
#[derive(Debug)]
pub(crate) struct OpenPublish {
    handle: Handle,
    shard: ShardIndex,
    stream: AddressHash,
    pub(crate) number: u64,
    bytes: usize,
    /// Whether an owner has taken it in.
    pub(crate) is_queued: bool,
}

impl OpenPublish {
    /// Names the publisher: one incarnation's one shard.
    pub(crate) fn lane() -> u128 {
        let me = Here::endpoint();
        u128::from(me.silo.0) << 16 | u128::from(me.shard.0)
    }

    /// The lowest number of the lane that has no outcome.
    pub(crate) fn base(&self) -> u64 {
        let shard = Here::extension::<ShardStreams>();
        let lanes = shard.lanes.borrow();
        let open = lanes.get(&self.stream).and_then(|lane| lane.open.first());
        open.copied().unwrap_or(self.number)
    }
}

impl Drop for OpenPublish {
    fn drop(&mut self) {
        let (stream, number, bytes) = (self.stream, self.number, self.bytes);
        if Here::is_of(&self.handle) && Here::endpoint().shard == self.shard {
            return Here::extension::<ShardStreams>().close(stream, number, bytes);
        }
        let close = move || async move {
            Here::extension::<ShardStreams>().close(stream, number, bytes);
        };
        // A stopped shard has no window left; one that takes no mail now keeps the number open, and
        // later events of the lane are taken in after a moment's hold.
        drop(self.handle.spawn_on(self.shard, close));
    }
}

/// Lets owners of stale streams read their rows again, one after the other, until each has. When
/// one cannot, the others wait too: it is the registry that is away.
async fn refresh() {
    let shard = Here::extension::<ShardStreams>();
    let mut first = AddressHash::NONE;
    loop {
        Sleep::new(REFRESH_DELAY).await;
        let stale = core::mem::take(&mut *shard.stale.borrow_mut());
        let (later, next): (Vec<_>, Vec<_>) = stale.into_iter().partition(|hash| *hash < first);
        let mut left = next.into_iter().chain(later);
        while let Some(stream) = left.next() {
            if !shard.reads_again(stream).await {
                // The next round begins behind it.
                first = AddressHash(stream.0.saturating_add(1));
                shard.stale.borrow_mut().extend(left.chain([stream]));
                break;
            }
        }
        if shard.stale.borrow().is_empty() {
            shard.is_refreshing.set(false);
            return;
        }
    }
}

/// What each shard does by itself: follows the views, and sweeps if it is the one.
pub(crate) async fn run() {
    let shard = Here::extension::<ShardStreams>();
    if shard.streams.is_none() {
        return;
    }
    let mut views = Here::views();
    let mut before: Option<Arc<View>> = None;
    loop {
        let view = views.next().await;
        shard.view_changed(before.as_deref(), &view);
        // Apart, as it waits for the store.
        Here::spawn(sweep::sweep(before.replace(Arc::clone(&view)), view));
    }
}
