//! Shards that get no processor for hundreds of milliseconds at a time.
//!
//! Both published versions of the engine under a shard can sleep for ever when their thread loses
//! its processor at the wrong moment. What is taken against that (see `src/driver/reactor.rs`) is
//! held here: a hog of real-time priority takes every processor in bursts, and no shard stands
//! still for longer than a burst explains. The silos are the test's own, so that it sees their
//! shards' counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use siloring::ShardIndex;
use siloring::prelude::*;
use siloring_testkit::process::{Process, Program, skip};

/// The hog takes every processor at once for this long…
const BURST: Duration = Duration::from_millis(350);
/// …and leaves them alone for this long, so that the kernel's own bound on real-time work (950 ms
/// of each second) never decides who runs.
const PAUSE: Duration = Duration::from_millis(150);
/// The hog ends by itself after this.
const SOAK: Duration = Duration::from_secs(15);
/// A shard moves within this: two bursts, should it get no turn in the pause between them. A
/// machine that takes a processor away for longer than that takes it from the witness too.
const STANDSTILL_MAX: Duration = Duration::from_secs(1);
/// Between two looks at the shards' counters.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
const SHARDS: u16 = 2;
/// Calls that each shard has in flight.
const CALLERS: u64 = 4;
const KEYS: u64 = 64;

/// Takes turns where its key falls, so that half of its calls cross silos.
#[derive(Grain, Default)]
#[grain(type = "starved.counter", placement = "hash")]
struct Counter {
    calls: u64,
}

#[grain_methods]
impl Counter {
    async fn add(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }
}

/// Busy in bursts that all hogs take at the same time, by the clock that nobody sets; ends with its
/// parent, or when its time is up. Times are in hundredths of a second.
const HOG: &str = r"
look() { read -r up rest < /proc/uptime; now=$(( 10#${up/./} )); }
look; end=$(( now + $1 ))
echo up
while look; (( now < end )) && kill -0 $PPID; do
    left=$(( $2 + $3 - now % ($2 + $3) ))
    if (( left <= $3 )); then printf -v pause '0.%02d' $left; sleep $pause; fi
done
";

/// One for each processor. The kernel spreads them: each is above everything that is not one.
struct Hogs(Vec<Process>);

impl Hogs {
    /// Why there can be none here.
    fn obstacle() -> Option<String> {
        let allowed = Program::new("chrt", "chrt").arguments(["-f", "10", "true"]).start();
        let status = match allowed {
            Ok(mut process) => process.wait_exit(Duration::from_secs(10)),
            Err(error) => return Some(error.to_string()),
        };
        let refused = status.map_or(true, |status| !status.success());
        refused.then(|| "real-time priority is not permitted".to_owned())
    }

    fn start() -> Self {
        let count = std::thread::available_parallelism().expect("processors can be counted");
        let hundredths = |span: Duration| (span.as_millis() / 10).to_string();
        let [soak, burst, pause] = [SOAK, BURST, PAUSE].map(hundredths);
        let limit = (SOAK + Duration::from_secs(5)).as_secs().to_string();
        let hog = Program::new("timeout", "hog")
            .arguments(["-s", "KILL", &limit, "chrt", "-f", "10", "bash", "-c", HOG, "hog"])
            .arguments([soak, burst, pause]);
        Self((0..count.get()).map(|_| hog.start().expect("the hog starts")).collect())
    }
}

/// A thread bound to each processor that does nothing but look at the clock: the longest that any
/// of them was kept from it is what this machine, and not a silo, kept a thread waiting.
struct Witness {
    goes_on: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl Witness {
    fn start() -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let allowed = sched_getaffinity(None).expect("a thread may ask where it may run");
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let threads = cpus.map(|cpu| {
            let going_on = Arc::clone(&goes_on);
            std::thread::spawn(move || Self::look(cpu, &going_on))
        });
        Self { threads: threads.collect(), goes_on }
    }

    fn look(cpu: usize, goes_on: &AtomicBool) -> Duration {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).expect("a thread may be bound to where it may run");
        let (mut looked, mut longest) = (Instant::now(), Duration::ZERO);
        while goes_on.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_PERIOD);
            let now = Instant::now();
            longest = longest.max(now - looked);
            looked = now;
        }
        longest
    }

    /// The longest that any of them waited.
    fn end(self) -> Duration {
        self.goes_on.store(false, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(|thread| thread.join().expect("it only looks"));
        ended.max().expect("there is a processor")
    }
}

/// The longest that each shard of a silo stood still.
struct Watch<'a> {
    silo: &'a Silo,
    turns: Vec<(u64, Instant)>,
    longest: Vec<Duration>,
}

