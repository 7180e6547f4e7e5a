//! What an owner does when the store went back: it tells what was lost.
//!
//! A store that lost its last versions mints them again. The versions that an owner has are then
//! of rows that are no more, and higher than what the store says: it would be believed only once it
//! had come as far again. That this happened shows in a later lineage of views, or in a reading of
//! a version that is lower than one that was known when it began. Contract:
//! - the owner's versions begin anew then;
//! - subscriptions that it has, and the store lost, are written again: whoever was acknowledged
//!   stays subscribed; what the store kept, or somebody has written since, stands;
//! - it is done again until each write has its answer.
//!
//! Deliberately absent: streams without an owner in memory. What was lost of them is lost.

use siloring_core::ids::Generation;
use siloring_core::outcome::DeliveryFailure;
use siloring_core::ports::registry::{SetVersion, Subscription};
use siloring_core::ports::store::{StoreAnswer, StoreError, StoreRequest};
use siloring_runtime::here::Here;

use crate::members::unavailable;
use crate::owner::Owner;
use crate::planted::is_planted;

impl Owner {
    /// Whether the views say that the store went back since it was read.
    pub(crate) fn is_of_an_earlier_store(&self) -> bool {
        let lineage = self.members.borrow().lineage;
        lineage != Here::view().number().lineage() && self.may_tell_again()
    }

    /// Not if planted with one of two defects.
    pub(crate) fn may_tell_again(&self) -> bool {
        if is_planted!(self.streams, StoreNotRetold) {
            return false;
        }
        !is_planted!(self.streams, RegistryTrusted)
    }

    /// The store went back: it is told what it lost.
    pub(crate) async fn tell_what_was_lost(&self) -> Result<(), DeliveryFailure> {
        let view = Here::view().number();
        let rows: Vec<Subscription> = {
            let members = self.members.borrow();
            let written = members.by_key.values().filter(|member| !member.is_implicit);
            written.map(|member| member.row.clone()).collect()
        };
        for row in rows {
            self.write_again(Subscription { view, ..row }).await?;
        }
        // Not before: a write without an answer is made again.
        self.forget_versions();
        self.members.borrow_mut().lineage = view.lineage();
        Ok(())
    }

    fn forget_versions(&self) {
        let mut members = self.members.borrow_mut();
        members.version = SetVersion::default();
        let watchers: Vec<Generation> = members.watchers.keys().copied().collect();
        for silo in watchers {
            members.watchers.insert(silo, SetVersion::default());
        }
    }

    async fn write_again(&self, row: Subscription) -> Result<(), DeliveryFailure> {
        let key = row.key.clone();
        let request = StoreRequest::WriteSubscription { row, expected: None };
        match self.ask(request).await {
            Ok(StoreAnswer::Registered(version)) => {
                let mut members = self.members.borrow_mut();
                if let Some(member) = members.by_key.get_mut(key.as_str()) {
                    member.row.version = version;
                }
                Ok(())
            }
            Ok(_) => unreachable!("a write of a subscription is answered with its version"),
            // It is there: the reading that follows says how.
            Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(unavailable(&error)),
        }
    }
}
