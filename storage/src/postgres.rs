//! The Postgres store: many hosts.
//!
//! One connection of the sync client. Each request is one statement, or a read whose finding a
//! compare-and-set statement then holds; so no lock outlives a statement, and a silo that is
//! stopped at any point holds none. A group is a few set-based statements (`groups`).
//! Everything that comes from outside is a bound parameter. A connection that failed is dropped;
//! the next request connects anew; nothing is retried. Deliberately absent: DDL, TLS, pooling (each
//! thread has its store), client-side time-outs (the threads' business).

mod groups;
pub(crate) mod registry;

use std::collections::BTreeMap;

use postgres::error::{DbError, Severity, SqlState};
use postgres::types::Type;
use postgres::{Client, NoTls, Row};
use siloring_core::limits::{
    LINK_SILENCE_MAX, STORE_CONNECT_TIME_MAX, STORE_LOCK_TIME_MAX, STORE_STATEMENT_TIME_MAX,
};
use siloring_core::ports::store::{
    Etag, Setting, StateKey, StateRecord, Store, StoreAnswer, StoreError, StoreRequest,
    StoreResult, Table,
};
use siloring_core::{ActivationNumber, ClusterId, Generation, SiloRow, ViewNumber};

use crate::judge::{check_request, judge_row, refused, unavailable};
use crate::open::OpenError;
use crate::rows::{self, SiloColumns, StateColumns, column, number};
use crate::url::{Commit, PostgresUrl};

/// Raised by the trigger that keeps Dead rows Dead.
const DEAD_STAYS_DEAD: &str = "SR001";
/// Raised by the trigger that keeps the view rising.
const VIEW_RISES: &str = "SR002";

/// One cluster's rows in a Postgres database.
pub(crate) struct PostgresStore {
    cluster: ClusterId,
    url: PostgresUrl,
    /// Gone after a failure, until the next request.
    client: Option<Client>,
}

impl PostgresStore {
    /// A store on a connection made by [`connect`].
    pub(crate) fn new(url: &PostgresUrl, cluster: &ClusterId, client: Client) -> Self {
        Self { cluster: cluster.clone(), url: url.clone(), client: Some(client) }
    }

    /// Runs `work` on the connection, made anew if it is gone; drops it if it failed.
    fn run<T>(
        &mut self,
        work: impl FnOnce(&mut Rows<'_>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            Some(_) | None => connect(&self.url, &self.cluster)?,
        };
        let result = work(&mut Rows { client: &mut client, cluster: self.cluster.as_str() });
        match result {
            Ok(value) => {
                self.client = Some(client);
                Ok(value)
            }
            Err(Failure::Rule(error)) => {
                self.client = Some(client);
                Err(error)
            }
            Err(Failure::Sql(error)) => {
                // A statement that the server refused leaves the session good; nothing else does.
                let severity = error.as_db_error().and_then(DbError::parsed_severity);
                if severity == Some(Severity::Error) && !client.is_closed() {
                    self.client = Some(client);
                }
                Err(store_error(&error, &self.url))
            }
        }
    }
}

impl Store for PostgresStore {
    fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    fn execute(&mut self, request: &StoreRequest) -> StoreResult {
        check_request(request)?;
        self.run(|rows| rows.execute(request))
    }

    fn execute_group(&mut self, requests: &[StoreRequest]) -> Vec<StoreResult> {
        groups::execute(self, requests)
    }
}

