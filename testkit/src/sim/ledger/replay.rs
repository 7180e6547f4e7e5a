//! A run of real processes, judged by the ledger: their journals, put in one order, are replayed on
//! a scene, as if a simulated world had run them.
//!
//! What differs from a world is only what a machine is: outcomes may be later by [`SLACK`], since
//! others share its processors. Deliveries that were open when their sender's process ended are
//! excused, exactly those; a sender that was not scheduled hears once it is again. Order is not
//! asked for across a connection that ended, as told by the silos' own logs.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring_core::{DeliveryFailure, Moment};
use siloring_runtime::envelope::EventInfo;

use super::events::{EventEnd, ran_event, subscribed};
use super::{Counts, DeliveryId, Sent, Source, ran};
use crate::process::journal::{Entry, Sending, What};
use crate::sim::scene::Scene;
use crate::sim::world::{HostId, ProcessId};

/// How much later than promised a loaded machine may let a program hear.
pub const SLACK: Duration = Duration::from_secs(3);
/// After the last entry everything is due.
const END: Duration = Duration::from_hours(1);
/// Violations told at most.
const TOLD_MAX: usize = 16;

/// A process of a run.
#[derive(Debug)]
pub struct Life {
    /// For texts.
    pub name: String,
    /// What it wrote.
    pub journal: Vec<Entry>,
    /// When it ended, if it did before the run did.
    pub ended: Option<Moment>,
    /// When it was not scheduled: from, until.
    pub unscheduled: Vec<(Moment, Moment)>,
}

/// A connection between two processes, by their places in the run, ended.
#[derive(Clone, Copy, Debug)]
pub struct Break {
    /// When.
    pub at: Moment,
    /// One of them.
    pub one: usize,
    /// The other.
    pub other: usize,
}

/// What a run came to.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What was counted.
    pub counts: Counts,
    /// Deliveries whose sender lived and did not hear in time.
    pub silent: usize,
    /// Handlers that ran twice for one delivery.
    pub doubled: usize,
    /// What was broken, the first ones.
    pub violations: Vec<String>,
}

/// Judges a run.
pub fn judge(lives: &[Life], breaks: &[Break]) -> Verdict {
    let mut replay = Replay::new(lives);
    let mut steps: Vec<(Moment, Step<'_>)> = Vec::new();
    for (process, life) in lives.iter().enumerate() {
        steps.extend(life.journal.iter().map(|entry| (entry.at, Step::Entry(process, entry))));
        steps.extend(life.ended.map(|at| (at, Step::Ended(process))));
    }
    steps.extend(breaks.iter().map(|broken| (broken.at, Step::Broke(broken.one, broken.other))));
    steps.sort_by_key(|(at, step)| (*at, step.rank()));
    let last = steps.last().map_or(Moment::ZERO, |(at, _)| *at);
    for (at, step) in steps {
        replay.look_for_late(at);
        replay.take(at, &step);
    }
    replay.look_for_late(last + END);
    replay.verdict()
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Entry(usize, &'a Entry),
    Broke(usize, usize),
    Ended(usize),
}

impl Step<'_> {
    /// What comes first of what happened at once: a delivery before its run, a run before its end.
    const fn rank(&self) -> u8 {
        match self {
            Self::Broke(..) => 0,
            Self::Entry(_, entry) => match entry.what {
                What::Subscribed { .. } => 1,
                What::Began { .. } => 2,
                What::Ran { .. } | What::RanEvent { .. } => 3,
                What::Ended { .. } | What::Dropped { .. } => 4,
            },
            Self::Ended(_) => 5,
        }
    }
}

struct Replay<'a> {
    lives: &'a [Life],
    scene: Rc<Scene>,
    sources: BTreeMap<(usize, u32), Source>,
    ids: BTreeMap<u64, DeliveryId>,
    open: BTreeMap<u64, Sent>,
    /// What each delivery's sender is waiting with.
    sendings: BTreeMap<u64, Sending>,
    silent: usize,
    told: Vec<String>,
}

impl<'a> Replay<'a> {
    fn new(lives: &'a [Life]) -> Self {
        let scene = Rc::new(Scene::default());
        let hosts = (0..lives.len()).map(|index| HostId(small(index)));
        scene.hosts.borrow_mut().extend(hosts);
        scene.enter();
        Self {
            lives,
            scene,
            sources: BTreeMap::new(),
            ids: BTreeMap::new(),
            open: BTreeMap::new(),
            sendings: BTreeMap::new(),
            silent: 0,
            told: Vec::new(),
        }
    }

