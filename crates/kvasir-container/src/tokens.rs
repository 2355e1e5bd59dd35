//! The chunk's tokens: four byte planes (all low bytes, …, all high bytes), then zstd.
//!
//! Planes instead of interleaved words: the two high planes are runs of zeros and the low ones have their own
//! statistics.

use crate::{error::ContainerError, fields::wide, limits::TOKENS_ZSTD_LEVEL};

/// The compressed form.
pub(crate) fn compress(tokens: &[u32]) -> Result<Vec<u8>, ContainerError> {
    let plane = |p: usize| tokens.iter().map(move |t| t.to_le_bytes().get(p).copied().unwrap_or(0));
    let planes: Vec<u8> = (0..4).flat_map(plane).collect();
    zstd::bulk::compress(&planes, TOKENS_ZSTD_LEVEL).map_err(|_| ContainerError::Compress)
}

/// Decompresses exactly `count` tokens. Allocates four bytes per token, whatever the frame claims.
pub(crate) fn decompress(bytes: &[u8], count: usize) -> Result<Vec<u32>, ContainerError> {
    let size = count.saturating_mul(4);
    let wrong = || ContainerError::Tokens { expected: wide(size) };
    let mut planes = vec![0; size];
    let written = zstd::bulk::decompress_to_buffer(bytes, &mut planes[..]).map_err(|_| wrong())?;
    if written != size {
        return Err(wrong());
    }
    let mut tokens = vec![0u32; count];
    for (plane, shift) in planes.chunks_exact(count.max(1)).zip([0u32, 8, 16, 24]) {
        for (token, &byte) in tokens.iter_mut().zip(plane) {
            *token |= u32::from(byte).checked_shl(shift).unwrap_or(0);
        }
    }
    Ok(tokens)
}
