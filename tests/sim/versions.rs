//! Two versions of a program in one cluster: every change of a message, on every way that a message
//! goes, in both directions, and back.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_testkit::sim::{Cluster, Fault, Node, Slot};

use super::programs::v1::added::RoomRef as _;
use super::programs::v2::added::RoomRef as _;
use super::programs::{Drive, v1, v2};
use super::scenario::{New, Outcome, S1, S2, SECOND, check, ensure, up};

/// A message that the second release has changed.
#[derive(Clone, Copy)]
struct Change {
    name: &'static str,
    old: &'static Drive,
    new: &'static Drive,
    way: Way,
}

/// Whether its two shapes become each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Both,
    None,
}

const CHANGES: [Change; 5] = [
    Change { name: "swapped", old: &v1::swapped::DRIVE, new: &v2::swapped::DRIVE, way: Way::Both },
    Change { name: "added", old: &v1::added::DRIVE, new: &v2::added::DRIVE, way: Way::Both },
    Change { name: "removed", old: &v1::removed::DRIVE, new: &v2::removed::DRIVE, way: Way::Both },
    Change { name: "widened", old: &v1::widened::DRIVE, new: &v2::widened::DRIVE, way: Way::Both },
    Change { name: "parted", old: &v1::parted::DRIVE, new: &v2::parted::DRIVE, way: Way::None },
];

/// The first slot's silo is of the first release, the second one's of the second.
fn mixed(new: New<'_>) -> Result<Cluster, Box<dyn std::error::Error>> {
    let mut cluster = up(v1::first(new(2)).later(v2::later))?;
    replace(&mut cluster, S2, 2)?;
    Ok(cluster)
}

/// Another release in a slot.
fn replace(cluster: &mut Cluster, slot: Slot, version: u16) -> Outcome {
    cluster.inflict(Fault::Version(version));
    cluster.inflict(Fault::Drain(slot));
    cluster.inflict(Fault::Start(slot));
    Ok(cluster.run_until(120 * SECOND, "the slot has another silo", Cluster::is_whole)?)
}

/// One way that messages of a change go.
#[derive(Clone, Copy)]
struct Direction {
    change: Change,
    from: (Slot, &'static Drive),
    to: (Slot, &'static Drive),
}

impl Direction {
    fn both(change: Change) -> [Self; 2] {
        let (old, new) = ((S1, change.old), (S2, change.new));
        [Self { change, from: old, to: new }, Self { change, from: new, to: old }]
    }

    /// The name of a grain, hub or stream of its own.
    fn key(&self, what: &str) -> &'static str {
        leaked(format!("{}-{}-{}-{what}", self.change.name, self.from.0, self.to.0))
    }

    /// What comes of something that crosses.
    fn expected<T>(&self, value: T) -> Result<T, String> {
        match self.change.way {
            Way::Both => Ok(value),
            Way::None => Err("Incompatible".to_owned()),
        }
    }
}

fn leaked(text: String) -> &'static str {
    text.leak()
}

/// Runs one of a drive's functions in a slot.
macro_rules! at {
    ($cluster:expr, $place:expr, $function:ident $(, $argument:expr)*) => {{
        let (slot, drive) = $place;
        let function = drive.$function;
        $cluster.block_on(slot, move |node| function(node $(, $argument)*))?
    }};
}

/// Fails unless the two are equal.
macro_rules! same {
    ($found:expr, $expected:expr, $($what:tt)+) => {{
        let (found, expected) = ($found, $expected);
        ensure!(found == expected, "{}: {found:?}, not {expected:?}", format!($($what)+));
    }};
}

/// Requests and their replies, of a grain and of a hub.
fn requests(cluster: &mut Cluster, it: Direction) -> Outcome {
    let key = it.key("room");
    same!(at!(cluster, it.to, wake, key), Ok(()), "{key} wakes");
    let taken = at!(cluster, it.from, take, key, 7);
    same!(taken, it.expected(8), "a request to {key}");
    let own = at!(cluster, it.to, take, key, 9);
    same!(own, Ok(10), "a request to {key} of its own release");
    let hub = leaked(format!("portal/{key}"));
    let serve = it.to.1.serve;
    drop(cluster.spawn(it.to.0, move |node| serve(node, hub)));
    cluster.run_for(SECOND)?;
    same!(at!(cluster, it.from, send, hub, 20), it.expected(21), "a message to {hub}");
    Ok(())
}

/// Events, with the stream's owner on either silo.
fn events(cluster: &mut Cluster, it: Direction) -> Outcome {
    for stream in 0..4 {
        let key = it.key(&format!("stream-{stream}"));
        same!(at!(cluster, it.to, wake, key), Ok(()), "{key} wakes");
        same!(at!(cluster, it.to, join, key), Ok(()), "{key} subscribes");
        let published = at!(cluster, it.from, publish, key, 30);
        same!(published, it.expected(()), "an event of {key}");
        let heard = at!(cluster, it.to, heard, key);
        let number = if it.change.way == Way::Both { 30 } else { 0 };
        same!(heard, Ok(number), "the event of {key}");
    }
    Ok(())
}

