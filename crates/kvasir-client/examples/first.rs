//! The README's program with a toy model: load the stored part of a prompt, compute the rest, save.
//!
//! ```text
//! kvasir serve &
//! cargo run -p kvasir-client --example first -- http://127.0.0.1:7480
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

mod toy;

use std::{error::Error, time::Duration};

use kvasir_client::{Deadline, Kvasir, pages::HostPages};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: first URL")?;
    let (spec, profile) = (toy::spec(), toy::profile()?);
    let kvasir = Kvasir::builder(url).model(spec).profile(profile).namespace("examples").connect().await?;
    let prompt = toy::prompt(1000, 1);
    for round in ["first", "second"] {
        print!("{round} time: ");
        answer(&kvasir, &prompt).await?;
    }
    Ok(())
}

/// One request.
async fn answer(kvasir: &Kvasir, prompt: &[u32]) -> Result<(), Box<dyn Error>> {
    let deadline = Deadline::within(Duration::from_secs(1));
    let pages = HostPages::new(kvasir.spec(), 16, prompt.len())?;
    let session = kvasir.session(prompt).deadline(deadline).await;
    let loaded = session.load([pages.table()], deadline)?.finish().await;
    println!("{} tokens loaded, to compute: {:?}", loaded.loaded_tokens(), loaded.missing());
    session.save(&toy::prefill(prompt), prompt.len()).outcome().await;
    Ok(())
}
