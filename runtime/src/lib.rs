//! Shards, activations, calls, membership, directory, placement.
//!
//! Everything here is sans-IO: a [`shard::Shard`] and a [`control::Control`] take time, entropy and
//! input as arguments and return what they want done. Drivers and the simulator feed the same code.
//! Deliberately absent: sockets, clocks, threads, SQL.

mod admission;
pub mod call;
pub mod control;
pub mod ctx;
mod dedup;
pub mod directory;
pub mod envelope;
pub mod exec;
pub mod filter;
pub mod grain;
pub mod handle;
pub mod here;
pub mod host;
pub mod hub;
pub mod ledger;
pub mod links;
pub mod mail;
pub mod parcel;
pub mod placement;
pub mod reference;
pub mod route;
pub mod shard;
pub mod turn;
