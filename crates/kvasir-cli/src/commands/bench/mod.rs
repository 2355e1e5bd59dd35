//! `kvasir bench`: the codec measured, beside its peers.

mod ablation;
mod budgets;
mod codec;
mod page;
mod quality;
mod ttft;
mod turns;

use std::path::Path;

use clap::Subcommand;
use kvasir_engine::Model;
use serde::Serialize;

use crate::{
    error::{CliError, CliResult, Exit, write_file},
    inputs,
};

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Size against quality: every codec, level and chunk length, on a model's own KV.
    Quality(quality::QualityArguments),
    /// What every feature of a profile is worth: one left out or changed at a time, at equal quality.
    Ablation(ablation::AblationArguments),
    /// Loss by turn of load, extend, store, with and without the rule that bounds the loss beneath what is stored.
    Turns(turns::TurnArguments),
    /// Token and layer budgets (H2O, StreamingLLM, SqueezeAttention…), alone and beneath the codec, through a service.
    Budgets(budgets::BudgetArguments),
    /// Time to first token on the real engine: text, raw, 8-bit, CacheGen's policy, progressive, over shaped links.
    Ttft(ttft::TtftArguments),
    /// Speed of every decoder and encoder on one core, beside other entropy coders.
    Codec(codec::CodecArguments),
}

/// The model of a name: the shipped one, or a folder's.
pub(crate) fn model(name: &str) -> CliResult<Model> {
    if name == "kvasir-tiny" {
        return inputs::shipped_model();
    }
    Model::load(Path::new(name)).map_err(|error| CliError::data(Path::new(name), error))
}

/// Runs a benchmark.
pub(crate) fn run(command: &BenchCommand) -> CliResult {
    match command {
        BenchCommand::Quality(arguments) => quality::run(arguments),
        BenchCommand::Ablation(arguments) => ablation::run(arguments),
        BenchCommand::Turns(arguments) => turns::run(arguments),
        BenchCommand::Budgets(arguments) => budgets::run(arguments),
        BenchCommand::Ttft(arguments) => ttft::run(arguments),
        BenchCommand::Codec(arguments) => codec::run(arguments),
    }
}

/// Writes a report as `STEM.json` and in other forms, by file extension, into a folder that is made where there is none.
pub(crate) fn write_report(
    folder: &Path,
    stem: &str,
    report: &impl Serialize,
    others: &[(&str, String)],
) -> CliResult {
    std::fs::create_dir_all(folder).map_err(|error| {
        let message = format!("cannot make {}: {error}", folder.display());
        CliError::new(Exit::NoOutput, message, "Check that the folder above it may be written to.")
    })?;
    let json = serde_json::to_vec_pretty(report).map_err(CliError::internal)?;
    write_file(&folder.join(format!("{stem}.json")), &json)?;
    (others.iter())
        .try_for_each(|(form, text)| write_file(&folder.join(format!("{stem}.{form}")), text.as_bytes()))
}
