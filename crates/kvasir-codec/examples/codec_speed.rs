//! Speed of the complete codec on one core: a direct profile on a synthetic cache of four Llama-3-8B layers.
//!
//! `cargo run --release -p kvasir-codec --example codec_speed` prints JSON rows `{op, level, gelem_per_s, bits}`: the best of
//! the rounds, in 10^9 elements a second, from chunk bytes to rows and back.
#![allow(clippy::print_stdout, reason = "an example talks on stdout")]

use std::{hint::black_box, sync::Arc, time::Instant};

use kvasir_codec::{
    Bf16Buffer, ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodePath, KvBuffer,
    container::Head,
    train::{Recipe, TrainingContext, train},
};
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Rope};

const TOKENS: usize = 768;
const ROUNDS: usize = 5;

fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 8, head_dim: 128 }, rope: Some(0) };
    ModelSpec {
        weights: "synthetic".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: vec![Rope::plain(Pairing::Half, 128, 500_000.0)],
        layers: vec![layer; 4],
        thinning: None,
        reuse: Default::default(),
    }
}

/// Laplacian elements.
fn context(spec: &ModelSpec, seed: u64) -> TrainingContext {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f32 / (1u64 << 53) as f32 - 0.5
    };
    let mut kv = KvBuffer::new(spec, TOKENS);
    kv.as_mut_slice().iter_mut().for_each(|x| {
        let u = uniform();
        *x = -u.signum() * (1.0 - 2.0 * u.abs()).max(1e-6).ln();
    });
    TrainingContext { tokens: (0..TOKENS as u32).collect(), kv }
}

fn best(mut work: impl FnMut()) -> f64 {
    let seconds = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(|_| seconds(&mut work)).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    let spec = Arc::new(spec());
    let contexts: Vec<_> = (1..4).map(|seed| context(&spec, seed)).collect();
    let profile = Arc::new(train(&spec, &contexts, &Recipe::Direct, &mut |_, _| ())?);
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let decoder = CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let TrainingContext { tokens, kv } = context(&spec, 9);
    let input = ChunkInput {
        tokens: &tokens,
        preceding_token: None,
        first_position: 0,
        parent_hash: [0; 32],
        kl_beneath: 0.0,
        kv: &kv,
    };
    let object = encoder.encode(&input)?;
    let head = Head::parse(&object)?;
    let elements = (TOKENS * spec.elements_per_token()) as f64;
    let row = |op: &str, level: u8, seconds: f64, bytes: usize| {
        let (rate, bits) = (elements / seconds / 1e9, bytes as f64 * 8.0 / elements);
        format!("{{\"op\":\"{op}\",\"level\":{level},\"gelem_per_s\":{rate:.3},\"bits\":{bits:.3}}}")
    };
    let top = head.header.level_count - 1;
    let mut rows = vec![row("encode", top, best(|| drop(black_box(encoder.encode(&input)))), object.len())];
    for path in DecodePath::available() {
        let decoder = decoder.clone().with_path(path);
        let mut out = Bf16Buffer::new(&spec, TOKENS);
        for level in 0..=top {
            let bytes = head.level_bytes(Level(level)).unwrap_or_default() as usize;
            let seconds = best(|| {
                let decoded = decoder.decode(&head, &object[..bytes], Level(level), 0..TOKENS, &mut out);
                decoded.expect("a good object");
            });
            rows.push(row(&format!("decode {}", path.name()), level, seconds, bytes));
        }
    }
    println!("[{}]", rows.join(",\n "));
    Ok(())
}
