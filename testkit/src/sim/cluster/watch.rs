//! What the cluster watches for: who is gone is known to be, newcomers have heard everybody.

use std::rc::Rc;

use siloring_core::SiloStatus;

use super::super::node::SiloShared;
use super::super::plan::Fault;
use super::super::watches::{DETECTED_MAX, Gone, ended_slot};
use super::Cluster;

impl Cluster {
    /// Begins to watch for what a fault must lead to, if it comes alone.
    pub(super) fn watch(&mut self, fault: Fault) {
        let now = self.world.now();
        let is_alone = self.watches.is_calm(now) && self.roll.is_none() && self.is_whole();
        self.watches.fault(now, fault);
        let process = ended_slot(fault).filter(|_| is_alone).and_then(|slot| self.process(slot));
        let Some(process) = process else { return };
        let incarnation = self.silos[&process].incarnation();
        let Some(incarnation) = incarnation else { return };
        // What a stopped silo handles may still end well.
        let handling = if matches!(fault, Fault::Pause(..)) {
            Vec::new()
        } else {
            self.world.core_ref().scene.ledger.borrow().handled_by(process)
        };
        let generation = incarnation.generation;
        self.watches.gone(Gone { process, generation, due: now + DETECTED_MAX, handling });
    }

    /// A silo that has become Active has heard from every Active silo: none was stopped all the
    /// while.
    pub(super) fn check_newcomers(&mut self) {
        let active = |silo: &Rc<SiloShared>| silo.status() == Some(SiloStatus::Active);
        let newcomers: Vec<_> = self
            .silos
            .iter()
            .filter(|(process, silo)| !self.seen_active.contains(process) && active(silo))
            .map(|(process, silo)| (*process, silo.view()))
            .collect();
        for (newcomer, view) in newcomers {
            self.seen_active.insert(newcomer);
            let began = self.world.started_at(newcomer);
            for (process, silo) in &self.silos {
                let unheard = self.world.paused_since(*process).is_some_and(|at| at <= began);
                let listed = silo.incarnation().and_then(|who| view.status(who.generation));
                if unheard && listed == Some(SiloStatus::Active) {
                    let text = format!("{newcomer:?} joined, {process:?} was stopped");
                    self.world.violate("a joiner has heard from every Active silo", text);
                    return;
                }
            }
        }
    }

    /// A silo went a while ago, and nothing else happened: everybody knows by now.
    pub(super) fn check_known(&mut self, gone: &Gone) {
        for slot in self.slots() {
            let Some(silo) = self.silo(slot) else { continue };
            let is_well = silo.process() != Some(gone.process)
                && silo.status() == Some(SiloStatus::Active)
                && silo.process().is_some_and(|p| self.world.undisturbed_since(p).is_some());
            if is_well && !silo.view().is_gone(gone.generation) {
                let text = format!("{slot} does not know that {} is gone", gone.generation);
                self.world.violate("a silo that is gone is Dead within the bound", text);
            }
        }
        for id in &gone.handling {
            let scene = Rc::clone(&self.world.core_ref().scene);
            let sender = scene.ledger.borrow().sender_waiting(*id);
            if sender.is_some_and(|sender| self.world.undisturbed_since(sender).is_some()) {
                let text = scene.ledger.borrow().describe(*id);
                self.world.violate("P1 an outcome soon after its silo has gone", text);
            }
        }
    }
}
