//! The lines between the conductor and a pod: one JSON object a line, commands down the pod's
//! standard input, reports up its standard output.
//!
//! The conductor's end of file means: drain and go.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Signs of life that a pod asks for when it is probed.
pub(crate) const PROBES: u32 = 10;

/// What the conductor asks of a pod.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) enum Command {
    /// Open the member's hub, replacing an earlier one, and join these rooms if it is a newcomer.
    /// Its place in the cast is its name in the journal.
    Open { member: String, place: u32, rooms: Vec<String>, join: Join },
    /// Post as a member whose hub is open here.
    Say { number: u64, member: String, room: String, text: String },
    /// Ask each of these rooms, over and over until [`PROBES`] were asked, for a sign of life.
    Probe { rooms: Vec<String> },
    /// Finish what was begun, drain the silo, report for the last time, end.
    Drain,
}

/// Whether a member joins its rooms when its hub is opened.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// It has never been in them.
    Rooms,
    /// It only moves from one pod to another.
    Nothing,
}

/// What a pod tells the conductor.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) enum Report {
    /// The silo is active.
    Ready,
    /// The member's hub is claimed, and it is in its rooms.
    Opened { member: String },
    /// The member's hub could not be opened, or a room did not take it.
    NotOpened { member: String, why: String },
    /// A post has ended, one way or the other.
    Said { number: u64, outcome: Outcome, took_us: u64 },
    /// How many of [`PROBES`] came back, and how the others ended.
    Probed { passed: u32, failed: Vec<String> },
    /// What was counted since the last one.
    Tally(Box<Tally>),
    /// The last line: everything was finished, the silo has drained.
    Drained,
}

/// How a post ended.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub(crate) enum Outcome {
    /// The room has handled it.
    Handled,
    /// A failure of this kind.
    Failed(String),
}

/// What a pod counted since its last report.
#[derive(Serialize, Deserialize, Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Deliveries that rooms here began.
    pub(crate) delivered: Deliveries,
    /// Microseconds from a member to its room's handler, as (value, how often).
    pub(crate) to_room_us: Vec<(u64, u64)>,
    /// Microseconds from a room to a member's handler, by a call.
    pub(crate) to_member_us: Vec<(u64, u64)>,
    /// Publishes that rooms here began.
    pub(crate) published: Deliveries,
    /// Microseconds from a publish to its outcome.
    pub(crate) published_us: Vec<(u64, u64)>,
    /// What those publishes' outcomes say of the members' hubs.
    pub(crate) to_subscribers: Deliveries,
    /// Microseconds from a room to a member's handler, over a stream.
    pub(crate) to_subscriber_us: Vec<(u64, u64)>,
    /// What the subscriber check said before those publishes.
    pub(crate) checks: Checks,
}

/// Answers of the subscriber check.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) live: u64,
    pub(crate) none: u64,
    pub(crate) unknown: u64,
}

impl Checks {
    pub(crate) const fn add(&mut self, other: Self) {
        self.live += other.live;
        self.none += other.none;
        self.unknown += other.unknown;
    }
}

/// Deliveries of one kind and what became of them.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Deliveries {
    pub(crate) sent: u64,
    pub(crate) handled: u64,
    pub(crate) failed: BTreeMap<String, u64>,
}

impl Deliveries {
    /// Adds what was counted elsewhere.
    pub(crate) fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.handled += other.handled;
        for (kind, count) in other.failed {
            *self.failed.entry(kind).or_default() += count;
        }
    }

    /// Counts failures of a kind.
    pub(crate) fn failed(&mut self, kind: &str, count: u64) {
        *self.failed.entry(kind.to_owned()).or_default() += count;
    }

    /// Those without an outcome so far.
    pub(crate) fn open(&self) -> u64 {
        self.sent - self.handled - self.failed.values().sum::<u64>()
    }
}

/// Writes one line; the caller flushes.
pub(crate) fn write_line(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, message)?;
    out.write_all(b"\n")
}

/// Reads lines until the other end is gone. What is no message ends it too: the other end died in
/// the middle of a line, or is no pod.
pub(crate) fn read_lines<M: DeserializeOwned>(input: impl BufRead) -> impl Iterator<Item = M> {
    input.lines().map_while(|line| serde_json::from_str(&line.ok()?).ok())
}
