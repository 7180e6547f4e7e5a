//! Subscriptions and dead letters of one cluster in an SQLite file.
//!
//! Each is asked inside the caller's transaction, which holds the writer's lock: what was read
//! there cannot change before the commit. A write that finds nothing to change mints no version.

use rusqlite::{OptionalExtension as _, Row, params};
use siloring_core::limits::STORE_GROUP_BYTES_MAX;
use siloring_core::ports::registry::{DeadLetter, SetVersion, Subscription};
use siloring_core::ports::store::{StoreAnswer, StoreError};
use siloring_core::{Address, Generation, ViewNumber};

use super::{Failure, Rows};
use crate::rows::{LetterColumns, SubscriptionColumns, column, long_column, number};

/// The columns of a subscription, in the order of [`SubscriptionColumns`].
const COLUMNS: &str = "stream, key, consumer, handler, owner, view, filter, operation, version";

impl Rows<'_> {
    pub(super) fn load_subscriptions(&self, stream: &Address) -> Result<StoreAnswer, Failure> {
        let sql = format!(
            "SELECT {COLUMNS} FROM siloring_subscription
             WHERE cluster = ?1 AND stream = ?2 ORDER BY key"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let found = statement.query_map(params![self.cluster, stream.as_str()], subscription)?;
        self.subscriptions(found)
    }

    pub(super) fn list_subscriptions(
        &self,
        after: Option<&(Address, String)>,
        limit: u32,
    ) -> Result<StoreAnswer, Failure> {
        let sql = format!(
            "SELECT {COLUMNS} FROM siloring_subscription
             WHERE cluster = ?1 AND (stream, key) > (?2, ?3) ORDER BY stream, key LIMIT ?4"
        );
        // No stream's text is empty: from there on is from the first on.
        let (stream, key) = after.map_or(("", ""), |(stream, key)| (stream.as_str(), key));
        let mut statement = self.connection.prepare(&sql)?;
        let found = statement.query_map(params![self.cluster, stream, key, limit], subscription)?;
        self.subscriptions(found)
    }

    fn subscriptions(
        &self,
        found: impl Iterator<Item = rusqlite::Result<SubscriptionColumns>>,
    ) -> Result<StoreAnswer, Failure> {
        let mut rows = Vec::new();
        for columns in found {
            rows.push(columns?.decode()?);
        }
        Ok(StoreAnswer::Subscriptions { rows, version: self.set_version_newest()? })
    }

    fn set_version_newest(&self) -> Result<SetVersion, Failure> {
        let found: Option<i64> = self
            .connection
            .query_row(
                "SELECT version FROM siloring_registry WHERE cluster = ?1",
                [self.cluster],
                |row| row.get(0),
            )
            .optional()?;
        Ok(SetVersion(number(found.unwrap_or(0))?))
    }

    /// Makes `next` the newest version if `changed` rows are any; else the write was too late.
    fn mint(&self, changed: usize, next: SetVersion) -> Result<StoreAnswer, Failure> {
        if changed == 0 {
            return Err(StoreError::Conflict.into());
        }
        self.connection.execute(
            "INSERT INTO siloring_registry (cluster, version) VALUES (?1, ?2)
             ON CONFLICT (cluster) DO UPDATE SET version = excluded.version",
            params![self.cluster, column(next.0)],
        )?;
        Ok(StoreAnswer::Registered(next))
    }

    fn next(&self) -> Result<SetVersion, Failure> {
        Ok(SetVersion(self.set_version_newest()?.0 + 1))
    }

    pub(super) fn write_subscription(
        &self,
        row: &Subscription,
        expected: Option<SetVersion>,
    ) -> Result<StoreAnswer, Failure> {
        const INSERT: &str = "
            INSERT INTO siloring_subscription
                (cluster, stream, key, consumer, handler, owner, view, filter, operation, version)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
            ON CONFLICT (cluster, stream, key) DO NOTHING";
        const REPLACE: &str = "
            UPDATE siloring_subscription SET consumer = ?4, handler = ?5, owner = ?6, view = ?7,
                filter = ?8, operation = ?9, version = ?10
            WHERE cluster = ?1 AND stream = ?2 AND key = ?3 AND version = ?11";
        let next = self.next()?;
        let (handler, operation) = (i64::from(row.handler.0), long_column(row.operation));
        let owner = row.owner.map(|owner| column(owner.0));
        let (view, version) = (column(row.view.0), column(next.0));
        let (stream, consumer) = (row.stream.as_str(), row.consumer.as_str());
        let values: [&dyn rusqlite::ToSql; 10] = [
            &self.cluster,
            &stream,
            &row.key,
            &consumer,
            &handler,
            &owner,
            &view,
            &row.filter,
            &operation,
            &version,
        ];
        let changed = match expected.map(|expected| column(expected.0)) {
            None => self.connection.execute(INSERT, &values[..])?,
            Some(expected) => {
                let values: Vec<_> = values.into_iter().chain([&expected as _]).collect();
                self.connection.execute(REPLACE, &values[..])?
            }
        };
        self.mint(changed, next)
    }

    pub(super) fn remove_subscription(
        &self,
        stream: &Address,
        key: &str,
        owner: Option<Generation>,
        version: SetVersion,
    ) -> Result<StoreAnswer, Failure> {
        let next = self.next()?;
        let owner = owner.map(|owner| column(owner.0));
        let changed = self.connection.execute(
            "DELETE FROM siloring_subscription
             WHERE cluster = ?1 AND stream = ?2 AND key = ?3 AND owner IS ?4 AND version = ?5",
            params![self.cluster, stream.as_str(), key, owner, column(version.0)],
        )?;
        self.mint(changed, next)
    }

    pub(super) fn sweep_subscriptions(
        &self,
        gone: &[Generation],
        view: ViewNumber,
    ) -> Result<StoreAnswer, Failure> {
        let next = self.next()?;
        let mut statement = self.connection.prepare(
            "DELETE FROM siloring_subscription WHERE cluster = ?1 AND owner = ?2 AND view <= ?3",
        )?;
        let mut count = 0;
        for owner in gone {
            count += statement.execute(params![self.cluster, column(owner.0), column(view.0)])?;
        }
        if count > 0 {
            self.mint(count, next)?;
        }
        Ok(StoreAnswer::Swept { count: count as u64 })
    }

    pub(super) fn write_letter(&self, letter: &DeadLetter) -> Result<StoreAnswer, Failure> {
        self.connection.execute(
            "INSERT INTO siloring_dead_letter
                 (cluster, stream, key, origin, number, consumer, attempts, reason, schema_type,
                  schema_version, schema_fingerprint, body, view)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT (cluster, stream, key, origin, number) DO NOTHING",
            params![
                self.cluster,
                letter.stream.as_str(),
                letter.key,
                long_column(letter.origin),
                column(letter.number),
                letter.consumer.as_str(),
                letter.attempts,
                letter.reason,
                letter.schema.type_id,
                letter.schema.version,
                letter.schema.fingerprint,
                &letter.body[..],
                column(letter.view.0)
            ],
        )?;
        Ok(StoreAnswer::Done)
    }

    pub(super) fn read_letters(
        &self,
        stream: &Address,
        limit: u32,
    ) -> Result<StoreAnswer, Failure> {
        let mut statement = self.connection.prepare(
            "SELECT stream, key, origin, number, consumer, attempts, reason, schema_type,
                 schema_version, schema_fingerprint, body, view
             FROM (SELECT *, sum(length(body)) OVER (ORDER BY position DESC) AS bytes
                   FROM (SELECT * FROM siloring_dead_letter WHERE cluster = ?1 AND stream = ?2
                         ORDER BY position DESC LIMIT ?3))
             WHERE bytes <= ?4 ORDER BY position",
        )?;
        let bytes_max = STORE_GROUP_BYTES_MAX as u64;
        let values = params![self.cluster, stream.as_str(), limit, column(bytes_max)];
        let mut letters = Vec::new();
        for columns in statement.query_map(values, letter)? {
            letters.push(columns?.decode()?);
        }
        Ok(StoreAnswer::DeadLetters(letters))
    }
}

fn subscription(row: &Row<'_>) -> rusqlite::Result<SubscriptionColumns> {
    Ok(SubscriptionColumns {
        stream: row.get(0)?,
        key: row.get(1)?,
        consumer: row.get(2)?,
        handler: row.get(3)?,
        owner: row.get(4)?,
        view: row.get(5)?,
        filter: row.get(6)?,
        operation: row.get(7)?,
        version: row.get(8)?,
    })
}

fn letter(row: &Row<'_>) -> rusqlite::Result<LetterColumns> {
    Ok(LetterColumns {
        stream: row.get(0)?,
        key: row.get(1)?,
        origin: row.get(2)?,
        number: row.get(3)?,
        consumer: row.get(4)?,
        attempts: row.get(5)?,
        reason: row.get(6)?,
        schema_type: row.get(7)?,
        schema_version: row.get(8)?,
        schema_fingerprint: row.get(9)?,
        body: row.get(10)?,
        view: row.get(11)?,
    })
}
