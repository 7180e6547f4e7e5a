//! The smoke: many seeds, each a plan of its own, each run twice with equal traces.
//!
//! The seeds are dealt to as many tests as the machine of the checks has cores, since each world is
//! one thread. What a run must have had, or it proved nothing, is asserted for each seed.

use siloring_testkit::sim::explore::{
    Asked, Demands, Totals, asked, run, run_twice, run_watched, shrink_failure, trace_asked,
};
use siloring_testkit::sim::{Failure, Hosts, Options, Plan};

/// Seeds of the whole smoke, unless `SILORING_SEEDS` names another number.
const SEEDS: u64 = 200;
/// Tests that they are dealt to.
const HANDS: usize = 2;

#[test]
fn even_seeds_keep_every_promise_and_repeat_themselves() {
    deal(0);
}

#[test]
fn odd_seeds_keep_every_promise_and_repeat_themselves() {
    deal(1);
}

/// Two silos are a case of their own: one vote suffices, and nobody else can be asked.
#[test]
fn two_silos_keep_every_promise() {
    if asked().is_ok_and(|asked| asked != Asked::Nothing) {
        return;
    }
    for seed in 0..SEEDS / 10 {
        let mut options = Options::new(seed);
        options.silos = 2;
        if let Err(failure) = run(&Plan::from_seed(options)) {
            report_failure(&failure);
        }
    }
}

/// Silos that find themselves on one host link by name; a name that nobody listens under is dialled
/// by its address.
#[test]
fn silos_of_one_host_keep_every_promise() {
    if asked().is_ok_and(|asked| asked != Asked::Nothing) {
        return;
    }
    for seed in 0..SEEDS / 10 {
        let mut options = Options::new(seed);
        options.hosts = Hosts::One;
        let plan = Plan::from_seed(options);
        let report = run(&plan).unwrap_or_else(|failure| report_failure(&failure));
        assert!(report.dialled_by_name > 20, "seed {seed}: the links were no Unix sockets");
    }
}

fn deal(hand: u64) {
    let plan = match asked().unwrap_or_else(|error| panic!("{error}")) {
        Asked::Plan(plan) if hand == 0 => plan,
        Asked::Plan(_) => return,
        Asked::Nothing => return smoke(hand),
    };
    println!("{plan}");
    let watch: fn(&str) = |line| eprintln!("{line}");
    let sink = trace_asked().then(|| -> Box<dyn FnMut(&str)> { Box::new(watch) });
    match run_watched(&plan, sink) {
        Ok(report) => println!("{report:#?}"),
        Err(failure) => panic!("{failure}"),
    }
}

fn smoke(hand: u64) {
    let seeds = std::env::var("SILORING_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let (began, mut totals) = (cpu_seconds(), Totals::default());
    println!("{}", Options::new(hand));
    for seed in (hand..seeds.unwrap_or(SEEDS)).step_by(HANDS) {
        let plan = Plan::from_seed(Options::new(seed));
        let report = run_twice(&plan).unwrap_or_else(|failure| report_failure(&failure));
        let lacking = Demands::SMOKE.lacking(&plan.options, &report);
        assert!(lacking.is_empty(), "seed {seed} proved nothing: {lacking:?}");
        totals.add(&report);
    }
    let hours = 2.0 * totals.simulated.as_secs_f64() / 3600.0;
    let cpu_hours = (cpu_seconds() - began) / 3600.0;
    println!("{totals:#?}");
    println!("{:.0} simulated hours per CPU-hour", hours / cpu_hours.max(1e-9));
    assert!(totals.handled > 0, "something was handled");
    assert!(seeds.is_some() || totals.regressed > 0, "the store went back in no run");
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
