//! The verbs about streams.
//!
//! Streams are named by their key; all are of one namespace.
//!
//! | verb | does | answers |
//! |---|---|---|
//! | `subscribe STREAM KEY GRAIN MS` | subscribes a grain | `subscribed`, or why not |
//! | `unsubscribe STREAM KEY` | ends a subscription | `unsubscribed`, or why not |
//! | `listen ADDRESS STREAM KEY HOW` | a hub that consumes, `claim` or `take_over` | as above |
//! | `reach ADDRESS HOW` | opens a hub that answers, on its own stream too | as above |
//! | `subscriptions STREAM` | | keys with their silos |
//! | `publish STREAM NUMBER WORK_MS MS` | publishes an event of `WORK_MS` a consumer | an outcome |
//! | `publishes STREAM FIRST COUNT EVERY_MS MS` | publishes, every `EVERY_MS` | the outcomes |
//! | `pour STREAM FIRST COUNT THREADS` | publishes as fast as it can | how many ended how |
//! | `tell GRAIN STREAM FIRST COUNT MS` | a grain publishes | an outcome |
//! | `at GRAIN MS` | finds or makes a grain, here if it is nowhere | its process |
//! | `leave GRAIN MS` | ends a grain's activation | an outcome |
//! | `events NAME` | | what a consumer handled here |
//! | `owner ADDRESS` | | the silo of an activation, as known here |
//! | `metric NAME` | | its sum over all labels |

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use siloring::here::Here;
use siloring::prelude::*;
use siloring::{HubRoute, Leg, ShardIndex, Stream, SubscribeError, Subscription};

use super::grains::{Listener, ListenerRef as _, NAMESPACE, Note, handled};
use super::{Desk, Tally, block_on, ending, millis, number, timed};

/// The outcome of a publish, in the form of a call's.
pub(crate) fn publish(stream: &Stream<Note>, note: &Note, ms: &str) -> Value {
    let publish = stream.publish(note).deadline(millis(ms));
    timed(async {
        let published = publish.await.map_err(CallError::Delivery)?;
        Ok(u64::from(published.handled))
    })
}

fn subscribed(result: Result<Subscription, SubscribeError>) -> Value {
    match result {
        Ok(_) => json!({ "result": "subscribed" }),
        Err(error) => refused(&error),
    }
}

fn refused(error: &dyn Debug) -> Value {
    json!({ "result": format!("{error:?}") })
}

impl Desk {
    /// Obeys a verb about streams.
    pub(crate) fn answer_of_streams(self: &Arc<Self>, words: &[&str]) -> Value {
        match words {
            ["subscribe", stream, key, grain, ms] => {
                let making = self.stream(stream).subscription(*key).deadline(millis(ms));
                subscribed(block_on(making.grain::<Listener>(*grain, Listener::ON_NOTE)))
            }
            ["unsubscribe", stream, key] => self.unsubscribe(stream, key),
            ["listen", address, stream, key, how] => self.listen(address, stream, key, how),
            ["reach", address, how] => self.reach(address, how),
            ["subscriptions", stream] => self.subscriptions(stream),
            ["publish", stream, of, work_ms, ms] => {
                let note = Note { number: number(of), work_ms: number(work_ms) };
                publish(&self.stream(stream), &note, ms)
            }
            ["publishes", stream, first, count, every, ms] => {
                self.publishes(stream, number(first), number(count), [every, ms])
            }
            ["pour", stream, first, count, threads] => {
                self.pour(stream, number(first), number(count), number(threads))
            }
            ["tell", grain, stream, first, count, ms] => {
                let listener = self.handle.grain::<Listener>(*grain);
                let call = listener.tell((*stream).to_owned(), number(first), number(count));
                timed(call.deadline(millis(ms)))
            }
            ["at", grain, ms] => {
                timed(self.handle.grain::<Listener>(*grain).process().deadline(millis(ms)))
            }
            ["leave", grain, ms] => {
                timed(self.handle.grain::<Listener>(*grain).leave().deadline(millis(ms)))
            }
            ["events", name] => {
                let events = handled(name);
                let events = events.iter().map(|e| json!([e.number, e.attempt, e.epoch]));
                json!({ "events": events.collect::<Vec<Value>>() })
            }
            ["owner", address] => self.owner(address),
            ["metric", name] => self.metric(name),
            unknown => json!({ "error": format!("no such command: {unknown:?}") }),
        }
    }

    pub(crate) fn stream(&self, key: &str) -> Stream<Note> {
        Stream::new(&self.handle, &self.streams, NAMESPACE, key).expect("tests name streams")
    }

    /// The route to a hub on a leg.
    pub(crate) fn route(&self, address: &str, leg: &str, ms: &str) -> HubRoute {
        let hub = self.handle.hub_ref(address).expect("tests name hubs");
        let leg = match leg {
            "directed" => Leg::Directed,
            "stream" => Leg::Stream,
            _ => Leg::Both,
        };
        self.streams.route(hub).leg(leg).deadline(millis(ms))
    }

