//! Drawing a plan from a seed: which nemeses are on in this run, how often they come, and what each
//! does.

use std::fmt;
use std::time::Duration;

use super::super::random::stream;
use super::{Fault, Options, Plan, Slot, Step};

/// Each nemesis: its name, how often it is drawn against the others, and what it does.
const NEMESES: &[(&str, u32, Nemesis)] = &[
    ("kill", 9, Draw::kill),
    ("roll", 3, |_, at, steps| steps.push(Step { at, fault: Fault::Roll })),
    ("drain", 3, Draw::drain),
    ("pause", 6, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::Pause(draw.slot(), draw.between(0, 20)) });
    }),
    ("slow", 3, |draw, at, steps| {
        let (slot, stall) = (draw.slot(), draw.millis(1, 40));
        steps.push(Step { at, fault: Fault::Slow(slot, stall, draw.between(1, 15)) });
    }),
    ("late", 2, |draw, at, steps| {
        let (slot, by) = (draw.slot(), draw.millis(20, 5_000));
        steps.push(Step { at, fault: Fault::Late(slot, by, draw.between(1, 15)) });
    }),
    ("jump", 3, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::Jump(draw.slot(), draw.between(1, 3600)) });
    }),
    ("reset", 4, |draw, at, steps| draw.between_two(at, Fault::Reset, steps)),
    ("tear", 3, |draw, at, steps| draw.between_two(at, Fault::Tear, steps)),
    ("half-open", 3, |draw, at, steps| draw.between_two(at, Fault::HalfOpen, steps)),
    ("mute", 3, |draw, at, steps| {
        let ((from, to), span) = (draw.pair(), draw.between(0, 15));
        steps.push(Step { at, fault: Fault::Mute(from, to, span) });
    }),
    ("split", 6, |draw, at, steps| {
        let ((one, other), span) = (draw.pair(), draw.between(0, 15));
        steps.push(Step { at, fault: Fault::Split(one, other, span) });
    }),
    ("isolate", 3, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::Isolate(draw.slot(), draw.between(0, 15)) });
    }),
    ("flap", 2, |draw, at, steps| {
        let ((one, other), period) = (draw.pair(), draw.millis(50, 2_000));
        steps.push(Step { at, fault: Fault::Flap(one, other, period, draw.between(2, 30)) });
    }),
    ("refuse", 3, |draw, at, steps| {
        let ((from, to), span) = (draw.pair(), draw.between(0, 12));
        steps.push(Step { at, fault: Fault::Refuse(from, to, span) });
    }),
    ("delay", 3, |draw, at, steps| {
        let ((one, other), by) = (draw.pair(), draw.millis(20, 500));
        steps.push(Step { at, fault: Fault::Delay(one, other, by, draw.between(1, 20)) });
    }),
    ("lose", 3, |draw, at, steps| {
        let ((one, other), share) = (draw.pair(), draw.random.u16(20..=250));
        steps.push(Step { at, fault: Fault::Lose(one, other, share, draw.between(1, 20)) });
    }),
    ("no-files", 2, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::NoFiles(draw.slot(), draw.between(1, 15)) });
    }),
    ("hints", 3, Draw::hints),
    ("store-down", 1, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::StoreDown(draw.between(1, 40)) });
    }),
    ("store-hang", 1, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::StoreHang(draw.between(1, 45)) });
    }),
    ("store-delay", 1, |draw, at, steps| {
        let by = draw.millis(20, 1_500);
        steps.push(Step { at, fault: Fault::StoreDelay(by, draw.between(1, 20)) });
    }),
    ("store-lose", 1, |draw, at, steps| {
        let share = draw.random.u16(50..=500);
        steps.push(Step { at, fault: Fault::StoreLose(share, draw.between(1, 20)) });
    }),
    ("store-cut", 1, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::StoreCut(draw.slot(), draw.between(1, 25)) });
    }),
    ("store-reset", 1, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::StoreReset(draw.slot()) });
    }),
    ("store-lag", 1, |draw, at, steps| {
        steps.push(Step { at, fault: Fault::StoreLag(draw.between(0, 20)) });
    }),
];

type Nemesis = fn(&mut Draw, Duration, &mut Vec<Step>);

/// Which nemeses a run has, and how long they leave it alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swarm {
    on: Vec<usize>,
    pause_min_s: u64,
    pause_max_s: u64,
}

