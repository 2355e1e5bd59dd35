//! Which scope and predictor, by trial: every candidate is trained on some of the contexts under the same budget, and
//! the one that needs the fewest bits at the target quality wins.

use kvasir_types::ModelSpec;

use super::{BasisRecipe, FINEST_NMSE, QualityOracle, Recipe, TrainError, TrainingContext, train};
use kvasir_codec::Profile;

/// Contexts that trials are trained on: enough to distinguish candidates, few enough to try them all.
const TRIAL_CONTEXTS: usize = 10;
/// NMSE that replaces the target if no oracle measures KL.
const TARGET_NMSE: f32 = 0.05;

/// One candidate and the bits it needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The candidate.
    pub recipe: BasisRecipe,
    /// Bits per element at the target quality, container included; infinite if it does not reach it.
    pub bits_per_element: f32,
    /// Size of the trial's profile.
    pub profile_bytes: usize,
}

/// Tries scopes (all layers, half of them, one; planes joint or separate) with and without the token
/// predictor, best first. Budgets, factors and bits are those of `base`; candidates that exceed them are
/// omitted.
///
/// # Errors
/// As [`train`]; of budgets where they hold no candidate.
pub fn search(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    base: &BasisRecipe,
    mut oracle: Option<&mut dyn QualityOracle>,
    target_kl: f32,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Vec<Trial>, TrainError> {
    let candidates = candidates(spec.layers.len(), base);
    let contexts = &contexts[..contexts.len().min(TRIAL_CONTEXTS)];
    let (mut trials, mut too_large) = (Vec::with_capacity(candidates.len()), None);
    for (index, recipe) in candidates.iter().enumerate() {
        let scope = recipe.scope_layers.map_or("all layers".to_owned(), |n| format!("{n} layers per scope"));
        let planes = if recipe.joint { "joint" } else { "separate" };
        let what = format!("trying {scope}, planes {planes}, token factors {:?}", recipe.token_factors);
        progress(&what, index as f32 / candidates.len() as f32);
        let profile = match train(spec, contexts, &Recipe::Basis(recipe.clone()), FINEST_NMSE, &mut |_, _| ())
        {
            Err(error @ (TrainError::Budget { .. } | TrainError::MultiplyAdds { .. })) => {
                too_large = Some(error);
                continue;
            }
            profile => profile?,
        };
        let curve = curve(&profile, &mut oracle);
        let target = if oracle.is_some() { target_kl } else { TARGET_NMSE };
        trials.push(Trial {
            recipe: recipe.clone(),
            bits_per_element: bits_at(&curve, target).unwrap_or(f32::INFINITY),
            profile_bytes: profile.to_bytes().len(),
        });
    }
    if let (true, Some(error)) = (trials.is_empty(), too_large) {
        return Err(error);
    }
    trials.sort_by(|a, b| a.bits_per_element.total_cmp(&b.bits_per_element));
    Ok(trials)
}

fn candidates(layers: usize, base: &BasisRecipe) -> Vec<BasisRecipe> {
    let half = layers.div_ceil(2);
    let mut scopes = vec![(None, true), (None, false), (Some(half), true), (Some(1), true), (Some(1), false)];
    scopes.retain(|(count, _)| count.is_none_or(|count| count < layers));
    let mut predictors = vec![base.token_factors, [0, 0]];
    predictors.dedup();
    let recipe = |(scope_layers, joint)| {
        predictors.iter().map(move |factors| BasisRecipe {
            scope_layers,
            joint,
            token_factors: *factors,
            ..base.clone()
        })
    };
    scopes.into_iter().flat_map(recipe).collect()
}

/// (bits per element, loss) by level.
fn curve(profile: &Profile, oracle: &mut Option<&mut dyn QualityOracle>) -> Vec<(f32, f32)> {
    let bits = profile.levels().iter().map(|level| level.bits_per_element);
    match oracle {
        Some(oracle) => bits.zip(oracle.kl_by_level(profile)).collect(),
        None => profile.levels().iter().map(|level| (level.bits_per_element, level.nmse)).collect(),
    }
}

/// Log-log interpolation between levels. Beyond the coarsest level it is the coarsest; beyond the finest
/// there is no value.
pub(super) fn bits_at(curve: &[(f32, f32)], target: f32) -> Option<f32> {
    let first = curve.first().filter(|(_, loss)| *loss <= target).map(|(bits, _)| *bits);
    first.or_else(|| {
        curve.windows(2).find(|pair| pair[1].1 <= target).map(|pair| {
            let ((bits, loss), (more, less)) = (pair[0], pair[1]);
            let share = (loss / target).ln() / (loss / less.max(f32::MIN_POSITIVE)).ln();
            bits * (more / bits).powf(share)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_read_between_levels_and_never_beyond_the_finest() {
        let curve = [(0.1, 1e-2), (1.0, 1e-4)];
        assert!((bits_at(&curve, 1e-3).expect("between") - 0.1f32.powf(0.5)).abs() < 1e-4);
        assert_eq!(bits_at(&curve, 0.5), Some(0.1));
        assert_eq!(bits_at(&curve, 1e-5), None);
    }

    /// Keys and values of one hidden state: a joint scope needs half the coefficients, and the text predicts most of it.
    #[test]
    fn the_trainer_finds_the_scope_that_the_data_have() {
        let spec = crate::common::mixed_spec(kvasir_types::KvDtype::Bf16);
        let contexts = crate::common::contexts(&spec, 6, 300);
        let base =
            BasisRecipe { token_factors: [6, 0], budget_bytes: Some(40_000), ..BasisRecipe::default() };
        let trials = search(&spec, &contexts, &base, None, 0.0, &mut |_, _| ()).expect("trains");
        assert!(trials.len() >= 8 && trials.iter().all(|t| t.profile_bytes <= 40_000), "{trials:?}");
        assert!(trials[0].recipe.joint && trials[0].recipe.scope_layers.is_none(), "{:?}", trials[0]);
        assert_eq!(trials[0].recipe.token_factors, [6, 0]);
    }
}
