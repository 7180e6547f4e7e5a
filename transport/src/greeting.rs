//! The bodies of Hello and `HelloAck`, and the checks that both sides make on the other's.
//!
//! These two layouts, and version 1 in the header of every handshake frame, stay for ever: silos
//! that agree on no version must still tell each other so. What later versions want to say, they
//! say with feature bits and in frames after the handshake.

use core::time::Duration;
use std::collections::BTreeMap;

use rkyv::{Archive, Deserialize, Serialize};

use siloring_core::body::{self, Body, DecodeOwned, Encode};
use siloring_core::limits::FRAME_ALIGN;
use siloring_core::schema::Schema;
use siloring_core::versions::HostedType;
use siloring_core::wire::{FrameKind, Header, VERSION_MIN};
use siloring_core::{ClusterId, Generation, Incarnation, SiloName, View};

use crate::facts::{Bounds, LocalFacts, Purpose, WireVersions};
use crate::handshake::Certificate;
use crate::refusal::{Refusal, RefusalKind};
use crate::secret::MAC_BYTES;

/// The version byte of handshake frames. A build that no longer speaks it cannot be told why it is
/// refused.
const HANDSHAKE_VERSION: u8 = 1;
const _: () = assert!(VERSION_MIN == HANDSHAKE_VERSION, "handshake frames keep version 1 for ever");

/// What one side says of itself.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    cluster: String,
    /// Empty while there is no incarnation.
    name: String,
    generation: u64,
    shards: u16,
    host: String,
    deadline_default_ns: u64,
    frame_bytes_max: u32,
    version_min: u8,
    version_max: u8,
    features: u64,
    types: Vec<Told>,
}

/// A version of a type, as it is told.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// As in the frame header.
    schema: u64,
    /// The whole layout: the header's 16 bits of it would take one changed layout of 65 536 for
    /// the old one.
    layout: u64,
}

/// The body of a Hello.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) facts: Facts,
    pub(crate) purpose: Purpose,
    /// Whom the dialer wants; 0 for whoever is there.
    pub(crate) expect: u64,
    /// Whether the dialer has a secret.
    pub(crate) authenticated: bool,
    pub(crate) nonce: [u8; 32],
}

/// The body of a `HelloAck`, behind the signature.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) facts: Facts,
    pub(crate) nonce: [u8; 32],
}

/// The other side's facts, checked.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) shards: u16,
    pub(crate) host: String,
    pub(crate) deadline_default: Duration,
    pub(crate) frame_bytes_max: u32,
    pub(crate) version: u8,
    pub(crate) features: u64,
    pub(crate) types: Vec<Schema>,
}

impl Facts {
    pub(crate) fn of(local: &LocalFacts) -> Self {
        let (name, generation) = match &local.incarnation {
            Some(who) => (who.name.as_str().to_owned(), who.generation.0),
            None => (String::new(), Generation::NONE.0),
        };
        Self {
            cluster: local.cluster.as_str().to_owned(),
            name,
            generation,
            shards: local.shards,
            host: local.host.clone(),
            deadline_default_ns: u64::try_from(local.deadline_default.as_nanos())
                .expect("checked against DEADLINE_MAX"),
            frame_bytes_max: local.frame_bytes_max,
            version_min: local.wire.lowest,
            version_max: local.wire.highest,
            features: local.features,
            types: local.types.iter().map(told).collect(),
        }
    }

    /// Checks what the peer says against our own facts and `view`. The cheapest and most telling
    /// checks come first: a foreign cluster is named as such, whatever else is wrong.
    pub(crate) fn check(
        self,
        local: &LocalFacts,
        view: &View,
        certificate: &Certificate,
    ) -> Result<Peer, Refusal> {
        self.check_cluster(local)?;
        let version = self.agree_version(local.wire)?;
        self.check_bounds()?;
        let incarnation = self.check_incarnation(local, view)?;
        check_certificate(certificate, local, incarnation.as_ref())?;
        check_layouts(&local.types, &self.types)?;
        let types = self.types.iter().map(|told| Schema::from_bits(told.schema)).collect();
        Ok(Peer {
            incarnation,
            shards: self.shards,
            host: self.host,
            deadline_default: Duration::from_nanos(self.deadline_default_ns),
            frame_bytes_max: self.frame_bytes_max,
            version,
            features: self.features & local.features,
            types,
        })
    }

    fn check_cluster(&self, local: &LocalFacts) -> Result<(), Refusal> {
        let named = ClusterId::new(self.cluster.clone())
            .map_err(|error| violation(format!("the peer's cluster id is malformed: {error}")))?;
        if named == local.cluster {
            return Ok(());
        }
        // Our own id is not told: it is no credential, but nobody needs it.
        let detail = format!("the peer is of cluster {named}, which is not this one");
        Err(Refusal::ours(RefusalKind::ForeignCluster, detail))
    }

