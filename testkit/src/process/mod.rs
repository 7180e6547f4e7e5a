//! Silos as real processes: started, heard, drained, killed, paused, and always ended.
//!
//! A [`Program`] says what to run and [`Program::start`] makes a [`Process`] of it. Each of its
//! output lines is captured and can be awaited with a bound; its whole log is printed when a test
//! fails while it is held. Dropping it ends it, by its own id and never by a name, whatever state
//! it was left in. [`Bridge`] puts processes on hosts of their own with a firewall between them,
//! [`Proxy`] a bad network before them; [`Cgroup`] freezes, starves and squeezes them, and
//! [`WallClock`] moves their time. [`journal`] and [`history`] are what they write of their
//! deliveries, and what must be true of it.
//!
//! Invariants: nothing here waits without a bound; a captured log is bounded ([`LOG_BYTES_MAX`])
//! and says what it dropped; a test that cannot run says so through [`skip`], so that nothing is
//! skipped unseen. Deliberately absent, but for those two: any knowledge of silos, grains or
//! hubs.
#![expect(
    clippy::disallowed_methods,
    reason = "real processes live in real time, and each has a reader thread"
)]

mod artifact;
mod bridge;
mod cgroup;
mod faketime;
mod figure;
pub mod history;
pub mod journal;
mod length;
mod log;
mod proxy;
mod skip;

pub use artifact::{ArtifactError, artifact};
pub use bridge::{Bridge, BridgeError, Host};
pub use cgroup::{Cgroup, Controller};
pub use faketime::WallClock;
pub use figure::{FIGURES_VARIABLE, figure};
pub use length::{LONG_VARIABLE, is_long};
pub use log::{LOG_BYTES_MAX, Stream};
pub use proxy::{CONNECTIONS_MAX, Cut, Mode, Moved, Proxy};
pub use skip::{SKIPS_VARIABLE, skip};

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use siloring_core::Moment;

use crate::stop::stop;
use log::Log;
/// How long the log of an ended process is waited for.
const LOG_SETTLE_TIME_MAX: Duration = Duration::from_millis(500);

/// Between two looks at a process that is expected to end.
const EXIT_POLL_PERIOD: Duration = Duration::from_millis(2);

/// What to run: a binary, its arguments and environment, and the host it runs on.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    name: String,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    namespace: Option<String>,
}

