//! How connections end, and what faults do to those that are open.

use std::time::Duration;

use siloring_core::limits::LINK_SILENCE_MAX;

use super::super::trace::Code;
use super::super::world::{Core, Happening, HostId, Input, ProcessId, nanos};
use super::{EndId, EndState, Ending, Path, SEND_AGAIN_AFTER};

/// Ends.
impl Core {
    /// Starts the sender's wait for an acknowledgement that cannot come.
    pub(super) fn await_silence(&mut self, end: EndId) {
        let pipe = self.network.pipe(end);
        if pipe.silence.is_multiple_of(2) {
            pipe.silence += 1;
            let token = pipe.silence;
            self.queue.push(self.now + LINK_SILENCE_MAX, Happening::Silence { end, token });
        }
    }

    pub(in crate::sim) fn silence_ended(&mut self, end: EndId, token: u32) {
        let state = self.network.end(end);
        let (EndState::Open, Some((process, part))) = (state.state, state.owner) else {
            return;
        };
        if state.pipe.silence != token {
            return;
        }
        self.give_up(end);
        self.forget_end(end);
        self.note_break(end);
        self.give(process, part, Input::Closed { end, ending: Ending::TimedOut });
        self.send_reset(end);
    }

    /// What has not arrived is sent no more.
    pub(super) fn give_up(&mut self, end: EndId) {
        let pipe = self.network.pipe(end);
        pipe.bytes.truncate(pipe.arrived);
        pipe.held = 0;
    }

    /// A program closes its end.
    pub(in crate::sim) fn close(&mut self, process: ProcessId, end: EndId) {
        self.assert_owner(process, end);
        let unread = self.network.end(end.peer()).pipe.arrived > 0;
        match self.network.end(end).state {
            EndState::Closed => {}
            EndState::Connecting => {
                self.forget_end(end);
                self.send_reset(end);
            }
            EndState::Open => {
                self.forget_end(end);
                self.note_break(end);
                if unread {
                    self.send_reset(end);
                } else {
                    self.start_finish(end);
                }
            }
        }
    }

    /// The kernel closes what a process that exits has open.
    pub(in crate::sim) fn close_ends(&mut self, process: ProcessId) {
        for end in self.process(process).ends.clone() {
            self.close(process, end);
        }
    }

    /// The kernel ends what a killed process had open: in order, or in the middle of a frame.
    pub(in crate::sim) fn cut_ends(&mut self, process: ProcessId) {
        for end in self.process(process).ends.clone() {
            if self.random.network.bool() {
                self.close(process, end);
            } else {
                self.cut_end(end);
            }
        }
    }

    /// The machine is gone: nobody is told.
    pub(in crate::sim) fn forget_ends(&mut self, process: ProcessId) {
        for end in self.process(process).ends.clone() {
            self.forget_end(end);
            self.note_break(end);
        }
    }

    /// Resets an end after a part of what it had in flight.
    fn cut_end(&mut self, end: EndId) {
        if self.network.end(end).state == EndState::Closed {
            return;
        }
        self.forget_end(end);
        self.note_break(end);
        let pipe = &self.network.end(end).pipe;
        let in_flight = pipe.bytes.len() - pipe.arrived;
        let kept = self.random.network.usize(0..=in_flight);
        let pipe = self.network.pipe(end);
        pipe.bytes.truncate(pipe.arrived + kept);
        pipe.held = pipe.held.min(kept);
        self.send_reset(end);
    }

    /// Resets every connection between two hosts, each at its own moment and byte.
    pub(in crate::sim) fn cut_between(&mut self, one: HostId, other: HostId) {
        for end in self.network.open_ends_between(one, other) {
            let owner = self.network.end(end).owner;
            self.cut_end(end);
            if let Some((process, part)) = owner {
                self.give(process, part, Input::Closed { end, ending: Ending::Reset });
            }
        }
    }

    /// Every connection between two hosts is reset in the middle of its next write.
    pub(in crate::sim) fn tear_between(&mut self, one: HostId, other: HostId) {
        for end in self.network.open_ends_between(one, other) {
            self.network.pipe(end).torn = true;
            self.network.pipe(end.peer()).torn = true;
        }
    }

    /// No connection is torn any more that is not yet: one that has been idle since would be, when
    /// nobody expects it.
    pub(in crate::sim) fn end_tears(&mut self) {
        for connection in &mut self.network.connections {
            for end in &mut connection.ends {
                end.pipe.torn = false;
            }
        }
    }

    /// Every connection between two hosts passes nothing any more; new ones do.
    pub(in crate::sim) fn forget_between(&mut self, one: HostId, other: HostId) {
        for end in self.network.open_ends_between(one, other) {
            self.network.connections[end.connection()].is_forgotten = true;
            for end in [end, end.peer()] {
                let pipe = &self.network.end(end).pipe;
                if pipe.bytes.len() > pipe.arrived {
                    self.await_silence(end);
                }
            }
        }
    }

