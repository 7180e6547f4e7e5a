//! Lanes of the queue: each publisher's numbers, taken in once and in order.
//!
//! What was taken in before is known by its number, whether it is closed or not; what came too
//! early waits for the numbers before it, though not for those that its publisher has given up, nor
//! for longer than `LANE_HOLD_MAX`: a number that comes later than that is refused, so that no
//! order is ever broken. What its publisher has done with is said by each event as it was when it
//! was first sent: whoever waits longer than a moment is let go, asked for anew, and waited for.

use siloring_core::limits::{LANE_HELD_MAX, LANE_HOLD_MAX, LANES_MAX};
use siloring_core::outcome::{DeliveryFailure, IndeterminateKind, RejectedKind};
use siloring_core::time::Moment;

use crate::few::Few;
use crate::planted::is_planted;

use super::{
    NewEvent, OPEN, Origin, Published, Queue, QueueOutput, Summary, Waiting, index_of, refused,
};

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Its publisher has heard, or given up, every number below.
    base: u64,
    /// Every number below has been taken in or given up.
    pub(super) expected: u64,
    /// Taken in and not closed: number and position.
    pub(super) open: Few<u64, u64>,
    /// Closed, while its publisher may still ask.
    pub(super) closed: Few<u64, Summary>,
    /// Waits for `expected`; without its event if that was let go, and will come again.
    pub(super) held: Few<u64, Option<Box<NewEvent>>>,
    pub(super) held_since: Option<Moment>,
    pub(super) used: Moment,
}

impl Lane {
    /// Events that wait here.
    pub(super) fn held_count(&self) -> usize {
        self.held.values().filter(|event| event.is_some()).count()
    }

    /// Waits no longer for whom it has waited for, but for the first of those that have come.
    fn give_up_waiting(&mut self) {
        if self.held_count() == 0 {
            self.held = Few::default();
        }
        while let Some((&number, event)) = self.held.first() {
            if number > self.expected || event.is_some() {
                self.expected = self.expected.max(number);
                return;
            }
            // It was let go, and has not come again in all this time.
            self.held.pop_first();
        }
    }
}

impl Queue {
    /// Takes an event in, once.
    pub(crate) fn publish(&mut self, now: Moment, event: NewEvent) -> Published {
        let Origin { lane: id, number } = event.origin;
        if !self.lanes.contains_key(&id) && !self.make_room_for_lane() {
            return refused("too many publishers");
        }
        let lane = self.lanes.get_or_default(id);
        lane.used = now;
        if event.base > lane.base {
            self.forget_below(id, event.base);
            // What was held for those numbers need not wait for this event's turn.
            self.take_held(id);
        }
        let lane = self.lanes.get_or_default(id);
        let (base, expected) = (lane.base, lane.expected);
        if number < base {
            // A frame that was late: the event has had its outcome, here or at an earlier owner.
            return Published::Refused(done_with());
        }
        if number <= expected && !lane.held.is_empty() {
            // It was let go, and has come again in its turn.
            lane.held.remove(&number);
        }
        if let Some(known) = self.join(event.origin, event.waiting) {
            return known;
        }
        if !is_planted!(self, LanesUnordered) {
            if number > expected {
                return self.hold(now, event);
            }
            if number < expected {
                return refused("later events of its publisher have waited for it, and went ahead");
            }
        }
        let taken = self.take_in(event);
        self.take_held(id);
        taken
    }

