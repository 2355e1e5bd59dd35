//! The path: a service, a cache stored in it, and a load over a shaped link.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{
    Deadline, Kvasir, QualityFloor,
    report::{LoadReport, SaveReport},
    tuning::{ByteRate, DecodeModel, EstimatorKind, LoadOptions, RecomputeModel},
};
use kvasir_codec::{CpuDecoder, CpuEncoder, Profile};
use kvasir_engine::{Model, PagedKv};

use kvasir_replay::link::{LinkOptions, ShapedLink};
use kvasir_server::{Config, RunError, listen, run};
use kvasir_types::Level;
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};
use url::Url;

use super::{baseline::first_token, text::CHUNK_TOKENS};
use crate::{
    error::{CliError, CliResult, Exit},
    service::{CredentialArguments, client_config, client_error, look_up},
    shipped::engine_error,
};

/// The service: inside this process on a free loopback port, or one that already runs.
#[derive(Debug)]
pub struct Service {
    /// The address it listens on.
    pub address: SocketAddr,
    ours: Option<Running>,
}

/// The handle that stops a service, and its result.
type Running = (oneshot::Sender<()>, JoinHandle<Result<(), RunError>>);

impl Service {
    /// Starts a service that keeps all its data under `folder`.
    ///
    /// # Errors
    /// If a port or a thread is not available.
    pub fn start(runtime: &Runtime, folder: &Path) -> CliResult<Self> {
        let mut config = Config::embedded(folder).map_err(CliError::internal)?;
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        runtime.block_on(async {
            let listeners = listen(&config).await.map_err(CliError::internal)?;
            let address = listeners.address().map_err(CliError::internal)?;
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(run(config, listeners, async { drop(stopped.await) }));
            Ok(Self { address, ours: Some((stop, task)) })
        })
    }

    /// Uses a service that runs at `url`. The shaped link forwards bytes, so the service must speak plain
    /// HTTP.
    ///
    /// # Errors
    /// If the address is not that of a plain HTTP service.
    pub fn running(runtime: &Runtime, url: &Url) -> CliResult<Self> {
        let unusable = |problem: String| {
            CliError::new(Exit::Data, problem, "Give the address of a service as http://HOST:PORT.")
        };
        let (Some(host), Some(port), "http") = (url.host_str(), url.port_or_known_default(), url.scheme())
        else {
            return Err(unusable(format!("the demo cannot put a link in front of {url}")));
        };
        let found = runtime.block_on(tokio::net::lookup_host((host.trim_matches(['[', ']']), port)));
        let address = found.ok().and_then(|mut addresses| addresses.next());
        Ok(Self { address: address.ok_or_else(|| unusable(format!("{host} has no address")))?, ours: None })
    }

    /// Waits until replicas that cached a miss ask the store again (`negative_ttl`, 1 s).
    pub fn settle(&self, runtime: &Runtime) {
        if self.ours.is_none() {
            // Create the timer inside the async block: it needs the runtime.
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1_500)).await });
        }
    }

    /// Stops the service and waits until it has ended.
    ///
    /// # Errors
    /// The error that ended the service earlier.
    pub fn stop(self, runtime: &Runtime) -> CliResult {
        let Some((stop, task)) = self.ours else { return Ok(()) };
        // It may have ended on its own; then the task has the reason.
        let _ = stop.send(());
        runtime.block_on(task).map_err(CliError::internal)?.map_err(CliError::internal)
    }
}

/// The codec of a profile, for the model.
pub(crate) struct Coder {
    /// The profile.
    pub(crate) profile: Arc<Profile>,
    /// Encoder.
    pub(crate) encoder: Arc<CpuEncoder>,
    /// Decoder.
    pub(crate) decoder: Arc<CpuDecoder>,
}

