//! An engine's cache in memory of the emulated device: every named layout, page size and type, whole and by ranks. Pages start
//! as poison; where a row lies is computed here once more, from the layout's index order and without strides.

use std::ops::Range;

use kvasir_kernels::Dtype;
use kvasir_types::{KvLayout, ModelSpec};

use super::{
    common::Noise,
    emulated::{EmulatedDevice, EmulatedMemory},
};
use crate::{Device, DeviceMemory, DeviceReadback, PageShape, PagedKv, PlaneLayout};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Layout {
    Flash,
    Hnd,
    Joined,
    Packed,
    Contiguous,
}

pub(super) const POISON: u8 = 0xa5;
const BLOCKS: u64 = 24;

/// A rank's cache on the emulated device.
pub(super) struct Cache {
    pub(super) memory: EmulatedMemory,
    pub(super) bytes: usize,
    pub(super) pages: PagedKv,
    pub(super) table: Vec<i32>,
    pub(super) layout: Layout,
    pub(super) dtype: Dtype,
    /// First byte, shape, whether latent, of every layer that is there.
    pub(super) layers: Vec<Option<(usize, PageShape, Option<u64>)>>,
    pub(super) first_slot: u32,
}

impl Cache {
    /// `layers` and heads (halves of the model's, or all) that the rank holds.
    pub(super) fn new(
        spec: &ModelSpec,
        device: &EmulatedDevice,
        how: (Layout, u32, Dtype),
        layers: Range<usize>,
        half: Option<usize>,
    ) -> Self {
        let (layout, block_tokens, dtype) = how;
        let (mut bytes, mut own) = (64usize, Vec::new());
        for (index, layer) in spec.layers.iter().enumerate() {
            let planes = layer.layout.planes();
            if planes[0].0 == 0 || !layers.contains(&index) {
                own.push(None);
                continue;
            }
            let latent = matches!(layer.layout, KvLayout::Mla { .. }).then_some(planes[0].1 as u64);
            let (all, dim) = planes[0];
            let heads = match half {
                None => 0..all,
                Some(0) => 0..all.div_ceil(2),
                Some(_) => all.div_ceil(2)..all,
            };
            let head_dim = if latent.is_some() { (planes[0].1 + planes[1].1) as u64 } else { dim as u64 };
            let shape = PageShape { blocks: BLOCKS, block_tokens, heads, head_dim, dtype };
            let elements = 2 * BLOCKS as usize * block_tokens as usize * all * head_dim as usize;
            own.push(Some((bytes, shape, latent)));
            bytes += elements * dtype.bytes() + 64;
        }
        let memory = device.upload("cache", &vec![POISON; bytes]).expect("host memory");
        let planes = own.iter().map(|layer| {
            let Some((start, shape, latent)) = layer else { return [None, None] };
            let base = memory.address() + *start as u64;
            planes_of(layout, shape, *latent, base)
                .map(|plane| (!shape.heads.is_empty()).then_some(PlaneLayout { scale: 0.5, ..plane }))
        });
        let pages = PagedKv {
            layers: planes.collect(),
            block_tokens: if layout == Layout::Contiguous {
                block_tokens * BLOCKS as u32
            } else {
                block_tokens
            },
            blocks: if layout == Layout::Contiguous { 1 } else { BLOCKS },
        };
        let mut order: Vec<i32> = (0..BLOCKS as i32).collect();
        let mut noise = Noise::new(u64::from(block_tokens));
        for i in (1..order.len()).rev() {
            order.swap(i, ((noise.uniform() + 0.5) * (i + 1) as f32) as usize % (i + 1));
        }
        let table = if layout == Layout::Contiguous { vec![0] } else { order };
        Self { memory, bytes, pages, table, layout, dtype, layers: own, first_slot: 5 }
    }

    /// Byte of an element in the cache, by the layout's index order.
    pub(super) fn place(
        &self,
        layer: usize,
        plane: usize,
        head: usize,
        token: usize,
        d: usize,
    ) -> Option<usize> {
        let (start, shape, latent) = self.layers[layer].as_ref()?;
        let head = shape.heads.contains(&head).then(|| head - shape.heads.start)?;
        let slot = token + self.first_slot as usize;
        let (bt, heads, dim) = (shape.block_tokens as usize, shape.heads.len(), shape.head_dim as usize);
        let (block, t) = if self.layout == Layout::Contiguous {
            (slot / bt, slot % bt)
        } else {
            (self.table[slot / bt] as usize, slot % bt)
        };
        let blocks = shape.blocks as usize;
        let x = 16 / self.dtype.bytes();
        let element = match (latent, self.layout) {
            (Some(latent), _) => (block * bt + t) * dim + d + plane * *latent as usize,
            (_, Layout::Packed) if !dim.is_multiple_of(x) => {
                (((plane * blocks + block) * bt + t) * heads + head) * dim + d
            }
            (_, Layout::Flash | Layout::Contiguous) => {
                (((plane * blocks + block) * bt + t) * heads + head) * dim + d
            }
            (_, Layout::Hnd) => (((block * 2 + plane) * heads + head) * bt + t) * dim + d,
            (_, Layout::Joined) => (((block * bt + t) * heads + head) * 2 + plane) * dim + d,
            (_, Layout::Packed) if plane == 0 => {
                (((block * heads + head) * (dim / x) + d / x) * bt + t) * x + d % x
            }
            (_, Layout::Packed) => blocks * bt * heads * dim + ((block * heads + head) * dim + d) * bt + t,
        };
        Some(start + element * self.dtype.bytes())
    }

    pub(super) fn content(&self, device: &EmulatedDevice) -> Vec<u8> {
        device.read_back(&self.memory, 0, self.bytes).and_then(DeviceReadback::bytes).expect("host memory")
    }
}

fn planes_of(layout: Layout, shape: &PageShape, latent: Option<u64>, base: u64) -> [PlaneLayout; 2] {
    let block = u64::from(shape.block_tokens) * shape.heads.len() as u64 * shape.head_dim;
    let second = base + shape.blocks * block * shape.dtype.bytes() as u64;
    let x = 16 / shape.dtype.bytes() as u64;
    match (latent, layout) {
        (Some(latent), _) => shape.latent(base, latent),
        (_, Layout::Packed) if !shape.head_dim.is_multiple_of(x) => shape.flash(base),
        (_, Layout::Flash) => shape.flash(base),
        (_, Layout::Hnd) => shape.hnd(base),
        (_, Layout::Joined) => shape.joined(base),
        (_, Layout::Packed) => shape.packed(base, second),
        (_, Layout::Contiguous) => shape.contiguous(base, second),
    }
}
