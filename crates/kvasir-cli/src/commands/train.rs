//! `kvasir profile train`: a profile from KV dumps, or for the shipped model from texts.

use std::path::PathBuf;

use kvasir_codec::Profile;
use kvasir_engine::{Model, training::TrainingSet};
use kvasir_train::{
    BasisRecipe, QualityOracle, Recipe, TrainError, TrainingContext, search, train, train_calibrated,
};
use kvasir_types::{Level, ModelSpec};

use crate::{
    args::{RecipeName, TrainArguments},
    error::{CliError, CliResult, Exit, write_file},
    inputs,
    inputs::engine_error,
    output::{bytes, columns, print, print_json},
    progress::{Step, note},
};

/// Bytes of a parameter in a checkpoint of 16-bit floats.
const PARAMETER_BYTES: f64 = 2.0;

/// Runs the command.
pub(crate) fn run(arguments: &TrainArguments) -> CliResult {
    let profile = if arguments.kv.is_empty() { from_texts(arguments)? } else { from_dumps(arguments)? };
    let file = profile.to_bytes();
    write_file(&arguments.output, &file)?;
    note(&format!(
        "{} written to {}, {}",
        bytes(file.len() as u64),
        arguments.output.display(),
        profile.hash()
    ));
    if arguments.json {
        print_json(&super::profile_inspect::view(&profile))
    } else {
        print(&levels_table(&profile))
    }
}

/// Trains on what other engines cached; nobody can tell what an error costs them.
fn from_dumps(arguments: &TrainArguments) -> CliResult<Profile> {
    let mut spec: Option<std::sync::Arc<ModelSpec>> = None;
    let mut contexts = Vec::with_capacity(arguments.kv.len());
    for path in &arguments.kv {
        let dump = inputs::dump(path)?;
        let spec = spec.get_or_insert_with(|| dump.spec.clone().into());
        if spec.model_id() != dump.spec.model_id() {
            let message =
                format!("{} is of another model than {}", path.display(), arguments.kv[0].display());
            return Err(CliError::new(Exit::Data, message, "A profile is trained from dumps of one model."));
        }
        contexts.push(TrainingContext { tokens: dump.tokens, kv: dump.kv });
    }
    let Some(spec) = spec else { return Err(no_data()) };
    let base = basis_recipe(arguments, arguments.parameters.map(|n| n as f64))?;
    let step = Step::start("training");
    let mut tell = |what: &str, part| step.at(what, part);
    let recipe = recipe(arguments, base, &spec, &contexts, None, &mut tell)?;
    let profile = train(&spec, &contexts, &recipe, &mut tell).map_err(training_error)?;
    step.done("");
    Ok(profile)
}

/// Trains for the shipped model, which judges.
fn from_texts(arguments: &TrainArguments) -> CliResult<Profile> {
    let model = inputs::shipped_model()?;
    let step = Step::start("texts and their KV");
    let source = TextSource {
        files: &arguments.texts,
        contexts: arguments.contexts,
        own: arguments.own_texts.unwrap_or(0),
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
    let profile = train_calibrated(spec, &contexts, &recipe, &mut oracle, arguments.finest_kl, &mut tell)
        .map_err(training_error)?;
    if let Some(error) = oracle.error() {
        return Err(CliError::internal(format!("the model could not judge: {error}")));
    }
    step.done("");
    Ok(profile)
}

/// What a profile of the shipped model is trained on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextSource<'a> {
    /// Files, cut into contexts.
    pub(crate) files: &'a [PathBuf],
    /// Most contexts of the files, evenly spaced.
    pub(crate) contexts: usize,
    /// Contexts that the model writes itself.
    pub(crate) own: usize,
    /// Seed of those.
    pub(crate) seed: u64,
}

