//! Pages against a plain reading of their layout.

use std::sync::Arc;

use kvasir_codec::{ChunkDecoder, ChunkEncoder, CpuDecoder, CpuEncoder, KvBuffer, starter};
use kvasir_types::{KvDtype, KvLayout, ObjectKey, Plane, Quality};
use proptest::prelude::*;

use super::{
    PageError, PageLayout, PageStore,
    codec::PageCodec,
    layout::{PageRows, PageRowsMut},
    payload::{self, Body},
};

const GQA: KvLayout = KvLayout::Gqa { kv_heads: 2, head_dim: 8 };
const MLA: KvLayout = KvLayout::Mla { latent: 24, rope_dims: 8 };
const DTYPES: [KvDtype; 5] = [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8E4m3, KvDtype::Int8];

fn key(text: &str) -> ObjectKey {
    text.parse().expect("a key")
}

fn layout(dtype: KvDtype, shape: KvLayout, layers: usize, tokens: usize, order: &str) -> PageLayout {
    PageLayout::new(dtype, shape, layers, tokens, order).expect("possible")
}

/// An order of axes by number.
fn order(shape: KvLayout, mut number: usize) -> String {
    let mut letters = if matches!(shape, KvLayout::Mla { .. }) { "LND" } else { "2LNHD" }.to_owned();
    let mut order = String::new();
    while !letters.is_empty() {
        order.push(letters.remove(number % letters.len()));
        number /= order.len() + letters.len().max(1);
    }
    order
}

/// A cache with a mean and a spread for each element, as those of models have.
fn cache(layout: &PageLayout, seed: u64) -> KvBuffer {
    let mut kv = KvBuffer::new(&layout.spec("m", "1"), layout.tokens());
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = move || {
        (0..4)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
            })
            .sum::<f32>()
    };
    for (index, value) in kv.as_mut_slice().iter_mut().enumerate() {
        let element = index % 8;
        *value = element as f32 - 3.0 + noise() * (1.0 + element as f32);
    }
    kv
}

fn page(layout: &PageLayout, kv: &KvBuffer) -> Vec<u8> {
    let mut page = vec![0; layout.page_bytes()];
    let spec = layout.spec("m", "1");
    let mut rows = PageRowsMut { layout, bytes: &mut page };
    for layer in 0..spec.layers.len() {
        for plane in Plane::ALL {
            for head in 0..kv.heads(layer, plane) {
                kvasir_codec::KvSink::write(&mut rows, layer, plane, head, 0, kv.rows(layer, plane, head));
            }
        }
    }
    page
}

fn codec(layout: PageLayout, quality: Quality) -> PageCodec {
    PageCodec::new(layout, quality, ("m", "1")).expect("possible")
}

/// Encoder and decoder with a profile that is made of a cache of the layout.
fn coders(layout: &PageLayout) -> (Arc<dyn ChunkEncoder>, Arc<dyn ChunkDecoder>) {
    let spec = Arc::new(layout.spec("m", "1"));
    let tokens: Vec<u32> = (0..layout.tokens() as u32).collect();
    let profile = Arc::new(starter(&spec, &tokens, 4, &cache(layout, 1)).expect("enough tokens"));
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile)).expect("its model");
    (Arc::new(encoder), Arc::new(CpuDecoder::new(spec, profile).expect("its model")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Every byte comes back, in every dtype, into an order of axes that is the reader's own.
    #[test]
    fn exact_pages_come_back_bit_for_bit(
        dtype in 0usize..5, is_latent: bool, layers in 1usize..4, tokens in 1usize..20,
        (writer, reader) in (0usize..120, 0usize..120), seed: u64,
    ) {
        let (dtype, shape) = (DTYPES[dtype], if is_latent { MLA } else { GQA });
        let [writer, reader] = [writer, reader].map(|n| layout(dtype, shape, layers, tokens, &order(shape, n)));
        let mut state = seed | 1;
        let bytes: Vec<u8> = (0..writer.page_bytes()).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }).collect();
        let stored = codec(writer, Quality::Exact).encode(None, &key("k"), &bytes).expect("fits");
        let mut read = vec![0; reader.page_bytes()];
        codec(reader, Quality::Exact).decode(|_| None, &key("k"), &stored, &mut read).expect("sound");
        // By elements, in the order that both agree on.
        let item = dtype.bytes();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        writer.for_each_element(|at| first.push(bytes[at..at + item].to_vec()));
        reader.for_each_element(|at| second.push(read[at..at + item].to_vec()));
        prop_assert_eq!(first, second);
    }

    /// Orders say where each value lies, and nothing else: rows are the same whatever the order.
    #[test]
    fn rows_do_not_depend_on_the_order(is_latent: bool, number in 0usize..120, seed: u64) {
        let shape = if is_latent { MLA } else { GQA };
        let layout = layout(KvDtype::F32, shape, 2, 5, &order(shape, number));
        let kv = cache(&layout, seed);
        let page = page(&layout, &kv);
        let rows = PageRows { layout: &layout, bytes: &page };
        prop_assert_eq!(KvBuffer::from_source(&layout.spec("m", "1"), 5, &rows), kv);
    }

    /// No bit of what is stored can change unnoticed, nor can a page be read under another key.
    #[test]
    fn damage_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let layout = layout(KvDtype::Bf16, GQA, 2, 16, "2LNHD");
        let codec = codec(layout, Quality::Exact);
        let mut stored = codec.encode(None, &key("k"), &page(&layout, &cache(&layout, 3))).expect("fits");
        let mut read = vec![0; layout.page_bytes()];
        prop_assert_eq!(codec.decode(|_| None, &key("l"), &stored, &mut read), Err(PageError::Damaged));
        let length = stored.len();
        stored[at.index(length)] ^= 1 << bit;
        prop_assert!(codec.decode(|_| None, &key("k"), &stored, &mut read).is_err());
    }

    /// Bytes that are right by their checksum and nonsense otherwise are errors, whatever they are.
    #[test]
    fn nonsense_is_an_error(body in prop::collection::vec(any::<u8>(), 0..400), is_lossy: bool) {
        let layout = layout(KvDtype::Bf16, GQA, 2, 16, "2LNHD");
        let body = if is_lossy { Body::Lossy(&body) } else { Body::Exact(&body) };
        let stored = payload::seal(&key("k"), &layout, body);
        let mut read = vec![0; layout.page_bytes()];
        let (_, decoder) = coders(&self::layout(KvDtype::Bf16, GQA, 2, 128, "2LNHD"));
        prop_assert!(codec(layout, Quality::Small).decode(|_| Some(Arc::clone(&decoder)), &key("k"), &stored, &mut read).is_err());
    }
}

