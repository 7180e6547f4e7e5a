//! Identities: clusters, silos and their incarnations, shards, activations, claims, calls.
//!
//! Each is a newtype, so that none can stand in for another. The numbers that order ownership
//! ([`ViewNumber`], and [`Generation`], which is one) compare as plain integers.

#![expect(missing_debug_implementations, reason = "rkyv derives none for its resolvers")]

use core::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use crate::limits::{NAME_BYTES_MAX, SHARDS_MAX};

/// The number of a membership view: lineage in the top 16 bits, version in the lower 48.
///
/// Integer order is the order of views: a store found regressed starts a new lineage, and each view
/// of a later lineage follows each view of an earlier one. Lineages of views are even; the versions
/// of the odd one before are those of the repair, which no silo takes up.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub struct ViewNumber(pub u64);

impl ViewNumber {
    /// Bits of the version.
    const VERSION_BITS: u32 = 48;
    /// Before any view.
    pub const ZERO: Self = Self(0);

    /// Builds a number from its parts.
    ///
    /// # Panics
    /// If `version` needs more than 48 bits.
    pub const fn new(lineage: u16, version: u64) -> Self {
        assert!(version >> Self::VERSION_BITS == 0, "view version exceeds 48 bits");
        Self(((lineage as u64) << Self::VERSION_BITS) | version)
    }

    /// The lineage: twice how often the store was found regressed, and one more during a repair.
    pub const fn lineage(self) -> u16 {
        (self.0 >> Self::VERSION_BITS) as u16
    }

    /// Whether it is the number of a table that is being repaired, and of no view.
    pub const fn is_interim(self) -> bool {
        self.lineage() % 2 == 1
    }

    /// The version within the lineage.
    pub const fn version(self) -> u64 {
        self.0 & ((1 << Self::VERSION_BITS) - 1)
    }

    /// The next version of the same lineage.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.lineage(), self.version() + 1)
    }
}

impl fmt::Display for ViewNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lineage() == 0 {
            write!(out, "{}", self.version())
        } else {
            write!(out, "{}/{}", self.lineage(), self.version())
        }
    }
}

impl fmt::Debug for ViewNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "v{self}")
    }
}

/// The generation of an incarnation: the number of the view its Joining write made.
///
/// No two writes make one view, so a generation names an incarnation in its cluster by itself.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub struct Generation(pub u64);

impl Generation {
    /// Of nobody: the sender of a handshake that has not yet said who it is.
    pub const NONE: Self = Self(0);

    /// The generation of a silo whose Joining write made `view`.
    pub const fn of(view: ViewNumber) -> Self {
        Self(view.0)
    }

    /// The view that the Joining write made.
    pub const fn view(self) -> ViewNumber {
        ViewNumber(self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.view(), out)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "g{self}")
    }
}

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty. Nothing was changed; give one.
    #[error("a name must not be empty")]
    Empty,
    /// The name is longer than [`NAME_BYTES_MAX`]. Nothing was changed; shorten it.
    #[error("name of {length_bytes} bytes is longer than {NAME_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        length_bytes: usize,
    },
    /// The name has a character other than `a-z A-Z 0-9 . _ -`. Nothing was changed; leave it out.
    #[error("character {character:?} is not allowed in a name (a-z A-Z 0-9 . _ -)")]
    Character {
        /// The first such character.
        character: char,
    },
}

fn check_name(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { length_bytes: text.len() });
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        Some(character) => Err(NameError::Character { character }),
        None => Ok(()),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[rkyv(attr(allow(missing_debug_implementations, reason = "rkyv derives none")))]
        pub struct $type(String);

        impl $type {
            /// Parses a name: 1 to [`NAME_BYTES_MAX`] characters of `a-z A-Z 0-9 . _ -`.
            pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
                let text = text.into();
                check_name(&text)?;
                Ok(Self(text))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name that silos of one cluster share.
    ClusterId
}
name! {
    /// The configured name of a silo; each start of it is a new incarnation.
    SiloName
}

/// One life of a silo: its name and its generation. It never returns from Dead.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[rkyv(attr(allow(missing_debug_implementations, reason = "rkyv derives none")))]
pub struct Incarnation {
    /// The configured name.
    pub name: SiloName,
    /// Which start of it.
    pub generation: Generation,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}@{}", self.name, self.generation)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Which shard of a silo, from 0.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub struct ShardIndex(pub u16);

impl ShardIndex {
    /// The shard among `count` that hosts what hashes to `hash`.
    ///
    /// # Panics
    /// If `count` is 0 or above [`SHARDS_MAX`].
    pub const fn of(hash: u128, count: u16) -> Self {
        assert!(count > 0 && count <= SHARDS_MAX, "shard count out of range");
        // The upper half, since the ring reads the lower one: the two must not be correlated.
        Self(((hash >> 64) as u64 % count as u64) as u16)
    }
}

impl fmt::Display for ShardIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

impl fmt::Debug for ShardIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "s{}", self.0)
    }
}

/// One shard of one silo.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The silo.
    pub silo: Generation,
    /// Its shard.
    pub shard: ShardIndex,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}#{}", self.silo, self.shard)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}#{}", self.silo, self.shard)
    }
}

/// Which activation of a grain: the view it was registered in, then a counter of its shard.
///
/// Orders activations of one grain; a store accepts a write only with the number it was loaded
/// with.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ActivationNumber {
    /// The view in which the activation was made.
    pub view: ViewNumber,
    /// A counter of the shard that made it; unique within the view and shard.
    pub counter: u64,
}

/// The number of a hub's claim, minted by the owner of its range.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ClaimNumber {
    /// The view in which the claim was granted.
    pub view: ViewNumber,
    /// A counter of the range's owner, above every number it has seen.
    pub counter: u64,
}

/// Names one open delivery of one shard: slot in the low 32 bits, reuse count of it in the high.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct CorrelationId(pub u64);

/// A method of a grain type, or a message type of a hub: the 32-bit hash of its name.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct MethodId(pub u32);

impl MethodId {
    /// The id of the method called `name`.
    pub const fn of(name: &str) -> Self {
        Self(crate::hash::stable_u32(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_lineage_follows_every_earlier_view() {
        let old = ViewNumber::new(0, 900);
        let new = ViewNumber::new(1, 3);
        assert!(new > old);
        assert_eq!((new.lineage(), new.version()), (1, 3));
        assert_eq!(new.next(), ViewNumber::new(1, 4));
        assert_eq!((old.to_string(), new.to_string()), ("900".into(), "1/3".into()));
    }

    #[test]
    fn names_are_bounded_and_plain() {
        assert_eq!(SiloName::new("pod-a.1").map(|n| n.to_string()), Ok("pod-a.1".into()));
        assert_eq!(SiloName::new(""), Err(NameError::Empty));
        assert_eq!(SiloName::new("a b"), Err(NameError::Character { character: ' ' }));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert!(matches!(SiloName::new(long), Err(NameError::TooLong { .. })));
    }
}
