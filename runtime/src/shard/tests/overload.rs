//! What a shard refuses, and what it does not, while all that comes has waited too long.

use siloring_core::limits::OVERLOAD_INTERVAL;

use super::of_shard::{COUNT, part};
use super::*;

const STEP: Duration = Duration::from_millis(1);
/// How long what comes has waited.
const WAITED: Duration = Duration::from_millis(50);

impl World {
    /// A request of another shard that has waited.
    fn late_request(&mut self, correlation: u64) {
        let came_after = self.now;
        self.now += WAITED;
        self.shard.set_came_after(came_after);
        let request = self.request(&COUNT, correlation);
        self.shard.handle_mail(self.now, request);
        self.shard.tick(self.now);
        self.settle();
    }

    /// A call of another thread; why it failed.
    fn foreign(&mut self) -> Option<RejectedKind> {
        let failed = Arc::new(Mutex::new(None));
        let told = Arc::clone(&failed);
        call(&self.handle.grain::<Counter>("one"), &ADD)
            .one_way_or(move |failure| *told.lock().unwrap() = failure.rejected_kind());
        self.settle();
        *failed.lock().unwrap()
    }
}

#[test]
fn what_has_waited_too_long_is_refused_at_once_and_has_not_run() {
    let mut world = World::serving();
    assert_eq!(world.count_at(part(1, 0)), Ok(1));
    assert_eq!(world.foreign(), None);
    let mut ran = 1;
    for number in 0..50 {
        world.late_request(number);
        // The reply of one that ran has no link to go back on.
        let told = world.orphaned(number);
        assert!([RejectedKind::ConnectionLost, RejectedKind::Overloaded].contains(&told));
        ran += u64::from(told == RejectedKind::ConnectionLost);
    }
    let refused = world.shard.refused_count();
    let at_first = OVERLOAD_INTERVAL.as_millis() / WAITED.as_millis();
    assert_eq!((ran - 1, refused), (u64::try_from(at_first).unwrap(), 50 - ran + 1));
    assert_eq!((world.count("OverloadStarted"), world.count("OverloadEnded")), (1, 0));
    assert_eq!(world.foreign(), Some(RejectedKind::Overloaded), "a call of another thread");
    // What the shard's own futures ask for is work that was taken.
    assert_eq!(world.count_at(part(1, 0)), Ok(ran + 1), "what was refused did not run");
    let refused = world.shard.refused_count();
    for number in 50..50 + 2 * u64::try_from(OVERLOAD_INTERVAL.as_millis()).unwrap() {
        world.now += STEP;
        world.shard.set_came_after(world.now);
        let request = world.request(&COUNT, number);
        world.shard.handle_mail(world.now, request);
        world.shard.tick(world.now);
        world.settle();
        assert_eq!(world.orphaned(number), RejectedKind::ConnectionLost, "it is not late");
    }
    assert_eq!(world.shard.refused_count(), refused);
    assert_eq!((world.count("OverloadStarted"), world.count("OverloadEnded")), (1, 1));
}

/// Method: a future that always has more makes each run end with something left.
#[test]
fn what_the_last_run_left_counts_as_waiting() {
    let mut world = World::serving();
    assert_eq!(world.count_at(part(1, 0)), Ok(1));
    world.keep_busy();
    for number in 0..20 {
        world.now += WAITED;
        world.shard.set_came_after(world.now);
        let request = world.request(&COUNT, number);
        world.shard.handle_mail(world.now, request);
        assert!(world.shard.run(world.now), "it always has more");
        while let Some(output) = world.shard.poll_output() {
            world.take_output(output);
        }
    }
    assert_eq!(world.orphaned(19), RejectedKind::Overloaded);
}
