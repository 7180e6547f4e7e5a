//! The lives of processes: started, ended, stopped, slowed, moved in time.

use std::collections::VecDeque;
use std::time::Duration;

use siloring_core::Moment;

use super::super::trace::Code;
use super::clock::Clock;
use super::{
    Files, Host, HostId, Input, Life, Part, PartState, Process, ProcessId, Program, World, nanos,
};

impl World {
    /// Adds a machine. Its address is `10.0.x.y:7000`.
    ///
    /// # Panics
    /// Beyond 65 535 machines.
    pub fn add_host(&mut self) -> HostId {
        let index = u16::try_from(self.core.hosts.len()).expect("a world has at most 65 535 hosts");
        let address = format!("10.0.{}.{}:7000", index / 250, index % 250 + 1);
        self.core.hosts.push(Host { address, process: None });
        HostId(index)
    }

    /// Where a process on this host is reached.
    pub fn address(&self, host: HostId) -> &str {
        &self.core.hosts[usize::from(host.0)].address
    }

    /// Starts a program of `parts` parts on a host.
    ///
    /// # Panics
    /// If a process lives there.
    pub fn start(&mut self, host: HostId, parts: u16, program: Box<dyn Program>) -> ProcessId {
        let index = u32::try_from(self.programs.len()).expect("fewer than 4 G processes");
        let process = ProcessId(index);
        let listening = &mut self.core.hosts[usize::from(host.0)].process;
        assert!(listening.is_none(), "one process at a time lives on {host:?}");
        *listening = Some(process);
        self.core.scene.hosts.borrow_mut().push(host);
        let drift = self.core.settings.clock_drift_ppm_max;
        let clock = Clock {
            offset_ns: self.core.random.clock.u64(1_000_000_000..1_000_000_000_000_000),
            drift_ppm: self.core.random.clock.i32(-drift..=drift),
        };
        let part = || PartState {
            inbox: VecDeque::new(),
            wake_at: Moment::NEVER,
            busy_until: Moment::ZERO,
        };
        self.core.processes.push(Process {
            host,
            life: Life::Running,
            parts: (0..parts).map(|_| part()).collect(),
            clock,
            stall: Duration::ZERO,
            late: Duration::ZERO,
            no_files: false,
            undisturbed_since: self.core.now,
            started_at: self.core.now,
            paused_at: Moment::NEVER,
            ends: Vec::new(),
            exit: None,
        });
        self.programs.push(Some(program));
        self.enter(Code::Process, process, 1);
        self.wake_all(process);
        process
    }

    /// Where a process stands.
    pub fn life(&self, process: ProcessId) -> Life {
        self.core.process(process).life
    }

    /// Since when a process runs at full speed; `None` while it is paused, slow or gone.
    pub fn undisturbed_since(&self, process: ProcessId) -> Option<Moment> {
        let state = self.core.process(process);
        let undisturbed =
            state.life == Life::Running && state.stall.is_zero() && state.late.is_zero();
        undisturbed.then_some(state.undisturbed_since)
    }

    /// When a process was started.
    pub fn started_at(&self, process: ProcessId) -> Moment {
        self.core.process(process).started_at
    }

    /// Since when a process is stopped; `None` if it is not.
    pub fn paused_since(&self, process: ProcessId) -> Option<Moment> {
        let state = self.core.process(process);
        (state.life == Life::Paused).then_some(state.paused_at)
    }

    /// Ends a process at once (SIGKILL): its connections are cut at any byte.
    pub fn kill(&mut self, process: ProcessId) {
        if self.life(process).is_alive() {
            self.end(process, Life::Killed);
        }
    }

    /// The machine loses power: nobody is told, its connections stay half-open.
    pub fn vanish(&mut self, process: ProcessId) {
        if self.life(process).is_alive() {
            self.core.forget_ends(process);
            self.end(process, Life::Killed);
        }
    }

