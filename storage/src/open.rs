//! Opening a store from its URL, and refusing one that is not fit.
//!
//! [`open`] and [`check`] connect, verify that every phase of the migration is there (DDL is never
//! run) and that commits are durable, and otherwise say what is wrong with the command that mends
//! it. They block; Postgres' client must not be called from inside a tokio runtime, so the work is
//! done on a thread of its own, for at most [`STORE_HANG_AFTER`].

use core::fmt::Display;

use siloring_core::ClusterId;
use siloring_core::limits::STORE_HANG_AFTER;
use siloring_core::ports::store::{Store, StoreError};

use crate::driver;
use crate::memory::MemoryStore;
use crate::migrate::{self, Phase};
use crate::postgres::{self, PostgresStore};
use crate::sqlite::SqliteStore;
use crate::url::{StoreUrl, UrlError};

/// Why a store was not opened. Nothing was changed in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is none. Correct the setting.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The store does not answer, or refuses the login. The operator's to mend; then start again.
    #[error("the store {url} cannot be reached ({detail}): start it, or correct the store's URL")]
    Unreachable {
        /// The store, without credentials.
        url: String,
        /// What was said.
        detail: String,
    },
    /// The store lacks a phase or part of one. Run the command in the text, then start again.
    #[error("the store {url} lacks {missing}: run `siloring migrate {url}`")]
    NotMigrated {
        /// The store, without credentials.
        url: String,
        /// The phases, and the tables, columns or triggers in them.
        missing: String,
    },
    /// A phase was made by another version of this program. Run a program that fits the store.
    #[error(
        "phase {phase} of the store {url} was made by another version of siloring (checksum \
         {found}, not {expected}): run a version that fits the store, or migrate a new one"
    )]
    SchemaDiffers {
        /// The store, without credentials.
        url: String,
        /// Which phase.
        phase: Phase,
        /// The store's checksum.
        found: String,
        /// This program's.
        expected: String,
    },
    /// The server acknowledges commits before they are durable, so acknowledged writes may vanish.
    #[error(
        "the store {url} has synchronous_commit = off, so acknowledged writes may be lost: set it \
         to on, or accept the loss with danger_async_commit=1 in the URL"
    )]
    AsyncCommit {
        /// The store, without credentials.
        url: String,
    },
    /// The file is on a network file system, whose locks do not hold.
    #[error("the store {url} is on {name}, where SQLite's locks do not hold: use a local disk")]
    NetworkFileSystem {
        /// The store.
        url: String,
        /// Which file system.
        name: &'static str,
    },
    /// The store is of another kind, or forbids what is needed.
    #[error("the store {url} refuses ({detail}): mend that, or name another store")]
    Refused {
        /// The store, without credentials.
        url: String,
        /// What it said.
        detail: String,
    },
}

impl OpenError {
    pub(crate) fn unreachable(url: &impl Display, detail: impl Into<String>) -> Self {
        Self::Unreachable { url: url.to_string(), detail: detail.into() }
    }

    pub(crate) fn not_migrated(url: &impl Display, missing: impl Into<String>) -> Self {
        Self::NotMigrated { url: url.to_string(), missing: missing.into() }
    }

    pub(crate) fn refused(url: &impl Display, detail: impl Into<String>) -> Self {
        Self::Refused { url: url.to_string(), detail: detail.into() }
    }
}

/// A store that had to be opened anew for a request and was not.
impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        let detail = error.to_string();
        match error {
            OpenError::NotMigrated { url, missing } => Self::NotMigrated { missing, url },
            OpenError::Unreachable { .. } => Self::NotSent { detail },
            OpenError::Url(_)
            | OpenError::SchemaDiffers { .. }
            | OpenError::AsyncCommit { .. }
            | OpenError::NetworkFileSystem { .. }
            | OpenError::Refused { .. } => Self::Refused { detail },
        }
    }
}

/// Opens the store that `url` names, for the rows of `cluster`.
///
/// Each call of `memory:` makes a store of its own. The store blocks: give it a thread, as
/// [`StoreThreads`](crate::StoreThreads) does.
pub fn open(url: &str, cluster: &ClusterId) -> Result<Box<dyn Store>, OpenError> {
    let url = StoreUrl::parse(url)?;
    let cluster = cluster.clone();
    bounded(&url.clone(), move || open_parsed(&url, &cluster))
}

/// Whether a silo could run on the store that `url` names, now.
pub fn check(url: &str) -> Result<(), OpenError> {
    let url = StoreUrl::parse(url)?;
    let cluster = ClusterId::new("check").expect("a plain name");
    bounded(&url.clone(), move || open_parsed(&url, &cluster).map(drop))
}

/// [`open`] without a thread of its own.
pub(crate) fn open_parsed(
    url: &StoreUrl,
    cluster: &ClusterId,
) -> Result<Box<dyn Store>, OpenError> {
    match url {
        StoreUrl::Memory => Ok(Box::new(MemoryStore::solitary(cluster.clone()))),
        StoreUrl::Sqlite(url) => {
            let mut store = SqliteStore::open(url, cluster)?;
            migrate::verify_sqlite(store.connection()?, url)?;
            Ok(Box::new(store))
        }
        StoreUrl::Postgres(url) => {
            let mut client = postgres::connect(url, cluster)?;
            migrate::verify_postgres(&mut client, url)?;
            Ok(Box::new(PostgresStore::new(url, cluster, client)))
        }
    }
}

/// Runs `work` on a thread of its own and gives up when a server says nothing.
fn bounded<T: Send + 'static>(
    url: &StoreUrl,
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    driver::on_a_thread(STORE_HANG_AFTER, work)
        .unwrap_or_else(|silent| Err(OpenError::unreachable(url, silent.to_string())))
}
