//! How an engine embeds Kvasir, end to end: answer a prompt, save its cache, forget everything, answer again.
//!
//! ```text
//! kvasir serve &
//! cargo run --release -p kvasir-engine --example embed -- http://127.0.0.1:7480 document.md
//! ```
//! The first answer computes the document's KV and saves it; the second, with a fresh engine state, loads it.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{Deadline, Kvasir};
use kvasir_engine::{Model, Sampling, calibrate};

/// Tokens of the answer.
const ANSWER: usize = 24;
/// Chunks short enough that the small model's context holds several.
const CHUNK_TOKENS: usize = 256;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: embed URL FILE".into());
    };
    let model = Model::kvasir_tiny()?;
    let mut prompt = model.tokenizer().encode(&std::fs::read_to_string(path)?)?;
    prompt.truncate(model.config().context - ANSWER);
    // The last token's logits are needed, and no cache holds them: it is always computed.
    let cached = &prompt[..prompt.len() - 1];

    // Once per process. What computing costs on this machine decides when a load is not worth it; two prefills tell. The
    // first save makes the model's profile.
    let kvasir = Kvasir::builder(url)
        .model(Arc::clone(model.spec()))
        .namespace("embed-example")
        .chunk_tokens(CHUNK_TOKENS)
        .recompute_model(calibrate(&model, &prompt[..prompt.len() / 2])?)
        .connect()
        .await?;
    for round in ["first", "second"] {
        let (started, deadline) = (Instant::now(), Deadline::within(Duration::from_secs(2)));
        let mut kv = model.new_kv()?;
        kv.reserve(prompt.len())?;
        let session = kvasir.session(&prompt).deadline(deadline).await;
        // Generations in the table keep a load that is cancelled out of pages that are another's by then.
        let loaded = session.load([kv.load_table()?], deadline)?.finish().await;
        model.complete_kv(&mut kv, cached, loaded.missing())?;
        let ready = started.elapsed();
        let answer = model.generate_with_kv(&mut kv, &prompt, ANSWER, &Sampling::Greedy)?;
        println!(
            "{round}: {} of {} tokens loaded, KV in place after {ready:.0?}: {:?}",
            loaded.loaded_tokens(),
            prompt.len(),
            model.tokenizer().decode(&answer)?
        );
        let saved = session.save_now(&kv, prompt.len(), |_| ()).await?;
        println!("saved {} bytes", saved.bytes());
    }
    Ok(())
}
