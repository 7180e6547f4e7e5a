//! What no well-behaved program does: turns that keep their thread, call tens of thousands, or
//! write where no store fences them.
//!
//! | verb | does | answers |
//! |---|---|---|
//! | `hog MS` | a turn keeps its shard's thread | an outcome |
//! | `fan COUNT` | one turn makes so many calls at once | how many ended how |
//! | `abort` | ends the process at once | |
//! | `jump MS` | the silo's clock jumps, as after a suspension | |
//! | `register PLACE KEY VALUE MS` | a turn writes to a register elsewhere | 1: accepted |

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use siloring::prelude::*;
use siloring::{FailedKind, SiloBuilder};
use siloring_core::ActivationNumber;

use super::grains::{Counter, CounterRef as _};
use super::{Desk, block_on, millis, number, timed};

/// Grains that are called at once.
const FAN_KEYS: u64 = 16;
/// A turn that keeps its thread is waited for this much longer.
const HOG_MARGIN: Duration = Duration::from_secs(10);

/// Hosts these grains.
pub(crate) fn host(builder: SiloBuilder) -> SiloBuilder {
    builder.host::<Nuisance>().host::<Writer>()
}

/// Does what no grain should.
#[derive(Grain, Default)]
#[grain(type = "chaos.nuisance", key = u64)]
struct Nuisance;

#[grain_methods]
impl Nuisance {
    async fn hog(&self, ms: u64) -> u64 {
        thread::sleep(Duration::from_millis(ms));
        ms
    }

    async fn fan(&self, ctx: &Ctx, count: u64) -> Vec<(String, u64)> {
        let calls =
            (0..count).map(|key| ctx.grain::<Counter>(format!("fan-{}", key % FAN_KEYS)).add());
        let mut calls: Vec<_> = calls.map(|call| Some(Box::pin(call.into_future()))).collect();
        let mut ends: BTreeMap<String, u64> = BTreeMap::new();
        std::future::poll_fn(|cx| {
            for slot in &mut calls {
                let Some(call) = slot else { continue };
                if let Poll::Ready(result) = call.as_mut().poll(cx) {
                    *ends.entry(super::streams::named(result.map(drop))).or_default() += 1;
                    *slot = None;
                }
            }
            let is_done = calls.iter().all(Option::is_none);
            if is_done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        ends.into_iter().collect()
    }
}

/// Writes to a register outside of all stores, which can only be fenced by what it is given.
#[derive(Grain, Default)]
#[grain(type = "chaos.writer", key = String, placement = "prefer_local")]
struct Writer;

#[grain_methods]
impl Writer {
    async fn write(&self, ctx: &Ctx, place: String, value: u64) -> Result<u64, String> {
        register(&place, ctx.fence(), value).map_err(|error| error.to_string())
    }
}

/// Asks the register of a place for leave, waits for it, then writes: what was begun before the
/// process slept is written after it. It blocks the thread, as careless code would.
fn register(place: &str, fence: ActivationNumber, value: u64) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect(place)?;
    writeln!(stream, "hello")?;
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    answers.next().transpose()?;
    writeln!(stream, "{} {} {value}", fence.view.0, fence.counter)?;
    let accepted = answers.next().transpose()?;
    Ok(u64::from(accepted.as_deref() == Some("accepted")))
}

#[cfg(feature = "planted")]
fn jump(by: Duration) -> Value {
    siloring::jump_clock(by);
    json!({ "jumped_ms": by.as_millis() })
}

#[cfg(not(feature = "planted"))]
fn jump(_by: Duration) -> Value {
    json!({ "error": "build the test kit with its feature `planted`" })
}

impl Desk {
    /// Obeys a verb of a nuisance.
    pub(crate) fn answer_of_nuisance(self: &Arc<Self>, words: &[&str]) -> Value {
        match words {
            ["hog", ms] => {
                let hog = self.handle.grain::<Nuisance>(0).hog(number(ms));
                timed(hog.deadline(millis(ms) + HOG_MARGIN))
            }
            ["fan", count] => match block_on(self.handle.grain::<Nuisance>(1).fan(number(count))) {
                Ok(ends) => json!({ "ends": ends.into_iter().collect::<BTreeMap<_, _>>() }),
                Err(error) => json!({ "error": error.to_string() }),
            },
            ["abort"] => std::process::abort(),
            ["jump", ms] => jump(millis(ms)),
            ["register", place, key, value, ms] => {
                let writer = self.handle.grain::<Writer>((*key).to_owned());
                let call = writer.write((*place).to_owned(), number(value)).deadline(millis(ms));
                timed(async { call.await.map_err(without_text) })
            }
            others => self.answer_of_streams(others),
        }
    }
}

fn without_text(error: CallError<String>) -> CallError {
    match error {
        CallError::Delivery(failure) => CallError::Delivery(failure),
        CallError::Handler(text) => {
            CallError::Delivery(DeliveryFailure::failed(FailedKind::HandlerFailed, text))
        }
    }
}
