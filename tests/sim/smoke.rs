//! The smoke: many seeds, each a plan of its own with options of its own, each run twice with equal
//! traces.
//!
//! The seeds are dealt to as many tests as the machine of the checks has cores, since each world is
//! one thread. What a run must have had, or it proved nothing, is asserted for each seed; what a
//! batch must have seen, for all of them together. `cargo xtask prove` runs more seeds, once each.

use siloring_testkit::process::is_long;
use siloring_testkit::sim::batch::Totals;
use siloring_testkit::sim::explore::{
    Asked, Demands, asked, run, run_twice, run_watched, shrink_failure, trace_asked,
};
use siloring_testkit::sim::{Failure, Options, Plan, Swarm};

/// Seeds of the whole smoke, unless `SILORING_SEEDS` names another number.
const SEEDS: u64 = 200;
/// Seeds of the smoke in its longer form.
const SEEDS_LONG: u64 = 4_000;
/// Tests that they are dealt to.
const HANDS: usize = 2;
/// Runs between two lines that say how far a long batch is.
const PROGRESS_EVERY: u64 = 100;
/// What a hundred seeds may miss; a long batch may miss nothing.
const SELDOM: &[&str] = &[
    "a silo ends while it takes or rebuilds ranges",
    "a write without an answer was not made",
    "a dead letter is kept",
    "forward limit",
    "failed IncarnationDead",
    "failed RegistryUnavailable",
    "fault hints-doubled",
    "fault hints-forged",
    "fault hints-late",
    "fault hints-lost",
    "fault store-hang",
];

#[test]
fn even_seeds_keep_every_promise_and_repeat_themselves() {
    deal(0);
}

#[test]
fn odd_seeds_keep_every_promise_and_repeat_themselves() {
    deal(1);
}

fn deal(hand: u64) {
    let plan = match asked().unwrap_or_else(|error| panic!("{error}")) {
        Asked::Plan(plan) if hand == 0 => plan,
        Asked::Plan(_) => return,
        Asked::Nothing => return smoke(hand),
    };
    println!("{}\n{plan}", Swarm::drawn(plan.options.seed));
    let watch: fn(&str) = |line| eprintln!("{line}");
    let sink = trace_asked().then(|| -> Box<dyn FnMut(&str)> { Box::new(watch) });
    match run_watched(&plan, sink) {
        Ok(report) => println!("{report:#?}"),
        Err(failure) => panic!("{failure}"),
    }
}

fn smoke(hand: u64) {
    let usual = if is_long() { SEEDS_LONG } else { SEEDS };
    let wanted = std::env::var("SILORING_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let (began, mut totals) = (cpu_seconds(), Totals::default());
    let mut simulated_s = 0.0;
    for seed in (hand..wanted.unwrap_or(usual)).step_by(HANDS) {
        let plan = Plan::from_seed(Options::drawn(seed));
        let repeats = if is_long() { 1.0 } else { 2.0 };
        let ran = if is_long() { run(&plan) } else { run_twice(&plan) };
        let report = ran.unwrap_or_else(|failure| report_failure(&failure));
        let lacking = Demands::SMOKE.lacking(&plan.options, &report);
        assert!(lacking.is_empty(), "seed {seed} proved nothing: {lacking:?}");
        totals.add(&plan.options, &report);
        simulated_s += repeats * report.simulated.as_secs_f64();
        if totals.runs.is_multiple_of(PROGRESS_EVERY) {
            eprintln!("{} runs, the last of seed {seed}", totals.runs);
        }
    }
    let cpu_hours = (cpu_seconds() - began) / 3600.0;
    println!("{totals}");
    println!("{:.0} simulated hours per CPU-hour", simulated_s / 3600.0 / cpu_hours.max(1e-9));
    let mut never = totals.never();
    never.retain(|what| is_long() || !SELDOM.contains(&what.as_str()));
    println!("never: {never:?}");
    assert!(wanted.is_some() || never.is_empty(), "no run has seen {never:?}");
}

fn report_failure(failure: &Failure) -> ! {
    println!("{failure}");
    println!("the smallest plan found that fails so:\n{}", shrink_failure(failure));
    panic!("{}", failure.violations[0]);
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
