//! Subscriptions and dead letters of one cluster in Postgres.
//!
//! Versions are minted by one row a cluster, which every statement that changes subscriptions
//! updates first: so versions become visible in their order (numbers of a sequence would not, and a
//! reader of version 9 could miss what 8 wrote), two such statements never deadlock, and writers of
//! different silos wait for one another for one statement of a whole group. A request that changes
//! nothing may use a version up. Each change is told on the cluster's channel in its own
//! transaction; what is told is a hint. Notifying commits take turns in the whole server: only the
//! registry does it.

use std::collections::BTreeMap;

use postgres::types::Type;
use postgres::{Client, Row};
use siloring_core::hash::stable_u64;
use siloring_core::limits::STORE_GROUP_BYTES_MAX;
use siloring_core::ports::registry::{DeadLetter, RegistryHint, SetVersion, Subscription};
use siloring_core::ports::store::{StoreAnswer, StoreError, StoreRequest, StoreResult};
use siloring_core::{Address, AddressHash, ClusterId, Generation, ViewNumber};

use super::{Failure, Rows, show};
use crate::rows::{LetterColumns, SubscriptionColumns, column, long_column, number};

/// Told when subscriptions of many streams have changed.
const EVERYTHING: &str = "*";

/// The channel on which changes of a cluster's subscriptions are told.
fn channel(cluster: &str) -> String {
    format!("siloring_{:016x}", stable_u64(cluster.as_bytes()))
}

/// What a notification tells; `None`: anybody may notify on any channel, and this was not ours.
pub(crate) fn hint(payload: &str) -> Option<RegistryHint> {
    if payload == EVERYTHING {
        return Some(RegistryHint::Everything);
    }
    let hash = u128::from_str_radix(payload, 16).ok()?;
    (payload == long_column(hash)).then_some(RegistryHint::Stream(AddressHash(hash)))
}

/// Has the server tell the session of changes from now on.
pub(crate) fn listen(client: &mut Client, cluster: &ClusterId) -> Result<(), postgres::Error> {
    client.batch_execute(&format!("LISTEN {}", channel(cluster.as_str())))
}

/// The newest version of a cluster's registry.
pub(crate) fn newest(client: &mut Client, cluster: &ClusterId) -> Result<SetVersion, String> {
    let sql = "SELECT version FROM siloring_registry WHERE cluster = $1";
    let found = client.query_typed_opt(sql, &[(&cluster.as_str(), Type::TEXT)]);
    let version = match found.map_err(|error| show(&error))? {
        Some(row) => row.try_get(0).map_err(|error| show(&error))?,
        None => 0,
    };
    number(version).map(SetVersion).map_err(|error| error.to_string())
}

