//! The hand-over of a queue from owner to owner, every order of steps.
//!
//! **State.** Two owners' queues, as the product runs them; one publisher's window, as
//! `publish.rs` keeps it: an event without an outcome is sent again, with the lowest number that
//! has none; consumers that handle each number once and refuse an older owner, as the runtime's
//! `dedup.rs` does; frames, reports and answers on their way, in any order. **Steps.** The
//! publisher sends; anything on its way arrives, or is lost with its link; an owner hands out what
//! is ready; the second owner begins while the first has been killed or goes on as if nothing had
//! happened; time passes for those who wait. **Bounds.** [`Plan`]. **Abstracted away.** Who
//! subscribes, filters, dead letters (no attempt is the last), the agents that bring batches to a
//! silo, deadlines.

use core::fmt::{self, Write};

use siloring_core::limits::REDELIVERY_BACKOFF_MAX;
use siloring_core::outcome::{IndeterminateKind, RejectedKind};
use siloring_explore::{Mark, Rule, World, explore, is_long, refute};

use super::*;

const HEARD: &str = "an event that its publisher hears is handled was handled by every consumer";
const ONCE: &str = "no consumer handles an event twice";
const LATEST: &str = "no consumer takes from an owner after a later one";
const ORDERED: &str = "a consumer handles the events of a publisher in order";
const ENDED: &str = "when nothing more can happen every event has its outcome";

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    /// A consumer forgets what it has handled.
    NoWindow,
    /// A consumer takes from any owner.
    AnyOwner,
    /// A publisher says that all earlier events have their outcomes.
    BaseAhead,
    /// An event that waits for an earlier one is not asked for anew.
    HeldForEver,
    /// A consumer that was lost on the way counts as through.
    LossConfirms,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Plan {
    events: u64,
    consumers: usize,
    /// Frames and reports that are lost.
    losses: u8,
    /// How often time passes.
    waits: u8,
    defect: Option<Defect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Send(u64),
    /// What is on its way arrives…
    Arrive(usize),
    /// …or does not.
    Lose(usize),
    HandOut(usize),
    /// The second owner begins; the first is dead, or does not know of it.
    Succeed(Old),
    /// The publisher hears that its owner is another.
    Redirect(u64),
    /// An owner asks anew for an event that it holds for its turn.
    LetGo(u64),
    Wait,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Old {
    Killed,
    Unaware,
}

/// An event, to its publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Window {
    /// To be sent, again if it was sent.
    Open,
    /// With that owner.
    With(usize),
    Done,
}

#[derive(Clone, PartialEq, Debug)]
enum Way {
    Publish { number: u64, base: u64, owner: usize },
    Frame { owner: usize, consumer: usize, batch: Batch, numbers: Vec<u64> },
    Report { owner: usize, consumer: usize, done: usize, refused: bool },
    Answer { owner: usize, number: u64, summary: Summary },
}

#[derive(Clone, Default, PartialEq, Debug)]
struct Handler {
    epoch: usize,
    handled: Vec<u64>,
}

struct HandOver {
    plan: Plan,
    now: Moment,
    windows: Vec<Window>,
    owners: Vec<Option<Queue>>,
    /// Each owner's names of the consumers.
    keys: Vec<Vec<ConsumerKey>>,
    handlers: Vec<Handler>,
    ways: Vec<Way>,
    losses: u8,
    waits: u8,
    resent: bool,
    refused: bool,
    was_held: bool,
    broken: [bool; 5],
}

const START: Moment = Moment::from_nanos(1_000_000_000);

impl HandOver {
    fn begin_owner(&mut self) {
        let mut queue = Queue::new(StreamPolicy::default());
        let attach = |index: usize| queue.attach(&format!("{index}"), false, None).0;
        self.keys.push((0..self.plan.consumers).map(attach).collect());
        self.owners.push(Some(queue));
    }

    fn base(&self) -> u64 {
        let open = self.windows.iter().position(|window| *window != Window::Done);
        open.map_or(self.plan.events, |index| index as u64) + 1
    }

