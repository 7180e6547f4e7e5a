//! The store port: membership, cluster settings, subscriptions and grain state, under
//! compare-and-set.
//!
//! A store does compare-and-set; it never retries and decides nothing. Requests and answers are
//! values, so that a machine asks by returning one and the simulator can lose or delay any.

use bytes::Bytes;

use crate::address::Address;
use crate::ids::{ActivationNumber, ClusterId, Generation, ViewNumber};
use crate::ports::registry::{DeadLetter, SetVersion, Subscription};
use crate::schema::Schema;
use crate::view::{SiloRow, View};

/// The membership table as read in one transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// The version: bumped by every change of a row, by nothing else.
    pub version: ViewNumber,
    /// The rows with their heartbeat counters.
    pub rows: Vec<TableRow>,
}

/// A row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableRow {
    /// What the view shows of it.
    pub row: SiloRow,
    /// Counts up while the silo lives; moves no version.
    pub heartbeat: u64,
}

impl Table {
    /// The view that this table shows.
    pub fn view(&self) -> View {
        View::new(self.version, self.rows.iter().map(|row| row.row.clone()).collect())
    }

    /// The heartbeat counter of a silo.
    pub fn heartbeat(&self, generation: Generation) -> Option<u64> {
        let row = self.rows.iter().find(|row| row.row.incarnation.generation == generation);
        row.map(|row| row.heartbeat)
    }
}

/// A setting that must be equal on all silos: name and value.
pub type Setting = (String, String);

/// The etag of a state record: what a write must have seen. 0 before the first write; each write
/// raises it, a removal too, so that no value ever comes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Etag(pub u64);

/// A grain's stored state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateRecord {
    /// What the bytes are.
    pub schema: Schema,
    /// The archive.
    pub bytes: Bytes,
}

/// Where a state record is: its grain's address and its name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StateKey {
    /// The grain.
    pub address: Address,
    /// Which of its records.
    pub name: String,
}

/// What a store is asked. Each is one transaction.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreRequest {
    /// Reads the membership table.
    ReadTable,
    /// Writes a row: inserts it, or replaces the one of its generation. Refused as
    /// [`StoreError::Conflict`] unless the table's version is `expected`; sets the version to
    /// `next`.
    ///
    /// A new row's generation is `Generation::of(next)`. A row that is Dead stays Dead: changing it
    /// to anything else is refused as [`StoreError::DeadStaysDead`], and so is a row of an older
    /// generation that is not there (it was removed, so it was Dead), unless it is written as Dead
    /// or is of a lineage before that of `next`. A status that goes back and a version that does
    /// not rise are [`StoreError::Refused`]. The store sets the row's `changed_in` to `next` and
    /// keeps its heartbeat.
    WriteRow {
        /// The version the writer has read.
        expected: ViewNumber,
        /// The version the write makes.
        next: ViewNumber,
        /// The row.
        row: SiloRow,
    },
    /// Removes rows of Dead silos; bumps the version like any change of a row.
    RemoveDead {
        /// The version the writer has read.
        expected: ViewNumber,
        /// The version the write makes.
        next: ViewNumber,
        /// Whose rows. A row that is not Dead is left alone.
        generations: Vec<Generation>,
    },
    /// Raises the heartbeat counter of a silo; a late, lower one changes nothing. Moves no version;
    /// answers [`StoreAnswer::Done`] also if the row is gone.
    Heartbeat {
        /// Whose.
        generation: Generation,
        /// The counter.
        counter: u64,
    },
    /// Writes the settings unless some are there, and answers with those that then hold, by name.
    /// Of two first writers one wins whole. An empty list only reads.
    Settings {
        /// What this silo is configured with.
        ours: Vec<Setting>,
    },
    /// Takes the fence of a record and returns its state: the record's fence becomes `fence` if
    /// that is not lower, else [`StoreError::Fenced`].
    LoadState {
        /// Which record.
        key: StateKey,
        /// The activation that loads it.
        fence: ActivationNumber,
    },
    /// Writes a record. Needs exactly the fence it was loaded with ([`StoreError::Fenced`]) and the
    /// etag it was last seen with ([`StoreError::Conflict`]; the fence is judged first). `None`
    /// removes the state and keeps the fence. A record that was never loaded is `Fenced`.
    WriteState {
        /// Which record.
        key: StateKey,
        /// The activation that writes it.
        fence: ActivationNumber,
        /// The etag of the last load or write.
        etag: Etag,
        /// The state.
        record: Option<StateRecord>,
    },
    /// Reads the subscriptions of a stream, by key.
    LoadSubscriptions {
        /// The stream.
        stream: Address,
    },
    /// Reads subscriptions of the whole cluster, by stream and key.
    ListSubscriptions {
        /// Behind which stream and key; `None` from the first on.
        after: Option<(Address, String)>,
        /// How many at most: 1 to [`REGISTRY_PAGE_MAX`](crate::limits::REGISTRY_PAGE_MAX).
        limit: u32,
    },
    /// Writes a subscription and mints its version. With `expected` it replaces the one of its
    /// stream and key at exactly that version; without, it is a new one. Else
    /// [`StoreError::Conflict`].
    WriteSubscription {
        /// The subscription.
        row: Subscription,
        /// The version that the writer has read; `None`: there is none.
        expected: Option<SetVersion>,
    },
    /// Removes a subscription if owner and version are as named, else [`StoreError::Conflict`].
    RemoveSubscription {
        /// The stream.
        stream: Address,
        /// The subscription's key.
        key: String,
        /// Whose it was when it was last seen.
        owner: Option<Generation>,
        /// Its version when it was last seen.
        version: SetVersion,
    },
    /// Removes the subscriptions of owners that are gone, if registered no later than the view that
    /// says so: a later one is left to a later view.
    SweepSubscriptions {
        /// The owners, at most [`SWEEP_OWNERS_MAX`](crate::limits::SWEEP_OWNERS_MAX).
        gone: Vec<Generation>,
        /// The view in which they are gone.
        view: ViewNumber,
    },
    /// Keeps a dead letter. The second of one stream, key, origin and number changes nothing.
    WriteDeadLetter(DeadLetter),
    /// Reads the newest dead letters of a stream.
    ReadDeadLetters {
        /// The stream.
        stream: Address,
        /// How many at most: 1 to [`REGISTRY_PAGE_MAX`](crate::limits::REGISTRY_PAGE_MAX). Fewer if
        /// their bodies together exceed
        /// [`STORE_GROUP_BYTES_MAX`](crate::limits::STORE_GROUP_BYTES_MAX).
        limit: u32,
    },
}

