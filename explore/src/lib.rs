//! Small worlds explored whole: every order of every step, from a start to the world's own bounds.
//!
//! **Contract.** A [`World`] holds machines as they are built into the product, what is on its way
//! between them, and how much may still go wrong. [`explore`] takes every sequence of its steps and
//! holds each state against the world's rules; it also sees that each mark is reached, so that no
//! rule holds because nothing happened. [`refute`] does the same with a deliberate defect, which
//! must break the rule that is named.
//!
//! **States.** Machines need neither be copied nor sent to another thread: a state is the sequence
//! of steps that leads to it, and its world is made anew by taking them. Two states are one if what
//! [`World::print`] writes of them is equal: that must be all that decides about their futures.
//!
//! **Bounds.** The world's own, and a number of steps. States visited are counted, printed and held
//! against a number that was seen before: a world that shrinks by mistake fails.
//!
//! Deliberately absent: time and entropy (a world gives its machines both), liveness without
//! bounds: that something comes about is a rule of a state in which nothing more can go wrong.

use std::fmt::{self, Debug, Write};
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Names the file to which what was counted is added, a line a figure: a name, a tab, a number. The
/// test kit has its own way there: it knows the product, of which nothing may be known here.
pub const FIGURES_VARIABLE: &str = "SILORING_FIGURES";

/// Is set if worlds are to be explored further than usual.
pub const LONG_VARIABLE: &str = "SILORING_LONG";

/// Whether worlds are to be explored further than usual.
pub fn is_long() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some()
}

/// Machines, what is between them, and what may happen to them.
pub trait World: Sized + 'static {
    /// What the world is made with: bounds and defects.
    type Setup: Debug + Send + Sync + 'static;
    /// One thing that may happen.
    type Step: Clone + PartialEq + Debug + Send + Sync + 'static;
    /// What it is called in what is printed.
    const NAME: &'static str;
    /// What must hold in each state, [`TESTS_MAX`] rules at most.
    const RULES: &'static [Rule<Self>];
    /// What must be so in some state, [`TESTS_MAX`] marks at most.
    const MARKS: &'static [Mark<Self>];

    /// The world before the first step.
    fn new(setup: &Self::Setup) -> Self;
    /// What may happen now, in a fixed order.
    fn steps(&self) -> Vec<Self::Step>;
    /// Lets it happen.
    fn take(&mut self, step: &Self::Step);
    /// Writes all that decides about the world's future, and what its rules and marks look at.
    fn print(&self, out: &mut dyn Write) -> fmt::Result;
}

/// A test of a world, by name.
#[derive(Debug)]
pub struct Test<W> {
    /// What it says, as a sentence.
    pub name: &'static str,
    /// Whether it is so.
    pub holds: fn(&W) -> bool,
}

/// What must hold in each state.
pub type Rule<W> = Test<W>;
/// What must be so in some state.
pub type Mark<W> = Test<W>;

/// Rules of one world, and marks: the checker asks for each by a function of its own.
pub const TESTS_MAX: usize = 8;

/// What an exploration came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explored {
    /// States that differ.
    pub states: usize,
    /// Steps taken to find them.
    pub taken: usize,
    /// Most steps to one of them.
    pub depth: usize,
}

/// Explores the world to `depth_max` steps: every rule holds, every mark is reached but those that
/// this setup has `no` way to in so many steps, and there are at least `states_min` states.
///
/// # Panics
/// If not, with the steps that lead there.
pub fn explore<W: World>(
    setup: W::Setup,
    depth_max: usize,
    states_min: usize,
    no: &[&str],
) -> Explored {
    let label = format!("{setup:?}");
    // One step of the checker's is the start.
    let found = Replayed::<W>::of(setup).checker().threads(1).target_max_depth(depth_max + 1);
    let found = found.spawn_bfs().join();
    let explored = Explored {
        states: found.unique_state_count(),
        taken: found.state_count(),
        depth: found.max_depth().saturating_sub(1),
    };
    say(&format!(
        "explored {}: {} states, {} steps, depth {}; {label}",
        W::NAME,
        explored.states,
        explored.taken,
        explored.depth
    ));
    figure(&format!("model: {}, states", W::NAME), explored.states);
    for rule in W::RULES {
        if let Some(path) = found.discovery(rule.name) {
            panic!("{}: broken: {}\n{:#?}", W::NAME, rule.name, path.into_actions());
        }
    }
    let marks = W::MARKS.iter().map(|mark| mark.name);
    let (reached, never): (Vec<_>, Vec<_>) =
        marks.partition(|mark| found.discovery(mark).is_some());
    let further = is_long() && never.iter().all(|mark| no.contains(mark));
    assert!(never == no || further, "{}: marks: {never:?} not, {reached:?} reached", W::NAME);
    assert!(explored.states >= states_min, "{}: only {explored:?}", W::NAME);
    explored
}

