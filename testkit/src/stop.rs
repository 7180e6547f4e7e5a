//! SIGSTOP that has taken effect when it returns.
//!
//! A sent SIGSTOP stops nothing yet: each thread stops when the kernel next runs it, on a busy
//! machine many milliseconds later, and may answer somebody until then.
#![expect(clippy::disallowed_methods, reason = "real processes stop in real time")]

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// A process that has not stopped by then does not.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
const STOP_POLL_PERIOD: Duration = Duration::from_millis(1);

/// Stops a process, and waits until each of its threads has stopped or ended. One that is gone
/// is as stopped as can be.
pub(crate) fn stop(pid: Pid) -> io::Result<()> {
    match kill_process(pid, Signal::STOP) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let sent = Instant::now();
    while !is_still(pid) {
        if sent.elapsed() > STOP_TIME_MAX {
            let text = format!("process {pid} runs on although SIGSTOP was sent to it");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(STOP_POLL_PERIOD);
    }
    Ok(())
}

/// Whether no thread of it runs: each is stopped, or ended. After `proc_pid_stat(5)`, whose third
/// field is the state and whose second one may hold any character.
pub(crate) fn is_still(pid: Pid) -> bool {
    let threads = PathBuf::from(format!("/proc/{pid}/task"));
    let Ok(threads) = std::fs::read_dir(threads) else { return true };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        state.is_none_or(|state| "TtZX".contains(state))
    })
}
