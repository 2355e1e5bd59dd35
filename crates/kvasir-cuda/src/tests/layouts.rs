//! Decode into engines' caches and encode from them: every layout, page size and type, whole and by ranks.

use std::{ops::Range, sync::Arc};

use half::{bf16, f16};
use kvasir_codec::{KvBuffer, container::Head};
use kvasir_kernels::Dtype;
use kvasir_types::{ChainLink, Level, Loss, Plane};

use super::{
    common::{Noise, Setup, cache, setups},
    emulated::EmulatedDevice,
    encode::assert_nearly_the_same,
    engine_cache::{Cache, Layout, POISON},
};
use crate::{ChunkRequest, Device, DeviceMemory, EncodeRequest, KernelDecoder, KernelEncoder};

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
    let cache = Cache::new(&setup.spec, decoder.device(), how, layers, half);
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
    assert!(pending.groups.iter().all(|group| group.marks.is_none()), "nobody asks for its times");
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
    let mut cache = Cache::new(&setup.spec, device, how, layers, half);
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
