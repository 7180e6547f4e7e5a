//! GUARANTEES.md: each row names the tests that hold it, and those tests exist.

use super::documents::links;
use super::{Finding, Repository};

const PROMISES: &str = "GUARANTEES.md";

/// A row's last column holds links of the form [`name`](file), and each file has that test.
pub(super) fn promises_name_their_tests(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    let text = repository.text(PROMISES).unwrap_or_default();
    let mut is_row = false;
    for (number, line) in text.lines().enumerate() {
        if !line.starts_with('|') {
            is_row = false;
        } else if line.starts_with("|-") || line.starts_with("| -") {
            is_row = true;
        } else if is_row {
            let tests = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            findings.extend(check_row(repository, number + 1, tests));
        }
    }
    findings
}

fn check_row(repository: &Repository, line: usize, tests: &str) -> Vec<Finding> {
    let names = tests.split("[`").skip(1).filter_map(|rest| rest.split('`').next());
    let claims: Vec<(&str, &str)> = names.zip(links(tests)).collect();
    if claims.is_empty() {
        return vec![Finding::at(PROMISES, line, "a promise without a test")];
    }
    let missing = claims.iter().filter(|(name, file)| !has_test(repository, file, name));
    missing
        .map(|(name, file)| Finding::at(PROMISES, line, format!("{file} has no test {name}")))
        .collect()
}

/// Whether `file` defines the function `name` under a test attribute.
fn has_test(repository: &Repository, file: &str, name: &str) -> bool {
    let lines: Vec<&str> =
        repository.text(file).unwrap_or_default().lines().map(str::trim).collect();
    let signature = format!("fn {name}(");
    let defined = lines.iter().position(|line| line.starts_with(&signature));
    let above = defined.map(|at| lines[..at].iter().rev().take_while(|line| is_head(line)));
    above.is_some_and(|mut head| head.any(|line| *line == "#[test]"))
}

/// A line that belongs to the function below it.
fn is_head(line: &str) -> bool {
    line.starts_with("#[") || line.starts_with("///") || line.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(row: &str) -> Vec<String> {
        let table = format!("| promise | held by |\n|---|---|\n{row}\n");
        let code = "#[test]\n/// Why.\nfn holds() {}\n\nfn helps() {}\n";
        let repository = Repository::of(&[(PROMISES, &table), ("tests/a.rs", code)]);
        promises_name_their_tests(&repository).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        assert_eq!(check("| a | [`holds`](tests/a.rs) |"), Vec::<String>::new());
        assert_eq!(check("| a | by nobody |"), ["a promise without a test"]);
    }

    #[test]
    fn a_test_that_is_not_there_is_found() {
        let row = "| a | [`holds`](tests/a.rs), [`held`](tests/a.rs), [`holds`](tests/b.rs) |";
        assert_eq!(check(row), ["tests/a.rs has no test held", "tests/b.rs has no test holds"]);
        assert_eq!(check("| a | [`helps`](tests/a.rs) |"), ["tests/a.rs has no test helps"]);
    }
}
