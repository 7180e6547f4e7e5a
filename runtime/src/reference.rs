//! References: typed ones to grains, plain ones to hubs, raw ones to either. Cheap to clone, free
//! to keep.
//!
//! A reference names an address; it holds nothing alive and does not know whether anybody is there.

use core::fmt;
use core::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use siloring_core::address::{Address, AddressError};
use siloring_core::body::{Body, DecodeOwned, Encode};
use siloring_core::ids::MethodId;
use siloring_core::schema::{Message, Schema};

use crate::call::{Call, CallRequest, RawCall};
use crate::exec::local::{Local, current};
use crate::grain::{GrainKey, GrainType, IntoKey, MethodSpec, Wanted};
use crate::handle::Handle;
use crate::parcel::Parcel;

/// An address seen from one silo, and on whose behalf.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) handle: Handle,
    /// The hub that speaks; `None` lets the calling activation speak for itself.
    pub(crate) source: Option<Address>,
}

impl Target {
    /// The current shard, if the request may be staged there: one of this silo, and no hub speaks.
    /// What a hub sends goes through the hub's own shard, which knows of its claim.
    #[inline]
    pub(crate) fn local(&self) -> Option<Rc<Local>> {
        if self.source.is_some() {
            return None;
        }
        current(|local| self.handle.is_same(&local.handle).then(|| Rc::clone(local))).flatten()
    }

    #[inline]
    fn request(self: &Arc<Self>, spec: &MethodSpec, body: Body) -> Parcel {
        Parcel::new(CallRequest {
            to: Some(Arc::clone(self)),
            source: self.source.clone(),
            method: spec.id,
            arguments: spec.arguments,
            reply: Some(spec.wanted()),
            body,
            deadline: None,
            envelope: None,
        })
    }
}

/// A typed reference to a grain. Its methods are those of the trait that `#[grain_methods]` makes.
pub struct GrainRef<G> {
    target: Result<Arc<Target>, AddressError>,
    grain: PhantomData<fn() -> G>,
}

impl<G> Clone for GrainRef<G> {
    fn clone(&self) -> Self {
        Self { target: self.target.clone(), grain: PhantomData }
    }
}

impl<G> fmt::Debug for GrainRef<G> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Ok(target) => write!(out, "GrainRef({})", target.address),
            Err(error) => write!(out, "GrainRef({error})"),
        }
    }
}

impl<G: GrainType> GrainRef<G> {
    pub(crate) fn new(
        handle: &Handle,
        source: Option<&Address>,
        key: impl IntoKey<G::Key>,
    ) -> Self {
        let address = Address::of(G::TYPE, &key.into_key().format());
        Self::of(handle, source, address)
    }

    pub(crate) fn of(
        handle: &Handle,
        source: Option<&Address>,
        address: Result<Address, AddressError>,
    ) -> Self {
        let target = address.map(|address| {
            Arc::new(Target { address, handle: handle.clone(), source: source.cloned() })
        });
        Self { target, grain: PhantomData }
    }

    /// The address, or why the key makes none; calls then end as `NotHere`.
    pub fn address(&self) -> Result<&Address, &AddressError> {
        self.target.as_ref().map(|target| &target.address)
    }

    /// Calls a method that answers with a value. Written by `#[grain_methods]`.
    pub fn call<A: Encode, T: DecodeOwned>(&self, spec: &MethodSpec, arguments: &A) -> Call<T> {
        match &self.target {
            Ok(target) => Call::new(target.request(spec, Body::encode(arguments))),
            Err(error) => Call::malformed(error.clone()),
        }
    }

    /// Calls a method that answers with a `Result`. Written by `#[grain_methods]`.
    pub fn call_fallible<A: Encode, T, E>(&self, spec: &MethodSpec, arguments: &A) -> Call<T, E>
    where
        Result<T, E>: DecodeOwned,
    {
        match &self.target {
            Ok(target) => Call::fallible(target.request(spec, Body::encode(arguments))),
            Err(error) => Call::malformed(error.clone()),
        }
    }
}

/// A reference to a hub, wherever its process is.
#[derive(Clone, Debug)]
pub struct HubRef {
    target: Arc<Target>,
}

impl HubRef {
    /// A handle on the silo that sends.
    pub fn handle(&self) -> &Handle {
        &self.target.handle
    }

    pub(crate) fn new(handle: &Handle, source: Option<&Address>, address: Address) -> Self {
        let target = Target { address, handle: handle.clone(), source: source.cloned() };
        Self { target: Arc::new(target) }
    }

    /// The hub's address.
    pub fn address(&self) -> &Address {
        &self.target.address
    }

    /// Delivers a message; the outcome is the hub's answer. The method id of a message is its
    /// type's.
    pub fn send<M: Message, R: Message>(&self, message: &M) -> Call<R> {
        Call::new(Parcel::new(CallRequest {
            to: Some(Arc::clone(&self.target)),
            source: self.target.source.clone(),
            method: MethodId(M::SCHEMA.type_id),
            arguments: M::SCHEMA,
            reply: Some(Wanted::message::<R>()),
            body: Body::encode(message),
            deadline: None,
            envelope: None,
        }))
    }
}

/// A request whose body somebody else encoded.
#[derive(Debug)]
pub struct RawRequest {
    /// Which method, or message type.
    pub method: MethodId,
    /// What the body is.
    pub schema: Schema,
    /// Its archive.
    pub body: Body,
}

/// A reference to a grain or hub whose type this program need not know.
#[derive(Clone, Debug)]
pub struct RawRef {
    target: Arc<Target>,
}

impl RawRef {
    pub(crate) fn new(handle: &Handle, address: Address) -> Self {
        Self { target: Arc::new(Target { address, handle: handle.clone(), source: None }) }
    }

    /// Whom it names.
    pub fn address(&self) -> &Address {
        &self.target.address
    }

    /// Delivers a request; a reply of any type is taken. The receiver checks what it gets as it
    /// does from everybody.
    pub fn send(&self, request: RawRequest) -> RawCall {
        RawCall::new(Parcel::new(CallRequest {
            to: Some(Arc::clone(&self.target)),
            source: None,
            method: request.method,
            arguments: request.schema,
            reply: None,
            body: request.body,
            deadline: None,
            envelope: None,
        }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use siloring_core::ids::ShardIndex;

    use super::*;
    use crate::handle::{Post, PostError};
    use crate::mail::ShardMail;

    /// A silo that has stopped.
    #[derive(Debug)]
    struct Stopped;

    impl Post for Stopped {
        fn post(&self, _: ShardIndex, mail: ShardMail) -> Result<(), PostError> {
            Err(PostError::Stopped(mail))
        }

        fn shards(&self) -> u16 {
            1
        }
    }

    /// A handle on a silo that has stopped.
    pub(crate) fn stopped() -> Handle {
        Handle::new(Arc::new(Stopped))
    }

    /// A request of nobody to `target`, of a silo that has stopped.
    pub(crate) fn parcel(target: &str) -> Parcel {
        let address = Address::parse(target).unwrap();
        let handle = stopped();
        let target = Arc::new(Target { address, handle, source: None });
        Parcel::new(CallRequest {
            to: Some(target),
            source: None,
            method: MethodId(1),
            arguments: Schema::NONE,
            reply: None,
            body: Body::empty(),
            deadline: None,
            envelope: None,
        })
    }
}
