//! Stores behind the port of `siloring-core`: memory, SQLite and Postgres, their migrations, and
//! the threads that keep a silo's shards from ever waiting on one.
//!
//! One setting, a [`StoreUrl`], names the store of a silo; there is no second one and no look-up by
//! name. [`migrate()`] makes its tables, in phases; [`open()`] refuses a store that lacks one. A
//! store does compare-and-set and never retries; what it is asked and answers is
//! [`siloring_core::ports::store`]. [`StoreThreads`] owns the connections of a running silo,
//! [`RegistryWatch`] one more that hears when subscriptions change.
//!
//! Deliberately absent: knowledge of grains, silos' links, or any policy of who is Dead.

mod driver;
mod judge;
mod lanes;
mod memory;
mod migrate;
mod open;
mod postgres;
mod rows;
mod sqlite;
mod url;
mod watch;

#[cfg(feature = "planted")]
pub use driver::jump_clock;
pub use driver::{OnAnswer, Opener, RegistryWatch, StoreClient, StoreThreads};
pub use memory::{MemorySnapshot, MemoryStore};
pub use migrate::{MigrateError, Phase, PhaseOutcome, PhaseReport, Report, migrate};
pub use open::{OpenError, check, open};
pub use url::{Commit, PostgresUrl, SqliteUrl, StoreUrl, UrlError};
pub use watch::Watch;