impl Swarm {
    /// The swarm of a seed: half of all nemeses each time, in one run of four all of them.
    pub fn drawn(seed: u64) -> Self {
        let mut random = stream(seed, "swarm");
        let all = random.u8(..4) == 0;
        let mut on: Vec<usize> = (0..NEMESES.len()).filter(|_| all || random.bool()).collect();
        if on.is_empty() {
            on = (0..NEMESES.len()).collect();
        }
        let paces = [(6, 45), (6, 45), (3, 20), (15, 60)];
        let (pause_min_s, pause_max_s) = paces[random.usize(..paces.len())];
        Self { on, pause_min_s, pause_max_s }
    }

    /// One of its nemeses, by its weight.
    fn pick(&self, random: &mut fastrand::Rng) -> Nemesis {
        let sum: u32 = self.on.iter().map(|index| NEMESES[*index].1).sum();
        let mut drawn = random.u32(..sum);
        for index in &self.on {
            let (_, weight, nemesis) = NEMESES[*index];
            if drawn < weight {
                return nemesis;
            }
            drawn -= weight;
        }
        unreachable!("a number below the sum of the weights is one of theirs")
    }
}

impl fmt::Display for Swarm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.on.iter().map(|index| NEMESES[*index].0).collect();
        let (min, max) = (self.pause_min_s, self.pause_max_s);
        write!(out, "# every {min} to {max} s one of: {}", names.join(" "))
    }
}

impl Plan {
    /// The plan that a seed stands for: at least five faults, among them a kill and a roll.
    pub fn from_seed(options: Options) -> Self {
        let swarm = Swarm::drawn(options.seed);
        let mut draw = Draw { random: stream(options.seed, "plan"), silos: options.silos };
        let mut steps = Vec::new();
        let mut at = draw.between(8, 20);
        let end = options.safety.saturating_sub(Duration::from_secs(30));
        while at < end {
            swarm.pick(&mut draw.random)(&mut draw, at, &mut steps);
            at += draw.between(swarm.pause_min_s, swarm.pause_max_s);
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
}

/// Draws faults.
struct Draw {
    random: fastrand::Rng,
    silos: u16,
}

impl Draw {
    fn between(&mut self, from_s: u64, to_s: u64) -> Duration {
        self.millis(from_s * 1000, to_s * 1000)
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.u64(from..=to))
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

    fn between_two(&mut self, at: Duration, fault: fn(Slot, Slot) -> Fault, steps: &mut Vec<Step>) {
        let (one, other) = self.pair();
        steps.push(Step { at, fault: fault(one, other) });
    }

    fn kill(&mut self, at: Duration, steps: &mut Vec<Step>) {
        let slot = self.slot();
        match self.random.u8(..8) {
            0 | 1 => {
                steps.push(Step { at, fault: Fault::Restart(slot) });
                self.hinder_newcomer(at, slot, steps);
            }
            2 | 3 => self.ended(at, slot, Fault::Vanish(slot), steps),
            _ => self.ended(at, slot, Fault::Kill(slot), steps),
        }
    }

    fn drain(&mut self, at: Duration, steps: &mut Vec<Step>) {
        let slot = self.slot();
        steps.push(Step { at, fault: Fault::Drain(slot) });
        let back = at + self.between(1, 30);
        steps.push(Step { at: back, fault: Fault::Start(slot) });
    }

    fn hints(&mut self, at: Duration, steps: &mut Vec<Step>) {
        let span = self.between(2, 60);
        let fault = match self.random.u8(..4) {
            0 => Fault::HintsLost(span),
            1 => Fault::HintsDoubled(span),
            2 => Fault::HintsLate(self.millis(20, 10_000), span),
            _ => Fault::HintsForged(span),
        };
        steps.push(Step { at, fault });
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
        let soon = start + self.millis(1, 40);
        let (at, fault) = match self.random.u8(..10) {
            0 => (soon, Fault::StoreLose(self.random.u16(200..=700), self.between(2, 8))),
            1 => (soon, Fault::StoreDown(self.between(1, 4))),
            2 => (soon, Fault::StoreReset(slot)),
            // Ranges move to the newcomer: who gives them ends.
            3 | 4 if self.silos > 2 => {
                let other = Slot(slot.0 % self.silos + 1);
                let at = start + self.millis(5, 1_500);
                steps.push(Step { at: at + self.between(1, 5), fault: Fault::Start(other) });
                (at, Fault::Kill(other))
            }
            5 if self.silos > 1 => {
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
}
