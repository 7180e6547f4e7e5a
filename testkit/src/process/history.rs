//! What the journals of a run say of stored sets, against what is in them in the end; and of
//! streams that are said to have no subscriber.
//!
//! An addition is one delivery with an id of its own, and answers how many are in the set. Checked:
//! what was handled is in, what was rejected is not, nothing is in twice, no two were told one
//! count, and of two additions of which one ended before the other began the later one was told
//! more. The last two are what linearizable means for such a set. An addition of unknown outcome
//! may be in or not. A subscription that was acknowledged and is never ended is one: no later
//! publish to its stream may be told that nobody subscribes.

use std::collections::{BTreeMap, BTreeSet};

use siloring_core::{DeliveryFailure, Moment, RejectedKind};

use super::journal::{End, Entry, What};

/// An addition to a set, as its sender saw it.
#[derive(Debug)]
struct Addition {
    id: u64,
    began: Moment,
    ended: Option<(Moment, End)>,
}

/// What of these sets is not as the journals say; the sets by address, with what is in them.
pub fn check_sets(journals: &[&[Entry]], sets: &BTreeMap<String, Vec<u64>>) -> Vec<String> {
    let mut additions: BTreeMap<&str, Vec<Addition>> = BTreeMap::new();
    for journal in journals {
        collect(journal, sets, &mut additions);
    }
    let mut wrong = Vec::new();
    for (set, members) in sets {
        let found: BTreeSet<u64> = members.iter().copied().collect();
        if found.len() != members.len() {
            wrong.push(format!("{set} holds an addition twice: {members:?}"));
        }
        let of_set = additions.get(set.as_str()).map_or(&[][..], Vec::as_slice);
        wrong.extend(of_set.iter().filter_map(|addition| misplaced(set, addition, &found)));
        wrong.extend(misordered(set, of_set));
    }
    wrong
}

/// Publishes that were told that nobody subscribes to a stream that had a subscriber for good.
pub fn check_publishes(journals: &[&[Entry]]) -> Vec<String> {
    let entries = || journals.iter().copied().flatten();
    let mut since: BTreeMap<&str, Moment> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    for entry in entries() {
        match &entry.what {
            What::Subscribed { stream, .. } => {
                let first = since.entry(stream.as_str()).or_insert(entry.at);
                *first = entry.at.min(*first);
            }
            What::Ended { id, end } if end.code == RejectedKind::NoSubscriber.code() => {
                refused.insert(*id);
            }
            What::Began { .. }
            | What::Ran { .. }
            | What::RanEvent { .. }
            | What::Ended { .. }
            | What::Dropped { .. } => {}
        }
    }
    let wrong = entries().filter_map(|entry| match &entry.what {
        What::Began { id, target, .. } => {
            let subscribed = since.get(target.as_str()).is_some_and(|since| *since < entry.at);
            let is_wrong = subscribed && refused.contains(id);
            is_wrong.then(|| format!("{target} has subscribers, and {id} was told of none"))
        }
        What::Subscribed { .. }
        | What::Ran { .. }
        | What::RanEvent { .. }
        | What::Ended { .. }
        | What::Dropped { .. } => None,
    });
    wrong.collect()
}

fn collect<'a>(
    journal: &[Entry],
    sets: &'a BTreeMap<String, Vec<u64>>,
    additions: &mut BTreeMap<&'a str, Vec<Addition>>,
) {
    let ended = |entry: &Entry| match &entry.what {
        What::Ended { id, end } => Some((*id, (entry.at, *end))),
        What::Began { .. }
        | What::Ran { .. }
        | What::RanEvent { .. }
        | What::Dropped { .. }
        | What::Subscribed { .. } => None,
    };
    let ends: BTreeMap<u64, (Moment, End)> = journal.iter().filter_map(ended).collect();
    for entry in journal {
        let What::Began { id, target, .. } = &entry.what else { continue };
        if let Some((set, _)) = sets.get_key_value(target.as_str()) {
            let ended = ends.get(id).copied();
            let addition = Addition { id: *id, began: entry.at, ended };
            additions.entry(set).or_default().push(addition);
        }
    }
}

