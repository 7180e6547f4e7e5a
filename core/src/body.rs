//! Bodies: aligned, pooled bytes that rkyv archives are read from in place.
//!
//! A [`Body`] owns its bytes and moves between threads. Dropped bodies of up to
//! [`POOLED_BYTES_MAX`] go to a bounded free list of their thread, so that a steady flow of
//! messages allocates nothing.

use core::cell::RefCell;
use core::fmt;

use rkyv::SerializeUnsized;
use rkyv::api::low::{self, LowDeserializer, LowSerializer, LowValidator};
use rkyv::rancor::{self, Strategy};
use rkyv::ser::allocator::ArenaHandle;
use rkyv::ser::{Allocator, Serializer, Writer};
use rkyv::util::{AlignedVec, with_arena};

/// Bodies with a larger capacity are freed, not pooled: a burst of large ones must not stay
/// resident.
pub const POOLED_BYTES_MAX: usize = 4 * 1024;
/// Bodies that one thread keeps.
const POOL_MAX: usize = 4 * 1024;

thread_local! {
    static POOL: RefCell<Vec<AlignedVec>> = const { RefCell::new(Vec::new()) };
}

#[inline]
fn pooled() -> AlignedVec {
    POOL.with(|pool| pool.borrow_mut().pop()).unwrap_or_default()
}

/// What rkyv needs to write a value into a [`Body`]. Implemented for every such type; shared
/// pointers are none, as writing them needs a table that is built anew for every body.
pub trait Encode:
    for<'a> rkyv::Serialize<LowSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>
{
}

impl<T> Encode for T where
    T: for<'a> rkyv::Serialize<LowSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>
{
}

/// What rkyv needs to read a value's archived form in place, checked. Implemented for every such
/// type.
pub trait Decode: rkyv::Archive<Archived: Checked> {}

impl<T> Decode for T where T: rkyv::Archive<Archived: Checked> {}

/// An archived form that can be validated. Implemented for every such type.
pub trait Checked:
    rkyv::Portable + for<'a> rkyv::bytecheck::CheckBytes<LowValidator<'a, rancor::Error>>
{
}

impl<T> Checked for T where
    T: rkyv::Portable + for<'a> rkyv::bytecheck::CheckBytes<LowValidator<'a, rancor::Error>>
{
}

/// A value that can be taken out of its archived form. Implemented for every such type.
pub trait DecodeOwned:
    Decode<Archived: rkyv::Deserialize<Self, LowDeserializer<rancor::Error>>> + Sized
{
}

impl<T> DecodeOwned for T where
    T: Decode<Archived: rkyv::Deserialize<T, LowDeserializer<rancor::Error>>> + Sized
{
}

/// The bytes are no archive of the type: truncated, garbage, or of another layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no valid archive of the expected type")]
pub struct Undecodable;

/// Aligned bytes of one message, owned.
pub struct Body(AlignedVec);

impl Body {
    /// No bytes. Allocates nothing.
    #[inline]
    pub fn empty() -> Self {
        Self(AlignedVec::new())
    }

