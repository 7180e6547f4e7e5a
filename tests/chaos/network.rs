//! Networks that lose, cut, reset, delay and slice, under load.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use siloring_testkit::process::{Bridge, Cut, Mode, Proxy, skip};

use crate::run::{DEAD, DETECTION_TIME_MAX, Run, go_on, until};

/// How long what is undisturbed runs between two faults.
const CALM: Duration = Duration::from_secs(1);

/// Silos on hosts of their own; `None`, which is told, where there can be none.
fn on_hosts(test: &str, name: &'static str, silos: &[&str]) -> Option<(Run, Bridge)> {
    if let Some(obstacle) = Bridge::obstacle() {
        skip(test, &obstacle);
        return None;
    }
    let bridge = Bridge::new(silos.len()).unwrap_or_else(|error| panic!("{error}"));
    let mut run = Run::new(name);
    for (host, silo) in silos.iter().enumerate() {
        run.start_on(bridge.host(host), silo);
    }
    run.load_all();
    go_on(CALM);
    Some((run, bridge))
}

/// FAULTS 21, 24, 27: what lasts shorter than a detection, or loses only some.
#[test]
fn blips_resets_and_loss_kill_nobody() {
    const NAME: &str = "blips_resets_and_loss_kill_nobody";
    let Some((mut run, bridge)) = on_hosts(NAME, "lossy", &["ann", "bob", "carl"]) else { return };
    bridge.cut(0, 1).expect("a rule");
    // Until the firewall has taken something: then it was a blip for somebody.
    go_on(Duration::from_millis(43));
    until("something was lost", DETECTION_TIME_MAX / 10, || taken(&bridge, &[0, 1]) > 0);
    bridge.heal().expect("no rule");
    run.fault("blip");
    go_on(CALM);
    for _ in 0..5 {
        let reset = bridge.reset_established(0, 1).expect("ss")
            + bridge.reset_established(1, 2).expect("ss");
        assert!(reset > 0, "connections were reset");
        run.fault("connections reset");
        go_on(CALM / 2);
    }
    for host in 0..3 {
        bridge.lose_packets(host, 20).expect("a rule");
    }
    go_on(Duration::from_secs(6));
    assert!(taken(&bridge, &[0, 1, 2]) > 100, "packets were lost");
    bridge.heal().expect("no rule");
    run.fault("a fifth of all packets lost");
    go_on(CALM);
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

fn taken(bridge: &Bridge, hosts: &[usize]) -> u64 {
    hosts.iter().map(|host| bridge.taken_packets(*host).expect("a count")).sum()
}

/// FAULTS 20, 23, 19: two do not reach each other and a third reaches both; then one hears and is
/// not heard.
#[test]
fn who_is_reached_by_a_third_lives_and_who_is_heard_by_nobody_dies() {
    const NAME: &str = "who_is_reached_by_a_third_lives_and_who_is_heard_by_nobody_dies";
    let Some((mut run, bridge)) = on_hosts(NAME, "one-way", &["ann", "bob", "carl"]) else {
        return;
    };
    bridge.cut(0, 1).expect("a rule");
    // Beyond the bound of a detection that must not happen.
    go_on(DETECTION_TIME_MAX);
    assert!(taken(&bridge, &[0, 1]) > 10, "packets were dropped");
    assert_eq!(run.deaths(), 0, "a third one reaches both");
    let third = run.silos.iter().map(|silo| silo.lines("ReachedByThirdOnly")).sum::<usize>();
    assert!(third > 0, "and that is told");
    bridge.heal().expect("no rule");
    run.fault("two of three cut off from each other");
    go_on(CALM);
    for host in [0, 2] {
        bridge.drop_packets(1, host).expect("a rule");
    }
    run.await_death(1);
    assert_eq!(run.silos[1].wait_exit(DETECTION_TIME_MAX), Some(DEAD), "it reads that it is Dead");
    assert!(taken(&bridge, &[0, 2]) > 10, "packets were dropped");
    run.fault("heard by nobody");
    bridge.heal().expect("no rule");
    go_on(CALM);
    run.end();
}

/// FAULTS 18: both halves reach the store. Whoever is declared dead ends; somebody is left.
#[test]
fn of_two_halves_that_both_reach_the_store_somebody_is_left_and_the_dead_end() {
    const NAME: &str = "of_two_halves_that_both_reach_the_store_somebody_is_left_and_the_dead_end";
    let Some((mut run, bridge)) = on_hosts(NAME, "halves", &["ann", "bob", "carl", "dora"]) else {
        return;
    };
    for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        bridge.cut(one, other).expect("a rule");
    }
    // Every silo that is Dead ends by itself; the others reach each other, or are cut off from
    // nobody who is in their view.
    until("a half is dead", 3 * DETECTION_TIME_MAX, || {
        run.reap();
        run.living().len() <= 2
    });
    assert!(taken(&bridge, &[0, 1, 2, 3]) > 10, "packets were dropped");
    run.fault("halves cut off from each other");
    go_on(CALM);
    bridge.heal().expect("no rule");
    go_on(CALM);
    run.reap();
    let left = run.living();
    assert!(!left.is_empty(), "somebody is left");
    for name in ["emil", "fay"] {
        let place = run.silos.len() % 4;
        let free = if left.contains(&place) { (place + 2) % 4 } else { place };
        let silo = run.start_on(bridge.host(free), name);
        run.load(silo);
    }
    go_on(CALM);
    run.end();
}

