//! Rolls: the cluster is replaced silo by silo while it is at work.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use siloring::prelude::*;
use siloring_testkit::sim::{Cluster, ClusterBuilder, Fault, Node};

use super::scenario::{Echo, EchoRef as _, New, Outcome, S1, S2, S3, SECOND, check, ensure, up};

const ROLLS: u64 = 10;
/// Probes of each silo after each roll.
const PROBES: u64 = 10;
/// Grains that the load is spread over.
const KEYS: u64 = 64;
/// Each silo's program begins a call this often.
const PERIOD: Duration = Duration::from_millis(20);
/// A call that takes longer was not noticed to meet a silo that leaves.
const LATE: Duration = Duration::from_secs(2);

/// What the load heard: how many calls were answered, and how the others ended.
#[derive(Default, Debug)]
struct Heard {
    begun: u64,
    answered: u64,
    failed: BTreeMap<String, u64>,
    longest: Duration,
}

/// Calls without pause until this silo leaves.
async fn load(node: Node, heard: Rc<RefCell<Heard>>) {
    let mut random = node.random("rolls");
    loop {
        let key = format!("rolled-{}", random.u64(..KEYS));
        let (one, heard) = (node.clone(), Rc::clone(&heard));
        let result = {
            heard.borrow_mut().begun += 1;
            let leaves = Rc::new(std::cell::Cell::new(false));
            let said = Rc::clone(&leaves);
            node.spawn(async move { said.set(call(&one, &key, &heard).await) });
            node.sleep(PERIOD).await;
            leaves.get()
        };
        if result {
            return;
        }
    }
}

/// One call; whether it was refused because this silo leaves, which is no failure.
async fn call(node: &Node, key: &str, heard: &RefCell<Heard>) -> bool {
    let began = node.now();
    let result = node.handle().grain::<Echo>(key).echo().await;
    let took = node.now().since(began);
    let refused =
        result.as_ref().err().and_then(|error| error.delivery().map(DeliveryFailure::name));
    if refused == Some("Draining") && is_leaving(node).await {
        heard.borrow_mut().begun -= 1;
        return true;
    }
    let mut heard = heard.borrow_mut();
    heard.longest = heard.longest.max(took);
    match result {
        Ok(_) => heard.answered += 1,
        Err(error) => *heard.failed.entry(error.to_string()).or_default() += 1,
    }
    false
}

/// Whether this silo takes no new hubs: it leaves.
async fn is_leaving(node: &Node) -> bool {
    let hub = node.handle().hub("portal/leaving").expect("a plain address").open().await;
    matches!(hub, Err(HubError::SiloStopping))
}

/// Ten calls by each silo, to grains of its own and to those under load: each is answered at once.
fn probe(cluster: &mut Cluster, roll: u64) -> Outcome {
    for slot in [S1, S2, S3] {
        let answered = cluster.block_on(slot, move |node| async move {
            let mut answered = 0;
            for probe in 0..PROBES {
                let key = format!("rolled-{}", (roll * PROBES + probe) % KEYS);
                let call = node.handle().grain::<Echo>(key).echo().deadline(LATE).await;
                answered += u64::from(call.is_ok());
            }
            answered
        })?;
        ensure!(answered == PROBES, "{answered} of {PROBES} by {slot} after roll {roll}");
    }
    Ok(())
}

/// G9. Ten graceful rolls under load: no call fails, none is late, and after each roll every silo
/// reaches everything.
#[test]
fn ten_graceful_rolls_under_load_fail_no_call() {
    fn scenario(new: New<'_>) -> Outcome {
        roll(new(3))?;
        // With ways so slow that much is under way when a silo leaves.
        roll(new(3).world(|world| {
            world.network.latency_min = Duration::from_millis(5);
            world.network.latency_max = Duration::from_millis(30);
            world.network.latency_tail = Duration::from_millis(400);
        }))
    }
    let variants =
        ["drain-is-final", "inbound-dropped-at-stop", "leavers-called", "callers-not-awaited"];
    check(scenario, &variants);
}

fn roll(builder: ClusterBuilder) -> Outcome {
    let heard = Rc::new(RefCell::new(Heard::default()));
    let told = Rc::clone(&heard);
    let mut cluster = up(builder.program(move |node| load(node, Rc::clone(&told))))?;
    for roll in 1..=ROLLS {
        cluster.inflict(Fault::Roll);
        cluster.run_until(120 * SECOND, "the roll is done", |cluster| {
            cluster.report().tally.rolls == roll && cluster.is_whole()
        })?;
        probe(&mut cluster, roll)?;
        let heard = heard.borrow();
        ensure!(heard.failed.is_empty(), "in roll {roll}: {heard:?}");
        ensure!(heard.longest <= LATE, "in roll {roll}: {heard:?}");
        // What is open began just now.
        let open = heard.begun - heard.answered;
        ensure!(open <= 20, "in roll {roll} {open} calls hear nothing: {heard:?}");
    }
    let heard = heard.borrow();
    println!("{heard:?}");
    ensure!(heard.answered > 5_000, "the load was no load: {heard:?}");
    Ok(())
}
