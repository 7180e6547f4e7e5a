//! Plans: the options of a run and its faults, as text.
//!
//! A plan is recorded from a seed ([`Plan::from_seed`]), written, read, replayed and shrunk. One
//! line is one option (`seed 42`) or one step (`at 12.5s kill s2`); `#` starts a comment. The
//! parser is total: every text is a plan or a [`PlanError`] that names its line. Slots are called
//! `s1`, `s2`, …: a slot is a place in the cluster, held by one silo after another.

use std::fmt;
use std::time::Duration;

use super::random::stream;

/// A place in the cluster, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u16);

impl fmt::Display for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "s{}", self.0)
    }
}

/// Where silos are, as far as they can tell: their links differ by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Each on a host of its own: links are TCP.
    Apart,
    /// All on one: links are Unix sockets, found by name. (Faults still part them.)
    One,
}

impl fmt::Display for Hosts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Apart => "apart",
            Self::One => "one",
        })
    }
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
    /// Bytes that a connection holds in one direction before its writer has to wait.
    pub pipe_bytes: u32,
    /// A planted defect or a scenario's variant, by name.
    pub defect: Option<String>,
}

impl Options {
    /// The usual run under `seed`: three silos of two shards, ten minutes. Every fourth seed has
    /// pipes that a few frames fill, so that what waits behind them is seen.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            silos: 3,
            shards: 2,
            hosts: Hosts::Apart,
            safety: Duration::from_mins(10),
            load_per_second: 24,
            pipe_bytes: if seed % 4 == 3 { 256 } else { 256 * 1024 },
            defect: None,
        }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "seed {}", self.seed)?;
        writeln!(out, "silos {}", self.silos)?;
        writeln!(out, "shards {}", self.shards)?;
        writeln!(out, "hosts {}", self.hosts)?;
        writeln!(out, "safety {}", Span(self.safety))?;
        writeln!(out, "load {}", self.load_per_second)?;
        writeln!(out, "pipe {}", self.pipe_bytes)?;
        match &self.defect {
            Some(defect) => writeln!(out, "defect {defect}"),
            None => Ok(()),
        }
    }
}

/// Something that is done to the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// SIGKILL; connections are cut anywhere.
    Kill(Slot),
    /// The machine loses power; connections stay half-open.
    Vanish(Slot),
    /// A new silo starts in a slot that is empty.
    Start(Slot),
    /// SIGTERM.
    Drain(Slot),
    /// Every silo is replaced, one by one, newcomer first.
    Roll,
    /// Silos are started with this release of the program from now on, from 1.
    Version(u16),
    /// SIGSTOP, then SIGCONT.
    Pause(Slot, Duration),
    /// Each run of a thread takes so much longer, for so long.
    Slow(Slot, Duration, Duration),
    /// The clock jumps forward.
    Jump(Slot, Duration),
    /// Every connection between two slots is reset.
    Reset(Slot, Slot),
    /// Packets from the first to the second vanish, for so long.
    Mute(Slot, Slot, Duration),
    /// Packets between the two vanish both ways, for so long.
    Split(Slot, Slot, Duration),
    /// Packets between the slot and all others vanish, for so long.
    Isolate(Slot, Duration),
    /// Dials from the first to the second are refused, and their connections reset, for so long.
    Refuse(Slot, Slot, Duration),
    /// Packets between the two take so much longer, for so long.
    Delay(Slot, Slot, Duration, Duration),
    /// Of a thousand packets between the two so many are lost, for so long.
    Lose(Slot, Slot, u16, Duration),
    /// The store refuses everybody, for so long.
    StoreDown(Duration),
    /// The store accepts and never answers, for so long.
    StoreHang(Duration),
    /// The store takes so much longer, for so long.
    StoreDelay(Duration, Duration),
    /// Of a thousand answers of the store so many are lost after their effect, for so long.
    StoreLose(u16, Duration),
    /// The slot cannot reach the store, for so long.
    StoreCut(Slot, Duration),
    /// The store's replica hears of nothing for so long, then takes over: what was committed
    /// meanwhile is lost.
    StoreLag(Duration),
}

/// A fault and when it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Since the start of the safety phase.
    pub at: Duration,
    /// What.
    pub fault: Fault,
}

