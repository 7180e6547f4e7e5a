//! Rebuilding spans from what the living silos hold.
//!
//! The asker asks every shard of every Active and Draining silo of its view for what it holds
//! there: activations, registrations in flight, claims, tombstones. The spans are served only when
//! all have answered.
//!
//! # The barrier
//! A shard answers in the asker's view only, and believes a grant only if it comes in its own view.
//! So from its answer on nobody but the asker can register anything there with it, and an answer
//! stays good while views follow each other and leave the span with the asker. After a jump over
//! views, in which the span may have been another's, all are asked anew.
//!
//! # Silence
//! Asked again every [`DIRECTORY_RESEND_AFTER`]; after [`RECOVERY_RELAY_AFTER`] also through a
//! third silo; after [`RECOVERY_ACCUSE_AFTER`], and again after each further one, the silo is
//! accused. Silence counts across views: a busy membership must not shield a silent silo.
//!
//! Bound: what the living silos hold in the spans; each answer's piece is at most
//! the configured number of items.

use std::collections::BTreeMap;

use siloring_core::event::Event;
use siloring_core::limits::{DIRECTORY_RESEND_AFTER, RECOVERY_ACCUSE_AFTER, RECOVERY_RELAY_AFTER};
use siloring_core::{Endpoint, Generation, Moment, ShardIndex};

use super::DirectoryOutput;
use super::defect::{Defect, Planted};
use super::message::{Ask, Item, ItemState, Rest};
use super::span::{Key, Span, inside};
use super::step::{Caller, Step, Succession};

/// One piece of an answer as it came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) recovery: u64,
    pub(super) after: Option<Key>,
    pub(super) items: Vec<Item>,
    pub(super) rest: Rest,
}

/// A recovery that has all its answers.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) spans: Vec<Span>,
    pub(super) items: Vec<Item>,
}

/// The recoveries under way.
#[derive(Debug, Default)]
pub(super) struct Recoveries {
    open: BTreeMap<u64, Recovery>,
    last: u64,
    /// Shards that were asked and have not answered, in whatever view.
    silent: BTreeMap<Endpoint, Silence>,
}

#[derive(Debug)]
struct Recovery {
    spans: Vec<Span>,
    /// Who has not answered whole.
    missing: BTreeMap<Endpoint, Missing>,
    items: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    after: Option<Key>,
    asked: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Moment,
    accuse_at: Moment,
}

impl Recoveries {
    /// Begins to recover `spans`.
    pub(super) fn begin(&mut self, step: &mut Step<'_>, spans: Vec<Span>) {
        self.last += 1;
        let (id, asked) = (self.last, step.now);
        let missing = holders(step)
            .into_iter()
            .map(|endpoint| (endpoint, Missing { after: None, asked }))
            .collect();
        let recovery = Recovery { spans, missing, items: Vec::new() };
        step.event(Event::RangeRecovering { view: step.view.number() });
        for endpoint in recovery.missing.keys() {
            self.silent.entry(*endpoint).or_insert_with(|| Silence::from(step.now));
            step.ask(*endpoint, recovery.question(id, *endpoint));
        }
        self.open.insert(id, recovery);
    }

    /// A shard answers. With the last answer the recovery is done.
    pub(super) fn handle_answer(
        &mut self,
        step: &mut Step<'_>,
        caller: Caller,
        answer: Answer,
    ) -> Option<Recovered> {
        let recovery = self.open.get_mut(&answer.recovery)?;
        let missing = recovery.missing.get_mut(&caller.endpoint)?;
        if missing.after != answer.after {
            return None;
        }
        self.silent.remove(&caller.endpoint);
        let last = answer.items.last().map(|item| item.key);
        recovery.items.extend(answer.items);
        if let (Rest::More, Some(after)) = (answer.rest, last) {
            *missing = Missing { after: Some(after), asked: step.now };
            let question = recovery.question(answer.recovery, caller.endpoint);
            match caller.via {
                None => step.ask(caller.endpoint, question),
                Some(third) => step.ask_through(third, caller.endpoint, question),
            }
            return None;
        }
        recovery.missing.remove(&caller.endpoint);
        let early = step.planted.has(Defect::OpenBeforeAllAnswers);
        self.finish_if(answer.recovery, early)
    }

    fn finish_if(&mut self, id: u64, early: bool) -> Option<Recovered> {
        let done = self.open.get(&id).is_some_and(|r| early || r.missing.is_empty());
        let Recovery { spans, items, .. } = done.then(|| self.open.remove(&id)).flatten()?;
        Some(Recovered { spans, items })
    }

