//! Rules that are about the repository as text, each a function from its files to findings.
//!
//! A rule is pure: it takes a [`Repository`] and returns [`Finding`]s, so that each is seen to fail
//! on a planted repository in its own tests, and holds for the real one in
//! [`tests::the_repository_is_tidy`]. What rustc and clippy check better is not here.

mod documents;
mod layers;
mod lockfile;
mod promises;
mod repository;
mod text;
mod world;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

pub(crate) use repository::Repository;

/// One place where a rule does not hold.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Finding {
    path: String,
    /// From one; zero for the file as a whole.
    line: usize,
    what: String,
}

impl Finding {
    fn in_file(path: &str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: 0, what: what.into() }
    }

    fn at(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}: {}", self.path, self.what),
            line => write!(out, "{}:{line}: {}", self.path, self.what),
        }
    }
}

type Rule = fn(&Repository) -> Vec<Finding>;

const RULES: &[Rule] = &[
    documents::files_are_there,
    documents::links_lead_somewhere,
    documents::msrv_is_one_number,
    documents::map_names_every_folder,
    layers::arrows_point_down,
    layers::glommio_is_named_in_drivers_only,
    lockfile::versions_are_safe,
    lockfile::names_are_kept_out,
    promises::promises_name_their_tests,
    text::lines_are_short,
    text::modules_say_what_they_are,
    text::no_mark_is_left,
    text::no_test_returns_for_being_short,
    world::lifted_bans_are_known,
    world::unsafe_code_is_known,
];

/// Checks the repository at `root` and prints what was found.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let findings = check(&Repository::read(root)?);
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} rules, {} findings", RULES.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(repository)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let repository = Repository::read(&crate::root().unwrap()).unwrap();
        let found: Vec<String> = check(&repository).iter().map(Finding::to_string).collect();
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }

    #[test]
    fn the_repository_is_really_read() {
        let repository = Repository::read(&crate::root().unwrap()).unwrap();
        assert!(repository.rust().count() > 20, "{}", repository.rust().count());
        assert!(repository.text("core/src/limits.rs").is_some());
        assert!(repository.text(".ci/run").is_some());
        assert!(repository.paths().all(|path| !path.starts_with("target/")));
    }
}
