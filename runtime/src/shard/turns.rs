//! Activations at work: registered, activated, their turns begun, polled, ended; collected when
//! idle.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use siloring_core::address::{Address, AddressHash};
use siloring_core::body::Body;
use siloring_core::event::Event;
use siloring_core::ids::{ActivationNumber, MethodId};
use siloring_core::limits::TURNS_PER_STEP_MAX;
use siloring_core::outcome::{DeliveryFailure, FailedKind, RejectedKind};
use siloring_core::ports::rare::{self, Rare};
use siloring_core::schema::Schema;

use super::activation::{Life, Registered, RunningTurn, TurnReply};
use super::mixed::take_up;
use super::{ActivationKey, Shard, Timer};
use crate::ctx::Ctx;
use crate::directory::Place;
use crate::exec::tasks::{Task, TaskKey};
use crate::grain::{ACTIVATE, Access, DEACTIVATE};
use crate::host::Polled;
use crate::links::Links;
use crate::mail::{Outcome, Request};
use crate::placement::Placement;
use crate::turn::TurnOutput;

impl<L: Links> Shard<L> {
    /// The activation of this shard at the address.
    #[inline]
    pub(super) fn activation_at(&self, hash: AddressHash) -> Option<ActivationKey> {
        match self.found.get() {
            Some((found, key)) if found == hash => key,
            Some(_) | None => {
                let key = self.local.known.activations.borrow().get(&hash).copied();
                self.found.set(Some((hash, key)));
                key
            }
        }
    }

    /// The directory says: this activation is the one.
    pub(super) fn registered(&mut self, hash: AddressHash, number: ActivationNumber) {
        let Some(key) = self.activation_at(hash) else { return };
        let activation = &mut self.activations[key as usize];
        activation.shared.number.set(number);
        if activation.life != Life::Registering {
            return;
        }
        let Some(state) = self.hosts[activation.host as usize].create() else {
            return self.activation_failed(key, "the grain's Default panicked");
        };
        activation.state = Some(state);
        activation.life = Life::Activating;
        self.emit_activated(key);
        self.begin_hook(key, ACTIVATE);
    }

    /// A grain of this shard alone needs no directory to be the one.
    pub(super) fn register_of_shard(&mut self, key: ActivationKey) {
        let activation = &mut self.activations[key as usize];
        activation.registered = Registered::No;
        let hash = activation.shared.address.hash();
        // Nobody but this shard ever has it: the shard's own counter orders its activations.
        self.own.living_count += 1;
        self.own.numbered += 1;
        let number = ActivationNumber { view: self.view.number(), counter: self.own.numbered };
        self.registered(hash, number);
    }

    fn emit_activated(&mut self, key: ActivationKey) {
        let address = self.activations[key as usize].shared.address.clone();
        self.emit(Event::GrainActivated { address });
    }

    /// The directory says: another activation is the one. Its callers go there.
    pub(super) fn registration_lost(&mut self, hash: AddressHash, winner: Place) {
        let Some(key) = self.activation_at(hash) else { return };
        self.directory.learn(hash, winner);
        let activation = &mut self.activations[key as usize];
        activation.registered = Registered::No;
        let life = activation.life;
        let address = activation.shared.address.clone();
        for request in activation.take_queue() {
            self.redirect_request(&address, &request, winner);
        }
        match life {
            Life::Registering => self.remove_activation(key, "another activation won"),
            // Turns that have begun cannot be recalled; they end, and the store refuses their
            // writes.
            Life::Activating | Life::Active => {
                let winner = winner.endpoint.silo;
                self.emit(Event::RegistrationLost { address, winner });
                self.activations[key as usize].shared.ends.set(true);
                if life == Life::Active && self.activations[key as usize].running.is_empty() {
                    self.deactivate(key);
                }
            }
            Life::Deactivating => {}
        }
    }

