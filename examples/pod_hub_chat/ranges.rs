//! Sets of numbers as ranges: a member that heard everything costs one pair.

use std::collections::BTreeMap;

/// A set of numbers, kept as disjoint ranges from first to last, both included.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

/// Whether a number was new to a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    New,
    Again,
}

impl Ranges {
    /// Adds a number.
    pub(crate) fn add(&mut self, number: u64) -> Added {
        let below = self.0.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if below.is_some_and(|(_, last)| last >= number) {
            return Added::Again;
        }
        let first = match below {
            Some((first, last)) if last + 1 == number => first,
            Some(_) | None => number,
        };
        let last = self.0.remove(&(number + 1)).unwrap_or(number);
        self.0.insert(first, last);
        Added::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_added_again_is_told() {
        let mut set = Ranges::default();
        for number in [5, 3, 4, 9, 0] {
            assert_eq!(set.add(number), Added::New, "{number}");
        }
        for number in [0, 3, 4, 5, 9] {
            assert_eq!(set.add(number), Added::Again, "{number}");
        }
        assert_eq!(set.add(6), Added::New);
        assert_eq!(set.0, BTreeMap::from([(0, 0), (3, 6), (9, 9)]), "neighbours are one range");
    }
}
