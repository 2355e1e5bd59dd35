//! `kvasir model spec`: the model spec derived from a Hugging Face config.json.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use kvasir_types::{
    KvDtype, ModelSpec, Pairing,
    hf::{HfError, HfOptions},
};

use crate::{
    error::{CliError, CliResult, Exit},
    inputs,
    output::print_json,
};

/// Arguments of `kvasir model spec`.
#[derive(Debug, Args)]
pub(crate) struct SpecArguments {
    /// A Hugging Face config.json, or the folder that holds it.
    #[arg(long, value_name = "FILE|FOLDER")]
    config: PathBuf,
    /// Name of the weights. Default: taken from the path of a folder in Hugging Face's cache.
    #[arg(long, value_name = "ORGANISATION/MODEL")]
    weights: Option<String>,
    /// Revision of the weights: a commit, never a branch. Default: taken from the path of a folder in Hugging
    /// Face's cache.
    #[arg(long, value_name = "COMMIT")]
    revision: Option<String>,
    /// Adapter (LoRA) that changes the KV.
    #[arg(long)]
    adapter: Option<String>,
    /// Type of the cached values, if it differs from that of the weights.
    #[arg(long, value_name = "TYPE")]
    kv_dtype: Option<DtypeName>,
    /// Layout of rotary pairs in cached keys, if the engine's differs from the model's.
    #[arg(long)]
    pairing: Option<PairingName>,
    /// Tokens of the longest context served; needed if the rotary frequencies depend on it.
    #[arg(long, value_name = "TOKENS")]
    context: Option<u64>,
    /// Print frequencies instead of the formulas that yield them.
    #[arg(long)]
    freqs: bool,
}

/// Types of cached values.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeName {
    Bf16,
    F16,
    F32,
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
    Int8,
}

/// Layouts of rotary pairs.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PairingName {
    Half,
    Interleaved,
}

/// Runs the command.
pub(crate) fn run(arguments: &SpecArguments) -> CliResult {
    let (path, config) = inputs::hf_config(&arguments.config)?;
    let (weights, revision) = in_hub_cache(&path);
    let needed = |given: &Option<String>, found: Option<String>, flag: &str| {
        given.clone().or(found).ok_or_else(|| {
            let message = format!("the config.json does not name the {flag}");
            CliError::new(Exit::Usage, message, format!("Add --{flag}."))
        })
    };
    let options = HfOptions {
        weights: needed(&arguments.weights, weights, "weights")?,
        revision: needed(&arguments.revision, revision, "revision")?,
        adapter: arguments.adapter.clone(),
        kv_dtype: arguments.kv_dtype.map(|name| match name {
            DtypeName::Bf16 => KvDtype::Bf16,
            DtypeName::F16 => KvDtype::F16,
            DtypeName::F32 => KvDtype::F32,
            DtypeName::Fp8E4m3 => KvDtype::Fp8E4m3,
            DtypeName::Int8 => KvDtype::Int8,
        }),
        pairing: arguments.pairing.map(|name| match name {
            PairingName::Half => Pairing::Half,
            PairingName::Interleaved => Pairing::Interleaved,
        }),
        context: arguments.context,
    };
    let mut spec = ModelSpec::from_hf(&config, &options).map_err(|error| refused(&path, &error))?;
    if arguments.freqs {
        spec.ropes.iter_mut().for_each(|rope| rope.formula = None);
    }
    print_json(&spec)
}

fn refused(path: &Path, error: &HfError) -> CliError {
    let advice = "State what the config.json leaves open with --kv-dtype, --pairing or --context.";
    CliError::new(Exit::Data, format!("{}: {error}", path.display()), advice)
}

/// Name and commit of weights in Hugging Face's cache, from the path:
/// `models--ORGANISATION--MODEL/snapshots/COMMIT/config.json`.
fn in_hub_cache(path: &Path) -> (Option<String>, Option<String>) {
    let names: Vec<_> = path.iter().rev().skip(1).take(3).map(|name| name.to_string_lossy()).collect();
    match names.as_slice() {
        [commit, snapshots, model] if snapshots == "snapshots" && model.starts_with("models--") => {
            let weights = model.trim_start_matches("models--").replacen("--", "/", 1);
            (Some(weights), Some(commit.to_string()))
        }
        _ => (None, None),
    }
}
