//! `kvasir-lab bench`: measurements of the codec, compared with other systems.

mod ablation;
mod budgets;
mod codec;
mod page;
mod quality;
mod ttft;
mod turns;

use clap::Subcommand;
use kvasir_cli::error::CliResult;

/// The measurement to run.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Size against quality: every codec, level and chunk length, on a model's own KV.
    Quality(quality::QualityArguments),
    /// The value of every feature of a profile: one omitted or changed at a time, at equal quality.
    Ablation(ablation::AblationArguments),
    /// Loss per turn of load, extend, store, with and without the rule that bounds the loss beneath stored
    /// KV.
    Turns(turns::TurnArguments),
    /// Token and layer budgets (H2O, StreamingLLM, SqueezeAttention…), alone and beneath the codec, through a service.
    Budgets(budgets::BudgetArguments),
    /// Time to first token on the real engine: text, raw, 8-bit, CacheGen's policy, progressive, over shaped links.
    Ttft(ttft::TtftArguments),
    /// Speed of every decoder and encoder, compared with other entropy coders and the `gemm` crate.
    Codec(codec::CodecArguments),
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
