//! A silo's process, seen from the one that started it. Dropped, it is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::SiloSettings;

/// Joining takes a second or two; a machine that is busy may need more.
const READY_WITHIN: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    /// What it says, line by line, until it has ended.
    lines: Receiver<String>,
}

impl Process {
    /// Starts a silo.
    pub(crate) fn start(settings: &SiloSettings) -> anyhow::Result<Self> {
        let SiloSettings { name, cluster, store, hubs } = settings;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["silo", "--name", name, "--cluster", cluster, "--store", store])
            .args(["--hubs", &hubs.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (tell, lines) = channel();
        let read = move || {
            for line in output.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name(format!("lines of {name}")).spawn(read)?;
        Ok(Self { name: name.clone(), child, lines })
    }

    /// Waits until it is active; says its generation.
    pub(crate) fn ready(&self) -> anyhow::Result<String> {
        let line = self.lines.recv_timeout(READY_WITHIN);
        let line = line.with_context(|| format!("{} did not become active", self.name))?;
        let generation = line.strip_prefix("ready ");
        Ok(generation.with_context(|| format!("{} says {line:?}", self.name))?.to_owned())
    }

    /// Has it leave in order, and waits until it has.
    pub(crate) fn leave(&mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// All that it has said since it was ready. Ends when it does.
    pub(crate) fn said(&self) -> impl Iterator<Item = String> {
        self.lines.iter()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; waiting for it ends either way.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
