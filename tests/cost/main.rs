//! What a call costs, held where no clock can hold it: in instructions and in allocations, which a
//! busy machine does not disturb. The benches measure time, and only on a machine that is quiet.
//!
//! A program of its own, as its allocator counts: in that of the simulator each run would pay for
//! the counting. Nothing here has a socket, a thread or a clock; two silos stand in one thread, and
//! what one sends is copied to the other.

#[path = "../../benches/support/allocations.rs"]
#[expect(dead_code, reason = "the benches use all of it")]
mod allocations;
mod counted;
mod instructions;
#[expect(dead_code, reason = "a bench looks into the silos")]
mod silos;
mod steady;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;
