//! Whole clusters on virtual time: named scenarios, planted defects, and the smoke of many seeds.
//!
//! Each scenario runs once with each of its variants, where it must fail, and once as built, where
//! it must hold: a test that passes with its variant proves nothing. `SILORING_TRACE=1` tells every
//! step of a scenario; `cargo xtask sim` runs one seed of the smoke, or one plan.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a run says what it covered, and a failing one how to repeat it"
)]

mod bounds;
mod calls;
mod claims;
mod defects;
mod directory;
mod gate;
mod hubs;
mod membership;
mod plans;
mod programs;
mod rolls;
mod scenario;
mod smoke;
mod stream_gate;
mod stream_moves;
mod stream_owners;
mod stream_registry;
mod streaming;
mod streams;
mod versions;