/// Pages keep the quality that was asked for, in fewer bytes the less is asked, also into another order of axes. For
/// readers who ask for more they are misses, whatever profile these have.
#[test]
fn lossy_pages_keep_their_quality() {
    for (dtype, shape, orders) in [
        (KvDtype::Bf16, KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, ["2LNHD", "L2HND"]),
        (KvDtype::F16, KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, ["NL2DH", "2LNHD"]),
        (KvDtype::F32, KvLayout::Mla { latent: 96, rope_dims: 32 }, ["LND", "NLD"]),
        (KvDtype::Fp8E4m3, KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, ["LN2HD", "2LNHD"]),
    ] {
        let [writer, reader] = orders.map(|order| layout(dtype, shape, 6, 256, order));
        let (encoder, decoder) = coders(&writer);
        let truth = page(&writer, &cache(&writer, 2));
        let mut sizes = vec![writer.page_bytes()];
        for quality in [Quality::Transparent, Quality::Balanced, Quality::Small] {
            let encoded = codec(writer, quality).encode(Some(&*encoder), &key("k"), &truth).expect("fits");
            let mut read = vec![0; reader.page_bytes()];
            codec(reader, quality)
                .decode(|_| Some(Arc::clone(&decoder)), &key("k"), &encoded, &mut read)
                .expect("sound");
            let spec = writer.spec("m", "1");
            let [x, y] = [(&writer, &truth), (&reader, &read)]
                .map(|(layout, bytes)| KvBuffer::from_source(&spec, 256, &PageRows { layout, bytes }));
            for plane in Plane::ALL {
                let bound =
                    Quality::transparent_error(shape, plane) * quality.error_max().get().expect("a bound");
                for (layer, head) in (0..6).flat_map(|l| (0..x.heads(0, plane)).map(move |h| (l, h))) {
                    let (x, y) = (x.rows(layer, plane, head), y.rows(layer, plane, head));
                    let error = relative_error(x, y, x.len() / 256);
                    assert!(error <= bound * 1.1, "{dtype:?} {quality} {plane:?} {layer} {head}: {error:e}");
                }
            }
            for asked in Quality::ALL {
                let decoded = codec(reader, asked)
                    .decode(|_| None, &key("k"), &encoded, &mut read)
                    .expect_err("no profile");
                let is_below = decoded == PageError::BelowQuality;
                assert_eq!(is_below, asked < quality, "{dtype:?} {quality} for {asked}: {decoded}");
            }
            assert!(encoded.len() < *sizes.last().expect("one"), "{dtype:?} {quality}: {}", encoded.len());
            sizes.push(encoded.len());
        }
    }
}

/// Power of the error over that of the values about their mean by element.
fn relative_error(x: &[f32], y: &[f32], dim: usize) -> f64 {
    let tokens = (x.len() / dim) as f64;
    let mut means = vec![0.0; dim];
    x.chunks_exact(dim)
        .for_each(|row| means.iter_mut().zip(row).for_each(|(m, x)| *m += f64::from(*x) / tokens));
    let power: f64 = x
        .chunks_exact(dim)
        .flat_map(|row| row.iter().zip(&means))
        .map(|(x, m)| (f64::from(*x) - m).powi(2))
        .sum();
    let error: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    error / power
}

