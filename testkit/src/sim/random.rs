//! Entropy of the world: one seeded stream per concern.
//!
//! A draw of one concern never disturbs another: adding a fault leaves the latencies of the run as
//! they were, so that a shrunk plan still meets the run that failed.

use siloring_core::hash::stable_u64;

/// The streams of one world.
#[derive(Debug)]
pub(super) struct Streams {
    /// Latencies, losses, where a connection is cut.
    pub(super) network: fastrand::Rng,
    /// Latencies and lost answers of the store.
    pub(super) store: fastrand::Rng,
    /// How long a part runs and how late it is woken.
    pub(super) schedule: fastrand::Rng,
    /// Clock offsets, and the entropy handed to programs.
    pub(super) process: fastrand::Rng,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            network: stream(seed, "network"),
            store: stream(seed, "store"),
            schedule: stream(seed, "schedule"),
            process: stream(seed, "process"),
        }
    }
}

/// The stream of `concern` under `seed`: the same for ever.
pub fn stream(seed: u64, concern: &str) -> fastrand::Rng {
    let mut text = seed.to_le_bytes().to_vec();
    text.extend_from_slice(concern.as_bytes());
    fastrand::Rng::with_seed(stable_u64(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_are_independent_and_repeat() {
        let (mut one, mut again, mut other) =
            (stream(7, "network"), stream(7, "network"), stream(7, "store"));
        let draws: Vec<u64> = (0..8).map(|_| one.u64(..)).collect();
        assert!(draws.iter().all(|draw| *draw == again.u64(..)));
        assert!(draws.iter().any(|draw| *draw != other.u64(..)));
    }
}
