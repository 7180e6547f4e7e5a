//! What a run has found, as files that other programs read.
//!
//! Of each bench, `NAME.json` with its rows and cases; of each case that measures latency,
//! `CASE.hgrm`, its percentile distribution as text, and `CASE.hlog`, a histogram of each round:
//! both in the formats of `HdrHistogram`, <https://hdrhistogram.github.io/HdrHistogram/>.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use serde_json::{Value, json};

use super::report::Line;
use super::{Found, Sample, wide};

/// Points of a distribution in each halving of the rest.
const POINTS_PER_HALVING: u32 = 5;

/// Writes what a bench has found into `folder`.
pub(super) fn write(
    folder: &Path,
    title: &str,
    lines: &[Line],
    cases: &BTreeMap<&str, Found<'_>>,
) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut told = Vec::new();
    for (name, found) in cases {
        let times = found.times();
        if let Some(times) = &times {
            put(folder, name, "hgrm", distribution(times).as_bytes())?;
            put(folder, name, "hlog", &log(found.rounds)?)?;
        }
        told.push(json!({
            "name": name,
            "unit": times.as_ref().map_or("", |_| "ns"),
            "value": found.value(),
            "rounds": found.values().collect::<Vec<f64>>(),
            "percentiles": times.as_ref().map(percentiles),
        }));
    }
    let rows: Vec<Value> = lines.iter().map(Line::to_json).collect();
    let all = json!({ "title": title, "rows": rows, "cases": told });
    put(folder, title, "json", format!("{all:#}\n").as_bytes())
}

fn put(folder: &Path, name: &str, extension: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let path = folder.join(file_name(name)).with_extension(extension);
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// A case's or bench's name as a file's: words with hyphens.
fn file_name(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_alphanumeric());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-").to_lowercase()
}

/// Pairs of a quantile and its nanoseconds, denser towards the end.
fn percentiles(times: &Histogram<u64>) -> Vec<(f64, u64)> {
    let points = times.iter_quantiles(POINTS_PER_HALVING);
    points.map(|point| (point.quantile_iterated_to(), point.value_iterated_to())).collect()
}

/// The percentile distribution as the text that plotters of such histograms read.
fn distribution(times: &Histogram<u64>) -> String {
    let head = ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"];
    let head = format!("{:>12} {:>14} {:>10} {:>16}\n", head[0], head[1], head[2], head[3]);
    let mut count = 0;
    let points = times.iter_quantiles(POINTS_PER_HALVING).map(|point| {
        count += point.count_since_last_iteration();
        let (quantile, value) = (point.quantile_iterated_to(), wide(point.value_iterated_to()));
        let rest = 1.0 / (1.0 - quantile);
        format!("{value:>12.3} {quantile:>14.12} {count:>10} {rest:>16.2}")
    });
    let points: Vec<String> = points.collect();
    let (mean, deviation, max) = (times.mean(), times.stdev(), wide(times.max()));
    let mean = format!("#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]");
    let max = format!("#[Max     = {max:>12.3}, Total count    = {:>12}]\n", times.len());
    [head, points.join("\n"), mean, max].join("\n")
}

/// The histograms of all rounds, one after another; their times are the rounds' numbers in seconds.
fn log(rounds: &[Sample]) -> anyhow::Result<Vec<u8>> {
    let (mut text, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    let mut log = IntervalLogWriterBuilder::new().begin_log_with(&mut text, &mut serializer)?;
    for (second, round) in (0..).zip(rounds) {
        if let Sample::Latency(times) = round {
            let (begin, length) = (Duration::from_secs(second), Duration::from_secs(1));
            log.write_histogram(times, begin, length, None)
                .map_err(|error| anyhow::anyhow!("a histogram is not written: {error:?}"))?;
        }
    }
    Ok(text)
}
