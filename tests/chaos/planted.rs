//! Proof that the verdict can be another one.

use std::time::Duration;

use crate::run::{Run, go_on, tell};

/// A publish that says it was handled when it was queued: what its consumers do is not known then.
#[test]
fn a_publish_that_is_not_confirmed_is_found() {
    let mut run = Run::planted("planted", "stream-unconfirmed");
    run.begin(&["ann", "bob"]);
    go_on(Duration::from_secs(2));
    let (verdict, _folder) = run.judge();
    let found = verdict.violations.iter().find(|text| text.contains("I11"));
    let found = found.unwrap_or_else(|| panic!("not found: {:?}", verdict.violations));
    tell(&format!("with stream-unconfirmed: {found}"));
}
