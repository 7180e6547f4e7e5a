//! How values stand in SQL columns: the one codec of the SQLite and Postgres stores.
//!
//! Numbers are signed 64-bit columns (checked before they get here), those of 128 bits are 32
//! hexadecimal digits, statuses are words, votes are `generation:heartbeat` pairs separated by
//! spaces, so that an operator can read a row. What comes back is not trusted: a row that does not
//! decode is a typed refusal naming it.

use siloring_core::ids::Incarnation;
use siloring_core::ports::registry::{DeadLetter, SetVersion, Subscription};
use siloring_core::ports::store::{StateRecord, StoreError, TableRow};
use siloring_core::schema::Schema;
use siloring_core::view::Vote;
use siloring_core::{Address, Generation, MethodId, SiloName, SiloRow, SiloStatus, ViewNumber};

use crate::judge::refused;

/// A number as a column has it.
pub(crate) fn column(number: u64) -> i64 {
    i64::try_from(number).expect("check_request has refused larger numbers")
}

/// A number from a column.
pub(crate) fn number(column: i64) -> Result<u64, StoreError> {
    u64::try_from(column).map_err(|error| unreadable(&format!("number {column}: {error}")))
}

/// A status as a column has it.
pub(crate) const fn status_text(status: SiloStatus) -> &'static str {
    match status {
        SiloStatus::Joining => "joining",
        SiloStatus::Active => "active",
        SiloStatus::Draining => "draining",
        SiloStatus::Dead => "dead",
    }
}

/// A status from a column.
pub(crate) fn status(text: &str) -> Result<SiloStatus, StoreError> {
    match text {
        "joining" => Ok(SiloStatus::Joining),
        "active" => Ok(SiloStatus::Active),
        "draining" => Ok(SiloStatus::Draining),
        "dead" => Ok(SiloStatus::Dead),
        other => Err(unreadable(&format!("status {other:?}"))),
    }
}

/// Votes as a column has them.
pub(crate) fn votes_text(votes: &[Vote]) -> String {
    let pairs: Vec<String> =
        votes.iter().map(|vote| format!("{}:{}", vote.by.0, vote.heartbeat)).collect();
    pairs.join(" ")
}

/// A row of `siloring_silo` as read.
#[derive(Debug)]
pub(crate) struct SiloColumns {
    pub(crate) generation: i64,
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) advertised: String,
    pub(crate) host: String,
    pub(crate) shards: i32,
    pub(crate) votes: String,
    pub(crate) changed_in: i64,
    pub(crate) heartbeat: i64,
}

impl SiloColumns {
    /// The row they make.
    pub(crate) fn decode(self) -> Result<TableRow, StoreError> {
        let name = SiloName::new(self.name)
            .map_err(|error| unreadable(&format!("silo {}: {error}", self.generation)))?;
        let shards = u16::try_from(self.shards)
            .map_err(|error| unreadable(&format!("shards of silo {name}: {error}")))?;
        let row = SiloRow {
            incarnation: Incarnation { name, generation: Generation(number(self.generation)?) },
            status: status(&self.status)?,
            advertised: self.advertised,
            host: self.host,
            shards,
            votes: votes(&self.votes)?,
            changed_in: ViewNumber(number(self.changed_in)?),
        };
        Ok(TableRow { row, heartbeat: number(self.heartbeat)? })
    }
}

/// The state columns of `siloring_state`, all null where there is no state.
#[derive(Debug, Default)]
pub(crate) struct StateColumns {
    pub(crate) schema_type: Option<i64>,
    pub(crate) schema_version: Option<i32>,
    pub(crate) schema_fingerprint: Option<i32>,
    pub(crate) bytes: Option<Vec<u8>>,
}

impl StateColumns {
    /// The columns of a record.
    pub(crate) fn of(record: Option<&StateRecord>) -> Self {
        record.map_or_else(Self::default, |record| Self {
            schema_type: Some(i64::from(record.schema.type_id)),
            schema_version: Some(i32::from(record.schema.version)),
            schema_fingerprint: Some(i32::from(record.schema.fingerprint)),
            bytes: Some(record.bytes.to_vec()),
        })
    }

    /// The record they make.
    pub(crate) fn decode(self) -> Result<Option<StateRecord>, StoreError> {
        let Some(bytes) = self.bytes else {
            return Ok(None);
        };
        let schema = Schema {
            type_id: schema_part(self.schema_type)?,
            version: schema_part(self.schema_version)?,
            fingerprint: schema_part(self.schema_fingerprint)?,
        };
        Ok(Some(StateRecord { schema, bytes: bytes.into() }))
    }
}

/// A row of `siloring_subscription` as read.
#[derive(Debug)]
pub(crate) struct SubscriptionColumns {
    pub(crate) stream: String,
    pub(crate) key: String,
    pub(crate) consumer: String,
    pub(crate) handler: i64,
    pub(crate) owner: Option<i64>,
    pub(crate) view: i64,
    pub(crate) filter: String,
    pub(crate) operation: String,
    pub(crate) version: i64,
}

impl SubscriptionColumns {
    /// The subscription they make.
    pub(crate) fn decode(self) -> Result<Subscription, StoreError> {
        let handler = u32::try_from(self.handler)
            .map_err(|error| unreadable(&format!("handler of {}: {error}", self.stream)))?;
        Ok(Subscription {
            stream: address(&self.stream)?,
            key: self.key,
            consumer: address(&self.consumer)?,
            handler: MethodId(handler),
            owner: self.owner.map(number).transpose()?.map(Generation),
            view: ViewNumber(number(self.view)?),
            filter: self.filter,
            operation: long_number(&self.operation)?,
            version: SetVersion(number(self.version)?),
        })
    }
}

