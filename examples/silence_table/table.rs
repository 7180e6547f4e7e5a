//! The end: a table a person can read, or JSON objects, one a line.
#![expect(clippy::print_stdout, reason = "it is the program's result")]

use serde::Serialize;

use super::books::Counts;
use super::scenario::Trouble;

/// One design in one trouble.
#[derive(Serialize, Debug)]
pub(crate) struct Row {
    trouble: &'static str,
    design: &'static str,
    #[serde(flatten)]
    counts: Counts,
}

impl Row {
    pub(crate) const fn new(trouble: Trouble, design: &'static str, counts: Counts) -> Self {
        Self { trouble: trouble.name(), design, counts }
    }
}

/// Shows the rows.
pub(crate) fn show(rows: &[Row], json: bool) {
    if json {
        for row in rows {
            println!("{}", serde_json::to_string(row).expect("numbers and texts only"));
        }
        return;
    }
    let header = ["", "sent", "handled", "silent", "wrongly refused", "told", "NACKs lost"];
    line(&header.map(str::to_owned));
    let mut trouble = "";
    for row in rows {
        if row.trouble != trouble {
            trouble = row.trouble;
            println!("{trouble}");
        }
        line(&cells(row));
    }
    println!(
        "\nSilent: the hub did not handle it, and its sender does not know.\n\
         Wrongly refused: its sender was told that nobody is there, and the hub was.\n\
         NACK lost: a living hub waits for a refused reply, and hears nothing of its refusal.\n\
         Models compute. Siloring's rows are measured: silos in processes, rolled and killed."
    );
}

fn line(cells: &[String; 7]) {
    let [design, sent, handled, silent, wrong, told, lost] = cells;
    println!("{design:33}{sent:>5}{handled:>9}{silent:>8}{wrong:>17}{told:>6}{lost:>12}");
}

fn cells(row: &Row) -> [String; 7] {
    let Counts { sent, handled, silent, wrongly_refused, told, nacks_lost } = row.counts;
    let lost = nacks_lost.map_or_else(|| "–".to_owned(), |lost| lost.to_string());
    let count = |count: u64| count.to_string();
    let design = format!("  {}", row.design);
    [design, count(sent), count(handled), count(silent), count(wrongly_refused), count(told), lost]
}