    pub(super) fn note_break(&self, end: EndId) {
        let (here, there) = (self.network.end(end).host, self.network.end(end.peer()).host);
        if let (Some(here), Some(there)) = (here, there) {
            self.scene.note_break(here, there);
        }
    }

    /// Our end is closed: nothing is told here, what it had received is gone.
    pub(super) fn forget_end(&mut self, end: EndId) {
        let state = self.network.end_mut(end);
        state.state = EndState::Closed;
        if let Some((process, _)) = state.owner {
            self.process_mut(process).ends.retain(|open| *open != end);
        }
        let incoming = self.network.pipe(end.peer());
        incoming.bytes.clear();
        (incoming.arrived, incoming.held) = (0, 0);
        incoming.starved = false;
    }

    fn start_finish(&mut self, end: EndId) {
        let pipe = self.network.pipe(end);
        pipe.finish = true;
        if pipe.arrived == pipe.bytes.len() {
            self.send_finish(end);
        }
    }

    pub(super) fn send_finish(&mut self, from: EndId) {
        let at = self.arrival(from);
        self.queue.push(at, Happening::Ended { end: from.peer(), ending: Ending::Finished });
    }

    pub(super) fn send_reset(&mut self, from: EndId) {
        let at = self.arrival(from);
        self.queue.push(at, Happening::Ended { end: from.peer(), ending: Ending::Reset });
    }

    /// The other side's end arrives at `end`.
    pub(in crate::sim) fn end_arrived(&mut self, end: EndId, ending: Ending) {
        let dropped = self.network.path(end.peer()).dropped;
        let state = self.network.end(end);
        if state.state == EndState::Closed || dropped {
            return; // A finish is sent again when the path heals; a reset is not.
        }
        let Some((process, part)) = state.owner else {
            self.network.end_mut(end).state = EndState::Closed;
            return;
        };
        self.trace.enter(self.now, Code::End, u64::from(end.0), ending as u64);
        match ending {
            Ending::Reset | Ending::TimedOut => self.forget_end(end),
            Ending::Finished => {
                // What has arrived stays readable; what we sent meanwhile meets a closed end.
                self.network.end_mut(end).state = EndState::Closed;
                self.process_mut(process).ends.retain(|open| *open != end);
            }
        }
        self.note_break(end);
        self.give(process, part, Input::Closed { end, ending });
    }
}

/// Faults of paths.
impl Core {
    /// What ails the way from one host to another is now this.
    pub(in crate::sim) fn set_path(&mut self, from: HostId, to: HostId, path: Path) {
        let before = self.network.path_between(from, to);
        self.network.set_path(from, to, path);
        if path.dropped && !before.dropped {
            self.path_dropped(from, to);
        }
        if before.dropped && !path.dropped {
            self.path_healed(from, to);
        }
    }

    fn path_dropped(&mut self, from: HostId, to: HostId) {
        for end in self.network.open_ends_between(from, to) {
            let pipe = &self.network.end(end).pipe;
            if pipe.bytes.len() > pipe.arrived {
                self.await_silence(end);
            }
        }
    }

    fn path_healed(&mut self, from: HostId, to: HostId) {
        for index in 0..self.network.connections.len() {
            let base = u32::try_from(index * 2).expect("checked when dialed");
            for end in [EndId(base), EndId(base + 1)] {
                let here = self.network.end(end).host;
                let there = self.network.end(end.peer()).host;
                if (here, there) == (Some(from), Some(to)) {
                    self.end_healed(end);
                } else if (here, there) == (Some(to), Some(from)) {
                    self.acknowledged(end);
                }
            }
        }
    }

    /// What `end` had to hold back is sent again.
    fn end_healed(&mut self, end: EndId) {
        let again = nanos(SEND_AGAIN_AFTER);
        let late = Duration::from_nanos(self.random.network.u64(again..5 * again));
        let now = self.now;
        let pipe = self.network.pipe(end);
        let held = std::mem::take(&mut pipe.held);
        pipe.last_arrival = pipe.last_arrival.max(now + late);
        let at = pipe.last_arrival;
        let finished = pipe.finish && pipe.arrived == pipe.bytes.len();
        if held > 0 {
            self.queue.push(at, Happening::Arrive { end, bytes: held });
        } else if finished {
            self.queue.push(at, Happening::Ended { end: end.peer(), ending: Ending::Finished });
        }
        self.acknowledged(end);
    }

    /// Nothing hinders acknowledgements to `end` any more.
    fn acknowledged(&mut self, end: EndId) {
        let hindered = self.network.path(end).dropped || self.network.path(end.peer()).dropped;
        let pipe = self.network.pipe(end);
        if hindered || pipe.silence.is_multiple_of(2) {
            return;
        }
        pipe.silence += 1;
        if self.network.end(end.peer()).state == EndState::Closed {
            // What was sent again finds nobody.
            self.send_reset(end.peer());
        }
    }
}
