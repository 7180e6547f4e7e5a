//! The world: threads, clocks, sockets, rings. It moves bytes, mail, store requests and time
//! between the sans-IO nodes of [`crate::pump`] and the kernel, and decides nothing else.
//!
//! - [`shard`]: a shard's thread, its pump; the only hot loop.
//! - [`control`]: the control thread: listeners, dials, handshakes, control lanes.
//! - [`reactor`]: the seam to glommio. [`readiness`]: which sockets are ready. [`signal`]: wakes.
//! - [`idle`]: when a pump spins, sleeps, or passes through its engine.
//! - [`shared`]: what the threads of a silo see of each other: numbers, never structures.
//! - [`certificates`]: their files, read again when they have changed.
//! - [`check`]: whether this machine lets a silo run, asked before anything else starts.
//!
//! A panic of any of these threads is a broken invariant: the process aborts, since the silo is the
//! unit of failure.

pub(crate) mod certificates;
pub(crate) mod check;
pub(crate) mod clock;
pub(crate) mod control;
pub(crate) mod idle;
pub(crate) mod node;
pub(crate) mod outbox;
pub(crate) mod reactor;
pub(crate) mod readiness;
pub(crate) mod shard;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod signals;
pub(crate) mod slots;
pub(crate) mod threads;
