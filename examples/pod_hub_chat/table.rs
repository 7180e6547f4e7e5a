//! The end: a table a person can read, or one JSON object.
#![expect(clippy::print_stdout, reason = "it is the program's result")]

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::options::Options;
use super::protocol::{Checks, PROBES};
use super::score::{Kind, Leg, Score};

/// Shows the books.
pub(crate) fn show(score: &Score, options: &Options) {
    if options.json {
        let object = serde_json::to_string(&Summary::of(score)).expect("numbers and texts only");
        println!("{object}");
        return;
    }
    let legs: Vec<(&str, &Leg)> =
        score.legs().into_iter().filter(|(_, leg)| leg.sent > 0).collect();
    println!("{}", counts(&legs));
    if legs.iter().any(|(_, leg)| !leg.failed.is_empty()) {
        println!("{}", kinds(&legs));
    }
    if !score.troubles.is_empty() {
        println!("{}", troubles(score));
    }
    println!("{}", verdict(score));
}

fn counts(legs: &[(&str, &Leg)]) -> Table {
    let mut table = table(&[
        "",
        "sent",
        "handled",
        "failed",
        "silent",
        "doubled",
        "again",
        "lost with sender",
        "p50",
        "p99",
        "p99.9",
    ]);
    for (name, leg) in legs {
        let failed: u64 = leg.failed.values().sum();
        let lost = leg.lost_with_sender;
        let counts = [leg.sent, leg.handled, failed, leg.silent, leg.doubled, leg.again, lost];
        let times = [50.0, 99.0, 99.9].map(|percent| leg.latency.value_at_percentile(percent));
        let mut row = vec![(*name).to_owned()];
        row.extend(counts.map(|count| count.to_string()));
        row.extend(times.map(time));
        table.add_row(row);
    }
    table
}

fn kinds(legs: &[(&str, &Leg)]) -> Table {
    let names = legs.iter().map(|(name, _)| *name);
    let header: Vec<&str> = ["failed as"].into_iter().chain(names).collect();
    let mut table = table(&header);
    let kinds: BTreeSet<&str> =
        legs.iter().flat_map(|(_, leg)| leg.failed.keys().map(String::as_str)).collect();
    for kind in kinds {
        let of_leg = |(_, leg): &(&str, &Leg)| leg.failed.get(kind).copied().unwrap_or_default();
        let counts = legs.iter().map(|leg| of_leg(leg).to_string());
        table.add_row([kind.to_owned()].into_iter().chain(counts));
    }
    table
}

fn troubles(score: &Score) -> Table {
    let header = ["trouble", "mended after", "longest outage of a room", "probes on each pod"];
    let mut table = table(&header);
    for trouble in &score.troubles {
        let probes = trouble.probes.iter().map(|passed| format!("{passed}/{PROBES}"));
        let probes = probes.collect::<Vec<_>>().join(" ");
        let (took, outage) = (time(trouble.took_us), time(trouble.outage_us));
        table.add_row([trouble.what.clone(), took, outage, probes]);
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
         the room was delivered to or failed to be, on each leg.",
    );
    if score.to_stream.sent > 0 {
        text.push_str(
            "\nA publish's time is until each subscriber has handled it or failed to. Again: \
             handled before, by a pod that died before word of it came.",
        );
        text.push_str(&checks(score.checks));
    }
    if score.legs().iter().any(|(_, leg)| leg.lost_with_sender > 0) {
        text.push_str(
            "\nLost with sender: under way when their sender's process was killed; its books died \
             with it, and nobody is left to be told. What a room there had delivered in its \
             last 50 ms is in no book.",
        );
    }
    if score.probes_failed() > 0 {
        text.push_str("\nBROKEN: not every probe came back.");
    }
    match score.broken_promises() {
        (0, 0) => text + "\nNothing was silent, nothing was doubled.",
        (silent, doubled) => format!("{text}\nBROKEN: {silent} silent, {doubled} doubled."),
    }
}

fn checks(checks: Checks) -> String {
    let Checks { live, none, unknown } = checks;
    format!(
        "\nBefore a publish the subscriber check said: live {live}, none {none}, unknown {unknown}."
    )
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
    store_outages: usize,
    /// After each trouble, of each pod, how many of its ten probes came back.
    probes: Vec<&'a [u32]>,
    outages_ms: Vec<u64>,
    deliveries: Deliveries<'a>,
    publishes: Deliveries<'a>,
    events: Deliveries<'a>,
    checks: Checks,
    answered_us: Percentiles,
    mended_ms: Vec<u64>,
}

/// On one leg: from rooms to members, from rooms to their streams, from those to members.
#[derive(Serialize)]
struct Deliveries<'a> {
    sent: u64,
    handled: u64,
    failed: &'a BTreeMap<String, u64>,
    silent: u64,
    doubled: u64,
    again: u64,
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
        let to_room = &score.to_room;
        let troubles = &score.troubles;
        let count = |kind| troubles.iter().filter(|trouble| trouble.kind == kind).count();
        Self {
            sent: to_room.sent,
            handled: to_room.handled,
            failed: &to_room.failed,
            silent,
            doubled,
            lost_with_sender: to_room.lost_with_sender,
            latency_us: Percentiles::of(&to_room.latency),
            rolls: count(Kind::Roll),
            kills: count(Kind::Kill),
            store_outages: count(Kind::Outage),
            probes: troubles.iter().map(|trouble| &*trouble.probes).collect(),
            outages_ms: troubles.iter().map(|trouble| trouble.outage_us / 1_000).collect(),
            deliveries: Deliveries::of(&score.to_member),
            publishes: Deliveries::of(&score.to_stream),
            events: Deliveries::of(&score.to_subscriber),
            checks: score.checks,
            answered_us: Percentiles::of(&score.answered),
            mended_ms: troubles.iter().map(|trouble| trouble.took_us / 1_000).collect(),
        }
    }
}

impl<'a> Deliveries<'a> {
    fn of(leg: &'a Leg) -> Self {
        Self {
            sent: leg.sent,
            handled: leg.handled,
            failed: &leg.failed,
            silent: leg.silent,
            doubled: leg.doubled,
            again: leg.again,
            lost_with_sender: leg.lost_with_sender,
            latency_us: Percentiles::of(&leg.latency),
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
