//! Steps that follow the bounds of a named quality.

use kvasir_codec::Profile;
use kvasir_types::{LEVELS_MAX, ModelSpec, Plane, Quality};

use super::{Recipe, Session, TrainError, TrainingContext, check, sensitivity::Sensitivity};

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

/// Trains a profile whose finest level but one is [`Quality::Transparent`] in nineteen of twenty held-out chunks, by
/// the errors that the encoder measures. Each level below has steps three times as wide: `balanced`, `small`,
/// and one below all names. The finest level is in reserve: encoders leave out its pieces but for the spans
/// without which a chunk, of text unlike the sample, would not be `transparent`.
///
/// # Errors
/// As [`train`](super::train()); [`TrainError::NotTransparent`] if a truncated basis does not reach it.
pub fn train_transparent(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    let mut session = Session::new(spec, contexts, recipe, Sensitivity::of_bounds(spec), progress)?;
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
