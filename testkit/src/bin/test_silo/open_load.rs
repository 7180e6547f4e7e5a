//! An open load: requests leave at their times, whatever became of those before them.
//!
//! | verb | does | answers |
//! |---|---|---|
//! | `settle_burners` | makes the burners live here | how many |
//! | `capacity MICROS CALLERS MS` | callers that wait for each answer | handled a second |
//! | `open MICROS PER_SECOND MS` | calls at random times | what became of them |
//!
//! A burner's turn keeps its thread for so many microseconds. Each call's time counts from when it
//! was meant to leave, so that a load that comes late itself hides nothing (Tene, "coordinated
//! omission").

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use siloring::prelude::*;
use siloring::{ShardIndex, SiloBuilder};

use super::{Desk, block_on, millis, number};

/// Grains that are called, each in turn: so many that none waits for itself.
const BURNERS: u64 = 256;
/// What of a load has no outcome after this is told as open.
const TAIL_MAX: Duration = Duration::from_secs(20);
const LOOK_PERIOD: Duration = Duration::from_millis(2);

/// Hosts these grains.
pub(crate) fn host(builder: SiloBuilder) -> SiloBuilder {
    builder.host::<Burner>()
}

/// Does nothing, for a while.
#[derive(Grain, Default)]
#[grain(type = "test.burner", key = u64)]
struct Burner;

#[grain_methods]
impl Burner {
    async fn burn(&self, micros: u64) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(micros) {
            std::hint::spin_loop();
        }
    }
}

/// How the calls of a load ended, in microseconds after they were meant to leave.
#[derive(Default)]
struct Ends {
    handled: Vec<u64>,
    overloaded: Vec<u64>,
    others: u64,
}

impl Ends {
    fn add(&mut self, result: &Result<(), CallError>, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let overloaded = DeliveryFailure::rejected(RejectedKind::Overloaded, "").code();
        match result {
            Ok(()) => self.handled.push(micros),
            Err(CallError::Delivery(failure)) if failure.code() == overloaded => {
                self.overloaded.push(micros);
            }
            Err(CallError::Delivery(_) | CallError::Handler(_)) => self.others += 1,
        }
    }

    fn told(&mut self) -> Value {
        json!({
            "handled": self.handled.len(),
            "overloaded": self.overloaded.len(),
            "others": self.others,
            "handled_us": percentiles(&mut self.handled),
            "overloaded_us": percentiles(&mut self.overloaded),
        })
    }
}

/// The 50th and the 99th, and the highest.
fn percentiles(times: &mut [u64]) -> [u64; 3] {
    times.sort_unstable();
    [50, 99, 100].map(|percent| {
        let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(at).copied().unwrap_or(0)
    })
}

/// What the calls of one load share.
#[derive(Default)]
struct Tracked {
    /// Guards what has ended: written by the shard's futures, read by the generator.
    ends: Mutex<Ends>,
    open: AtomicU64,
}

impl Desk {
    /// Obeys a verb of an open load.
    pub(crate) fn answer_of_open_load(self: &Arc<Self>, words: &[&str]) -> Value {
        match words {
            ["settle_burners"] => self.settle_burners(),
            ["capacity", micros, callers, ms] => {
                self.capacity(number(micros), number(callers), millis(ms))
            }
            ["open", micros, per_second, ms] => {
                self.open_load(number(micros), number(per_second), millis(ms))
            }
            others => self.answer_of_chaos(others),
        }
    }

    fn settle_burners(&self) -> Value {
        let settled = (0..BURNERS)
            .filter(|key| block_on(self.handle.grain::<Burner>(*key).burn(0)).is_ok())
            .count();
        json!({ "value": settled })
    }

    /// How many calls a second are handled if so many callers wait for each answer.
    fn capacity(self: &Arc<Self>, micros: u64, callers: u64, span: Duration) -> Value {
        let handled = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        for caller in 0..callers {
            let (handle, handled) = (self.handle.clone(), Arc::clone(&handled));
            let call = move || async move {
                for key in (0..BURNERS).cycle().skip(usize::try_from(caller).expect("few")) {
                    if began.elapsed() >= span {
                        return;
                    }
                    let ended = handle.grain::<Burner>(key).burn(micros).await;
                    handled.fetch_add(u64::from(ended.is_ok()), Ordering::Relaxed);
                }
            };
            if let Err(failure) = self.handle.spawn_on(ShardIndex(0), call) {
                return json!({ "error": failure.to_string() });
            }
        }
        thread::sleep(span.saturating_sub(began.elapsed()));
        let handled = handled.load(Ordering::Relaxed);
        let per_second = u128::from(handled) * 1_000 / began.elapsed().as_millis().max(1);
        json!({ "value": u64::try_from(per_second).unwrap_or(u64::MAX) })
    }

    /// Calls at random times, independent of each other, on average so many a second.
    fn open_load(self: &Arc<Self>, micros: u64, per_second: u64, span: Duration) -> Value {
        let tracked = Arc::new(Tracked::default());
        let mut random = fastrand::Rng::with_seed(per_second);
        let mean = Duration::from_secs(1) / u32::try_from(per_second).expect("a rate");
        let began = Instant::now();
        let (mut due, mut key) = (began, 0);
        while due < began + span {
            // Late by the timer's slack; it counts, as all that comes after `due` does.
            thread::sleep(due.saturating_duration_since(Instant::now()));
            key = (key + 1) % BURNERS;
            let call = burn(self.handle.clone(), key, micros, due, Arc::clone(&tracked));
            tracked.open.fetch_add(1, Ordering::Relaxed);
            if let Err(failure) = self.handle.spawn_on(ShardIndex(0), move || call) {
                return json!({ "error": failure.to_string() });
            }
            due += mean.mul_f64(-(1.0 - random.f64()).ln());
        }
        let late = Instant::now().saturating_duration_since(due);
        let ended = Instant::now();
        while tracked.open.load(Ordering::Acquire) > 0 && ended.elapsed() < TAIL_MAX {
            thread::sleep(LOOK_PERIOD);
        }
        let mut ends = tracked.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = ends.told();
        told["open"] = tracked.open.load(Ordering::Acquire).into();
        told["late_us"] = u64::try_from(late.as_micros()).unwrap_or(u64::MAX).into();
        told["tail_ms"] = u64::try_from(ended.elapsed().as_millis()).unwrap_or(u64::MAX).into();
        told
    }
}

async fn burn(handle: Handle, key: u64, micros: u64, due: Instant, tracked: Arc<Tracked>) {
    let ended = handle.grain::<Burner>(key).burn(micros).await;
    let time = due.elapsed();
    tracked.ends.lock().unwrap_or_else(PoisonError::into_inner).add(&ended, time);
    tracked.open.fetch_sub(1, Ordering::Release);
}
