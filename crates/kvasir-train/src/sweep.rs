//! Training at steps of one's own: for sweeps over rate.

use kvasir_types::ModelSpec;

use super::{Recipe, Session, TrainingContext, sensitivity::Sensitivity};
use crate::TrainError;
use kvasir_codec::Profile;

/// Error of the step for which a sweep's factors are defined.
const SWEPT_NMSE: f64 = 0.01;

/// As [`train`](super::train()), with every step `factor` times that of an error of 1 %; [`Recipe::CacheGen`] sweeps the paper's bins
/// this way.
///
/// # Errors
/// As [`train`](super::train()).
pub fn train_at_scale(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    factor: f32,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    let session = Session::new(spec, contexts, recipe, Sensitivity::unknown(), progress)?;
    let step = session.step_of(SWEPT_NMSE) * factor;
    let parts = session.parts(step)?;
    session.finish(parts, step, progress)
}