impl<'a> Watch<'a> {
    fn new(silo: &'a Silo, now: Instant) -> Self {
        let turns = turns(silo).into_iter().map(|turns| (turns, now)).collect();
        Self { silo, turns, longest: vec![Duration::ZERO; usize::from(SHARDS)] }
    }

    fn look(&mut self, now: Instant) {
        for (shard, turns) in turns(self.silo).into_iter().enumerate() {
            let (before, since) = &mut self.turns[shard];
            self.longest[shard] = self.longest[shard].max(now - *since);
            if turns != *before {
                (*before, *since) = (turns, now);
            }
        }
    }
}

/// The turns that each shard's pump has begun.
fn turns(silo: &Silo) -> Vec<u64> {
    let text = silo.metrics_text();
    let value = |line: &str| {
        let value = line.strip_prefix("siloring_shard_turns_total{")?.rsplit_once(' ')?.1;
        Some(value.parse().expect("a counter is a number"))
    };
    text.lines().filter_map(value).collect()
}

fn pair(folder: &tempfile::TempDir, name: &str) -> [Silo; 2] {
    let store = format!("sqlite:{}", folder.path().join("cluster.db").display());
    siloring::migrate(&store).expect("the tables can be made");
    let cluster = format!("{name}-{}", std::process::id());
    ["ann", "bob"].map(|silo| {
        let builder = Silo::builder().cluster(&cluster).name(silo).store(&store);
        builder.shards(SHARDS).host::<Counter>().start().expect("the silo starts")
    })
}

/// Calls from every shard, until told to rest; counts those that were handled.
fn begin_calls(silo: &Silo, goes_on: &Arc<AtomicBool>, handled: &Arc<AtomicU64>) {
    for caller in 0..u64::from(SHARDS) * CALLERS {
        let (handle, goes_on, handled) = (silo.handle(), Arc::clone(goes_on), Arc::clone(handled));
        let shard = ShardIndex(u16::try_from(caller % u64::from(SHARDS)).expect("few shards"));
        let begun = silo.handle().spawn_on(shard, move || async move {
            for key in (0..KEYS).cycle().skip(usize::try_from(caller * 7).expect("few callers")) {
                if !goes_on.load(Ordering::Relaxed) {
                    return;
                }
                let ended = handle.grain::<Counter>(format!("key-{key}")).add().await;
                handled.fetch_add(u64::from(ended.is_ok()), Ordering::Relaxed);
            }
        });
        begun.expect("the shard takes the callers");
    }
}

/// Lets the hogs have their time: no shard of any silo stands still meanwhile.
fn soak(silos: &[Silo]) {
    let witness = Witness::start();
    let mut hogs = Hogs::start();
    for hog in &hogs.0 {
        hog.wait_for_line(Duration::from_secs(10), |line| line == "up").expect("the hog runs");
    }
    let mut watches: Vec<_> = silos.iter().map(|silo| Watch::new(silo, Instant::now())).collect();
    while hogs.0.iter_mut().any(|hog| !hog.has_ended()) {
        std::thread::sleep(LOOK_PERIOD);
        for watch in &mut watches {
            watch.look(Instant::now());
        }
    }
    let waited = witness.end();
    assert!(waited >= BURST / 2, "the hog took no processor: {waited:?}");
    let longest: Vec<_> = watches.into_iter().flat_map(|watch| watch.longest).collect();
    let bound = STANDSTILL_MAX.max(waited + BURST + PAUSE);
    let has_moved = longest.iter().all(|longest| *longest < bound);
    assert!(has_moved, "a shard stood still: {longest:?}, where other threads waited {waited:?}");
}

#[test]
fn no_shard_stands_still_for_a_second_under_load_and_a_real_time_hog() {
    const NAME: &str = "no_shard_stands_still_for_a_second_under_load_and_a_real_time_hog";
    if let Some(obstacle) = Hogs::obstacle() {
        return skip(NAME, &obstacle);
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let silos = pair(&folder, "starved");
    let (goes_on, handled) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    for silo in &silos {
        begin_calls(silo, &goes_on, &handled);
    }
    soak(&silos);
    goes_on.store(false, Ordering::Relaxed);
    let handled = handled.load(Ordering::Relaxed);
    assert!(handled > 10_000, "the load was no load: {handled} calls");
}

#[test]
fn no_idle_shard_stands_still_for_a_second_under_a_real_time_hog() {
    const NAME: &str = "no_idle_shard_stands_still_for_a_second_under_a_real_time_hog";
    if let Some(obstacle) = Hogs::obstacle() {
        return skip(NAME, &obstacle);
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let silos = pair(&folder, "starved-idle");
    soak(&silos);
}
