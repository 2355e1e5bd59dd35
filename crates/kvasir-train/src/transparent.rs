//! Steps that follow the bounds of a named quality.

use kvasir_codec::Profile;
use kvasir_types::{LEVELS_MAX, ModelSpec, Plane, Quality};

use super::{
    BasisRecipe, FINEST_NMSE, Recipe, Session, TrainError, TrainingContext, check, sensitivity::Sensitivity,
    train,
};

/// Rounds in which the step is narrowed.
const ROUNDS: usize = 4;
/// Share of held-out chunks that keep the bound without the finest level.
const SHARE: f64 = 0.95;
/// The chunk at that share must use at least this part of the bound: a finer step costs bits without a
/// benefit.
const LEAST: f64 = 0.8;
/// The target of a round.
const AIM: f64 = 0.9;
/// Above this error even the finest level, whose errors have a ninth of the power, is not `transparent`.
const MOST: f64 = 8.0;
/// Most elements of a scope: training holds its covariance, and decoding multiplies by all of it.
const SCOPE_ELEMENTS_MAX: usize = 2_048;
/// Bytes of an entry of a basis that is packed with little loss.
const ENTRY_BYTES: f64 = 11.0 / 8.0;

/// Trains a profile whose finest lossy level but one is [`Quality::Transparent`] in nineteen of twenty held-out chunks,
/// by the errors that the encoder measures. Each level below has steps three times as wide: `balanced`, `small`,
/// and one below all names. The finest lossy level is in reserve: encoders leave out its pieces but for the spans
/// without which a chunk, of text unlike the sample, would not be `transparent`; below an exact level they are all
/// there.
///
/// [`Recipe::Exact`] and [`Recipe::CacheGen`] have no steps to choose: they are trained as [`train`] does.
///
/// # Errors
/// As [`train`]; [`TrainError::NotTransparent`] if a truncated basis does not reach it.
pub fn train_transparent(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    let recipe = match recipe {
        Recipe::Exact | Recipe::CacheGen => return train(spec, contexts, recipe, FINEST_NMSE, progress),
        Recipe::Direct | Recipe::DirectExact => recipe.clone(),
        Recipe::Basis(basis) => Recipe::Basis(in_full_rank(spec, basis)),
    };
    let mut session = Session::new(spec, contexts, &recipe, Sensitivity::of_bounds(spec), progress)?;
    session.draft.level_count = (session.draft.level_count + 1).min(LEVELS_MAX);
    let mut step = session.step_of(mean_bound(spec)) / 3.0;
    let mut parts = session.parts(step)?;
    let mut round = 0;
    loop {
        progress("narrowing the finest step", 0.7 + 0.05 * round as f32);
        let errors = check::reserved_errors(spec, &session.corpus, &parts)?;
        let at = ((errors.len() as f64 * SHARE) as usize).min(errors.len().saturating_sub(1));
        let error = errors.get(at).copied().unwrap_or(AIM);
        if (LEAST..=1.0).contains(&error) || !error.is_finite() {
            break;
        }
        round += 1;
        if round > ROUNDS {
            if error > MOST {
                return Err(TrainError::NotTransparent { times: error as f32 });
            }
            break;
        }
        // Errors of coefficients that are coded grow with the square of their step.
        step *= (AIM / error).sqrt().clamp(0.2, 2.0) as f32;
        parts = session.parts(step)?;
    }
    session.finish(parts, step, progress)
}

/// The recipe with a number of layers for its scopes: as many as a scope holds and as fit into the budget in full rank.
/// Then text unlike the sample costs bits, not quality.
fn in_full_rank(spec: &ModelSpec, recipe: &BasisRecipe) -> BasisRecipe {
    let (layers, elements) = (spec.layers.len().max(1), spec.elements_per_token());
    let budget = recipe.budget_bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
    let fits = |of_scope: &usize| {
        let scope = (elements * of_scope).div_ceil(layers);
        scope <= SCOPE_ELEMENTS_MAX && (elements * scope) as f64 * ENTRY_BYTES <= budget
    };
    let most = || (1..=layers).rev().find(fits).unwrap_or(1);
    BasisRecipe { scope_layers: Some(recipe.scope_layers.unwrap_or_else(most)), ..recipe.clone() }
}

/// The error over power at which all planes are at their bounds, as a mean over elements scaled by the cost
/// of errors.
fn mean_bound(spec: &ModelSpec) -> f64 {
    let planes = spec.layers.iter().flat_map(|kv| Plane::ALL.map(|plane| (kv.layout, plane)));
    let (mut elements, mut costs) = (0.0, 0.0);
    for (layout, plane) in planes {
        let (heads, dim) = layout.planes()[plane as usize];
        elements += (heads * dim) as f64;
        costs += (heads * dim) as f64 / Quality::transparent_error(layout, plane);
    }
    elements / f64::max(costs, 1.0)
}

#[cfg(test)]
mod tests {
    use kvasir_types::{KvDtype, KvLayout, LayerKv};

    use super::*;
    use crate::common::mixed_spec;

    #[test]
    fn scopes_have_as_many_layers_as_fit_in_full_rank() {
        let small = mixed_spec(KvDtype::Bf16);
        let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 8, head_dim: 128 }, rope: None };
        let large = ModelSpec { layers: vec![layer; 32], ..small.clone() };
        // 102 elements a token, 14,306 bytes in full rank.
        for (spec, scope_layers, budget_bytes, expected) in [
            (&small, None, None, 5),
            (&small, None, Some(14_306), 5),
            (&small, None, Some(14_305), 4),
            (&small, None, Some(0), 1),
            (&small, Some(2), None, 2),
            (&large, None, None, 1),
            (&large, Some(32), None, 32),
        ] {
            let recipe = BasisRecipe { scope_layers, budget_bytes, ..BasisRecipe::default() };
            let found = in_full_rank(spec, &recipe);
            assert_eq!(found.scope_layers, Some(expected), "{scope_layers:?} {budget_bytes:?}");
        }
    }
}
