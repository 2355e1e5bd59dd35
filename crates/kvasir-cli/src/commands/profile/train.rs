//! `kvasir profile train`: trains a profile from KV dumps, or for the shipped model from texts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvasir_codec::Profile;
use kvasir_train::{
    BasisRecipe, QualityOracle, Recipe, TrainError, TrainingContext, non_finite, search, train,
    train_transparent,
};
use kvasir_types::ModelSpec;

use super::levels::levels_table;
use crate::{
    error::{CliError, CliResult, Exit, write_file},
    inputs,
    output::{bytes, print, print_json},
    progress::{Step, note},
    training::{PARAMETER_BYTES, no_data},
};
#[cfg(feature = "demo")]
use {
    crate::{
        shipped::{self, engine_error},
        training::{CONTEXTS_MAX, TextSource, training_texts},
    },
    kvasir_engine::training::TrainingSet,
    kvasir_train::train_calibrated,
};

/// Coding recipe of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RecipeName {
    /// A trained basis over all layers with a token predictor. Smallest.
    Basis,
    /// Static mean without a basis. Bit-exact and cheap to decode.
    Direct,
    /// The cache bit for bit, as the only level.
    ExactOnly,
    /// `direct` with the cache bit for bit on top.
    ExactResidual,
    /// The configuration of the CacheGen paper. Its errors are not measured: chunks are not loaded by default.
    Cachegen,
}

/// Logit KL of the finest level, about which trials are compared unless another one is given.
#[cfg(feature = "demo")]
const FINEST_KL: f32 = 3e-4;

/// Arguments of `kvasir profile train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArguments {
    /// KV dumps of contexts to train on, all of one model.
    #[arg(long, value_name = "FILE", num_args = 1.., required = cfg!(not(feature = "demo")))]
    #[cfg_attr(feature = "demo", arg(conflicts_with_all = ["texts", "self_generated"]))]
    kv: Vec<PathBuf>,
    /// Texts for the shipped model, split into contexts. It measures the logit KL of every level.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    texts: Vec<PathBuf>,
    /// Maximum number of contexts taken from the texts, evenly spaced. All their caches are held in memory: 8
    /// MB each.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "N", default_value_t = CONTEXTS_MAX, requires = "texts")]
    contexts: usize,
    /// Contexts that the shipped model generates itself, in addition to any texts.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "N")]
    self_generated: Option<usize>,
    /// Seed of the generated contexts.
    #[cfg(feature = "demo")]
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Coding recipe of the profile.
    #[arg(long, value_enum, default_value_t = RecipeName::Basis)]
    recipe: RecipeName,
    /// Maximum size of the profile, as a share of the model's weights.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    budget_weights: Option<f64>,
    /// Maximum multiply-adds to decode a token, as a share of the model's in prefill.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    budget_flops: Option<f64>,
    /// Parameters of the model that made the dumps, at 2 bytes each. Budgets are shares of it.
    #[arg(long, value_name = "N")]
    parameters: Option<u64>,
    /// Try several scopes and predictors on a part of the data, and use those that need the fewest bits.
    #[arg(long)]
    search: bool,
    /// Layers per scope. Default: all, or for transparent levels as many as have a basis of full rank.
    #[arg(long, value_name = "N", conflicts_with = "search")]
    scope_layers: Option<usize>,
    /// Code keys and values in separate scopes.
    #[arg(long, conflicts_with = "search")]
    split_kv: bool,
    /// Factors of the token predictor: for the current token, for the previous one.
    #[arg(long, value_name = "N,N", value_delimiter = ',', num_args = 1..=2)]
    factors: Option<Vec<usize>>,
    /// Bits per factor.
    #[arg(long, value_name = "BITS", default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=8))]
    factor_bits: u8,
    /// Tokens stored exactly at the start of a context. Default: measured.
    #[arg(long, value_name = "N")]
    exact_tokens: Option<usize>,
    /// Logit KL of the finest level, in nats per token. Needs --texts, whose model measures it. Default: as for
    /// --finest-nmse.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "NATS", conflicts_with = "kv")]
    finest_kl: Option<f32>,
    /// Error of the finest level if no model measures its loss: error power over the power of the cache about
    /// its mean. Default: what quality transparent allows in every head of held-out text, and a finer level in
    /// reserve for other text. Coarser chunks are not loaded by default.
    #[arg(long, value_name = "SHARE")]
    #[cfg_attr(feature = "demo", arg(requires = "kv"))]
    finest_nmse: Option<f64>,
    /// Print the levels as JSON.
    #[arg(long)]
    json: bool,
    /// The profile to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// `5%` or `0.05`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let share = number.parse::<f64>().map_err(|e| format!("neither a share nor a percentage: {e}"))? * unit;
    if share.is_finite() && share > 0.0 { Ok(share) } else { Err("must be above 0".to_owned()) }
}

