//! Who consumes a stream: the registry's rows, judged in the view, and who wants to hear of them.
//!
//! Every write of a row is conditional on the version that was read; a conflict is read again. A
//! write whose answer was lost is looked for by its operation's number, never repeated blindly.

use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use siloring_core::address::Address;
use siloring_core::body::Body;
use siloring_core::event::Event;
use siloring_core::hash::stable_u64;
use siloring_core::ids::{ActivationNumber, Generation, MethodId, ShardIndex, ViewNumber};
use siloring_core::limits::{
    REGISTRY_READ_AGAIN, REGISTRY_TRIES_MAX, STREAM_WATCHERS_MAX, SUBSCRIPTION_FILTER_BYTES_MAX,
    SUBSCRIPTION_KEY_BYTES_MAX, SUBSCRIPTIONS_MAX,
};
use siloring_core::outcome::{DeliveryFailure, IndeterminateKind, RejectedKind};
use siloring_core::ports::registry::{DeadLetter, SetVersion, Subscription};
#[cfg(not(feature = "planted"))]
use siloring_core::ports::store::StoreResult;
use siloring_core::ports::store::{StoreAnswer, StoreError, StoreRequest};
use siloring_core::schema::{Layout, Schema, mix};
use siloring_core::time::Moment;
use siloring_core::view::View;
use siloring_runtime::ctx::{Ctx, Sleep};
use siloring_runtime::grain::ShardKey;
use siloring_runtime::here::Here;

use crate::agent::{Agent, SET_CHANGED_SPEC};
use crate::few::Few;
use crate::message::{
    Listed, SetChanged, Subscribe, Subscribed, Unsubscribe, WireEpoch, WireToken,
};
use crate::owner::Owner;
use crate::planted::is_planted;
use crate::queue::{ConsumerKey, Letter};
use crate::shard::ShardStreams;
use crate::streams::{Set, Streams};

/// Why a subscription was not made, or not ended. Travels as the owner's answer.
#[derive(rkyv::Archive, rkyv::Serialize, rkyv::Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Another live process has the key.
    Taken(u64),
    /// The row is no longer this subscriber's.
    Superseded,
    /// Too long a key, too many subscriptions, an address that is none.
    Invalid(String),
}

impl Layout for Refusal {
    const LAYOUT: u64 = mix(stable_u64(b"Taken u64 Superseded Invalid String"), 1);
}

/// A consumer of the stream.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) row: Subscription,
    /// Declared by a grain type: there is no row.
    pub(crate) is_implicit: bool,
    pub(crate) consumer: ConsumerKey,
}

/// The consumers of a stream.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) by_key: Few<Rc<str>, Box<Member>>,
    /// How many of them are hubs, and how many have a filter: asked for at each publish.
    owned_count: usize,
    filtered_count: usize,
    keys: Few<ConsumerKey, Rc<str>>,
    /// Rows of silos that are gone: what a new subscription of the key replaces.
    dead: Few<String, SetVersion>,
    /// Rows of hubs that are gone whose removal is under way: no consumers any more, and if they
    /// are wanted again they must become other rows, which the removal does not hit.
    going: Few<String, SetVersion>,
    pub(crate) version: SetVersion,
    /// The view in which the rows were last judged.
    judged: ViewNumber,
    /// The lineage of views to which the versions belong.
    pub(crate) lineage: u16,
    /// Silos that hear of changes, and what they know.
    pub(crate) watchers: Few<Generation, SetVersion>,
}

impl Members {
    pub(crate) fn set(&self) -> Set {
        let live = u32::try_from(self.by_key.len()).expect("bounded by SUBSCRIPTIONS_MAX");
        Set { version: self.version, live, has_owned: self.owned_count > 0 }
    }

    fn add(&mut self, member: Member) {
        self.owned_count += usize::from(member.row.owner.is_some());
        self.filtered_count += usize::from(!member.row.filter.is_empty());
        let key: Rc<str> = member.row.key.as_str().into();
        self.keys.insert(member.consumer, Rc::clone(&key));
        self.by_key.insert(key, Box::new(member));
    }

