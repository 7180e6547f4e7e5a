//! The repository's text files, by path.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;

/// Folders that are not the project's text.
const PASSED_OVER: &[&str] = &[".git", "target"];
/// Files larger than this are data.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;

/// Text files by their path from the root, with `/` between folders.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    files: BTreeMap<String, String>,
}

impl Repository {
    /// Reads every text file under `root`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut repository = Self::default();
        repository.read_folder(root, "")?;
        Ok(repository)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> anyhow::Result<()> {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {prefix}"))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !PASSED_OVER.contains(&name.as_str()) {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            }
            if kind.is_file() && entry.metadata()?.len() <= TEXT_BYTES_MAX {
                // What is not UTF-8 is no text.
                if let Ok(text) = fs::read_to_string(entry.path()) {
                    self.files.insert(path, text);
                }
            }
        }
        Ok(())
    }

    /// A repository of these files, for the tests of rules.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self { files: owned.collect() }
    }

    /// Every path.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Every file whose name ends so.
    pub(crate) fn ending(&self, end: &'static str) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter().filter(move |(path, _)| path.ends_with(end));
        files.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Every Rust file.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ending(".rs")
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether a file or a folder is there.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.text(path).is_some() || self.paths().any(|other| is_under(other, path))
    }
}

/// Whether `path` lies in `folder`.
pub(crate) fn is_under(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| folder.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_there_when_a_file_in_them_is() {
        let repository = Repository::of(&[("docs/wire.md", "")]);
        assert!(
            repository.has("docs/wire.md") && repository.has("docs/") && repository.has("docs")
        );
        assert!(!repository.has("doc") && !repository.has("docs/wir"));
    }
}
