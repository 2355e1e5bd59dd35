//! What an encoder says of a chunk's errors is what a decoder finds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Noise, Setup, cache, contexts, mixed_spec, round_to};
use kvasir_codec::{
    DecodeError, KvBuffer, Profile,
    authoring::ProfileParts,
    container::{HEADER_BYTES, Head},
    rope::Rotation,
    starter,
};
use kvasir_train::{BasisRecipe, Recipe, train, train_transparent};
use kvasir_types::{KvDtype, KvLayout, Level, LevelError, ModelSpec, Plane, Quality};
use proptest::prelude::*;

const TOKENS: usize = 600;

/// Errors by `2 · layer + plane` of rows that begin at position 0, as the format defines them; 0 where there is no KV.
fn errors(spec: &ModelSpec, profile: &Profile, truth: &KvBuffer, decoded: &KvBuffer) -> Vec<f64> {
    let ProfileParts { scopes, exact_tokens, .. } = profile.parts();
    let mut found = vec![0f64; 2 * spec.layers.len()];
    for member in scopes.iter().flat_map(|scope| &scope.members) {
        let layer = &spec.layers[member.layer];
        let turned = if matches!(layer.layout, KvLayout::Mla { .. }) { Plane::V } else { Plane::K };
        let rope = layer.rope.filter(|_| member.plane == turned).map(|rope| &spec.ropes[usize::from(rope)]);
        let rotation = rope.map(|rope| Rotation::new(rope, 0, truth.tokens()));
        let rows = |kv: &KvBuffer| kv.rows(member.layer, member.plane, member.head).to_vec();
        let mut rows: Vec<f32> = rows(truth).iter().zip(rows(decoded)).map(|(x, y)| x - y).collect();
        if let Some(rotation) = &rotation {
            rows.chunks_exact_mut(member.dim)
                .enumerate()
                .for_each(|(token, row)| rotation.unrotate(token, row));
        }
        let tokens: Vec<&[f32]> = rows.chunks_exact(member.dim).skip(exact_tokens).collect();
        let count = tokens.len() as f64;
        let power = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let mean = tokens.iter().map(|row| power(row)).sum::<f64>() / count;
        let worst = tokens.iter().map(|row| power(row)).fold(0.0, f64::max);
        let sum = |element| tokens.iter().map(|row| f64::from(row[element])).sum::<f64>();
        let constant =
            (0..member.dim).map(|element| (sum(element) / count).powi(2)).sum::<f64>() - mean / count;
        let bounded = mean.max(10.0 * constant).max(worst / 16.0) / member.dim as f64;
        let unit = f64::from(member.power) * Quality::transparent_error(layer.layout, member.plane);
        let plane = &mut found[2 * member.layer + usize::from(member.plane == Plane::V)];
        *plane = plane.max(bounded / unit);
    }
    found
}

/// Rows times a factor, as the cache's type holds them.
fn scale_rows(spec: &ModelSpec, kv: &mut KvBuffer, scale: f32) {
    kv.as_mut_slice().iter_mut().for_each(|x| *x *= scale);
    round_to(spec.kv_dtype, kv);
}

/// Encodes unseen text and compares: what is measured whole within a step of the scale, a sample from above.
fn compare(spec: &ModelSpec, profile: &Profile, is_whole: bool, scale: f32) {
    let lossy = profile.lossy_levels();
    let setup = Setup::of(spec.clone(), profile.clone());
    let text = Noise::new(77).tokens(TOKENS);
    let mut kv = cache(spec, &text, 2);
    scale_rows(spec, &mut kv, scale);
    let object = setup.encode(&text, 0, &kv);
    let head = Head::parse(&object).unwrap();
    let measured = head.measured().unwrap();
    assert_eq!((measured.levels.len(), measured.beneath, measured.hops), (lossy, LevelError::NONE, 0));
    for level in 0..lossy {
        let mut decoded = setup.decode(&object, level).unwrap();
        round_to(spec.kv_dtype, &mut decoded);
        let truth = errors(spec, profile, &kv, &decoded);
        for (plane, (said, truth)) in measured.levels[level].iter().zip(truth).enumerate() {
            let said = said.get().unwrap();
            // A step of the scale is 1.09, and rounding is added where it is little.
            let most = if is_whole { 1.12 } else { 2.0 };
            // A sample may leave the worst token out.
            let least = if is_whole { 0.995 } else { 0.8 };
            assert!(
                said >= truth * least && said <= truth * most + 1e-4,
                "level {level}, plane {plane}: said {said:.4}, is {truth:.4}"
            );
        }
    }
    for level in lossy..profile.level_count() {
        assert_eq!(measured.error(Level(level as u8)), LevelError::NONE);
    }
}

