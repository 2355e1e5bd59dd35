//! An engine's life with Kvasir: look up, load layer by layer, compute what did not come, store in the background.
//!
//! ```text
//! kvasir serve &
//! cargo run -p kvasir-client --example load_layers -- http://127.0.0.1:7480
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

mod toy;

use std::{error::Error, sync::Arc, time::Duration};

use kvasir_client::{
    Client, ClientConfig, HostPages, KvClient, LoadEvent, QueueConfig, StoreOptions, StoreOutcome,
    StoreQueue, fetcher::RecomputeModel,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: load_layers URL")?;
    let client = Client::new(url.parse()?, ClientConfig::default())?;
    // Once per process: the model is registered, its profile published and the others fetched.
    let kvasir = KvClient::connect(client, Arc::new(toy::spec()), "examples".parse()?, toy::profile()?)
        .await?
        .with_chunk_tokens(256)?
        // What a prefill takes here; a load that cannot beat it is given up. Loads and prefills refine it.
        .with_recompute_model(RecomputeModel::from_seconds(0.002, 1e-3, 0.0));
    let queue = StoreQueue::new(kvasir.clone(), QueueConfig::default());

    let prompt = toy::prompt(1000);
    for round in ["first", "second"] {
        let pages = HostPages::new(&toy::spec(), 16, prompt.len())?;
        let plan = kvasir.lookup(&prompt).await?;
        println!("{round} time: {} of {} tokens are stored", plan.matched_tokens(), prompt.len());
        let stored_tokens = plan.matched_tokens() as usize;
        let mut load = kvasir.load(plan, [pages.table()], kvasir.options(Duration::from_millis(500)))?;
        let mut kl_beneath = 0.0;
        while let Some(event) = load.next().await {
            match event {
                LoadEvent::LayerReady(ready) => println!(
                    "  layers {:?} of tokens {}..{} at level {}; {} layers are complete",
                    ready.layers,
                    ready.token_range.start,
                    ready.token_range.end,
                    ready.level,
                    ready.layers_complete
                ),
                LoadEvent::Recompute { range, cause } => {
                    println!("  to compute: tokens {}..{} ({cause:?})", range.start, range.end);
                }
                // Only for engines that compute while the load goes on.
                LoadEvent::Withdrawn { range } => {
                    println!("  not to compute any more: tokens {}..{}", range.start, range.end);
                }
                LoadEvent::Done { report } => {
                    println!("  done: {} bytes in {:.0?}", report.bytes, report.elapsed);
                    kl_beneath = report.kl_beneath;
                }
            }
        }
        // The engine computes the rest, answers, and offers what it has; nothing waits for the store.
        let kv = toy::prefill(&prompt);
        let options =
            StoreOptions { kl_beneath, stored_tokens, class: "chat".into(), ..StoreOptions::default() };
        let ticket = queue.store(&prompt, &kv, options);
        match ticket.outcome().await {
            StoreOutcome::Stored(report) => println!("  stored {} bytes", report.bytes()),
            other => println!("  not stored: {other:?}"),
        }
    }
    Ok(())
}
