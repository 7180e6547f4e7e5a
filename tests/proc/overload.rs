//! One silo gets twice what it can handle, from another that does not slow down for it.
//!
//! The serving shard's processor is what is short: each turn keeps it for a fixed time. What it can
//! handle is measured first, in the same run; then come four fifths of that, twice that, and four
//! fifths again. Calls leave at random times, and their times count from when they were meant to
//! leave.
//!
//! Both silos, the load and the test share the machine's processors, and on a busy one any of them
//! may lose its own for milliseconds, which at four fifths of the capacity is an overload: of up to
//! [`ROUNDS_MAX`] rounds one has to hold, and a few refusals below capacity are the machine's. That
//! there are none is held in virtual time, by the machine's own tests. Without the refusals no
//! round holds: that is tested too. The first half second of an overload, in which the shard
//! finds out, is told apart.

use std::time::Duration;

use serde_json::Value;
use siloring_testkit::process::{figure, is_long};

use crate::silo::{Cluster, Silo, tell};

/// A turn keeps its shard for so long.
const TURN_US: u64 = 200;
/// Callers that keep the shard busy while its capacity is measured.
const CALLERS: u64 = 16;
const ROUNDS_MAX: u32 = 3;
/// On the busiest machine; without refusals it is a second after the first.
const TAKEN_US_MAX: u64 = 100_000;
/// Of the calls below capacity so many may find the machine too busy.
const NOISE_PERCENT: u64 = 5;
/// What the silo may grow by while it is overloaded, in bytes: buffers that were never as full.
const GROWTH_MAX: u64 = 16 * 1024 * 1024;
/// Longer than anybody waits: nothing is refused for it.
const NEVER_US: &str = "3600000000";

/// How long each part of a round takes.
struct Spans {
    capacity: Duration,
    below: Duration,
    onset: Duration,
    above: Duration,
    settling: Duration,
}

fn spans() -> Spans {
    let [capacity, below, above] = if is_long() { [4, 10, 30] } else { [1, 2, 2] };
    Spans {
        capacity: Duration::from_secs(capacity),
        below: Duration::from_secs(below),
        onset: Duration::from_millis(500),
        above: Duration::from_secs(above),
        settling: Duration::from_secs(1),
    }
}

/// What became of the calls of one part, with times in microseconds.
#[derive(Debug)]
struct Part {
    handled: u64,
    overloaded: u64,
    others: u64,
    open: u64,
    handled_p50: u64,
    handled_p99: u64,
    overloaded_p99: u64,
}

impl Part {
    fn read(told: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{told}"));
        Self {
            handled: number(&told["handled"]),
            overloaded: number(&told["overloaded"]),
            others: number(&told["others"]),
            open: number(&told["open"]),
            handled_p50: number(&told["handled_us"][0]),
            handled_p99: number(&told["handled_us"][1]),
            overloaded_p99: number(&told["overloaded_us"][1]),
        }
    }

    fn refused_percent(&self) -> u64 {
        self.overloaded * 100 / (self.handled + self.overloaded).max(1)
    }
}

/// One round: what each part came to.
#[derive(Debug)]
struct Round {
    capacity: u64,
    below: Part,
    above: Part,
    /// A second after the overload; `None` if that was not waited for.
    after: Option<Part>,
    /// Resident bytes of the serving silo, early in the overload and at its end.
    resident: [u64; 2],
}

fn load(sender: &mut Silo, per_second: u64, span: Duration) -> Part {
    let told = sender.get(&format!("open {TURN_US} {per_second} {}", span.as_millis()));
    Part::read(&told)
}

impl Round {
    /// Up to the end of the overload.
    fn begin(serving: &Silo, sender: &mut Silo, spans: &Spans) -> Self {
        let ms = spans.capacity.as_millis();
        let capacity = sender.get(&format!("capacity {TURN_US} {CALLERS} {ms}"));
        let capacity = capacity["value"].as_u64().expect("a number");
        let below = load(sender, capacity * 8 / 10, spans.below);
        let onset = load(sender, capacity * 2, spans.onset);
        tell(&format!("onset: {onset:?}"));
        let early = serving.process.resident_bytes();
        let above = load(sender, capacity * 2, spans.above);
        let late = serving.process.resident_bytes();
        Self { capacity, below, above, after: None, resident: [early, late] }
    }

