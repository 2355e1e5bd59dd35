//! Caches that are not plain 16-bit ones: fp8 and int8 values, thinned rows under tokens that are no text's.

mod common;

use common::{Noise, Setup, cache, error, mixed_spec, recipes};
use kvasir_codec::{ChunkEncoder as _, ChunkInput, CpuEncoder, KvBuffer, rans::PieceEncoder};
use kvasir_container::Head;
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{ChainLink, KvDtype, KvLayout, LayerKv, Level, Loss, ModelSpec, Thinning};

/// The 127 magnitudes of FP8 E4M3 (OCP 8-bit floating point, 2023): 3 mantissa bits, bias 7, no infinities.
fn e4m3_magnitudes() -> Vec<f32> {
    (0..127u32)
        .map(|code| match code >> 3 {
            0 => (code & 7) as f32 / 512.0,
            exponent => (8 + (code & 7)) as f32 * (exponent as f32 - 10.0).exp2(),
        })
        .collect()
}

/// What an engine with such a cache holds of `x`.
fn rounded(x: f32, dtype: KvDtype, magnitudes: &[f32]) -> f32 {
    match dtype {
        KvDtype::Fp8E4m3 => {
            let above = magnitudes.partition_point(|m| *m < x.abs()).min(126);
            let (low, high) = (magnitudes[above.saturating_sub(1)], magnitudes[above]);
            (if x.abs() - low < high - x.abs() { low } else { high }).copysign(x)
        }
        KvDtype::Int8 => (x / 0.07).round().clamp(-127.0, 127.0) * 0.07,
        KvDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
        KvDtype::F16 => half::f16::from_f32(x).to_f32(),
        KvDtype::F32 => x,
    }
}

fn rounded_cache(spec: &ModelSpec, tokens: &[u32], seed: u64) -> KvBuffer {
    let (mut kv, magnitudes) = (cache(spec, tokens, seed), e4m3_magnitudes());
    kv.as_mut_slice().iter_mut().for_each(|x| *x = rounded(*x, spec.kv_dtype, &magnitudes));
    kv
}

/// No level of an object is worse than the one before; with more than anchors the finest is better than the coarsest; it
/// is good.
fn levels_get_better(setup: &Setup, tokens: &[u32], kv: &KvBuffer) {
    let recipe = &setup.profile.training().recipe;
    let object = setup.encode(tokens, 0, kv);
    let head = Head::parse(&object).expect("parses");
    let mut losses = Vec::new();
    for level in 0..setup.profile.level_count() {
        let bytes = head.level_bytes(Level(level as u8)).expect("exists") as usize;
        losses.push(error(kv, &setup.decode(&object[..bytes], level).expect("decodes")));
    }
    let (coarsest, finest) = (losses[0], losses[losses.len() - 1]);
    assert!(losses.is_sorted_by(|a, b| a >= b), "{recipe}: {losses:?}");
    assert!(finest < coarsest || tokens.len() == 1, "{recipe}: {losses:?}");
    assert!(finest < 0.05, "{recipe}: {losses:?}");
    let top = setup.profile.level_count() - 1;
    let exact = setup.profile.exact_tokens().min(tokens.len());
    let decoded = setup.decode(&object, top).expect("decodes");
    assert_eq!(decoded.slice(0..exact), kv.slice(0..exact), "{recipe}: exact tokens are exact in any type");
}

#[test]
fn fp8_and_int8_caches_go_through_every_lossy_recipe() {
    for dtype in [KvDtype::Fp8E4m3, KvDtype::Int8] {
        let spec = mixed_spec(dtype);
        let context = |seed: u64| {
            let tokens = Noise::new(seed).tokens(400);
            TrainingContext { first_position: 0, kv: rounded_cache(&spec, &tokens, 50 + seed), tokens }
        };
        let contexts: Vec<_> = (0..6).map(context).collect();
        for recipe in recipes() {
            let profile = train(&spec, &contexts, &recipe, 0.01, &mut |_, _| {}).expect("trains");
            let setup = Setup::of(spec.clone(), profile);
            for tokens in [1, 33, 300] {
                let tokens = Noise::new(9).tokens(tokens);
                levels_get_better(&setup, &tokens, &rounded_cache(&setup.spec, &tokens, 77));
            }
        }
    }
}