impl Rows<'_> {
    /// Loads of streams, in one statement.
    pub(super) fn load_subscriptions(
        &mut self,
        requests: &[&StoreRequest],
    ) -> Result<Vec<StoreResult>, Failure> {
        let streams: Vec<&str> = requests.iter().copied().filter_map(as_load).collect();
        assert_eq!(streams.len(), requests.len(), "a run of loads has loads only");
        let found = self
            .client
            .query_typed(LOAD, &[(&self.cluster, Type::TEXT), (&streams, Type::TEXT_ARRAY)])?;
        let (version, rows) = decode(&found)?;
        let mut by_stream: BTreeMap<&str, Vec<Subscription>> = BTreeMap::new();
        for row in &rows {
            by_stream.entry(row.stream.as_str()).or_default().push(row.clone());
        }
        let answer = |stream: &&str| {
            let rows = by_stream.get(stream).cloned().unwrap_or_default();
            Ok(StoreAnswer::Subscriptions { rows, version })
        };
        Ok(streams.iter().map(answer).collect())
    }

    pub(super) fn list_subscriptions(
        &mut self,
        after: Option<&(Address, String)>,
        limit: u32,
    ) -> Result<StoreAnswer, Failure> {
        // No stream's text is empty: from there on is from the first on.
        let (stream, key) = after.map_or(("", ""), |(stream, key)| (stream.as_str(), key));
        let found = self.client.query_typed(
            LIST,
            &[
                (&self.cluster, Type::TEXT),
                (&stream, Type::TEXT),
                (&key, Type::TEXT),
                (&i64::from(limit), Type::INT8),
            ],
        )?;
        let (version, rows) = decode(&found)?;
        Ok(StoreAnswer::Subscriptions { rows, version })
    }

    /// Writes and removals of distinct subscriptions, in one statement.
    pub(super) fn change_subscriptions(
        &mut self,
        requests: &[&StoreRequest],
    ) -> Result<Vec<StoreResult>, Failure> {
        let changes = Changes::of(requests);
        let channel = channel(self.cluster);
        let found = self.client.query_typed(
            CHANGE,
            &[
                (&self.cluster, Type::TEXT),
                (&changes.streams, Type::TEXT_ARRAY),
                (&changes.keys, Type::TEXT_ARRAY),
                (&changes.hashes, Type::TEXT_ARRAY),
                (&changes.expected, Type::INT8_ARRAY),
                (&changes.consumers, Type::TEXT_ARRAY),
                (&changes.handlers, Type::INT8_ARRAY),
                (&changes.owners, Type::INT8_ARRAY),
                (&changes.views, Type::INT8_ARRAY),
                (&changes.filters, Type::TEXT_ARRAY),
                (&changes.operations, Type::TEXT_ARRAY),
                (&channel, Type::TEXT),
            ],
        )?;
        let mut answers = BTreeMap::new();
        for row in &found {
            let (stream, key): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            answers.insert((stream, key), SetVersion(number(row.try_get(2)?)?));
        }
        let answer = |(stream, key): (&&str, &&str)| {
            let version = answers.get(&(*stream, *key)).copied();
            version.map(StoreAnswer::Registered).ok_or(StoreError::Conflict)
        };
        Ok(changes.streams.iter().zip(&changes.keys).map(answer).collect())
    }

    /// Looks first: most sweeps find nothing, and then no version is used up and nobody is told.
    pub(super) fn sweep_subscriptions(
        &mut self,
        gone: &[Generation],
        view: ViewNumber,
    ) -> Result<StoreAnswer, Failure> {
        let owners: Vec<i64> = gone.iter().map(|owner| column(owner.0)).collect();
        let view = column(view.0);
        let found = self.client.query_typed_opt(
            "SELECT 1 FROM siloring_subscription
             WHERE cluster = $1 AND owner = ANY ($2) AND view <= $3 LIMIT 1",
            &[(&self.cluster, Type::TEXT), (&owners, Type::INT8_ARRAY), (&view, Type::INT8)],
        )?;
        if found.is_none() {
            return Ok(StoreAnswer::Swept { count: 0 });
        }
        let swept = self.client.query_typed_one(
            SWEEP,
            &[
                (&self.cluster, Type::TEXT),
                (&owners, Type::INT8_ARRAY),
                (&view, Type::INT8),
                (&channel(self.cluster), Type::TEXT),
                (&EVERYTHING, Type::TEXT),
            ],
        )?;
        Ok(StoreAnswer::Swept { count: number(swept.try_get(0)?)? })
    }

    /// Dead letters, in one statement.
    pub(super) fn write_letters(
        &mut self,
        requests: &[&StoreRequest],
    ) -> Result<Vec<StoreResult>, Failure> {
        let letters: Vec<&DeadLetter> = requests.iter().copied().filter_map(as_letter).collect();
        assert_eq!(letters.len(), requests.len(), "a run of dead letters has those only");
        let column_of = |field: fn(&DeadLetter) -> i64| -> Vec<i64> {
            letters.iter().map(|letter| field(letter)).collect()
        };
        let small_of = |field: fn(&DeadLetter) -> i32| -> Vec<i32> {
            letters.iter().map(|letter| field(letter)).collect()
        };
        let texts = |field: fn(&DeadLetter) -> &str| -> Vec<&str> {
            letters.iter().map(|letter| field(letter)).collect()
        };
        let origins: Vec<String> = letters.iter().map(|it| long_column(it.origin)).collect();
        let bodies: Vec<&[u8]> = letters.iter().map(|letter| &letter.body[..]).collect();
        self.client.query_typed(
            WRITE_LETTERS,
            &[
                (&self.cluster, Type::TEXT),
                (&texts(|it| it.stream.as_str()), Type::TEXT_ARRAY),
                (&texts(|it| &it.key), Type::TEXT_ARRAY),
                (&origins, Type::TEXT_ARRAY),
                (&column_of(|it| column(it.number)), Type::INT8_ARRAY),
                (&texts(|it| it.consumer.as_str()), Type::TEXT_ARRAY),
                (&small_of(|it| i32::from(it.attempts)), Type::INT4_ARRAY),
                (&texts(|it| &it.reason), Type::TEXT_ARRAY),
                (&column_of(|it| i64::from(it.schema.type_id)), Type::INT8_ARRAY),
                (&small_of(|it| i32::from(it.schema.version)), Type::INT4_ARRAY),
                (&small_of(|it| i32::from(it.schema.fingerprint)), Type::INT4_ARRAY),
                (&bodies, Type::BYTEA_ARRAY),
                (&column_of(|it| column(it.view.0)), Type::INT8_ARRAY),
            ],
        )?;
        Ok(letters.iter().map(|_| Ok(StoreAnswer::Done)).collect())
    }

    pub(super) fn read_letters(
        &mut self,
        stream: &Address,
        limit: u32,
    ) -> Result<StoreAnswer, Failure> {
        let found = self.client.query_typed(
            READ_LETTERS,
            &[
                (&self.cluster, Type::TEXT),
                (&stream.as_str(), Type::TEXT),
                (&i64::from(limit), Type::INT8),
                (&column(STORE_GROUP_BYTES_MAX as u64), Type::INT8),
            ],
        )?;
        let letters = found.iter().map(|row| Ok(letter_columns(row)?.decode()?));
        Ok(StoreAnswer::DeadLetters(letters.collect::<Result<_, Failure>>()?))
    }
}

