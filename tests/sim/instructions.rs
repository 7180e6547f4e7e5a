//! What one simulated event costs, in instructions: the only measure of speed that a busy machine
//! does not disturb.
//!
//! Method: this test runs itself under callgrind, with a shorter and a longer load and no fault;
//! the difference of instructions, divided by the difference of events, leaves the start and the
//! checks at the end out. The number is that of the profile `ci`, debug assertions included: it
//! says whether a change made the product and its world dearer, not what a call costs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use siloring_testkit::process::{figure, skip};
use siloring_testkit::sim::explore::run;
use siloring_testkit::sim::{Options, Plan};

/// Instructions an event as of the last change that was meant to alter them.
const RECORDED: &str = "tests/sim/instructions.txt";
/// A change may cost so much more, in percent.
const MORE_MAX: u64 = 10;
/// Set for the inner run: seconds of load.
const INNER_VARIABLE: &str = "SILORING_COUNTED_SECONDS";
/// How the inner run says what it did.
const SAID: &str = "events counted: ";

#[test]
fn an_event_costs_no_more_instructions_than_recorded() {
    if let Ok(seconds) = std::env::var(INNER_VARIABLE) {
        return inner(seconds.parse().expect("a number of seconds"));
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("an_event_costs_no_more_instructions_than_recorded", "valgrind is missing");
    }
    let (short, long) = (counted(4), counted(12));
    let events = long.events - short.events;
    let cost = (long.instructions - short.instructions) / events;
    figure("simulator: instructions an event", cost);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorded = fs::read_to_string(root.join(RECORDED)).expect("the record is there");
    let recorded: u64 = recorded.trim().parse().expect("the record is a number");
    assert!(events > 10_000, "enough events to tell: {events}");
    assert!(
        cost * 100 <= recorded * (100 + MORE_MAX),
        "{cost} instructions an event, {recorded} recorded in {RECORDED}: find what made it \
         dearer, or record it and say why"
    );
}

struct Counted {
    instructions: u64,
    events: u64,
}

/// Runs this test under callgrind with so many seconds of load.
fn counted(seconds: u64) -> Counted {
    let program = std::env::current_exe().expect("a test has a file");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["instructions::an_event_costs_no_more_instructions_than_recorded", "--exact"])
        .arg("--nocapture")
        .env(INNER_VARIABLE, seconds.to_string())
        .output()
        .expect("valgrind starts");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    Counted { instructions: number(&err, "Collected : "), events: number(&out, SAID) }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number that follows `mark`.
fn number(text: &str, mark: &str) -> u64 {
    let found = text.split(mark).nth(1).and_then(|rest| rest.split_whitespace().next());
    found.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {mark:?} in {text}"))
}

fn inner(seconds: u64) {
    let mut options = Options::new(0);
    options.load_per_second = 500;
    options.safety = Duration::from_secs(seconds);
    let report = run(&Plan::calm(options)).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{SAID}{}", report.trace_count);
}
