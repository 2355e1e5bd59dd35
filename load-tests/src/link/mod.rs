//! How long a context takes over a link of 1 Gb/s in each system's own encoding, decoding included.
//!
//! The cache is synthetic: a Mistral-7B's shape (32 layers, 8 heads of 128) with Laplacian elements whose scale differs by channel. Sizes of
//! real caches differ, and so would ratios; what a system spends on decoding does not depend on that much.

mod blobs;
mod cachegen;
mod synthetic;

use std::{cell::Cell, collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use kvasir_client::{
    Kvasir, QualityFloor,
    pages::{BlockTable, PageRef, PageRows, PageStore},
    tuning::LoadOptions,
};
use kvasir_codec::{KvBuffer, Profile};
use kvasir_plot::{Bar, Bars, Page, number};
use kvasir_replay::link::{BandwidthSeries, LinkOptions, ShapedLink};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Reuse};
use serde::{Deserialize, Serialize};

pub(crate) use self::synthetic::SyntheticKv;

use self::{
    blobs::Encoding,
    synthetic::{DIM, HEADS},
};
use crate::{
    arguments::CommonArguments,
    cluster::Cluster,
    process::usage::{self, Machine},
    report,
    scenario::spec::ServiceSpec,
};

/// Times the load of one context over a shaped link: 16 bits, 8-bit integers, CacheGen, and each of Kvasir's levels.
#[derive(Debug, Args)]
pub(crate) struct LinkArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    /// Tokens of the context.
    #[arg(long, default_value_t = 9_400)]
    tokens: usize,
    /// Layers of the model: 32 are a Mistral-7B's.
    #[arg(long, default_value_t = 32)]
    layers: usize,
    /// Bandwidth of the link, in Mb/s.
    #[arg(long, default_value_t = 1_000.0)]
    mbps: f64,
    /// Measurements of each encoding except CacheGen; the median is reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A Python with lmcache; `load-tests/peers/lmcache FOLDER` makes one.
    #[arg(long, default_value = "target/peers/lmcache/bin/python")]
    lmcache: PathBuf,
}

/// One encoding.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct EncodingResult {
    encoding: String,
    bytes: u64,
    bits_per_element: f64,
    /// Time of the link alone for these bytes.
    link_s: f64,
    /// From the first request to the last decoded row; absent if this program has no decoder for it.
    end_to_end_s: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Links {
    what: String,
    machine: Machine,
    seed: String,
    tokens: usize,
    layers: usize,
    mbps: f64,
    rounds: usize,
    rows: Vec<EncodingResult>,
    skipped: BTreeMap<String, String>,
}

const PAGE_TOKENS: usize = 16;
/// Bytes per slot: one layer and plane of a token in bf16.
const SLOT_BYTES: usize = HEADS * DIM * 2;
/// Tokens that the profile is trained on.
const SAMPLE_TOKENS: usize = 256;
/// Tokens per chunk of LMCache: its default, and the size that CacheGen's authors measured.
const LMCACHE_CHUNKS: [usize; 2] = [256, 2_048];

