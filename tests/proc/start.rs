//! Starting: what is missing is named, with the remedy, before anything else happens.

use std::time::Duration;

use siloring_testkit::process::Stream;

use crate::silo::Cluster;

/// A silo that cannot start says so by then.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(5);

#[test]
fn a_silo_before_the_migration_refuses_and_names_the_command() {
    let cluster = Cluster::without_tables("unmigrated");
    let mut refused = cluster.program("early").start().unwrap();
    let status = refused.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(1));
    let log = refused.log_text();
    let first = log.lines().next().unwrap_or_default();
    let (url, command) = (cluster.store(), format!("run `siloring migrate {}`", cluster.store()));
    assert!(first.contains(&format!("the store {url} lacks ")), "what is missing: {first}");
    assert!(first.contains(&command), "and the remedy: {first}");

    siloring::migrate(&cluster.store()).unwrap();
    let mut silo = cluster.start("late");
    assert_eq!(silo.outcome("call counter 10000").how, "handled");
}

#[test]
fn a_second_silo_without_a_shared_store_is_refused() {
    let cluster = Cluster::new("alone");
    let arguments = ["--store", "memory:", "--bind", "0.0.0.0:0"];
    let binary = siloring_testkit::process::artifact("test_silo").unwrap();
    let program = siloring_testkit::process::Program::new(binary, "open").arguments(arguments);
    let mut refused = program.start().unwrap();
    let status = refused.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(1), "beyond loopback without a secret");
    assert_eq!(refused.line_count(Stream::Error, "secret"), 1, "{}", refused.log_text());
    drop(cluster);
}
