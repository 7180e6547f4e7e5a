//! Connections: two ordered pipes of bytes each, that can be cut anywhere.
//!
//! What TCP does is modelled, packets are not: bytes arrive in order, after a latency, in pieces
//! that have nothing to do with the writes; a lost packet is a late piece; a path that drops
//! everything holds the bytes back until it heals, or until the sender's user time-out breaks its
//! end, with what had not arrived, while the other end stays half-open and learns of it when it
//! writes. A kill cuts in the
//! middle of whatever was in flight, so of frames too. A reset is lost like any packet, and never
//! sent again.
//!
//! Bounds: what is neither read nor arrived is at most [`NetworkSettings::pipe_bytes_max`] a pipe.
//! Deliberately absent: keep-alive of idle connections (probes find those), half-close.

mod ends;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use siloring_core::Moment;
use siloring_core::hash::stable_u64;

use super::rare::{SHORT_READ, SHORT_WRITE};
use super::trace::Code;
use super::wiretap::{Side, Wiretap};
use super::world::{Core, Happening, HostId, Input, Part, ProcessId, nanos};

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndId(pub u32);

impl EndId {
    /// The end at the other side.
    #[must_use]
    pub const fn peer(self) -> Self {
        Self(self.0 ^ 1)
    }

    const fn connection(self) -> usize {
        (self.0 >> 1) as usize
    }

    const fn side(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// Why a dial failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialFailure {
    /// The process has no descriptor left for it.
    NoFiles,
    /// Nobody listens there, or a firewall says so.
    Refused,
    /// No machine has this address.
    Unreachable,
}

/// How a connection ended, as one end sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The peer closed it; everything it wrote has arrived.
    Finished,
    /// It was reset: what had not been read is gone.
    Reset,
    /// What this end wrote was not acknowledged in time.
    TimedOut,
}

/// Latencies and buffers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NetworkSettings {
    /// Shortest time from a write to the arrival.
    pub latency_min: Duration,
    /// Longest one on a path without faults, but for the rare tail.
    pub latency_max: Duration,
    /// One in a hundred pieces takes up to this long.
    pub latency_tail: Duration,
    /// Bytes on their way or unread in one direction.
    pub pipe_bytes_max: usize,
    /// Of a thousand writes, how many arrive in two pieces.
    pub split_per_mille: u16,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(50),
            latency_max: Duration::from_micros(500),
            latency_tail: Duration::from_millis(5),
            pipe_bytes_max: 256 * 1024,
            split_per_mille: 100,
        }
    }
}

/// A lost first packet of a connection is sent again after this, as Linux does.
const SYN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A lost piece is sent again after this, doubled with each further loss.
const SEND_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Losses in a row of one piece.
const LOSSES_MAX: u32 = 4;

/// What ails the way from one host to another; nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Packets vanish.
    pub dropped: bool,
    /// Dials are refused by a firewall.
    pub refused: bool,
    /// Added to each latency.
    pub delay: Duration,
    /// Of a thousand pieces, how many are lost and sent again.
    pub lost_per_mille: u16,
}

#[derive(Debug, Default)]
struct Pipe {
    /// Sent and not yet read.
    bytes: VecDeque<u8>,
    /// The first so many are in the receiver's kernel.
    arrived: usize,
    /// The last so many wait for the path to heal.
    held: usize,
    last_arrival: Moment,
    /// The sender has closed; told after the last byte.
    finish: bool,
    /// The sender was cut short.
    starved: bool,
    /// What is written next is cut in its middle, and the connection reset.
    torn: bool,
    /// Which wait for an acknowledgement is the current one; even if none is.
    silence: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndState {
    Connecting,
    Open,
    Closed,
}

#[derive(Debug)]
struct End {
    host: Option<HostId>,
    owner: Option<(ProcessId, Part)>,
    state: EndState,
    /// What this end sends.
    pipe: Pipe,
    readable_told: bool,
}

#[derive(Debug)]
struct Connection {
    ends: [End; 2],
    /// How it was dialled.
    way: &'static str,
    /// Something on its way has forgotten it: nothing passes any more.
    is_forgotten: bool,
    /// Who listens to it.
    tap: Wiretap,
}

/// Every connection, and what ails the paths.
#[derive(Debug)]
pub(super) struct Network {
    settings: NetworkSettings,
    connections: Vec<Connection>,
    paths: BTreeMap<(HostId, HostId), Path>,
}

impl Network {
    pub(super) const fn new(settings: NetworkSettings) -> Self {
        Self { settings, connections: Vec::new(), paths: BTreeMap::new() }
    }

