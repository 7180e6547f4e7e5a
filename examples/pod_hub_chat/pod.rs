//! A pod: a process with a silo that hosts rooms, and the hubs of some members.
//!
//! The main thread reads commands; each becomes a future on a shard. One thread more writes
//! reports. When the conductor is gone the pod drains and goes too.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use siloring::prelude::*;
use siloring::{Idle, ShardIndex, Stream, Streams, SubscribeError, Subscription};

use super::clock::{micros, now_us};
use super::journal::{Over, Who};
use super::options::{Legs, PodSettings};
use super::probe::Prober;
use super::protocol::{Command, Join, Outcome, Report, read_lines, write_line};
use super::room::{Heard, Line, Post, Refusal, Room, RoomRef as _, STREAMS, portal};
use super::tally::TALLY;

/// Between two tallies: what a killed pod had counted in this time is all that is lost of its
/// books.
const TALLY_PERIOD: Duration = Duration::from_millis(50);
/// Posts have ended by then: their deadline, and a second for the ledger's tick.
const POSTS_END_WITHIN: Duration = Duration::from_secs(31);

/// A subscription whose answer was lost is made again, so often.
const SUBSCRIBE_TRIES: u32 = 3;

/// Runs the pod until it is told to drain, or the conductor is gone.
pub(crate) fn run(settings: &PodSettings) -> anyhow::Result<ExitCode> {
    TALLY.journal.begin(&settings.journal)?;
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let silo = Silo::builder()
        .cluster(&settings.cluster)
        .name(&settings.name)
        .bind("127.0.0.1:0")
        .store(&settings.store)
        .shards(1)
        .idle(Idle::Park)
        .host::<Room>()
        .start()?;
    let (reports, outbox) = channel();
    let writer = thread::Builder::new().name("reports".into()).spawn(move || report(&outbox))?;
    let pod = Pod {
        silo: silo.handle(),
        streams: Arc::clone(silo.streams()),
        legs: settings.leg,
        name: settings.name.clone(),
        shared: Arc::new(Shared::new(reports)),
    };
    pod.shared.report(Report::Ready);
    for command in read_lines(io::stdin().lock()) {
        match command {
            Command::Open { member, place, rooms, join } => {
                pod.open(member, place, rooms, join);
            }
            Command::Say { number, member, room, text } => pod.say(number, &member, &room, text),
            Command::Probe { rooms } => pod.probe(rooms),
            Command::Drain => break,
        }
    }
    pod.shared.wait_for_posts();
    if let Err(error) = silo.drain() {
        tracing::warn!(%error, "the drain is done");
    }
    pod.shared.report(Report::Drained);
    let written = writer.join().ok().context("the reporting thread panicked")?;
    // Without the conductor there is nobody to report to, and nothing wrong.
    Ok(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes reports as they come and a tally every [`TALLY_PERIOD`], until the last report is
/// written.
fn report(outbox: &Receiver<Report>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut tally_due_us = now_us();
    loop {
        let first = outbox.recv_timeout(TALLY_PERIOD);
        let gone = matches!(first, Err(RecvTimeoutError::Disconnected));
        // What is waiting is written together.
        let batch: Vec<Report> = first.into_iter().chain(outbox.try_iter()).collect();
        let last = gone || batch.iter().any(|report| matches!(report, Report::Drained));
        if last || now_us() >= tally_due_us {
            write_line(&mut out, &Report::Tally(Box::new(TALLY.take())))?;
            tally_due_us = now_us() + micros(TALLY_PERIOD);
        }
        for report in &batch {
            write_line(&mut out, report)?;
        }
        out.flush()?;
        if last {
            return Ok(());
        }
    }
}

struct Pod {
    silo: Handle,
    streams: Arc<Streams>,
    legs: Legs,
    name: String,
    shared: Arc<Shared>,
}

/// What the futures on the shards share with the main thread.
struct Shared {
    /// As many reports wait as there are posts under way, which the conductor bounds.
    reports: Sender<Report>,
    /// Guards the rooms of each member whose hub is open here, as seen from its hub.
    members: Mutex<BTreeMap<String, Rooms>>,
    /// Guards the number of posts under way.
    posts: Mutex<u32>,
    posts_ended: Condvar,
}

type Rooms = BTreeMap<String, GrainRef<Room>>;

impl Shared {
    fn new(reports: Sender<Report>) -> Self {
        Self {
            reports,
            members: Mutex::new(BTreeMap::new()),
            posts: Mutex::new(0),
            posts_ended: Condvar::new(),
        }
    }

    fn report(&self, report: Report) {
        // The writer ends when the conductor is gone; then there is nobody to tell.
        let _told = self.reports.send(report);
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<String, Rooms>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn posts(&self) -> MutexGuard<'_, u32> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post_ended(&self, number: u64, outcome: Outcome, took_us: u64) {
        self.report(Report::Said { number, outcome, took_us });
        *self.posts() -= 1;
        self.posts_ended.notify_all();
    }

    fn wait_for_posts(&self) {
        let posts = self.posts();
        let waited =
            self.posts_ended.wait_timeout_while(posts, POSTS_END_WITHIN, |posts| *posts > 0);
        drop(waited);
    }
}

impl Pod {
    /// Opens a member's hub on the shard it belongs to and lets it live there.
    fn open(&self, member: String, place: u32, rooms: Vec<String>, join: Join) {
        let (silo, shared, name) = (self.silo.clone(), Arc::clone(&self.shared), member.clone());
        let streams = self.legs.has_streams().then(|| Arc::clone(&self.streams));
        let opening = self.silo.spawn_on(self.shard(&portal(&member)), move || async move {
            let opened = open_hub(&silo, &member, &rooms, join).await;
            let opened = match (opened, streams) {
                (Ok((hub, rooms)), Some(streams)) => {
                    subscribe(&hub, &streams, &member, &rooms).await.map(|()| (hub, rooms))
                }
                (opened, _) => opened,
            };
            match opened {
                Ok((hub, rooms)) => {
                    shared.members().insert(member.clone(), rooms);
                    shared.report(Report::Opened { member });
                    listen(hub, place).await;
                }
                Err(error) => shared.report(not_opened(member, &error)),
            }
        });
        if let Err(failure) = opening {
            self.shared.report(not_opened(name, &failure.into()));
        }
    }

    /// Posts as a member; the outcome becomes a report.
    fn say(&self, number: u64, member: &str, room: &str, text: String) {
        *self.shared.posts() += 1;
        let Some(to) = self.shared.members().get(member).and_then(|rooms| rooms.get(room).cloned())
        else {
            return self.shared.post_ended(number, Outcome::Failed("NotAtHome".into()), 0);
        };
        let (from, shared) = (member.to_owned(), Arc::clone(&self.shared));
        let sent_us = now_us();
        let (by_calls, by_stream) = (self.legs.has_calls(), self.legs.has_streams());
        let post = Post { number, from, text, sent_us, by_calls, by_stream };
        let posting = self.silo.spawn_on(self.shard(&portal(member)), move || async move {
            let outcome = outcome_of(to.post(post).await);
            shared.post_ended(number, outcome, now_us() - sent_us);
        });
        if let Err(failure) = posting {
            self.shared.post_ended(number, Outcome::Failed(failure.name().into()), 0);
        }
    }

    /// Asks rooms for signs of life; what came is a report.
    fn probe(&self, rooms: Vec<String>) {
        let prober = Prober {
            silo: self.silo.clone(),
            streams: Arc::clone(&self.streams),
            legs: self.legs,
            name: format!("probe-{}", self.name),
        };
        let shared = Arc::clone(&self.shared);
        let home = self.shard(&portal(&prober.name));
        let probing = self.silo.spawn_on(home, move || async move {
            shared.report(prober.probe(&rooms).await);
        });
        if let Err(failure) = probing {
            self.shared.report(Report::Probed { passed: 0, failed: vec![failure.to_string()] });
        }
    }

    /// The shard that an address belongs to.
    fn shard(&self, address: &str) -> ShardIndex {
        let hash = Address::parse(address).map_or(0, |address| address.hash().0);
        ShardIndex::of(hash, self.silo.shards())
    }
}

fn not_opened(member: String, error: &anyhow::Error) -> Report {
    Report::NotOpened { member, why: format!("{error:#}") }
}

fn outcome_of(result: Result<Heard, CallError<Refusal>>) -> Outcome {
    match result {
        Ok(_) => Outcome::Handled,
        Err(CallError::Handler(refusal)) => Outcome::Failed(refusal.name().to_owned()),
        Err(CallError::Delivery(failure)) => Outcome::Failed(failure.name().to_owned()),
    }
}

/// Opens the hub, in place of the one on the pod that the member comes from, and sees to its rooms.
async fn open_hub(
    silo: &Handle,
    member: &str,
    rooms: &[String],
    join: Join,
) -> anyhow::Result<(Hub, Rooms)> {
    let hub = silo.hub(&portal(member))?.take_over().open().await?;
    let rooms = rooms.iter().map(|room| (room.clone(), hub.grain::<Room>(room.as_str())));
    let rooms: Rooms = rooms.collect();
    if join == Join::Rooms {
        for (room, reference) in &rooms {
            let joined = reference.join(member.to_owned()).await;
            joined.with_context(|| format!("{room} did not let {member} in"))?;
        }
    }
    Ok((hub, rooms))
}

/// Subscribes the hub to the streams of its rooms.
async fn subscribe(
    hub: &Hub,
    streams: &Arc<Streams>,
    member: &str,
    rooms: &Rooms,
) -> anyhow::Result<()> {
    for room in rooms.keys() {
        hear(hub, streams, member, room).await?;
    }
    Ok(())
}

/// Subscribes the hub to a stream, in place of the one on the pod that the member comes from. The
/// member's name is the key, so that this may be done as often as one likes: it is done again when
/// the answer was lost with a pod.
pub(crate) async fn hear(
    hub: &Hub,
    streams: &Arc<Streams>,
    member: &str,
    room: &str,
) -> anyhow::Result<(Stream<Line>, Subscription)> {
    let stream = Stream::<Line>::new(hub.handle(), streams, STREAMS, room)?;
    let mut tries_left = SUBSCRIBE_TRIES;
    loop {
        tries_left -= 1;
        match stream.subscription(member).take_over().hub(hub).await {
            Ok(subscription) => return Ok((stream, subscription)),
            Err(SubscribeError::Delivery(_)) if tries_left > 0 => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{member} does not hear {room}"));
            }
        }
    }
}

/// Handles what is delivered to a member, until its hub is taken over by another pod or closed.
async fn listen(mut hub: Hub, place: u32) {
    while let Some(delivery) = hub.next().await {
        let line = delivery.access::<Line>();
        match line.map(|line| (line.number.to_native(), line.sent_us.to_native())) {
            Ok((number, sent_us)) => {
                let over = delivery
                    .event()
                    .map_or(Over::Call, |event| Over::Stream { attempt: event.attempt });
                TALLY.heard(Who::member(place, over), number, sent_us);
                delivery.answer(&());
            }
            Err(failure) => delivery.refuse(failure),
        }
    }
}
