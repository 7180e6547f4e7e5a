//! What a future may know of its shard, and ask of it.

use siloring_core::address::Address;
use siloring_core::body::Body;
use siloring_core::limits::{SPAWNED_MAX, SPAWNED_PER_ACTIVATION_MAX};

use super::*;
use crate::here::Here;
use crate::reference::RawRequest;

/// What the surrounding program shares.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shared(pub(super) u64);

/// Waits for ever, and panics when it is dropped.
pub(super) async fn broken() {
    struct Broken;

    impl Drop for Broken {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "the program is broken");
        }
    }

    let _broken = Broken;
    core::future::pending::<()>().await;
}

fn address(text: &str) -> Address {
    Address::parse(text).unwrap()
}

fn raw(method: &MethodSpec, schema: siloring_core::schema::Schema) -> RawRequest {
    RawRequest { method: method.id, schema, body: Body::encode(&()) }
}

#[test]
fn a_future_sees_the_shard_that_polls_it() {
    let mut world = World::serving();
    world.at("one", &ADD);
    let now = world.now;
    let (seen, here, elsewhere) = world.run(|| async {
        let seen = (Here::endpoint(), Here::now(), Here::view().number());
        let here = Here::whereabouts(&address("test.counter/one"));
        (seen, here, Here::whereabouts(&address("test.counter/two")))
    });
    assert_eq!(seen, (ME, now, ViewNumber(3)));
    assert_eq!((here, elsewhere), (Some(ME), None));
    world.call(&STOP);
    let gone = world.run(|| async { Here::whereabouts(&address("test.counter/one")) });
    assert_eq!(gone, None, "the activation has ended");
    let hub = world.handle.hub("portal/ada").unwrap().start().unwrap();
    world.settle();
    let whereabouts = || async { Here::whereabouts(&address("portal/ada")) };
    assert_eq!(world.run(whereabouts), Some(ME));
    hub.close();
    world.settle();
    assert_eq!(world.run(whereabouts), None, "the hub is closed");
}

#[test]
fn a_remembered_place_is_known() {
    let mut world = World::serving();
    let number = siloring_core::ids::ActivationNumber { view: ViewNumber(3), counter: 1 };
    let endpoint = Endpoint { silo: ME.silo, shard: ShardIndex(5) };
    let grain = address("test.counter/far");
    world.shard.directory.learn(grain.hash(), crate::directory::Place { endpoint, number });
    assert_eq!(world.run(move || async move { Here::whereabouts(&grain) }), Some(endpoint));
}

