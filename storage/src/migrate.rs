//! Migrations: tables in phases, each behind a marker of its own and verified.
//!
//! A phase is one SQL file, run in one transaction under the database's lock (Postgres: an advisory
//! lock; SQLite: `BEGIN IMMEDIATE`), so two runners never interleave. Its marker is a row of
//! `siloring_phase` with the checksum of the SQL. A phase is done when marker and post-condition
//! (its tables, columns and triggers) both hold; else its SQL, which may be run again, is run and
//! verified before the commit. So a store with nothing, the first phase only, or half of one ends
//! complete. Deliberately absent: going back, and moving data (the phases so far only create).

use core::fmt;
use core::fmt::Display;

use postgres::{Client, NoTls};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior};
use siloring_core::hash::stable_u64;
use siloring_core::limits::{MIGRATE_PHASE_TIME_MAX, STORE_CONNECT_TIME_MAX};

use crate::driver;
use crate::open::OpenError;
use crate::postgres::show;
use crate::sqlite;
use crate::url::{PostgresUrl, SqliteUrl, StoreUrl, UrlError};

/// Key of the advisory lock: no other program's, by all odds.
const LOCK: i64 = stable_u64(b"siloring.migrate").cast_signed();
/// Tables with their columns, of subscriptions and dead letters.
const SUBSCRIPTION_TABLES: &[(&str, &[&str])] = &[
    ("siloring_registry", &["cluster", "version"]),
    (
        "siloring_subscription",
        &[
            "cluster",
            "stream",
            "key",
            "consumer",
            "handler",
            "owner",
            "view",
            "filter",
            "operation",
            "version",
        ],
    ),
    (
        "siloring_dead_letter",
        &[
            "cluster",
            "stream",
            "key",
            "origin",
            "number",
            "position",
            "consumer",
            "attempts",
            "reason",
            "schema_type",
            "schema_version",
            "schema_fingerprint",
            "body",
            "view",
        ],
    ),
];
/// How many phases there are.
const PHASES: usize = Phase::ALL.len();
/// Times that a runner asks a new SQLite file for its write-ahead log while another one does.
const WAL_TRIES: usize = 100;

/// A step of the schema with a marker of its own. In order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// The table of silos, its version, and the settings of the cluster.
    Membership,
    /// Subscriptions of streams, and dead letters.
    Subscriptions,
    /// Grains' stored state.
    GrainState,
}

impl Phase {
    /// Every phase, in the order in which they are applied.
    pub const ALL: [Self; 3] = [Self::Membership, Self::Subscriptions, Self::GrainState];

    /// Its name: the key of its marker.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Membership => "membership",
            Self::Subscriptions => "subscriptions",
            Self::GrainState => "grain_state",
        }
    }

    const fn postgres(self) -> &'static str {
        match self {
            Self::Membership => include_str!("../sql/postgres/membership.sql"),
            Self::Subscriptions => include_str!("../sql/postgres/subscriptions.sql"),
            Self::GrainState => include_str!("../sql/postgres/grain_state.sql"),
        }
    }

    const fn sqlite(self) -> &'static str {
        match self {
            Self::Membership => include_str!("../sql/sqlite/membership.sql"),
            Self::Subscriptions => include_str!("../sql/sqlite/subscriptions.sql"),
            Self::GrainState => include_str!("../sql/sqlite/grain_state.sql"),
        }
    }

    /// The post-condition: tables with their columns.
    const fn tables(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Membership => &[
                ("siloring_cluster", &["cluster", "view_number"]),
                (
                    "siloring_silo",
                    &[
                        "cluster",
                        "generation",
                        "name",
                        "status",
                        "advertised",
                        "host",
                        "shards",
                        "votes",
                        "changed_in",
                        "heartbeat",
                    ],
                ),
                ("siloring_setting", &["cluster", "name", "value"]),
            ],
            Self::Subscriptions => SUBSCRIPTION_TABLES,
            Self::GrainState => &[(
                "siloring_state",
                &[
                    "cluster",
                    "address",
                    "name",
                    "fence_view",
                    "fence_counter",
                    "etag",
                    "schema_type",
                    "schema_version",
                    "schema_fingerprint",
                    "bytes",
                ],
            )],
        }
    }

    /// The post-condition: triggers with their tables.
    const fn triggers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Membership => &[
                ("siloring_silo", "siloring_silo_dead_stays_dead"),
                ("siloring_cluster", "siloring_cluster_view_rises"),
            ],
            Self::Subscriptions | Self::GrainState => &[],
        }
    }
}

impl Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What a migration did about one phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PhaseOutcome {
    /// It was not there, and is now.
    Applied,
    /// It was there, whole; nothing was changed.
    AlreadyComplete,
    /// A part was missing (or its marker), and is there now.
    Completed,
    /// This store needs no tables.
    NotNeeded,
}

