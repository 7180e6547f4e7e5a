//! Documents: they are there, their links lead somewhere, and they agree with the manifests.

use std::collections::BTreeSet;

use super::{Finding, Repository};

const NEEDED: &[&str] = &[
    ".ci/run",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "GUARANTEES.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "STYLE.md",
    "docs/testing.md",
    "docs/wire.md",
];

/// Every document that a reader is sent to exists.
pub(super) fn files_are_there(repository: &Repository) -> Vec<Finding> {
    let missing = NEEDED.iter().filter(|path| repository.text(path).is_none());
    missing.map(|path| Finding::in_file(path, "is missing")).collect()
}

/// Relative links in documents name files and folders of the repository.
pub(super) fn links_lead_somewhere(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repository.ending(".md") {
        for (number, line) in text.lines().enumerate() {
            for target in links(line).filter(|target| !is_elsewhere(target)) {
                let target = target.split('#').next().unwrap_or(target);
                if !repository.has(&resolved(path, target)) {
                    let what = format!("the link to {target} leads nowhere");
                    findings.push(Finding::at(path, number + 1, what));
                }
            }
        }
    }
    findings
}

/// Targets of `[text](target)`.
pub(super) fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with('#') || target.starts_with("mailto:")
}

/// `target` as a path from the root, seen from the document at `path`.
pub(super) fn resolved(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// README and manifest name the same minimum version of Rust.
pub(super) fn msrv_is_one_number(repository: &Repository) -> Vec<Finding> {
    let manifest = repository.text("Cargo.toml").unwrap_or_default();
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let Some(version) = version.map(|rest| rest.trim_end_matches('"')) else {
        return vec![Finding::in_file("Cargo.toml", "names no rust-version")];
    };
    let readme = repository.text("README.md").unwrap_or_default();
    let named: BTreeSet<&str> = readme
        .split("Rust ")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or(""))
        .map(|number| number.trim_end_matches('.'))
        .filter(|number| number.contains('.'))
        .collect();
    if named == BTreeSet::from([version]) {
        return Vec::new();
    }
    vec![Finding::in_file("README.md", format!("names Rust {named:?}, the manifest {version}"))]
}

/// The map in ARCHITECTURE.md names every folder that holds Rust code.
pub(super) fn map_names_every_folder(repository: &Repository) -> Vec<Finding> {
    let map = repository.text("ARCHITECTURE.md").unwrap_or_default();
    let folders: BTreeSet<&str> =
        repository.rust().filter_map(|(path, _)| Some(path.rsplit_once('/')?.0)).collect();
    let missing = folders.into_iter().filter(|folder| !map.contains(&format!("`{folder}/`")));
    missing
        .map(|folder| Finding::in_file("ARCHITECTURE.md", format!("does not name `{folder}/`")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_document_is_found() {
        let files: Vec<(&str, &str)> = NEEDED.iter().map(|path| (*path, "")).collect();
        assert_eq!(files_are_there(&Repository::of(&files)), []);
        let found = files_are_there(&Repository::of(&files[1..]));
        assert_eq!(found, [Finding::in_file(".ci/run", "is missing")]);
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let text =
            "[a](../core/) [b](wire.md#table) [c](https://example.org)\n[d](gone.md) [e](#here)";
        let repository =
            Repository::of(&[("docs/start.md", text), ("docs/wire.md", ""), ("core/lib.rs", "")]);
        let found = links_lead_somewhere(&repository);
        assert_eq!(found, [Finding::at("docs/start.md", 2, "the link to gone.md leads nowhere")]);
    }

    #[test]
    fn two_minimum_versions_are_found() {
        let check = |readme| {
            let manifest = ("Cargo.toml", "edition = \"2024\"\nrust-version = \"1.95\"\n");
            msrv_is_one_number(&Repository::of(&[manifest, ("README.md", readme)])).len()
        };
        assert_eq!(check("Needs Rust 1.95. In Rust we trust."), 0);
        assert_eq!(check("Needs Rust 1.80, or Rust 1.95"), 1);
        assert_eq!(check("Needs a compiler"), 1);
    }

    #[test]
    fn a_folder_that_the_map_forgot_is_found() {
        let map = ("ARCHITECTURE.md", "- `core/src/`: words");
        let repository =
            Repository::of(&[map, ("core/src/lib.rs", ""), ("core/src/ports/a.rs", "")]);
        let found = map_names_every_folder(&repository);
        assert_eq!(found, [Finding::in_file("ARCHITECTURE.md", "does not name `core/src/ports/`")]);
    }
}
