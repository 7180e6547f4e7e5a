//! Tests of whole runs: the cluster comes up, a run repeats itself, a failure says how to repeat
//! it.

use std::time::Duration;

use super::explore;
use super::plan::{Fault, Options, Plan, Slot};
use super::{Cluster, workload::Workload};

fn short(seed: u64) -> Options {
    let mut options = Options::new(seed);
    options.safety = Duration::from_secs(40);
    options
}

#[test]
fn a_cluster_starts_and_serves_the_load() {
    let plan = Plan::calm(short(1));
    let workload = Workload::new();
    let mut cluster = workload.install(Cluster::builder().plan(plan)).build();
    cluster.start().unwrap_or_else(|failure| panic!("{failure}"));
    cluster.run_plan().unwrap_or_else(|failure| panic!("{failure}"));
    workload.verify(&mut cluster).unwrap_or_else(|failure| panic!("{failure}"));
    let report = cluster.report();
    assert!(report.counts.sent > 600, "{report:?}");
    assert!(report.counts.handled > 500, "{report:?}");
}

#[test]
fn one_plan_has_one_trace() {
    let plan = Plan::calm(short(2))
        .at(Duration::from_secs(5), Fault::Kill(Slot(2)))
        .at(Duration::from_secs(12), Fault::Start(Slot(2)));
    let report = explore::run_twice(&plan).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.tally.kills, 1);
}