/// Explores a world with a defect until a rule breaks, which must be `rule`. Gives the steps.
///
/// # Panics
/// If none does, or another one.
pub fn refute<W: World>(setup: W::Setup, depth_max: usize, rule: &'static str) -> Vec<W::Step> {
    let label = format!("{setup:?}");
    let found = Replayed::<W>::of(setup).checker().threads(1).target_max_depth(depth_max + 1);
    let found = found.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let broken: Vec<&str> =
        W::RULES.iter().map(|r| r.name).filter(|name| found.discovery(name).is_some()).collect();
    let states = found.unique_state_count();
    assert!(broken.contains(&rule), "{}: {broken:?} in {states} states; {label}", W::NAME);
    let steps = found.discovery(rule).expect("just seen").into_actions();
    let count = steps.len();
    say(&format!("refuted {}: {rule}: {count} steps, {states} states; {label}", W::NAME));
    figure(&format!("model: {}, defects found", W::NAME), 1);
    steps
}

/// Adds to the figures, if they are asked for. Several tests add at once: one write of one line.
fn figure(name: &str, value: usize) {
    let Some(path) = std::env::var_os(FIGURES_VARIABLE).filter(|_| !cfg!(test)) else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let added = file.and_then(|mut file| {
        io::Write::write_all(&mut file, format!("{name}\t{value}\n").as_bytes())
    });
    added.expect("the file of figures can be written");
}

#[expect(clippy::print_stdout, reason = "whoever runs a test reads what it explored")]
fn say(line: &str) {
    println!("{line}");
}

/// A world as the checker sees it.
struct Replayed<W: World> {
    setup: W::Setup,
}

/// The steps to a state, the last one first.
struct Path<S> {
    step: S,
    before: Option<Arc<Self>>,
}

struct State<S> {
    path: Option<Arc<Path<S>>>,
    digest: u64,
    /// One bit for each rule that is broken.
    broken: u8,
    /// One bit for each mark that is reached.
    marked: u8,
    steps: Arc<[S]>,
}

impl<S> Clone for State<S> {
    fn clone(&self) -> Self {
        let (path, steps) = (self.path.clone(), Arc::clone(&self.steps));
        Self { path, digest: self.digest, broken: self.broken, marked: self.marked, steps }
    }
}

impl<S> Debug for State<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.digest)
    }
}

impl<S> Hash for State<S> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.digest);
    }
}

impl<S> PartialEq for State<S> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl<W: World> Replayed<W> {
    fn of(setup: W::Setup) -> Self {
        assert!(W::RULES.len() <= TESTS_MAX, "a rule has a function of its own");
        assert!(W::MARKS.len() <= TESTS_MAX, "a mark has a function of its own");
        Self { setup }
    }

    /// Makes the world of a state anew.
    fn world(&self, path: Option<&Arc<Path<W::Step>>>) -> W {
        let mut steps = Vec::new();
        let mut next = path;
        while let Some(path) = next {
            steps.push(&path.step);
            next = path.before.as_ref();
        }
        let mut world = W::new(&self.setup);
        steps.into_iter().rev().for_each(|step| world.take(step));
        world
    }

    fn state(world: &W, path: Option<Arc<Path<W::Step>>>) -> State<W::Step> {
        let mut digest = Digest(DefaultHasher::new());
        world.print(&mut digest).expect("a digest takes everything");
        let bits = |tests: &[Test<W>], wanted: bool| {
            let each = tests.iter().enumerate();
            each.fold(0, |bits, (at, test)| bits | u8::from((test.holds)(world) == wanted) << at)
        };
        State {
            path,
            digest: digest.0.finish(),
            broken: bits(W::RULES, false),
            marked: bits(W::MARKS, true),
            steps: world.steps().into(),
        }
    }
}

