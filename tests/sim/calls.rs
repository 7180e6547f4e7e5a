//! Calls at the limits: size, time, cycles, floods.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use siloring_core::DeliveryFailure;
use siloring_core::limits::{BODY_BYTES_MAX, DEADLINE_DEFAULT};
use siloring_testkit::sim::Fault;

use super::scenario::{
    DETECTED, Echo, EchoRef as _, New, Note, Opening, Outcome, S1, S2, S3, SECOND, check, ensure,
    note, serve_hub, up,
};

/// W2. A payload just below, at, and just above the limit; the refusal itself arrives.
#[test]
fn a_payload_is_delivered_up_to_the_limit_and_refused_above_it() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let log = serve_hub(&mut cluster, S2, "portal/large", Opening::Plain);
        cluster.run_for(SECOND)?;
        let archive = |bytes: usize| {
            let note = Note { number: 1, bytes: vec![7; bytes] };
            siloring_core::Body::encode(&note).len()
        };
        // An archive grows in steps: the largest that fits, and the step after it.
        let mut fits = BODY_BYTES_MAX - archive(0) - 64;
        while archive(fits + 1) <= BODY_BYTES_MAX - 64 {
            fits += 1;
        }
        for (bytes, expected) in
            [(fits - 1, "Handled"), (fits, "Handled"), (fits + 128, "TooLarge")]
        {
            let heard = cluster.block_on(S1, move |node| async move {
                note(&node, "portal/large", &Note { number: 1, bytes: vec![7; bytes] }).await
            })?;
            ensure!(heard.name() == expected, "{bytes} bytes: {heard:?}");
            ensure!(heard.took < DEADLINE_DEFAULT, "{bytes} bytes: {heard:?}");
        }
        ensure!(log.numbers().len() == 2, "{} arrived", log.numbers().len());
        Ok(())
    }
    check(scenario, &["everything-refused", "refusals-swallowed"]);
}

/// W4. One hub takes deliveries and never answers, for hours: the others are served as ever, and
/// the log says so once a minute at most.
#[test]
fn one_stuck_hub_delays_nobody_else() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let well = ["portal/well-1", "portal/well-2", "portal/well-3", "portal/well-4"];
        for hub in well {
            serve_hub(&mut cluster, S2, hub, Opening::Plain);
        }
        drop(cluster.spawn(S3, |node| async move {
            let hub = node.handle().hub("portal/stuck").expect("a plain address").open().await;
            node.sleep(Duration::from_hours(3)).await;
            drop(hub);
        }));
        cluster.run_for(SECOND)?;
        let waiting = Rc::new(Cell::new(0u64));
        for round in 0..120u32 {
            let stuck = Rc::clone(&waiting);
            stuck.set(stuck.get() + 1);
            drop(cluster.spawn(S1, |node| async move {
                let heard = note(&node, "portal/stuck", &Note::default()).await;
                assert_eq!(heard.name(), "TimedOut");
                stuck.set(stuck.get() - 1);
            }));
            for hub in well {
                let heard = cluster.block_on(S1, move |node| async move {
                    note(&node, hub, &Note::default()).await
                })?;
                ensure!(heard.name() == "Handled", "round {round}: {heard:?}");
                ensure!(heard.took < Duration::from_millis(20), "round {round}: {heard:?}");
            }
            cluster.run_for(60 * SECOND)?;
        }
        ensure!(waiting.get() <= 1, "{} never heard", waiting.get());
        let lines = cluster.world().event_count("DeliveriesFailed");
        ensure!(lines <= 121, "a line a minute, not {lines} in two hours");
        Ok(())
    }
    check(scenario, &["one-leg-at-a-time"]);
}

/// W5. Twenty thousand refusals of one dead target.
#[test]
fn a_flood_of_refusals_is_told_each_and_logged_once_a_minute() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        let refused = Rc::new(Cell::new(0u64));
        let count = Rc::clone(&refused);
        cluster.block_on(S1, move |node| async move {
            for _ in 0..20_000u64 {
                let heard = note(&node, "portal/dead", &Note::default()).await;
                count.set(count.get() + u64::from(heard.name() == "NotHere"));
            }
        })?;
        ensure!(refused.get() == 20_000, "{} of 20 000 refused", refused.get());
        let lines = cluster.world().event_count("DeliveriesFailed");
        let minutes = cluster.world().now().since(siloring_core::Moment::ZERO).as_secs() / 60;
        ensure!(lines <= 1 + minutes, "{lines} lines in {minutes} minutes");
        Ok(())
    }
    check(scenario, &["refusals-swallowed", "every-failure-logged"]);
}

/// W6. The handler is slower than the deadline: unknown in time, and one effect.
#[test]
fn a_handler_slower_than_the_deadline_has_one_effect() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("slow").runs().await
        })??;
        let (name, took) = cluster.block_on(S1, |node| async move {
            let began = node.now();
            let call = node.handle().grain::<Echo>("slow").echo_after(2_000);
            let result = call.deadline(Duration::from_millis(500)).await;
            let name = result.err().and_then(|error| error.delivery().map(DeliveryFailure::name));
            (name, node.now().since(began))
        })?;
        ensure!(name == Some("TimedOut"), "{name:?}");
        ensure!(took <= Duration::from_millis(550), "told in time: {took:?}");
        cluster.run_for(5 * SECOND)?;
        let runs = cluster.block_on(S2, |node| async move {
            node.handle().grain::<Echo>("slow").runs().await
        })??;
        ensure!(runs == 1, "{runs} effects");
        Ok(())
    }
    check(scenario, &["resent-at-deadline"]);
}

