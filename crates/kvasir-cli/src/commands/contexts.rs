//! `kvasir contexts`: named contexts of a running service.

use clap::{Args, Subcommand};
use kvasir_api::{Context, ContextChange, ContextRequest, ContextsQuery, Labels, LookupRequest};
use uuid::Uuid;

use super::serve::runtime;
use crate::{
    args::{ContextArguments, ServiceArguments},
    error::{CliError, CliResult, Exit},
    inputs,
    output::{columns, print, print_json},
    remote::{client, client_error},
};

/// What to do with contexts.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextsCommand {
    /// Create a context from what is stored of a text or dump.
    Create(CreateArguments),
    /// List contexts, by labels.
    List(ListArguments),
    /// Show a context.
    Get(OneArguments),
    /// List the versions of a context.
    Versions(OneArguments),
    /// Write a context's next version: pin, labels, life.
    Change(ChangeArguments),
    /// Delete a context; its chunks stay.
    Delete(OneArguments),
}

/// Arguments of `kvasir contexts create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    context: ContextArguments,
    /// A label, `name=value`; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(kvasir_types::Name, String)>,
    /// End the context after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    ttl_s: Option<u64>,
    /// The collector spares its chunks.
    #[arg(long)]
    pin: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `kvasir contexts list`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// Only with this label, `name=value`; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(kvasir_types::Name, String)>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of commands on one context.
#[derive(Debug, Args)]
pub(crate) struct OneArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    context_id: Uuid,
    /// Another version than the newest.
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `kvasir contexts change`.
#[derive(Debug, Args)]
pub(crate) struct ChangeArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    context_id: Uuid,
    /// The labels from now on, all of them.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(kvasir_types::Name, String)>,
    /// Another life from now on; 0: until it is deleted.
    #[arg(long, value_name = "SECONDS")]
    ttl_s: Option<u64>,
    /// The collector spares its chunks.
    #[arg(long, conflicts_with = "unpin")]
    pin: bool,
    /// The collector does not spare them any more.
    #[arg(long)]
    unpin: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

fn label(text: &str) -> Result<(kvasir_types::Name, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is name=value")?;
    Ok((name.parse().map_err(|e: kvasir_types::NameError| e.to_string())?, value.to_owned()))
}

/// Runs the command.
pub(crate) fn run(command: &ContextsCommand) -> CliResult {
    match command {
        ContextsCommand::Create(arguments) => create(arguments),
        ContextsCommand::List(arguments) => list(arguments),
        ContextsCommand::Get(one) => {
            let client = client(&one.service)?;
            let context = runtime()?.block_on(client.context(&one.context_id, one.version));
            show(&context.map_err(client_error)?, one.json)
        }
        ContextsCommand::Versions(one) => {
            let client = client(&one.service)?;
            let found =
                runtime()?.block_on(client.context_versions(&one.context_id)).map_err(client_error)?;
            if one.json {
                return print_json(&found);
            }
            print(&found.versions.iter().map(u64::to_string).collect::<Vec<_>>().join("\n"))
        }
        ContextsCommand::Change(arguments) => change(arguments),
        ContextsCommand::Delete(one) => {
            let client = client(&one.service)?;
            runtime()?.block_on(client.delete_context(&one.context_id)).map_err(client_error)?;
            if one.json { print_json(&serde_json::json!({"deleted": one.context_id})) } else { Ok(()) }
        }
    }
}

fn create(arguments: &CreateArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let client = client(&arguments.service)?;
    let (model_id, namespace) = (context.spec.model_id(), arguments.service.namespace.clone());
    let created = runtime()?.block_on(async {
        let lookup = LookupRequest {
            model_id,
            namespace: namespace.clone(),
            tokens: Some(context.tokens),
            block_hashes: None,
            chunk_ids: None,
            fresh: true,
            direct: false,
        };
        let found = client.lookup(&lookup).await.map_err(client_error)?;
        // Only whole chunks have a name.
        let whole = found.chunks.iter().filter(|chunk| chunk.matched_tokens == chunk.tokens);
        let chunks: Vec<_> = whole.map(|chunk| chunk.seq_hash).collect();
        if chunks.is_empty() {
            let advice = "Store the context first; `kvasir explain` says why it is not found.";
            return Err(CliError::new(Exit::Nothing, "no whole chunk of these tokens is stored", advice));
        }
        let labels: Labels = arguments.labels.iter().cloned().collect();
        let (ttl_s, pinned) = (arguments.ttl_s, arguments.pin);
        let request = ContextRequest { model_id, namespace, chunks, labels, ttl_s, pinned };
        client.create_context(&request).await.map_err(client_error)
    })?;
    show(&created, arguments.json)
}

fn list(arguments: &ListArguments) -> CliResult {
    let client = client(&arguments.service)?;
    let pairs: Vec<_> = arguments.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let labels = (!pairs.is_empty()).then(|| pairs.join(","));
    let contexts = runtime()?.block_on(async {
        let mut contexts = Vec::new();
        let mut after = None;
        loop {
            let query = ContextsQuery { labels: labels.clone(), limit: Some(500), after };
            let page = client.list_contexts(&query).await.map_err(client_error)?;
            contexts.extend(page.contexts);
            after = page.next;
            if after.is_none() {
                return Ok(contexts);
            }
        }
    })?;
    if arguments.json {
        return print_json(&contexts);
    }
    let mut rows =
        vec![["context", "version", "chunks", "tokens", "pinned", "labels"].map(str::to_owned).to_vec()];
    rows.extend(contexts.iter().map(row));
    print(&columns(&rows))
}

fn row(context: &Context) -> Vec<String> {
    let labels: Vec<_> = context.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        context.context_id.to_string(),
        context.version.to_string(),
        context.chunks.len().to_string(),
        context.tokens.to_string(),
        if context.pinned { "yes" } else { "no" }.to_owned(),
        labels.join(" "),
    ]
}

fn change(arguments: &ChangeArguments) -> CliResult {
    let client = client(&arguments.service)?;
    let pinned = match (arguments.pin, arguments.unpin) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        (false, false) => None,
    };
    let labels = (!arguments.labels.is_empty()).then(|| arguments.labels.iter().cloned().collect());
    let change = ContextChange { chunks: None, labels, ttl_s: arguments.ttl_s, pinned };
    let context =
        runtime()?.block_on(client.change_context(&arguments.context_id, &change)).map_err(client_error)?;
    show(&context, arguments.json)
}

fn show(context: &Context, json: bool) -> CliResult {
    if json {
        return print_json(context);
    }
    let head = ["context", "version", "chunks", "tokens", "pinned", "labels"].map(str::to_owned).to_vec();
    print(&columns(&[head, row(context)]))
}
