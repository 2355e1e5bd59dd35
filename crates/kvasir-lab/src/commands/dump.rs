//! `kvasir-lab dump`: the KV cache of a text, as a dump.

use kvasir_cli::{args::KvArguments, error::{CliError, CliResult, Exit}, inputs::{engine_error, shipped_model, text_tokens}, output::write_dump, progress::Step};

/// Runs the command.
pub(crate) fn run(arguments: &KvArguments) -> CliResult {
    let model = shipped_model()?;
    let tokens = text_tokens(&model, &arguments.text)?;
    let found = tokens.len();
    let tokens: Vec<u32> = tokens.into_iter().skip(arguments.skip).take(arguments.tokens).collect();
    if tokens.is_empty() {
        let message = format!("the text has {found} tokens, none is left after skipping {}", arguments.skip);
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
