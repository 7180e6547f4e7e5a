//! Fresh stores of each kind, and short words for requests.

use std::io::Write as _;
use std::sync::OnceLock;

use siloring_core::ids::Incarnation;
use siloring_core::ports::registry::{SetVersion, Subscription};
use siloring_core::ports::store::{
    Etag, StateKey, StateRecord, Store, StoreAnswer, StoreError, StoreRequest, StoreResult, Table,
};
use siloring_core::schema::Schema;
use siloring_core::{
    ActivationNumber, Address, ClusterId, Generation, MethodId, SiloName, SiloRow, SiloStatus,
    ViewNumber,
};
use siloring_storage::{MemoryStore, migrate, open};

use crate::server::{PrivatePostgres, find_server};

/// Which store a test runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

/// An empty, migrated store that any number of handles may be opened on.
pub(crate) struct Fixture {
    source: Source,
}

enum Source {
    Memory(MemoryStore),
    Sqlite { url: String, _folder: tempfile::TempDir },
    Postgres { url: String },
}

impl Fixture {
    /// `None`: this machine has no Postgres, which was said on standard error.
    pub(crate) fn new(kind: Kind) -> Option<Self> {
        let source = match kind {
            Kind::Memory => Source::Memory(MemoryStore::new(cluster("a"))),
            Kind::Sqlite => {
                let (url, folder) = sqlite();
                Source::Sqlite { url, _folder: folder }
            }
            Kind::Postgres => Source::Postgres { url: postgres()? },
        };
        Some(Self { source })
    }

    pub(crate) fn open(&self) -> Box<dyn Store> {
        self.open_for("a")
    }

    pub(crate) fn open_for(&self, name: &str) -> Box<dyn Store> {
        match &self.source {
            Source::Memory(store) => Box::new(store.with_cluster(cluster(name))),
            Source::Sqlite { url, .. } | Source::Postgres { url } => {
                open(url, &cluster(name)).unwrap()
            }
        }
    }
}

/// A migrated SQLite store in a folder of its own.
pub(crate) fn sqlite() -> (String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    migrate(&url).unwrap();
    (url, folder)
}

/// A migrated database of the binary's own server.
pub(crate) fn postgres() -> Option<String> {
    let url = server()?.database(|url| migrate(url).map(drop).map_err(|error| error.to_string()));
    Some(url.unwrap())
}

/// The binary's own server. Ends with the process.
pub(crate) fn server() -> Option<&'static PrivatePostgres> {
    static SERVER: OnceLock<Option<PrivatePostgres>> = OnceLock::new();
    SERVER.get_or_init(|| new_server("the tests of the Postgres store")).as_ref()
}

