//! The gate: why the product exists. A delivery that cannot be made is refused, aloud and in time.

use std::time::Duration;

use siloring_core::DeliveryFailure;
use siloring_core::event::Event;
use siloring_testkit::sim::Fault;

use super::scenario::{
    DETECTED, Echo, EchoRef as _, New, Note, Opening, Outcome, S1, S2, S3, SECOND, check, ensure,
    note, notes, owned, serve_hub, up,
};

/// One way on the simulated network, at its longest.
const ONE_WAY: Duration = Duration::from_micros(500);

/// G1. Ten requests to an address that nobody has, from each silo.
#[test]
fn a_request_to_nobody_is_refused_within_five_round_trips() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3).world(|world| world.network.latency_tail = ONE_WAY))?;
        for slot in [S1, S2, S3] {
            for _ in 0..10 {
                let heard = cluster.block_on(slot, |node| async move {
                    note(&node, "client/browser-7", &Note::default()).await
                })?;
                ensure!(heard.name() == "NotHere", "{heard:?}");
                ensure!(heard.took <= 10 * ONE_WAY + Duration::from_millis(1), "{heard:?}");
            }
        }
        let lines = cluster.world().event_count("DeliveriesFailed");
        ensure!(lines == 3, "one line a silo in a minute, not {lines}");
        Ok(())
    }
    check(scenario, &["refusals-swallowed"]);
}

/// G2. The precondition of every refusal: what can be delivered is.
#[test]
fn a_request_between_two_hubs_of_two_processes_is_answered() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let there = serve_hub(&mut cluster, S2, "portal/there", Opening::Plain);
        let here = serve_hub(&mut cluster, S1, "portal/here", Opening::Plain);
        cluster.run_for(SECOND)?;
        for (from, to) in [(S1, "portal/there"), (S2, "portal/here"), (S3, "portal/there")] {
            let heard = cluster.block_on(from, move |node| async move {
                note(&node, to, &Note::default()).await
            })?;
            ensure!(heard.name() == "Handled", "{from} to {to}: {heard:?}");
        }
        ensure!(there.numbers().len() == 2, "{there:?}");
        ensure!(here.numbers().len() == 1, "{here:?}");
        Ok(())
    }
    check(scenario, &["everything-refused"]);
}

/// G3. Replies that are deliveries of their own, from a grain to the hub that asked, cross silos
/// while the owner of the hubs' ranges leaves in order: each arrives, and each request is answered.
#[test]
fn a_reply_that_crosses_silos_while_its_ranges_owner_leaves_arrives() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let hubs: Vec<_> = owned(&cluster, "portal", S3, S2).into_iter().take(150).collect();
        for hub in hubs.iter().copied() {
            cluster.block_on(S2, move |node| async move {
                node.handle().grain::<Echo>(hub).runs().await
            })??;
        }
        let mut waits = 0;
        let asked: Vec<_> = hubs
            .iter()
            .copied()
            .map(|address| {
                waits += 4;
                let wait_ms = 400 + waits;
                cluster.spawn(S1, move |node| async move {
                    let hub = node.handle().hub(address).expect("a plain address").open().await;
                    let mut hub = hub.map_err(|error| error.to_string())?;
                    let call = hub.grain::<Echo>(address).tell_after(address.to_owned(), wait_ms);
                    node.spawn(async move {
                        while let Some(delivery) = hub.next().await {
                            delivery.answer(&());
                        }
                    });
                    call.await.map_err(|error| error.to_string())
                })
            })
            .collect();
        cluster.run_for(Duration::from_millis(600))?;
        cluster.inflict(Fault::Drain(S3));
        cluster.run_for(20 * SECOND)?;
        for (hub, asked) in hubs.iter().zip(&asked) {
            let said = asked.borrow_mut().take();
            ensure!(said == Some(Ok("answered".to_owned())), "{hub}: {said:?}");
        }
        Ok(())
    }
    check(scenario, &["memory-registry"]);
}