impl Program {
    /// Runs the binary at `path`; `name` stands before its lines when its log is shown.
    pub fn new(path: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            name: name.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            namespace: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments in order.
    #[must_use]
    pub fn arguments<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets one variable of its environment; the rest is inherited.
    #[must_use]
    pub fn environment(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs it on `host`, in that host's network namespace.
    #[must_use]
    pub fn on(mut self, host: &Host) -> Self {
        self.namespace = Some(host.namespace().to_owned());
        self
    }

    /// Starts it. Its output is captured from the first byte on.
    pub fn start(&self) -> Result<Process, ProcessError> {
        let mut command = self.command();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| ProcessError::NotStarted { path: self.path.clone(), source })?;
        let log = Log::default();
        log.read(Stream::Output, child.stdout.take().expect("stdout is piped"));
        log.read(Stream::Error, child.stderr.take().expect("stderr is piped"));
        Ok(Process {
            name: self.name.clone(),
            pid: Pid::from_child(&child),
            input: child.stdin.take(),
            child,
            log,
            ended: None,
        })
    }

    fn command(&self) -> Command {
        // `ip netns exec` replaces itself, so that the child's id is the program's.
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        command.args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A running program. Owns its reader threads; dropping it ends the process and waits for it.
pub struct Process {
    name: String,
    pid: Pid,
    child: Child,
    input: Option<ChildStdin>,
    log: Log,
    ended: Option<ExitStatus>,
}

impl Process {
    /// The name given to its program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line to its standard input.
    pub fn send_line(&mut self, line: &str) -> Result<(), ProcessError> {
        let input = self.input.as_mut().ok_or_else(|| ProcessError::InputClosed {
            name: self.name.clone(),
            source: io::Error::from(io::ErrorKind::BrokenPipe),
        })?;
        input
            .write_all(line.as_bytes())
            .and_then(|()| input.write_all(b"\n"))
            .and_then(|()| input.flush())
            .map_err(|source| ProcessError::InputClosed { name: self.name.clone(), source })
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The first line of standard output that `wanted` accepts and that was not returned before;
    /// the others wait for who wants them. Fails when the bound has passed, or when the output
    /// ended without it.
    pub fn wait_for_line(
        &self,
        bound: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String, ProcessError> {
        self.wait_in(Stream::Output, bound, wanted)
    }

    /// As [`Self::wait_for_line`], on standard error: where logs go.
    pub fn wait_for_log(
        &self,
        bound: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String, ProcessError> {
        self.wait_in(Stream::Error, bound, wanted)
    }

    fn wait_in(
        &self,
        stream: Stream,
        bound: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String, ProcessError> {
        let deadline = Instant::now() + bound;
        self.log.wait(stream, deadline, wanted).ok_or_else(|| ProcessError::LineMissing {
            name: self.name.clone(),
            bound,
            log: self.log.text(),
        })
    }

    /// How many captured lines of `stream` hold `part`, read or not.
    pub fn line_count(&self, stream: Stream, part: &str) -> usize {
        self.log.count(stream, part)
    }

    /// Everything captured so far, one line each with its stream's mark.
    pub fn log_text(&self) -> String {
        self.log.text()
    }

    /// Sends SIGTERM: the process is asked to leave in order.
    pub fn terminate(&self) -> Result<(), ProcessError> {
        self.signal(Signal::TERM)
    }

    /// [`Self::terminate`], then waits for its end. A process that does not leave in time stays
    /// running.
    pub fn drain(&mut self, bound: Duration) -> Result<ExitStatus, ProcessError> {
        self.terminate()?;
        self.wait_exit(bound)
    }

    /// Ends it with SIGKILL, and waits for it.
    pub fn kill(&mut self) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::KILL)?;
        self.wait_exit(Duration::from_secs(10))
    }

    /// Stops it with SIGSTOP: when this returns, it holds its sockets and answers nothing.
    pub fn pause(&self) -> Result<(), ProcessError> {
        self.unless_ended(stop)
    }

    /// Wakes a paused process.
    pub fn resume(&self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT)
    }

    /// Lets it have no descriptor beyond this many, from now on; those it has stay.
    pub fn limit_descriptors(&self, count: u64) -> Result<(), ProcessError> {
        // Only the soft limit: the hard one, which it has from us, could not be raised again.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: Some(count), maximum };
        let limited = prlimit(Some(self.pid), Resource::Nofile, limit);
        limited.map(drop).map_err(|error| ProcessError::NotSignalled {
            name: self.name.clone(),
            source: error.into(),
        })
    }

    /// How many descriptors it has. Zero once it has ended.
    pub fn descriptor_count(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// When the lines of `stream` that hold `part` were captured, by the machine's clock.
    pub fn line_times(&self, stream: Stream, part: &str) -> Vec<(Moment, String)> {
        self.log.times(stream, part)
    }

    /// Waits for its end, and for the last of its log.
    pub fn wait_exit(&mut self, bound: Duration) -> Result<ExitStatus, ProcessError> {
        let deadline = Instant::now() + bound;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return Err(ProcessError::StillRunning {
                    name: self.name.clone(),
                    bound,
                    log: self.log.text(),
                });
            }
            std::thread::sleep(EXIT_POLL_PERIOD);
        }
        // What it said last may still be in the pipe; a child of its own may hold that open.
        self.log.settle(Instant::now() + LOG_SETTLE_TIME_MAX);
        Ok(self.ended.expect("it has ended"))
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("an own child can be waited for");
        }
        self.ended.is_some()
    }

    /// Its resident memory in bytes. Zero once it has ended.
    pub fn resident_bytes(&self) -> u64 {
        self.proc_line("status", |line| {
            let kib = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
            Some(kib.trim().parse::<u64>().ok()? * 1024)
        })
    }

    /// Processor time it has used, in user and kernel mode. Zero once it has ended.
    pub fn processor_time(&self) -> Duration {
        // Fields 14 and 15 in ticks of 1/100 s; the name before them ends with the last
        // parenthesis.
        let ticks = self.proc_line("stat", |line| {
            let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
            Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
        });
        Duration::from_millis(ticks * 10)
    }

    fn proc_line(&self, file: &str, read: impl Fn(&str) -> Option<u64>) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id()));
        text.ok().and_then(|text| text.lines().find_map(read)).unwrap_or(0)
    }

    fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        self.unless_ended(|pid| Ok(kill_process(pid, signal)?))
    }

    fn unless_ended(&self, act: impl FnOnce(Pid) -> io::Result<()>) -> Result<(), ProcessError> {
        // Not reaped yet (`ended` is only set by our own wait), so the id is still this process'.
        if self.ended.is_some() {
            return Ok(());
        }
        act(self.pid)
            .map_err(|source| ProcessError::NotSignalled { name: self.name.clone(), source })
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Process")
            .field("name", &self.name)
            .field("pid", &self.child.id())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            // SIGKILL also ends a paused process.
            let killed = kill_process(self.pid, Signal::KILL);
            debug_assert!(killed.is_ok(), "an own child that was not reaped can be killed");
            self.ended = self.child.wait().ok();
        }
        if std::thread::panicking() {
            show(&self.name, self.ended, &self.log);
        }
    }
}

