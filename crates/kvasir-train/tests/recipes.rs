//! What a recipe asks for is what the profile keeps: its error, its bytes, levels that differ.

#[path = "../../kvasir-codec/tests/common/mod.rs"]
mod common;

use common::{Noise, Setup, cache, contexts, mixed_spec, round_to, typed};
use kvasir_codec::{KvBuffer, Profile, container::Head};
use kvasir_train::{
    BasisRecipe, FINEST_NMSE, Recipe, TrainError, TrainingContext, non_finite, pack, train, train_transparent,
};
use kvasir_types::{KvDtype, Level, ModelSpec, Plane, Quality};

/// Texts of a vocabulary whose tables alone are larger than what a profile of a tenth of a small model may have.
fn wordy(spec: &ModelSpec) -> Vec<TrainingContext> {
    const VOCABULARY: u32 = 2_048;
    let context = |seed: u64| {
        let mut noise = Noise::new(seed);
        let word = |_| ((noise.uniform() + 0.5) * VOCABULARY as f32) as u32;
        let tokens: Vec<u32> = (0..600).map(word).map(|word| word.min(VOCABULARY - 1)).collect();
        TrainingContext { first_position: 0, kv: cache(spec, &tokens, 50 + seed), tokens }
    };
    (0..6).map(context).collect()
}

fn finest(profile: &Profile) -> f32 {
    profile.levels().last().expect("has levels").nmse
}

#[test]
fn a_budget_charges_everything() {
    let spec = mixed_spec(KvDtype::Bf16);
    let data = wordy(&spec);
    for bytes in [60_000, 131_000, 400_000] {
        let recipe = BasisRecipe { budget_bytes: Some(bytes), ..BasisRecipe::default() };
        let profile =
            train(&spec, &data, &Recipe::Basis(recipe), FINEST_NMSE, &mut |_, _| ()).expect("trains");
        assert!(profile.to_bytes().len() <= bytes, "{} of {bytes}", profile.to_bytes().len());
        assert!(finest(&profile) < 0.1, "{:?}", profile.levels());
    }
}

#[test]
fn a_budget_that_cannot_be_kept_is_an_error() {
    let spec = mixed_spec(KvDtype::Bf16);
    let data = wordy(&spec);
    let of = |budget_bytes, token_factors| {
        let recipe = BasisRecipe { budget_bytes, token_factors, ..BasisRecipe::default() };
        train(&spec, &data, &Recipe::Basis(recipe), FINEST_NMSE, &mut |_, _| ())
    };
    let error = of(Some(21_200), [256, 128]).expect_err("no room for a basis");
    assert!(matches!(error, TrainError::Budget { bytes: 21_200, .. }), "{error}");
    let whole = of(None, [8, 4]).expect("trains");
    assert!(matches!(pack(&whole, 5_000, 4), Err(TrainError::Budget { bytes: 5_000, .. })));
    let packed = pack(&whole, 40_000, 4).expect("packs");
    assert!(packed.to_bytes().len() <= 40_000 && finest(&packed) >= finest(&whole));
}

#[test]
fn multiply_adds_that_allow_no_good_basis_are_an_error() {
    let spec = mixed_spec(KvDtype::Bf16);
    let data = contexts(&spec, 6, 400);
    let elements = spec.elements_per_token();
    let of = |budget_macs| {
        let recipe =
            BasisRecipe { budget_macs: Some(budget_macs), token_factors: [0, 0], ..BasisRecipe::default() };
        train(&spec, &data, &Recipe::Basis(recipe), FINEST_NMSE, &mut |_, _| ())
    };
    // Not one vector, and one of six hidden directions.
    for macs in [elements - 1, elements] {
        let refused = of(macs).expect_err("too few");
        assert!(
            matches!(refused, TrainError::MultiplyAdds { macs: found, lost } if found == macs && lost > 0.25),
            "{refused}"
        );
    }
    let macs = 20 * elements;
    let kept = of(macs).expect("trains");
    let used: usize = kept.summary().scopes.iter().map(|scope| scope.rank * scope.elements).sum();
    assert!(used > 0 && used <= macs, "{used} of {macs}");
}

#[test]
fn the_finest_error_is_what_was_asked_for() {
    let spec = mixed_spec(KvDtype::Bf16);
    let data = contexts(&spec, 6, 400);
    for recipe in [Recipe::Direct, Recipe::Basis(BasisRecipe::default())] {
        for wanted in [1e-2, 1e-3, 1e-4] {
            let profile = train(&spec, &data, &recipe, wanted, &mut |_, _| ()).expect("trains");
            let ratio = f64::from(finest(&profile)) / wanted;
            assert!((0.3..2.0).contains(&ratio), "{}: {ratio} of {wanted}", recipe.name());
        }
    }
    let none = train(&spec, &data, &Recipe::Direct, 0.0, &mut |_, _| ());
    assert!(matches!(none, Err(TrainError::Recipe { field: "finest error", .. })));
}

#[test]
fn every_level_is_better_than_the_one_before_and_than_nothing() {
    let spec = mixed_spec(KvDtype::Bf16);
    let data = contexts(&spec, 6, 400);
    for recipe in [Recipe::Direct, Recipe::Basis(BasisRecipe { levels: 6, ..BasisRecipe::default() })] {
        for finest in [0.2, 0.02] {
            let profile = train(&spec, &data, &recipe, finest, &mut |_, _| ()).expect("trains");
            let levels = profile.levels();
            assert!(levels[0].nmse < 1.0, "{}: {levels:?}", recipe.name());
            let is_better = |pair: &[kvasir_codec::LevelNote]| {
                pair[1].nmse < pair[0].nmse && pair[1].bits_per_element > pair[0].bits_per_element
            };
            assert!(levels.windows(2).all(is_better), "{}: {levels:?}", recipe.name());
        }
    }
}

