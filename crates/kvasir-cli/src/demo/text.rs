//! The demo's text, compiled into the program so that the demo runs anywhere: a tale written for this project
//! in the style of the books in kvasir-tiny's training data. Neither the model nor the profile has seen it.

use kvasir_engine::Model;

use super::quality::Passage;
use crate::{
    error::{CliError, CliResult},
    shipped::engine_error,
};

/// The tale.
pub const TALE: &str = include_str!("../../assets/the-storekeeper.txt");

/// Tokens of the cached context: three and a half chunks.
pub(crate) const CONTEXT_TOKENS: usize = 896;
/// Tokens per chunk: small enough that a model with a context of 1,024 has several.
pub(crate) const CHUNK_TOKENS: usize = 256;
/// Contexts over which quality is pooled.
pub(crate) const PASSAGES: usize = 4;

/// The text as tokens.
pub(crate) fn tokens(model: &Model) -> CliResult<Vec<u32>> {
    model.tokenizer().encode(TALE).map_err(engine_error)
}

/// Disjoint passages that fill the model's context, evenly spread over the text, the first at its start.
pub(crate) fn passages(tokens: &[u32], model_context: usize) -> CliResult<Vec<Passage<'_>>> {
    let stride = tokens.len() / PASSAGES;
    if stride < model_context || model_context <= CONTEXT_TOKENS {
        return Err(CliError::internal("the text is too short for the demo"));
    }
    let passage = |start: usize| {
        let (context, continuation) = tokens[start..start + model_context].split_at(CONTEXT_TOKENS);
        Passage { context, continuation }
    };
    Ok((0..PASSAGES).map(|index| passage(index * stride)).collect())
}
