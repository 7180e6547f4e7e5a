//! Where a delivery goes: one pure decision, in the order of the design's section 8.
//!
//! This file decides; `shard/outbound.rs` carries the decision out.

use siloring_core::ids::Endpoint;
use siloring_core::limits::BODY_BYTES_MAX;

use crate::placement::Placement;

/// What the kind of the target's address is, seen from this silo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetKind {
    /// Owned by a process: never activated anywhere.
    Hub,
    /// A grain type that this silo hosts.
    Hosted(Placement),
    /// A grain of one shard of one silo, which its address names; `None` if it names none.
    OfShard(Option<Endpoint>),
    /// Neither: a grain type of other silos, or of nobody.
    Foreign,
}

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// A turn that has begun, or a reply: passes also while the silo drains.
    Begun,
    /// The surrounding program, or a hub.
    Program,
}

/// What the shard knows of where the target lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// On this shard.
    Here,
    /// At a place that the shard remembers, which may be stale.
    Remembered,
    /// Nothing but the kind of its address.
    Unknown(TargetKind),
}

/// Everything that the decision depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteInput {
    /// Where the target lives.
    pub target: Whereabouts,
    /// Whether this silo is leaving.
    pub is_draining: bool,
    /// Who sends.
    pub sender: Sender,
    /// Of the body.
    pub bytes: usize,
}

/// Where it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// To the target on this shard.
    Here,
    /// Nowhere: the silo is leaving.
    Draining,
    /// Nowhere: it exceeds the limit.
    TooLarge,
    /// Nowhere: the address names no shard.
    Nowhere,
    /// To the place that the shard remembers.
    Remembered,
    /// To the shard that the address names.
    Named(Endpoint),
    /// To where the target would be activated on this silo; if it is elsewhere, that answers where.
    Home,
    /// To where the directory says; if it says nowhere, the target is placed.
    LookUpOrPlace,
    /// To where the directory says; if it says nowhere, that is the outcome.
    LookUp,
}

/// Decides.
pub const fn route(input: RouteInput) -> Route {
    if input.bytes > BODY_BYTES_MAX {
        return Route::TooLarge;
    }
    let is_refused = input.is_draining && matches!(input.sender, Sender::Program);
    match input.target {
        Whereabouts::Here => Route::Here,
        Whereabouts::Remembered | Whereabouts::Unknown(_) if is_refused => Route::Draining,
        Whereabouts::Remembered => Route::Remembered,
        Whereabouts::Unknown(TargetKind::Hub) => Route::LookUp,
        Whereabouts::Unknown(TargetKind::OfShard(Some(endpoint))) => Route::Named(endpoint),
        Whereabouts::Unknown(TargetKind::OfShard(None)) => Route::Nowhere,
        Whereabouts::Unknown(TargetKind::Hosted(Placement::PreferLocal)) if !input.is_draining => {
            Route::Home
        }
        Whereabouts::Unknown(TargetKind::Hosted(_) | TargetKind::Foreign) => Route::LookUpOrPlace,
    }
}

#[cfg(test)]
mod tests {
    use siloring_core::ids::{Endpoint, Generation, ShardIndex};

    use super::*;

    const ENDPOINT: Endpoint = Endpoint { silo: Generation(1), shard: ShardIndex(0) };
    const HUB: RouteInput = RouteInput {
        target: Whereabouts::Unknown(TargetKind::Hub),
        is_draining: false,
        sender: Sender::Program,
        bytes: 64,
    };
    const LOCAL: RouteInput = RouteInput {
        target: Whereabouts::Unknown(TargetKind::Hosted(Placement::PreferLocal)),
        ..HUB
    };
    const HASHED: RouteInput =
        RouteInput { target: Whereabouts::Unknown(TargetKind::Hosted(Placement::Hash)), ..HUB };
    const FOREIGN: RouteInput =
        RouteInput { target: Whereabouts::Unknown(TargetKind::Foreign), ..HUB };
    const OF_SHARD: RouteInput =
        RouteInput { target: Whereabouts::Unknown(TargetKind::OfShard(Some(ENDPOINT))), ..HUB };
    const OF_NO_SHARD: RouteInput =
        RouteInput { target: Whereabouts::Unknown(TargetKind::OfShard(None)), ..HUB };
    const HERE: RouteInput = RouteInput { target: Whereabouts::Here, ..HUB };
    const THERE: RouteInput = RouteInput { target: Whereabouts::Remembered, ..HUB };

    #[test]
    fn the_decision_table_holds() {
        let table = [
            (HUB, Route::LookUp),
            (HERE, Route::Here),
            (THERE, Route::Remembered),
            (RouteInput { bytes: BODY_BYTES_MAX, ..HUB }, Route::LookUp),
            (RouteInput { bytes: BODY_BYTES_MAX + 1, ..HUB }, Route::TooLarge),
            (RouteInput { bytes: BODY_BYTES_MAX + 1, ..HERE }, Route::TooLarge),
            (RouteInput { is_draining: true, ..HUB }, Route::Draining),
            (RouteInput { is_draining: true, ..THERE }, Route::Draining),
            (RouteInput { is_draining: true, ..HERE }, Route::Here),
            (RouteInput { is_draining: true, sender: Sender::Begun, ..HUB }, Route::LookUp),
            (RouteInput { is_draining: true, sender: Sender::Begun, ..THERE }, Route::Remembered),
            (LOCAL, Route::Home),
            (
                RouteInput { is_draining: true, sender: Sender::Begun, ..LOCAL },
                Route::LookUpOrPlace,
            ),
            (HASHED, Route::LookUpOrPlace),
            (FOREIGN, Route::LookUpOrPlace),
            (OF_SHARD, Route::Named(ENDPOINT)),
            (OF_NO_SHARD, Route::Nowhere),
            (RouteInput { is_draining: true, ..OF_SHARD }, Route::Draining),
            (
                RouteInput { is_draining: true, sender: Sender::Begun, ..OF_SHARD },
                Route::Named(ENDPOINT),
            ),
        ];
        for (input, expected) in table {
            assert_eq!(route(input), expected, "{input:?}");
        }
    }
}
