//! What is allocated in steady state: nothing, on either side of a call.
//!
//! Counted is everything that the thread asks for between two moments of a flow of calls that goes
//! on: requests encoded, sent, received and dispatched, turns run, replies encoded, sent and
//! received, futures woken; and what the shards do now and then, as virtual seconds pass.

use siloring_testkit::process::figure;

use crate::allocations;
use crate::silos::{Method, Side, Silos};

/// Calls after which every buffer, slab and list has grown.
const WARM_UP: u64 = 20_000;
/// Calls that are counted.
const CALLS: u64 = 20_000;

/// Allocations of [`CALLS`] calls of the first silo, when so many are under way.
fn allocated(grain_on: Side, method: Method, in_flight: usize) -> u64 {
    let mut silos = Silos::with_grain_on(grain_on);
    silos.keep_calling(Side::First, method, in_flight);
    silos.run_until(WARM_UP);
    let (done, before) = (silos.done(), allocations::count());
    silos.run_until(done + CALLS);
    allocations::count() - before
}

#[test]
fn a_call_between_silos_allocates_nothing() {
    for in_flight in [1, 64] {
        let count = allocated(Side::Second, Method::Echo, in_flight);
        figure(&format!("allocations: {CALLS} calls between silos, {in_flight} under way"), count);
        assert_eq!(count, 0, "{in_flight} under way");
    }
}

#[test]
fn a_call_on_the_same_shard_allocates_nothing() {
    for in_flight in [1, 64] {
        let count = allocated(Side::First, Method::Echo, in_flight);
        figure(&format!("allocations: {CALLS} calls on a shard, {in_flight} under way"), count);
        assert_eq!(count, 0, "{in_flight} under way");
    }
}

/// One in each turn: what is counted reaches into the grain.
#[test]
fn an_allocation_of_a_turn_is_counted() {
    for grain_on in [Side::First, Side::Second] {
        let count = allocated(grain_on, Method::Boxed, 1);
        assert!(count >= CALLS, "{count} allocations of {CALLS} turns that make one each");
    }
}