/// W6, with a key. The link is lost while the handler runs, and once more after it has ended and
/// before its reply arrives: the call is sent again, and the handler has one effect.
#[test]
fn a_call_with_a_key_whose_link_is_lost_is_sent_again_and_has_one_effect() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        for slot in [S3, S1] {
            cluster.block_on(slot, |node| async move {
                node.handle().grain::<Echo>("keyed").runs().await
            })??;
        }
        for (key, mute) in [(1u64, false), (2, true)] {
            let ended = Rc::new(Cell::new(None));
            let told = Rc::clone(&ended);
            drop(cluster.spawn(S1, move |node| async move {
                let call = node.handle().grain::<Echo>("keyed").echo_after(300);
                told.set(Some(call.idempotency_key(key.into()).await));
            }));
            cluster.run_for(Duration::from_millis(100))?;
            if mute {
                cluster.inflict(Fault::Mute(S3, S1, Duration::from_millis(400)));
                cluster.run_for(Duration::from_millis(300))?;
            }
            cluster.inflict(Fault::Reset(S1, S3));
            cluster.run_for(5 * SECOND)?;
            let ended = ended.take().ok_or("it has not ended")??;
            let runs = cluster.block_on(S2, |node| async move {
                node.handle().grain::<Echo>("keyed").runs().await
            })??;
            ensure!((ended, runs) == (key, key), "said {ended}, ran {runs} times");
        }
        Ok(())
    }
    check(scenario, &["keys-unknown"]);
}

/// W6, with a key. The activation is gone that the call was handed over to: nobody else runs it.
#[test]
fn a_call_with_a_key_whose_activation_is_gone_is_lost_and_runs_nowhere_else() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        for slot in [S3, S1] {
            cluster.block_on(slot, |node| async move {
                node.handle().grain::<Echo>("keyed").runs().await
            })??;
        }
        let ended = Rc::new(Cell::new(None));
        let told = Rc::clone(&ended);
        drop(cluster.spawn(S1, move |node| async move {
            let call = node.handle().grain::<Echo>("keyed").echo_after(2_000);
            let result = call.idempotency_key(1).await;
            told.set(result.err().and_then(|error| error.delivery().map(DeliveryFailure::name)));
        }));
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(DETECTED + 10 * SECOND)?;
        let name = ended.take();
        ensure!(name == Some("LostAfterHandOver"), "{name:?}");
        let runs = cluster.block_on(S2, |node| async move {
            node.handle().grain::<Echo>("keyed").runs().await
        })??;
        ensure!(runs == 0, "it ran {runs} times elsewhere");
        Ok(())
    }
    check(scenario, &["again-is-anew"]);
}

/// W7. A calls B calls A: a diagnosed deadlock, at once.
#[test]
fn a_chain_that_waits_for_itself_is_a_deadlock_at_once() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        for (slot, key) in [(S1, "a"), (S2, "b"), (S3, "c")] {
            cluster.block_on(slot, move |node| async move {
                node.handle().grain::<Echo>(key).runs().await
            })??;
        }
        let (said, took) = cluster.block_on(S1, |node| async move {
            let began = node.now();
            let chain = ["b", "c", "a"].map(str::to_owned).to_vec();
            let said = node.handle().grain::<Echo>("a").chain(chain).await;
            (said, node.now().since(began))
        })?;
        let said = said?;
        ensure!(said.contains("Deadlock"), "{said}");
        ensure!(said.contains("test.echo/a"), "it names who waits: {said}");
        ensure!(took < SECOND, "{took:?}");
        Ok(())
    }
    check(scenario, &["deadlock-undiagnosed"]);
}

/// A silo that is killed while it handles one-ways: each is handled, or its failure is told.
#[test]
fn a_one_way_fails_to_its_handler() {
    fn scenario(new: New<'_>) -> Outcome {
        let mut cluster = up(new(3))?;
        cluster.block_on(S3, |node| async move {
            node.handle().grain::<Echo>("sink").echo().await
        })??;
        let failures = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = std::sync::Arc::clone(&failures);
        drop(cluster.spawn(S1, move |node| async move {
            let call = node.handle().grain::<Echo>("sink").echo_after(20_000);
            call.one_way_or(move |failure| {
                told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(failure.name());
            });
        }));
        cluster.run_for(SECOND)?;
        cluster.inflict(Fault::Kill(S3));
        cluster.run_for(DETECTED)?;
        let failures = failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        ensure!(failures == ["LostAfterHandOver"], "{failures:?}");
        Ok(())
    }
    check(scenario, &["open-calls-survive-their-silo"]);
}

/// The ledger's sweep: a call whose answer never comes ends one tick after its deadline.
#[test]
fn a_call_that_nobody_answers_ends_one_tick_after_its_deadline() {
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&outcomes);
    let mut cluster = super::scenario::calm();
    serve_hub(&mut cluster, S2, "portal/mute", Opening::Plain);
    cluster.run_for(SECOND).unwrap();
    cluster.inflict(Fault::Pause(S2, Duration::from_secs(1)));
    drop(cluster.spawn(S1, |node| async move {
        let began = node.now();
        let hub = node.handle().hub_ref("portal/mute").expect("a plain address");
        let call = hub.send::<Note, ()>(&Note::default());
        let result = call.deadline(Duration::from_millis(300)).await;
        seen.borrow_mut().push((result.is_err(), node.now().since(began)));
    }));
    cluster.run_for(SECOND).unwrap();
    let outcomes = outcomes.borrow();
    let [(failed, took)] = outcomes[..] else { panic!("one outcome: {outcomes:?}") };
    assert!(failed);
    assert!(took >= Duration::from_millis(300) && took <= Duration::from_millis(320), "{took:?}");
}
