//! The lock file: no version with an open advisory, and none of the names that are kept out.

use super::{Finding, Repository};

const LOCK: &str = "Cargo.lock";

/// The lowest version without a known fault, where an older one has an advisory.
const MINIMUMS: &[(&str, [u64; 3])] = &[
    ("bytes", [1, 11, 1]),
    ("crossbeam-epoch", [0, 9, 20]),
    ("lru", [0, 18, 2]),
    ("postgres-protocol", [0, 6, 12]),
    ("rkyv", [0, 8, 17]),
    ("slab", [0, 4, 11]),
    ("tokio-postgres", [0, 7, 18]),
];

/// Ended, flagged or retired.
const KEPT_OUT: &[&str] = &[
    "async-std",
    "backoff",
    "bincode",
    "derivative",
    "fxhash",
    "instant",
    "number_prefix",
    "paste",
    "proc-macro-error",
    "rustls-pemfile",
    "serde_yaml",
    "tide",
];

/// No package is older than its lowest safe version.
pub(super) fn versions_are_safe(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages(repository) {
        let minimum = MINIMUMS.iter().find(|(name, _)| *name == package.name);
        if let Some((name, minimum)) =
            minimum.filter(|(_, minimum)| numbers(package.version) < *minimum)
        {
            let [major, minor, patch] = minimum;
            let what = format!("{name} {} is below {major}.{minor}.{patch}", package.version);
            findings.push(Finding::at(LOCK, package.line, what));
        }
    }
    findings
}

/// No package has one of these names.
pub(super) fn names_are_kept_out(repository: &Repository) -> Vec<Finding> {
    let banned =
        packages(repository).into_iter().filter(|package| KEPT_OUT.contains(&package.name));
    banned
        .map(|package| Finding::at(LOCK, package.line, format!("{} is kept out", package.name)))
        .collect()
}

struct Package<'a> {
    line: usize,
    name: &'a str,
    version: &'a str,
}

fn packages(repository: &Repository) -> Vec<Package<'_>> {
    let lines: Vec<&str> = repository.text(LOCK).unwrap_or_default().lines().collect();
    let pairs = lines.windows(2).enumerate().filter_map(|(index, pair)| {
        let name = pair[0].strip_prefix("name = \"")?.trim_end_matches('"');
        let version = pair[1].strip_prefix("version = \"")?.trim_end_matches('"');
        Some(Package { line: index + 1, name, version })
    });
    pairs.collect()
}

fn numbers(version: &str) -> [u64; 3] {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: &str, version: &str) -> Repository {
        let text =
            format!("version = 4\n\n[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
        Repository::of(&[(LOCK, &text)])
    }

    #[test]
    fn a_version_with_an_advisory_is_found() {
        assert_eq!(versions_are_safe(&lock("rkyv", "0.8.17")), []);
        assert_eq!(versions_are_safe(&lock("rkyv", "0.10.0")), []);
        let found = versions_are_safe(&lock("rkyv", "0.8.9"));
        assert_eq!(found, [Finding::at(LOCK, 4, "rkyv 0.8.9 is below 0.8.17")]);
    }

    #[test]
    fn a_name_that_is_kept_out_is_found() {
        assert_eq!(names_are_kept_out(&lock("pastel", "1.0.0")), []);
        let found = names_are_kept_out(&lock("paste", "1.0.15"));
        assert_eq!(found, [Finding::at(LOCK, 4, "paste is kept out")]);
    }
}