/// Connects, sets what belongs to a session, and refuses a server whose commits are not durable.
pub(crate) fn connect(url: &PostgresUrl, cluster: &ClusterId) -> Result<Client, OpenError> {
    let mut config = url.config();
    config
        .connect_timeout(STORE_CONNECT_TIME_MAX)
        .tcp_user_timeout(LINK_SILENCE_MAX)
        .keepalives(true)
        .keepalives_idle(LINK_SILENCE_MAX)
        .keepalives_interval(STORE_LOCK_TIME_MAX)
        .keepalives_retries(2)
        .target_session_attrs(postgres::config::TargetSessionAttrs::ReadWrite);
    if config.get_application_name().is_none() {
        config.application_name(&format!("siloring {cluster}"));
    }
    let mut client = config.connect(NoTls).map_err(|error| open_error(url, &error))?;
    prepare_session(&mut client).map_err(|error| open_error(url, &error))?;
    let commit: String = client
        .query_one("SELECT current_setting('synchronous_commit')", &[])
        .map(|row| row.get(0))
        .map_err(|error| open_error(url, &error))?;
    if commit == "off" && url.commit() == Commit::Durable {
        return Err(OpenError::AsyncCommit { url: url.to_string() });
    }
    Ok(client)
}

fn prepare_session(client: &mut Client) -> Result<(), postgres::Error> {
    let statement_ms = STORE_STATEMENT_TIME_MAX.as_millis();
    let lock_ms = STORE_LOCK_TIME_MAX.as_millis();
    client.batch_execute(&format!(
        "SET statement_timeout = {statement_ms}; SET lock_timeout = {lock_ms}; \
         SET idle_in_transaction_session_timeout = {statement_ms}; \
         SET default_transaction_isolation = 'read committed'; SET client_min_messages = warning"
    ))
}

/// Why a request was not answered: refused by our rules, or failed in the server or on the line.
enum Failure {
    /// A rule of the port.
    Rule(StoreError),
    /// The server's or the client's own.
    Sql(postgres::Error),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Rule(error)
    }
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// The rows of one cluster on a connection.
struct Rows<'a> {
    client: &'a mut Client,
    cluster: &'a str,
}

