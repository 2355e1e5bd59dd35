//! `kvasir admin events`: prints the event stream as lines.

use clap::Args;
use kvasir_api::{Event, EventType, EventsQuery};
use kvasir_client::rest::EventMessage;
use kvasir_types::Name;

use crate::{
    error::{CliError, CliResult, Exit},
    output::print_if_read,
    progress::note,
    service::{AddressArguments, client, client_error, runtime},
};

/// Arguments of `kvasir admin events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArguments {
    /// The service. Events of all its namespaces are shown unless `--only` names one.
    #[command(flatten)]
    service: AddressArguments,
    /// Show only events of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    only: Option<Name>,
    /// Show only these event types, separated by commas: stored, removed, cleared, profile.
    #[arg(long)]
    types: Option<String>,
    /// Resume after the event with this id.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Stop after N events. Default: run until the service ends the stream.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print one JSON document per line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &EventsArguments) -> CliResult {
    let client = client(&arguments.service)?;
    let query = EventsQuery {
        namespace: arguments.only.clone(),
        types: arguments.types.clone(),
        after: arguments.after.clone(),
    };
    runtime()?.block_on(async {
        let mut stream = client.events(&query).await.map_err(client_error)?;
        note("waiting for events");
        let mut left = arguments.count.unwrap_or(u64::MAX);
        while left > 0 {
            let is_read = match stream.next().await.map_err(client_error)? {
                Some(EventMessage::Event(event)) if arguments.json => {
                    print_if_read(&serde_json::to_string(&event).map_err(CliError::internal)?)?
                }
                Some(EventMessage::Event(event)) => print_if_read(&line(&event))?,
                Some(EventMessage::Dropped(dropped)) => {
                    let message = format!("{} events were missed: {}", dropped.missed, dropped.detail);
                    return Err(CliError::new(Exit::Unavailable, message, ""));
                }
                None => {
                    let advice = "Run it again with --after and the last event id.";
                    return Err(CliError::new(Exit::Unavailable, "the service ended the stream", advice));
                }
            };
            left = if is_read { left - 1 } else { 0 };
        }
        Ok(())
    })
}

fn line(event: &Event) -> String {
    let chunk = event.seq_hash.map(|hash| hash.to_string()[..16].to_owned()).unwrap_or_default();
    let namespace = event.namespace.as_ref().map_or("-", Name::as_str);
    let what = match event.event_type {
        EventType::Stored => {
            let blocks = event.block_hashes.len();
            let level = event.level.map_or(0, |level| level.0);
            format!("{blocks} blocks, levels to {level}, {}", serde_json::json!(event.medium))
        }
        EventType::Removed | EventType::Cleared => event.reason.clone().unwrap_or_default(),
        EventType::Profile => {
            let profile = event.profile_hash.map(|hash| hash.to_string()[..16].to_owned());
            let reason = event.reason.as_deref().unwrap_or_default();
            format!("profile {}, {reason}", profile.as_deref().unwrap_or("none"))
        }
    };
    format!("{}  {:<7}  {namespace}  {chunk}  {what}", event.event_id, event.event_type.as_str())
}
