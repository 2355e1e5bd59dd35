//! One load for each line of the standard input, and its seconds: the Rust side of `load-tests/python-load`.
//!
//! ```text
//! timed_loads http://127.0.0.1:7480 spec.json profile.kvp LEVEL TOKENS < lines
//! ```
//!
//! The tokens are 0, 1, 2, …, and are stored already. A load is lookup, bytes, decoding, and rows in pages.
#![allow(clippy::print_stdout, reason = "an example")]

use std::{error::Error, fs, io, sync::Arc, time::Instant};

use kvasir_client::{Kvasir, pages::HostPages, tuning::LoadOptions};
use kvasir_codec::Profile;
use kvasir_types::{Level, ModelSpec};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, spec, profile, level, tokens] = &*arguments else {
        return Err("usage: timed_loads URL SPEC PROFILE LEVEL TOKENS".into());
    };
    let spec: Arc<ModelSpec> = Arc::new(serde_json::from_str(&fs::read_to_string(spec)?)?);
    let profile = Arc::new(Profile::from_bytes(&fs::read(profile)?)?);
    let level = Level(level.parse()?);
    let tokens: Vec<u32> = (0..tokens.parse()?).collect();
    let kvasir = Kvasir::builder(url.as_str()).model(Arc::clone(&spec)).profile(profile).connect().await?;
    // All in one page, as a tensor is.
    let pages = HostPages::new(&spec, tokens.len(), tokens.len())?;
    for line in io::stdin().lines() {
        line?;
        let began = Instant::now();
        let session = kvasir.session(&tokens).await;
        let loaded = session.load([pages.table()], LoadOptions::at_level(level))?.finish().await;
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(loaded.loaded_tokens(), tokens.len() as u64, "everything is stored");
        println!("{seconds}");
    }
    Ok(())
}