    fn redirect_request(&mut self, target: &Address, request: &Request, place: Place) {
        let failure = DeliveryFailure::rejected_in(
            RejectedKind::Moving,
            self.view.number(),
            "the activation is elsewhere",
        );
        let place = Some(Box::new(place));
        let outcome = Outcome { result: Err(failure), schema: Schema::NONE, place };
        self.respond(request.reply_to, request.correlation, target, outcome);
    }

    fn activation_failed(&mut self, key: ActivationKey, reason: &str) {
        for request in self.activations[key as usize].take_queue() {
            let failure = DeliveryFailure::failed(FailedKind::HandlerFailed, reason);
            self.refuse_of(key, &request, failure);
        }
        self.remove_activation(key, "its activation failed");
    }

    fn begin_hook(&mut self, key: ActivationKey, hook: MethodId) {
        let now = self.now;
        let activation = &self.activations[key as usize];
        let ctx = Ctx {
            shared: Rc::clone(&activation.shared),
            source: AddressHash::NONE,
            deadline: now + self.config.deadline_default,
            attempt: 0,
            envelope: None,
        };
        let turn = RunningTurn {
            task: TaskKey(0),
            access: Access::Exclusive,
            reply: None,
            source: AddressHash::NONE,
            one_way: true,
            deadline: ctx.deadline,
            envelope: None,
        };
        self.begin_turn(key, ctx, hook, Body::empty(), turn);
    }

    /// Starts the turns that may begin now, in order of arrival.
    pub(super) fn start_turns(&mut self, key: ActivationKey) {
        let Some(activation) = self.activations.get_mut(key as usize) else { return };
        activation.queued = false;
        let mut left = TURNS_PER_STEP_MAX;
        while let Some(index) = self.next_startable(key) {
            if left == 0 {
                // The others are next; it goes on when it is its turn again.
                self.activations[key as usize].queued = true;
                return self.runnable.push_back(key);
            }
            left -= 1;
            let request = self.activations[key as usize].take(index);
            let mut request = request.expect("the index was just found");
            self.start_request(key, &mut request);
            let alive = self.activations.get(key as usize);
            if !alive.is_some_and(|activation| activation.life == Life::Active) {
                return;
            }
        }
        self.fail_deadlocks(key);
    }

    /// The first queued request that may begin: the front one, or on a reentrant grain one that the
    /// running turns wait for.
    fn next_startable(&self, key: ActivationKey) -> Option<usize> {
        let activation = &self.activations[key as usize];
        if activation.life != Life::Active {
            return None;
        }
        let host = self.hosts[activation.host as usize].spec();
        let admits =
            |request: &Request| activation.admits(self.access_of(activation.host, request.method));
        if activation.queue.front().is_some_and(admits) {
            return Some(0);
        }
        if !host.reentrant {
            return None;
        }
        activation.queue.iter().position(|r| activation.is_waited_for_by(r) && admits(r))
    }

    /// A request whose own caller's turn keeps it from beginning would wait for itself: it is told.
    fn fail_deadlocks(&mut self, key: ActivationKey) {
        #[cfg(feature = "planted")]
        if self.config.planted == super::Planted::DeadlockUndiagnosed {
            return;
        }
        loop {
            let activation = &mut self.activations[key as usize];
            let found = activation.queue.iter().position(|r| activation.is_waited_for_by(r));
            let Some(request) = found.and_then(|index| activation.take(index)) else { return };
            let detail = format!(
                "{} waits for a turn that waits for this call: make the method `&self`, and the \
                 grain reentrant, or send one_way",
                activation.shared.address
            );
            let failure = DeliveryFailure::failed(FailedKind::Deadlock, detail);
            self.refuse_of(key, &request, failure);
        }
    }