impl Rows<'_> {
    fn execute(&mut self, request: &StoreRequest) -> Result<StoreAnswer, Failure> {
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
                self.client.query_typed(
                    "UPDATE siloring_silo SET heartbeat = greatest(heartbeat, $3)
                     WHERE cluster = $1 AND generation = $2",
                    &[
                        (&self.cluster, Type::TEXT),
                        (&column(generation.0), Type::INT8),
                        (&column(*counter), Type::INT8),
                    ],
                )?;
                Ok(StoreAnswer::Done)
            }
            StoreRequest::Settings { ours } => self.settings(ours).map(StoreAnswer::Settings),
            StoreRequest::LoadState { .. } => only(self.load_states(&[request])?),
            StoreRequest::WriteState { .. } => only(self.write_states(&[request])?),
            StoreRequest::LoadSubscriptions { .. } => only(self.load_subscriptions(&[request])?),
            StoreRequest::ListSubscriptions { after, limit } => {
                self.list_subscriptions(after.as_ref(), *limit)
            }
            StoreRequest::WriteSubscription { .. } | StoreRequest::RemoveSubscription { .. } => {
                only(self.change_subscriptions(&[request])?)
            }
            StoreRequest::SweepSubscriptions { gone, view } => {
                self.sweep_subscriptions(gone, *view)
            }
            StoreRequest::WriteDeadLetter(_) => only(self.write_letters(&[request])?),
            StoreRequest::ReadDeadLetters { stream, limit } => self.read_letters(stream, *limit),
        }
    }

    fn table(&mut self) -> Result<Table, Failure> {
        let found = self.client.query_typed(
            "SELECT c.view_number, s.generation, s.name, s.status, s.advertised, s.host, s.shards,
                    s.votes, s.changed_in, s.heartbeat
             FROM siloring_cluster c LEFT JOIN siloring_silo s ON s.cluster = c.cluster
             WHERE c.cluster = $1 ORDER BY s.generation",
            &[(&self.cluster, Type::TEXT)],
        )?;
        let mut table = Table::default();
        for row in &found {
            table.version = ViewNumber(number(row.try_get(0)?)?);
            // A cluster without silos is one row of nulls.
            let Some(generation) = row.try_get::<_, Option<i64>>(1)? else {
                continue;
            };
            table.rows.push(silo_columns(generation, row)?.decode()?);
        }
        Ok(table)
    }

    /// Reads what the judgement needs, judges, then writes if the version is still as read: what
    /// was judged cannot have changed in between without raising it.
    fn write_row(
        &mut self,
        expected: ViewNumber,
        next: ViewNumber,
        row: &SiloRow,
    ) -> Result<(), Failure> {
        let generation = column(row.incarnation.generation.0);
        let found = self.client.query_typed_opt(
            "SELECT c.view_number, s.status FROM siloring_cluster c
             LEFT JOIN siloring_silo s ON s.cluster = c.cluster AND s.generation = $2
             WHERE c.cluster = $1",
            &[(&self.cluster, Type::TEXT), (&generation, Type::INT8)],
        )?;
        let (version, status) = match &found {
            Some(found) => (number(found.try_get(0)?)?, found.try_get::<_, Option<&str>>(1)?),
            None => (0, None),
        };
        let status = status.map(rows::status).transpose()?;
        judge_row(expected, next, row, ViewNumber(version), status)?;
        let written = self.client.query_typed(
            WRITE_ROW,
            &[
                (&self.cluster, Type::TEXT),
                (&column(expected.0), Type::INT8),
                (&column(next.0), Type::INT8),
                (&generation, Type::INT8),
                (&row.incarnation.name.as_str(), Type::TEXT),
                (&rows::status_text(row.status), Type::TEXT),
                (&row.advertised, Type::TEXT),
                (&row.host, Type::TEXT),
                (&i32::from(row.shards), Type::INT4),
                (&rows::votes_text(&row.votes), Type::TEXT),
            ],
        )?;
        if written.is_empty() { Err(StoreError::Conflict.into()) } else { Ok(()) }
    }

    fn remove_dead(
        &mut self,
        expected: ViewNumber,
        next: ViewNumber,
        generations: &[Generation],
    ) -> Result<(), Failure> {
        let generations: Vec<i64> = generations.iter().map(|one| column(one.0)).collect();
        let bumped = self.client.query_typed(
            REMOVE_DEAD,
            &[
                (&self.cluster, Type::TEXT),
                (&column(expected.0), Type::INT8),
                (&column(next.0), Type::INT8),
                (&generations, Type::INT8_ARRAY),
            ],
        )?;
        if bumped.is_empty() { Err(StoreError::Conflict.into()) } else { Ok(()) }
    }

    fn settings(&mut self, ours: &[Setting]) -> Result<Vec<Setting>, Failure> {
        let held = self.held_settings()?;
        if !held.is_empty() || ours.is_empty() {
            return Ok(held);
        }
        let names: Vec<&str> = ours.iter().map(|(name, _)| name.as_str()).collect();
        let values: Vec<&str> = ours.iter().map(|(_, value)| value.as_str()).collect();
        match self.client.query_typed(
            FIRST_SETTINGS,
            &[(&self.cluster, Type::TEXT), (&names, Type::TEXT_ARRAY), (&values, Type::TEXT_ARRAY)],
        ) {
            Ok(_) => {}
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
            Err(error) => return Err(error.into()),
        }
        self.held_settings()
    }

    fn held_settings(&mut self) -> Result<Vec<Setting>, Failure> {
        let found = self.client.query_typed(
            "SELECT name, value FROM siloring_setting
             WHERE cluster = $1 AND name <> '' ORDER BY name",
            &[(&self.cluster, Type::TEXT)],
        )?;
        found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Loads of distinct records, in one statement.
    fn load_states(&mut self, requests: &[&StoreRequest]) -> Result<Vec<StoreResult>, Failure> {
        let loads: Vec<(&StateKey, ActivationNumber)> =
            requests.iter().copied().filter_map(as_load).collect();
        assert_eq!(loads.len(), requests.len(), "a run of loads has loads only");
        let keys = Keys::of(loads.iter().copied());
        let found = self.client.query_typed(
            LOAD_STATES,
            &[
                (&self.cluster, Type::TEXT),
                (&keys.addresses, Type::TEXT_ARRAY),
                (&keys.names, Type::TEXT_ARRAY),
                (&keys.views, Type::INT8_ARRAY),
                (&keys.counters, Type::INT8_ARRAY),
            ],
        )?;
        let mut answers = BTreeMap::new();
        for row in &found {
            let state = StateColumns {
                schema_type: row.try_get(3)?,
                schema_version: row.try_get(4)?,
                schema_fingerprint: row.try_get(5)?,
                bytes: row.try_get(6)?,
            };
            answers.insert(key_of(row)?, loaded(row.try_get(2)?, state));
        }
        Ok(loads
            .iter()
            .map(|(key, _)| answers.remove(&key_text(key)).unwrap_or(Err(StoreError::Fenced)))
            .collect())
    }

    /// Writes of distinct records, in one statement; a second one asks why some were not written.
    fn write_states(&mut self, requests: &[&StoreRequest]) -> Result<Vec<StoreResult>, Failure> {
        let writes: Vec<Write<'_>> = requests.iter().copied().filter_map(as_write).collect();
        assert_eq!(writes.len(), requests.len(), "a run of writes has writes only");
        let keys = Keys::of(writes.iter().map(|write| (write.key, write.fence)));
        let etags: Vec<i64> = writes.iter().map(|write| column(write.etag.0)).collect();
        let mut types = Vec::with_capacity(writes.len());
        let mut versions = Vec::with_capacity(writes.len());
        let mut fingerprints = Vec::with_capacity(writes.len());
        let mut bytes = Vec::with_capacity(writes.len());
        for write in &writes {
            let state = StateColumns::of(write.record);
            types.push(state.schema_type);
            versions.push(state.schema_version);
            fingerprints.push(state.schema_fingerprint);
            bytes.push(write.record.map(|record| &record.bytes[..]));
        }
        let found = self.client.query_typed(
            WRITE_STATES,
            &[
                (&self.cluster, Type::TEXT),
                (&keys.addresses, Type::TEXT_ARRAY),
                (&keys.names, Type::TEXT_ARRAY),
                (&keys.views, Type::INT8_ARRAY),
                (&keys.counters, Type::INT8_ARRAY),
                (&etags, Type::INT8_ARRAY),
                (&types, Type::INT8_ARRAY),
                (&versions, Type::INT4_ARRAY),
                (&fingerprints, Type::INT4_ARRAY),
                (&bytes, Type::BYTEA_ARRAY),
            ],
        )?;
        let mut answers = BTreeMap::new();
        for row in &found {
            answers.insert(key_of(row)?, Ok(StoreAnswer::Written(Etag(number(row.try_get(2)?)?))));
        }
        if answers.len() < writes.len() {
            self.why_not_written(&keys, &mut answers)?;
        }
        Ok(writes
            .iter()
            .map(|write| answers.remove(&key_text(write.key)).unwrap_or(Err(StoreError::Fenced)))
            .collect())
    }

    /// Of the writes without an answer, those whose fence holds had the wrong etag.
    fn why_not_written(
        &mut self,
        keys: &Keys<'_>,
        answers: &mut BTreeMap<(String, String), StoreResult>,
    ) -> Result<(), Failure> {
        let fenced_right = self.client.query_typed(
            "SELECT s.address, s.name FROM siloring_state s
             JOIN unnest($2, $3, $4, $5) AS r(address, name, view, counter)
                 ON s.address = r.address AND s.name = r.name
                 AND s.fence_view = r.view AND s.fence_counter = r.counter
             WHERE s.cluster = $1",
            &[
                (&self.cluster, Type::TEXT),
                (&keys.addresses, Type::TEXT_ARRAY),
                (&keys.names, Type::TEXT_ARRAY),
                (&keys.views, Type::INT8_ARRAY),
                (&keys.counters, Type::INT8_ARRAY),
            ],
        )?;
        for row in &fenced_right {
            answers.entry(key_of(row)?).or_insert(Err(StoreError::Conflict));
        }
        Ok(())
    }
}

