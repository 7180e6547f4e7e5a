//! Saying that a test could not run: a skip that nobody reads is a hole in the promise.

use std::fs::OpenOptions;
use std::io::Write;

/// Names the file to which [`skip`] adds a line. `cargo xtask test` sets it and prints what it
/// finds; in CI anything found there is a failure.
pub const SKIPS_VARIABLE: &str = "SILORING_SKIPS";

/// Records that `test` did not run, and why. The caller returns afterwards.
#[expect(
    clippy::print_stderr,
    reason = "without the task runner the reason is for the person at the terminal"
)]
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped {test}: {reason}");
    let Some(path) = std::env::var_os(SKIPS_VARIABLE) else {
        return;
    };
    // One write of one line: several tests add to the file at once.
    let added = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{test}: {reason}\n").as_bytes()));
    added.expect("the file of skipped tests can be written");
}