/// Values that no quantiser takes are stored as they are, and a page that is no smaller for it exactly.
#[test]
fn odd_values_are_kept() {
    let layout = layout(KvDtype::F32, KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, 3, 128, "2LNHD");
    let (encoder, decoder) = coders(&layout);
    let mut kv = cache(&layout, 2);
    for (index, value) in kv.as_mut_slice().iter_mut().enumerate() {
        *value = [f32::INFINITY, -0.0, 1e38, f32::MIN_POSITIVE / 2.0][index % 4];
    }
    let truth = page(&layout, &kv);
    let codec = codec(layout, Quality::Small);
    let encoded = codec.encode(Some(&*encoder), &key("k"), &truth).expect("fits");
    let mut read = vec![0; layout.page_bytes()];
    codec.decode(|_| Some(Arc::clone(&decoder)), &key("k"), &encoded, &mut read).expect("sound");
    assert!(read == truth);
}

/// What FORMAT.md §11 says, byte for byte.
#[test]
fn a_stored_page_is_as_the_format_says() {
    let layout = layout(KvDtype::Bf16, KvLayout::Gqa { kv_heads: 1, head_dim: 2 }, 1, 1, "D2LNH");
    let stored =
        codec(layout, Quality::Exact).encode(None, &key("k"), &[1, 2, 3, 4, 5, 6, 7, 8]).expect("fits");
    let fields = [0u32, 0, 1, 1, 2, 1].map(u32::to_le_bytes).concat();
    let head = [&b"kvpage\0\0"[..], &fields].concat();
    // Keys are the first and the third value in memory, high bytes come first.
    let body = [&[4, 0, 0, 0][..], &[2, 6, 4, 8], &[4, 0, 0, 0], &[1, 5, 3, 7]].concat();
    let checksum = crc32c::crc32c(&[&b"k"[..], &head, &body].concat()).to_le_bytes();
    assert_eq!(stored, [&head[..], &checksum, &body].concat());
}

/// Whoever declares something else than the writer did has a miss with a reason, never other values.
#[test]
fn other_layouts_are_refused() {
    let layout = |dtype, layers, tokens| layout(dtype, GQA, layers, tokens, "2LNHD");
    let written = layout(KvDtype::Bf16, 4, 16);
    let stored =
        codec(written, Quality::Exact).encode(None, &key("k"), &vec![1; written.page_bytes()]).expect("fits");
    for other in [layout(KvDtype::F16, 4, 16), layout(KvDtype::Bf16, 2, 32), layout(KvDtype::Bf16, 4, 15)] {
        let mut read = vec![0; other.page_bytes()];
        let refused = codec(other, Quality::Exact).decode(|_| None, &key("k"), &stored, &mut read);
        assert_eq!(refused, Err(PageError::OtherLayout));
    }
    let mut read = vec![0; written.page_bytes()];
    let refused = codec(written, Quality::Exact).decode(|_| None, &key("k"), b"anything else", &mut read);
    assert_eq!(refused, Err(PageError::NoPage));
    // Of another model: the values would be nonsense.
    let lossy = self::layout(KvDtype::Bf16, KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, 2, 128, "2LNHD");
    let (encoder, decoder) = coders(&lossy);
    let truth = page(&lossy, &cache(&lossy, 2));
    let stored = codec(lossy, Quality::Small).encode(Some(&*encoder), &key("k"), &truth).expect("fits");
    let other = PageCodec::new(lossy, Quality::Small, ("m", "2")).expect("possible");
    let mut read = vec![0; lossy.page_bytes()];
    assert_eq!(
        other.decode(|_| Some(Arc::clone(&decoder)), &key("k"), &stored, &mut read),
        Err(PageError::OtherLayout)
    );
}

#[test]
fn layouts_that_cannot_be_are_refused_with_what_can() {
    let refused = |shape, layers, tokens, order: &str| {
        PageLayout::new(KvDtype::Bf16, shape, layers, tokens, order).expect_err("impossible").to_string()
    };
    for order in ["", "2LNH", "2LNHDD", "2LLHD", "2lnhd", "LND", "é"] {
        assert!(refused(GQA, 1, 16, order).contains("each letter of 2LNHD once"), "{order}");
    }
    assert!(refused(MLA, 1, 16, "2LNHD").contains("each letter of LND once"));
    assert!(refused(GQA, 0, 16, "2LNHD").contains("layers"));
    assert!(refused(GQA, 1, 0, "2LNHD").contains("1 to 16384"));
    assert!(refused(KvLayout::None, 1, 16, "2LNHD").contains("keys and values"));
    let wide = KvLayout::Gqa { kv_heads: 512, head_dim: 128 };
    assert!(refused(wide, 128, 16_384, "2LNHD").contains("bytes"));
    let int8 = layout(KvDtype::Int8, GQA, 1, 16, "2LNHD");
    let refused = PageCodec::new(int8, Quality::Small, ("m", "1")).expect_err("has scales").to_string();
    assert!(refused.contains("`exact`"), "{refused}");
}

/// Engines call from tasks of a runtime with several threads.
#[test]
fn futures_may_move_between_threads() {
    fn check<T: Send>(_: impl FnOnce(&PageStore) -> T) {}
    check(|store| {
        let store = store.clone();
        async move { store.write(&[]).await }
    });
    check(|store| {
        let store = store.clone();
        async move { store.read(&[], |_, _| {}).await }
    });
}