#[test]
fn a_starter_says_what_it_loses_and_is_transparent() {
    let spec = mixed_spec(KvDtype::F16);
    let tokens = Noise::new(1).tokens(TOKENS);
    let profile = starter(&spec, &tokens, 0, &cache(&spec, &tokens, 1)).unwrap();
    for scale in [1.0, 3.0] {
        compare(&spec, &profile, true, scale);
    }
    let setup = Setup::of(spec.clone(), profile);
    for (seed, count) in [(5, 600), (6, 256), (7, 17), (8, 1)] {
        let text = Noise::new(seed).tokens(count);
        let object = setup.encode(&text, 0, &cache(&spec, &text, seed));
        let head = Head::parse(&object).unwrap();
        let names = [0, 1, 2].map(|level| Quality::of(head.measured().unwrap().error(Level(level))));
        if count > 17 {
            assert_eq!(names, [Quality::Small, Quality::Balanced, Quality::Transparent].map(Some), "{count}");
        }
    }
}

/// One token again and again has the same rows again and again, and rounding gives all of them the same error.
#[test]
fn a_starter_is_transparent_where_rows_repeat() {
    let spec = mixed_spec(KvDtype::F16);
    let tokens = Noise::new(1).tokens(TOKENS);
    let profile = starter(&spec, &tokens, 0, &cache(&spec, &tokens, 1)).unwrap();
    let setup = Setup::of(spec.clone(), profile.clone());
    let text = Noise::new(77).tokens(TOKENS);
    let mut kv = cache(&spec, &text, 2);
    scale_rows(&spec, &mut kv, 1.0);
    // Values of a layer, in the second of three spans.
    let (layer, dim, span) = (0, 8, 256..512);
    for head in 0..2 {
        let rows = kv.rows_mut(layer, Plane::V, head);
        rows.copy_within(span.start * dim..(span.start + 1) * dim, 0);
        let row = rows[..dim].to_vec();
        rows[span.start * dim..span.end * dim].chunks_exact_mut(dim).for_each(|to| to.copy_from_slice(&row));
    }
    let object = setup.encode(&text, 0, &kv);
    let head = Head::parse(&object).unwrap();
    let measured = head.measured().unwrap();
    let finest = Level(profile.lossy_levels() as u8 - 1);
    assert_eq!(Quality::of(measured.error(finest)), Some(Quality::Transparent), "{:?}", measured.levels);
    let decoded = setup.decode(&object, finest.index()).unwrap();
    let rows = |kv: &KvBuffer| kv.rows(layer, Plane::V, 1)[span.start * dim..span.end * dim].to_vec();
    assert_eq!(rows(&decoded), rows(&kv));
    // The other spans are coded as ever, and what is said of them is what a decoder finds.
    assert_ne!(decoded.rows(layer, Plane::V, 1), kv.rows(layer, Plane::V, 1));
    assert_ne!(decoded.rows(layer, Plane::K, 1), kv.rows(layer, Plane::K, 1));
}

/// What caches of models are like and [`cache`] is not.
#[derive(Debug, Clone, Copy)]
enum CacheKind {
    /// All zeros: a layer that adds nothing.
    Zeros,
    /// One element of each head that is the same for all tokens.
    ConstantChannel,
    /// A first token 100 times as large as the others.
    Sink,
    /// Means of 50 standard deviations, as the biases of Qwen2's keys.
    Biases,
}