/// Subscriptions of some streams, each with the newest version; a row of nulls if there are none.
const LOAD: &str = "
    SELECT g.version, s.stream, s.key, s.consumer, s.handler, s.owner, s.view, s.filter,
        s.operation, s.version
    FROM siloring_registry g
    LEFT JOIN siloring_subscription s ON s.cluster = g.cluster AND s.stream = ANY ($2)
    WHERE g.cluster = $1 ORDER BY s.stream, s.key";

/// Subscriptions behind one, as [`LOAD`] has them.
const LIST: &str = "
    SELECT g.version, s.stream, s.key, s.consumer, s.handler, s.owner, s.view, s.filter,
        s.operation, s.version
    FROM siloring_registry g
    LEFT JOIN LATERAL (
        SELECT * FROM siloring_subscription
        WHERE cluster = $1 AND (stream, key) > ($2, $3) ORDER BY stream, key LIMIT $4
    ) s ON true
    WHERE g.cluster = $1 ORDER BY s.stream, s.key";

/// Inserts, replaces and removes: a removal names no consumer, an insertion expects no version.
/// All of it waits for `minted`, whose row is the lock that orders such statements.
const CHANGE: &str = "
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11) WITH ORDINALITY
            AS r(stream, key, hash, expected, consumer, handler, owner, view, filter, operation,
                place)
    ), minted AS (
        INSERT INTO siloring_registry AS g (cluster, version)
        SELECT $1, count(*) FROM asked
        ON CONFLICT (cluster) DO UPDATE SET version = g.version + excluded.version
        RETURNING version - (SELECT count(*) FROM asked) AS base
    ), inserted AS (
        INSERT INTO siloring_subscription
            (cluster, stream, key, consumer, handler, owner, view, filter, operation, version)
        SELECT $1, a.stream, a.key, a.consumer, a.handler, a.owner, a.view, a.filter, a.operation,
            minted.base + a.place
        FROM asked a, minted WHERE a.consumer IS NOT NULL AND a.expected IS NULL
        ON CONFLICT (cluster, stream, key) DO NOTHING
        RETURNING stream, key, version
    ), replaced AS (
        UPDATE siloring_subscription AS s SET
            consumer = a.consumer, handler = a.handler, owner = a.owner, view = a.view,
            filter = a.filter, operation = a.operation, version = minted.base + a.place
        FROM asked a, minted
        WHERE s.cluster = $1 AND s.stream = a.stream AND s.key = a.key
            AND a.consumer IS NOT NULL AND s.version = a.expected
        RETURNING s.stream, s.key, s.version
    ), removed AS (
        DELETE FROM siloring_subscription AS s USING asked a, minted
        WHERE s.cluster = $1 AND s.stream = a.stream AND s.key = a.key
            AND a.consumer IS NULL AND s.version = a.expected
            AND s.owner IS NOT DISTINCT FROM a.owner
        RETURNING s.stream, s.key, minted.base + a.place
    ), done AS (
        SELECT * FROM inserted UNION ALL SELECT * FROM replaced UNION ALL SELECT * FROM removed
    )
    SELECT done.stream, done.key, done.version, pg_notify($12, a.hash)
    FROM done JOIN asked a ON a.stream = done.stream AND a.key = done.key";

