//! The other end of a measured connection: this very program as a second process, in a role.
//!
//! The peer prints `ready WHERE` once it can be reached, and ends when its input closes; dropping
//! the handle kills it and waits for it. Some take orders, each a line, and print `ready ANSWER`
//! after each. A peer that is not ready within a minute is an error.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{PROCESSORS_VARIABLE, processors};

const ROLE: &str = "--role";
/// How long a peer may say nothing before it is ready: it opens a store meanwhile, joins a cluster.
const READY_TIME_MAX: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A running peer.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    output: BufReader<ChildStdout>,
    place: String,
}

impl Peer {
    /// Starts this program as `role`, and waits until it is ready.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("a bench has a path")?;
        let told: Vec<String> = processors().iter().map(usize::to_string).collect();
        let mut child = Command::new(program)
            .args([ROLE, role])
            .args(arguments)
            .env(PROCESSORS_VARIABLE, told.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the peer")?;
        let output = BufReader::new(child.stdout.take().context("the output is piped")?);
        let mut peer = Self { child, output, place: String::new() };
        peer.place = peer.answer().with_context(|| format!("the peer `{role}` is not ready"))?;
        Ok(peer)
    }

    /// Where it is: what it printed after `ready`.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Time that all its threads have run so far, to the nanosecond.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let mut total = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            let ran = text.split(' ').next().context("the file is empty")?;
            total += Duration::from_nanos(ran.parse()?);
        }
        Ok(total)
    }

    /// Gives it an order; [`Peer::answer`] says what came of it.
    pub(crate) fn order(&mut self, order: &str) -> anyhow::Result<()> {
        let input = self.child.stdin.as_mut().context("the input is piped")?;
        writeln!(input, "{order}").context("it takes no orders")
    }

    /// The rest of the next line that begins with `ready`.
    pub(crate) fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        loop {
            self.wait_for_output()?;
            if self.output.read_line(&mut line)? == 0 {
                bail!("it ended before");
            }
            if let Some(place) = line.strip_prefix("ready") {
                return Ok(place.trim().to_owned());
            }
            line.clear();
        }
    }

    /// Waits until a line can be read: a peer writes each at once.
    fn wait_for_output(&self) -> anyhow::Result<()> {
        if self.output.buffer().is_empty() {
            let mut output = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            ensure!(poll(&mut output, Some(&READY_TIME_MAX))? > 0, "it has said nothing");
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.child.kill().expect("an own child can be killed");
        self.child.wait().expect("an own child can be waited for");
    }
}

/// The role of this process and its arguments, if it is a peer.
pub(crate) fn role() -> Option<(String, Vec<String>)> {
    let mut arguments = std::env::args().skip_while(|argument| argument != ROLE).skip(1);
    Some((arguments.next()?, arguments.collect()))
}

/// Tells the one who started this process where it is to be found.
pub(crate) fn ready(place: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "ready {place}").and_then(|()| output.flush()).context("nobody listens")
}

/// Carries out orders and answers each, until the one who started this process is gone.
pub(crate) fn take_orders(
    mut carry_out: impl FnMut(&str) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    for order in std::io::stdin().lock().lines() {
        ready(&carry_out(&order?)?)?;
    }
    Ok(())
}

/// Waits until the one who started this process closes its input, or ends.
pub(crate) fn wait_for_close() {
    let mut rest = Vec::new();
    // An error also means that nobody is there any more.
    drop(std::io::stdin().lock().read_to_end(&mut rest));
}