    /// A newer view: `acquiring` is what is still to come in. Whoever is gone need not answer; what
    /// that completes is returned.
    pub(super) fn change_view(
        &mut self,
        step: &mut Step<'_>,
        acquiring: &[Span],
        change: Succession,
    ) -> Vec<Recovered> {
        self.silent.retain(|endpoint, _| step.may_hold(endpoint.silo));
        if change == Succession::Jump {
            for recovery in core::mem::take(&mut self.open).into_values() {
                let spans = recovery.left(acquiring);
                if !spans.is_empty() {
                    self.begin(step, spans);
                }
            }
            return Vec::new();
        }
        for (id, recovery) in &mut self.open {
            recovery.spans = recovery.left(acquiring);
            recovery.missing.retain(|endpoint, _| step.may_hold(endpoint.silo));
            for missing in recovery.missing.values_mut() {
                missing.asked = step.now;
            }
            for endpoint in recovery.missing.keys() {
                step.ask(*endpoint, recovery.question(*id, *endpoint));
            }
        }
        self.open.retain(|_, recovery| !recovery.spans.is_empty());
        let ids: Vec<_> = self.open.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.finish_if(id, false)).collect()
    }

    /// Asks again, directly and through third silos, and accuses.
    pub(super) fn tick(&mut self, step: &mut Step<'_>) {
        for (id, recovery) in &mut self.open {
            for endpoint in recovery.missing.keys().copied().collect::<Vec<_>>() {
                let missing = recovery.missing.get_mut(&endpoint).expect("listed above");
                if missing.asked + DIRECTORY_RESEND_AFTER > step.now {
                    continue;
                }
                missing.asked = step.now;
                step.ask(endpoint, recovery.question(*id, endpoint));
                let silence =
                    self.silent.entry(endpoint).or_insert_with(|| Silence::from(step.now));
                if silence.since + RECOVERY_RELAY_AFTER <= step.now
                    && let Some(third) = third(step, endpoint.silo)
                {
                    step.ask_through(third, endpoint, recovery.question(*id, endpoint));
                }
            }
        }
        for (endpoint, silence) in &mut self.silent {
            if silence.accuse_at <= step.now {
                silence.accuse_at = step.now + RECOVERY_ACCUSE_AFTER;
                if endpoint.silo != step.me.silo {
                    step.emit(DirectoryOutput::Accuse(endpoint.silo));
                }
            }
        }
        self.forget_silence();
    }

    /// Silence counts only while somebody is waited for.
    fn forget_silence(&mut self) {
        let open = &self.open;
        let awaited = |endpoint: &Endpoint| open.values().any(|r| r.missing.contains_key(endpoint));
        self.silent.retain(|endpoint, _| awaited(endpoint));
    }

    pub(super) fn next_deadline(&self) -> Moment {
        let asked = self.open.values().flat_map(|recovery| recovery.missing.values());
        let ask = asked.map(|missing| missing.asked + DIRECTORY_RESEND_AFTER).min();
        let accuse = self.silent.values().map(|silence| silence.accuse_at).min();
        ask.into_iter().chain(accuse).min().unwrap_or(Moment::NEVER)
    }

    /// The spans being recovered.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.open.values().flat_map(|recovery| recovery.spans.iter().copied())
    }
}

impl Recovery {
    fn question(&self, recovery: u64, endpoint: Endpoint) -> Ask {
        let after = self.missing.get(&endpoint).and_then(|missing| missing.after);
        Ask::RecoverAsk { recovery, spans: self.spans.clone(), after }
    }

    fn left(&self, acquiring: &[Span]) -> Vec<Span> {
        self.spans.iter().flat_map(|span| inside(*span, acquiring)).collect()
    }
}

impl Silence {
    fn from(now: Moment) -> Self {
        Self { since: now, accuse_at: now + RECOVERY_ACCUSE_AFTER }
    }
}

/// Every shard that may hold something in this view.
fn holders(step: &Step<'_>) -> Vec<Endpoint> {
    let silos = step.view.living().filter(|row| step.may_hold(row.incarnation.generation));
    silos
        .flat_map(|row| {
            let silo = row.incarnation.generation;
            (0..row.shards).map(move |shard| Endpoint { silo, shard: ShardIndex(shard) })
        })
        .collect()
}