/// Removes what owners that are gone have left, in the order of [`CHANGE`].
const SWEEP: &str = "
    WITH minted AS (
        INSERT INTO siloring_registry AS g (cluster, version) VALUES ($1, 1)
        ON CONFLICT (cluster) DO UPDATE SET version = g.version + 1
        RETURNING version
    ), removed AS (
        DELETE FROM siloring_subscription AS s USING minted
        WHERE s.cluster = $1 AND s.owner = ANY ($2) AND s.view <= $3
        RETURNING 1
    )
    SELECT count(*), pg_notify($4, $5) FROM removed";

/// Keeps dead letters in the order in which they came; those that are there stay as they are.
const WRITE_LETTERS: &str = "
    INSERT INTO siloring_dead_letter (cluster, stream, key, origin, number, consumer, attempts,
        reason, schema_type, schema_version, schema_fingerprint, body, view)
    SELECT $1, r.stream, r.key, r.origin, r.number, r.consumer, r.attempts, r.reason,
        r.schema_type, r.schema_version, r.schema_fingerprint, r.body, r.view
    FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) WITH ORDINALITY
        AS r(stream, key, origin, number, consumer, attempts, reason, schema_type, schema_version,
            schema_fingerprint, body, view, place)
    ORDER BY r.place
    ON CONFLICT (cluster, stream, key, origin, number) DO NOTHING";

/// The newest dead letters whose bodies fit one answer.
const READ_LETTERS: &str = "
    SELECT stream, key, origin, number, consumer, attempts, reason, schema_type, schema_version,
        schema_fingerprint, body, view
    FROM (SELECT *, sum(length(body)) OVER (ORDER BY position DESC) AS bytes
          FROM (SELECT * FROM siloring_dead_letter WHERE cluster = $1 AND stream = $2
                ORDER BY position DESC LIMIT $3) newest) fitting
    WHERE bytes <= $4 ORDER BY position";

