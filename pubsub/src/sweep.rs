//! Sweeping the registry: rows of silos that are gone are deleted, by one silo at a time.
//!
//! Nothing depends on it: such a row is no consumer for whoever reads it. The shard that owns one
//! fixed place of the ring does it, when it takes that place and when a silo has gone. Every
//! deletion is conditional on owner and view, so that two sweepers cannot harm a live row.

use std::collections::BTreeSet;
use std::sync::Arc;

use siloring_core::event::Event;
use siloring_core::hash::stable_u64;
use siloring_core::ids::{Endpoint, Generation};
use siloring_core::limits::{REGISTRY_PAGE_MAX, SWEEP_OWNERS_MAX, SWEEP_RETRY_AFTER};
use siloring_core::ports::store::{StoreAnswer, StoreError, StoreRequest};
use siloring_core::view::{SiloRow, View};
use siloring_runtime::ctx::Sleep;
use siloring_runtime::here::Here;

#[cfg(feature = "planted")]
use crate::planted::is_planted;
#[cfg(feature = "planted")]
use crate::streams::Streams;

/// Where on the ring the sweeper is.
const PLACE: u64 = stable_u64(b"siloring.sweep");

fn sweeper(view: &View) -> Option<Endpoint> {
    view.ring().owner(PLACE)
}

/// Sweeps if this shard is to: after a view in which a silo went, or in which the place is new.
pub(crate) async fn sweep(before: Option<Arc<View>>, view: Arc<View>) {
    let me = Some(Here::endpoint());
    let was_mine = before.as_deref().is_some_and(|before| sweeper(before) == me);
    let is_gone = |row: &SiloRow| view.is_gone(row.incarnation.generation);
    let somebody_went = before.as_deref().is_some_and(|before| before.living().any(is_gone));
    if sweeper(&view) != me || (was_mine && !somebody_went) {
        return;
    }
    #[cfg(feature = "planted")]
    if Here::shared::<Streams>().is_some_and(|s| is_planted!(s, RowsWithoutIncarnation)) {
        return;
    }
    // As long as the view holds; the next one has a sweeper of its own.
    while Here::view().number() == view.number() {
        match sweep_once(&view).await {
            Ok(0) => return,
            Ok(count) => return Here::emit(Event::SubscriptionsSwept { count }),
            Err(_unavailable) => Sleep::new(SWEEP_RETRY_AFTER).await,
        }
    }
}

async fn sweep_once(view: &View) -> Result<u64, StoreError> {
    let mut swept = 0;
    for gone in owners_gone(view).await?.chunks(SWEEP_OWNERS_MAX) {
        let (gone, view) = (gone.to_vec(), view.number());
        let answer = Here::ask(StoreRequest::SweepSubscriptions { gone, view }).await?;
        let StoreAnswer::Swept { count } = answer else {
            unreachable!("a sweep is answered with its count");
        };
        swept += count;
    }
    Ok(swept)
}

/// Owners of rows that are gone in the view.
async fn owners_gone(view: &View) -> Result<Vec<Generation>, StoreError> {
    let mut gone = BTreeSet::new();
    let mut after = None;
    loop {
        let request = StoreRequest::ListSubscriptions { after, limit: REGISTRY_PAGE_MAX };
        let StoreAnswer::Subscriptions { rows, .. } = Here::ask(request).await? else {
            unreachable!("a list of subscriptions is answered with them");
        };
        let owners = rows.iter().filter_map(|row| row.owner);
        gone.extend(owners.filter(|owner| view.is_gone(*owner)));
        let is_last = rows.len() < REGISTRY_PAGE_MAX as usize;
        match rows.into_iter().next_back() {
            Some(last) if !is_last => after = Some((last.stream, last.key)),
            Some(_) | None => return Ok(gone.into_iter().collect()),
        }
    }
}
