//! `kvasir demo`: runs the whole path once on one machine, and compares it with the alternatives.
//!
//! Every figure is measured in this run: four times to first token over the same shaped link (or on this
//! CPU), sizes from the stored objects, quality by teacher forcing.

mod baseline;
mod outcome;
mod path;
mod plain;
mod quality;
mod report;
mod source;
mod text;

use std::{fs, path::PathBuf, time::Duration};

pub use self::{
    baseline::into_pages,
    path::Service,
    plain::{Plain, WrongLength},
    source::{BytesSource, read_all},
    text::TALE,
};

use clap::Args;
use kvasir_api::routes;
use kvasir_engine::{Model, PagedKv, Sampling};

use kvasir_replay::link::{BandwidthSeries, LinkOptions, SeriesError};
use kvasir_server::shutdown_signal;
use kvasir_types::Level;
use tokio::runtime::Runtime;
use url::Url;

use self::{
    baseline::PlainFetch,
    outcome::{ChunkEvent, Evidence, LevelSize, Outcome, Perplexity, Ttft},
    path::{Coder, Costs, Loaded, Login},
    quality::{Codec, Comparison, Passage},
};
use crate::{
    browser,
    error::{CliError, CliResult, Exit, write_file},
    output::{bytes, print, print_json},
    progress::{Step, note},
    service::{CredentialArguments, runtime},
    shipped::{self, engine_error},
    units,
};

/// The series of `--tight`: fast, then a tenth of that, then fast again.
const TIGHT_SERIES: &str = "drop-recover";
/// Its mean bandwidth, in Mbit/s. kvasir-tiny has 4 KiB of cache per token, Llama-3-8B 128 KiB: relative to cache
/// size, this link corresponds to 100 Mbit/s there. It drops to a tenth before all levels of all chunks have
/// arrived.
const TIGHT_LINK_MBPS: f64 = 3.0;
/// Upper limit of the SLO of `--tight`, in milliseconds.
const TIGHT_SLO_MS_MAX: u64 = 500;
/// Its one-way delay, as to another region.
const TIGHT_LINK_DELAY: Duration = Duration::from_millis(5);
/// One-way delay of the link otherwise, as within a region.
const LINK_DELAY: Duration = Duration::from_millis(1);
/// Tokens generated over both caches.
const GENERATED_TOKENS: usize = 32;

/// Arguments of `kvasir demo`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArguments {
    /// Print the result as one JSON document on stdout.
    #[arg(long)]
    json: bool,
    /// Keep serving the demo's data afterwards, with the console, until Ctrl-C.
    #[arg(long, conflicts_with = "url")]
    serve: bool,
    /// Like --serve, and open the console in a browser if there is one.
    #[arg(long, conflicts_with = "url")]
    open: bool,
    /// Folder for the report and the figures.
    #[arg(long, value_name = "DIR", default_value = "kvasir-demo")]
    out: PathBuf,
    /// Show the edge: a trained profile at any quality, half of the time to recompute (at most 500 ms), and a
    /// link of 3 Mbit/s that drops to a tenth.
    #[arg(long)]
    tight: bool,
    /// Target time to first token, in milliseconds [default: the time to recompute].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    slo_ms: Option<u64>,
    /// Mean bandwidth of the link, in Mbit/s. Default: that at which the uncompressed cache takes as long to
    /// fetch as to recompute; recorded traces as they are.
    #[arg(long, value_name = "N", value_parser = units::above_zero)]
    link_mbps: Option<f64>,
    /// Bandwidth series to replay on the link instead of a constant one.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// A running service to use, http://HOST:PORT, instead of one inside this process.
    #[arg(long, value_name = "URL")]
    url: Option<Url>,
    /// The credential for that service.
    #[command(flatten)]
    credential: CredentialArguments,
}

