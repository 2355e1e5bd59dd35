//! The five strategies to a first token, run on the same engine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{Kvasir, QualityFloor};
use kvasir_codec::Profile;
use kvasir_engine::{
    EngineError, Model, PagedKv, Sampling, TINY_PROFILE, calibrate,
    serving::{
        Completion, Delivery, Engine, EngineConfig, LoadPolicy, LoadedPrefix, Output, RemoteUse, Request,
        Summary, TtftBreakdown,
    },
};

use kvasir_replay::link::{BandwidthSeries, LinkOptions, ShapedLink};
use tokio::runtime::Runtime;

use super::TtftRow;
use kvasir_cli::{
    demo::{BytesSource, Plain, Service, read_all},
    error::{CliError, CliResult},
    service::client_error,
    shipped::engine_error,
};

/// The text that contexts are cut from.
const TEXT: &str = kvasir_cli::demo::TALE;
/// Chunks of the small model's contexts.
const CHUNK_TOKENS: usize = 256;
/// A link that is effectively unlimited, for the parts that are not measured.
const FAST_MBPS: f64 = 100_000.0;

/// How the KV of a prompt is obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// It is computed.
    Text,
    /// Uncompressed, 16 bits per element.
    Fp16,
    /// 8 bits per element, one scale per row.
    Int8,
    /// From Kvasir, by CacheGen's Algorithm 1.
    CacheGen,
    /// From Kvasir, by the progressive policy.
    Progressive,
}

impl Strategy {
    pub(super) const ALL: [Self; 5] = [Self::Text, Self::Fp16, Self::Int8, Self::CacheGen, Self::Progressive];

    const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Fp16 => "fp16",
            Self::Int8 => "8-bit",
            Self::CacheGen => "cachegen",
            Self::Progressive => "progressive",
        }
    }

    const fn plain(self) -> Option<Plain> {
        match self {
            Self::Fp16 => Some(Plain::Raw),
            Self::Int8 => Some(Plain::Int8),
            Self::Text | Self::CacheGen | Self::Progressive => None,
        }
    }

    /// Minimum number of bytes to transfer, if known in advance.
    pub(super) fn bytes(self, model: &Model, tokens: usize) -> usize {
        let elements = tokens * model.spec().elements_per_token();
        match self {
            Self::Fp16 => 2 * elements,
            Self::Int8 => elements,
            Self::Text | Self::CacheGen | Self::Progressive => 0,
        }
    }
}

/// A scaled link and objective.
pub(super) struct Link {
    pub(super) mbps: f64,
    pub(super) delay: Duration,
    pub(super) slo: Duration,
}

impl Link {
    fn series(&self) -> CliResult<BandwidthSeries> {
        BandwidthSeries::constant(self.mbps).ok_or_else(|| CliError::internal("a link without bandwidth"))
    }
}

/// One measured request.
pub(super) struct Sample {
    ttft: TtftBreakdown,
    bytes: u64,
    kl: Option<f64>,
    computed: bool,
}

/// Service, contexts, and the model that computed them.
pub(super) struct Testbed<'a> {
    runtime: &'a Runtime,
    model: &'a Arc<Model>,
    service: Service,
    /// Prompts, each with its cache.
    contexts: Vec<(Arc<[u32]>, PagedKv)>,
    _folder: tempfile::TempDir,
}

impl<'a> Testbed<'a> {
    /// Starts a service and stores `count` contexts of `tokens` tokens in it.
    pub(super) fn start(
        runtime: &'a Runtime,
        model: &'a Arc<Model>,
        tokens: usize,
        count: usize,
    ) -> CliResult<Self> {
        let text = model.tokenizer().encode(TEXT).map_err(engine_error)?;
        let last =
            text.len().checked_sub(tokens).filter(|_| tokens < model.config().context).ok_or_else(|| {
                CliError::new(
                    kvasir_cli::error::Exit::Data,
                    "the context is longer than the text or the model takes",
                    "Use fewer --tokens.",
                )
            })?;
        let folder = tempfile::tempdir().map_err(CliError::internal)?;
        let service = Service::start(runtime, folder.path())?;
        let remote = connect(runtime, model, service.address)?;
        let mut contexts = Vec::new();
        for index in 0..count {
            let start = last * index / count.max(2).saturating_sub(1);
            let prompt: Arc<[u32]> = text[start.min(last)..][..tokens].into();
            let kv = model.calculate_kv(&prompt).map_err(engine_error)?;
            let save = async {
                let session = remote.session(&prompt).without_lookup().await;
                session.save_now(&kv, prompt.len(), |_| ()).await
            };
            runtime.block_on(save).map_err(client_error)?;
            contexts.push((prompt, kv));
        }
        Ok(Self { runtime, model, service, contexts, _folder: folder })
    }

