//! The scenario on real silos, each trouble on a cluster of its own.
//!
//! The sender's silo is in this process; the hub's and the one that holds the list of the hub's
//! stream are processes of their own, so that they can be rolled and killed. Each reply goes out
//! twice: as a directed call, and over the hub's stream.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::{self, ScopedJoinHandle};

use anyhow::Context as _;
use siloring::here::Here;
use siloring::prelude::*;
use siloring::{Leg, ShardIndex};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use super::SiloSettings;
use super::books::Counts;
use super::child::{self, Reply, portal};
use super::process::Process;
use super::scenario::Trouble;
use super::sender::{DEADLINE, Facts, Sent, count, send_all};

/// Hubs to choose from: of so many, one has its list at the silo that goes.
const HUBS: u32 = 32;
/// Not a reply of the scenario: sent before it, to see that all is well.
const WARM_UP: u64 = u64::MAX;

/// What became of the replies.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) directed: Counts,
    pub(crate) stream: Counts,
}

/// Runs the scenario with each trouble, all at once.
pub(crate) fn run_all() -> anyhow::Result<Vec<Measured>> {
    thread::scope(|scope| {
        let runs = Trouble::ALL.map(|trouble| {
            let named = thread::Builder::new().name(format!("{trouble:?}"));
            named.spawn_scoped(scope, move || run(trouble))
        });
        let ended = |run: io::Result<ScopedJoinHandle<'_, _>>| {
            run?.join().expect("a scenario does not panic")
        };
        runs.into_iter().map(ended).collect()
    })
}

/// The silos of one cluster.
struct Stage {
    trouble: Trouble,
    store: String,
    sender: Silo,
    list: Process,
    hubs: Process,
    /// The one that gets the replies.
    hub: String,
}

fn run(trouble: Trouble) -> anyhow::Result<Measured> {
    let folder = tempfile::Builder::new().prefix("siloring-silence-").tempdir()?;
    let store = format!("sqlite:{}", folder.path().join("cluster.db").display());
    siloring::migrate(&store)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let mut stage = Stage::open(trouble, store, &runtime)?;
    let (sent, mut newcomer) = stage.play(&runtime)?;
    let hubs = (trouble != Trouble::KillHub).then_some(&mut stage.hubs);
    let list = (trouble == Trouble::KillHub).then_some(&mut stage.list);
    for process in hubs.into_iter().chain(list).chain(newcomer.as_mut()) {
        process.leave()?;
    }
    stage.sender.drain()?;
    let said: Vec<String> = stage.hubs.said().collect();
    let heard = |leg: &str| -> BTreeSet<u64> {
        let prefix = format!("{} {leg} ", stage.hub);
        said.iter().filter_map(|line| line.strip_prefix(&prefix)?.parse().ok()).collect()
    };
    Ok(Measured {
        directed: count(&sent, Leg::Directed, &heard("directed")),
        stream: count(&sent, Leg::Stream, &heard("stream")),
    })
}

fn settings(trouble: Trouble, store: &str, name: &str, hubs: u32) -> SiloSettings {
    let cluster = format!("silence-{}-{trouble:?}", std::process::id());
    SiloSettings { name: name.to_owned(), cluster, store: store.to_owned(), hubs }
}

impl Stage {
    fn open(trouble: Trouble, store: String, runtime: &Runtime) -> anyhow::Result<Self> {
        let sender = child::builder(&settings(trouble, &store, "sender", 0)).start()?;
        let list = Process::start(&settings(trouble, &store, "list", 0))?;
        let generation = list.ready()?;
        let hubs = Process::start(&settings(trouble, &store, "hubs", HUBS))?;
        hubs.ready()?;
        let hub = runtime.block_on(hub_listed_at(&sender, &generation))?;
        Ok(Self { trouble, store, sender, list, hubs, hub })
    }

    /// Sends all replies and makes the trouble among them. Says what became of the replies, and who
    /// has joined.
    fn play(&mut self, runtime: &Runtime) -> anyhow::Result<(Vec<Sent>, Option<Process>)> {
        let facts = Arc::new(Facts::default());
        let hub = self.sender.handle().hub_ref(&self.hub)?;
        let route = self.sender.streams().route(hub).deadline(DEADLINE);
        let (begin, due) = channel();
        thread::scope(|scope| {
            let of_sender = Arc::clone(&facts);
            let work =
                move || LocalSet::new().block_on(runtime, send_all(route, of_sender, &begin));
            let sending =
                thread::Builder::new().name("sending".into()).spawn_scoped(scope, work)?;
            due.recv()?;
            let newcomer = self.make_trouble(&facts);
            facts.trouble_is_over.store(true, Ordering::SeqCst);
            let sent = sending.join().expect("sending does not panic");
            Ok((sent, newcomer?))
        })
    }

    fn make_trouble(&mut self, facts: &Facts) -> anyhow::Result<Option<Process>> {
        match self.trouble {
            Trouble::Roll => {
                let newcomer = Process::start(&settings(self.trouble, &self.store, "newcomer", 0))?;
                newcomer.ready()?;
                self.list.leave()?;
                Ok(Some(newcomer))
            }
            Trouble::KillList => self.list.kill().map(|()| None),
            Trouble::KillHub => {
                facts.hub_is_killed.store(true, Ordering::SeqCst);
                self.hubs.kill().map(|()| None)
            }
        }
    }
}

/// A hub whose list is at the silo of that generation. All of them answer before the scenario
/// begins, on both legs.
async fn hub_listed_at(sender: &Silo, generation: &str) -> anyhow::Result<String> {
    let mut found = None;
    for hub in (0..HUBS).map(portal) {
        let route = sender.streams().route(sender.handle().hub_ref(&hub)?).deadline(DEADLINE);
        for leg in [Leg::Directed, Leg::Stream] {
            let reply = Reply { number: WARM_UP };
            let answered = route.clone().leg(leg).send::<Reply, ()>(&reply).await;
            answered.with_context(|| format!("{hub} does not answer: {leg:?}"))?;
        }
        // A hub's own stream is named after it; who has sent there knows where its owner lives.
        let stream = sender.stream::<Reply>("hub", &hub)?.address().clone();
        let (tell, told) = channel();
        sender.handle().spawn_on(ShardIndex(0), move || async move {
            // The one who asked waits.
            let _told = tell.send(Here::whereabouts(&stream));
        })?;
        if told.recv()?.is_some_and(|place| place.silo.to_string() == generation) {
            found = Some(hub);
        }
    }
    found.context("no hub has its list at the silo that goes: more of them may help")
}
