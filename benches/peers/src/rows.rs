//! Siloring's rows against each peer, with their budgets.
//!
//! A peer without a budget of its own is to be slower, whatever by. What is only a floor at a load,
//! and does none of the work, is shown there.

use crate::names::{LocalNames, Names, local_names, names};
use crate::support::{Budget, Row};

/// Calls between two silos that are two processes, with the spin window on.
pub(crate) const SILORING: Names = names!("Siloring");
/// The floor: both ends poll.
pub(crate) const BUSY: Names = names!("raw busy-polling TCP");
/// The floor of those who sleep.
pub(crate) const BLOCKING: Names = names!("raw blocking TCP");
/// What a careful program without actors does.
pub(crate) const TOKIO: Names = names!("tokio framed echo");
/// Calls inside one process.
pub(crate) const SILORING_LOCAL: LocalNames = local_names!("Siloring in one process");
/// The floor across threads.
pub(crate) const QUEUES: &str = "two threads and two queues";

/// What Siloring holds against a peer at each load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budgets {
    /// One in flight.
    pub(crate) one: Budget,
    /// 64 in flight.
    pub(crate) few: Budget,
    /// 1024 in flight.
    pub(crate) many: Budget,
}

/// The peer is slower.
pub(crate) const AHEAD: Budgets = Budgets {
    one: Budget::RatioBelow(1.0),
    few: Budget::RatioAtLeast(1.0),
    many: Budget::RatioAtLeast(1.0),
};

/// The peer is a floor.
pub(crate) const FLOOR: Budgets =
    Budgets { one: Budget::RatioBelow(1.0), few: Budget::None, many: Budget::None };

/// The rows against a peer between two processes.
pub(crate) fn between_processes(peer: &Names, budgets: Budgets) -> [Row; 3] {
    [
        latency(peer.one.row, SILORING.one.case, peer.one.case, budgets.one),
        rate(peer.few.row, SILORING.few.case, peer.few.case, budgets.few),
        rate(peer.many.row, SILORING.many.case, peer.many.case, budgets.many),
    ]
}

/// The row against a peer between two processes, for a kilobyte there and back.
pub(crate) fn large(peer: &Names, budget: Budget) -> Row {
    rate(peer.large.row, SILORING.large.case, peer.large.case, budget)
}

fn rate(name: &'static str, case: &'static str, against: &'static str, budget: Budget) -> Row {
    Row { name, case, unit: "per s", divisor: 1.0, against: Some(against), budget }
}

/// The rows against a peer inside one process.
pub(crate) fn in_one_process(peer: &LocalNames) -> [Row; 2] {
    let own = SILORING_LOCAL;
    [
        latency(peer.same.row, own.same.case, peer.same.case, Budget::RatioAtMost(0.5)),
        latency(peer.across.row, own.across.case, peer.across.case, Budget::RatioAtMost(0.2)),
    ]
}

/// The row against the floor across threads.
pub(crate) fn queues() -> Row {
    let name = "against two threads and two queues";
    latency(name, SILORING_LOCAL.across.case, QUEUES, Budget::RatioAtMost(1.5))
}

fn latency(name: &'static str, case: &'static str, against: &'static str, budget: Budget) -> Row {
    Row { name, case, unit: "us", divisor: 1e3, against: Some(against), budget }
}
