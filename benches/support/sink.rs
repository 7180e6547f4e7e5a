//! A grain that takes events, for the benches of streams.

use std::hint::black_box;

use siloring::prelude::*;

use crate::silos::Payload;

/// Takes events.
#[derive(Grain, Default)]
#[grain(type = "bench.sink")]
pub(crate) struct Sink {}

#[grain_methods]
impl Sink {
    /// The event, read in place.
    #[on_event]
    pub(crate) async fn take(&mut self, event: &Archived<Payload>) {
        black_box(event);
    }

    /// Nothing, but that it is activated.
    pub(crate) async fn wake(&self) {}
}
