//! What is done to the pods and their store, one after another, step by step. After each deed every
//! pod is probed.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::bail;

use super::clock::{micros, now_us};
use super::conductor::{Conductor, STEP_TIME_MAX};
use super::crew::PodId;
use super::options::Options;
use super::protocol::{Command, Join};
use super::score::{Kind, Trouble};

/// The step under way.
#[derive(Debug, Clone)]
enum Step {
    None,
    NewcomerJoins { old: PodId, newcomer: PodId },
    MembersMove { old: PodId },
    OldDrains { old: PodId },
    KilledMends { again: PodId },
    StoreReturns { at_us: u64 },
    PodsAreProbed { waiting: BTreeSet<PodId> },
}

/// What is done when, and what is being done.
#[derive(Debug)]
pub(crate) struct Deeds {
    /// After how many things said.
    plan: VecDeque<(u64, Kind)>,
    step: Step,
    step_ends_us: u64,
    /// Half of what is left to be said when the last deed begins.
    last_late_after: u64,
    outage: Duration,
}

impl Deeds {
    /// Rolls and kills by turns, and the outage of the store in the middle, spread evenly over the
    /// talk.
    pub(crate) fn new(options: &Options, events: u64) -> Self {
        let (mut rolls, mut kills) = (options.rolls, options.kills);
        let mut deeds = Vec::new();
        while rolls + kills > 0 {
            if rolls >= kills {
                rolls -= 1;
                deeds.push(Kind::Roll);
            } else {
                kills -= 1;
                deeds.push(Kind::Kill);
            }
        }
        if options.outage.is_some() {
            deeds.insert(deeds.len() / 2, Kind::Outage);
        }
        let count = deeds.len() as u64;
        let due = (1..=count).map(|index| events * index / (count + 1));
        let plan = due.zip(deeds).collect();
        Self {
            plan,
            step: Step::None,
            step_ends_us: 0,
            last_late_after: events - events / (count + 1) / 2,
            outage: Duration::from_secs(options.outage.unwrap_or(0)),
        }
    }

    /// Whether all is done.
    pub(crate) fn are_done(&self) -> bool {
        self.plan.is_empty() && matches!(self.step, Step::None)
    }

    /// Whether a deed still lasts although what was meant to be said meanwhile has been said.
    pub(crate) fn are_late(&self, said: u64) -> bool {
        let late_after = self.plan.front().map_or(self.last_late_after, |(at, _)| *at);
        !matches!(self.step, Step::None) && said >= late_after
    }
}

