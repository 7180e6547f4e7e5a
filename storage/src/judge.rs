//! The rules that all stores share: what a request may carry, and what a row may become.
//!
//! Pure functions, so that three stores cannot drift apart. [`check_request`] runs before a store
//! is touched; [`judge_row`] runs on the state read at the version the write expects, which the
//! compare-and-set then holds still. Deliberately absent: anything that reads or writes.

use siloring_core::limits::{
    BODY_BYTES_MAX, FAILURE_DETAIL_BYTES_MAX, NAME_BYTES_MAX, REGISTRY_PAGE_MAX, SETTING_BYTES_MAX,
    SETTINGS_MAX, SHARDS_MAX, SILOS_MAX, SUBSCRIPTION_FILTER_BYTES_MAX, SUBSCRIPTION_KEY_BYTES_MAX,
    SWEEP_OWNERS_MAX,
};
use siloring_core::ports::registry::{DeadLetter, Subscription};
use siloring_core::ports::store::{Setting, StoreError, StoreRequest, StoreResult};
use siloring_core::{Generation, SiloRow, SiloStatus, ViewNumber};

/// Longest `host:port` and longest host identity: a DNS name and a port, with room.
const PLACE_BYTES_MAX: usize = 512;

/// A refusal for good, with its text.
pub(crate) fn refused(detail: impl Into<String>) -> StoreError {
    StoreError::Refused { detail: detail.into() }
}

/// An outcome that nobody knows, with its text.
pub(crate) fn unavailable(detail: impl Into<String>) -> StoreError {
    StoreError::Unavailable { detail: detail.into() }
}

/// A request that did not come to the store, with what stood in its way.
pub(crate) fn not_sent(detail: impl Into<String>) -> StoreError {
    StoreError::NotSent { detail: detail.into() }
}

/// Whether it says something of the store rather than of the request.
pub(crate) const fn is_outage(error: &StoreError) -> bool {
    matches!(error, StoreError::NotSent { .. } | StoreError::Unavailable { .. })
}

/// As many `error`s as there are requests.
pub(crate) fn all(error: &StoreError, count: usize) -> Vec<StoreResult> {
    (0..count).map(|_| Err(error.clone())).collect()
}

/// Refuses what no store could keep, before anything is touched.
pub(crate) fn check_request(request: &StoreRequest) -> Result<(), StoreError> {
    match request {
        StoreRequest::ReadTable => Ok(()),
        StoreRequest::WriteRow { expected, next, row } => {
            check_rise(*expected, *next)?;
            check_row(*next, row)
        }
        StoreRequest::RemoveDead { expected, next, generations } => {
            check_rise(*expected, *next)?;
            generations.iter().try_for_each(|generation| check_number(generation.0))
        }
        StoreRequest::Heartbeat { generation, counter } => {
            check_number(generation.0)?;
            check_number(*counter)
        }
        StoreRequest::Settings { ours } => check_settings(ours),
        StoreRequest::LoadState { key, fence } => {
            check_number(fence.view.0)?;
            check_number(fence.counter)?;
            check_text("state name", &key.name, NAME_BYTES_MAX)
        }
        StoreRequest::WriteState { key, fence, etag, record } => {
            check_number(fence.view.0)?;
            check_number(fence.counter)?;
            // One below the bound: the write raises it.
            check_number(etag.0.saturating_add(1))?;
            check_text("state name", &key.name, NAME_BYTES_MAX)?;
            match record {
                Some(record) if record.bytes.len() > BODY_BYTES_MAX => {
                    let length = record.bytes.len();
                    Err(refused(format!("state of {length} bytes exceeds {BODY_BYTES_MAX}")))
                }
                Some(_) | None => Ok(()),
            }
        }
        StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::WriteSubscription { .. }
        | StoreRequest::RemoveSubscription { .. }
        | StoreRequest::SweepSubscriptions { .. }
        | StoreRequest::WriteDeadLetter(_)
        | StoreRequest::ReadDeadLetters { .. } => check_registry(request),
    }
}

fn check_registry(request: &StoreRequest) -> Result<(), StoreError> {
    match request {
        StoreRequest::ListSubscriptions { limit, .. }
        | StoreRequest::ReadDeadLetters { limit, .. } => check_page(*limit),
        StoreRequest::WriteSubscription { row, expected } => {
            check_number(expected.map_or(0, |version| version.0))?;
            check_subscription(row)
        }
        StoreRequest::RemoveSubscription { key, owner, version, .. } => {
            check_number(owner.map_or(0, |owner| owner.0))?;
            check_number(version.0)?;
            check_key(key)
        }
        StoreRequest::SweepSubscriptions { gone, view } => {
            if gone.len() > SWEEP_OWNERS_MAX {
                let count = gone.len();
                return Err(refused(format!("{count} owners are more than {SWEEP_OWNERS_MAX}")));
            }
            gone.iter().try_for_each(|owner| check_number(owner.0))?;
            check_number(view.0)
        }
        StoreRequest::WriteDeadLetter(letter) => check_letter(letter),
        StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ReadTable
        | StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. }
        | StoreRequest::LoadState { .. }
        | StoreRequest::WriteState { .. } => Ok(()),
    }
}

