//! Proof that the checks can fail: each planted defect is found by the smoke's own seeds.

use siloring_testkit::sim::explore::run;
use siloring_testkit::sim::{Options, Plan};

/// Seeds tried for each defect.
const SEEDS: u64 = 200;

/// Runs seeds under a defect until one fails, and says what it broke.
fn found(defect: &str) {
    found_where(defect, &[], |_| true);
}

/// Runs seeds under a defect until one breaks this invariant.
fn found_as(defect: &str, invariant: &str) {
    found_where(defect, &[], |broken| broken == invariant);
}

/// The same, with these options in place of the drawn ones: what is rare otherwise is found sooner.
fn found_with(defect: &str, set: &[&str], invariant: &str) {
    found_where(defect, set, |broken| broken == invariant);
}

fn found_where(defect: &str, set: &[&str], is_it: impl Fn(&str) -> bool) {
    for seed in 0..SEEDS {
        let mut options = Options::drawn(seed);
        options.defect = Some(defect.to_owned());
        for line in set {
            options.set(line).unwrap_or_else(|problem| panic!("{line}: {problem}"));
        }
        if let Err(failure) = run(&Plan::from_seed(options)) {
            let first = &failure.violations[0];
            println!("{defect}: seed {seed}: {first}");
            if is_it(first.invariant) {
                return;
            }
        }
    }
    panic!("{defect} was not found by {SEEDS} seeds");
}

/// 1. The ledger's sweep is skipped when a silo is gone.
#[test]
fn open_calls_that_survive_their_silo_are_found() {
    found("open-calls-survive-their-silo");
}

/// 2. Subscriptions are in the memory of the stream's owner only.
#[test]
fn subscriptions_in_memory_only_are_found() {
    found("stream-memory-registry");
}

/// 6. A place that refused stays in the cache.
#[test]
fn a_cache_kept_on_refusal_is_found() {
    found("cache-kept-on-refusal");
}

/// 9. A write of unknown outcome is taken for made.
#[test]
fn an_unknown_commit_taken_for_made_is_found() {
    found("unknown-commit-assumed");
}

/// 10. An attempt is counted after its event was sent.
#[test]
fn an_attempt_counted_after_the_send_is_found() {
    found("stream-attempt-after-send");
}

/// 11. A claim gives up after six attempts.
#[test]
fn a_claim_that_gives_up_is_found() {
    found("claim-gives-up");
}

/// 12. The drain is noticed after the activation was made.
#[test]
fn a_drain_noticed_too_late_is_found() {
    found("drain-after-activation");
}

/// A refusal that is swallowed.
#[test]
fn a_swallowed_refusal_is_found() {
    found("refusals-swallowed");
}

/// 7. A link counts as up at the connect.
#[test]
fn a_link_that_is_up_at_the_connect_is_found() {
    found("up-at-connect");
}

/// 8. The heartbeat waits in the data's queue.
#[test]
fn a_heartbeat_behind_the_data_is_found() {
    found_as("heartbeat-in-data-queue", "nobody dies of nothing");
}

/// I6. A range stays with its owner although a newer view gives it to another.
#[test]
fn a_range_served_by_two_is_found() {
    found_as("range-kept", "I6 one shard serves a position in a view");
}

/// I12. Two claims of one hub get one number.
#[test]
fn a_claims_number_told_to_two_silos_is_found() {
    found_as("numbers-repeat", "I12 a claim's number is one silo's");
}

/// I10. A grain hears owners of streams that are not theirs any more.
#[test]
fn an_old_owner_that_is_heard_is_found() {
    let broken = "I10 an activation hears no older owner";
    found_with("stale-owners-heard", &["mix streams"], broken);
}

/// FIFO. An event does not wait for an earlier one of its publisher.
#[test]
fn two_events_of_one_publisher_swapped_are_found() {
    found_as("stream-lanes-unordered", "FIFO per source and subscription");
}

/// At rest: an entry of an activation that has ended.
#[test]
fn what_is_left_over_at_rest_is_found() {
    found_as("ends-untold", "nothing is left at rest");
}

/// 3. Whoever listens for changes of the registry looks first, and listens then.
#[test]
fn a_look_before_listening_is_found() {
    found_as("looks-before-listening", "word of a changed subscription comes");
}

/// 4. Of two fences of one view the lower one is let through.
#[test]
fn a_fence_compared_by_its_view_is_found() {
    let broken = "I7 accepted fence never goes back";
    found_with("fences-by-view", &["mix state"], broken);
}

/// 14. Each silo makes its ring in the order in which it heard of the others.
#[test]
fn a_ring_of_the_order_of_hearing_is_found() {
    found_as("ring-of-order", "I6 one shard serves a position in a view");
}