#[expect(clippy::print_stderr, reason = "the log of a failing test is for the person who reads it")]
fn show(name: &str, ended: Option<ExitStatus>, log: &Log) {
    log.settle(Instant::now() + LOG_SETTLE_TIME_MAX);
    let end = ended.map_or("unknown".to_owned(), describe);
    eprintln!("---- log of {name}, ended with {end}\n{}---- end of {name}", log.text());
}

/// An exit status for people: a code, or the signal that ended it.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}

/// Why a process did not do what a test asked of it. Each names the process; nothing is undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The binary could not be run. Nothing was started. Most often it was not built.
    #[error("{} did not start", path.display())]
    NotStarted {
        /// The binary.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its standard input is closed: it ended, or closed it, or the test did.
    #[error("{name} takes no input")]
    InputClosed {
        /// Which process.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The awaited line did not come within the bound, or the output ended without it.
    #[error("{name} did not print the awaited line within {bound:?}; its log:\n{log}")]
    LineMissing {
        /// Which process.
        name: String,
        /// How long it was awaited.
        bound: Duration,
        /// Everything it printed.
        log: String,
    },
    /// It did not end within the bound, and still runs.
    #[error("{name} did not end within {bound:?}; its log:\n{log}")]
    StillRunning {
        /// Which process.
        name: String,
        /// How long its end was awaited.
        bound: Duration,
        /// Everything it printed.
        log: String,
    },
    /// A signal could not be sent, or a limit not set.
    #[error("{name} could not be signalled")]
    NotSignalled {
        /// Which process.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Program {
        Program::new("/bin/sh", "shell").argument("-c").argument(script)
    }

    #[test]
    fn a_line_is_awaited_across_both_streams_and_returned_once() {
        let process =
            shell("echo starting; echo loud >&2; echo ready 7; sleep 100").start().unwrap();
        assert_eq!(
            process.wait_for_line(BOUND, |line| line.starts_with("ready")).unwrap(),
            "ready 7"
        );
        assert_eq!(process.wait_for_log(BOUND, |line| line == "loud").unwrap(), "loud");
        let again =
            process.wait_for_line(Duration::from_millis(50), |line| line.starts_with("ready"));
        assert!(matches!(again, Err(ProcessError::LineMissing { .. })), "{again:?}");
    }

    #[test]
    fn a_missing_line_fails_at_its_bound_or_at_the_end_of_the_output_with_the_log() {
        let process = shell("echo the last words").start().unwrap();
        let began = Instant::now();
        let missing = process.wait_for_line(Duration::from_mins(1), |_| false);
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "the output ended long before the bound"
        );
        assert!(missing.unwrap_err().to_string().contains("the last words"));
    }

    #[test]
    fn lines_sent_are_answered() {
        let mut process = shell("while read line; do echo \"got $line\"; done").start().unwrap();
        process.send_line("one").unwrap();
        assert_eq!(process.wait_for_line(BOUND, |_| true).unwrap(), "got one");
        process.close_input();
        assert!(process.wait_exit(BOUND).unwrap().success());
        assert!(matches!(process.send_line("two"), Err(ProcessError::InputClosed { .. })));
    }

    #[test]
    fn drain_is_sigterm_and_a_process_that_stays_is_reported() {
        let mut leaving =
            shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done")
                .start()
                .unwrap();
        leaving.wait_for_line(BOUND, |line| line == "up").unwrap();
        assert_eq!(leaving.drain(BOUND).unwrap().code(), Some(3));

        let mut staying =
            shell("trap '' TERM; echo up; while :; do sleep 0.01; done").start().unwrap();
        staying.wait_for_line(BOUND, |line| line == "up").unwrap();
        let drained = staying.drain(Duration::from_millis(100));
        assert!(matches!(drained, Err(ProcessError::StillRunning { .. })), "{drained:?}");
        assert_eq!(staying.kill().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_paused_process_does_nothing_until_it_is_resumed() {
        let mut process = shell("while read line; do echo \"got $line\"; done").start().unwrap();
        process.pause().unwrap();
        process.send_line("one").unwrap();
        let asleep = process.wait_for_line(Duration::from_millis(100), |_| true);
        assert!(matches!(asleep, Err(ProcessError::LineMissing { .. })), "{asleep:?}");
        process.resume().unwrap();
        assert_eq!(process.wait_for_line(BOUND, |_| true).unwrap(), "got one");
    }

    #[test]
    fn a_paused_process_has_stopped_even_if_it_waited_for_a_processor() {
        // More of them than any machine runs at once: most wait for their turn.
        let cores = std::thread::available_parallelism().unwrap().get();
        let busy = || shell("echo up; while :; do :; done").start().unwrap();
        let busy: Vec<_> = std::iter::repeat_with(busy).take(8 * cores).collect();
        for process in &busy {
            process.wait_for_line(BOUND, |line| line == "up").unwrap();
        }
        for process in &busy {
            process.pause().unwrap();
            assert!(crate::stop::is_still(process.pid));
        }
    }

    #[test]
    fn a_dropped_process_is_gone_even_if_it_was_paused() {
        let process = shell("echo up; sleep 100").start().unwrap();
        process.wait_for_line(BOUND, |line| line == "up").unwrap();
        process.pause().unwrap();
        let path = format!("/proc/{}", process.pid());
        assert!(std::path::Path::new(&path).exists());
        drop(process);
        assert!(!std::path::Path::new(&path).exists(), "reaped by its owner");
    }

    #[test]
    fn memory_and_processor_time_are_read() {
        let mut process =
            shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; read x")
                .start()
                .unwrap();
        process.wait_for_line(Duration::from_mins(1), |line| line == "done").unwrap();
        assert!(process.resident_bytes() > 100_000, "{}", process.resident_bytes());
        assert!(process.processor_time() > Duration::ZERO);
        process.kill().unwrap();
        assert_eq!((process.resident_bytes(), process.processor_time()), (0, Duration::ZERO));
    }

    #[test]
    fn a_binary_that_is_not_there_is_named() {
        let error = Program::new("/no/such/binary", "nobody").start().unwrap_err();
        assert!(error.to_string().contains("/no/such/binary"), "{error}");
    }
}
