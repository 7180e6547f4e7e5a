//! Silos that are stopped, frozen, killed, aborted, starved, or moved in time, under load.

use std::time::Duration;

use siloring_testkit::process::is_long;
use siloring_testkit::process::journal::now;

use crate::run::{
    AWAKENING_TIME_MAX, DEAD, DETECTION_TIME_MAX, DRAIN_TIME_MAX, Run, Silo, go_on, until,
};

/// How long what is undisturbed runs between two faults.
const CALM: Duration = Duration::from_secs(2);
const HOUR_MS: u64 = 3_600_000;
/// A silo that cannot start says so by then.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a silo sleeps: long enough to be dead, and then some.
fn sleep_time() -> Duration {
    if is_long() { Duration::from_secs(30) } else { Duration::from_secs(10) }
}

/// M4: `bob` sleeps under load until others have taken over, and is woken.
fn sleeps(run: &mut Run, begin: impl FnOnce(&Silo), end: impl FnOnce(&Silo)) {
    run.load_all();
    go_on(CALM);
    let from = now();
    begin(&run.silos[1]);
    run.await_death(1);
    go_on(sleep_time().saturating_sub(now().since(from)));
    let woken = now();
    end(&run.silos[1]);
    run.silos[1].was_away(from);
    run.fault("asleep");
    let code = run.silos[1].wait_exit(AWAKENING_TIME_MAX);
    assert_eq!(code, Some(DEAD), "it learns that it is Dead");
    go_on(CALM);
    let accepted = run.accepted_by_others(1, woken);
    assert!(accepted.is_empty(), "a peer took what the sleeper sent: {accepted:?}");
}

fn three(name: &'static str) -> Run {
    let mut run = Run::new(name);
    for silo in ["ann", "bob", "carl"] {
        run.start(silo);
    }
    run
}

/// M4, FAULTS 6.
#[test]
fn nothing_that_a_stopped_silo_had_under_way_counts_once_it_is_woken() {
    let mut run = three("stopped");
    sleeps(&mut run, Silo::pause, Silo::resume);
    run.end();
}

