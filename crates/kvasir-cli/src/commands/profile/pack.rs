//! `kvasir profile pack`: packs a profile into fewer bytes.

use std::path::PathBuf;

use clap::Args;
use kvasir_train::pack;

use super::{levels::levels_table, train::percent};
#[cfg(feature = "demo")]
use crate::progress::Step;
use crate::{
    error::{CliError, CliResult, Exit, write_file},
    inputs,
    output::{bytes, print},
    progress::note,
    shipped,
};
#[cfg(feature = "demo")]
use {
    kvasir_codec::{LevelNote, Profile},
    kvasir_engine::{Model, quality::measure_levels},
    std::sync::Arc,
};

#[cfg(feature = "demo")]
/// Windows on which levels are measured.
const WINDOWS: usize = 4;
#[cfg(feature = "demo")]
/// Tokens of a window, and how many of them are encoded and decoded.
const WINDOW: (usize, usize) = (768, 512);

/// Arguments of `kvasir profile pack`.
#[derive(Debug, Args)]
pub(crate) struct PackArguments {
    /// The profile.
    file: PathBuf,
    /// Maximum size of the packed profile, as a share of the model's weights.
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "10%")]
    budget_weights: f64,
    /// Parameters of the model, at 2 bytes each. Not needed for the shipped model.
    #[arg(long, value_name = "N")]
    parameters: Option<u64>,
    /// Bits per factor of the token predictor.
    #[arg(long, value_name = "BITS", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=8))]
    factor_bits: u8,
    /// Tokens stored exactly at the start of a context. Default: as in the profile.
    #[arg(long, value_name = "N")]
    exact_tokens: Option<usize>,
    /// A text on which the shipped model measures the loss of the levels.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// The profile to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: &PackArguments) -> CliResult {
    let profile = inputs::profile(Some(&arguments.file))?;
    let known = || shipped::parameters(profile.model_id());
    let parameters = match arguments.parameters {
        Some(parameters) => Some(parameters),
        None => known()?,
    };
    let Some(parameters) = parameters.map(|count| count as f64) else {
        let message = "the budget is a share of the model's size, which a profile does not contain";
        return Err(CliError::new(Exit::Usage, message, "Give its number of parameters with --parameters."));
    };
    let budget = (arguments.budget_weights * parameters * 2.0) as usize;
    let mut packed =
        pack(&profile, budget, arguments.factor_bits).map_err(|e| CliError::new(Exit::Data, e, ""))?;
    if let Some(count) = arguments.exact_tokens {
        packed = packed.with_exact_tokens(count).map_err(|e| CliError::new(Exit::Data, e, ""))?;
    }
    #[cfg(feature = "demo")]
    if let Some(path) = &arguments.texts {
        let model = shipped::model()?;
        let step = Step::start("measuring levels");
        packed = measured(&model, packed, &shipped::text_tokens(&model, path)?)?;
        step.done("");
    }
    let file = packed.to_bytes();
    write_file(&arguments.output, &file)?;
    note(&format!(
        "{} written to {}, {}",
        bytes(file.len() as u64),
        arguments.output.display(),
        packed.hash()
    ));
    print(&levels_table(&packed))
}

#[cfg(feature = "demo")]
/// The profile with its levels' loss measured on windows of a text.
fn measured(model: &Model, profile: Profile, tokens: &[u32]) -> CliResult<Profile> {
    let stride = (tokens.len() / WINDOWS).max(WINDOW.0);
    let windows: Vec<&[u32]> =
        (0..WINDOWS).filter_map(|i| tokens.get(i * stride..i * stride + WINDOW.0)).collect();
    if windows.is_empty() {
        let message = format!("the text has {} tokens; a window needs {}", tokens.len(), WINDOW.0);
        return Err(CliError::new(Exit::Data, message, "Give a longer text."));
    }
    let profile = Arc::new(profile);
    let levels = measure_levels(model, &profile, &windows, WINDOW.1).map_err(CliError::internal)?;
    let notes: Vec<LevelNote> = (levels.iter().zip(profile.levels()))
        .map(|(found, before)| LevelNote {
            kl: Some(found.quality.kl.mean as f32),
            bits_per_element: found.bits_per_element as f32,
            nmse: before.nmse,
        })
        .collect();
    profile.with_levels(&notes).map_err(CliError::internal)
}
