//! What all stores must do alike, and what each must survive.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod conformance;
mod crash;
mod faults;
mod fixture;
mod migrations;
mod models;
mod registry;
#[path = "../../testkit/src/postgres.rs"]
pub mod server;
#[path = "../../testkit/src/stop.rs"]
mod stop;
mod threads;
mod watch;