/// A shard of some silo between us and `target`.
fn third(step: &mut Step<'_>, target: Generation) -> Option<Endpoint> {
    let others: Vec<_> = step
        .view
        .living()
        .map(|row| row.incarnation.generation)
        .filter(|silo| step.may_hold(*silo) && *silo != target && *silo != step.me.silo)
        .collect();
    let silo = *step.rng.choice(&others)?;
    Some(Endpoint { silo, shard: ShardIndex(0) })
}

/// The next piece of an answer, out of everything held behind the last key told.
pub(super) fn piece(mut held: Vec<Item>, items_max: usize) -> (Vec<Item>, Rest) {
    held.sort_by_key(|item| item.key);
    let Some(last) = held.get(items_max - 1).map(|item| item.key) else {
        return (held, Rest::None);
    };
    // What is known of one key stays together, a handful at most: the next piece begins behind it.
    let cut = held.partition_point(|item| item.key <= last);
    let rest = if cut < held.len() { Rest::More } else { Rest::None };
    held.truncate(cut);
    (held, rest)
}

/// What the answers say of one address: who holds it, and who is mistaken.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) winner: Item,
    pub(super) losers: Vec<Item>,
}

/// Judges all items of one key: the newest number wins; what is only in flight comes last.
pub(super) fn judge(items: &[Item], planted: Planted) -> Option<Verdict> {
    let rank = |item: &Item| {
        let firm = match item.state {
            ItemState::Registering | ItemState::Claiming => 0,
            ItemState::Registered | ItemState::Claimed => 1,
            // A closed hub and a claim of the same number: it was closed after it was claimed.
            ItemState::Released { .. } => 2,
        };
        (firm.min(1), item.place.number, firm, item.place.endpoint)
    };
    let winner = if planted.has(Defect::OldestWins) {
        *items.iter().min_by_key(|item| rank(item))?
    } else {
        *items.iter().max_by_key(|item| rank(item))?
    };
    let held = |item: &&Item| {
        matches!(item.state, ItemState::Registered | ItemState::Claimed)
            && item.place.endpoint != winner.place.endpoint
    };
    Some(Verdict { winner, losers: items.iter().filter(held).copied().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::place::Place;
    use siloring_core::{ActivationNumber, ViewNumber};

    fn item(key: u128, silo: u64, view: u64, state: ItemState) -> Item {
        let endpoint = Endpoint { silo: Generation(silo), shard: ShardIndex(0) };
        let number = ActivationNumber { view: ViewNumber(view), counter: 1 };
        Item { key: Key(key), place: Place { endpoint, number }, attempt: 1, state }
    }

    #[test]
    fn the_newest_view_wins_and_the_loser_is_named() {
        let old = item(1, 1, 4, ItemState::Registered);
        let new = item(1, 2, 6, ItemState::Registered);
        let late = item(1, 3, 9, ItemState::Registering);
        let verdict = judge(&[old, late, new], Planted::NONE).unwrap();
        assert_eq!(verdict, Verdict { winner: new, losers: vec![old] });
    }

    #[test]
    fn a_tombstone_ends_the_claim_of_its_own_number_and_no_newer_one() {
        let claim = item(1, 1, 4, ItemState::Claimed);
        let closed = item(1, 2, 4, ItemState::Released { left_ms: 5 });
        let newer = item(1, 3, 5, ItemState::Claimed);
        assert_eq!(judge(&[claim, closed], Planted::NONE).unwrap().winner, closed);
        assert_eq!(
            judge(&[closed, newer], Planted::NONE).unwrap(),
            Verdict { winner: newer, losers: vec![] }
        );
    }

    #[test]
    fn an_answer_is_cut_between_keys_never_inside_one() {
        let all = |keys: &[u128]| {
            keys.iter().map(|key| item(*key, 1, 1, ItemState::Registered)).collect::<Vec<_>>()
        };
        assert_eq!(piece(all(&[3, 1, 2]), 2), (all(&[1, 2]), Rest::More));
        assert_eq!(piece(all(&[1, 2, 2, 3]), 2), (all(&[1, 2, 2]), Rest::More));
        assert_eq!(piece(all(&[1, 2, 2]), 2), (all(&[1, 2, 2]), Rest::None));
        assert_eq!(piece(all(&[1]), 2), (all(&[1]), Rest::None));
        assert_eq!(piece(Vec::new(), 1), (Vec::new(), Rest::None));
    }
}