/// A row of `siloring_dead_letter` as read.
#[derive(Debug)]
pub(crate) struct LetterColumns {
    pub(crate) stream: String,
    pub(crate) key: String,
    pub(crate) origin: String,
    pub(crate) number: i64,
    pub(crate) consumer: String,
    pub(crate) attempts: i32,
    pub(crate) reason: String,
    pub(crate) schema_type: i64,
    pub(crate) schema_version: i32,
    pub(crate) schema_fingerprint: i32,
    pub(crate) body: Vec<u8>,
    pub(crate) view: i64,
}

impl LetterColumns {
    /// The dead letter they make.
    pub(crate) fn decode(self) -> Result<DeadLetter, StoreError> {
        let attempts = u8::try_from(self.attempts)
            .map_err(|error| unreadable(&format!("attempts of a dead letter: {error}")))?;
        Ok(DeadLetter {
            stream: address(&self.stream)?,
            key: self.key,
            consumer: address(&self.consumer)?,
            origin: long_number(&self.origin)?,
            number: number(self.number)?,
            attempts,
            reason: self.reason,
            schema: Schema {
                type_id: schema_part(Some(self.schema_type))?,
                version: schema_part(Some(self.schema_version))?,
                fingerprint: schema_part(Some(self.schema_fingerprint))?,
            },
            body: self.body.into(),
            view: ViewNumber(number(self.view)?),
        })
    }
}

/// A 128-bit number as a column has it.
pub(crate) fn long_column(number: u128) -> String {
    format!("{number:032x}")
}

fn long_number(text: &str) -> Result<u128, StoreError> {
    u128::from_str_radix(text, 16).map_err(|error| unreadable(&format!("number {text:?}: {error}")))
}

fn address(text: &str) -> Result<Address, StoreError> {
    Address::parse(text).map_err(|error| unreadable(&error.to_string()))
}

fn schema_part<C, T: TryFrom<C>>(column: Option<C>) -> Result<T, StoreError> {
    column.and_then(|part| T::try_from(part).ok()).ok_or_else(|| unreadable("schema of a record"))
}

fn votes(text: &str) -> Result<Vec<Vote>, StoreError> {
    text.split(' ').filter(|pair| !pair.is_empty()).map(vote).collect()
}

fn vote(pair: &str) -> Result<Vote, StoreError> {
    let parts = pair.split_once(':').and_then(|(by, heartbeat)| {
        Some(Vote { by: Generation(by.parse().ok()?), heartbeat: heartbeat.parse().ok()? })
    });
    parts.ok_or_else(|| unreadable(&format!("vote {pair:?}")))
}

fn unreadable(what: &str) -> StoreError {
    refused(format!("a stored value is not readable: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> SiloColumns {
        SiloColumns {
            generation: 3,
            name: "pod".into(),
            status: "active".into(),
            advertised: "127.0.0.1:7000".into(),
            host: "h".into(),
            shards: 2,
            votes: votes_text(&[Vote { by: Generation(5), heartbeat: 8 }]),
            changed_in: 4,
            heartbeat: 9,
        }
    }

    fn subscription() -> SubscriptionColumns {
        SubscriptionColumns {
            stream: "stream/orders/7".into(),
            key: "k".into(),
            consumer: "grain/1".into(),
            handler: i64::from(u32::MAX),
            owner: None,
            view: 3,
            filter: String::new(),
            operation: long_column(u128::MAX),
            version: 9,
        }
    }

    #[test]
    fn a_row_comes_back_as_it_was_written() {
        let row = subscription().decode().unwrap();
        assert_eq!((row.operation, row.handler), (u128::MAX, MethodId(u32::MAX)));
        let row = columns().decode().unwrap();
        assert_eq!(row.row.votes, vec![Vote { by: Generation(5), heartbeat: 8 }]);
        assert_eq!((row.row.status, row.heartbeat), (SiloStatus::Active, 9));
        for status in
            [SiloStatus::Joining, SiloStatus::Active, SiloStatus::Draining, SiloStatus::Dead]
        {
            assert_eq!(super::status(status_text(status)), Ok(status));
        }
    }

    #[test]
    fn an_edited_row_is_refused_and_not_guessed() {
        let edits: [fn(&mut SiloColumns); 6] = [
            |row| row.status = "gone".into(),
            |row| row.generation = -1,
            |row| row.name = "a b".into(),
            |row| row.shards = 70_000,
            |row| row.votes = "5-8".into(),
            |row| row.heartbeat = -2,
        ];
        for edit in edits {
            let mut row = columns();
            edit(&mut row);
            assert!(matches!(row.decode(), Err(StoreError::Refused { .. })));
        }
        let edits: [fn(&mut SubscriptionColumns); 5] = [
            |row| row.stream = "no address".into(),
            |row| row.consumer = String::new(),
            |row| row.handler = -1,
            |row| row.owner = Some(-3),
            |row| row.operation = "xyz".into(),
        ];
        for edit in edits {
            let mut row = subscription();
            edit(&mut row);
            assert!(matches!(row.decode(), Err(StoreError::Refused { .. })));
        }
        let state = StateColumns { bytes: Some(vec![1]), ..StateColumns::default() };
        assert!(
            matches!(state.decode(), Err(StoreError::Refused { .. })),
            "bytes without a schema"
        );
    }
}