impl PhaseOutcome {
    /// Its name, for people and for `--json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::AlreadyComplete => "already complete",
            Self::Completed => "completed",
            Self::NotNeeded => "not needed",
        }
    }
}

/// What a migration did.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The store, without credentials.
    pub url: String,
    /// Each phase, in order.
    pub phases: Vec<PhaseReport>,
}

/// What a migration did about one phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PhaseReport {
    /// Which phase.
    pub phase: Phase,
    /// What was done.
    pub outcome: PhaseOutcome,
}

/// Why a store is not migrated. Phases before the one named are done and stay; that one is undone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The URL is none. Nothing was changed; correct it.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The store does not answer, refuses the login, or cannot be used. Nothing was changed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A statement failed. The phase is undone; mend what the text says and run again.
    #[error("phase {phase} of {url} failed and was undone ({detail}): mend that and run again")]
    Failed {
        /// The store, without credentials.
        url: String,
        /// Which phase.
        phase: Phase,
        /// What the store said.
        detail: String,
    },
    /// The phase ran and something is still missing: a table of that name with other columns was
    /// there before. The phase is undone; move that table away and run again.
    #[error(
        "phase {phase} of {url} ran and {missing} is still missing: a table of that name was there \
         before; rename it and run again"
    )]
    StillMissing {
        /// The store, without credentials.
        url: String,
        /// Which phase.
        phase: Phase,
        /// What is missing.
        missing: String,
    },
}

/// Brings the store that `url` names to this program's schema. May be run at any time, any number
/// of times and by several at once.
///
/// Blocks, on a thread of its own, for at most [`MIGRATE_PHASE_TIME_MAX`] a phase.
pub fn migrate(url: &str) -> Result<Report, MigrateError> {
    let url = StoreUrl::parse(url)?;
    let shown = url.to_string();
    let time_max = STORE_CONNECT_TIME_MAX + Phase::ALL.map(|_| MIGRATE_PHASE_TIME_MAX).iter().sum();
    let outcomes = driver::on_a_thread(time_max, move || match &url {
        StoreUrl::Memory => Ok(Phase::ALL.map(|_| PhaseOutcome::NotNeeded)),
        StoreUrl::Sqlite(url) => migrate_sqlite(url),
        StoreUrl::Postgres(url) => migrate_postgres(url),
    })
    .unwrap_or_else(|silent| Err(OpenError::unreachable(&shown, silent.to_string()).into()))?;
    let phases = Phase::ALL.into_iter().zip(outcomes);
    let phases = phases.map(|(phase, outcome)| PhaseReport { phase, outcome }).collect();
    Ok(Report { url: shown, phases })
}

/// Refuses an SQLite store that lacks a phase or part of one.
pub(crate) fn verify_sqlite(connection: &Connection, url: &SqliteUrl) -> Result<(), OpenError> {
    verify(&mut SqliteSchema { connection, url }, url)
}

/// Refuses a Postgres store that lacks a phase or part of one.
pub(crate) fn verify_postgres(client: &mut Client, url: &PostgresUrl) -> Result<(), OpenError> {
    let shown = url.to_string();
    let mut transaction =
        client.transaction().map_err(|error| OpenError::unreachable(&shown, show(&error)))?;
    verify(&mut PostgresSchema { transaction: &mut transaction }, url)
}

/// What the two databases do differently inside a transaction.
trait Schema {
    /// The checksum in a phase's marker; `None` if it or the table of markers is not there.
    fn marker(&mut self, phase: Phase) -> Result<Option<String>, String>;
    /// Creates the table of markers, runs the phase's SQL and sets its marker.
    fn apply(&mut self, phase: Phase) -> Result<(), String>;
    /// Columns of a table; none if it is not there.
    fn columns(&mut self, table: &str) -> Result<Vec<String>, String>;
    /// Whether a table has a trigger.
    fn has_trigger(&mut self, table: &str, trigger: &str) -> Result<bool, String>;
    /// The checksum of a phase's SQL.
    fn checksum(&self, phase: Phase) -> String;
}

/// What is missing of a phase.
fn missing(schema: &mut dyn Schema, phase: Phase) -> Result<Vec<String>, String> {
    let mut missing = Vec::new();
    for (table, columns) in phase.tables() {
        let found = schema.columns(table)?;
        if found.is_empty() {
            missing.push(format!("table {table}"));
            continue;
        }
        let absent = columns.iter().filter(|column| !found.iter().any(|name| name == *column));
        missing.extend(absent.map(|column| format!("column {table}.{column}")));
    }
    for (table, trigger) in phase.triggers() {
        if !schema.has_trigger(table, trigger)? {
            missing.push(format!("trigger {trigger}"));
        }
    }
    Ok(missing)
}