/// One layer of one head, as a class of a thinned cache is stored: keys stay rotated, there is no RoPE.
fn thinned_spec() -> ModelSpec {
    ModelSpec {
        layers: vec![LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 16 }, rope: None }],
        ropes: Vec::new(),
        thinning: Some(Thinning { method: "window".into(), parameters: "layer 3".into() }),
        ..mixed_spec(KvDtype::Bf16)
    }
}

/// A label of 16 words of a hash, then the positions that were kept, further and further apart.
fn slots(seed: u64, kept: usize) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    let mut word = |below: u32| ((noise.uniform() + 0.5) * below as f32) as u32;
    // Some words of a label are small by chance, and so look like ids of a large vocabulary.
    let label: Vec<u32> = (0..16).map(|i| word(if i % 4 == 0 { 1 << 20 } else { u32::MAX })).collect();
    let mut at = 0;
    let positions = (0..kept).map(|_| {
        at += 1 + word(6);
        at
    });
    label.into_iter().chain(positions).collect()
}

#[test]
fn thinned_caches_come_back_and_their_tokens_make_no_table() {
    let spec = thinned_spec();
    let context = |seed: u64| {
        let tokens = slots(seed, 240);
        TrainingContext { first_position: 0, kv: rounded_cache(&spec, &tokens, 50 + seed), tokens }
    };
    let contexts: Vec<_> = (0..6).map(context).collect();
    for recipe in recipes().into_iter().filter(|r| *r != Recipe::CacheGen) {
        let profile = train(&spec, &contexts, &recipe, 0.01, &mut |_, _| {}).expect("trains");
        // At most 1,536 distinct ids, 16 rows for each, 12 factors of a byte.
        let bytes = profile.to_bytes().len();
        assert!(bytes < 1_536 * 16 * 12 + 50_000, "{}: {bytes}", recipe.name());
        let setup = Setup::of(spec.clone(), profile);
        let tokens = slots(99, 300);
        levels_get_better(&setup, &tokens, &rounded_cache(&setup.spec, &tokens, 7));
    }
}

/// Of whole and partial blocks and tiles, and of caches with values that 15 bits do not hold, that nothing holds, and that are
/// no numbers.
#[test]
fn every_encoder_gives_the_same_object() {
    for recipe in [Recipe::Direct].into_iter().chain(recipes()) {
        let setup = Setup::new(mixed_spec(KvDtype::Bf16), &recipe);
        for (count, outlier) in [1, 31, 47, 64, 256, 300].into_iter().zip([0.0, 1e3, 1e7, 0.0, 1e4, f32::NAN])
        {
            for (count, outlier) in [(count, 0.0), (count, outlier)] {
                let tokens = Noise::new(count as u64).tokens(count);
                let mut kv = cache(&setup.spec, &tokens, 7);
                let middle = kv.as_slice().len() / 2;
                kv.as_mut_slice()[middle] += outlier;
                let input = ChunkInput {
                    tokens: &tokens,
                    preceding_token: None,
                    first_position: 0,
                    link: ChainLink::first([0; 32].into()),
                    beneath: Loss::NONE,
                    kv: &kv,
                };
                let objects = PieceEncoder::available().into_iter().map(|pieces| {
                    let encoder = CpuEncoder::new(setup.spec.clone(), setup.profile.clone()).expect("fits");
                    (pieces.name(), encoder.with_pieces(pieces).encode(&input).expect("encodes"))
                });
                let objects: Vec<_> = objects.collect();
                for (name, object) in &objects {
                    assert!(*object == objects[0].1, "{} {name}: {count} tokens, {outlier}", recipe.name());
                }
            }
        }
    }
}

#[test]
fn tokens_beyond_any_vocabulary_are_no_reason_to_fail() {
    let spec = thinned_spec();
    let far = |seed: u64, count| Noise::new(seed).tokens(count).into_iter().map(|t| u32::MAX - t).collect();
    let context = |seed: u64| {
        let tokens: Vec<u32> = far(seed, 240);
        TrainingContext { first_position: 0, kv: rounded_cache(&spec, &tokens, 50 + seed), tokens }
    };
    let contexts: Vec<_> = (0..6).map(context).collect();
    for recipe in recipes() {
        let profile = train(&spec, &contexts, &recipe, 0.01, &mut |_, _| {}).expect("trains");
        let setup = Setup::of(spec.clone(), profile);
        let tokens: Vec<u32> = far(99, 100);
        levels_get_better(&setup, &tokens, &rounded_cache(&setup.spec, &tokens, 7));
    }
}