    fn run(serving: &Silo, sender: &mut Silo) -> Self {
        let spans = spans();
        let mut round = Self::begin(serving, sender, &spans);
        let per_second = round.capacity * 8 / 10;
        let settling = load(sender, per_second, spans.settling);
        tell(&format!("settling: {settling:?}"));
        round.after = Some(load(sender, per_second, spans.below));
        tell(&format!("{round:?}"));
        round
    }

    /// Why it does not hold.
    fn broken(&self) -> Vec<&'static str> {
        let Self { below, above, after, resident: [early, late], .. } = self;
        let ever_p50 = (2 * below.handled_p50).max(above.handled_p50);
        let parts = || [below, above].into_iter().chain(after);
        let rules = [
            (parts().all(|part| part.others == 0), "handled, or Overloaded"),
            (parts().all(|part| part.open == 0), "all is told"),
            (below.refused_percent() <= NOISE_PERCENT, "few are refused below capacity"),
            (above.handled_p99 <= (3 * below.handled_p99).min(TAKEN_US_MAX), TAKEN),
            ((25..=75).contains(&above.refused_percent()), "about half are refused"),
            (above.overloaded_p99 <= 3 * below.handled_p99, "the others are told at once"),
            (*late <= early + GROWTH_MAX, "memory stays flat"),
            (after.iter().all(|part| part.refused_percent() <= NOISE_PERCENT), "refusing ends"),
            (
                after.iter().all(|part| part.handled_p50 <= ever_p50),
                "a second later all is as before",
            ),
        ];
        rules.iter().filter(|(holds, _)| !holds).map(|(_, rule)| *rule).collect()
    }

    fn figures(&self) {
        let Self { capacity, below, above, after, resident: [early, late] } = self;
        figure("overload: handled a second by one shard, turns of 200 us", capacity);
        figure("overload: p50 / p99 at 0.8 x, us", pair(below));
        figure("overload: p50 / p99 of what is taken at 2 x, us", pair(above));
        if let Some(after) = after {
            figure("overload: p50 / p99 at 0.8 x a second after, us", pair(after));
        }
        figure("overload: refused at 2 x, percent", above.refused_percent());
        figure("overload: p99 until a refusal is told, us", above.overloaded_p99);
        let grown = late.saturating_sub(*early) >> 10;
        figure("overload: growth of the serving silo at 2 x, KiB", grown);
    }
}

const TAKEN: &str = "who is taken is answered as ever";

fn pair(part: &Part) -> String {
    format!("{} / {}", part.handled_p50, part.handled_p99)
}

/// The silo that serves, and the one that sends.
fn start(cluster: &Cluster, arguments: &[&str]) -> [Silo; 2] {
    // The two share the machine: one that waits leaves its processor to the other.
    let arguments = [&["--idle", "park"], arguments].concat();
    let [mut serving, sender] =
        ["serving", "sender"].map(|name| cluster.start_with(name, &arguments));
    let settled = serving.get("settle_burners");
    assert_eq!(settled["value"].as_u64(), Some(256), "the burners live where they are to burn");
    [serving, sender]
}

#[test]
fn at_twice_its_capacity_a_silo_answers_whom_it_takes_as_ever_and_tells_the_others_at_once() {
    let cluster = Cluster::new("overload");
    let [serving, mut sender] = start(&cluster, &[]);
    for _ in 0..ROUNDS_MAX {
        let round = Round::run(&serving, &mut sender);
        let broken = round.broken();
        if broken.is_empty() {
            return round.figures();
        }
        tell(&format!("a round is broken: {broken:?}"));
    }
    panic!("no round held");
}

#[test]
fn a_silo_that_refuses_nothing_is_found() {
    let cluster = Cluster::new("overload-unasked");
    let [serving, mut sender] = start(&cluster, &["--overload-delay-us", NEVER_US]);
    let spans = Spans { above: Duration::from_secs(1), ..spans() };
    for _ in 0..if is_long() { ROUNDS_MAX } else { 1 } {
        let round = Round::begin(&serving, &mut sender, &spans);
        tell(&format!("{round:?}"));
        assert_eq!(round.above.overloaded, 0);
        assert!(round.broken().contains(&TAKEN), "who is taken waits for all before: {round:?}");
    }
}