fn verify(schema: &mut dyn Schema, url: &impl Display) -> Result<(), OpenError> {
    let unreadable = |detail| OpenError::refused(url, detail);
    let mut lacks = Vec::new();
    for phase in Phase::ALL {
        let marker = schema.marker(phase).map_err(unreadable)?;
        let expected = schema.checksum(phase);
        match marker {
            None => lacks.push(format!("phase {phase}")),
            Some(found) if found != expected => {
                return Err(OpenError::SchemaDiffers {
                    url: url.to_string(),
                    phase,
                    found,
                    expected,
                });
            }
            Some(_) => {
                let parts = missing(schema, phase).map_err(unreadable)?;
                lacks.extend(parts.iter().map(|part| format!("{part} of phase {phase}")));
            }
        }
    }
    if lacks.is_empty() { Ok(()) } else { Err(OpenError::not_migrated(url, lacks.join(", "))) }
}

/// Brings one phase to its post-condition, inside the caller's transaction.
fn run_phase(
    schema: &mut dyn Schema,
    phase: Phase,
    url: &impl Display,
) -> Result<PhaseOutcome, MigrateError> {
    let failed = |detail| MigrateError::Failed { url: url.to_string(), phase, detail };
    let expected = schema.checksum(phase);
    let marker = schema.marker(phase).map_err(failed)?;
    if let Some(found) = &marker
        && *found != expected
    {
        let (url, found) = (url.to_string(), found.clone());
        return Err(OpenError::SchemaDiffers { url, phase, found, expected }.into());
    }
    let before = missing(schema, phase).map_err(failed)?;
    if marker.is_some() && before.is_empty() {
        return Ok(PhaseOutcome::AlreadyComplete);
    }
    schema.apply(phase).map_err(failed)?;
    let after = missing(schema, phase).map_err(failed)?;
    if !after.is_empty() {
        let (url, missing) = (url.to_string(), after.join(", "));
        return Err(MigrateError::StillMissing { url, phase, missing });
    }
    let whole = phase.tables().len() + phase.triggers().len();
    let was_absent = marker.is_none() && before.len() == whole;
    Ok(if was_absent { PhaseOutcome::Applied } else { PhaseOutcome::Completed })
}

fn checksum(sql: &str) -> String {
    format!("{:016x}", stable_u64(sql.as_bytes()))
}

fn migrate_sqlite(url: &SqliteUrl) -> Result<[PhaseOutcome; PHASES], MigrateError> {
    let unreachable = |error: rusqlite::Error| sqlite::open_error(url, &error);
    sqlite::refuse_network_file_system(url)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(url.path(), flags).map_err(unreachable)?;
    sqlite::configure(&connection, url).map_err(unreachable)?;
    connection.busy_timeout(MIGRATE_PHASE_TIME_MAX).map_err(unreachable)?;
    write_ahead(&mut connection).map_err(unreachable)?;
    let mut outcomes = [PhaseOutcome::AlreadyComplete; PHASES];
    for (phase, outcome) in Phase::ALL.into_iter().zip(&mut outcomes) {
        let failed = |error: rusqlite::Error| MigrateError::Failed {
            url: url.to_string(),
            phase,
            detail: error.to_string(),
        };
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        *outcome = run_phase(&mut SqliteSchema { connection: &transaction, url }, phase, url)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(outcomes)
}

/// Switches the file to its write-ahead log. Two that do so at once may hear busy without any wait:
/// then waiting for the other's transaction is what the empty one below does.
fn write_ahead(connection: &mut Connection) -> rusqlite::Result<()> {
    let mut result = Ok(());
    for _ in 0..WAL_TRIES {
        result = connection.pragma_update(None, "journal_mode", "wal");
        match &result {
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?.commit()?;
            }
            Ok(()) | Err(_) => return result,
        }
    }
    result
}

fn migrate_postgres(url: &PostgresUrl) -> Result<[PhaseOutcome; PHASES], MigrateError> {
    let unreachable = |error: postgres::Error| OpenError::unreachable(url, show(&error));
    let mut config = url.config();
    config.connect_timeout(STORE_CONNECT_TIME_MAX);
    if config.get_application_name().is_none() {
        config.application_name("siloring migrate");
    }
    let mut client = config.connect(NoTls).map_err(unreachable)?;
    let time_max_ms = MIGRATE_PHASE_TIME_MAX.as_millis();
    client
        .batch_execute(&format!(
            "SET client_min_messages = warning; SET statement_timeout = {time_max_ms}; \
             SET lock_timeout = {time_max_ms}; \
             SET idle_in_transaction_session_timeout = {time_max_ms}; \
             SET default_transaction_isolation = 'read committed'"
        ))
        .map_err(unreachable)?;
    let mut outcomes = [PhaseOutcome::AlreadyComplete; PHASES];
    for (phase, outcome) in Phase::ALL.into_iter().zip(&mut outcomes) {
        let failed = |error: postgres::Error| MigrateError::Failed {
            url: url.to_string(),
            phase,
            detail: show(&error),
        };
        let mut transaction = client.transaction().map_err(failed)?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).map_err(failed)?;
        *outcome = run_phase(&mut PostgresSchema { transaction: &mut transaction }, phase, url)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(outcomes)
}

