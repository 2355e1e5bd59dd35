//! Tiles of shared memory, one a warp: coefficients on their way to rows, or rows on their way to coefficients.

use kvasir_codec::ScopeView;
use kvasir_kernels::{TILE_STRIDE, TILE_THREADS};

use crate::{CudaError, Device};

/// Shared memory of a CTA with tiles of so many elements.
pub(crate) fn tile_bytes(columns: usize) -> usize {
    TILE_THREADS as usize / 32 * columns * TILE_STRIDE as usize * 4
}

/// Elements of a scope's widest head that is rotated: a tile holds it whole.
pub(crate) fn widest_rotated(view: &ScopeView<'_>) -> usize {
    let rotated = view.members.iter().filter(|member| member.rope.is_some());
    rotated.map(|member| member.dim).max().unwrap_or_default()
}

/// Whether the device has room for tiles with a rotated head of so many elements. Without this, it would refuse a launch after
/// others.
pub(crate) fn check_tiles<D: Device>(device: &D, elements: usize) -> Result<(), CudaError> {
    let (needed, max) = (tile_bytes(elements), device.shared_bytes_max());
    if needed <= max { Ok(()) } else { Err(CudaError::SharedMemory { elements, needed, max }) }
}