/// Writes a row if the version is as expected: both or neither, in one statement. A cluster without
/// a version has version 0.
const WRITE_ROW: &str = "
    WITH bumped AS (
        INSERT INTO siloring_cluster AS c (cluster, view_number)
        SELECT $1, $3
        WHERE $2 = 0 OR EXISTS (SELECT FROM siloring_cluster WHERE cluster = $1)
        ON CONFLICT (cluster) DO UPDATE SET view_number = excluded.view_number
            WHERE c.view_number = $2
        RETURNING view_number
    )
    INSERT INTO siloring_silo
        (cluster, generation, name, status, advertised, host, shards, votes, changed_in)
    SELECT $1, $4, $5, $6, $7, $8, $9, $10, view_number FROM bumped
    ON CONFLICT (cluster, generation) DO UPDATE SET
        name = excluded.name, status = excluded.status, advertised = excluded.advertised,
        host = excluded.host, shards = excluded.shards, votes = excluded.votes,
        changed_in = excluded.changed_in
    RETURNING 1";

/// Removes Dead rows if the version is as expected.
const REMOVE_DEAD: &str = "
    WITH bumped AS (
        INSERT INTO siloring_cluster AS c (cluster, view_number)
        SELECT $1, $3
        WHERE $2 = 0 OR EXISTS (SELECT FROM siloring_cluster WHERE cluster = $1)
        ON CONFLICT (cluster) DO UPDATE SET view_number = excluded.view_number
            WHERE c.view_number = $2
        RETURNING view_number
    ), removed AS (
        DELETE FROM siloring_silo USING bumped
        WHERE cluster = $1 AND status = 'dead' AND generation = ANY ($4)
    )
    SELECT view_number FROM bumped";

