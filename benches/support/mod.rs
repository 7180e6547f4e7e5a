//! What the benches share: rounds, medians, rows with budgets, tables, and pinning.
//!
//! A [`Bench`] holds cases and rows. A case measures one thing once a round; rounds are interleaved
//! over all cases, so that whatever the machine does meanwhile falls on all of them alike, and a
//! case's value is the median of its rounds. A [`Bench::tail`] is the 99.9th percentile of a case
//! that measures latency, taken in the same way. A row compares a case with another case of the
//! same run, or with a number. Invariants: no ratio mixes runs; a row whose case was not measured
//! ends the bench with a failure.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench measures time, and what it prints is its product"
)]

mod report;
mod results;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub(crate) use report::{Budget, Row};

use report::Line;

/// Rounds of a full run: the median of five stands against two disturbed ones.
const ROUNDS: usize = 5;
/// Rounds of a quick run, which shows that everything works and measures nothing.
const ROUNDS_QUICK: usize = 2;
/// What takes longer is counted as this long: a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Tells a peer which processors the bench was given: it inherits a pin, not the choice.
pub(crate) const PROCESSORS_VARIABLE: &str = "SILORING_BENCH_PROCESSORS";
/// Significant digits of a histogram: a per mille.
const DIGITS: u8 = 3;
/// The quantile that [`Bench::tail`] is about.
const TAIL: f64 = 0.999;

/// What was asked for on the command line: `--quick`, `--json`, `--results FOLDER`, and a part of
/// the names of the rows to measure. Unknown options are cargo's, and passed over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    is_quick: bool,
    is_json: bool,
    results: Option<PathBuf>,
    filter: String,
}

impl Options {
    /// Reads the command line.
    pub(crate) fn from_arguments() -> Self {
        let mut options = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => options.is_quick = true,
                "--json" => options.is_json = true,
                "--results" => options.results = arguments.next().map(PathBuf::from),
                option if option.starts_with('-') => {}
                _ => options.filter = argument,
            }
        }
        options
    }

    /// Whether few and short rounds were asked for.
    pub(crate) const fn is_quick(&self) -> bool {
        self.is_quick
    }

    /// Those of `sizes` that a run has; a quick one has none above `quick_max`.
    pub(crate) fn sizes(&self, sizes: &[u16], quick_max: u16) -> Vec<u16> {
        sizes.iter().copied().filter(|size| !self.is_quick || *size <= quick_max).collect()
    }

    const fn rounds(&self) -> usize {
        if self.is_quick { ROUNDS_QUICK } else { ROUNDS }
    }
}

/// How much one round of a case shall do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Operations that are thrown away first: caches, branch predictors and buffers settle.
    pub(crate) warm_up_count: usize,
    /// Operations that are measured, where a case measures each.
    pub(crate) operation_count: usize,
    /// How long, where a case measures what gets done in a time.
    pub(crate) time: Duration,
}

impl Effort {
    const fn of(options: &Options) -> Self {
        if options.is_quick {
            Self { warm_up_count: 100, operation_count: 1_000, time: Duration::from_millis(50) }
        } else {
            Self { warm_up_count: 5_000, operation_count: 30_000, time: Duration::from_millis(700) }
        }
    }
}

/// What one round of a case found.
#[derive(Debug)]
pub(crate) enum Sample {
    /// Nanoseconds of each operation.
    Latency(Histogram<u64>),
    /// One number: a rate, a count, a share.
    Number(f64),
}

/// Nanoseconds of every operation of one kind.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are in order")
}

/// Runs `operation` as often as `effort` says and records each one's time, from the end of the one
/// before.
pub(crate) fn measure<E>(
    effort: Effort,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<Sample, E> {
    for _ in 0..effort.warm_up_count {
        operation()?;
    }
    let mut times = histogram();
    let mut last = Instant::now();
    for _ in 0..effort.operation_count {
        operation()?;
        let now = Instant::now();
        times.saturating_record(nanoseconds(now - last));
        last = now;
    }
    Ok(Sample::Latency(times))
}

/// Runs `batch`, which says how many operations it did, until the time of `effort` is over; the
/// result is operations per second.
pub(crate) fn measure_rate<E>(
    effort: Effort,
    mut batch: impl FnMut() -> Result<usize, E>,
) -> Result<Sample, E> {
    let mut done_count = 0_usize;
    while done_count < effort.warm_up_count {
        done_count += batch()?;
    }
    done_count = 0;
    let began = Instant::now();
    loop {
        done_count += batch()?;
        let elapsed = began.elapsed();
        if elapsed >= effort.time {
            let done_count = u32::try_from(done_count).expect("a round is short");
            return Ok(Sample::Number(f64::from(done_count) / elapsed.as_secs_f64()));
        }
    }
}

/// A time as a histogram takes it.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

type Measure<'a> = Box<dyn FnMut(Effort) -> anyhow::Result<Sample> + 'a>;

struct Case<'a> {
    name: &'static str,
    measure: Measure<'a>,
    /// What each round found.
    rounds: Vec<Sample>,
}

impl Case<'_> {
    fn found(&self) -> (&str, Found<'_>) {
        (self.name, Found { rounds: &self.rounds, quantile: 0.5 })
    }
}

/// What the rounds of a case found, seen at one quantile of each round's latencies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found<'a> {
    rounds: &'a [Sample],
    quantile: f64,
}

