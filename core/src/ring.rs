//! The hash ring of a view: which shard owns the directory entry of an address.
//!
//! Each Active silo has [`RING_POINTS`] points; the range `(previous point, point]` belongs to the
//! point's silo, to the shard that the point's own hash selects. The ring is a pure function of the
//! silos and their shard counts, so that every silo computes the same one for a view.

use core::fmt;

use crate::address::AddressHash;
use crate::hash::stable_u64;
use crate::ids::{Endpoint, Generation, ShardIndex};
use crate::limits::RING_POINTS;

/// A contiguous part of the ring: `(after, up_to]`, wrapping if `after >= up_to`.
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
    Hash,
    Debug,
)]
pub struct Range {
    /// The point before, excluded.
    pub after: u64,
    /// The last position, included.
    pub up_to: u64,
}

impl Range {
    /// Whether the position lies in the range. A range whose ends are equal is the whole ring.
    pub const fn contains(self, position: u64) -> bool {
        if self.after < self.up_to {
            position > self.after && position <= self.up_to
        } else {
            position > self.after || position <= self.up_to
        }
    }
}

/// Where an address lies on the ring: the lower half of its hash.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
pub const fn position(hash: AddressHash) -> u64 {
    hash.0 as u64
}

/// The points of all Active silos of a view, sorted.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Ring {
    points: Vec<(u64, Endpoint)>,
}

/// How many points: which, says the view that it is a function of.
impl fmt::Debug for Ring {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ring({} points)", self.points.len())
    }
}

impl Ring {
    /// The ring of these silos: generation and shard count of each.
    pub fn new(silos: impl IntoIterator<Item = (Generation, u16)>) -> Self {
        Self::salted(silos.into_iter().map(|(silo, shards)| (silo.0, silo, shards)))
    }

    /// A ring of the order in which these silos are given: two that were told of them in different
    /// orders have different rings.
    #[cfg(feature = "planted")]
    pub fn of_order(silos: impl IntoIterator<Item = (Generation, u16)>) -> Self {
        Self::salted((0..).zip(silos).map(|(salt, (silo, shards))| (salt, silo, shards)))
    }

    fn salted(silos: impl Iterator<Item = (u64, Generation, u16)>) -> Self {
        let mut points = Vec::new();
        for (salt, silo, shards) in silos {
            for index in 0..RING_POINTS {
                let mut seed = [0; 12];
                seed[..8].copy_from_slice(&salt.to_le_bytes());
                seed[8..].copy_from_slice(&index.to_le_bytes());
                let point = stable_u64(&seed);
                let shard = ShardIndex::of(u128::from(point) << 64, shards);
                points.push((point, Endpoint { silo, shard }));
            }
        }
        points.sort_unstable();
        points.dedup_by_key(|(point, _)| *point);
        Self { points }
    }

    /// Whether no silo is on it.
    pub const fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Who owns the position; `None` on an empty ring.
    pub fn owner(&self, position: u64) -> Option<Endpoint> {
        Some(self.points.get(self.index(position)?)?.1)
    }

    /// The range that holds the position, and its owner; `None` on an empty ring.
    pub fn range(&self, position: u64) -> Option<(Range, Endpoint)> {
        let index = self.index(position)?;
        self.range_at(index)
    }

    /// Every range with its owner, in ring order.
    pub fn ranges(&self) -> impl Iterator<Item = (Range, Endpoint)> + '_ {
        (0..self.points.len()).filter_map(|index| self.range_at(index))
    }

    fn index(&self, position: u64) -> Option<usize> {
        if self.points.is_empty() {
            return None;
        }
        Some(self.points.partition_point(|(point, _)| *point < position) % self.points.len())
    }

    fn range_at(&self, index: usize) -> Option<(Range, Endpoint)> {
        let (up_to, owner) = *self.points.get(index)?;
        let before = index.checked_sub(1).unwrap_or(self.points.len() - 1);
        Some((Range { after: self.points[before].0, up_to }, owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_has_exactly_one_owner() {
        let ring = Ring::new([(Generation(1), 2), (Generation(2), 1), (Generation(9), 3)]);
        for step in 0..10_000u64 {
            let position = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (range, owner) = ring.range(position).unwrap();
            assert!(range.contains(position));
            assert_eq!(ring.owner(position), Some(owner));
            assert_eq!(ring.ranges().filter(|(r, _)| r.contains(position)).count(), 1);
        }
    }

    #[test]
    fn a_newcomer_takes_only_what_becomes_its_own() {
        let old = Ring::new([(Generation(1), 2), (Generation(2), 2)]);
        let new = Ring::new([(Generation(1), 2), (Generation(2), 2), (Generation(3), 2)]);
        for step in 0..10_000u64 {
            let position = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (before, after) = (old.owner(position), new.owner(position));
            assert!(after == before || after.is_some_and(|e| e.silo == Generation(3)));
        }
    }

    #[test]
    fn a_lone_silo_owns_the_whole_ring_and_an_empty_ring_nothing() {
        let ring = Ring::new([(Generation(4), 1)]);
        assert_eq!(ring.owner(u64::MAX).map(|e| e.silo), Some(Generation(4)));
        assert_eq!(Ring::default().owner(0), None);
    }
}
