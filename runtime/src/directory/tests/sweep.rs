//! A random world: silos join, drain and are killed while addresses are looked up, registered,
//! claimed and given up, over wires that lose and delay; then everything calms down, and must be
//! whole.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use siloring_core::{Address, Endpoint, Generation, Moment, ShardIndex, SiloStatus};

use super::world::{ERRATIC, World};
use crate::directory::{Defect, DirectoryOutput, Lookup, Place, Planted, TakeOver};

const GRAINS: usize = 24;
const HUBS: usize = 8;
const SILOS_MAX: usize = 5;

/// The world and the programs that use it.
struct Play {
    world: World,
    grains: Vec<Address>,
    hubs: Vec<Address>,
    /// Registered or claimed, or about to be.
    busy: BTreeSet<(Endpoint, Address)>,
    /// Killed, and when that is noticed.
    dying: BTreeMap<Generation, Moment>,
    leaving: BTreeMap<Generation, Moment>,
    unblock_at: Moment,
    located: u64,
    joined: u64,
}

impl Play {
    fn new(seed: u64, planted: Planted) -> Self {
        let mut world = World::new(seed, 2, ERRATIC, planted);
        for _ in 0..3 {
            let silo = world.join();
            world.set(silo, SiloStatus::Active);
        }
        let name = |kind: &str, index: usize| Address::of(kind, &format!("{index}")).unwrap();
        Self {
            world,
            grains: (0..GRAINS).map(|index| name("grain", index)).collect(),
            hubs: (0..HUBS).map(|index| name("portal", index)).collect(),
            busy: BTreeSet::new(),
            dying: BTreeMap::new(),
            leaving: BTreeMap::new(),
            unblock_at: Moment::NEVER,
            located: 0,
            joined: 3,
        }
    }

    fn somewhere(&mut self) -> Option<Endpoint> {
        let endpoints = self.world.endpoints();
        self.world.rng.choice(endpoints)
    }

    /// A shard that may host something new.
    fn host(&mut self) -> Option<Endpoint> {
        let active: Vec<_> = self
            .world
            .silos(SiloStatus::Active)
            .into_iter()
            .filter(|silo| !self.leaving.contains_key(silo))
            .collect();
        let silo = *self.world.rng.choice(&active)?;
        Some(Endpoint { silo, shard: ShardIndex(self.world.rng.u16(0..2)) })
    }

    /// Calls a grain or a hub from a shard.
    fn call(&mut self, from: Endpoint, address: &Address) {
        for _ in 0..3 {
            match self.world.lookup(from, address) {
                Lookup::Pending => return,
                Lookup::Cached(place) if self.visit(from, address, place) => return,
                Lookup::Cached(_) => {}
            }
        }
        self.world.violations.push(format!("a stale place of {address} is kept by {from:?}"));
    }

    /// Whether the place takes the call; if not, the caller says so to its directory.
    fn visit(&mut self, from: Endpoint, address: &Address, place: Place) -> bool {
        if self.busy.contains(&(place.endpoint, address.clone())) {
            return true;
        }
        if self.world.lives(place.endpoint.silo) {
            self.world.at(from, |directory, now| {
                directory.refused(now, address, place);
            });
        } else {
            self.world.at(from, |directory, _| {
                directory.forget(address.hash(), Some(place));
            });
        }
        false
    }

    fn absorb(&mut self) {
        for (at, output) in core::mem::take(&mut self.world.told) {
            match output {
                DirectoryOutput::Located { address, result, .. } => {
                    self.located += 1;
                    self.found(at, &address, result.unwrap());
                }
                DirectoryOutput::RegistrationLost { address, winner } => {
                    self.busy.remove(&(at, address.clone()));
                    self.world.at(at, |directory, _| directory.learn(address.hash(), winner));
                }
                DirectoryOutput::ClaimRefused { address, .. }
                | DirectoryOutput::ClaimLost { address, .. } => {
                    self.busy.remove(&(at, address));
                }
                DirectoryOutput::Registered { .. }
                | DirectoryOutput::Claimed { .. }
                | DirectoryOutput::HandedOver
                | DirectoryOutput::Accuse(_)
                | DirectoryOutput::ViewWanted(_)
                | DirectoryOutput::Send(..)
                | DirectoryOutput::Event(_) => {}
            }
        }
    }

