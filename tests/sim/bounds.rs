//! What is bounded is refused at its bound, at once and aloud, and what was there goes on.

use std::time::Duration;

use futures_util::future::join_all;
use siloring::prelude::*;
use siloring_core::limits::{ACTIVATION_QUEUE_MAX, OPEN_CALLS_PER_ACTIVATION_MAX};
use siloring_testkit::sim::{Cluster, Node};

use super::scenario::{Echo, EchoRef as _, New, Outcome, S1, S2, SECOND, check, ensure, up};

/// A grain that goes too far.
#[derive(Grain, Default)]
#[grain(type = "test.reckless")]
struct Reckless {
    turns: u64,
}

/// How calls ended.
#[message(type = "test.ends")]
#[derive(Debug, Default, PartialEq, Eq)]
struct Ends {
    handled: u64,
    overloaded: u64,
    others: u64,
}

impl Ends {
    fn of<T>(results: &[Result<T, CallError>]) -> Self {
        let mut ends = Self::default();
        for result in results {
            let failure = result.as_ref().err().and_then(CallError::delivery);
            *match failure.map(DeliveryFailure::name) {
                None => &mut ends.handled,
                Some("Overloaded") => &mut ends.overloaded,
                Some(_) => &mut ends.others,
            } += 1;
        }
        ends
    }
}

#[grain_methods]
impl Reckless {
    /// Makes so many calls in one turn, to grains enough for none of their queues to be full.
    async fn fan_out(&mut self, ctx: &Ctx, calls: u32) -> Ends {
        let targets: Vec<_> = (0..16).map(|id| ctx.grain::<Echo>(format!("leaf-{id}"))).collect();
        let calls = targets.iter().cycle().zip(0..calls).map(|(target, _)| target.echo());
        Ends::of(&join_all(calls).await)
    }

    async fn panic(&mut self) {
        panic!("a grain of a test panics")
    }

    async fn turns(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}

/// One turn makes more calls than an activation may have open: those beyond are refused at once,
/// the others are answered, and the silo goes on.
#[test]
fn a_turn_that_makes_forty_thousand_calls_hears_of_each() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3).host::<Reckless>())?;
        let ends = cluster.block_on(S1, |node| async move {
            node.handle().grain::<Reckless>("one").fan_out(40_000).await
        })??;
        let open = OPEN_CALLS_PER_ACTIVATION_MAX as u64;
        let expected = Ends { handled: open, overloaded: 40_000 - open, others: 0 };
        ensure!(ends == expected, "{ends:?}");
        let within = cluster.block_on(S1, |node| async move {
            node.handle().grain::<Reckless>("one").fan_out(1_000).await
        })??;
        ensure!(within.handled == 1_000, "the room is given back: {within:?}");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// More deliveries wait for one grain than its queue holds, for longer than the router tries: those
/// beyond hear so while the others still wait, and each of these is handled once.
#[test]
fn a_full_queue_refuses_what_is_beyond_it_and_serves_the_rest() {
    const BEYOND: usize = 1_000;
    const TURN_MS: u64 = 20_000;
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let busy = cluster.spawn(S1, |node| async move {
            let grain = node.handle().grain::<Echo>("busy");
            grain.echo_after(TURN_MS).await
        });
        cluster.run_for(SECOND)?;
        let (ends, last) = cluster.block_on(S2, |node| async move {
            let calls = (0..ACTIVATION_QUEUE_MAX + BEYOND).map(|_| timed(&node));
            let (results, took): (Vec<_>, Vec<_>) = join_all(calls).await.into_iter().unzip();
            let refused = results.iter().zip(took).filter(|(result, _)| result.is_err());
            (Ends::of(&results), refused.map(|(_, took)| took).max())
        })?;
        let handled = ACTIVATION_QUEUE_MAX as u64;
        let expected = Ends { handled, overloaded: BEYOND as u64, others: 0 };
        ensure!(ends == expected, "{ends:?}");
        ensure!(last.is_some_and(|last| last < SECOND), "the refused wait: {last:?}");
        ensure!(*busy.borrow() == Some(Ok(1)), "the first turn ran: {busy:?}");
        Ok(())
    }
    check(scenario, &["everything-refused", "refusals-swallowed"]);
}

/// A handler panics: its caller hears so, its activation is made anew, and its neighbours live on.
#[test]
fn a_grain_that_panics_is_told_to_its_caller_and_made_anew() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3).host::<Reckless>())?;
        let turns = |cluster: &mut Cluster, key: String| {
            cluster.block_on(S1, |node| async move {
                node.handle().grain::<Reckless>(key).turns().await
            })
        };
        let neighbours = || (0..20).map(|id| format!("neighbour-{id}"));
        for key in neighbours().chain(["one".to_owned()]) {
            ensure!(turns(&mut cluster, key.clone())? == Ok(1), "{key} is made");
        }
        let failure = cluster.block_on(S1, |node| async move {
            node.handle().grain::<Reckless>("one").panic().await
        })?;
        let failure = failure.err().and_then(|error| error.delivery().cloned());
        let name = failure.as_ref().map(DeliveryFailure::name);
        ensure!(name == Some("HandlerFailed"), "{failure:?}");
        ensure!(turns(&mut cluster, "one".to_owned())? == Ok(1), "it is another activation");
        for key in neighbours() {
            ensure!(turns(&mut cluster, key.clone())? == Ok(2), "{key} lives on");
        }
        Ok(())
    }
    check(scenario, &["everything-refused", "refusals-swallowed"]);
}

/// Calls the busy grain; how that ended and how long it took.
async fn timed(node: &Node) -> (Result<u64, CallError>, Duration) {
    let began = node.now();
    let result = node.handle().grain::<Echo>("busy").echo().await;
    (result, node.now().since(began))
}
