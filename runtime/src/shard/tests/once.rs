//! Requests that are handled once: events, and what has a key.

use siloring_core::address::Address;
use siloring_core::body::Body;
use siloring_core::ids::ActivationNumber;
use siloring_core::limits::{DUPLICATES_WAITING_MAX, RETRY_BACKOFF_MAX, ROUTER_ATTEMPTS_MAX};
use siloring_core::outcome::FailedKind;

use super::*;
use crate::envelope::{Envelope, EventInfo, Idempotency, Sending};
use crate::here::Here;
use crate::hub::Hub;
use crate::reference::RawRequest;

/// How requests ended: the name of the failure, or what the reply says.
type Ends = Arc<Mutex<Vec<Result<u64, &'static str>>>>;

const OWNER: ActivationNumber = ActivationNumber { view: ViewNumber(3), counter: 7 };
const LATER_OWNER: ActivationNumber = ActivationNumber { view: ViewNumber(3), counter: 8 };

fn event_of(epoch: ActivationNumber, number: u64) -> Envelope {
    let event = EventInfo {
        stream: Address::parse("stream/chat/general").unwrap(),
        subscription: "me".into(),
        epoch,
        position: number,
        missed: 0,
        attempt: 4,
        origin: 1,
        number,
    };
    Envelope { event: Some(Arc::new(event)), ..Envelope::default() }
}

fn event(number: u64) -> Envelope {
    event_of(OWNER, number)
}

fn keyed(key: u128, sending: Sending) -> Envelope {
    Envelope { idempotency: Some(Idempotency { key, sending }), ..Envelope::default() }
}

/// The methods that are here for these tests.
pub(super) const METHODS: [MethodId; 5] = [ATTEMPT.id, KEY.id, FAIL.id, SLOW_ADD.id, SLOW_FAIL.id];

pub(super) async fn run(turn: &Turn<Counter>) -> TurnOutput {
    let (ctx, id) = (turn.ctx(), turn.method());
    if id == ATTEMPT.id {
        return turn.reply(&u64::from(ctx.attempt()));
    } else if id == KEY.id {
        let key = ctx.idempotency_key().and_then(|key| u64::try_from(key).ok());
        return turn.reply(&key.unwrap_or(0));
    }
    turn.exclusive().calls += 1;
    if id == SLOW_ADD.id || id == SLOW_FAIL.id {
        Sleep::new(PERIOD).await;
    }
    if id == FAIL.id || id == SLOW_FAIL.id {
        return Err(DeliveryFailure::failed(FailedKind::HandlerFailed, "broken"));
    }
    turn.reply(&turn.exclusive().calls)
}

impl World {
    /// Sends a request to the counter `one` and lets it run; how it ended comes into the list.
    fn deliver(&mut self, method: &'static MethodSpec, envelope: Envelope, ends: &Ends) {
        let into = Arc::clone(ends);
        self.spawn(move || async move {
            let one = Here::handle().raw(Address::parse("test.counter/one").unwrap());
            let body = Body::encode(&());
            let request = RawRequest { method: method.id, schema: method.arguments, body };
            let ended = one.send(request).envelope(envelope).await;
            // A confirmation says nothing.
            let said = ended.map(|reply| reply.body.decode().unwrap_or(0));
            into.lock().unwrap().push(said.map_err(|failure| failure.name()));
        });
    }