struct SqliteSchema<'a> {
    connection: &'a Connection,
    url: &'a SqliteUrl,
}

impl SqliteSchema<'_> {
    fn detail(&self, error: &rusqlite::Error) -> String {
        format!("{}: {error}", self.url)
    }
}

impl Schema for SqliteSchema<'_> {
    fn marker(&mut self, phase: Phase) -> Result<Option<String>, String> {
        if self.columns("siloring_phase")?.is_empty() {
            return Ok(None);
        }
        self.connection
            .query_row(
                "SELECT checksum FROM siloring_phase WHERE phase = ?1",
                [phase.name()],
                |row| row.get(0),
            )
            .optional()
            .map_err(|error| self.detail(&error))
    }

    fn apply(&mut self, phase: Phase) -> Result<(), String> {
        let run = || {
            self.connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS siloring_phase (
                     phase    TEXT NOT NULL PRIMARY KEY,
                     checksum TEXT NOT NULL
                 ) STRICT, WITHOUT ROWID",
            )?;
            self.connection.execute_batch(phase.sqlite())?;
            self.connection.execute(
                "INSERT INTO siloring_phase (phase, checksum) VALUES (?1, ?2)
                 ON CONFLICT (phase) DO NOTHING",
                [phase.name(), &self.checksum(phase)],
            )
        };
        run().map(drop).map_err(|error| self.detail(&error))
    }

    fn columns(&mut self, table: &str) -> Result<Vec<String>, String> {
        let run = || {
            let mut statement =
                self.connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
            let names = statement.query_map([table], |row| row.get(0))?;
            names.collect::<rusqlite::Result<Vec<String>>>()
        };
        run().map_err(|error| self.detail(&error))
    }

    fn has_trigger(&mut self, table: &str, trigger: &str) -> Result<bool, String> {
        self.connection
            .query_row(
                "SELECT count(*) FROM sqlite_master
                 WHERE type = 'trigger' AND tbl_name = ?1 AND name = ?2",
                [table, trigger],
                |row| row.get::<_, i64>(0),
            )
            .map(|count| count > 0)
            .map_err(|error| self.detail(&error))
    }

    fn checksum(&self, phase: Phase) -> String {
        checksum(phase.sqlite())
    }
}

struct PostgresSchema<'a, 'b> {
    transaction: &'a mut postgres::Transaction<'b>,
}

impl Schema for PostgresSchema<'_, '_> {
    fn marker(&mut self, phase: Phase) -> Result<Option<String>, String> {
        if self.columns("siloring_phase")?.is_empty() {
            return Ok(None);
        }
        let found = self
            .transaction
            .query_opt("SELECT checksum FROM siloring_phase WHERE phase = $1", &[&phase.name()])
            .map_err(|error| show(&error))?;
        Ok(found.map(|row| row.get(0)))
    }

    fn apply(&mut self, phase: Phase) -> Result<(), String> {
        let sum = self.checksum(phase);
        let mut run = || {
            self.transaction.batch_execute(
                "CREATE TABLE IF NOT EXISTS siloring_phase (
                     phase    text COLLATE \"C\" NOT NULL PRIMARY KEY,
                     checksum text NOT NULL
                 )",
            )?;
            self.transaction.batch_execute(phase.postgres())?;
            self.transaction.execute(
                "INSERT INTO siloring_phase (phase, checksum) VALUES ($1, $2)
                 ON CONFLICT (phase) DO NOTHING",
                &[&phase.name(), &sum],
            )
        };
        run().map(drop).map_err(|error: postgres::Error| show(&error))
    }

    fn columns(&mut self, table: &str) -> Result<Vec<String>, String> {
        let rows = self
            .transaction
            .query(
                "SELECT attname::text FROM pg_attribute
                 WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
                &[&table],
            )
            .map_err(|error| show(&error))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn has_trigger(&mut self, table: &str, trigger: &str) -> Result<bool, String> {
        let row = self
            .transaction
            .query_one(
                "SELECT EXISTS (SELECT FROM pg_trigger
                 WHERE tgrelid = to_regclass($1) AND tgname::text = $2 AND tgenabled <> 'D')",
                &[&table, &trigger],
            )
            .map_err(|error| show(&error))?;
        Ok(row.get(0))
    }

    fn checksum(&self, phase: Phase) -> String {
        checksum(phase.postgres())
    }
}