impl Coder {
    /// The codec of the profile that a context is stored with. An engine that saves what is already there
    /// chooses none.
    pub(crate) fn of_stored(
        runtime: &Runtime,
        kvasir: &Kvasir,
        (model, tokens): (&Model, &[u32]),
    ) -> CliResult<Self> {
        let profile = runtime.block_on(async {
            let session = look_up(kvasir, tokens).await?;
            let chunk = session.chunks().first();
            let chunk = chunk.ok_or_else(|| CliError::internal("the cache just stored is not found"))?;
            kvasir.rest().profile(kvasir.spec(), &chunk.profile_hash).await.map_err(client_error)
        })?;
        let (profile, spec) = (Arc::new(profile), model.spec());
        let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(&profile)).map_err(CliError::internal)?;
        let decoder = CpuDecoder::new(Arc::clone(spec), Arc::clone(&profile)).map_err(CliError::internal)?;
        Ok(Self { profile, encoder: Arc::new(encoder), decoder: Arc::new(decoder) })
    }
}

/// The login of an engine.
pub(crate) struct Login<'a> {
    /// The credential.
    pub(crate) credential: &'a CredentialArguments,
    /// A trained profile, to load at any quality; `None`: the model's first profile, at `transparent`.
    pub(crate) profile: Option<Arc<Profile>>,
    /// The model.
    pub(crate) model: &'a Model,
}

/// Connects as an engine does at start: model, namespace, profile.
pub(crate) fn connect(runtime: &Runtime, address: SocketAddr, login: &Login<'_>) -> CliResult<Kvasir> {
    let Login { credential, profile, model } = login;
    let builder = Kvasir::builder(format!("http://{address}"))
        .rest(client_config(credential)?)
        .model(Arc::clone(model.spec()))
        .chunk_tokens(CHUNK_TOKENS);
    // In one namespace, the second kind of run would find the chunks of the first.
    let builder = match profile {
        Some(profile) => {
            builder.profile(Arc::clone(profile)).quality(QualityFloor::Adaptive).namespace("demo-tight")
        }
        None => builder.namespace("demo"),
    };
    runtime
        .block_on(async {
            let kvasir = builder.connect().await?;
            kvasir.preload_profiles().await?;
            Ok(kvasir)
        })
        .map_err(client_error)
}

/// Encodes and stores a context.
pub(crate) fn store(
    runtime: &Runtime,
    kvasir: &Kvasir,
    tokens: &[u32],
    kv: &PagedKv,
) -> CliResult<SaveReport> {
    let save = async {
        let session = kvasir.session(tokens).without_lookup().await;
        session.save_now(kv, tokens.len(), |_| ()).await
    };
    runtime.block_on(save).map_err(client_error)
}

/// An engine's knowledge from earlier loads: how fast it computes, decodes and receives.
pub(crate) struct Costs {
    /// Prefill.
    pub(crate) recompute: RecomputeModel,
    /// Decoding time, measured by a first, unthrottled load.
    pub(crate) decode: Option<DecodeModel>,
    /// One step of the model over the whole context.
    pub(crate) step: Duration,
    /// The link's rate in an earlier load.
    pub(crate) rate: Option<ByteRate>,
}

impl Costs {
    /// Measures decoding by loading the context once, at the finest level and without a shaped link.
    pub(crate) fn measure(
        runtime: &Runtime,
        kvasir: &Kvasir,
        (model, tokens): (&Model, &[u32]),
        prefill: Duration,
        top: Level,
    ) -> CliResult<Self> {
        let recompute = RecomputeModel::from_seconds(0.0, prefill.as_secs_f64() / tokens.len() as f64, 0.0);
        let mut kv = load_fixed(runtime, kvasir, (model, tokens), &recompute, top)?;
        let started = Instant::now();
        first_token(model, &mut kv, tokens)?;
        Ok(Self { recompute, decode: kvasir.costs().decode, step: started.elapsed(), rate: None })
    }

    /// Measures the link's rate with a load at `level`. The coarsest level is too short to tell bandwidth
    /// from round trips.
    pub(crate) fn learn_rate(
        &mut self,
        runtime: &Runtime,
        kvasir: &Kvasir,
        (model, tokens): (&Model, &[u32]),
        level: Level,
    ) -> CliResult {
        load_fixed(runtime, kvasir, (model, tokens), &self.recompute, level)?;
        self.rate = kvasir.costs().rate;
        Ok(())
    }
}

