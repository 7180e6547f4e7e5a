//! Virtual actors and process-owned hubs, thread-per-core, where every delivery ends in exactly one
//! outcome that its sender hears.

#[doc(hidden)]
pub mod pump;

mod config;
mod driver;
mod silo;

pub use config::ConfigError;
pub use driver::certificates::{Tls, TlsError};
#[cfg(feature = "planted")]
#[doc(hidden)]
pub use driver::clock::jump as jump_clock;
pub use pump::LinkMode;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use silo::check_config;
pub use silo::{DrainError, EVENT_NAMES, Idle, LocalSilo, Metrics, Silo, SiloBuilder, StartError};

pub use siloring_core::{address, body, hash, outcome, rkyv, schema, versions};
pub use siloring_macros::{Grain, grain_methods, message};
pub use siloring_runtime::{
    call, ctx, envelope, filter, grain, handle, here, hub, reference, turn,
};

pub use siloring_core::{
    Address, AddressError, CallError, DeliveryFailure, FailedKind, IndeterminateKind, MethodId,
    RejectedKind, ShardIndex,
};
pub use siloring_storage::{MigrateError, migrate};
pub use siloring_transport::{CertificatesError, TlsFile};

pub use siloring_pubsub::{
    HubRoute, Leg, Listed, Liveness, Overflow, Publish, Published, Queued, Stream, StreamPolicy,
    Streams, SubscribeError, Subscribing, Subscription, Token,
};
pub use siloring_runtime::call::Call;
pub use siloring_runtime::ctx::Ctx;
pub use siloring_runtime::handle::Handle;
pub use siloring_runtime::hub::{Delivery, Hub, HubError};
pub use siloring_runtime::reference::{GrainRef, HubRef};

/// The page of versions: what it shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../docs/versions.md")]
struct Versions;

/// What most programs need.
pub mod prelude {
    pub use crate::{
        Address, Archived, Call, CallError, Ctx, Delivery, DeliveryFailure, Grain, GrainRef,
        Handle, Hub, HubError, HubRef, LinkMode, RejectedKind, Silo, StartError, grain_methods,
        message,
    };
}

/// The archived form of `T`: what a method that takes `&Archived<T>` reads in place.
pub type Archived<T> = rkyv::Archived<T>;
