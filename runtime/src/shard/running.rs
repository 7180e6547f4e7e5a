//! The turns of one activation that have begun.
//!
//! Most activations have one, and many have none: a list is enough. A grain whose turns interleave
//! may have thousands that wait; from [`FEW`] on they are found by their task. Invariant: a turn is
//! found, and taken out, in a time that does not grow with their number.

use siloring_core::hash::HashMap;

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

impl RunningTurns {
    pub(super) fn new() -> Self {
        Self { turns: Vec::with_capacity(1), exclusive_count: 0, places: None }
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
    pub(super) fn push(&mut self, turn: RunningTurn) {
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
    pub(super) fn remove(&mut self, task: TaskKey) -> Option<RunningTurn> {
        let removed = match &*self.turns {
            // The most common by far: a turn that ran alone.
            [only] if only.task == task && self.places.is_none() => self.turns.pop(),
            _ => self.remove_of_many(task),
        }?;
        self.exclusive_count -= usize::from(removed.access == Access::Exclusive);
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
        let mut turns = RunningTurns::new();
        for round in 0..3 {
            for task in 0..100 {
                turns.push(turn(task, Access::Shared));
            }
            // Out of the middle first, then from both ends.
            for task in (30..60).chain(0..30).chain((60..100).rev()) {
                assert_eq!(
                    turns.get(TaskKey(task)).map(|t| t.task),
                    Some(TaskKey(task)),
                    "{round}"
                );
                assert_eq!(turns.remove(TaskKey(task)).map(|t| t.task), Some(TaskKey(task)));
                assert!(turns.remove(TaskKey(task)).is_none());
            }
            assert!(turns.is_empty());
        }
    }

    #[test]
    fn an_exclusive_turn_runs_alone() {
        let mut turns = RunningTurns::new();
        assert!(turns.admit(Access::Exclusive) && turns.admit(Access::Shared));
        turns.push(turn(1, Access::Shared));
        assert!(!turns.admit(Access::Exclusive) && turns.admit(Access::Shared));
        turns.remove(TaskKey(1));
        turns.push(turn(2, Access::Exclusive));
        assert!(!turns.admit(Access::Exclusive) && !turns.admit(Access::Shared));
        assert_eq!(turns.take().len(), 1);
        assert!(turns.admit(Access::Exclusive));
    }
}
