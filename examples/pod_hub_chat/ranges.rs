//! Sets of numbers as ranges: a member that heard everything costs one pair.

use std::collections::BTreeMap;

/// A set of numbers, kept as disjoint ranges from first to last, both included.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `first..=last` and says how many of these were in the set before.
    pub(crate) fn add(&mut self, first: u64, last: u64) -> u64 {
        assert!(first <= last, "a range runs forwards");
        let (mut from, mut to, mut again) = (first, last, 0);
        while let Some((&known_from, &known_to)) = self.0.range(..=to.saturating_add(1)).next_back()
            && known_to.saturating_add(1) >= from
        {
            if known_to >= first && known_from <= last {
                again += known_to.min(last) - known_from.max(first) + 1;
            }
            self.0.remove(&known_from);
            from = from.min(known_from);
            to = to.max(known_to);
        }
        self.0.insert(from, to);
        again
    }
}

/// The numbers as ranges; each number that stands there again gets a range of its own.
pub(crate) fn of(mut numbers: Vec<u64>) -> Vec<(u64, u64)> {
    numbers.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut again = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last == number => again.push((number, number)),
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges.append(&mut again);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_again_is_counted() {
        let mut set = Ranges::default();
        assert_eq!(set.add(10, 19), 0);
        assert_eq!(set.add(20, 29), 0, "a neighbour is not the same");
        assert_eq!(set.add(5, 9), 0);
        assert_eq!(set.0.len(), 1, "neighbours are one range");
        assert_eq!(set.add(28, 31), 2);
        assert_eq!(set.add(0, 100), 27);
        assert_eq!(set.add(7, 7), 1);
    }

    #[test]
    fn a_number_that_stands_twice_is_counted_once_more() {
        let mut set = Ranges::default();
        let again = of(vec![3, 1, 2, 2, 9, 2]).into_iter();
        assert_eq!(again.map(|(first, last)| set.add(first, last)).sum::<u64>(), 2);
        assert_eq!(set.add(1, 9), 4);
    }
}