/// Changes of a run, as columns.
#[derive(Default)]
struct Changes<'a> {
    streams: Vec<&'a str>,
    keys: Vec<&'a str>,
    hashes: Vec<String>,
    expected: Vec<Option<i64>>,
    /// `None` in a removal, as in the columns down to the operations, but for the owner.
    consumers: Vec<Option<&'a str>>,
    handlers: Vec<Option<i64>>,
    owners: Vec<Option<i64>>,
    views: Vec<Option<i64>>,
    filters: Vec<Option<&'a str>>,
    operations: Vec<Option<String>>,
}

impl<'a> Changes<'a> {
    fn of(requests: &[&'a StoreRequest]) -> Self {
        let mut changes = Self::default();
        for request in requests {
            if let StoreRequest::WriteSubscription { row, expected } = request {
                changes.push(&row.stream, &row.key, row.owner, *expected);
                changes.push_rest(Some(row));
            } else if let StoreRequest::RemoveSubscription { stream, key, owner, version } = request
            {
                changes.push(stream, key, *owner, Some(*version));
                changes.push_rest(None);
            }
        }
        assert_eq!(changes.keys.len(), requests.len(), "a run of changes has changes only");
        changes
    }

    fn push(
        &mut self,
        stream: &'a Address,
        key: &'a str,
        owner: Option<Generation>,
        expected: Option<SetVersion>,
    ) {
        self.streams.push(stream.as_str());
        self.keys.push(key);
        self.hashes.push(long_column(stream.hash().0));
        self.owners.push(owner.map(|owner| column(owner.0)));
        self.expected.push(expected.map(|expected| column(expected.0)));
    }

    fn push_rest(&mut self, row: Option<&'a Subscription>) {
        self.consumers.push(row.map(|row| row.consumer.as_str()));
        self.handlers.push(row.map(|row| i64::from(row.handler.0)));
        self.views.push(row.map(|row| column(row.view.0)));
        self.filters.push(row.map(|row| row.filter.as_str()));
        self.operations.push(row.map(|row| long_column(row.operation)));
    }
}

fn as_load(request: &StoreRequest) -> Option<&str> {
    if let StoreRequest::LoadSubscriptions { stream } = request {
        Some(stream.as_str())
    } else {
        None
    }
}

fn as_letter(request: &StoreRequest) -> Option<&DeadLetter> {
    if let StoreRequest::WriteDeadLetter(letter) = request { Some(letter) } else { None }
}

/// The newest version, and the subscriptions. Nothing found: a cluster without any so far.
fn decode(found: &[Row]) -> Result<(SetVersion, Vec<Subscription>), Failure> {
    let mut version = SetVersion(0);
    let mut rows = Vec::with_capacity(found.len());
    for row in found {
        version = SetVersion(number(row.try_get(0)?)?);
        if let Some(stream) = row.try_get::<_, Option<String>>(1)? {
            rows.push(subscription_columns(stream, row)?.decode()?);
        }
    }
    Ok((version, rows))
}

fn subscription_columns(stream: String, row: &Row) -> Result<SubscriptionColumns, postgres::Error> {
    Ok(SubscriptionColumns {
        stream,
        key: row.try_get(2)?,
        consumer: row.try_get(3)?,
        handler: row.try_get(4)?,
        owner: row.try_get(5)?,
        view: row.try_get(6)?,
        filter: row.try_get(7)?,
        operation: row.try_get(8)?,
        version: row.try_get(9)?,
    })
}

fn letter_columns(row: &Row) -> Result<LetterColumns, postgres::Error> {
    Ok(LetterColumns {
        stream: row.try_get(0)?,
        key: row.try_get(1)?,
        origin: row.try_get(2)?,
        number: row.try_get(3)?,
        consumer: row.try_get(4)?,
        attempts: row.try_get(5)?,
        reason: row.try_get(6)?,
        schema_type: row.try_get(7)?,
        schema_version: row.try_get(8)?,
        schema_fingerprint: row.try_get(9)?,
        body: row.try_get(10)?,
        view: row.try_get(11)?,
    })
}
