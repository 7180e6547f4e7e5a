//! The words, the wire layout, the limits, the events and the ports of Siloring.
//!
//! Everything above this crate speaks these types; this crate speaks to nothing. Deliberately
//! absent: I/O, clocks, threads, entropy, async. Time is a [`time::Moment`] handed in; the world is
//! a port.

pub mod address;
pub mod body;
pub mod event;
pub mod hash;
pub mod ids;
pub mod limits;
pub mod outcome;
pub mod ports;
pub mod ring;
pub mod schema;
pub mod sync;
pub mod time;
pub mod versions;
pub mod view;
pub mod window;
pub mod wire;

pub use address::{Address, AddressError, AddressHash, Kind};
pub use body::Body;
pub use ids::{
    ActivationNumber, ClaimNumber, ClusterId, CorrelationId, Endpoint, Generation, Incarnation,
    MethodId, ShardIndex, SiloName, ViewNumber,
};
pub use outcome::{CallError, DeliveryFailure, FailedKind, IndeterminateKind, RejectedKind};
pub use time::Moment;
pub use view::{SiloRow, SiloStatus, View};

/// The serializer of this crate's dependents, so that one version of rkyv is used throughout.
pub use rkyv;
