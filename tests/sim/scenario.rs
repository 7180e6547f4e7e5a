//! What the scenarios share: a cluster to act on, grains and hubs to act with, and the rule that a
//! scenario fails under its variant.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use siloring::grain::GrainType;
use siloring::prelude::*;
use siloring_core::Address;
use siloring_core::ring::{Ring, position};
use siloring_testkit::panicked;
use siloring_testkit::sim::world::ProcessId;
use siloring_testkit::sim::{Cluster, ClusterBuilder, Node, Options, Plan, Slot, defects};

/// A scenario's end: it held, or why not.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The first three slots.
pub(crate) const S1: Slot = Slot(1);
pub(crate) const S2: Slot = Slot(2);
pub(crate) const S3: Slot = Slot(3);
pub(crate) const S4: Slot = Slot(4);

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// A killed silo is Dead by then (the design's bound), and a second for the news.
pub(crate) const DETECTED: Duration = Duration::from_secs(11);

/// Ends the scenario as failed unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err(format!($($why)+).into());
        }
    };
}
pub(crate) use ensure;

/// Makes the builder of a scenario's cluster: so many silos, no load.
pub(crate) type New<'a> = &'a dyn Fn(u16) -> ClusterBuilder;

/// Runs a scenario with each variant, then as built: it fails each time, then holds.
pub(crate) fn check(scenario: fn(New<'_>) -> Outcome, variants: &[&str]) {
    for variant in variants {
        assert!(defects().any(|known| known == *variant), "{variant} is a variant");
        let error = run(scenario, Some(variant)).expect_err("fails with its variant");
        println!("with {variant}: {}", error.lines().next().unwrap_or_default());
    }
    if let Err(error) = run(scenario, None) {
        panic!("{error}");
    }
}

fn run(scenario: fn(New<'_>) -> Outcome, variant: Option<&str>) -> Result<(), String> {
    let new = |silos| {
        let mut options = Options::new(1);
        options.silos = silos;
        options.load_per_second = 0;
        options.defect = variant.map(str::to_owned);
        let builder = Cluster::builder().plan(Plan::calm(options)).keep_events();
        watched(builder.host::<Echo>())
    };
    let ran = catch_unwind(AssertUnwindSafe(|| scenario(&new)));
    match ran {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(format!("it panicked: {:?}", panicked::text(&*panic))),
    }
}

fn watched(builder: ClusterBuilder) -> ClusterBuilder {
    if siloring_testkit::sim::explore::trace_asked() {
        return builder.trace(|line| eprintln!("{line}"));
    }
    builder
}

/// A grain for scenarios.
#[derive(Grain, Default, Debug)]
#[grain(type = "test.echo")]
pub(crate) struct Echo {
    runs: u64,
}

#[grain_methods]
impl Echo {
    /// Counts its runs.
    pub(crate) async fn echo(&mut self) -> u64 {
        self.runs += 1;
        self.runs
    }

    /// As `echo`, after a while.
    pub(crate) async fn echo_after(&mut self, ctx: &Ctx, wait_ms: u64) -> u64 {
        ctx.sleep(Duration::from_millis(wait_ms)).await;
        self.runs += 1;
        self.runs
    }

    /// How often the others ran.
    pub(crate) async fn runs(&self) -> u64 {
        self.runs
    }

    /// As `echo`; says in which attempt the call came here.
    pub(crate) async fn attempt(&mut self, ctx: &Ctx) -> u8 {
        self.runs += 1;
        ctx.attempt()
    }

    /// Ends this activation.
    pub(crate) async fn leave(&mut self, ctx: &Ctx) {
        ctx.deactivate();
    }

    /// Calls the next grain of a chain; the last one calls the first.
    pub(crate) async fn chain(&mut self, ctx: &Ctx, next: Vec<String>) -> String {
        let Some((first, rest)) = next.split_first() else { return "end".to_owned() };
        match ctx.grain::<Self>(first.as_str()).chain(rest.to_vec()).await {
            Ok(found) => found,
            Err(error) => error.to_string(),
        }
    }

    /// Sends a note to a hub and says what came of it.
    pub(crate) async fn tell(&mut self, ctx: &Ctx, hub: String) -> String {
        let hub = ctx.hub_ref(&hub).expect("the tests' addresses are plain");
        match hub.send::<Note, ()>(&Note::default()).await {
            Ok(()) => "answered".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// As `tell`, after a while.
    pub(crate) async fn tell_after(&mut self, ctx: &Ctx, hub: String, wait_ms: u64) -> String {
        ctx.sleep(Duration::from_millis(wait_ms)).await;
        self.tell(ctx, hub).await
    }
}

/// What scenarios send to hubs.
#[message(type = "test.note")]
#[derive(Debug, Default)]
pub(crate) struct Note {
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

/// How a call ended, and when.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) failure: Option<DeliveryFailure>,
    pub(crate) took: Duration,
}

impl Heard {
    pub(crate) fn name(&self) -> &'static str {
        self.failure.as_ref().map_or("Handled", DeliveryFailure::name)
    }
}

/// Sends a note to a hub.
pub(crate) async fn note(node: &Node, hub: &str, message: &Note) -> Heard {
    let began = node.now();
    let hub = node.handle().hub_ref(hub).expect("the tests' addresses are plain");
    let result = hub.send::<Note, ()>(message).await;
    let failure = result.err().and_then(|error| error.delivery().cloned());
    Heard { failure, took: node.now().since(began) }
}

/// Sends notes at a steady pace for a span; how each ended, in order of sending.
pub(crate) async fn notes(node: Node, hub: String, period: Duration, span: Duration) -> Vec<Heard> {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let began = node.now();
    let mut count = 0;
    while node.now().since(began) < span {
        let (sender, hub, heard) = (node.clone(), hub.clone(), Rc::clone(&heard));
        let index = count;
        node.spawn(async move {
            let outcome = note(&sender, &hub, &Note::default()).await;
            heard.borrow_mut().push((index, outcome));
        });
        count += 1;
        node.sleep(period).await;
    }
    while heard.borrow().len() < count {
        node.sleep(Duration::from_millis(10)).await;
    }
    let mut all = heard.take();
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// What a hub of a test has taken, and why it ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct HubLog(Rc<RefCell<HubSeen>>);

#[derive(Debug, Default)]
struct HubSeen {
    claimed: Option<Result<(), HubError>>,
    numbers: Vec<u64>,
    ended: Option<HubError>,
    close: bool,
}

impl HubLog {
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.0.borrow().numbers.clone()
    }

    pub(crate) fn claimed(&self) -> Option<Result<(), HubError>> {
        self.0.borrow().claimed
    }

    pub(crate) fn ended(&self) -> Option<HubError> {
        self.0.borrow().ended
    }

    /// Closes the hub before its next delivery, or at once if it is polled.
    pub(crate) fn close(&self) {
        self.0.borrow_mut().close = true;
    }
}

/// Whether a hub replaces another holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opening {
    Plain,
    TakeOver,
}

/// Opens a hub in a slot's program and answers every note, until it is closed or lost.
pub(crate) fn serve_hub(
    cluster: &mut Cluster,
    slot: Slot,
    address: &'static str,
    opening: Opening,
) -> HubLog {
    let log = HubLog::default();
    let seen = log.clone();
    drop(cluster.spawn(slot, |node| serve(node, address, opening, seen)));
    log
}

async fn serve(node: Node, address: &'static str, opening: Opening, log: HubLog) {
    let builder = node.handle().hub(address).expect("the tests' addresses are plain");
    let builder = match opening {
        Opening::Plain => builder,
        Opening::TakeOver => builder.take_over(),
    };
    let opened = builder.open().await;
    log.0.borrow_mut().claimed = Some(opened.as_ref().map(drop).map_err(|error| *error));
    let Ok(mut hub) = opened else { return };
    loop {
        let next = until_closed(&node, &mut hub, &log).await;
        let Some(delivery) = next else { break };
        if let Ok(note) = delivery.message::<Note>() {
            log.0.borrow_mut().numbers.push(note.number);
            delivery.answer(&());
        }
    }
    log.0.borrow_mut().ended = hub.ended();
}

/// The next delivery, or `None` once the hub has ended or the test wants it closed.
async fn until_closed(node: &Node, hub: &mut Hub, log: &HubLog) -> Option<Delivery> {
    let mut next = std::pin::pin!(hub.next());
    loop {
        let mut pause = std::pin::pin!(node.sleep(Duration::from_millis(5)));
        let turn = std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(delivery) = next.as_mut().poll(cx) {
                return std::task::Poll::Ready(Some(delivery));
            }
            pause.as_mut().poll(cx).map(|()| None)
        });
        match turn.await {
            Some(delivery) => return delivery,
            None if log.0.borrow().close => return None,
            None => {}
        }
    }
}

