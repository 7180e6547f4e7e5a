//! A host: the states and turn futures of one grain type on one shard.
//!
//! Turn futures wait in slots that are used again, so that a steady flow of turns allocates
//! nothing. Every poll is under `catch_unwind`: a panic ends the activation, never the shard.

use core::cell::RefCell;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use siloring_core::body::Body;
use siloring_core::ids::MethodId;
use siloring_core::schema::Schema;
use siloring_core::versions::{BodyType, Carry, Versions};
use slab::Slab;

use crate::ctx::Ctx;
use crate::grain::{Grain, MethodSpec};
use crate::placement::Placement;
use crate::turn::{Turn, TurnOutput};

/// What a poll of a turn came to.
#[derive(Debug)]
pub(crate) enum Polled {
    Pending,
    Done(TurnOutput),
    Panicked(String),
}

/// What a shard knows of a grain type.
#[derive(Debug)]
pub(crate) struct HostSpec {
    pub(crate) kind: &'static str,
    /// In order of their ids.
    methods: Vec<(MethodId, &'static MethodSpec)>,
    pub(crate) placement: Placement,
    pub(crate) reentrant: bool,
    pub(crate) idle_after: Option<Duration>,
}

impl HostSpec {
    /// The method of that id.
    #[inline]
    pub(crate) fn method(&self, id: MethodId) -> Option<&'static MethodSpec> {
        let at = self.methods.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.methods[at].1)
    }
}

/// A grain type on one shard, its Rust type erased.
pub(crate) trait Host: fmt::Debug {
    fn spec(&self) -> &HostSpec;
    /// Makes a state; `None` if the type's `Default` panicked.
    fn create(&mut self) -> Option<u32>;
    fn remove(&mut self, state: u32);
    /// Makes a turn's future; it runs when polled.
    fn start(&mut self, state: u32, ctx: Ctx, method: MethodId, body: Body) -> u32;
    /// Polls a turn; after `Done` and `Panicked` its slot is free.
    fn poll(&mut self, turn: u32, cx: &mut Context<'_>) -> Polled;
    /// Drops a turn that has not ended.
    fn cancel(&mut self, turn: u32);
}

/// A grain type that a silo hosts: makes one host a shard.
#[derive(Clone)]
pub struct HostFactory {
    kind: &'static str,
    types: Vec<BodyType>,
    carriers: Vec<(Schema, Carry)>,
    make: Arc<dyn Fn() -> Box<dyn Host> + Send + Sync>,
}

impl HostFactory {
    /// For the grain type `G`.
    ///
    /// # Panics
    /// If two methods have one id; `#[grain_methods]` refuses that at compile time.
    pub fn of<G: Grain>() -> Self {
        Self {
            kind: G::TYPE,
            types: G::METHODS.iter().flat_map(|method| method.types(G::TYPE)).collect(),
            carriers: G::METHODS.iter().flat_map(MethodSpec::carriers).collect(),
            make: Arc::new(|| Box::new(typed::<G, _, _>(G::dispatch))),
        }
    }

    /// The kind of the type's addresses.
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// All types of a silo: what the methods of its grain types take and give, and messages that
    /// its program named beside.
    pub fn versions(hosts: &[Self], messages: &[BodyType]) -> Versions {
        let mut versions = Versions::default();
        let taken = hosts.iter().flat_map(|host| &host.types);
        taken.chain(messages).for_each(|added| versions.add(added.clone()));
        let carriers = hosts.iter().flat_map(|host| &host.carriers);
        carriers.for_each(|(schema, carry)| versions.add_carrier(*schema, *carry));
        versions
    }

    pub(crate) fn make(&self) -> Box<dyn Host> {
        (self.make)()
    }
}

impl fmt::Debug for HostFactory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "HostFactory({})", self.kind)
    }
}

struct Typed<G, F, D> {
    spec: HostSpec,
    dispatch: D,
    states: Slab<Rc<RefCell<G>>>,
    turns: Vec<Pin<Box<Option<F>>>>,
    free: Vec<u32>,
}

fn typed<G, F, D>(dispatch: D) -> Typed<G, F, D>
where
    G: Grain,
    F: Future<Output = TurnOutput> + 'static,
    D: Fn(Turn<G>) -> F + 'static,
{
    let mut methods: Vec<_> = G::METHODS.iter().map(|method| (method.id, method)).collect();
    methods.sort_unstable_by_key(|(id, _)| *id);
    let are_distinct = methods.windows(2).all(|pair| pair[0].0 != pair[1].0);
    assert!(are_distinct, "method ids of {} are distinct", G::TYPE);
    let spec = HostSpec {
        kind: G::TYPE,
        methods,
        placement: G::PLACEMENT,
        reentrant: G::REENTRANT,
        idle_after: G::IDLE_AFTER,
    };
    Typed { spec, dispatch, states: Slab::new(), turns: Vec::new(), free: Vec::new() }
}

impl<G, F, D> fmt::Debug for Typed<G, F, D> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Host({}, {} activations)", self.spec.kind, self.states.len())
    }
}

impl<G, F, D> Host for Typed<G, F, D>
where
    G: Grain,
    F: Future<Output = TurnOutput> + 'static,
    D: Fn(Turn<G>) -> F + 'static,
{
    fn spec(&self) -> &HostSpec {
        &self.spec
    }

    fn create(&mut self) -> Option<u32> {
        let state = catch_unwind(G::default).ok()?;
        let index = self.states.insert(Rc::new(RefCell::new(state)));
        Some(u32::try_from(index).expect("bounded by ACTIVATIONS_MAX"))
    }

    fn remove(&mut self, state: u32) {
        let state = self.states.remove(state as usize);
        // A destructor of the program's may panic; the activation has ended either way.
        drop(catch_unwind(AssertUnwindSafe(|| drop(state))));
    }

    fn start(&mut self, state: u32, ctx: Ctx, method: MethodId, body: Body) -> u32 {
        let state = Rc::clone(&self.states[state as usize]);
        let future = (self.dispatch)(Turn::new(state, ctx, method, body));
        if let Some(slot) = self.free.pop() {
            self.turns[slot as usize].set(Some(future));
            return slot;
        }
        let slot = u32::try_from(self.turns.len()).expect("bounded by the tasks");
        self.turns.push(Box::pin(Some(future)));
        slot
    }

    fn poll(&mut self, turn: u32, cx: &mut Context<'_>) -> Polled {
        let slot = &mut self.turns[turn as usize];
        let mut done = None;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let future = slot.as_mut().as_pin_mut().expect("a turn is polled until it ends");
            if let Poll::Ready(output) = future.poll(cx) {
                done = Some(output);
                slot.set(None);
            }
        }));
        match (done, polled) {
            (None, Ok(())) => Polled::Pending,
            (None, Err(panic)) => {
                self.cancel(turn);
                Polled::Panicked(panic_message(&*panic))
            }
            // A destructor that panics after its turn has ended takes nothing of that back.
            (Some(output), Ok(()) | Err(_)) => {
                self.free.push(turn);
                Polled::Done(output)
            }
        }
    }

    fn cancel(&mut self, turn: u32) {
        let slot = &mut self.turns[turn as usize];
        drop(catch_unwind(AssertUnwindSafe(|| slot.set(None))));
        self.free.push(turn);
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}
