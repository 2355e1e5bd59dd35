//! `kvasir admin top`: a live view of a running service.

mod sample;
mod view;

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use clap::Args;
use kvasir_client::rest::Client;

use self::{sample::Sample, view::View};
use crate::{
    error::{CliError, CliResult},
    output::print_if_read,
    service::{AddressArguments, client, client_error, runtime},
};

/// Cursor home and clear to the end: redraws without flicker.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Arguments of `kvasir admin top`.
#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// Interval between two samples, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
    /// Show N views and stop. Default: run until Ctrl-C.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print one JSON document per view.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &TopArguments) -> CliResult {
    let client = client(&arguments.service)?;
    let redraw = std::io::stdout().is_terminal() && !arguments.json;
    runtime()?.block_on(async {
        let mut before = look(&client).await?;
        let mut left = arguments.count.unwrap_or(u64::MAX);
        while left > 0 {
            tokio::time::sleep(Duration::from_millis(arguments.interval_ms)).await;
            let now = look(&client).await?;
            let elapsed = now.1.duration_since(before.1);
            let view = View::between(&before.0, &now.0, elapsed);
            let text = match (arguments.json, redraw) {
                (true, _) => serde_json::to_string_pretty(&view).map_err(CliError::internal)?,
                (false, true) => format!("{REDRAW}{}", view.text(arguments.service.url.as_str())),
                (false, false) => view.text(arguments.service.url.as_str()),
            };
            before = now;
            left = if print_if_read(&text)? { left - 1 } else { 0 };
        }
        Ok(())
    })
}

async fn look(client: &Client) -> CliResult<(Sample, Instant)> {
    let text = client.metrics().await.map_err(client_error)?;
    Ok((Sample::parse(&text), Instant::now()))
}
