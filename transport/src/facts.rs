//! What a silo says of itself in a handshake, and what a link is for.

use core::time::Duration;
use std::collections::BTreeMap;

use siloring_core::limits::{
    DEADLINE_MAX, FRAME_ALIGN, FRAME_BYTES_MAX, HANDSHAKE_FRAME_BYTES_MAX, HOST_BYTES_MAX,
    HOSTED_TYPES_MAX, SECRETS_MAX, SHARDS_MAX,
};
use siloring_core::versions::HostedType;
use siloring_core::wire::{VERSION, VERSION_MIN};
use siloring_core::{ClusterId, Generation, Incarnation, ShardIndex};

use crate::secret::Secret;

/// Which side of a connection one is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Opened it.
    Dialer,
    /// Took it.
    Acceptor,
}

/// What a link is for. Decides which kinds of frames may pass, and in which direction.
#[derive(
    rkyv::Archive,
    rkyv::Serialize,
    rkyv::Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
)]
pub enum Purpose {
    /// Probes, membership and directory traffic of two silos.
    Control,
    /// Requests of one of the dialer's shards, and their outcomes.
    Shard {
        /// The dialer's shard.
        from: ShardIndex,
        /// The acceptor's shard that gets the socket.
        to: ShardIndex,
    },
    /// Who is there? Asked by one that may have no incarnation yet.
    Inquiry,
}

/// What this silo tells its peers, and what it checks theirs against.
#[derive(Clone, Debug)]
pub struct LocalFacts {
    /// The cluster: a peer of another one is refused.
    pub cluster: ClusterId,
    /// Which life of which silo; `None` before the Joining row exists, when only inquiries are
    /// made.
    pub incarnation: Option<Incarnation>,
    /// How many shards this silo has.
    pub shards: u16,
    /// Names the host and network namespace.
    pub host: String,
    /// The deadline of requests that carry none.
    pub deadline_default: Duration,
    /// The largest frame that this silo takes.
    pub frame_bytes_max: u32,
    /// Cluster secrets: the first signs, all verify. Empty: unauthenticated, which both must agree
    /// on.
    pub secrets: Vec<Secret>,
    /// Every version of the types that this silo takes or gives.
    pub types: Vec<HostedType>,
    /// The wire versions that it speaks.
    pub wire: WireVersions,
    /// Optional features, a bit each; the link has those that both sides have.
    pub features: u64,
}

/// A range of wire versions, both ends included. A link has the highest that both sides speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireVersions {
    /// The lowest.
    pub lowest: u8,
    /// The highest.
    pub highest: u8,
}

impl WireVersions {
    /// What this build speaks.
    pub const OURS: Self = Self { lowest: VERSION_MIN, highest: VERSION };
}

/// Why facts cannot be told. Nothing was changed; the configuration or the hosted types must
/// change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// No shards, or more than [`SHARDS_MAX`].
    #[error("{found} shards: a silo has 1 to {SHARDS_MAX}")]
    Shards {
        /// How many.
        found: u16,
    },
    /// The host identity is longer than [`HOST_BYTES_MAX`].
    #[error("host identity of {length_bytes} bytes is longer than {HOST_BYTES_MAX}")]
    Host {
        /// Its length.
        length_bytes: usize,
    },
    /// The default deadline is zero or above [`DEADLINE_MAX`].
    #[error("default deadline {found:?} is not between 1 ns and {DEADLINE_MAX:?}")]
    Deadline {
        /// What was given.
        found: Duration,
    },
    /// The frame limit is no multiple of 16 between a handshake frame and [`FRAME_BYTES_MAX`].
    #[error(
        "frame limit {found} is no multiple of {FRAME_ALIGN} between \
         {HANDSHAKE_FRAME_BYTES_MAX} and {FRAME_BYTES_MAX}"
    )]
    FrameBytes {
        /// What was given.
        found: u32,
    },
    /// More hosted types than [`HOSTED_TYPES_MAX`].
    #[error("{found} hosted types are more than {HOSTED_TYPES_MAX}")]
    Types {
        /// How many.
        found: usize,
    },
    /// More secrets than [`SECRETS_MAX`].
    #[error("{found} cluster secrets are more than {SECRETS_MAX}")]
    Secrets {
        /// How many.
        found: usize,
    },
    /// Two types, or two layouts of one version of a type, under one id: peers could not tell them
    /// apart. Rename one of them, or give the changed one a new version.
    #[error(
        "{one:?} and {other:?} are two layouts of type {id:08x} version {version}: rename one, or \
         give the changed one a new version"
    )]
    TypesClash {
        /// What one is called.
        one: String,
        /// What the other is called.
        other: String,
        /// The id of both.
        id: u32,
        /// The version of both.
        version: u16,
    },
    /// An incarnation with generation zero, which names nobody.
    #[error("generation 0 names no incarnation")]
    Generation,
}

impl LocalFacts {
    /// Whether every fact is within its bounds. A silo asks this once, when it starts.
    pub fn check(&self) -> Result<(), FactsError> {
        if self.secrets.len() > SECRETS_MAX {
            return Err(FactsError::Secrets { found: self.secrets.len() });
        }
        if self.incarnation.as_ref().is_some_and(|who| who.generation == Generation::NONE) {
            return Err(FactsError::Generation);
        }
        let bounds = Bounds {
            shards: self.shards,
            host_bytes: self.host.len(),
            deadline_default: self.deadline_default,
            frame_bytes_max: self.frame_bytes_max,
            types: self.types.len(),
        };
        bounds.check()?;
        self.check_clashes()
    }

    fn check_clashes(&self) -> Result<(), FactsError> {
        let mut known = BTreeMap::new();
        for HostedType { schema, layout, name } in &self.types {
            let (id, version) = (schema.type_id, schema.version);
            let (first, called) = *known.entry((id, version)).or_insert((*layout, name));
            if first != *layout {
                let (one, other) = (called.clone(), name.clone());
                return Err(FactsError::TypesClash { one, other, id, version });
            }
        }
        Ok(())
    }
}

/// The bounded facts of either side, so that both are held to the same bounds.
pub(crate) struct Bounds {
    pub(crate) shards: u16,
    pub(crate) host_bytes: usize,
    pub(crate) deadline_default: Duration,
    pub(crate) frame_bytes_max: u32,
    pub(crate) types: usize,
}

impl Bounds {
    pub(crate) fn check(&self) -> Result<(), FactsError> {
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return Err(FactsError::Shards { found: self.shards });
        }
        if self.host_bytes > HOST_BYTES_MAX {
            return Err(FactsError::Host { length_bytes: self.host_bytes });
        }
        if self.deadline_default.is_zero() || self.deadline_default > DEADLINE_MAX {
            return Err(FactsError::Deadline { found: self.deadline_default });
        }
        let frame_bytes = self.frame_bytes_max as usize;
        let allowed = HANDSHAKE_FRAME_BYTES_MAX..=FRAME_BYTES_MAX;
        if !allowed.contains(&frame_bytes) || !frame_bytes.is_multiple_of(FRAME_ALIGN) {
            return Err(FactsError::FrameBytes { found: self.frame_bytes_max });
        }
        if self.types > HOSTED_TYPES_MAX {
            return Err(FactsError::Types { found: self.types });
        }
        Ok(())
    }
}
