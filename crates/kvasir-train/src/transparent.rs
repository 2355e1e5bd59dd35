//! Steps that follow the bounds of a named quality.

use kvasir_codec::Profile;
use kvasir_types::{ModelSpec, Plane, Quality};

use super::{Recipe, Session, TrainError, TrainingContext, check, sensitivity::Sensitivity};

/// Rounds in which the finest step is narrowed.
const ROUNDS: usize = 4;
/// Share of held-out chunks that keep the bound. A client stores the others with the model's first profile, at twice the size: a
/// step for the last of them would cost all others more.
const SHARE: f64 = 0.95;
/// The chunk at that share must use at least this part of the bound: a finer level costs bits without a
/// benefit.
const LEAST: f64 = 0.8;
/// The target of a round.
const AIM: f64 = 0.9;

/// Trains a profile whose finest level is [`Quality::Transparent`] in nineteen of twenty held-out chunks, by
/// the errors that the encoder measures. Each level below has steps three times as wide: `balanced`, `small`,
/// and one below all names.
///
/// A truncated basis may not reach it; encoders measure each chunk, so what is stored with the profile says so.
///
/// # Errors
/// As [`train`](super::train()).
pub fn train_transparent(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    let session = Session::new(spec, contexts, recipe, Sensitivity::of_bounds(spec), progress)?;
    let mut step = session.step_of(mean_bound(spec));
    let mut parts = session.parts(step)?;
    for round in 0..ROUNDS {
        progress("narrowing the finest step", 0.7 + 0.05 * round as f32);
        let errors = check::finest_errors(spec, &session.corpus, &parts)?;
        let at = ((errors.len() as f64 * SHARE) as usize).min(errors.len().saturating_sub(1));
        let error = errors.get(at).copied().unwrap_or(AIM);
        if (LEAST..=1.0).contains(&error) || !error.is_finite() {
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
