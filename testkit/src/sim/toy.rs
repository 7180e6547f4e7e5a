//! Tests of the world with a toy program: two processes that count bytes to each other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::ports::store::{
    Store, StoreAnswer, StoreError, StoreRequest, StoreResult, Table,
};
use siloring_core::{ClusterId, Moment};

use super::network::{EndId, Ending, Path};
use super::world::{
    Context, Files, HostId, Input, Life, Part, ProcessId, Program, World, WorldSettings,
};

/// What a counter saw; shared with the test.
#[derive(Debug, Default)]
struct Seen {
    received: u64,
    connected: u64,
    endings: Vec<(Moment, Ending)>,
    turned_away: u32,
    refused: u64,
    woken_late_by: Duration,
    stored: Vec<StoreResult>,
}

/// Sends counting bytes over a connection, checks that what comes counts too, and dials again.
struct Counter {
    peer: Option<String>,
    seen: Rc<RefCell<Seen>>,
    dialed: Option<EndId>,
    up: bool,
    ends: BTreeMap<EndId, (u8, u8)>,
    next: Moment,
    redial_at: Moment,
}

const PERIOD: Duration = Duration::from_millis(5);
const REDIAL: Duration = Duration::from_millis(50);

impl Counter {
    fn boxed(peer: Option<&str>) -> (Box<dyn Program>, Rc<RefCell<Seen>>) {
        let seen = Rc::default();
        let counter = Self {
            peer: peer.map(str::to_owned),
            seen: Rc::clone(&seen),
            dialed: None,
            up: false,
            ends: BTreeMap::new(),
            next: Moment::ZERO,
            redial_at: Moment::ZERO,
        };
        (Box::new(counter), seen)
    }

    fn input(&mut self, input: Input, context: &mut Context<'_>) {
        match input {
            Input::Accepted { end } => drop(self.ends.insert(end, (0, 0))),
            Input::Connected { end } => {
                self.up = true;
                self.seen.borrow_mut().connected += 1;
                self.ends.insert(end, (0, 0));
                context.submit(7, StoreRequest::ReadTable);
            }
            Input::DialFailed { .. } => {
                self.seen.borrow_mut().refused += 1;
                self.lost(context);
            }
            Input::Readable { end } => self.read(end, context),
            Input::Writable { .. } => {}
            Input::Closed { end, ending } => {
                self.ends.remove(&end);
                self.seen.borrow_mut().endings.push((context.world_now(), ending));
                if self.dialed == Some(end) {
                    self.lost(context);
                }
            }
            Input::Store { ticket, result } => {
                assert_eq!(ticket, 7);
                self.seen.borrow_mut().stored.push(result);
            }
            Input::TurnedAway => self.seen.borrow_mut().turned_away += 1,
            Input::Hint(_) => unreachable!("it does not listen"),
            Input::Drain => context.exit(0),
        }
    }

    fn lost(&mut self, context: &Context<'_>) {
        self.dialed = None;
        self.up = false;
        self.redial_at = context.now() + REDIAL;
    }

    fn read(&mut self, end: EndId, context: &mut Context<'_>) {
        let mut space = [0; 64];
        loop {
            let count = context.read(end, &mut space);
            if count == 0 {
                return;
            }
            let Some((expected, _)) = self.ends.get_mut(&end) else {
                continue;
            };
            for byte in &space[..count] {
                assert_eq!(byte, expected, "bytes keep their order and none is lost or doubled");
                *expected = expected.wrapping_add(1);
            }
            self.seen.borrow_mut().received += count as u64;
        }
    }

    fn write(&mut self, context: &mut Context<'_>) {
        for (end, (_, next)) in &mut self.ends {
            let bytes: Vec<u8> = (0..20).map(|step| next.wrapping_add(step)).collect();
            let taken = context.write(*end, &bytes);
            *next = next.wrapping_add(u8::try_from(taken).unwrap());
        }
    }
}

impl Program for Counter {
    fn run(&mut self, _part: Part, context: &mut Context<'_>) -> Moment {
        while let Some(input) = context.next_input() {
            self.input(input, context);
        }
        let now = context.now();
        if let (Some(peer), None, true) = (&self.peer, self.dialed, now >= self.redial_at) {
            self.dialed = Some(context.dial(peer));
        }
        if now >= self.next {
            if self.next > Moment::ZERO {
                let late = &mut self.seen.borrow_mut().woken_late_by;
                *late = (*late).max(now.since(self.next));
            }
            self.write(context);
            self.next = now + PERIOD;
        }
        self.next
    }
}

/// A store that answers the same table to whoever asks.
#[derive(Debug)]
struct FixedStore(ClusterId);

