//! Rows with their budgets, as tables for people and as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::{Found, wide};

/// What a row must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget {
    /// The ratio to the other case is at most this.
    RatioAtMost(f64),
    /// The ratio to the other case is less than this.
    RatioBelow(f64),
    /// The ratio to the other case is at least this.
    RatioAtLeast(f64),
    /// The value is at least this.
    ValueAtLeast(f64),
    /// The value is at most this.
    ValueAtMost(f64),
    /// The value is less than this.
    ValueBelow(f64),
    /// Nothing: it is there to be read.
    None,
}

impl Budget {
    fn is_met(self, value: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::RatioAtMost(most) => ratio.is_some_and(|ratio| ratio <= most),
            Self::RatioBelow(bound) => ratio.is_some_and(|ratio| ratio < bound),
            Self::RatioAtLeast(least) => ratio.is_some_and(|ratio| ratio >= least),
            Self::ValueAtLeast(least) => value >= least,
            Self::ValueAtMost(most) => value <= most,
            Self::ValueBelow(bound) => value < bound,
            Self::None => true,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::RatioAtMost(most) => format!("<= {most} x"),
            Self::RatioBelow(bound) => format!("< {bound} x"),
            Self::RatioAtLeast(least) => format!(">= {least} x"),
            Self::ValueAtLeast(least) => format!(">= {least} {unit}"),
            Self::ValueAtMost(most) => format!("<= {most} {unit}"),
            Self::ValueBelow(bound) => format!("< {bound} {unit}"),
            Self::None => String::new(),
        }
    }
}

/// One line of the table: a case, what it is compared with, and what it must hold.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// What it is about.
    pub(crate) name: &'static str,
    /// The case whose value it shows.
    pub(crate) case: &'static str,
    /// The unit shown.
    pub(crate) unit: &'static str,
    /// The case's value is divided by this to get that unit.
    pub(crate) divisor: f64,
    /// The case it is compared with.
    pub(crate) against: Option<&'static str>,
    /// What it must hold.
    pub(crate) budget: Budget,
}

/// A row with its numbers.
pub(super) struct Line {
    row: Row,
    value: f64,
    against_value: Option<f64>,
    ratio: Option<f64>,
    is_met: bool,
}

impl Row {
    /// Whether it shows the case, or compares with it.
    pub(super) fn is_about(&self, case: &str) -> bool {
        self.case == case || self.against == Some(case)
    }

    pub(super) fn line(&self, measured: &BTreeMap<&str, Found<'_>>) -> Line {
        let value = |case: &str| measured.get(case).and_then(Found::value);
        let raw = value(self.case).expect("a row's case is measured");
        let other = self.against.map(|other| value(other).expect("the other case is measured"));
        let ratio = other.map(|other| raw / other);
        Line {
            row: self.clone(),
            value: raw / self.divisor,
            against_value: other.map(|other| other / self.divisor),
            ratio,
            is_met: self.budget.is_met(raw / self.divisor, ratio),
        }
    }
}

impl Line {
    const fn verdict(&self) -> &'static str {
        match (self.row.budget, self.is_met) {
            (Budget::None, _) => "",
            (_, true) => "yes",
            (_, false) => "no",
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.row.name,
            "value": self.value,
            "unit": self.row.unit,
            "against": self.row.against,
            "against_value": self.against_value,
            "ratio": self.ratio,
            "budget": self.row.budget.text(self.row.unit),
            "met": self.is_met,
        })
    }
}

/// One JSON object a row.
pub(super) fn print_json(lines: &[Line]) {
    for line in lines {
        println!("{}", line.to_json());
    }
}

/// The rows, then the percentiles of every case that has some.
pub(super) fn print_tables(title: &str, lines: &[Line], cases: &BTreeMap<&str, Found<'_>>) {
    println!("\n{title}\n");
    let mut table = table(&["what", "value", "unit", "against", "value", "ratio", "budget", "met"]);
    for line in lines {
        let row = &line.row;
        table.add_row([
            row.name.to_owned(),
            number(line.value),
            row.unit.to_owned(),
            row.against.unwrap_or_default().to_owned(),
            line.against_value.map(number).unwrap_or_default(),
            line.ratio.map(|ratio| format!("{ratio:.2} x")).unwrap_or_default(),
            row.budget.text(row.unit),
            line.verdict().to_owned(),
        ]);
    }
    println!("{}\n\nall cases, microseconds where not said otherwise\n", right(table, &[1, 4, 5]));
    println!("{}", percentiles(cases));
}

fn percentiles(cases: &BTreeMap<&str, Found<'_>>) -> Table {
    let mut table = table(&["case", "median", "rounds", "p50", "p99", "p99.9", "max"]);
    for (name, case) in cases {
        let times = case.times();
        let shown = |value| if times.is_some() { microseconds(value) } else { number(value) };
        let rounds: Vec<String> = case.values().map(shown).collect();
        let mut cells = vec![(*name).to_owned()];
        cells.push(case.value().map(shown).unwrap_or_default());
        cells.push(rounds.join(" "));
        if let Some(times) = &times {
            let quantiles = [0.5, 0.99, 0.999].map(|at| times.value_at_quantile(at));
            let ends = quantiles.into_iter().chain([times.max()]);
            cells.extend(ends.map(|ns| microseconds(wide(ns))));
        }
        table.add_row(cells);
    }
    right(table, &[1, 3, 4, 5, 6])
}

fn microseconds(nanoseconds: f64) -> String {
    format!("{:.2}", nanoseconds / 1e3)
}

fn number(value: f64) -> String {
    match value {
        large if large >= 1000.0 => format!("{large:.0}"),
        middle if middle >= 10.0 => format!("{middle:.1}"),
        small => format!("{small:.3}"),
    }
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(head);
    table
}

fn right(mut table: Table, columns: &[usize]) -> Table {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
