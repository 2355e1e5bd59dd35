//! The budget profile of a model that none ships with.

use kvasir_codec::Profile;
use kvasir_engine::{Model, quality::KlOracle};
use kvasir_train::{BasisRecipe, Recipe, train_calibrated};

use super::{bench_error, training};
use crate::commands::bench::ablation::shipped_recipe;
use kvasir_cli::{
    error::{CliError, CliResult},
    progress::Step,
};

/// Every ninth window judges, and KL of the finest level in nats per token: as in `kvasir profile train`.
const JUDGES: usize = 9;
const FINEST_KL: f32 = 3e-4;

/// Trains the recipe of the shipped profile on calibration windows. Those that judge are split as the measured ones are:
/// behind the prefix of a window of records are its questions, where a loss of the prefix shows.
pub(super) fn budget_profile(
    model: &Model,
    windows: &[Vec<u32>],
    prefix: usize,
    step: &Step,
) -> CliResult<Profile> {
    let judges = windows.iter().step_by(JUDGES).cloned().collect();
    let fitted = windows.iter().enumerate().filter(|(index, _)| !index.is_multiple_of(JUDGES));
    let contexts: Vec<_> = fitted.map(|(_, window)| training(model, window)).collect::<CliResult<_>>()?;
    let mut oracle = KlOracle::new(model, judges, prefix);
    // How many tokens are stored exactly is measured, too.
    let recipe = Recipe::Basis(BasisRecipe { exact_tokens: None, ..shipped_recipe(model) });
    let mut tell = |what: &str, part: f32| step.at(what, part);
    let profile = train_calibrated(model.spec(), &contexts, &recipe, &mut oracle, FINEST_KL, &mut tell)
        .map_err(|error| bench_error(error.into()))?;
    match oracle.error() {
        Some(error) => Err(CliError::internal(format!("the model could not measure the loss: {error}"))),
        None => Ok(profile),
    }
}
