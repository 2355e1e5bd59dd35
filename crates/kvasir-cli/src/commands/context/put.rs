//! `kvasir context put`: encodes a KV dump and stores it.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use kvasir_client::report::{ChunkOutcome, SaveProgress};
use serde_json::json;

use crate::{
    error::CliResult,
    inputs::{self, profile},
    output::{bytes, print_json},
    progress::Step,
    service::{ServiceArguments, client_error, connection, runtime},
};

/// Arguments of `kvasir context put`.
#[derive(Debug, Args)]
pub(crate) struct PutArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The KV dump to store.
    #[arg(long, value_name = "FILE")]
    kv: PathBuf,
    /// Profile to encode with; by default the one that ships with the model.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Tokens of a chunk: a multiple of 256.
    #[arg(long, value_name = "N", default_value_t = kvasir_types::CHUNK_TOKENS_DEFAULT)]
    chunk_tokens: usize,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Encodes a dump and stores it.
pub(crate) fn run(arguments: &PutArguments) -> CliResult {
    let dump = inputs::dump(&arguments.kv)?;
    let profile_of = profile(arguments.profile.as_deref())?;
    let spec = Arc::new(dump.spec);
    let step = Step::start("storing");
    let report = runtime()?.block_on(async {
        let builder =
            connection(&arguments.service, &spec, &profile_of)?.chunk_tokens(arguments.chunk_tokens);
        let kvasir = builder.connect().await.map_err(client_error)?;
        let progress = |p: SaveProgress| {
            step.at(&bytes(p.bytes), p.finished as f32 / p.chunks.max(1) as f32);
        };
        let session = kvasir.session(&dump.tokens).without_lookup().await;
        session.save_now(&dump.kv, dump.tokens.len(), progress).await.map_err(client_error)
    })?;
    let there = report.chunks.iter().filter(|c| c.outcome == ChunkOutcome::AlreadyThere).count();
    step.done(&format!(
        "{} tokens in {} chunks, {} uploaded, {there} chunks were there already",
        dump.tokens.len(),
        report.chunks.len(),
        bytes(report.bytes())
    ));
    if !arguments.json {
        return Ok(());
    }
    let chunks = report.chunks.iter().map(|chunk| {
        let (stored, object, size) = match &chunk.outcome {
            ChunkOutcome::Stored { object_digest, bytes, .. } => {
                (true, Some(object_digest.to_string()), Some(*bytes))
            }
            ChunkOutcome::AlreadyThere | ChunkOutcome::TooLossy => (false, None, None),
        };
        json!({"first_token": chunk.tokens.start, "tokens": chunk.tokens.len(), "seq_hash": chunk.seq_hash,
               "stored": stored, "object_digest": object, "bytes": size})
    });
    print_json(
        &json!({"tokens": dump.tokens.len(), "bytes": report.bytes(), "chunks": chunks.collect::<Vec<_>>()}),
    )
}
