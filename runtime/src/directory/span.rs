//! Positions on the ring as plain intervals, and keys that sort by position.
//!
//! A [`Range`](siloring_core::ring::Range) wraps; a [`Span`] does not, so that spans can be sorted,
//! cut and compared. Every list of spans handed out here is sorted and disjoint.

use siloring_core::ring::{Range, Ring, position};
use siloring_core::{AddressHash, Endpoint};

/// Positions `first..=last`.
#[derive(
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
)]
pub struct Span {
    /// The first position, included.
    pub first: u64,
    /// The last position, included.
    pub last: u64,
}

impl Span {
    /// The whole ring.
    pub const WHOLE: Self = Self { first: 0, last: u64::MAX };

    /// The span of one position.
    pub(super) const fn point(position: u64) -> Self {
        Self { first: position, last: position }
    }

    /// Whether the position lies in it.
    pub(super) const fn contains(self, position: u64) -> bool {
        self.first <= position && position <= self.last
    }

    /// What both have.
    pub(super) fn overlap(self, other: Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(Self { first, last })
    }

    /// The keys of its positions.
    pub(super) fn keys(self) -> core::ops::RangeInclusive<Key> {
        let last = (u128::from(self.last) << 64) | u128::from(u64::MAX);
        Key(u128::from(self.first) << 64)..=Key(last)
    }
}

/// An address hash turned so that keys sort by ring position.
#[derive(
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
)]
pub struct Key(pub u128);

impl Key {
    /// The key of an address.
    pub const fn of(hash: AddressHash) -> Self {
        Self(hash.0.rotate_left(64))
    }

    /// The address.
    pub const fn hash(self) -> AddressHash {
        AddressHash(self.0.rotate_right(64))
    }

    /// Its position on the ring.
    pub(super) const fn position(self) -> u64 {
        position(self.hash())
    }
}

/// Whether a list that came from elsewhere is one that a directory would name: disjoint, in any
/// order, and each span with its first position no later than its last.
pub(super) fn are_sound(spans: &[Span]) -> bool {
    let mut sorted = spans.to_vec();
    sorted.sort_unstable_by_key(|span| span.first);
    let has_order = sorted.iter().all(|span| span.first <= span.last);
    has_order && sorted.windows(2).all(|pair| pair[0].last < pair[1].first)
}

/// The one or two spans of a ring's range.
fn spans_of(range: Range) -> impl Iterator<Item = Span> {
    let (after, up_to) = (range.after, range.up_to);
    let wraps = after >= up_to;
    let low = wraps.then_some(Span { first: 0, last: up_to });
    let high = after
        .checked_add(1)
        .map(|first| Span { first, last: if wraps { u64::MAX } else { up_to } });
    low.into_iter().chain(high)
}

/// Every span of the ring with its owner.
pub(super) fn owners(ring: &Ring) -> Vec<(Span, Endpoint)> {
    let mut all: Vec<_> = ring
        .ranges()
        .flat_map(|(range, owner)| spans_of(range).map(move |span| (span, owner)))
        .collect();
    all.sort_unstable();
    all
}

/// Sorted spans with neighbours joined.
pub(super) fn joined(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut sorted: Vec<_> = spans.into_iter().collect();
    sorted.sort_unstable();
    let mut all: Vec<Span> = Vec::new();
    for span in sorted {
        match all.last_mut() {
            Some(last) if last.last.checked_add(1).is_none_or(|next| next >= span.first) => {
                last.last = last.last.max(span.last);
            }
            Some(_) | None => all.push(span),
        }
    }
    all
}

/// The parts of `span` that lie in `within`.
pub(super) fn inside(span: Span, within: &[Span]) -> Vec<Span> {
    within.iter().filter_map(|other| span.overlap(*other)).collect()
}

/// The parts of `span` that lie outside of `without`, which is sorted and disjoint.
pub(super) fn outside(span: Span, without: &[Span]) -> Vec<Span> {
    let mut rest = Vec::new();
    let mut next = Some(span.first);
    for cut in without.iter().filter_map(|other| span.overlap(*other)) {
        let Some(first) = next else { break };
        if first < cut.first {
            rest.push(Span { first, last: cut.first - 1 });
        }
        next = cut.last.checked_add(1);
    }
    if let Some(first) = next.filter(|first| *first <= span.last) {
        rest.push(Span { first, last: span.last });
    }
    rest
}

/// The parts of `span`, each with its owner on the ring.
pub(super) fn split(span: Span, owners: &[(Span, Endpoint)]) -> Vec<(Span, Endpoint)> {
    let mut parts: Vec<(Span, Endpoint)> = Vec::new();
    for (part, owner) in owners.iter().filter_map(|(s, o)| Some((span.overlap(*s)?, *o))) {
        match parts.last_mut() {
            Some((last, same)) if *same == owner && last.last + 1 == part.first => {
                last.last = part.last;
            }
            Some(_) | None => parts.push((part, owner)),
        }
    }
    parts
}

/// Whether `spans`, sorted and disjoint, hold all of `span`.
pub(super) fn covers(spans: &[Span], span: Span) -> bool {
    outside(span, spans).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::Generation;

    #[test]
    fn the_owners_of_a_ring_tile_it_without_gap_or_overlap() {
        let ring = Ring::new([(Generation(1), 2), (Generation(2), 3)]);
        let all = owners(&ring);
        let mut next = Some(0);
        for (span, owner) in all {
            assert_eq!(Some(span.first), next);
            assert_eq!(ring.owner(span.first), Some(owner));
            assert_eq!(ring.owner(span.last), Some(owner));
            next = span.last.checked_add(1);
        }
        assert_eq!(next, None, "the last span ends the ring");
    }

    #[test]
    fn inside_and_outside_are_complements() {
        let cuts = [Span { first: 0, last: 3 }, Span { first: 8, last: 9 }];
        let span = Span { first: 2, last: 12 };
        let parts = [inside(span, &cuts), outside(span, &cuts)].concat();
        assert_eq!(joined(parts), vec![span]);
        assert!(covers(&[Span::WHOLE], span));
        assert!(!covers(&cuts, span));
        assert_eq!(outside(Span::WHOLE, &[Span::WHOLE]), vec![]);
    }

    #[test]
    fn keys_sort_by_position_and_give_the_hash_back() {
        let hash = AddressHash((7 << 64) | 5);
        assert_eq!(Key::of(hash).hash(), hash);
        assert_eq!(Key::of(hash).position(), 5);
        assert!(Span::point(5).keys().contains(&Key::of(hash)));
        assert!(!Span::point(4).keys().contains(&Key::of(hash)));
        assert!(Key::of(AddressHash(1)) < Key::of(AddressHash((9 << 64) | 2)));
    }
}
