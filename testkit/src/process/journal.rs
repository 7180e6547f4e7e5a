//! What a process of a chaos run sent, ran and heard: one file a process, one line an entry.
//!
//! An entry is given to the kernel before what it tells can have an effect (a delivery before it is
//! sent, a run before it is answered), so that a `kill -9` loses none that another process may know
//! of. Times are of the machine's own clock, whatever the process believes: the files of all
//! processes of one machine can be put in one order. Bounds: [`ENTRIES_MAX`] entries a process;
//! beyond it nothing is written and [`Journal::is_full`] says so, which ends the load.
//! Deliberately absent: any judgement, which is [`replay`]'s.
//!
//! [`replay`]: crate::sim::ledger::replay

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siloring_core::{ActivationNumber, Address, Moment, ViewNumber};

/// Entries that a process may write: a minute of a busy load takes a tenth of them.
pub const ENTRIES_MAX: u64 = 1 << 20;
/// Ids of one process; the process' own number is above them.
const IDS_BITS: u32 = 40;

/// One process' file.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// Which process of the run, from zero.
    process: u64,
    written: AtomicU64,
    ids: AtomicU64,
}

/// How a delivery is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// It is answered.
    Request,
    /// Only its failure is told.
    OneWay,
    /// To a stream.
    Publish,
}

/// How a delivery ended: handled, or the code of its failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Of the failure; zero: it was handled.
    pub code: u16,
    /// Consumers that have not handled it, of a publish.
    pub failed: u32,
    /// What was answered, where it is looked at.
    pub value: Option<u64>,
}

/// What an entry tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A delivery is about to be sent.
    Began {
        /// Which.
        id: u64,
        /// By which of the process' senders.
        source: u32,
        /// How.
        sending: Sending,
        /// Its outcome is due within this.
        budget: Duration,
        /// To whom.
        target: Address,
    },
    /// A handler runs a delivery.
    Ran {
        /// Which.
        id: u64,
        /// From 1.
        attempt: u8,
    },
    /// A consumer runs an event.
    RanEvent {
        /// Which.
        id: u64,
        /// From 1.
        attempt: u8,
        /// Which stream.
        stream: Address,
        /// Whose subscription.
        key: String,
        /// The stream's owner that brought it.
        epoch: ActivationNumber,
        /// Its place there.
        position: u64,
        /// The consumer's activation.
        activation: ActivationNumber,
    },
    /// The sender has heard.
    Ended {
        /// Which.
        id: u64,
        /// How.
        end: End,
    },
    /// The sender waits no more: of a one-way, no failure was told.
    Dropped {
        /// Which.
        id: u64,
    },
    /// A subscription is acknowledged.
    Subscribed {
        /// Which stream.
        stream: Address,
        /// Whose subscription.
        key: String,
    },
}

/// An entry, as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When, by the machine's clock.
    pub at: Moment,
    /// What.
    pub what: What,
}

impl Journal {
    /// Opens the file of the run's process of this number.
    pub fn create(path: &Path, process: u64) -> io::Result<Self> {
        let file = File::options().create_new(true).append(true).open(path)?;
        Ok(Self { file, process, written: AtomicU64::new(0), ids: AtomicU64::new(0) })
    }

    /// A delivery's id that no other process of the run gives.
    pub fn next_id(&self) -> u64 {
        (self.process << IDS_BITS) | self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether it takes no more entries.
    pub fn is_full(&self) -> bool {
        self.written.load(Ordering::Relaxed) >= ENTRIES_MAX
    }

    /// Adds an entry.
    pub fn add(&self, what: &What) {
        if self.written.fetch_add(1, Ordering::Relaxed) >= ENTRIES_MAX {
            return;
        }
        let line = format!("{} {what}\n", now().as_nanos());
        // One write of one line: threads add side by side, and a kill tears none.
        (&self.file).write_all(line.as_bytes()).expect("the run's folder can be written");
    }
}

/// The machine's clock.
pub fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since_boot = Duration::try_from(time).expect("the time since boot is never negative");
    Moment::ZERO + since_boot
}