    pub(super) fn stop(self) -> CliResult {
        self.service.stop(self.runtime)
    }

    /// The least time of a prefill of one context, with its first token.
    pub(super) fn prefill_ms(&self, rounds: usize) -> Result<f64, EngineError> {
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            let started = Instant::now();
            self.model.generate_with_kv(
                &mut self.model.new_kv()?,
                &self.contexts[0].0,
                1,
                &Sampling::Greedy,
            )?;
            best = best.min(started.elapsed().as_secs_f64() * 1e3);
        }
        Ok(best)
    }

    /// Runs the requests of a strategy: `rounds` times `requests` concurrent ones. Every round has a new
    /// engine, so memory is empty.
    pub(super) fn measure(
        &self,
        way: Strategy,
        link: &Link,
        requests: usize,
        rounds: usize,
    ) -> CliResult<Vec<Sample>> {
        let down = LinkOptions { delay: link.delay, ..LinkOptions::down(link.series()?) };
        let mut samples = Vec::new();
        if let Some(plain) = way.plain() {
            for _ in 0..rounds {
                samples.extend(self.plain(plain, &down, requests)?);
            }
            return Ok(samples);
        }
        let policy = match way {
            Strategy::CacheGen => Some(LoadPolicy::CacheGen),
            Strategy::Progressive => Some(LoadPolicy::Progressive),
            Strategy::Text | Strategy::Fp16 | Strategy::Int8 => None,
        };
        let Some(policy) = policy else {
            for _ in 0..rounds {
                samples.extend(self.requests(&self.engine(None)?, requests)?);
            }
            return Ok(samples);
        };
        let shaped = self
            .runtime
            .block_on(ShapedLink::start(self.service.address, down))
            .map_err(CliError::internal)?;
        let fast = BandwidthSeries::constant(FAST_MBPS).ok_or_else(|| CliError::internal("no fast link"))?;
        shaped.follow(fast);
        let remote = connect(self.runtime, self.model, shaped.address())?;
        shaped.follow(link.series()?);
        let how = RemoteUse { slo: link.slo, policy, store: false, ..RemoteUse::default() };
        // An engine in use has loaded over its link before: the first request teaches, and does not count.
        for round in 0..=rounds {
            shaped.restart();
            let engine = self.engine(Some((remote.clone(), how)))?;
            let found = self.requests(&engine, if round == 0 { 1 } else { requests })?;
            if round > 0 {
                samples.extend(found);
            }
        }
        Ok(samples)
    }

    fn engine(&self, remote: Option<(Kvasir, RemoteUse)>) -> CliResult<Engine> {
        let config = EngineConfig::for_contexts(self.model, self.contexts.len() + 1);
        // Inside the runtime: the engine may start tasks.
        let _entered = self.runtime.enter();
        Engine::start(Arc::clone(self.model), config, remote).map_err(engine_error)
    }

    /// One concurrent request for each of the first contexts.
    fn requests(&self, engine: &Engine, count: usize) -> CliResult<Vec<Sample>> {
        self.runtime.block_on(async {
            let begun: Vec<_> = self.contexts[..count]
                .iter()
                .map(|(prompt, _)| engine.complete(request(prompt), false).map_err(CliError::internal))
                .collect::<CliResult<_>>()?;
            let mut samples = Vec::new();
            for completion in begun {
                let summary = summary(completion).await?;
                let computed = summary.prefix.loaded_tokens * 2 < summary.prefix.prompt_tokens;
                samples.push(Sample {
                    ttft: summary.ttft,
                    bytes: summary.prefix.loaded_bytes,
                    kl: Some(summary.prefix.kl_beneath),
                    computed,
                });
            }
            Ok(samples)
        })
    }

    /// Fetches of a plain format, all over one link.
    fn plain(&self, plain: Plain, down: &LinkOptions, count: usize) -> CliResult<Vec<Sample>> {
        let engine = self.engine(None)?;
        let (prompt, kv) = &self.contexts[0];
        let packed: Arc<[u8]> = plain.pack(self.model.spec(), prompt.len(), kv).into();
        let kl = (plain == Plain::Raw).then_some(0.0);
        self.runtime.block_on(async {
            let source = BytesSource::start(Arc::clone(&packed)).await.map_err(CliError::internal)?;
            let link = ShapedLink::start(source.address(), down.clone()).await.map_err(CliError::internal)?;
            let fetches =
                (0..count).map(|_| self.plain_request(&engine, plain, (&link, packed.len()), prompt));
            let summaries = futures::future::join_all(fetches).await;
            let sample = |summary: CliResult<Summary>| {
                Ok(Sample { ttft: summary?.ttft, bytes: packed.len() as u64, kl, computed: false })
            };
            summaries.into_iter().map(sample).collect()
        })
    }

    async fn plain_request(
        &self,
        engine: &Engine,
        plain: Plain,
        (link, bytes): (&ShapedLink, usize),
        prompt: &Arc<[u32]>,
    ) -> CliResult<Summary> {
        let arrived = Instant::now();
        let packed = read_all(link.address(), bytes).await.map_err(CliError::internal)?;
        let fetch = arrived.elapsed();
        let full = || CliError::internal("the engine has no pages left");
        let mut kv = engine.allocate(prompt.len()).await.ok_or_else(full)?;
        let (spec, tokens) = (Arc::clone(self.model.spec()), prompt.len());
        let unpacked = tokio::task::spawn_blocking(move || {
            let mut sink = kv.sink(0).map_err(CliError::internal)?;
            plain.unpack(&spec, tokens, &packed, &mut sink).map_err(CliError::internal)?;
            sink.finish().map_err(CliError::internal)?;
            kv.commit(tokens).map_err(CliError::internal)?;
            Ok(kv)
        });
        let kv = unpacked.await.map_err(CliError::internal)??;
        let delivery = Delivery { arrived, fetch, decode: arrived.elapsed() - fetch };
        let completion = engine.complete_with(request(prompt), LoadedPrefix::whole(kv), delivery);
        summary(completion.map_err(CliError::internal)?).await
    }
}