/// Runs the command.
pub(crate) fn run(arguments: &TrainArguments) -> CliResult {
    #[cfg(feature = "demo")]
    let profile = if arguments.kv.is_empty() { from_texts(arguments)? } else { from_dumps(arguments)? };
    #[cfg(not(feature = "demo"))]
    let profile = from_dumps(arguments)?;
    let file = profile.to_bytes();
    write_file(&arguments.output, &file)?;
    note(&format!(
        "{} written to {}, {}",
        bytes(file.len() as u64),
        arguments.output.display(),
        profile.hash()
    ));
    if arguments.json { print_json(&super::inspect::view(&profile)) } else { print(&levels_table(&profile)) }
}

/// Trains on dumps of other engines. Without the model, the loss that an error causes is unknown.
fn from_dumps(arguments: &TrainArguments) -> CliResult<Profile> {
    let mut spec: Option<std::sync::Arc<ModelSpec>> = None;
    let mut contexts = Vec::with_capacity(arguments.kv.len());
    for path in &arguments.kv {
        let dump = inputs::dump(path)?;
        let spec = spec.get_or_insert_with(|| dump.spec.clone().into());
        if spec.model_id() != dump.spec.model_id() {
            let message =
                format!("{} is of another model than {}", path.display(), arguments.kv[0].display());
            return Err(CliError::new(Exit::Data, message, "Train a profile from dumps of one model only."));
        }
        contexts.push(TrainingContext { first_position: 0, tokens: dump.tokens, kv: dump.kv });
    }
    let Some(spec) = spec else { return Err(no_data()) };
    let base = basis_recipe(arguments, arguments.parameters.map(|n| n as f64))?;
    let step = Step::start("training");
    let mut tell = |what: &str, part| step.at(what, part);
    let recipe = recipe(arguments, base, &spec, &contexts, None, &mut tell)?;
    let profile = match arguments.finest_nmse {
        Some(finest_nmse) => train(&spec, &contexts, &recipe, finest_nmse, &mut tell),
        None => train_transparent(&spec, &contexts, &recipe, &mut tell),
    };
    let profile = profile.map_err(training_error)?;
    step.done("");
    if let Some(left_out) = non_finite(&spec, &contexts, profile.exact_tokens()) {
        note(&left_out.to_string());
    }
    Ok(profile)
}

/// Trains for the shipped model, which measures the loss.
#[cfg(feature = "demo")]
fn from_texts(arguments: &TrainArguments) -> CliResult<Profile> {
    let model = shipped::model()?;
    let step = Step::start("texts and their KV");
    let source = TextSource {
        files: &arguments.texts,
        contexts: arguments.contexts,
        own: arguments.self_generated.unwrap_or(0),
        seed: arguments.seed,
    };
    let texts = training_texts(&model, source, &step)?;
    let set = TrainingSet::of_texts(&model, texts, &mut |part| step.at("computing KV", part));
    let TrainingSet { contexts, mut oracle } = set.map_err(engine_error)?;
    step.done(&format!("{} contexts", contexts.len()));
    let base = basis_recipe(arguments, Some(model.parameters() as f64))?;
    let step = Step::start("training");
    let mut tell = |what: &str, part| step.at(what, part);
    let spec = model.spec();
    let recipe = recipe(arguments, base, spec, &contexts, Some(&mut oracle), &mut tell)?;
    let profile = match arguments.finest_kl {
        Some(finest_kl) => train_calibrated(spec, &contexts, &recipe, &mut oracle, finest_kl, &mut tell),
        None => train_transparent(spec, &contexts, &recipe, &mut tell).and_then(|profile| {
            tell("measuring the quality of every level", 0.98);
            Ok(profile.with_predicted_kl(&oracle.kl_by_level(&profile))?)
        }),
    };
    // What was trained without its measurements may have failed because of that.
    if let Some(error) = oracle.error() {
        return Err(CliError::internal(format!("the model could not measure the loss: {error}")));
    }
    let profile = profile.map_err(training_error)?;
    step.done("");
    Ok(profile)
}

