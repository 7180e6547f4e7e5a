//! Subscribing: grains and hubs as consumers, and the subscriptions of a stream as a list.
//!
//! Each subscription has a key of its subscriber's choice, unique in its stream: subscribing again
//! under it replaces, so that it may be done as often as one likes. A hub's subscription ends with
//! its process, whether or not that process can still say so; a grain's stays until it is removed.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

use futures_channel::oneshot;
use siloring_core::address::{Address, AddressError};
use siloring_core::ids::{ActivationNumber, Generation, MethodId, ShardIndex};
use siloring_core::limits::DEADLINE_DEFAULT;
use siloring_core::outcome::{CallError, DeliveryFailure};
use siloring_core::ports::registry::SetVersion;
use siloring_core::schema::Message;
use siloring_runtime::ctx::Ctx;
use siloring_runtime::grain::{EventMethod, Grain, GrainKey as _, IntoKey};
use siloring_runtime::handle::Handle;
use siloring_runtime::here::Here;
use siloring_runtime::hub::{Hub, HubError};

use crate::agent::HUB;
use crate::members::Refusal;
use crate::message::{Subscribe, Subscribed, Unsubscribe, WireEpoch, WireToken};
use crate::owner::{LIST_SPEC, SUBSCRIBE_SPEC, StreamOwner, UNSUBSCRIBE_SPEC};
use crate::publish::{Stream, Token, stopped};

/// Why a subscription was not made, or not ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// Another live subscriber has the key. Nothing was changed; take it over if it is yours.
    #[error("the key is taken by {}: use another, or take_over() if it is yours", holder(*owner))]
    Taken {
        /// The silo of the hub that has it; `None` for a grain.
        owner: Option<Generation>,
    },
    /// The subscription was replaced or removed by somebody else. Nothing was changed; this handle
    /// on it is of no use any more.
    #[error("the subscription is no longer this one: it was replaced or removed")]
    Superseded,
    /// The hub has ended. Nothing was changed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// What was asked for cannot be. Nothing was changed.
    #[error("{detail}")]
    Invalid {
        /// Why, and what is possible.
        detail: String,
    },
    /// The owner could not be asked, or could not write: `RegistryUnavailable` says that the store
    /// did not answer in time and nothing was changed, `TimedOut` that it had a write whose answer
    /// did not come. Subscribe again: it is idempotent.
    #[error(transparent)]
    Delivery(#[from] DeliveryFailure),
}

fn holder(owner: Option<Generation>) -> String {
    owner.map_or_else(|| "a grain".to_owned(), |silo| format!("silo {silo}"))
}

impl From<Refusal> for SubscribeError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Taken(0) => Self::Taken { owner: None },
            Refusal::Taken(owner) => Self::Taken { owner: Some(Generation(owner)) },
            Refusal::Superseded => Self::Superseded,
            Refusal::Invalid(detail) => Self::Invalid { detail },
        }
    }
}

impl<T: Into<Self>> From<CallError<T>> for SubscribeError {
    fn from(error: CallError<T>) -> Self {
        match error {
            CallError::Handler(refusal) => refusal.into(),
            CallError::Delivery(failure) => Self::Delivery(failure),
        }
    }
}

/// A subscription that its owner has acknowledged: every event that is taken in after it goes to
/// the consumer. It holds nothing alive; dropped, the subscription stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    stream: Address,
    key: String,
    owner: Option<Generation>,
    version: SetVersion,
    from: Option<Token>,
    missed: u64,
}

impl Subscription {
    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where the consumer began; `None` for one that was listed.
    pub const fn from(&self) -> Option<Token> {
        self.from
    }

    /// The silo of the hub that consumes; `None` for a grain.
    pub const fn owner(&self) -> Option<Generation> {
        self.owner
    }

    /// How many of the events that it asked for are no longer there: more than the stream retains,
    /// or of an earlier owner (then at least so many).
    pub const fn missed(&self) -> u64 {
        self.missed
    }
}

/// How to subscribe. See [`Stream::subscription`].
#[must_use = "nothing is subscribed until a consumer is named"]
pub struct Subscribing<M> {
    wanted: Wanted,
    event: PhantomData<fn(&M)>,
}

impl<M> fmt::Debug for Subscribing<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Subscribing({} as {:?})", self.wanted.stream, self.wanted.key)
    }
}

/// What a subscriber asks for, whatever the stream's events are.
pub(crate) struct Wanted {
    stream: Address,
    handle: Handle,
    key: String,
    filter: String,
    take_over: bool,
    from: Option<Token>,
    deadline: Duration,
}

impl<M: Message> Stream<M> {
    /// Begins a subscription under this key.
    pub fn subscription(&self, key: impl Into<String>) -> Subscribing<M> {
        let wanted = Wanted::new(self.address.clone(), &self.handle, key.into());
        Subscribing { wanted, event: PhantomData }
    }

    /// Ends a subscription. That it is gone already is no error.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have ended.
    pub async fn unsubscribe(&self, subscription: &Subscription) -> Result<(), SubscribeError> {
        let Subscription { key, owner, version, .. } = subscription;
        let owner = owner.map(|owner| owner.0);
        let arguments = Unsubscribe { key: key.clone(), owner, version: version.0 };
        let grain = self.handle.grain::<StreamOwner>(self.address.id());
        let call = grain.call_fallible::<_, (), Refusal>(&UNSUBSCRIBE_SPEC, &arguments);
        Ok(call.await?)
    }