/// The texts in windows of the model's context. Files' windows and the model's own take turns, so that both are among
/// what is fitted, held out and judged by.
pub(crate) fn training_texts(model: &Model, source: TextSource<'_>, step: &Step) -> CliResult<Vec<Vec<u32>>> {
    let size = model.config().context;
    let mut tell = |part| step.at("the model writes", part);
    let own = model.sample_texts(source.own, size, source.seed, &mut tell).map_err(engine_error)?;
    let mut named = Vec::new();
    for path in source.files {
        named.extend(inputs::text_tokens(model, path)?.chunks_exact(size).map(<[u32]>::to_vec));
    }
    let named = evenly(named, source.contexts);
    let count = own.len() + named.len();
    let (mut texts, mut own, mut named) = (Vec::with_capacity(count), own.into_iter(), named.into_iter());
    for index in 0..count {
        let (first, other): (&mut dyn Iterator<Item = _>, &mut dyn Iterator<Item = _>) =
            if index % 2 == 0 { (&mut own, &mut named) } else { (&mut named, &mut own) };
        texts.extend(first.next().or_else(|| other.next()));
    }
    if texts.is_empty() { Err(no_data()) } else { Ok(texts) }
}

/// At most `count` of the windows, as far apart as can be.
fn evenly(mut windows: Vec<Vec<u32>>, count: usize) -> Vec<Vec<u32>> {
    let (all, count) = (windows.len(), count.min(windows.len()));
    (0..count).map(|index| std::mem::take(&mut windows[index * all / count])).collect()
}

fn no_data() -> CliError {
    CliError::new(
        Exit::Data,
        "there is nothing to train on",
        "Name dumps with --kv, texts of at least two contexts with --texts, or say --own-texts 32.",
    )
}

fn training_error(error: TrainError) -> CliError {
    CliError::new(Exit::Data, error, "")
}

/// What the arguments say about a trained basis.
fn basis_recipe(arguments: &TrainArguments, parameters: Option<f64>) -> CliResult<BasisRecipe> {
    let share = |share: Option<f64>, unit: f64| match (share, parameters) {
        (None, _) => Ok(None),
        (Some(share), Some(parameters)) => Ok(Some((share * parameters * unit) as usize)),
        (Some(_), None) => Err(CliError::new(
            Exit::Data,
            "a budget is a share of the model, whose size the dumps do not tell",
            "Give its number of parameters with --parameters.",
        )),
    };
    let mut recipe = BasisRecipe {
        scope_layers: arguments.scope_layers,
        joint: !arguments.planes_apart,
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
            let why = "--factors takes two numbers: of the current token, and of the one before";
            return Err(CliError::new(Exit::Data, why, "For instance --factors 128,64."));
        }
    }
    Ok(recipe)
}

/// The recipe, after trials where they are wanted.
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
    let target = arguments.finest_kl * 10.0; // about where caches are read: two levels above the finest
    let trials = search(spec, contexts, &base, oracle, target, tell).map_err(training_error)?;
    for trial in &trials {
        let layers = trial.recipe.scope_layers.map_or("all".to_owned(), |n| n.to_string());
        note(&format!(
            "  layers {layers}, {}, factors {:?}: {:.3} bits, {}",
            if trial.recipe.joint { "joint" } else { "apart" },
            trial.recipe.token_factors,
            trial.bits_per_element,
            bytes(trial.profile_bytes as u64)
        ));
    }
    Ok(Recipe::Basis(trials.into_iter().next().map_or(base, |best| best.recipe)))
}

/// What training measured about each level; predicted from the error by layer and its cost, and measured.
pub(crate) fn levels_table(profile: &Profile) -> String {
    let header = ["level", "bits/element", "nmse", "KL predicted", "KL measured"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (index, note) in profile.levels().iter().enumerate() {
        let loss = profile.loss_of_errors(Level(index as u8));
        let predicted = note.kl.filter(|_| loss > 0.0).map(|_| loss);
        let or_dash = |kl: Option<f32>| kl.map_or_else(|| "–".to_owned(), |kl| format!("{kl:.2e}"));
        rows.push(vec![
            index.to_string(),
            format!("{:.3}", note.bits_per_element),
            format!("{:.2e}", note.nmse),
            or_dash(predicted),
            or_dash(note.kl),
        ]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::evenly;

    #[test]
    fn windows_are_taken_evenly() {
        let of = |all, count| evenly((0..all).map(|window| vec![window]).collect(), count).concat();
        assert_eq!(of(9, 3), [0, 3, 6]);
        assert_eq!(of(5, 3), [0, 1, 3]);
        for (all, count) in [(0, 4), (3, 4), (4, 4), (7, 0)] {
            assert_eq!(of(all, count).len(), all.min(count as u32) as usize, "{count} of {all}");
        }
    }
}
