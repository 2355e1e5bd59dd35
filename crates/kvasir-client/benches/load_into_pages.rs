//! CPU seconds that a process spends on loading a gigabyte of bf16 KV into pages of host memory: network, checks, decoding, writing.
//!
//! ```text
//! cargo bench -p kvasir-client --bench load_into_pages
//! ```
//!
//! The shape is Mistral-7B's with 8 layers (8 heads of 128), the profile direct, the values synthetic. The service is in the same
//! process, so its part is in the figure.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::{ops::Range, sync::Arc};

use kvasir_client::{Kvasir, pages::HostPages, testing::Server, tuning::LoadOptions};
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
    let server = Server::start().await.unwrap();
    let spec = Arc::new(spec());
    let kv = KvBuffer::from_source(&spec, SAMPLE_TOKENS, &Synthetic);
    let context = TrainingContext { first_position: 0, tokens: (0..SAMPLE_TOKENS as u32).collect(), kv };
    let profile = train(&spec, &[context], &Recipe::Direct, 0.01, &mut |_, _| ()).unwrap();
    let kvasir =
        Kvasir::builder(server.url()).model(Arc::clone(&spec)).profile(profile).connect().await.unwrap();
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let session = kvasir.session(&tokens).await;
    session.save_now(&Synthetic, TOKENS, |_| ()).await.unwrap();

    let pages = HostPages::new(&spec, PAGE_TOKENS, TOKENS).unwrap();
    let load = async || {
        let session = kvasir.session(&tokens).await;
        let load = session.load([pages.table()], LoadOptions::at_level(Level(1))).unwrap();
        assert_eq!(load.finish().await.missing(), []);
        TOKENS as f64 * (spec.elements_per_token() * 2) as f64 / 1e9
    };
    load().await;
    let (before, mut gigabytes) = (cpu_seconds(), 0.0);
    for _ in 0..LOADS {
        gigabytes += load().await;
    }
    println!("{:.3} CPU s a GB of bf16, {gigabytes:.2} GB", (cpu_seconds() - before) / gigabytes);
}
