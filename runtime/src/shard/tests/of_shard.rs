//! Grains of which each shard has its own.

use siloring_core::address::Address;
use siloring_core::body::Body;

use super::*;
use crate::grain::ShardKey;
use crate::reference::RawRequest;

/// Counts its calls.
#[derive(Default)]
pub(super) struct Part {
    calls: u64,
}

impl GrainType for Part {
    const TYPE: &'static str = "test.part";
    const PLACEMENT: Placement = Placement::Shard;
    const REENTRANT: bool = false;
    const IDLE_AFTER: Option<Duration> = None;
    type Key = ShardKey;
}

pub(super) const COUNT: MethodSpec = MethodSpec::of::<Part>(
    "count",
    MethodId::of("count"),
    <() as Layout>::LAYOUT,
    <u64 as Layout>::LAYOUT,
    Access::Exclusive,
);

/// Answers as [`COUNT`], after a while.
const LINGER: MethodSpec = MethodSpec::of::<Part>(
    "linger",
    MethodId::of("linger"),
    <() as Layout>::LAYOUT,
    <u64 as Layout>::LAYOUT,
    Access::Exclusive,
);

impl Grain for Part {
    const METHODS: &'static [MethodSpec] = &[COUNT, LINGER];

    async fn dispatch(turn: Turn<Self>) -> TurnOutput {
        if turn.method() == LINGER.id {
            turn.ctx().sleep(PERIOD).await;
        } else if turn.method() != COUNT.id {
            return turn.done();
        }
        let mut me = turn.exclusive();
        me.calls += 1;
        turn.reply(&me.calls)
    }
}

pub(super) fn part(silo: u64, shard: u16) -> ShardKey {
    ShardKey(Endpoint { silo: Generation(silo), shard: ShardIndex(shard) })
}

impl World {
    pub(super) fn count_at(&mut self, key: ShardKey) -> Result<u64, DeliveryFailure> {
        let part = self.handle.grain::<Part>(key);
        self.run(move || async move { part.call::<(), u64>(&COUNT, &()).await })
            .map_err(|error| error.delivery().cloned().expect("it has no error of its own"))
    }

    /// A request to the shard's own, on a link that is gone.
    pub(super) fn request(&self, method: &'static MethodSpec, correlation: u64) -> ShardMail {
        let request = Request {
            source: AddressHash::NONE,
            method: method.id,
            schema: method.arguments,
            body: Body::encode(&()),
            deadline: self.now + PERIOD * 20,
            correlation: CorrelationId(correlation),
            reply_to: ReplyTo::Link { shard: ME.shard, conn: ConnId(1) },
            one_way: false,
            attempt: 1,
            forwards: 0,
            envelope: None,
        };
        ShardMail::Request { target: Address::of(Part::TYPE, "1.0").unwrap(), request }
    }

    /// What became of it, as far as the event of its lost answer tells.
    pub(super) fn orphaned(&self, correlation: u64) -> RejectedKind {
        let found = self.events.iter().find_map(|event| {
            let Event::ReplyOrphaned { correlation: known, failure, .. } = event else {
                return None;
            };
            failure.rejected_kind().filter(|_| *known == correlation)
        });
        found.expect("it was answered, on a link that is gone")
    }

    fn kind_at(&mut self, key: ShardKey) -> Option<RejectedKind> {
        self.count_at(key).unwrap_err().rejected_kind()
    }
}

#[test]
fn each_shard_has_its_own_and_nobody_else_s() {
    let mut world = World::serving();
    assert_eq!(world.count_at(part(1, 0)), Ok(1));
    assert_eq!(world.count_at(part(1, 0)), Ok(2));
    assert_eq!(world.kind_at(part(1, 1)), Some(RejectedKind::NotHere), "no such shard");
    let text = Address::of(Part::TYPE, "me").unwrap();
    let raw = world.handle.raw(text);
    let refused = world.run(move || async move {
        let body = Body::encode(&());
        raw.send(RawRequest { method: COUNT.id, schema: COUNT.arguments, body }).await.map(|_| ())
    });
    assert_eq!(refused.unwrap_err().rejected_kind(), Some(RejectedKind::NotHere), "no shard's key");
    world.see_view(9);
    assert_eq!(world.kind_at(part(2, 0)), Some(RejectedKind::IncarnationDead), "in no view");
}