#[test]
fn every_recipe_that_chooses_steps_can_be_transparent() {
    let spec = mixed_spec(KvDtype::Bf16);
    let mut data = contexts(&spec, 6, 400);
    data.iter_mut().for_each(|context| round_to(spec.kv_dtype, &mut context.kv));
    let train_as = |recipe: &Recipe| train_transparent(&spec, &data, recipe, &mut |_, _| ()).expect("trains");
    let text = Noise::new(77).tokens(600);
    let kv = typed(&spec, &text, 2);
    for recipe in [Recipe::Direct, Recipe::DirectExact, Recipe::default()] {
        let profile = train_as(&recipe);
        let finest = Level((profile.lossy_levels() - 1) as u8);
        let object = Setup::of(spec.clone(), profile).encode(&text, 0, &kv);
        let error = Head::parse(&object).expect("valid").measured().expect("measured").error(finest);
        assert!(error <= Quality::Transparent.error_max(), "{}: {error:?}", recipe.name());
    }
    for recipe in [Recipe::Exact, Recipe::CacheGen] {
        let other = train(&spec, &data, &recipe, FINEST_NMSE, &mut |_, _| ()).expect("trains");
        assert_eq!(train_as(&recipe).hash(), other.hash(), "{}", recipe.name());
    }
}

#[test]
fn spans_that_are_not_finite_are_left_out_and_counted() {
    let spec = mixed_spec(KvDtype::Bf16);
    let mut data = contexts(&spec, 6, 400);
    let trained = |data: &[TrainingContext]| {
        let profile = train(&spec, data, &Recipe::default(), FINEST_NMSE, &mut |_, _| ()).expect("trains");
        let note = profile.training();
        (note.tokens, note.held_out_tokens, finest(&profile))
    };
    assert_eq!(non_finite(&spec, &data, 0), None);
    let (tokens, held_out, _) = trained(&data);
    // Pieces of 80 tokens: the fourth of a context that is fitted, and the last of the one that is not.
    data[1].kv.rows_mut(3, Plane::K, 0)[12 * 300] = f32::NAN;
    data[4].kv.rows_mut(0, Plane::V, 1)[8 * 399 + 7] = f32::NEG_INFINITY;
    let left_out = non_finite(&spec, &data, 0).expect("two").to_string();
    let (count, place) = ("160 tokens are left out", "layer 3, K, token 300 of context 1");
    assert!(left_out.starts_with(count) && left_out.contains(place), "{left_out}");
    let (found, found_held_out, error) = trained(&data);
    assert_eq!((tokens - found, held_out - found_held_out), (80, 80));
    assert!(error < 1e-3, "{error}");
}

/// Attention sinks may be larger than what f16 holds.
#[test]
fn exact_tokens_may_have_any_values() {
    let spec = mixed_spec(KvDtype::F16);
    let mut data = contexts(&spec, 6, 400);
    let trained = |data: &[TrainingContext], exact_tokens: usize| -> Result<_, TrainError> {
        let recipe = BasisRecipe { exact_tokens: Some(exact_tokens), ..BasisRecipe::default() };
        let profile = train(&spec, data, &Recipe::Basis(recipe), FINEST_NMSE, &mut |_, _| ())?;
        Ok((profile.training().tokens, profile.training().held_out_tokens))
    };
    let all = trained(&data, 4).expect("trains");
    // One that is fitted, and the one that is not.
    for context in [1, 4] {
        data[context].kv.rows_mut(0, Plane::K, 0)[..8 * 4].fill(f32::INFINITY);
    }
    assert_eq!((non_finite(&spec, &data, 4), trained(&data, 4)), (None, Ok(all)));
    assert!(non_finite(&spec, &data, 3).is_some());
    let refused = trained(&data, 400).expect_err("too many");
    assert!(matches!(refused, TrainError::Recipe { field: "exact_tokens", .. }), "{refused}");
}

/// A layer that is all zeros beside others that are not: its variance is none.
#[test]
fn a_layer_of_zeros_trains_and_comes_back() {
    let spec = mixed_spec(KvDtype::F16);
    let without = |kv: &mut KvBuffer| {
        round_to(spec.kv_dtype, kv);
        for (plane, head) in Plane::ALL.into_iter().flat_map(|plane| [(plane, 0), (plane, 1)]) {
            kv.rows_mut(0, plane, head).fill(0.0);
        }
    };
    let mut data = contexts(&spec, 6, 400);
    data.iter_mut().for_each(|context| without(&mut context.kv));
    let text = Noise::new(77).tokens(300);
    let mut kv = cache(&spec, &text, 2);
    without(&mut kv);
    for recipe in [Recipe::Direct, Recipe::default()] {
        let profile = train_transparent(&spec, &data, &recipe, &mut |_, _| ()).expect("trains");
        let setup = Setup::of(spec.clone(), profile);
        let object = setup.encode(&text, 0, &kv);
        let finest = setup.profile.lossy_levels() - 1;
        let error =
            Head::parse(&object).expect("valid").measured().expect("measured").error(Level(finest as u8));
        assert!(error <= Quality::Transparent.error_max(), "{}: {error:?}", recipe.name());
        for level in 0..=finest {
            let decoded = setup.decode(&object, level).expect("decodes");
            let zeros = Plane::ALL.into_iter().flat_map(|plane| decoded.rows(0, plane, 1));
            let largest = zeros.fold(0f32, |largest, x| largest.max(x.abs()));
            assert!(largest < 1e-20, "{}, level {level}: {largest}", recipe.name());
        }
    }
}