    pub(super) fn end(&mut self, process: ProcessId, life: Life) {
        let state = self.core.process_mut(process);
        state.life = life;
        for part in &mut state.parts {
            part.inbox.clear();
        }
        let host = usize::from(state.host.0);
        match life {
            Life::Killed => self.core.cut_ends(process),
            Life::Running | Life::Paused | Life::Exited(_) => self.core.close_ends(process),
        }
        self.core.hosts[host].process = None;
        self.enter(Code::Process, process, 2);
        // Last: what the program drops may look at the world's records, never at the world.
        drop(self.programs[process.0 as usize].take());
    }

    /// Stops a process (SIGSTOP); its clock goes on.
    pub fn pause(&mut self, process: ProcessId) {
        let now = self.core.now;
        let state = self.core.process_mut(process);
        if state.life == Life::Running {
            state.life = Life::Paused;
            state.paused_at = now;
            for part in &mut state.parts {
                part.wake_at = Moment::NEVER;
            }
            self.enter(Code::Process, process, 3);
        }
    }

    /// Lets a paused process go on.
    pub fn resume(&mut self, process: ProcessId) {
        let now = self.core.now;
        let state = self.core.process_mut(process);
        if state.life == Life::Paused {
            state.life = Life::Running;
            state.undisturbed_since = now;
            self.enter(Code::Process, process, 4);
            self.wake_all(process);
        }
    }

    /// Makes every run of a part take this much longer; zero ends it.
    pub fn slow(&mut self, process: ProcessId, stall: Duration) {
        let now = self.core.now;
        let state = self.core.process_mut(process);
        state.stall = stall;
        state.undisturbed_since = now;
        self.enter(Code::Process, process, 5);
    }

    /// Lets what a process waits for by its clock come up to this much later; zero ends it.
    pub fn delay_timers(&mut self, process: ProcessId, late: Duration) {
        let now = self.core.now;
        let state = self.core.process_mut(process);
        state.late = late;
        state.undisturbed_since = now;
        self.enter(Code::Process, process, 8);
        // What was put off is looked at anew.
        self.wake_all(process);
    }

    /// How much later what a process waits for by its clock may come.
    pub fn timers_late(&self, process: ProcessId) -> Duration {
        self.core.process(process).late
    }

    /// Whether a process has descriptors for new connections.
    pub fn files(&self, process: ProcessId) -> Files {
        if self.core.process(process).no_files { Files::None } else { Files::Enough }
    }

    /// Takes a process the descriptors for new connections, or gives them back.
    pub fn set_files(&mut self, process: ProcessId, files: Files) {
        self.core.process_mut(process).no_files = files == Files::None;
        self.enter(Code::Process, process, 9);
    }

    /// How much longer every run of a part takes.
    pub fn stall(&self, process: ProcessId) -> Duration {
        self.core.process(process).stall
    }

    /// Moves the clock of a process forward (a virtual machine that was suspended).
    pub fn jump(&mut self, process: ProcessId, by: Duration) {
        let now = self.core.now;
        let state = self.core.process_mut(process);
        state.clock.offset_ns += nanos(by);
        state.undisturbed_since = now;
        self.enter(Code::Process, process, 6);
        self.wake_all(process);
    }

    /// Asks a process to leave in order (SIGTERM).
    pub fn drain(&mut self, process: ProcessId) {
        self.enter(Code::Process, process, 7);
        self.core.give(process, Part(0), Input::Drain);
    }

    /// Wakes one part, as after a change that no input tells.
    pub fn wake(&mut self, process: ProcessId, part: Part) {
        self.core.wake_soon(process, part);
    }

    pub(super) fn wake_all(&mut self, process: ProcessId) {
        for part in 0..self.core.process(process).parts.len() {
            let part = Part(u16::try_from(part).expect("counted from a u16"));
            self.core.wake_soon(process, part);
        }
    }

    pub(super) fn enter(&mut self, code: Code, process: ProcessId, what: u64) {
        self.core.trace.enter(self.core.now, code, u64::from(process.0), what);
    }
}
