//! The store's fence, in every order of requests, lost answers and late executions.
//!
//! **State.** The store in memory, which the conformance suite holds the others to; two activations
//! of one grain, one after the other, as `Ctx::load_state` and `Ctx::save_state` have them: a write
//! carries the fence and the etag of the last answer, and what is refused ends its activation.
//! **Steps.** An activation asks; the store executes any request that is on its way, in any order,
//! also one that its asker has given up; the answer is lost, or the request. Whoever hears nothing
//! may ask again. **Bounds.** [`Plan`]. **Abstracted away.** Groups and lanes (a request on its way
//! may be overtaken by any other), the bytes of a record (a number stands for them).

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use bytes::Bytes;
use siloring_core::ports::store::{
    Etag, StateKey, StateRecord, Store as _, StoreAnswer, StoreError, StoreRequest,
};
use siloring_core::schema::Schema;
use siloring_core::{ActivationNumber, Address, ClusterId, ViewNumber};
use siloring_explore::{Mark, Rule, World, explore, is_long, refute};
use siloring_storage::{MemorySnapshot, MemoryStore};

const FENCED: &str = "no write of an earlier activation commits after a later one's load";
const ONCE: &str = "no write is made twice";
const ORDERED: &str = "no write commits after one that was asked later and acknowledged";
const KEPT: &str = "a load gives what was acknowledged last, or what was written since";

/// A deliberate mistake of whoever asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    /// Both activations have one number.
    OneNumber,
    /// A write carries whatever fence the record has.
    AnyFence,
    /// A write carries whatever etag the record has.
    AnyEtag,
    /// A write of which nothing was heard is taken for made, and made again.
    AskedBlindly,
    /// A load reads from a replica that has not seen the last write.
    StaleRead,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Loads of each activation, and writes.
    loads: u8,
    writes: u8,
    defect: Option<Defect>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Load(usize),
    Write(usize),
    /// The store executes a request; whoever waits for it hears.
    Execute(usize),
    /// It executes it, and nobody hears.
    Unheard(usize),
    /// Its asker stops waiting; it may be executed yet.
    GiveUp(usize),
    /// It never comes to the store.
    Lose(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Idle,
    /// Waits for the request of this name.
    Waiting(u8),
    Ended,
}

#[derive(Clone, Debug)]
struct Activation {
    number: ActivationNumber,
    life: Life,
    etag: Option<Etag>,
    loads: u8,
    writes: u8,
    /// The write of which nothing was heard, if it was the last thing asked.
    doubted: Option<u8>,
}

#[derive(Clone, PartialEq, Debug)]
struct Asked {
    name: u8,
    by: usize,
    request: StoreRequest,
}

struct Fence {
    plan: Plan,
    store: MemoryStore,
    /// As it was before its last write.
    before: MemorySnapshot,
    activations: [Activation; 2],
    asked: Vec<Asked>,
    names: u8,
    /// How many activations have loaded: only the last of them may write.
    loaded: usize,
    /// How often each value was written.
    made: BTreeMap<u8, u8>,
    /// The newest value whose write was acknowledged, and what was written last.
    acknowledged: Option<u8>,
    content: Option<u8>,
    fenced: bool,
    conflicted: bool,
    broken: [bool; 4],
}

fn key() -> StateKey {
    StateKey { address: Address::of("cart", "7").unwrap(), name: "state".into() }
}

fn record(value: u8) -> StateRecord {
    StateRecord { schema: Schema::NONE, bytes: Bytes::copy_from_slice(&[value]) }
}

impl Fence {
    fn ask(&mut self, by: usize, request: StoreRequest) {
        self.names += 1;
        let name = self.names;
        self.activations[by].life = Life::Waiting(name);
        self.asked.push(Asked { name, by, request });
    }

    fn load(&mut self, by: usize) {
        let one = &mut self.activations[by];
        one.loads -= 1;
        one.doubted = None;
        let fence = one.number;
        self.ask(by, StoreRequest::LoadState { key: key(), fence });
    }

    fn write(&mut self, by: usize) {
        let one = &mut self.activations[by];
        one.writes -= 1;
        let blind = one.doubted.take().filter(|_| self.plan.defect == Some(Defect::AskedBlindly));
        let etag = one.etag.unwrap_or(Etag(0));
        let etag = if blind.is_some() { Etag(etag.0 + 1) } else { etag };
        let (fence, value) = (one.number, blind.unwrap_or(self.names + 1));
        let record = Some(record(value));
        self.ask(by, StoreRequest::WriteState { key: key(), fence, etag, record });
    }

    /// The request as it comes to the store.
    fn sent(&self, request: &StoreRequest) -> StoreRequest {
        let mut sent = request.clone();
        if let StoreRequest::WriteState { fence, etag, .. } = &mut sent {
            if self.plan.defect == Some(Defect::AnyFence) && self.loaded > 0 {
                *fence = self.activations[self.loaded - 1].number;
            }
            if self.plan.defect == Some(Defect::AnyEtag) {
                *etag = Etag(self.made.values().map(|count| u64::from(*count)).sum());
            }
        }
        sent
    }

