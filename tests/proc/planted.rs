//! Proof that the scenarios can fail: each is run on silos with a defect, and must find it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use siloring_testkit::panicked;

use crate::hubs::{a_subscription_is_taken_over, mirrors_live_and_die};
use crate::rolls::rolls_under_events;
use crate::silo::{Cluster, tell};
use crate::streams::{
    across_two, everybody_leaves_and_returns, publishing_asks_no_store,
    replies_while_the_owner_leaves, several_of_one_grain,
};

/// Characters of what a scenario said that are shown: it may have counted for long.
const SHOWN_MAX: usize = 300;

/// Runs a scenario on SQLite with a defect; where it broke must be where the defect shows.
fn found(defect: &'static str, shows: &str, scenario: impl Fn(&Cluster)) {
    let cluster = Cluster::planted("planted", defect);
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(&cluster))) else {
        panic!("{defect} was not found");
    };
    let text = panicked::text(&*panic);
    let beginning: String = text.chars().take(SHOWN_MAX).collect();
    assert!(text.contains(shows), "{defect} showed otherwise: {beginning}");
    tell(&format!("with {defect}: {beginning}"));
}

/// G3.
#[test]
fn an_owner_that_takes_its_subscriptions_along_is_found_by_replies() {
    found("stream-memory-registry", "NoSubscriber", replies_while_the_owner_leaves);
}

/// G9.
#[test]
fn an_owner_that_takes_its_subscriptions_along_is_found_by_rolls() {
    found("stream-memory-registry", "NoSubscriber", rolls_under_events);
}

/// S1.
#[test]
fn a_subscription_acknowledged_before_its_cursor_is_found() {
    found("stream-cursor-after-answer", "value: Some(", across_two);
}

/// S9.
#[test]
fn an_unsubscribe_that_ends_all_is_found() {
    found("stream-unsubscribes-all", "Some(1)", several_of_one_grain);
}

/// S10.
#[test]
fn subscriptions_that_end_with_all_silos_are_found() {
    found("stream-memory-registry", "grains as before", everybody_leaves_and_returns);
}

/// S10.
#[test]
fn subscriptions_of_dead_hubs_that_count_are_found_after_a_restart() {
    found("stream-rows-without-incarnation", "no dead hub", everybody_leaves_and_returns);
}

/// S14.
#[test]
fn a_registry_that_is_asked_at_each_publish_is_found() {
    found("stream-registry-trusted", "the streams are hot", publishing_asks_no_store);
}

/// H10.
#[test]
fn a_subscription_that_outlives_its_incarnation_is_found_by_its_successor() {
    found("stream-rows-without-incarnation", "still refused", a_subscription_is_taken_over);
}

/// H11.
#[test]
fn a_dead_mirror_that_stays_is_found() {
    found("stream-rows-without-incarnation", "the dead mirror stays", mirrors_live_and_die);
}
