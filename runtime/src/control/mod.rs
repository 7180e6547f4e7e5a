//! The control machine of a silo: membership, failure detection, joining, leaving, the right to
//! serve.
//!
//! **Contract.** One [`Control`] per silo, on its control thread. Inputs are `handle_*`, `heard`,
//! `notified`, `accuse` and `tick`; each takes the time. Effects come out of
//! [`Control::poll_output`], to be drained after every input; [`Control::next_deadline`] says when
//! the next `tick` is due, never more than half a second ahead. An output may be lost (a message, a
//! store answer): nothing waits for one without a timer.
//!
//! **Invariants.** The view of this machine never goes back, and its Dead never become Active (a
//! store that says otherwise is repaired under a new lineage first). The table is written under
//! compare-and-set, one request at a time, and read again before any write that follows an unknown
//! outcome. `ServeUntil` is never further ahead than the lease. No clock is compared with another
//! machine's, none is a wall clock.
//!
//! **Bounds.** Peers and rows: `SILOS_MAX`; relays for others: `RELAYS_MAX`; dials on a joiner's
//! behalf: `INQUIRIES_MAX`; one table request and one heartbeat at the store.
//!
//! Deliberately absent: sockets, threads, clocks, SQL; the choice of shards and grains.

mod desk;
mod detector;
mod dialback;
mod join;
mod lease;
mod machine;
mod membership;
mod message;
mod stalls;
#[cfg(test)]
mod tests;
mod votes;

use std::sync::Arc;

use core::time::Duration;

use siloring_core::event::Event;
use siloring_core::limits::{SHARDS_MAX, STALL_ABORT_AFTER};
use siloring_core::ports::store::{Setting, StoreRequest};
use siloring_core::{Generation, Incarnation, Moment, ShardIndex, SiloName, View};

pub use self::join::JoinError;
pub use self::machine::Control;
pub use self::message::{ControlMessage, ProbeNumber, Reached, ReadAge, ViewRows};

/// What a silo is configured with.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ControlConfig {
    /// Its name; each start of it is a new incarnation.
    pub name: SiloName,
    /// Where others reach it: `host:port`. Bound before [`Control::start`].
    pub advertised: String,
    /// Names its host and network namespace.
    pub host: String,
    /// Its shards, at least one.
    pub shards: u16,
    /// What must be equal on all silos of the cluster.
    pub settings: Vec<Setting>,
    /// A shard without progress for this long ends the process; `None` never.
    pub stall_abort_after: Option<Duration>,
}

impl ControlConfig {
    /// Of a silo that is reached at `advertised`, with the defaults of `limits`.
    ///
    /// # Panics
    /// If `shards` is 0 or above `SHARDS_MAX`.
    pub fn new(
        name: SiloName,
        advertised: impl Into<String>,
        host: impl Into<String>,
        shards: u16,
        settings: Vec<Setting>,
    ) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "shards out of range");
        Self {
            name,
            advertised: advertised.into(),
            host: host.into(),
            shards,
            settings,
            stall_abort_after: Some(STALL_ABORT_AFTER),
        }
    }
}

/// Names one request at the store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoreTicket(pub u64);

/// What became of the control lane to a silo.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// The handshake with that very incarnation is done, whoever dialled.
    Connected,
    /// A lane that was up is gone (reset, end of stream, frame error).
    Broken,
    /// A dial was refused or reset, or another incarnation answered: that one is not there.
    Refused,
    /// A dial was not answered in time.
    Silent,
    /// The peer refused us: its view has our incarnation Dead.
    Disowned,
}

/// What a dial of an address found ([`ControlOutput::Inquire`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inquiry {
    /// A silo of this cluster answered, and said who it is.
    Answered(Incarnation),
    /// Nobody, or nobody of this cluster.
    Silent,
}

/// What the machine wants done.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlOutput {
    /// Ask the store; answer with [`Control::handle_store`].
    Store(StoreTicket, StoreRequest),
    /// Send on the control lane to that silo; without a lane it is dropped, a timer makes up for
    /// it.
    Send(Generation, ControlMessage),
    /// See that there is a control lane to that silo at that address; answer with
    /// [`Control::handle_reach`], also if it is already up.
    Connect(Generation, String),
    /// Close the control lane to that silo, if any, and dial anew; answer as to `Connect`.
    Reconnect(Generation, String),
    /// Find out who answers at an address, in a handshake for inquiry; answer with
    /// [`Control::handle_inquiry`].
    Inquire(String),
    /// This silo's row is in the table: handshakes may use the incarnation from now on.
    Named(Incarnation),
    /// A newer view holds.
    View(Arc<View>),
    /// This silo is Active.
    Started,
    /// This silo could not join. The machine has ended; a last request to the store, which takes
    /// its row away, may have come just before.
    JoinFailed(JoinError),
    /// Input may be accepted up to and including this moment; replaces the one before.
    ServeUntil(Moment),
    /// A shard made no progress for so long. The driver, which can see what it runs, makes the
    /// event.
    Stalled {
        /// Which.
        shard: ShardIndex,
        /// For how long.
        stalled: Duration,
    },
    /// A shard made no progress for longer than allowed: end the process, with a core dump.
    Abort {
        /// Which.
        shard: ShardIndex,
    },
    /// The leave is done: the row is Dead, or could not be written in time. The goodbyes that came
    /// just before are to be flushed ahead of the close. The machine has ended.
    Left,
    /// End the process with this code. The machine has ended.
    Exit(u8),
    /// Something happened.
    Event(Event),
}

/// The exit code of a silo that found itself declared Dead.
pub const EXIT_DECLARED_DEAD: u8 = 70;

/// A deliberate defect, to show that a test can fail. Absent from release builds.
#[cfg(any(test, feature = "planted"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// A write of unknown outcome is taken for made.
    UnknownCommitAssumed,
    /// A vote counts however old it is.
    VotesNeverExpire,
    /// A vote counts though its author is accused.
    AccusedVotes,
    /// A vote is allowed although the silo was heard of late.
    BytesForbidNothing,
    /// No third silo is asked before a vote.
    NoThird,
    /// The lease never ends.
    ServesForever,
    /// A silo whose row is gone goes on.
    IgnoresOwnDeath,
    /// A view is taken up although it is older than the one held.
    ViewGoesBack,
    /// A joiner does not care who answers.
    JoinsUnproven,
    /// The first missed probe is the last one allowed, and asks for no silence.
    OneMissSuffices,
    /// Nobody votes.
    NeverVotes,
    /// Two votes are needed although one accuser is left.
    VotesFixed,
    /// A joiner leaves the older row of its own address as it is.
    OldRowKept,
    /// Only the store renews the right to serve.
    StoreAloneRenews,
    /// A joiner leaves stale rows as they are.
    StaleRowsKept,
    /// What was due while the silo itself was stopped is taken for the others' silence.
    LateTimersTrusted,
}
