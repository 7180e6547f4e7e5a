//! The tables of the documents: made anew between marks, and nowhere else.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::machine::Machine;
use crate::results::{Results, Row};

/// Every bench with all of its rows.
const ALL: &str = "docs/performance.md";
/// The picture, and the rows of a few benches.
const FRONT: &str = "README.md";
/// The benches that the front page shows.
const FRONT_TITLES: [&str; 2] = ["grain calls between two silos", "grain calls in one process"];
/// The lines of a document between which its tables stand.
const MARKS: [&str; 2] = ["<!-- figures -->", "<!-- end of figures -->"];

/// Writes the tables of a run whose files are kept in `kept`; which documents it changed.
pub(crate) fn update(
    root: &Path,
    kept: &Path,
    results: &Results,
    machine: &Machine,
) -> anyhow::Result<[PathBuf; 2]> {
    let environment = format!("{}.\n\n", machine.text());
    let (mut all, mut front) = (environment.clone(), environment);
    let picture =
        |from: &str, name: &str| format!("![{name}]({from}{}/{name}.svg)\n\n", kept.display());
    front += &picture("", "latency");
    for found in &results.0 {
        let table = table(&found.rows);
        write!(all, "### {}\n\n{table}\n", found.title)?;
        if FRONT_TITLES.contains(&&*found.title) {
            front += &table;
        }
    }
    for path in svgs(&root.join(kept))? {
        all += &picture("../", &path);
    }
    put(&root.join(ALL), &all)?;
    put(&root.join(FRONT), &front)?;
    Ok([ALL, FRONT].map(PathBuf::from))
}

/// The names of the plots in a folder, in order.
fn svgs(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            let name = path.file_stem().context("a plot has a name")?;
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn table(rows: &[Row]) -> String {
    let head = "| what | measured | against | ratio | budget |\n|---|---|---|---|---|\n";
    rows.iter().fold(head.to_owned(), |table, row| {
        let against = row.against.as_deref().unwrap_or_default();
        let value = row.against_value.map(|value| format!(", {} {}", number(value), row.unit));
        let ratio = row.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let missed = if row.met { "" } else { ", **missed**" };
        table
            + &format!(
                "| {} | {} {} | {against}{} | {ratio} | {}{missed} |\n",
                row.name,
                number(row.value),
                row.unit,
                value.unwrap_or_default(),
                row.budget
            )
    })
}

/// Three significant digits, or all before the point.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn put(path: &Path, tables: &str) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = replaced(&text, tables)
        .with_context(|| format!("{} has no place for figures", path.display()))?;
    crate::write(path, &text)
}

/// `text` with `tables` between its marks.
fn replaced(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}\n\n{}\n\n{}{after}", MARKS[0], tables.trim_end(), MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_what_it_missed() {
        let row = Row {
            name: "a call".to_owned(),
            value: 8.25,
            unit: "us".to_owned(),
            against: Some("a floor".to_owned()),
            against_value: Some(7.0),
            ratio: Some(1.178),
            budget: "<= 1.15 x".to_owned(),
            met: false,
        };
        let line = "| a call | 8.25 us | a floor, 7.00 us | 1.18 | <= 1.15 x, **missed** |\n";
        assert!(table(&[row]).ends_with(line));
    }

    #[test]
    fn tables_replace_those_of_the_run_before() {
        let text = format!("before\n{}\nold\n{}\nafter", MARKS[0], MARKS[1]);
        let once = replaced(&text, "new").expect("the marks are there");
        assert!(once.starts_with("before\n") && once.ends_with("\nafter") && !once.contains("old"));
        assert_eq!(replaced(&once, "new").as_deref(), Some(&*once));
        assert_eq!(replaced("no marks", "new"), None);
    }
}
