//! The end: a table a person can read, or one JSON object.
#![expect(clippy::print_stdout, reason = "it is the program's result")]

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::options::Options;
use super::score::{Kind, Leg, Score};

/// Shows the books.
pub(crate) fn show(score: &Score, options: &Options) {
    if options.json {
        let object = serde_json::to_string(&Summary::of(score)).expect("numbers and texts only");
        println!("{object}");
        return;
    }
    println!("{}", legs(score));
    if !(score.to_room.failed.is_empty() && score.to_member.failed.is_empty()) {
        println!("{}", kinds(score));
    }
    if !score.troubles.is_empty() {
        println!("{}", troubles(score));
    }
    println!("{}", verdict(score));
}

fn legs(score: &Score) -> Table {
    let mut table = table(&[
        "",
        "sent",
        "handled",
        "failed",
        "silent",
        "doubled",
        "lost with sender",
        "p50",
        "p99",
        "p99.9",
    ]);
    table.add_row(leg("member → room", &score.to_room));
    table.add_row(leg("room → member", &score.to_member));
    table
}

fn leg(name: &str, leg: &Leg) -> Vec<String> {
    let failed: u64 = leg.failed.values().sum();
    let counts = [leg.sent, leg.handled, failed, leg.silent, leg.doubled, leg.lost_with_sender];
    let mut row = vec![name.to_owned()];
    row.extend(counts.map(|count| count.to_string()));
    row.extend([50.0, 99.0, 99.9].map(|percent| time(leg.latency.value_at_percentile(percent))));
    row
}

fn kinds(score: &Score) -> Table {
    let mut table = table(&["failed as", "member → room", "room → member"]);
    let mut kinds: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for (index, leg) in [&score.to_room, &score.to_member].into_iter().enumerate() {
        for (kind, count) in &leg.failed {
            kinds.entry(kind).or_default()[index] += count;
        }
    }
    for (kind, [to_room, to_member]) in kinds {
        table.add_row([kind.to_owned(), to_room.to_string(), to_member.to_string()]);
    }
    table
}

fn troubles(score: &Score) -> Table {
    let mut table = table(&["trouble", "mended after", "longest outage of a room"]);
    for trouble in &score.troubles {
        table.add_row([trouble.what.clone(), time(trouble.took_us), time(trouble.outage_us)]);
    }
    table
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A time in the unit that fits it.
fn time(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        _ => format!("{}.{:02} s", micros / 1_000_000, micros % 1_000_000 / 10_000),
    }
}

fn verdict(score: &Score) -> String {
    let mut text = String::from(
        "Latency is from the sender to the handler. A post is handled once every other member of \
         the room was delivered to or failed to be.",
    );
    if score.to_room.lost_with_sender + score.to_member.lost_with_sender > 0 {
        text.push_str(
            "\nLost with sender: under way when their sender's process was killed; its books died \
             with it, and nobody is left to be told. What a room there had delivered in its \
             last 50 ms is in no book.",
        );
    }
    match score.broken_promises() {
        (0, 0) => text + "\nNothing was silent, nothing was doubled.",
        (silent, doubled) => format!("{text}\nBROKEN: {silent} silent, {doubled} doubled."),
    }
}

/// The table as one object. The first fields are about posts; `silent` and `doubled` count
/// deliveries to members too, since the promise is one.
#[derive(Serialize)]
struct Summary<'a> {
    sent: u64,
    handled: u64,
    failed: &'a BTreeMap<String, u64>,
    silent: u64,
    doubled: u64,
    lost_with_sender: u64,
    latency_us: Percentiles,
    rolls: usize,
    kills: usize,
    outages_ms: Vec<u64>,
    deliveries: Deliveries<'a>,
    answered_us: Percentiles,
    mended_ms: Vec<u64>,
}

/// From rooms to members.
#[derive(Serialize)]
struct Deliveries<'a> {
    sent: u64,
    handled: u64,
    failed: &'a BTreeMap<String, u64>,
    silent: u64,
    doubled: u64,
    lost_with_sender: u64,
    latency_us: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    p50: u64,
    p99: u64,
    p999: u64,
}

impl<'a> Summary<'a> {
    fn of(score: &'a Score) -> Self {
        let (silent, doubled) = score.broken_promises();
        let (to_room, to_member) = (&score.to_room, &score.to_member);
        let kills = score.troubles.iter().filter(|trouble| trouble.kind == Kind::Kill).count();
        Self {
            sent: to_room.sent,
            handled: to_room.handled,
            failed: &to_room.failed,
            silent,
            doubled,
            lost_with_sender: to_room.lost_with_sender,
            latency_us: Percentiles::of(&to_room.latency),
            rolls: score.troubles.len() - kills,
            kills,
            outages_ms: score.troubles.iter().map(|trouble| trouble.outage_us / 1_000).collect(),
            deliveries: Deliveries {
                sent: to_member.sent,
                handled: to_member.handled,
                failed: &to_member.failed,
                silent: to_member.silent,
                doubled: to_member.doubled,
                lost_with_sender: to_member.lost_with_sender,
                latency_us: Percentiles::of(&to_member.latency),
            },
            answered_us: Percentiles::of(&score.answered),
            mended_ms: score.troubles.iter().map(|trouble| trouble.took_us / 1_000).collect(),
        }
    }
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_percentile(50.0),
            p99: histogram.value_at_percentile(99.0),
            p999: histogram.value_at_percentile(99.9),
        }
    }
}