/// FAULTS 53: the machine of one silo was suspended for an hour, as its clock shows.
#[test]
fn a_silo_whose_clock_jumps_an_hour_fences_itself_until_it_has_read_its_row() {
    let mut run = three("jumped");
    run.load_all();
    go_on(CALM);
    for jump in 1..=3 {
        run.silos[1].get(&format!("jump {HOUR_MS}"));
        until("it fences itself", AWAKENING_TIME_MAX, || run.silos[1].lines(" Fenced ") >= jump);
        until("and serves again", AWAKENING_TIME_MAX, || run.silos[1].lines("Unfenced") >= jump);
        run.fault("hour jumped");
        go_on(CALM);
    }
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

/// FAULTS 4 and 5: one silo leaves in order, another is killed while it does.
#[test]
fn a_silo_that_leaves_and_one_that_is_killed_while_it_leaves_cost_no_outcome() {
    let mut run = three("leaving");
    run.start("dora");
    run.load_all();
    go_on(CALM);
    run.silos[3].process.terminate().expect("it runs");
    assert_eq!(run.silos[3].wait_exit(DRAIN_TIME_MAX), Some(0), "it leaves in order");
    run.fault("drained");
    run.silos[1].process.terminate().expect("it runs");
    let leaves = |line: &str| line.contains("DrainStarted");
    run.silos[1].process.wait_for_log(DETECTION_TIME_MAX, leaves).expect("it says so");
    run.silos[1].kill();
    run.fault("killed in its drain");
    run.await_death(1);
    run.silos[2].kill();
    run.fault("killed");
    run.await_death(2);
    let restarted = run.start("carl");
    run.load(restarted);
    go_on(CALM);
    run.end();
}

/// FAULTS 16.
#[test]
fn a_second_silo_of_a_living_ones_name_is_refused_and_the_first_goes_on() {
    let mut run = three("name-taken");
    run.load_all();
    let program = run.program("ann");
    let mut second = program.start().expect("it starts");
    let status = second.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(1));
    let (log, address) = (second.log_text(), run.silos[0].address.clone());
    let names = format!("the name ann is taken by a running silo at {address}");
    assert!(log.contains(&names), "{log}");
    run.fault("name taken");
    go_on(CALM);
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

mod long {
    //! What takes its place in `cargo xtask prove`.

    use std::time::{Duration, Instant};

    use siloring_testkit::process::journal::now;
    use siloring_testkit::process::{Cgroup, Controller, Stream, WallClock, skip};

    use super::{CALM, sleeps, three};
    use crate::run::{DETECTION_TIME_MAX, JOIN_TIME_MAX, Run, Silo, go_on, until};

    const HOUR_S: i64 = 3_600;

    /// M4, FAULTS 6, by the freezer: no signal is seen.
    #[test]
    fn nothing_that_a_frozen_silo_had_under_way_counts_once_it_is_thawed() {
        const NAME: &str = "nothing_that_a_frozen_silo_had_under_way_counts_once_it_is_thawed";
        if let Some(obstacle) = Controller::Freezer.obstacle() {
            return skip(NAME, &obstacle);
        }
        let mut run = three("frozen");
        let group = Cgroup::of(Controller::Freezer, &run.silos[1].process).expect("a group");
        let freeze = |_: &Silo| {
            group.freeze().expect("it freezes");
            assert_eq!(group.read("freezer.state").expect("a state").trim(), "FROZEN");
        };
        sleeps(&mut run, freeze, |_| group.thaw().expect("it thaws"));
        drop(group);
        run.end();
    }

    /// FAULTS 51.
    #[test]
    fn nobody_notices_that_a_silos_wall_clock_jumps_an_hour() {
        const NAME: &str = "nobody_notices_that_a_silos_wall_clock_jumps_an_hour";
        let Some(clock) = WallClock::find() else {
            return skip(NAME, "libfaketime is not installed");
        };
        let mut run = Run::new("wall-clock");
        run.start("ann");
        run.start_as("bob", |program| clock.worn_by(program));
        run.load_all();
        for (ahead_s, newcomer) in [(HOUR_S, "carl"), (-HOUR_S, "dora")] {
            clock.jump_to(ahead_s).expect("the clock's file can be written");
            go_on(CALM);
            let silo = run.start(newcomer);
            run.load(silo);
            // Its log shows the jump: both tell of the newcomer at once.
            until("both have seen it", JOIN_TIME_MAX, || {
                let [ann, bob] =
                    [0, 1].map(|silo| hour_of_last_view(&run.silos[silo], &silo_count(&run)));
                ann.is_some() && bob.is_some() && ann != bob
            });
            run.fault("wall clock an hour off");
            go_on(CALM);
        }
        clock.jump_to(0).expect("the clock's file can be written");
        assert_eq!(run.deaths(), 0, "nobody is dead");
        let fenced: usize = run.silos.iter().map(|silo| silo.lines(" Fenced ")).sum();
        assert_eq!(fenced, 0, "and nobody fenced itself");
        run.end();
    }

    fn silo_count(run: &Run) -> String {
        format!("active_count={}", run.silos.len())
    }

    /// The date and hour of a line about a view of so many silos.
    fn hour_of_last_view(silo: &Silo, count: &str) -> Option<String> {
        let lines = silo.process.line_times(Stream::Error, "ViewChanged");
        let line = lines.into_iter().rev().find(|(_, line)| line.ends_with(count));
        line.and_then(|(_, line)| line.get(.."2026-01-01T00".len()).map(str::to_owned))
    }

    /// FAULTS 7.
    #[test]
    fn a_turn_that_keeps_its_thread_for_seconds_kills_nobody() {
        let mut run = three("hogged");
        run.load_all();
        go_on(CALM);
        let from = now();
        let hog = run.silos[1].ask("hog 5000");
        let names_it =
            |line: &str| line.contains("ShardStalled") && line.contains("chaos.nuisance");
        run.silos[1]
            .process
            .wait_for_log(DETECTION_TIME_MAX, names_it)
            .expect("its grain is named");
        run.fault("hogged");
        assert_eq!(run.silos[1].answer(hog)["outcome"], "handled");
        run.silos[1].was_away(from);
        go_on(CALM);
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.end();
    }

    /// FAULTS 9 and 10: the process ends in the middle of whatever it does.
    #[test]
    fn a_silo_that_aborts_is_dead_and_costs_no_outcome() {
        let mut run = three("aborted");
        run.load_all();
        go_on(CALM);
        run.silos[1].ask("abort");
        assert_eq!(run.silos[1].wait_exit(DETECTION_TIME_MAX), None, "by a signal");
        run.fault("aborted");
        run.await_death(1);
        go_on(CALM);
        run.end();
    }

    /// FAULTS 10 and 84: the kernel ends it for want of memory.
    #[test]
    fn a_silo_that_the_kernel_ends_for_want_of_memory_costs_no_outcome() {
        const NAME: &str = "a_silo_that_the_kernel_ends_for_want_of_memory_costs_no_outcome";
        if let Some(obstacle) = Controller::Memory.obstacle() {
            return skip(NAME, &obstacle);
        }
        let mut run = three("out-of-memory");
        run.load_all();
        go_on(CALM);
        let group = Cgroup::of(Controller::Memory, &run.silos[1].process).expect("a group");
        // What it holds already is charged elsewhere: it may have this much more.
        group.set("memory.limit_in_bytes", "1M").expect("a limit");
        run.silos[1].ask("fan 40000");
        let code = run.silos[1].wait_exit(JOIN_TIME_MAX);
        assert_eq!(code, None, "by a signal");
        let ended = group.number("memory.failcnt", "").expect("a count");
        assert!(ended > 0, "its limit was reached");
        run.fault("out of memory");
        run.await_death(1);
        go_on(CALM);
        drop(group);
        run.end();
    }

    /// FAULTS 13.
    #[test]
    fn a_silo_that_crashes_again_and_again_disturbs_nobody() {
        const CRASHES: usize = 6;
        let mut run = three("crash-loop");
        run.load_all();
        let before = run.silos[0].lines("ViewChanged");
        let began = Instant::now();
        let (mut last, bind) = (1, run.silos[1].address.clone());
        for _ in 0..CRASHES {
            run.silos[last].kill();
            run.fault("crashed");
            last = run.start_as("bob", |program| program.arguments(["--bind", &bind]));
            run.load(last);
        }
        let (views, took) = (run.silos[0].lines("ViewChanged") - before, began.elapsed());
        // Joining and Active of the new one, Dead of the old one.
        assert!(views <= 4 * CRASHES, "{views} views for {CRASHES} crashes in {took:?}");
        go_on(CALM);
        run.end();
    }

    /// FAULTS 11, M9: nobody is left to tell; the first newcomer finds out.
    #[test]
    fn a_newcomer_joins_after_all_were_killed_and_finds_what_was_stored() {
        let mut run = three("all-killed");
        run.load_all();
        go_on(CALM);
        for silo in run.living() {
            run.silos[silo].kill();
            run.fault("killed");
        }
        let began = Instant::now();
        let silo = run.start("dora");
        assert!(began.elapsed() < JOIN_TIME_MAX);
        run.load(silo);
        go_on(CALM);
        run.end();
    }

    /// FAULTS 88.
    #[test]
    fn a_silo_with_a_tenth_of_a_processor_is_slow_and_not_dead() {
        const NAME: &str = "a_silo_with_a_tenth_of_a_processor_is_slow_and_not_dead";
        if let Some(obstacle) = Controller::Cpu.obstacle() {
            return skip(NAME, &obstacle);
        }
        let mut run = three("starved");
        run.load_all();
        let group = Cgroup::of(Controller::Cpu, &run.silos[1].process).expect("a group");
        let from = now();
        group.starve(10).expect("a quota");
        run.silos[1].get("load 2 8");
        go_on(Duration::from_secs(20));
        let throttled = group.number("cpu.stat", "nr_throttled ").expect("a count");
        assert!(throttled > 20, "it was throttled {throttled} times");
        group.feed().expect("no quota");
        run.silos[1].get("rest");
        run.silos[1].was_away(from);
        run.fault("a tenth of a processor");
        assert_eq!(run.deaths(), 0, "nobody is dead");
        go_on(CALM);
        drop(group);
        run.end();
    }
}
