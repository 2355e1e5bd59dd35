//! `kvasir store`, `lookup` and `fetch`: an engine's three calls, from the command line.

use std::{sync::Arc, time::Duration};

use kvasir_client::{
    ChunkOutcome, LoadOptions, LoadPlan,
    fetcher::{Fixed, RecomputeModel},
};
use kvasir_codec::KvBuffer;
use kvasir_types::Level;
use serde_json::json;

use super::serve::runtime;
use crate::{
    args::{FetchArguments, LookupArguments, StoreArguments},
    error::{CliError, CliResult, Exit},
    inputs::{self, Context},
    output::{bytes, columns, print, print_json, write_dump},
    progress::Step,
    remote::{client_error, connect, profile},
};

/// Longest a fetch without a time budget may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Encodes a dump and stores it.
pub(crate) fn store(arguments: &StoreArguments) -> CliResult {
    let dump = inputs::dump(&arguments.kv)?;
    let profile_of = profile(arguments.profile.as_deref())?;
    let spec = Arc::new(dump.spec);
    let step = Step::start("storing");
    let report = runtime()?.block_on(async {
        let kv = connect(&arguments.service, &spec, &profile_of).await?;
        let kv = kv.with_chunk_tokens(arguments.chunk_tokens).map_err(client_error)?;
        kv.client().put_profile(&kv.model_id(), profile_of.to_bytes()).await.map_err(client_error)?;
        let progress = |p: kvasir_client::StoreProgress| {
            step.at(&bytes(p.bytes), p.finished as f32 / p.chunks.max(1) as f32);
        };
        kv.store_kv(&dump.tokens, &dump.kv, progress).await.map_err(client_error)
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

/// Says how much of a context is stored.
pub(crate) fn lookup(arguments: &LookupArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let profile = profile(arguments.profile.as_deref())?;
    let plan = runtime()?.block_on(async {
        let kv = connect(&arguments.service, &context.spec, &profile).await?;
        kv.lookup(&context.tokens).await.map_err(client_error)
    })?;
    if arguments.json {
        print_json(
            &json!({"tokens": context.tokens.len(), "matched_tokens": plan.matched_tokens(), "chunks": plan.chunks()}),
        )?;
    } else {
        print(&plan_table(&plan, &context))?;
    }
    if plan.matched_tokens() == 0 { Err(nothing_stored()) } else { Ok(()) }
}

fn plan_table(plan: &LoadPlan, context: &Context) -> String {
    let mut rows =
        vec![["chunk", "first token", "tokens", "matched", "bytes", "by level"].map(str::to_owned).to_vec()];
    for chunk in plan.chunks() {
        rows.push(vec![
            chunk.seq_hash.to_string().chars().take(16).collect(),
            chunk.first_token.to_string(),
            chunk.tokens.to_string(),
            chunk.matched_tokens.to_string(),
            chunk.bytes.to_string(),
            chunk.level_bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
        ]);
    }
    format!("{} of {} tokens are stored\n{}", plan.matched_tokens(), context.tokens.len(), columns(&rows))
}

fn nothing_stored() -> CliError {
    CliError::new(
        Exit::Nothing,
        "nothing is stored for these tokens",
        "Check model, namespace and profile, or store the context first.",
    )
}

/// Loads what is stored of a context into a dump.
pub(crate) fn fetch(arguments: &FetchArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let profile = profile(arguments.profile.as_deref())?;
    let level = level_of(arguments.level, profile.level_count())?;
    let step = Step::start("fetching");
    // A command line cannot compute: what the load gives up on is missing, so computing is made unattractive.
    let never = RecomputeModel::from_seconds(1e6, 1e3, 0.0).on_gpus(0);
    let mut options = LoadOptions::new(arguments.slo_ms.map_or(PATIENCE, Duration::from_millis), never);
    if arguments.slo_ms.is_none() {
        options.policy = Box::new(Fixed::new(level));
    }
    let (report, kv, count) = runtime()?.block_on(async {
        let client = connect(&arguments.service, &context.spec, &profile).await?;
        let plan = client.lookup(&context.tokens).await.map_err(client_error)?;
        let count = plan.matched_tokens() as usize;
        if count == 0 {
            return Err(nothing_stored());
        }
        let mut kv = KvBuffer::new(&context.spec, count);
        let report = client.get_kv(&plan, options, &mut kv).await.map_err(client_error)?;
        Ok((report, kv, count))
    })?;
    if let Some(range) = report.recompute.first() {
        let why = report
            .failures
            .first()
            .map_or_else(|| "the time was too short".to_owned(), |f| f.error.to_string());
        let message = format!("tokens {}..{} could not be loaded: {why}", range.start, range.end);
        return Err(CliError::new(Exit::Unavailable, message, "Try again, or with a larger --slo-ms."));
    }
    let tokens = &context.tokens[..count];
    write_dump(&arguments.output, &context.spec, tokens, &kv)?;
    step.done(&format!(
        "{count} of {} tokens, {}, written to {}",
        context.tokens.len(),
        bytes(report.bytes),
        arguments.output.display()
    ));
    if !arguments.json {
        return Ok(());
    }
    let chunks = report.chunks.iter().map(|c| json!({"first_token": c.tokens.start, "tokens": c.tokens.len(), "level": c.level, "bytes": c.bytes}));
    print_json(
        &json!({"tokens": count, "bytes": report.bytes, "elapsed_ms": report.elapsed.as_secs_f64() * 1e3, "chunks": chunks.collect::<Vec<_>>()}),
    )
}

fn level_of(asked: Option<u8>, count: usize) -> CliResult<Level> {
    let top = count.saturating_sub(1) as u8;
    match asked {
        Some(level) if level > top => Err(CliError::new(
            Exit::Data,
            format!("level {level} does not exist: the profile has levels 0 to {top}"),
            "Ask for one of them, or leave --level away for the finest.",
        )),
        asked => Ok(Level(asked.unwrap_or(top))),
    }
}
