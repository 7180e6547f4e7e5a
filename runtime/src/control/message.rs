//! What the control machines of two silos say to each other on their control lane.
//!
//! Every message may be lost, repeated or late: each is either repeated by a timer of its sender or
//! only speeds up what the periodic read of the store does anyway. Moments of two machines are
//! never compared: what travels is an age.

use core::time::Duration;

use rkyv::{Archive, Deserialize, Serialize};
use siloring_core::limits::SHARDS_MAX;
use siloring_core::{Generation, SiloRow, View, ViewNumber};

/// A view as it travels: its number and all its rows.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ViewRows {
    /// The view's number.
    pub number: ViewNumber,
    /// Its rows, by generation.
    pub rows: Vec<SiloRow>,
}

impl ViewRows {
    /// Of `view`.
    pub fn of(view: &View) -> Self {
        Self { number: view.number(), rows: view.rows().to_vec() }
    }

    /// The view itself; `None` if two rows have one generation or a shard count is out of range: a
    /// row that nobody honest wrote, which must not bring this silo down.
    pub fn view(mut self) -> Option<View> {
        self.rows.sort_by_key(|row| row.incarnation.generation);
        let distinct = self
            .rows
            .windows(2)
            .all(|pair| pair[0].incarnation.generation < pair[1].incarnation.generation);
        let in_range = self.rows.iter().all(|row| (1..=SHARDS_MAX).contains(&row.shards));
        (distinct && in_range).then(|| View::new(self.number, self.rows))
    }
}

/// Names one probe or relay of its sender.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ProbeNumber(pub u64);

/// How long ago the sender of an answer asked the store for a table that showed the asker in
/// service.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAge {
    /// Nanoseconds.
    pub nanos: u64,
}

impl ReadAge {
    /// From a duration; saturates.
    pub fn of(age: Duration) -> Self {
        Self { nanos: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// As a duration.
    pub const fn age(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }
}

/// Whether a silo was reached.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    /// It answered.
    Yes,
    /// It did not, in time.
    No,
}

/// One message between two control machines.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum ControlMessage {
    /// "Are you there?" Answered at once.
    Probe {
        /// Named by the answer.
        number: ProbeNumber,
        /// The asker's view: a newer one makes the receiver read the store.
        view: ViewNumber,
    },
    /// To a probe.
    ProbeAnswer {
        /// The probe's.
        number: ProbeNumber,
        /// The answerer's view.
        view: ViewNumber,
        /// Age of the answerer's last store read that showed the asker in service; none if that
        /// read is older than the lease or showed it otherwise.
        read: Option<ReadAge>,
        /// Progress counter of each shard of the answerer.
        progress: Vec<u64>,
        /// The answerer's view, if it is newer than the asker's.
        newer: Option<ViewRows>,
    },
    /// "Probe that silo for me." Answered when it is reached, or was not in time.
    Relay {
        /// Named by the answer.
        number: ProbeNumber,
        /// Who is to be probed.
        target: Generation,
    },
    /// To a relay.
    RelayAnswer {
        /// The relay's.
        number: ProbeNumber,
        /// What became of it.
        reached: Reached,
    },
    /// A view that the receiver may not have: sent after a write, and to a peer that showed an
    /// older one.
    Newer(ViewRows),
    /// A joiner asks: "can you dial my advertised address?"
    ReachBack {
        /// Named by the answer.
        number: ProbeNumber,
        /// The asker's view, which lists it.
        view: ViewNumber,
    },
    /// To a `ReachBack`.
    ReachedBack {
        /// The question's.
        number: ProbeNumber,
        /// Whether the joiner answered at its advertised address.
        reached: Reached,
    },
    /// The sender leaves in order: it counts as heard from now on.
    Goodbye,
}

impl ControlMessage {
    /// Its name, for logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Probe { .. } => "Probe",
            Self::ProbeAnswer { .. } => "ProbeAnswer",
            Self::Relay { .. } => "Relay",
            Self::RelayAnswer { .. } => "RelayAnswer",
            Self::Newer(_) => "Newer",
            Self::ReachBack { .. } => "ReachBack",
            Self::ReachedBack { .. } => "ReachedBack",
            Self::Goodbye => "Goodbye",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::rkyv::rancor;

    #[test]
    fn a_message_survives_the_wire() {
        let message = ControlMessage::ProbeAnswer {
            number: ProbeNumber(7),
            view: ViewNumber::new(1, 9),
            read: Some(ReadAge::of(Duration::from_millis(3))),
            progress: vec![1, u64::MAX],
            newer: Some(ViewRows { number: ViewNumber(9), rows: Vec::new() }),
        };
        let bytes = rkyv::to_bytes::<rancor::Error>(&message).unwrap();
        let back = rkyv::from_bytes::<ControlMessage, rancor::Error>(&bytes).unwrap();
        assert_eq!(back, message);
    }
}