    fn take(&mut self, key: &str) -> Option<Member> {
        let member = self.by_key.remove(key)?;
        self.owned_count -= usize::from(member.row.owner.is_some());
        self.filtered_count -= usize::from(!member.row.filter.is_empty());
        self.keys.remove(&member.consumer);
        Some(*member)
    }

    /// A silo wants to hear of changes from now on; it knows this version.
    pub(crate) fn watch(&mut self, silo: u64, knows: u64) {
        if self.watchers.len() < STREAM_WATCHERS_MAX {
            // The answer to its publish brings it up to date.
            let knows = self.version.max(SetVersion(knows));
            self.watchers.insert(Generation(silo), knows);
        }
    }

    /// Consumers whose filter does not want the event.
    pub(crate) fn uninterested(
        &self,
        streams: &Streams,
        schema: Schema,
        body: &Body,
    ) -> Vec<ConsumerKey> {
        if self.filtered_count == 0 {
            return Vec::new();
        }
        let filtered = self.by_key.values().filter(|member| !member.row.filter.is_empty());
        let not = filtered.filter(|member| !streams.wants(&member.row.filter, schema, body));
        not.map(|member| member.consumer).collect()
    }

    pub(crate) fn of(&self, consumer: ConsumerKey) -> Option<&Member> {
        self.by_key.get(self.keys.get(&consumer)?).map(|member| &**member)
    }
}

/// Whether a row's owner is gone in a view that could know it.
fn is_dead(row: &Subscription, view: &View, streams: &Streams) -> bool {
    if is_planted!(streams, RowsWithoutIncarnation) {
        return false;
    }
    if is_planted!(streams, JudgedInAnyView) {
        return row.owner.is_some_and(|owner| view.silo(owner).is_none_or(|_| view.is_gone(owner)));
    }
    row.owner.is_some_and(|owner| view.number() >= row.view && view.is_gone(owner))
}

pub(crate) fn unavailable(error: &StoreError) -> DeliveryFailure {
    DeliveryFailure::rejected(RejectedKind::RegistryUnavailable, error.to_string())
}

impl Owner {
    /// Asks the store.
    #[cfg(not(feature = "planted"))]
    pub(crate) async fn ask(&self, request: StoreRequest) -> StoreResult {
        Here::ask(request).await
    }

    /// Reads the stream's rows and takes them up.
    ///
    /// A reading may be older than a write of this owner that was answered meanwhile: it would take
    /// away who has just subscribed. Versions tell, and it is read again.
    pub(crate) async fn load(&self) -> Result<(), DeliveryFailure> {
        if self.is_of_an_earlier_store() {
            self.tell_what_was_lost().await?;
        }
        for _ in 0..REGISTRY_TRIES_MAX {
            let known = self.members.borrow().version;
            let (rows, version) = self.read().await?;
            if version < known && self.may_tell_again() {
                self.tell_what_was_lost().await?;
                continue;
            }
            let is_believed = is_planted!(self.streams, RegistryTrusted);
            if version >= self.members.borrow().version || is_believed {
                self.take_up(rows, version);
                return Ok(());
            }
        }
        let detail = "the registry shows less than it has answered for";
        Err(DeliveryFailure::rejected(RejectedKind::RegistryUnavailable, detail))
    }

    async fn read(&self) -> Result<(Vec<Subscription>, SetVersion), DeliveryFailure> {
        let request = StoreRequest::LoadSubscriptions { stream: self.stream.clone() };
        let answer = self.ask(request).await.map_err(|error| unavailable(&error))?;
        let StoreAnswer::Subscriptions { rows, version } = answer else {
            unreachable!("a load of subscriptions is answered with them");
        };
        Ok((rows, version))
    }

