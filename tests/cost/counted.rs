//! Instructions of a load: counted by callgrind, held against a record.
//!
//! Method: a test runs itself under callgrind, with less and with more of its load. The difference
//! of instructions, divided by the difference of what was done, leaves the start and the end out.
//! The number is that of the profile `ci`, debug assertions and the switches by which tests plant
//! defects included: it says whether a change made something dearer, not what it costs a user.
//! Runs and builds of one source differ by an instruction or two.
#![expect(clippy::print_stdout, reason = "a counted run says how much it did")]

use std::fs;
use std::path::Path;
use std::process::Command;

use siloring_testkit::process::{figure, skip};

/// What each load costs as of the last change that was meant to alter it: a line a load.
const RECORD: &str = "tests/cost/instructions.txt";
/// A change may cost so much more, in percent.
const MORE_MAX: u64 = 10;
/// Set for a counted run: how much of the load it is to do.
const AMOUNT_VARIABLE: &str = "SILORING_COUNTED_AMOUNT";
/// How a counted run says what it did.
const DONE: &str = "done in the counted run: ";

/// Something whose cost is on record.
pub(crate) struct Load {
    /// What one is called, in the record and among the figures.
    pub(crate) name: &'static str,
    /// The whole name of the test that holds it.
    pub(crate) test: &'static str,
    /// How much is done, in the shorter run and in the longer.
    pub(crate) amounts: [u64; 2],
    /// So many more are done in the longer run, or they are too few to tell.
    pub(crate) least: u64,
    /// Does that much; how many of what is counted it came to.
    pub(crate) run: fn(u64) -> u64,
}

impl Load {
    /// Holds the load against its record, or is one of the counted runs in which that is done.
    pub(crate) fn hold(&self) {
        if let Ok(amount) = std::env::var(AMOUNT_VARIABLE) {
            let done = (self.run)(amount.parse().expect("an amount is a number"));
            println!("{DONE}{done}");
            return;
        }
        if Command::new("valgrind").arg("--version").output().is_err() {
            return skip(self.test, "valgrind is missing");
        }
        let [less, more] = self.amounts.map(|amount| self.counted(amount));
        let done = more.done.saturating_sub(less.done);
        assert!(done >= self.least, "enough to tell: {done}, of {less:?} and {more:?}");
        let cost = (more.instructions - less.instructions) / done;
        figure(&format!("instructions: {}", self.name), cost);
        let record = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD);
        let record = fs::read_to_string(record).expect("the record is there");
        if let Err(why) = judge(self.name, cost, &record) {
            panic!("{why}");
        }
    }

    /// Runs the test under callgrind with this much of its load.
    fn counted(&self, amount: u64) -> Counted {
        let program = std::env::current_exe().expect("a test has a file");
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args([self.test, "--exact", "--nocapture"])
            .env(AMOUNT_VARIABLE, amount.to_string())
            .output()
            .expect("valgrind starts");
        let [out, err] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success(), "{out}{err}");
        Counted { instructions: number(&err, "Collected : "), done: number(&out, DONE) }
    }
}

#[derive(Debug)]
struct Counted {
    instructions: u64,
    done: u64,
}

/// The number that follows `mark`.
fn number(text: &str, mark: &str) -> u64 {
    let found = text.split(mark).nth(1).and_then(|rest| rest.split_whitespace().next());
    found.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {mark:?} in {text}"))
}

/// Whether a cost is within what is recorded for it; if not, what to do.
fn judge(name: &str, cost: u64, record: &str) -> Result<(), String> {
    let mut lines = record.lines().filter_map(|line| line.split_once(": "));
    let recorded = lines.find(|(other, _)| *other == name).and_then(|line| line.1.parse().ok());
    let recorded: u64 = recorded.ok_or_else(|| {
        format!("{name}: {cost} instructions, and {RECORD} has no line \"{name}: {cost}\"")
    })?;
    if cost * 100 <= recorded * (100 + MORE_MAX) {
        return Ok(());
    }
    Err(format!(
        "{name}: {cost} instructions, {recorded} recorded in {RECORD}: find what made it dearer, \
         or record it and say why"
    ))
}

#[test]
fn a_cost_that_is_not_on_record_or_above_it_is_told_with_what_to_do() {
    let record = "a call: 1000\na frame: 100\n";
    assert_eq!(judge("a frame", 110, record), Ok(()));
    assert_eq!(judge("a frame", 1, record), Ok(()));
    let dearer = judge("a frame", 111, record).expect_err("it is more than a tenth dearer");
    for part in ["a frame: 111 instructions", "100 recorded in tests/cost", "or record it"] {
        assert!(dearer.contains(part), "{dearer}");
    }
    for record in [record, "a check: many\n"] {
        let unknown = judge("a check", 40, record).expect_err("it is not on record");
        assert!(unknown.contains("no line \"a check: 40\""), "{unknown}");
    }
}
