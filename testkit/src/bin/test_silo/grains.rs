//! What the silo hosts, what travels, and what its grains and hubs have handled.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use siloring::Stream;
use siloring::envelope::EventInfo;
use siloring::prelude::*;

/// The namespace of all streams that tests name.
pub(crate) const NAMESPACE: &str = "room";

/// What is sent to hubs.
#[message(type = "test.parcel")]
pub(crate) struct Parcel {
    pub(crate) bytes: Vec<u8>,
}

/// What hubs answer: who they are.
#[message(type = "test.receipt")]
pub(crate) struct Receipt {
    pub(crate) process: u32,
}

/// An event. Tests give each one of a stream a number of its own.
#[message(type = "test.note")]
pub(crate) struct Note {
    pub(crate) number: u64,
    pub(crate) work_ms: u64,
}

/// Counts its calls, as long as it lives.
#[derive(Grain, Default)]
#[grain(type = "test.counter")]
pub(crate) struct Counter {
    calls: u64,
}

#[grain_methods]
impl Counter {
    pub(crate) async fn add(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    pub(crate) async fn add_slowly(&mut self, ctx: &Ctx, work_ms: u64) -> u64 {
        ctx.sleep(Duration::from_millis(work_ms)).await;
        self.calls += 1;
        self.calls
    }
}

/// Consumes and publishes events.
#[derive(Grain, Default)]
#[grain(type = "test.listener")]
pub(crate) struct Listener;

#[grain_methods]
impl Listener {
    /// Where it is: in which process.
    pub(crate) async fn process(&self) -> u64 {
        u64::from(std::process::id())
    }

    #[on_event]
    pub(crate) async fn on_note(&mut self, ctx: &Ctx, note: &Archived<Note>) {
        let (number, work_ms) = (note.number.to_native(), note.work_ms.to_native());
        if work_ms > 0 {
            ctx.sleep(Duration::from_millis(work_ms)).await;
        }
        if let Some(event) = ctx.event() {
            record(ctx.key(), number, event);
        }
    }

    /// Publishes from a turn; how many of the events were handled by somebody.
    pub(crate) async fn tell(&self, stream: String, first: u64, count: u64) -> u64 {
        let stream = Stream::<Note>::here(NAMESPACE, &stream).expect("tests name streams");
        let mut handled = 0;
        for number in first..first + count {
            handled += u64::from(stream.publish(&Note { number, work_ms: 0 }).await.is_ok());
        }
        handled
    }

    /// Ends this activation after the turn.
    pub(crate) async fn leave(&self, ctx: &Ctx) -> u64 {
        ctx.deactivate();
        0
    }
}

/// An event as it was handled here.
#[derive(Clone, Copy)]
pub(crate) struct Handled {
    pub(crate) number: u64,
    pub(crate) attempt: u8,
    /// The owner's: view, then counter.
    pub(crate) epoch: [u64; 2],
}

/// Guards what consumers of this process have handled, by name: written by shards and by threads of
/// hubs, read by the desk.
static HANDLED: Mutex<BTreeMap<String, Vec<Handled>>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<String, Vec<Handled>>> {
    HANDLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A consumer has handled an event.
pub(crate) fn record(consumer: &str, number: u64, event: &EventInfo) {
    let epoch = [event.epoch.view.0, event.epoch.counter];
    let handled = Handled { number, attempt: event.attempt, epoch };
    let mut all = all();
    match all.get_mut(consumer) {
        Some(events) => events.push(handled),
        None => drop(all.insert(consumer.to_owned(), vec![handled])),
    }
}

/// What a consumer has handled in this process, in order.
pub(crate) fn handled(consumer: &str) -> Vec<Handled> {
    all().get(consumer).cloned().unwrap_or_default()
}
