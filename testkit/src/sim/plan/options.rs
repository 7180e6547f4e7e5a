//! The options of a run: fixed for directed runs, drawn anew for each run of a batch.

use std::fmt;
use std::time::Duration;

use siloring_core::limits::MAILBOX_MAX;

use super::super::random::stream;
use super::span::{Span, parse_per_mille, parse_span};

/// Where silos are, as far as they can tell: their links differ by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Each on a host of its own: links are TCP.
    Apart,
    /// All on one: links are Unix sockets, found by name. (Faults still part them.)
    One,
}

/// What the load does more of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// Nothing.
    Even,
    /// Calls of grains, with and without keys.
    Calls,
    /// Deliveries to hubs.
    Hubs,
    /// Publishes.
    Streams,
    /// Grains that store what they know.
    State,
    /// Deliveries that nobody waits for.
    OneWay,
}

/// Whether silos hear of changes in the registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hints {
    /// Never: what a silo does not read it does not know.
    Off,
    /// As a server tells them that can, with a look once in a while for what was not told.
    On,
}

/// A word of an option with few values.
trait Named: Copy + 'static {
    const ALL: &'static [(Self, &'static str)];
    const PROBLEM: &'static str;

    fn name(self) -> &'static str
    where
        Self: PartialEq,
    {
        Self::ALL.iter().find(|(value, _)| *value == self).map_or("", |(_, name)| *name)
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(it, _)| *it).ok_or(Self::PROBLEM)
    }
}

impl Named for Hosts {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Apart, "apart"), (Self::One, "one")];
    const PROBLEM: &'static str = "hosts are apart or one";
}

impl Named for Mix {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Even, "even"),
        (Self::Calls, "calls"),
        (Self::Hubs, "hubs"),
        (Self::Streams, "streams"),
        (Self::State, "state"),
        (Self::OneWay, "one-way"),
    ];
    const PROBLEM: &'static str = "a mix is even, calls, hubs, streams, state or one-way";
}

impl Named for Hints {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Off, "off"), (Self::On, "on")];
    const PROBLEM: &'static str = "hints are off or on";
}

/// The options of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Everything random follows from it.
    pub seed: u64,
    /// Slots of the cluster.
    pub silos: u16,
    /// Shards of each silo.
    pub shards: u16,
    /// Where the silos are.
    pub hosts: Hosts,
    /// How long faults happen and the load goes on; then everything is healed and must converge.
    pub safety: Duration,
    /// Deliveries that the built-in load begins in each second, over the whole cluster.
    pub load_per_second: u32,
    /// What most of them are.
    pub mix: Mix,
    /// Bytes of the largest message of the load.
    pub body_bytes: u32,
    /// Bytes that a connection holds in one direction before its writer has to wait.
    pub pipe_bytes: u32,
    /// Mail of the surrounding program that waits for one shard before the next is refused.
    pub mailbox: u32,
    /// Longest way of bytes from silo to silo, but for the rare tail.
    pub latency: Duration,
    /// Longest way to the store, or back.
    pub store_latency: Duration,
    /// Longest time from the wake of a thread to its run: short for one that spins, long for one
    /// that is parked.
    pub wake: Duration,
    /// Longest way of mail from one thread of a silo to another.
    pub mail_delay: Duration,
    /// Largest drift of a clock, in parts per million either way.
    pub drift_ppm: u32,
    /// Whether silos hear of changes in the registry.
    pub hints: Hints,
    /// Of a thousand times that a rare path could be taken, so many are.
    pub rare_per_mille: u16,
    /// Of a thousand times that an activation has nothing to do, so many end it. No run draws it.
    pub ends_per_mille: u16,
    /// A planted defect or a scenario's variant, by name.
    pub defect: Option<String>,
}