/// A cache of a kind, in the model's type. What is special about rows is so without their positions.
fn cache_of(kind: CacheKind, spec: &ModelSpec, tokens: &[u32], seed: u64) -> KvBuffer {
    /// About that of an element of [`cache`].
    const DEVIATION: f32 = 4.5;
    let mut kv = cache(spec, tokens, seed);
    for (layer, of) in spec.layers.iter().enumerate() {
        for plane in Plane::ALL {
            let turned = if matches!(of.layout, KvLayout::Mla { .. }) { Plane::V } else { Plane::K };
            let rope = of.rope.filter(|_| plane == turned).map(|rope| &spec.ropes[usize::from(rope)]);
            let rotation = rope.map(|rope| Rotation::new(rope, 0, tokens.len()));
            let (heads, dim) = of.layout.planes()[plane as usize];
            for head in 0..heads {
                let rows = kv.rows_mut(layer, plane, head).chunks_exact_mut(dim).enumerate();
                rows.for_each(|(token, row)| {
                    if let Some(rotation) = &rotation {
                        rotation.unrotate(token, row);
                    }
                    match kind {
                        CacheKind::Zeros => row.fill(0.0),
                        CacheKind::ConstantChannel => row[3] = 2.5,
                        CacheKind::Sink if token == 0 => row.iter_mut().for_each(|x| *x *= 100.0),
                        CacheKind::Sink => {}
                        CacheKind::Biases => row.iter_mut().enumerate().for_each(|(element, x)| {
                            *x += DEVIATION * [50.0, 0.0, -20.0][element % 3];
                        }),
                    }
                    if let Some(rotation) = &rotation {
                        rotation.rotate(token, row);
                    }
                });
            }
        }
    }
    round_to(spec.kv_dtype, &mut kv);
    kv
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// From the first request on, whose cache the profile is made of, and for the next one.
    #[test]
    fn a_starter_is_transparent_whatever_the_cache_is_like(
        kind in prop::sample::select(vec![CacheKind::Zeros, CacheKind::ConstantChannel, CacheKind::Sink, CacheKind::Biases]),
        dtype in prop::sample::select(vec![KvDtype::Bf16, KvDtype::F16]),
        counts in (200usize..600, 1usize..600), seed in any::<u64>(),
    ) {
        let spec = mixed_spec(dtype);
        let request = |count, seed| {
            let text = Noise::new(seed).tokens(count);
            let kv = cache_of(kind, &spec, &text, seed);
            (text, kv)
        };
        let requests = [request(counts.0, seed), request(counts.1, seed ^ 1)];
        let (text, kv) = &requests[0];
        let profile = starter(&spec, text, 0, kv).unwrap();
        let finest = profile.lossy_levels() - 1;
        let setup = Setup::of(spec.clone(), profile.clone());
        for (text, kv) in &requests {
            let object = setup.encode(text, 0, kv);
            let said = Head::parse(&object).unwrap().measured().unwrap().error(Level(finest as u8));
            prop_assert!(said <= Quality::Transparent.error_max(), "{said:?}");
            let mut decoded = setup.decode(&object, finest).unwrap();
            round_to(dtype, &mut decoded);
            let worst = errors(&spec, &profile, kv, &decoded).into_iter().fold(0.0, f64::max);
            prop_assert!(worst <= 1.01, "{worst}");
            if matches!(kind, CacheKind::Zeros) {
                prop_assert!(decoded.as_slice().iter().all(|x| *x == 0.0));
            }
        }
    }
}

#[test]
fn trained_profiles_say_what_they_lose() {
    let spec = mixed_spec(KvDtype::F16);
    let mut contexts = contexts(&spec, 4, 700);
    contexts.iter_mut().for_each(|context| scale_rows(&spec, &mut context.kv, 1.0));
    let recipes = [
        (Recipe::Basis(BasisRecipe::default()), false),
        (Recipe::Direct, true),
        (Recipe::DirectExact, false),
    ];
    for (recipe, is_whole) in recipes {
        let profile = train(&spec, &contexts, &recipe, 1e-3, &mut |_, _| ()).unwrap();
        assert!(profile.is_measured());
        for scale in [1.0, 2.0] {
            compare(&spec, &profile, is_whole, scale);
        }
    }
}

/// A step of the type is as wide as those of the levels: what is decoded gets better or worse by rounding.
#[test]
fn errors_are_those_of_rows_in_the_cache_s_type() {
    for dtype in [KvDtype::Fp8E4m3, KvDtype::Bf16] {
        let spec = mixed_spec(dtype);
        let tokens = Noise::new(1).tokens(TOKENS);
        let mut kv = cache(&spec, &tokens, 1);
        scale_rows(&spec, &mut kv, 1.0);
        compare(&spec, &starter(&spec, &tokens, 0, &kv).unwrap(), true, 1.0);
        let mut contexts = contexts(&spec, 4, 700);
        contexts.iter_mut().for_each(|context| scale_rows(&spec, &mut context.kv, 1.0));
        // The finest steps of bf16 are about those of the second error.
        for (recipe, finest, is_whole) in
            [(Recipe::Direct, 1e-3, true), (Recipe::Direct, 4e-6, true), (Recipe::DirectExact, 1e-3, false)]
        {
            let profile = train(&spec, &contexts, &recipe, finest, &mut |_, _| ()).unwrap();
            compare(&spec, &profile, is_whole, 1.0);
        }
    }
}

