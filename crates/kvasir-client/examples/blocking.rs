//! The same without an async runtime: every call waits, the load is an iterator.
//!
//! ```text
//! kvasir serve &
//! cargo run -p kvasir-client --example blocking -- http://127.0.0.1:7480
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

mod toy;

use std::{error::Error, sync::Arc, time::Duration};

use kvasir_client::{Client, ClientConfig, HostPages, LoadEvent, Shard, StoreOptions, blocking::KvClient};

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: blocking URL")?;
    let client = Client::new(url.parse()?, ClientConfig::default())?;
    let kvasir = KvClient::connect(client, Arc::new(toy::spec()), "examples".parse()?, toy::profile()?)?
        .configured(|kvasir| kvasir.with_chunk_tokens(256))?;
    let prompt = toy::prompt(800);
    let stored = kvasir.store_kv(&prompt, &toy::prefill(&prompt), &StoreOptions::default(), |_| ())?;
    println!("stored {} bytes in {} chunks", stored.bytes(), stored.chunks.len());

    // Two tensor-parallel ranks: the bytes are fetched once, each decodes its own head from them into
    // pages that have room for that one.
    let mut tables = Vec::new();
    for shard in [0, 1].map(|rank| Shard::tensor_parallel(rank, 2, 2)) {
        let pages = HostPages::new(&shard.part_of(&toy::spec()), 16, prompt.len())?;
        tables.push(pages.table().with_shard(shard));
    }
    let plan = kvasir.lookup(&prompt)?;
    for event in kvasir.load(plan, tables, kvasir.options(Duration::from_secs(1)))? {
        match event {
            LoadEvent::LayerReady(ready) => {
                println!(
                    "rank {}: layers {:?}, {} tokens",
                    ready.rank,
                    ready.layers,
                    ready.token_range.len()
                );
            }
            LoadEvent::Recompute { range, .. } => println!("to compute: {}..{}", range.start, range.end),
            LoadEvent::Withdrawn { range } => println!("not any more: {}..{}", range.start, range.end),
            LoadEvent::Done { report } => println!(
                "done: {} bytes, level by level {:?}",
                report.bytes,
                report.chunks.iter().map(|chunk| chunk.level).collect::<Vec<_>>()
            ),
        }
    }
    Ok(())
}