    fn deliver_all<const N: usize>(
        &mut self,
        requests: [(&'static MethodSpec, Envelope); N],
    ) -> Vec<Result<u64, &'static str>> {
        let ends = Ends::default();
        for (method, envelope) in requests {
            self.deliver(method, envelope, &ends);
        }
        self.pass(PERIOD * 2);
        let ends = ends.lock().unwrap().clone();
        assert_eq!(ends.len(), N, "each is answered");
        ends
    }
}

#[test]
fn an_event_is_handled_once_while_its_consumer_lives() {
    let mut world = World::serving();
    let ends = world.deliver_all([(&ADD, event(5)), (&ADD, event(5)), (&ADD, event(4))]);
    assert_eq!(ends, [Ok(1), Ok(1), Ok(2)], "a duplicate hears what was answered");
    assert_eq!(world.count("EventDuplicate"), 1);
    assert_eq!(world.call(&ATTEMPT), 1, "a plain call's own");
    assert_eq!(world.deliver_all([(&ATTEMPT, event(6))]), [Ok(4)], "the event's");
    world.call(&STOP);
    assert_eq!(world.deliver_all([(&ADD, event(5))]), [Ok(1)], "another activation does not know");
}

#[test]
fn an_event_that_failed_is_handled_again() {
    let mut world = World::serving();
    let ends = world.deliver_all([(&FAIL, event(5)), (&FAIL, event(5)), (&ADD, event(5))]);
    assert_eq!(ends, [Err("HandlerFailed"), Err("HandlerFailed"), Ok(3)], "each of them ran");
}

#[test]
fn who_sends_an_event_that_is_being_handled_is_answered_when_that_ends() {
    let mut world = World::serving();
    let ends = Ends::default();
    for _ in 0..=DUPLICATES_WAITING_MAX {
        world.deliver(&SLOW_ADD, event(5), &ends);
    }
    assert_eq!(*ends.lock().unwrap(), [], "none has ended");
    world.pass(PERIOD * 2);
    assert_eq!(*ends.lock().unwrap(), vec![Ok(1); DUPLICATES_WAITING_MAX + 1], "one turn for all");
    let ends = world.deliver_all([(&SLOW_FAIL, event(6)), (&SLOW_FAIL, event(6))]);
    assert_eq!(ends, [Err("HandlerFailed"); 2]);
    assert_eq!(world.call(&ADD), 3, "one turn for both");
    // A turn that is cut off ends too.
    let ends =
        world.deliver_all([(&SLOW_ADD, event(7)), (&SLOW_ADD, event(7)), (&PANIC, event(8))]);
    assert_eq!(ends, [Err("HandlerFailed"); 3]);
}

#[test]
fn an_event_of_an_owner_that_was_replaced_is_refused() {
    let mut world = World::serving();
    let ends = Ends::default();
    for event in [event_of(OWNER, 5), event_of(LATER_OWNER, 6), event_of(OWNER, 7)] {
        world.deliver(&ADD, event, &ends);
    }
    // The router looks for where the stream went, as often as it may.
    for _ in 0..ROUTER_ATTEMPTS_MAX {
        world.pass(RETRY_BACKOFF_MAX);
    }
    assert_eq!(*ends.lock().unwrap(), [Ok(1), Ok(2), Err("Moving")]);
    assert_eq!(world.count("StaleOwnerRefused"), ROUTER_ATTEMPTS_MAX as usize);
}

#[test]
fn a_key_is_answered_by_its_first_outcome() {
    let mut world = World::serving();
    let key = |key| keyed(key, Sending::First);
    let ends = world.deliver_all([
        (&ADD, key(1)),
        (&ADD, key(2)),
        (&ADD, key(1)),
        (&FAIL, key(3)),
        (&FAIL, key(3)),
    ]);
    assert_eq!(ends, [Ok(1), Ok(2), Ok(1), Err("HandlerFailed"), Err("HandlerFailed")]);
    assert_eq!(world.count("KeyDuplicate"), 2);
    assert_eq!(world.call(&ADD), 4, "two and the one that failed");
    let ends = world.deliver_all([(&SLOW_ADD, key(4)), (&SLOW_ADD, key(4))]);
    assert_eq!(ends, [Ok(5); 2], "the second waited for the first");
}

#[test]
fn a_request_sent_again_makes_no_activation_and_runs_in_no_other() {
    let mut world = World::serving();
    let other = Sending::Again(Some(LATER_OWNER));
    let ends = world.deliver_all([(&ADD, keyed(1, other))]);
    assert_eq!(ends, [Err("LostAfterHandOver")]);
    assert_eq!(world.count("GrainActivated"), 0);
    assert_eq!(world.deliver_all([(&ADD, keyed(1, Sending::First))]), [Ok(1)]);
    let ends = world.deliver_all([
        (&ADD, keyed(1, other)),
        (&ADD, keyed(2, other)),
        (&ADD, keyed(3, Sending::Again(None))),
    ]);
    assert_eq!(ends, [Ok(1), Err("LostAfterHandOver"), Err("LostAfterHandOver")]);
    let number = world.shard.activations.iter().next().map(|(_, one)| one.shared.number.get());
    let ends = world.deliver_all([(&ADD, keyed(2, Sending::Again(number)))]);
    assert_eq!(ends, [Ok(2)], "it never came, and would have come here");
}

#[test]
fn a_handler_knows_its_call_s_key() {
    let mut world = World::serving();
    let one = world.handle.grain::<Counter>("one");
    let known = world.run(move || async move {
        let envelope = Envelope { identity: Some("ada".into()), ..Envelope::default() };
        call(&one, &KEY).idempotency_key(17).envelope(envelope).await
    });
    assert_eq!(known, Ok(17));
}

impl World {
    fn hub(&mut self) -> Hub {
        let hub = self.handle.hub("portal/ada").unwrap().start().unwrap();
        self.settle();
        hub
    }

