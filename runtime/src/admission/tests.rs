//! A shard under open loads, in virtual time: turns take what they take, and so does refusing.
//!
//! The loop here is the pump's: it reads all that has come, takes it in portions, and writes what
//! it has at the latest after its time.

use std::collections::VecDeque;

use siloring_core::limits::OVERLOAD_DELAY;

use super::*;

/// What it costs to refuse one.
const REFUSING: Duration = Duration::from_micros(2);

/// Whether the shard asks before it takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    Yes,
    Never,
}

struct Shard {
    admission: Admission,
    asks: Asks,
    turn: Duration,
    now: Moment,
    random: fastrand::Rng,
    next_arrival: Moment,
    /// When each came that has not been read.
    unread: VecDeque<Moment>,
    /// All that is unread came after this.
    read_at: Moment,
    events: Vec<&'static str>,
}

/// What the senders of one load heard, and after how long.
#[derive(Default)]
struct Heard {
    handled: Vec<Duration>,
    refused: Vec<Duration>,
    waiting_max: usize,
}

impl Heard {
    fn refused_share(&self) -> f64 {
        let all = self.handled.len() + self.refused.len();
        count(self.refused.len()) / count(all)
    }
}

fn count(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

fn p99(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

impl Shard {
    fn new(turn: Duration, asks: Asks) -> Self {
        Self {
            admission: Admission::new(OVERLOAD_DELAY),
            asks,
            turn,
            now: Moment::ZERO + Duration::from_secs(1),
            random: fastrand::Rng::with_seed(7),
            next_arrival: Moment::ZERO,
            unread: VecDeque::new(),
            read_at: Moment::ZERO,
            events: Vec::new(),
        }
    }

    /// Arrivals at random, so many times what the shard can handle.
    fn load(&mut self, times: f64, span: Duration) -> Heard {
        let end = self.now + span;
        self.next_arrival = self.now;
        let mut heard = Heard::default();
        while self.now < end {
            self.arrive(times);
            if self.unread.is_empty() {
                self.now = self.next_arrival;
                self.read_at = self.now;
            } else {
                self.take_what_came(times, &mut heard);
            }
        }
        heard
    }

    fn arrive(&mut self, times: f64) {
        while self.next_arrival <= self.now {
            self.unread.push_back(self.next_arrival);
            let gap = -(1.0 - self.random.f64()).ln() / times;
            self.next_arrival += self.turn.mul_f64(gap);
        }
    }

    fn take_what_came(&mut self, times: f64, heard: &mut Heard) {
        let mut read = core::mem::take(&mut self.unread);
        let came_after = core::mem::replace(&mut self.read_at, self.now);
        heard.waiting_max = heard.waiting_max.max(read.len());
        while !read.is_empty() {
            let began = self.now;
            let (mut handled, mut refused) = (Vec::new(), Vec::new());
            while !read.is_empty() && self.now.since(began) < LOOP_TIME_MAX {
                let looked = self.now;
                let portion = self.admission.turns_per_look().min(read.len());
                for came in read.drain(..portion) {
                    let verdict = self.admission.judge(looked, came_after);
                    if self.asks == Asks::Never || verdict == Verdict::Admit {
                        self.now += self.turn;
                        handled.push(came);
                    } else {
                        self.now += REFUSING;
                        refused.push(came);
                    }
                }
            }
            heard.handled.extend(handled.iter().map(|came| self.now.since(*came)));
            heard.refused.extend(refused.iter().map(|came| self.now.since(*came)));
            self.admission.worked(self.now.since(began));
            self.admission.tick(self.now);
            self.events.extend(self.admission.poll_event().map(|event| event.name()));
            self.arrive(times);
        }
    }
}

/// What a shard owes to those that call it at twice what it can handle.
fn holds(turn: Duration, asks: Asks) -> Result<(), String> {
    let mut shard = Shard::new(turn, asks);
    let below = shard.load(0.8, Duration::from_secs(4));
    let began = shard.load(2.0, Duration::from_secs(1));
    let above = shard.load(2.0, Duration::from_secs(6));
    let settling = shard.load(0.8, Duration::from_secs(1));
    let after = shard.load(0.8, Duration::from_secs(4));
    let fits = |what: &str, fits: bool| fits.then_some(()).ok_or(format!("{turn:?}: {what}"));
    fits("nobody is refused below capacity", below.refused.is_empty())?;
    let [p99_below, p99_above, p99_told] =
        [&below.handled, &above.handled, &above.refused].map(|times| p99(times));
    fits(&format!("{p99_above:?} after {p99_below:?}"), p99_above <= 3 * p99_below)?;
    fits(&format!("told after {p99_told:?}"), p99_told <= 3 * p99_below)?;
    fits("half are refused", (0.45..0.6).contains(&above.refused_share()))?;
    let handled = count(above.handled.len()) * turn.as_secs_f64() / 6.0;
    fits(&format!("{handled} of the capacity is used"), handled > 0.95)?;
    let waiting = above.waiting_max.max(began.waiting_max);
    let most = 4.0 * OVERLOAD_INTERVAL.as_secs_f64() / turn.as_secs_f64();
    fits(&format!("{waiting} wait"), count(waiting) < most + 64.0)?;
    fits("a second later nobody is refused", after.refused.is_empty())?;
    fits("and it is as before", p99(&after.handled) < 2 * p99_below)?;
    fits("it ends", settling.refused_share() < 0.05)?;
    fits(&format!("{:?}", shard.events), shard.events == ["OverloadStarted", "OverloadEnded"])
}

#[test]
fn at_twice_the_capacity_who_is_taken_waits_no_longer_and_the_others_are_told_at_once() {
    for micros in [100, 200, 1_000] {
        let turn = Duration::from_micros(micros);
        holds(turn, Asks::Yes).unwrap();
        let broken = holds(turn, Asks::Never).unwrap_err();
        assert!(broken.contains(" after "), "without it everybody waits for seconds: {broken}");
    }
}

#[test]
fn turns_as_short_as_refusals_leave_the_shard_what_refusing_does_not_take() {
    let mut shard = Shard::new(2 * REFUSING, Asks::Yes);
    drop(shard.load(4.0, Duration::from_secs(1)));
    let above = shard.load(4.0, Duration::from_secs(2));
    // Refusing alone would take twice the time that there is.
    assert!(above.handled.len() > 1_000, "{} were handled", above.handled.len());
    assert!(above.refused.len() > 100_000, "{} were refused", above.refused.len());
}

const MS: Duration = Duration::from_millis(1);

/// Judges one that has waited so long.
fn judged(admission: &mut Admission, now: Moment, waited: Duration) -> Verdict {
    let verdict = admission.judge(Moment::ZERO + now.since(Moment::ZERO) + waited, now);
    admission.worked(Duration::from_micros(10));
    verdict
}

#[test]
fn a_burst_that_is_worked_off_in_time_is_none_of_its_business() {
    let mut admission = Admission::new(OVERLOAD_DELAY);
    let mut now = Moment::ZERO + Duration::from_secs(1);
    for _ in 0..10 {
        for _ in 0..90 {
            now += MS;
            assert_eq!(judged(&mut admission, now, 50 * MS), Verdict::Admit);
        }
        now += MS;
        assert_eq!(judged(&mut admission, now, MS), Verdict::Admit, "the burst is over");
    }
    assert_eq!(admission.poll_event(), None);
}

#[test]
fn late_ones_that_are_far_between_do_not_add_up() {
    let mut admission = Admission::new(OVERLOAD_DELAY);
    for seconds in 1..100 {
        let now = Moment::ZERO + Duration::from_secs(seconds);
        assert_eq!(judged(&mut admission, now, 50 * MS), Verdict::Admit);
    }
    assert_eq!(admission.poll_event(), None);
}

#[test]
fn only_what_is_late_is_refused_and_it_ends_when_little_is() {
    let mut admission = Admission::new(OVERLOAD_DELAY);
    let mut now = Moment::ZERO + Duration::from_secs(1);
    let mut refused = 0;
    for _ in 0..10_000 {
        now += MS / 10;
        refused += u64::from(judged(&mut admission, now, 6 * MS) == Verdict::Refuse);
        assert_eq!(admission.refused_count(), refused);
        admission.tick(now + 6 * MS);
    }
    let event = admission.poll_event();
    assert_eq!(event, Some(Event::OverloadStarted { waited_us: 6_000 }));
    assert!(refused > 8_900, "{refused} were refused");
    assert!(refused < 9_000, "all {refused} were refused: nothing goes on");
    now += 10 * MS;
    assert_eq!(judged(&mut admission, now, 5 * MS), Verdict::Admit, "it is not late");
    while admission.next_deadline() < Moment::NEVER {
        now += MS;
        judged(&mut admission, now, MS);
        admission.tick(now + MS);
    }
    assert_eq!(admission.poll_event(), Some(Event::OverloadEnded { refused_count: refused }));
    assert_eq!(judged(&mut admission, now + MS, 6 * MS), Verdict::Admit, "it begins anew");
}

/// A shard whose own futures are all its work has short turns, however long its loops are.
#[test]
fn what_is_asked_of_others_counts_as_turns_too() {
    let mut admission = Admission::new(OVERLOAD_DELAY);
    for _ in 0..100 {
        admission.stepped(1_000);
        admission.worked(MS);
    }
    assert_eq!(admission.turns_per_loop(), TURNS_PER_LOOP_MAX);
    assert_eq!(admission.delay_max(), OVERLOAD_DELAY);
}

#[test]
fn slow_turns_stretch_what_counts_as_late_up_to_a_bound() {
    let mut admission = Admission::new(OVERLOAD_DELAY);
    assert_eq!(admission.turns_per_look(), TURNS_PER_LOOK_MAX);
    assert_eq!(admission.turns_per_loop(), TURNS_PER_LOOP_MAX);
    let now = Moment::ZERO + Duration::from_secs(1);
    let work = |admission: &mut Admission, turn: Duration| {
        for _ in 0..2 * TURNS_MEANT {
            assert_eq!(admission.judge(now, now), Verdict::Admit);
            admission.worked(turn);
        }
    };
    work(&mut admission, 10 * MS);
    assert_eq!((admission.turns_per_look(), admission.turns_per_loop()), (1, 1));
    let stretched = 10 * MS * u32::try_from(TURNS_AHEAD).unwrap();
    assert!(admission.delay_max() > stretched / 2 && admission.delay_max() <= stretched);
    work(&mut admission, 1_000 * MS);
    assert_eq!(admission.delay_max(), OVERLOAD_DELAY_MAX);
}