    /// How a connection was dialled: `unix`, by name, or `tcp`, by address.
    pub(super) fn way(&self, end: EndId) -> &'static str {
        self.connections[end.connection()].way
    }

    /// Frames that were begun on all connections.
    pub(super) fn frames_count(&self) -> u64 {
        self.connections.iter().map(|connection| connection.tap.frames_count()).sum()
    }

    /// How many connections were dialled by name.
    pub(super) fn named_count(&self) -> usize {
        self.connections.iter().filter(|it| it.way == "unix").count()
    }

    fn end(&self, end: EndId) -> &End {
        &self.connections[end.connection()].ends[end.side()]
    }

    fn end_mut(&mut self, end: EndId) -> &mut End {
        &mut self.connections[end.connection()].ends[end.side()]
    }

    fn pipe(&mut self, from: EndId) -> &mut Pipe {
        &mut self.end_mut(from).pipe
    }

    /// What ails the way of the bytes that `from` sends.
    fn path(&self, from: EndId) -> Path {
        if self.connections[from.connection()].is_forgotten {
            return Path { dropped: true, ..Path::default() };
        }
        if self.paths.is_empty() {
            return Path::default();
        }
        let (Some(here), Some(there)) = (self.end(from).host, self.end(from.peer()).host) else {
            return Path::default();
        };
        self.paths.get(&(here, there)).copied().unwrap_or_default()
    }

    pub(super) fn set_path(&mut self, from: HostId, to: HostId, path: Path) {
        if path == Path::default() {
            self.paths.remove(&(from, to));
        } else {
            self.paths.insert((from, to), path);
        }
    }

    pub(super) fn path_between(&self, from: HostId, to: HostId) -> Path {
        self.paths.get(&(from, to)).copied().unwrap_or_default()
    }

    fn open_ends_between(&self, from: HostId, to: HostId) -> Vec<EndId> {
        let ends = (0..self.connections.len()).flat_map(|index| {
            let base = u32::try_from(index * 2).expect("checked when dialed");
            [EndId(base), EndId(base + 1)]
        });
        ends.filter(|end| {
            self.end(*end).host == Some(from)
                && self.end(end.peer()).host == Some(to)
                && self.end(*end).state == EndState::Open
        })
        .collect()
    }
}

/// Dialing.
impl Core {
    pub(super) fn dial(&mut self, process: ProcessId, part: Part, address: &str) -> EndId {
        let index = u32::try_from(self.network.connections.len() * 2);
        let end = EndId(index.expect("a run has fewer than 2 G connections"));
        let blank = |host, owner| End {
            host,
            owner,
            state: EndState::Connecting,
            pipe: Pipe::default(),
            readable_told: false,
        };
        let here = Some(self.process(process).host);
        let there = self.host_at(address);
        self.network.connections.push(Connection {
            ends: [blank(here, Some((process, part))), blank(there, None)],
            way: if self.names.contains_key(address) { "unix" } else { "tcp" },
            is_forgotten: false,
            tap: Wiretap::default(),
        });
        self.process_mut(process).ends.push(end);
        self.trace.enter(self.now, Code::Dial, u64::from(end.0), u64::from(process.0));
        self.trace.note(self.now, || format!("{process:?} dials {address}"));
        if self.process(process).no_files {
            self.forget_end(end);
            self.give(process, part, Input::DialFailed { end, failure: DialFailure::NoFiles });
            return end;
        }
        let at = self.now + self.latency(end);
        self.queue.push(at, Happening::Syn { end });
        end
    }

    pub(super) fn syn_arrived(&mut self, end: EndId) {
        if self.network.end(end).state != EndState::Connecting {
            return;
        }
        let path = self.network.path(end);
        if path.dropped {
            self.queue.push(self.now + SYN_AGAIN_AFTER, Happening::Syn { end });
            return;
        }
        let host = self.network.end(end.peer()).host;
        let listener = host.and_then(|host| self.listener(host)).filter(|_| !path.refused);
        let at = self.now + self.latency(end.peer());
        if let Some(process) = listener.filter(|process| self.process(*process).no_files) {
            self.queue.push(at, Happening::DialAnswer { end, accepted: true });
            self.turn_away(end.peer(), process, at);
            return;
        }
        if let Some(process) = listener {
            let accepted = self.network.end_mut(end.peer());
            accepted.owner = Some((process, Part(0)));
            accepted.state = EndState::Open;
            accepted.pipe.last_arrival = at;
            self.process_mut(process).ends.push(end.peer());
            self.give(process, Part(0), Input::Accepted { end: end.peer() });
        }
        self.queue.push(at, Happening::DialAnswer { end, accepted: listener.is_some() });
    }