fn training_error(error: TrainError) -> CliError {
    let advice = match error {
        TrainError::NotTransparent { .. } => {
            "Train without --search, --budget-weights and --budget-flops, with --scope-layers 1, or on more texts. Or say \
             how fine the finest level is (--finest-nmse of dumps, --finest-kl of texts): whoever loads such chunks has to ask for \
             a lower quality."
        }
        _ => "",
    };
    CliError::new(Exit::Data, error, advice)
}

/// The basis recipe that the arguments describe.
fn basis_recipe(arguments: &TrainArguments, parameters: Option<f64>) -> CliResult<BasisRecipe> {
    let share = |share: Option<f64>, unit: f64| match (share, parameters) {
        (None, _) => Ok(None),
        (Some(share), Some(parameters)) => Ok(Some((share * parameters * unit) as usize)),
        (Some(_), None) => Err(CliError::new(
            Exit::Usage,
            "the budget is a share of the model's size, which the dumps do not contain",
            "Give its number of parameters with --parameters.",
        )),
    };
    let mut recipe = BasisRecipe {
        scope_layers: arguments.scope_layers,
        joint: !arguments.split_kv,
        table_bits: arguments.factor_bits,
        exact_tokens: arguments.exact_tokens,
        budget_bytes: share(arguments.budget_weights, PARAMETER_BYTES)?,
        budget_macs: share(arguments.budget_flops, 1.0)?,
        ..BasisRecipe::default()
    };
    match arguments.factors.as_deref() {
        None => {}
        Some([current, previous]) => recipe.token_factors = [*current, *previous],
        Some(_) => {
            let why = "--factors takes two numbers: for the current token, and for the previous one";
            return Err(CliError::new(Exit::Usage, why, "For example: --factors 128,64."));
        }
    }
    Ok(recipe)
}

/// The recipe, after trials if `--search` asks for them.
fn recipe(
    arguments: &TrainArguments,
    base: BasisRecipe,
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    oracle: Option<&mut dyn QualityOracle>,
    tell: &mut dyn FnMut(&str, f32),
) -> CliResult<Recipe> {
    match arguments.recipe {
        RecipeName::Direct => return Ok(Recipe::Direct),
        RecipeName::ExactOnly => return Ok(Recipe::Exact),
        RecipeName::ExactResidual => return Ok(Recipe::DirectExact),
        RecipeName::Cachegen => return Ok(Recipe::CacheGen),
        RecipeName::Basis if !arguments.search => return Ok(Recipe::Basis(base)),
        RecipeName::Basis => {}
    }
    // About where caches are read: two levels above the finest.
    #[cfg(feature = "demo")]
    let target = arguments.finest_kl.unwrap_or(FINEST_KL) * 10.0;
    #[cfg(not(feature = "demo"))]
    let target = 0.0; // nobody measures any
    let trials = search(spec, contexts, &base, oracle, target, tell).map_err(training_error)?;
    for trial in &trials {
        let layers = trial.recipe.scope_layers.map_or("all".to_owned(), |n| n.to_string());
        note(&format!(
            "  layers {layers}, {}, factors {:?}: {:.3} bits, {}",
            if trial.recipe.joint { "joint" } else { "separate" },
            trial.recipe.token_factors,
            trial.bits_per_element,
            bytes(trial.profile_bytes as u64)
        ));
    }
    let mut best = trials.into_iter().next().map_or(base, |best| best.recipe);
    // A scope of all layers says so: transparent levels would otherwise get as many as have a basis of full rank.
    best.scope_layers = Some(best.scope_layers.unwrap_or(spec.layers.len()));
    Ok(Recipe::Basis(best))
}