/// Runs the demo.
pub(crate) fn run(arguments: &DemoArguments) -> CliResult {
    fs::create_dir_all(&arguments.out).map_err(|error| {
        CliError::new(
            Exit::NoOutput,
            format!("cannot make the folder {}: {error}", arguments.out.display()),
            "Choose another folder with --out.",
        )
    })?;
    let series = series(arguments)?;
    let runtime = runtime()?;
    let folder = tempfile::tempdir().map_err(CliError::internal)?;
    let service = match &arguments.url {
        Some(url) => Service::running(&runtime, url)?,
        None => Service::start(&runtime, folder.path())?,
    };
    note(&format!("service at http://{}", service.address));
    let (outcome, evidence) = measure(arguments, series, &runtime, &service)?;
    let json = serde_json::to_vec_pretty(&outcome).map_err(CliError::internal)?;
    write_file(&arguments.out.join("demo.json"), &json)?;
    let report = arguments.out.join("report.html");
    write_file(&report, report::html(&outcome, &evidence).as_bytes())?;
    if arguments.json {
        print_json(&outcome)?
    } else {
        print(&report::table(&outcome, &evidence))?
    }
    note(&format!("report: {}", report.display()));
    if arguments.serve || arguments.open {
        let console = format!("http://{}{}", service.address, routes::CONSOLE_FILES);
        note(&format!("console: {console} shows this run's data; Ctrl-C ends it"));
        if arguments.open && !browser::open(&format!("{console}#/loads")) {
            note("no browser opened; use that address");
        }
        runtime.block_on(shutdown_signal());
    }
    service.stop(&runtime)
}

fn measure(
    arguments: &DemoArguments,
    series: Option<BandwidthSeries>,
    runtime: &Runtime,
    service: &Service,
) -> CliResult<(Outcome, Evidence)> {
    let model = shipped::model()?;
    let text = text::tokens(&model)?;
    let passages = text::passages(&text, model.config().context)?;
    let tokens = passages[0].context;

    let profile = if arguments.tight { Some(shipped::profile()?) } else { None };
    let login = Login { credential: &arguments.credential, profile, model: &model };

    let step = Step::start("computing the KV cache");
    let exact = model.calculate_kv(tokens).map_err(engine_error)?;
    step.done(&format!("{} tokens of a tale", tokens.len()));
    let step = Step::start("for comparison: recomputing");
    let recompute = baseline::recompute(&model, tokens)?;
    step.done(&format!("first token after {} ms", recompute.as_millis()));
    // With more time than recomputing takes, recomputing would be the right answer, and the client would choose it.
    let recompute_ms = (recompute.as_millis() as u64).max(1);
    let tight_ms = (recompute_ms / 2).clamp(1, TIGHT_SLO_MS_MAX);
    let slo_ms = arguments.slo_ms.unwrap_or(if arguments.tight { tight_ms } else { recompute_ms });
    let slo = Duration::from_millis(slo_ms);
    let series = match series {
        Some(series) => series,
        None => break_even(&model, tokens.len(), recompute)?,
    };
    let delay = if arguments.tight { TIGHT_LINK_DELAY } else { LINK_DELAY };
    let link = &LinkOptions { delay, ..LinkOptions::down(series) };

    let step = Step::start("encoding and storing over HTTP");
    let engine = path::connect(runtime, service.address, &login)?;
    let stored = path::store(runtime, &engine, tokens, &exact)?;
    service.settle(runtime);
    step.done(&format!("{} chunks, {} new", stored.chunks.len(), bytes(stored.bytes())));
    let coder = Coder::of_stored(runtime, &engine, (&model, tokens))?;
    let top = coder.profile.top_level();
    let mut costs = Costs::measure(runtime, &engine, (&model, tokens), recompute, top)?;
    // Only the tokens remain; the exact cache is kept apart for the comparison.
    drop(engine);

    let step = Step::start("looking up, streaming back, decoding");
    let shaped = path::shape(runtime, service.address, link)?;
    let engine = path::connect(runtime, shaped.address(), &login)?;
    // The finest level of a trained profile would measure the drop of the link.
    let level = if arguments.tight { Level(top.0.saturating_sub(1)) } else { top };
    shaped.restart();
    costs.learn_rate(runtime, &engine, (&model, tokens), level)?;
    let loaded = path::load(runtime, &shaped, &engine, &model, tokens, (slo, &costs))?;
    step.done(&format!(
        "{} fetched, first token after {} ms",
        bytes(loaded.report.bytes),
        loaded.ttft.as_millis()
    ));

    let baselines = Baselines::run(runtime, link, (&model, &exact), tokens, recompute)?;
    let comparison = compare(&model, &coder, &passages, &loaded)?;
    let texts = (generate(&model, &exact, tokens)?, generate(&model, &loaded.kv, tokens)?);
    summarise(Findings {
        slo_ms,
        model: &model,
        link,
        tokens: tokens.len(),
        // A running service may have had the chunks already, so count their sizes, not the bytes sent now.
        stored_bytes: loaded.level_bytes.iter().filter_map(|chunk| chunk.last()).sum(),
        loaded,
        baselines,
        comparison,
        texts,
        passages: passages.len(),
    })
}

