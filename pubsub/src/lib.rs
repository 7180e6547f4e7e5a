//! Publish/subscribe, written on the public API of the runtime.
//!
//! This release has directed deliveries only: grains and hubs. What belongs here is routing over
//! streams, rendezvous, queues and pulling agents; nothing of it is promised yet, so nothing of it
//! is here but the table that a publisher asks first: [`check`].

pub mod check;
