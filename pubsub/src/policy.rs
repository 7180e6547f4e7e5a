//! What a stream does with slow consumers, failing handlers and events of the past.
//!
//! A policy belongs to a namespace; silos of a cluster are built with the same ones.

use siloring_core::limits::{
    CONSUMER_BACKLOG_MAX, EVENT_ATTEMPTS_MAX, RETAINED_BYTES, RETAINED_EVENTS,
};

/// What happens when a consumer has [`StreamPolicy::backlog_max`] events before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overflow {
    /// The publisher hears `Overloaded`: nothing is lost, everybody waits for the slowest.
    #[default]
    Refuse,
    /// The consumer loses what it has not been handed yet, and its next event says how many
    /// ([`EventInfo::missed`]). Nobody waits.
    ///
    /// [`EventInfo::missed`]: siloring_runtime::envelope::EventInfo::missed
    Gap,
}

/// How the streams of a namespace treat their consumers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamPolicy {
    /// What happens when a consumer is too slow.
    pub overflow: Overflow,
    /// How many events may wait for one consumer.
    pub backlog_max: u64,
    /// An event whose handling failed so often becomes a dead letter.
    pub attempts_max: u8,
    /// How many closed events stay for who subscribes from an earlier position.
    pub retained_events: usize,
    /// How many bytes of them.
    pub retained_bytes: usize,
}

impl Default for StreamPolicy {
    fn default() -> Self {
        Self {
            overflow: Overflow::Refuse,
            backlog_max: CONSUMER_BACKLOG_MAX,
            attempts_max: EVENT_ATTEMPTS_MAX,
            retained_events: RETAINED_EVENTS,
            retained_bytes: RETAINED_BYTES,
        }
    }
}
