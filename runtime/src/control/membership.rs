//! The membership table as this silo knows it, and the view that it holds.
//!
//! **Contract.** Tables come in with the count of views adopted before they were asked for, so that
//! an answer overtaken by gossip is told from a store that lost commits. **Invariants.** The held
//! view never goes back. A Dead never becomes Active in it: a table that resurrects one, lost
//! versions or shows other rows under a known number is *regressed*: it is not adopted but
//! repaired, row by row, under the versions of an interim lineage that nobody takes up; the last
//! write starts the next lineage, in which nobody who lives is missing, unless the store gave its
//! generation to another meanwhile: both are Dead then. (A store takes a row back in only under a
//! later lineage than the one it was made in: hence the interim one.) Deliberately absent: the
//! store's requests, time-outs.

use std::collections::BTreeMap;
use std::sync::Arc;

use core::time::Duration;

use siloring_core::limits::{
    DEAD_ROW_AGE_MAX, DEAD_ROWS_MAX, HEARTBEAT_PERIOD, LEASE, VOTES_NEEDED,
};
use siloring_core::ports::store::{Table, TableRow};
use siloring_core::{Generation, Incarnation, Moment, SiloRow, SiloStatus, View, ViewNumber};

use super::desk::{Change, Edit, Why};
use super::message::ViewRows;
use super::votes::{Beat, STILL_MAX};

/// What a table or view meant to this silo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// A newer view was adopted.
    Adopted,
    /// It shows what is known.
    Known,
    /// It was overtaken: read again.
    Overtaken,
    /// Our own row is Dead or missing in that view.
    OwnGone(ViewNumber),
    /// The store lost what was seen.
    Regressed,
    /// It is no table: two rows of one generation, or a shard count out of range.
    Unreadable,
}

#[derive(Debug)]
pub(super) struct Membership {
    view: Arc<View>,
    adoptions: u64,
    table: Option<Table>,
    asked: Moment,
    beats: BTreeMap<Generation, Beat>,
    dead_since: BTreeMap<Generation, Moment>,
    /// Whether the table at hand is regressed.
    regressed: bool,
    #[cfg(any(test, feature = "planted"))]
    pub(super) defect: Option<super::Defect>,
}

impl Membership {
    pub(super) fn new() -> Self {
        Self {
            view: Arc::new(View::default()),
            adoptions: 0,
            table: None,
            asked: Moment::ZERO,
            beats: BTreeMap::new(),
            dead_since: BTreeMap::new(),
            regressed: false,
            #[cfg(any(test, feature = "planted"))]
            defect: None,
        }
    }

    pub(super) const fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// How many views were adopted: goes with each read.
    pub(super) const fn adoptions(&self) -> u64 {
        self.adoptions
    }

    /// How many votes make `me` Dead until a lease granted now ends, at least: only silos count
    /// that by then still pass for beating at every reader.
    pub(super) fn votes_needed(&self, now: Moment, me: Generation) -> usize {
        let beats = |silo: Generation| {
            self.beats.get(&silo).is_some_and(|beat| beat.moved_after + STILL_MAX > now + LEASE)
        };
        let others = self.view.active().map(|row| row.incarnation.generation);
        others.filter(|&silo| silo != me && beats(silo)).count().clamp(1, VOTES_NEEDED)
    }

    /// The table, as long as nothing newer is known: what a change may be based on.
    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// When the last table was asked for.
    pub(super) const fn asked(&self) -> Moment {
        self.asked
    }

    pub(super) const fn beats(&self) -> &BTreeMap<Generation, Beat> {
        &self.beats
    }

    /// The table has changed, or may have: nothing is written before it is read again.
    pub(super) fn forget_table(&mut self) {
        self.table = None;
    }

    /// Forgets all: a joiner without a row has promised nothing to anybody.
    pub(super) fn forget(&mut self) {
        self.view = Arc::new(View::default());
        self.adoptions += 1;
        self.table = None;
        self.beats.clear();
        self.dead_since.clear();
        self.regressed = false;
    }

    /// Takes up a table that was asked for at `asked`, with so many views adopted before.
    pub(super) fn take_table(
        &mut self,
        now: Moment,
        me: Option<&Incarnation>,
        asked: Moment,
        adoptions: u64,
        table: Table,
    ) -> Reading {
        if table.version < self.view.number() && adoptions != self.adoptions {
            return Reading::Overtaken;
        }
        let mut rows: Vec<SiloRow> = table.rows.iter().map(|row| row.row.clone()).collect();
        rows.sort_by_key(|row| row.incarnation.generation);
        if table.version == self.view.number() && is_same(&rows, self.view.rows()) {
            self.keep(asked, table);
            self.regressed = false;
            return Reading::Known;
        }
        let Some(view) = (ViewRows { number: table.version, rows }).view() else {
            return Reading::Unreadable;
        };
        if me.is_some_and(|me| self.is_own_gone(me, &view)) {
            return Reading::OwnGone(view.number());
        }
        self.keep(asked, table);
        self.judge(now, view)
    }