/// Writes the settings whole or, after another first writer, not at all: the nameless row is in
/// every set, so that two sets collide even if they have no name in common.
const FIRST_SETTINGS: &str = "
    INSERT INTO siloring_setting (cluster, name, value)
    SELECT $1, r.name, r.value FROM unnest($2, $3) AS r(name, value)
    UNION ALL SELECT $1, '', ''";

/// Takes the fences that are not lower, and returns the states behind them. Ordered, so that two
/// such statements lock their common rows in one order.
const LOAD_STATES: &str = "
    INSERT INTO siloring_state AS s (cluster, address, name, fence_view, fence_counter)
    SELECT $1, r.address, r.name, r.view, r.counter
    FROM unnest($2, $3, $4, $5) AS r(address, name, view, counter)
    ORDER BY r.address, r.name
    ON CONFLICT (cluster, address, name) DO UPDATE SET
        fence_view = excluded.fence_view, fence_counter = excluded.fence_counter
        WHERE (s.fence_view, s.fence_counter) <= (excluded.fence_view, excluded.fence_counter)
    RETURNING s.address, s.name, s.etag, s.schema_type, s.schema_version, s.schema_fingerprint,
        s.bytes";

/// Writes the records whose fence and etag are as named.
const WRITE_STATES: &str = "
    UPDATE siloring_state AS s SET
        etag = s.etag + 1, schema_type = r.schema_type, schema_version = r.schema_version,
        schema_fingerprint = r.schema_fingerprint, bytes = r.bytes
    FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10) AS r(address, name, view, counter, etag,
        schema_type, schema_version, schema_fingerprint, bytes)
    WHERE s.cluster = $1 AND s.address = r.address AND s.name = r.name
        AND s.fence_view = r.view AND s.fence_counter = r.counter AND s.etag = r.etag
    RETURNING s.address, s.name, s.etag";

