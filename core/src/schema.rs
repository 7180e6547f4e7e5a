//! Schemas: what a body is, so that one layout is never read as another.
//!
//! rkyv's validation protects memory, not meaning: bytes of one layout were accepted as another in
//! four of six ordinary changes tried. So each frame names its body's type, version and layout
//! fingerprint. A receiver reads exactly what it has itself, takes up what was declared to be an
//! older version of it ([`versions`](crate::versions)), and answers `Incompatible` to all else.

use core::fmt;

use crate::hash::stable_u64;
use crate::versions::Older;

/// Type, version and layout fingerprint of a body: 64 bits in the frame header.
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
)]
pub struct Schema {
    /// Hash of the stable type name.
    pub type_id: u32,
    /// The declared version.
    pub version: u16,
    /// Hash of the layout: field names, their types, and the archived size and alignment.
    pub fingerprint: u16,
}

impl Schema {
    /// No body at all, or one that only the protocol itself reads.
    pub const NONE: Self = Self { type_id: 0, version: 0, fingerprint: 0 };

    /// The schema of the type called `name`, version `version`, laid out as [`Layout::LAYOUT`]
    /// says.
    #[expect(clippy::cast_possible_truncation, reason = "the hash is folded")]
    pub const fn of(name: &str, version: u16, layout: u64) -> Self {
        let folded = layout ^ (layout >> 32);
        Self {
            type_id: crate::hash::stable_u32(name.as_bytes()),
            version,
            fingerprint: (folded ^ (folded >> 16)) as u16,
        }
    }

    /// As in the frame header.
    pub const fn to_bits(self) -> u64 {
        self.type_id as u64 | (self.version as u64) << 32 | (self.fingerprint as u64) << 48
    }

    /// From the frame header.
    #[expect(clippy::cast_possible_truncation, reason = "the fields are cut out of the bits")]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            type_id: bits as u32,
            version: (bits >> 32) as u16,
            fingerprint: (bits >> 48) as u16,
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:08x}v{}:{:04x}", self.type_id, self.version, self.fingerprint)
    }
}

/// The layout of a type that may travel: the only way into a frame or a stored record.
///
/// Implemented for fixed-size numbers, `bool`, `char`, `String`, `Box`, `Vec`, `Option`, `Result`,
/// arrays and small tuples of such, and by `#[message]` for structs and enums of such. Deliberately
/// not for `usize`, maps, sets and shared pointers: their archives depend on the machine, on a
/// random order, or have had memory-safety faults in their checks.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel",
    label = "has no stable layout",
    note = "sized numbers, `bool`, `char`, `String`, `Box`, `Vec`, `Option`, `Result`, arrays and \
            tuples of up to four travel, and structs and enums with `#[message(type = \"…\")]`"
)]
pub trait Layout {
    /// Hash of the whole layout, nested types included.
    const LAYOUT: u64;
}

/// Mixes `next` into the layout hash `hash`: order matters.
pub const fn mix(hash: u64, next: u64) -> u64 {
    (hash ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

macro_rules! leaf {
    ($($type:ty),+) => { $(impl Layout for $type {
        const LAYOUT: u64 = stable_u64(stringify!($type).as_bytes());
    })+ };
}

leaf!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, bool, char, String, ());

macro_rules! wrapper {
    ($($type:ident),+) => { $(impl<T: Layout> Layout for $type<T> {
        const LAYOUT: u64 = mix(stable_u64(stringify!($type).as_bytes()), T::LAYOUT);
    })+ };
}

wrapper!(Vec, Option, Box);

impl<T: Layout, E: Layout> Layout for Result<T, E> {
    const LAYOUT: u64 = mix(mix(stable_u64(b"Result"), T::LAYOUT), E::LAYOUT);
}

impl<T: Layout, const N: usize> Layout for [T; N] {
    const LAYOUT: u64 = mix(mix(stable_u64(b"array"), N as u64), T::LAYOUT);
}

macro_rules! tuple {
    ($($name:ident)+) => { impl<$($name: Layout),+> Layout for ($($name,)+) {
        const LAYOUT: u64 = {
            let mut hash = stable_u64(b"tuple");
            $(hash = mix(hash, $name::LAYOUT);)+
            hash
        };
    } };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

/// A type with a stable name that travels by itself: to a hub, or as stored state.
///
/// Made by `#[message(type = "chat.line", version = 1)]`.
pub trait Message: Layout + crate::body::Encode + crate::body::DecodeOwned + 'static {
    /// The stable name, independent of the Rust type's.
    const TYPE: &'static str;
    /// The declared version.
    const VERSION: u16;
    /// Type, version and fingerprint.
    const SCHEMA: Schema = Schema::of(Self::TYPE, Self::VERSION, Self::LAYOUT);
    /// The versions that it was, as far as they are still understood.
    const OLDER: &'static [Older] = &[];
}

impl Message for () {
    const TYPE: &'static str = "siloring.unit";
    const VERSION: u16 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_fits_the_header_and_tells_layouts_apart() {
        let one = Schema::of("chat.line", 1, <(String, u64)>::LAYOUT);
        let two = Schema::of("chat.line", 1, <(u64, String)>::LAYOUT);
        assert_eq!(Schema::from_bits(one.to_bits()), one);
        assert_eq!(one.type_id, two.type_id);
        assert_ne!(one.fingerprint, two.fingerprint, "order is part of the layout");
        assert_ne!(<Vec<u32>>::LAYOUT, <Vec<u64>>::LAYOUT);
    }
}