    fn take(&mut self, at: Moment, step: &Step<'_>) {
        self.scene.now.set(at);
        let before = self.scene.violations().len();
        let text = match step {
            Step::Broke(one, other) => {
                self.scene.note_break(HostId(small(*one)), HostId(small(*other)));
                return;
            }
            Step::Ended(process) => return self.end(*process),
            Step::Entry(process, entry) => {
                self.scene.process.set(Some(ProcessId(small(*process).into())));
                self.enter(*process, &entry.what);
                format!("{at:?} {}: {}", self.lives[*process].name, entry.what)
            }
        };
        for violation in self.scene.violations().iter().skip(before) {
            self.told.push(format!("{}: {} [{text}]", violation.invariant, violation.detail));
        }
    }

    fn end(&self, process: usize) {
        self.scene.ledger.borrow_mut().process_ended(ProcessId(small(process).into()));
        for other in (0..self.lives.len()).filter(|other| *other != process) {
            self.scene.note_break(HostId(small(process)), HostId(small(other)));
        }
    }

    fn enter(&mut self, process: usize, what: &What) {
        match what {
            What::Began { id, source, sending, budget, target } => {
                let source = *self.sources.entry((process, *source)).or_default();
                let sent = match sending {
                    Sending::Request => source.sent(target, *budget),
                    Sending::OneWay => source.sent_one_way(target, *budget),
                    Sending::Publish => source.published(target, *budget),
                };
                self.ids.insert(*id, sent.id());
                self.open.insert(*id, sent);
                self.sendings.insert(*id, *sending);
            }
            What::Ran { id, attempt } => match self.ids.get(id) {
                Some(id) => ran(*id, *attempt),
                None => self.scene.violate("what runs was sent", what.to_string()),
            },
            What::RanEvent { id, attempt, stream, key, epoch, position, activation } => {
                let event = EventInfo {
                    stream: stream.clone(),
                    subscription: key.as_str().into(),
                    epoch: *epoch,
                    position: *position,
                    missed: 0,
                    attempt: *attempt,
                    origin: 0,
                    number: 0,
                };
                match self.ids.get(id) {
                    Some(id) => ran_event(*id, &event, *activation),
                    None => self.scene.violate("what runs was sent", what.to_string()),
                }
            }
            What::Ended { id, end } => {
                let Some(sent) = self.open.remove(id) else {
                    return self.scene.violate("P0 exactly one outcome", what.to_string());
                };
                let failure = DeliveryFailure::from_code(end.code, None, "");
                match (self.sendings[id], end.code) {
                    (Sending::Request | Sending::OneWay, 0) => sent.close(None),
                    (Sending::Request | Sending::OneWay, _) => sent.close(Some(&failure)),
                    (Sending::Publish, 0) => {
                        sent.close_event(EventEnd::Through { failed: end.failed });
                    }
                    (Sending::Publish, _) => sent.close_event(EventEnd::Failed(&failure)),
                }
            }
            // What the ledger makes of that is in how it takes a `Sent` that is dropped.
            What::Dropped { id } => drop(self.open.remove(id)),
            What::Subscribed { stream, key } => subscribed(stream, key),
        }
    }

    /// Finds senders that should have heard by `now`, whatever the machine was busy with.
    fn look_for_late(&mut self, now: Moment) {
        let slack = u64::try_from(SLACK.as_nanos()).unwrap_or(u64::MAX);
        let at = Moment::from_nanos(now.as_nanos().saturating_sub(slack));
        let due = self.scene.ledger.borrow_mut().take_due(at);
        for (id, sender) in due {
            let life = &self.lives[sender.0 as usize];
            let asleep = life.unscheduled.iter().find(|(from, until)| *from <= at && at < *until);
            let mut ledger = self.scene.ledger.borrow_mut();
            if let Some((_, until)) = asleep {
                ledger.put_off(id, *until);
                continue;
            }
            self.silent += 1;
            let text = ledger.describe(id);
            self.told.push(format!("P0 an outcome in time: {} {text}", life.name));
        }
    }

    fn verdict(self) -> Verdict {
        let counts = self.scene.ledger.borrow().counts().clone();
        let is_doubled = |text: &&String| text.contains("runs twice");
        let doubled = self.told.iter().filter(is_doubled).count();
        let silent = self.silent;
        let mut violations = self.told;
        violations.truncate(TOLD_MAX);
        Verdict { counts, silent, doubled, violations }
    }
}