    /// A copy of `bytes`.
    #[inline]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = pooled();
        buffer.extend_from_slice(bytes);
        Self(buffer)
    }

    /// The archive of `value`.
    ///
    /// # Panics
    /// If rkyv cannot archive the value, which for the types allowed on the wire (no shared
    /// pointers, no custom serializers that fail) cannot happen.
    pub fn encode<T: Encode>(value: &T) -> Self {
        let archived = with_arena(|arena| {
            let mut serializer = Serializer::new(pooled(), arena.acquire(), ());
            serialize(value, Strategy::<_, rancor::Error>::wrap(&mut serializer))
                .map(|_at| serializer.into_writer())
        });
        Self(archived.expect("wire types archive without failing"))
    }

    /// Takes the bytes of an aligned buffer without copying.
    #[inline]
    pub const fn from_aligned(buffer: AlignedVec) -> Self {
        Self(buffer)
    }

    /// The archived value, validated, in place.
    pub fn access<T: Decode>(&self) -> Result<&T::Archived, Undecodable> {
        access::<T>(&self.0)
    }

    /// The value, validated and taken out.
    pub fn decode<T: DecodeOwned>(&self) -> Result<T, Undecodable> {
        decode::<T>(&self.0)
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes the archive of `value`. One that lies in memory as in its archive is copied at once: rkyv
/// does that with slices, and writes a single value piece by piece.
#[inline]
fn serialize<T, S>(value: &T, serializer: &mut S) -> Result<usize, S::Error>
where
    T: rkyv::Serialize<S>,
    S: rancor::Fallible + Writer + Allocator + ?Sized,
{
    if T::COPY_OPTIMIZATION.is_enabled() {
        core::slice::from_ref(value).serialize_unsized(serializer)
    } else {
        value.serialize_unsized(serializer)
    }
}

/// The archived value in `bytes`, validated, in place. `bytes` must be aligned to 16.
#[expect(clippy::map_err_ignore, reason = "rkyv's error has no text in release builds")]
pub fn access<T: Decode>(bytes: &[u8]) -> Result<&T::Archived, Undecodable> {
    low::access::<T::Archived, rancor::Error>(bytes).map_err(|_| Undecodable)
}

/// The value in `bytes`, validated and taken out. `bytes` must be aligned to 16.
pub fn decode<T: DecodeOwned>(bytes: &[u8]) -> Result<T, Undecodable> {
    owned(access::<T>(bytes)?)
}

/// The value of a validated archive, taken out.
#[expect(clippy::map_err_ignore, reason = "rkyv's error has no text in release builds")]
pub fn owned<T: DecodeOwned>(archived: &T::Archived) -> Result<T, Undecodable> {
    low::deserialize::<T, rancor::Error>(archived).map_err(|_| Undecodable)
}

impl Drop for Body {
    #[inline]
    fn drop(&mut self) {
        if self.0.capacity() == 0 || self.0.capacity() > POOLED_BYTES_MAX {
            return;
        }
        let mut buffer = core::mem::take(&mut self.0);
        // The thread may be ending: its list is gone then, and the buffer is simply freed.
        let _gone = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < POOL_MAX {
                buffer.clear();
                pool.push(buffer);
            }
        });
    }
}

impl Clone for Body {
    fn clone(&self) -> Self {
        Self::copy_of(&self.0)
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Body({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_its_archive() {
        let value = (7u64, String::from("a line of text that is not inline"), vec![1u32, 2]);
        let body = Body::encode(&value);
        assert_eq!(body.as_slice().as_ptr().align_offset(16), 0);
        assert_eq!(body.decode::<(u64, String, Vec<u32>)>(), Ok(value));
    }

    #[test]
    fn a_value_that_is_copied_at_once_has_the_archive_that_rkyv_gives_it() {
        fn archive<T: Encode>(value: &T) -> AlignedVec {
            let archive = with_arena(|arena| {
                let arena = arena.acquire();
                low::to_bytes_in_with_alloc::<_, _, rancor::Error>(value, pooled(), arena)
            });
            archive.unwrap()
        }
        let (bytes, words) = ([7u8; 64], [1u64, 2, 3]);
        assert_eq!(Body::encode(&bytes).as_slice(), archive(&bytes).as_slice());
        assert_eq!(Body::encode(&words).as_slice(), archive(&words).as_slice());
        assert_eq!(Body::encode(&words).decode::<[u64; 3]>(), Ok(words));
    }

    #[test]
    fn unit_takes_no_bytes() {
        let body = Body::encode(&());
        assert!(body.is_empty());
        assert_eq!(body.decode::<()>(), Ok(()));
    }

    #[test]
    fn garbage_is_undecodable() {
        let body = Body::copy_of(&[0xff; 12]);
        assert_eq!(body.decode::<(u64, String)>(), Err(Undecodable));
        assert!(Body::empty().access::<String>().is_err());
    }

    #[test]
    fn dropped_bodies_are_used_again() {
        let first = Body::copy_of(&[1; 100]);
        let place = first.as_slice().as_ptr();
        drop(first);
        let second = Body::copy_of(&[2; 50]);
        assert_eq!(second.as_slice(), &[2; 50]);
        assert_eq!(second.as_slice().as_ptr(), place);
    }
}
