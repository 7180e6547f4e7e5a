//! A shard alone in its silo, on virtual time: what its links, peers and clock have no part in.

use std::sync::{Mutex, PoisonError};

use siloring_core::ids::{Incarnation, MethodId, SiloName, ViewNumber};
use siloring_core::limits::HELD_REQUESTS_MAX;
use siloring_core::outcome::{CallError, DeliveryFailure, RejectedKind};
use siloring_core::schema::Layout;
use siloring_core::view::{SiloRow, SiloStatus};

use super::*;
use crate::call::Call;
use crate::ctx::Sleep;
use crate::grain::{Access, Grain, GrainRef, GrainType, MethodSpec, Placement, Turn, TurnOutput};
use crate::handle::{Post, PostError};
use crate::links::{LinkRefusal, Outgoing, Retracted, Sent};

const ME: Endpoint = Endpoint { silo: Generation(1), shard: ShardIndex(0) };
const PERIOD: Duration = Duration::from_millis(100);

/// Counts its calls as long as it lives; may be made to end itself by a timer of its own.
#[derive(Default)]
struct Counter {
    calls: u64,
}

impl GrainType for Counter {
    const TYPE: &'static str = "test.counter";
    const VERSION: u16 = 1;
    const PLACEMENT: Placement = Placement::PreferLocal;
    const REENTRANT: bool = false;
    const IDLE_AFTER: Option<Duration> = None;
    type Key = String;
}

const fn method(name: &'static str) -> MethodSpec {
    let (arguments, reply) = (<() as Layout>::LAYOUT, <u64 as Layout>::LAYOUT);
    MethodSpec::of::<Counter>(name, MethodId::of(name), arguments, reply, Access::Exclusive)
}

const ADD: MethodSpec = method("add");
/// Ends the activation.
const STOP: MethodSpec = method("stop");
/// A timer whose call ends the activation.
const STOP_BY_TIMER: MethodSpec = method("stop_by_timer");
/// The same, with a further call that was staged in the same poll.
const STOP_AND_ADD_BY_TIMER: MethodSpec = method("stop_and_add_by_timer");
/// The same, with a panic after the call was staged.
const STOP_AND_PANIC_BY_TIMER: MethodSpec = method("stop_and_panic_by_timer");

impl Grain for Counter {
    const METHODS: &'static [MethodSpec] =
        &[ADD, STOP, STOP_BY_TIMER, STOP_AND_ADD_BY_TIMER, STOP_AND_PANIC_BY_TIMER];

    async fn dispatch(turn: Turn<Self>) -> TurnOutput {
        let (ctx, id) = (turn.ctx(), turn.method());
        if id == ADD.id {
            turn.exclusive().calls += 1;
        } else if id == STOP.id {
            ctx.deactivate();
        } else if id == STOP_BY_TIMER.id {
            ctx.every::<Self, _, _>(PERIOD, |me| call(me, &STOP));
        } else if id == STOP_AND_ADD_BY_TIMER.id {
            ctx.every::<Self, _, _>(PERIOD, |me| {
                call(me, &STOP).one_way();
                call(me, &ADD)
            });
        } else if id == STOP_AND_PANIC_BY_TIMER.id {
            ctx.every::<Self, u64, core::convert::Infallible>(PERIOD, |me| {
                call(me, &STOP).one_way();
                panic!("the timer is broken")
            });
        } else {
            return turn.done();
        }
        turn.reply(&turn.exclusive().calls)
    }
}

fn call(counter: &GrainRef<Counter>, method: &MethodSpec) -> Call<u64> {
    counter.call(method, &())
}

/// The mail of the shard's only mailbox.
#[derive(Debug, Default)]
struct Mailbox(Mutex<VecDeque<ShardMail>>);

impl Mailbox {
    fn take(&self) -> Option<ShardMail> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Post for Mailbox {
    fn post(&self, _shard: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(mail);
        Ok(())
    }

    fn shards(&self) -> u16 {
        1
    }
}

#[derive(Debug)]
struct NoUnpark;

impl Unpark for NoUnpark {
    fn unpark(&self) {}
}

/// There are no peers.
#[derive(Debug)]
struct NoLinks;

impl Links for NoLinks {
    fn request(&mut self, _peer: Generation, _frame: &Outgoing<'_>) -> Result<Sent, LinkRefusal> {
        Err(LinkRefusal::NotUp)
    }

    fn outcome(&mut self, _conn: ConnId, _frame: &Outgoing<'_>) -> Result<(), LinkRefusal> {
        Err(LinkRefusal::Gone)
    }

    fn retract(&mut self, _sent: Sent) -> Retracted {
        Retracted::HandedOver
    }
}

type Outcomes = Arc<Mutex<Vec<Result<u64, CallError>>>>;

struct World {
    now: Moment,
    shard: Shard<NoLinks>,
    mailbox: Arc<Mailbox>,
    handle: Handle,
    events: Vec<Event>,
}

impl World {
    /// A silo of one shard that serves.
    fn serving() -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let handle = Handle::new(Arc::<Mailbox>::clone(&mailbox) as Arc<dyn Post>);
        let mut config = ShardConfig::new(ME, 1, 7);
        config.hosts = vec![HostFactory::of::<Counter>()];
        let now = Moment::ZERO + Duration::from_secs(100);
        let shard = Shard::new(now, config, NoLinks, Arc::new(NoUnpark), handle.clone());
        let mut world = Self { now, shard, mailbox, handle, events: Vec::new() };
        let number = ViewNumber(3);
        let row = SiloRow {
            incarnation: Incarnation { name: SiloName::new("alone").unwrap(), generation: ME.silo },
            status: SiloStatus::Active,
            advertised: "10.0.0.1:7000".into(),
            host: "host".into(),
            shards: 1,
            votes: Vec::new(),
            changed_in: number,
        };
        let view = ShardMail::View(Arc::new(View::new(number, vec![row])));
        world.shard.set_lease(Moment::NEVER);
        world.shard.handle_mail(now, view);
        world.settle();
        world
    }

