//! A part that runs, and what it can reach.

use siloring_core::event::Event;
use siloring_core::ports::store::StoreRequest;
use siloring_core::{Generation, Moment};

use super::super::checks::Checks;
use super::super::network::EndId;
use super::super::trace::Code;
use super::{Core, Input, Part, ProcessId};

/// What a part that runs can see and do.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) core: &'a mut Core,
    pub(super) process: ProcessId,
    pub(super) part: Part,
}

impl Context<'_> {
    /// The time on the clock of this host.
    pub fn now(&self) -> Moment {
        self.core.process(self.process).clock.read(self.core.now)
    }

    /// The world's time: for checks, never for decisions of a program.
    pub const fn world_now(&self) -> Moment {
        self.core.now
    }

    /// Which process runs.
    pub const fn process(&self) -> ProcessId {
        self.process
    }

    /// The next input of this part.
    pub fn next_input(&mut self) -> Option<Input> {
        self.core.process_mut(self.process).parts[usize::from(self.part.0)].inbox.pop_front()
    }

    /// Dials an address; [`Input::Connected`] or [`Input::DialFailed`] tells how it went.
    pub fn dial(&mut self, address: &str) -> EndId {
        self.core.dial(self.process, self.part, address)
    }

    /// Listens under a name too, until the process ends.
    pub fn listen(&mut self, name: &str) {
        self.core.names.insert(name.to_owned(), self.process);
    }

    /// How a connection was dialled: by name or by address.
    pub fn way(&self, end: EndId) -> &'static str {
        self.core.network.way(end)
    }

    /// Hands bytes to the kernel; how many it took. Fewer than given: [`Input::Writable`] follows.
    pub fn write(&mut self, end: EndId, bytes: &[u8]) -> usize {
        self.core.write(self.process, end, bytes)
    }

    /// Reads what has arrived; 0 if nothing is there.
    pub fn read(&mut self, end: EndId, space: &mut [u8]) -> usize {
        self.core.read(self.process, end, space)
    }

    /// Closes our end; nothing more is told of it.
    pub fn close(&mut self, end: EndId) {
        self.core.close(self.process, end);
    }

    /// Lets another part have the end: its inputs go there from now on.
    pub fn hand_over(&mut self, end: EndId, part: Part) {
        self.core.hand_over(self.process, end, part);
    }

    /// Asks the store; [`Input::Store`] brings the answer to this part.
    pub fn submit(&mut self, ticket: u64, request: StoreRequest) {
        self.core.submit(self.process, self.part, ticket, request);
    }

    /// Lets a part hear of changes in the registry, if the run has it so.
    pub fn listen_to_registry(&mut self, part: Part) {
        self.core.listen_to_registry(self.process, part);
    }

    /// Runs another part at a moment of the world, or soon after it.
    pub(in super::super) fn wake_at(&mut self, part: Part, at: Moment) {
        self.core.wake(self.process, part, at);
    }

    /// Wakes another part, as a thread does after it put something into a mailbox.
    pub fn wake(&mut self, part: Part) {
        self.core.wake_soon(self.process, part);
    }

    /// Ends the process when this run is over.
    pub fn exit(&mut self, code: i32) {
        self.core.process_mut(self.process).exit.get_or_insert(code);
    }

    /// A number from the world's entropy.
    pub fn entropy(&mut self) -> u64 {
        self.core.random.process.u64(..)
    }

    /// Tells an event.
    pub fn tell(&mut self, event: Event) {
        self.core.told(self.process, event);
    }

    /// Reports an invariant that does not hold.
    pub fn violate(&mut self, invariant: &'static str, detail: impl Into<String>) {
        self.core.violate(invariant, detail);
    }

    /// Checks what has changed of this silo against the others.
    pub(in super::super) fn check(
        &mut self,
        invariant: &'static str,
        holds: impl FnOnce(&mut Checks) -> Option<String>,
    ) {
        let broken = holds(&mut self.core.scene.checks.borrow_mut());
        if let Some(text) = broken {
            self.core.violate(invariant, text);
        }
    }

    /// Whether the store's table ever had this incarnation: for checks.
    pub fn was_written(&self, generation: Generation) -> bool {
        self.core.store.had(generation)
    }

    /// Enters a delivery, or anything else that the trace hash must see.
    pub fn trace(&mut self, which: u64, what: u64) {
        self.core.trace.enter(self.core.now, Code::Delivery, which, what);
    }

    /// Says something to whoever watches the run.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        self.core.trace.note(self.core.now, text);
    }
}