#[test]
fn a_future_that_is_dropped_with_its_shard_finds_what_the_shard_keeps() {
    #[derive(Default)]
    struct Kept(Cell<u64>);
    struct Looks(Arc<std::sync::atomic::AtomicU64>);
    impl Drop for Looks {
        fn drop(&mut self) {
            let found = Here::extension::<Kept>().0.get();
            self.0.store(found, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let found = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let looks = Looks(Arc::clone(&found));
    let mut world = World::serving();
    world.run(|| async move {
        Here::extension::<Kept>().0.set(7);
        Here::spawn(async move {
            core::future::pending::<()>().await;
            drop(looks);
        });
    });
    drop(world);
    assert_eq!(found.load(std::sync::atomic::Ordering::Relaxed), 7);
}

#[test]
fn a_future_sees_that_its_silo_drains() {
    let mut world = World::serving();
    assert!(!world.run(|| async { Here::is_leaving() }));
    world.shard.handle_mail(world.now, ShardMail::BeginDrain);
    assert!(world.run(|| async { Here::is_leaving() }));
}

#[test]
fn what_is_kept_once_a_shard_is_found_by_its_type() {
    #[derive(Default)]
    struct Kept(Cell<u64>);
    let mut world = World::serving();
    world.spawn(|| async { Here::extension::<Kept>().0.set(5) });
    let (kept, shared, none) = world.run(|| async {
        let shared = Here::shared::<Shared>().map(|shared| shared.0);
        (Here::extension::<Kept>().0.get(), shared, Here::shared::<u64>())
    });
    assert_eq!((kept, shared, none), (5, Some(17), None));
    assert_eq!(Here::shared::<Shared>(), None, "no shard polls this thread");
    let draws = world.run(|| async { (Here::random(), Here::random()) });
    assert_ne!(draws.0, draws.1);
}

#[test]
#[should_panic(expected = "only a future that a shard polls has a shard")]
fn outside_of_a_shard_there_is_nothing_here() {
    Here::endpoint();
}

#[test]
fn views_are_given_once_and_wake_who_waits() {
    let mut world = World::serving();
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let into = Arc::clone(&seen);
    world.spawn(move || async move {
        let mut views = Here::views();
        loop {
            let view = views.next().await;
            into.lock().unwrap().push(view.number().0);
            if view.number().0 == 6 {
                return;
            }
        }
    });
    for number in [4, 4, 6, 7] {
        world.see_view(number);
    }
    assert_eq!(*seen.lock().unwrap(), [3, 4, 6]);
    let waiters = format!("{:?}", world.shard.local.known.view_waiters);
    assert!(waiters.contains("len: 0"), "its place is free again: {waiters}");
}

#[test]
fn a_future_of_the_shard_outlives_the_activation_and_one_of_the_turn_does_not() {
    let mut world = World::serving();
    assert_eq!(world.call(&SPAWN_BOTH), 0);
    assert_eq!(world.shard.sizes().tasks, 2);
    world.call(&STOP);
    assert_eq!(world.shard.sizes().tasks, 1, "the turn's ends with the activation");
    world.pass(PERIOD * 2);
    assert_eq!(world.shard.sizes().tasks, 0);
    assert_eq!(world.call(&ADD), 2, "the shard's went on, and added one");
}

#[test]
fn a_future_that_panics_when_it_is_dropped_ends_nothing_else() {
    let mut world = World::serving();
    assert_eq!(world.call(&SPAWN_BROKEN), 0);
    world.call(&STOP);
    assert_eq!(world.count("GrainDeactivated"), 1);
    assert_eq!(world.call(&ADD), 1, "the shard serves on");
}

#[test]
fn a_failure_that_a_future_answers_for_ends_as_a_dead_letter() {
    let mut world = World::serving();
    let failure = DeliveryFailure::rejected(RejectedKind::NotHere, "gone");
    let told = failure.clone();
    world.spawn(move || async move {
        let (from, to) = (address("stream/a/b"), address("test.counter/one"));
        Here::dead_letter(Some(&from), &to, told);
        Here::emit(Event::Drained { unfinished_count: 3 });
    });
    let (source, target) = (Some(address("stream/a/b")), address("test.counter/one"));
    assert!(world.events.contains(&Event::DeadLetter { source, target, failure }));
    assert!(world.events.contains(&Event::Drained { unfinished_count: 3 }));
    assert_eq!(world.count("DeliveryFailed"), 1);
    assert_eq!(world.count("DeliveriesFailed"), 1, "logged");
}

#[test]
fn a_raw_request_takes_any_reply_and_is_checked_like_any_other() {
    let mut world = World::serving();
    let answered = world.run(|| async {
        let one = Here::handle().raw(address("test.counter/one"));
        one.send(raw(&ADD, ADD.arguments)).await.map(|reply| (reply.schema, reply.body.decode()))
    });
    assert_eq!(answered, Ok((ADD.reply, Ok(1u64))));
    let refused = world.run(|| async {
        let one = Here::handle().raw(address("test.counter/one"));
        one.send(raw(&ADD, ADD.reply)).await.map(|_| ())
    });
    assert_eq!(refused.unwrap_err().rejected_kind(), Some(RejectedKind::Incompatible));
    world.pass(Duration::from_millis(1));
    let late = world.handle.raw(address("test.counter/one"));
    let outcomes: Arc<Mutex<Vec<_>>> = Arc::default();
    let into = Arc::clone(&outcomes);
    world.spawn(move || async move {
        let call = late.send(raw(&SLEEP, SLEEP.arguments)).deadline(PERIOD);
        let outcome = call.await.map(|_| ());
        into.lock().unwrap().push(outcome);
    });
    world.pass(PERIOD * 2);
    let outcome = outcomes.lock().unwrap().pop().expect("ended").unwrap_err();
    assert_eq!(outcome.name(), "TimedOut", "its own deadline");
}

#[test]
fn what_is_spawned_beyond_the_bound_is_dropped_aloud() {
    let mut world = World::serving();
    world.run(|| async {
        for _ in 0..SPAWNED_MAX + 5 {
            Here::spawn(core::future::pending());
        }
    });
    assert_eq!(world.shard.tasks.len(), SPAWNED_MAX - 1, "the one that spawned them has ended");
    assert_eq!(world.count("SpawnRefused"), 6, "each that was not run is told of");
}

#[test]
fn what_one_grain_spawns_beyond_its_bound_is_dropped_aloud() {
    let mut world = World::serving();
    world.call(&SPAWN_MANY);
    assert_eq!(world.count("SpawnRefused"), 2, "its own");
    let one = world.shard.activations.iter().next().expect("it is active").1;
    assert_eq!(one.timers.len(), SPAWNED_PER_ACTIVATION_MAX);
    world.run(|| async { Here::spawn(core::future::pending()) });
    assert_eq!(world.count("SpawnRefused"), 2, "nobody else's");
}