    fn window(&mut self, number: u64) -> &mut Window {
        &mut self.windows[usize::try_from(number - 1).expect("a world is small")]
    }

    fn send(&mut self, number: u64) {
        let owner = self.owners.len() - 1;
        let ahead = self.plan.defect == Some(Defect::BaseAhead);
        let base = if ahead { number } else { self.base() };
        *self.window(number) = Window::With(owner);
        self.ways.push(Way::Publish { number, base, owner });
    }

    /// The publisher has no answer of that owner's, and will not have one.
    fn reopen(&mut self, number: u64, owner: usize) {
        if *self.window(number) == Window::With(owner) {
            *self.window(number) = Window::Open;
            self.resent = true;
        }
    }

    fn publish(&mut self, number: u64, base: u64, owner: usize) {
        let Some(queue) = &mut self.owners[owner] else { return self.reopen(number, owner) };
        let event = NewEvent {
            origin: Origin { lane: 7, number },
            base,
            attempts_before: 0,
            schema: Schema::NONE,
            body: Body::copy_of(&[0]),
            deadline: Moment::NEVER,
            waiting: number,
            skipped: Vec::new(),
        };
        match queue.publish(self.now, event) {
            Published::Queued(_) | Published::Known(_) => {}
            Published::Held => self.was_held = true,
            Published::Closed(summary) => self.ways.push(Way::Answer { owner, number, summary }),
            Published::Refused(_) => self.reopen(number, owner),
        }
        self.collect(owner);
    }

    fn collect(&mut self, owner: usize) {
        while let Some(output) = self.owners[owner].as_mut().and_then(Queue::poll_output) {
            match output {
                QueueOutput::Closed { waiting, summary } => {
                    let answer = |number| Way::Answer { owner, number, summary: summary.clone() };
                    self.ways.extend(waiting.into_iter().map(answer));
                }
                QueueOutput::Refused { waiting, .. } => self.reopen(waiting, owner),
                QueueOutput::DeadLetter { .. }
                | QueueOutput::Evict { .. }
                | QueueOutput::Gap { .. } => panic!("{output:?}"),
            }
        }
        // Of one event sent twice to one owner, the publisher waits for one answer.
        self.ways.dedup();
    }

    fn hand_out(&mut self, owner: usize) {
        let queue = self.owners[owner].as_mut().expect("it is alive");
        for (key, batch) in queue.take_ready(self.now) {
            let number = |&(position, _): &(u64, u8)| queue.event(position).0.number;
            let numbers = batch.positions.iter().map(number).collect();
            let consumer =
                self.keys[owner].iter().position(|one| *one == key).expect("it was let in");
            self.ways.push(Way::Frame { owner, consumer, batch, numbers });
        }
    }

    fn handle(&mut self, owner: usize, consumer: usize, numbers: &[u64]) {
        let defect = self.plan.defect;
        let handler = &mut self.handlers[consumer];
        let refused = owner < handler.epoch && defect != Some(Defect::AnyOwner);
        self.refused |= refused;
        if !refused {
            self.broken[2] |= owner < handler.epoch;
            handler.epoch = handler.epoch.max(owner);
            for number in numbers {
                let is_known = handler.handled.contains(number);
                if !is_known || defect == Some(Defect::NoWindow) {
                    self.broken[1] |= is_known;
                    self.broken[3] |= handler.handled.iter().any(|other| other > number);
                    handler.handled.push(*number);
                }
            }
        }
        let done = if refused { 0 } else { numbers.len() };
        self.ways.push(Way::Report { owner, consumer, done, refused });
    }

    fn report(&mut self, owner: usize, consumer: usize, report: Report) {
        let key = self.keys[owner][consumer];
        if let Some(queue) = &mut self.owners[owner] {
            queue.report(self.now, key, report);
            self.collect(owner);
        }
    }

