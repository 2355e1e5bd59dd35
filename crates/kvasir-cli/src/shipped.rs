//! The model that ships with the program. A build without the feature `demo` (image, wheel) has none; its
//! commands require `--profile`, `--spec` and `--kv`.

use std::sync::Arc;

use kvasir_codec::Profile;
use kvasir_types::{ModelId, ModelSpec};

use crate::error::CliResult;
#[cfg(feature = "demo")]
use crate::error::{CliError, Exit, read_file};
#[cfg(feature = "demo")]
use kvasir_engine::{EngineError, Model, TINY_PROFILE};

/// The model.
///
/// # Errors
/// An internal error if its weights do not load.
#[cfg(feature = "demo")]
pub fn model() -> CliResult<Model> {
    Model::kvasir_tiny().map_err(CliError::internal)
}

/// Tokens of a text file.
///
/// # Errors
/// If the file cannot be read, is not UTF-8, or is empty.
#[cfg(feature = "demo")]
pub fn text_tokens(model: &Model, path: &std::path::Path) -> CliResult<Vec<u32>> {
    let text = String::from_utf8(read_file(path)?)
        .map_err(|_| CliError::data(path, "the text is not UTF-8; convert it first"))?;
    let tokens = model.tokenizer().encode(&text).map_err(|e| CliError::data(path, e))?;
    if tokens.is_empty() { Err(CliError::data(path, "the text is empty")) } else { Ok(tokens) }
}

/// Errors of the engine, classified by cause: the input or a bug.
#[cfg(feature = "demo")]
pub fn engine_error(error: EngineError) -> CliError {
    match error {
        EngineError::ContextLength { .. } | EngineError::EmptyPrompt => CliError::new(Exit::Data, error, ""),
        other => CliError::internal(other),
    }
}

/// Its spec; `None` in a program without a model.
///
/// # Errors
/// As [`model`].
#[cfg(feature = "demo")]
pub fn spec() -> CliResult<Option<Arc<ModelSpec>>> {
    Ok(Some(Arc::clone(model()?.spec())))
}

/// Its spec; `None` in a program without a model.
///
/// # Errors
/// None.
#[cfg(not(feature = "demo"))]
pub fn spec() -> CliResult<Option<Arc<ModelSpec>>> {
    Ok(None)
}

/// Its profile.
///
/// # Errors
/// An internal error if it does not parse.
#[cfg(feature = "demo")]
pub fn profile() -> CliResult<Arc<Profile>> {
    Profile::from_bytes(TINY_PROFILE).map(Arc::new).map_err(CliError::internal)
}

/// Its profile.
///
/// # Errors
/// Always: this program has no model.
#[cfg(not(feature = "demo"))]
pub fn profile() -> CliResult<Arc<Profile>> {
    use crate::error::{CliError, Exit};

    let message = "a profile is needed: this build ships no model";
    Err(CliError::new(Exit::Data, message, "Give the profile of your model with --profile."))
}

/// Its number of parameters, if `model_id` is the shipped model.
///
/// # Errors
/// As [`model`].
#[cfg(feature = "demo")]
pub fn parameters(model_id: ModelId) -> CliResult<Option<u64>> {
    let model = model()?;
    Ok((model.spec().model_id() == model_id).then(|| model.parameters() as u64))
}

/// Its number of parameters, if `model_id` is the shipped model: always `None` in a program without a model.
///
/// # Errors
/// None.
#[cfg(not(feature = "demo"))]
pub fn parameters(_: ModelId) -> CliResult<Option<u64>> {
    Ok(None)
}
