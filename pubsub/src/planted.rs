//! Defects that the streams of a silo can be planted with: the proof that scenarios can fail.
//!
//! Compiled only with the feature `planted`, which nothing but tests enables; without it
//! [`is_planted!`] is `false` wherever it stands.

/// What the streams of a silo do wrong.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Planted {
    /// Nothing.
    #[default]
    None,
    /// A publish is refused when the silo's check knows of no subscriber.
    CheckTrusted,
    /// Subscriptions are in the memory of the stream's owner only.
    MemoryRegistry,
    /// What the registry says is believed at each publish, even if it has lost what it said.
    RegistryTrusted,
    /// A publish says that it was handled when it was queued.
    Unconfirmed,
    /// A publish is not sent again.
    NoWindow,
    /// Subscriptions of silos that are gone count, and are never removed.
    RowsWithoutIncarnation,
    /// A hub that cannot be reached for the moment is evicted.
    EvictOnTransient,
    /// An attempt is counted when its result comes, not before the event goes out.
    AttemptAfterSend,
    /// A stream whose subscriptions are being read holds up every other one of its shard.
    OneColdBlocksAll,
    /// Consumers that share a frame wait for the slowest.
    SlowBlocksAll,
    /// While a consumer fails, the others of its stream get nothing.
    RefusalBlocksAll,
    /// A subscription is removed by its key, whoever has it.
    ReleaseByKeyOnly,
    /// Owners of subscriptions are judged in any view, also one that cannot know them.
    JudgedInAnyView,
    /// A subscription counts as written when the registry did not answer.
    WriteAssumed,
    /// A subscription is acknowledged before its cursor is attached.
    CursorAfterAnswer,
    /// An event whose handler failed counts as handled.
    FailureCounts,
    /// An event whose handler fails is tried for ever.
    NoDeadLetters,
    /// Events that a slow consumer loses are not told of.
    GapUntold,
    /// A publish that nobody subscribes to succeeds.
    NobodySuffices,
    /// A publish writes a row for its publisher.
    PublisherRows,
    /// Only consumers that are active are given events.
    OnlyActive,
    /// An unsubscribe ends all subscriptions of its consumer.
    UnsubscribesAll,
    /// An owner says that nobody subscribes while it cannot read the registry.
    UnreadMeansNone,
    /// An owner whose silo leaves waits for its consumers as long as it may.
    OwnerStays,
    /// A write of a subscription that had no answer is not looked for.
    WritesForgotten,
    /// What a store has lost that went back stays lost, and what it says is not believed.
    StoreNotRetold,
    /// An event does not wait for an earlier one of its lane.
    LanesUnordered,
    /// What a refusal says of a subscription's old place is held against its new one.
    EvictsAnyRow,
}

/// Whether the streams, or the queue, are planted with a defect.
#[cfg(feature = "planted")]
macro_rules! is_planted {
    ($holder:expr, $defect:ident) => {
        $holder.planted() == $crate::planted::Planted::$defect
    };
}

/// Never, in this build.
#[cfg(not(feature = "planted"))]
macro_rules! is_planted {
    ($holder:expr, $defect:ident) => {{
        _ = &$holder;
        false
    }};
}

pub(crate) use is_planted;

#[cfg(feature = "planted")]
mod owner {
    //! What a planted owner does instead.

    use core::cell::Cell;
    use core::time::Duration;
    use std::rc::Rc;

    use siloring_core::address::Address;
    use siloring_core::ids::{Generation, MethodId};
    use siloring_core::outcome::DeliveryFailure;
    use siloring_core::ports::registry::{SetVersion, Subscription};
    use siloring_core::ports::store::{StoreAnswer, StoreRequest, StoreResult};
    use siloring_runtime::ctx::Sleep;
    use siloring_runtime::here::Here;

    use crate::message::{Subscribed, Unsubscribe};
    use crate::owner::Owner;

