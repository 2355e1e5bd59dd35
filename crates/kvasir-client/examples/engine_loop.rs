//! An engine loop with continuous batching: prompts load while others generate, every step computes one token
//! for each running request, and finished sequences are saved in the background.
//!
//! ```text
//! kvasir serve &
//! cargo run -p kvasir-client --example engine_loop -- http://127.0.0.1:7480
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

mod toy;

use std::{error::Error, sync::Arc, time::Duration};

use kvasir_client::{Deadline, Kvasir, Session, pages::HostPages};
use kvasir_types::TokenRange;
use tokio::task::JoinSet;

/// Time to first token that loads aim at.
const SLO: Duration = Duration::from_millis(500);
/// Tokens of every answer.
const ANSWER: usize = 32;

/// A request whose prefix is in its pages, except for missing ranges.
struct Request {
    name: String,
    session: Session,
    /// A real engine attends to these pages.
    _pages: Arc<HostPages>,
    missing: Vec<TokenRange>,
    left: usize,
}

/// Looks a prompt up and loads it, while the loop below steps others.
async fn load(kvasir: Kvasir, name: String, prompt: Vec<u32>) -> Result<Request, kvasir_client::Error> {
    let deadline = Deadline::within(SLO);
    let session = kvasir.session(&prompt).deadline(deadline).await;
    let pages = HostPages::new(kvasir.spec(), 16, prompt.len() + ANSWER)?;
    let mut load = session.load([pages.table()], deadline)?;
    while let Some(ready) = load.next_layers().await {
        println!("{name}: layers {:?} are there, {} in all", ready.layers, ready.layers_complete);
    }
    let missing = load.finish().await.missing().to_vec();
    Ok(Request { name, session, _pages: pages, missing, left: ANSWER })
}

impl Request {
    /// One step of the engine: computes a missing range, or the next token.
    fn step(&mut self) {
        if self.missing.is_empty() {
            let token =
                self.session.tokens().iter().fold(7, |sum: u32, token| sum.wrapping_mul(31) + token) & 31;
            self.session.extend(&[token]);
            self.left -= 1;
        }
        for range in self.missing.drain(..) {
            println!("{}: computes tokens {}..{}", self.name, range.start, range.end);
        }
    }

    /// Saves the sequence. The KV of the last token was never computed, because no token followed it.
    fn save(&self) {
        let count = self.session.tokens().len() - 1;
        self.session.save(&toy::prefill(&self.session.tokens()[..count]), count).in_background();
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: engine_loop URL")?;
    let builder = Kvasir::builder(url).model(toy::spec()).profile(toy::profile()?).namespace("examples");
    let kvasir = builder.chunk_tokens(256).connect().await?;
    let mut conversations: Vec<Vec<u32>> = (2..5).map(|seed| toy::prompt(600, seed)).collect();
    for turn in ["first", "second"] {
        let (mut loading, mut running) = (JoinSet::new(), Vec::<Request>::new());
        for (number, prompt) in conversations.drain(..).enumerate() {
            loading.spawn(load(kvasir.clone(), format!("{turn} turn of {number}"), prompt));
        }
        while !(loading.is_empty() && running.is_empty()) {
            // Waits for a load only when there is nothing else to do.
            let loaded = if running.is_empty() { loading.join_next().await } else { loading.try_join_next() };
            if let Some(request) = loaded {
                running.push(request??);
            }
            running.iter_mut().for_each(Request::step);
            for finished in running.extract_if(.., |request| request.left == 0) {
                finished.save();
                conversations.push([finished.session.tokens(), &toy::prompt(40, 9)].concat());
            }
        }
        kvasir.drain().await;
        println!("after the {turn} turn: {:?}", kvasir.saves());
    }
    Ok(())
}