fn small(index: usize) -> u16 {
    u16::try_from(index).expect("a run has few processes")
}

#[cfg(test)]
mod tests {
    use siloring_core::{Address, RejectedKind};

    use super::*;
    use crate::process::journal::End;

    fn began(id: u64, sending: Sending) -> What {
        let target = Address::parse("test/one").unwrap();
        What::Began { id, source: 0, sending, budget: Duration::from_secs(1), target }
    }

    fn ended(id: u64, code: u16) -> What {
        What::Ended { id, end: End { code, failed: 0, value: None } }
    }

    fn life(name: &str, entries: &[(u64, What)]) -> Life {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let entry = |(seconds, what): &(u64, What)| Entry { at: at(*seconds), what: what.clone() };
        Life {
            name: name.to_owned(),
            journal: entries.iter().map(entry).collect(),
            ended: None,
            unscheduled: Vec::new(),
        }
    }

    fn seconds(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_sound_run_has_nothing_to_tell() {
        let sender = life(
            "ann",
            &[
                (1, began(1, Sending::Request)),
                (2, began(2, Sending::OneWay)),
                (2, ended(1, 0)),
                (3, What::Dropped { id: 2 }),
            ],
        );
        let ran = |id| What::Ran { id, attempt: 1 };
        let verdict = judge(&[sender, life("bob", &[(1, ran(1)), (2, ran(2))])], &[]);
        assert_eq!(verdict.violations, Vec::<String>::new());
        assert_eq!((verdict.counts.sent, verdict.counts.handled, verdict.silent), (2, 2, 0));
    }

    #[test]
    fn a_sender_that_hears_nothing_or_late_is_seen_unless_it_ended_or_slept() {
        let silent = || life("ann", &[(1, began(1, Sending::Request))]);
        assert_eq!(judge(&[silent()], &[]).silent, 1);
        let dead = Life { ended: Some(seconds(2)), ..silent() };
        let verdict = judge(&[dead], &[]);
        assert_eq!((verdict.silent, verdict.counts.orphaned), (0, 1));
        let rejected = RejectedKind::Draining.code();
        let late = || life("ann", &[(1, began(1, Sending::Request)), (9, ended(1, rejected))]);
        assert_eq!(judge(&[late()], &[]).silent, 1);
        let slept = Life { unscheduled: vec![(seconds(1), seconds(8))], ..late() };
        assert_eq!(judge(&[slept], &[]).silent, 0);
    }

    #[test]
    fn a_doubled_run_a_second_outcome_and_a_rejected_one_that_ran_are_seen() {
        let ran = |id| (2, What::Ran { id, attempt: 1 });
        let doubled = judge(
            &[life("ann", &[(1, began(1, Sending::Request)), ran(1), ran(1), (3, ended(1, 0))])],
            &[],
        );
        assert_eq!((doubled.doubled, doubled.violations.len()), (1, 1), "{doubled:?}");
        let twice = judge(
            &[life(
                "ann",
                &[(1, began(1, Sending::Request)), ran(1), (3, ended(1, 0)), (3, ended(1, 0))],
            )],
            &[],
        );
        assert_eq!(twice.violations.len(), 1, "{twice:?}");
        let code = RejectedKind::Moving.code();
        let rejected = judge(
            &[life("ann", &[(1, began(1, Sending::Request)), ran(1), (3, ended(1, code))])],
            &[],
        );
        assert_eq!(rejected.violations.len(), 1, "{rejected:?}");
        let unsent = judge(&[life("ann", &[ran(1)])], &[]);
        assert_eq!(unsent.violations.len(), 1, "{unsent:?}");
    }

    #[test]
    fn order_is_asked_for_unless_a_connection_ended() {
        let entries = [
            (1, began(1, Sending::OneWay)),
            (1, began(2, Sending::OneWay)),
            (4, What::Dropped { id: 1 }),
            (4, What::Dropped { id: 2 }),
        ];
        let runs = [(2, What::Ran { id: 2, attempt: 1 }), (3, What::Ran { id: 1, attempt: 1 })];
        let lives = [life("ann", &entries), life("bob", &runs)];
        assert_eq!(judge(&lives, &[]).violations.len(), 1);
        let broken = Break { at: seconds(2), one: 1, other: 0 };
        assert_eq!(judge(&lives, &[broken]).violations.len(), 0);
    }
}
