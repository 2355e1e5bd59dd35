//! A good object with any bytes in its pieces, checksums made to fit: every decoder of this CPU gives the same rows or refuses,
//! and writes to nothing but the rows it was asked for.
//!
//! Input: what is exclusive-ored over the pieces of the golden object.
#![no_main]

use std::sync::{Arc, LazyLock};

use kvasir_codec::{ChunkDecoder, CpuDecoder, DecodePath, KvSink, Profile};
use kvasir_container::{HEADER_BYTES, Head};
use kvasir_codec_fuzz as _;
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Plane, Reuse, Rope};
use libfuzzer_sys::fuzz_target;

const OBJECT: &[u8] = include_bytes!("../../tests/golden/profile/direct.kvc");
const PROFILE: &[u8] = include_bytes!("../../tests/golden/profile/direct.kvp");

static DECODERS: LazyLock<Vec<CpuDecoder>> = LazyLock::new(|| {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 4 }, rope: Some(0) };
    let spec = Arc::new(ModelSpec {
        weights: "golden/tiny".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 4, 10_000.0)],
        layers: vec![layer; 2],
        thinning: None,
        reuse: Reuse::Prefix,
    });
    let profile = Arc::new(Profile::from_bytes(PROFILE).expect("a golden file"));
    let decoder = CpuDecoder::new(spec, profile).expect("of this model");
    DecodePath::available().into_iter().map(|path| decoder.clone().with_path(path)).collect()
});

/// Rows as they came, and a check that they lie where they may.
struct Rows {
    dtype: KvDtype,
    tokens: usize,
    bits: Vec<u32>,
}

impl Rows {
    fn place(&self, layer: usize, head: usize, first_token: usize, count: usize) {
        assert!(layer < 2 && head < 1 && count % 4 == 0 && first_token + count / 4 <= self.tokens);
    }
}

impl KvSink for Rows {
    fn write(&mut self, layer: usize, _plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        self.place(layer, head, first_token, rows.len());
        // the payload of a NaN is the machine's
        self.bits.extend(rows.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }));
    }

    fn dtype(&self) -> KvDtype {
        self.dtype
    }
}

fn reseal(head: &Head, object: &mut [u8]) {
    let entries = HEADER_BYTES + head.header.block_count() * 8 + head.sections().len() * 6;
    let spans = head.span_count();
    for (section, span, entry) in head.pieces() {
        let crc = crc32c::crc32c(&object[entry.range.start as usize..entry.range.end as usize]);
        let at = entries + (section * spans + span) * 8 + 4;
        object[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let directory = crc32c::crc32c(&object[HEADER_BYTES..entries + head.sections().len() * spans * 8]);
    object[168..172].copy_from_slice(&directory.to_le_bytes());
    let header = crc32c::crc32c(&object[..252]);
    object[252..256].copy_from_slice(&header.to_le_bytes());
}

fuzz_target!(|data: &[u8]| {
    let head = Head::parse(OBJECT).expect("a golden file");
    let mut object = OBJECT.to_vec();
    let first = head.header.head_bytes() as usize;
    object[first..].iter_mut().zip(data).for_each(|(byte, change)| *byte ^= change);
    reseal(&head, &mut object);
    let head = Head::parse(&object).expect("only pieces were changed");
    let tokens = head.tokens.len();
    for level in 0..head.header.level_count {
        for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8E4m3] {
            let verdict = |decoder: &CpuDecoder| {
                let mut rows = Rows { dtype, tokens, bits: Vec::new() };
                let done = decoder.decode(&head, &object, Level(level), 0..tokens, &mut rows);
                // of several damaged pieces any may be found first: scopes decode in parallel
                done.map(|()| rows.bits).map_err(|_| "damaged")
            };
            let (first, others) = DECODERS.split_first().expect("the scalar one");
            let expected = verdict(first);
            others.iter().for_each(|decoder| assert_eq!(verdict(decoder), expected));
        }
    }
});
