//! Hashes: the stable ones that are part of the wire format, and maps with a fixed seed.
//!
//! `XXH3` with seed 0 names addresses, methods, types and ring points on the wire; it must never
//! change. The maps use `FxHash`: fast, seedless, so that a replayed run iterates in the same
//! order.

/// A map whose iteration order depends on its history only.
#[expect(clippy::disallowed_types, reason = "the one alias with a fixed hasher")]
pub type HashMap<K, V> = std::collections::HashMap<K, V, rustc_hash::FxBuildHasher>;
/// A set whose iteration order depends on its history only.
#[expect(clippy::disallowed_types, reason = "the one alias with a fixed hasher")]
pub type HashSet<K> = std::collections::HashSet<K, rustc_hash::FxBuildHasher>;

/// 128-bit `XXH3` of `bytes`.
pub const fn stable_u128(bytes: &[u8]) -> u128 {
    xxhash_rust::const_xxh3::xxh3_128(bytes)
}

/// 64-bit `XXH3` of `bytes`.
pub const fn stable_u64(bytes: &[u8]) -> u64 {
    xxhash_rust::const_xxh3::xxh3_64(bytes)
}

/// The lower 32 bits of [`stable_u64`].
#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
pub const fn stable_u32(bytes: &[u8]) -> u32 {
    stable_u64(bytes) as u32
}

/// [`stable_u128`] for run time: the same value, with the processor's vector instructions.
pub fn stable_u128_at_run_time(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_hash_never_changes() {
        assert_eq!(stable_u64(b"siloring"), 0xe60d_a413_56ab_0cf7);
        assert_eq!(
            stable_u128(b"chat.room/general"),
            stable_u128_at_run_time(b"chat.room/general")
        );
    }
}