    /// Its kernel has accepted; the process can only close it again.
    fn turn_away(&mut self, end: EndId, process: ProcessId, connected: Moment) {
        let accepted = self.network.end_mut(end);
        accepted.state = EndState::Closed;
        accepted.pipe.last_arrival = connected;
        self.send_finish(end);
        self.give(process, Part(0), Input::TurnedAway);
    }

    pub(super) fn dial_answered(&mut self, end: EndId, accepted: bool) {
        let Some((process, part)) = self.network.end(end).owner else {
            return;
        };
        if self.network.end(end).state != EndState::Connecting {
            return;
        }
        if self.network.path(end.peer()).dropped {
            let again = Happening::DialAnswer { end, accepted };
            self.queue.push(self.now + SYN_AGAIN_AFTER, again);
            return;
        }
        self.trace.enter(self.now, Code::Connect, u64::from(end.0), u64::from(accepted));
        if accepted {
            self.network.end_mut(end).state = EndState::Open;
            self.give(process, part, Input::Connected { end });
            self.tell_readable(end);
            return;
        }
        self.forget_end(end);
        let known = self.network.end(end.peer()).host.is_some();
        let failure = if known { DialFailure::Refused } else { DialFailure::Unreachable };
        self.give(process, part, Input::DialFailed { end, failure });
    }
}

/// Bytes.
impl Core {
    pub(super) fn write(&mut self, process: ProcessId, end: EndId, bytes: &[u8]) -> usize {
        self.assert_owner(process, end);
        if self.network.end(end).state != EndState::Open {
            return 0;
        }
        let room = self.network.settings.pipe_bytes_max;
        let pipe = self.network.pipe(end);
        let mut taken = bytes.len().min(room.saturating_sub(pipe.bytes.len()));
        if taken > 1 && self.scene.rare.borrow_mut().is_asked(SHORT_WRITE) {
            taken = self.scene.rare.borrow_mut().part_of(taken);
        }
        let is_torn = self.network.pipe(end).torn && taken > 1;
        if is_torn {
            taken = self.random.network.usize(1..taken);
        }
        let pipe = self.network.pipe(end);
        pipe.bytes.extend(&bytes[..taken]);
        pipe.starved = taken < bytes.len();
        self.bytes_written += taken as u64;
        let side = if end.side() == 0 { Side::Dialer } else { Side::Acceptor };
        let broken = self.network.connections[end.connection()].tap.written(side, &bytes[..taken]);
        if let Some((invariant, text)) = broken {
            self.violate(invariant, text);
        }
        let what = stable_u64(&bytes[..taken]);
        self.trace.enter(self.now, Code::Write, u64::from(end.0), what);
        if taken > 0 {
            self.ship(end, taken);
        }
        if is_torn {
            self.torn(end);
        }
        taken
    }

    /// After a part of what was to be written the connection is reset.
    fn torn(&mut self, end: EndId) {
        let (process, part) = self.network.end(end).owner.expect("an open end has an owner");
        self.forget_end(end);
        self.note_break(end);
        self.send_reset(end);
        self.torn_count += 1;
        self.give(process, part, Input::Closed { end, ending: Ending::Reset });
    }

    /// Sends the last `bytes` of a pipe on their way.
    fn ship(&mut self, end: EndId, bytes: usize) {
        let path = self.network.path(end);
        let back = self.network.path(end.peer());
        if path.dropped || back.dropped {
            self.await_silence(end);
        }
        if path.dropped {
            self.network.pipe(end).held += bytes;
            return;
        }
        let split = self.network.settings.split_per_mille;
        let first = if bytes > 1 && self.random.network.u16(..1000) < split {
            self.random.network.usize(1..bytes)
        } else {
            bytes
        };
        self.send_piece(end, first);
        if first < bytes {
            self.send_piece(end, bytes - first);
        }
    }

