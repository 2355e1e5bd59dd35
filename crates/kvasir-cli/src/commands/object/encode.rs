//! `kvasir object encode`: encodes a KV dump into one chunk object without a service.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use kvasir_codec::{ChunkEncoder as _, ChunkInput, CpuEncoder};
use kvasir_types::{CHUNK_TOKENS_MAX, ChainLink, Loss, RootHash};

use crate::{
    error::{CliError, CliResult, Exit, write_file},
    inputs,
    output::bytes,
    progress::Step,
};

/// Arguments of `kvasir object encode`.
#[derive(Debug, Args)]
pub(crate) struct EncodeArguments {
    /// The KV dump.
    #[arg(long, value_name = "FILE")]
    kv: PathBuf,
    /// The profile.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// The chunk object to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Encodes a dump into one chunk object that starts a context.
///
/// The root hash is that of the namespace `local` of the tenant `local` without a salt. Such an object is for
/// inspection, measurement and exchange; objects of a service take their root from the service.
pub(crate) fn run(arguments: &EncodeArguments) -> CliResult {
    let profile = inputs::profile(Some(&arguments.profile))?;
    let dump = inputs::dump(&arguments.kv)?;
    if dump.tokens.len() > CHUNK_TOKENS_MAX {
        let message =
            format!("the dump has {} tokens; a chunk holds at most {CHUNK_TOKENS_MAX}", dump.tokens.len());
        return Err(CliError::new(
            Exit::Data,
            message,
            "Use `kvasir context put`, which splits contexts into chunks.",
        ));
    }
    let step = Step::start("encoding");
    let spec = Arc::new(dump.spec);
    let encoder =
        CpuEncoder::new(Arc::clone(&spec), profile).map_err(|e| CliError::data(&arguments.kv, e))?;
    let root = RootHash::derive("local", "local", b"", &spec.model_id());
    let input = ChunkInput {
        tokens: &dump.tokens,
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first(root),
        beneath: Loss::NONE,
        kv: &dump.kv,
    };
    let object = encoder.encode(&input).map_err(|e| CliError::data(&arguments.kv, e))?;
    write_file(&arguments.output, &object)?;
    let elements = (spec.elements_per_token() * dump.tokens.len()) as f64;
    step.done(&format!(
        "{} tokens, {} → {}, {:.3} bits per element with all {} levels",
        dump.tokens.len(),
        bytes((spec.bytes_per_token() * dump.tokens.len()) as u64),
        bytes(object.len() as u64),
        object.len() as f64 * 8.0 / elements,
        encoder.level_count(),
    ));
    Ok(())
}