    fn arrive(&mut self, index: usize) {
        match self.ways.remove(index) {
            Way::Publish { number, base, owner } => self.publish(number, base, owner),
            Way::Frame { owner, consumer, numbers, .. } => self.handle(owner, consumer, &numbers),
            Way::Report { owner, consumer, done, refused } => {
                let moving = || DeliveryFailure::rejected(RejectedKind::Moving, "a later owner");
                let failure = refused.then(moving);
                self.report(owner, consumer, Report::Ran { done, failure, reply: None });
            }
            Way::Answer { owner, number, summary } => {
                if *self.window(number) == Window::With(owner) {
                    *self.window(number) = Window::Done;
                    let all = self.handlers.iter().all(|one| one.handled.contains(&number));
                    self.broken[0] |= summary.handled > 0 && !all;
                }
            }
        }
    }

    fn lose(&mut self, index: usize) {
        self.losses -= 1;
        match self.ways.remove(index) {
            Way::Frame { owner, consumer, .. } | Way::Report { owner, consumer, .. } => {
                let kind = IndeterminateKind::LostAfterHandOver;
                let lost = Report::Lost(DeliveryFailure::indeterminate(kind, "its link broke"));
                let through = Report::Ran { done: 1, failure: None, reply: None };
                let confirms = self.plan.defect == Some(Defect::LossConfirms);
                self.report(owner, consumer, if confirms { through } else { lost });
            }
            Way::Publish { number, owner, .. } | Way::Answer { number, owner, .. } => {
                self.reopen(number, owner);
            }
        }
    }

    fn succeed(&mut self, old: Old) {
        self.begin_owner();
        if old == Old::Killed {
            self.owners[0] = None;
            self.ways.retain(|way| match way {
                // What it sent may arrive yet; what was to come to it, or is its word, does not.
                Way::Frame { .. } | Way::Publish { .. } => true,
                Way::Report { .. } | Way::Answer { .. } => false,
            });
            (1..=self.plan.events).for_each(|number| self.reopen(number, 0));
        }
    }

    fn is_held(&self, number: u64) -> bool {
        let Window::With(owner) =
            self.windows[usize::try_from(number - 1).expect("a world is small")]
        else {
            return false;
        };
        let lane = self.owners[owner].as_ref().and_then(|queue| queue.lanes.get(&7));
        lane.is_some_and(|lane| lane.held.get(&number).is_some_and(Option::is_some))
    }

    fn possible(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, way) in self.ways.iter().enumerate() {
            steps.push(Step::Arrive(index));
            // A frame of an owner that is dead is lost to nobody who waits.
            let is_told = matches!(way, Way::Publish { owner, .. } | Way::Frame { owner, .. }
                | Way::Report { owner, .. } | Way::Answer { owner, .. }
                if self.owners[*owner].is_some());
            steps.extend((self.losses > 0 && is_told).then_some(Step::Lose(index)));
        }
        for number in 1..=self.plan.events {
            let window = self.windows[usize::try_from(number - 1).expect("a world is small")];
            steps.extend((window == Window::Open).then_some(Step::Send(number)));
            let is_moved = window == Window::With(0) && self.owners.len() > 1;
            steps.extend(is_moved.then_some(Step::Redirect(number)));
            let asks = self.plan.defect != Some(Defect::HeldForEver);
            steps.extend((asks && self.is_held(number)).then_some(Step::LetGo(number)));
            if window == Window::Open {
                break;
            }
        }
        for (owner, queue) in self.owners.iter().enumerate() {
            let wakes = queue.as_ref().is_some_and(|queue| queue.next_wake() <= self.now);
            steps.extend(wakes.then_some(Step::HandOut(owner)));
        }
        if self.owners.len() == 1 {
            steps.extend([Step::Succeed(Old::Killed), Step::Succeed(Old::Unaware)]);
        }
        let sleeps = |queue: &Queue| {
            let wake = queue.next_wake();
            wake > self.now && wake <= self.now + REDELIVERY_BACKOFF_MAX
        };
        let sleeps = self.owners.iter().flatten().any(sleeps);
        steps.extend((self.waits > 0 && sleeps).then_some(Step::Wait));
        steps
    }
}

