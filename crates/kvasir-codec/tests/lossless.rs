//! The exact level: every bit of every cache type, smaller than general compressors make it.

mod common;
#[path = "common/typed_rows.rs"]
mod typed_rows;

use common::{Noise, Setup, mixed_spec, typed};
use half::{bf16, f16};
use kvasir_codec::{ChunkDecoder as _, ChunkEncoder as _, ChunkInput, EncodeError, KvBuffer, Profile};
use kvasir_container::Head;
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{ChainLink, KvDtype, Level, Loss};
use typed_rows::TypedRows;

fn setup(dtype: KvDtype, recipe: &Recipe) -> Setup {
    let spec = mixed_spec(dtype);
    let contexts: Vec<_> = (0..6)
        .map(|i| {
            let tokens = Noise::new(i).tokens(300);
            TrainingContext { first_position: 0, kv: typed(&spec, &tokens, 70 + i), tokens }
        })
        .collect();
    let profile = train(&spec, &contexts, recipe, 0.01, &mut |_, _| ()).expect("trains");
    Setup::of(spec, profile)
}

/// The first chunk of a context.
fn encoded(setup: &Setup, tokens: &[u32], kv: &KvBuffer) -> Result<Vec<u8>, EncodeError> {
    setup.encoder.encode(&ChunkInput {
        tokens,
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first([9; 32].into()),
        beneath: Loss::NONE,
        kv,
    })
}

/// The cache as an engine holds it.
fn bytes(dtype: KvDtype, kv: &KvBuffer) -> Vec<u8> {
    let values = kv.as_slice().iter();
    match dtype {
        KvDtype::Bf16 => values.flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
    }
}

#[test]
fn every_bit_comes_back_and_lossy_levels_lie_beneath() {
    for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8E4m3] {
        for recipe in [Recipe::Exact, Recipe::DirectExact] {
            let setup = setup(dtype, &recipe);
            let tokens = Noise::new(5).tokens(300);
            let mut kv = typed(&setup.spec, &tokens, 1);
            kv.as_mut_slice()[7] = -0.0;
            kv.as_mut_slice()[8] = 0.0;
            let object = setup.encode(&tokens, 512, &kv);
            let levels = setup.profile.level_count();
            assert_eq!(levels, if recipe == Recipe::Exact { 1 } else { 4 });
            let back = setup.decode(&object, levels - 1).expect("decodes");
            let same = back.as_slice().iter().zip(kv.as_slice()).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{dtype:?} {recipe:?}");
            let head = Head::parse(&object).expect("parses");
            let mut rows = TypedRows::new(dtype, &setup.spec, 300);
            let top = Level(levels as u8 - 1);
            setup.decoder.decode(&head, &object, top, 0..300, &mut rows).expect("decodes");
            assert!(rows.holds(&kv), "{dtype:?} {recipe:?}: in its own type");
            if levels > 1 {
                assert!(common::error(&kv, &setup.decode(&object, levels - 2).expect("decodes")) > 0.0);
            }
        }
    }
}

#[test]
fn values_that_the_type_does_not_hold_are_stored_all_the_same() {
    let setup = setup(KvDtype::Bf16, &Recipe::DirectExact);
    let tokens = Noise::new(6).tokens(40);
    let mut kv = typed(&setup.spec, &tokens, 2);
    kv.as_mut_slice()[3] = f32::INFINITY;
    let back = setup.decode(&setup.encode(&tokens, 0, &kv), 3).expect("decodes");
    assert_eq!(back.as_slice(), kv.as_slice());
}

#[test]
fn an_exact_level_rounds_nothing() {
    let tokens = Noise::new(6).tokens(40);
    let with_value = |setup: &Setup, value: f32| {
        let mut kv = typed(&setup.spec, &tokens, 2);
        kv.as_mut_slice()[3] = value;
        encoded(setup, &tokens, &kv)
    };
    for recipe in [Recipe::Exact, Recipe::DirectExact] {
        let setup = setup(KvDtype::F16, &recipe);
        for value in [1e5, -1.0 - 1.0 / 4096.0, 1e-9] {
            let error = with_value(&setup, value).expect_err("no f16");
            assert!(matches!(error, EncodeError::Value { .. }), "{recipe:?} {value}: {error}");
        }
        assert!(with_value(&setup, f32::NAN).is_ok());
    }
    // Without one, what is stored exactly by the way is rounded as the levels are; but no number becomes infinite.
    let direct = setup(KvDtype::F16, &Recipe::Direct);
    assert!(with_value(&direct, -1.0 - 1.0 / 4096.0).is_ok());
    assert!(matches!(with_value(&direct, 1e9), Err(EncodeError::Value { .. })));
}

#[test]
fn the_exact_level_is_smaller_than_zstd_and_all_levels_cost_little_more() {
    for dtype in [KvDtype::Bf16, KvDtype::F16] {
        let tokens = Noise::new(5).tokens(512);
        let size = |recipe: Recipe| {
            let setup = setup(dtype, &recipe);
            let kv = typed(&setup.spec, &tokens, 1);
            let object = setup.encode(&tokens, 0, &kv);
            let head = Head::parse(&object).expect("parses");
            let top = Level((setup.profile.level_count() - 1) as u8);
            assert_eq!(head.level_bytes(top), Some(object.len() as u64));
            (object.len(), bytes(dtype, &kv))
        };
        let ((only, raw), (all, _)) = (size(Recipe::Exact), size(Recipe::DirectExact));
        let zstd = |bytes: &[u8]| zstd::bulk::compress(bytes, 19).expect("compresses").len();
        let split: Vec<u8> = [0, 1].iter().flat_map(|i| raw.iter().skip(*i).step_by(2)).copied().collect();
        let (plain, split) = (zstd(&raw), zstd(&split));
        let least = plain.min(split) as f64;
        assert!((only as f64) < 0.97 * least, "{dtype:?}: {only}, zstd {plain}, byte-split {split}");
        let ratio = all as f64 / only as f64;
        assert!(ratio < 1.08, "{dtype:?}: all levels {all}, exact only {only}: {ratio}");
    }
}

/// A value for which the span is stored as it is lets no other value of it be rounded.
#[test]
fn an_infinity_lets_no_other_value_be_rounded() {
    let (setup, tokens) = (setup(KvDtype::F16, &Recipe::DirectExact), Noise::new(6).tokens(40));
    let mut kv = typed(&setup.spec, &tokens, 2);
    kv.as_mut_slice()[3] = -1.0 - 1.0 / 4096.0;
    kv.as_mut_slice()[4] = f32::INFINITY;
    let refused = encoded(&setup, &tokens, &kv);
    assert!(matches!(refused, Err(EncodeError::Value { .. })), "{:?}", refused.map(|object| object.len()));
}

/// The format lets a coefficient enter at the exact level, where no section of it is: decoders take it for 0.
#[test]
fn a_coefficient_that_enters_at_the_exact_level_is_none() {
    let made = setup(KvDtype::Bf16, &Recipe::DirectExact);
    let mut parts = made.profile.parts();
    let lossy = made.profile.lossy_levels();
    let entry = i8::try_from(lossy).expect("few levels");
    parts.scopes[0].coding.iter_mut().for_each(|coding| coding.entry = entry);
    let setup = Setup::of((*made.spec).clone(), Profile::assemble(parts).expect("the format allows it"));
    let tokens = Noise::new(5).tokens(300);
    let kv = typed(&setup.spec, &tokens, 1);
    let back = setup.decode(&setup.encode(&tokens, 0, &kv), lossy).expect("decodes");
    assert!(back.as_slice() == kv.as_slice());
}