/// The options of a run and its steps, in order of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The options.
    pub options: Options,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Why a text is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}: {text:?}")]
pub struct PlanError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
    /// The line.
    pub text: String,
}

impl Plan {
    /// A plan without faults.
    pub const fn calm(options: Options) -> Self {
        Self { options, steps: Vec::new() }
    }

    /// Adds a step; steps may be added in any order.
    #[must_use]
    pub fn at(mut self, at: Duration, fault: Fault) -> Self {
        self.steps.push(Step { at, fault });
        self.steps.sort_by_key(|step| step.at);
        self
    }

    /// The plan that a seed stands for: at least five faults, among them a kill and a roll.
    pub fn from_seed(options: Options) -> Self {
        let mut draw = Draw { random: stream(options.seed, "plan"), silos: options.silos };
        let mut steps = Vec::new();
        let mut at = draw.between(8, 20);
        let end = options.safety.saturating_sub(Duration::from_secs(30));
        while at < end {
            draw.steps(at, &mut steps);
            at += draw.between(6, 45);
        }
        let rolls = steps.iter().any(|step| step.fault == Fault::Roll);
        if !rolls && end > Duration::from_mins(2) {
            steps.push(Step { at: Duration::from_secs(end.as_secs() / 2), fault: Fault::Roll });
        }
        // A drawn kill may meet a slot that is empty already: two more make sure of one.
        for part in [3, 5] {
            let slot = draw.slot();
            let at = Duration::from_secs(end.as_secs() * part / 7);
            draw.ended(at, slot, Fault::Kill(slot), &mut steps);
        }
        steps.sort_by_key(|step| step.at);
        Self { options, steps }
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// The first line that is neither an option nor a step.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut plan = Self::calm(Options::new(0));
        let mut lines = Vec::new();
        for (index, full) in text.lines().enumerate() {
            let bare = full.split('#').next().unwrap_or_default();
            let words: Vec<&str> = bare.split_whitespace().collect();
            let parsed = match words.as_slice() {
                [] => Ok(()),
                ["at", at, fault @ ..] => parse_step(at, fault).map(|step| {
                    plan.steps.push(step);
                    lines.push((index + 1, full));
                }),
                [name, value] => parse_option(&mut plan.options, name, value),
                _ => Err("neither an option nor a step"),
            };
            parsed.map_err(|problem| PlanError { line: index + 1, problem, text: full.into() })?;
        }
        // Options may follow the steps: only now it is known how many slots there are.
        let silos = plan.options.silos;
        for (step, (line, text)) in plan.steps.iter().zip(lines) {
            if step.fault.slots().into_iter().flatten().any(|slot| slot.0 > silos) {
                let problem = "no such slot: the cluster has fewer";
                return Err(PlanError { line, problem, text: text.into() });
            }
        }
        plan.steps.sort_by_key(|step| step.at);
        Ok(plan)
    }
}

