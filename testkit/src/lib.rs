//! Testing whole clusters: a simulator that runs them from a seed, and a harness for real
//! processes.
//!
//! [`sim`] runs the real nodes of a silo on virtual time, on one thread, with every fault from a
//! seed. [`process`] starts silos as operating-system processes, and [`postgres`] a private server
//! for them, [`certificates`] what they need for TLS. All of it is for your own grains too. The
//! bodies of this project's fuzz targets are here as well, behind the feature `fuzz`.

pub mod certificates;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod panicked;
pub mod postgres;
pub mod process;
pub mod sim;
mod stop;
