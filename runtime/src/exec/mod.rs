//! The executor of one shard: its task slab, ready queue, wakers and timer wheel.
//!
//! Single-threaded, driven from outside: the same code under glommio and under the simulator. A
//! waker may be used from any thread; from the shard's own it costs a queue push, from another it
//! goes through a lock-free queue and wakes the shard's thread.

pub mod local;
pub mod tasks;
pub mod wheel;
