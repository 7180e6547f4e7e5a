//! What a turn may know and ask of its silo.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use siloring_core::address::{Address, AddressError, AddressHash};
use siloring_core::body::Body;
use siloring_core::ids::{ActivationNumber, ViewNumber};
use siloring_core::ports::store::{
    Etag, StateKey, StateRecord, StoreAnswer, StoreError, StoreRequest, StoreResult,
};
use siloring_core::schema::Message;
use siloring_core::time::Moment;
use siloring_core::versions::{self, Unconvertible};

use crate::call::Call;
use crate::envelope::{Envelope, EventInfo};
use crate::exec::local::{Answer, Op, SlotKey, Until, current};
use crate::grain::{GrainType, IntoKey};
use crate::handle::Handle;
use crate::reference::{GrainRef, HubRef};

/// What all turns of one activation share.
#[derive(Debug)]
pub(crate) struct ActivationShared {
    pub(crate) address: Address,
    pub(crate) handle: Handle,
    /// The fence; set when the directory has registered the activation.
    pub(crate) number: Cell<ActivationNumber>,
    /// Ends the activation when its turns have ended.
    pub(crate) ends: Cell<bool>,
    /// Etags of the records it has loaded.
    etags: RefCell<BTreeMap<String, Etag>>,
}

impl ActivationShared {
    pub(crate) fn new(address: Address, handle: Handle) -> Rc<Self> {
        let number = ActivationNumber { view: ViewNumber::ZERO, counter: 0 };
        Rc::new(Self {
            address,
            handle,
            number: Cell::new(number),
            ends: Cell::new(false),
            etags: RefCell::new(BTreeMap::new()),
        })
    }
}

/// What a handler may know of its call and ask of its silo.
#[derive(Debug)]
pub struct Ctx {
    pub(crate) shared: Rc<ActivationShared>,
    pub(crate) source: AddressHash,
    pub(crate) deadline: Moment,
    pub(crate) attempt: u8,
    pub(crate) envelope: Option<Rc<Envelope>>,
}

