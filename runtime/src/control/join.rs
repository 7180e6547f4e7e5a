//! Joining: from the settings to Active.
//!
//! **Contract.** Plans are made on a table just read; a lost compare-and-set means reading and
//! planning again. **Rules.** The settings must be those of the cluster. An older living row with
//! our name: at our address it is declared Dead, since the port is ours now; at another one it is
//! asked, and if it answers this silo refuses to start. Then the Joining row, whose version is the
//! generation; a Joining write of unknown outcome is never adopted, but found as such an older row
//! and declared Dead. Then every Active silo must be reached and must have dialled back. Only when
//! no row in service has beaten for `JOIN_STALE_AFTER` and none answers are they declared Dead. A
//! silo that died often of late waits before it joins. **Bound.** `JOIN_TIME_MAX` for all of it.
//! Deliberately absent: store requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::time::Duration;

use siloring_core::limits::{
    HANDSHAKE_TIME_MAX, JOIN_LOOP_DEATHS_MAX, JOIN_LOOP_VERSIONS, JOIN_LOOP_WAIT_MAX,
    JOIN_LOOP_WAIT_MIN, JOIN_STALE_AFTER, JOIN_TIME_MAX, PROBE_PERIOD, SILOS_MAX,
};
use siloring_core::ports::store::{Setting, Table};
use siloring_core::{Generation, Incarnation, Moment, SiloName, SiloRow, SiloStatus, View};

use super::desk::{Change, Why, random_below};
use super::detector::Detector;
use super::lease::Heard;
use super::message::{ControlMessage, ProbeNumber, Reached};
use super::votes::Beat;
use super::{ControlConfig, ControlOutput, Inquiry};

/// Why a silo could not join. It has left no living row behind, as far as the store could be
/// reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A setting that must be equal on all silos differs. Nothing was changed.
    #[error(
        "setting {name} is {ours} here and {theirs} in the cluster: set it to {theirs}, or stop \
         all silos and remove the cluster's settings from the store to change it"
    )]
    SettingDiffers {
        /// Which.
        name: String,
        /// Ours; `(none)` if this silo does not know it.
        ours: String,
        /// The cluster's; `(none)` if it has none.
        theirs: String,
    },
    /// A silo with our name answers at another address. Nothing of it was changed.
    #[error(
        "the name {name} is taken by a running silo at {address}: give this silo another name, or \
         stop that one"
    )]
    NameTaken {
        /// Our name.
        name: String,
        /// Where the other one answers.
        address: String,
    },
    /// An Active silo does not answer us, and is not dead either.
    #[error(
        "silo {silo} at {address} does not answer this silo: open the way to it in the network, or \
         stop it"
    )]
    Unreachable {
        /// Which.
        silo: String,
        /// Where it says it is.
        address: String,
    },
    /// An Active silo cannot dial us.
    #[error(
        "silo {silo} cannot reach this silo at {advertised}: advertise an address that the other \
         silos can dial"
    )]
    NotReachedBack {
        /// Which.
        silo: String,
        /// The address we advertise.
        advertised: String,
    },
    /// The store did not answer in time.
    #[error("the store is unavailable ({detail}): see that it runs and that its URL is right")]
    StoreUnavailable {
        /// What it said last.
        detail: String,
    },
    /// The store lacks a table or phase. Nothing was changed.
    #[error("the store lacks {missing}: run `siloring migrate {url}`")]
    NotMigrated {
        /// What is missing.
        missing: String,
        /// The store, without credentials.
        url: String,
    },
    /// The store refused for good.
    #[error("the store refused ({detail}): grant this silo's user the right, or correct the URL")]
    StoreRefused {
        /// What it said.
        detail: String,
    },
    /// The cluster is full. Nothing was changed.
    #[error("the cluster has {count} silos already: stop one first")]
    ClusterFull {
        /// How many live.
        count: usize,
    },
    /// Too many others changed the table at the same time.
    #[error("the table changed too often to join within {seconds} s: start this silo again")]
    Contended {
        /// The bound.
        seconds: u64,
    },
    /// The silo was told to leave before it had joined.
    #[error("this silo was told to leave before it had joined: start it again")]
    Cancelled,
}

