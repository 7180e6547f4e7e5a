//! The trace: a hash over everything that happens, and text for whoever asks.
//!
//! Two runs of one seed and plan must end with one hash. Text is made only if somebody looks; since
//! a run can be repeated, nothing is recorded ahead of a failure.

use siloring_core::Moment;
use siloring_core::schema::mix;

/// Where the lines of a watched run go.
pub type TraceSink = Box<dyn FnMut(&str)>;

/// The running hash of a world.
pub(super) struct Trace {
    hash: u64,
    count: u64,
    sink: Option<TraceSink>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Trace({:016x} after {})", self.hash, self.count)
    }
}

impl Trace {
    pub(super) fn new(sink: Option<TraceSink>) -> Self {
        Self { hash: 0, count: 0, sink }
    }

    /// Enters one happening: its code and two numbers that say which.
    #[inline]
    pub(super) fn enter(&mut self, now: Moment, code: Code, which: u64, what: u64) {
        let mut hash = mix(self.hash, now.as_nanos());
        hash = mix(hash, (code as u64) << 56 ^ which);
        self.hash = mix(hash, what);
        self.count += 1;
        if let Some(sink) = &mut self.sink {
            sink(&format!("{now:?} {code:?} {which:#x} {what:#x}"));
        }
    }

    /// Says more to whoever looks; the text is made only then and is no part of the hash.
    #[inline]
    pub(super) fn note(&mut self, now: Moment, text: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink(&format!("{now:?}   {}", text()));
        }
    }

    pub(super) const fn is_watched(&self) -> bool {
        self.sink.is_some()
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Code {
    Run = 1,
    Write = 2,
    Arrive = 3,
    Dial = 4,
    Connect = 5,
    End = 6,
    StoreDone = 7,
    StoreAnswered = 8,
    Process = 9,
    Fault = 10,
    Delivery = 11,
    Event = 12,
}