    /// Sends to the hub; whether it was confirmed comes into the list.
    fn note(&mut self, envelope: Envelope, ends: &Ends) {
        let into = Arc::clone(ends);
        self.spawn(move || async move {
            let hub = Here::handle().raw(Address::parse("portal/ada").unwrap());
            let body = Body::encode(&());
            let request = RawRequest { method: ADD.id, schema: ADD.arguments, body };
            let ended = hub.send(request).envelope(envelope).await;
            into.lock().unwrap().push(ended.map(|_| 1).map_err(|failure| failure.name()));
        });
    }
}

/// The delivery that waits, if one does.
fn next(hub: &mut Hub) -> Option<crate::hub::Delivery> {
    let mut next = core::pin::pin!(hub.next());
    match next.as_mut().poll(&mut core::task::Context::from_waker(core::task::Waker::noop())) {
        core::task::Poll::Ready(delivery) => delivery,
        core::task::Poll::Pending => None,
    }
}

#[test]
fn a_hub_is_given_an_event_once() {
    let mut world = World::serving();
    let mut hub = world.hub();
    let ends = Ends::default();
    world.note(event(5), &ends);
    world.note(event(5), &ends);
    let delivery = next(&mut hub).expect("the first");
    assert_eq!((delivery.attempt(), delivery.event().map(|event| event.number)), (4, Some(5)));
    assert!(next(&mut hub).is_none(), "it waits for the first");
    drop(delivery);
    world.settle();
    assert_eq!(*ends.lock().unwrap(), [Err("HandlerFailed"); 2], "both hear of the failure");
    ends.lock().unwrap().clear();
    world.note(event(5), &ends);
    next(&mut hub).expect("what failed comes again").confirm();
    world.settle();
    world.note(event(5), &ends);
    assert!(next(&mut hub).is_none());
    assert_eq!(*ends.lock().unwrap(), [Ok(1); 2], "known, and confirmed");
    assert_eq!(world.count("EventDuplicate"), 2);
    world.note(event_of(LATER_OWNER, 6), &ends);
    next(&mut hub).expect("of the later owner").confirm();
    world.note(event(7), &ends);
    // Its router looks for where the stream went, as long as it may.
    for _ in 0..ROUTER_ATTEMPTS_MAX {
        world.pass(RETRY_BACKOFF_MAX);
    }
    assert_eq!(*ends.lock().unwrap(), [Ok(1), Ok(1), Ok(1), Err("Moving")]);
}

#[test]
fn a_hub_is_given_a_key_once() {
    let mut world = World::serving();
    let mut hub = world.hub();
    let ends = Ends::default();
    world.note(keyed(1, Sending::First), &ends);
    next(&mut hub).expect("the first").confirm();
    world.settle();
    world.note(keyed(1, Sending::Again(None)), &ends);
    world.note(keyed(2, Sending::Again(Some(OWNER))), &ends);
    assert!(next(&mut hub).is_none());
    assert_eq!(*ends.lock().unwrap(), [Ok(1), Ok(1), Err("LostAfterHandOver")]);
}
