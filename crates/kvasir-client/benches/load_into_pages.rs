//! CPU seconds that a process spends on loading a gigabyte of bf16 KV into pages of host memory: network, checks, decoding, writing.
//!
//! ```text
//! cargo bench -p kvasir-client --bench load_into_pages
//! ```
//!
//! The shape is Mistral-7B's with 8 layers (8 heads of 128), the profile direct, the values synthetic. The service is in the same
//! process, so its part is in the figure.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::{ops::Range, sync::Arc, time::Duration};

use kvasir_client::{
    Client, ClientConfig, HostPages, KvClient, StoreOptions,
    fetcher::{Fixed, RecomputeModel},
};
use kvasir_codec::{KvBuffer, KvSource};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Plane, Reuse, Rope};

const LAYERS: usize = 8;
const HEADS: usize = 8;
const DIM: usize = 128;
const TOKENS: usize = 4096;
const SAMPLE_TOKENS: usize = 256;
const PAGE_TOKENS: usize = 16;
const LOADS: usize = 8;

struct Synthetic;

impl KvSource for Synthetic {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let place = (layer * 2 + plane as usize) * HEADS + head;
        for (token, row) in tokens.zip(out.chunks_exact_mut(DIM)) {
            for (dim, value) in row.iter_mut().enumerate() {
                let hash = ((place * TOKENS + token) * DIM + dim) as u64;
                let hash = (hash ^ hash >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // a sum of four uniform ones, with a scale that differs by channel
                let sum: u32 = (0..4).map(|part| (hash >> (16 * part) & 0xffff) as u32).sum();
                *value = (sum as f32 / 65_536.0 - 2.0) * (1.0 + (dim % 7) as f32);
            }
        }
    }
}

fn spec() -> ModelSpec {
    let layout = KvLayout::Gqa { kv_heads: HEADS as u32, head_dim: DIM as u32 };
    ModelSpec {
        weights: "synthetic/mistral-7b-shape".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: vec![Rope::plain(Pairing::Half, DIM, 10_000.0)],
        layers: vec![LayerKv { layout, rope: Some(0) }; LAYERS],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// User and system time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the command's name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[tokio::main]
async fn main() {
    let (address, _service) = common::start().await;
    let spec = Arc::new(spec());
    let kv = KvBuffer::from_source(&spec, SAMPLE_TOKENS, &Synthetic);
    let context = TrainingContext { tokens: (0..SAMPLE_TOKENS as u32).collect(), kv };
    let profile = Arc::new(train(&spec, &[context], &Recipe::Direct, &mut |_, _| ()).unwrap());
    let client = Client::new(format!("http://{address}").parse().unwrap(), ClientConfig::default()).unwrap();
    let decoder = Arc::new(kvasir_codec::CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile)).unwrap());
    let encoder = Arc::new(kvasir_codec::CpuEncoder::new(Arc::clone(&spec), profile).unwrap());
    let client = KvClient::new(client, Arc::clone(&spec), "bench".parse().unwrap(), encoder, decoder)
        .await
        .unwrap()
        .with_recompute_model(RecomputeModel::from_seconds(100.0, 1.0, 0.0));
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    client.store_kv_with(&tokens, &Synthetic, &StoreOptions::default(), |_| ()).await.unwrap();

    let pages = HostPages::new(&spec, PAGE_TOKENS, TOKENS).unwrap();
    let load = async || {
        let plan = client.lookup(&tokens).await.unwrap();
        let mut options = client.options(Duration::from_secs(600));
        options.policy = Box::new(Fixed::new(Level(1)).without_giving_up());
        let report = client.load(plan, [pages.table()], options).unwrap().report().await.unwrap();
        assert_eq!(report.loaded_tokens(), TOKENS as u64 - 1);
        report.loaded_tokens() as f64 * (spec.elements_per_token() * 2) as f64 / 1e9
    };
    load().await;
    let (before, mut gigabytes) = (cpu_seconds(), 0.0);
    for _ in 0..LOADS {
        gigabytes += load().await;
    }
    println!("{:.3} CPU s a GB of bf16, {gigabytes:.2} GB", (cpu_seconds() - before) / gigabytes);
}