    /// Takes up a view that a peer sent. Only a newer one of our lineage: a new lineage is adopted
    /// from the store alone, and repaired there.
    pub(super) fn take_view(&mut self, now: Moment, me: &Incarnation, view: View) -> Reading {
        if view.number() <= self.view.number() {
            return Reading::Known;
        }
        if self.is_own_gone(me, &view) {
            return Reading::OwnGone(view.number());
        }
        if view.number().lineage() != self.view.number().lineage() || self.resurrects(&view) {
            return Reading::Overtaken;
        }
        self.adopt(now, view)
    }

    /// Takes up a change that the store has made for us.
    pub(super) fn take_change(&mut self, now: Moment, change: &Change) -> Reading {
        let Some(table) = self.table.as_mut().filter(|t| t.version == change.expected) else {
            return Reading::Overtaken;
        };
        table.version = change.next;
        match &change.edit {
            Edit::Row(row) => put(table, row),
            Edit::Remove(generations) => table.rows.retain(|row| {
                let incarnation = &row.row.incarnation;
                row.row.status != SiloStatus::Dead || !generations.contains(&incarnation.generation)
            }),
        }
        let view = table.view();
        self.judge(now, view)
    }

    /// The next write that brings a regressed table back to what was seen; none if it is not one.
    pub(super) fn repair(&self, me: Generation) -> Option<Change> {
        let table = self.table.as_ref()?;
        let seen = self.view.number();
        if !self.regressed {
            return None;
        }
        let mut rows = self.lost_rows(table);
        if self.is_ahead(table.version) {
            // Others have started the new lineage; what they did not know Dead is written Dead.
            return rows.pop().map(|row| Change::row(table.version, row, Why::Repair));
        }
        let last = rows.len() <= 1;
        let row = rows.pop().or_else(|| self.view.silo(me).cloned())?;
        let later = |number: ViewNumber, version| {
            let lineage = number.lineage().checked_add(1).expect("fewer than 32767 regressions");
            ViewNumber::new(lineage, version)
        };
        let interim = if table.version.is_interim() && table.version > seen {
            table.version.next()
        } else {
            later(seen, seen.version().max(table.version.version()) + 1)
        };
        let next = if last { later(interim, interim.version()) } else { interim };
        Some(Change::row_as(table.version, next, row, Why::Repair))
    }

    /// Whether this is the number of a view later than ours.
    fn is_ahead(&self, version: ViewNumber) -> bool {
        version > self.view.number() && !version.is_interim()
    }

    /// The Dead rows to be removed now, if this silo is the one to do it.
    pub(super) fn prune(&self, now: Moment, me: Generation) -> Option<Change> {
        let table = self.table.as_ref()?;
        let first = self.view.active().next()?;
        if first.incarnation.generation != me {
            return None;
        }
        let aged = |dead: &&Generation| {
            let since = self.dead_since.get(*dead);
            since.is_some_and(|&since| now.since(since) >= DEAD_ROW_AGE_MAX)
        };
        let mut generations: Vec<Generation> =
            self.dead_since.keys().filter(aged).copied().collect();
        if self.dead_since.len() > DEAD_ROWS_MAX {
            // The oldest half, so that the next death does not call for the next removal.
            let count = self.dead_since.len() - DEAD_ROWS_MAX / 2;
            generations.extend(self.dead_since.keys().take(count));
            generations.sort_unstable();
            generations.dedup();
        }
        (!generations.is_empty()).then(|| Change::remove(table.version, generations))
    }

    fn keep(&mut self, asked: Moment, table: Table) {
        self.count_beats(asked, &table);
        self.asked = asked;
        self.table = Some(table);
    }

    /// Adopts what the table at hand shows, unless it is regressed.
    fn judge(&mut self, now: Moment, view: View) -> Reading {
        self.regressed = self.is_regressed(&view);
        if self.regressed { Reading::Regressed } else { self.adopt(now, view) }
    }

    fn adopt(&mut self, now: Moment, view: View) -> Reading {
        #[cfg(any(test, feature = "planted"))]
        let goes_back = self.defect == Some(super::Defect::ViewGoesBack);
        #[cfg(not(any(test, feature = "planted")))]
        let goes_back = false;
        if view.number() <= self.view.number() && !goes_back {
            return Reading::Known;
        }
        let is_dead = |generation: &Generation| view.status(*generation) == Some(SiloStatus::Dead);
        self.dead_since.retain(|generation, _| is_dead(generation));
        for row in view.rows().iter().filter(|row| row.status == SiloStatus::Dead) {
            self.dead_since.entry(row.incarnation.generation).or_insert(now);
        }
        if self.table.as_ref().is_some_and(|table| table.version < view.number()) {
            self.table = None;
        }
        self.view = Arc::new(view);
        self.adoptions += 1;
        Reading::Adopted
    }

