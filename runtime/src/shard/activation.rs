//! One activation as its shard keeps it.

use std::collections::VecDeque;
use std::rc::Rc;

use siloring_core::address::AddressHash;
use siloring_core::ids::CorrelationId;
use siloring_core::limits::{ACTIVATION_QUEUE_BYTES_MAX, ACTIVATION_QUEUE_MAX};
use siloring_core::schema::Schema;
use siloring_core::time::Moment;
use siloring_core::versions::Older;

use super::running::RunningTurns;
use crate::ctx::ActivationShared;
use crate::dedup::Dedup;
use crate::envelope::Envelope;
use crate::exec::tasks::TaskKey;
use crate::exec::wheel::TimerKey;
use crate::grain::Access;
use crate::mail::{Asker, ReplyTo, Request};

/// Where an activation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// The directory has not said yet whether it is the one.
    Registering,
    /// Its activation hook runs.
    Activating,
    /// It takes turns.
    Active,
    /// It ends as soon as its turns have; its deactivation hook may run.
    Deactivating,
}

/// Where a turn's outcome goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnReply {
    pub(super) to: ReplyTo,
    pub(super) correlation: CorrelationId,
    pub(super) schema: Schema,
    /// The version of the reply that was asked for, if it is an older one.
    pub(super) older: Option<&'static Older>,
}

/// A turn that has begun.
#[derive(Debug)]
pub(super) struct RunningTurn {
    pub(super) task: TaskKey,
    pub(super) access: Access,
    /// Where its outcome goes and what its reply is; `None` for the hooks.
    pub(super) reply: Option<TurnReply>,
    pub(super) source: AddressHash,
    pub(super) one_way: bool,
    pub(super) deadline: Moment,
    pub(super) envelope: Option<Rc<Envelope>>,
}

#[derive(Debug)]
pub(super) struct Activation {
    pub(super) shared: Rc<ActivationShared>,
    pub(super) host: u32,
    pub(super) state: Option<u32>,
    pub(super) life: Life,
    pub(super) queue: VecDeque<Request>,
    queue_bytes: usize,
    pub(super) running: RunningTurns,
    /// Futures of its own that go on between its turns.
    pub(super) timers: Vec<TaskKey>,
    pub(super) open_calls: usize,
    pub(super) last_used: Moment,
    pub(super) idle_timer: Option<TimerKey>,
    pub(super) queued: bool,
    /// What it has handled already of what is handled once.
    pub(super) handled: Option<Box<Dedup<Asker>>>,
    /// Whether the directory's entry is this activation's, as far as it knows.
    pub(super) registered: Registered,
}

/// As many requests wait as may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueFull;

/// Whether the directory has an entry for an activation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Registered {
    /// It has, or is being asked for one.
    Yes,
    /// Another activation has it, or it needs none.
    No,
}

impl Activation {
    pub(super) fn new(shared: Rc<ActivationShared>, host: u32, now: Moment) -> Self {
        Self {
            shared,
            host,
            state: None,
            life: Life::Registering,
            queue: VecDeque::new(),
            queue_bytes: 0,
            running: RunningTurns::new(),
            timers: Vec::new(),
            open_calls: 0,
            last_used: now,
            idle_timer: None,
            queued: false,
            handled: None,
            registered: Registered::Yes,
        }
    }

    /// Takes a request into the queue, unless that is full.
    pub(super) fn push(&mut self, request: &mut Request) -> Result<(), QueueFull> {
        let bytes = request.body.len();
        if self.queue.len() >= ACTIVATION_QUEUE_MAX
            || self.queue_bytes + bytes > ACTIVATION_QUEUE_BYTES_MAX
        {
            return Err(QueueFull);
        }
        self.queue_bytes += bytes;
        self.queue.push_back(request.take());
        Ok(())
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Request> {
        let request = self.queue.remove(index)?;
        self.queue_bytes -= request.body.len();
        Some(request)
    }

    pub(super) fn take_queue(&mut self) -> VecDeque<Request> {
        self.queue_bytes = 0;
        core::mem::take(&mut self.queue)
    }

    /// Whether a turn with this access may begin beside those that run.
    #[inline]
    pub(super) const fn admits(&self, access: Access) -> bool {
        self.running.admit(access)
    }

    /// Whether the task is one of its turns, or a future of its own.
    #[inline]
    pub(super) fn owns(&self, task: TaskKey) -> bool {
        self.running.get(task).is_some() || self.timers.contains(&task)
    }

    /// Whether nothing runs, waits or is wanted of it.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.life == Life::Active
            && self.running.is_empty()
            && self.queue.is_empty()
            && self.open_calls == 0
    }

    /// Whether the request comes from a chain of calls that waits for a turn of this activation.
    pub(super) fn is_waited_for_by(&self, request: &Request) -> bool {
        let me = self.shared.address.hash();
        let in_chain = request.envelope.as_ref().is_some_and(|e| e.chain.contains(&me));
        !request.one_way && !self.running.is_empty() && (request.source == me || in_chain)
    }
}
