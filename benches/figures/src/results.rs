//! What the benches wrote: a JSON file each.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

/// What one bench has found.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    /// What the bench is about.
    pub(crate) title: String,
    /// What it compares.
    pub(crate) rows: Vec<Row>,
    /// What it measured.
    pub(crate) cases: Vec<Case>,
}

/// One comparison.
#[derive(Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) against: Option<String>,
    pub(crate) against_value: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) budget: String,
    pub(crate) met: bool,
}

/// One measured thing.
#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// The median of its rounds: nanoseconds if it has percentiles.
    pub(crate) value: f64,
    /// Quantiles and their nanoseconds, of all rounds together.
    pub(crate) percentiles: Option<Vec<(f64, f64)>>,
}

/// What all benches of a run have found.
#[derive(Debug)]
pub(crate) struct Results(pub(crate) Vec<Found>);

impl Results {
    /// Reads the files of a run, in the order of their names.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let entries = fs::read_dir(folder)
            .with_context(|| format!("the benches wrote nothing into {}", folder.display()))?;
        let mut paths =
            entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
        paths.retain(|path| {
            path.extension().is_some_and(|extension| extension == "json")
                && path.file_stem().is_some_and(|stem| stem != "env")
        });
        paths.sort();
        ensure!(!paths.is_empty(), "no bench wrote into {}", folder.display());
        let found = paths.iter().map(|path| {
            let text = fs::read_to_string(path)?;
            serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
        });
        Ok(Self(found.collect::<anyhow::Result<_>>()?))
    }

    /// Every case of every bench; one that several benches measure comes once, from the first.
    pub(crate) fn cases(&self) -> Vec<&Case> {
        let mut cases: Vec<&Case> = Vec::new();
        for case in self.0.iter().flat_map(|found| &found.cases) {
            if cases.iter().all(|known| known.name != case.name) {
                cases.push(case);
            }
        }
        cases
    }
}