    /// Whether our row is Dead in `view`, or missing from one that is not older than ours.
    fn is_own_gone(&self, me: &Incarnation, view: &View) -> bool {
        match view.silo(me.generation) {
            Some(row) => row.status == SiloStatus::Dead || row.incarnation.name != me.name,
            None => view.number() >= self.view.number() && !view.number().is_interim(),
        }
    }

    fn is_regressed(&self, view: &View) -> bool {
        #[cfg(any(test, feature = "planted"))]
        if self.defect == Some(super::Defect::ViewGoesBack) {
            return false;
        }
        if self.is_ahead(view.number()) {
            return self.resurrects(view);
        }
        view.number() != self.view.number() || !is_same(view.rows(), self.view.rows())
    }

    /// Whether a silo that is Dead in our view lives in `view`, or one that took its generation.
    fn resurrects(&self, view: &View) -> bool {
        view.living().any(|row| {
            let status = self.view.status(row.incarnation.generation);
            status == Some(SiloStatus::Dead) || self.is_taken(row)
        })
    }

    /// Whether we know the row's generation as another silo's: the store has lost the write that
    /// made it, and gave it away once more.
    fn is_taken(&self, row: &SiloRow) -> bool {
        let seen = self.view.silo(row.incarnation.generation);
        seen.is_some_and(|seen| seen.incarnation != row.incarnation)
    }

    /// The rows to be written so that `table` shows what was seen; the first to be written is last.
    fn lost_rows(&self, table: &Table) -> Vec<SiloRow> {
        let held = |generation| {
            let mut rows = table.rows.iter().map(|row| &row.row);
            rows.find(|row| row.incarnation.generation == generation)
        };
        let newer = self.is_ahead(table.version);
        let older = !newer && table.version != self.view.number();
        let mut lost = Vec::new();
        for seen in self.view.rows() {
            let is_dead = seen.status == SiloStatus::Dead;
            match held(seen.incarnation.generation) {
                // Nobody is told from it by its generation any more: it is Dead, see below, and
                // whose it was exits.
                Some(row) if self.is_taken(row) => {}
                Some(row) if row.status < seen.status && (is_dead || !newer) => {
                    lost.push(SiloRow { status: seen.status, ..row.clone() });
                }
                // A living row that is missing under a known number was deleted by somebody: whose
                // it is exits. In an older version it was not written yet, and is written again.
                None if older && !is_dead => lost.push(seen.clone()),
                Some(_) | None => {}
            }
        }
        // Rows made since the store lost its last versions: their generations repeat, or may.
        let made_since = table.rows.iter().map(|row| &row.row).filter(|row| {
            let generation = row.incarnation.generation;
            let may_repeat =
                || self.view.silo(generation).is_none() && self.view.is_gone(generation);
            row.status != SiloStatus::Dead && (self.is_taken(row) || !newer && may_repeat())
        });
        lost.extend(made_since.map(|row| SiloRow { status: SiloStatus::Dead, ..row.clone() }));
        // The living are written first: nobody who lives is missing when the new lineage begins.
        lost.sort_by_key(|row| core::cmp::Reverse((row.status, row.incarnation.generation)));
        lost
    }

    /// Notes which counters moved. A gap between reads counts as one period at most: while nobody
    /// could read, nobody could beat either.
    fn count_beats(&mut self, asked: Moment, table: &Table) {
        let passed = asked.since(self.asked).min(HEARTBEAT_PERIOD);
        let before = core::mem::take(&mut self.beats);
        self.beats = table
            .rows
            .iter()
            .map(|row| {
                let generation = row.row.incarnation.generation;
                let counter = row.heartbeat;
                let (still, moved_after) = match before.get(&generation) {
                    Some(beat) if beat.counter == counter => {
                        (beat.still + passed, beat.moved_after)
                    }
                    Some(_) => (Duration::ZERO, self.asked),
                    None => (Duration::ZERO, Moment::ZERO),
                };
                (generation, Beat { counter, still, moved_after })
            })
            .collect();
    }
}

fn put(table: &mut Table, row: &SiloRow) {
    let generation = row.incarnation.generation;
    match table.rows.iter_mut().find(|held| held.row.incarnation.generation == generation) {
        Some(held) => held.row = row.clone(),
        None => table.rows.push(TableRow { row: row.clone(), heartbeat: 0 }),
    }
}

/// Whether two views list the same incarnations in the same states, both by generation.
fn is_same(one: &[SiloRow], other: &[SiloRow]) -> bool {
    let is_same =
        |(a, b): (&SiloRow, &SiloRow)| a.incarnation == b.incarnation && a.status == b.status;
    one.len() == other.len() && one.iter().zip(other).all(is_same)
}
