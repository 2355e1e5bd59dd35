//! `kvasir context create|list|update|delete`: named contexts of a service.

use clap::Args;
use kvasir_api::{Context, ContextChange, ContextRequest, ContextsQuery, Labels, LookupRequest};
use kvasir_client::rest::Client;
use uuid::Uuid;

use crate::{
    error::{CliError, CliResult, Exit},
    inputs::{self, ContextArguments},
    output::{columns, print, print_json},
    service::{AddressArguments, ServiceArguments, client, client_error, runtime},
};

/// Arguments of `kvasir context create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// The context.
    #[command(flatten)]
    context: ContextArguments,
    /// A label, `name=value`. Repeatable.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(kvasir_types::Name, String)>,
    /// Expire the context after N seconds.
    #[arg(long, value_name = "SECONDS")]
    ttl_s: Option<u64>,
    /// Protect its chunks from garbage collection.
    #[arg(long)]
    pin: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `kvasir context list`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// Only this context.
    #[arg(conflicts_with = "labels")]
    context_id: Option<Uuid>,
    /// Show this version instead of the newest.
    #[arg(long, value_name = "N", requires = "context_id")]
    version: Option<u64>,
    /// List the numbers of its versions.
    #[arg(long, requires = "context_id", conflicts_with = "version")]
    versions: bool,
    /// Only contexts with this label, `name=value`. Repeatable.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(kvasir_types::Name, String)>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `kvasir context update`.
#[derive(Debug, Args)]
pub(crate) struct UpdateArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// The context.
    context_id: Uuid,
    /// Replace all labels by these.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(kvasir_types::Name, String)>,
    /// New lifetime in seconds, from now. 0: no expiry.
    #[arg(long, value_name = "SECONDS")]
    ttl_s: Option<u64>,
    /// Protect its chunks from garbage collection.
    #[arg(long, conflicts_with = "unpin")]
    pin: bool,
    /// Stop protecting its chunks from garbage collection.
    #[arg(long)]
    unpin: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `kvasir context delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// The context.
    context_id: Uuid,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

fn label(text: &str) -> Result<(kvasir_types::Name, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is name=value")?;
    Ok((name.parse().map_err(|e: kvasir_types::NameError| e.to_string())?, value.to_owned()))
}

/// Creates a named context over the stored chunks.
pub(crate) fn create(arguments: &CreateArguments) -> CliResult {
    let context = inputs::context(&arguments.context)?;
    let client = client(&arguments.service.address)?;
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
        // A named context lists whole chunks only.
        let whole = found.chunks.iter().filter(|chunk| chunk.matched_tokens == chunk.tokens);
        let chunks: Vec<_> = whole.map(|chunk| chunk.seq_hash).collect();
        if chunks.is_empty() {
            let advice = "Store the context first. `kvasir context explain` shows why it is not found.";
            return Err(CliError::new(Exit::Nothing, "no whole chunk of these tokens is stored", advice));
        }
        let labels: Labels = arguments.labels.iter().cloned().collect();
        let (ttl_s, pinned) = (arguments.ttl_s, arguments.pin);
        let request = ContextRequest { model_id, namespace, chunks, labels, ttl_s, pinned };
        client.create_context(&request).await.map_err(client_error)
    })?;
    show(&created, arguments.json)
}

/// Lists contexts, or shows one.
pub(crate) fn list(arguments: &ListArguments) -> CliResult {
    let client = client(&arguments.service)?;
    if let Some(id) = &arguments.context_id {
        return one(&client, id, arguments);
    }
    let pairs: Vec<_> = arguments.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let labels = (!pairs.is_empty()).then(|| pairs.join(","));
    let contexts = runtime()?.block_on(async {
        let mut contexts = Vec::new();
        let mut after = None;
        loop {
            let query = ContextsQuery { labels: labels.clone(), limit: Some(500), after, search: None };
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

fn one(client: &Client, id: &Uuid, arguments: &ListArguments) -> CliResult {
    if arguments.versions {
        let found = runtime()?.block_on(client.context_versions(id)).map_err(client_error)?;
        if arguments.json {
            return print_json(&found);
        }
        return print(&found.versions.iter().map(u64::to_string).collect::<Vec<_>>().join("\n"));
    }
    let context = runtime()?.block_on(client.context(id, arguments.version)).map_err(client_error)?;
    show(&context, arguments.json)
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

/// Writes a new version of a context.
pub(crate) fn update(arguments: &UpdateArguments) -> CliResult {
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

/// Deletes a context.
pub(crate) fn delete(arguments: &DeleteArguments) -> CliResult {
    let client = client(&arguments.service)?;
    runtime()?.block_on(client.delete_context(&arguments.context_id)).map_err(client_error)?;
    if arguments.json { print_json(&serde_json::json!({"deleted": arguments.context_id})) } else { Ok(()) }
}

fn show(context: &Context, json: bool) -> CliResult {
    if json {
        return print_json(context);
    }
    let head = ["context", "version", "chunks", "tokens", "pinned", "labels"].map(str::to_owned).to_vec();
    print(&columns(&[head, row(context)]))
}
