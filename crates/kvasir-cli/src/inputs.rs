//! Input files shared by several commands.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use kvasir_codec::Profile;
use kvasir_dump::{DumpError, KvDump, MODEL_SPEC_KEY, read_dump};
use kvasir_types::{ModelId, ModelSpec};
use safetensors::SafeTensors;

use crate::{
    error::{CliError, CliResult, Exit, read_file},
    shipped,
};

/// Source of a command's tokens.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ContextArguments {
    /// A text file, tokenised by the shipped model.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// A KV dump (safetensors); its tokens are used.
    #[arg(long, value_name = "FILE")]
    pub kv: Option<PathBuf>,
}

/// Reads a Hugging Face config.json, or the one in a folder, and returns its path as well.
///
/// # Errors
/// If the file cannot be read or is not UTF-8.
pub fn hf_config(path: &Path) -> CliResult<(PathBuf, String)> {
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let text = String::from_utf8(read_file(&path)?).map_err(|e| CliError::data(&path, e))?;
    Ok((path, text))
}

/// Reads a KV dump.
///
/// # Errors
/// If the file cannot be read or is not a KV dump.
pub fn dump(path: &Path) -> CliResult<KvDump> {
    read_dump(path).map_err(|error| match error {
        DumpError::Io { .. } => CliError::new(Exit::NoInput, error, "Check the path."),
        other => CliError::data(path, other),
    })
}

/// Reads a profile; without a file, that of the shipped model.
///
/// # Errors
/// If the file cannot be read or is not a profile, or if no file is given and the program ships no model.
pub fn profile(file: Option<&Path>) -> CliResult<Arc<Profile>> {
    let Some(path) = file else { return shipped::profile() };
    let bytes = read_file(path)?;
    Profile::from_bytes(&bytes).map(Arc::new).map_err(|e| CliError::data(path, e))
}

/// The profile to encode a model's caches with: from a file, else that of the shipped model. `Ok(None)` if no
/// file is given and the model is another.
///
/// # Errors
/// As [`profile`].
pub fn profile_of(model_id: ModelId, file: Option<&Path>) -> CliResult<Option<Arc<Profile>>> {
    let is_shipped = shipped::spec()?.is_some_and(|spec| spec.model_id() == model_id);
    if file.is_some() || is_shipped { profile(file).map(Some) } else { Ok(None) }
}

/// The spec of `model_id`: from a file (JSON, or the metadata of any KV dump), else that of the shipped
/// model. `Ok(None)` if no file is given and the model is another.
///
/// # Errors
/// If the file cannot be read, or its spec is malformed or of another model.
pub fn spec_of(model_id: ModelId, file: Option<&Path>) -> CliResult<Option<Arc<ModelSpec>>> {
    let Some(path) = file else {
        return Ok(shipped::spec()?.filter(|spec| spec.model_id() == model_id));
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
        let message = format!("{} is of model {found}, but model {model_id} is needed", path.display());
        return Err(CliError::new(Exit::Data, message, "Give the spec of the model that made the file."));
    }
    Ok(Some(Arc::new(spec)))
}

/// As [`spec_of`], for commands that need the spec.
///
/// # Errors
/// As [`spec_of`]; also if the spec is not known.
pub fn spec_required(model_id: ModelId, file: Option<&Path>) -> CliResult<Arc<ModelSpec>> {
    spec_of(model_id, file)?.ok_or_else(|| {
        CliError::new(
            Exit::Data,
            format!("model {model_id} is not the model that ships with this program"),
            "Give its spec with --spec: a JSON file, or any KV dump of that model.",
        )
    })
}

/// A context as tokens, with the model they belong to.
#[derive(Debug)]
pub struct Context {
    /// The model.
    pub spec: Arc<ModelSpec>,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// Reads the context that the arguments name.
///
/// # Errors
/// If the file cannot be read, or is neither text nor a KV dump.
pub fn context(arguments: &ContextArguments) -> CliResult<Context> {
    #[cfg(feature = "demo")]
    if let Some(path) = &arguments.text {
        let model = shipped::model()?;
        return Ok(Context { tokens: shipped::text_tokens(&model, path)?, spec: Arc::clone(model.spec()) });
    }
    // clap guarantees that the dump is present in this case.
    let dump = dump(arguments.kv.as_deref().unwrap_or(Path::new("-")))?;
    Ok(Context { spec: Arc::new(dump.spec), tokens: dump.tokens })
}
