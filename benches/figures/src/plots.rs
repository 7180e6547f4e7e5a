//! The plots: which cases are drawn, and how.
//!
//! A case is found by its name. One that is a point of a line says at its name's end which:
//! `LINE, N in flight`, `LINE, N silos` and the like. What a run did not measure is left out of a
//! plot; a plot that would have no line is not drawn.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use plotters::prelude::*;

use crate::results::{Case, Results};

/// Pixels.
const SIZE: (u32, u32) = (960, 540);
const COLORS: [RGBColor; 8] = [
    RGBColor(120, 120, 120),
    RGBColor(214, 39, 40),
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
];

/// The README's picture: the floor, this library, a careful echo without actors.
const LATENCY: [&str; 3] = [
    "raw busy-polling TCP, 1 in flight",
    "Siloring, 1 in flight",
    "tokio framed echo, 1 in flight",
];
/// Actor peers between two processes: the fastest of them is in the README's picture.
const ACTORS: [&str; 2] = ["ractor_cluster, 1 in flight", "rio-rs, 1 in flight"];
const PARKED: [&str; 2] = ["raw blocking TCP", "call over TCP, spin window off"];
const UNIX: [&str; 2] = ["raw busy-polling Unix", "call over Unix sockets, spin window on"];
const INSIDE: [&str; 3] =
    ["call on the same shard", "call across shards", "two threads and two queues"];
const SEALED: [&str; 2] =
    ["call over TCP, spin window on", "call over TCP inside TLS, spin window on"];

/// Points of one line.
type Points = Vec<(f64, f64)>;
/// A line and what it is called.
type Line = (String, Points);

/// Draws all plots into `folder`; which.
pub(crate) fn draw(results: &Results, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let cases = results.cases();
    let actor = fastest(&cases, &ACTORS);
    let latency: Vec<&str> = LATENCY.into_iter().chain(actor).collect();
    let percentiles = [
        ("latency", "one 64-byte call over loopback TCP, spinning", &*latency),
        ("latency-parked", "one 64-byte call over loopback TCP, sleeping", &PARKED),
        ("latency-unix", "one 64-byte call over a Unix socket, spinning", &UNIX),
        ("latency-inside", "one 64-byte call inside a process", &INSIDE),
        ("latency-tls", "one 64-byte call over loopback TCP, plain and inside TLS", &SEALED),
    ];
    let mut drawn = Vec::new();
    for (name, title, names) in percentiles {
        let lines: Vec<Line> = names.iter().filter_map(|name| curve(&cases, name)).collect();
        drawn.extend(draw_percentiles(&folder.join(name).with_extension("svg"), title, &lines)?);
    }
    let series = [
        ("throughput", "64-byte calls a second between two processes", " in flight"),
        ("links", "64-byte calls a second over the links of one shard", " links"),
        ("cluster", "clusters of real silos on one machine", " real silos"),
        ("cluster-size", "what a silo costs as its cluster grows, simulated", " silos"),
    ];
    for (name, title, unit) in series {
        let path = folder.join(name).with_extension("svg");
        let axes = Axes { title, x: unit.trim(), y: "", x_text: trimmed };
        drawn.extend(draw_lines(&path, &axes, &series_of(&cases, unit))?);
    }
    Ok(drawn)
}

fn fastest<'a>(cases: &[&Case], names: &[&'a str]) -> Option<&'a str> {
    let measured = names.iter().filter_map(|name| {
        let case = cases.iter().find(|case| case.name == *name)?;
        Some((*name, case.value))
    });
    measured.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(name, _)| name)
}

/// The percentiles of a case: how rare, and microseconds.
fn curve(cases: &[&Case], name: &str) -> Option<Line> {
    let case = cases.iter().find(|case| case.name == name)?;
    let points = case.percentiles.as_ref()?.iter();
    let points = points.filter(|(quantile, _)| *quantile < 1.0);
    Some((name.to_owned(), points.map(|(at, ns)| (1.0 / (1.0 - at), ns / 1e3)).collect()))
}

