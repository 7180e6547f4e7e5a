//! The smoke: many seeds, each a plan of its own with options of its own; some run twice, with
//! equal traces.
//!
//! Each world is one thread: the seeds are dealt to as many as there are cores. What a run must
//! have had, or it proved nothing, is asserted for each seed; what a batch must have seen, for all
//! of them together. `cargo xtask prove` runs more seeds, once each.

use std::thread;

use siloring_testkit::process::{figure, is_long};
use siloring_testkit::sim::batch::Totals;
use siloring_testkit::sim::explore::{Demands, run, run_twice, shrink_failure};
use siloring_testkit::sim::{Options, Plan};

/// Seeds of the smoke.
const SEEDS: u64 = 200;
/// One of so many is run twice: what a run depends on besides its seed shows in few.
const SEEDS_PER_REPETITION: u64 = 4;
/// Seeds of the smoke in its longer form.
const SEEDS_LONG: u64 = 2_000;
/// Runs between two lines that say how far a long batch is.
const PROGRESS_EVERY: u64 = 100;
/// What a hundred seeds may miss; a long batch may miss nothing.
const SELDOM: &[&str] = &[
    "a silo ends while it takes or rebuilds ranges",
    "a write without an answer was not made",
    "a dead letter is kept",
    "failed RegistryUnavailable",
    "fault hints-doubled",
    "fault hints-forged",
    "fault hints-late",
    "fault hints-lost",
    "fault store-hang",
];

#[test]
#[expect(clippy::disallowed_methods, reason = "worlds share nothing: threads only save time")]
fn every_seed_keeps_every_promise() {
    let seeds = if is_long() { SEEDS_LONG } else { SEEDS };
    let hands = thread::available_parallelism().map_or(1, usize::from);
    let dealt: Vec<_> = (0..hands)
        .map(|hand| thread::spawn(move || deal((hand as u64..seeds).step_by(hands))))
        .collect();
    let mut all = Batch::default();
    for hand in dealt {
        let batch = hand.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        all.totals.merge(&batch.totals);
        all.cpu_seconds += batch.cpu_seconds;
        all.repeated += batch.repeated;
        all.failures.extend(batch.failures);
    }
    println!("{}", all.totals);
    all.tell();
    assert!(all.failures.is_empty(), "{:?}", all.failures);
    let mut never = all.totals.never();
    never.retain(|what| is_long() || !SELDOM.contains(&what.as_str()));
    assert!(never.is_empty(), "no run has seen {never:?}");
}

/// What seeds came to.
#[derive(Default)]
struct Batch {
    totals: Totals,
    /// Seeds that were run once more.
    repeated: u64,
    cpu_seconds: f64,
    /// What was not kept: the first of each seed.
    failures: Vec<&'static str>,
}

/// Runs these seeds in this thread; stops at the first that breaks a promise.
fn deal(seeds: impl Iterator<Item = u64>) -> Batch {
    let began = cpu_seconds();
    let mut batch = Batch::default();
    for seed in seeds {
        let plan = Plan::from_seed(Options::drawn(seed));
        let repeats = !is_long() && batch.totals.runs.is_multiple_of(SEEDS_PER_REPETITION);
        batch.repeated += u64::from(repeats);
        let ran = if repeats { run_twice(&plan) } else { run(&plan) };
        let report = match ran {
            Ok(report) => report,
            Err(failure) => {
                println!("{failure}");
                let smallest = shrink_failure(&failure);
                println!("the smallest plan found that fails so:\n{smallest}");
                batch.failures.push(failure.violations[0].invariant);
                break;
            }
        };
        let lacking = Demands::SMOKE.lacking(&plan.options, &report);
        assert!(lacking.is_empty(), "seed {seed} proved nothing: {lacking:?}");
        batch.totals.add(&plan.options, &report);
        if batch.totals.runs.is_multiple_of(PROGRESS_EVERY) {
            eprintln!("{} runs, the last of seed {seed}", batch.totals.runs);
        }
    }
    batch.cpu_seconds = cpu_seconds() - began;
    batch
}

impl Batch {
    /// Tells what the table of figures has of it.
    #[expect(clippy::cast_precision_loss, reason = "counts of one batch fit a float")]
    fn tell(&self) {
        let Self { totals, repeated, cpu_seconds, failures } = self;
        let hours = totals.simulated.as_secs_f64() / 3600.0;
        let deliveries = totals.count("sent");
        let broken = |what: &str| {
            let count = failures.iter().filter(|failure| failure.contains(what)).count();
            count as u64
        };
        let runs_of_each = 1.0 + *repeated as f64 / totals.runs as f64;
        let for_each_hour = |count: f64| count * runs_of_each * 3600.0 / cpu_seconds.max(1e-9);
        figure("simulator: seeds", totals.runs);
        figure("simulator: hours simulated", format_args!("{hours:.0}"));
        figure("simulator: deliveries", deliveries);
        let rate = for_each_hour(hours);
        figure("simulator: hours simulated in a CPU-hour", format_args!("{rate:.0}"));
        let rate = for_each_hour(deliveries as f64);
        figure("simulator: deliveries in a CPU-hour", format_args!("{rate:.0}"));
        let silent = totals.count("without an outcome") + broken("an outcome within");
        let doubled = broken("exactly one outcome") + broken("runs twice");
        figure("simulator: silent", silent);
        figure("simulator: doubled", doubled);
        for (name, count) in totals.counts() {
            if let Some(kind) = name.strip_prefix("fault ") {
                figure(&format!("simulator: faults, {kind}"), count);
            }
        }
    }
}

/// Seconds of processor time that this thread has used.
#[expect(clippy::disallowed_methods, reason = "measures the run, decides nothing")]
fn cpu_seconds() -> f64 {
    let clock = rustix::time::ClockId::ThreadCPUTime;
    let now = rustix::time::clock_gettime(clock);
    #[expect(clippy::cast_precision_loss, reason = "seconds of one test fit a float")]
    let (seconds, nanos) = (now.tv_sec as f64, now.tv_nsec as f64);
    seconds + nanos / 1e9
}
