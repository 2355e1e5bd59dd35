//! Trains many recipes on the same data with the same steps, to measure the value of a feature.

use kvasir_types::ModelSpec;

use super::{
    BasisRecipe, QualityOracle, Recipe, Session, TrainError, TrainingContext, sensitivity::Sensitivity,
};
use kvasir_codec::Profile;

/// Contexts and the cost of errors in each plane, measured once.
#[derive(Debug)]
pub struct Study<'a> {
    spec: &'a ModelSpec,
    contexts: &'a [TrainingContext],
    sensitivity: Sensitivity,
}

impl<'a> Study<'a> {
    /// Asks an oracle about every plane.
    pub fn new(
        spec: &'a ModelSpec,
        contexts: &'a [TrainingContext],
        oracle: &mut dyn QualityOracle,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Self {
        Self { spec, contexts, sensitivity: Sensitivity::measure(spec, oracle, progress) }
    }

    /// The finest step, in normalised units, at which the finest level of a recipe has a KL of about `finest_kl`.
    ///
    /// # Errors
    /// As [`train`](super::train()).
    pub fn step(
        &self,
        recipe: &BasisRecipe,
        oracle: &mut dyn QualityOracle,
        finest_kl: f32,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<f32, TrainError> {
        let recipe = Recipe::Basis(recipe.clone());
        let session = Session::new(self.spec, self.contexts, &recipe, self.sensitivity.clone(), progress)?;
        Ok(session.calibrate(oracle, finest_kl, progress)?.1)
    }

    /// A profile of a recipe at a step, its levels not yet measured; with `planes_alike` an error costs the same in every plane.
    ///
    /// # Errors
    /// As [`train`](super::train()).
    pub fn profile(
        &self,
        recipe: &BasisRecipe,
        step: f32,
        planes_alike: bool,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<Profile, TrainError> {
        // The number of exact tokens is part of the recipe here, not a result.
        let recipe = BasisRecipe { exact_tokens: recipe.exact_tokens.or(Some(0)), ..recipe.clone() };
        let recipe = Recipe::Basis(recipe);
        let sensitivity = if planes_alike { Sensitivity::unknown() } else { self.sensitivity.clone() };
        let session = Session::new(self.spec, self.contexts, &recipe, sensitivity, progress)?;
        Ok(Profile::assemble(session.parts(step)?)?)
    }
}
