//! `kvasir encode` and `kvasir decode`: chunk objects without a service.

use std::sync::Arc;

use kvasir_codec::{ChunkDecoder as _, ChunkEncoder as _, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer};
use kvasir_container::{ContainerError, Head, ObjectVerifier};
use kvasir_types::{CHUNK_TOKENS_MAX, Level, RootHash};

use crate::{
    args::{DecodeArguments, EncodeArguments},
    error::{CliError, CliResult, Exit, read_file, write_file},
    inputs,
    output::{bytes, write_dump},
    progress::Step,
};

/// Encodes a dump into one chunk object that starts a context.
///
/// Its root is that of the namespace `local` of the tenant `local` without a salt: such an object is for
/// looking at, measuring and exchanging; what a service stores gets its root from the service.
pub(crate) fn encode(arguments: &EncodeArguments) -> CliResult {
    let profile = inputs::profile(&arguments.profile)?;
    let dump = inputs::dump(&arguments.kv)?;
    if dump.tokens.len() > CHUNK_TOKENS_MAX {
        let message =
            format!("the dump has {} tokens, a chunk at most {CHUNK_TOKENS_MAX}", dump.tokens.len());
        return Err(CliError::new(
            Exit::Data,
            message,
            "Use `kvasir store`, which cuts contexts into chunks.",
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
        parent_hash: *root.as_bytes(),
        kl_beneath: 0.0,
        kv: &dump.kv,
    };
    let object = encoder.encode(&input).map_err(|e| CliError::data(&arguments.kv, e))?;
    write_file(&arguments.output, &object)?;
    let elements = (spec.elements_per_token() * dump.tokens.len()) as f64;
    step.done(&format!(
        "{} tokens, {} → {}, {:.3} bits an element with all {} levels",
        dump.tokens.len(),
        bytes((spec.bytes_per_token() * dump.tokens.len()) as u64),
        bytes(object.len() as u64),
        object.len() as f64 * 8.0 / elements,
        encoder.level_count(),
    ));
    Ok(())
}

/// Decodes a chunk object, or the prefix of one that holds the level, into a dump.
pub(crate) fn decode(arguments: &DecodeArguments) -> CliResult {
    let data = |error: &dyn std::fmt::Display| CliError::data(&arguments.file, error);
    let object = read_file(&arguments.file)?;
    let head = Head::parse(&object).map_err(|e| data(&e))?;
    head.verify_chain().map_err(|e| data(&e))?;
    let top = Level(head.header.level_count.saturating_sub(1));
    let level = arguments.level.map_or(top, Level);
    let profile = inputs::profile(&arguments.profile)?;
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

/// Checks every byte of an object as the service does on upload.
pub(crate) fn verify(object: &[u8]) -> Result<Head, ContainerError> {
    let mut verifier = ObjectVerifier::new();
    verifier.push(object)?;
    verifier.finish()
}