impl Store for FixedStore {
    fn cluster(&self) -> &ClusterId {
        &self.0
    }

    fn execute(&mut self, _request: &StoreRequest) -> StoreResult {
        Ok(StoreAnswer::Table(Table::default()))
    }
}

struct Pair {
    world: World,
    hosts: [HostId; 2],
    processes: [ProcessId; 2],
    seen: [Rc<RefCell<Seen>>; 2],
}

impl Pair {
    fn new(seed: u64) -> Self {
        let store = Box::new(FixedStore(ClusterId::new("toy").unwrap()));
        let mut world = World::new(WorldSettings::new(seed), store, None);
        let hosts = [world.add_host(), world.add_host()];
        let (listener, heard) = Counter::boxed(None);
        let (dialer, said) = Counter::boxed(Some(world.address(hosts[0])));
        let processes = [world.start(hosts[0], 1, listener), world.start(hosts[1], 1, dialer)];
        Self { world, hosts, processes, seen: [heard, said] }
    }

    fn run(&mut self, seconds: u64) {
        let until = self.world.now() + Duration::from_secs(seconds);
        self.world.run_until(until);
    }

    fn path(&mut self, from: usize, to: usize, path: Path) {
        self.world.core().set_path(self.hosts[from], self.hosts[to], path);
    }

    fn received(&self, by: usize) -> u64 {
        self.seen[by].borrow().received
    }

    fn endings(&self, of: usize) -> Vec<(Moment, Ending)> {
        self.seen[of].borrow().endings.clone()
    }
}

const DROPPED: Path =
    Path { dropped: true, refused: false, delay: Duration::ZERO, lost_per_mille: 0 };

#[test]
fn bytes_arrive_in_order_both_ways() {
    let mut pair = Pair::new(1);
    pair.run(10);
    assert!(pair.received(0) > 39_000, "20 bytes each 5 ms: {}", pair.received(0));
    assert!(pair.received(1) > 39_000, "{}", pair.received(1));
    assert_eq!(pair.seen[1].borrow().connected, 1);
}