impl Fault {
    /// Whom it is done to.
    const fn slots(self) -> [Option<Slot>; 2] {
        match self {
            Self::Kill(slot)
            | Self::Vanish(slot)
            | Self::Start(slot)
            | Self::Drain(slot)
            | Self::Pause(slot, _)
            | Self::Slow(slot, _, _)
            | Self::Jump(slot, _)
            | Self::Isolate(slot, _)
            | Self::StoreCut(slot, _) => [Some(slot), None],
            Self::Reset(one, other)
            | Self::Mute(one, other, _)
            | Self::Split(one, other, _)
            | Self::Refuse(one, other, _)
            | Self::Delay(one, other, _, _)
            | Self::Lose(one, other, _, _) => [Some(one), Some(other)],
            Self::Roll
            | Self::Version(_)
            | Self::StoreDown(_)
            | Self::StoreHang(_)
            | Self::StoreDelay(_, _)
            | Self::StoreLose(_, _)
            | Self::StoreLag(_) => [None, None],
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.options)?;
        for step in &self.steps {
            writeln!(out, "at {} {}", Span(step.at), step.fault)?;
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Kill(slot) => write!(out, "kill {slot}"),
            Self::Vanish(slot) => write!(out, "vanish {slot}"),
            Self::Start(slot) => write!(out, "start {slot}"),
            Self::Drain(slot) => write!(out, "drain {slot}"),
            Self::Roll => write!(out, "roll"),
            Self::Version(number) => write!(out, "version {number}"),
            Self::Pause(slot, span) => write!(out, "pause {slot} for {}", Span(span)),
            Self::Slow(slot, by, span) => {
                write!(out, "slow {slot} {} for {}", Span(by), Span(span))
            }
            Self::Jump(slot, by) => write!(out, "jump {slot} {}", Span(by)),
            Self::Reset(one, other) => write!(out, "reset {one} {other}"),
            Self::Mute(from, to, span) => write!(out, "mute {from} {to} for {}", Span(span)),
            Self::Split(one, other, span) => write!(out, "split {one} {other} for {}", Span(span)),
            Self::Isolate(slot, span) => write!(out, "isolate {slot} for {}", Span(span)),
            Self::Refuse(from, to, span) => write!(out, "refuse {from} {to} for {}", Span(span)),
            Self::Delay(one, other, by, span) => {
                write!(out, "delay {one} {other} {} for {}", Span(by), Span(span))
            }
            Self::Lose(one, other, per_mille, span) => {
                write!(out, "lose {one} {other} {per_mille} for {}", Span(span))
            }
            Self::StoreDown(span) => write!(out, "store-down for {}", Span(span)),
            Self::StoreHang(span) => write!(out, "store-hang for {}", Span(span)),
            Self::StoreDelay(by, span) => {
                write!(out, "store-delay {} for {}", Span(by), Span(span))
            }
            Self::StoreLose(per_mille, span) => {
                write!(out, "store-lose {per_mille} for {}", Span(span))
            }
            Self::StoreLag(span) => write!(out, "store-lag for {}", Span(span)),
            Self::StoreCut(slot, span) => write!(out, "store-cut {slot} for {}", Span(span)),
        }
    }
}

/// A span as plans write it: a whole number and the largest unit that keeps it one.
struct Span(Duration);

/// The units, largest first: name and nanoseconds.
const UNITS: [(&str, u128); 4] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        for (unit, size) in UNITS {
            if nanos.is_multiple_of(size) {
                return write!(out, "{}{unit}", nanos / size);
            }
        }
        Ok(())
    }
}

fn parse_span(text: &str) -> Result<Duration, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or("a span needs a unit")?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().or(Err("a span starts with a whole number"))?;
    let size = UNITS.iter().find(|(name, _)| *name == unit).ok_or("units are s, ms, us, ns")?;
    let nanos = u128::from(number) * size.1;
    u64::try_from(nanos).map(Duration::from_nanos).or(Err("the span is too long"))
}

fn parse_slot(text: &str) -> Result<Slot, &'static str> {
    let number = text.strip_prefix('s').ok_or("a slot is s1, s2, …")?;
    match number.parse() {
        Ok(number) if number > 0 => Ok(Slot(number)),
        Ok(_) | Err(_) => Err("a slot is s1, s2, …"),
    }
}

fn parse_per_mille(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|lost| *lost <= 1000).ok_or("a share is 0 to 1000 per mille")
}

fn parse_option(options: &mut Options, name: &str, value: &str) -> Result<(), &'static str> {
    match name {
        "seed" => options.seed = value.parse().or(Err("a seed is a whole number"))?,
        "silos" => options.silos = parse_count(value)?,
        "shards" => options.shards = parse_count(value)?,
        "hosts" => options.hosts = parse_hosts(value)?,
        "safety" => options.safety = parse_span(value)?,
        "load" => options.load_per_second = value.parse().or(Err("a load is a whole number"))?,
        "pipe" => options.pipe_bytes = value.parse().or(Err("a pipe is a whole number"))?,
        "defect" => options.defect = Some(value.to_owned()),
        _ => return Err("options are seed, silos, shards, hosts, safety, load, pipe, defect"),
    }
    Ok(())
}

fn parse_hosts(text: &str) -> Result<Hosts, &'static str> {
    let all = [Hosts::Apart, Hosts::One];
    all.into_iter().find(|hosts| hosts.to_string() == text).ok_or("hosts are apart or one")
}