    fn take_up(&self, rows: Vec<Subscription>, version: SetVersion) {
        let view = Here::view();
        let listed: BTreeSet<String> = rows.iter().map(|row| row.key.clone()).collect();
        let gone: Vec<Rc<str>> = {
            let members = self.members.borrow();
            let stays = |key: &str, m: &Member| m.is_implicit || listed.contains(key);
            members.by_key.iter().filter(|(k, m)| !stays(k, m)).map(|(k, _)| Rc::clone(k)).collect()
        };
        for key in &gone {
            self.remove(key, "its subscription was removed");
        }
        let (dead, rows): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| is_dead(row, &view, &self.streams));
        self.members.borrow_mut().dead =
            dead.into_iter().map(|row| (row.key, row.version)).collect();
        for row in rows {
            let going = self.members.borrow().going.get(&row.key).copied();
            if going != Some(row.version) {
                self.admit(row, None, false);
            }
        }
        for (consumer, handler) in self.streams.implicit_of(&self.stream) {
            let row = Subscription {
                stream: self.stream.clone(),
                key: format!("implicit {}", consumer.kind().0),
                consumer,
                handler,
                owner: None,
                view: view.number(),
                filter: String::new(),
                operation: 0,
                version: SetVersion(0),
            };
            self.admit(row, None, true);
        }
        let mut members = self.members.borrow_mut();
        members.version = members.version.max(version);
        members.judged = view.number();
    }

    /// Adds a consumer, or changes the row of one that is there. Says where it begins.
    pub(crate) fn admit(
        &self,
        row: Subscription,
        from: Option<u64>,
        is_implicit: bool,
    ) -> (u64, u64) {
        let mut members = self.members.borrow_mut();
        let mut queue = self.queue.borrow_mut();
        if let Some(before) = members.take(&row.key) {
            // A hub's place is no grain's: what their failures mean differs.
            if from.is_none() && before.row.owner.is_some() == row.owner.is_some() {
                members.add(Member { row, ..before });
                return (queue.next_position(), 0);
            }
            let detail = "the consumer began anew elsewhere in the stream";
            let failure = DeliveryFailure::rejected(RejectedKind::NoSubscriber, detail);
            queue.detach(before.consumer, &failure);
        }
        let (consumer, position, missed) = queue.attach(&row.key, row.owner.is_some(), from);
        members.dead.remove(&row.key);
        members.add(Member { row, is_implicit, consumer });
        (position, missed)
    }

    fn remove(&self, key: &str, why: &str) {
        let mut members = self.members.borrow_mut();
        let Some(member) = members.take(key) else { return };
        let view = Here::view().number();
        let failure = DeliveryFailure::rejected_in(RejectedKind::NoSubscriber, view, why);
        self.queue.borrow_mut().detach(member.consumer, &failure);
    }

    /// Drops consumers whose silo is gone in the newest view.
    pub(crate) fn judge(&self) {
        let view = Here::view();
        let dead: Vec<(String, SetVersion)> = {
            let mut members = self.members.borrow_mut();
            if members.judged == view.number() {
                return;
            }
            members.judged = view.number();
            members.watchers.retain(|silo, _| !view.is_gone(*silo));
            let rows = members.by_key.values().map(|member| &member.row);
            let dead = rows.filter(|row| is_dead(row, &view, &self.streams));
            dead.map(|row| (row.key.clone(), row.version)).collect()
        };
        for (key, version) in dead {
            self.remove(&key, "its silo is gone");
            self.members.borrow_mut().dead.insert(key, version);
        }
    }

    pub(crate) async fn subscribe(
        &self,
        wanted: Subscribe,
        until: Moment,
    ) -> Result<Result<Subscribed, Refusal>, DeliveryFailure> {
        self.judge();
        let Ok(consumer) = Address::parse(&wanted.consumer) else {
            return Ok(Err(Refusal::Invalid(format!("{:?} is no address", wanted.consumer))));
        };
        if wanted.key.is_empty() || wanted.key.len() > SUBSCRIPTION_KEY_BYTES_MAX {
            let detail = format!("a key has 1 to {SUBSCRIPTION_KEY_BYTES_MAX} bytes");
            return Ok(Err(Refusal::Invalid(detail)));
        }
        if wanted.filter.len() > SUBSCRIPTION_FILTER_BYTES_MAX {
            let detail = format!("a filter has at most {SUBSCRIPTION_FILTER_BYTES_MAX} bytes");
            return Ok(Err(Refusal::Invalid(detail)));
        }
        let from = wanted.from.as_ref().map(|token| self.position_of(token));
        for _ in 0..REGISTRY_TRIES_MAX {
            let (expected, unchanged) = match self.may_write(&wanted, &consumer) {
                Ok(found) => found,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if let (Some(version), true) = (expected, unchanged && from.is_none()) {
                let position = self.queue.borrow().next_position();
                return Ok(Ok(self.subscribed(version, position, 0)));
            }
            let row = self.row(&wanted, &consumer);
            let request = StoreRequest::WriteSubscription { row: row.clone(), expected };
            let version = match self.ask(request).await {
                Ok(StoreAnswer::Registered(version)) => version,
                Ok(_) => unreachable!("a write of a subscription is answered with its version"),
                Err(StoreError::Conflict) => {
                    self.load().await?;
                    continue;
                }
                Err(_) if is_planted!(self.streams, WriteAssumed) => row.version,
                Err(error @ StoreError::Unavailable { .. }) => {
                    match self.find(&row.key, until).await?.0 {
                        Some(known) if known.operation == row.operation => known.version,
                        Some(_) | None => return Err(unavailable(&error)),
                    }
                }
                Err(error) => return Err(unavailable(&error)),
            };
            let row = Subscription { version, ..row };
            #[cfg(feature = "planted")]
            if is_planted!(self.streams, CursorAfterAnswer) {
                return Ok(Ok(self.planted_answer(&row)));
            }
            let (position, missed) = self.admit(row, from, false);
            let mut members = self.members.borrow_mut();
            members.version = members.version.max(version);
            return Ok(Ok(self.subscribed(version, position, missed)));
        }
        let detail = "others kept changing the subscription";
        Err(DeliveryFailure::rejected(RejectedKind::Overloaded, detail))
    }

    fn position_of(&self, token: &WireToken) -> u64 {
        // Positions of an earlier owner are no longer here: all of them are missed.
        if ActivationNumber::from(&token.epoch) == self.epoch { token.position } else { 0 }
    }

    /// The version to replace, and whether the row says the same already; or who has it.
    fn may_write(
        &self,
        wanted: &Subscribe,
        consumer: &Address,
    ) -> Result<(Option<SetVersion>, bool), Refusal> {
        let members = self.members.borrow();
        let Some(member) = members.by_key.get(wanted.key.as_str()) else {
            if members.by_key.len() >= SUBSCRIPTIONS_MAX {
                return Err(Refusal::Invalid("the stream has too many subscriptions".into()));
            }
            let there = members.going.get(&wanted.key).or_else(|| members.dead.get(&wanted.key));
            return Ok((there.copied(), false));
        };
        let row = &member.row;
        let is_mine = row.owner.map(|owner| owner.0) == wanted.owner
            && (row.owner.is_some() || row.consumer == *consumer);
        if member.is_implicit {
            return Err(Refusal::Invalid("the key is that of an implicit subscription".into()));
        }
        if !is_mine && !wanted.take_over && !is_dead(row, &Here::view(), &self.streams) {
            return Err(Refusal::Taken(row.owner.map_or(0, |owner| owner.0)));
        }
        let is_same = is_mine
            && row.consumer == *consumer
            && row.handler.0 == wanted.handler
            && row.filter == wanted.filter;
        Ok((Some(row.version), is_same))
    }

    fn row(&self, wanted: &Subscribe, consumer: &Address) -> Subscription {
        Subscription {
            stream: self.stream.clone(),
            key: wanted.key.clone(),
            consumer: consumer.clone(),
            handler: MethodId(wanted.handler),
            owner: wanted.owner.map(Generation),
            view: Here::view().number(),
            filter: wanted.filter.clone(),
            operation: u128::from(Here::random()) << 64 | u128::from(Here::random()),
            version: SetVersion(0),
        }
    }

    pub(crate) fn subscribed(&self, version: SetVersion, position: u64, missed: u64) -> Subscribed {
        let from = WireToken { epoch: WireEpoch::from(self.epoch), position };
        Subscribed { version: version.0, from, missed }
    }

    /// After a write without an answer: what the registry has under the key, and its version. Until
    /// that can be read, nobody knows whether the write was made; and the owner reads its rows
    /// again in any case, also when nobody waits any more.
    async fn find(
        &self,
        key: &str,
        until: Moment,
    ) -> Result<(Option<Subscription>, SetVersion), DeliveryFailure> {
        if !is_planted!(self.streams, WritesForgotten) {
            Here::extension::<ShardStreams>().doubted(&self.stream);
        }
        loop {
            match self.read().await {
                Ok((rows, version)) => {
                    return Ok((rows.into_iter().find(|known| known.key == key), version));
                }
                Err(_) if Here::now() + REGISTRY_READ_AGAIN < until => {
                    Sleep::new(REGISTRY_READ_AGAIN).await;
                }
                Err(failure) => {
                    let detail = format!("what became of a write is unknown: {failure}");
                    return Err(DeliveryFailure::indeterminate(
                        IndeterminateKind::TimedOut,
                        detail,
                    ));
                }
            }
        }
    }

    pub(crate) async fn unsubscribe(
        &self,
        wanted: &Unsubscribe,
        until: Moment,
    ) -> Result<Result<(), Refusal>, DeliveryFailure> {
        #[cfg(feature = "planted")]
        let wanted = &self.planted_removal(wanted).await;
        let request = StoreRequest::RemoveSubscription {
            stream: self.stream.clone(),
            key: wanted.key.clone(),
            owner: wanted.owner.map(Generation),
            version: SetVersion(wanted.version),
        };
        match self.ask(request).await {
            Ok(StoreAnswer::Registered(version)) => {
                self.removed(&wanted.key, SetVersion(wanted.version), version);
                Ok(Ok(()))
            }
            Ok(_) => unreachable!("a removal is answered with the registry's version"),
            Err(StoreError::Conflict) => {
                self.load().await?;
                let members = self.members.borrow();
                // Gone already is what was asked for.
                let is_there = members.by_key.contains_key(wanted.key.as_str());
                Ok(if is_there { Err(Refusal::Superseded) } else { Ok(()) })
            }
            Err(error @ StoreError::Unavailable { .. }) => {
                let (there, newest) = self.find(&wanted.key, until).await?;
                match there {
                    Some(row) if row.version.0 == wanted.version => Err(unavailable(&error)),
                    Some(_) => Ok(Err(Refusal::Superseded)),
                    None => {
                        self.removed(&wanted.key, SetVersion(wanted.version), newest);
                        Ok(Ok(()))
                    }
                }
            }
            Err(error) => Err(unavailable(&error)),
        }
    }

    fn removed(&self, key: &str, row: SetVersion, version: SetVersion) {
        let is_that = |members: &Members| {
            members.by_key.get(key).is_some_and(|member| member.row.version == row)
        };
        if is_that(&self.members.borrow()) {
            self.remove(key, "it unsubscribed");
        }
        let mut members = self.members.borrow_mut();
        members.version = members.version.max(version);
    }

    pub(crate) fn list(&self) -> Vec<Listed> {
        let members = self.members.borrow();
        let queue = self.queue.borrow();
        let listed = members.by_key.values().map(|member| Listed {
            key: member.row.key.clone(),
            consumer: member.row.consumer.as_str().to_owned(),
            owner: member.row.owner.map(|owner| owner.0),
            filter: member.row.filter.clone(),
            version: member.row.version.0,
            backlog: queue.backlog(member.consumer),
        });
        listed.collect()
    }

    /// A delivery says that a hub is gone: its row goes, if the view that says so could know it.
    pub(crate) fn evict(self: &Rc<Self>, consumer: ConsumerKey, failure: &DeliveryFailure) {
        if is_planted!(self.streams, RowsWithoutIncarnation) {
            return;
        }
        let view = failure.view().unwrap_or_else(|| Here::view().number());
        let row = self.members.borrow().of(consumer).map(|member| member.row.clone());
        let Some(row) =
            row.filter(|row| view >= row.view || is_planted!(self.streams, JudgedInAnyView))
        else {
            return;
        };
        self.remove(&row.key, failure.detail());
        self.members.borrow_mut().going.insert(row.key.clone(), row.version);
        Here::emit(Event::SubscriberEvicted {
            stream: self.stream.clone(),
            key: row.key.clone(),
            consumer: row.consumer.clone(),
        });
        let owner = Rc::clone(self);
        Here::spawn(async move {
            let Subscription { stream, key, owner: silo, version, .. } = row;
            let name = key.clone();
            let request = StoreRequest::RemoveSubscription { stream, key, owner: silo, version };
            let answer = owner.ask(request).await;
            let mut members = owner.members.borrow_mut();
            members.going.remove(&name);
            // A row that stays is dead by derivation, and swept; one that changed is another's.
            if let Ok(StoreAnswer::Registered(version)) = answer {
                members.version = members.version.max(version);
            }
        });
    }

    /// Keeps an event that a consumer will not get.
    pub(crate) fn bury(
        self: &Rc<Self>,
        consumer: ConsumerKey,
        letter: &Letter,
        failure: &DeliveryFailure,
    ) {
        let members = self.members.borrow();
        let Some(member) = members.of(consumer) else { return };
        let letter = DeadLetter {
            stream: self.stream.clone(),
            key: member.row.key.clone(),
            consumer: member.row.consumer.clone(),
            origin: letter.origin.lane,
            number: letter.origin.number,
            attempts: letter.attempts,
            reason: failure.to_string(),
            schema: letter.schema,
            body: Bytes::copy_from_slice(letter.body.as_slice()),
            view: Here::view().number(),
        };
        let (stream, consumer) = (self.stream.clone(), letter.consumer.clone());
        let attempts = letter.attempts;
        let failure = failure.clone();
        Here::emit(Event::DeadLetterKept { stream, consumer, attempts, failure });
        let owner = Rc::clone(self);
        Here::spawn(async move {
            let mut wait = siloring_core::limits::REDELIVERY_BACKOFF_MIN;
            for _ in 0..REGISTRY_TRIES_MAX {
                let request = StoreRequest::WriteDeadLetter(letter.clone());
                if owner.ask(request).await.is_ok() {
                    return;
                }
                Sleep::new(wait).await;
                wait = (wait * 4).min(siloring_core::limits::REDELIVERY_BACKOFF_MAX);
            }
            let (stream, consumer) = (owner.stream.clone(), letter.consumer.clone());
            Here::emit(Event::DeadLetterLost { stream, consumer });
        });
    }

    pub(crate) fn told_gap(&self, consumer: ConsumerKey, missed: u64) {
        let members = self.members.borrow();
        let Some(member) = members.of(consumer) else { return };
        let (stream, consumer) = (self.stream.clone(), member.row.consumer.clone());
        Here::emit(Event::ConsumerMissedEvents { stream, consumer, missed });
    }

    /// Tells silos that publish here of a changed set.
    pub(crate) fn tell_watchers(&self, ctx: &Ctx) {
        let mut members = self.members.borrow_mut();
        let set = members.set();
        let view = Here::view();
        let hash = self.stream.hash();
        for (silo, knows) in members.watchers.iter_mut() {
            if *knows >= set.version {
                continue;
            }
            *knows = set.version;
            let Some(row) = view.silo(*silo) else { continue };
            let shard = ShardIndex::of(hash.0, row.shards);
            let key = ShardKey(siloring_core::ids::Endpoint { silo: *silo, shard });
            let wire = crate::message::WireSet {
                version: set.version.0,
                live: set.live,
                has_owned: set.has_owned,
            };
            let changed = SetChanged { stream: hash.0, set: wire };
            let agent = ctx.handle().grain::<Agent>(key);
            // A hint: whoever does not hear it is put right by the answer to its next publish.
            agent.call::<_, ()>(&SET_CHANGED_SPEC, &changed).one_way_or(drop);
        }
    }
}
