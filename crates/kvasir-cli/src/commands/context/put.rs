//! `kvasir context put`: encodes a KV dump and stores it.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use kvasir_api::{ChunkMatch, LookupRequest};
use kvasir_client::report::{ChunkOutcome, SaveProgress};
use kvasir_types::{Level, Quality};
use serde_json::json;

use crate::{
    error::{CliError, CliResult},
    inputs,
    output::{bytes, print_json},
    progress::{Step, note},
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
    /// Profile to encode with. Default: for the model that ships with this program, its profile; for other
    /// models, the profile in force at the service, or else a first profile made from this dump.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Tokens per chunk: a multiple of 256.
    #[arg(long, value_name = "N", default_value_t = kvasir_types::CHUNK_TOKENS_DEFAULT)]
    chunk_tokens: usize,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Encodes a dump and stores it.
pub(crate) fn run(arguments: &PutArguments) -> CliResult {
    let dump = inputs::dump(&arguments.kv)?;
    let spec = Arc::new(dump.spec);
    let given = inputs::profile_of(spec.model_id(), arguments.profile.as_deref())?;
    let step = Step::start("storing");
    let (report, profile, found) = runtime()?.block_on(async {
        let mut builder = connection(&arguments.service, &spec)?.chunk_tokens(arguments.chunk_tokens);
        if let Some(profile) = given {
            builder = builder.profile(profile);
        }
        let kvasir = builder.connect().await.map_err(client_error)?;
        let progress = |p: SaveProgress| {
            step.at(&bytes(p.bytes), p.finished as f32 / p.chunks.max(1) as f32);
        };
        let session = kvasir.session(&dump.tokens).without_lookup().await;
        let report = session.save_now(&dump.kv, dump.tokens.len(), progress).await.map_err(client_error)?;
        let lookup = LookupRequest {
            model_id: spec.model_id(),
            namespace: arguments.service.namespace.clone(),
            tokens: Some(dump.tokens.clone()),
            block_hashes: None,
            chunk_ids: None,
            fresh: true,
            direct: false,
        };
        // For a note alone: everything is stored.
        let found = kvasir.rest().lookup(&lookup).await.map_or_else(|_| Vec::new(), |found| found.chunks);
        Ok::<_, CliError>((report, kvasir.profile(), found))
    })?;
    let there = report.chunks.iter().filter(|c| c.outcome == ChunkOutcome::AlreadyThere).count();
    let recipe = profile.as_ref().map_or_else(String::new, |p| format!(", profile: {}", p.training().recipe));
    step.done(&format!(
        "{} tokens in {} chunks, {} uploaded, {there} chunks already stored{recipe}",
        dump.tokens.len(),
        report.chunks.len(),
        bytes(report.bytes())
    ));
    let below = found.iter().filter(|chunk| is_below_default(chunk)).map(|chunk| chunk.matched_tokens);
    let below: u32 = below.sum();
    if below > 0 {
        note(&format!(
            "{below} of these tokens are stored below quality transparent, or their errors are not recorded. By default, clients \
             do not find them: they compute them, and do not store them again. Ask for a lower quality to load them; to store \
             them better, use another --namespace and a profile of `kvasir profile train`."
        ));
    }
    if !arguments.json {
        return Ok(());
    }
    let chunks = report.chunks.iter().map(|chunk| {
        let (stored, object, profile, size) = match &chunk.outcome {
            ChunkOutcome::Stored { object_digest, profile_hash, bytes, .. } => {
                (true, Some(object_digest.to_string()), Some(profile_hash), Some(*bytes))
            }
            ChunkOutcome::AlreadyThere | ChunkOutcome::TooLossy => (false, None, None, None),
        };
        json!({"first_token": chunk.tokens.start, "tokens": chunk.tokens.len(), "seq_hash": chunk.seq_hash,
               "stored": stored, "object_digest": object, "profile_hash": profile, "bytes": size})
    });
    print_json(&json!({"tokens": dump.tokens.len(), "bytes": report.bytes(),
                "profile_hash": profile.map(|profile| profile.hash().to_string()), "chunks": chunks.collect::<Vec<_>>()}))
}

/// Whether clients of the default quality do not find a stored chunk.
fn is_below_default(chunk: &ChunkMatch) -> bool {
    let finest = Level(chunk.level_bytes.len().saturating_sub(1) as u8);
    chunk.loss_at(finest, 0.0).error > Quality::Transparent.error_max()
}
