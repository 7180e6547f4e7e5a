//! Where a delivery goes: one pure decision, in the order of the design's section 8.
//!
//! This file decides; `shard/outbound.rs` carries the decision out.

use siloring_core::limits::BODY_BYTES_MAX;

use crate::placement::Placement;

/// What the kind of the target's address is, seen from this silo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetKind {
    /// Owned by a process: never activated anywhere.
    Hub,
    /// A grain type that this silo hosts.
    Hosted(Placement),
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

/// Everything that the decision depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteInput {
    /// Whether the target lives on this shard.
    pub is_here: bool,
    /// Whether this silo is leaving.
    pub is_draining: bool,
    /// Who sends.
    pub sender: Sender,
    /// Body and extensions.
    pub bytes: usize,
    /// The target's kind.
    pub kind: TargetKind,
    /// Whether the shard knows a place of the target.
    pub is_cached: bool,
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
    /// To the place that the shard remembers.
    Cached,
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
    if input.is_here {
        return Route::Here;
    }
    if input.is_draining && matches!(input.sender, Sender::Program) {
        return Route::Draining;
    }
    if input.is_cached {
        return Route::Cached;
    }
    match input.kind {
        TargetKind::Hub => Route::LookUp,
        TargetKind::Hosted(Placement::PreferLocal) if !input.is_draining => Route::Home,
        TargetKind::Hosted(_) | TargetKind::Foreign => Route::LookUpOrPlace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: RouteInput = RouteInput {
        is_here: false,
        is_draining: false,
        sender: Sender::Program,
        bytes: 64,
        kind: TargetKind::Hub,
        is_cached: false,
    };
    const LOCAL: TargetKind = TargetKind::Hosted(Placement::PreferLocal);
    const HASHED: TargetKind = TargetKind::Hosted(Placement::Hash);

    #[test]
    fn the_decision_table_holds() {
        let table = [
            (BASE, Route::LookUp),
            (RouteInput { is_here: true, ..BASE }, Route::Here),
            (RouteInput { is_cached: true, ..BASE }, Route::Cached),
            (RouteInput { bytes: BODY_BYTES_MAX, ..BASE }, Route::LookUp),
            (RouteInput { bytes: BODY_BYTES_MAX + 1, ..BASE }, Route::TooLarge),
            (RouteInput { bytes: BODY_BYTES_MAX + 1, is_here: true, ..BASE }, Route::TooLarge),
            (RouteInput { is_draining: true, ..BASE }, Route::Draining),
            (RouteInput { is_draining: true, is_cached: true, ..BASE }, Route::Draining),
            (RouteInput { is_draining: true, is_here: true, ..BASE }, Route::Here),
            (RouteInput { is_draining: true, sender: Sender::Begun, ..BASE }, Route::LookUp),
            (RouteInput { kind: LOCAL, ..BASE }, Route::Home),
            (
                RouteInput { kind: LOCAL, is_draining: true, sender: Sender::Begun, ..BASE },
                Route::LookUpOrPlace,
            ),
            (RouteInput { kind: LOCAL, is_cached: true, ..BASE }, Route::Cached),
            (RouteInput { kind: HASHED, ..BASE }, Route::LookUpOrPlace),
            (RouteInput { kind: TargetKind::Foreign, ..BASE }, Route::LookUpOrPlace),
        ];
        for (input, expected) in table {
            assert_eq!(route(input), expected, "{input:?}");
        }
    }
}