/// Stored state: written by one release, read by the other, and by the first one again.
fn state(cluster: &mut Cluster, it: Direction) -> Outcome {
    let key = it.key("state");
    same!(at!(cluster, it.from, keep, key, 40), Ok(()), "{key} is stored");
    same!(at!(cluster, it.from, leave, key), Ok(()), "{key} leaves");
    same!(at!(cluster, it.to, wake, key), Ok(()), "{key} wakes");
    let is_readable = it.change.way == Way::Both && it.to.0 == S2;
    let kept = at!(cluster, it.to, kept, key);
    let is_loud = kept.as_ref().is_err_and(|why| why.contains("of another type or version"));
    ensure!(is_readable || is_loud, "{key} was refused as {kept:?}");
    ensure!(!is_readable || kept == Ok(Some(40)), "{key} was read as {kept:?}");
    if !is_readable {
        let overwritten = at!(cluster, it.to, keep, key, 41);
        ensure!(overwritten.is_err(), "{key} was overwritten unread");
    }
    same!(at!(cluster, it.to, leave, key), Ok(()), "{key} leaves again");
    same!(at!(cluster, it.from, wake, key), Ok(()), "{key} wakes again");
    same!(at!(cluster, it.from, kept, key), Ok(Some(40)), "{key} as it was written");
    Ok(())
}

/// P6, FAULTS 14 and 15. Added, removed, changed fields, with and without a conversion; requests,
/// replies, hub messages, events, stored state; from the old release to the new one and back. What
/// has a conversion arrives as what it was; what has none is `Incompatible`, and never misread.
#[test]
fn every_change_crosses_between_two_releases_or_is_incompatible() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = mixed(new)?;
        for it in CHANGES.into_iter().flat_map(Direction::both) {
            requests(&mut cluster, it)?;
            events(&mut cluster, it)?;
            state(&mut cluster, it)?;
        }
        methods(&mut cluster)
    }
    check(scenario, &["versions-unread", "nothing-handed-down"]);
}

/// A method that only one release has is `Incompatible` at the other.
fn methods(cluster: &mut Cluster) -> Outcome {
    let (old, new) = ((S1, &v1::added::DRIVE), (S2, &v2::added::DRIVE));
    same!(at!(cluster, old, wake, "of-old"), Ok(()), "the old one wakes");
    same!(at!(cluster, new, wake, "of-new"), Ok(()), "the new one wakes");
    let to_old = cluster.block_on(S2, |node| async move {
        let room = node.handle().grain::<v2::added::Room>("of-old");
        room.only_new().await.map_err(|error| error.delivery().map(DeliveryFailure::name))
    })?;
    same!(to_old, Err(Some("Incompatible")), "a method that the old release has not");
    let to_new = cluster.block_on(S1, |node| async move {
        let room = node.handle().grain::<v1::added::Room>("of-new");
        room.only_old().await.map_err(|error| error.delivery().map(DeliveryFailure::name))
    })?;
    same!(to_new, Err(Some("Incompatible")), "a method that the new release has no more");
    Ok(())
}

/// A conversion is the program's own code: one that refuses a value, or panics, ends that delivery
/// as `Incompatible` and nothing else.
#[test]
fn a_conversion_that_fails_is_incompatible_and_harms_nobody() {
    fn scenario(new: New<'_>) -> Outcome {
        const TOO_LARGE: u64 = 1 << 40;
        let mut cluster = mixed(new)?;
        let (old, new) = ((S1, &v1::widened::DRIVE), (S2, &v2::widened::DRIVE));
        let refused = || Err("Incompatible".to_owned());
        same!(at!(cluster, old, wake, "a"), Ok(()), "the old one wakes");
        same!(at!(cluster, new, wake, "b"), Ok(()), "the new one wakes");
        same!(at!(cluster, old, join, "a"), Ok(()), "the old one subscribes");
        for number in [TOO_LARGE, v2::PANICS] {
            let taken = at!(cluster, new, take, "a", number);
            same!(taken, refused(), "{number} handed down");
            let published = at!(cluster, new, publish, "a", number);
            same!(published, Err("Incompatible".to_owned()), "event {number} handed down");
        }
        let taken = at!(cluster, old, take, "b", v2::PANICS);
        same!(taken, refused(), "taken up");
        // What runs, and whose reply cannot be told: it has run.
        let answered = at!(cluster, old, take, "b", v2::PANICS - 1);
        same!(answered, Err("ReplyUndecodable".to_owned()), "a reply handed down");
        same!(at!(cluster, new, take, "a", 5), Ok(6), "the old silo serves on");
        same!(at!(cluster, old, take, "b", 5), Ok(6), "the new silo serves on");
        Ok(())
    }
    check(scenario, &["nothing-handed-down"]);
}

/// What the traffic of a roll heard.
#[derive(Default, Debug)]
struct Heard {
    /// Whether the grains have subscribed: the traffic begins.
    begun: bool,
    /// Deliveries that ended as they were meant to, by what they were.
    well: BTreeMap<&'static str, u64>,
    /// `Incompatible`, where no conversion is declared, and records of a newer release.
    refused: BTreeMap<&'static str, u64>,
    /// Everything else.
    failed: BTreeMap<String, u64>,
}

