//! The conductor: starts the pods, has the members speak, makes the trouble, reads the reports.
//!
//! One thread, one loop. What it waits for is always news of a pod, and never longer than
//! [`STEP_TIME_MAX`]. What it does to the pods is in `deeds`.
#![expect(clippy::print_stderr, reason = "it tells a person how it goes")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::clock::{micros, now_us};
use super::crew::{Crew, News, PodId};
use super::deeds::Deeds;
use super::options::Options;
use super::postgres::PrivatePostgres;
use super::protocol::{Command, Join, Report};
use super::score::Score;
use super::script::{Cast, Event, Script};
use super::stage::Stage;
use super::{conversation, journal, table, trace};

/// A start, a move or a drain that takes longer is an error: joining alone may take a minute.
pub(crate) const STEP_TIME_MAX: Duration = Duration::from_secs(90);
/// Longest wait for news before the loop looks at its other duties.
const PATIENCE: Duration = Duration::from_millis(20);
/// While trouble lasts and what was meant for it has been said, the talk goes on at this pace:
/// there is always somebody to notice.
const TRICKLE: Duration = Duration::from_millis(50);
/// Reports read before the loop looks at its other duties.
const NEWS_PER_LOOP_MAX: usize = 1024;

/// Plays, and ends with 0 only if nothing was silent, nothing doubled, and every probe came back.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("siloring-chat-").tempdir()?;
    let (store, postgres) = store(options, folder.path())?;
    siloring::migrate(&store).context("the store was not prepared")?;
    let cluster = format!("chat-{}-{}", std::process::id(), now_us());
    if options.outage.is_some() && postgres.is_none() {
        bail!("--outage stops a server of this program's own: add --store postgres");
    }
    let (cast, script) = match &options.trace {
        Some(path) => trace::read(path)?,
        None => conversation::read()?,
    };
    let mut conductor = Conductor {
        crew: Crew::new(folder.path(), cluster, store, options.leg),
        score: Score::new(),
        stage: Stage::default(),
        deeds: Deeds::new(options, cast.events),
        postgres,
        up: Vec::new(),
        killed: BTreeSet::new(),
        pace: Pace::new(options),
        progress: progress(options, cast.events),
        in_flight_max: options.in_flight,
        cast,
        script,
        said: 0,
        pods_named: 0,
        quiet: options.json,
    };
    conductor.open(options.pods)?;
    conductor.play()?;
    conductor.close()?;
    conductor.postgres = None;
    table::show(&conductor.score, options);
    let Conductor { score: books, .. } = &conductor;
    let promised = books.broken_promises() == (0, 0) && books.probes_failed() == 0;
    Ok(if promised { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The store's URL, and the server behind it if it is our own.
fn store(options: &Options, folder: &Path) -> anyhow::Result<(String, Option<PrivatePostgres>)> {
    match options.store.as_deref() {
        None => Ok((format!("sqlite:{}", folder.join("chat.db").display()), None)),
        Some("postgres") => {
            let server = PrivatePostgres::start()?;
            Ok((server.url(), Some(server)))
        }
        Some("memory:") => {
            bail!("memory: is a cluster of one, and a chat has several pods: leave --store out")
        }
        Some(url) => Ok((url.to_owned(), None)),
    }
}

/// When the next thing may be said.
#[derive(Debug)]
struct Pace {
    /// Played seconds a second; `None` goes as fast as it will.
    speed: Option<f64>,
    began_us: u64,
    said_us: u64,
}

impl Pace {
    fn new(options: &Options) -> Self {
        let own = options.trace.is_none().then_some(conversation::SPEED_DEFAULT);
        Self { speed: options.speed.or(own), began_us: now_us(), said_us: 0 }
    }

    fn allows(&self, second: u64, now_us: u64) -> bool {
        let Some(speed) = self.speed else { return true };
        let played = Duration::from_micros(now_us - self.began_us).mul_f64(speed);
        played >= Duration::from_secs(second)
    }
}

fn progress(options: &Options, events: u64) -> ProgressBar {
    let target =
        if options.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} said, {msg}")
        .expect("the template is well formed");
    ProgressBar::with_draw_target(Some(events), target).with_style(style)
}

pub(crate) struct Conductor {
    pub(crate) crew: Crew,
    pub(crate) score: Score,
    pub(crate) stage: Stage,
    pub(crate) deeds: Deeds,
    /// The server behind the store, if it is our own.
    pub(crate) postgres: Option<PrivatePostgres>,
    /// Pods whose silo is active and that are not on their way out, oldest first.
    pub(crate) up: Vec<PodId>,
    /// Pods that were killed and whose last reports may still come.
    pub(crate) killed: BTreeSet<PodId>,
    pace: Pace,
    progress: ProgressBar,
    in_flight_max: usize,
    pub(crate) cast: Cast,
    script: Script,
    said: u64,
    pods_named: u32,
    quiet: bool,
}

impl Conductor {
    // ---- before and after

    /// Starts the pods and opens the members' hubs.
    fn open(&mut self, pods: u32) -> anyhow::Result<()> {
        for _ in 0..pods {
            self.start_pod()?;
        }
        let deadline_us = now_us() + micros(STEP_TIME_MAX);
        self.wait("the pods did not become active", deadline_us, |this| {
            this.up.len() == pods as usize
        })?;
        self.announce(&format!("{pods} pods are active"));
        let members: Vec<String> = self.cast.members.keys().cloned().collect();
        self.open_hubs(members, &self.up.clone(), Join::Rooms);
        self.wait("the members did not get into their rooms", deadline_us, |this| {
            this.stage.is_settled()
        })?;
        self.announce(&format!("{} members are in their rooms", self.cast.members.len()));
        self.pace.began_us = now_us();
        Ok(())
    }

    /// Starts a pod under a new name.
    pub(crate) fn start_pod(&mut self) -> anyhow::Result<PodId> {
        self.pods_named += 1;
        self.crew.start(&format!("pod-{}", self.pods_named))
    }

    /// Opens members' hubs, spread over `pods`.
    pub(crate) fn open_hubs(&mut self, members: Vec<String>, pods: &[PodId], join: Join) {
        for (member, pod) in members.into_iter().zip(pods.iter().cycle()) {
            self.stage.moves(&member, *pod);
            let (place, rooms) = self.cast.place_and_rooms(&member);
            self.crew.tell(*pod, &Command::Open { member, place, rooms, join });
        }
    }

    /// Tells the person who watches.
    pub(crate) fn announce(&self, text: &str) {
        if self.quiet {
            return;
        }
        self.progress.set_message(text.to_owned());
        if self.progress.is_hidden() {
            eprintln!("{text}");
        } else {
            self.progress.println(text);
        }
    }

    /// Reads news until `done`.
    fn wait(
        &mut self,
        what: &'static str,
        deadline_us: u64,
        done: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        while !done(self) {
            if now_us() > deadline_us {
                bail!("{what} within {STEP_TIME_MAX:?}");
            }
            self.read_news()?;
        }
        Ok(())
    }

    /// Drains all pods.
    fn close(&mut self) -> anyhow::Result<()> {
        self.progress.finish_and_clear();
        for pod in self.crew.all() {
            self.crew.tell(pod, &Command::Drain);
        }
        self.up.clear();
        let deadline_us = now_us() + micros(STEP_TIME_MAX);
        self.wait("the pods did not drain", deadline_us, |this| this.crew.is_empty())?;
        for path in self.crew.journals() {
            journal::read(path, |who, number| self.score.ran(who, number))?;
        }
        self.score.compare();
        Ok(())
    }

    // ---- the play

    fn play(&mut self) -> anyhow::Result<()> {
        let mut next = self.script.next().transpose()?;
        loop {
            next = self.speak(next)?;
            let over = next.is_none();
            self.do_deeds(if over { u64::MAX } else { self.said })?;
            self.read_news()?;
            self.score.overdue(now_us());
            self.progress.set_position(self.said);
            if over && self.is_done() {
                return Ok(());
            }
        }
    }

    fn is_done(&self) -> bool {
        let nothing_open = self.score.open() == 0 && self.stage.waiting() == 0;
        nothing_open && self.deeds.are_done()
    }

    /// Says what may be said now and gives back what must wait.
    fn speak(&mut self, mut next: Option<Event>) -> anyhow::Result<Option<Event>> {
        while let Some(event) = next.take() {
            let under_way = self.score.open() + self.stage.waiting();
            if under_way >= self.in_flight_max || !self.may_say(&event) {
                return Ok(Some(event));
            }
            self.pace.said_us = now_us();
            if let Some((pod, event)) = self.stage.place(event) {
                self.say(pod, event);
            }
            next = self.script.next().transpose()?;
        }
        Ok(None)
    }

    fn may_say(&self, event: &Event) -> bool {
        let now_us = now_us();
        let slowly = self.deeds.are_late(self.said);
        let paced = self.pace.allows(event.second, now_us);
        paced && (!slowly || now_us >= self.pace.said_us + micros(TRICKLE))
    }

    fn say(&mut self, pod: PodId, event: Event) {
        let Event { room, member, text, .. } = event;
        self.said += 1;
        self.score.sent(self.said, pod, &room, now_us());
        self.crew.tell(pod, &Command::Say { number: self.said, member, room, text });
    }

    // ---- news

    fn read_news(&mut self) -> anyhow::Result<()> {
        let mut patience = PATIENCE;
        for _ in 0..NEWS_PER_LOOP_MAX {
            match self.crew.news(patience) {
                Some(News::Report(pod, report)) => self.take_report(pod, report)?,
                Some(News::Gone(pod)) => self.take_end(pod)?,
                None => return Ok(()),
            }
            patience = Duration::ZERO;
        }
        Ok(())
    }

    fn take_report(&mut self, pod: PodId, report: Report) -> anyhow::Result<()> {
        match report {
            Report::Ready => self.up.push(pod),
            Report::Opened { member } => {
                for event in self.stage.opened(&member, pod) {
                    self.say(pod, event);
                }
            }
            Report::NotOpened { member, why } => {
                bail!("{member} has no hub on {}: {why}", self.crew.name(pod))
            }
            Report::Said { number, outcome, took_us } => {
                self.score.said(number, outcome, took_us, now_us());
            }
            Report::Probed { passed, failed } => self.probed(pod, passed, &failed),
            Report::Tally(tally) => self.score.tally(pod, *tally),
            Report::Drained => self.score.drained(pod, now_us()),
        }
        Ok(())
    }

    /// A pod is gone: drained and well, killed by us, or for reasons of its own.
    fn take_end(&mut self, pod: PodId) -> anyhow::Result<()> {
        let ill = self.crew.bury(pod)?;
        if self.killed.remove(&pod) {
            self.score.killed(pod, now_us());
            return Ok(());
        }
        self.up.retain(|up| *up != pod);
        match ill {
            Some(how) => bail!("{how}"),
            None => Ok(()),
        }
    }
}