#[test]
fn one_seed_has_one_trace_and_another_seed_another() {
    let run = |seed| {
        let mut pair = Pair::new(seed);
        pair.run(3);
        pair.world.pause(pair.processes[0]);
        pair.run(1);
        pair.world.resume(pair.processes[0]);
        pair.path(0, 1, Path { lost_per_mille: 100, ..Path::default() });
        pair.run(3);
        pair.world.core().cut_between(pair.hosts[0], pair.hosts[1]);
        pair.run(1);
        (pair.world.trace_hash(), pair.world.trace_count(), pair.received(0))
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}

#[test]
fn a_silent_path_holds_bytes_back_and_heals() {
    let mut pair = Pair::new(2);
    pair.run(1);
    pair.path(1, 0, DROPPED);
    let (before, back) = (pair.received(0), pair.received(1));
    pair.run(3);
    assert!(pair.received(0) <= before, "nothing crosses a path that drops");
    assert!(pair.received(1) > back, "the other way is open");
    pair.path(1, 0, Path::default());
    pair.run(3);
    assert!(pair.received(0) > before + 15_000, "what was held back arrives");
    assert_eq!(pair.seen[1].borrow().connected, 1, "three seconds break no connection");
}

#[test]
fn a_path_that_stays_silent_breaks_both_ends_when_the_time_out_has_passed() {
    for both_ways in [true, false] {
        let mut pair = Pair::new(3);
        pair.run(1);
        pair.path(1, 0, DROPPED);
        if both_ways {
            pair.path(0, 1, DROPPED);
        }
        pair.run(8);
        for side in [0, 1] {
            let (at, ending) = pair.endings(side)[0];
            let after = at.since(Moment::ZERO + Duration::from_secs(1));
            assert!(after >= Duration::from_secs(5), "{after:?}");
            assert!(after < Duration::from_millis(5_100), "{after:?}");
            assert!(!both_ways || ending == Ending::TimedOut, "no reset crosses: {ending:?}");
        }
        pair.path(1, 0, Path::default());
        pair.path(0, 1, Path::default());
        pair.run(5);
        assert!(pair.seen[1].borrow().connected >= 2, "dialed again");
    }
}

#[test]
fn what_is_sent_again_after_a_silence_finds_out_that_the_peer_is_gone() {
    let mut pair = Pair::new(3);
    pair.run(1);
    pair.path(1, 0, DROPPED);
    pair.path(0, 1, DROPPED);
    pair.run(1);
    // It writes nothing new, and the reset of the killed one is lost.
    pair.world.pause(pair.processes[0]);
    pair.world.kill(pair.processes[1]);
    pair.run(1);
    pair.path(1, 0, Path::default());
    pair.path(0, 1, Path::default());
    pair.run(1);
    let resumed = pair.world.now();
    pair.world.resume(pair.processes[0]);
    pair.run(1);
    let [(at, Ending::Reset)] = pair.endings(0)[..] else { panic!("{:?}", pair.endings(0)) };
    // Sooner than the answer to what it writes now.
    assert!(at.since(resumed) < Duration::from_micros(100), "{:?}", at.since(resumed));
}

#[test]
fn a_reset_ends_both_sides_and_a_refused_dial_says_so() {
    let mut pair = Pair::new(4);
    pair.run(1);
    pair.path(1, 0, Path { refused: true, ..Path::default() });
    pair.world.core().cut_between(pair.hosts[0], pair.hosts[1]);
    pair.run(1);
    assert_eq!(pair.endings(1).len(), 1);
    assert_eq!(pair.endings(0).len(), 1);
    let refused = pair.seen[1].borrow().refused;
    assert!((15..=20).contains(&refused), "a dial each 50 ms and a round trip: {refused}");
    pair.path(1, 0, Path::default());
    pair.run(1);
    assert_eq!(pair.seen[1].borrow().connected, 2);
}

#[test]
fn a_killed_process_is_noticed_at_once_and_a_vanished_one_is_not() {
    for vanish in [false, true] {
        let mut pair = Pair::new(5);
        pair.run(1);
        if vanish {
            pair.world.vanish(pair.processes[0]);
        } else {
            pair.world.kill(pair.processes[0]);
        }
        assert_eq!(pair.world.life(pair.processes[0]), Life::Killed);
        pair.run(1);
        let told = pair.endings(1).first().map(|(at, _)| *at);
        // The survivor's next bytes meet no process: the machine resets them if it is there.
        let at = told.expect("the peer hears").since(Moment::ZERO + Duration::from_secs(1));
        assert!(at < Duration::from_millis(20), "{at:?}");
        let (listener, heard) = Counter::boxed(None);
        pair.world.start(pair.hosts[0], 1, listener);
        pair.run(1);
        assert!(heard.borrow().received > 3_000, "a new process takes the address");
    }
}

#[test]
fn a_paused_process_reads_nothing_and_its_clock_goes_on() {
    let mut pair = Pair::new(6);
    pair.run(1);
    pair.world.pause(pair.processes[0]);
    let before = pair.received(0);
    pair.run(4);
    assert_eq!(pair.received(0), before);
    pair.world.resume(pair.processes[0]);
    pair.run(1);
    assert!(pair.received(0) > before + 18_000, "the kernel had kept it");
    let late = pair.seen[0].borrow().woken_late_by;
    assert!(late >= Duration::from_millis(3_990), "{late:?}");
}

#[test]
fn a_clock_may_jump_and_a_slow_process_runs_late() {
    let mut pair = Pair::new(7);
    pair.run(1);
    pair.world.slow(pair.processes[1], Duration::from_millis(40));
    pair.run(2);
    assert!(pair.seen[1].borrow().woken_late_by >= Duration::from_millis(30));
    pair.world.slow(pair.processes[1], Duration::ZERO);
    pair.world.jump(pair.processes[0], Duration::from_hours(1));
    pair.run(1);
    assert!(pair.seen[0].borrow().woken_late_by >= Duration::from_secs(3599));
}

#[test]
fn a_store_that_is_down_hangs_or_loses_answers_says_which() {
    let mut pair = Pair::new(8);
    pair.run(1);
    let stored = |pair: &Pair| pair.seen[1].borrow().stored.clone();
    assert!(matches!(stored(&pair)[..], [Ok(_)]));
    let reconnect = |pair: &mut Pair, seconds| {
        pair.world.core().cut_between(pair.hosts[0], pair.hosts[1]);
        pair.run(seconds);
    };
    pair.world.core().store.faults.down = true;
    reconnect(&mut pair, 1);
    pair.world.core().store.faults.down = false;
    pair.world.core().store.faults.lost_per_mille = 1000;
    reconnect(&mut pair, 1);
    pair.world.core().store.faults.lost_per_mille = 0;
    pair.world.core().store.faults.hangs = true;
    reconnect(&mut pair, 9);
    assert_eq!(stored(&pair).len(), 3, "a request that hangs is given up after ten seconds");
    pair.run(2);
    let name = |result: &StoreResult| match result {
        Ok(_) => "done",
        Err(StoreError::NotSent { .. }) => "not sent",
        Err(_) => "unknown",
    };
    let names: Vec<_> = stored(&pair).iter().map(name).collect();
    assert_eq!(names, ["done", "not sent", "unknown", "unknown"]);
    assert_eq!(pair.world.core().store.counts(), (3, 1));
}

#[test]
fn a_process_that_leaves_closes_in_order() {
    let mut pair = Pair::new(9);
    pair.run(1);
    pair.world.drain(pair.processes[0]);
    pair.run(1);
    assert_eq!(pair.world.life(pair.processes[0]), Life::Exited(0));
    assert_eq!(pair.endings(1).len(), 1);
}

#[test]
fn a_torn_connection_ends_in_the_middle_of_a_write() {
    let mut pair = Pair::new(10);
    pair.run(1);
    pair.world.core().tear_between(pair.hosts[0], pair.hosts[1]);
    pair.run(1);
    assert_eq!(pair.world.core_ref().torn_count, 1, "one end of the connection writes first");
    assert!(!pair.world.bytes_written().is_multiple_of(20), "a write of 20 bytes was cut");
    assert_eq!((pair.endings(0).len(), pair.endings(1).len()), (1, 1));
    assert_eq!(pair.seen[1].borrow().connected, 2, "a new connection is whole");
    pair.world.core().tear_between(pair.hosts[0], pair.hosts[1]);
    pair.world.core().end_tears();
    pair.run(1);
    assert_eq!(pair.world.core_ref().torn_count, 1, "what has not torn by then does not");
}

#[test]
fn a_forgotten_connection_passes_nothing_and_a_new_one_does() {
    let mut pair = Pair::new(11);
    pair.run(1);
    pair.world.core().forget_between(pair.hosts[0], pair.hosts[1]);
    let before = pair.received(0);
    pair.run(4);
    assert!(pair.received(0) <= before + 20 && pair.endings(1).is_empty(), "nobody is told");
    pair.run(3);
    assert!(pair.endings(1).iter().any(|(_, ending)| *ending == Ending::TimedOut));
    assert!(pair.received(0) > before + 3_000, "the next connection passes");
}

#[test]
fn a_process_without_descriptors_turns_everybody_away_and_dials_nobody() {
    let mut pair = Pair::new(12);
    pair.world.set_files(pair.processes[0], Files::None);
    pair.run(1);
    assert!(pair.seen[0].borrow().turned_away > 10);
    assert!(pair.seen[1].borrow().connected > 10, "its kernel has accepted");
    assert!(pair.endings(1).iter().all(|(_, ending)| *ending == Ending::Finished));
    pair.world.set_files(pair.processes[0], Files::Enough);
    pair.world.set_files(pair.processes[1], Files::None);
    pair.run(1);
    let (connected, refused) = (pair.seen[1].borrow().connected, pair.seen[1].borrow().refused);
    assert!(refused > 10);
    pair.world.set_files(pair.processes[1], Files::Enough);
    pair.run(1);
    assert_eq!(pair.seen[1].borrow().connected, connected + 1, "it is over");
}

#[test]
fn a_late_timer_is_late_by_its_bound_at_most() {
    let mut pair = Pair::new(13);
    pair.run(1);
    // Nothing but its timers wakes it.
    pair.path(1, 0, Path { refused: true, ..Path::default() });
    pair.world.core().cut_between(pair.hosts[0], pair.hosts[1]);
    pair.world.delay_timers(pair.processes[1], Duration::from_secs(5));
    pair.run(60);
    let late = pair.seen[1].borrow().woken_late_by;
    assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&late), "{late:?}");
    assert_eq!(pair.world.undisturbed_since(pair.processes[1]), None);
}

#[test]
fn a_reset_connection_to_the_store_answers_each_open_request_once() {
    let mut pair = Pair::new(14);
    pair.run(1);
    pair.world.core().store.faults.delay = Duration::from_secs(2);
    pair.world.core().cut_between(pair.hosts[0], pair.hosts[1]);
    pair.run(1);
    pair.world.core().reset_store(pair.processes[1]);
    pair.run(9);
    let stored = pair.seen[1].borrow().stored.clone();
    assert!(matches!(stored[..], [Ok(_), Err(StoreError::Unavailable { .. })]), "{stored:?}");
}

/// The toy's bytes count on over a connection: what arrived of the old one and was not the next
/// would be noticed by its reader.
#[test]
fn what_a_broken_connection_held_back_never_arrives() {
    let mut pair = Pair::new(15);
    pair.run(1);
    pair.path(1, 0, DROPPED);
    let before = pair.received(0);
    pair.run(6);
    assert!(pair.endings(1).iter().any(|(_, ending)| *ending == Ending::TimedOut));
    pair.path(1, 0, Path::default());
    pair.run(1);
    let each_5_ms = 20 * 200;
    assert!(pair.received(0) < before + 2 * each_5_ms, "five seconds of bytes are gone");
}
