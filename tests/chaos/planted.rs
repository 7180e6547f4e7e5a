//! Proof that the verdict can be another one.

use std::time::Duration;

use crate::run::{DRAIN_TIME_MAX, Run, go_on, tell};

/// What the judge says of a run; it must name this.
fn found(run: Run, shows: &str) {
    let (verdict, _folder) = run.judge();
    let found = verdict.violations.iter().find(|text| text.contains(shows));
    let found = found.unwrap_or_else(|| panic!("not found: {:?}", verdict.violations));
    tell(found);
}

/// A publish says that it was handled when it was queued: what its consumers do is not known then.
#[test]
fn a_publish_that_is_not_confirmed_is_found() {
    let mut run = Run::planted("planted", "stream-unconfirmed");
    run.begin(&["ann", "bob"]);
    go_on(Duration::from_secs(2));
    found(run, "I11");
}

/// Subscriptions are with the owner of their stream only, and end with its silo.
#[test]
fn a_subscription_that_ends_with_its_owner_is_found() {
    let mut run = Run::planted("planted-registry", "stream-memory-registry");
    run.begin(&["ann", "bob", "carl"]);
    go_on(Duration::from_secs(1));
    for silo in [1, 2] {
        run.silos[silo].process.terminate().expect("it runs");
        assert_eq!(run.silos[silo].wait_exit(DRAIN_TIME_MAX), Some(0));
    }
    go_on(Duration::from_secs(1));
    found(run, "was told of none");
}
