//! Every codec on synthetic KV: sizes are those of bytes that decode, finer settings are larger and closer.

use std::sync::Arc;

use half::f16;
use kvasir_codec::{KvBuffer, starter};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Quality, Rope};

use super::*;

fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: Some(0) };
    ModelSpec {
        weights: "toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
        layers: vec![layer; 3],
        thinning: None,
        reuse: Default::default(),
    }
}

/// Slow waves, so that there is something to be gained along both axes.
fn context(spec: &ModelSpec, seed: u32) -> TrainingContext {
    let tokens: Vec<u32> = (0..300).map(|i| (i * i + seed) % 17).collect();
    let mut kv = KvBuffer::new(spec, tokens.len());
    let count = tokens.len();
    kv.as_mut_slice().iter_mut().enumerate().for_each(|(i, x)| {
        let (channel, token) = (i % 8 + i / (8 * count), i / 8 % count);
        let noise = ((i as u32 ^ seed).wrapping_mul(0x9e37_79b1) >> 16) as f32 / 65_536.0 - 0.5;
        *x = (token as f32 * 0.05 + (channel as f32) * 0.3 + seed as f32).sin() * (1.0 + channel as f32)
            + 0.2 * noise;
    });
    TrainingContext { first_position: 0, tokens, kv }
}

fn error(a: &KvBuffer, b: &KvBuffer) -> f64 {
    a.as_slice().iter().zip(b.as_slice()).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
        / a.as_slice().len() as f64
}

#[test]
fn every_codec_decodes_what_it_counts() {
    let spec = Arc::new(spec());
    let contexts: Vec<_> = (0..5).map(|seed| context(&spec, seed)).collect();
    let paper = train(&spec, &contexts, &Recipe::CacheGen, 0.01, &mut |_, _| ()).unwrap();
    let direct = train(&spec, &contexts, &Recipe::Direct, 0.01, &mut |_, _| ()).unwrap();
    let paper = ProfileCodec::new("cachegen_paper", "", &spec, Arc::new(paper)).unwrap();
    let direct = ProfileCodec::new("kvasir", "direct", &spec, Arc::new(direct)).unwrap();
    let deflated = SymbolsThroughDeflate(&direct);
    let kvtc = Calibration::new(&spec, &contexts).unwrap().codec(32, "");
    let held_out = context(&spec, 9);
    let chunk = Chunk {
        spec: &spec,
        tokens: &held_out.tokens,
        preceding_token: None,
        first_position: 0,
        kv: &held_out.kv,
    };
    let plain = [Storage::Raw, Storage::Zstd, Storage::SplitZstd].map(Plain);
    let mut codecs: Vec<&dyn KvCodec> = vec![&paper, &direct, &deflated, &kvtc, &Lmcache];
    codecs.extend(plain.iter().map(|codec| codec as &dyn KvCodec));
    codecs.extend(Uniform::ALL.iter().map(|codec| codec as &dyn KvCodec));
    codecs.extend([&ScaledFloats::Fp8 as &dyn KvCodec, &ScaledFloats::Nvfp4, &TurboquantLike]);
    let power = error(&held_out.kv, &KvBuffer::new(&spec, held_out.tokens.len()));
    for codec in codecs {
        let coded = codec.code(&chunk).unwrap();
        assert_eq!(coded.len(), codec.levels(), "{}", codec.name());
        let raw = 2 * held_out.kv.as_slice().len() as u64;
        for pair in coded.windows(2) {
            assert!(
                pair[0].bytes < pair[1].bytes,
                "{}: {} then {}",
                codec.name(),
                pair[0].bytes,
                pair[1].bytes
            );
            assert!(
                error(&held_out.kv, &pair[1].kv) <= error(&held_out.kv, &pair[0].kv) * 1.05,
                "{}",
                codec.name()
            );
        }
        let finest = coded.last().unwrap();
        assert!(finest.bytes <= raw && error(&held_out.kv, &finest.kv) < 0.05 * power, "{}", codec.name());
    }
    // Sixteen bits are what the cache has: nothing is lost, and both compressors give it back.
    let exact = plain[0].code(&chunk).unwrap();
    assert!(plain[1..].iter().all(|codec| codec.code(&chunk).unwrap()[0].kv == exact[0].kv));
    assert_eq!(exact[0].bytes, 2 * held_out.kv.as_slice().len() as u64);
}