fn draw_percentiles(path: &Path, title: &str, lines: &[Line]) -> anyhow::Result<Option<PathBuf>> {
    let axes = Axes {
        title,
        x: "percentile",
        y: "microseconds",
        x_text: |rareness: f64| format!("{} %", trimmed(100.0 * (1.0 - 1.0 / rareness))),
    };
    draw_lines(path, &axes, lines)
}

/// The lines of two points or more that are cases whose names end with a number of these.
fn series_of(cases: &[&Case], unit: &str) -> Vec<Line> {
    let mut series: BTreeMap<&str, Points> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.percentiles.is_none() && case.value > 0.0) {
        if let Some((name, at)) = point(&case.name, unit) {
            series.entry(name).or_default().push((at, case.value));
        }
    }
    let lines = series.into_iter().filter(|(_, points)| points.len() > 1);
    let lines = lines.map(|(name, mut points)| {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        (name.to_owned(), points)
    });
    lines.collect()
}

/// The line of which a case is a point, and where on it.
fn point<'a>(name: &'a str, unit: &str) -> Option<(&'a str, f64)> {
    let (line, at) = name.strip_suffix(unit)?.rsplit_once(", ")?;
    Some((line, at.parse().ok()?))
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a plot says besides its lines. Both axes are logarithmic.
struct Axes<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    x_text: fn(f64) -> String,
}

fn draw_lines(path: &Path, axes: &Axes<'_>, lines: &[Line]) -> anyhow::Result<Option<PathBuf>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold(None, |bounds: Option<(f64, f64)>, value| {
            Some(bounds.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        })
    };
    let (Some(x), Some(y)) = (bounds(|point| point.0), bounds(|point| point.1)) else {
        return Ok(None);
    };
    render(path, axes, lines, x, y).map_err(|error| anyhow!("cannot draw: {error}"))?;
    Ok(Some(path.to_owned()))
}

fn render(
    path: &Path,
    axes: &Axes<'_>,
    lines: &[Line],
    x: (f64, f64),
    y: (f64, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (x, y) = ((x.0..x.1 * 1.1).log_scale(), (y.0 * 0.8..y.1 * 1.2).log_scale());
    let mut chart = ChartBuilder::on(&root)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&|x| (axes.x_text)(*x))
        .y_label_formatter(&|y| trimmed(*y))
        .light_line_style(WHITE)
        .draw()?;
    for ((name, points), color) in lines.iter().zip(COLORS.iter().cycle()) {
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(2))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Found;

    fn latency(name: &str, ns: f64) -> Case {
        let percentiles = [0.0, 0.5, 0.9, 0.99, 1.0].map(|at| (at, ns * (1.0 + at)));
        Case { name: name.to_owned(), value: ns, percentiles: Some(percentiles.to_vec()) }
    }

    fn rate(name: &str, value: f64) -> Case {
        Case { name: name.to_owned(), value, percentiles: None }
    }

    #[test]
    fn what_was_measured_is_drawn_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let cases = vec![
            latency(LATENCY[0], 7_000.0),
            latency(LATENCY[1], 8_000.0),
            latency(ACTORS[0], 90_000.0),
            latency(ACTORS[1], 40_000.0),
            rate("calls a second, 64 in flight", 1e6),
            rate("calls a second, 1024 in flight", 4e6),
        ];
        let found = Found { title: "a bench".to_owned(), rows: Vec::new(), cases };
        let drawn = draw(&Results(vec![found]), folder.path()).unwrap();
        let names: Vec<_> = drawn.iter().filter_map(|path| path.file_stem()).collect();
        assert_eq!(names, ["latency", "throughput"]);
        let text = std::fs::read_to_string(&drawn[0]).unwrap();
        for (name, is_drawn) in [(LATENCY[1], true), (ACTORS[1], true), (ACTORS[0], false)] {
            assert_eq!(text.contains(name), is_drawn, "{name}");
        }
    }

    #[test]
    fn a_point_names_its_line_and_its_place_on_it() {
        let unit = " in flight";
        assert_eq!(point("calls a second, 64 in flight", unit), Some(("calls a second", 64.0)));
        assert_eq!(point("raw blocking TCP, none in flight", unit), None);
        assert_eq!(point("outcome after kill -9", unit), None);
    }
}