    /// Moves mail and runs turns until nothing moves.
    fn settle(&mut self) {
        loop {
            let mut moved = self.shard.run(self.now);
            while let Some(output) = self.shard.poll_output() {
                moved = true;
                self.take_output(output);
            }
            while let Some(mail) = self.mailbox.take() {
                moved = true;
                self.shard.handle_mail(self.now, mail);
            }
            if !moved && !self.shard.is_ready() {
                return;
            }
        }
    }

    fn take_output(&mut self, output: ShardOutput) {
        match output {
            ShardOutput::Shard(_, mail) => self.shard.handle_mail(self.now, mail),
            ShardOutput::Control(ControlMail::Directory { from, to, message }) => {
                assert_eq!(to, ME, "there is nobody else");
                let from = Endpoint { silo: ME.silo, shard: from };
                self.shard.handle_mail(self.now, ShardMail::Directory { from, message });
            }
            ShardOutput::Control(_) | ShardOutput::Store { .. } => {}
            ShardOutput::Event(event) => self.events.push(event),
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.shard.next_deadline().clamp(self.now + PERIOD / 100, end);
            self.shard.tick(self.now);
            self.settle();
        }
    }

    /// Begins a call; its outcome comes into the list.
    fn begin(&self, method: &'static MethodSpec, outcomes: &Outcomes) {
        let (counter, outcomes) = (self.handle.grain::<Counter>("one"), Arc::clone(outcomes));
        let spawned = self.handle.spawn_on(ME.shard, move || async move {
            let outcome = call(&counter, method).await;
            outcomes.lock().unwrap().push(outcome);
        });
        spawned.unwrap();
    }

    fn call(&mut self, method: &'static MethodSpec) -> u64 {
        let outcomes = Outcomes::default();
        self.begin(method, &outcomes);
        self.settle();
        let outcome = outcomes.lock().unwrap().pop().expect("the call has ended");
        outcome.expect("it was handled")
    }

    fn count(&self, name: &str) -> usize {
        self.events.iter().filter(|event| event.name() == name).count()
    }
}

#[test]
fn a_future_that_panics_is_one_event_and_the_shard_lives() {
    let mut world = World::serving();
    let spawned = world.handle.spawn_on(ME.shard, || async {
        Sleep::new(PERIOD).await;
        panic!("the program is broken")
    });
    spawned.unwrap();
    world.settle();
    assert_eq!(world.count("FuturePanicked"), 0, "not yet");
    world.pass(PERIOD * 2);
    let told = Event::FuturePanicked { message: "the program is broken".into() };
    let events: Vec<_> = world.events.iter().filter(|event| event.name() == told.name()).collect();
    assert_eq!(events, [&told]);
    assert_eq!(world.call(&ADD), 1);
    assert_eq!(world.shard.sizes().tasks, 0, "the future has ended");
}

#[test]
fn a_timer_whose_call_ends_its_own_grain_ends_with_it() {
    for arm in [&STOP_BY_TIMER, &STOP_AND_ADD_BY_TIMER, &STOP_AND_PANIC_BY_TIMER] {
        let mut world = World::serving();
        assert_eq!(world.call(&ADD), 1);
        assert_eq!(world.call(arm), 1, "{} arms it", arm.name);
        world.pass(PERIOD * 3 / 2);
        assert_eq!(world.count("GrainDeactivated"), 1, "{}", arm.name);
        let anew = world.call(&ADD);
        assert!(anew <= 2, "{}: a new activation counts anew, not {anew}", arm.name);
        world.pass(PERIOD * 3);
        assert_eq!(world.call(&ADD), anew + 1, "{}: the timer is gone", arm.name);
        assert_eq!(world.count("GrainActivated"), 2, "{}", arm.name);
    }
}

#[test]
fn requests_held_while_the_silo_may_not_serve_are_bounded() {
    let mut world = World::serving();
    assert_eq!(world.call(&ADD), 1);
    world.shard.set_lease(Moment::ZERO);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let (count, above) = (HELD_REQUESTS_MAX, 3);
    let counter = world.handle.grain::<Counter>("one");
    for _ in 0..count + above {
        let failures = Arc::clone(&failures);
        call(&counter, &ADD).one_way_or(move |failure| failures.lock().unwrap().push(failure));
    }
    world.settle();
    assert_eq!(world.shard.held_requests.len(), count);
    // Overloaded is tried again, until the attempts are used up.
    world.pass(Duration::from_secs(15));
    let refused: Vec<_> = failures.lock().unwrap().iter().map(DeliveryFailure::name).collect();
    assert_eq!(refused, vec![RejectedKind::Overloaded.name(); above], "beyond the bound: told so");
    world.shard.set_lease(Moment::NEVER);
    world.settle();
    assert_eq!(world.call(&ADD), 2 + count as u64, "what was held is handled, once");
}
