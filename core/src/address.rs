//! Addresses: `kind/id`, optionally hosted as `host~inner`.
//!
//! The parser is total: every string is an [`Address`] or a typed [`AddressError`]. An address is
//! its canonical text plus the 128-bit hash that stands for it in frame headers.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use crate::hash;
use crate::limits::ADDRESS_BYTES_MAX;

/// The 128-bit hash of an address's canonical text.
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
    Default,
)]
pub struct AddressHash(pub u128);

impl AddressHash {
    /// Of no address: the source of what nobody sent from an address.
    pub const NONE: Self = Self(0);
}

impl fmt::Debug for AddressHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "#{:032x}", self.0)
    }
}

/// The part of an address that decides its route: a grain type, or a hub kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Kind<'a>(pub &'a str);

/// Why a text is no address. Nothing was changed; the caller corrects the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No `/` separates kind and id.
    #[error("address {text:?} has no '/' between kind and id: write kind/id")]
    NoSeparator {
        /// What was given, cut to 64 bytes.
        text: String,
    },
    /// Nothing before the `/`, or before the `~`.
    #[error("address {text:?} has an empty kind or host: write kind/id or host~kind/id")]
    EmptyKind {
        /// What was given, cut to 64 bytes.
        text: String,
    },
    /// Nothing after the `/`.
    #[error("address {text:?} has an empty id: write kind/id")]
    EmptyId {
        /// What was given, cut to 64 bytes.
        text: String,
    },
    /// A kind has a character other than `a-z A-Z 0-9 . _ -`.
    #[error("address {text:?} has {character:?} in its kind (a-z A-Z 0-9 . _ - are allowed)")]
    KindCharacter {
        /// What was given, cut to 64 bytes.
        text: String,
        /// The first such character.
        character: char,
    },
    /// A control character.
    #[error("address {text:?} has a control character")]
    ControlCharacter {
        /// What was given, cut to 64 bytes, escaped.
        text: String,
    },
    /// Longer than [`ADDRESS_BYTES_MAX`].
    #[error("address of {length_bytes} bytes is longer than {ADDRESS_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        length_bytes: usize,
    },
}

/// A parsed address: one shared pointer, as every delivery and every open one holds some.
#[derive(Clone)]
pub struct Address(Arc<Parsed>);

struct Parsed {
    hash: AddressHash,
    /// Where the inner `kind/id` starts: behind the last `~` of the kind part, else 0.
    inner_at: u16,
    /// The length of the inner kind.
    kind_length: u16,
    text: Box<str>,
}

impl Address {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (inner_at, kind_length) = check(text)?;
        let hash = AddressHash(hash::stable_u128_at_run_time(text.as_bytes()));
        Ok(Self(Arc::new(Parsed { hash, inner_at, kind_length, text: text.into() })))
    }

    /// The address of `id` under `kind`.
    pub fn of(kind: &str, id: &str) -> Result<Self, AddressError> {
        Self::parse(&format!("{kind}/{id}"))
    }

    /// The canonical text.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// The hash that stands for the address in frame headers.
    #[inline]
    pub fn hash(&self) -> AddressHash {
        self.0.hash
    }

    /// The kind that decides the route.
    #[inline]
    pub fn kind(&self) -> Kind<'_> {
        let start = usize::from(self.0.inner_at);
        let end = start + usize::from(self.0.kind_length);
        Kind(self.0.text.get(start..end).expect("checked by parse"))
    }

    /// The id under the kind.
    pub fn id(&self) -> &str {
        let start = usize::from(self.0.inner_at) + usize::from(self.0.kind_length) + 1;
        self.0.text.get(start..).expect("checked by parse")
    }

    /// The host of a hosted address (`host~inner`).
    pub fn host(&self) -> Option<&str> {
        let end = usize::from(self.0.inner_at).checked_sub(1)?;
        self.0.text.get(..end)
    }
}

/// Finds where the inner address starts and how long its kind is.
fn check(text: &str) -> Result<(u16, u16), AddressError> {
    if text.len() > ADDRESS_BYTES_MAX {
        return Err(AddressError::TooLong { length_bytes: text.len() });
    }
    if text.chars().any(char::is_control) {
        return Err(AddressError::ControlCharacter {
            text: excerpt(text).escape_debug().to_string(),
        });
    }
    let Some((head, id)) = text.split_once('/') else {
        return Err(AddressError::NoSeparator { text: excerpt(text) });
    };
    let (host, kind) = match head.rsplit_once('~') {
        Some((host, kind)) => (Some(host), kind),
        None => (None, head),
    };
    if kind.is_empty() || host.is_some_and(str::is_empty) {
        return Err(AddressError::EmptyKind { text: excerpt(text) });
    }
    if id.is_empty() {
        return Err(AddressError::EmptyId { text: excerpt(text) });
    }
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(character) = kind.chars().find(|c| !allowed(c)) {
        return Err(AddressError::KindCharacter { text: excerpt(text), character });
    }
    let inner_at = host.map_or(0, |host| host.len() + 1);
    let fits = "at most ADDRESS_BYTES_MAX";
    Ok((u16::try_from(inner_at).expect(fits), u16::try_from(kind.len()).expect(fits)))
}

fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::parse(text)
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.hash() == other.hash() && self.as_str() == other.as_str()
    }
}

impl Eq for Address {}

impl PartialOrd for Address {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Address {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl core::hash::Hash for Address {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.hash().hash(state);
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plain_address_has_kind_and_id() {
        let address = Address::parse("chat.room/general/annex").unwrap();
        assert_eq!(address.kind(), Kind("chat.room"));
        assert_eq!(address.id(), "general/annex");
        assert_eq!(address.host(), None);
    }

    #[test]
    fn a_hosted_address_routes_by_its_inner_kind() {
        let address = Address::parse("mesh-1~portal/alice").unwrap();
        assert_eq!(address.kind(), Kind("portal"));
        assert_eq!(address.id(), "alice");
        assert_eq!(address.host(), Some("mesh-1"));
    }

    #[test]
    fn malformed_addresses_name_their_fault() {
        assert!(matches!(Address::parse("room"), Err(AddressError::NoSeparator { .. })));
        assert!(matches!(Address::parse("/x"), Err(AddressError::EmptyKind { .. })));
        assert!(matches!(Address::parse("~portal/x"), Err(AddressError::EmptyKind { .. })));
        assert!(matches!(Address::parse("room/"), Err(AddressError::EmptyId { .. })));
        assert!(matches!(Address::parse("r m/x"), Err(AddressError::KindCharacter { .. })));
        assert!(matches!(Address::parse("room/\n"), Err(AddressError::ControlCharacter { .. })));
        let long = format!("room/{}", "x".repeat(ADDRESS_BYTES_MAX));
        assert!(matches!(Address::parse(&long), Err(AddressError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn the_parser_is_total_and_canonical(text in ".{0,80}") {
            if let Ok(address) = Address::parse(&text) {
                prop_assert_eq!(address.as_str(), &text);
                let host = address.host().map(|h| format!("{h}~")).unwrap_or_default();
                prop_assert_eq!(format!("{host}{}/{}", address.kind().0, address.id()), text);
            }
        }
    }
}
