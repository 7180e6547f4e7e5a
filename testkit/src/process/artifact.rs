//! Where the build put a binary or an example that a test runs.

use std::path::{Path, PathBuf};

/// The binary or example `name`, built in the profile of the running test.
///
/// Cargo builds the binaries and examples of a package together with its tests, so that a run of
/// the whole workspace has them all.
pub fn artifact(name: &str) -> Result<PathBuf, ArtifactError> {
    let test = std::env::current_exe().map_err(|source| ArtifactError::Unplaced { source })?;
    // The test is `PROFILE/deps/NAME-HASH`.
    let profile = test.ancestors().nth(2).unwrap_or(Path::new("."));
    let candidates = [profile.join(name), profile.join("examples").join(name)];
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(ArtifactError::NotBuilt { name: name.to_owned(), folder: profile.to_owned() }),
    }
}

/// Why a built file was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// It is not where the build puts it. Build it, or run the tests of the whole workspace.
    #[error(
        "{name} is not in {}: run `cargo xtask test`, or build it in the same profile",
        folder.display()
    )]
    NotBuilt {
        /// What was looked for.
        name: String,
        /// Where.
        folder: PathBuf,
    },
    /// The running test does not know its own path.
    #[error("the running test has no path")]
    Unplaced {
        /// What the system said.
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_not_built_is_named_with_the_remedy() {
        let error = artifact("never_built").unwrap_err().to_string();
        assert!(error.contains("never_built") && error.contains("cargo xtask test"), "{error}");
    }
}
