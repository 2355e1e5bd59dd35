//! `kvasir context explain`: why a lookup stops where it does, by tokens or by keys, or what happened to an engine's
//! request.

use std::path::PathBuf;

use clap::Args;
use kvasir_api::{Cause, ExplainRequest, MatchedProfile, routes};
use kvasir_types::{LevelError, Medium, ObjectKey};

use super::request;
use crate::{
    browser,
    error::{CliError, CliResult, Exit},
    inputs::{self, Context, ContextArguments},
    output::{bytes, print, print_json},
    progress::note,
    service::{ServiceArguments, client, client_error, runtime},
};

/// Arguments of `kvasir context explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// What to explain.
    #[command(flatten)]
    subject: Subject,
    /// Folder of the engines' request records. Default: the folder for temporary files.
    #[arg(long, value_name = "FOLDER", requires = "request")]
    folder: Option<PathBuf>,
    /// Open the console page that explains these tokens in a browser; without a browser, print its address. The token
    /// ids follow its `#`, which browsers never send to a server.
    #[arg(long, conflicts_with_all = ["request", "keys", "json"])]
    open: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Tokens, keys, or a request.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Subject {
    /// A text file, tokenised by the shipped model.
    #[cfg(feature = "demo")]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// A KV dump (safetensors); its tokens are used.
    #[arg(long, value_name = "FILE")]
    kv: Option<PathBuf>,
    /// Key of an object that was stored by key, or over S3. Repeat it for several, in the order of use.
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<ObjectKey>,
    /// A finished request of vLLM on this host, by the id that its client saw. Contacts no service.
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: &ExplainArguments) -> CliResult {
    let subject = &arguments.subject;
    if let Some(id) = &subject.request {
        let records = request::find(id, arguments.folder.as_deref())?;
        if arguments.json {
            return print_json(&records);
        }
        return print(&records.iter().map(request::RequestRecord::text).collect::<Vec<_>>().join("\n"));
    }
    if !subject.keys.is_empty() {
        return explain_keys(arguments);
    }
    let context = inputs::context(&ContextArguments {
        #[cfg(feature = "demo")]
        text: subject.text.clone(),
        kv: subject.kv.clone(),
    })?;
    if arguments.open {
        let page = console_page(arguments, &context)?;
        if browser::open(&page) {
            note("opened in the browser");
            return Ok(());
        }
        return print(&page);
    }
    let request = ExplainRequest {
        model_id: context.spec.model_id(),
        spec: Some((*context.spec).clone()),
        namespace: arguments.service.namespace.clone(),
        tokens: context.tokens,
    };
    let client = client(&arguments.service.address)?;
    let answer = runtime()?.block_on(client.explain(&request)).map_err(client_error)?;
    if arguments.json {
        return print_json(&answer);
    }
    let mut text = format!("{} of {} tokens match", answer.matched_tokens, answer.tokens);
    text += &lines(&answer.causes);
    text.extend(answer.profiles.iter().map(profile_line));
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

fn explain_keys(arguments: &ExplainArguments) -> CliResult {
    let (keys, namespace) = (arguments.subject.keys.clone(), &arguments.service.namespace);
    let client = client(&arguments.service.address)?;
    let answer = runtime()?.block_on(client.explain_opaque(namespace, keys)).map_err(client_error)?;
    if arguments.json {
        return print_json(&answer);
    }
    let next = answer.key.map(|key| format!("; the next one is {key}")).unwrap_or_default();
    print(&format!("{} of {} keys have objects{next}{}", answer.found, answer.keys, lines(&answer.causes)))
}

fn lines(causes: &[Cause]) -> String {
    let mut text = String::new();
    for cause in causes {
        text += &format!("\n{}: {}", cause.reason.as_str(), cause.detail);
        if let (Some(at), Some(by)) = (cause.at_ms, &cause.by) {
            text += &format!("\n  by {by}, at {at} ms since 1970");
            if cause.tokens > 0 {
                text += &format!(", {} tokens", cause.tokens);
            }
        }
        for difference in &cause.differences {
            text += &format!(
                "\n  {}: asked {}, stored {}",
                difference.field, difference.asked, difference.stored
            );
        }
    }
    text
}

/// A profile of the matched chunks, with what their encoders measured.
fn profile_line(of: &MatchedProfile) -> String {
    let quality = match of.quality {
        Some(quality) => quality.name(),
        None if of.error == LevelError::UNKNOWN => "quality not measured",
        None => "no named quality",
    };
    format!(
        "\nprofile {}: {} tokens of {} chunks, {}; {quality}, error {} of transparent's bound, {} lossy loads",
        &of.profile_hash.to_string()[..16],
        of.tokens,
        of.chunks,
        bytes(of.bytes),
        of.error,
        of.hops,
    )
}

/// Address of the console page for the question.
fn console_page(arguments: &ExplainArguments, context: &Context) -> CliResult<String> {
    let service = &arguments.service;
    let page = service.address.url.join(routes::CONSOLE_FILES);
    let page = page.map_err(|error| CliError::new(Exit::Data, error, ""))?;
    let tokens: Vec<_> = context.tokens.iter().map(u32::to_string).collect();
    Ok(format!(
        "{page}#/explain?model_id={}&namespace={}&tokens={}",
        context.spec.model_id(),
        service.namespace,
        tokens.join(",")
    ))
}

const fn name(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU memory",
        Medium::Cpu => "memory",
        Medium::Disk => "the local disk",
        Medium::Object => "the object store",
    }
}