fn request(prompt: &Arc<[u32]>) -> Request {
    Request { prompt: prompt.to_vec(), count: 1, sampling: Sampling::Greedy }
}

async fn summary(mut completion: Completion) -> CliResult<Summary> {
    while let Some(output) = completion.next().await {
        if let Output::Done(summary) = output {
            return Ok(*summary);
        }
    }
    Err(CliError::internal("the engine stopped a request"))
}

fn connect(runtime: &Runtime, model: &Arc<Model>, address: std::net::SocketAddr) -> CliResult<Kvasir> {
    let profile = Arc::new(Profile::from_bytes(TINY_PROFILE).map_err(CliError::internal)?);
    let mut sample = model.tokenizer().encode(TEXT).map_err(engine_error)?;
    sample.truncate(CHUNK_TOKENS);
    let builder = Kvasir::builder(format!("http://{address}"))
        .model(Arc::clone(model.spec()))
        .profile(profile)
        // The ways that are compared load every level.
        .quality(QualityFloor::Adaptive)
        .namespace("ttft")
        .chunk_tokens(CHUNK_TOKENS)
        .recompute_model(calibrate(model, &sample).map_err(engine_error)?);
    runtime.block_on(builder.connect()).map_err(client_error)
}

/// The samples of one setting as a row; a time there is a time here divided by `time`.
pub(super) fn row(way: Strategy, gbps: f64, requests: usize, samples: &[Sample], time: f64) -> TtftRow {
    let n = samples.len().max(1) as f64;
    let mean = |of: fn(&TtftBreakdown) -> f64| samples.iter().map(|sample| of(&sample.ttft)).sum::<f64>() / n;
    let ttft = TtftBreakdown {
        lookup_ms: mean(|t| t.lookup_ms),
        queue_ms: mean(|t| t.queue_ms),
        fetch_ms: mean(|t| t.fetch_ms),
        decode_ms: mean(|t| t.decode_ms),
        recompute_ms: mean(|t| t.recompute_ms),
        first_step_ms: mean(|t| t.first_step_ms),
        total_ms: mean(|t| t.total_ms),
    };
    let kl: Option<f64> = samples.iter().map(|sample| sample.kl).sum();
    TtftRow {
        way: way.name(),
        gbps,
        requests,
        samples: samples.len(),
        ttft,
        worst_ms: samples.iter().map(|sample| sample.ttft.total_ms).fold(0.0, f64::max),
        there_ms: ttft.total_ms / time,
        bytes: samples.iter().map(|sample| sample.bytes as f64).sum::<f64>() / n,
        kl: kl.map(|sum| sum / n),
        computed: samples.iter().filter(|sample| sample.computed).count() as f64 / n,
    }
}
