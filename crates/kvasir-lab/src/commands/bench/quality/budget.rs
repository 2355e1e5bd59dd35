//! The profiles that are made here: the budget profile of a model that none ships with, and those of a service.

use std::sync::Arc;

use kvasir_codec::{Profile, starter};
use kvasir_engine::{Model, quality::KlOracle};
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train_calibrated, train_transparent};

use super::{bench_error, training};
use crate::{
    commands::bench::ablation::shipped_recipe,
    quality::{FIRST, RETRAINED, RETRAINED_BUDGET, SuiteOptions},
};
use kvasir_cli::{
    error::{CliError, CliResult, Exit},
    progress::Step,
    training::retraining_recipe,
};

/// Every ninth window judges, and KL of the finest level in nats per token: as for the shipped profile.
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

/// The profiles that a service has of a model, as far as they are wanted: the one that a client makes from its first chunk, and those
/// that `kvasir profile retrain` makes, without and with `--parameters`. The first is there if any is: it stores the chunks that
/// the others do not suit.
pub(super) fn service_profiles(
    model: &Model,
    contexts: &[TrainingContext],
    options: &SuiteOptions,
    step: &Step,
) -> CliResult<Vec<(&'static str, Arc<Profile>)>> {
    let wanted = |variant: &str| options.wants_variant(variant);
    let runs = options.wants("kvasir") || options.wants("kvasir_names");
    let runs = runs && [FIRST, RETRAINED, RETRAINED_BUDGET].into_iter().any(wanted);
    let Some(chunk) = contexts.first().filter(|_| runs) else { return Ok(Vec::new()) };
    let first = starter(model.spec(), &chunk.tokens, chunk.first_position, &chunk.kv)
        .map_err(|error| CliError::new(Exit::Data, error, ""))?;
    let mut profiles = vec![(FIRST, Arc::new(first))];
    let retrained = [(RETRAINED, None), (RETRAINED_BUDGET, Some(model.config().parameters()))];
    for (variant, parameters) in retrained {
        if !wanted(variant) {
            continue;
        }
        let recipe = retraining_recipe(parameters);
        let mut tell = |what: &str, part: f32| step.at(what, part);
        let profile = train_transparent(model.spec(), contexts, &recipe, &mut tell)
            .map_err(|error| bench_error(error.into()))?;
        profiles.push((variant, Arc::new(profile)));
    }
    Ok(profiles)
}
