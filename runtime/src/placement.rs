//! Where a new activation of a grain goes: a pure function of its address and the view.

use siloring_core::address::{Address, AddressHash};
use siloring_core::ids::{Endpoint, Generation, ShardIndex};
use siloring_core::view::{SiloRow, SiloStatus, View};

use crate::grain::GrainKey;

/// The placement of a grain type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// On the caller's silo.
    #[default]
    PreferLocal,
    /// On the silo that the address hashes to.
    Hash,
    /// On any silo: one in a view, so that deliveries of one sender to one grain keep their order.
    Random,
    /// On the shard that its key, a [`ShardKey`], names: one of each shard of each silo, made there
    /// when it is first called, never in the directory. It may be called until its silo closes its
    /// hubs, is never idle and keeps no drain waiting; its deactivation hook runs only if it ends
    /// itself. Once its silo is gone, its callers hear `IncarnationDead`. Who calls it hosts its
    /// type too.
    Shard,
}

/// The key of a grain that is placed by [`Placement::Shard`]: `<generation>.<shard>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardKey(pub Endpoint);

impl GrainKey for ShardKey {
    fn parse(id: &str) -> Option<Self> {
        let (silo, shard) = id.split_once('.')?;
        let silo = Generation(GrainKey::parse(silo)?);
        // One key has one address: "07" is not 7.
        let shard: u16 = shard.parse().ok().filter(|known: &u16| known.to_string() == shard)?;
        Some(Self(Endpoint { silo, shard: ShardIndex(shard) }))
    }

    fn format(&self) -> String {
        format!("{}.{}", self.0.silo.0, self.0.shard.0)
    }
}

/// The endpoint that the address of a grain placed by [`Placement::Shard`] names.
pub(crate) fn named_endpoint(address: &Address) -> Option<Endpoint> {
    ShardKey::parse(address.id()).map(|ShardKey(endpoint)| endpoint)
}

/// Where an activation of `target` goes, seen from `here`; `None` if no silo is Active, or if the
/// view does not decide it.
///
/// The shard within the silo is always the one that the address hashes to.
pub fn place(
    placement: Placement,
    target: AddressHash,
    here: Generation,
    view: &View,
) -> Option<Endpoint> {
    let home = match placement {
        Placement::PreferLocal if view.status(here) == Some(SiloStatus::Active) => {
            view.silo(here)?
        }
        // A silo that is leaving places as if by hash: everybody agrees, so fewer registrations
        // collide.
        Placement::PreferLocal | Placement::Hash => rendezvous(target, view)?,
        Placement::Random => random(target, view)?,
        Placement::Shard => return None,
    };
    Some(Endpoint {
        silo: home.incarnation.generation,
        shard: ShardIndex::of(target.0, home.shards),
    })
}

/// Highest random weight: a silo that leaves moves only what it hosted.
fn rendezvous(target: AddressHash, view: &View) -> Option<&SiloRow> {
    view.active().max_by_key(|row| {
        let silo = row.incarnation.generation;
        let mut seed = [0; 24];
        seed[..16].copy_from_slice(&target.0.to_le_bytes());
        seed[16..].copy_from_slice(&silo.0.to_le_bytes());
        (siloring_core::hash::stable_u64(&seed), silo)
    })
}

/// Drawn anew for each grain and view. While nobody knows where a grain will be, each delivery to
/// it is placed by itself: all have to be placed alike, or a later one could overtake.
fn random(target: AddressHash, view: &View) -> Option<&SiloRow> {
    let count = view.active().count() as u64;
    let mut seed = [0; 24];
    seed[..16].copy_from_slice(&target.0.to_le_bytes());
    seed[16..].copy_from_slice(&view.number().0.to_le_bytes());
    let index = siloring_core::hash::stable_u64(&seed).checked_rem(count)?;
    view.active().nth(usize::try_from(index).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use siloring_core::ids::{Incarnation, SiloName, ViewNumber};

    fn view(silos: &[(u64, SiloStatus)]) -> View {
        let row = |&(generation, status): &(u64, SiloStatus)| SiloRow {
            incarnation: Incarnation {
                name: SiloName::new("pod").unwrap(),
                generation: Generation(generation),
            },
            status,
            advertised: String::new(),
            host: String::new(),
            shards: 3,
            votes: Vec::new(),
            changed_in: ViewNumber(generation),
        };
        View::new(ViewNumber(9), silos.iter().map(row).collect())
    }

    fn placed(placement: Placement, view: &View, target: u128) -> Option<Generation> {
        place(placement, AddressHash(target), Generation(1), view).map(|e| e.silo)
    }

    #[test]
    fn prefer_local_stays_unless_the_silo_is_leaving() {
        let here = view(&[(1, SiloStatus::Active), (2, SiloStatus::Active)]);
        assert_eq!(placed(Placement::PreferLocal, &here, 5), Some(Generation(1)));
        let leaving = view(&[(1, SiloStatus::Draining), (2, SiloStatus::Active)]);
        assert_eq!(placed(Placement::PreferLocal, &leaving, 5), Some(Generation(2)));
    }

    #[test]
    fn hash_placement_moves_only_what_the_leaver_hosted() {
        let before =
            view(&[(1, SiloStatus::Active), (2, SiloStatus::Active), (3, SiloStatus::Active)]);
        let after =
            view(&[(1, SiloStatus::Active), (2, SiloStatus::Active), (3, SiloStatus::Dead)]);
        for target in 0..500u128 {
            let target = target.wrapping_mul(0x9e37_79b9_7f4a_7c15_9e37_79b9_7f4a_7c15);
            let was = placed(Placement::Hash, &before, target);
            let is = placed(Placement::Hash, &after, target);
            assert!(was == is || was == Some(Generation(3)));
        }
    }

    #[test]
    fn the_newest_silo_gets_its_share_and_no_more() {
        let silos: Vec<_> = (1..=5).map(|silo| (silo, SiloStatus::Active)).collect();
        let grown = view(&silos);
        for placement in [Placement::Hash, Placement::Random] {
            let targets = (0..10_000u128).map(|id| id.wrapping_mul(0x9e37_79b9_7f4a_7c15_9e37));
            let on_newest =
                targets.filter(|target| placed(placement, &grown, *target) == Some(Generation(5)));
            let share = on_newest.count();
            assert!((1_800..2_200).contains(&share), "{placement:?}: {share} of 10 000");
        }
    }

    #[test]
    fn nothing_is_placed_where_nobody_is_active() {
        let empty = view(&[(1, SiloStatus::Joining)]);
        for placement in [Placement::PreferLocal, Placement::Hash, Placement::Random] {
            assert_eq!(placed(placement, &empty, 5), None);
        }
    }

    #[test]
    fn one_shard_key_has_one_address() {
        let key = ShardKey(Endpoint { silo: Generation(u64::MAX), shard: ShardIndex(3) });
        assert_eq!(ShardKey::parse(&key.format()), Some(key));
        for malformed in ["", "7", "7.", ".3", "07.3", "7.03", "7.3.", "7.+3", "7.65536"] {
            assert_eq!(ShardKey::parse(malformed), None, "{malformed}");
        }
    }
}
