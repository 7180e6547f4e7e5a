//! Plans that are kept: one for each scenario that a plan can express, and the shapes of trouble in
//! which faults of the product were found. The comment of each says which.

use std::fs;
use std::path::Path;

use siloring_testkit::sim::Plan;
use siloring_testkit::sim::explore::run_twice;

#[test]
fn every_kept_plan_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/plans");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let plan = Plan::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        run_twice(&plan).unwrap_or_else(|failure| panic!("{}: {failure}", path.display()));
        count += 1;
    }
    assert!(count >= 23, "{count} plans are kept");
}
