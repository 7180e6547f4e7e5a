//! Chaos on real processes: a cluster under load, faults of the kernel, the network, the store and
//! the clock, and a verdict by the ledger that also judges simulated runs.
//!
//! Each fault is asserted through the instruments of whoever it was done to: a counter of the
//! firewall, the state of a control group, a server that refuses. `cargo xtask test` runs the most
//! telling of them, `cargo xtask prove` those in modules named `long` too.
#![expect(clippy::disallowed_methods, reason = "real processes live in real time")]

mod fence;
mod network;
mod planted;
mod processes;
mod resources;
mod run;
mod stores;