#[test]
fn a_name_takes_the_coarsest_level_that_has_it() {
    let spec = Arc::new(spec());
    let contexts: Vec<_> = (0..5).map(|seed| context(&spec, seed)).collect();
    let tokens: Vec<u32> = (0..300).collect();
    let first = starter(&spec, &tokens, 0, &contexts[0].kv).unwrap();
    let coarse = train(&spec, &contexts, &Recipe::Direct, 0.01, &mut |_, _| ()).unwrap();
    let [first, coarse] = [("first", first), ("coarse", coarse)]
        .map(|(variant, profile)| ProfileCodec::new("kvasir", variant, &spec, Arc::new(profile)).unwrap());
    let mut held_out = context(&spec, 9);
    held_out.kv.as_mut_slice().iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
    let chunk = Chunk {
        spec: &spec,
        tokens: &held_out.tokens,
        preceding_token: None,
        first_position: 0,
        kv: &held_out.kv,
    };
    // What is not transparent with a profile is stored with the first one.
    assert!(coarse.code(&chunk).unwrap().last().unwrap().error > Quality::Transparent.error_max());
    let levels = first.code(&chunk).unwrap();
    for profile in [&first, &coarse] {
        let named = ByName { profile, first: &first };
        assert_eq!((named.variant(), named.levels()), (profile.variant(), 3));
        let coded = named.code(&chunk).unwrap();
        for (coded, quality) in coded.iter().zip([Quality::Small, Quality::Balanced, Quality::Transparent]) {
            let level = levels.iter().find(|level| level.error <= quality.error_max()).unwrap();
            assert_eq!((coded.bytes, coded.error), (level.bytes, level.error), "{quality}");
            assert!(coded.kv == level.kv, "{quality}");
        }
    }
}

#[test]
fn lmcache_bytes_are_those_of_its_container() {
    /// The setting that LMCache ships, as an index into the sweep.
    const SHIPPED: usize = 6;
    let spec = spec();
    let held_out = context(&spec, 3);
    let chunk = Chunk {
        spec: &spec,
        tokens: &held_out.tokens,
        preceding_token: None,
        first_position: 0,
        kv: &held_out.kv,
    };
    let coded = Lmcache.code(&chunk).unwrap();
    // 3 layers × 2 planes × 16 channels with 33 entries; 300 tokens are two streams a channel; one scale a token.
    let fixed = 6 * 16 * (33 * 2 + 2 * 4) + 6 * 300 * 2;
    let payload = coded[SHIPPED].bytes as usize - fixed;
    assert!(payload > 6 * 16 * 300 / 8 && payload < 6 * 16 * 300 * 5 / 8 + 3000, "{payload}");
}

#[test]
fn what_users_get_by_a_flag_is_as_large_and_as_close_as_published() {
    let tokens = vec![7; 512];
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 128 }, rope: None };
    let spec = ModelSpec { ropes: Vec::new(), layers: vec![layer], ..spec() };
    let mut kv = KvBuffer::new(&spec, tokens.len());
    let mut draw = turboquant::gaussian(5);
    kv.as_mut_slice().iter_mut().for_each(|x| *x = f16::from_f64(draw()).to_f32());
    let power = error(&kv, &KvBuffer::new(&spec, tokens.len()));
    let chunk = Chunk { spec: &spec, tokens: &tokens, preceding_token: None, first_position: 0, kv: &kv };
    let of = |codec: &dyn KvCodec| codec.code(&chunk).unwrap();
    let [fp8, nvfp4] = [ScaledFloats::Fp8, ScaledFloats::Nvfp4].map(|codec| of(&codec));
    let turboquant = of(&TurboquantLike);
    assert_eq!((fp8.len(), nvfp4.len(), turboquant.len()), (1, 1, 3));
    // Bytes of a head vector and of a tensor, and the error of a Gaussian: by Lloyd and Max, or as a program of its own found.
    for (coded, vector, tensor, expected) in [
        (&fp8[0], 128, 4, 7.0e-4),
        (&nvfp4[0], 64 + 8, 4, 9.1e-3),
        (&turboquant[0], 32 + 2, 0, 0.1175),
        (&turboquant[1], 48 + 2, 0, 0.03454),
        (&turboquant[2], 64 + 2, 0, 0.009497),
    ] {
        assert_eq!(coded.bytes, 2 * (512 * 2 * vector + tensor), "{expected}");
        let found = error(&kv, &coded.kv) / power;
        assert!((found / expected - 1.0).abs() < 0.05, "{found:.3e}, not {expected:.3e}");
        let is_held = |x: &f32| f16::from_f32(*x).to_f32() == *x;
        assert!(coded.kv.as_slice().iter().all(is_held), "{expected}: a cache of f16");
    }
}