    fn found(&mut self, at: Endpoint, address: &Address, place: Option<Place>) {
        match place {
            Some(place) => {
                self.visit(at, address, place);
            }
            None if address.kind().0 == "grain" => {
                let Some(host) = self.host() else { return };
                if self.busy.insert((host, address.clone())) {
                    self.world.register(host, address);
                }
            }
            None => {}
        }
    }

    fn use_hub(&mut self) {
        let address = self.world.rng.choice(&self.hubs).unwrap().clone();
        let owners: Vec<_> =
            self.busy.iter().filter(|(_, a)| *a == address).map(|(at, _)| *at).collect();
        let close = self.world.rng.bool();
        if let Some(at) = owners.first().filter(|_| close) {
            self.busy.remove(&(*at, address.clone()));
            self.world.release(*at, &address);
        } else if let Some(host) = self.host() {
            let take_over = if self.world.rng.u8(..) < 80 { TakeOver::Yes } else { TakeOver::No };
            if self.busy.insert((host, address.clone())) {
                self.world.claim(host, &address, take_over);
            }
        }
    }

    fn end_grain(&mut self) {
        let grains: Vec<_> =
            self.busy.iter().filter(|(_, a)| a.kind().0 == "grain").cloned().collect();
        if let Some((at, address)) = self.world.rng.choice(&grains).cloned() {
            self.busy.remove(&(at, address.clone()));
            self.world.unregister(at, &address);
        }
    }

    fn act(&mut self) {
        match self.world.rng.u8(0..100) {
            0..60 => {
                let all = [self.grains.clone(), self.hubs.clone()].concat();
                let address = self.world.rng.choice(&all).unwrap().clone();
                if let Some(from) = self.somewhere() {
                    self.call(from, &address);
                }
            }
            60..75 => self.end_grain(),
            75..90 => self.use_hub(),
            90..94 => self.fault_wire(),
            94..96 => self.world.publish(),
            _ => self.fault_silo(),
        }
        self.absorb();
    }

    fn fault_wire(&mut self) {
        let silos = self.world.silos(SiloStatus::Active);
        if silos.len() < 3 {
            return;
        }
        let pair = self.world.rng.choose_multiple(silos, 2);
        if self.world.blocked.is_empty() && self.world.rng.bool() {
            self.world.block(pair[0], pair[1]);
            let span = Duration::from_millis(self.world.rng.u64(100..4000));
            self.unblock_at = self.world.now + span;
        } else {
            self.world.cut(pair[0], pair[1]);
        }
    }

    fn fault_silo(&mut self) {
        let active = self.world.silos(SiloStatus::Active);
        let stable: Vec<_> =
            active.iter().copied().filter(|silo| !self.leaving.contains_key(silo)).collect();
        let pick = self.world.rng.choice(&stable).copied();
        match (self.world.rng.u8(0..3), pick) {
            (0, Some(silo)) if stable.len() > 1 => {
                self.world.kill(silo);
                self.busy.retain(|(at, _)| at.silo != silo);
                let span = Duration::from_millis(self.world.rng.u64(10..3000));
                self.dying.insert(silo, self.world.now + span);
            }
            (1, Some(silo)) if stable.len() > 1 => {
                for shard in [ShardIndex(0), ShardIndex(1)] {
                    let at = Endpoint { silo, shard };
                    self.world.at(at, |directory, _| directory.begin_drain());
                }
                self.world.set(silo, SiloStatus::Draining);
                self.leaving.insert(silo, self.world.now + Duration::from_secs(20));
            }
            _ if active.len() < SILOS_MAX => {
                let silo = self.world.join();
                if self.world.rng.bool() {
                    self.world.run_for(Duration::from_millis(200));
                    self.absorb();
                }
                self.world.set(silo, SiloStatus::Active);
                self.joined += 1;
            }
            _ => {}
        }
    }

    /// What time brings: deaths are noticed, drains end, wires heal.
    fn mature(&mut self) {
        let now = self.world.now;
        if self.unblock_at <= now {
            self.world.blocked.clear();
            self.unblock_at = Moment::NEVER;
        }
        for silo in due(&self.dying, now) {
            self.dying.remove(&silo);
            self.world.set(silo, SiloStatus::Dead);
        }
        let drained: Vec<_> = self
            .leaving
            .iter()
            .filter(|(silo, until)| {
                let handed = |shard| {
                    let at = Endpoint { silo: **silo, shard: ShardIndex(shard) };
                    self.world.handed_over.contains(&at)
                };
                **until <= now || (handed(0) && handed(1))
            })
            .map(|(silo, _)| *silo)
            .collect();
        for silo in drained {
            self.leave(silo);
        }
    }