    /// The publisher has done with every number below `base`.
    fn forget_below(&mut self, id: u128, base: u64) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.base = base;
        lane.expected = lane.expected.max(base);
        while lane.closed.first().is_some_and(|(number, _)| *number < base) {
            lane.closed.pop_first();
        }
        while lane.held.first().is_some_and(|(number, _)| *number < base) {
            let event = lane.held.pop_first().and_then(|(_, event)| event);
            let refuse = |event: Box<NewEvent>| QueueOutput::Refused {
                waiting: event.waiting,
                failure: done_with(),
            };
            self.outputs.extend(event.map(refuse));
        }
    }

    /// Lets somebody wait for an event that was taken in before, if it is known.
    pub(crate) fn join(&mut self, origin: Origin, waiting: Waiting) -> Option<Published> {
        let lane = self.lanes.get(&origin.lane)?;
        if let Some(position) = lane.open.get(&origin.number) {
            let position = *position;
            let entry = &mut self.entries[index_of(self.first, position)];
            entry.open.as_mut().expect(OPEN).waiting.push(waiting);
            return Some(Published::Known(position));
        }
        lane.closed.get(&origin.number).cloned().map(Published::Closed)
    }

    fn hold(&mut self, now: Moment, event: NewEvent) -> Published {
        let lane = self.lanes.get_or_default(event.origin.lane);
        if lane.held.len() >= LANE_HELD_MAX {
            return refused("too many events wait for an earlier one of their publisher");
        }
        lane.held_since.get_or_insert(now);
        if let Some(Some(earlier)) = lane.held.insert(event.origin.number, Some(Box::new(event))) {
            // Its publisher has sent it again: only the later call waits.
            let failure = DeliveryFailure::rejected(RejectedKind::Moving, "it was sent again");
            let waiting = earlier.waiting;
            self.emit(QueueOutput::Refused { waiting, failure });
        }
        Published::Held
    }

    /// Forgets an event that waits for its turn; whether there was one. Its publisher sends it
    /// again: its number is waited for, and since when the lane holds events is kept.
    pub(crate) fn let_go(&mut self, origin: Origin) -> bool {
        let lane = self.lanes.get_mut(&origin.lane);
        let held = lane.and_then(|lane| lane.held.get_mut(&origin.number));
        held.is_some_and(|event| event.take().is_some())
    }

    /// Goes on in the lanes that have waited for too long.
    pub(super) fn expire_held(&mut self, now: Moment) {
        let is_over = |lane: &Lane| lane.held_since.is_some_and(|at| now >= at + LANE_HOLD_MAX);
        let over = self.lanes.iter().filter(|(_, lane)| is_over(lane));
        let ids: Vec<u128> = over.map(|(id, _)| *id).collect();
        for id in ids {
            let lane = self.lanes.get_or_default(id);
            lane.give_up_waiting();
            lane.held_since = Some(now);
            self.take_held(id);
        }
    }

    /// Takes in what waited for its turn in the lane.
    pub(super) fn take_held(&mut self, id: u128) {
        while let Some(lane) = self.lanes.get_mut(&id) {
            let Some((&number, event)) = lane.held.first() else {
                lane.held_since = None;
                return;
            };
            if number > lane.expected || event.is_none() {
                return;
            }
            let (_, event) = lane.held.pop_first().expect("it was just seen");
            let event = event.expect("it was just seen");
            let waiting = event.waiting;
            if let Published::Refused(failure) = self.take_in(*event) {
                self.emit(QueueOutput::Refused { waiting, failure });
            }
        }
    }

    /// Room for one more lane: the one that was used least recently goes if nothing of it is here.
    fn make_room_for_lane(&mut self) -> bool {
        if self.lanes.len() < LANES_MAX {
            return true;
        }
        let idle =
            self.lanes.iter().filter(|(_, lane)| lane.open.is_empty() && lane.held_count() == 0);
        let Some(oldest) = idle.min_by_key(|(_, lane)| lane.used).map(|(id, _)| *id) else {
            return false;
        };
        self.lanes.remove(&oldest);
        true
    }
}

/// What a frame hears whose publisher waits for it no more.
fn done_with() -> DeliveryFailure {
    let detail = "its publisher has had an outcome of the event, or has given it up";
    DeliveryFailure::indeterminate(IndeterminateKind::LostAfterHandOver, detail)
}