/// Of the finest level a chunk has what it needs to be transparent, and text like the sample needs next to nothing.
#[test]
fn the_finest_level_is_in_reserve() {
    let spec = mixed_spec(KvDtype::F16);
    let mut contexts = contexts(&spec, 6, 700);
    contexts.iter_mut().for_each(|context| scale_rows(&spec, &mut context.kv, 1.0));
    let recipe = Recipe::Basis(BasisRecipe::default());
    let profile = train_transparent(&spec, &contexts, &recipe, &mut |_, _| ()).unwrap();
    let text = Noise::new(77).tokens(TOKENS);
    let mut kv = cache(&spec, &text, 2);
    scale_rows(&spec, &mut kv, 1.0);
    let [below, finest] = [2, 1].map(|from_top| Level((profile.lossy_levels() - from_top) as u8));
    // The share of the finest level, and errors; where the cache had `power` times that of the sample, and it is stored whole or not.
    let stored = |power: f32, is_whole: bool| {
        let mut parts = profile.parts();
        parts.scopes.iter_mut().flat_map(|scope| &mut scope.members).for_each(|member| member.power *= power);
        if is_whole {
            parts.training.note.clear();
        }
        let profile = Profile::assemble(parts).unwrap();
        if !is_whole {
            compare(&spec, &profile, false, 1.0);
        }
        let object = Setup::of(spec.clone(), profile).encode(&text, 0, &kv);
        let head = Head::parse(&object).unwrap();
        let bytes = [below, finest].map(|level| head.level_bytes(level).unwrap() as f64);
        (bytes[1] / bytes[0] - 1.0, head.measured().unwrap().error(finest))
    };
    let bound = Quality::Transparent.error_max();
    let (all, least) = stored(1.0, true);
    let (like, error) = stored(1.0, false);
    assert!(like < 0.1 * all && least < error && error <= bound, "{like} of {all}, {error:?}");
    // As errors are of text unlike the sample: larger.
    let (unlike, error) = stored(0.6, false);
    assert!(like < unlike && unlike < 0.95 * all && error <= bound, "{unlike} of {all}, {error:?}");
    assert!(stored(0.6, true).1 <= bound);
}

#[test]
fn errors_of_other_levels_than_the_profile_s_are_refused() {
    let spec = mixed_spec(KvDtype::F16);
    let tokens = Noise::new(1).tokens(TOKENS);
    let kv = cache(&spec, &tokens, 1);
    let setup = Setup::of(spec.clone(), starter(&spec, &tokens, 0, &kv).unwrap());
    let mut object = setup.encode(&tokens, 0, &kv);
    assert!(setup.decode(&object, 2).is_ok());
    // Three levels of ten planes become two of fifteen, and the finest exact.
    let said = Head::parse(&object).unwrap().measured().unwrap().to_extension().data;
    let at = object.windows(said.len()).position(|bytes| bytes == said).unwrap();
    object[at + 2] = 2;
    let crc = crc32c::crc32c(&object[HEADER_BYTES..at + said.len()]);
    object[168..172].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&object[..252]);
    object[252..256].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Head::parse(&object).unwrap().measured().unwrap().error(Level(2)), LevelError::NONE);
    assert!(matches!(setup.decode(&object, 2), Err(DecodeError::Sections { .. })));
}

#[test]
fn spans_that_are_stored_exactly_lose_nothing() {
    let spec = mixed_spec(KvDtype::F16);
    let tokens = Noise::new(1).tokens(TOKENS);
    let mut kv = cache(&spec, &tokens, 1);
    let profile = starter(&spec, &tokens, 0, &kv).unwrap();
    kv.as_mut_slice().fill(f32::INFINITY);
    let object = Setup::of(spec, profile).encode(&tokens, 0, &kv);
    let head = Head::parse(&object).unwrap();
    assert_eq!(Quality::of(head.measured().unwrap().error(Level(0))), Some(Quality::Exact));
}

#[test]
fn profiles_without_powers_say_nothing() {
    let spec = mixed_spec(KvDtype::F16);
    let tokens = Noise::new(1).tokens(TOKENS);
    let kv = cache(&spec, &tokens, 1);
    let mut parts = starter(&spec, &tokens, 0, &kv).unwrap().parts();
    parts.scopes.iter_mut().flat_map(|scope| &mut scope.members).for_each(|member| member.power = 0.0);
    let profile = Profile::assemble(parts.clone()).unwrap();
    let read = Profile::from_bytes(&profile.to_bytes()).unwrap();
    assert_eq!((read.hash(), read.is_measured()), (profile.hash(), false));
    let object = Setup::of(spec, profile).encode(&tokens, 0, &kv);
    assert!(Head::parse(&object).unwrap().measured().is_none());
    parts.scopes[0].members[0].power = 1.0;
    assert!(Profile::assemble(parts).is_err(), "all or none");
}
