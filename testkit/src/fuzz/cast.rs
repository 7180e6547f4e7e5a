//! The silos that the targets play with: three that are Active, one that is Dead.

use siloring_core::limits::{DEADLINE_DEFAULT, HANDSHAKE_FRAME_BYTES_MAX};
use siloring_core::schema::Schema;
use siloring_core::versions::HostedType;
use siloring_core::{
    ClusterId, Generation, Incarnation, SiloName, SiloRow, SiloStatus, View, ViewNumber,
};
use siloring_transport::{LocalFacts, Secret, WireVersions};

/// The silo under test, and the acceptor of handshakes.
pub(super) const OURS: Generation = Generation(2);
/// The peer that is broken or hostile, and the dialer of handshakes.
pub(super) const PEER: Generation = Generation(3);
/// Another peer.
pub(super) const OTHER: Generation = Generation(4);
/// One that is Dead.
pub(super) const GONE: Generation = Generation(1);
/// Shards of each.
pub(super) const SHARDS: u16 = 2;
/// The smallest limit that a link may have, so that inputs reach it.
pub(super) const FRAME_BYTES_MAX: usize = HANDSHAKE_FRAME_BYTES_MAX;
/// The number of the view of all.
pub(super) const VIEW: ViewNumber = ViewNumber(10);

pub(super) fn incarnation(generation: Generation) -> Incarnation {
    let name = SiloName::new(format!("silo-{}", generation.0)).expect("a plain name");
    Incarnation { name, generation }
}

pub(super) fn row(generation: Generation, status: SiloStatus) -> SiloRow {
    SiloRow {
        incarnation: incarnation(generation),
        status,
        advertised: "127.0.0.1:7000".to_owned(),
        host: "host".to_owned(),
        shards: SHARDS,
        votes: Vec::new(),
        changed_in: ViewNumber(generation.0),
    }
}

pub(super) fn rows() -> Vec<SiloRow> {
    let active = [OURS, PEER, OTHER].map(|silo| row(silo, SiloStatus::Active));
    [row(GONE, SiloStatus::Dead)].into_iter().chain(active).collect()
}

pub(super) fn view() -> View {
    View::new(VIEW, rows())
}

/// The schema of the one type that everybody hosts.
pub(super) const SCHEMA: Schema = Schema { type_id: 1, version: 2, fingerprint: 3 };

pub(super) fn facts(generation: Generation, secrets: &[u8]) -> LocalFacts {
    let secret = |fill: &u8| Secret::new(vec![*fill; 32]).expect("long enough");
    LocalFacts {
        cluster: ClusterId::new("fuzz").expect("a plain name"),
        incarnation: Some(incarnation(generation)),
        shards: SHARDS,
        host: "host".to_owned(),
        deadline_default: DEADLINE_DEFAULT,
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).expect("a frame's length is 32 bits"),
        secrets: secrets.iter().map(secret).collect(),
        types: vec![HostedType { schema: SCHEMA, layout: 3, name: "fuzz.type".to_owned() }],
        wire: WireVersions::OURS,
        features: 5,
    }
}
