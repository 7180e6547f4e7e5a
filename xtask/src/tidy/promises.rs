//! GUARANTEES.md and docs/testing.md: each row names the tests that hold it, and those tests exist.

use super::documents::{links, resolved};
use super::{Finding, Repository};

const PROMISES: &[&str] = &["GUARANTEES.md", "docs/testing.md"];
/// The last column of the tables that are held to it.
const HELD_BY: &str = "| held by |";
/// How a row begins to say that no test holds it, or not the whole of it.
const OPEN: &str = "open: ";

/// A row's last column holds links of the form [`name`](file), and each file has that test; or it
/// says that it is open, and why.
pub(super) fn promises_name_their_tests(repository: &Repository) -> Vec<Finding> {
    PROMISES.iter().flat_map(|document| check_document(repository, document)).collect()
}

fn check_document(repository: &Repository, document: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let text = repository.text(document).unwrap_or_default();
    let (mut head, mut is_row) = ("", false);
    for (number, line) in text.lines().enumerate() {
        if !line.starts_with('|') {
            (head, is_row) = ("", false);
        } else if head.is_empty() {
            head = line;
        } else if line.starts_with("|-") {
            is_row = head.ends_with(HELD_BY);
        } else if is_row {
            let tests = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
            let whats = check_row(repository, document, tests).into_iter();
            findings.extend(whats.map(|what| Finding::at(document, number + 1, what)));
        }
    }
    findings
}

fn check_row(repository: &Repository, document: &str, tests: &str) -> Vec<String> {
    let names = tests.split("[`").skip(1).filter_map(|rest| rest.split('`').next());
    let files = links(tests).map(|target| resolved(document, target));
    let claims: Vec<(&str, String)> = names.zip(files).collect();
    if claims.is_empty() && !tests.contains(OPEN) {
        return vec!["a promise without a test".to_owned()];
    }
    let missing = claims.iter().filter(|(name, file)| !has_test(repository, file, name));
    missing.map(|(name, file)| format!("{file} has no test {name}")).collect()
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
        check_in("GUARANTEES.md", row)
    }

    fn check_in(document: &str, row: &str) -> Vec<String> {
        let table = format!("| promise | held by |\n|---|---|\n{row}\n");
        let code = "#[test]\n/// Why.\nfn holds() {}\n\nfn helps() {}\n";
        let repository = Repository::of(&[(document, &table), ("tests/a.rs", code)]);
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

    #[test]
    fn a_row_may_say_that_it_is_open() {
        let document = "docs/testing.md";
        assert_eq!(check_in(document, "| a | open: nobody has one |"), Vec::<String>::new());
        assert_eq!(check_in(document, "| a | [`holds`](../tests/a.rs) |"), Vec::<String>::new());
        let row = "| a | [`held`](../tests/a.rs); open: the rest |";
        assert_eq!(check_in(document, row), ["tests/a.rs has no test held"]);
    }
}