impl Conductor {
    /// Goes one step on if the one under way is done, or begins what is due after `said` things.
    pub(crate) fn do_deeds(&mut self, said: u64) -> anyhow::Result<()> {
        match self.deeds.step.clone() {
            Step::None => match self.deeds.plan.front() {
                Some(&(at, deed)) if said >= at => {
                    self.deeds.plan.pop_front();
                    self.begin(deed)?;
                }
                Some(_) | None => {}
            },
            Step::NewcomerJoins { old, newcomer } if self.up.contains(&newcomer) => {
                let members = self.stage.members_of(old);
                self.announce(&format!("{} members move to the newcomer", members.len()));
                self.open_hubs(members, &[newcomer], Join::Nothing);
                self.step(Step::MembersMove { old });
            }
            Step::MembersMove { old } if self.stage.is_settled() => {
                self.announce(&format!("{} drains", self.crew.name(old)));
                self.up.retain(|up| *up != old);
                self.crew.tell(old, &Command::Drain);
                self.step(Step::OldDrains { old });
            }
            Step::OldDrains { old } if !self.crew.all().contains(&old) => self.mended(),
            Step::KilledMends { again } if self.up.contains(&again) && self.stage.is_settled() => {
                self.mended();
            }
            Step::StoreReturns { at_us } if now_us() >= at_us => {
                self.announce("the store is started again");
                self.postgres.as_ref().expect("it was stopped").go_on()?;
                self.mended();
            }
            Step::PodsAreProbed { waiting } if waiting.is_empty() => {
                self.deeds.step = Step::None;
                self.announce("all pods stand again");
            }
            Step::NewcomerJoins { .. }
            | Step::MembersMove { .. }
            | Step::OldDrains { .. }
            | Step::KilledMends { .. }
            | Step::StoreReturns { .. }
            | Step::PodsAreProbed { .. } => {
                if now_us() > self.deeds.step_ends_us {
                    bail!("{:?} took longer than {STEP_TIME_MAX:?}", self.deeds.step);
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, deed: Kind) -> anyhow::Result<()> {
        match deed {
            Kind::Roll => self.begin_roll(),
            Kind::Kill => self.begin_kill(),
            Kind::Outage => self.begin_outage(),
        }
    }

    fn begin_outage(&mut self) -> anyhow::Result<()> {
        let outage = self.deeds.outage;
        self.trouble(Kind::Outage, format!("no store for {outage:?}"));
        self.postgres.as_ref().expect("the options were checked").stop()?;
        self.step(Step::StoreReturns { at_us: now_us() + micros(outage) });
        self.deeds.step_ends_us += micros(outage);
        Ok(())
    }

    fn begin_roll(&mut self) -> anyhow::Result<()> {
        let old = *self.up.first().expect("there are always two pods or more");
        let newcomer = self.start_pod()?;
        let what = format!("roll {} to {}", self.crew.name(old), self.crew.name(newcomer));
        self.trouble(Kind::Roll, what);
        self.step(Step::NewcomerJoins { old, newcomer });
        Ok(())
    }

    fn begin_kill(&mut self) -> anyhow::Result<()> {
        let members_of = |pod: &PodId| self.stage.members_of(*pod).len();
        let victim = self.up.iter().copied().max_by_key(members_of);
        let victim = victim.expect("there are always two pods or more");
        let name = self.crew.name(victim).to_owned();
        self.trouble(Kind::Kill, format!("kill -9 {name}"));
        self.crew.kill(victim)?;
        self.killed.insert(victim);
        self.up.retain(|up| *up != victim);
        self.open_hubs(self.stage.members_of(victim), &self.up.clone(), Join::Nothing);
        let again = self.crew.start(&name)?;
        self.step(Step::KilledMends { again });
        Ok(())
    }

    fn trouble(&mut self, kind: Kind, what: String) {
        self.announce(&what);
        let began_us = now_us();
        self.score.troubles.push(Trouble {
            kind,
            what,
            began_us,
            took_us: 0,
            outage_us: 0,
            probes: Vec::new(),
        });
    }

    fn step(&mut self, step: Step) {
        self.deeds.step = step;
        self.deeds.step_ends_us = now_us() + micros(STEP_TIME_MAX);
    }

    /// What the deed broke stands again: whether lines come everywhere is for every pod to say.
    fn mended(&mut self) {
        if let Some(trouble) = self.score.troubles.last_mut() {
            trouble.took_us = now_us() - trouble.began_us;
        }
        let rooms: BTreeSet<String> = self.cast.members.values().flatten().cloned().collect();
        let rooms: Vec<String> = rooms.into_iter().collect();
        for pod in self.up.clone() {
            self.crew.tell(pod, &Command::Probe { rooms: rooms.clone() });
        }
        self.step(Step::PodsAreProbed { waiting: self.up.iter().copied().collect() });
    }

    /// A pod has been probed.
    pub(crate) fn probed(&mut self, pod: PodId, passed: u32, failed: &[String]) {
        for why in failed {
            self.announce(&format!("{} was probed in vain: {why}", self.crew.name(pod)));
        }
        if let Step::PodsAreProbed { waiting } = &mut self.deeds.step {
            waiting.remove(&pod);
        }
        if let Some(trouble) = self.score.troubles.last_mut() {
            trouble.probes.push(passed);
        }
    }
}
