//! Subscriptions and dead letters of one cluster, in memory.

use std::collections::BTreeMap;

use siloring_core::limits::STORE_GROUP_BYTES_MAX;
use siloring_core::ports::registry::{DeadLetter, SetVersion, Subscription};
use siloring_core::ports::store::{StoreAnswer, StoreError, StoreResult};
use siloring_core::{Address, Generation, ViewNumber};

/// Their rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    /// The newest version.
    version: SetVersion,
    subscriptions: BTreeMap<(Address, String), Subscription>,
    /// By stream, in the order in which they came.
    letters: BTreeMap<Address, Vec<DeadLetter>>,
}

impl Registry {
    pub(super) fn load(&self, stream: &Address) -> StoreResult {
        let from = (stream.clone(), String::new());
        let ours = self.subscriptions.range(from..).take_while(|((it, _), _)| it == stream);
        self.answer(ours.map(|(_, row)| row.clone()).collect())
    }

    pub(super) fn list(&self, after: Option<&(Address, String)>, limit: u32) -> StoreResult {
        let is_behind = |key: &&(Address, String)| after.is_none_or(|after| *key > after);
        let rows = self.subscriptions.iter().filter(|(key, _)| is_behind(key));
        self.answer(rows.take(limit as usize).map(|(_, row)| row.clone()).collect())
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a store answers with")]
    fn answer(&self, rows: Vec<Subscription>) -> StoreResult {
        Ok(StoreAnswer::Subscriptions { rows, version: self.version })
    }

    pub(super) fn write(
        &mut self,
        row: &Subscription,
        expected: Option<SetVersion>,
    ) -> StoreResult {
        let key = (row.stream.clone(), row.key.clone());
        if self.subscriptions.get(&key).map(|held| held.version) != expected {
            return Err(StoreError::Conflict);
        }
        let version = self.mint();
        self.subscriptions.insert(key, Subscription { version, ..row.clone() });
        Ok(StoreAnswer::Registered(version))
    }

    pub(super) fn remove(
        &mut self,
        stream: &Address,
        key: &str,
        owner: Option<Generation>,
        version: SetVersion,
    ) -> StoreResult {
        let key = (stream.clone(), key.to_owned());
        let held = self.subscriptions.get(&key);
        if held.is_none_or(|held| (held.owner, held.version) != (owner, version)) {
            return Err(StoreError::Conflict);
        }
        self.subscriptions.remove(&key);
        Ok(StoreAnswer::Registered(self.mint()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a store answers with")]
    pub(super) fn sweep(&mut self, gone: &[Generation], view: ViewNumber) -> StoreResult {
        let before = self.subscriptions.len();
        let is_gone = |row: &Subscription| row.owner.is_some_and(|owner| gone.contains(&owner));
        self.subscriptions.retain(|_, row| !(is_gone(row) && row.view <= view));
        let count = (before - self.subscriptions.len()) as u64;
        if count > 0 {
            self.mint();
        }
        Ok(StoreAnswer::Swept { count })
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a store answers with")]
    pub(super) fn write_letter(&mut self, letter: &DeadLetter) -> StoreResult {
        let key = |letter: &DeadLetter| (letter.key.clone(), letter.origin, letter.number);
        let letters = self.letters.entry(letter.stream.clone()).or_default();
        if letters.iter().all(|held| key(held) != key(letter)) {
            letters.push(letter.clone());
        }
        Ok(StoreAnswer::Done)
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a store answers with")]
    pub(super) fn read_letters(&self, stream: &Address, limit: u32) -> StoreResult {
        let letters = self.letters.get(stream).map_or(&[][..], Vec::as_slice);
        let newest = letters.iter().rev().take(limit as usize).cloned();
        Ok(StoreAnswer::DeadLetters(newest_last(newest)))
    }

    fn mint(&mut self) -> SetVersion {
        self.version = SetVersion(self.version.0 + 1);
        self.version
    }
}

/// Of letters that come newest first, those whose bodies fit an answer; newest last.
fn newest_last(newest_first: impl Iterator<Item = DeadLetter>) -> Vec<DeadLetter> {
    let mut bytes = 0;
    let fitting = newest_first.take_while(|letter| {
        bytes += letter.body.len();
        bytes <= STORE_GROUP_BYTES_MAX
    });
    let mut letters: Vec<DeadLetter> = fitting.collect();
    letters.reverse();
    letters
}
