//! Counts of passed and failed tests, read from what the test runners print.

use std::ops::AddAssign;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Of modules named `long`: they have their place in `cargo xtask prove`.
    pub(crate) deferred: u64,
}

impl Tally {
    /// One check that is no test: a formatter, a linter, a bench that ran.
    pub(crate) fn of_check(is_ok: bool) -> Self {
        Self { passed: u64::from(is_ok), failed: u64::from(!is_ok), ..Self::default() }
    }

    /// Counts what `cargo nextest run` or `cargo test` printed. A run that failed without a failed
    /// test (it did not build, it was ended for its time) counts as one failure.
    pub(crate) fn of_run(output: &str, is_ok: bool) -> Self {
        let mut tally = Self::default();
        for line in output.lines() {
            tally += Self::of_line(line).unwrap_or_default();
            tally.deferred += Self::deferred(line).unwrap_or_default();
        }
        // The summary counts them among the skipped.
        tally.skipped = tally.skipped.saturating_sub(tally.deferred);
        if !is_ok && tally.failed == 0 {
            tally.failed = 1;
        }
        tally
    }

    /// `Summary [ 1.0s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 2 skipped`, or `test
    /// result: ok. 7 passed; 2 failed; 0 ignored; …` at the start of a line: nextest shows what a
    /// test printed indented, such a line of its own harness among it.
    fn of_line(line: &str) -> Option<Self> {
        let counts = match line.strip_prefix("test result: ") {
            Some(rest) => rest.split_once(". ")?.1,
            None => line.trim_start().strip_prefix("Summary [")?.split_once("run: ")?.1,
        };
        let mut tally = Self::default();
        for part in counts.split([',', ';', '(', ')']) {
            let Some((number, word)) = part.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match word {
                "passed" => tally.passed += number,
                "failed" | "exec failed" | "timed out" => tally.failed += number,
                "skipped" | "ignored" => tally.skipped += number,
                _ => {}
            }
        }
        Some(tally)
    }

    /// `Starting 9 tests across 2 binaries (3 tests skipped, including 2 tests via
    /// profile.default.default-filter)`: those 2; or `(3 tests skipped via profile…)`: all 3.
    fn deferred(line: &str) -> Option<u64> {
        let (_, skipped) = line.trim_start().strip_prefix("Starting ")?.split_once('(')?;
        let part = skipped.split_once("including ").map_or(skipped, |(_, part)| part);
        let (number, filter) = part.split_once(" test")?;
        let filter = filter.trim_start_matches('s').trim_start_matches(" skipped");
        number.parse().ok().filter(|_| filter.starts_with(" via profile."))
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.deferred += other.deferred;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_nextest_is_counted() {
        let output = "  PASS [   0.004s] (1/9) a b\n    test result: FAILED. 0 passed; 1 failed\n  \
                      Summary [   1.204s] 9 tests run: 7 passed (1 slow, 2 flaky), 1 failed, \
                      1 timed out, 2 skipped\n";
        let counted = Tally { passed: 7, failed: 2, skipped: 2, deferred: 0 };
        assert_eq!(Tally::of_run(output, false), counted);
        let interrupted = "     Summary [   0.010s] 3/9 tests run: 2 passed, 1 failed, 0 skipped";
        assert_eq!(
            Tally::of_run(interrupted, false),
            Tally { passed: 2, failed: 1, ..Tally::default() }
        );
    }

    #[test]
    fn results_of_several_binaries_are_added_up() {
        let output = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n\
                      noise\ntest result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured\n";
        assert_eq!(
            Tally::of_run(output, false),
            Tally { passed: 16, failed: 2, skipped: 1, deferred: 0 }
        );
    }

    #[test]
    fn tests_left_to_another_profile_are_told_apart_from_skipped_ones() {
        let of = |skipped: &str| {
            let output = format!(
                "    Starting 1 test across 1 binary ({skipped})\n  Summary \
                                  [ 0.1s] 1 test run: 1 passed, 3 skipped\n"
            );
            let tally = Tally::of_run(&output, true);
            (tally.passed, tally.skipped, tally.deferred)
        };
        let filter = "via profile.default.default-filter";
        assert_eq!(of(&format!("3 tests skipped, including 2 tests {filter}")), (1, 1, 2));
        assert_eq!(of(&format!("3 tests skipped, including 1 test {filter}")), (1, 2, 1));
        assert_eq!(of(&format!("3 tests skipped {filter}")), (1, 0, 3));
        assert_eq!(of("3 tests skipped"), (1, 3, 0));
        assert_eq!(of("3 tests skipped, including 1 binary via command line"), (1, 3, 0));
    }

    #[test]
    fn a_run_that_ended_without_a_result_is_a_failure() {
        assert_eq!(Tally::of_run("error: could not compile", false).failed, 1);
        assert_eq!(Tally::of_run("", true), Tally::default());
    }
}