/// G6. The process of a hub is killed; its sender goes on.
#[test]
fn sends_to_a_killed_process_are_answered_and_turn_not_here() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        serve_hub(&mut cluster, S3, "portal/gone", Opening::Plain);
        cluster.run_for(SECOND)?;
        let period = Duration::from_millis(200);
        let sent = cluster.spawn(S1, move |node| {
            notes(node, "portal/gone".to_owned(), period, Duration::from_secs(70))
        });
        cluster.run_for(5 * SECOND)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_until(120 * SECOND, "all are answered", |_| sent.borrow().is_some())?;
        let heard = sent.borrow_mut().take().unwrap_or_default();
        ensure!(heard.len() >= 340, "{} sent", heard.len());
        // The kill is at 5 s: a send each 200 ms.
        for (index, heard) in heard.iter().enumerate() {
            let at = period * u32::try_from(index)?;
            if at < Duration::from_millis(4_900) {
                ensure!(heard.name() == "Handled", "{at:?}: {heard:?}");
            }
            ensure!(heard.took <= DETECTED, "{at:?}: {heard:?}");
            if at.saturating_sub(5 * SECOND) > DETECTED {
                ensure!(heard.name() == "NotHere", "{at:?}: {heard:?}");
            }
        }
        let lines = cluster.world().event_count("DeliveriesFailed");
        ensure!((1..=3).contains(&lines), "at most a line and one a minute, not {lines}");
        Ok(())
    }
    check(scenario, &["refusals-swallowed", "open-calls-survive-their-silo"]);
}

/// G6. What was open to the killed silo ends when its death is known, not at the deadline.
#[test]
fn a_call_in_progress_ends_with_the_silo_that_handles_it() {
    fn scenario(new: New<'_>) -> Outcome {
        for fault in [Fault::Kill(S3), Fault::Vanish(S3)] {
            let mut cluster = up(new(3))?;
            cluster.block_on(S3, |node| async move {
                node.handle().grain::<Echo>("slow").echo().await
            })??;
            let waiting = cluster.spawn(S1, |node| async move {
                let began = node.now();
                let result = node.handle().grain::<Echo>("slow").echo_after(60_000).await;
                let name =
                    result.err().and_then(|error| error.delivery().map(DeliveryFailure::name));
                (name.unwrap_or("Handled"), node.now().since(began))
            });
            cluster.run_for(SECOND)?;
            cluster.inflict(fault);
            cluster.run_for(DETECTED)?;
            let heard = waiting.borrow_mut().take();
            let Some((name, took)) = heard else { return Err("open after the death".into()) };
            ensure!(name == "LostAfterHandOver", "{fault}: {name} after {took:?}");
            if matches!(fault, Fault::Kill(_)) {
                ensure!(
                    took < SECOND + Duration::from_millis(20),
                    "a reset is told at once: {took:?}"
                );
            }
        }
        Ok(())
    }
    check(scenario, &["open-calls-survive-their-silo"]);
}

/// G10. The caller's silo is gone when the answer comes: one event names it all, and nothing is
/// sent.
#[test]
fn an_answer_that_finds_no_requester_is_one_event_and_no_refusal() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("late").echo().await
        })??;
        drop(cluster.spawn(S1, |node| async move {
            node.handle().grain::<Echo>("late").echo_after(15_000).await
        }));
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Kill(S1));
        cluster.run_for(30 * SECOND)?;
        let orphans = cluster.world().events().iter().filter_map(|kept| {
            if let Event::ReplyOrphaned { source, failure, .. } = &kept.event {
                return Some((source.clone(), failure.name()));
            }
            None
        });
        let orphans: Vec<_> = orphans.collect();
        ensure!(orphans.len() == 1, "{orphans:?}");
        ensure!(orphans[0].0.as_str() == "test.echo/late", "{orphans:?}");
        ensure!(cluster.world().event_count("DeadLetter") == 0, "no failure of a failure");
        Ok(())
    }
    check(scenario, &["orphans-untold"]);
}
