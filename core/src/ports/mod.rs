//! Ports: what machines need of the world, as traits and values; drivers and stores implement them.

pub mod rare;
pub mod registry;
pub mod store;
