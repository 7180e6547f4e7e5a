//! The pump without its pipes: a shard with its links, and a silo's control part with its links.
//!
//! Sans-IO: the drivers in `driver` and the simulator move bytes, mail, store requests and time
//! between these and the world; the code here is the same in both, byte for byte. It is the only
//! place that knows both frames and activations.

mod conns;
mod control;
mod shard;

pub use control::{ControlNode, ControlNodeOutput, DialFault, LinkMode, Nonces, Route};
pub use shard::{NodeOutput, ShardNode, Unread};