struct Digest(DefaultHasher);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl<W: World> Model for Replayed<W> {
    type State = State<W::Step>;
    type Action = W::Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![Self::state(&W::new(&self.setup), None)]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        // What is broken is shown by the steps that broke it, not by what came after.
        if state.broken == 0 {
            actions.extend(state.steps.iter().cloned());
        }
    }

    fn next_state(&self, last: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut world = self.world(last.path.as_ref());
        world.take(&action);
        let path = Path { step: action, before: last.path.clone() };
        Some(Self::state(&world, Some(Arc::new(path))))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        type Condition<W> = fn(&Replayed<W>, &State<<W as World>::Step>) -> bool;
        let unbroken: [Condition<W>; TESTS_MAX] = [
            is_unbroken::<W, 0>,
            is_unbroken::<W, 1>,
            is_unbroken::<W, 2>,
            is_unbroken::<W, 3>,
            is_unbroken::<W, 4>,
            is_unbroken::<W, 5>,
            is_unbroken::<W, 6>,
            is_unbroken::<W, 7>,
        ];
        let marked: [Condition<W>; TESTS_MAX] = [
            is_marked::<W, 0>,
            is_marked::<W, 1>,
            is_marked::<W, 2>,
            is_marked::<W, 3>,
            is_marked::<W, 4>,
            is_marked::<W, 5>,
            is_marked::<W, 6>,
            is_marked::<W, 7>,
        ];
        let rules = W::RULES.iter().zip(unbroken);
        let rules = rules.map(|(rule, holds)| Property::always(rule.name, holds));
        let marks = W::MARKS.iter().zip(marked);
        let marks = marks.map(|(mark, holds)| Property::sometimes(mark.name, holds));
        rules.chain(marks).collect()
    }
}

fn is_unbroken<W: World, const AT: usize>(_: &Replayed<W>, state: &State<W::Step>) -> bool {
    state.broken & 1 << AT == 0
}

fn is_marked<W: World, const AT: usize>(_: &Replayed<W>, state: &State<W::Step>) -> bool {
    state.marked & 1 << AT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts to its bound, by ones and, with a defect, by twos.
    struct Counter {
        bound: u32,
        by_twos: bool,
        value: u32,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct By(u32);

    impl World for Counter {
        type Setup = (u32, bool);
        type Step = By;
        const NAME: &'static str = "counter";
        const RULES: &'static [Rule<Self>] =
            &[Rule { name: "it stops at its bound", holds: |world| world.value <= world.bound }];
        const MARKS: &'static [Mark<Self>] =
            &[Mark { name: "it gets there", holds: |world| world.value == world.bound }];

        fn new(&(bound, by_twos): &Self::Setup) -> Self {
            Self { bound, by_twos, value: 0 }
        }

        fn steps(&self) -> Vec<By> {
            let mut steps = Vec::new();
            steps.extend((self.value < self.bound).then_some(By(1)));
            steps.extend((self.by_twos && self.value < self.bound).then_some(By(2)));
            steps
        }

        fn take(&mut self, step: &By) {
            self.value += step.0;
        }

        fn print(&self, out: &mut dyn Write) -> fmt::Result {
            write!(out, "{}", self.value)
        }
    }

    #[test]
    fn a_world_is_explored_to_its_bound_and_to_the_given_depth() {
        let explored = explore::<Counter>((5, false), 100, 6, &[]);
        assert_eq!(explored, Explored { states: 6, taken: 6, depth: 5 });
    }

    #[test]
    fn a_defect_is_shown_by_the_fewest_steps() {
        let steps = refute::<Counter>((3, true), 100, "it stops at its bound");
        assert_eq!(steps, [By(2), By(2)]);
    }

    #[test]
    #[should_panic(expected = "marks: [\"it gets there\"] not")]
    fn a_mark_that_is_not_reached_fails() {
        explore::<Counter>((5, false), 4, 1, &[]);
    }

    #[test]
    #[should_panic(expected = "only Explored")]
    fn a_world_that_has_shrunk_fails() {
        explore::<Counter>((5, false), 100, 7, &[]);
    }

    #[test]
    #[should_panic(expected = "in 6 states")]
    fn a_defect_that_shows_nothing_fails() {
        refute::<Counter>((5, false), 100, "it stops at its bound");
    }
}