/// Loads the whole context at one level, however long it takes.
fn load_fixed(
    runtime: &Runtime,
    kvasir: &Kvasir,
    (model, tokens): (&Model, &[u32]),
    recompute: &RecomputeModel,
    level: Level,
) -> CliResult<PagedKv> {
    let options = LoadOptions { recompute: Some(recompute.clone()), ..LoadOptions::at_level(level) };
    let mut kv = model.new_kv().map_err(engine_error)?;
    kv.reserve(tokens.len()).map_err(CliError::internal)?;
    let table = kv.load_table().map_err(CliError::internal)?;
    runtime.block_on(async {
        let session = look_up(kvasir, tokens).await?;
        let loaded = session.load([table], options).map_err(client_error)?.finish().await;
        match loaded.missing().first() {
            Some(range) => {
                Err(CliError::internal(format!("tokens {}..{} were not loaded", range.start, range.end)))
            }
            None => Ok(()),
        }
    })?;
    kv.commit(tokens.len()).map_err(CliError::internal)?;
    Ok(kv)
}

/// A load over the link, with the duration of its parts.
pub(crate) struct Loaded {
    /// The cache, in pages.
    pub(crate) kv: PagedKv,
    /// The fetcher's report.
    pub(crate) report: LoadReport,
    /// Sizes of the stored objects, `[chunk][level]`.
    pub(crate) level_bytes: Vec<Vec<u64>>,
    /// From the request to the first token.
    pub(crate) ttft: Duration,
    /// Name and duration of every part.
    pub(crate) parts: Vec<(&'static str, Duration)>,
}

/// Looks the context up by its tokens, streams it over the link within `slo`, and generates the first token.
pub(crate) fn load(
    runtime: &Runtime,
    link: &ShapedLink,
    kvasir: &Kvasir,
    model: &Model,
    tokens: &[u32],
    (slo, costs): (Duration, &Costs),
) -> CliResult<Loaded> {
    let mut kv = model.new_kv().map_err(engine_error)?;
    kv.reserve(tokens.len()).map_err(CliError::internal)?;
    link.restart();
    let (started, deadline) = (Instant::now(), Deadline::within(slo));
    let session = runtime.block_on(look_up(kvasir, tokens))?;
    let looked_up = started.elapsed();
    let found = session.matched_tokens();
    if found != tokens.len() as u64 {
        return Err(CliError::internal(format!("{found} of {} tokens were found", tokens.len())));
    }
    let options = LoadOptions {
        suffix_time: Some(costs.step),
        recompute: Some(costs.recompute.clone()),
        decode: costs.decode.clone(),
        rate: costs.rate,
        // Chunks of 256 tokens are a few kilobytes at the coarsest level: a mean over such samples would
        // measure round trips.
        estimator: EstimatorKind::LastChunk,
        last_token: true,
        ..deadline.into()
    };
    let table = kv.load_table().map_err(CliError::internal)?;
    let loaded = runtime.block_on(async {
        let load = session.load([table], options).map_err(client_error)?;
        Ok::<_, CliError>(load.finish().await)
    })?;
    let streamed = started.elapsed();
    model.complete_kv(&mut kv, tokens, loaded.missing()).map_err(engine_error)?;
    let complete = started.elapsed();
    first_token(model, &mut kv, tokens)?;
    let ttft = started.elapsed();
    let parts = vec![
        ("look up", looked_up),
        ("stream and decode", streamed - looked_up),
        ("recompute", complete - streamed),
        ("first token", ttft - complete),
    ];
    let level_bytes = session.chunks().iter().map(|c| c.level_bytes.clone()).collect();
    let report = loaded.into_report().ok_or_else(|| CliError::internal("a load without a report"))?;
    Ok(Loaded { kv, report, level_bytes, ttft, parts })
}

/// A link in front of the service.
pub(crate) fn shape(runtime: &Runtime, upstream: SocketAddr, options: &LinkOptions) -> CliResult<ShapedLink> {
    runtime.block_on(ShapedLink::start(upstream, options.clone())).map_err(CliError::internal)
}