impl Found<'_> {
    /// One value a round: the quantile of its latencies in nanoseconds, or its number.
    fn values(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|sample| match sample {
            Sample::Number(number) => *number,
            Sample::Latency(times) => wide(times.value_at_quantile(self.quantile)),
        })
    }

    /// The median of the rounds, if there were any.
    fn value(&self) -> Option<f64> {
        let mut values: Vec<f64> = self.values().collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// The latencies of all rounds together, if the case measures any.
    fn times(&self) -> Option<Histogram<u64>> {
        let mut all = None;
        for sample in self.rounds {
            let Sample::Latency(times) = sample else { return None };
            all.get_or_insert_with(histogram).add(times).expect("all have the same bounds");
        }
        all
    }
}

/// Nanoseconds as a fraction can be made of them: four seconds at most.
fn wide(nanoseconds: u64) -> f64 {
    f64::from(u32::try_from(nanoseconds).unwrap_or(u32::MAX))
}

/// Cases, and the rows that are made of them.
pub(crate) struct Bench<'a> {
    title: &'static str,
    options: Options,
    cases: Vec<Case<'a>>,
    /// A name, and the case of whose latencies it is the 99.9th percentile.
    tails: Vec<(&'static str, &'static str)>,
    rows: Vec<Row>,
}

impl<'a> Bench<'a> {
    /// A bench without cases.
    pub(crate) const fn new(title: &'static str, options: Options) -> Self {
        Self { title, options, cases: Vec::new(), tails: Vec::new(), rows: Vec::new() }
    }

    /// Adds a case; the order of cases is the order in each round.
    pub(crate) fn case(
        &mut self,
        name: &'static str,
        measure: impl FnMut(Effort) -> anyhow::Result<Sample> + 'a,
    ) {
        assert!(self.cases.iter().all(|case| case.name != name), "two cases named {name}");
        self.cases.push(Case { name, measure: Box::new(measure), rounds: Vec::new() });
    }

    /// Names the 99.9th percentile of a case, for rows.
    pub(crate) fn tail(&mut self, name: &'static str, of: &'static str) {
        self.tails.push((name, of));
    }

    /// Adds a row of the table, unless others were asked for.
    pub(crate) fn row(&mut self, row: Row) {
        if row.name.contains(&self.options.filter) {
            self.rows.push(row);
        }
    }

    /// Runs all rounds and prints the result. A budget that is not met is shown, not failed: the
    /// machine may be busy. A case that cannot be measured fails the bench.
    pub(crate) fn run(mut self) -> ExitCode {
        match self.measure().and_then(|()| self.tell()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{error:#}");
                ExitCode::FAILURE
            }
        }
    }

    fn measure(&mut self) -> anyhow::Result<()> {
        let (rows, tails) = (&self.rows, &self.tails);
        let is_asked = |name: &str| rows.iter().any(|row| row.is_about(name));
        self.cases.retain(|case| {
            let tail = tails.iter().find(|(_, of)| *of == case.name);
            is_asked(case.name) || tail.is_some_and(|(name, _)| is_asked(name))
        });
        let bar = progress(self.options.rounds() * self.cases.len());
        for _ in 0..self.options.rounds() {
            for case in &mut self.cases {
                bar.set_message(case.name);
                let sample = (case.measure)(Effort::of(&self.options))
                    .with_context(|| format!("{} could not be measured", case.name))?;
                case.rounds.push(sample);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn tell(&self) -> anyhow::Result<()> {
        let cases: BTreeMap<&str, Found<'_>> = self.cases.iter().map(Case::found).collect();
        let mut measured = cases.clone();
        for (name, of) in &self.tails {
            if let Some(case) = cases.get(of) {
                measured.insert(name, Found { quantile: TAIL, ..*case });
            }
        }
        let lines: Vec<Line> = self.rows.iter().map(|row| row.line(&measured)).collect();
        if let Some(folder) = &self.options.results {
            results::write(folder, self.title, &lines, &cases)?;
        }
        if self.options.is_json {
            report::print_json(&lines);
        } else {
            report::print_tables(self.title, &lines, &cases);
        }
        Ok(())
    }
}

/// How far the rounds are: on the terminal, if there is one.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg:45.45} {eta:>4}");
    let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
    bar.set_style(style.expect("the template is well-formed"));
    bar
}

/// Pins the calling thread to the processor `index` of those this bench may use, or to the last one
/// if there are fewer. Threads and peers started later inherit the pin until they choose their own.
pub(crate) fn pin(index: usize) -> anyhow::Result<()> {
    let usable = processors();
    let processor = usable.get(index).or(usable.last()).copied().unwrap_or(0);
    let mut only = CpuSet::new();
    only.set(processor);
    Ok(sched_setaffinity(None, &only)?)
}

/// Undoes [`pin`] for the calling thread, so that what it starts next may choose.
pub(crate) fn unpin() -> anyhow::Result<()> {
    let mut all = CpuSet::new();
    for processor in processors() {
        all.set(*processor);
    }
    Ok(sched_setaffinity(None, &all)?)
}

/// The processors that this bench was given: read before anything is pinned, and told to peers.
pub(crate) fn processors() -> &'static [usize] {
    static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
    USABLE.get_or_init(|| {
        if let Ok(told) = std::env::var(PROCESSORS_VARIABLE) {
            return told.split(' ').filter_map(|number| number.parse().ok()).collect();
        }
        let allowed = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect()
    })
}
