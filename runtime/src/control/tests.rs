//! Scenarios of membership, each on the harness in [`world`].
//!
//! A scenario that takes a defect is run with and without it: with it, it must fail.

mod joining;
mod lease;
mod models;
mod partitions;
mod store;
mod stores;
mod sweep;
mod voting;
mod world;

use self::world::World;

/// Whether the scenario fails with the defect that is planted by `plant`.
fn fails(scenario: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    std::panic::catch_unwind(scenario).is_err()
}

/// The seeds that a scenario with chance in it is run with.
fn seeds(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|index| index * 7919 + 1)
}

/// Asserts that the silos in `nodes` serve, are Active and agree.
fn assert_serving(world: &World, nodes: &[usize]) {
    let seed = world.seed;
    for &node in nodes {
        let life = (world.nodes[node].life, world.nodes[node].exited);
        assert!(world.is_serving(node), "seed {seed}: node {node} serves, {life:?}");
    }
    assert!(world.is_converged(), "seed {seed}: all agree");
}