/// Grains, and streams, of each change.
const KEYS: u64 = 12;
/// Each silo's program begins a delivery this often.
const PERIOD: Duration = Duration::from_millis(20);

fn key_of(change: &Change, random: &mut fastrand::Rng) -> &'static str {
    leaked(format!("{}-{}", change.name, random.u64(..KEYS)))
}

/// Requests, events and stored state without pause, until this silo leaves.
async fn traffic(node: Node, pick: fn(&Change) -> &'static Drive, heard: Rc<RefCell<Heard>>) {
    let mut random = node.random("versions");
    while !heard.borrow().begun {
        node.sleep(PERIOD).await;
    }
    for number in 1.. {
        let change = CHANGES[random.usize(..CHANGES.len())];
        let (key, drive) = (key_of(&change, &mut random), pick(&change));
        let (what, result) = match random.u8(..5) {
            0 | 1 => {
                let taken = (drive.take)(node.clone(), key, number).await;
                ("request", taken.map(|taken| assert_eq!(taken, number + 1, "{key}")))
            }
            2 => ("event", (drive.publish)(node.clone(), key, number).await),
            3 => ("write", (drive.keep)(node.clone(), key, number).await),
            _ => ("read", (drive.kept)(node.clone(), key).await.map(drop)),
        };
        if result.as_ref().is_err_and(|error| error == "Draining") {
            return;
        }
        heard.borrow_mut().note(change, what, result);
        node.sleep(PERIOD).await;
    }
}

impl Heard {
    fn note(&mut self, change: Change, what: &'static str, result: Result<(), String>) {
        let is_stored = matches!(what, "write" | "read");
        match result {
            Ok(()) => *self.well.entry(what).or_default() += 1,
            Err(why) if change.way == Way::None && why == "Incompatible" => {
                *self.refused.entry(what).or_default() += 1;
            }
            Err(why) if is_stored && why.contains("of another type or version") => {
                *self.refused.entry("unreadable").or_default() += 1;
            }
            Err(why) => {
                let what = format!("{what} of {}: {why}", change.name);
                *self.failed.entry(what).or_default() += 1;
            }
        }
    }
}

/// Subscribes every grain to the stream of its key.
fn subscribe(cluster: &mut Cluster) -> Outcome {
    for change in CHANGES {
        for number in 0..KEYS {
            let key = leaked(format!("{}-{number}", change.name));
            same!(at!(cluster, (S1, change.old), join, key), Ok(()), "{key} subscribes");
        }
    }
    Ok(())
}

/// D6. The next release is rolled in under traffic, taken back, and rolled in again, and it speaks
/// another wire version too: everything that has a conversion goes on, what has none is
/// `Incompatible`, and nothing is misread.
#[test]
fn a_release_is_rolled_in_taken_back_and_rolled_in_again_under_traffic() {
    fn scenario(new: New<'_>) -> Outcome {
        let heard = Rc::new(RefCell::new(Heard::default()));
        let (by_old, by_new) = (Rc::clone(&heard), Rc::clone(&heard));
        let first = v1::first(new(3));
        let builder = first.later(|release| {
            let release = v2::later(release).wire_version(2);
            release.program(move |node| traffic(node, |change| change.new, Rc::clone(&by_new)))
        });
        let builder =
            builder.program(move |node| traffic(node, |change| change.old, Rc::clone(&by_old)));
        let mut cluster = up(builder)?;
        subscribe(&mut cluster)?;
        heard.borrow_mut().begun = true;
        for (roll, version) in (1..).zip([2, 1, 2]) {
            cluster.inflict(Fault::Version(version));
            cluster.inflict(Fault::Roll);
            cluster.run_until(120 * SECOND, "the roll is done", |cluster| {
                cluster.report().tally.rolls == roll && cluster.is_whole()
            })?;
            cluster.run_for(5 * SECOND)?;
            let heard = heard.borrow();
            ensure!(heard.failed.is_empty(), "in roll {roll} to version {version}: {heard:?}");
        }
        let heard = heard.borrow();
        println!("{heard:?}");
        for what in ["request", "event", "write", "read"] {
            let count = heard.well.get(what).copied().unwrap_or_default();
            ensure!(count > 200, "the traffic was no traffic: {heard:?}");
        }
        let mut agreed = BTreeSet::new();
        for slot in cluster.slots() {
            agreed.extend(cluster.silo(slot).map(|silo| silo.wire_versions()).unwrap_or_default());
        }
        // Newcomers of the last roll spoke with old silos first, then with each other.
        ensure!(agreed == BTreeSet::from([1, 2]), "wire versions {agreed:?}");
        for what in ["request", "event", "unreadable"] {
            ensure!(heard.refused.contains_key(what), "no {what} met the other: {heard:?}");
        }
        Ok(())
    }
    check(scenario, &["versions-unread", "nothing-handed-down"]);
}
