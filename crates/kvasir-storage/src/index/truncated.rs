//! Hashes truncated to the lengths in keys.

/// Bytes of a block hash in a key.
pub(super) const BLOCK_BYTES: usize = 4;
/// Leading bytes of seq_hashes and digests in keys; the value has the rest where it is needed.
pub(super) const NAME_BYTES: usize = 8;
/// Terminator of the block hashes: sorts before every block hash.
pub(super) const END: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
/// Replacement of an all-zero block hash: the smallest other one.
pub(super) const ONE: [u8; BLOCK_BYTES] = 1u32.to_be_bytes();

/// Leading bytes of a name.
pub(super) fn name(hash: &[u8; 32]) -> &[u8; NAME_BYTES] {
    hash.first_chunk().unwrap_or_else(|| unreachable!("8 of 32"))
}

/// A block hash in its form in keys.
pub(super) fn short(hash: &[u8]) -> [u8; BLOCK_BYTES] {
    match hash.first_chunk::<BLOCK_BYTES>() {
        Some(&END) | None => ONE,
        Some(&bytes) => bytes,
    }
}