    /// How many owners of the shard read their subscriptions.
    #[derive(Debug, Default)]
    struct Loads(Cell<u32>);

    impl Owner {
        /// Asks the store, or nobody.
        pub(crate) async fn ask(&self, request: StoreRequest) -> StoreResult {
            if !is_planted!(self.streams, MemoryRegistry) {
                return Here::ask(request).await;
            }
            let version = self.members.borrow().set().version;
            if let StoreRequest::LoadSubscriptions { .. } = &request {
                let members = self.members.borrow();
                let rows = members.by_key.values().map(|member| member.row.clone()).collect();
                return Ok(StoreAnswer::Subscriptions { rows, version });
            }
            if let StoreRequest::WriteSubscription { .. }
            | StoreRequest::RemoveSubscription { .. } = &request
            {
                return Ok(StoreAnswer::Registered(SetVersion(version.0 + 1)));
            }
            Here::ask(request).await
        }

        /// Waits while any owner of the shard reads.
        pub(crate) async fn planted_gate(&self) {
            let loads = Here::extension::<Loads>();
            while is_planted!(self.streams, OneColdBlocksAll) && loads.0.get() > 0 {
                Sleep::new(Duration::from_millis(10)).await;
            }
        }

        /// Reads, and says so to the others.
        pub(crate) async fn planted_load(&self) -> Result<(), DeliveryFailure> {
            let loads = Here::extension::<Loads>();
            loads.0.set(loads.0.get() + 1);
            let result = self.load().await;
            loads.0.set(loads.0.get() - 1);
            result
        }

        /// Writes a row for a publisher.
        pub(crate) async fn write_publisher(&self, silo: u64) {
            let row = Subscription {
                stream: self.stream.clone(),
                key: "publisher".to_owned(),
                consumer: Address::of("publisher", &silo.to_string()).expect("a plain address"),
                handler: MethodId(0),
                owner: Some(Generation(silo)),
                view: Here::view().number(),
                filter: String::new(),
                operation: 0,
                version: SetVersion(0),
            };
            drop(Here::ask(StoreRequest::WriteSubscription { row, expected: None }).await);
        }

        /// Attaches cursors after they were acknowledged.
        pub(crate) fn attach_late(self: &Rc<Self>) {
            let owner = Rc::clone(self);
            Here::spawn(async move {
                Sleep::new(Duration::from_millis(50)).await;
                // Whatever it is, nobody waits for it.
                drop(owner.load().await);
            });
        }

        /// Acknowledges a subscription whose cursor is not attached.
        pub(crate) fn planted_answer(&self, row: &Subscription) -> Subscribed {
            self.subscribed(row.version, self.queue.borrow().next_position(), 0)
        }

        /// Other subscriptions of a row's consumer.
        fn others_of(&self, row: &Subscription) -> Vec<Subscription> {
            let members = self.members.borrow();
            let rows = members.by_key.values().map(|member| &member.row);
            let others = rows.filter(|o| o.consumer == row.consumer && o.key != row.key);
            others.cloned().collect()
        }

        /// The row that an unsubscribe removes.
        pub(crate) async fn planted_removal(&self, wanted: &Unsubscribe) -> Unsubscribe {
            let row = self.members.borrow().by_key.get(wanted.key.as_str()).map(|m| m.row.clone());
            let Some(row) = row else { return wanted.clone() };
            if is_planted!(self.streams, ReleaseByKeyOnly) {
                let (owner, version) = (row.owner.map(|owner| owner.0), row.version.0);
                return Unsubscribe { key: wanted.key.clone(), owner, version };
            }
            if is_planted!(self.streams, UnsubscribesAll) {
                for row in self.others_of(&row) {
                    let Subscription { stream, key, owner, version, .. } = row;
                    let request = StoreRequest::RemoveSubscription { stream, key, owner, version };
                    drop(Here::ask(request).await);
                }
                drop(self.load().await);
            }
            wanted.clone()
        }
    }
}