/// A server that a test may break. `None`: no Postgres here, which is an error in CI.
pub(crate) fn new_server(what: &str) -> Option<PrivatePostgres> {
    let Some(installation) = find_server() else {
        let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!in_ci, "CI needs Postgres for {what}: apt-get install postgresql");
        // Written past the test harness, which would swallow it.
        let line = format!("SKIPPED, no Postgres here: {what} (apt-get install postgresql)\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    };
    Some(PrivatePostgres::start(&installation).unwrap())
}

pub(crate) fn cluster(name: &str) -> ClusterId {
    ClusterId::new(name).unwrap()
}

pub(crate) fn row(name: &str, generation: u64, status: SiloStatus) -> SiloRow {
    SiloRow {
        incarnation: Incarnation {
            name: SiloName::new(name).unwrap(),
            generation: Generation(generation),
        },
        status,
        advertised: format!("127.0.0.1:{}", 7000 + generation),
        host: "host".into(),
        shards: 2,
        votes: Vec::new(),
        changed_in: ViewNumber(0),
    }
}

pub(crate) fn write_row(expected: u64, row: SiloRow) -> StoreRequest {
    let (expected, next) = (ViewNumber(expected), ViewNumber(expected + 1));
    StoreRequest::WriteRow { expected, next, row }
}

pub(crate) fn key(id: &str) -> StateKey {
    StateKey { address: Address::of("test.grain", id).unwrap(), name: "state".into() }
}

pub(crate) fn fence(view: u64, counter: u64) -> ActivationNumber {
    ActivationNumber { view: ViewNumber(view), counter }
}

pub(crate) fn record(bytes: impl Into<Vec<u8>>) -> StateRecord {
    let schema = Schema { type_id: u32::MAX, version: 7, fingerprint: u16::MAX };
    StateRecord { schema, bytes: bytes::Bytes::from(bytes.into()) }
}

pub(crate) fn load(id: &str, fence: ActivationNumber) -> StoreRequest {
    StoreRequest::LoadState { key: key(id), fence }
}

pub(crate) fn write(
    id: &str,
    fence: ActivationNumber,
    etag: u64,
    record: Option<StateRecord>,
) -> StoreRequest {
    StoreRequest::WriteState { key: key(id), fence, etag: Etag(etag), record }
}

#[expect(clippy::unnecessary_wraps, reason = "compared with results")]
pub(crate) fn written(etag: u64) -> StoreResult {
    Ok(StoreAnswer::Written(Etag(etag)))
}

#[expect(clippy::unnecessary_wraps, reason = "compared with results")]
pub(crate) fn state(record: Option<StateRecord>, etag: u64) -> StoreResult {
    Ok(StoreAnswer::State { record, etag: Etag(etag) })
}

pub(crate) fn stream(key: &str) -> Address {
    Address::of("stream", &format!("orders/{key}")).unwrap()
}

/// A hub's subscription, of silo 5 in view 9.
pub(crate) fn subscription(of: &str, key: &str) -> Subscription {
    Subscription {
        stream: stream(of),
        key: key.into(),
        consumer: Address::of("portal", &format!("of {key}")).unwrap(),
        handler: MethodId(0),
        owner: Some(Generation(5)),
        view: ViewNumber(9),
        filter: String::new(),
        operation: 1,
        version: SetVersion(0),
    }
}

pub(crate) fn insert(row: &Subscription) -> StoreRequest {
    StoreRequest::WriteSubscription { row: row.clone(), expected: None }
}

pub(crate) fn replace(row: &Subscription, expected: SetVersion) -> StoreRequest {
    StoreRequest::WriteSubscription { row: row.clone(), expected: Some(expected) }
}

/// Removes a subscription as it was read.
pub(crate) fn remove(row: &Subscription) -> StoreRequest {
    let (stream, key) = (row.stream.clone(), row.key.clone());
    StoreRequest::RemoveSubscription { stream, key, owner: row.owner, version: row.version }
}

pub(crate) fn registered(result: &StoreResult) -> SetVersion {
    match result {
        Ok(StoreAnswer::Registered(version)) => *version,
        other => panic!("not registered: {other:?}"),
    }
}

/// The subscriptions of a stream, and the newest version.
pub(crate) fn subscriptions(store: &mut dyn Store, of: &str) -> (Vec<Subscription>, SetVersion) {
    rows(store.execute(&StoreRequest::LoadSubscriptions { stream: stream(of) }))
}

pub(crate) fn rows(result: StoreResult) -> (Vec<Subscription>, SetVersion) {
    match result {
        Ok(StoreAnswer::Subscriptions { rows, version }) => (rows, version),
        other => panic!("not subscriptions: {other:?}"),
    }
}

pub(crate) fn table(store: &mut dyn Store) -> Table {
    match store.execute(&StoreRequest::ReadTable) {
        Ok(StoreAnswer::Table(table)) => table,
        other => panic!("not a table: {other:?}"),
    }
}

pub(crate) fn is_refused(result: &StoreResult) -> bool {
    matches!(result, Err(StoreError::Refused { .. }))
}

/// Whether the store was away, before the request came to it or after.
pub(crate) fn is_unavailable(result: &StoreResult) -> bool {
    is_not_sent(result) || matches!(result, Err(StoreError::Unavailable { .. }))
}

pub(crate) fn is_not_sent(result: &StoreResult) -> bool {
    matches!(result, Err(StoreError::NotSent { .. }))
}
