//! `kvasir-lab dump`: the KV cache of a text, as a dump.

use std::path::PathBuf;

use clap::Args;
use kvasir_cli::{
    error::{CliError, CliResult, Exit},
    output::write_dump,
    progress::Step,
    shipped::{self, engine_error, text_tokens},
};

/// Arguments of `kvasir-lab dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArguments {
    /// The text.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Leading tokens of the text to use; at most the model's context.
    #[arg(long, value_name = "N", default_value_t = 896)]
    tokens: usize,
    /// Tokens at the start of the text to skip.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
    /// The dump to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: &DumpArguments) -> CliResult {
    let model = shipped::model()?;
    let tokens = text_tokens(&model, &arguments.text)?;
    let found = tokens.len();
    let tokens: Vec<u32> = tokens.into_iter().skip(arguments.skip).take(arguments.tokens).collect();
    if tokens.is_empty() {
        let message =
            format!("the text has {found} tokens, and none remain after skipping {}", arguments.skip);
        return Err(CliError::new(
            Exit::Data,
            message,
            "Give a longer text or a smaller --skip, and --tokens above 0.",
        ));
    }
    let step = Step::start("computing the KV cache");
    let kv = model.calculate_kv(&tokens).map_err(engine_error)?;
    write_dump(&arguments.output, model.spec(), &tokens, &kv)?;
    step.done(&format!("{} tokens, written to {}", tokens.len(), arguments.output.display()));
    Ok(())
}