/// Keys and fences of a run, as columns.
struct Keys<'a> {
    addresses: Vec<&'a str>,
    names: Vec<&'a str>,
    views: Vec<i64>,
    counters: Vec<i64>,
}

impl<'a> Keys<'a> {
    fn of(run: impl Iterator<Item = (&'a StateKey, ActivationNumber)>) -> Self {
        let mut keys = Self { addresses: vec![], names: vec![], views: vec![], counters: vec![] };
        for (key, fence) in run {
            keys.addresses.push(key.address.as_str());
            keys.names.push(&key.name);
            keys.views.push(column(fence.view.0));
            keys.counters.push(column(fence.counter));
        }
        keys
    }
}

/// A write of a record, taken apart.
struct Write<'a> {
    key: &'a StateKey,
    fence: ActivationNumber,
    etag: Etag,
    record: Option<&'a StateRecord>,
}

fn as_load(request: &StoreRequest) -> Option<(&StateKey, ActivationNumber)> {
    if let StoreRequest::LoadState { key, fence } = request { Some((key, *fence)) } else { None }
}

fn as_write(request: &StoreRequest) -> Option<Write<'_>> {
    if let StoreRequest::WriteState { key, fence, etag, record } = request {
        Some(Write { key, fence: *fence, etag: *etag, record: record.as_ref() })
    } else {
        None
    }
}

fn only(mut results: Vec<StoreResult>) -> Result<StoreAnswer, Failure> {
    assert_eq!(results.len(), 1, "one result for one request");
    Ok(results.remove(0)?)
}

fn key_text(key: &StateKey) -> (String, String) {
    (key.address.as_str().to_owned(), key.name.clone())
}

fn key_of(row: &Row) -> Result<(String, String), Failure> {
    Ok((row.try_get(0)?, row.try_get(1)?))
}

fn loaded(etag: i64, state: StateColumns) -> StoreResult {
    Ok(StoreAnswer::State { record: state.decode()?, etag: Etag(number(etag)?) })
}

fn silo_columns(generation: i64, row: &Row) -> Result<SiloColumns, postgres::Error> {
    Ok(SiloColumns {
        generation,
        name: row.try_get(2)?,
        status: row.try_get(3)?,
        advertised: row.try_get(4)?,
        host: row.try_get(5)?,
        shards: row.try_get(6)?,
        votes: row.try_get(7)?,
        changed_in: row.try_get(8)?,
        heartbeat: row.try_get(9)?,
    })
}

/// What the server or the client said, in the port's words.
fn store_error(error: &postgres::Error, url: &PostgresUrl) -> StoreError {
    let Some(state) = error.code() else {
        return unavailable(show(error));
    };
    if is_undefined(state) {
        return StoreError::NotMigrated { missing: show(error), url: url.to_string() };
    }
    match (state.code(), state.code().get(..2).unwrap_or_default()) {
        (DEAD_STAYS_DEAD, _) => StoreError::DeadStaysDead,
        // Only a change behind the compare-and-set's back gets there.
        (VIEW_RISES, _) => StoreError::Conflict,
        // Data and integrity, rights, and statements that the server does not take.
        (_, "22" | "23" | "42" | "0A" | "28" | "3D" | "3F") => refused(show(error)),
        // Lines, resources, locks, time-outs, shutdown, disks, read-only replicas and all else.
        _ => unavailable(show(error)),
    }
}

/// What the server or the client said to an open.
fn open_error(url: &PostgresUrl, error: &postgres::Error) -> OpenError {
    OpenError::unreachable(url, show(error))
}

/// Whether a table, column or function is missing.
fn is_undefined(state: &SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_FUNCTION]
        .contains(state)
}

/// The error with its causes; the client's own text leaves them out.
pub(crate) fn show(error: &postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let detail = inner.to_string();
        if !text.contains(&detail) {
            text = format!("{text}: {detail}");
        }
        cause = inner.source();
    }
    text
}