impl World for HandOver {
    type Setup = Plan;
    type Step = Step;
    const NAME: &'static str = "queue hand-over";
    const RULES: &'static [Rule<Self>] = &[
        Rule { name: HEARD, holds: |world| !world.broken[0] },
        Rule { name: ONCE, holds: |world| !world.broken[1] },
        Rule { name: LATEST, holds: |world| !world.broken[2] },
        Rule { name: ORDERED, holds: |world| !world.broken[3] },
        Rule { name: ENDED, holds: |world| !world.broken[4] },
    ];
    const MARKS: &'static [Mark<Self>] = &[
        Mark { name: "an old owner is refused", holds: |world| world.refused },
        Mark { name: "an event is sent again", holds: |world| world.resent },
        Mark { name: "an event waits for an earlier one", holds: |world| world.was_held },
        Mark {
            name: "every event has its outcome",
            holds: |world| world.windows.iter().all(|window| *window == Window::Done),
        },
    ];

    fn new(plan: &Plan) -> Self {
        let mut world = Self {
            plan: *plan,
            now: START,
            windows: vec![Window::Open; usize::try_from(plan.events).expect("a world is small")],
            owners: Vec::new(),
            keys: Vec::new(),
            handlers: vec![Handler::default(); plan.consumers],
            ways: Vec::new(),
            losses: plan.losses,
            waits: plan.waits,
            resent: false,
            refused: false,
            was_held: false,
            broken: [false; 5],
        };
        world.begin_owner();
        world
    }

    fn steps(&self) -> Vec<Step> {
        self.possible()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Send(number) => self.send(number),
            Step::Arrive(index) => self.arrive(index),
            Step::Lose(index) => self.lose(index),
            Step::HandOut(owner) => self.hand_out(owner),
            Step::Succeed(old) => self.succeed(old),
            Step::Redirect(number) => self.reopen(number, 0),
            Step::LetGo(number) => {
                let owner = self.owners.len() - 1;
                for owner in 0..=owner {
                    if *self.window(number) == Window::With(owner)
                        && let Some(queue) = &mut self.owners[owner]
                    {
                        queue.let_go(Origin { lane: 7, number });
                        self.reopen(number, owner);
                    }
                }
            }
            Step::Wait => {
                self.waits -= 1;
                self.now += REDELIVERY_BACKOFF_MAX;
            }
        }
        let is_done = self.windows.iter().all(|window| *window == Window::Done);
        self.broken[4] |= !is_done && self.waits > 0 && self.possible().is_empty();
    }

    fn print(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{:?}{:?}{:?}{:?}", self.now, self.windows, self.owners, self.keys)?;
        write!(out, "{:?}{:?}{}{}", self.handlers, self.ways, self.losses, self.waits)?;
        write!(out, "{}{}{}{:?}", self.resent, self.refused, self.was_held, self.broken)
    }
}

const PLAN: Plan = Plan { events: 2, consumers: 1, losses: 0, waits: 1, defect: None };

#[test]
fn nothing_acknowledged_is_skipped_and_nothing_confirmed_repeated_from_owner_to_owner() {
    explore::<HandOver>(PLAN, 60, 12_000, &[]);
    explore::<HandOver>(Plan { losses: 1, ..PLAN }, 60, 110_000, &[]);
}

#[test]
fn several_consumers_and_events_are_handed_over_alike() {
    let (depth_max, two, three) =
        if is_long() { (60, 1_100_000, 520_000) } else { (14, 24_000, 33_000) };
    explore::<HandOver>(Plan { consumers: 2, ..PLAN }, depth_max, two, &[]);
    explore::<HandOver>(Plan { events: 3, ..PLAN }, depth_max, three, &[]);
}

#[test]
fn each_rule_of_a_hand_over_breaks_without_what_holds_it() {
    let plan = |defect| Plan { defect: Some(defect), ..PLAN };
    refute::<HandOver>(plan(Defect::NoWindow), 20, ONCE);
    refute::<HandOver>(plan(Defect::AnyOwner), 20, LATEST);
    refute::<HandOver>(plan(Defect::BaseAhead), 20, ORDERED);
    refute::<HandOver>(plan(Defect::HeldForEver), 20, ENDED);
    refute::<HandOver>(Plan { losses: 1, ..plan(Defect::LossConfirms) }, 20, HEARD);
}
