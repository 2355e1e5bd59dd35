//! A dense f32 cache on the device, `[layer][plane][token][head][element]`, as the intermediate form between
//! host rows and kernels.

use kvasir_kernels::Dtype;
use kvasir_types::ModelSpec;

use crate::{PageShape, PagedKv};

/// The positions of a model's planes in it.
#[derive(Debug)]
pub(crate) struct Dense<'s> {
    spec: &'s ModelSpec,
    tokens: usize,
    /// First element of every plane, two per layer.
    pub(crate) starts: Vec<usize>,
}

impl<'s> Dense<'s> {
    pub(crate) fn new(spec: &'s ModelSpec, tokens: usize) -> Self {
        let planes = spec.layers.iter().flat_map(|layer| layer.layout.planes());
        let starts = planes.scan(0, |at, (heads, dim)| {
            let start = *at;
            *at += heads * dim * tokens;
            Some(start)
        });
        Self { spec, tokens, starts: starts.collect() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.spec.elements_per_token() * self.tokens * 4
    }

    /// The cache at an address, as pages: one block, as long as the cache.
    pub(crate) fn pages(&self, address: u64) -> PagedKv {
        let layers = self.spec.layers.iter().zip(self.starts.as_chunks::<2>().0).map(|(layer, starts)| {
            let plane = |plane: usize| {
                let (heads, dim) = layer.layout.planes()[plane];
                let shape = PageShape {
                    blocks: 1,
                    block_tokens: self.tokens as u32,
                    heads: 0..heads,
                    head_dim: dim as u64,
                    dtype: Dtype::F32,
                };
                let base = address + 4 * starts[plane] as u64;
                let [layout, _] = shape.contiguous(base, base);
                (heads > 0).then_some(layout)
            };
            [plane(0), plane(1)]
        });
        PagedKv { layers: layers.collect(), block_tokens: self.tokens.max(1) as u32, blocks: 1 }
    }
}
