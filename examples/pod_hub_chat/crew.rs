//! The pods as children of the conductor: started, spoken to, killed and buried by their ids.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::options::Legs;
use super::protocol::{Command, Report, read_lines, write_line};

/// Lines of a pod's log that an error shows.
const LOG_LINES_SHOWN: usize = 20;

/// One process; a pod that is started again is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodId(u32);

impl PodId {
    /// Of the first process.
    pub(crate) const fn first() -> Self {
        Self(0)
    }

    /// Of the process started after this one.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What the crew has to say.
pub(crate) enum News {
    /// A pod reports.
    Report(PodId, Report),
    /// A pod's output has ended: every report it made has been read.
    Gone(PodId),
}

/// All pods. Dropped, it ends them.
pub(crate) struct Crew {
    folder: PathBuf,
    cluster: String,
    store: String,
    legs: Legs,
    pods: BTreeMap<PodId, Pod>,
    next: PodId,
    journals: Vec<PathBuf>,
    news: Receiver<News>,
    teller: Sender<News>,
}

struct Pod {
    name: String,
    child: Child,
    input: ChildStdin,
    log: PathBuf,
}

impl Crew {
    /// A crew without pods, whose logs go to `folder`.
    pub(crate) fn new(folder: &Path, cluster: String, store: String, legs: Legs) -> Self {
        let (teller, news) = channel();
        let folder = folder.to_owned();
        Self {
            folder,
            cluster,
            store,
            legs,
            pods: BTreeMap::new(),
            next: PodId::first(),
            journals: Vec::new(),
            news,
            teller,
        }
    }

    /// Starts a pod; it says `Ready` once its silo is active.
    pub(crate) fn start(&mut self, name: &str) -> anyhow::Result<PodId> {
        let id = self.next;
        self.next = id.next();
        let log = self.folder.join(format!("{name}-{}.log", id.0));
        let journal = self.folder.join(format!("{name}-{}.ran", id.0));
        let mut child = Process::new(std::env::current_exe()?)
            .args(["pod", "--name", name, "--cluster", &self.cluster, "--store", &self.store])
            .args(["--leg", self.legs.name(), "--journal"])
            .arg(&journal)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("{name} did not start"))?;
        let input = child.stdin.take().expect("its input is piped");
        let output = child.stdout.take().expect("its output is piped");
        let teller = self.teller.clone();
        thread::Builder::new().name(format!("reports of {name}")).spawn(move || {
            for report in read_lines(BufReader::new(output)) {
                if teller.send(News::Report(id, report)).is_err() {
                    return;
                }
            }
            // The conductor may have gone first; then nobody asks.
            let _told = teller.send(News::Gone(id));
        })?;
        self.journals.push(journal);
        self.pods.insert(id, Pod { name: name.to_owned(), child, input, log });
        Ok(id)
    }

    /// Sends a command. A pod that is gone does not hear it: its end is news of its own.
    pub(crate) fn tell(&mut self, id: PodId, command: &Command) {
        let Some(pod) = self.pods.get_mut(&id) else {
            return;
        };
        let _unheard = write_line(&mut pod.input, command).and_then(|()| pod.input.flush());
    }

    /// Kills a pod as `kill -9` does. Its reports so far can still be read.
    pub(crate) fn kill(&mut self, id: PodId) -> anyhow::Result<()> {
        let pod = self.pods.get_mut(&id).expect("a pod is killed before it is buried");
        pod.child.kill().with_context(|| format!("{} cannot be killed", pod.name))
    }

    /// Waits for the end of a pod that is gone and says how it ended, if not well.
    pub(crate) fn bury(&mut self, id: PodId) -> anyhow::Result<Option<String>> {
        let Some(mut pod) = self.pods.remove(&id) else {
            return Ok(None);
        };
        let status = pod.child.wait()?;
        if status.success() {
            return Ok(None);
        }
        let log = fs::read_to_string(&pod.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        Ok(Some(format!("{} ended with {status}\n{last}", pod.name)))
    }

    /// What ran in every process so far.
    pub(crate) fn journals(&self) -> &[PathBuf] {
        &self.journals
    }

    /// A pod's name.
    pub(crate) fn name(&self, id: PodId) -> &str {
        self.pods.get(&id).map_or("a pod", |pod| &pod.name)
    }

    /// The next news, if there is any within `patience`.
    pub(crate) fn news(&self, patience: Duration) -> Option<News> {
        self.news.recv_timeout(patience).ok()
    }

    /// Whether every pod is gone and buried.
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// All pods not yet buried, oldest first.
    pub(crate) fn all(&self) -> Vec<PodId> {
        self.pods.keys().copied().collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for pod in self.pods.values_mut() {
            // It may have ended by itself; waiting for it ends either way.
            let _ended = pod.child.kill();
            let _status = pod.child.wait();
        }
    }
}
