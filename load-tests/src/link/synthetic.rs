//! A cache of a Mistral-7B's shape whose elements follow from their position.

use std::ops::Range;

use kvasir_codec::KvSource;
use kvasir_types::Plane;

/// KV heads per layer, and elements per head.
pub(super) const HEADS: usize = 8;
pub(super) const DIM: usize = 128;

/// Elements that follow from their place: Laplacian, with a scale by channel between 0.25 and 2.
pub(crate) struct SyntheticKv;

impl KvSource for SyntheticKv {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let place = ((layer * 2 + plane as usize) * HEADS + head) as u64;
        for (token, row) in tokens.zip(out.chunks_exact_mut(DIM)) {
            let mut state = (place << 32 | token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (dim, value) in row.iter_mut().enumerate() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let u = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
                let scale = 0.25 * (1 + (dim * 7 + head) % 8) as f32;
                *value = -u.signum() * scale * (1.0 - 2.0 * u.abs()).max(1e-6).ln();
            }
        }
    }
}