impl std::fmt::Display for What {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Began { id, source, sending, budget, target } => {
                let sending = match sending {
                    Sending::Request => "request",
                    Sending::OneWay => "one-way",
                    Sending::Publish => "publish",
                };
                write!(out, "began {id} {source} {sending} {} {target}", budget.as_millis())
            }
            Self::Ran { id, attempt } => write!(out, "ran {id} {attempt}"),
            Self::RanEvent { id, attempt, stream, key, epoch, position, activation } => {
                write!(out, "event {id} {attempt} {stream} {key} {} ", numbers(*epoch))?;
                write!(out, "{position} {}", numbers(*activation))
            }
            Self::Ended { id, end: End { code, failed, value } } => {
                write!(out, "ended {id} {code} {failed}")?;
                value.map_or(Ok(()), |value| write!(out, " {value}"))
            }
            Self::Dropped { id } => write!(out, "dropped {id}"),
            Self::Subscribed { stream, key } => write!(out, "subscribed {stream} {key}"),
        }
    }
}

fn numbers(activation: ActivationNumber) -> String {
    let mut text = String::new();
    write!(text, "{} {}", activation.view.0, activation.counter).expect("into a string");
    text
}

/// Reads a process' file. A last line without an end is none: its process was killed in it.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| text.split_at(end).0);
    let entry = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        parse(&words).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, line.to_owned()))
    };
    whole.lines().map(entry).collect()
}

fn parse(words: &[&str]) -> Option<Entry> {
    let (at, rest) = words.split_first()?;
    let activation = |view: &str, counter: &str| {
        let view = ViewNumber(view.parse().ok()?);
        Some(ActivationNumber { view, counter: counter.parse().ok()? })
    };
    let what = match rest {
        ["began", id, source, sending, budget, target] => What::Began {
            id: id.parse().ok()?,
            source: source.parse().ok()?,
            sending: match *sending {
                "request" => Sending::Request,
                "one-way" => Sending::OneWay,
                "publish" => Sending::Publish,
                _ => return None,
            },
            budget: Duration::from_millis(budget.parse().ok()?),
            target: Address::parse(target).ok()?,
        },
        ["ran", id, attempt] => What::Ran { id: id.parse().ok()?, attempt: attempt.parse().ok()? },
        ["event", id, attempt, stream, key, view, counter, position, of_view, of_counter] => {
            What::RanEvent {
                id: id.parse().ok()?,
                attempt: attempt.parse().ok()?,
                stream: Address::parse(stream).ok()?,
                key: (*key).to_owned(),
                epoch: activation(view, counter)?,
                position: position.parse().ok()?,
                activation: activation(of_view, of_counter)?,
            }
        }
        ["ended", id, code, failed, value @ ..] => What::Ended {
            id: id.parse().ok()?,
            end: End {
                code: code.parse().ok()?,
                failed: failed.parse().ok()?,
                value: value.first().and_then(|value| value.parse().ok()),
            },
        },
        ["dropped", id] => What::Dropped { id: id.parse().ok()? },
        ["subscribed", stream, key] => {
            What::Subscribed { stream: Address::parse(stream).ok()?, key: (*key).to_owned() }
        }
        _ => return None,
    };
    Some(Entry { at: Moment::from_nanos(at.parse().ok()?), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_torn_end_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let journal = Journal::create(&path, 3).unwrap();
        let (stream, key) = (Address::parse("stream/load/one").unwrap(), "key".to_owned());
        let activation = ActivationNumber { view: ViewNumber(7), counter: 2 };
        let id = journal.next_id();
        assert_eq!(id >> IDS_BITS, 3);
        let all = [
            What::Subscribed { stream: stream.clone(), key: key.clone() },
            What::Began {
                id,
                source: 1,
                sending: Sending::Publish,
                budget: Duration::from_secs(8),
                target: stream.clone(),
            },
            What::Ran { id, attempt: 2 },
            What::RanEvent {
                id,
                attempt: 1,
                stream,
                key,
                epoch: activation,
                position: 9,
                activation,
            },
            What::Dropped { id },
            What::Ended { id, end: End { code: 0, failed: 1, value: None } },
            What::Ended { id, end: End { code: 3, failed: 0, value: Some(4) } },
        ];
        for what in &all {
            journal.add(what);
        }
        File::options().append(true).open(&path).unwrap().write_all(b"12 ran 1").unwrap();
        let read = read(&path).unwrap();
        assert!(read.is_sorted_by_key(|entry| entry.at));
        assert_eq!(read.into_iter().map(|entry| entry.what).collect::<Vec<What>>(), all);
    }
}
