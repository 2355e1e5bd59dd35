//! Input files shared by several commands.

use std::{path::Path, sync::Arc};

use kvasir_codec::Profile;
use kvasir_engine::{
    EngineError, Model,
    exchange::{ExchangeError, KvDump, MODEL_SPEC_KEY, read_dump},
};
use kvasir_types::{ModelId, ModelSpec};
use safetensors::SafeTensors;

use crate::{
    args::ContextArguments,
    error::{CliError, CliResult, Exit, read_file},
};

/// The model that ships with the program.
pub(crate) fn shipped_model() -> CliResult<Model> {
    Model::kvasir_tiny().map_err(CliError::internal)
}

/// Reads a KV dump.
pub(crate) fn dump(path: &Path) -> CliResult<KvDump> {
    read_dump(path).map_err(|error| match error {
        ExchangeError::Io { .. } => CliError::new(Exit::NoInput, error, "Check the path."),
        other => CliError::data(path, other),
    })
}

/// Reads a profile.
pub(crate) fn profile(path: &Path) -> CliResult<Arc<Profile>> {
    let bytes = read_file(path)?;
    Profile::from_bytes(&bytes).map(Arc::new).map_err(|e| CliError::data(path, e))
}

/// The spec of `model_id`: from a file (JSON, or the metadata of any KV dump), else that of the shipped model.
/// `Ok(None)` when no file was given and the model is another.
pub(crate) fn spec_of(model_id: ModelId, file: Option<&Path>) -> CliResult<Option<Arc<ModelSpec>>> {
    let Some(path) = file else {
        let shipped = Arc::clone(shipped_model()?.spec());
        return Ok((shipped.model_id() == model_id).then_some(shipped));
    };
    let bytes = read_file(path)?;
    let in_dump = SafeTensors::read_metadata(&bytes)
        .ok()
        .and_then(|(_, header)| header.metadata().as_ref().and_then(|m| m.get(MODEL_SPEC_KEY)).cloned());
    let json = in_dump.map_or(bytes, String::into_bytes);
    let spec: ModelSpec = serde_json::from_slice(&json)
        .map_err(|e| CliError::data(path, format!("neither a model spec nor a KV dump: {e}")))?;
    spec.validate().map_err(|e| CliError::data(path, e))?;
    let found = spec.model_id();
    if found != model_id {
        let message = format!("{} is of model {found}, {model_id} is needed", path.display());
        return Err(CliError::new(
            Exit::Data,
            message,
            "Give the spec of the model that the file was made with.",
        ));
    }
    Ok(Some(Arc::new(spec)))
}

/// As [`spec_of`], where the command cannot do without.
pub(crate) fn spec_required(model_id: ModelId, file: Option<&Path>) -> CliResult<Arc<ModelSpec>> {
    spec_of(model_id, file)?.ok_or_else(|| {
        CliError::new(
            Exit::Data,
            format!("model {model_id} is not the one that ships with this program"),
            "Give its spec with --spec: a JSON file, or any KV dump of that model.",
        )
    })
}

/// A context as tokens, with the model they belong to.
pub(crate) struct Context {
    /// The model.
    pub(crate) spec: Arc<ModelSpec>,
    /// The tokens.
    pub(crate) tokens: Vec<u32>,
}

/// Reads the context that a command names.
pub(crate) fn context(arguments: &ContextArguments) -> CliResult<Context> {
    if let Some(path) = &arguments.kv {
        let dump = dump(path)?;
        return Ok(Context { spec: Arc::new(dump.spec), tokens: dump.tokens });
    }
    // clap guarantees that one of the two is there.
    let path = arguments.text.as_deref().unwrap_or(Path::new("-"));
    let model = shipped_model()?;
    Ok(Context { tokens: text_tokens(&model, path)?, spec: Arc::clone(model.spec()) })
}

/// Tokens of a text file.
pub(crate) fn text_tokens(model: &Model, path: &Path) -> CliResult<Vec<u32>> {
    let text = String::from_utf8(read_file(path)?)
        .map_err(|_| CliError::data(path, "the text is not UTF-8; convert it first"))?;
    let tokens = model.tokenizer().encode(&text).map_err(|e| CliError::data(path, e))?;
    if tokens.is_empty() { Err(CliError::data(path, "the text is empty")) } else { Ok(tokens) }
}

/// Errors of the engine, sorted by whose fault they are.
pub(crate) fn engine_error(error: EngineError) -> CliError {
    match error {
        EngineError::ContextLength { .. } | EngineError::EmptyPrompt => CliError::new(Exit::Data, error, ""),
        other => CliError::internal(other),
    }
}
