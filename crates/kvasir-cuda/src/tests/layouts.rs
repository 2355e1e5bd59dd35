//! Engines' caches: every named layout, page size and type, for decode and encode, whole and by ranks. Pages start as
//! poison; where a row lies is computed here once more, from the layout's index order and without strides.

use std::{ops::Range, sync::Arc};

use half::{bf16, f16};
use kvasir_codec::{KvBuffer, container::Head};
use kvasir_kernels::Dtype;
use kvasir_types::{ChainLink, KvLayout, Level, Loss, Plane};

use super::{
    common::{Noise, Setup, cache, setups},
    emulated::{EmulatedDevice, EmulatedMemory},
    encode::assert_nearly_the_same,
};
use crate::{
    ChunkRequest, Device, DeviceMemory, DeviceReadback, EncodeRequest, KernelDecoder, KernelEncoder,
    PageShape, PagedKv, PlaneLayout,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    Flash,
    Hnd,
    Joined,
    Packed,
    Contiguous,
}

const POISON: u8 = 0xa5;
const BLOCKS: u64 = 24;

/// A rank's cache on the emulated device.
struct Cache {
    memory: EmulatedMemory,
    bytes: usize,
    pages: PagedKv,
    table: Vec<i32>,
    layout: Layout,
    dtype: Dtype,
    /// First byte, shape, whether latent, of every layer that is there.
    layers: Vec<Option<(usize, PageShape, Option<u64>)>>,
    first_slot: u32,
}

