//! The silo that process tests run does what it is told. Cargo builds it for this test, and so for
//! those of the whole workspace.

use std::time::Duration;

use siloring_testkit::process::Program;

/// Longest wait for anything that it is asked for.
const BOUND: Duration = Duration::from_secs(30);

#[test]
fn the_test_silo_answers_by_number_and_leaves_when_it_is_asked() {
    let mut silo = Program::new(env!("CARGO_BIN_EXE_test_silo"), "silo").start().unwrap();
    silo.wait_for_line(BOUND, |line| line.contains("\"active\"")).unwrap();
    for (number, value) in [(7, 1), (8, 2)] {
        silo.send_line(&format!("{number} call counter 10000")).unwrap();
        let number = format!("\"number\":{number},");
        let answer = silo.wait_for_line(BOUND, |line| line.contains(&number)).unwrap();
        assert!(answer.contains(&format!("\"value\":{value}")), "{answer}");
    }
    silo.send_line("9 dance").unwrap();
    let refused = silo.wait_for_line(BOUND, |line| line.contains("\"number\":9")).unwrap();
    assert!(refused.contains("no such command"), "{refused}");
    assert_eq!(silo.drain(BOUND).unwrap().code(), Some(0));
}
