//! The turns of one activation that have begun.
//!
//! Most activations have one, and many have none: a list is enough. A grain whose turns interleave
//! may have thousands that wait; from [`FEW`] on they are found by their task.
//!
//! Invariants: a turn is found, and taken out, in a time that does not grow with their number;
//! without turns there is no list, which goes to whoever begins a turn next.

use siloring_core::hash::HashMap;
use siloring_core::limits::TURN_LISTS_POOLED_MAX;

use super::activation::RunningTurn;
use crate::exec::tasks::TaskKey;
use crate::grain::Access;

/// So many are found as fast by looking at each.
const FEW: usize = 8;

/// See the module's head.
#[derive(Debug)]
pub(super) struct RunningTurns {
    turns: Vec<RunningTurn>,
    exclusive_count: usize,
    /// Where each is in `turns`, while there are many.
    places: Option<Box<HashMap<TaskKey, usize>>>,
}

/// Lists of activations that have no turns any more.
#[derive(Debug, Default)]
pub(super) struct SpareLists(Vec<Vec<RunningTurn>>);

impl SpareLists {
    #[inline]
    fn take(&mut self) -> Vec<RunningTurn> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(1))
    }

    #[inline]
    fn put(&mut self, list: Vec<RunningTurn>) {
        if self.0.len() < TURN_LISTS_POOLED_MAX && list.capacity() <= FEW {
            self.0.push(list);
        }
    }
}

impl RunningTurns {
    pub(super) const fn new() -> Self {
        Self { turns: Vec::new(), exclusive_count: 0, places: None }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether a turn with this access may begin beside them.
    #[inline]
    pub(super) const fn admit(&self, access: Access) -> bool {
        match access {
            Access::Exclusive => self.turns.is_empty(),
            Access::Shared => self.exclusive_count == 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, turn: RunningTurn, spare: &mut SpareLists) {
        if self.turns.capacity() == 0 {
            self.turns = spare.take();
        }
        self.exclusive_count += usize::from(turn.access == Access::Exclusive);
        if let Some(places) = &mut self.places {
            places.insert(turn.task, self.turns.len());
        }
        self.turns.push(turn);
        if self.turns.len() > FEW && self.places.is_none() {
            self.index();
        }
    }

    #[cold]
    fn index(&mut self) {
        let places = self.turns.iter().enumerate().map(|(at, turn)| (turn.task, at));
        self.places = Some(Box::new(places.collect()));
    }

    #[inline]
    fn place(&self, task: TaskKey) -> Option<usize> {
        match &self.places {
            Some(places) => places.get(&task).copied(),
            None => self.turns.iter().position(|turn| turn.task == task),
        }
    }

    #[inline]
    pub(super) fn get(&self, task: TaskKey) -> Option<&RunningTurn> {
        self.place(task).map(|at| &self.turns[at])
    }

    #[inline]
    pub(super) fn remove(&mut self, task: TaskKey, spare: &mut SpareLists) -> Option<RunningTurn> {
        let removed = match &*self.turns {
            // The most common by far: a turn that ran alone.
            [only] if only.task == task && self.places.is_none() => self.turns.pop(),
            _ => self.remove_of_many(task),
        }?;
        self.exclusive_count -= usize::from(removed.access == Access::Exclusive);
        if self.turns.is_empty() {
            spare.put(core::mem::take(&mut self.turns));
        }
        Some(removed)
    }

    fn remove_of_many(&mut self, task: TaskKey) -> Option<RunningTurn> {
        let at = self.place(task)?;
        let turn = self.turns.swap_remove(at);
        if self.places.is_some() {
            self.index_removed(task, at);
        }
        Some(turn)
    }

    #[cold]
    fn index_removed(&mut self, task: TaskKey, at: usize) {
        let Some(places) = &mut self.places else { return };
        places.remove(&task);
        if let Some(moved) = self.turns.get(at) {
            places.insert(moved.task, at);
        }
        if self.turns.is_empty() {
            self.places = None;
        }
    }

    /// All of them, in no order that means anything.
    pub(super) fn take(&mut self) -> Vec<RunningTurn> {
        core::mem::replace(self, Self::new()).turns
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::address::AddressHash;
    use siloring_core::time::Moment;

    use super::*;

    fn turn(task: u32, access: Access) -> RunningTurn {
        RunningTurn {
            task: TaskKey(task),
            access,
            reply: None,
            source: AddressHash::NONE,
            one_way: true,
            deadline: Moment::NEVER,
            envelope: None,
        }
    }

    #[test]
    fn each_turn_is_found_however_many_there_are() {
        let (mut turns, mut spare) = (RunningTurns::new(), SpareLists::default());
        for round in 0..3 {
            for task in 0..100 {
                turns.push(turn(task, Access::Shared), &mut spare);
            }
            // Out of the middle first, then from both ends.
            for task in (30..60).chain(0..30).chain((60..100).rev()) {
                assert_eq!(
                    turns.get(TaskKey(task)).map(|t| t.task),
                    Some(TaskKey(task)),
                    "{round}"
                );
                let removed = turns.remove(TaskKey(task), &mut spare);
                assert_eq!(removed.map(|t| t.task), Some(TaskKey(task)));
                assert!(turns.remove(TaskKey(task), &mut spare).is_none());
            }
            assert!(turns.is_empty());
        }
    }

    #[test]
    fn an_exclusive_turn_runs_alone() {
        let (mut turns, mut spare) = (RunningTurns::new(), SpareLists::default());
        assert!(turns.admit(Access::Exclusive) && turns.admit(Access::Shared));
        turns.push(turn(1, Access::Shared), &mut spare);
        assert!(!turns.admit(Access::Exclusive) && turns.admit(Access::Shared));
        turns.remove(TaskKey(1), &mut spare);
        turns.push(turn(2, Access::Exclusive), &mut spare);
        assert!(!turns.admit(Access::Exclusive) && !turns.admit(Access::Shared));
        assert_eq!(turns.take().len(), 1);
        assert!(turns.admit(Access::Exclusive));
    }

    #[test]
    fn a_list_goes_from_one_activation_to_the_next() {
        let mut spare = SpareLists::default();
        let (mut one, mut other) = (RunningTurns::new(), RunningTurns::new());
        one.push(turn(1, Access::Exclusive), &mut spare);
        let list = one.turns.as_ptr();
        one.remove(TaskKey(1), &mut spare);
        assert_eq!(one.turns.capacity(), 0);
        other.push(turn(2, Access::Exclusive), &mut spare);
        assert_eq!(other.turns.as_ptr(), list);
    }
}
