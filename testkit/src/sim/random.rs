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
    /// Where clocks start and how fast they run.
    pub(super) clock: fastrand::Rng,
    /// How late word of a changed registry comes.
    pub(super) hints: fastrand::Rng,
    /// The entropy handed to programs.
    pub(super) process: fastrand::Rng,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            network: stream(seed, "network"),
            store: stream(seed, "store"),
            schedule: stream(seed, "schedule"),
            clock: stream(seed, "clock"),
            hints: stream(seed, "hints"),
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

    /// A fault that draws more of one concern leaves the rest of the run as it was.
    #[test]
    fn what_one_concern_draws_moves_no_other() {
        let each: [fn(&mut Streams) -> &mut fastrand::Rng; 6] = [
            |all| &mut all.network,
            |all| &mut all.store,
            |all| &mut all.schedule,
            |all| &mut all.clock,
            |all| &mut all.hints,
            |all| &mut all.process,
        ];
        let next = |all: &mut Streams| each.map(|of| of(all).u64(..));
        let calm = next(&mut Streams::new(7));
        for (index, busy) in each.iter().enumerate() {
            let mut all = Streams::new(7);
            for _ in 0..100 {
                busy(&mut all).u64(..);
            }
            let drawn = next(&mut all);
            for other in 0..each.len() {
                assert_eq!(drawn[other] == calm[other], other != index, "{index} moved {other}");
            }
        }
    }

    #[test]
    fn streams_of_one_seed_are_independent_and_repeat() {
        let (mut one, mut again, mut other) =
            (stream(7, "network"), stream(7, "network"), stream(7, "store"));
        let draws: Vec<u64> = (0..8).map(|_| one.u64(..)).collect();
        assert!(draws.iter().all(|draw| *draw == again.u64(..)));
        assert!(draws.iter().any(|draw| *draw != other.u64(..)));
    }
}
