//! Two really different binaries in one cluster, built from one source: the next release of a
//! program is rolled in, taken back, and rolled in again.

use std::collections::BTreeMap;
use std::time::Duration;

use siloring_testkit::process::{Stream, artifact};

use crate::silo::{Cluster, Silo, on_each_store, tell};

const SILOS: usize = 3;
const KEYS: u64 = 16;
/// How long a silo that is refused may take to say so.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(30);

/// A binary that silos run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Release {
    First,
    Next,
}

impl Release {
    const fn binary(self) -> &'static str {
        match self {
            Self::First => "test_silo",
            Self::Next => "test_silo_next",
        }
    }
}

fn start(cluster: &Cluster, release: Release, name: &str) -> Silo {
    let mut silo = cluster.start_binary(release.binary(), name);
    silo.get(&format!("load_lines 2 {KEYS}"));
    silo
}

/// Ends a silo's share of the load, all of which was handled; how much that was.
fn rest(silo: &mut Silo) -> u64 {
    let ends = silo.tally("rest");
    let handled = ends.get("handled").copied().unwrap_or_default();
    assert_eq!(ends.len(), 1, "lines of {} failed: {ends:?}", silo.process.name());
    handled
}

/// Rolls every silo to a release, newcomer first; how many lines were handled.
fn roll(cluster: &Cluster, silos: &mut [Silo], release: Release, roll: usize) -> u64 {
    let mut handled = 0;
    for number in 0..silos.len() {
        let newcomer = start(cluster, release, &format!("pod-{number}-{roll}"));
        let mut leaver = std::mem::replace(&mut silos[number], newcomer);
        handled += rest(&mut leaver);
        leaver.drain();
        if number == 0 {
            meet(silos, release);
        }
    }
    handled
}

/// The first silo is of the other release than the rest: a method of its own is known where its
/// release is, and `Incompatible` elsewhere; all else goes both ways.
fn meet(silos: &mut [Silo], release: Release) {
    let (newcomer, others) = silos.split_first_mut().expect("a cluster has silos");
    let mut ends = BTreeMap::<String, u64>::new();
    for key in 0..KEYS {
        *ends.entry(newcomer.outcome(&format!("own load-{key} 10000")).how).or_default() += 1;
        for silo in [&mut *newcomer, &mut others[0]] {
            let taken = silo.outcome(&format!("take load-{key} 41 10000"));
            assert_eq!((&*taken.how, taken.value), ("handled", Some(42)), "{release:?}: {taken:?}");
        }
    }
    let names: Vec<&str> = ends.keys().map(String::as_str).collect();
    assert!(names.iter().all(|name| ["handled", "Incompatible"].contains(name)), "{ends:?}");
    assert!(names.contains(&"Incompatible"), "each release has a method of its own: {ends:?}");
}

/// FAULTS 14 and 15, P6. Calls and events without pause while every silo is replaced: by the next
/// release, by the first one again, by the next one again. Nothing fails but a method that only one
/// release has. What the first release stored the next one reads; what the next one stored the
/// first one refuses, loudly, and leaves as it was.
#[test]
fn the_next_release_is_rolled_in_taken_back_and_rolled_in_again() {
    on_each_store("the_next_release_is_rolled_in", "versions", rolls);
}

fn rolls(cluster: &Cluster) {
    let mut silos: Vec<Silo> =
        (0..SILOS).map(|pod| cluster.start(&format!("pod-{pod}-0"))).collect();
    for key in 0..KEYS {
        assert_eq!(silos[0].result(&format!("join load-{key}")), "subscribed");
    }
    for silo in &mut silos {
        silo.get(&format!("load_lines 2 {KEYS}"));
    }
    assert_eq!(silos[0].outcome("keep old 7 10000").how, "handled");

    let mut handled = roll(cluster, &mut silos, Release::Next, 1);
    let kept = silos[0].outcome("kept old 10000");
    assert_eq!((&*kept.how, kept.value), ("handled", Some(7)), "the next release reads it");
    assert_eq!(silos[0].outcome("keep new 8 10000").how, "handled");

    handled += roll(cluster, &mut silos, Release::First, 2);
    for question in ["kept new 10000", "keep new 9 10000"] {
        let answer = silos[1].get(question);
        assert_eq!(answer["outcome"], "Handler", "the first release cannot read it: {answer}");
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("of another type or version"), "{detail}");
        assert!(detail.contains("test.line"), "{detail}");
    }
    let kept = silos[1].outcome("kept old 10000");
    assert_eq!((&*kept.how, kept.value), ("handled", Some(7)), "nobody has written it anew");

    handled += roll(cluster, &mut silos, Release::Next, 3);
    let kept = silos[0].outcome("kept new 10000");
    assert_eq!((&*kept.how, kept.value), ("handled", Some(8)), "it is as it was written");
    handled += silos.iter_mut().map(rest).sum::<u64>();
    assert!(handled > 2_000, "the load was no load: {handled} lines");
    assert_eq!(cluster.rows().len() as u64, KEYS, "all subscribe as before");
    tell(&format!("{handled} lines in three rolls between two releases, each handled"));
}

/// A message that was changed without a new version is never misread: the silo that has it so joins
/// no cluster of silos that have it otherwise, and says which message it is and what to do.
#[test]
fn a_layout_changed_without_a_version_keeps_a_silo_out() {
    let cluster = Cluster::new("careless");
    let _first = cluster.start("first");
    let mut careful = cluster.start_binary(Release::Next.binary(), "careful");
    assert_eq!(careful.outcome("take line 1 10000").value, Some(2));
    careful.drain();
    let binary = artifact(Release::Next.binary()).expect("it is built with the tests");
    let program = cluster.program_of(binary, "careless").arguments(["--careless"]);
    let mut careless = program.start().unwrap();
    let ended = careless.wait_exit(REFUSAL_TIME_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ended.code(), Some(1), "{}", careless.log_text());
    let said =
        |text| careless.line_count(Stream::Error, text) + careless.line_count(Stream::Output, text);
    for text in ["test.careless", "LayoutChanged", "raise the version of the type"] {
        assert!(said(text) > 0, "{text:?} is not said:\n{}", careless.log_text());
    }
}
