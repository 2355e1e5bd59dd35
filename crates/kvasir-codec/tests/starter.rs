//! A first profile keeps its error on whatever is encoded with it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Noise, Setup, cache, mixed_spec, round_to, typed};
use kvasir_codec::{KvBuffer, Profile, STARTER_RECIPE, StarterError, exact_starter, starter};
use kvasir_container::Head;
use kvasir_types::{KvDtype, KvLayout, Level, ModelSpec, Plane, Quality};

const TOKENS: usize = 600;

fn sample(spec: &ModelSpec) -> (Vec<u32>, KvBuffer) {
    let tokens = Noise::new(1).tokens(TOKENS);
    let kv = cache(spec, &tokens, 1);
    (tokens, kv)
}

/// Mean power of a plane's elements about their means.
fn power(kv: &KvBuffer, heads: usize, dim: usize, layer: usize, plane: Plane) -> f64 {
    let mut sum = 0.0;
    for head in 0..heads {
        let rows = kv.rows(layer, plane, head);
        for element in 0..dim {
            let column: Vec<f64> = rows.iter().skip(element).step_by(dim).map(|x| f64::from(*x)).collect();
            let mean = column.iter().sum::<f64>() / column.len() as f64;
            sum += column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / column.len() as f64;
        }
    }
    sum / (heads * dim) as f64
}

fn error(a: &KvBuffer, b: &KvBuffer, heads: usize, dim: usize, layer: usize, plane: Plane) -> f64 {
    let pairs = (0..heads).flat_map(|head| a.rows(layer, plane, head).iter().zip(b.rows(layer, plane, head)));
    let sum: f64 = pairs.map(|(x, y)| f64::from(x - y).powi(2)).sum();
    sum / (heads * dim * a.tokens()) as f64
}

/// Bounds of the finest level, of keys and values; a latent row is both.
fn bound(spec: &ModelSpec, layer: usize, plane: Plane) -> f64 {
    match (plane, &spec.layers[layer].layout) {
        (Plane::K, _) | (_, KvLayout::Mla { .. }) => 2.5e-4,
        (Plane::V, _) => 1e-3,
    }
}

#[test]
fn errors_are_those_of_the_steps_on_any_text() {
    let spec = mixed_spec(KvDtype::F16);
    let (tokens, kv) = sample(&spec);
    let profile = starter(&spec, &tokens, 0, &kv).unwrap();
    assert_eq!(profile.training().recipe, STARTER_RECIPE);
    assert_eq!(profile.level_count(), 3);
    let setup = Setup::of(spec.clone(), profile);
    let reference = unroped(&spec, &kv);
    // Unseen text; KV that is five times as large, that hardly varies within a step, and far from the sample's means.
    for (scale, shift, factor) in [(1.0, 0.0, 1.0), (5.0, 0.0, 1.0), (0.05, 0.0, 3.0), (1.0, 8.0, 1.0)] {
        let text = Noise::new(77).tokens(TOKENS);
        let mut other = cache(&spec, &text, 2);
        for x in other.as_mut_slice() {
            *x = half::f16::from_f32(*x * scale + shift).to_f32();
        }
        let object = setup.encode(&text, 0, &other);
        let other = unroped(&spec, &other);
        for (level, times) in [(2, 1.0), (1, 10.0), (0, 100.0)] {
            let decoded = unroped(&spec, &setup.decode(&object, level).unwrap());
            for layer in 0..spec.layers.len() {
                for plane in Plane::ALL {
                    let (heads, dim) = spec.layers[layer].layout.planes()[plane as usize];
                    if heads * dim == 0 {
                        continue;
                    }
                    let power = power(&reference, heads, dim, layer, plane);
                    let found = error(&other, &decoded, heads, dim, layer, plane) / power;
                    let most = bound(&spec, layer, plane) * times * factor;
                    assert!(
                        found <= most,
                        "× {scale} + {shift}, level {level}, layer {layer}, {plane:?}: {found:.2e} above {most:.2e}"
                    );
                }
            }
        }
    }
}

/// Rows as the codec has them: keys without their positions, and without the factor that some ropes have.
fn unroped(spec: &ModelSpec, kv: &KvBuffer) -> KvBuffer {
    let mut kv = kv.clone();
    for (layer, of) in spec.layers.iter().enumerate() {
        let plane = if matches!(of.layout, KvLayout::Mla { .. }) { Plane::V } else { Plane::K };
        let Some(rope) = of.rope.map(|rope| &spec.ropes[usize::from(rope)]) else { continue };
        let rotation = kvasir_codec::rope::Rotation::new(rope, 0, kv.tokens());
        let (heads, dim) = of.layout.planes()[plane as usize];
        for head in 0..heads {
            let rows = kv.rows_mut(layer, plane, head);
            rows.chunks_exact_mut(dim).enumerate().for_each(|(token, row)| rotation.unrotate(token, row));
        }
    }
    kv
}

#[test]
fn what_levels_cost_and_lose_is_noted() {
    let spec = mixed_spec(KvDtype::Bf16);
    let (tokens, kv) = sample(&spec);
    let profile = starter(&spec, &tokens, 0, &kv).unwrap();
    let levels = profile.levels();
    assert!(
        levels.iter().is_sorted_by(|a, b| a.bits_per_element < b.bits_per_element && a.nmse > b.nmse),
        "{levels:?}"
    );
    assert!((1e-4..6.25e-4).contains(&levels[2].nmse), "{levels:?}");
    assert!(levels[2].bits_per_element < 8.0, "{levels:?}");
    assert!(levels.iter().all(|level| level.kl.is_none()), "nobody measured it");
    let read = Profile::from_bytes(&profile.to_bytes()).unwrap();
    assert_eq!(read.hash(), profile.hash());
    read.check_model(&spec).unwrap();
    // The same cache, cut elsewhere: positions count from where it begins.
    let later = starter(&spec, &tokens[256..], 256, &kv.slice(256..TOKENS)).unwrap();
    assert!((later.levels()[2].bits_per_element / levels[2].bits_per_element - 1.0).abs() < 0.1);
}