impl Options {
    /// The usual run under `seed`: three silos of two shards, ten minutes.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            silos: 3,
            shards: 2,
            hosts: Hosts::Apart,
            safety: Duration::from_mins(10),
            load_per_second: 24,
            mix: Mix::Even,
            body_bytes: 2 * 1024 * 1024,
            pipe_bytes: 256 * 1024,
            #[expect(clippy::cast_possible_truncation, reason = "a bound of thousands")]
            mailbox: MAILBOX_MAX as u32,
            latency: Duration::from_micros(500),
            store_latency: Duration::from_millis(3),
            wake: Duration::from_micros(30),
            mail_delay: Duration::ZERO,
            drift_ppm: 200,
            hints: Hints::Off,
            rare_per_mille: 0,
            ends_per_mille: 0,
            defect: None,
        }
    }

    /// A run of a batch: the seed draws every option but the length. Most clusters are small, since
    /// their runs cost least; one in four has pipes that a few frames fill, so that what waits
    /// behind them is seen.
    pub fn drawn(seed: u64) -> Self {
        let mut random = stream(seed, "options");
        let mut options = Self::new(seed);
        // Enough that silos which are down for a while leave twenty a second.
        options.load_per_second = 27;
        options.silos = [2, 3, 3, 3, 3, 3, 4, 5][random.usize(..8)];
        options.shards = [1, 2, 2, 2, 3][random.usize(..5)];
        options.hosts = if random.u8(..4) == 0 { Hosts::One } else { Hosts::Apart };
        options.mix = Mix::ALL[random.usize(..Mix::ALL.len())].0;
        let micros = |choices: &[u64], index: usize| Duration::from_micros(choices[index]);
        options.latency = micros(&[100, 500, 500, 2_000, 10_000], random.usize(..5));
        options.pipe_bytes = [16 * 1024, 64 * 1024, 256 * 1024][random.usize(..3)];
        options.body_bytes = [1024, 64 * 1024, 2 * 1024 * 1024][random.usize(..3)];
        if random.u8(..4) == 0 {
            options.pipe_bytes = 256;
            options.body_bytes = 2 * 1024 * 1024;
            options.latency = Duration::from_micros(500);
        }
        options.mailbox = [16, 64, options.mailbox, options.mailbox][random.usize(..4)];
        options.store_latency = micros(&[500, 3_000, 3_000, 50_000], random.usize(..4));
        options.wake = micros(&[1, 30, 200], random.usize(..3));
        options.mail_delay = micros(&[0, 0, 100, 5_000], random.usize(..4));
        options.drift_ppm = [0, 200, 200, 10_000][random.usize(..4)];
        options.hints = if random.bool() { Hints::On } else { Hints::Off };
        options.rare_per_mille = [0, 2, 20][random.usize(..3)];
        options
    }

    /// Sets one option, as a line of a plan does.
    ///
    /// # Errors
    /// If it is no option, or no value of it.
    pub fn set(&mut self, line: &str) -> Result<(), &'static str> {
        let (name, value) = line.split_once(' ').ok_or("an option has a name and a value")?;
        self.parse(name, value)
    }

    /// Reads one option.
    pub(super) fn parse(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "seed" => self.seed = value.parse().or(Err("a seed is a whole number"))?,
            "silos" => self.silos = parse_count(value)?,
            "shards" => self.shards = parse_count(value)?,
            "hosts" => self.hosts = Named::parse(value)?,
            "safety" => self.safety = parse_span(value)?,
            "load" => self.load_per_second = parse_whole(value)?,
            "mix" => self.mix = Named::parse(value)?,
            "body" => {
                let bytes = parse_whole(value)?;
                self.body_bytes = Some(bytes).filter(|it| *it <= BODY_MAX_BYTES).ok_or(BODY)?;
            }
            "pipe" => self.pipe_bytes = parse_whole(value)?,
            "mailbox" => self.mailbox = parse_whole(value)?,
            "latency" => self.latency = parse_span(value)?,
            "store" => self.store_latency = parse_span(value)?,
            "wake" => self.wake = parse_span(value)?,
            "mail" => self.mail_delay = parse_span(value)?,
            "drift" => {
                let drift = parse_whole(value)?;
                self.drift_ppm = Some(drift).filter(|ppm| *ppm <= DRIFT_MAX_PPM).ok_or(DRIFT)?;
            }
            "hints" => self.hints = Named::parse(value)?,
            "rare" => self.rare_per_mille = parse_per_mille(value)?,
            "ends" => self.ends_per_mille = parse_per_mille(value)?,
            "defect" => self.defect = Some(value.to_owned()),
            _ => return Err("no such option"),
        }
        Ok(())
    }
}

/// What a frame holds beside the message around it; a load that sends more is refused, rightly.
const BODY_MAX_BYTES: u32 = 16_000_000;
const BODY: &str = "a body is 0 to 16000000 bytes: a frame holds no more";

/// A clock that drifts by a tenth is broken, and none of the design's bounds speaks of it.
const DRIFT_MAX_PPM: u32 = 100_000;
const DRIFT: &str = "a drift is 0 to 100000 parts per million";

impl fmt::Display for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "seed {}", self.seed)?;
        writeln!(out, "silos {}", self.silos)?;
        writeln!(out, "shards {}", self.shards)?;
        writeln!(out, "hosts {}", self.hosts.name())?;
        writeln!(out, "safety {}", Span(self.safety))?;
        writeln!(out, "load {}", self.load_per_second)?;
        writeln!(out, "mix {}", self.mix.name())?;
        writeln!(out, "body {}", self.body_bytes)?;
        writeln!(out, "pipe {}", self.pipe_bytes)?;
        writeln!(out, "mailbox {}", self.mailbox)?;
        writeln!(out, "latency {}", Span(self.latency))?;
        writeln!(out, "store {}", Span(self.store_latency))?;
        writeln!(out, "wake {}", Span(self.wake))?;
        writeln!(out, "mail {}", Span(self.mail_delay))?;
        writeln!(out, "drift {}", self.drift_ppm)?;
        writeln!(out, "hints {}", self.hints.name())?;
        writeln!(out, "rare {}", self.rare_per_mille)?;
        writeln!(out, "ends {}", self.ends_per_mille)?;
        match &self.defect {
            Some(defect) => writeln!(out, "defect {defect}"),
            None => Ok(()),
        }
    }
}

pub(super) fn parse_count(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|count| (1..=64).contains(count)).ok_or("a count is 1 to 64")
}

fn parse_whole(text: &str) -> Result<u32, &'static str> {
    text.parse().or(Err("it is a whole number"))
}
