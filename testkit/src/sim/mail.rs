//! Mail between the threads of one silo, on its way.
//!
//! What one thread sends another keeps its order, as in a ring with one producer. What several send
//! the same one comes interleaved: each takes its own time, up to a bound.

use std::collections::BTreeMap;
use std::time::Duration;

use siloring_core::Moment;

use super::scene::world_now;
use super::world::{Part, nanos};

/// Mail to one thread.
#[derive(Debug)]
pub(super) struct Letters<T> {
    delay_max: Duration,
    random: fastrand::Rng,
    /// By arrival, then by the order of sending.
    waiting: BTreeMap<(Moment, u64), T>,
    sent_count: u64,
    /// When the last letter of each sender arrives.
    last: BTreeMap<Part, Moment>,
}

impl<T> Letters<T> {
    pub(super) const fn new(delay_max: Duration, random: fastrand::Rng) -> Self {
        Self { delay_max, random, waiting: BTreeMap::new(), sent_count: 0, last: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, from: Part, letter: T) {
        let mut at = world_now().unwrap_or_default();
        if !self.delay_max.is_zero() {
            at += Duration::from_nanos(self.random.u64(..=nanos(self.delay_max)));
            let last = self.last.entry(from).or_default();
            *last = (*last).max(at);
            at = *last;
        }
        self.sent_count += 1;
        self.waiting.insert((at, self.sent_count), letter);
    }

    /// The next letter that has arrived.
    pub(super) fn pop(&mut self) -> Option<T> {
        let now = world_now().unwrap_or_default();
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// When the next letter arrives; [`Moment::NEVER`] if none is on its way.
    pub(super) fn next(&self) -> Moment {
        self.waiting.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }

    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger;
    use super::*;

    #[test]
    fn each_sender_keeps_its_order_and_two_interleave() {
        let scene = ledger::on_a_scene();
        let mut letters = Letters::new(Duration::from_micros(100), fastrand::Rng::with_seed(7));
        for number in 0..100 {
            letters.push(Part(number % 2), number);
        }
        assert!(letters.next() > Moment::ZERO);
        assert_eq!(letters.count(), 100);
        scene.now.set(Moment::ZERO + Duration::from_micros(100));
        let all: Vec<u16> = std::iter::from_fn(|| letters.pop()).collect();
        let of = |part| all.iter().copied().filter(|it| it % 2 == part).collect::<Vec<_>>();
        assert!(of(0).is_sorted() && of(1).is_sorted());
        assert!(!all.is_sorted(), "they interleave");
        assert_eq!(all.len(), 100);
    }
}