/// What a store answers.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreAnswer {
    /// The table, to `ReadTable`.
    Table(Table),
    /// Done, to `WriteRow`, `RemoveDead`, `Heartbeat` and `WriteDeadLetter`.
    Done,
    /// The settings that hold, to `Settings`.
    Settings(Vec<Setting>),
    /// The state and its etag, to `LoadState`.
    State {
        /// The record, if there is one.
        record: Option<StateRecord>,
        /// To be named by the next write.
        etag: Etag,
    },
    /// The etag of the record as written, to `WriteState`.
    Written(Etag),
    /// Subscriptions, to `LoadSubscriptions` and `ListSubscriptions`.
    Subscriptions {
        /// The rows, in order.
        rows: Vec<Subscription>,
        /// The newest version of the cluster: every write up to it is in the rows.
        version: SetVersion,
    },
    /// The version of the write, to `WriteSubscription` and `RemoveSubscription`.
    Registered(SetVersion),
    /// How many were removed, to `SweepSubscriptions`.
    Swept {
        /// The number.
        count: u64,
    },
    /// The dead letters, newest last, to `ReadDeadLetters`.
    DeadLetters(Vec<DeadLetter>),
}

/// Why a store did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else wrote first. Nothing was changed; read again.
    #[error("the version or etag has changed: read again")]
    Conflict,
    /// A later activation has the record. Nothing was changed; this activation must end.
    #[error("a later activation has loaded the record")]
    Fenced,
    /// A Dead row was to be changed. Nothing was changed; the writer is a zombie or broken.
    #[error("a Dead incarnation never returns")]
    DeadStaysDead,
    /// The request did not come to the store: it cannot be reached, or too much waits for it.
    /// Nothing was changed.
    #[error("the store was not reached: {detail}")]
    NotSent {
        /// What stood in the way, for people.
        detail: String,
    },
    /// The store did not answer, or not in time. Whether the change was made is unknown: read again
    /// before writing.
    #[error("the store is unavailable: {detail}")]
    Unavailable {
        /// What it said, for people.
        detail: String,
    },
    /// The store lacks a table or phase. Nothing was changed; run `siloring migrate`.
    #[error("the store lacks {missing}: run `siloring migrate {url}`")]
    NotMigrated {
        /// What is missing.
        missing: String,
        /// The store, without credentials.
        url: String,
    },
    /// The store refused the request for good. Nothing was changed.
    #[error("the store refused: {detail}")]
    Refused {
        /// What it said, for people.
        detail: String,
    },
}

/// What a store answered to one request.
pub type StoreResult = Result<StoreAnswer, StoreError>;

/// A store of one cluster: answers one request at a time, blocking. Lives on a thread of its own.
pub trait Store: Send {
    /// Which cluster's rows it shows and writes.
    fn cluster(&self) -> &ClusterId;

    /// Answers one request, as one transaction.
    fn execute(&mut self, request: &StoreRequest) -> StoreResult;

    /// Answers several requests, in one transaction where the store can; a request that is refused
    /// does not undo the others.
    fn execute_group(&mut self, requests: &[StoreRequest]) -> Vec<StoreResult> {
        requests.iter().map(|request| self.execute(request)).collect()
    }
}
