//! Hashes cut to the lengths that keys hold.

/// Bytes of a block hash in a key.
pub(super) const BLOCK_BYTES: usize = 4;
/// Leading bytes of seq_hashes and digests in keys; where the rest is needed it is in the value.
pub(super) const NAME_BYTES: usize = 8;
/// What ends the block hashes: sorts before every block hash.
pub(super) const END: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
/// What a block hash of zeros becomes: the smallest one.
pub(super) const ONE: [u8; BLOCK_BYTES] = 1u32.to_be_bytes();

/// Leading bytes of a name.
pub(super) fn name(hash: &[u8; 32]) -> &[u8; NAME_BYTES] {
    hash.first_chunk().unwrap_or_else(|| unreachable!("8 of 32"))
}

/// A block hash as keys hold it.
pub(super) fn short(hash: &[u8]) -> [u8; BLOCK_BYTES] {
    match hash.first_chunk::<BLOCK_BYTES>() {
        Some(&END) | None => ONE,
        Some(&bytes) => bytes,
    }
}