#[test]
fn a_shard_s_grain_is_never_idle_and_in_no_directory() {
    let mut world = World::serving();
    assert_eq!(world.count_at(part(1, 0)), Ok(1));
    world.at("one", &ADD);
    world.pass(siloring_core::limits::ACTIVATION_IDLE_MAX * 3);
    assert_eq!(world.shard.sizes().activations, 0, "the other one was collected");
    assert_eq!(world.count_at(part(1, 0)), Ok(2));
    let usage = world.shard.directory().usage();
    assert_eq!((usage.activations, usage.entries, usage.lookups), (0, 0, 0));
}

#[test]
fn a_shard_s_grain_takes_calls_while_its_silo_drains_until_hubs_close() {
    let mut world = World::serving();
    assert_eq!(world.count_at(part(1, 0)), Ok(1));
    world.shard.handle_mail(world.now, ShardMail::BeginDrain);
    world.see_view_as(4, SiloStatus::Draining);
    world.pass(siloring_core::limits::DRAIN_HANDOVER_TIME_MAX);
    assert_eq!(world.drained, 1, "it keeps the drain waiting for nothing");
    let mail = world.request(&COUNT, 1);
    world.shard.handle_mail(world.now, mail);
    world.settle();
    assert_eq!(world.orphaned(1), RejectedKind::ConnectionLost, "a reply");
    world.shard.handle_mail(world.now, ShardMail::CloseHubs);
    let mail = world.request(&COUNT, 2);
    world.shard.handle_mail(world.now, mail);
    world.settle();
    assert_eq!(world.orphaned(2), RejectedKind::Draining, "no longer");
}

#[test]
fn a_turn_of_a_shard_s_grain_that_is_under_way_when_hubs_close_comes_to_its_end() {
    let mut world = World::serving();
    world.shard.handle_mail(world.now, ShardMail::BeginDrain);
    world.see_view_as(4, SiloStatus::Draining);
    world.pass(siloring_core::limits::DRAIN_HANDOVER_TIME_MAX);
    assert_eq!(world.drained, 1, "nothing is under way");
    // What comes between this and the hubs' end is taken.
    let mail = world.request(&LINGER, 1);
    world.shard.handle_mail(world.now, mail);
    world.settle();
    world.shard.handle_mail(world.now, ShardMail::CloseHubs);
    world.settle();
    assert!(world.unfinished.is_empty(), "it is waited for");
    let mail = world.request(&COUNT, 2);
    world.shard.handle_mail(world.now, mail);
    world.settle();
    assert_eq!(world.orphaned(2), RejectedKind::Draining, "nothing new is taken");
    world.pass(PERIOD * 2);
    assert_eq!(world.orphaned(1), RejectedKind::ConnectionLost, "a reply");
    assert_eq!(world.unfinished, [0]);
}

#[test]
fn a_turn_that_does_not_end_is_cut_off_in_time() {
    let mut world = World::serving();
    world.shard.handle_mail(world.now, ShardMail::BeginDrain);
    world.see_view_as(4, SiloStatus::Draining);
    world.pass(siloring_core::limits::DRAIN_HANDOVER_TIME_MAX);
    for correlation in 1..=15 {
        let mail = world.request(&LINGER, correlation);
        world.shard.handle_mail(world.now, mail);
    }
    world.settle();
    world.shard.handle_mail(world.now, ShardMail::CloseHubs);
    world.pass(siloring_core::limits::DRAIN_LAST_TURNS_TIME_MAX + PERIOD / 2);
    assert_eq!(world.unfinished.len(), 1);
    assert!(world.unfinished[0] > 0, "each takes its time, and together too much");
}
