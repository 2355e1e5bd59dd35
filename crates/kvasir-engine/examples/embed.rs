//! How an engine embeds Kvasir, end to end: answer a prompt, store its cache, forget everything, answer again.
//!
//! ```text
//! kvasir serve &
//! cargo run --release -p kvasir-engine --example embed -- http://127.0.0.1:7480 document.md
//! ```
//! The first answer computes the document's KV and stores it; the second, with a fresh engine state, loads it.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{Client, ClientConfig, LoadOptions};
use kvasir_codec::Profile;
use kvasir_engine::{
    Model, Sampling, TINY_PROFILE,
    remote::{RemoteKv, calibrate},
};

use kvasir_types::Name;

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
    let model = Arc::new(Model::kvasir_tiny()?);
    let mut prompt = model.tokenizer().encode(&std::fs::read_to_string(path)?)?;
    prompt.truncate(model.config().context - ANSWER);

    // Once per process: the model is registered, the profile published, the namespace's root fetched.
    let client = Client::new(url.parse()?, ClientConfig::default())?;
    let profile = Arc::new(Profile::from_bytes(TINY_PROFILE)?);
    let namespace: Name = "embed-example".parse()?;
    let remote = RemoteKv::connect(Arc::clone(&model), client, namespace, profile).await?;
    let remote = remote.with_chunk_tokens(CHUNK_TOKENS)?;

    // What computing costs on this machine decides when a load is not worth it; two prefills tell.
    let recompute = calibrate(&model, &prompt[..prompt.len() / 2])?;
    for round in ["first", "second"] {
        let started = Instant::now();
        let options = LoadOptions::new(Duration::from_secs(2), recompute.clone());
        let mut loaded = remote.load(model.new_kv()?, &prompt, options).await?;
        let ready = started.elapsed();
        let answer = model.generate_with_kv(&mut loaded.kv, &prompt, ANSWER, &Sampling::Greedy)?;
        println!(
            "{round}: {} of {} tokens loaded, KV in place after {ready:.0?}: {:?}",
            loaded.loaded_tokens,
            prompt.len(),
            model.tokenizer().decode(&answer)?
        );
        // What was loaded is there already, so only a miss uploads.
        if loaded.loaded_tokens == 0 {
            let stored = remote.store(&prompt, &loaded.kv, loaded.kl_beneath, |_| {}).await?;
            println!("stored {} chunks, {} bytes", stored.chunks.len(), stored.bytes());
        }
    }
    Ok(())
}