/// Three silos of which one is reached through a proxy only.
fn behind_a_proxy(name: &'static str) -> (Run, Proxy) {
    let mut run = Run::new(name);
    let bound = free_port();
    let proxy = Proxy::start(bound).expect("a proxy");
    let advertised = proxy.address().to_string();
    run.start_as("ann", |program| program.arguments(["--link", "tcp"]));
    run.start_as("bob", |program| {
        let bound = bound.to_string();
        program.arguments(["--link", "tcp", "--bind", &bound, "--advertise", &advertised])
    });
    run.start_as("carl", |program| program.arguments(["--link", "tcp"]));
    run.load_all();
    go_on(CALM);
    (run, proxy)
}

/// A port of the loopback interface that nobody had a moment ago.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// FAULTS 24, 25, 27: every byte by itself, everything later, and ends in the middle of a frame.
#[test]
fn frames_in_single_bytes_late_or_cut_in_the_middle_cost_no_outcome() {
    let (mut run, proxy) = behind_a_proxy("sliced");
    let before = proxy.moved();
    proxy.set(Mode::Slice);
    go_on(3 * CALM);
    let sliced = proxy.moved();
    assert!(sliced.writes - before.writes > 1_000, "{before:?}, then {sliced:?}");
    run.fault("sliced into bytes");
    proxy.set(Mode::Delay(Duration::from_millis(100)));
    go_on(3 * CALM);
    assert!(proxy.moved().writes > sliced.writes, "it went on");
    run.fault("delayed");
    proxy.set(Mode::Pass);
    for cut in 1..=6 {
        proxy.cut(if cut % 2 == 0 { Cut::End } else { Cut::Reset });
        until("a connection is cut", DETECTION_TIME_MAX, || proxy.moved().cuts >= cut);
        run.fault("cut in mid-frame");
        go_on(CALM / 2);
    }
    assert_eq!(run.deaths(), 0, "nobody is dead");
    run.end();
}

mod long {
    //! What takes its place in `cargo xtask prove`.

    use std::time::Duration;

    use siloring_testkit::process::Mode;

    use super::{CALM, behind_a_proxy, on_hosts, taken};
    use crate::run::{DETECTION_TIME_MAX, go_on, until};

    /// FAULTS 22.
    #[test]
    fn a_link_that_flaps_changes_no_view() {
        const NAME: &str = "a_link_that_flaps_changes_no_view";
        const FLAPS: usize = 30;
        let Some((mut run, bridge)) = on_hosts(NAME, "flapping", &["ann", "bob", "carl"]) else {
            return;
        };
        let before = run.silos[0].process.resident_bytes();
        for _ in 0..FLAPS {
            bridge.cut(0, 1).expect("a rule");
            go_on(Duration::from_secs(1));
            assert!(taken(&bridge, &[0, 1]) > 0, "packets were dropped");
            bridge.heal().expect("no rule");
            run.fault("flap");
            go_on(Duration::from_secs(1));
        }
        assert_eq!(run.deaths(), 0, "nobody is dead");
        let growth = run.silos[0].process.resident_bytes().saturating_sub(before);
        assert!(growth < 64 << 20, "{growth} bytes grown by {FLAPS} flaps");
        run.end();
    }

    /// FAULTS 26, 31: connections are taken and nothing is said on them, shorter than a detection.
    #[test]
    fn a_link_that_says_nothing_for_a_while_delays_only_its_own() {
        let (mut run, proxy) = behind_a_proxy("stalled");
        for _ in 0..5 {
            let before = proxy.moved().bytes;
            proxy.set(Mode::Stall);
            go_on(CALM);
            let stalled = proxy.moved().bytes;
            proxy.set(Mode::Pass);
            until("it goes on", DETECTION_TIME_MAX, || proxy.moved().bytes > stalled);
            assert!(stalled < before + (1 << 20), "it was stalled");
            run.fault("stalled");
            go_on(2 * CALM);
        }
        assert_eq!(run.deaths(), 0, "nobody is dead");
        run.end();
    }
}
