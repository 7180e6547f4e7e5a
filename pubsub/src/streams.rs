//! What a silo's streams share: policies, filters, implicit consumers, and the subscriber check.
//!
//! Built once, before the silo starts, and the same on all silos of a cluster.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures_channel::oneshot;
use siloring_core::address::{Address, AddressHash};
use siloring_core::body::Body;
use siloring_core::ids::{MethodId, ShardIndex};
use siloring_core::limits::CHECK_ENTRIES;
use siloring_core::outcome::DeliveryFailure;
use siloring_core::ports::registry::{RegistryHint, SetVersion};
use siloring_core::schema::{Message, Schema};
use siloring_core::versions;
use siloring_runtime::grain::{EventMethod, Grain};
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;
use siloring_runtime::host::HostFactory;

use crate::agent::Agent;
use crate::check::{CheckCache, CheckWriter, Liveness};
use crate::id::parts;
use crate::owner::StreamOwner;
use crate::policy::StreamPolicy;
use crate::publish::stopped;
use crate::shard::{ShardStreams, StreamUsage};

/// What an owner says of its stream's consumers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Set {
    pub(crate) version: SetVersion,
    pub(crate) live: u32,
    pub(crate) has_owned: bool,
}

type Wants = Arc<dyn Fn(Schema, &Body, &str) -> bool + Send + Sync>;

/// A grain type whose every grain consumes the stream of its key.
#[derive(Clone, Debug)]
pub(crate) struct Implicit {
    pub(crate) kind: &'static str,
    pub(crate) handler: MethodId,
}

/// Settings of a silo's streams. See [`Streams`].
#[derive(Clone, Default)]
pub struct StreamsBuilder {
    policies: BTreeMap<String, StreamPolicy>,
    implicit: BTreeMap<String, Vec<Implicit>>,
    filters: BTreeMap<String, Wants>,
    routed_kinds: BTreeSet<String>,
    check_entries: Option<usize>,
    #[cfg(feature = "planted")]
    planted: crate::planted::Planted,
}

impl fmt::Debug for StreamsBuilder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StreamsBuilder")
            .field("policies", &self.policies)
            .field("implicit", &self.implicit)
            .field("filters", &self.filters.keys().collect::<Vec<_>>())
            .field("routed_kinds", &self.routed_kinds)
            .finish_non_exhaustive()
    }
}

impl StreamsBuilder {
    /// Sets how the streams of a namespace treat their consumers.
    pub fn policy(&mut self, namespace: impl Into<String>, policy: StreamPolicy) {
        self.policies.insert(namespace.into(), policy);
    }

    /// Makes each grain of `G` a consumer of the stream of the namespace that has its key.
    pub fn implicit<G: Grain, M: Message>(
        &mut self,
        namespace: impl Into<String>,
        handler: EventMethod<G, M>,
    ) {
        let implicit = Implicit { kind: G::TYPE, handler: handler.id };
        self.implicit.entry(namespace.into()).or_default().push(implicit);
    }

    /// Adds a filter that subscriptions may name, as `name` or `name:argument`: an event goes to
    /// such a consumer only if `wants` says so. An event of an older version is looked at as an
    /// `M`; those of other types pass.
    pub fn filter<M: Message>(
        &mut self,
        name: impl Into<String>,
        wants: impl Fn(&rkyv::Archived<M>, &str) -> bool + Send + Sync + 'static,
    ) {
        let erased = move |schema: Schema, body: &Body, argument: &str| {
            let wants = |event: &Body| event.access::<M>().map_or(true, |it| wants(it, argument));
            if schema == M::SCHEMA {
                return wants(body);
            }
            // What cannot be read here is the consumer's to refuse.
            let taken_up = versions::taken_up(body.clone(), schema, M::SCHEMA, M::OLDER);
            taken_up.map_or(true, |event| wants(&event))
        };
        self.filters.insert(name.into(), Arc::new(erased));
    }

    /// Lets deliveries to hubs of the kind take the stream leg.
    pub fn stream_routed_kind(&mut self, kind: impl Into<String>) {
        self.routed_kinds.insert(kind.into());
    }

    /// Sets how many streams each shard's part of the subscriber check holds: 64 bytes each. One
    /// that has no room is [`Liveness::Unknown`].
    pub const fn check_entries(&mut self, count: usize) {
        self.check_entries = Some(count);
    }

    /// Plants a defect.
    #[cfg(feature = "planted")]
    pub const fn planted(&mut self, defect: crate::planted::Planted) {
        self.planted = defect;
    }