    fn agree_version(&self, ours: WireVersions) -> Result<u8, Refusal> {
        let highest = self.version_max.min(ours.highest);
        let lowest = self.version_min.max(ours.lowest);
        if lowest <= highest {
            return Ok(highest);
        }
        let (from, to) = (self.version_min, self.version_max);
        let WireVersions { lowest, highest } = ours;
        let detail = format!("peer speaks {from} to {to}, we speak {lowest} to {highest}");
        Err(Refusal::ours(RefusalKind::VersionUnsupported, detail))
    }

    fn check_bounds(&self) -> Result<(), Refusal> {
        let bounds = Bounds {
            shards: self.shards,
            host_bytes: self.host.len(),
            deadline_default: Duration::from_nanos(self.deadline_default_ns),
            frame_bytes_max: self.frame_bytes_max,
            types: self.types.len(),
        };
        bounds.check().map_err(|error| violation(error.to_string()))
    }

    fn check_incarnation(
        &self,
        local: &LocalFacts,
        view: &View,
    ) -> Result<Option<Incarnation>, Refusal> {
        let generation = Generation(self.generation);
        if generation == Generation::NONE {
            return Ok(None);
        }
        let name = SiloName::new(self.name.clone())
            .map_err(|error| violation(format!("the peer's name is malformed: {error}")))?;
        let peer = Incarnation { name, generation };
        if local.incarnation.as_ref().is_some_and(|us| us.generation == generation) {
            return Err(mismatch(format!("{peer} claims the generation of this silo")));
        }
        check_alive(&peer, view)?;
        if let Some(row) = view.silo(generation) {
            if row.incarnation.name != peer.name {
                return Err(mismatch(format!("{peer} claims the row of {}", row.incarnation)));
            }
            if row.shards != self.shards {
                let (said, wrote) = (self.shards, row.shards);
                return Err(mismatch(format!("{peer} says {said} shards, its row {wrote}")));
            }
        }
        Ok(Some(peer))
    }
}

/// Refuses a peer inside TLS whose certificate does not name the silo that it says it is.
fn check_certificate(
    certificate: &Certificate,
    local: &LocalFacts,
    peer: Option<&Incarnation>,
) -> Result<(), Refusal> {
    match certificate {
        Certificate::NotAsked => Ok(()),
        Certificate::Awaited => Err(violation("the peer spoke before its certificate held")),
        Certificate::Held(names) => names.check(&local.cluster, peer.map(|peer| &peer.name)),
    }
}

/// Refuses an incarnation that is gone in `view`.
pub(crate) fn check_alive(peer: &Incarnation, view: &View) -> Result<(), Refusal> {
    if view.is_gone(peer.generation) {
        let detail = format!("{peer} is gone in view {}", view.number());
        return Err(Refusal::ours(RefusalKind::IncarnationDead, detail));
    }
    Ok(())
}

fn told(hosted: &HostedType) -> Told {
    Told { schema: hosted.schema.to_bits(), layout: hosted.layout }
}

/// Refuses a peer that lays out a type of ours differently under the same version.
fn check_layouts(ours: &[HostedType], theirs: &[Told]) -> Result<(), Refusal> {
    let ours: BTreeMap<_, _> = ours.iter().map(|our| (key(our.schema), our)).collect();
    for their in theirs {
        let (id, version) = key(Schema::from_bits(their.schema));
        if let Some(our) = ours.get(&(id, version))
            && our.layout != their.layout
        {
            let (name, theirs, ours) = (&our.name, their.layout, our.layout);
            let detail = format!(
                "{name} (type {id:08x}) version {version} is laid out as {theirs:016x} by the \
                 peer and as {ours:016x} by us: give the changed one a new version"
            );
            return Err(Refusal::ours(RefusalKind::LayoutChanged, detail));
        }
    }
    Ok(())
}

const fn key(schema: Schema) -> (u32, u16) {
    (schema.type_id, schema.version)
}

fn mismatch(detail: String) -> Refusal {
    Refusal::ours(RefusalKind::IdentityMismatch, detail)
}

pub(crate) fn violation(detail: impl Into<String>) -> Refusal {
    Refusal::ours(RefusalKind::ProtocolViolation, detail)
}