/// Judges a write of `row` against the version and the row found.
pub(crate) fn judge_row(
    expected: ViewNumber,
    next: ViewNumber,
    row: &SiloRow,
    found: ViewNumber,
    status: Option<SiloStatus>,
) -> Result<(), StoreError> {
    if found != expected {
        return Err(StoreError::Conflict);
    }
    match status {
        Some(SiloStatus::Dead) if row.status != SiloStatus::Dead => Err(StoreError::DeadStaysDead),
        Some(old) if row.status < old => {
            Err(refused(format!("a silo's status never goes back ({old:?} to {:?})", row.status)))
        }
        Some(_) => Ok(()),
        None => judge_insert(next, row),
    }
}

/// A row that is not there: new, known Dead, or of a lineage that the store has lost. Any other was
/// removed because it was Dead.
fn judge_insert(next: ViewNumber, row: &SiloRow) -> Result<(), StoreError> {
    let generation = row.incarnation.generation;
    let is_new = generation == Generation::of(next);
    let is_lost = generation.view().lineage() < next.lineage();
    if is_new || is_lost || row.status == SiloStatus::Dead {
        Ok(())
    } else {
        Err(StoreError::DeadStaysDead)
    }
}

fn check_rise(expected: ViewNumber, next: ViewNumber) -> Result<(), StoreError> {
    check_number(next.0)?;
    if next > expected {
        Ok(())
    } else {
        Err(refused(format!("the view must rise ({expected} to {next})")))
    }
}

fn check_row(next: ViewNumber, row: &SiloRow) -> Result<(), StoreError> {
    let generation = row.incarnation.generation;
    if generation == Generation::NONE || generation.view() > next {
        return Err(refused(format!("generation {generation} cannot be in view {next}")));
    }
    if row.shards == 0 || row.shards > SHARDS_MAX {
        return Err(refused(format!("{} shards are not between 1 and {SHARDS_MAX}", row.shards)));
    }
    if row.votes.len() > SILOS_MAX {
        return Err(refused(format!("{} votes are more than {SILOS_MAX}", row.votes.len())));
    }
    check_text("advertised address", &row.advertised, PLACE_BYTES_MAX)?;
    check_text("host identity", &row.host, PLACE_BYTES_MAX)
}

fn check_settings(ours: &[Setting]) -> Result<(), StoreError> {
    if ours.len() > SETTINGS_MAX {
        return Err(refused(format!("{} settings are more than {SETTINGS_MAX}", ours.len())));
    }
    for (index, (name, value)) in ours.iter().enumerate() {
        check_text("setting name", name, NAME_BYTES_MAX)?;
        if name.is_empty() {
            return Err(refused("a setting has no name"));
        }
        if value.len() > SETTING_BYTES_MAX || value.contains('\0') {
            return Err(refused(format!("the value of setting {name:?} is too long or has a NUL")));
        }
        if ours.iter().take(index).any(|(other, _)| other == name) {
            return Err(refused(format!("setting {name:?} is given twice")));
        }
    }
    Ok(())
}

fn check_page(limit: u32) -> Result<(), StoreError> {
    if limit == 0 || limit > REGISTRY_PAGE_MAX {
        return Err(refused(format!("{limit} rows are not between 1 and {REGISTRY_PAGE_MAX}")));
    }
    Ok(())
}

fn check_subscription(row: &Subscription) -> Result<(), StoreError> {
    check_key(&row.key)?;
    if row.owner == Some(Generation::NONE) {
        return Err(refused("the owner of a subscription is nobody"));
    }
    check_number(row.owner.map_or(0, |owner| owner.0))?;
    check_number(row.view.0)?;
    check_free_text("filter", &row.filter, SUBSCRIPTION_FILTER_BYTES_MAX)
}

fn check_key(key: &str) -> Result<(), StoreError> {
    if key.is_empty() {
        return Err(refused("a subscription has no key"));
    }
    check_text("key of a subscription", key, SUBSCRIPTION_KEY_BYTES_MAX)
}

fn check_letter(letter: &DeadLetter) -> Result<(), StoreError> {
    check_key(&letter.key)?;
    check_number(letter.number)?;
    check_number(letter.view.0)?;
    check_free_text("reason", &letter.reason, FAILURE_DETAIL_BYTES_MAX)?;
    if letter.body.len() > BODY_BYTES_MAX {
        let length = letter.body.len();
        return Err(refused(format!("a dead letter of {length} bytes exceeds {BODY_BYTES_MAX}")));
    }
    Ok(())
}

/// A text that may have lines of its own; no database keeps a NUL.
fn check_free_text(what: &str, text: &str, bytes_max: usize) -> Result<(), StoreError> {
    if text.len() > bytes_max {
        return Err(refused(format!("{what} of {} bytes exceeds {bytes_max}", text.len())));
    }
    if text.contains('\0') {
        return Err(refused(format!("{what} has a NUL")));
    }
    Ok(())
}

fn check_text(what: &str, text: &str, bytes_max: usize) -> Result<(), StoreError> {
    if text.len() > bytes_max {
        return Err(refused(format!("{what} of {} bytes exceeds {bytes_max}", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(refused(format!("{what} has a control character")));
    }
    Ok(())
}

/// SQL integers are signed, and order must hold.
fn check_number(number: u64) -> Result<(), StoreError> {
    match i64::try_from(number) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(format!("the number {number} exceeds 63 bits: {error}"))),
    }
}
