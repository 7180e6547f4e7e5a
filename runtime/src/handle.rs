//! The silo as the surrounding program sees it: `Send + Clone`, usable from any thread or runtime.

use core::fmt;
use std::sync::Arc;

use siloring_core::address::{Address, AddressError};
use siloring_core::ids::ShardIndex;
use siloring_core::outcome::{DeliveryFailure, RejectedKind};

use crate::call::Waiter;
use crate::exec::tasks::Spawned;
use crate::grain::{GrainType, IntoKey};
use crate::hub::HubBuilder;
use crate::mail::ShardMail;
use crate::parcel::Parcel;
use crate::reference::{GrainRef, HubRef, RawRef};

/// Why mail was not taken. The mail comes back.
#[derive(Debug)]
pub enum PostError {
    /// The shard's mailbox is full: try again later.
    Full(ShardMail),
    /// The silo has stopped.
    Stopped(ShardMail),
}

/// The mailboxes of a silo's shards. Implemented by the drivers and the simulator.
pub trait Post: Send + Sync + fmt::Debug {
    /// Puts mail into a shard's mailbox and wakes the shard.
    fn post(&self, shard: ShardIndex, mail: ShardMail) -> Result<(), PostError>;

    /// How many shards there are.
    fn shards(&self) -> u16;
}

/// Calls grains and opens hubs of a silo, from any thread of the surrounding program.
#[derive(Clone, Debug)]
pub struct Handle(Arc<dyn Post>);

impl Handle {
    /// A handle on these mailboxes.
    pub fn new(post: Arc<dyn Post>) -> Self {
        Self(post)
    }

    /// A typed reference to the grain `key`.
    pub fn grain<G: GrainType>(&self, key: impl IntoKey<G::Key>) -> GrainRef<G> {
        GrainRef::new(self, None, key)
    }

    /// A reference to the hub at `address`.
    pub fn hub_ref(&self, address: &str) -> Result<HubRef, AddressError> {
        Ok(HubRef::new(self, None, Address::parse(address)?))
    }

    /// A reference to whatever is at the address, for requests that are encoded already.
    pub fn raw(&self, address: Address) -> RawRef {
        RawRef::new(self, address)
    }

    /// Begins to open a hub of this process at `address`.
    pub fn hub(&self, address: &str) -> Result<HubBuilder, AddressError> {
        Ok(HubBuilder::new(self.clone(), Address::parse(address)?))
    }

    /// Runs a future on a shard. `make` runs there too, so the future need not be `Send`.
    ///
    /// # Errors
    /// If the silo has stopped or the shard's mailbox is full; nothing runs then.
    pub fn spawn_on<F>(
        &self,
        shard: ShardIndex,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), DeliveryFailure>
    where
        F: Future<Output = ()> + 'static,
    {
        let make: Box<dyn FnOnce() -> Spawned + Send> = Box::new(|| Box::pin(make()));
        self.0.post(shard, ShardMail::Spawn(make)).map_err(|error| refusal(&error))
    }

    /// How many shards the silo has.
    pub fn shards(&self) -> u16 {
        self.0.shards()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn home(&self, address: &Address) -> ShardIndex {
        ShardIndex::of(address.hash().0, self.shards())
    }

    pub(crate) fn post(&self, shard: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
        self.0.post(shard, mail)
    }

    /// Hands a request to the shard of the hub that sends it, else to the one that its target
    /// hashes to, so that requests of one sender to one target keep their order.
    pub(crate) fn send(&self, parcel: Parcel) -> Result<(), (DeliveryFailure, Waiter)> {
        let shard = self.home(parcel.request.source.as_ref().unwrap_or(parcel.target()));
        let Err(error) = self.0.post(shard, ShardMail::Call(parcel)) else {
            return Ok(());
        };
        let failure = refusal(&error);
        match error {
            PostError::Full(ShardMail::Call(mut parcel))
            | PostError::Stopped(ShardMail::Call(mut parcel)) => {
                Err((failure, core::mem::take(&mut parcel.waiter)))
            }
            PostError::Full(_) | PostError::Stopped(_) => unreachable!("refused mail comes back"),
        }
    }
}

fn refusal(error: &PostError) -> DeliveryFailure {
    match error {
        PostError::Full(_) => {
            DeliveryFailure::rejected(RejectedKind::Overloaded, "the shard's mailbox is full")
        }
        PostError::Stopped(_) => {
            DeliveryFailure::rejected(RejectedKind::ConnectionLost, "the silo has stopped")
        }
    }
}
