//! What the threads of one silo see of each other without mail: numbers that one writes and others
//! read, and the counters of events.

use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use siloring_core::event::{Event, Level};
use siloring_core::outcome::DeliveryFailure;
use siloring_core::sync::running::Running;
use siloring_core::{Address, Moment, ShardIndex};

/// Hears of deliveries that nobody awaits and that failed: sender, target, failure.
pub(crate) type OnFailure = Box<dyn Fn(Option<&Address>, &Address, &DeliveryFailure) + Send + Sync>;

/// One instance for a silo.
pub(crate) struct Shared {
    /// Until when shards may take input; written by the control thread.
    serve_until: CachePadded<AtomicU64>,
    /// Counts the pump's turns; one writer each.
    shards: Box<[CachePadded<ShardNumbers>]>,
    events: Box<[AtomicU64]>,
    on_failure: Option<OnFailure>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shared").field("shards", &self.shards).finish_non_exhaustive()
    }
}

/// What a shard's pump counts.
#[derive(Debug, Default)]
struct ShardNumbers {
    turns: AtomicU64,
    parks: AtomicU64,
    links: AtomicU64,
    frames: AtomicU64,
    refused: AtomicU64,
    store_requests: AtomicU64,
    /// What the shard runs, for the report when it is stuck.
    running: Arc<Running>,
}

impl Shared {
    /// For a silo with so many shards, which may serve nothing yet. `on_failure` hears dead
    /// letters.
    pub(crate) fn new(shards: u16, on_failure: Option<OnFailure>) -> Self {
        Self {
            serve_until: CachePadded::new(AtomicU64::new(0)),
            shards: (0..shards).map(|_| CachePadded::default()).collect(),
            events: Event::NAMES.iter().map(|_| AtomicU64::new(0)).collect(),
            on_failure,
        }
    }

    /// Until when shards may take input.
    pub(crate) fn serve_until(&self) -> Moment {
        Moment::from_nanos(self.serve_until.load(Ordering::Acquire))
    }

    /// Renews or shortens the right to serve.
    pub(crate) fn set_serve_until(&self, until: Moment) {
        self.serve_until.store(until.as_nanos(), Ordering::Release);
    }

    /// A shard's pump begins a turn; its links have taken so many frames so far, and so many
    /// requests were refused for overload. Called by that shard alone: a plain store is enough.
    pub(crate) fn turn_begun(&self, shard: ShardIndex, frames_count: u64, refused_count: u64) {
        let numbers = self.numbers(shard);
        bump(&numbers.turns);
        numbers.frames.store(frames_count, Ordering::Relaxed);
        numbers.refused.store(refused_count, Ordering::Relaxed);
    }

    /// A shard asks the store.
    pub(crate) fn store_asked(&self, shard: ShardIndex) {
        bump(&self.numbers(shard).store_requests);
    }

    /// A shard's pump goes to sleep.
    pub(crate) fn parked(&self, shard: ShardIndex) {
        bump(&self.numbers(shard).parks);
    }

    /// A shard has so many links.
    pub(crate) fn set_links(&self, shard: ShardIndex, count: usize) {
        self.numbers(shard).links.store(count as u64, Ordering::Relaxed);
    }

    /// Where a shard says what it runs.
    pub(crate) fn running_of(&self, shard: ShardIndex) -> Arc<Running> {
        Arc::clone(&self.numbers(shard).running)
    }

    /// What a shard runs; empty between turns.
    pub(crate) fn running(&self, shard: ShardIndex) -> String {
        self.numbers(shard).running.text()
    }

    /// The progress counter of every shard.
    pub(crate) fn progress(&self) -> Vec<u64> {
        self.shards.iter().map(|numbers| numbers.turns.load(Ordering::Relaxed)).collect()
    }

    /// Counts an event and logs it.
    pub(crate) fn record(&self, event: &Event) {
        self.events[event.index()].fetch_add(1, Ordering::Relaxed);
        if let Event::DeadLetter { source, target, failure } = event
            && let Some(on_failure) = &self.on_failure
        {
            on_failure(source.as_ref(), target, failure);
        }
        match event.level() {
            Level::Debug => tracing::debug!(target: "siloring", "{event}"),
            Level::Info => tracing::info!(target: "siloring", "{event}"),
            Level::Warn => tracing::warn!(target: "siloring", "{event}"),
            Level::Error => tracing::error!(target: "siloring", "{event}"),
        }
    }

    /// How often an event of that name has happened; `None` if there is no such event.
    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        let index = Event::NAMES.iter().position(|known| *known == name)?;
        Some(self.events[index].load(Ordering::Relaxed))
    }

    /// Everything counted, as Prometheus text.
    pub(crate) fn metrics_text(&self) -> String {
        let mut text = String::from("# TYPE siloring_events_total counter\n");
        for (name, count) in Event::NAMES.iter().zip(&self.events) {
            let count = count.load(Ordering::Relaxed);
            line(&mut text, "siloring_events_total", "event", name, count);
        }
        let families: [Family; 6] = [
            ("siloring_shard_turns_total", "counter", |numbers| &numbers.turns),
            ("siloring_shard_parks_total", "counter", |numbers| &numbers.parks),
            ("siloring_shard_links", "gauge", |numbers| &numbers.links),
            ("siloring_shard_frames_total", "counter", |numbers| &numbers.frames),
            ("siloring_shard_overload_refused_total", "counter", |numbers| &numbers.refused),
            ("siloring_shard_store_requests_total", "counter", |n| &n.store_requests),
        ];
        for (name, kind, number) in families {
            writeln!(text, "# TYPE {name} {kind}").expect("a String takes everything");
            for (index, numbers) in self.shards.iter().enumerate() {
                let value = number(numbers).load(Ordering::Relaxed);
                line(&mut text, name, "shard", &index.to_string(), value);
            }
        }
        text
    }

    fn numbers(&self, shard: ShardIndex) -> &ShardNumbers {
        &self.shards[usize::from(shard.0)]
    }
}

/// A metric of every shard: name, type, where it is.
type Family = (&'static str, &'static str, fn(&ShardNumbers) -> &AtomicU64);

fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

fn line(text: &mut String, family: &str, label: &str, value: &str, count: u64) {
    writeln!(text, "{family}{{{label}=\"{value}\"}} {count}").expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_by_name_and_shown_as_prometheus_text() {
        let shared = Shared::new(2, None);
        shared.record(&Event::StoreAvailable {});
        shared.record(&Event::StoreAvailable {});
        shared.turn_begun(ShardIndex(1), 7, 3);
        assert_eq!(shared.count("StoreAvailable"), Some(2));
        assert_eq!(shared.count("NoSuchEvent"), None);
        assert_eq!(shared.progress(), [0, 1]);
        let text = shared.metrics_text();
        assert!(text.contains("siloring_events_total{event=\"StoreAvailable\"} 2\n"));
        assert!(text.contains("siloring_shard_turns_total{shard=\"1\"} 1\n"));
        assert!(text.contains("siloring_shard_frames_total{shard=\"1\"} 7\n"));
        assert!(text.contains("siloring_shard_overload_refused_total{shard=\"1\"} 3\n"));
    }
}
