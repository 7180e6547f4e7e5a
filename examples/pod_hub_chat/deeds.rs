//! What is done to the pods: rolls and kills, one after another, step by step.

use std::collections::VecDeque;

use anyhow::bail;

use super::clock::{micros, now_us};
use super::conductor::{Conductor, STEP_TIME_MAX};
use super::crew::PodId;
use super::options::Options;
use super::protocol::{Command, Join};
use super::score::{Kind, Trouble};

/// The step under way.
#[derive(Debug, Clone, Copy)]
enum Step {
    None,
    NewcomerJoins { old: PodId, newcomer: PodId },
    MembersMove { old: PodId },
    OldDrains { old: PodId },
    KilledMends { again: PodId },
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
}

impl Deeds {
    /// Rolls and kills by turns, spread evenly over the talk.
    pub(crate) fn new(options: &Options, events: u64) -> Self {
        let (mut rolls, mut kills) = (options.rolls, options.kills);
        let count = u64::from(rolls) + u64::from(kills);
        let mut plan = VecDeque::new();
        for index in 1..=count {
            let deed = if rolls >= kills { Kind::Roll } else { Kind::Kill };
            match deed {
                Kind::Roll => rolls -= 1,
                Kind::Kill => kills -= 1,
            }
            plan.push_back((events * index / (count + 1), deed));
        }
        Self {
            plan,
            step: Step::None,
            step_ends_us: 0,
            last_late_after: events - events / (count + 1) / 2,
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
        match self.deeds.step {
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
            Step::OldDrains { old } if !self.crew.all().contains(&old) => self.end(),
            Step::KilledMends { again } if self.up.contains(&again) && self.stage.is_settled() => {
                self.end();
            }
            Step::NewcomerJoins { .. }
            | Step::MembersMove { .. }
            | Step::OldDrains { .. }
            | Step::KilledMends { .. } => {
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
        }
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
        self.score.troubles.push(Trouble { kind, what, began_us, took_us: 0, outage_us: 0 });
    }

    fn step(&mut self, step: Step) {
        self.deeds.step = step;
        self.deeds.step_ends_us = now_us() + micros(STEP_TIME_MAX);
    }

    fn end(&mut self) {
        self.deeds.step = Step::None;
        if let Some(trouble) = self.score.troubles.last_mut() {
            trouble.took_us = now_us() - trouble.began_us;
        }
        self.announce("all pods stand again");
    }
}
