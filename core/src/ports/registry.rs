//! What the store port keeps of streams: the subscriptions of a cluster, and dead letters.
//!
//! One row a subscription, unique by stream and key. A row is written by compare-and-set on its
//! version and removed by its key, owner and version; so nothing depends on an unsubscribe that a
//! killed process never sends. Invariants that a store keeps: versions rise with the writes of a
//! cluster, in the order in which the writes become visible, so that a reader who has seen a
//! version has seen every write below it; no version is ever given twice. Deliberately absent: rows
//! for producers (publishing writes nothing), and any judgement of who is Dead.

use bytes::Bytes;

use crate::address::{Address, AddressHash};
use crate::ids::{Generation, MethodId, ViewNumber};
use crate::schema::Schema;

/// The version of a subscription, and of all of them: minted by the registry, rises with each of
/// its writes in the cluster. 0 before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SetVersion(pub u64);

/// One subscription.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    /// The stream.
    pub stream: Address,
    /// The subscriber's own key, unique in its stream: subscribing again replaces.
    pub key: String,
    /// Who takes the events.
    pub consumer: Address,
    /// The consumer's method that takes them; 0 for hubs.
    pub handler: MethodId,
    /// The silo that the consumer lives and dies with; `None` for grains.
    pub owner: Option<Generation>,
    /// The view in which it was registered: in no older one can its owner be judged.
    pub view: ViewNumber,
    /// Which events; empty for all.
    pub filter: String,
    /// The operation that wrote it last: tells whose a write of unknown outcome was.
    pub operation: u128,
    /// Of its last write; minted by the store, so ignored in a write.
    pub version: SetVersion,
}

/// An event that one consumer did not take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    /// The stream.
    pub stream: Address,
    /// The subscription's key.
    pub key: String,
    /// Who did not take it.
    pub consumer: Address,
    /// Who published it.
    pub origin: u128,
    /// Its number by its publisher.
    pub number: u64,
    /// How often it was tried.
    pub attempts: u8,
    /// Why it failed, the last time.
    pub reason: String,
    /// What the bytes are.
    pub schema: Schema,
    /// The archive.
    pub body: Bytes,
    /// The view in which it was given up.
    pub view: ViewNumber,
}

/// Word that subscriptions may have changed. Only a hint: it may come late, twice, for nothing, or
/// not at all; what holds is what the registry says when it is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegistryHint {
    /// Those of one stream.
    Stream(AddressHash),
    /// Those of any stream: hints may have been missed.
    Everything,
}
