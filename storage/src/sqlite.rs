//! The SQLite store: the processes of one host, crash safe, without a service.
//!
//! One connection, WAL, every write in a `BEGIN IMMEDIATE` transaction (a plain `BEGIN` upgrades
//! late and then fails busy). `busy_timeout` and `synchronous` belong to a connection and are set
//! at each open. A connection that failed is dropped and opened anew for the next request; nothing
//! is retried. The file must exist and be migrated: no DDL runs here. A network file system is
//! refused, since its locks and shared memory do not hold. Deliberately absent: a cache of
//! statements (one takes microseconds, a durable commit milliseconds).

mod registry;

use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension as _, TransactionBehavior, params,
};
use siloring_core::limits::{STORE_LOCK_TIME_MAX, STORE_STATEMENT_TIME_MAX};
use siloring_core::ports::store::{
    Etag, Setting, StateKey, StateRecord, Store, StoreAnswer, StoreError, StoreRequest,
    StoreResult, Table,
};
use siloring_core::{ActivationNumber, ClusterId, Generation, SiloRow, ViewNumber};

use crate::judge::{all, check_request, is_outage, judge_row, refused, unavailable};
use crate::open::OpenError;
use crate::rows::{self, SiloColumns, StateColumns, column, number};
use crate::url::{Commit, SqliteUrl};

const _: () = assert!(
    STORE_LOCK_TIME_MAX.as_millis() < STORE_STATEMENT_TIME_MAX.as_millis(),
    "waiting for the writer's lock leaves time for the statement"
);

/// One cluster's rows in an SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    cluster: ClusterId,
    url: SqliteUrl,
    /// Gone after a failure, until the next request.
    connection: Option<Connection>,
}

/// Why a request was not answered: refused by our rules, or failed in SQLite.
enum Failure {
    /// A rule of the port; the transaction is as good as before.
    Rule(StoreError),
    /// SQLite's own; the transaction must be undone.
    Sql(rusqlite::Error),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Rule(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl SqliteStore {
    /// Opens the file, which must exist. Whether it is migrated is checked by the caller.
    pub(crate) fn open(url: &SqliteUrl, cluster: &ClusterId) -> Result<Self, OpenError> {
        let connection = connect(url)?;
        Ok(Self { cluster: cluster.clone(), url: url.clone(), connection: Some(connection) })
    }

    /// The open connection, for the check of its phases.
    pub(crate) fn connection(&mut self) -> Result<&mut Connection, OpenError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.url)?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Runs all in one transaction. `Err`: it was undone, for the reason given.
    fn transact(&mut self, requests: &[StoreRequest]) -> Result<Vec<StoreResult>, StoreError> {
        let url = self.url.to_string();
        let cluster = self.cluster.clone();
        let connection = self.connection().map_err(StoreError::from)?;
        let result = run_all(connection, cluster.as_str(), requests);
        result.map_err(|error| {
            let error = store_error(&error, &url);
            if is_outage(&error) {
                self.connection = None;
            }
            error
        })
    }
}

impl Store for SqliteStore {
    fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    fn execute(&mut self, request: &StoreRequest) -> StoreResult {
        check_request(request)?;
        let mut results = self.transact(std::slice::from_ref(request))?;
        results.pop().expect("one result for one request")
    }