    fn send_piece(&mut self, end: EndId, bytes: usize) {
        let at = self.arrival(end);
        self.queue.push(at, Happening::Arrive { end, bytes });
    }

    /// When what `end` sends now arrives: never before what it sent earlier.
    fn arrival(&mut self, end: EndId) -> Moment {
        let mut at = self.now + self.latency(end);
        let lost = self.network.path(end).lost_per_mille;
        let mut losses = 0;
        while lost > 0 && losses < LOSSES_MAX && self.random.network.u16(..1000) < lost {
            at += SEND_AGAIN_AFTER * (1 << losses);
            losses += 1;
        }
        let pipe = self.network.pipe(end);
        pipe.last_arrival = pipe.last_arrival.max(at);
        pipe.last_arrival
    }

    fn latency(&mut self, end: EndId) -> Duration {
        let settings = &self.network.settings;
        let tail = self.random.network.u8(..100) == 0;
        let longest = if tail { settings.latency_tail } else { settings.latency_max };
        let span = nanos(settings.latency_min)..=nanos(longest);
        Duration::from_nanos(self.random.network.u64(span)) + self.network.path(end).delay
    }

    pub(super) fn arrived(&mut self, end: EndId, bytes: usize) {
        let dropped = self.network.path(end).dropped;
        let receiver = self.network.end(end.peer()).state;
        let pipe = self.network.pipe(end);
        // A cut may have taken some of them.
        let bytes = bytes.min(pipe.bytes.len() - pipe.arrived - pipe.held);
        if dropped {
            pipe.held += bytes;
            let will_send_again = pipe.finish || self.network.end(end).state != EndState::Closed;
            if !will_send_again {
                self.give_up(end);
            }
            return;
        }
        if receiver == EndState::Closed {
            pipe.bytes.clear();
            (pipe.arrived, pipe.held) = (0, 0);
            self.send_reset(end.peer());
            return;
        }
        pipe.arrived += bytes;
        let over = pipe.finish && pipe.arrived == pipe.bytes.len();
        self.trace.enter(self.now, Code::Arrive, u64::from(end.0), bytes as u64);
        self.tell_readable(end.peer());
        if over {
            self.send_finish(end);
        }
    }

    fn tell_readable(&mut self, end: EndId) {
        let waiting = self.network.end(end.peer()).pipe.arrived > 0;
        let receiver = self.network.end_mut(end);
        if receiver.state == EndState::Open && waiting && !receiver.readable_told {
            receiver.readable_told = true;
            let (process, part) = receiver.owner.expect("an open end has an owner");
            self.give(process, part, Input::Readable { end });
        }
    }

    pub(super) fn read(&mut self, process: ProcessId, end: EndId, space: &mut [u8]) -> usize {
        self.assert_owner(process, end);
        let pipe = self.network.pipe(end.peer());
        let mut count = space.len().min(pipe.arrived);
        if count > 1 && self.scene.rare.borrow_mut().is_asked(SHORT_READ) {
            count = self.scene.rare.borrow_mut().part_of(count);
        }
        let (front, back) = pipe.bytes.as_slices();
        let from_front = count.min(front.len());
        space[..from_front].copy_from_slice(&front[..from_front]);
        space[from_front..count].copy_from_slice(&back[..count - from_front]);
        pipe.bytes.drain(..count);
        pipe.arrived -= count;
        let drained = pipe.arrived == 0;
        let starved = count > 0 && std::mem::take(&mut pipe.starved);
        if drained {
            self.network.end_mut(end).readable_told = false;
        }
        if starved {
            let at = self.now + self.latency(end);
            self.queue.push(at, Happening::Writable { end: end.peer() });
        }
        count
    }

    pub(super) fn writable(&mut self, end: EndId) {
        let told = self.network.end(end);
        if let (EndState::Open, Some((process, part))) = (told.state, told.owner) {
            self.give(process, part, Input::Writable { end });
        }
    }

    pub(super) fn hand_over(&mut self, process: ProcessId, end: EndId, part: Part) {
        self.assert_owner(process, end);
        let state = self.network.end_mut(end);
        state.owner = Some((process, part));
        state.readable_told = false;
        self.tell_readable(end);
    }

    fn assert_owner(&self, process: ProcessId, end: EndId) {
        let owner = self.network.end(end).owner.map(|(owner, _)| owner);
        assert_eq!(owner, Some(process), "a process uses its own ends");
    }
}
