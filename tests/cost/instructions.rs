//! What each step costs, in instructions: the tests of the loads that are on record.

use std::hint::black_box;
use std::time::Duration;

use siloring_core::wire::{FrameKind, Header};
use siloring_core::{Address, AddressHash, CorrelationId};
use siloring_pubsub::check::{CheckCache, Liveness, Owned, SetVersion};
use siloring_testkit::sim::explore::run;
use siloring_testkit::sim::{Options, Plan};
use siloring_transport::{Class, Link, Role};

use crate::counted::Load;
use crate::silos::{Method, Side, Silos, established, kind};

#[test]
fn a_call_on_the_same_shard_costs_no_more_than_recorded() {
    let load = Load {
        name: "a call on the same shard",
        test: "instructions::a_call_on_the_same_shard_costs_no_more_than_recorded",
        amounts: [5_000, 25_000],
        least: 10_000,
        run: same_shard,
    };
    load.hold();
}

/// From the call's first poll to the poll in which its caller goes on.
fn same_shard(count: u64) -> u64 {
    let mut silos = Silos::with_grain_on(Side::First);
    silos.keep_calling(Side::First, Method::Echo, 1);
    silos.run_until(count);
    silos.done()
}

#[test]
fn a_frame_costs_no_more_than_recorded() {
    let load = Load {
        name: "a frame, encoded and decoded",
        test: "instructions::a_frame_costs_no_more_than_recorded",
        amounts: [10_000, 110_000],
        least: 10_000,
        run: frames,
    };
    load.hold();
}

/// A request of 64 bytes, of addresses that the peer knows, laid into one end of a link and read
/// from the other.
fn frames(count: u64) -> u64 {
    let mut from = Link::new(&established(Role::Dialer, Side::Second));
    let mut to = Link::new(&established(Role::Acceptor, Side::First));
    let [source, target] = ["cost.caller/one", "cost.echo/one"]
        .map(|address| Address::parse(address).expect("an address"));
    for number in 0..count {
        let header = Header {
            correlation: CorrelationId(number),
            source: source.hash(),
            target: target.hash(),
            ..Header::new(FrameKind::Request)
        };
        let (names, body) = ((Some(&source), Some(&target)), black_box([7; 64]));
        let pushed = from.push(&header, names.0, names.1, &body, &[], Class::Request);
        pushed.expect("the link takes it");
        let bytes = from.unsent();
        to.receive_space()[..bytes.len()].copy_from_slice(bytes);
        to.received(bytes.len());
        from.sent(from.unsent().len());
        let frame = to.next_frame().expect("a frame").expect("a whole one");
        assert_eq!(frame.header.correlation, header.correlation);
        black_box(frame);
        assert!(to.next_frame().expect("nothing else").is_none());
    }
    count
}

#[test]
fn a_dispatch_costs_no_more_than_recorded() {
    let load = Load {
        name: "a request, taken in, run and answered",
        test: "instructions::a_dispatch_costs_no_more_than_recorded",
        amounts: [5_000, 25_000],
        least: 10_000,
        run: dispatches,
    };
    load.hold();
}

/// From a request's bytes to its reply's.
fn dispatches(count: u64) -> u64 {
    let mut silos = Silos::with_grain_on(Side::Second);
    silos.call(Side::First, 100);
    silos.run_until(101);
    let request = silos.request();
    let reply = silos.answer(&request).to_vec();
    assert_eq!(kind(&reply), Some(FrameKind::Reply));
    silos.answered();
    for _ in 0..count {
        assert!(silos.answer(&request) == reply, "the same reply each time");
        silos.answered();
    }
    count
}

#[test]
fn a_check_costs_no_more_than_recorded() {
    let load = Load {
        name: "a thousand checks for a subscriber",
        test: "instructions::a_check_costs_no_more_than_recorded",
        amounts: [100, 1_100],
        least: 1_000,
        run: checks,
    };
    load.hold();
}

/// Of streams that are cached, one in eight without a subscriber.
fn checks(thousands: u64) -> u64 {
    let (cache, mut writers) = CheckCache::new(1, 10_000);
    let mut random = fastrand::Rng::with_seed(7);
    let streams: Vec<AddressHash> = (0..1_000).map(|_| AddressHash(random.u128(..))).collect();
    for (set, stream) in (1..).zip(&streams) {
        writers[0].put(*stream, u32::from(set % 8 != 0), Owned::Yes, SetVersion(set));
    }
    let unknown = |stream: &&AddressHash| cache.check(**stream) == Liveness::Unknown;
    assert_eq!(streams.iter().filter(unknown).count(), 0, "all are cached");
    for _ in 0..thousands {
        for stream in &streams {
            black_box(cache.check(black_box(*stream)));
        }
    }
    thousands
}

#[test]
fn a_simulated_event_costs_no_more_than_recorded() {
    let load = Load {
        name: "a simulated event",
        test: "instructions::a_simulated_event_costs_no_more_than_recorded",
        amounts: [4, 12],
        least: 10_000,
        run: simulated,
    };
    load.hold();
}

/// Seconds of load of a cluster without a fault; the events that they came to.
fn simulated(seconds: u64) -> u64 {
    let mut options = Options::new(0);
    options.load_per_second = 500;
    options.safety = Duration::from_secs(seconds);
    let report = run(&Plan::calm(options)).unwrap_or_else(|failure| panic!("{failure}"));
    report.trace_count
}
