//! `kvasir context lookup`: how much of a context is stored.

use clap::Args;
use kvasir_client::{QualityFloor, Session};
use kvasir_types::{Level, Quality};
use serde_json::json;

use super::nothing;
use crate::{
    error::CliResult,
    inputs::{self, Context, ContextArguments},
    output::{columns, print, print_json},
    service::{ServiceArguments, connect, look_up, runtime},
};

/// Arguments of `kvasir context lookup`.
#[derive(Debug, Args)]
pub(crate) struct LookupArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    context: ContextArguments,
    /// Lowest quality that counts as stored: exact, transparent, balanced or small. Default: any.
    #[arg(long, value_name = "NAME")]
    quality: Option<Quality>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints how much of a context is stored.
pub(crate) fn run(arguments: &LookupArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let found = runtime()?.block_on(async {
        let floor = arguments.quality.map_or(QualityFloor::Adaptive, QualityFloor::Named);
        let kvasir = connect(&arguments.service, &context.spec, floor).await?;
        look_up(&kvasir, &context.tokens).await
    })?;
    if arguments.json {
        print_json(
            &json!({"tokens": context.tokens.len(), "matched_tokens": found.matched_tokens(), "chunks": found.chunks()}),
        )?;
    } else {
        print(&chunk_table(&found, &context))?;
    }
    if found.matched_tokens() == 0 {
        return Err(nothing(&found, arguments.quality));
    }
    Ok(())
}

fn chunk_table(found: &Session, context: &Context) -> String {
    let mut rows = vec![
        ["chunk", "first token", "tokens", "matched", "bytes", "by level", "quality"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for chunk in found.chunks() {
        let name = |level| Quality::of(chunk.loss_at(Level(level), 0.0).error).map_or("-", Quality::name);
        rows.push(vec![
            chunk.seq_hash.to_string().chars().take(16).collect(),
            chunk.first_token.to_string(),
            chunk.tokens.to_string(),
            chunk.matched_tokens.to_string(),
            chunk.bytes.to_string(),
            chunk.level_bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
            (0..chunk.level_bytes.len() as u8).map(name).collect::<Vec<_>>().join(" "),
        ]);
    }
    format!("{} of {} tokens are stored\n{}", found.matched_tokens(), context.tokens.len(), columns(&rows))
}