    fn execute_group(&mut self, requests: &[StoreRequest]) -> Vec<StoreResult> {
        match self.transact(requests) {
            Ok(results) => results,
            Err(error) if is_outage(&error) => all(&error, requests.len()),
            // One of them broke the transaction: it is undone, so each is tried by itself.
            Err(_) => requests.iter().map(|request| self.execute(request)).collect(),
        }
    }
}

/// Opens `url` and sets what belongs to a connection.
fn connect(url: &SqliteUrl) -> Result<Connection, OpenError> {
    if !url.path().exists() {
        return Err(OpenError::not_migrated(url, "the file"));
    }
    refuse_network_file_system(url)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(url.path(), flags).map_err(|error| open_error(url, &error))?;
    configure(&connection, url).map_err(|error| open_error(url, &error))?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .map_err(|error| open_error(url, &error))?;
    if mode != "wal" {
        return Err(OpenError::not_migrated(url, "journal_mode = wal"));
    }
    Ok(connection)
}

/// Sets what belongs to a connection and not to the file.
pub(crate) fn configure(connection: &Connection, url: &SqliteUrl) -> rusqlite::Result<()> {
    connection.busy_timeout(STORE_LOCK_TIME_MAX)?;
    let synchronous = match url.commit() {
        Commit::Durable => "FULL",
        Commit::DangerAsync => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)
}

/// Refuses file systems whose locks are known not to hold between hosts.
pub(crate) fn refuse_network_file_system(url: &SqliteUrl) -> Result<(), OpenError> {
    const NETWORK: [(rustix::fs::FsWord, &str); 5] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xfe53_4d42, "SMB2"),
        (0xff53_4d42, "CIFS"),
        (0x00c3_6400, "Ceph"),
    ];
    let parent = url.path().parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or_else(|| std::path::Path::new("."));
    let found = rustix::fs::statfs(folder)
        .map_err(|error| OpenError::unreachable(url, format!("{}: {error}", folder.display())))?;
    match NETWORK.iter().find(|(magic, _)| *magic == found.f_type) {
        Some((_, name)) => Err(OpenError::NetworkFileSystem { url: url.to_string(), name }),
        None => Ok(()),
    }
}

/// One transaction of all requests; a rule's refusal undoes nothing, an SQL error everything.
fn run_all(
    connection: &mut Connection,
    cluster: &str,
    requests: &[StoreRequest],
) -> rusqlite::Result<Vec<StoreResult>> {
    let behavior = if requests.iter().all(only_reads) {
        TransactionBehavior::Deferred
    } else {
        TransactionBehavior::Immediate
    };
    let transaction = connection.transaction_with_behavior(behavior)?;
    let rows = Rows { connection: &transaction, cluster };
    let mut results = Vec::with_capacity(requests.len());
    for request in requests {
        results.push(match rows.execute(request) {
            Ok(answer) => Ok(answer),
            Err(Failure::Rule(error)) => Err(error),
            Err(Failure::Sql(error)) => return Err(error),
        });
    }
    transaction.commit()?;
    Ok(results)
}

/// Whether a request needs no lock of the writer's: it must not wait for one then.
const fn only_reads(request: &StoreRequest) -> bool {
    match request {
        StoreRequest::ReadTable
        | StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::ReadDeadLetters { .. } => true,
        StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. }
        | StoreRequest::LoadState { .. }
        | StoreRequest::WriteState { .. }
        | StoreRequest::WriteSubscription { .. }
        | StoreRequest::RemoveSubscription { .. }
        | StoreRequest::SweepSubscriptions { .. }
        | StoreRequest::WriteDeadLetter(_) => false,
    }
}

/// The rows of one cluster inside a transaction.
struct Rows<'a> {
    connection: &'a Connection,
    cluster: &'a str,
}

