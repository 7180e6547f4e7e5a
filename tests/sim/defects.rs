//! Proof that the checks can fail: each planted defect is found by the smoke's own seeds.
//!
//! In the checks the search begins at the seed that found the defect before, so that it takes a
//! run or two; if the draw has changed since, it goes on from there. `cargo xtask prove` begins at
//! the first seed, and says how many it took.

use siloring_testkit::process::{figure, is_long};
use siloring_testkit::sim::explore::run;
use siloring_testkit::sim::{Options, Plan};

/// Seeds tried for each defect.
const SEEDS: u64 = 200;
/// The same from the first seed on.
const SEEDS_LONG: u64 = 2_000;

/// A search for one defect.
struct Search {
    defect: &'static str,
    /// Options in place of the drawn ones: what is rare otherwise is found sooner.
    set: &'static [&'static str],
    /// What it must break; anything, if nothing is named.
    broken: Option<&'static str>,
}

fn defect(defect: &'static str) -> Search {
    Search { defect, set: &[], broken: None }
}

impl Search {
    fn with(self, set: &'static [&'static str]) -> Self {
        Self { set, ..self }
    }

    fn breaks(self, invariant: &'static str) -> Self {
        Self { broken: Some(invariant), ..self }
    }

    /// Runs seeds under the defect until one fails as it should, and says what it broke.
    fn is_found_by(&self, seed: u64) {
        let (first, count) = if is_long() { (0, SEEDS_LONG) } else { (seed, SEEDS) };
        for seed in first..first + count {
            let Err(failure) = run(&Plan::from_seed(self.options(seed))) else { continue };
            let broken = &failure.violations[0];
            println!("{}: seed {seed}: {broken}", self.defect);
            if self.broken.is_none_or(|wanted| wanted == broken.invariant) {
                if is_long() {
                    let name = format!("defect {}, seeds until it was found", self.defect);
                    figure(&name, seed + 1);
                }
                return;
            }
        }
        panic!("{} was not found by {count} seeds from {first} on", self.defect);
    }

    fn options(&self, seed: u64) -> Options {
        let mut options = Options::drawn(seed);
        options.defect = Some(self.defect.to_owned());
        for line in self.set {
            options.set(line).unwrap_or_else(|problem| panic!("{line}: {problem}"));
        }
        options
    }
}

/// 1. The ledger's sweep is skipped when a silo is gone.
#[test]
fn open_calls_that_survive_their_silo_are_found() {
    defect("open-calls-survive-their-silo").is_found_by(2);
}

/// 2. Subscriptions are in the memory of the stream's owner only.
#[test]
fn subscriptions_in_memory_only_are_found() {
    defect("stream-memory-registry").is_found_by(0);
}

/// 6. A place that refused stays in the cache.
#[test]
fn a_cache_kept_on_refusal_is_found() {
    defect("cache-kept-on-refusal").is_found_by(0);
}

/// 9. A write of unknown outcome is taken for made.
#[test]
fn an_unknown_commit_taken_for_made_is_found() {
    defect("unknown-commit-assumed").is_found_by(101);
}

/// 10. An attempt is counted after its event was sent.
#[test]
fn an_attempt_counted_after_the_send_is_found() {
    defect("stream-attempt-after-send").is_found_by(7);
}

/// 11. A claim gives up after six attempts.
#[test]
fn a_claim_that_gives_up_is_found() {
    defect("claim-gives-up").is_found_by(1);
}

/// 12. The drain is noticed after the activation was made.
#[test]
fn a_drain_noticed_too_late_is_found() {
    defect("drain-after-activation").is_found_by(0);
}

/// A refusal that is swallowed.
#[test]
fn a_swallowed_refusal_is_found() {
    defect("refusals-swallowed").is_found_by(0);
}

/// 7. A link counts as up at the connect.
#[test]
fn a_link_that_is_up_at_the_connect_is_found() {
    defect("up-at-connect").is_found_by(0);
}

/// 8. The heartbeat waits in the data's queue.
#[test]
fn a_heartbeat_behind_the_data_is_found() {
    defect("heartbeat-in-data-queue").breaks("nobody dies of nothing").is_found_by(2);
}

/// I6. A range stays with its owner although a newer view gives it to another.
#[test]
fn a_range_served_by_two_is_found() {
    defect("range-kept").breaks("I6 one shard serves a position in a view").is_found_by(0);
}

/// I12. Two claims of one hub get one number.
#[test]
fn a_claims_number_told_to_two_silos_is_found() {
    defect("numbers-repeat").breaks("I12 a claim's number is one silo's").is_found_by(0);
}

/// I10. A grain hears owners of streams that are not theirs any more.
#[test]
fn an_old_owner_that_is_heard_is_found() {
    defect("stale-owners-heard")
        .with(&["mix streams"])
        .breaks("I10 an activation hears no older owner")
        .is_found_by(2);
}

/// FIFO. An event does not wait for an earlier one of its publisher.
#[test]
fn two_events_of_one_publisher_swapped_are_found() {
    defect("stream-lanes-unordered").breaks("FIFO per source and subscription").is_found_by(36);
}

/// At rest: an entry of an activation that has ended.
#[test]
fn what_is_left_over_at_rest_is_found() {
    defect("ends-untold").breaks("nothing is left at rest").is_found_by(0);
}

/// 3. Whoever listens for changes of the registry looks first, and listens then.
#[test]
fn a_look_before_listening_is_found() {
    defect("looks-before-listening").breaks("word of a changed subscription comes").is_found_by(0);
}

/// 4. Of two fences of one view the lower one is let through.
#[test]
fn a_fence_compared_by_its_view_is_found() {
    defect("fences-by-view")
        .with(&["mix state"])
        .breaks("I7 accepted fence never goes back")
        .is_found_by(0);
}

/// 14. Each silo makes its ring in the order in which it heard of the others.
#[test]
fn a_ring_of_the_order_of_hearing_is_found() {
    defect("ring-of-order").breaks("I6 one shard serves a position in a view").is_found_by(0);
}

/// 5. A range is opened before all have said what they have of it.
#[test]
fn a_range_that_opens_too_soon_is_found() {
    defect("open-before-all-answers").breaks("answers of one key are in one order").is_found_by(4);
}

/// 13. A timer that fires late is acted on before what has come meanwhile is looked at.
#[test]
fn a_late_timer_that_is_trusted_is_found() {
    defect("late-timers-trusted")
        .with(&["silos 2"])
        .breaks("nobody dies of nothing")
        .is_found_by(178);
}