/// Why stored state was not loaded or saved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The record is of another type, or of a version or layout that does not become the one asked
    /// for. It is untouched, and cannot be saved; declare the conversion, or roll forward to the
    /// program that wrote it.
    #[error("the record {name:?} is of another type or version: {detail}")]
    Incompatible {
        /// Which record.
        name: String,
        /// What it is, for people.
        detail: String,
    },
    /// The record is no valid archive. It is untouched.
    #[error("the record {name:?} cannot be read")]
    Undecodable {
        /// Which record.
        name: String,
    },
    /// The store refused or did not answer. After [`StoreError::Fenced`] and
    /// [`StoreError::Conflict`] this activation ends with its turn: a later one has the record.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Ctx {
    /// The activation's address.
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// The id of the address: the grain's key as text.
    pub fn key(&self) -> &str {
        self.shared.address.id()
    }

    /// Who called: the hash of the caller's address, [`AddressHash::NONE`] for code outside of
    /// grains and hubs.
    pub const fn source(&self) -> AddressHash {
        self.source
    }

    /// The caller's identity, as the surrounding program authenticated it.
    pub fn identity(&self) -> Option<&str> {
        self.envelope.as_deref()?.identity.as_deref()
    }

    /// A header of the call.
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = &self.envelope.as_deref()?.headers;
        headers.iter().find(|(known, _)| &**known == name).map(|(_, value)| &**value)
    }

    /// How long the caller still waits.
    pub fn remaining(&self) -> Duration {
        current(|local| self.deadline.since(local.now.get())).unwrap_or_default()
    }

    /// From 1; more only if the request was sent again: by the router, or an event by its stream.
    pub fn attempt(&self) -> u8 {
        self.event().map_or(self.attempt, |event| event.attempt)
    }

    /// What makes the request the delivery of a stream's event, if it is one.
    pub fn event(&self) -> Option<&EventInfo> {
        self.envelope.as_deref()?.event.as_deref()
    }

    /// The key that names the request, if its caller gave it one.
    pub fn idempotency_key(&self) -> Option<u128> {
        self.envelope.as_deref()?.idempotency.map(|idempotency| idempotency.key)
    }

    /// The fence of this activation: later activations have higher ones.
    ///
    /// What a turn does to systems outside of the silo's store cannot be recalled when its silo has
    /// slept meanwhile and others have taken over. Give them the fence, let them keep the highest
    /// one they have seen beside what it guards, and refuse lower ones in the same transaction:
    ///
    /// ```
    /// # use siloring_core::{ActivationNumber, ViewNumber};
    /// /// A row of somebody else's: `UPDATE … WHERE (view, counter) <= ($1, $2)` in SQL.
    /// struct Account {
    ///     balance: u64,
    ///     fence: ActivationNumber,
    /// }
    ///
    /// impl Account {
    ///     fn write(&mut self, fence: ActivationNumber, balance: u64) -> bool {
    ///         let is_current = fence >= self.fence;
    ///         if is_current {
    ///             (self.balance, self.fence) = (balance, fence);
    ///         }
    ///         is_current
    ///     }
    /// }
    ///
    /// let number = |view| ActivationNumber { view: ViewNumber(view), counter: 1 };
    /// let mut account = Account { balance: 0, fence: number(1) };
    /// assert!(account.write(number(2), 70), "of the successor, as its `ctx.fence()` says");
    /// assert!(!account.write(number(1), 50), "of the sleeper, once it is woken");
    /// assert_eq!(account.balance, 70);
    /// ```
    pub fn fence(&self) -> ActivationNumber {
        self.shared.number.get()
    }

    /// A handle on the silo.
    pub fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    /// A typed reference to the grain `key`.
    pub fn grain<G: GrainType>(&self, key: impl IntoKey<G::Key>) -> GrainRef<G> {
        GrainRef::new(&self.shared.handle, None, key)
    }

    /// A reference to the hub at `address`.
    pub fn hub_ref(&self, address: &str) -> Result<HubRef, AddressError> {
        Ok(HubRef::new(&self.shared.handle, None, Address::parse(address)?))
    }

    /// Ends the activation once its turns have ended; the next message makes a new one.
    pub fn deactivate(&self) {
        self.shared.ends.set(true);
    }

    /// Waits. Other turns of the activation wait too, unless the grain lets them interleave.
    ///
    /// # Cancel safety
    /// Dropped, it has no effect.
    pub fn sleep(&self, span: Duration) -> Sleep {
        Sleep { span, slot: None }
    }

    /// Runs a future on the activation's shard until it ends, or the activation does. It does not
    /// keep the activation from being idle; its open calls do. A panic in it is an event. So is
    /// that it is not run but dropped, as [`SPAWNED_PER_ACTIVATION_MAX`] of the activation are.
    ///
    /// [`SPAWNED_PER_ACTIVATION_MAX`]: siloring_core::limits::SPAWNED_PER_ACTIVATION_MAX
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let (future, until) = (Box::pin(future), Until::ActivationEnds);
        current(|local| local.stage(Op::Spawn { future, until }));
    }

    /// Makes a call to this grain itself once in each `period`, one-way, until the activation ends.
    /// A call keeps the activation from being idle.
    pub fn every<G, T, E>(
        &self,
        period: Duration,
        call: impl Fn(&GrainRef<G>) -> Call<T, E> + 'static,
    ) where
        G: GrainType,
        T: 'static,
        E: 'static,
    {
        let me = GrainRef::of(&self.shared.handle, None, Ok(self.shared.address.clone()));
        let timer = async move {
            loop {
                Sleep { span: period, slot: None }.await;
                // Staged by this very shard, to an address that is one: it is always handed in.
                drop(call(&me).one_way());
            }
        };
        self.spawn(timer);
    }

    /// Loads a record of this grain and takes its fence: no earlier activation can write it from
    /// now on. `None` if there is none. One of an older version becomes a `T`; the store keeps it
    /// as it is until it is saved.
    ///
    /// # Cancel safety
    /// Dropped, the fence may or may not have been taken; nothing is lost.
    pub async fn load_state<T: Message>(&self, name: &str) -> Result<Option<T>, StateError> {
        let request = StoreRequest::LoadState { key: self.state_key(name), fence: self.fence() };
        let answer = self.ask_store(request).await?;
        let StoreAnswer::State { record, etag } = answer else {
            unreachable!("a load is answered with a state");
        };
        let state = match record {
            Some(record) => Some(state_of(name, &record)?),
            None => None,
        };
        // Only what could be read may be written: a record of a newer version stays as it is.
        self.shared.etags.borrow_mut().insert(name.to_owned(), etag);
        Ok(state)
    }

    /// Writes a record that this activation has loaded.
    ///
    /// # Cancel safety
    /// Dropped, the record may or may not have been written; the next write then hears `Conflict`
    /// and the activation ends.
    ///
    /// # Panics
    /// If the record was not loaded by this activation.
    pub async fn save_state<T: Message>(&self, name: &str, state: &T) -> Result<(), StateError> {
        let bytes = Bytes::copy_from_slice(Body::encode(state).as_slice());
        self.write_state(name, Some(StateRecord { schema: T::SCHEMA, bytes })).await
    }

    /// Removes a record that this activation has loaded; its fence stays.
    ///
    /// # Panics
    /// If the record was not loaded by this activation.
    pub async fn clear_state(&self, name: &str) -> Result<(), StateError> {
        self.write_state(name, None).await
    }

    async fn write_state(&self, name: &str, record: Option<StateRecord>) -> Result<(), StateError> {
        let etag = self.shared.etags.borrow().get(name).copied();
        let etag = etag.expect("a record is loaded before it is written");
        let (key, fence) = (self.state_key(name), self.fence());
        let answer = self.ask_store(StoreRequest::WriteState { key, fence, etag, record }).await?;
        let StoreAnswer::Written(etag) = answer else {
            unreachable!("a write is answered with its etag");
        };
        self.shared.etags.borrow_mut().insert(name.to_owned(), etag);
        Ok(())
    }

    fn state_key(&self, name: &str) -> StateKey {
        StateKey { address: self.shared.address.clone(), name: name.to_owned() }
    }

    async fn ask_store(&self, request: StoreRequest) -> StoreResult {
        let result = AskStore::new(request).await;
        if let Err(StoreError::Fenced | StoreError::Conflict) = result {
            self.shared.ends.set(true);
        }
        result
    }
}

