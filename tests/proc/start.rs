//! Starting: what is missing is named, with the remedy, before anything else happens.

use std::time::Duration;

use siloring_testkit::process::Stream;

use crate::silo::{Cluster, on_each_store};

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

    siloring::migrate(cluster.store()).unwrap();
    let mut silo = cluster.start("late");
    assert_eq!(silo.outcome("call counter 10000").how, "handled");
}

/// P2, for a phase that came later than the others: a database of an earlier release.
#[test]
fn a_silo_on_a_database_without_subscriptions_refuses_and_names_the_phase() {
    const NAME: &str = "a_silo_on_a_database_without_subscriptions_refuses_and_names_the_phase";
    /// What makes a complete database one of before the phase.
    const BEFORE: &str = "DROP TABLE siloring_subscription; DROP TABLE siloring_registry; \
                          DROP TABLE siloring_dead_letter; \
                          DELETE FROM siloring_phase WHERE phase = 'subscriptions';";
    on_each_store(NAME, "earlier", |cluster| {
        let mut old = cluster.start("old");
        assert_eq!(old.outcome("call counter 10000").how, "handled");
        match cluster.store().strip_prefix("sqlite:") {
            Some(path) => rusqlite::Connection::open(path).unwrap().execute_batch(BEFORE).unwrap(),
            None => postgres::Client::connect(cluster.store(), postgres::NoTls)
                .unwrap()
                .batch_execute(BEFORE)
                .unwrap(),
        }
        let mut refused = cluster.program("early").start().unwrap();
        let status = refused.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(status.code(), Some(1));
        let log = refused.log_text();
        let first = log.lines().next().unwrap_or_default();
        assert!(first.contains("lacks phase subscriptions"), "what is missing: {first}");
        assert!(first.contains("run `siloring migrate "), "and the remedy: {first}");
        assert_eq!(old.outcome("call counter 10000").how, "handled", "the old one serves");

        let report = siloring_storage::migrate(cluster.store()).unwrap();
        let done = report
            .phases
            .iter()
            .filter(|phase| phase.outcome == siloring_storage::PhaseOutcome::Applied)
            .count();
        assert_eq!(done, 1, "only the missing one: {report:?}");
        let mut late = cluster.start("late");
        late.subscribe("general", "ear", "ear");
        assert_eq!(late.publish("general", 1).value, Some(1));
        assert_eq!(old.publish("general", 2).value, Some(1), "and the old one sees it");
    });
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
