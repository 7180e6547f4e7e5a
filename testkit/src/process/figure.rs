//! What a test counted, for the table of `cargo xtask prove`.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file to which [`figure`] adds a line. `cargo xtask prove` sets it.
pub const FIGURES_VARIABLE: &str = "SILORING_FIGURES";

/// Tells a figure: it is printed, and becomes a row of the table.
///
/// # Panics
/// If the file that was named cannot be written.
#[expect(clippy::print_stdout, reason = "without the task the figure is for the terminal")]
pub fn figure(name: &str, value: impl Display) {
    println!("{name}: {value}");
    let Some(path) = std::env::var_os(FIGURES_VARIABLE) else {
        return;
    };
    // One write of one line: several tests add to the file at once.
    let added = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{name}\t{value}\n").as_bytes()));
    added.expect("the file of figures can be written");
}