/// The series to replay: the first one of a recorded file, that of `--tight`, or a constant one; `None` for a
/// constant one that depends on the time to recompute.
fn series(arguments: &DemoArguments) -> CliResult<Option<BandwidthSeries>> {
    let series = match &arguments.trace {
        Some(path) => {
            let all = BandwidthSeries::read_file(path).map_err(|error| {
                let exit = if matches!(error, SeriesError::Read { .. }) { Exit::NoInput } else { Exit::Data };
                CliError::new(exit, error, "")
            })?;
            Some(all.into_iter().next().ok_or_else(|| CliError::data(path, "it contains no series"))?)
        }
        None if arguments.tight => Some(
            BandwidthSeries::builtin(TIGHT_SERIES)
                .ok_or_else(|| CliError::internal(format!("there is no series {TIGHT_SERIES}")))?
                .scaled_to_mean(TIGHT_LINK_MBPS),
        ),
        None => None,
    };
    Ok(match (series, arguments.link_mbps) {
        (Some(series), Some(mbps)) => Some(series.scaled_to_mean(mbps)),
        (None, Some(mbps)) => Some(constant(mbps)?),
        (series, None) => series,
    })
}

/// A link over which the uncompressed cache takes as long to fetch as to recompute.
fn break_even(model: &Model, tokens: usize, recompute: Duration) -> CliResult<BandwidthSeries> {
    let bits = (tokens * model.spec().bytes_per_token() * 8) as f64;
    constant(bits / recompute.as_secs_f64() / 1e6)
}

fn constant(mbps: f64) -> CliResult<BandwidthSeries> {
    BandwidthSeries::constant(mbps).ok_or_else(|| CliError::internal(format!("no link has {mbps} Mbit/s")))
}

struct Baselines {
    recompute: Duration,
    raw: PlainFetch,
    int8: PlainFetch,
}

impl Baselines {
    fn run(
        runtime: &Runtime,
        link: &LinkOptions,
        (model, exact): (&Model, &PagedKv),
        tokens: &[u32],
        recompute: Duration,
    ) -> CliResult<Self> {
        let fetch = |name: &str, plain| {
            let step = Step::start(format!("for comparison: fetching the {name} cache"));
            let fetched = baseline::fetch(runtime, link, plain, (model, exact), tokens)?;
            step.done(&format!(
                "{}, first token after {} ms",
                bytes(fetched.bytes),
                fetched.ttft.as_millis()
            ));
            Ok(fetched)
        };
        Ok(Self { recompute, raw: fetch("f16", Plain::Raw)?, int8: fetch("8-bit", Plain::Int8)? })
    }
}

fn compare(model: &Model, coder: &Coder, passages: &[Passage<'_>], loaded: &Loaded) -> CliResult<Comparison> {
    let step = Step::start("measuring quality");
    let codec =
        Codec { encoder: &*coder.encoder, decoder: &*coder.decoder, chunk_tokens: text::CHUNK_TOKENS };
    let levels: Vec<_> = loaded.report.chunks.iter().map(|c| c.level).collect();
    let mut comparison = Comparison::default();
    for (index, passage) in passages.iter().enumerate() {
        step.at(
            &format!("passage {} of {}", index + 1, passages.len()),
            index as f32 / passages.len() as f32,
        );
        let streamed = (index == 0).then_some(&loaded.kv);
        comparison.add(model, codec, *passage, &levels, streamed)?;
    }
    let quality = comparison.loaded();
    step.done(&format!("{} positions, logit KL {:.1e} nats per token", quality.positions, quality.kl.mean));
    Ok(comparison)
}

/// Greedy text over a cache, which is left unchanged.
fn generate(model: &Model, kv: &PagedKv, tokens: &[u32]) -> CliResult<String> {
    let mut fork = kv.fork(tokens.len()).map_err(CliError::internal)?;
    let generated = model
        .generate_with_kv(&mut fork, tokens, GENERATED_TOKENS, &Sampling::Greedy)
        .map_err(engine_error)?;
    model.tokenizer().decode(&generated).map_err(engine_error)
}

struct Findings<'a> {
    slo_ms: u64,
    model: &'a Model,
    link: &'a LinkOptions,
    tokens: usize,
    stored_bytes: u64,
    loaded: Loaded,
    baselines: Baselines,
    comparison: Comparison,
    texts: (String, String),
    passages: usize,
}

