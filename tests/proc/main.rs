//! Silos as real processes: refused, rolled, drained, killed, paused, cut off.
//!
//! Each test starts its own cluster in a folder of its own and ends every process by its id. Times
//! are bounds of the product, measured where a user would see them.
#![expect(clippy::disallowed_methods, reason = "real processes live in real time")]

mod gate;
mod hostile;
mod hubs;
mod membership;
mod overload;
mod planted;
mod rolls;
mod silo;
mod start;
mod starvation;
mod stores;
mod streams;
mod tls;
mod versions;
