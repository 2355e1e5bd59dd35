//! `kvasir profile pack`: an existing profile in fewer bytes.

use std::sync::Arc;

use kvasir_codec::{LevelNote, Profile};
use kvasir_engine::{Model, quality::measure_levels};
use kvasir_train::pack;

use crate::{
    args::PackArguments,
    error::{CliError, CliResult, Exit, write_file},
    inputs,
    output::{bytes, print},
    progress::{Step, note},
};

/// Windows that levels are measured on.
const WINDOWS: usize = 4;
/// Tokens of a window, and how many of them go through the codec.
const WINDOW: (usize, usize) = (768, 512);

/// Runs the command.
pub(crate) fn run(arguments: &PackArguments) -> CliResult {
    let profile = inputs::profile(&arguments.file)?;
    let model = inputs::shipped_model()?;
    let parameters = match arguments.parameters {
        Some(parameters) => parameters as f64,
        None if profile.model_id() == model.spec().model_id() => model.parameters() as f64,
        None => {
            let message = "a budget is a share of the model, whose size a profile does not tell";
            return Err(CliError::new(
                Exit::Data,
                message,
                "Give its number of parameters with --parameters.",
            ));
        }
    };
    let budget = (arguments.budget_weights * parameters * 2.0) as usize;
    let mut packed =
        pack(&profile, budget, arguments.factor_bits).map_err(|e| CliError::new(Exit::Data, e, ""))?;
    if let Some(count) = arguments.exact_tokens {
        packed = packed.with_exact_tokens(count).map_err(|e| CliError::new(Exit::Data, e, ""))?;
    }
    if let Some(path) = &arguments.texts {
        let step = Step::start("measuring levels");
        packed = measured(&model, packed, &inputs::text_tokens(&model, path)?)?;
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
    print(&super::train::levels_table(&packed))
}

/// The profile with what its levels cost on windows of a text.
fn measured(model: &Model, profile: Profile, tokens: &[u32]) -> CliResult<Profile> {
    let stride = (tokens.len() / WINDOWS).max(WINDOW.0);
    let windows: Vec<&[u32]> =
        (0..WINDOWS).filter_map(|i| tokens.get(i * stride..i * stride + WINDOW.0)).collect();
    if windows.is_empty() {
        let message = format!("the text has {} tokens, a window takes {}", tokens.len(), WINDOW.0);
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
