//! Two releases of one program, for the scenarios of mixed versions.
//!
//! Each message changes in its own way from the first to the second, and each has a grain that
//! takes it, gives it back, stores it, and hears it over a stream. [`Drive`] is what a test does
//! with one, whichever release it is of. A number goes with everything, and each shape has a
//! constant beside it that a misread would show.

pub(crate) mod v1;
pub(crate) mod v2;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use siloring::prelude::*;
use siloring_testkit::sim::{Node, violate};

/// The namespace of their streams.
pub(crate) const LINES: &str = "lines";

/// A message of one release.
pub(crate) trait Shape: Sized {
    /// One with a number.
    fn of(number: u64) -> Self;
    /// Its number; `None` if it was misread.
    fn number(&self) -> Option<u64>;
}

/// Stored state that this release cannot read.
#[message(type = "versions.unreadable")]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unreadable {
    pub(crate) why: String,
}

/// What it said, or how it failed.
pub(crate) type Said<T> = Pin<Box<dyn Future<Output = Result<T, String>>>>;

/// What a test does with a message's grain, from a node of one release.
pub(crate) struct Drive {
    /// Lets the grain of a key live here.
    pub(crate) wake: fn(Node, &'static str) -> Said<()>,
    /// Ends the activation.
    pub(crate) leave: fn(Node, &'static str) -> Said<()>,
    /// Gives a message with a number and hears of one with the next number.
    pub(crate) take: fn(Node, &'static str, u64) -> Said<u64>,
    /// Has one stored.
    pub(crate) keep: fn(Node, &'static str, u64) -> Said<()>,
    /// The number of what is stored.
    pub(crate) kept: fn(Node, &'static str) -> Said<Option<u64>>,
    /// The number of the last event that it heard.
    pub(crate) heard: fn(Node, &'static str) -> Said<u64>,
    /// Subscribes it to the stream of its key.
    pub(crate) join: fn(Node, &'static str) -> Said<()>,
    /// Publishes to that stream.
    pub(crate) publish: fn(Node, &'static str, u64) -> Said<()>,
    /// Sends a message to a hub, which answers with the next number.
    pub(crate) send: fn(Node, &'static str, u64) -> Said<u64>,
    /// Is that hub, until it is closed.
    pub(crate) serve: fn(Node, &'static str) -> Said<()>,
}

/// What the outcome of a call is called.
pub(crate) fn named<E>(error: &CallError<E>, other: impl Fn(&E) -> String) -> String {
    match error {
        CallError::Delivery(failure) => failure.name().to_owned(),
        CallError::Handler(error) => other(error),
    }
}

/// The number of what came in: that it was misread breaks the run.
pub(crate) fn sound<M: Shape + fmt::Debug>(it: &M) -> u64 {
    it.number().unwrap_or_else(|| {
        violate("no version is read as another", format!("{it:?}"));
        0
    })
}

/// The answer to a message: the next number.
pub(crate) fn next<M: Shape + fmt::Debug>(it: &M) -> M {
    M::of(sound(it) + 1)
}

/// A message's grain, in one release, and how it is driven.
macro_rules! program {
    (
        $module:ident, $kind:tt, $M:ident,
        take: { $($take:tt)* }, keep: { $($keep:tt)* }, kept: { $($kept:tt)* },
        more: { $($more:tt)* }
    ) => {
        pub(crate) mod $module {
            use super::*;

            #[derive(Grain, Default, Debug)]
            #[grain(type = $kind)]
            pub(crate) struct Room {
                heard: u64,
            }

            #[grain_methods]
            impl Room {
                pub(crate) async fn wake(&mut self) {}

                pub(crate) async fn leave(&mut self, ctx: &Ctx) {
                    ctx.deactivate();
                }

                $($take)*
                pub(crate) async fn take(&mut self, it: $M) -> $M {
                    next(&it)
                }

                $($keep)*
                pub(crate) async fn keep(&mut self, ctx: &Ctx, it: $M) -> Result<(), Unreadable> {
                    let unreadable = |error: StateError| Unreadable { why: error.to_string() };
                    ctx.load_state::<$M>("it").await.map_err(unreadable)?;
                    ctx.save_state("it", &it).await.map_err(unreadable)
                }

                $($kept)*
                pub(crate) async fn kept(&mut self, ctx: &Ctx) -> Result<Option<$M>, Unreadable> {
                    let unreadable = |error: StateError| Unreadable { why: error.to_string() };
                    ctx.load_state::<$M>("it").await.map_err(unreadable)
                }

                pub(crate) async fn heard(&self) -> u64 {
                    self.heard
                }

                #[on_event]
                pub(crate) async fn on_line(&mut self, it: $M) {
                    self.heard = sound(&it);
                }

                $($more)*
            }

            fn room(node: &Node, key: &str) -> GrainRef<Room> {
                node.handle().grain::<Room>(key)
            }

            fn text(error: &CallError) -> String {
                named(error, |never| match *never {})
            }

            fn unreadable(error: &CallError<Unreadable>) -> String {
                named(error, |error| format!("unreadable: {}", error.why))
            }

            pub(crate) const DRIVE: Drive = Drive {
                wake: |node, key| Box::pin(async move {
                    room(&node, key).wake().await.map_err(|e| text(&e))
                }),
                leave: |node, key| Box::pin(async move {
                    room(&node, key).leave().await.map_err(|e| text(&e))
                }),
                take: |node, key, number| Box::pin(async move {
                    let call = room(&node, key).take($M::of(number));
                    let taken = call.await.map_err(|e| text(&e))?;
                    taken.number().ok_or_else(|| "misread".to_owned())
                }),
                keep: |node, key, number| Box::pin(async move {
                    let call = room(&node, key).keep($M::of(number));
                    call.await.map_err(|e| unreadable(&e))
                }),
                kept: |node, key| Box::pin(async move {
                    let kept = room(&node, key).kept().await;
                    let kept = kept.map_err(|e| unreadable(&e))?;
                    kept.map(|it| it.number().ok_or_else(|| "misread".to_owned())).transpose()
                }),
                heard: |node, key| Box::pin(async move {
                    room(&node, key).heard().await.map_err(|e| text(&e))
                }),
                join: |node, key| Box::pin(async move {
                    let stream = node.stream::<$M>(LINES, key);
                    let joining = stream.subscription("room").grain::<Room>(key, Room::ON_LINE);
                    joining.await.map(drop).map_err(|error| error.to_string())
                }),
                publish: |node, key, number| Box::pin(async move {
                    let stream = node.stream::<$M>(LINES, key);
                    let published = stream.publish(&$M::of(number)).await;
                    let published = published.map_err(|failure| failure.name().to_owned())?;
                    match published.failures.first() {
                        Some((_, failure)) => Err(failure.name().to_owned()),
                        None => Ok(()),
                    }
                }),
                send: |node, hub, number| Box::pin(async move {
                    let hub = node.handle().hub_ref(hub).expect("a plain address");
                    let taken = hub.send::<$M, $M>(&$M::of(number)).await.map_err(|e| text(&e))?;
                    taken.number().ok_or_else(|| "misread".to_owned())
                }),
                serve: |node, hub| Box::pin(async move {
                    let hub = node.handle().hub(hub).expect("a plain address").open().await;
                    let mut hub = hub.map_err(|error| error.to_string())?;
                    while let Some(delivery) = hub.next().await {
                        match delivery.message::<$M>() {
                            Ok(it) => delivery.answer(&next(&it)),
                            Err(failure) => delivery.refuse(failure),
                        }
                    }
                    Ok(())
                }),
            };
        }
    };
}
use program;
