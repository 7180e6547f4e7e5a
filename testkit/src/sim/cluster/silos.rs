//! The operator: starts silos, ends them, replaces them.

use std::time::Duration;

use siloring_core::{Moment, SiloStatus};
use siloring_runtime::control::EXIT_DECLARED_DEAD;

use super::super::node::NodeSetup;
use super::super::plan::Slot;
use super::super::silo::{Silo, SiloSetup};
use super::super::world::{HostId, Life, ProcessId, World};
use super::{Cluster, Roll, index};

/// How long the operator waits before a silo that ended by itself is started again.
const RESTART_AFTER: Duration = Duration::from_secs(2);
/// A roll waits this long for a newcomer, or for a silo that leaves; then it goes on.
const ROLL_STEP_MAX: Duration = Duration::from_secs(90);

impl Cluster {
    pub(super) fn host(&self, slot: Slot) -> HostId {
        self.slots[index(slot)].host
    }

    /// Starts a silo in an empty slot. In one whose silo is leaving, a newcomer takes its place.
    pub(super) fn start_slot(&mut self, slot: Slot) {
        match self.process(slot) {
            None => self.launch(slot),
            Some(process) if self.slots[index(slot)].down_on_purpose => {
                let state = &mut self.slots[index(slot)];
                state.leaving.push(process);
                self.move_slot(slot);
                self.launch(slot);
            }
            Some(_) => {}
        }
    }

    /// The slot's next silo is another one: a new name on a new machine.
    pub(super) fn move_slot(&mut self, slot: Slot) {
        let host = self.world.add_host();
        let state = &mut self.slots[index(slot)];
        state.generation_count += 1;
        state.name = format!("{slot}.{}", state.generation_count);
        state.host = host;
        state.current = None;
        self.apply_active();
    }

    pub(super) fn launch(&mut self, slot: Slot) {
        let state = &mut self.slots[index(slot)];
        state.restart_at = Moment::NEVER;
        state.down_on_purpose = false;
        self.tally.starts += 1;
        let setup = SiloSetup {
            cluster: self.id.clone(),
            node: NodeSetup {
                slot,
                seed: self.options.seed ^ (self.tally.starts << 32),
                silo_count: self.options.silos,
                load_per_second: self.options.load_per_second,
                mix: self.options.mix,
                body_bytes: self.options.body_bytes as usize,
                mailbox: self.options.mailbox as usize,
                mail_delay: self.options.mail_delay,
            },
            name: state.name.clone(),
            address: self.world.address(state.host).to_owned(),
            shards: self.options.shards,
            place: self.options.hosts,
            release: self.releases[self.release].clone(),
            planted: self.planted,
        };
        let (silo, shared) = Silo::new(setup);
        let process = self.world.start(state.host, silo.parts(), Box::new(silo));
        shared.started_as(process);
        self.silos.insert(process, shared);
        self.slots[index(slot)].current = Some(process);
    }

    /// Silos are started with another release of the program from now on; with the last one if
    /// there are fewer.
    pub(super) fn set_version(&mut self, number: u16) {
        self.release = usize::from(number).min(self.releases.len()).saturating_sub(1);
    }

    pub(super) fn end_slot(&mut self, slot: Slot, end: fn(&mut World, ProcessId)) {
        if let Some(process) = self.process(slot) {
            self.tally.kills += 1;
            let sizes = self.silos[&process].sizes();
            let moving = sizes.iter().any(|sizes| sizes.directory.moving > 0);
            self.tally.interrupted += u64::from(moving);
            end(&mut self.world, process);
            let state = &mut self.slots[index(slot)];
            state.current = None;
            state.down_on_purpose = true;
            state.restart_at = Moment::NEVER;
        }
    }

    pub(super) fn drain_slot(&mut self, slot: Slot) {
        if let Some(process) = self.process(slot) {
            self.slots[index(slot)].down_on_purpose = true;
            self.world.drain(process);
        }
    }

    pub(super) fn begin_roll(&mut self) {
        if self.roll.is_none() {
            self.roll = Some(Roll {
                slots: self.slots().collect(),
                newcomer: None,
                old: None,
                drained: false,
                step_ends: Moment::NEVER,
            });
        }
    }

    pub(super) fn go_on_rolling(&mut self, mut roll: Roll, now: Moment) -> Option<Roll> {
        let is_over = now >= roll.step_ends;
        if let Some((_, newcomer)) = roll.newcomer {
            let status = self.silos.get(&newcomer).and_then(|silo| silo.status());
            let gone = !self.world.life(newcomer).is_alive();
            if status == Some(SiloStatus::Active) || gone || is_over {
                roll.newcomer = None;
                roll.step_ends = now + ROLL_STEP_MAX;
                if let Some(old) = roll.old.filter(|old| self.world.life(*old).is_alive()) {
                    self.world.drain(old);
                    roll.drained = true;
                }
            }
            return Some(roll);
        }
        let leaving = roll.old.is_some_and(|old| self.world.life(old).is_alive());
        if leaving && !is_over {
            return Some(roll);
        }
        let Some(slot) = roll.slots.pop_front() else {
            self.tally.rolls += 1;
            return None;
        };
        roll.old = self.process(slot);
        if let Some(old) = roll.old {
            self.slots[index(slot)].leaving.push(old);
            self.move_slot(slot);
        }
        self.start_slot(slot);
        roll.newcomer = self.process(slot).map(|process| (slot, process));
        roll.step_ends = now + ROLL_STEP_MAX;
        Some(roll)
    }

    /// What an operator does: restarts what ended by itself, goes on with a roll.
    pub(super) fn operate(&mut self, now: Moment) {
        for slot in self.slots() {
            self.note_exit(slot, now);
            if self.slots[index(slot)].restart_at <= now {
                self.start_slot(slot);
            }
        }
        if let Some(roll) = self.roll.take() {
            self.roll = self.go_on_rolling(roll, now);
        }
        for gone in self.watches.take_due(now) {
            self.check_known(&gone);
        }
        self.check_newcomers();
    }

    pub(super) fn note_exit(&mut self, slot: Slot, now: Moment) {
        let state = &mut self.slots[index(slot)];
        if let Some(process) = state.current
            && let Life::Exited(code) = self.world.life(process)
        {
            state.current = None;
            *self.tally.exits.entry(code).or_default() += 1;
            if !state.down_on_purpose {
                state.restart_at = now + RESTART_AFTER;
            }
            if code == i32::from(EXIT_DECLARED_DEAD) && !self.watches.is_excused(slot, now) {
                self.world.violate("nobody dies of nothing", format!("{slot} ended with {code}"));
            }
        }
        state.leaving.retain(|process| self.world.life(*process).is_alive());
    }
}
