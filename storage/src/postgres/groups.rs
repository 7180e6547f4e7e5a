//! How a group of requests becomes few statements.
//!
//! A run is a set of requests that one set-based statement answers: one kind, each key once. What
//! concerns different tables is independent, so a group is sorted by table first (one table's
//! requests keep their order) and cut into runs then; each request gets its own answer in its own
//! place. A refused request takes nothing from the others.

use std::collections::BTreeSet;

use siloring_core::ports::store::{Store as _, StoreRequest, StoreResult};

use super::PostgresStore;
use crate::judge::{all, check_request, is_outage};

/// What a request concerns. No request of one concerns another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Table {
    Membership,
    State,
    Subscriptions,
    Letters,
}

/// Which statement answers a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Statement {
    LoadStates,
    WriteStates,
    LoadSubscriptions,
    ChangeSubscriptions,
    WriteLetters,
    /// One for itself.
    Own,
}

/// Answers a group, in its order.
pub(super) fn execute(store: &mut PostgresStore, requests: &[StoreRequest]) -> Vec<StoreResult> {
    let mut results: Vec<Option<StoreResult>> =
        requests.iter().map(|request| check_request(request).err().map(Err)).collect();
    let mut places: Vec<usize> =
        (0..requests.len()).filter(|place| results[*place].is_none()).collect();
    // Stable: a table's requests keep their order.
    places.sort_by_key(|place| table(&requests[*place]));
    let sorted: Vec<&StoreRequest> = places.iter().map(|place| &requests[*place]).collect();
    let mut rest = &sorted[..];
    let mut answers = Vec::with_capacity(sorted.len());
    while !rest.is_empty() {
        let (run, behind) = rest.split_at(run_length(rest));
        answers.extend(answer_run(store, run));
        rest = behind;
    }
    assert_eq!(answers.len(), places.len(), "an answer for each good request");
    for (place, answer) in places.into_iter().zip(answers) {
        results[place] = Some(answer);
    }
    results.into_iter().map(|result| result.expect("each is refused or answered")).collect()
}

fn answer_run(store: &mut PostgresStore, run: &[&StoreRequest]) -> Vec<StoreResult> {
    let first = run.first().expect("a run has a request");
    let answers = match statement(first) {
        Statement::LoadStates => store.run(|rows| rows.load_states(run)),
        Statement::WriteStates => store.run(|rows| rows.write_states(run)),
        Statement::LoadSubscriptions => store.run(|rows| rows.load_subscriptions(run)),
        Statement::ChangeSubscriptions => store.run(|rows| rows.change_subscriptions(run)),
        Statement::WriteLetters => store.run(|rows| rows.write_letters(run)),
        Statement::Own => return run.iter().map(|request| store.execute(request)).collect(),
    };
    match answers {
        Ok(answers) => answers,
        Err(error) if run.len() == 1 || is_outage(&error) => all(&error, run.len()),
        // One of them broke the statement: nothing was done, so each is tried by itself.
        Err(_) => run.iter().map(|request| store.execute(request)).collect(),
    }
}

/// How many requests from the first on can be one statement.
fn run_length(requests: &[&StoreRequest]) -> usize {
    let mut keys = BTreeSet::new();
    let first = statement(requests.first().expect("the group has a request"));
    for (index, request) in requests.iter().enumerate() {
        let is_new = key(request).is_none_or(|key| keys.insert(key));
        if first == Statement::Own || statement(request) != first || !is_new {
            return index.max(1);
        }
    }
    requests.len()
}

/// What no two requests of one statement may share.
fn key(request: &StoreRequest) -> Option<(&str, &str)> {
    match request {
        StoreRequest::LoadState { key, .. } | StoreRequest::WriteState { key, .. } => {
            Some((key.address.as_str(), &key.name))
        }
        StoreRequest::WriteSubscription { row, .. } => Some((row.stream.as_str(), &row.key)),
        StoreRequest::RemoveSubscription { stream, key, .. } => Some((stream.as_str(), key)),
        StoreRequest::ReadTable
        | StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. }
        | StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::SweepSubscriptions { .. }
        | StoreRequest::WriteDeadLetter(_)
        | StoreRequest::ReadDeadLetters { .. } => None,
    }
}

const fn statement(request: &StoreRequest) -> Statement {
    match request {
        StoreRequest::LoadState { .. } => Statement::LoadStates,
        StoreRequest::WriteState { .. } => Statement::WriteStates,
        StoreRequest::LoadSubscriptions { .. } => Statement::LoadSubscriptions,
        StoreRequest::WriteSubscription { .. } | StoreRequest::RemoveSubscription { .. } => {
            Statement::ChangeSubscriptions
        }
        StoreRequest::WriteDeadLetter(_) => Statement::WriteLetters,
        StoreRequest::ReadTable
        | StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::SweepSubscriptions { .. }
        | StoreRequest::ReadDeadLetters { .. } => Statement::Own,
    }
}

const fn table(request: &StoreRequest) -> Table {
    match request {
        StoreRequest::ReadTable
        | StoreRequest::WriteRow { .. }
        | StoreRequest::RemoveDead { .. }
        | StoreRequest::Heartbeat { .. }
        | StoreRequest::Settings { .. } => Table::Membership,
        StoreRequest::LoadState { .. } | StoreRequest::WriteState { .. } => Table::State,
        StoreRequest::LoadSubscriptions { .. }
        | StoreRequest::ListSubscriptions { .. }
        | StoreRequest::WriteSubscription { .. }
        | StoreRequest::RemoveSubscription { .. }
        | StoreRequest::SweepSubscriptions { .. } => Table::Subscriptions,
        StoreRequest::WriteDeadLetter(_) | StoreRequest::ReadDeadLetters { .. } => Table::Letters,
    }
}
