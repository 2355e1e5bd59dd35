//! The engine's paged cache as strides: the destination of a rank's rows of every layer.

use std::ops::Range;

use kvasir_codec::MemberView;
use kvasir_kernels::{Dtype, PagePlane};

use crate::CudaError;

/// One plane (K or V) of one layer. Strides count elements; elements of a head are contiguous unless packed.
#[derive(Debug, Clone, PartialEq)]
pub struct PlaneLayout {
    /// Device address of the plane's first element.
    pub base: u64,
    /// From a block to the next.
    pub block_stride: u64,
    /// From one token of a block to the next.
    pub token_stride: u64,
    /// From one head to the next.
    pub head_stride: u64,
    /// `(elements per group, stride between groups)` if a head's elements are not contiguous.
    pub pack: Option<(u32, u64)>,
    /// Type of the values.
    pub dtype: Dtype,
    /// FP8 values are stored divided by this.
    pub scale: f32,
    /// Heads of the model that this rank holds (tensor parallelism); they are heads `0..len` of the plane.
    pub heads: Range<usize>,
}

/// The shape that the named layouts share.
#[derive(Debug, Clone, PartialEq)]
pub struct PageShape {
    /// Blocks of the cache.
    pub blocks: u64,
    /// Tokens per block, 16 to 256 in known engines.
    pub block_tokens: u32,
    /// Heads of the model that this rank holds.
    pub heads: Range<usize>,
    /// Elements per head.
    pub head_dim: u64,
    /// Type of the values.
    pub dtype: Dtype,
}

impl PageShape {
    fn row(&self) -> u64 {
        self.heads.len() as u64 * self.head_dim
    }

    fn block(&self) -> u64 {
        self.row() * u64::from(self.block_tokens)
    }

    fn plane(&self, base: u64, first_element: u64, strides: [u64; 3]) -> PlaneLayout {
        let [block_stride, token_stride, head_stride] = strides;
        PlaneLayout {
            base: base + first_element * self.dtype.bytes() as u64,
            block_stride,
            token_stride,
            head_stride,
            pack: None,
            dtype: self.dtype,
            scale: 1.0,
            heads: self.heads.clone(),
        }
    }

    /// FlashAttention's `[2][block][token][head][dim]`.
    pub fn flash(&self, base: u64) -> [PlaneLayout; 2] {
        let strides = [self.block(), self.row(), self.head_dim];
        [0, self.blocks * self.block()].map(|first| self.plane(base, first, strides))
    }

    /// FlashInfer's HND: `[block][2][head][token][dim]`.
    pub fn hnd(&self, base: u64) -> [PlaneLayout; 2] {
        let strides = [2 * self.block(), self.head_dim, u64::from(self.block_tokens) * self.head_dim];
        [0, self.block()].map(|first| self.plane(base, first, strides))
    }

    /// K and V of a head concatenated: `[block][token][head][2 dim]`.
    pub fn joined(&self, base: u64) -> [PlaneLayout; 2] {
        let strides = [2 * self.block(), 2 * self.row(), 2 * self.head_dim];
        [0, self.head_dim].map(|first| self.plane(base, first, strides))
    }

    /// vLLM's first layout: K `[block][head][dim / x][token][x]` with `x` elements of 16 bytes, V
    /// `[block][head][dim][token]`, two tensors.
    pub fn packed(&self, key_base: u64, value_base: u64) -> [PlaneLayout; 2] {
        let x = 16 / self.dtype.bytes() as u32;
        let tokens = u64::from(self.block_tokens);
        let head = tokens * self.head_dim;
        let k = self.plane(key_base, 0, [self.block(), u64::from(x), head]);
        let v = self.plane(value_base, 0, [self.block(), 1, head]);
        [
            PlaneLayout { pack: Some((x, tokens * u64::from(x))), ..k },
            PlaneLayout { pack: Some((1, tokens)), ..v },
        ]
    }

    /// Plain `[token][head][dim]`, two tensors: one block, as long as the cache.
    pub fn contiguous(&self, key_base: u64, value_base: u64) -> [PlaneLayout; 2] {
        let strides = [self.block(), self.row(), self.head_dim];
        [key_base, value_base].map(|base| self.plane(base, 0, strides))
    }

    /// Latent attention's `[block][token][latent + rope_dims]` (576 in DeepSeek's models); `head_dim` is the sum.
    pub fn latent(&self, base: u64, latent: u64) -> [PlaneLayout; 2] {
        let strides = [self.block(), self.head_dim, self.head_dim];
        [0, latent].map(|first| self.plane(base, first, strides))
    }
}

/// A rank's whole cache. Layers of other pipeline stages are `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct PagedKv {
    /// K and V of every layer of the model.
    pub layers: Vec<[Option<PlaneLayout>; 2]>,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks of the cache: entries of a block table are below.
    pub blocks: u64,
}

impl PagedKv {
    /// The record of a head's plane and its head in it; `None` if another rank holds it.
    pub(crate) fn place(&self, member: &MemberView) -> Option<(usize, u32)> {
        let plane = self.layers.get(member.layer)?[member.plane as usize].as_ref()?;
        let head = member.head.checked_sub(plane.heads.start)?;
        (member.head < plane.heads.end).then_some((2 * member.layer + member.plane as usize, head as u32))
    }

    /// Records of all planes, `[layer][K, V]`; those of missing planes are zeros and never used.
    pub(crate) fn records(&self) -> Result<Vec<PagePlane>, CudaError> {
        let block_tokens = self.block_tokens;
        if block_tokens == 0 {
            return Err(CudaError::Pages { what: "a block must have at least one token" });
        }
        let record = |plane: &Option<PlaneLayout>| {
            let Some(plane) = plane else { return Ok(PagePlane::default()) };
            if plane.dtype == Dtype::Fp8E4m3 && !(plane.scale.is_normal() && plane.scale > 0.0) {
                return Err(CudaError::Pages { what: "the scale of FP8 values must be positive" });
            }
            if plane.pack.is_some_and(|(elements, _)| elements == 0) {
                return Err(CudaError::Pages { what: "a packed group must have at least one element" });
            }
            if !plane.base.is_multiple_of(plane.dtype.bytes() as u64) {
                return Err(CudaError::Pages {
                    what: "a plane's address must be a multiple of its element size",
                });
            }
            let (pack, pack_stride) = plane.pack.unwrap_or((0, 0));
            Ok(PagePlane {
                base: plane.base,
                block_stride: plane.block_stride,
                token_stride: plane.token_stride,
                head_stride: plane.head_stride,
                pack_stride,
                pack,
                block_tokens,
                dtype: plane.dtype as u32,
                scale_inverse: 1.0 / plane.scale,
                scale: plane.scale,
                reserved: 0,
            })
        };
        self.layers.iter().flatten().map(record).collect()
    }

    /// Checks that a sequence's block table covers `slots` and stays inside the cache.
    pub(crate) fn check_blocks(&self, blocks: &[i32], slots: Range<u64>) -> Result<(), CudaError> {
        if slots.end.div_ceil(u64::from(self.block_tokens.max(1))) > blocks.len() as u64 {
            return Err(CudaError::Pages { what: "the block table is too short for the requested tokens" });
        }
        let inside = |block: &i32| u64::try_from(*block).is_ok_and(|block| block < self.blocks);
        if blocks.iter().all(inside) {
            Ok(())
        } else {
            Err(CudaError::Pages { what: "a block of the block table is outside the cache" })
        }
    }
}