fn summarise(found: Findings<'_>) -> CliResult<(Outcome, Evidence)> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let spec = found.model.spec();
    let elements = (found.tokens * spec.elements_per_token()) as f64;
    let level = |level: usize| {
        let bytes = found.loaded.level_bytes.iter().filter_map(|chunk| chunk.get(level)).sum::<u64>();
        LevelSize { level: level as u8, bits_per_element: bytes as f64 * 8.0 / elements, bytes }
    };
    let quality = found.comparison.loaded();
    let level_count = found.loaded.level_bytes.first().map_or(0, Vec::len);
    let outcome = Outcome {
        tokens: found.tokens as u64,
        bytes_raw: found.baselines.raw.bytes,
        bytes_8bit: found.baselines.int8.bytes,
        bytes_stored: found.stored_bytes,
        bytes_fetched: found.loaded.report.bytes,
        slo_ms: found.slo_ms,
        slo_met: found.loaded.ttft <= Duration::from_millis(found.slo_ms),
        same_text: found.texts.0 == found.texts.1,
        top1_agreement: quality.top1_agreement.mean,
        perplexity: Perplexity { full: quality.perplexity_exact, kvasir: quality.perplexity_lossy },
        ttft_ms: Ttft {
            kvasir: ms(found.loaded.ttft),
            recompute: ms(found.baselines.recompute),
            raw: ms(found.baselines.raw.ttft),
            int8: ms(found.baselines.int8.ttft),
        },
        levels: (0..level_count).map(level).collect(),
    };
    let parts = &found.loaded.parts;
    let looked_up = parts.first().map_or(Duration::ZERO, |p| p.1);
    let evidence = Evidence {
        chunks: chunk_events(&found.loaded, looked_up),
        link: link_points(&found.link.down, outcome.ttft_ms.kvasir.max(found.slo_ms as f64) / 1e3 * 1.5),
        link_name: format!("{}, mean {:.0} Mbit/s", found.link.down.name(), found.link.down.mean_mbps()),
        measured: found
            .loaded
            .report
            .samples
            .iter()
            .map(|(at, rate)| ((looked_up + *at).as_secs_f64(), rate.mbps()))
            .collect(),
        parts_ms: parts.iter().map(|(name, time)| ((*name).to_owned(), ms(*time))).collect(),
        qualities: found.comparison.points(spec),
        positions: quality.positions,
        contexts: found.passages,
        kl: quality.kl.mean,
        text_full: found.texts.0,
        text_kvasir: found.texts.1,
        chunk_tokens: text::CHUNK_TOKENS,
    };
    Ok((outcome, evidence))
}

fn chunk_events(loaded: &Loaded, looked_up: Duration) -> Vec<ChunkEvent> {
    let event = |chunk: &kvasir_client::report::ChunkReport| ChunkEvent {
        level: chunk.level.map(|l| l.0),
        bytes: chunk.bytes,
        from: looked_up + chunk.started.unwrap_or_default(),
        until: looked_up + chunk.fetched.or(chunk.resolved).unwrap_or_default(),
    };
    loaded.report.chunks.iter().map(event).collect()
}

/// The series as a step function: its changes over the first `seconds`.
fn link_points(series: &BandwidthSeries, seconds: f64) -> Vec<(f64, f64)> {
    const RESOLUTION: Duration = Duration::from_millis(5);
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut at = Duration::ZERO;
    while at.as_secs_f64() <= seconds {
        let mbps = series.mbps_at(at);
        if points.last().is_none_or(|last| last.1 != mbps) {
            points.push((at.as_secs_f64(), mbps));
        }
        at += RESOLUTION;
    }
    points
}
