//! The sender: a reply every 100 ms, on both legs, and what became of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use siloring::prelude::*;
use siloring::{HubRoute, Leg};
use tokio::task::spawn_local;
use tokio::time::{interval, timeout};

use super::books::Counts;
use super::child::Reply;
use super::scenario::{REPLIES, REPLY_PERIOD_MS, TROUBLE_AT_REPLY};

/// A reply's deadline: longer than it takes to detect a killed silo.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// An outcome that has not come by then is silence: the deadline, the ledger's tick, and a margin.
const OUTCOME_WITHIN: Duration = Duration::from_secs(12);

/// What the sender and whoever makes the trouble tell each other.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) hub_is_killed: AtomicBool,
    pub(crate) trouble_is_over: AtomicBool,
}

/// A reply, and what its sender heard.
#[derive(Debug)]
pub(crate) struct Sent {
    number: u64,
    leg: Leg,
    /// `None`: nothing, in time.
    outcome: Option<Result<(), DeliveryFailure>>,
    /// Whether the hub lived when the outcome came.
    hub_lived: bool,
}

/// Sends replies until all are sent and the trouble is over, and awaits the outcome of each. Says
/// when it is time for the trouble.
pub(crate) async fn send_all(
    route: HubRoute,
    facts: Arc<Facts>,
    begin_trouble: &Sender<()>,
) -> Vec<Sent> {
    let mut ticks = interval(Duration::from_millis(REPLY_PERIOD_MS));
    let mut under_way = Vec::new();
    let mut number = 0;
    while number < REPLIES || !facts.trouble_is_over.load(Ordering::SeqCst) {
        ticks.tick().await;
        if number == TROUBLE_AT_REPLY {
            begin_trouble.send(()).expect("somebody waits to make the trouble");
        }
        for leg in [Leg::Directed, Leg::Stream] {
            let (route, facts) = (route.clone().leg(leg), Arc::clone(&facts));
            under_way.push(spawn_local(async move {
                let reply = Reply { number };
                let outcome = timeout(OUTCOME_WITHIN, route.send::<Reply, ()>(&reply)).await.ok();
                let hub_lived = !facts.hub_is_killed.load(Ordering::SeqCst);
                Sent { number, leg, outcome, hub_lived }
            }));
        }
        number += 1;
    }
    let mut sent = Vec::new();
    for outcome in under_way {
        sent.push(outcome.await.expect("a send does not panic"));
    }
    sent
}

/// The counts of a leg. `heard` are the replies that the hub says it handled: one that only its
/// sender takes for handled is as silent as one without an outcome.
pub(crate) fn count(sent: &[Sent], leg: Leg, heard: &BTreeSet<u64>) -> Counts {
    let mut counts = Counts::default();
    for reply in sent.iter().filter(|reply| reply.leg == leg) {
        counts.sent += 1;
        match &reply.outcome {
            Some(Ok(())) if heard.contains(&reply.number) => counts.handled += 1,
            Some(Ok(())) | None => counts.silent += 1,
            Some(Err(failure)) => {
                counts.told += 1;
                counts.wrongly_refused += u64::from(reply.hub_lived && says_nobody(failure));
            }
        }
    }
    counts
}

/// Whether a failure says that nobody is there.
fn says_nobody(failure: &DeliveryFailure) -> bool {
    let nobody = [RejectedKind::NotHere, RejectedKind::NoSubscriber, RejectedKind::IncarnationDead];
    failure.rejected_kind().is_some_and(|kind| nobody.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u64, outcome: Option<Result<(), DeliveryFailure>>, hub_lived: bool) -> Sent {
        Sent { number, leg: Leg::Directed, outcome, hub_lived }
    }

    #[test]
    fn a_reply_is_silent_without_an_outcome_and_with_an_untrue_one() {
        let all = [sent(1, Some(Ok(())), true), sent(2, Some(Ok(())), true), sent(3, None, true)];
        let counts = count(&all, Leg::Directed, &BTreeSet::from([1]));
        assert_eq!((counts.sent, counts.handled, counts.silent), (3, 1, 2));
        assert_eq!(count(&all, Leg::Stream, &BTreeSet::new()), Counts::default());
    }

    #[test]
    fn a_refusal_is_wrong_while_the_hub_lives() {
        let refused = || Some(Err(DeliveryFailure::rejected(RejectedKind::NotHere, "x")));
        let busy = Some(Err(DeliveryFailure::rejected(RejectedKind::Overloaded, "x")));
        let all = [sent(1, refused(), true), sent(2, refused(), false), sent(3, busy, true)];
        let counts = count(&all, Leg::Directed, &BTreeSet::new());
        assert_eq!((counts.told, counts.wrongly_refused, counts.silent), (3, 1, 0));
    }
}
