//! Shrinking: the fewest steps of a plan that still fail.
//!
//! Delta debugging over the steps: halves, then smaller parts, are left out while the run goes on
//! failing. Every try is one whole run, so the tries are bounded.

use super::plan::{Plan, Step};

/// Tries at most: at a second a run a person still waits for it.
const TRIES_MAX: usize = 400;

/// The smallest plan found that `fails`. Gives the plan back as it was if it does not fail.
pub fn shrink(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut smallest = plan.clone();
    let mut tries = 0;
    let mut parts = 2;
    while !smallest.steps.is_empty() && tries < TRIES_MAX {
        let length = smallest.steps.len().div_ceil(parts);
        let found = without_one_part(&smallest, length).into_iter().find(|candidate| {
            tries += 1;
            tries <= TRIES_MAX && fails(candidate)
        });
        match found {
            Some(smaller) => {
                smallest = smaller;
                parts = parts.saturating_sub(1).max(2);
            }
            None if length == 1 => break,
            None => parts = (parts * 2).min(smallest.steps.len()),
        }
    }
    smallest
}

/// The plan without its first `length` steps, without the next ones, and so on.
fn without_one_part(plan: &Plan, length: usize) -> Vec<Plan> {
    let starts = (0..plan.steps.len()).step_by(length);
    let without = |start: usize| {
        let kept = |(index, step): (usize, &Step)| {
            (index < start || index >= start + length).then_some(*step)
        };
        let steps = plan.steps.iter().enumerate().filter_map(kept).collect();
        Plan { options: plan.options.clone(), steps }
    };
    starts.map(without).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Fault, Options, Slot};
    use super::*;

    #[test]
    fn only_the_steps_that_matter_are_left() {
        let plan = Plan::from_seed(Options::new(11));
        let needed = [plan.steps[1], plan.steps[plan.steps.len() - 2]];
        let fails = |plan: &Plan| needed.iter().all(|step| plan.steps.contains(step));
        assert_eq!(shrink(&plan, fails).steps, needed);
    }

    #[test]
    fn a_plan_that_fails_without_steps_is_emptied() {
        let plan = Plan::calm(Options::new(1)).at(std::time::Duration::ZERO, Fault::Kill(Slot(1)));
        assert!(shrink(&plan, |_| true).steps.is_empty());
        assert_eq!(shrink(&plan, |_| false), plan);
    }
}
