//! Membership views: what the store says of the cluster, at one version.
//!
//! A [`View`] is immutable and shared; views of one number have one content. Heartbeats move no
//! version and so are no part of it: they are in the store's [`crate::ports::store::Table`].

use crate::ids::{Generation, Incarnation, ViewNumber};
use crate::ring::Ring;

/// Where an incarnation stands. It moves to the right only.
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
pub enum SiloStatus {
    /// Has its row and proves that it can reach the others. Hosts nothing yet.
    Joining,
    /// Hosts grains and owns ranges.
    Active,
    /// Finishes and hands over; owns no ranges, takes nothing new.
    Draining,
    /// Gone. An incarnation never returns from here.
    Dead,
}

/// A vote that a silo is dead, with its author's heartbeat counter: fresh by that counter, not by
/// time.
#[derive(
    rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug,
)]
pub struct Vote {
    /// Who accuses.
    pub by: Generation,
    /// The author's heartbeat counter when it voted.
    pub heartbeat: u64,
}

/// One incarnation's row.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SiloRow {
    /// Whose row it is.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub status: SiloStatus,
    /// Where it is reached: `host:port`.
    pub advertised: String,
    /// Names the host and network namespace: silos that share it use Unix sockets.
    pub host: String,
    /// How many shards it has.
    pub shards: u16,
    /// Votes against it, fresh or not.
    pub votes: Vec<Vote>,
    /// The view of the row's last change.
    pub changed_in: ViewNumber,
}

/// A snapshot of the membership table, with the ring of its Active silos.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    number: ViewNumber,
    rows: Vec<SiloRow>,
    ring: Ring,
}

impl View {
    /// The view `number` with these rows.
    ///
    /// # Panics
    /// If two rows have one generation.
    pub fn new(number: ViewNumber, mut rows: Vec<SiloRow>) -> Self {
        rows.sort_by_key(|row| row.incarnation.generation);
        let distinct = rows
            .windows(2)
            .all(|pair| pair[0].incarnation.generation < pair[1].incarnation.generation);
        assert!(distinct, "generations are unique in a view");
        let ring = Ring::new(
            rows.iter()
                .filter(|row| row.status == SiloStatus::Active)
                .map(|row| (row.incarnation.generation, row.shards)),
        );
        Self { number, rows, ring }
    }

    /// The view's number: the epoch of every ownership in it.
    pub const fn number(&self) -> ViewNumber {
        self.number
    }

    /// Every row, by generation.
    pub fn rows(&self) -> &[SiloRow] {
        &self.rows
    }

    /// The same view with another ring.
    #[cfg(feature = "planted")]
    #[must_use]
    pub fn with_ring(&self, ring: Ring) -> Self {
        Self { ring, ..self.clone() }
    }

    /// The ring of its Active silos.
    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The row of an incarnation.
    pub fn silo(&self, generation: Generation) -> Option<&SiloRow> {
        let at = self.rows.binary_search_by_key(&generation, |row| row.incarnation.generation);
        self.rows.get(at.ok()?)
    }

    /// Where an incarnation stands; `None` if the view does not list it.
    pub fn status(&self, generation: Generation) -> Option<SiloStatus> {
        self.silo(generation).map(|row| row.status)
    }

    /// Whether the incarnation is gone in this view: Dead, or older than the view and no longer
    /// listed.
    #[inline]
    pub fn is_gone(&self, generation: Generation) -> bool {
        match self.status(generation) {
            Some(status) => status == SiloStatus::Dead,
            None => generation.view() <= self.number,
        }
    }

    /// The Active silos, by generation.
    pub fn active(&self) -> impl Iterator<Item = &SiloRow> {
        self.rows.iter().filter(|row| row.status == SiloStatus::Active)
    }

    /// The silos that are not Dead, by generation.
    pub fn living(&self) -> impl Iterator<Item = &SiloRow> {
        self.rows.iter().filter(|row| row.status != SiloStatus::Dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SiloName;

    fn row(generation: u64, status: SiloStatus) -> SiloRow {
        SiloRow {
            incarnation: Incarnation {
                name: SiloName::new("pod").unwrap(),
                generation: Generation(generation),
            },
            status,
            advertised: "127.0.0.1:7000".into(),
            host: "h".into(),
            shards: 2,
            votes: Vec::new(),
            changed_in: ViewNumber(generation),
        }
    }

    #[test]
    fn only_active_silos_are_on_the_ring() {
        let rows = vec![row(3, SiloStatus::Draining), row(1, SiloStatus::Active)];
        let view = View::new(ViewNumber(4), rows);
        assert_eq!(view.ring().owner(7).map(|e| e.silo), Some(Generation(1)));
        assert_eq!(view.living().count(), 2);
    }

    #[test]
    fn absence_means_gone_only_in_a_view_that_could_list_it() {
        let view = View::new(ViewNumber(4), vec![row(3, SiloStatus::Dead)]);
        assert!(view.is_gone(Generation(3)));
        assert!(view.is_gone(Generation(2)), "pruned");
        assert!(!view.is_gone(Generation(9)), "joined after this view");
    }
}