/// A handshake frame: the signature if there is one, then the archive of `value`.
pub(crate) fn frame<T: Encode>(
    kind: FrameKind,
    signature: Option<[u8; MAC_BYTES]>,
    value: &T,
) -> Vec<u8> {
    let archive = Body::encode(value);
    let mut content = signature.map_or_else(Vec::new, |signature| signature.to_vec());
    content.extend_from_slice(archive.as_slice());
    let mut frame = Header::new(kind).encode(content.len(), 0).to_vec();
    frame.extend_from_slice(&content);
    frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
    frame
}

/// Reads the archive of a handshake frame's body.
#[expect(clippy::map_err_ignore, reason = "the error says nothing beyond its type")]
pub(crate) fn read<T: DecodeOwned>(kind: FrameKind, archive: &[u8]) -> Result<T, Refusal> {
    // The bytes lie anywhere in the handshake's buffer: an aligned copy of them is read.
    let copy = Body::copy_of(archive);
    body::decode::<T>(copy.as_slice())
        .map_err(|_| violation(format!("the body of {kind:?} is no valid archive")))
}

#[cfg(test)]
mod tests {
    use siloring_core::ShardIndex;
    use siloring_core::hash::stable_u64;
    use siloring_core::wire::VERSION;

    use super::*;

    fn local() -> LocalFacts {
        LocalFacts {
            cluster: ClusterId::new("demo").unwrap(),
            incarnation: Some(Incarnation {
                name: SiloName::new("pod-a").unwrap(),
                generation: Generation(7),
            }),
            shards: 4,
            host: "host".into(),
            deadline_default: Duration::from_secs(30),
            frame_bytes_max: 1 << 20,
            secrets: Vec::new(),
            types: vec![HostedType {
                schema: Schema { type_id: 1, version: 2, fingerprint: 3 },
                layout: 4,
                name: "chat.line".to_owned(),
            }],
            wire: WireVersions::OURS,
            features: 5,
        }
    }

    /// The layouts stay for ever: a value that changes here parts this build from every other
    /// without a word.
    #[test]
    fn handshake_frames_keep_their_bytes() {
        let facts = Facts::of(&local());
        let purpose = Purpose::Shard { from: ShardIndex(3), to: ShardIndex(1) };
        let (expect, authenticated, nonce) = (9, true, [6; 32]);
        let hello = Hello { facts: facts.clone(), purpose, expect, authenticated, nonce };
        let answer = Answer { facts, nonce };
        let frames = [
            frame(FrameKind::Hello, None, &hello),
            frame(FrameKind::HelloAck, Some([8; MAC_BYTES]), &answer),
            frame(FrameKind::HelloDone, Some([8; MAC_BYTES]), &()),
        ];
        let hashes = frames.each_ref().map(|frame| (frame.len(), stable_u64(frame)));
        assert_eq!(hashes, GOLDEN);
    }

    const GOLDEN: [(usize, u64); 3] =
        [(208, 0x24f9_2198_03f8_eff3), (224, 0x0523_e579_d05e_0c1a), (96, 0x6e19_7b97_e489_3234)];

    #[test]
    fn the_highest_version_that_both_speak_is_agreed() {
        let speaking = |version_min: u8, version_max: u8| {
            let facts = Facts { version_min, version_max, generation: 8, ..Facts::of(&local()) };
            facts.check(&local(), &View::default(), &Certificate::NotAsked)
        };
        assert_eq!(speaking(VERSION_MIN, VERSION + 3).unwrap().version, VERSION);
        for (lowest, highest) in [(VERSION + 1, VERSION + 2), (0, VERSION_MIN - 1), (2, 1)] {
            let refusal = speaking(lowest, highest).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::VersionUnsupported, "{lowest} to {highest}");
        }
    }

    #[test]
    fn facts_out_of_bounds_are_a_violation() {
        let good = || Facts { generation: 8, ..Facts::of(&local()) };
        assert!(good().check(&local(), &View::default(), &Certificate::NotAsked).is_ok());
        let bad = [
            Facts { shards: 0, ..good() },
            Facts { shards: u16::MAX, ..good() },
            Facts { host: "h".repeat(1000), ..good() },
            Facts { deadline_default_ns: 0, ..good() },
            Facts { deadline_default_ns: u64::MAX, ..good() },
            Facts { frame_bytes_max: 0, ..good() },
            Facts { frame_bytes_max: (1 << 20) + 1, ..good() },
            Facts { frame_bytes_max: u32::MAX, ..good() },
            Facts { types: vec![Told { schema: 0, layout: 0 }; 2000], ..good() },
            Facts { name: "a b".into(), ..good() },
            Facts { cluster: String::new(), ..good() },
        ];
        for facts in bad {
            let refusal = facts
                .clone()
                .check(&local(), &View::default(), &Certificate::NotAsked)
                .unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::ProtocolViolation, "{facts:?}");
        }
    }
}