impl Rows<'_> {
    fn execute(&self, request: &StoreRequest) -> Result<StoreAnswer, Failure> {
        check_request(request)?;
        match request {
            StoreRequest::ReadTable => self.table().map(StoreAnswer::Table),
            StoreRequest::WriteRow { expected, next, row } => {
                self.write_row(*expected, *next, row)?;
                Ok(StoreAnswer::Done)
            }
            StoreRequest::RemoveDead { expected, next, generations } => {
                self.remove_dead(*expected, *next, generations)?;
                Ok(StoreAnswer::Done)
            }
            StoreRequest::Heartbeat { generation, counter } => {
                self.connection.execute(
                    "UPDATE siloring_silo SET heartbeat = max(heartbeat, ?3)
                     WHERE cluster = ?1 AND generation = ?2",
                    params![self.cluster, column(generation.0), column(*counter)],
                )?;
                Ok(StoreAnswer::Done)
            }
            StoreRequest::Settings { ours } => self.settings(ours).map(StoreAnswer::Settings),
            StoreRequest::LoadState { key, fence } => self.load_state(key, *fence),
            StoreRequest::WriteState { key, fence, etag, record } => {
                self.write_state(key, *fence, *etag, record.as_ref())
            }
            StoreRequest::LoadSubscriptions { stream } => self.load_subscriptions(stream),
            StoreRequest::ListSubscriptions { after, limit } => {
                self.list_subscriptions(after.as_ref(), *limit)
            }
            StoreRequest::WriteSubscription { row, expected } => {
                self.write_subscription(row, *expected)
            }
            StoreRequest::RemoveSubscription { stream, key, owner, version } => {
                self.remove_subscription(stream, key, *owner, *version)
            }
            StoreRequest::SweepSubscriptions { gone, view } => {
                self.sweep_subscriptions(gone, *view)
            }
            StoreRequest::WriteDeadLetter(letter) => self.write_letter(letter),
            StoreRequest::ReadDeadLetters { stream, limit } => self.read_letters(stream, *limit),
        }
    }

    fn version(&self) -> Result<ViewNumber, Failure> {
        let found: Option<i64> = self
            .connection
            .query_row(
                "SELECT view_number FROM siloring_cluster WHERE cluster = ?1",
                [self.cluster],
                |row| row.get(0),
            )
            .optional()?;
        Ok(ViewNumber(number(found.unwrap_or(0))?))
    }

    fn table(&self) -> Result<Table, Failure> {
        let mut statement = self.connection.prepare(
            "SELECT generation, name, status, advertised, host, shards, votes, changed_in, heartbeat
             FROM siloring_silo WHERE cluster = ?1 ORDER BY generation",
        )?;
        let columns = statement.query_map([self.cluster], |row| {
            Ok(SiloColumns {
                generation: row.get(0)?,
                name: row.get(1)?,
                status: row.get(2)?,
                advertised: row.get(3)?,
                host: row.get(4)?,
                shards: row.get(5)?,
                votes: row.get(6)?,
                changed_in: row.get(7)?,
                heartbeat: row.get(8)?,
            })
        })?;
        let mut table = Table { version: self.version()?, rows: Vec::new() };
        for silo in columns {
            table.rows.push(silo?.decode()?);
        }
        Ok(table)
    }

    fn write_row(
        &self,
        expected: ViewNumber,
        next: ViewNumber,
        row: &SiloRow,
    ) -> Result<(), Failure> {
        let generation = column(row.incarnation.generation.0);
        let status: Option<String> = self
            .connection
            .query_row(
                "SELECT status FROM siloring_silo WHERE cluster = ?1 AND generation = ?2",
                params![self.cluster, generation],
                |found| found.get(0),
            )
            .optional()?;
        let status = status.as_deref().map(rows::status).transpose()?;
        judge_row(expected, next, row, self.version()?, status)?;
        self.set_version(next)?;
        self.connection.execute(
            "INSERT INTO siloring_silo
                 (cluster, generation, name, status, advertised, host, shards, votes, changed_in)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (cluster, generation) DO UPDATE SET
                 name = excluded.name, status = excluded.status,
                 advertised = excluded.advertised, host = excluded.host,
                 shards = excluded.shards, votes = excluded.votes,
                 changed_in = excluded.changed_in",
            params![
                self.cluster,
                generation,
                row.incarnation.name.as_str(),
                rows::status_text(row.status),
                row.advertised,
                row.host,
                row.shards,
                rows::votes_text(&row.votes),
                column(next.0)
            ],
        )?;
        Ok(())
    }

    fn set_version(&self, next: ViewNumber) -> Result<(), Failure> {
        self.connection.execute(
            "INSERT INTO siloring_cluster (cluster, view_number) VALUES (?1, ?2)
             ON CONFLICT (cluster) DO UPDATE SET view_number = excluded.view_number",
            params![self.cluster, column(next.0)],
        )?;
        Ok(())
    }

    fn remove_dead(
        &self,
        expected: ViewNumber,
        next: ViewNumber,
        generations: &[Generation],
    ) -> Result<(), Failure> {
        if self.version()? != expected {
            return Err(StoreError::Conflict.into());
        }
        self.set_version(next)?;
        let mut statement = self.connection.prepare(
            "DELETE FROM siloring_silo
             WHERE cluster = ?1 AND generation = ?2 AND status = 'dead'",
        )?;
        for generation in generations {
            statement.execute(params![self.cluster, column(generation.0)])?;
        }
        Ok(())
    }

    fn settings(&self, ours: &[Setting]) -> Result<Vec<Setting>, Failure> {
        let held = self.held_settings()?;
        if !held.is_empty() {
            return Ok(held);
        }
        for (name, value) in ours {
            self.connection.execute(
                "INSERT INTO siloring_setting (cluster, name, value) VALUES (?1, ?2, ?3)",
                params![self.cluster, name, value],
            )?;
        }
        self.held_settings()
    }

    fn held_settings(&self) -> Result<Vec<Setting>, Failure> {
        let mut statement = self
            .connection
            .prepare("SELECT name, value FROM siloring_setting WHERE cluster = ?1 ORDER BY name")?;
        let held = statement.query_map([self.cluster], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(held.collect::<rusqlite::Result<Vec<Setting>>>()?)
    }

    fn load_state(&self, key: &StateKey, fence: ActivationNumber) -> Result<StoreAnswer, Failure> {
        let found = self
            .connection
            .query_row(
                "INSERT INTO siloring_state (cluster, address, name, fence_view, fence_counter)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (cluster, address, name) DO UPDATE SET
                     fence_view = excluded.fence_view, fence_counter = excluded.fence_counter
                 WHERE (fence_view, fence_counter) <= (excluded.fence_view, excluded.fence_counter)
                 RETURNING etag, schema_type, schema_version, schema_fingerprint, bytes",
                params![
                    self.cluster,
                    key.address.as_str(),
                    key.name,
                    column(fence.view.0),
                    column(fence.counter)
                ],
                |row| {
                    let state = StateColumns {
                        schema_type: row.get(1)?,
                        schema_version: row.get(2)?,
                        schema_fingerprint: row.get(3)?,
                        bytes: row.get(4)?,
                    };
                    Ok((row.get::<_, i64>(0)?, state))
                },
            )
            .optional()?;
        let (etag, state) = found.ok_or(StoreError::Fenced)?;
        Ok(StoreAnswer::State { record: state.decode()?, etag: Etag(number(etag)?) })
    }

    fn write_state(
        &self,
        key: &StateKey,
        fence: ActivationNumber,
        etag: Etag,
        record: Option<&StateRecord>,
    ) -> Result<StoreAnswer, Failure> {
        let state = StateColumns::of(record);
        let changed = self.connection.execute(
            "UPDATE siloring_state SET etag = etag + 1, schema_type = ?7, schema_version = ?8,
                 schema_fingerprint = ?9, bytes = ?10
             WHERE cluster = ?1 AND address = ?2 AND name = ?3
                 AND fence_view = ?4 AND fence_counter = ?5 AND etag = ?6",
            params![
                self.cluster,
                key.address.as_str(),
                key.name,
                column(fence.view.0),
                column(fence.counter),
                column(etag.0),
                state.schema_type,
                state.schema_version,
                state.schema_fingerprint,
                state.bytes
            ],
        )?;
        match changed {
            0 => Err(self.why_not_written(key, fence)?.into()),
            _ => Ok(StoreAnswer::Written(Etag(etag.0 + 1))),
        }
    }

    /// A write that found no row had the wrong fence, or else the wrong etag.
    fn why_not_written(
        &self,
        key: &StateKey,
        fence: ActivationNumber,
    ) -> Result<StoreError, Failure> {
        let found: Option<(i64, i64)> = self
            .connection
            .query_row(
                "SELECT fence_view, fence_counter FROM siloring_state
                 WHERE cluster = ?1 AND address = ?2 AND name = ?3",
                params![self.cluster, key.address.as_str(), key.name],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        let ours = (column(fence.view.0), column(fence.counter));
        Ok(if found == Some(ours) { StoreError::Conflict } else { StoreError::Fenced })
    }
}

/// What SQLite said, in the port's words. The transaction is undone in any case; only a failed
/// commit leaves the outcome open.
fn store_error(error: &rusqlite::Error, url: &str) -> StoreError {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) if text.contains("never returns") => {
            StoreError::DeadStaysDead
        }
        Some(ErrorCode::Unknown) if text.contains("no such") => {
            StoreError::NotMigrated { missing: text, url: url.to_owned() }
        }
        // The last: not SQLite's own, a value had another type than its column.
        Some(
            ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::TooBig
            | ErrorCode::ParameterOutOfRange
            | ErrorCode::ApiMisuse
            | ErrorCode::NotADatabase,
        )
        | None => refused(text),
        Some(_) => unavailable(text),
    }
}

/// What SQLite said to an open.
pub(crate) fn open_error(url: &SqliteUrl, error: &rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            OpenError::refused(url, error.to_string())
        }
        Some(_) | None => OpenError::unreachable(url, error.to_string()),
    }
}
