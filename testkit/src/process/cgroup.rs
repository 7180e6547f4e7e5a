//! Processes held by the kernel's control groups: frozen, starved of processor, squeezed in memory.
//!
//! Needs root and the first version of control groups, each controller mounted where distributions
//! mount it. Invariants: a group's name carries the process id and a number, so that two runs never
//! meet; dropping a [`Cgroup`] thaws what it holds, hands it back to the controller's root, and
//! removes the group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::Process;

/// Where the controllers are.
const ROOT: &str = "/sys/fs/cgroup";
/// The kernel lets go of a group within this.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(5);
const REMOVAL_POLL_PERIOD: Duration = Duration::from_millis(5);
/// Groups made by this process, for their names.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// What a group controls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Controller {
    /// Whether its processes run at all.
    Freezer,
    /// How much processor they get.
    Cpu,
    /// How much memory.
    Memory,
}

impl Controller {
    const fn folder(self) -> &'static str {
        match self {
            Self::Freezer => "freezer",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    fn root(self) -> PathBuf {
        Path::new(ROOT).join(self.folder())
    }

    /// Why there can be no group of it here; `None` if there can.
    pub fn obstacle(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("control groups need root".to_owned());
        }
        let tasks = self.root().join("cgroup.procs");
        // The second version has one tree, and no such file under a controller's name.
        let is_there = tasks.is_file() && fs::File::options().write(true).open(&tasks).is_ok();
        let name = self.folder();
        (!is_there).then(|| format!("the {name} controller is not mounted in {ROOT}"))
    }
}

/// A group of processes.
#[derive(Debug)]
pub struct Cgroup {
    controller: Controller,
    path: PathBuf,
}

impl Cgroup {
    /// A group that holds this process and all its threads.
    pub fn of(controller: Controller, process: &Process) -> io::Result<Self> {
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("siloring-{}-{number}", std::process::id());
        let path = controller.root().join(name);
        fs::create_dir(&path)?;
        let group = Self { controller, path };
        group.set("cgroup.procs", &process.pid().to_string())?;
        Ok(group)
    }

    /// Writes one of its files.
    pub fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    /// Reads one of its files.
    pub fn read(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.path.join(file))
    }

    /// A number that one of its files names.
    pub fn number(&self, file: &str, name: &str) -> io::Result<u64> {
        let text = self.read(file)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// Freezes its processes, and waits until they are.
    pub fn freeze(&self) -> io::Result<()> {
        self.turn("FROZEN")
    }

    /// Lets them go on.
    pub fn thaw(&self) -> io::Result<()> {
        self.turn("THAWED")
    }

    fn turn(&self, state: &str) -> io::Result<()> {
        self.set("freezer.state", state)?;
        let began = Instant::now();
        while self.read("freezer.state")?.trim() != state {
            if began.elapsed() > REMOVAL_TIME_MAX {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not {state}")));
            }
            std::thread::sleep(REMOVAL_POLL_PERIOD);
        }
        Ok(())
    }

    /// Gives its processes this share of one processor.
    pub fn starve(&self, percent: u32) -> io::Result<()> {
        const PERIOD_US: u32 = 100_000;
        self.set("cpu.cfs_period_us", &PERIOD_US.to_string())?;
        self.set("cpu.cfs_quota_us", &(PERIOD_US / 100 * percent).to_string())
    }

    /// Takes that back.
    pub fn feed(&self) -> io::Result<()> {
        self.set("cpu.cfs_quota_us", "-1")
    }

    fn leave(&self) -> io::Result<()> {
        if self.controller == Controller::Freezer {
            self.thaw()?;
        }
        for process in self.read("cgroup.procs")?.lines() {
            match fs::write(self.controller.root().join("cgroup.procs"), process) {
                // It may have ended meanwhile.
                Err(error)
                    if error.raw_os_error() != Some(rustix::io::Errno::SRCH.raw_os_error()) =>
                {
                    return Err(error);
                }
                Ok(()) | Err(_) => {}
            }
        }
        let began = Instant::now();
        loop {
            match fs::remove_dir(&self.path) {
                Err(error) if began.elapsed() > REMOVAL_TIME_MAX => return Err(error),
                Err(_) => std::thread::sleep(REMOVAL_POLL_PERIOD),
                Ok(()) => return Ok(()),
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let left = self.leave();
        debug_assert!(left.is_ok() || std::thread::panicking(), "{left:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Program, skip};
    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    #[test]
    fn a_frozen_process_does_nothing_until_it_is_thawed() {
        if let Some(obstacle) = Controller::Freezer.obstacle() {
            return skip("a_frozen_process_does_nothing_until_it_is_thawed", &obstacle);
        }
        let script = "while read line; do echo \"got $line\"; done";
        let mut process =
            Program::new("/bin/sh", "shell").arguments(["-c", script]).start().unwrap();
        let group = Cgroup::of(Controller::Freezer, &process).unwrap();
        group.freeze().unwrap();
        process.send_line("one").unwrap();
        let asleep = process.wait_for_line(Duration::from_millis(100), |_| true);
        assert!(asleep.is_err(), "{asleep:?}");
        group.thaw().unwrap();
        assert_eq!(process.wait_for_line(BOUND, |_| true).unwrap(), "got one");
        group.freeze().unwrap();
        let path = group.path.clone();
        drop(group);
        assert!(!path.exists(), "and its group is gone");
        process.close_input();
        assert!(process.wait_exit(BOUND).unwrap().success(), "dropping thaws");
    }

    #[test]
    fn a_starved_process_is_throttled() {
        if let Some(obstacle) = Controller::Cpu.obstacle() {
            return skip("a_starved_process_is_throttled", &obstacle);
        }
        let script = "while :; do :; done";
        let process = Program::new("/bin/sh", "shell").arguments(["-c", script]).start().unwrap();
        let group = Cgroup::of(Controller::Cpu, &process).unwrap();
        group.starve(10).unwrap();
        let began = Instant::now();
        while group.number("cpu.stat", "nr_throttled ").unwrap() == 0 {
            assert!(began.elapsed() < BOUND, "never throttled");
            std::thread::sleep(REMOVAL_POLL_PERIOD);
        }
        group.feed().unwrap();
    }
}