#[test]
fn a_cache_that_says_too_little_is_refused() {
    let spec = mixed_spec(KvDtype::F16);
    let (tokens, kv) = sample(&spec);
    let refused = |tokens: &[u32], kv: &KvBuffer| starter(&spec, tokens, 0, kv).unwrap_err();
    assert!(matches!(refused(&tokens[..100], &kv), StarterError::Sample { usable: 96, .. }));
    assert!(matches!(refused(&[7; TOKENS], &kv), StarterError::Sample { distinct: 1, .. }));
    let mut damaged = kv;
    damaged.as_mut_slice().fill(f32::NAN);
    assert!(matches!(refused(&tokens, &damaged), StarterError::Sample { usable: 0, .. }));
    assert!(matches!(refused(&[], &damaged), StarterError::Sample { .. }));
}

#[test]
fn an_exact_first_profile_restores_any_text() {
    let tokens = Noise::new(1).tokens(TOKENS);
    for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8E4m3] {
        let spec = mixed_spec(dtype);
        let profile = exact_starter(&spec, &tokens, 0, &typed(&spec, &tokens, 1)).unwrap();
        assert_eq!((profile.training().recipe.as_str(), profile.lossy_levels()), (STARTER_RECIPE, 0));
        let [level] = profile.levels() else { panic!("{:?}", profile.levels()) };
        assert_eq!((level.kl, level.nmse), (Some(0.0), 0.0), "{dtype:?}");
        assert!(level.bits_per_element < 8.0 * dtype.bytes() as f32, "{dtype:?}: {level:?}");
        let again = exact_starter(&spec, &tokens, 0, &typed(&spec, &tokens, 1)).unwrap();
        assert_eq!(again.hash(), profile.hash(), "{dtype:?}");
        let read = Profile::from_bytes(&profile.to_bytes()).unwrap();
        assert_eq!((read.hash(), read.to_bytes()), (profile.hash(), profile.to_bytes()), "{dtype:?}");
        let setup = Setup::of(spec, profile);
        let text = Noise::new(77).tokens(TOKENS);
        for (scale, shift) in [(1.0, 0.0), (5.0, 0.0), (0.05, 0.0), (1.0, 8.0)] {
            let mut other = cache(&setup.spec, &text, 2);
            other.as_mut_slice().iter_mut().for_each(|x| *x = *x * scale + shift);
            round_to(dtype, &mut other);
            let object = setup.encode(&text, 0, &other);
            assert!(setup.decode(&object, 0).unwrap() == other, "{dtype:?} × {scale} + {shift}");
            let error = Head::parse(&object).unwrap().measured().unwrap().error(Level(0));
            assert_eq!(Quality::of(error), Some(Quality::Exact), "{dtype:?} × {scale} + {shift}");
        }
    }
    let spec = mixed_spec(KvDtype::F32);
    let refused = exact_starter(&spec, &tokens, 0, &cache(&spec, &tokens, 1));
    assert!(matches!(refused, Err(StarterError::Profile(_))), "it has no exact level: {refused:?}");
}

#[test]
fn an_exact_first_profile_restores_what_is_not_finite() {
    let tokens = Noise::new(1).tokens(TOKENS);
    for value in [f32::NAN, f32::INFINITY] {
        let spec = mixed_spec(KvDtype::F16);
        let mut kv = typed(&spec, &tokens, 1);
        kv.rows_mut(0, Plane::V, 0)[8 * 300] = value;
        let profile = exact_starter(&spec, &tokens, 0, &kv).unwrap();
        assert!(profile.parts().scopes.iter().all(|scope| scope.mean.iter().all(|mean| mean.is_finite())));
        let setup = Setup::of(spec, profile);
        let decoded = setup.decode(&setup.encode(&tokens, 0, &kv), 0).unwrap();
        let mut pairs = decoded.as_slice().iter().zip(kv.as_slice());
        assert!(pairs.all(|(x, y)| x.to_bits() == y.to_bits()), "{value}");
    }
}

/// bf16 would round the usual error up to 2.
#[test]
fn cells_are_no_wider_than_the_usual_error() {
    let (spec, tokens) = (mixed_spec(KvDtype::Bf16), Noise::new(1).tokens(TOKENS));
    let mut kv = typed(&spec, &tokens, 1);
    let values = [1.992_187_5, -1.992_187_5, 2.0, -2.0].into_iter().cycle();
    let rows = kv.rows_mut(4, Plane::V, 0).chunks_exact_mut(5);
    rows.zip(values).for_each(|(row, value)| row.fill(value));
    let parts = exact_starter(&spec, &tokens, 0, &kv).unwrap().parts();
    let mut floors = Vec::new();
    for scope in &parts.scopes {
        let mut elements = scope.lossless.as_ref().unwrap().elements.iter();
        for member in &scope.members {
            let of_member = elements.by_ref().take(member.dim);
            let is_it = (member.layer, member.plane, member.head) == (4, Plane::V, 0);
            floors.extend(of_member.filter(|_| is_it).map(|element| element.floor));
        }
    }
    assert_eq!(floors, [127; 5], "an exponent of 0");
}
