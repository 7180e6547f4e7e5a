//! Source text: its width, its heads, and the marks of unfinished work.

use super::{Finding, Repository};

const COLUMNS_MAX: usize = 100;
/// A table of one entry a line, and what a macro wrote.
const WIDE: &[&str] = &["core/src/event.rs", "macros/tests/expansion/room.rs"];

/// Programs that only a compiler reads, or that a macro wrote.
const HEADLESS: &[&str] = &["macros/tests/fail/", "macros/tests/expansion/"];

/// Put together from halves, so that this file does not find itself.
const MARKS: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
    concat!("for ", "now"),
    concat!("not yet ", "implemented"),
    concat!("#[ign", "ore"),
    concat!("allow(dead", "_code"),
];

/// How a test asks whether it is in a short run, put together likewise.
const SHORT: &str = concat!("if !is_", "long()");

/// No line of code is wider than a screen.
pub(super) fn lines_are_short(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.rust().filter(|(path, _)| !WIDE.contains(path)) {
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                findings.push(Finding::at(path, number + 1, format!("{columns} columns")));
            }
        }
    }
    findings
}

/// Every Rust file begins with its contract.
pub(super) fn modules_say_what_they_are(repository: &Repository) -> Vec<Finding> {
    let silent = repository.rust().filter(|(path, text)| {
        !text.starts_with("//! ") && !HEADLESS.iter().any(|folder| path.starts_with(folder))
    });
    silent.map(|(path, _)| Finding::in_file(path, "does not begin with `//!`")).collect()
}

/// Nothing is left to be done later.
pub(super) fn no_mark_is_left(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    let documents = repository.ending(".md").chain(repository.ending(".toml"));
    for (path, text) in repository.rust().chain(documents) {
        for (number, line) in text.lines().enumerate() {
            if let Some(mark) = MARKS.iter().find(|mark| line.contains(*mark)) {
                findings.push(Finding::at(path, number + 1, format!("`{mark}`")));
            }
        }
    }
    findings
}

/// No test returns at once for being in a short run, and counts as passed: it belongs into a module
/// named `long`, of which a short run knows nothing.
pub(super) fn no_test_returns_for_being_short(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.rust() {
        let lines: Vec<&str> = text.lines().collect();
        for (number, pair) in lines.windows(2).enumerate() {
            let returns = pair.iter().any(|line| line.trim_start().starts_with("return"));
            if pair[0].contains(SHORT) && (returns || pair[0].contains("{ return")) {
                findings.push(Finding::at(path, number + 1, "returns: see `mod long`"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_line_is_found() {
        let check = |columns| {
            let text = format!("//! Wide.\n{}\n", "\u{e4}".repeat(columns));
            lines_are_short(&Repository::of(&[("a.rs", &text)]))
        };
        assert_eq!(check(100), []);
        assert_eq!(check(101), [Finding::at("a.rs", 2, "101 columns")]);
    }

    #[test]
    fn a_module_without_a_head_is_found() {
        let files = [
            ("a.rs", "//! A.\n"),
            ("b.rs", "// B.\n"),
            ("c.rs", ""),
            ("macros/tests/fail/d.rs", ""),
        ];
        let found = modules_say_what_they_are(&Repository::of(&files));
        assert_eq!(found.iter().map(|finding| &finding.path).collect::<Vec<_>>(), ["b.rs", "c.rs"]);
    }

    #[test]
    fn every_mark_of_unfinished_work_is_found() {
        for mark in MARKS {
            for path in ["a.rs", "a.md", "a.toml"] {
                let text = format!("fine\nnot fine: {mark}\n");
                let found = no_mark_is_left(&Repository::of(&[(path, &text)]));
                assert_eq!(found, [Finding::at(path, 2, format!("`{mark}`"))]);
            }
        }
    }
    #[test]
    fn a_test_that_returns_in_a_short_run_is_found() {
        let of = |line: &str| {
            let text = format!("fn a() {{\n    {SHORT} {line}\n    }}\n}}\n");
            no_test_returns_for_being_short(&Repository::of(&[("a.rs", &text)])).len()
        };
        assert_eq!(of("{\n        return;"), 1);
        assert_eq!(of("{ return; }"), 1);
        assert_eq!(of("{\n        usual();"), 0);
    }
}