    /// The streams of a silo with so many shards.
    pub fn build(self, shards: u16) -> Arc<Streams> {
        let (check, writers) = CheckCache::new(shards, self.check_entries.unwrap_or(CHECK_ENTRIES));
        Arc::new(Streams {
            settings: self,
            check,
            writers: Mutex::new(writers.into_iter().map(Some).collect()),
        })
    }
}

/// The streams of one silo: shared by its shards and the surrounding program.
pub struct Streams {
    settings: StreamsBuilder,
    check: Arc<CheckCache>,
    /// Guards the writers until each shard has taken its own, once.
    writers: Mutex<Vec<Option<CheckWriter>>>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Streams({:?})", self.settings)
    }
}

impl Streams {
    /// The grain types that every silo hosts for them.
    pub fn hosts() -> [HostFactory; 2] {
        [HostFactory::of::<StreamOwner>(), HostFactory::of::<Agent>()]
    }

    /// Begins what the streams of a silo do by themselves, on each of its shards.
    ///
    /// # Errors
    /// If the silo has stopped.
    pub fn start(handle: &Handle) -> Result<(), DeliveryFailure> {
        (0..handle.shards())
            .map(ShardIndex)
            .try_for_each(|shard| handle.spawn_on(shard, crate::shard::run))
    }

    /// Somebody may have changed subscriptions in the store: an operator, or another silo.
    pub fn hinted(handle: &Handle, hint: RegistryHint) {
        let tell = |shard| {
            let tell = move || async move { Here::extension::<ShardStreams>().hinted(hint) };
            // A hint that is lost is made up for by the next one.
            drop(handle.spawn_on(shard, tell));
        };
        match hint {
            RegistryHint::Stream(stream) => tell(ShardIndex::of(stream.0, handle.shards())),
            RegistryHint::Everything => (0..handle.shards()).map(ShardIndex).for_each(tell),
        }
    }

    /// What a shard keeps of streams at present.
    ///
    /// # Errors
    /// If the shard takes no more mail.
    ///
    /// # Cancel safety
    /// Dropped, it has no effect.
    pub async fn usage(handle: &Handle, shard: ShardIndex) -> Result<StreamUsage, DeliveryFailure> {
        let (tell, heard) = oneshot::channel();
        handle.spawn_on(shard, move || async move {
            // Whoever asked may have stopped waiting.
            drop(tell.send(Here::extension::<ShardStreams>().usage()));
        })?;
        heard.await.map_err(|oneshot::Canceled| stopped())
    }

    /// Whether anybody subscribes to the stream, as far as this silo knows. From any thread; takes
    /// no lock, makes no call, allocates nothing.
    pub fn has_live_subscriber(&self, stream: &Address) -> Liveness {
        self.check.check(stream.hash())
    }

    #[cfg(feature = "planted")]
    pub(crate) const fn planted(&self) -> crate::planted::Planted {
        self.settings.planted
    }

    pub(crate) fn check(&self, stream: AddressHash) -> Liveness {
        self.check.check(stream)
    }

    pub(crate) fn take_writer(&self, shard: ShardIndex) -> Option<CheckWriter> {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.get_mut(usize::from(shard.0))?.take()
    }

    pub(crate) fn policy_of(&self, stream: &Address) -> StreamPolicy {
        let namespace = parts(stream).map(|(namespace, _)| namespace);
        namespace
            .and_then(|namespace| self.settings.policies.get(namespace))
            .copied()
            .unwrap_or_default()
    }

    /// Who consumes the stream without a subscription: addresses and handlers.
    pub(crate) fn implicit_of(&self, stream: &Address) -> Vec<(Address, MethodId)> {
        let Some((namespace, key)) = parts(stream) else { return Vec::new() };
        let implicit = self.settings.implicit.get(namespace).into_iter().flatten();
        let made = implicit.map(|i| Address::of(i.kind, key).map(|address| (address, i.handler)));
        made.filter_map(Result::ok).collect()
    }

    /// Whether a filter, as a row names it, wants an event. A filter that this silo does not know
    /// wants everything: a consumer is never starved by a roll.
    pub(crate) fn wants(&self, filter: &str, schema: Schema, body: &Body) -> bool {
        let (name, argument) = filter.split_once(':').unwrap_or((filter, ""));
        let known = self.settings.filters.get(name);
        known.is_none_or(|wants| wants(schema, body, argument))
    }

    pub(crate) fn is_stream_routed(&self, kind: &str) -> bool {
        self.settings.routed_kinds.contains(kind)
    }
}