    fn leave(&mut self, silo: Generation) {
        self.leaving.remove(&silo);
        for (at, address) in
            self.busy.iter().filter(|(at, _)| at.silo == silo).cloned().collect::<Vec<_>>()
        {
            self.busy.remove(&(at, address.clone()));
            if address.kind().0 == "grain" {
                self.world.unregister(at, &address);
            } else {
                self.world.release(at, &address);
            }
        }
        self.world.run_for(Duration::from_millis(100));
        self.absorb();
        self.world.kill_and_bury(silo);
    }

    fn run(&mut self, acts: usize) {
        for _ in 0..acts {
            let pause = self.world.rng.u64(0..60_000);
            self.world.run_for(Duration::from_micros(pause));
            self.absorb();
            self.mature();
            self.act();
        }
    }

    /// Faults end; everything must come to rest.
    fn calm(&mut self) {
        self.world.blocked.clear();
        for silo in self.dying.keys().copied().collect::<Vec<_>>() {
            self.world.set(silo, SiloStatus::Dead);
        }
        for silo in self.leaving.keys().copied().collect::<Vec<_>>() {
            self.leave(silo);
        }
        for _ in 0..12 {
            self.world.run_for(Duration::from_secs(1));
            self.absorb();
        }
        self.world.assert_whole();
        self.world.check_rest();
        self.check_found();
    }

    /// Each home is found from everywhere, and nothing else.
    fn check_found(&mut self) {
        for address in [self.grains.clone(), self.hubs.clone()].concat() {
            let Some(from) = self.somewhere() else { return };
            let found = self.world.find(from, &address);
            let held = self.world.holders(address.hash()).last().copied();
            if found != held {
                let what = format!("{address} is at {held:?}, found at {found:?}");
                self.world.violations.push(what);
            }
        }
    }
}

fn due(all: &BTreeMap<Generation, Moment>, now: Moment) -> Vec<Generation> {
    all.iter().filter(|(_, at)| **at <= now).map(|(silo, _)| *silo).collect()
}

fn play(seed: u64, planted: Planted) -> Play {
    let mut play = Play::new(seed, planted);
    play.run(160);
    play.calm();
    play
}

#[test]
fn random_worlds_stay_sound_and_come_to_rest() {
    let mut said: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut located, mut joined) = (0, 0);
    for seed in 0..SEEDS {
        let play = play(seed, Planted::NONE);
        assert_eq!(play.world.violations, Vec::<String>::new(), "seed {seed}");
        located += play.located;
        joined += play.joined;
        for (name, count) in play.world.said {
            *said.entry(name).or_default() += count;
        }
    }
    assert!(located > 20 * SEEDS, "the worlds were used: {located}");
    assert!(joined > 3 * SEEDS, "silos joined: {joined}");
    for name in MARKS {
        assert!(said.get(name).is_some_and(|count| *count > SEEDS / 10), "{name}: {said:?}");
    }
}

/// The first seed whose run is unsound with the defect switched on.
fn caught(defect: Defect) -> Option<u64> {
    (0..SEEDS).find(|seed| !play(*seed, Planted::with(defect)).world.violations.is_empty())
}

#[test]
fn a_range_that_is_opened_before_all_answers_is_caught() {
    assert!(caught(Defect::OpenBeforeAllAnswers).is_some());
}

#[test]
fn a_refused_place_that_stays_cached_is_caught() {
    assert!(caught(Defect::CacheKeptOnRefusal).is_some());
}

#[test]
fn a_span_that_is_given_twice_is_caught() {
    assert!(caught(Defect::GivenTwice).is_some());
}

/// Random worlds per test.
const SEEDS: u64 = 300;
/// What must have happened, or the worlds were too tame.
const MARKS: [&str; 9] = [
    "relay",
    "newer",
    "evict",
    "verify",
    "piece",
    "nothing to give",
    "recovery answer",
    "offer",
    "assert",
];