    /// Who consumes the stream, as its owner knows it.
    ///
    /// # Cancel safety
    /// Dropped, it has no effect.
    pub async fn subscriptions(&self) -> Result<Vec<Listed>, DeliveryFailure> {
        let grain = self.handle.grain::<StreamOwner>(self.address.id());
        let listed = grain.call::<_, Vec<crate::message::Listed>>(&LIST_SPEC, &()).await;
        let listed = listed.map_err(|CallError::Delivery(failure)| failure)?;
        let public = |listed: crate::message::Listed| Listed {
            subscription: Subscription {
                stream: self.address.clone(),
                key: listed.key,
                owner: listed.owner.map(Generation),
                version: SetVersion(listed.version),
                from: None,
                missed: 0,
            },
            consumer: listed.consumer,
            filter: listed.filter,
            backlog: listed.backlog,
        };
        Ok(listed.into_iter().map(public).collect())
    }
}

/// A consumer of a stream, as its owner lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its subscription, to be ended by whoever manages it.
    pub subscription: Subscription,
    /// The address of the grain or hub.
    pub consumer: String,
    /// Its filter; empty for none.
    pub filter: String,
    /// Events that it has not confirmed.
    pub backlog: u64,
}

impl<M: Message> Subscribing<M> {
    /// Names a filter, as `name` or `name:argument`: see [`StreamsBuilder::filter`].
    ///
    /// [`StreamsBuilder::filter`]: crate::StreamsBuilder::filter
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.wanted.filter = filter.into();
        self
    }

    /// Replaces another live subscriber of the key. Over a dead one it succeeds anyway.
    pub const fn take_over(mut self) -> Self {
        self.wanted.take_over = true;
        self
    }

    /// Begins at an earlier event, if the stream still has it: see [`Subscription::missed`].
    pub const fn from(mut self, token: Token) -> Self {
        self.wanted.from = Some(token);
        self
    }

    /// Gives it this long instead of 30 s.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.wanted.deadline = deadline;
        self
    }

    /// Subscribes the grain whose turn this is.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    ///
    /// # Cancel safety
    /// Dropped, the subscription may or may not be made.
    pub async fn this_grain<G: Grain>(
        self,
        ctx: &Ctx,
        handler: EventMethod<G, M>,
    ) -> Result<Subscription, SubscribeError> {
        self.wanted.make(ctx.address().clone(), handler.id, None).await
    }

    /// Subscribes a grain, wherever it is and whether or not it is active.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    ///
    /// # Cancel safety
    /// Dropped, the subscription may or may not be made.
    pub async fn grain<G: Grain>(
        self,
        key: impl IntoKey<G::Key>,
        handler: EventMethod<G, M>,
    ) -> Result<Subscription, SubscribeError> {
        let address = Address::of(G::TYPE, &key.into_key().format());
        let invalid = |error: AddressError| SubscribeError::Invalid { detail: error.to_string() };
        self.wanted.make(address.map_err(invalid)?, handler.id, None).await
    }

    /// Subscribes a hub of this process: once its claim is held, its deliveries hold the events.
    /// The subscription ends with the silo.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    ///
    /// # Cancel safety
    /// Dropped, the subscription may or may not be made.
    pub async fn hub(self, hub: &Hub) -> Result<Subscription, SubscribeError> {
        self.wanted.hub(hub).await
    }
}

impl Wanted {
    pub(crate) fn new(stream: Address, handle: &Handle, key: String) -> Self {
        Self {
            stream,
            handle: handle.clone(),
            key,
            filter: String::new(),
            take_over: false,
            from: None,
            deadline: DEADLINE_DEFAULT,
        }
    }

    pub(crate) const fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    pub(crate) async fn hub(self, hub: &Hub) -> Result<Subscription, SubscribeError> {
        hub.claimed().await?;
        let address = hub.address().clone();
        let handle = hub.handle().clone();
        let shard = ShardIndex::of(address.hash().0, handle.shards());
        let (tell, heard) = oneshot::channel();
        // On a shard of its silo, whose incarnation the row names.
        handle.spawn_on(shard, move || async move {
            let owner = Here::endpoint().silo;
            // Whoever asked may have stopped waiting.
            drop(tell.send(self.make(address, HUB, Some(owner)).await));
        })?;
        heard.await.unwrap_or_else(|oneshot::Canceled| Err(stopped().into()))
    }

    async fn make(
        self,
        consumer: Address,
        handler: MethodId,
        owner: Option<Generation>,
    ) -> Result<Subscription, SubscribeError> {
        let Self { stream, handle, key, filter, take_over, from, deadline } = self;
        let arguments = Subscribe {
            consumer: consumer.as_str().to_owned(),
            handler: handler.0,
            owner: owner.map(|owner| owner.0),
            key: key.clone(),
            filter,
            take_over,
            from: from.map(|token| WireToken {
                epoch: WireEpoch::from(token.epoch),
                position: token.position,
            }),
        };
        let grain = handle.grain::<StreamOwner>(stream.id());
        let call = grain.call_fallible::<_, Subscribed, Refusal>(&SUBSCRIBE_SPEC, &arguments);
        let made = call.deadline(deadline).await?;
        let epoch = ActivationNumber::from(&made.from.epoch);
        Ok(Subscription {
            stream,
            key,
            owner,
            version: SetVersion(made.version),
            from: Some(Token { epoch, position: made.from.position }),
            missed: made.missed,
        })
    }
}
