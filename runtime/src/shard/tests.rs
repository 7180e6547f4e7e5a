//! A shard alone in its silo, on virtual time: what its links, peers and clock have no part in.

mod here;
mod of_shard;
mod once;
mod overload;

use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use siloring_core::ids::{Endpoint, Incarnation, MethodId, SiloName, ViewNumber};
use siloring_core::limits::{HELD_REQUESTS_MAX, TURNS_PER_LOOP_MAX};
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
    const PLACEMENT: Placement = Placement::PreferLocal;
    const REENTRANT: bool = false;
    const IDLE_AFTER: Option<Duration> = None;
    type Key = String;
}

const fn method(name: &'static str) -> MethodSpec {
    let (arguments, reply) = (<() as Layout>::LAYOUT, <u64 as Layout>::LAYOUT);
    MethodSpec::of::<Counter>(name, MethodId::of(name), arguments, reply, Access::Exclusive)
}

const fn shared(name: &'static str) -> MethodSpec {
    let (arguments, reply) = (<() as Layout>::LAYOUT, <u64 as Layout>::LAYOUT);
    MethodSpec::of::<Counter>(name, MethodId::of(name), arguments, reply, Access::Shared)
}
const PANIC: MethodSpec = shared("panic");
const PANIC_SELF_AND_ARM: MethodSpec = shared("panic_self_and_arm");
const REPORT: MethodSpec = method("report");
const SLOW_ONE: MethodSpec = method("slow_one");
const RELAY_TWO: MethodSpec = method("relay_two");
const PUSH_ONE: MethodSpec = method("push_one");
const PUSH_TWO: MethodSpec = method("push_two");
const NOTHING: MethodSpec = method("nothing");
const SLEEP: MethodSpec = method("sleep");
const ADD: MethodSpec = method("add");
/// In which attempt the call came.
const ATTEMPT: MethodSpec = method("attempt");
/// The call's key.
const KEY: MethodSpec = method("key");
/// Adds, and fails.
const FAIL: MethodSpec = method("fail");
/// Adds, and says so after a while; turns may interleave.
const SLOW_ADD: MethodSpec = shared("slow_add");
/// Adds, and fails after a while; turns may interleave.
const SLOW_FAIL: MethodSpec = shared("slow_fail");
/// Waits, and says that the registry is away.
const WAIT_FOR_REGISTRY: MethodSpec = method("wait_for_registry");
/// One future of the turn and one of the shard, which call later.
const SPAWN_BOTH: MethodSpec = method("spawn_both");
/// Two futures more than one activation may have.
const SPAWN_MANY: MethodSpec = method("spawn_many");
/// A future that panics when it is dropped.
const SPAWN_BROKEN: MethodSpec = method("spawn_broken");
/// Ends the activation.
const STOP: MethodSpec = method("stop");
/// A timer whose call ends the activation.
const STOP_BY_TIMER: MethodSpec = method("stop_by_timer");
/// The same, with a further call that was staged in the same poll.
const STOP_AND_ADD_BY_TIMER: MethodSpec = method("stop_and_add_by_timer");
/// The same, with a panic after the call was staged.
const STOP_AND_PANIC_BY_TIMER: MethodSpec = method("stop_and_panic_by_timer");