    pub(super) fn start_request(&mut self, key: ActivationKey, request: &mut Request) {
        if request.deadline < self.now {
            let target = self.activations[key as usize].shared.address.clone();
            self.emit(Event::ExpiredUnstarted { target });
            let failure = DeliveryFailure::rejected(
                RejectedKind::Overloaded,
                "the deadline passed while the request waited for its turn",
            );
            return self.refuse_of(key, request, failure);
        }
        let activation = &mut self.activations[key as usize];
        let host = self.hosts[activation.host as usize].spec();
        let method = host.method(request.method);
        let mut older = None;
        if let Some(method) = method
            && !self.is_present(method, request)
        {
            older = match take_up(host, method, request) {
                Ok(older) => older,
                Err(failure) => return self.refuse_of(key, request, failure),
            };
        }
        if !self.is_to_begin(key, request) {
            return;
        }
        let activation = &mut self.activations[key as usize];
        // One that nobody knows is refused in a turn of its own.
        let (access, schema) = method
            .map_or((Access::Exclusive, Schema::NONE), |method| (method.access, method.reply));
        let envelope = request.envelope.take().map(|envelope| Rc::new(*envelope));
        let ctx = Ctx {
            shared: Rc::clone(&activation.shared),
            source: request.source,
            deadline: request.deadline,
            attempt: request.attempt,
            envelope: envelope.clone(),
        };
        activation.last_used = self.now;
        let turn = RunningTurn {
            task: TaskKey(0),
            access,
            reply: Some(TurnReply {
                to: request.reply_to,
                correlation: request.correlation,
                schema,
                older,
            }),
            source: request.source,
            one_way: request.one_way,
            deadline: request.deadline,
            envelope,
        };
        let body = core::mem::take(&mut request.body);
        self.begin_turn(key, ctx, request.method, body, turn);
    }

    fn begin_turn(
        &mut self,
        key: ActivationKey,
        ctx: Ctx,
        method: MethodId,
        body: Body,
        mut turn: RunningTurn,
    ) {
        let activation = &mut self.activations[key as usize];
        let state = activation.state.expect("turns begin once the state is there");
        let host = activation.host;
        let slot = self.hosts[host as usize].start(state, ctx, method, body);
        turn.task = self.tasks.insert(Task::Turn { host, slot, activation: key });
        let task = turn.task;
        activation.running.push(turn, &mut self.spare_lists);
        self.poll_task(task);
    }

    /// Polls a task that is ready.
    pub(super) fn poll_task(&mut self, key: TaskKey) {
        // What others staged is not this task's.
        self.carry_out(None);
        match self.tasks.begin(key) {
            Some(Task::Turn { host, slot, activation }) => {
                self.poll_turn(key, host, slot, activation);
            }
            Some(Task::Spawned { owner }) => self.poll_spawned(key, owner),
            // A late wake of a task that has ended.
            None => {}
        }
    }

    fn poll_turn(&mut self, key: TaskKey, host: u32, slot: u32, activation: ActivationKey) {
        self.name_running(activation);
        self.config.running.begin();
        let host_of = &mut self.hosts[host as usize];
        let polled = self.local.poll_task(key, self.tasks.waker(key), |cx| host_of.poll(slot, cx));
        self.config.running.end();
        let owner = Some((activation, key));
        match polled {
            Polled::Pending => {
                self.tasks.suspend(key);
                self.carry_out(owner);
            }
            Polled::Done(output) => {
                self.carry_out(owner);
                self.tasks.end(key);
                self.turn_done(key, activation, output);
            }
            Polled::Panicked(message) => {
                self.carry_out(owner);
                self.tasks.end(key);
                self.turn_panicked(key, activation, message);
            }
        }
    }

    /// Says which activation's turn runs from now on.
    fn name_running(&mut self, key: ActivationKey) {
        if self.named != Some(key)
            && let Some(activation) = self.activations.get(key as usize)
        {
            self.config.running.name(activation.shared.address.as_str());
            self.named = Some(key);
        }
    }

