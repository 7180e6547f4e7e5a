//! The simulator: whole clusters from one seed, on virtual time, on one thread.
//!
//! The real nodes of `siloring::pump` run here, byte for byte the code of production; what differs
//! is who moves their bytes, mail, store requests and time. A run follows from its [`Plan`]: the
//! same plan gives the same [`Report`], trace hash included. A run that breaks an invariant is a
//! [`Failure`] that prints its plan; it can be replayed, watched and shrunk ([`explore`]).
//!
//! # For your own grains
//!
//! ```
//! use siloring::prelude::*;
//! use siloring_testkit::sim::{Cluster, Fault, Options, Plan, Slot};
//! use std::time::Duration;
//!
//! #[derive(Grain, Default)]
//! #[grain(type = "demo.counter")]
//! struct Counter { count: u64 }
//!
//! #[grain_methods]
//! impl Counter {
//!     async fn add(&mut self) -> u64 { self.count += 1; self.count }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = Plan::calm(Options::new(7)).at(Duration::from_secs(3), Fault::Kill(Slot(3)));
//! let mut cluster = Cluster::builder().host::<Counter>().plan(plan).build();
//! cluster.start()?;
//! let count = cluster.block_on(Slot(1), |node| async move {
//!     node.handle().grain::<Counter>("visits").add().await
//! })?;
//! assert_eq!(count, Ok(1));
//! cluster.run_for(Duration::from_secs(20))?;
//! assert_eq!(cluster.silo(Slot(1)).map(|silo| silo.view().active().count()), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! Let your handlers call [`ledger::ran`] and your callers [`workload::tracked`], and every
//! delivery is held to the promise: one outcome in time, no doubled run, order kept.
//!
//! # The parts
//!
//! [`world`] has time, processes and clocks; [`network`] connections that can be cut anywhere;
//! [`store`] a store that can be down, slow, or lose its answers; [`plan`] the faults as text;
//! [`ledger`] the checker; [`Cluster`] slots, rolls and phases; [`workload`] the built-in load.
//! Deliberately absent: threads, the drivers. Silos that believe they share a host ([`Hosts::One`])
//! find each other by the names of their Unix sockets; what such a socket does differently is not
//! modelled.

mod app;
pub mod batch;
mod checks;
mod cluster;
pub mod explore;
mod faults;
mod hints;
mod history;
pub mod ledger;
mod mail;
pub mod network;
mod node;
pub mod plan;
mod planted;
mod queue;
pub mod random;
mod rare;
mod release;
#[cfg(test)]
mod runs;
mod scene;
pub mod shrink;
mod silo;
mod sizes;
pub mod store;
#[cfg(test)]
mod toy;
mod trace;
mod watches;
mod wiretap;
pub mod workload;
pub mod world;

pub use app::AppClock;
pub use cluster::{Cluster, ClusterBuilder, Failure, Report, Tally};
pub use node::{Node, SiloShared};
pub use plan::{Fault, Hints, Hosts, Mix, Options, Plan, PlanError, Slot, Step, Swarm};
#[cfg(feature = "planted")]
pub use planted::{defects, stream_defect};
pub use release::Release;
pub use scene::{violate, world_now};
pub use sizes::Sizes;
pub use trace::TraceSink;
