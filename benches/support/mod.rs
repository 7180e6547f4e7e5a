//! What the benches share: rounds, medians, rows with budgets, tables, and pinning.
//!
//! A [`Bench`] holds cases and rows. A case measures one thing once a round; rounds are interleaved
//! over all cases, so that whatever the machine does meanwhile falls on all of them alike, and a
//! case's value is the median of its rounds. A row compares a case with another case of the same
//! run, or with a number. Invariants: no ratio mixes runs; a row whose case was not measured ends
//! the bench with a failure.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench measures time, and what it prints is its product"
)]

mod report;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub(crate) use report::{Budget, Row};

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

/// What was asked for on the command line: `--quick`, `--json`, and a part of the names of the rows
/// to measure. Unknown options are cargo's, and passed over.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    is_quick: bool,
    is_json: bool,
    filter: String,
}

impl Options {
    /// Reads the command line.
    pub(crate) fn from_arguments() -> Self {
        let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
        let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
        Self {
            is_quick: has("--quick"),
            is_json: has("--json"),
            filter: filter.unwrap_or_default(),
        }
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
    measured: Measured,
}

/// What the rounds of one case found.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// One value a round: the median latency in nanoseconds, or the number.
    values: Vec<f64>,
    /// All rounds together, if the case measures latency.
    times: Option<Histogram<u64>>,
}

impl Measured {
    fn add(&mut self, sample: Sample) {
        match sample {
            Sample::Number(number) => self.values.push(number),
            Sample::Latency(times) => {
                let median = u32::try_from(times.value_at_quantile(0.5)).unwrap_or(u32::MAX);
                self.values.push(f64::from(median));
                match &mut self.times {
                    None => self.times = Some(times),
                    Some(all) => all.add(&times).expect("both have the same bounds"),
                }
            }
        }
    }

    /// The median of the rounds.
    fn value(&self) -> Option<f64> {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

/// Cases, and the rows that are made of them.
pub(crate) struct Bench<'a> {
    title: &'static str,
    options: Options,
    cases: Vec<Case<'a>>,
    rows: Vec<Row>,
}

impl<'a> Bench<'a> {
    /// A bench without cases.
    pub(crate) const fn new(title: &'static str, options: Options) -> Self {
        Self { title, options, cases: Vec::new(), rows: Vec::new() }
    }

    /// Adds a case; the order of cases is the order in each round.
    pub(crate) fn case(
        &mut self,
        name: &'static str,
        measure: impl FnMut(Effort) -> anyhow::Result<Sample> + 'a,
    ) {
        assert!(self.cases.iter().all(|case| case.name != name), "two cases named {name}");
        let measure = Box::new(measure);
        self.cases.push(Case { name, measure, measured: Measured::default() });
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
        let rows = &self.rows;
        let is_used = |name| rows.iter().any(|row| row.case == name || row.against == Some(name));
        self.cases.retain(|case| is_used(case.name));
        for _ in 0..self.options.rounds() {
            for case in &mut self.cases {
                match (case.measure)(Effort::of(&self.options)) {
                    Ok(sample) => case.measured.add(sample),
                    Err(error) => {
                        println!("{} could not be measured: {error:#}", case.name);
                        return ExitCode::FAILURE;
                    }
                }
            }
        }
        let measured: BTreeMap<&str, &Measured> =
            self.cases.iter().map(|case| (case.name, &case.measured)).collect();
        if self.options.is_json {
            report::print_json(&self.rows, &measured);
        } else {
            report::print_tables(self.title, &self.rows, &measured);
        }
        ExitCode::SUCCESS
    }
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