impl Cache {
    /// `layers` and heads (halves of the model's, or all) that the rank holds.
    fn new(
        setup: &Setup,
        device: &EmulatedDevice,
        how: (Layout, u32, Dtype),
        layers: Range<usize>,
        half: Option<usize>,
    ) -> Self {
        let (layout, block_tokens, dtype) = how;
        let (mut bytes, mut own) = (64usize, Vec::new());
        for (index, layer) in setup.spec.layers.iter().enumerate() {
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
    fn place(&self, layer: usize, plane: usize, head: usize, token: usize, d: usize) -> Option<usize> {
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

    fn content(&self, device: &EmulatedDevice) -> Vec<u8> {
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

/// A value as a cache of this type keeps it, and back. FP8 has a scale of 1/2.
fn stored(dtype: Dtype, value: f32) -> (Vec<u8>, f32) {
    match dtype {
        Dtype::F32 => (value.to_le_bytes().to_vec(), value),
        Dtype::F16 => (f16::from_f32(value).to_le_bytes().to_vec(), f16::from_f32(value).to_f32()),
        Dtype::Bf16 => (bf16::from_f32(value).to_le_bytes().to_vec(), bf16::from_f32(value).to_f32()),
        Dtype::Fp8E4m3 => {
            // The nearest of all 256, ties to even codes: slow and obvious.
            let codes = (0u8..=255).filter(|code| code & 0x7f != 0x7f);
            let off = |code: u8| (f64::from(e4m3(code)) - f64::from(value * 2.0)).abs();
            let sign = |code: u8| (code >> 7 == 1) != value.is_sign_negative();
            let best = codes.min_by(|a, b| {
                off(*a).total_cmp(&off(*b)).then((a & 1).cmp(&(b & 1))).then(sign(*a).cmp(&sign(*b)))
            });
            let best = best.expect("there are some");
            (vec![best], e4m3(best) * 0.5)
        }
    }
}

fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = if exponent == 0 {
        mantissa / 8.0 * 2f32.powi(-6)
    } else {
        (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
    };
    if code >> 7 == 1 { -size } else { size }
}

/// Every element of the model: layer, plane, head, token, element, value.
fn each(setup: &Setup, kv: &KvBuffer, mut visit: impl FnMut(usize, usize, usize, usize, usize, f32)) {
    for (layer, shape) in setup.spec.layers.iter().enumerate() {
        for plane in Plane::ALL {
            let (heads, dim) = shape.layout.planes()[plane as usize];
            for head in 0..heads {
                for (index, value) in kv.rows(layer, plane, head).iter().enumerate() {
                    visit(layer, plane as usize, head, index / dim, index % dim, *value);
                }
            }
        }
    }
}

fn decode_and_compare(
    setup: &Setup,
    object: &[u8],
    how: (Layout, u32, Dtype),
    layers: Range<usize>,
    half: Option<usize>,
) {
    let head = Head::parse(object).expect("whole");
    let tokens = head.header.token_count as usize;
    let made =
        KernelDecoder::new(EmulatedDevice::default(), Arc::clone(&setup.spec), Arc::clone(&setup.profile));
    let decoder = made.expect("fits").expect("works");
    let cache = Cache::new(setup, decoder.device(), how, layers, half);
    let request = ChunkRequest {
        head: &head,
        object_prefix: object,
        scopes: decoder.all_scopes(Level(1)),
        tokens: 0..tokens,
        blocks: &cache.table,
        first_slot: cache.first_slot,
    };
    // SAFETY: the cache is of the layout that its planes say.
    let mut pending = unsafe { decoder.submit(&[request], &cache.pages) }.expect("submits");
    for layer in 0..setup.spec.layers.len() {
        pending.wait_layer(layer).expect("decodes");
    }
    pending.wait().expect("decodes");
    let mut expected = vec![POISON; cache.bytes];
    let cpu = setup.decode(object, 1).expect("decodes");
    each(setup, &cpu, |layer, plane, head, token, d, value| {
        if let Some(at) = cache.place(layer, plane, head, token, d) {
            let (bytes, _) = stored(how.2, value);
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    });
    let found = cache.content(decoder.device());
    let different = expected.iter().zip(&found).position(|(a, b)| a != b);
    if setup.profile.is_direct() {
        assert_eq!(different, None, "{how:?} {half:?}");
    } else {
        // Sums in another order may round to the neighbour; poison stays poison.
        let written = |bytes: &[u8]| bytes.iter().filter(|b| **b != POISON).count();
        assert!(written(&found).abs_diff(written(&expected)) < 2 + found.len() / 500, "{how:?} {half:?}");
    }
}

#[test]
fn every_layout_gets_its_rows_and_nothing_else() {
    let setup = &setups()[0];
    let text = Noise::new(2).tokens(70);
    let object = setup.encode(&text, 9, &cache(&setup.spec, &text, 5));
    let layouts = [Layout::Flash, Layout::Hnd, Layout::Joined, Layout::Packed, Layout::Contiguous];
    let sizes = [16, 32, 64, 128, 256];
    for (index, layout) in layouts.into_iter().enumerate() {
        for (next, dtype) in [Dtype::Bf16, Dtype::F16, Dtype::Fp8E4m3].into_iter().enumerate() {
            decode_and_compare(setup, &object, (layout, sizes[(index + next) % 5], dtype), 0..5, None);
        }
    }
    // Through scratch (anchors) and through the product.
    for setup in &setups()[1..3] {
        let object = setup.encode(&text, 9, &cache(&setup.spec, &text, 5));
        decode_and_compare(setup, &object, (Layout::Hnd, 32, Dtype::Bf16), 0..5, None);
        decode_and_compare(setup, &object, (Layout::Packed, 16, Dtype::F32), 0..5, None);
    }
}

#[test]
fn ranks_write_their_own_heads_and_layers_alone() {
    for setup in &setups()[..3] {
        let text = Noise::new(2).tokens(50);
        let object = setup.encode(&text, 9, &cache(&setup.spec, &text, 5));
        for half in [None, Some(0), Some(1)] {
            decode_and_compare(setup, &object, (Layout::Flash, 16, Dtype::Bf16), 0..2, half);
            decode_and_compare(setup, &object, (Layout::Joined, 16, Dtype::Bf16), 2..5, half);
        }
    }
}

/// A cache that holds a chunk, and the chunk as the cache's type keeps it.
fn filled(
    setup: &Setup,
    device: &EmulatedDevice,
    kv: &KvBuffer,
    how: (Layout, u32, Dtype),
    layers: Range<usize>,
    half: Option<usize>,
) -> (Cache, KvBuffer) {
    let mut cache = Cache::new(setup, device, how, layers, half);
    let (mut bytes, mut kept) = (cache.content(device), kv.clone());
    each(setup, kv, |layer, plane, head, token, d, value| {
        let (code, back) = stored(how.2, value);
        let dim = setup.spec.layers[layer].layout.planes()[plane].1;
        kept.rows_mut(layer, Plane::ALL[plane], head)[token * dim + d] = back;
        if let Some(at) = cache.place(layer, plane, head, token, d) {
            bytes[at..at + code.len()].copy_from_slice(&code);
        }
    });
    let old = cache.memory.address();
    cache.memory = device.upload("cache", &bytes).expect("host memory");
    let moved = cache.memory.address();
    for plane in cache.pages.layers.iter_mut().flatten().flatten() {
        plane.base = plane.base - old + moved;
    }
    (cache, kept)
}

fn request<'a>(tokens: &'a [u32], cache: &'a Cache) -> EncodeRequest<'a> {
    EncodeRequest {
        tokens,
        preceding_token: Some(3),
        first_position: 9,
        link: ChainLink::first([9; 32].into()),
        beneath: Loss::NONE,
        blocks: &cache.table,
        first_slot: cache.first_slot,
    }
}

fn encoder(setup: &Setup) -> KernelEncoder<EmulatedDevice> {
    let made =
        KernelEncoder::new(EmulatedDevice::default(), Arc::clone(&setup.spec), Arc::clone(&setup.profile));
    made.expect("the profile fits").expect("the emulator works")
}

#[test]
fn every_layout_and_type_encodes_to_the_bytes_of_the_cpu() {
    let (setup, text) = (&setups()[0], Noise::new(2).tokens(70));
    let kv = cache(&setup.spec, &text, 5);
    let encoder = encoder(setup);
    let layouts = [Layout::Flash, Layout::Hnd, Layout::Joined, Layout::Packed, Layout::Contiguous];
    for (index, layout) in layouts.into_iter().enumerate() {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::Fp8E4m3] {
            let how = (layout, [16, 32, 64, 128, 256][index], dtype);
            let (cache, kept) = filled(setup, encoder.device(), &kv, how, 0..5, None);
            // SAFETY: the cache is of the layout that its planes say.
            let objects =
                unsafe { encoder.encode_from(&[request(&text, &cache)], &cache.pages) }.expect("encodes");
            assert!(objects[0].0 == setup.encode(&text, 9, &kept), "{how:?}: other bytes");
        }
    }
}

#[test]
fn several_chunks_in_one_launch_are_those_of_one_each() {
    let setup = &setups()[1];
    let text = Noise::new(2).tokens(70);
    let encoder = encoder(setup);
    let how = (Layout::Flash, 16, Dtype::Bf16);
    let (cache, kept) = filled(setup, encoder.device(), &cache(&setup.spec, &text, 5), how, 0..5, None);
    let whole = request(&text, &cache);
    let first = EncodeRequest { tokens: &text[..32], ..whole };
    // SAFETY: the cache is of the layout that its planes say.
    let objects = unsafe { encoder.encode_from(&[first, whole], &cache.pages) }.expect("encodes");
    assert!(objects[0].0 == setup.encode(&text[..32], 9, &kept.slice(0..32)), "other bytes");
    assert!(objects[1].0 == setup.encode(&text, 9, &kept), "other bytes");
}

/// Ranks of a tensor- or pipeline-parallel engine: shares of each, added in rank order.
#[test]
fn ranks_together_encode_what_one_would() {
    for (index, setup) in setups()[..4].iter().enumerate() {
        let (text, encoder) = (Noise::new(2).tokens(60), encoder(setup));
        let mut kv = cache(&setup.spec, &text, 5);
        if index == 1 {
            kv.rows_mut(4, Plane::K, 2)[7] = f32::NAN; // of one rank alone
        }
        let how = (Layout::Flash, 16, Dtype::Bf16);
        let shares = [(0..2, Some(0)), (0..2, Some(1)), (2..5, Some(0)), (2..5, Some(1))];
        let ranks: Vec<_> = (shares.iter())
            .map(|(layers, half)| filled(setup, encoder.device(), &kv, how, layers.clone(), *half))
            .collect();
        let requests = [request(&text, &ranks[0].0)];
        // SAFETY: the caches are of the layouts that their planes say.
        let partial = |cache: &Cache| unsafe { encoder.partial(&requests, &cache.pages) }.expect("sums");
        let mut sum = partial(&ranks[0].0);
        for (cache, _) in &ranks[1..] {
            sum.add(partial(cache)).expect("of the same chunk");
        }
        let named = encoder.exact_spans(&requests, &sum).expect("says");
        assert_eq!(named.is_empty(), index != 1);
        for (cache, _) in ranks.iter().filter(|_| !named.is_empty()) {
            // SAFETY: as above.
            let rows = unsafe { encoder.rows(&requests, &cache.pages, &named) }.expect("reads");
            sum.add_rows(rows).expect("of the same chunk");
        }
        let (ours, report) = encoder.finish(&requests, &sum).expect("finishes").remove(0);
        assert_eq!(report.exact_spans.is_empty(), index != 1);
        let cpu = setup.encode(&text, 9, &ranks[0].1);
        if setup.profile.is_direct() {
            assert!(ours == cpu, "recipe {index}: other bytes");
        }
        assert_nearly_the_same(setup, &ours, &cpu, &format!("recipe {index}"));
    }
}