    fn unsubscribe(&self, stream: &str, key: &str) -> Value {
        let stream = self.stream(stream);
        let listed = match block_on(stream.subscriptions()) {
            Ok(listed) => listed,
            Err(failure) => return refused(&failure),
        };
        let Some(one) = listed.iter().find(|listed| listed.subscription.key() == key) else {
            return json!({ "result": "unknown" });
        };
        match block_on(stream.unsubscribe(&one.subscription)) {
            Ok(()) => json!({ "result": "unsubscribed" }),
            Err(error) => refused(&error),
        }
    }

    fn listen(self: &Arc<Self>, address: &str, stream: &str, key: &str, how: &str) -> Value {
        let hub = match self.open(address, how) {
            Ok(hub) => hub,
            Err(error) => return refused(&error),
        };
        let mut making = self.stream(stream).subscription(key);
        if how == "take_over" {
            making = making.take_over();
        }
        let result = block_on(making.hub(&hub));
        if result.is_ok() {
            self.serve_apart(address, hub);
        }
        subscribed(result)
    }

    fn reach(self: &Arc<Self>, address: &str, how: &str) -> Value {
        let hub = match self.open(address, how) {
            Ok(hub) => hub,
            Err(error) => return refused(&error),
        };
        let result = block_on(self.streams.reach(&hub, how == "take_over"));
        if result.is_ok() {
            self.serve_apart(address, hub);
        }
        subscribed(result)
    }

    fn subscriptions(&self, stream: &str) -> Value {
        match block_on(self.stream(stream).subscriptions()) {
            Ok(listed) => {
                let silo = |s: &Subscription| s.owner().map_or(0, |owner| owner.0);
                let rows = listed.iter().map(|listed| &listed.subscription);
                let rows: BTreeMap<_, _> = rows.map(|row| (row.key(), silo(row))).collect();
                json!({ "subscriptions": rows })
            }
            Err(failure) => json!({ "subscriptions": failure.to_string() }),
        }
    }

    /// As a series of sends.
    fn publishes(&self, stream: &str, first: u64, count: u64, [every, ms]: [&str; 2]) -> Value {
        let stream = self.stream(stream);
        let publishes = (first..first + count).map(|number| {
            let (stream, ms) = (stream.clone(), ms.to_owned());
            let one = thread::Builder::new().name("publish".to_owned());
            let started = one.spawn(move || publish(&stream, &Note { number, work_ms: 0 }, &ms));
            thread::sleep(millis(every));
            started.expect("a thread can be started")
        });
        let publishes: Vec<JoinHandle<Value>> = publishes.collect();
        let ended = publishes.into_iter().map(|one| one.join().expect("a publish does not panic"));
        json!({ "series": ended.collect::<Vec<Value>>() })
    }

    fn pour(&self, stream: &str, first: u64, count: u64, threads: u64) -> Value {
        let next = Arc::new(AtomicU64::new(first));
        let workers = (0..threads).map(|_| {
            let (stream, next) = (self.stream(stream), Arc::clone(&next));
            let worker = thread::Builder::new().name("pour".to_owned());
            let started = worker.spawn(move || {
                let mut tally = Tally::default();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= first + count {
                        return tally;
                    }
                    let end = block_on(stream.publish(&Note { number, work_ms: 0 }).into_future());
                    tally.add(end.map(drop).map_err(CallError::Delivery));
                }
            });
            started.expect("a thread can be started")
        });
        let workers: Vec<JoinHandle<Tally>> = workers.collect();
        Tally::total(workers).told()
    }

    /// A piece of a load: one event to the stream of the key.
    pub(crate) fn publish_once(&self, key: u64, draw: u64) -> Result<(), CallError> {
        let publish =
            self.stream(&format!("load-{key}")).publish(&Note { number: draw, work_ms: 0 });
        block_on(publish.into_future()).map(drop).map_err(CallError::Delivery)
    }

    /// Asks each shard what it knows.
    fn owner(&self, address: &str) -> Value {
        let address = Address::parse(address).expect("tests name addresses");
        let (tell, heard) = mpsc::channel();
        for shard in (0..self.handle.shards()).map(ShardIndex) {
            let (tell, address) = (tell.clone(), address.clone());
            let look = move || async move {
                let told = tell.send(Here::whereabouts(&address));
                told.expect("the desk waits for every shard");
            };
            if let Err(failure) = self.handle.spawn_on(shard, look) {
                return json!({ "error": failure.to_string() });
            }
        }
        drop(tell);
        let place = heard.iter().flatten().next();
        json!({ "silo": place.map_or(0, |place| place.silo.0) })
    }

    fn metric(&self, name: &str) -> Value {
        let text = self.metrics.text();
        let lines = text.lines().filter(|line| line.starts_with(name));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        json!({ "value": values.sum::<u64>() })
    }
}

/// How a result is named in a tally.
pub(crate) fn named(result: Result<(), CallError>) -> String {
    result.map_or_else(|error| ending(&error), |()| "handled".to_owned())
}