    fn execute(&mut self, index: usize, heard: bool) {
        let Asked { name, by, request } = self.asked.remove(index);
        if matches!(request, StoreRequest::WriteState { .. }) {
            self.before = self.store.snapshot();
        } else if self.plan.defect == Some(Defect::StaleRead) {
            self.store.restore(&self.before);
        }
        let result = self.store.execute(&self.sent(&request));
        match (&request, &result) {
            (StoreRequest::LoadState { .. }, Ok(StoreAnswer::State { record, .. })) => {
                self.loaded = self.loaded.max(by + 1);
                let found = record.as_ref().map(|record| record.bytes[0]);
                self.broken[3] |= found != self.content || found < self.acknowledged;
            }
            (StoreRequest::WriteState { record, .. }, Ok(_)) => {
                let value = record.as_ref().expect("nothing is removed").bytes[0];
                let count = self.made.entry(value).or_default();
                *count += 1;
                self.broken[0] |= by + 1 < self.loaded;
                self.broken[1] |= *count > 1;
                self.broken[2] |= Some(value) < self.acknowledged;
                self.content = Some(value);
            }
            (_, Err(StoreError::Fenced)) => self.fenced = true,
            (_, Err(StoreError::Conflict)) => self.conflicted = true,
            (_, Ok(_) | Err(_)) => panic!("{request:?}: {result:?}"),
        }
        let is_awaited = self.activations[by].life == Life::Waiting(name);
        if !heard {
            return self.give_up(name, by, &request);
        }
        if !is_awaited {
            return;
        }
        let one = &mut self.activations[by];
        one.life = Life::Idle;
        match result {
            Ok(StoreAnswer::State { etag, .. }) => one.etag = Some(etag),
            Ok(StoreAnswer::Written(etag)) => {
                one.etag = Some(etag);
                self.acknowledged = self.content;
            }
            Ok(_) | Err(_) => one.life = Life::Ended,
        }
    }

    fn give_up(&mut self, name: u8, by: usize, request: &StoreRequest) {
        let one = &mut self.activations[by];
        if one.life == Life::Waiting(name) {
            one.life = Life::Idle;
            if let StoreRequest::WriteState { record: Some(record), .. } = request {
                one.doubted = Some(record.bytes[0]);
            }
        }
    }
}

impl World for Fence {
    type Setup = Plan;
    type Step = Step;
    const NAME: &'static str = "store's fence";
    const RULES: &'static [Rule<Self>] = &[
        Rule { name: FENCED, holds: |world| !world.broken[0] },
        Rule { name: ONCE, holds: |world| !world.broken[1] },
        Rule { name: ORDERED, holds: |world| !world.broken[2] },
        Rule { name: KEPT, holds: |world| !world.broken[3] },
    ];
    const MARKS: &'static [Mark<Self>] = &[
        Mark { name: "a write is fenced", holds: |world| world.fenced },
        Mark { name: "a write meets another etag", holds: |world| world.conflicted },
        Mark {
            name: "a later activation writes over an acknowledged write",
            holds: |world| world.acknowledged.is_some() && world.content > world.acknowledged,
        },
    ];

    fn new(plan: &Plan) -> Self {
        let number = |counter| ActivationNumber { view: ViewNumber(1), counter };
        let second = if plan.defect == Some(Defect::OneNumber) { 1 } else { 2 };
        let activation = |counter| Activation {
            number: number(counter),
            life: Life::Idle,
            etag: None,
            loads: plan.loads,
            writes: plan.writes,
            doubted: None,
        };
        let store = MemoryStore::new(ClusterId::new("carts").unwrap());
        Self {
            plan: *plan,
            before: store.snapshot(),
            store,
            activations: [activation(1), activation(second)],
            asked: Vec::new(),
            names: 0,
            loaded: 0,
            made: BTreeMap::new(),
            acknowledged: None,
            content: None,
            fenced: false,
            conflicted: false,
            broken: [false; 4],
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (by, one) in self.activations.iter().enumerate() {
            if one.life == Life::Idle {
                steps.extend((one.loads > 0).then_some(Step::Load(by)));
                let may_write = one.writes > 0 && one.etag.is_some();
                steps.extend(may_write.then_some(Step::Write(by)));
            }
        }
        for (index, asked) in self.asked.iter().enumerate() {
            steps.push(Step::Execute(index));
            if self.activations[asked.by].life == Life::Waiting(asked.name) {
                steps.extend([Step::Unheard(index), Step::GiveUp(index), Step::Lose(index)]);
            }
        }
        steps
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Load(by) => self.load(by),
            Step::Write(by) => self.write(by),
            Step::Execute(index) => self.execute(index, true),
            Step::Unheard(index) => self.execute(index, false),
            Step::GiveUp(index) => {
                let Asked { name, by, request } = self.asked[index].clone();
                self.give_up(name, by, &request);
            }
            Step::Lose(index) => {
                let Asked { name, by, request } = self.asked.remove(index);
                self.give_up(name, by, &request);
            }
        }
    }

    fn print(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{:?}{:?}{}", self.activations, self.asked, self.names)?;
        write!(out, "{:?}{}{:?}", self.store, self.loaded, self.made)?;
        write!(out, "{:?}{:?}{:?}", self.acknowledged, self.content, self.broken)?;
        write!(out, "{}{}", self.fenced, self.conflicted)
    }
}

#[test]
fn no_write_of_an_earlier_activation_commits_after_a_later_ones_load() {
    let (depth_max, states_min) = if is_long() { (40, 900_000) } else { (10, 27_000) };
    explore::<Fence>(Plan { loads: 2, writes: 2, defect: None }, depth_max, states_min, &[]);
}

#[test]
fn each_rule_of_the_fence_breaks_without_what_holds_it() {
    let plan = |defect| Plan { loads: 2, writes: 2, defect: Some(defect) };
    refute::<Fence>(plan(Defect::OneNumber), 40, FENCED);
    refute::<Fence>(plan(Defect::AnyFence), 40, FENCED);
    refute::<Fence>(plan(Defect::AnyEtag), 40, ORDERED);
    refute::<Fence>(plan(Defect::AskedBlindly), 40, ONCE);
    refute::<Fence>(plan(Defect::StaleRead), 40, KEPT);
}
