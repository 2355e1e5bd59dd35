//! `kvasir context get`: loads a context's KV into a dump.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use kvasir_client::{
    Deadline, QualityFloor, Session,
    pages::HostPages,
    tuning::{LoadOptions, RecomputeModel},
};
use kvasir_codec::KvBuffer;
use kvasir_types::{Level, Quality};
use serde_json::json;

use super::nothing;
use crate::{
    error::{CliError, CliResult, Exit},
    inputs::{self, ContextArguments},
    output::{bytes, print_json, write_dump},
    progress::Step,
    service::{ServiceArguments, client_error, connect, look_up, runtime},
};

/// Arguments of `kvasir context get`.
#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    context: ContextArguments,
    /// Level to load. Default: the finest.
    #[arg(long, value_name = "N", conflicts_with = "slo_ms")]
    level: Option<u8>,
    /// Lowest quality to load: exact, transparent, balanced or small. Each chunk is loaded at the smallest
    /// level that its encoder measured to be at least as good, whatever the level's number.
    #[arg(long, value_name = "NAME", conflicts_with = "level")]
    quality: Option<Quality>,
    /// A quality below --quality that chunks may fall to where --slo-ms leaves no time for more.
    #[arg(long, value_name = "NAME", requires = "quality", requires = "slo_ms")]
    soft_quality: Option<Quality>,
    /// Adapt levels so that the load takes at most this many milliseconds.
    #[arg(long, value_name = "MS")]
    slo_ms: Option<u64>,
    /// The dump to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Loads the stored part of a context into a dump.
pub(crate) fn run(arguments: &GetArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let step = Step::start("loading");
    // A command line cannot recompute: ranges that the load gives up are missing. This cost makes recomputing
    // unattractive.
    let never = RecomputeModel::from_seconds(1e6, 1e3, 0.0).on_gpus(0);
    // It lives on while the dump is written, which gives the report of the load time to be sent. Nothing waits for it.
    let runtime = runtime()?;
    let (loaded, pages, count) = runtime.block_on(async {
        let floor = arguments.quality.map_or(QualityFloor::Adaptive, QualityFloor::Named);
        let kvasir = connect(&arguments.service, &context.spec, floor).await?;
        let session = look_up(&kvasir, &context.tokens).await?;
        let count = session.matched_tokens() as usize;
        if count == 0 {
            return Err(nothing(&session, arguments.quality));
        }
        let options = match arguments.slo_ms {
            Some(ms) => LoadOptions {
                last_token: true,
                soft_floor: arguments.soft_quality,
                ..Deadline::within(Duration::from_millis(ms)).into()
            },
            // The floor applies to levels below it.
            None if arguments.quality.is_some() => LoadOptions::at_level(Level::BASE),
            None => LoadOptions::at_level(level_of(arguments.level, &session)?),
        };
        let options = LoadOptions { recompute: Some(never), ..options };
        let pages = HostPages::new(&context.spec, count, count).map_err(client_error)?;
        let load = session.load([pages.table()], options).map_err(client_error)?;
        Ok((load.finish().await, pages, count))
    })?;
    let report = loaded.report().ok_or_else(|| CliError::internal("a load without a report"))?;
    if let Some(range) = loaded.missing().first().filter(|range| range.start < count as u64) {
        let why =
            report.failures.first().map_or_else(|| "the deadline passed".to_owned(), |f| f.error.to_string());
        let message = format!("tokens {}..{} could not be loaded: {why}", range.start, range.end);
        return Err(CliError::new(Exit::Unavailable, message, "Try again, or set a larger --slo-ms."));
    }
    let tokens = &context.tokens[..count];
    let kv = KvBuffer::from_source(&context.spec, count, &*pages);
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
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    print_json(&json!({
        "tokens": count,
        "bytes": report.bytes,
        "elapsed_ms": ms(report.elapsed),
        "network_ms": ms(report.times.network),
        "decode_ms": ms(report.times.decode),
        "wait_ms": ms(report.times.wait),
        "chunks": chunks.collect::<Vec<_>>(),
    }))
}

/// The requested level, or the finest. A chunk with fewer levels is loaded at its own finest.
fn level_of(asked: Option<u8>, session: &Session) -> CliResult<Level> {
    let levels = session.chunks().iter().map(|chunk| chunk.level_bytes.len());
    let top = levels.max().unwrap_or(1).saturating_sub(1) as u8;
    match asked {
        Some(level) if level > top => Err(CliError::new(
            Exit::Data,
            format!("level {level} does not exist: the context has levels 0 to {top}"),
            "Choose one of them, or omit --level for the finest.",
        )),
        asked => Ok(Level(asked.unwrap_or(top))),
    }
}