fn state_of<T: Message>(name: &str, record: &StateRecord) -> Result<T, StateError> {
    let (found, wanted) = (record.schema, T::SCHEMA);
    versions::read(Body::copy_of(&record.bytes), found).map_err(|error| match error {
        Unconvertible::Undecodable(_) => StateError::Undecodable { name: name.to_owned() },
        Unconvertible::NoPath | Unconvertible::Refused(_) => StateError::Incompatible {
            name: name.to_owned(),
            detail: format!("{found:?} is not {} {wanted:?}: {error}", T::TYPE),
        },
    })
}

/// See [`Ctx::sleep`].
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    span: Duration,
    slot: Option<SlotKey>,
}

impl fmt::Debug for Sleep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Sleep({:?})", self.span)
    }
}

impl Sleep {
    /// Waits for `span`, in a future that runs on a shard.
    pub const fn new(span: Duration) -> Self {
        Self { span, slot: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = current(|local| {
            let span = self.span;
            let slot = *self.slot.get_or_insert_with(|| local.sleep(span, cx.waker()));
            local.poll_slot(slot, cx)
        });
        match polled.expect("a sleep is polled on the shard where it began") {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) => {
                self.slot = None;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            current(|local| local.abandon(slot));
        }
    }
}

/// A question to the store, asked at the first poll.
pub(crate) struct AskStore {
    request: Option<StoreRequest>,
    slot: Option<SlotKey>,
}

impl AskStore {
    pub(crate) const fn new(request: StoreRequest) -> Self {
        Self { request: Some(request), slot: None }
    }
}

impl Future for AskStore {
    type Output = StoreResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<StoreResult> {
        let polled = current(|local| {
            if let Some(request) = self.request.take() {
                let slot = local.open_slot(cx.waker());
                local.stage(Op::Store { slot, request: Box::new(request) });
                self.slot = Some(slot);
            }
            local.poll_slot(self.slot.expect("asked above"), cx)
        });
        match polled.expect("a store request is polled on the shard where it began") {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Answer::Store(result)) => {
                self.slot = None;
                Poll::Ready(result)
            }
            Poll::Ready(Answer::Call(_) | Answer::Slept) => {
                unreachable!("a store request's slot is answered by the store")
            }
        }
    }
}

impl Drop for AskStore {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            current(|local| local.abandon(slot));
        }
    }
}