/// Addresses of a kind whose range the silo of `slot` owns, and the silo of `heir` once that has
/// left.
pub(crate) fn owned(cluster: &Cluster, kind: &str, slot: Slot, heir: Slot) -> Vec<&'static str> {
    let view = cluster.silo(slot).expect("a silo lives in the slot").view();
    let name = |slot| cluster.silo(slot).and_then(|silo| silo.incarnation()).map(|i| i.generation);
    let is_of = |ring: &Ring, address: &Address, slot: Slot| {
        ring.owner(position(address.hash())).map(|owner| owner.silo) == name(slot)
    };
    let left = view.active().filter(|row| Some(row.incarnation.generation) != name(slot));
    let later = Ring::new(left.map(|row| (row.incarnation.generation, row.shards)));
    let all = (0..4_000).map(|id| Address::of(kind, &format!("o{id}")).expect("a plain address"));
    all.filter(|address| is_of(view.ring(), address, slot) && is_of(&later, address, heir))
        .map(|address| &*address.as_str().to_owned().leak())
        .collect()
}

/// A key of an echo whose range the silo of `slot` owns.
pub(crate) fn echo_owned_by(cluster: &Cluster, slot: Slot, heir: Slot) -> &'static str {
    let address = owned(cluster, Echo::TYPE, slot, heir)[0];
    address.rsplit_once('/').expect("an address has a kind").1
}

/// Whether the incarnation that holds, or held, a slot as `process` is gone in `observer`'s view.
pub(crate) fn is_gone_for(cluster: &Cluster, observer: Slot, process: ProcessId) -> bool {
    let generation = cluster.silo_of(process).and_then(|silo| silo.incarnation());
    let view = cluster.silo(observer).map(|silo| silo.view());
    generation.zip(view).is_some_and(|(who, view)| view.is_gone(who.generation))
}

/// The process in a slot.
pub(crate) fn process(cluster: &Cluster, slot: Slot) -> Result<ProcessId, String> {
    cluster.process(slot).ok_or_else(|| format!("{slot} is empty"))
}

/// A cluster that is up, without a variant.
pub(crate) fn calm() -> Cluster {
    let mut options = Options::new(1);
    options.load_per_second = 0;
    let builder = Cluster::builder().plan(Plan::calm(options)).host::<Echo>();
    up(builder).unwrap_or_else(|error| panic!("{error}"))
}

/// A cluster that is up.
pub(crate) fn up(builder: ClusterBuilder) -> Result<Cluster, Box<dyn std::error::Error>> {
    let mut cluster = builder.build();
    cluster.start()?;
    Ok(cluster)
}
