//! `kvasir context explain`: why a lookup ends where it ends.

use clap::Args;
use kvasir_api::ExplainRequest;
use kvasir_types::Medium;

use crate::{
    error::CliResult,
    inputs::{self, ContextArguments},
    output::{print, print_json},
    service::{ServiceArguments, client, client_error, runtime},
};

/// Arguments of `kvasir context explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    context: ContextArguments,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &ExplainArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let request = ExplainRequest {
        model_id: context.spec.model_id(),
        spec: Some((*context.spec).clone()),
        namespace: arguments.service.namespace.clone(),
        tokens: context.tokens,
    };
    let client = client(&arguments.service)?;
    let answer = runtime()?.block_on(client.explain(&request)).map_err(client_error)?;
    if arguments.json {
        return print_json(&answer);
    }
    let mut text = format!("{} of {} tokens match", answer.matched_tokens, answer.tokens);
    for cause in &answer.causes {
        text += &format!("\n{}: {}", cause.reason.as_str(), cause.detail);
        if let (Some(at), Some(by)) = (cause.at_ms, &cause.by) {
            text += &format!("\n  by {by}, at {at} ms since 1970, {} tokens", cause.tokens);
        }
        for difference in &cause.differences {
            text += &format!(
                "\n  {}: asked {}, stored {}",
                difference.field, difference.asked, difference.stored
            );
        }
    }
    for left in &answer.departures {
        text += &format!(
            "\n{}: {} bytes left {} {:.1} s ago ({}, idle for {:.1} s); now in {}",
            left.seq_hash,
            left.bytes,
            name(left.medium),
            left.ago_ms as f64 / 1e3,
            left.reason,
            left.idle_ms as f64 / 1e3,
            name(left.now_in),
        );
    }
    print(&text)
}

const fn name(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU memory",
        Medium::Cpu => "memory",
        Medium::Disk => "the local disk",
        Medium::Object => "the object store",
    }
}