    fn poll_spawned(&mut self, key: TaskKey, owner: Option<ActivationKey>) {
        let mut future = self.tasks.take_future(key);
        let polled = self.local.poll_task(key, self.tasks.waker(key), |cx| {
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)))
        });
        let by = owner.map(|owner| (owner, key));
        match polled {
            Ok(core::task::Poll::Pending) => {
                self.tasks.put_back(key, future);
                self.carry_out(by);
            }
            Ok(core::task::Poll::Ready(())) | Err(_) => {
                if let Err(panic) = polled {
                    let message = crate::host::panic_message(&*panic);
                    self.emit(Event::FuturePanicked { message });
                }
                discard(future);
                self.carry_out(by);
                self.tasks.end(key);
                // What it staged last may have ended its activation.
                let owner = owner.and_then(|owner| self.activations.get_mut(owner as usize));
                if let Some(owner) = owner {
                    owner.timers.retain(|timer| *timer != key);
                }
            }
        }
    }

    fn turn_done(&mut self, task: TaskKey, key: ActivationKey, output: TurnOutput) {
        // A turn that was cut off while it was polled has been answered for.
        let Some(turn) = self.end_turn(task, key) else { return };
        let Some(reply) = turn.reply else { return self.hook_done(key, output) };
        self.answer_turn(key, reply, turn.envelope.as_deref(), output);
        self.after_turn(key);
    }

    fn end_turn(&mut self, task: TaskKey, key: ActivationKey) -> Option<RunningTurn> {
        let activation = self.activations.get_mut(key as usize)?;
        activation.running.remove(task, &mut self.spare_lists)
    }

    /// A turn of the activation has ended: the next may begin, or it is time to leave.
    fn after_turn(&mut self, key: ActivationKey) {
        let activation = &mut self.activations[key as usize];
        activation.last_used = self.now;
        if activation.shared.ends.get() && activation.life == Life::Active {
            activation.life = Life::Deactivating;
        }
        if activation.life == Life::Deactivating {
            return self.try_deactivate(key);
        }
        if activation.queue.is_empty() {
            if activation.queue.capacity() > 0 && activation.running.is_empty() {
                // Most requests never wait: an idle activation keeps no room for those that do.
                activation.queue = VecDeque::new();
            }
            let ends = self.leaving.is_draining() || rare::is_asked(Rare::EndSoon);
            if ends && activation.is_idle() {
                let host = activation.host;
                if !self.is_of_shard(host) {
                    self.deactivate(key);
                }
            }
            return;
        }
        if !activation.queued {
            activation.queued = true;
            self.runnable.push_back(key);
        }
    }

    fn hook_done(&mut self, key: ActivationKey, output: TurnOutput) {
        let activation = &mut self.activations[key as usize];
        match (activation.life, output) {
            (Life::Activating, Ok(_)) => {
                activation.life = Life::Active;
                self.watch_idleness(key);
                self.after_turn(key);
            }
            (Life::Activating, Err(failure)) => {
                let reason = format!("the activation hook failed: {}", failure.detail());
                self.activation_failed(key, &reason);
            }
            (Life::Deactivating, _) => {
                self.remove_activation(key, "it was idle, told to, or the silo drains");
            }
            (Life::Registering | Life::Active, _) => unreachable!("no hook runs then"),
        }
    }

    fn turn_panicked(&mut self, task: TaskKey, key: ActivationKey, message: String) {
        let Some(turn) = self.end_turn(task, key) else { return };
        let target = self.activations[key as usize].shared.address.clone();
        let detail = format!("the handler of {target} panicked: {message}");
        self.emit(Event::HandlerPanicked { target, message });
        if let Some(reply) = turn.reply {
            let failure = DeliveryFailure::failed(FailedKind::HandlerFailed, detail.clone());
            self.answer_turn(key, reply, turn.envelope.as_deref(), Err(failure));
        }
        if self.activations[key as usize].life == Life::Activating {
            return self.activation_failed(key, &detail);
        }
        // Turns that only read and wait beside it cannot go on without the activation.
        self.cut_off_turns(key, &detail);
        self.remove_activation(key, "its handler panicked");
    }

    /// Ends the turns that wait, unfinished; their callers are told. Returns how many.
    pub(super) fn cut_off_turns(&mut self, key: ActivationKey, why: &str) -> usize {
        let turns = self.activations[key as usize].running.take();
        let target = self.activations[key as usize].shared.address.clone();
        for turn in &turns {
            self.emit(Event::TurnCutOff { target: target.clone(), reason: why.to_owned() });
            // The turn that is being polled stays in the slab: it ends with its poll.
            if let Some((Task::Turn { host, slot, .. }, _)) = self.tasks.remove(turn.task) {
                self.hosts[host as usize].cancel(slot);
            }
            if let Some(reply) = turn.reply {
                let failure = DeliveryFailure::failed(FailedKind::HandlerFailed, why);
                self.answer_turn(key, reply, turn.envelope.as_deref(), Err(failure));
            }
        }
        turns.len()
    }

    /// Begins to end an activation that has no turns.
    pub(super) fn deactivate(&mut self, key: ActivationKey) {
        self.activations[key as usize].life = Life::Deactivating;
        self.try_deactivate(key);
    }

    fn try_deactivate(&mut self, key: ActivationKey) {
        if self.activations[key as usize].running.is_empty() {
            self.begin_hook(key, DEACTIVATE);
        }
    }

    /// Forgets an activation. Requests that still wait go to the next one.
    pub(super) fn remove_activation(&mut self, key: ActivationKey, reason: &'static str) {
        let mut activation = self.activations.remove(key as usize);
        assert!(activation.running.is_empty(), "an activation is removed without turns");
        self.named = self.named.filter(|named| *named != key);
        let address = activation.shared.address.clone();
        self.local.known.activations.borrow_mut().remove(&address.hash());
        self.found.set(None);
        if self.is_of_shard(activation.host) {
            self.own.living_count -= 1;
        }
        for timer in activation.timers.drain(..) {
            discard(self.tasks.remove(timer));
        }
        if let Some(timer) = activation.idle_timer {
            self.wheel.cancel(timer);
        }
        if let Some(state) = activation.state {
            self.hosts[activation.host as usize].remove(state);
            self.emit(Event::GrainDeactivated { address: address.clone(), reason });
        }
        if activation.registered == Registered::Yes {
            self.directory.unregister(self.now, &address);
            self.pump_directory();
        }
        if activation.open_calls > 0 {
            for owned in self.ledger.select(|open| open.owner == Some(key)) {
                if let Some(open) = self.ledger.get_mut(owned) {
                    open.owner = None;
                }
            }
        }
        self.accept_again(&address, activation.take_queue());
    }

    /// What a method needs of the state; one that nobody knows is refused in a turn of its own.
    pub(super) fn access_of(&self, host: u32, method: MethodId) -> Access {
        let method = self.hosts[host as usize].spec().method(method);
        method.map_or(Access::Exclusive, |method| method.access)
    }

    fn watch_idleness(&mut self, key: ActivationKey) {
        let activation = &mut self.activations[key as usize];
        let host = self.hosts[activation.host as usize].spec();
        if host.placement == Placement::Shard {
            return;
        }
        let after = host.idle_after.unwrap_or(self.config.idle_after);
        let at = activation.last_used + after;
        activation.idle_timer = Some(self.wheel.insert(at, Timer::Idle(key)));
    }

    /// The activation may have been idle long enough.
    pub(super) fn check_idle(&mut self, key: ActivationKey) {
        let Some(activation) = self.activations.get_mut(key as usize) else { return };
        let host = self.hosts[activation.host as usize].spec();
        let after = host.idle_after.unwrap_or(self.config.idle_after);
        if !activation.is_idle() {
            activation.last_used = self.now;
        }
        if activation.is_idle() && self.now.since(activation.last_used) >= after {
            activation.idle_timer = None;
            self.deactivate(key);
        } else {
            self.watch_idleness(key);
        }
    }
}

/// Drops what the program made. A destructor of its may panic; that ends nothing else.
pub(super) fn discard<T>(made: T) {
    drop(catch_unwind(AssertUnwindSafe(|| drop(made))));
}