impl Grain for Counter {
    const METHODS: &'static [MethodSpec] = &[
        PANIC,
        PANIC_SELF_AND_ARM,
        REPORT,
        SLOW_ONE,
        RELAY_TWO,
        PUSH_ONE,
        PUSH_TWO,
        NOTHING,
        SLEEP,
        ADD,
        ATTEMPT,
        KEY,
        FAIL,
        SLOW_ADD,
        SLOW_FAIL,
        WAIT_FOR_REGISTRY,
        SPAWN_BOTH,
        SPAWN_MANY,
        SPAWN_BROKEN,
        STOP,
        STOP_BY_TIMER,
        STOP_AND_ADD_BY_TIMER,
        STOP_AND_PANIC_BY_TIMER,
    ];

    async fn dispatch(turn: Turn<Self>) -> TurnOutput {
        let (ctx, id) = (turn.ctx(), turn.method());
        if id == PANIC.id {
            panic!("broken");
        } else if id == PANIC_SELF_AND_ARM.id {
            call(&ctx.grain::<Self>("one"), &PANIC).one_way().unwrap();
            ctx.every::<Self, _, _>(PERIOD, |me| call(me, &ADD));
            Sleep::new(PERIOD).await;
            return turn.reply(&1u64);
        } else if id == REPORT.id {
            Sleep::new(PERIOD).await;
            let three = ctx.grain::<Self>("three");
            call(&ctx.grain::<Self>("two"), &PANIC)
                .one_way_or(move |_| call(&three, &ADD).one_way().unwrap());
        } else if id == SLOW_ONE.id {
            Sleep::new(PERIOD).await;
            call(&ctx.grain::<Self>("x"), &PUSH_ONE).one_way().unwrap();
        } else if id == RELAY_TWO.id {
            call(&ctx.grain::<Self>("x"), &PUSH_TWO).one_way().unwrap();
        } else if id == PUSH_ONE.id {
            let mut me = turn.exclusive();
            me.calls = me.calls * 10 + 1;
        } else if id == PUSH_TWO.id {
            let mut me = turn.exclusive();
            me.calls = me.calls * 10 + 2;
        } else if id == NOTHING.id {
        } else if id == SLEEP.id {
            Sleep::new(PERIOD * 100).await;
        } else if id == ADD.id {
            turn.exclusive().calls += 1;
        } else if id == WAIT_FOR_REGISTRY.id {
            turn.exclusive().calls += 1;
            Sleep::new(PERIOD * 4).await;
            return Err(DeliveryFailure::rejected(RejectedKind::RegistryUnavailable, "away"));
        } else if once::METHODS.contains(&id) {
            return once::run(&turn).await;
        } else if id == SPAWN_MANY.id {
            (0..SPAWNED_PER_ACTIVATION_MAX + 2).for_each(|_| ctx.spawn(core::future::pending()));
        } else if id == SPAWN_BROKEN.id {
            ctx.spawn(here::broken());
        } else if id == SPAWN_BOTH.id {
            let me = ctx.grain::<Self>("one");
            let later = move |me: GrainRef<Self>| async move {
                Sleep::new(PERIOD).await;
                call(&me, &ADD).one_way().unwrap();
            };
            ctx.spawn(later(me.clone()));
            crate::here::Here::spawn(later(me));
        } else if id == STOP.id {
            ctx.deactivate();
        } else if id == STOP_BY_TIMER.id {
            ctx.every::<Self, _, _>(PERIOD, |me| call(me, &STOP));
        } else if id == STOP_AND_ADD_BY_TIMER.id {
            ctx.every::<Self, _, _>(PERIOD, |me| {
                call(me, &STOP).one_way().unwrap();
                call(me, &ADD)
            });
        } else if id == STOP_AND_PANIC_BY_TIMER.id {
            ctx.every::<Self, u64, core::convert::Infallible>(PERIOD, |me| {
                call(me, &STOP).one_way().unwrap();
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
    /// How often the shard said that nothing is left but hubs.
    drained: usize,
    /// What each closing has cut off.
    unfinished: Vec<usize>,
}

impl World {
    /// A silo of one shard that serves.
    fn serving() -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let handle = Handle::new(Arc::<Mailbox>::clone(&mailbox) as Arc<dyn Post>);
        let mut config = ShardConfig::new(ME, 1, 7);
        config.hosts = vec![HostFactory::of::<Counter>(), HostFactory::of::<of_shard::Part>()];
        config.shared = vec![Arc::new(here::Shared(17))];
        let now = Moment::ZERO + Duration::from_secs(100);
        let shard = Shard::new(now, config, NoLinks, Arc::new(NoUnpark), handle.clone());
        let (events, unfinished) = (Vec::new(), Vec::new());
        let mut world = Self { now, shard, mailbox, handle, events, drained: 0, unfinished };
        world.shard.set_lease(Moment::NEVER);
        world.see_view(3);
        world
    }

    /// Takes up the view of this number, in which the silo is alone.
    fn see_view(&mut self, number: u64) {
        self.see_view_as(number, SiloStatus::Active);
    }

    fn see_view_as(&mut self, number: u64, status: SiloStatus) {
        let number = ViewNumber(number);
        let row = SiloRow {
            incarnation: Incarnation { name: SiloName::new("alone").unwrap(), generation: ME.silo },
            status,
            advertised: "10.0.0.1:7000".into(),
            host: "host".into(),
            shards: 1,
            votes: Vec::new(),
            changed_in: number,
        };
        let view = ShardMail::View(Arc::new(View::new(number, vec![row])));
        self.shard.handle_mail(self.now, view);
        self.settle();
    }

    /// Runs a future on the shard, as far as it comes.
    fn spawn<F: Future<Output = ()> + 'static>(
        &mut self,
        make: impl FnOnce() -> F + Send + 'static,
    ) {
        self.handle.spawn_on(ME.shard, make).unwrap();
        self.settle();
    }

    /// What a future comes to that waits for nothing but turns.
    fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        let (into, out) = std::sync::mpsc::channel();
        self.spawn(move || async move { into.send(make().await).unwrap() });
        out.try_recv().expect("the future has ended")
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
            ShardOutput::Control(ControlMail::ShardEmpty(_)) => self.drained += 1,
            ShardOutput::Control(ControlMail::ShardClosed { unfinished_count, .. }) => {
                self.unfinished.push(unfinished_count);
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
fn what_waited_for_the_registry_is_not_sent_again_when_the_deadline_would_cut_it_off() {
    let mut world = World::serving();
    let outcomes = Outcomes::default();
    let into = Arc::clone(&outcomes);
    let counter = world.handle.grain::<Counter>("one");
    world.spawn(move || async move {
        let outcome = call(&counter, &WAIT_FOR_REGISTRY).deadline(PERIOD * 13).await;
        into.lock().unwrap().push(outcome);
    });
    world.pass(PERIOD * 14);
    let outcome = outcomes.lock().unwrap().pop().expect("the call has ended");
    let Err(CallError::Delivery(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::RegistryUnavailable), "{failure}");
    assert_eq!(world.call(&ADD), 3, "two tries, and this call");
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
    // At once: a second try would add to what is too much.
    let refused: Vec<_> = failures.lock().unwrap().iter().map(DeliveryFailure::name).collect();
    assert_eq!(refused, vec![RejectedKind::Overloaded.name(); above], "beyond the bound: told so");
    world.shard.set_lease(Moment::NEVER);
    world.settle();
    assert_eq!(world.call(&ADD), 2 + count as u64, "what was held is handled, once");
}

impl World {
    /// Runs a task that yields and never ends; takes in what was sent before.
    fn keep_busy(&mut self) {
        let yielding = || {
            core::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                core::task::Poll::<()>::Pending
            })
        };
        self.handle.spawn_on(ME.shard, yielding).unwrap();
        while let Some(mail) = self.mailbox.take() {
            self.shard.handle_mail(self.now, mail);
        }
    }

    fn at(&mut self, key: &'static str, method: &'static MethodSpec) -> Outcomes {
        let outcomes = Outcomes::default();
        let (counter, into) = (self.handle.grain::<Counter>(key), Arc::clone(&outcomes));
        let spawned = self.handle.spawn_on(ME.shard, move || async move {
            let outcome = call(&counter, method).await;
            into.lock().unwrap().push(outcome);
        });
        spawned.unwrap();
        self.settle();
        outcomes
    }
}

#[test]
fn a_timer_of_an_activation_that_a_call_of_its_own_ended_is_dropped() {
    let mut world = World::serving();
    world.at("one", &ADD);
    world.at("one", &PANIC_SELF_AND_ARM);
    assert_eq!(world.call(&ADD), 1, "a new activation");
    assert_eq!(world.shard.sizes().tasks, 0, "without a timer");
}

#[test]
fn a_call_made_by_a_failure_handler_is_carried_out() {
    let mut world = World::serving();
    for key in ["one", "two", "three"] {
        world.at(key, &ADD);
    }
    call(&world.handle.grain::<Counter>("one"), &REPORT).one_way().unwrap();
    world.settle();
    world.now += PERIOD + Duration::from_millis(20);
    world.shard.tick(world.now);
    world.settle();
    assert_eq!(world.shard.local.ops.borrow().len(), 0, "staged and forgotten");
}

#[test]
fn what_a_turn_sends_after_a_fence_queues_behind_what_was_held() {
    let mut world = World::serving();
    world.at("x", &NOTHING);
    world.at("s", &ADD);
    world.at("s", &SLOW_ONE);
    world.shard.set_lease(Moment::ZERO);
    world.at("s", &RELAY_TWO);
    world.pass(PERIOD * 2);
    world.shard.set_lease(Moment::NEVER);
    world.settle();
    let out = world.at("x", &ADD);
    let got = out.lock().unwrap().pop().unwrap().unwrap();
    assert_eq!(got, 13, "one came first, then two, then this");
}

#[test]
fn a_wake_of_another_thread_is_not_held_off_by_a_task_that_yields() {
    use core::task::{Poll, Waker};
    let mut world = World::serving();
    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let done = Arc::new(Mutex::new(false));
    let (w, d) = (Arc::clone(&waker), Arc::clone(&done));
    let mut first = true;
    world
        .handle
        .spawn_on(ME.shard, move || async move {
            core::future::poll_fn(|cx| {
                *w.lock().unwrap() = Some(cx.waker().clone());
                if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            *d.lock().unwrap() = true;
        })
        .unwrap();
    world.settle();
    world.keep_busy();
    // Outside of the shard, as from another thread.
    waker.lock().unwrap().take().unwrap().wake();
    for _ in 0..1000 {
        world.shard.run(world.now);
    }
    assert!(
        *done.lock().unwrap(),
        "a wake of another thread waits for ever behind a task that yields"
    );
}

#[test]
fn a_second_outcome_of_one_request_ends_nothing() {
    let mut world = World::serving();
    world.at("one", &ADD);
    world.at("one", &SLEEP);
    let id = world.shard.ledger.select(|_| true)[0];
    let failure = |kind| DeliveryFailure::rejected(kind, "x");
    let entered = world.shard.enter(world.now);
    world.shard.resolve(id, None, Outcome::failure(failure(RejectedKind::Draining)));
    let mut second = Outcome::failure(failure(RejectedKind::Moving));
    let number = siloring_core::ids::ActivationNumber { view: ViewNumber(3), counter: 1 };
    second.place = Some(Box::new(crate::directory::Place { endpoint: ME, number }));
    world.shard.resolve(id, None, second);
    drop(entered);
    world.settle();
    assert_eq!(world.count("LateReply"), 1);
    world.pass(Duration::from_secs(1));
}

#[test]
fn a_task_is_in_the_queue_of_foreign_wakes_at_most_once() {
    use core::task::Waker;
    let mut world = World::serving();
    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let w = Arc::clone(&waker);
    // Sleeps again and again, and is woken by another thread each time.
    world
        .handle
        .spawn_on(ME.shard, move || async move {
            loop {
                let mut sleep = core::pin::pin!(Sleep::new(Duration::from_millis(10)));
                core::future::poll_fn(|cx| {
                    *w.lock().unwrap() = Some(cx.waker().clone());
                    sleep.as_mut().poll(cx)
                })
                .await;
            }
        })
        .unwrap();
    world.keep_busy();
    world.shard.run(world.now);
    for _ in 0..100 {
        let waker = waker.lock().unwrap().clone().unwrap();
        // Outside of the shard, as from another thread.
        waker.wake();
        world.now += Duration::from_millis(20);
        world.shard.tick(world.now);
        world.shard.run(world.now);
    }
    let len = world.shard.local.foreign.ready.len();
    assert!(len <= 2, "{len} entries of two tasks");
}

#[test]
fn a_one_way_that_cannot_be_handed_in_is_told_to_its_sender() {
    let handle = crate::reference::tests::stopped();
    let failure = call(&handle.grain::<Counter>("one"), &ADD).one_way().unwrap_err();
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::ConnectionLost));
    let malformed = handle.grain::<Counter>("\n");
    let failure = call(&malformed, &ADD).one_way().unwrap_err();
    assert_eq!(failure.rejected_kind(), Some(RejectedKind::NotHere));
}

#[test]
fn a_place_that_a_peer_made_up_is_tried_again_elsewhere() {
    let mut world = World::serving();
    world.at("one", &ADD);
    world.at("one", &SLEEP);
    let id = world.shard.ledger.select(|_| true)[0];
    let number = siloring_core::ids::ActivationNumber { view: ViewNumber(3), counter: 1 };
    let endpoint = Endpoint { silo: ME.silo, shard: ShardIndex(9_999) };
    let failure = DeliveryFailure::rejected(RejectedKind::Moving, "elsewhere");
    let place = Some(Box::new(crate::directory::Place { endpoint, number }));
    let entered = world.shard.enter(world.now);
    world.shard.resolve(id, None, Outcome { place, ..Outcome::failure(failure) });
    drop(entered);
    let stage = world.shard.ledger.get(id).map(|open| open.stage);
    assert_eq!(stage, Some(crate::ledger::Stage::Backoff), "not posted to a shard that is none");
}

/// The shortest wait leaves the next try less than its answer needs: sent, it would end as timed
/// out, and its sender could not know that nothing ran.
#[test]
fn a_try_that_could_not_be_answered_is_not_made() {
    let mut world = World::serving();
    world.at("one", &ADD);
    let outcomes = Outcomes::default();
    let (counter, heard) = (world.handle.grain::<Counter>("one"), Arc::clone(&outcomes));
    world.spawn(move || async move {
        let outcome = call(&counter, &SLEEP).deadline(Duration::from_millis(55)).await;
        heard.lock().unwrap().push(outcome);
    });
    let id = world.shard.ledger.select(|_| true)[0];
    let failure = DeliveryFailure::rejected(RejectedKind::RegistryUnavailable, "not now");
    let entered = world.shard.enter(world.now);
    world.shard.resolve(id, None, Outcome::failure(failure.clone()));
    drop(entered);
    world.settle();
    assert_eq!(*outcomes.lock().unwrap(), [Err(CallError::Delivery(failure))]);
}

#[test]
fn a_run_says_that_more_is_held_than_it_took() {
    let mut world = World::serving();
    world.at("one", &ADD);
    world.shard.set_lease(Moment::ZERO);
    let counter = world.handle.grain::<Counter>("one");
    for _ in 0..=TURNS_PER_LOOP_MAX {
        call(&counter, &ADD).one_way().unwrap();
    }
    world.settle();
    world.shard.set_lease(Moment::NEVER);
    assert!(world.shard.run(world.now), "one is left");
    assert!(!world.shard.run(world.now), "none is");
}

/// Method: beside a sleep that ends lie one that is due with it and one that is not, both dropped.
#[test]
fn a_sleep_that_is_dropped_leaves_nothing() {
    let mut world = World::serving();
    world.call(&ADD);
    let before = world.shard.sizes();
    for _ in 0..3 {
        world.spawn(|| async {
            let mut long = core::pin::pin!(Sleep::new(PERIOD * 100));
            let mut twin = core::pin::pin!(Sleep::new(PERIOD));
            let mut end = core::pin::pin!(Sleep::new(PERIOD));
            core::future::poll_fn(|cx| {
                assert!(long.as_mut().poll(cx).is_pending());
                if end.as_mut().poll(cx).is_ready() {
                    return core::task::Poll::Ready(());
                }
                twin.as_mut().poll(cx)
            })
            .await;
        });
        assert_eq!(world.shard.sizes().timers, before.timers + 3);
        world.pass(PERIOD * 2);
        let after = world.shard.sizes();
        assert_eq!((after.slots, after.timers), (before.slots, before.timers));
        // Their places are others' now.
        world.call(&ADD);
    }
}