fn misplaced(set: &str, addition: &Addition, found: &BTreeSet<u64>) -> Option<String> {
    let (_, end) = addition.ended?;
    let is_in = found.contains(&addition.id);
    let failure = DeliveryFailure::from_code(end.code, None, "");
    let wrong = match (end.code, end.value) {
        (0, Some(_)) => !is_in,
        (0, None) => false,
        (_, _) => is_in && failure.rejected_kind().is_some(),
    };
    wrong.then(|| format!("{set}: {addition:?}, and in it in the end: {is_in}"))
}

fn misordered(set: &str, additions: &[Addition]) -> Vec<String> {
    let told = additions.iter().filter_map(|addition| {
        let (ended, end) = addition.ended?;
        Some((addition.began, ended, end.value.filter(|_| end.code == 0)?, addition.id))
    });
    let mut by_begin: Vec<_> = told.collect();
    by_begin.sort_unstable();
    let mut by_end = by_begin.clone();
    by_end.sort_unstable_by_key(|(_, ended, ..)| *ended);
    let (mut wrong, mut counts, mut ended) =
        (Vec::new(), BTreeSet::new(), by_end.iter().peekable());
    let mut most = 0;
    for (began, _, count, id) in &by_begin {
        while let Some((_, _, count, _)) = ended.next_if(|(_, at, ..)| at < began) {
            most = most.max(*count);
        }
        if *count <= most || !counts.insert(*count) {
            wrong.push(format!("{set}: {id} was told {count}, an earlier one {most}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use siloring_core::Address;

    use super::super::journal::Sending;
    use super::*;

    const SET: &str = "set/one";

    /// From, until, code, count.
    fn journal(additions: &[(u64, u64, u16, u64)]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (id, (began, ended, code, value)) in (0..).zip(additions) {
            let target = Address::parse(SET).unwrap();
            let (source, sending, budget) = (0, Sending::Request, Duration::from_secs(1));
            let what = What::Began { id, source, sending, budget, target };
            entries.push(Entry { at: Moment::from_nanos(*began), what });
            let end = End { code: *code, failed: 0, value: Some(*value) };
            entries.push(Entry { at: Moment::from_nanos(*ended), what: What::Ended { id, end } });
        }
        entries
    }

    fn wrong(additions: &[(u64, u64, u16, u64)], members: &[u64]) -> usize {
        let sets = BTreeMap::from([(SET.to_owned(), members.to_vec())]);
        check_sets(&[&journal(additions)], &sets).len()
    }

    #[test]
    fn a_set_holds_what_was_handled_and_nothing_that_was_rejected() {
        let rejected = RejectedKind::Draining.code();
        let both = [(1, 2, 0, 1), (3, 4, rejected, 0)];
        assert_eq!(wrong(&both, &[0]), 0);
        assert_eq!(wrong(&both, &[]), 1, "lost");
        assert_eq!(wrong(&both, &[0, 1]), 1, "rejected, and in");
        assert_eq!(wrong(&both, &[0, 0]), 1, "twice");
        assert_eq!(wrong(&[(1, 2, u16::MAX, 0)], &[]), 0, "unknown");
    }

    #[test]
    fn a_stream_with_a_subscriber_is_not_told_to_have_none() {
        let none = RejectedKind::NoSubscriber.code();
        let wrong = |subscribed: u64| {
            let mut entries = journal(&[(5, 6, none, 0)]);
            let (stream, key) = (Address::parse(SET).unwrap(), "key".to_owned());
            let what = What::Subscribed { stream, key };
            entries.push(Entry { at: Moment::from_nanos(subscribed), what });
            check_publishes(&[&entries]).len()
        };
        assert_eq!((wrong(4), wrong(5)), (1, 0), "before it began, and not");
    }

    #[test]
    fn counts_follow_the_order_of_time() {
        assert_eq!(wrong(&[(1, 2, 0, 1), (3, 4, 0, 2)], &[0, 1]), 0);
        assert_eq!(wrong(&[(1, 2, 0, 2), (3, 4, 0, 1)], &[0, 1]), 1, "an older state was read");
        assert_eq!(wrong(&[(1, 4, 0, 2), (2, 3, 0, 1)], &[0, 1]), 0, "side by side");
        assert_eq!(wrong(&[(1, 4, 0, 1), (2, 3, 0, 1)], &[0, 1]), 1, "one count twice");
    }
}
