//! What one shard keeps of its silo's streams: the lanes of its publishers, and its part of the
//! subscriber check.
//!
//! Contract:
//! - numbers of a lane rise by one and are given once; the lowest one without an outcome is told
//!   with each publish, so that an owner waits for no number that will not come;
//! - bound: what the shard's open publishes hold is at most [`PUBLISH_WINDOW_BYTES_MAX`] bytes and
//!   [`PUBLISHES_OPEN_MAX`] events a stream; beyond that `Overloaded`.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::BTreeSet;
use std::sync::Arc;

use siloring_core::address::AddressHash;
use siloring_core::hash::HashMap;
use siloring_core::ids::ShardIndex;
use siloring_core::limits::{PUBLISH_WINDOW_BYTES_MAX, PUBLISHES_OPEN_MAX};
use siloring_core::outcome::{DeliveryFailure, RejectedKind};
use siloring_core::view::{SiloRow, View};
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;

use crate::check::{CheckWriter, Gone, Owned};
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
            writer.put(stream, set.live, owned, set.version);
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

    fn close(&self, stream: AddressHash, number: u64, bytes: usize) {
        let mut lanes = self.lanes.borrow_mut();
        if let Some(lane) = lanes.get_mut(&stream) {
            lane.open.remove(&number);
            if lane.open.is_empty() {
                self.unused.set(self.unused.get().max(lane.next));
                lanes.remove(&stream);
            }
        }
        self.window_bytes.set(self.window_bytes.get() - bytes);
    }

    fn view_changed(&self, before: Option<&View>, view: &View) {
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