/// How the reverse way was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Proof {
    /// Not known yet.
    Open,
    /// It answered us, but could not dial us back.
    NotBack,
    /// It dialled us back.
    Proven,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Trial {
    first: Moment,
    next: Moment,
    number: Option<ProbeNumber>,
    proof: Proof,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Namesake {
    /// Asked then.
    Asked(Moment),
    /// Nobody answered for it.
    Silent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The settings are compared first.
    Settings,
    /// The row is to be written, then the others proven.
    Table,
}

/// What a joiner does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// Wait for others.
    Wait,
    /// Write.
    Write(Change),
    /// Ask who answers there.
    Inquire(String),
    /// Give up.
    Fail(JoinError),
}

#[derive(Debug)]
pub(super) struct Join {
    until: Moment,
    step: Step,
    /// A crash loop waits until then; unknown until the table was seen.
    held_until: Option<Moment>,
    namesakes: BTreeMap<Generation, (String, Namesake)>,
    trials: BTreeMap<Generation, Trial>,
}

impl Join {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            until: now + JOIN_TIME_MAX,
            step: Step::Settings,
            held_until: None,
            namesakes: BTreeMap::new(),
            trials: BTreeMap::new(),
        }
    }

    /// When the join has failed.
    pub(super) const fn until(&self) -> Moment {
        self.until
    }

    /// Whether the settings are still to be compared.
    pub(super) fn wants_settings(&self) -> bool {
        self.step == Step::Settings
    }

    /// The cluster's settings came in.
    pub(super) fn handle_settings(
        &mut self,
        config: &ControlConfig,
        theirs: &[Setting],
    ) -> Result<(), JoinError> {
        self.step = Step::Table;
        let value = |settings: &[Setting], name: &str| {
            let found = settings.iter().find(|(own, _)| own == name);
            found.map_or_else(|| "(none)".to_owned(), |(_, value)| value.clone())
        };
        let names: BTreeSet<&str> =
            config.settings.iter().chain(theirs).map(|(name, _)| name.as_str()).collect();
        for name in names {
            let (ours, theirs) = (value(&config.settings, name), value(theirs, name));
            if ours != theirs {
                return Err(JoinError::SettingDiffers { name: name.to_owned(), ours, theirs });
            }
        }
        Ok(())
    }

    /// A dial found who answers at an address.
    pub(super) fn handle_inquiry(
        &mut self,
        name: &SiloName,
        address: &str,
        inquiry: Inquiry,
    ) -> Result<(), JoinError> {
        let is_namesake = match inquiry {
            Inquiry::Answered(who) => who.name == *name,
            Inquiry::Silent => false,
        };
        for (asked, state) in self.namesakes.values_mut() {
            if asked != address || *state == Namesake::Silent {
                continue;
            }
            if is_namesake {
                return Err(taken(name, address));
            }
            // Nobody, or somebody else, has that address now: our namesake has not.
            *state = Namesake::Silent;
        }
        Ok(())
    }

    /// An Active silo says whether it could dial us.
    pub(super) fn handle_reached_back(
        &mut self,
        from: Generation,
        number: ProbeNumber,
        reached: Reached,
    ) {
        let trial = self.trials.get_mut(&from).filter(|trial| trial.number == Some(number));
        if let Some(trial) = trial {
            trial.proof = match reached {
                Reached::Yes => Proof::Proven,
                Reached::No => Proof::NotBack,
            };
        }
    }

    /// Before the row is written: clears the way, then writes it.
    pub(super) fn plan_row(
        &mut self,
        now: Moment,
        config: &ControlConfig,
        table: &Table,
        rng: &mut fastrand::Rng,
    ) -> Plan {
        let rows = || table.rows.iter().map(|row| &row.row);
        let living = || rows().filter(|row| row.status != SiloStatus::Dead);
        for row in living().filter(|row| row.incarnation.name == config.name) {
            if row.advertised == config.advertised {
                // The port is ours now: whoever had it is gone.
                let row = SiloRow { status: SiloStatus::Dead, ..row.clone() };
                return Plan::Write(Change::row(table.version, row, Why::Death("restarted")));
            }
            if let Some(plan) = self.inquire(now, row) {
                return plan;
            }
        }
        if now < self.hold(now, config, table, rng) {
            return Plan::Wait;
        }
        let count = living().count();
        if count >= SILOS_MAX {
            return Plan::Fail(JoinError::ClusterFull { count });
        }
        let next = table.version.next();
        let generation = Generation::of(next);
        let row = SiloRow {
            incarnation: Incarnation { name: config.name.clone(), generation },
            status: SiloStatus::Joining,
            advertised: config.advertised.clone(),
            host: config.host.clone(),
            shards: config.shards,
            votes: Vec::new(),
            changed_in: next,
        };
        Plan::Write(Change::row(table.version, row, Why::Joining))
    }

    /// With the row written: becomes Active once every Active silo is proven, or the stale are
    /// Dead.
    pub(super) fn plan_active(
        &self,
        now: Moment,
        own: &SiloRow,
        table: &Table,
        beats: &BTreeMap<Generation, Beat>,
        detector: &Detector,
    ) -> Plan {
        let name = &own.incarnation.name;
        let rows = || table.rows.iter().map(|row| &row.row);
        let others =
            || rows().filter(|row| row.incarnation.generation != own.incarnation.generation);
        let answers = |row: &SiloRow| detector.heard_at(row.incarnation.generation) != Heard::Never;
        let older =
            |row: &&SiloRow| row.incarnation.name == *name && row.incarnation < own.incarnation;
        let namesakes = others().filter(|row| row.status != SiloStatus::Dead).filter(older);
        if let Some(row) = namesakes.into_iter().find(|row| answers(row)) {
            return Plan::Fail(taken(name, &row.advertised));
        }
        let proven = |row: &SiloRow| {
            #[cfg(any(test, feature = "planted"))]
            if detector.defect == Some(super::Defect::JoinsUnproven) {
                return true;
            }
            let trial = self.trials.get(&row.incarnation.generation);
            trial.is_some_and(|trial| trial.proof == Proof::Proven)
        };
        let mut active = others().filter(|row| row.status == SiloStatus::Active);
        if active.all(proven) {
            let row = SiloRow { status: SiloStatus::Active, ..own.clone() };
            return Plan::Write(Change::row(table.version, row, Why::Status));
        }
        let in_service = || {
            let serves = |status| matches!(status, SiloStatus::Active | SiloStatus::Draining);
            others().filter(move |row| serves(row.status))
        };
        let stale = |row: &SiloRow| {
            let silo = row.incarnation.generation;
            let still = beats.get(&silo).is_some_and(|beat| beat.still >= JOIN_STALE_AFTER);
            let tried = self
                .trials
                .get(&silo)
                .is_some_and(|trial| now.since(trial.first) >= HANDSHAKE_TIME_MAX);
            still && tried && !answers(row)
        };
        #[cfg(any(test, feature = "planted"))]
        if detector.defect == Some(super::Defect::StaleRowsKept) {
            return Plan::Wait;
        }
        if !in_service().all(stale) {
            return Plan::Wait;
        }
        let row = in_service().next().expect("an unproven one is Active").clone();
        let row = SiloRow { status: SiloStatus::Dead, ..row };
        Plan::Write(Change::row(table.version, row, Why::Death("stale and silent")))
    }

    /// Dials the silos in service and asks the Active ones to dial back.
    pub(super) fn prove(
        &mut self,
        now: Moment,
        me: Generation,
        view: &View,
        detector: &mut Detector,
        out: &mut VecDeque<ControlOutput>,
    ) {
        // Our own row may be Active already, by a write whose answer was lost.
        let to_prove =
            |row: &&SiloRow| row.status != SiloStatus::Joining && row.incarnation.generation != me;
        for row in view.living().filter(to_prove) {
            let silo = row.incarnation.generation;
            let start = Trial { first: now, next: now, number: None, proof: Proof::Open };
            let trial = self.trials.entry(silo).or_insert(start);
            if now < trial.next || trial.proof == Proof::Proven {
                continue;
            }
            trial.next = now + PROBE_PERIOD;
            if !detector.is_up(silo) {
                detector.dial(now, silo, &row.advertised, out);
            } else if row.status == SiloStatus::Active {
                let number = detector.number();
                trial.number = Some(number);
                let ask = ControlMessage::ReachBack { number, view: view.number() };
                out.push_back(ControlOutput::Send(silo, ask));
            }
        }
        self.trials.retain(|silo, _| !view.is_gone(*silo));
    }

    /// A lane to `silo` is up: it is asked at once.
    pub(super) fn hasten(&mut self, now: Moment, silo: Generation) {
        if let Some(trial) = self.trials.get_mut(&silo) {
            trial.next = now;
        }
    }

    /// When something is due here, later than `now`.
    pub(super) fn deadline(&self, now: Moment) -> Moment {
        let open = self.trials.values().filter(|trial| trial.proof != Proof::Proven);
        let next = open.map(|trial| trial.next);
        let dues = next.chain(self.held_until).chain([self.until]);
        dues.filter(|due| *due > now).min().unwrap_or(Moment::NEVER)
    }

    /// Why the time ran out.
    pub(super) fn overdue(
        &self,
        config: &ControlConfig,
        me: Option<Generation>,
        view: &View,
        trouble: Option<&str>,
    ) -> JoinError {
        if let Some(detail) = trouble {
            return JoinError::StoreUnavailable { detail: detail.to_owned() };
        }
        let open = view.active().filter(|row| Some(row.incarnation.generation) != me);
        for row in open {
            let silo = row.incarnation.to_string();
            let advertised = config.advertised.clone();
            let proof = self.trials.get(&row.incarnation.generation).map(|trial| trial.proof);
            match proof {
                Some(Proof::Proven) => {}
                Some(Proof::NotBack) => return JoinError::NotReachedBack { silo, advertised },
                Some(Proof::Open) | None => {
                    return JoinError::Unreachable { silo, address: row.advertised.clone() };
                }
            }
        }
        JoinError::Contended { seconds: JOIN_TIME_MAX.as_secs() }
    }

    /// Asks who answers at the address of a living namesake; none if that is known to be nobody.
    fn inquire(&mut self, now: Moment, row: &SiloRow) -> Option<Plan> {
        let silo = row.incarnation.generation;
        let address = row.advertised.clone();
        match self.namesakes.get(&silo).map(|(_, state)| state) {
            Some(Namesake::Silent) => return None,
            // Its answer may have been lost.
            Some(Namesake::Asked(at)) if now.since(*at) < HANDSHAKE_TIME_MAX * 2 => {
                return Some(Plan::Wait);
            }
            Some(Namesake::Asked(_)) | None => {}
        }
        self.namesakes.insert(silo, (address.clone(), Namesake::Asked(now)));
        Some(Plan::Inquire(address))
    }

    /// Until when a crash loop waits.
    fn hold(
        &mut self,
        now: Moment,
        config: &ControlConfig,
        table: &Table,
        rng: &mut fastrand::Rng,
    ) -> Moment {
        *self.held_until.get_or_insert_with(|| now + loop_wait(config, table, rng))
    }
}

/// How long a silo waits that died often in the table's last versions.
fn loop_wait(config: &ControlConfig, table: &Table, rng: &mut fastrand::Rng) -> Duration {
    let since = table.version.version().saturating_sub(JOIN_LOOP_VERSIONS);
    let died = table.rows.iter().map(|row| &row.row).filter(|row| {
        row.status == SiloStatus::Dead
            && row.incarnation.name == config.name
            && row.incarnation.generation.view().version() >= since
    });
    let deaths = u32::try_from(died.count()).unwrap_or(u32::MAX);
    match deaths.checked_sub(JOIN_LOOP_DEATHS_MAX + 1) {
        None => Duration::ZERO,
        Some(over) => {
            let wait = (JOIN_LOOP_WAIT_MIN * (1 << over.min(8))).min(JOIN_LOOP_WAIT_MAX);
            wait / 2 + random_below(rng, wait / 2)
        }
    }
}

fn taken(name: &SiloName, address: &str) -> JoinError {
    JoinError::NameTaken { name: name.to_string(), address: address.to_owned() }
}