fn parse_count(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|count| (1..=64).contains(count)).ok_or("a count is 1 to 64")
}

fn parse_step(at: &str, words: &[&str]) -> Result<Step, &'static str> {
    let at = parse_span(at)?;
    let fault = match *words {
        ["kill", slot] => Fault::Kill(parse_slot(slot)?),
        ["vanish", slot] => Fault::Vanish(parse_slot(slot)?),
        ["start", slot] => Fault::Start(parse_slot(slot)?),
        ["drain", slot] => Fault::Drain(parse_slot(slot)?),
        ["roll"] => Fault::Roll,
        ["version", number] => Fault::Version(parse_count(number)?),
        ["jump", slot, by] => Fault::Jump(parse_slot(slot)?, parse_span(by)?),
        ["reset", one, other] => Fault::Reset(parse_slot(one)?, parse_slot(other)?),
        [ref front @ .., "for", span] => parse_lasting(front, parse_span(span)?)?,
        _ => return Err("no such fault"),
    };
    Ok(Step { at, fault })
}

fn parse_lasting(words: &[&str], span: Duration) -> Result<Fault, &'static str> {
    Ok(match *words {
        ["pause", slot] => Fault::Pause(parse_slot(slot)?, span),
        ["slow", slot, by] => Fault::Slow(parse_slot(slot)?, parse_span(by)?, span),
        ["mute", from, to] => Fault::Mute(parse_slot(from)?, parse_slot(to)?, span),
        ["split", one, other] => Fault::Split(parse_slot(one)?, parse_slot(other)?, span),
        ["isolate", slot] => Fault::Isolate(parse_slot(slot)?, span),
        ["refuse", from, to] => Fault::Refuse(parse_slot(from)?, parse_slot(to)?, span),
        ["delay", one, other, by] => {
            Fault::Delay(parse_slot(one)?, parse_slot(other)?, parse_span(by)?, span)
        }
        ["lose", one, other, lost] => {
            Fault::Lose(parse_slot(one)?, parse_slot(other)?, parse_per_mille(lost)?, span)
        }
        ["store-down"] => Fault::StoreDown(span),
        ["store-hang"] => Fault::StoreHang(span),
        ["store-delay", by] => Fault::StoreDelay(parse_span(by)?, span),
        ["store-lose", lost] => Fault::StoreLose(parse_per_mille(lost)?, span),
        ["store-lag"] => Fault::StoreLag(span),
        ["store-cut", slot] => Fault::StoreCut(parse_slot(slot)?, span),
        _ => return Err("no such fault"),
    })
}

/// Draws faults.
struct Draw {
    random: fastrand::Rng,
    silos: u16,
}

impl Draw {
    fn between(&mut self, from_s: u64, to_s: u64) -> Duration {
        Duration::from_millis(self.random.u64(from_s * 1000..=to_s * 1000))
    }

    fn slot(&mut self) -> Slot {
        Slot(self.random.u16(1..=self.silos))
    }

    /// Two different slots; one slot twice in a cluster of one, which faults of paths ignore.
    fn pair(&mut self) -> (Slot, Slot) {
        let one = self.slot();
        let step = if self.silos > 1 { self.random.u16(1..self.silos) } else { 0 };
        (one, Slot((one.0 - 1 + step) % self.silos + 1))
    }

    fn kill(&mut self, at: Duration, steps: &mut Vec<Step>) {
        let slot = self.slot();
        let fault = if self.random.u8(..4) == 0 { Fault::Vanish(slot) } else { Fault::Kill(slot) };
        self.ended(at, slot, fault, steps);
    }

    /// A silo ends, and another starts in its slot: at once, or after its death was noticed.
    fn ended(&mut self, at: Duration, slot: Slot, fault: Fault, steps: &mut Vec<Step>) {
        let away =
            if self.random.bool() { Duration::from_millis(300) } else { self.between(1, 25) };
        steps.push(Step { at, fault });
        let start = at + away;
        steps.push(Step { at: start, fault: Fault::Start(slot) });
        self.hinder_newcomer(start, slot, steps);
    }

