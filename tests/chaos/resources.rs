//! Silos that run out of descriptors, of locked memory, of calls, under load.

use std::net::TcpStream;
use std::time::Duration;

use siloring_testkit::process::Program;

use crate::run::{AWAKENING_TIME_MAX, Run, go_on, until};

/// How long what is undisturbed runs between two faults.
const CALM: Duration = Duration::from_secs(2);
/// Connections that ask for more descriptors than there are.
const ASKING: usize = 64;
/// What a silo may use of a processor in [`CALM`] while it cannot accept: it does not spin.
const BUSY_MAX: Duration = Duration::from_millis(1500);
/// Calls of one turn, of which it may have fewer open.
const FAN: u64 = 40_000;

/// FAULTS 83.
#[test]
fn a_silo_without_descriptors_keeps_its_links_and_takes_new_ones_when_it_has_some_again() {
    let mut run = Run::new("no-descriptors");
    run.begin(&["ann", "bob", "carl"]);
    go_on(CALM);
    let bob = &run.silos[1];
    let had = bob.process.descriptor_count() as u64;
    // One less than it has: the one it keeps spare is all that is left.
    bob.process.limit_descriptors(had - 1).expect("a limit");
    let asking: Vec<TcpStream> = (0..ASKING)
        .map(|_| TcpStream::connect(&bob.address).expect("the kernel takes it"))
        .collect();
    let before = bob.process.processor_time();
    go_on(CALM);
    let busy = bob.process.processor_time().saturating_sub(before);
    assert!(busy < BUSY_MAX, "it spins: {busy:?} of {CALM:?}");
    assert!(bob.process.descriptor_count() as u64 <= had, "it took none");
    assert!(bob.lines("no descriptor is left") > 0, "and says why");
    run.fault("no descriptors");
    assert_eq!(run.silos[0].outcome("call counter 10000"), "handled", "links live");
    drop(asking);
    run.silos[1].process.limit_descriptors(had + 1024).expect("a limit");
    let silo = run.start("dora");
    run.load(silo);
    let has_more = || run.silos[1].process.descriptor_count() as u64 > had;
    until("it takes connections again", AWAKENING_TIME_MAX, has_more);
    go_on(CALM);
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

/// FAULTS 86.
#[test]
fn a_turn_that_calls_forty_thousand_hears_of_each_and_disturbs_nobody() {
    let mut run = Run::new("fan-out");
    run.begin(&["ann", "bob", "carl"]);
    let ends = run.silos[1].get(&format!("fan {FAN}"))["ends"].clone();
    let ends = ends.as_object().expect("a map");
    let count = |kind: &str| ends.get(kind).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let all: u64 = ends.values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!(all, FAN, "each has an outcome: {ends:?}");
    assert!(count("handled") > 0 && count("Overloaded") > 0, "{ends:?}");
    run.fault("forty thousand calls at once");
    assert!(!run.silos[1].process.has_ended());
    go_on(CALM);
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

/// FAULTS 87.
#[test]
fn a_silo_that_may_lock_too_little_memory_says_so_with_the_remedy() {
    let binary = siloring_testkit::process::artifact("test_silo").expect("it is built");
    let program =
        Program::new("prlimit", "locked").argument("--memlock=65536:65536").argument(binary);
    let mut process = program.start().expect("prlimit is installed");
    let status =
        process.wait_exit(Duration::from_secs(10)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(1));
    let log = process.log_text();
    let first = log.lines().next().unwrap_or_default();
    assert!(first.contains("the limit on locked memory is 65536 bytes"), "{log}");
    assert!(first.contains("ulimit -l"), "and the remedy: {log}");
}
