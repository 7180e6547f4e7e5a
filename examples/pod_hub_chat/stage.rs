//! Where the members are. What a member says while it moves waits with it.

use std::collections::{BTreeMap, VecDeque};

use super::crew::PodId;
use super::script::Event;

/// A member's place.
#[derive(Debug)]
enum Place {
    /// Its hub is open there.
    At(PodId),
    /// Its hub is being opened there; these wait.
    Moving { to: PodId, waiting: VecDeque<Event> },
}

/// All members and where they are.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    places: BTreeMap<String, Place>,
    waiting: usize,
}

impl Stage {
    /// A member's hub is being opened at `to`, for the first time or instead of elsewhere.
    pub(crate) fn moves(&mut self, member: &str, to: PodId) {
        let waiting = match self.places.remove(member) {
            Some(Place::Moving { waiting, .. }) => waiting,
            Some(Place::At(_)) | None => VecDeque::new(),
        };
        self.places.insert(member.to_owned(), Place::Moving { to, waiting });
    }

    /// A member's hub is open at `pod`; what waited for that can be said. Nothing, if the member
    /// has moved on meanwhile.
    pub(crate) fn opened(&mut self, member: &str, pod: PodId) -> VecDeque<Event> {
        let Some(place) = self.places.get_mut(member) else {
            return VecDeque::new();
        };
        match place {
            Place::Moving { to, waiting } if *to == pod => {
                let waiting = std::mem::take(waiting);
                *place = Place::At(pod);
                self.waiting -= waiting.len();
                waiting
            }
            Place::Moving { .. } | Place::At(_) => VecDeque::new(),
        }
    }

    /// Where an event can be said now; if its member is moving the event waits with it.
    pub(crate) fn place(&mut self, event: Event) -> Option<(PodId, Event)> {
        match self.places.get_mut(&event.member) {
            Some(Place::At(pod)) => Some((*pod, event)),
            Some(Place::Moving { waiting, .. }) => {
                waiting.push_back(event);
                self.waiting += 1;
                None
            }
            None => unreachable!("the cast is opened before the play"),
        }
    }

    /// Events that wait for a member.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether no member is on its way.
    pub(crate) fn is_settled(&self) -> bool {
        self.places.values().all(|place| matches!(place, Place::At(_)))
    }

    /// The members at a pod or on their way to it.
    pub(crate) fn members_of(&self, pod: PodId) -> Vec<String> {
        let there = self.places.iter().filter(|(_, place)| match place {
            Place::At(at) => *at == pod,
            Place::Moving { to, .. } => *to == pod,
        });
        there.map(|(member, _)| member.clone()).collect()
    }
}