/// A model of the shape with so many layers.
pub(crate) fn spec(layers: usize) -> ModelSpec {
    let layer =
        LayerKv { layout: KvLayout::Gqa { kv_heads: HEADS as u32, head_dim: DIM as u32 }, rope: None };
    ModelSpec {
        weights: "synthetic/mistral-7b-shape".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: Vec::new(),
        layers: vec![layer; layers],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// Pages of bf16, as in an engine: `[slot][head][element]`. Each thread overwrites one page, because memory
/// for all pages is not part of the measurement.
struct DiscardingPages;

thread_local! {
    static PAGE: std::cell::RefCell<[u8; PAGE_TOKENS * SLOT_BYTES]> =
        const { std::cell::RefCell::new([0; PAGE_TOKENS * SLOT_BYTES]) };
}

impl PageStore for DiscardingPages {
    fn write(&self, _: PageRef, rows: &PageRows<'_>) -> bool {
        PAGE.with_borrow_mut(|page| {
            let first = rows.slots().start * SLOT_BYTES + rows.heads().start * DIM * 2;
            rows.copy_to_bytes(&mut page[first..], DIM * 2, SLOT_BYTES);
            std::hint::black_box(&page);
        });
        true
    }
}

/// A table for this many tokens whose pages are not kept.
pub(crate) fn table(tokens: usize) -> Result<BlockTable> {
    let pages = 0..tokens.div_ceil(PAGE_TOKENS) as u32;
    let pages: Vec<_> = pages.map(|index| PageRef { index, generation: 0 }).collect();
    Ok(BlockTable::new(Arc::new(DiscardingPages), pages, PAGE_TOKENS)?)
}

/// A profile of several levels, trained on the cache itself.
pub(crate) fn profile(spec: &ModelSpec) -> Result<Arc<Profile>> {
    let kv = KvBuffer::from_source(spec, SAMPLE_TOKENS, &SyntheticKv);
    let context = TrainingContext { first_position: 0, tokens: (0..SAMPLE_TOKENS as u32).collect(), kv };
    Ok(Arc::new(train(spec, &[context], &Recipe::Direct, 0.01, &mut |_, _| ())?))
}

fn link(mbps: f64) -> Result<LinkOptions> {
    Ok(LinkOptions::down(BandwidthSeries::constant(mbps).context("a bandwidth")?))
}

fn row(
    arguments: &LinkArguments,
    encoding: &str,
    bytes: u64,
    end_to_end: Option<Duration>,
) -> EncodingResult {
    let elements = (arguments.tokens * arguments.layers * 2 * HEADS * DIM) as f64;
    EncodingResult {
        encoding: encoding.to_owned(),
        bytes,
        bits_per_element: bytes as f64 * 8.0 / elements,
        link_s: bytes as f64 * 8.0 / (arguments.mbps * 1e6),
        end_to_end_s: end_to_end.map(|time| time.as_secs_f64()),
    }
}

async fn ours(arguments: &LinkArguments, spec: &Arc<ModelSpec>) -> Result<Vec<EncodingResult>> {
    let profile = profile(spec)?;
    let settings = vec!["hot.memory=1GiB".to_owned(), "hot.disk=0".to_owned()];
    let service = ServiceSpec { store: "file".into(), settings, ..ServiceSpec::default() };
    let cluster = Cluster::start(&arguments.common, &service, false).await?;
    let address = cluster.replicas[0].address;
    let tokens: Vec<u32> = (0..arguments.tokens as u32).collect();
    let connect = async |address: std::net::SocketAddr| {
        let builder = Kvasir::builder(format!("http://{address}"))
            .model(Arc::clone(spec))
            .profile(Arc::clone(&profile))
            .quality(QualityFloor::Adaptive)
            .namespace("link");
        anyhow::Ok(builder.connect().await?)
    };
    let kvasir = connect(address).await?;
    let session = kvasir.session(&tokens).without_lookup().await;
    session.save_now(&SyntheticKv, tokens.len(), |_| ()).await?;
    let mut rows = Vec::new();
    for level in 0..profile.level_count() {
        let bytes = Cell::new(0);
        let took = median(arguments.rounds, async || {
            let shaped = ShapedLink::start(address, link(arguments.mbps)?).await?;
            let kvasir = connect(shaped.address()).await?;
            let table = table(arguments.tokens)?;
            shaped.restart();
            let begun = tokio::time::Instant::now();
            let session = kvasir.session(&tokens).await;
            let options = LoadOptions { last_token: false, ..LoadOptions::at_level(Level(level as u8)) };
            let loaded = session.load([table], options)?.finish().await;
            ensure!(loaded.loaded_tokens() + 1 >= tokens.len() as u64, "{} loaded", loaded.loaded_tokens());
            bytes.set(loaded.report().context("a report")?.bytes);
            Ok(begun.elapsed())
        });
        let (name, took) = (format!("kvasir level {level}"), took.await?);
        rows.push(row(arguments, &name, bytes.get(), Some(took)));
    }
    Ok(rows)
}

/// The median of this many measurements.
async fn median(rounds: usize, one: impl AsyncFn() -> Result<Duration>) -> Result<Duration> {
    let mut all = Vec::new();
    for _ in 0..rounds.max(1) {
        all.push(one().await?);
    }
    all.sort();
    Ok(all[all.len() / 2])
}

/// Measures all of them.
pub(crate) async fn measure(arguments: &LinkArguments) -> Result<Links> {
    let spec = Arc::new(spec(arguments.layers));
    let machine = usage::machine();
    let (mut rows, mut skipped) = (Vec::new(), BTreeMap::new());
    for (name, encoding) in [("raw bf16", Encoding::Raw), ("8-bit", Encoding::EightBit)] {
        let made = Arc::new(blobs::encode(encoding, arguments.layers, arguments.tokens));
        let bytes = made.iter().map(|blob| blob.len() as u64).sum();
        let took =
            median(arguments.rounds, async || blobs::load(&made, encoding, link(arguments.mbps)?).await);
        rows.push(row(arguments, name, bytes, Some(took.await?)));
    }
    for chunk_tokens in LMCACHE_CHUNKS {
        let name = format!("LMCache CacheGen, chunks of {chunk_tokens}");
        let shape = (arguments.layers, arguments.tokens);
        match cachegen::measure(&arguments.lmcache, shape, chunk_tokens, link(arguments.mbps)?).await {
            Ok(coded) => rows.push(row(arguments, &name, coded.bytes, Some(coded.end_to_end))),
            Err(error) => _ = skipped.insert(name, format!("{error:#}")),
        }
    }
    rows.extend(Box::pin(ours(arguments, &spec)).await?);
    let what = "a synthetic cache of a Mistral-7B's shape over a shaped link, fetched and decoded on the CPU of this machine; \
                CacheGen by LMCache's own CPU code, its chunks decoded while the next ones arrive";
    Ok(Links {
        what: what.to_owned(),
        machine,
        seed: "the cache is a function of its place".to_owned(),
        tokens: arguments.tokens,
        layers: arguments.layers,
        mbps: arguments.mbps,
        rounds: arguments.rounds,
        rows,
        skipped,
    })
}

impl Links {
    /// The table, as text.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!("{} tokens, {} layers, {} Mb/s\n", self.tokens, self.layers, self.mbps);
        text += &format!(
            "{:<44}{:>10}{:>10}{:>10}{:>14}\n",
            "encoding", "MB", "bits/el.", "link, s", "end to end, s"
        );
        for row in &self.rows {
            let whole = row.end_to_end_s.map_or("–".to_owned(), |s| format!("{s:.2}"));
            let mb = row.bytes as f64 / 1e6;
            text += &format!(
                "{:<44}{mb:>10.1}{:>10.2}{:>10.2}{whole:>14}\n",
                row.encoding, row.bits_per_element, row.link_s
            );
        }
        for (name, reason) in &self.skipped {
            text += &format!("SKIPPED {name}: {reason}\n");
        }
        text.trim_end().to_owned()
    }

    /// The page of the measurement.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("A context over a link", &self.what);
        page.paragraph(&report::machine(&self.machine));
        page.paragraph(&format!(
            "{} tokens, {} layers, {} Mb/s; medians of {} measurements ({}).",
            self.tokens, self.layers, self.mbps, self.rounds, self.seed
        ));
        let bar = |row: &EncodingResult| {
            let value = row.end_to_end_s?;
            let ours = row.encoding.starts_with("kvasir");
            Some(Bar { label: row.encoding.clone(), value, text: format!("{} s", number(value)), ours })
        };
        let description = "Seconds from the first request to the last decoded row".to_owned();
        let bars = self.rows.iter().filter_map(bar).collect();
        page.drawing(&Bars { description: description.clone(), bars, limit: None }.to_svg(), &description);
        let columns = ["encoding", "MB", "bits per element", "link, s", "end to end, s"];
        let row = |row: &EncodingResult| {
            let end_to_end = row.end_to_end_s.map_or("–".to_owned(), number);
            let figures = [row.bytes as f64 / 1e6, row.bits_per_element, row.link_s].map(number);
            [row.encoding.clone()].into_iter().chain(figures).chain([end_to_end]).collect()
        };
        page.table(&report::table(&columns, self.rows.iter().map(row)));
        report::skipped(&mut page, &self.skipped);
        page.finish(report::FOOTER)
    }
}
