//! Publish/subscribe, written on the public API of the runtime.

mod agent;
pub mod check;
mod few;
mod flights;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod id;
mod members;
mod message;
mod owner;
mod planted;
mod policy;
mod publish;
mod queue;
mod retell;
mod route;
mod shard;
mod streams;
mod subscribe;
mod sweep;
mod verdict;

pub use check::Liveness;
pub use id::{STREAM_KIND, stream_address};
#[cfg(feature = "planted")]
pub use planted::Planted;
pub use policy::{Overflow, StreamPolicy};
pub use publish::{Publish, Published, Queued, Stream, Token};
pub use route::{HubRoute, Leg};
pub use shard::StreamUsage;
pub use streams::{Streams, StreamsBuilder};
pub use subscribe::{Listed, SubscribeError, Subscribing, Subscription};
