//! What crosses threads: values, through bounded queues. Nothing else is shared between shards, but
//! what one thread shows of itself to who watches it.

pub mod mailbox;
pub mod queued;
pub mod running;

mod model;
mod queue;
