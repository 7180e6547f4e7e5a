//! Scenarios and a random sweep over several silos of directories.

mod models;
mod scenarios;
mod sweep;
mod world;