    /// A newcomer writes to the store and dials more than anybody: what fails it there finds the
    /// most.
    fn hinder_newcomer(&mut self, start: Duration, slot: Slot, steps: &mut Vec<Step>) {
        let soon = start + Duration::from_millis(self.random.u64(1..40));
        let (at, fault) = match self.random.u8(..8) {
            0 => (soon, Fault::StoreLose(self.random.u16(200..=700), self.between(2, 8))),
            1 => (soon, Fault::StoreDown(self.between(1, 4))),
            2 if self.silos > 1 => {
                let other = Slot(slot.0 % self.silos + 1);
                (
                    start.saturating_sub(Duration::from_millis(1)),
                    Fault::Pause(other, self.between(1, 9)),
                )
            }
            _ => return,
        };
        steps.push(Step { at, fault });
    }

    fn steps(&mut self, at: Duration, steps: &mut Vec<Step>) {
        let (one, other) = self.pair();
        let fault = match self.random.u8(..20) {
            0..=2 => return self.kill(at, steps),
            3 => Fault::Roll,
            4 => {
                steps.push(Step { at, fault: Fault::Drain(one) });
                let back = at + self.between(1, 30);
                steps.push(Step { at: back, fault: Fault::Start(one) });
                return;
            }
            5 | 6 => Fault::Pause(one, self.between(0, 20)),
            7 => {
                let stall = Duration::from_millis(self.random.u64(1..=40));
                Fault::Slow(one, stall, self.between(1, 15))
            }
            8 => Fault::Jump(one, self.between(1, 3600)),
            9 | 10 => Fault::Reset(one, other),
            11 => Fault::Mute(one, other, self.between(0, 15)),
            12 | 13 => Fault::Split(one, other, self.between(0, 15)),
            14 => Fault::Isolate(one, self.between(0, 15)),
            15 => Fault::Refuse(one, other, self.between(0, 12)),
            16 => {
                let delay = Duration::from_millis(self.random.u64(20..=500));
                Fault::Delay(one, other, delay, self.between(1, 20))
            }
            17 => Fault::Lose(one, other, self.random.u16(20..=250), self.between(1, 20)),
            _ => self.store(one),
        };
        steps.push(Step { at, fault });
    }

    fn store(&mut self, slot: Slot) -> Fault {
        match self.random.u8(..6) {
            0 => Fault::StoreDown(self.between(1, 40)),
            1 => Fault::StoreHang(self.between(1, 20)),
            2 => {
                let delay = Duration::from_millis(self.random.u64(20..=1500));
                Fault::StoreDelay(delay, self.between(1, 20))
            }
            3 => Fault::StoreLose(self.random.u16(50..=500), self.between(1, 20)),
            4 => Fault::StoreLag(self.between(0, 20)),
            _ => Fault::StoreCut(slot, self.between(1, 25)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drawn_plan_reads_back_as_itself() {
        for seed in 0..200 {
            let plan = Plan::from_seed(Options::new(seed));
            assert_eq!(Plan::parse(&plan.to_string()), Ok(plan));
        }
    }

    #[test]
    fn a_drawn_plan_has_five_faults_a_kill_and_a_roll() {
        for seed in 0..500 {
            let plan = Plan::from_seed(Options::new(seed));
            let killed = |step: &Step| matches!(step.fault, Fault::Kill(_) | Fault::Vanish(_));
            assert!(plan.steps.len() >= 5, "seed {seed}");
            assert!(plan.steps.iter().any(killed), "seed {seed}");
            assert!(plan.steps.iter().any(|step| step.fault == Fault::Roll), "seed {seed}");
        }
    }

    #[test]
    fn a_line_that_is_no_plan_is_named() {
        let broken = "seed 1\nat 5s kill s1 # fine\nat 5 kill s1\n";
        let error = Plan::parse(broken).unwrap_err();
        assert_eq!((error.line, error.problem), (3, "a span needs a unit"));
        let absent = Plan::parse("at 5s reset s1 s3\nsilos 2\n").unwrap_err();
        assert_eq!((absent.line, absent.text.as_str()), (1, "at 5s reset s1 s3"));
        for text in
            ["at 5s kill 1", "at 5s fly s1", "silos 0", "speed 3", "at 5s lose s1 s2 1001 for 1s"]
        {
            assert!(Plan::parse(text).is_err(), "{text}");
        }
    }
}
