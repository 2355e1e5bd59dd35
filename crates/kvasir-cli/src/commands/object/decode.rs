//! `kvasir object decode`: decodes a chunk object into a KV dump without a service.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use kvasir_codec::{ChunkDecoder as _, CpuDecoder, KvBuffer};
use kvasir_container::Head;
use kvasir_types::Level;

use crate::{
    error::{CliError, CliResult, read_file},
    inputs,
    output::write_dump,
    progress::Step,
};

/// Arguments of `kvasir object decode`.
#[derive(Debug, Args)]
pub(crate) struct DecodeArguments {
    /// The chunk object.
    file: PathBuf,
    /// The profile that encoded it.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// Level to decode. Default: the finest.
    #[arg(long, value_name = "N")]
    level: Option<u8>,
    /// Model spec, as JSON or as any KV dump of the model. Not needed for the shipped model.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// The dump to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Decodes a chunk object, or a prefix that contains the level, into a dump.
pub(crate) fn run(arguments: &DecodeArguments) -> CliResult {
    let data = |error: &dyn std::fmt::Display| CliError::data(&arguments.file, error);
    let object = read_file(&arguments.file)?;
    let head = Head::parse(&object).map_err(|e| data(&e))?;
    head.verify_chain().map_err(|e| data(&e))?;
    let top = Level(head.header.level_count.saturating_sub(1));
    let level = arguments.level.map_or(top, Level);
    let profile = inputs::profile(Some(&arguments.profile))?;
    let spec = inputs::spec_required(head.header.model_id, arguments.spec.as_deref())?;
    let step = Step::start("decoding");
    let decoder =
        CpuDecoder::new(Arc::clone(&spec), profile).map_err(|e| CliError::data(&arguments.profile, e))?;
    let mut kv = KvBuffer::new(&spec, head.tokens.len());
    decoder.decode(&head, &object, level, 0..head.tokens.len(), &mut kv).map_err(|e| data(&e))?;
    write_dump(&arguments.output, &spec, &head.tokens, &kv)?;
    step.done(&format!(
        "level {level}, {} tokens, written to {}",
        head.tokens.len(),
        arguments.output.display()
    ));
    Ok(())
}
