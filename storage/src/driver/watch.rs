//! The thread that hears when subscriptions change: what feeds [`Watch`] with connections, what the
//! server tells, and versions.
//!
//! One thread, `siloring-registry`, with a connection of its own, since a connection that listens
//! must not be kept busy. On Postgres it listens; there and everywhere else it looks at the newest
//! version each [`REGISTRY_POLL_PERIOD`] in which nothing was told. A connection that is lost is
//! made again, with a back-off. Contract: after each connection, and within the period after each
//! change, a hint comes; a hint too many costs a read. Deliberately absent: what is done about it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{Builder, Thread, park_timeout};

use postgres::Client;
use postgres::error::{DbError, Severity};
use postgres::fallible_iterator::FallibleIterator as _;
use siloring_core::ClusterId;
use siloring_core::limits::{REGISTRY_POLL_PERIOD, STORE_RECONNECT_MAX, STORE_RECONNECT_MIN};
use siloring_core::ports::registry::{RegistryHint, SetVersion};
use siloring_core::ports::store::{Store, StoreAnswer, StoreRequest};

use crate::migrate;
use crate::open::open_parsed;
use crate::postgres::{PostgresStore, connect, registry, show};
use crate::url::{PostgresUrl, StoreUrl, UrlError};
use crate::watch::Watch;

/// Hears when subscriptions of a cluster may have changed. Dropping it ends it.
#[derive(Debug)]
pub struct RegistryWatch {
    is_closed: Arc<AtomicBool>,
    /// None where nobody else can change anything: `memory:`.
    thread: Option<Thread>,
}

impl RegistryWatch {
    /// Watches the registry of `cluster` in the store that `url` names.
    ///
    /// `on_hint` hears first [`RegistryHint::Everything`] once the store is reached, again whenever
    /// it is reached anew, and in between which stream has changed, or everything where that is not
    /// known; this program's own changes too. It is called on the `siloring-registry` thread and
    /// must not block. From `memory:`, which nobody else can change, it hears nothing.
    ///
    /// Returns at once: a store that is not there, or not migrated yet, is tried until it is. When
    /// the watch is dropped, its thread ends within [`REGISTRY_POLL_PERIOD`] of the store's answer;
    /// no hint begins after the drop.
    ///
    /// # Panics
    /// If the operating system starts no thread.
    pub fn start(
        url: &str,
        cluster: &ClusterId,
        on_hint: impl FnMut(RegistryHint) + Send + 'static,
    ) -> Result<Self, UrlError> {
        let url = StoreUrl::parse(url)?;
        let is_closed = Arc::new(AtomicBool::new(false));
        if url == StoreUrl::Memory {
            return Ok(Self { is_closed, thread: None });
        }
        let mut watcher = Watcher {
            url,
            cluster: cluster.clone(),
            is_closed: Arc::clone(&is_closed),
            on_hint: Box::new(on_hint),
            watch: Watch::default(),
        };
        let detached = Builder::new()
            .name("siloring-registry".into())
            .spawn(move || watcher.run())
            .expect("the operating system starts a thread");
        Ok(Self { is_closed, thread: Some(detached.thread().clone()) })
    }
}

impl Drop for RegistryWatch {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

/// The `siloring-registry` thread.
struct Watcher {
    url: StoreUrl,
    cluster: ClusterId,
    is_closed: Arc<AtomicBool>,
    on_hint: Box<dyn FnMut(RegistryHint) + Send>,
    watch: Watch,
}

impl Watcher {
    fn run(&mut self) {
        let mut rng = fastrand::Rng::new();
        let mut backoff = STORE_RECONNECT_MIN;
        while !self.is_closed() {
            let result = self.connect().and_then(|mut source| {
                backoff = STORE_RECONNECT_MIN;
                self.listen(&mut source)
            });
            if let Err(detail) = result {
                // Once an outage, not once a try.
                if backoff == STORE_RECONNECT_MIN {
                    tracing::warn!(%detail, "the watch of the registry lost its connection");
                }
                park_timeout(backoff / 2 + (backoff / 2).mul_f64(rng.f64()));
                backoff = (backoff * 2).min(STORE_RECONNECT_MAX);
            }
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn connect(&self) -> Result<Source, String> {
        match &self.url {
            StoreUrl::Postgres(url) => Source::listening(url, &self.cluster),
            StoreUrl::Memory | StoreUrl::Sqlite(_) => open_parsed(&self.url, &self.cluster)
                .map(Source::Looking)
                .map_err(|error| error.to_string()),
        }
    }

    /// Hands hints on until the connection is lost, or the watch is closed.
    fn listen(&mut self, source: &mut Source) -> Result<(), String> {
        let newest = source.newest(&self.cluster)?;
        let mut hint = Some(self.watch.handle_connection(newest));
        while !self.is_closed() {
            if let Some(hint) = hint {
                (self.on_hint)(hint);
            }
            hint = match source.wait()? {
                Some(hint) => Some(self.watch.handle_hint(hint)),
                None if self.is_closed() => None,
                None => self.watch.handle_version(source.newest(&self.cluster)?),
            };
        }
        Ok(())
    }
}

/// Where hints and versions come from.
enum Source {
    /// A connection that the server tells of changes.
    Listening(Box<Client>),
    /// A store that tells of none.
    Looking(Box<dyn Store>),
}

impl Source {
    /// Listens before it looks at anything: what changes in between is then told.
    fn listening(url: &PostgresUrl, cluster: &ClusterId) -> Result<Self, String> {
        let mut client = connect(url, cluster).map_err(|error| error.to_string())?;
        migrate::verify_postgres(&mut client, url).map_err(|error| error.to_string())?;
        match registry::listen(&mut client, cluster) {
            Ok(()) => Ok(Self::Listening(Box::new(client))),
            Err(error) => match error.as_db_error().and_then(DbError::parsed_severity) {
                // Whatever stands between does not let anybody listen; the session is good.
                Some(Severity::Error) => {
                    Ok(Self::Looking(Box::new(PostgresStore::new(url, cluster, client))))
                }
                Some(_) | None => Err(show(&error)),
            },
        }
    }

    /// What is told within the period.
    fn wait(&mut self) -> Result<Option<RegistryHint>, String> {
        match self {
            Self::Listening(client) => {
                let mut notifications = client.notifications();
                let mut told = notifications.timeout_iter(REGISTRY_POLL_PERIOD);
                // What is no hint is somebody else's.
                let told = told.next().map_err(|error| show(&error))?;
                Ok(told.and_then(|told| registry::hint(told.payload())))
            }
            Self::Looking(_) => {
                park_timeout(REGISTRY_POLL_PERIOD);
                Ok(None)
            }
        }
    }

    fn newest(&mut self, cluster: &ClusterId) -> Result<SetVersion, String> {
        match self {
            Self::Listening(client) => registry::newest(client, cluster),
            Self::Looking(store) => {
                let list = StoreRequest::ListSubscriptions { after: None, limit: 1 };
                match store.execute(&list) {
                    Ok(StoreAnswer::Subscriptions { version, .. }) => Ok(version),
                    Ok(_) => unreachable!("a list is answered with subscriptions"),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    }
}
