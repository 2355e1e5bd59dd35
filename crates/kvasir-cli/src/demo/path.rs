//! The path itself: a service, a cache stored in it, and the way back over a shaped link.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{
    KvClient, LoadOptions, LoadReport, StoreReport,
    fetcher::{ByteRate, DecodeModel, EstimatorKind, Fixed, RecomputeModel},
};
use kvasir_codec::{CpuDecoder, CpuEncoder, Profile};
use kvasir_engine::{Model, PagedKv};

use kvasir_replay::link::{LinkOptions, ShapedLink};
use kvasir_server::{Config, RunError, listen, run};
use kvasir_types::{Level, Name};
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};
use url::Url;

use super::{
    baseline::{first_token, into_pages},
    text::CHUNK_TOKENS,
};
use crate::{
    error::{CliError, CliResult, Exit},
    service::{CredentialArguments, client_at, client_error},
    shipped::engine_error,
};

/// The service: inside this process on a free loopback port, or one that runs anyway.
#[derive(Debug)]
pub struct Service {
    /// Where it listens.
    pub address: SocketAddr,
    ours: Option<Running>,
}

/// What ends a service, and how it ended.
type Running = (oneshot::Sender<()>, JoinHandle<Result<(), RunError>>);

impl Service {
    /// Starts it with everything it keeps under `folder`.
    ///
    /// # Errors
    /// A port or a thread that cannot be had.
    pub fn start(runtime: &Runtime, folder: &Path) -> CliResult<Self> {
        let mut config = Config::embedded(folder).map_err(CliError::internal)?;
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        runtime.block_on(async {
            let listener = listen(&config).await.map_err(CliError::internal)?;
            let address = listener.local_addr().map_err(CliError::internal)?;
            let (stop, stopped) = oneshot::channel();
            let task = tokio::spawn(run(config, listener, async { drop(stopped.await) }));
            Ok(Self { address, ours: Some((stop, task)) })
        })
    }

    /// One that runs at `url`. The shaped link in front of it passes bytes on, so it has to speak plain HTTP.
    ///
    /// # Errors
    /// An address that is not a plain HTTP service.
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

    /// Waits until replicas that were asked before something was stored ask the store again (`negative_ttl`, 1 s).
    pub fn settle(&self, runtime: &Runtime) {
        if self.ours.is_none() {
            // The timer is made inside: outside of the runtime there is none to make it of.
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1_500)).await });
        }
    }

    /// Ends it and waits until it has.
    ///
    /// # Errors
    /// What ended the service before.
    pub fn stop(self, runtime: &Runtime) -> CliResult {
        let Some((stop, task)) = self.ours else { return Ok(()) };
        // It may have ended by itself; then the task says why.
        let _ = stop.send(());
        runtime.block_on(task).map_err(CliError::internal)?.map_err(CliError::internal)
    }
}

/// The codec of a profile, for the model.
pub(crate) struct Coder {
    /// The profile.
    pub(crate) profile: Arc<Profile>,
    /// Its file.
    pub(crate) file: &'static [u8],
    /// Encoder.
    pub(crate) encoder: Arc<CpuEncoder>,
    /// Decoder.
    pub(crate) decoder: Arc<CpuDecoder>,
}

impl Coder {
    /// The profile that ships with the model.
    pub(crate) fn shipped(model: &Model) -> CliResult<Self> {
        let file = kvasir_engine::TINY_PROFILE;
        let profile = Arc::new(Profile::from_bytes(file).map_err(CliError::internal)?);
        let spec = model.spec();
        let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(&profile)).map_err(CliError::internal)?;
        let decoder = CpuDecoder::new(Arc::clone(spec), Arc::clone(&profile)).map_err(CliError::internal)?;
        Ok(Self { profile, file, encoder: Arc::new(encoder), decoder: Arc::new(decoder) })
    }
}

/// What an engine connects with.
pub(crate) struct Login<'a> {
    /// Who we are.
    pub(crate) credential: &'a CredentialArguments,
    /// The codec.
    pub(crate) coder: &'a Coder,
    /// The model.
    pub(crate) model: &'a Model,
}

/// Connects as an engine does when it starts: model, namespace, profile.
pub(crate) fn connect(runtime: &Runtime, address: SocketAddr, login: &Login<'_>) -> CliResult<KvClient> {
    let Login { credential, coder, model } = login;
    let url = Url::parse(&format!("http://{address}")).map_err(CliError::internal)?;
    let namespace: Name = "demo".parse().map_err(CliError::internal)?;
    let client = client_at(url, credential)?;
    runtime.block_on(async {
        let (encoder, decoder) = (Arc::clone(&coder.encoder), Arc::clone(&coder.decoder));
        let kv = KvClient::new(client, Arc::clone(model.spec()), namespace, encoder, decoder)
            .await
            .and_then(|kv| kv.with_chunk_tokens(CHUNK_TOKENS))
            .map_err(client_error)?;
        kv.client().put_profile(&kv.model_id(), coder.file.to_vec()).await.map_err(client_error)?;
        Ok(kv)
    })
}

/// Encodes and stores a context.
pub(crate) fn store(
    runtime: &Runtime,
    client: &KvClient,
    tokens: &[u32],
    kv: &PagedKv,
) -> CliResult<StoreReport> {
    runtime.block_on(client.store_kv(tokens, kv, |_| ())).map_err(client_error)
}

/// What an engine knows from the loads before: how fast it computes, decodes and receives.
pub(crate) struct Costs {
    /// Prefill.
    pub(crate) recompute: RecomputeModel,
    /// Decoding, as measured by a first load that nothing slowed down.
    pub(crate) decode: DecodeModel,
    /// One step of the model over the whole context.
    pub(crate) step: Duration,
    /// What the link brought in an earlier load.
    pub(crate) rate: Option<ByteRate>,
}

impl Costs {
    /// Measures decoding by loading the context once, at the finest level and without a shaped link.
    pub(crate) fn measure(
        runtime: &Runtime,
        client: &KvClient,
        (model, tokens): (&Model, &[u32]),
        prefill: Duration,
        top: Level,
    ) -> CliResult<Self> {
        let recompute = RecomputeModel::from_seconds(0.0, prefill.as_secs_f64() / tokens.len() as f64, 0.0);
        let (mut kv, report) = load_fixed(runtime, client, (model, tokens), &recompute, top)?;
        let started = Instant::now();
        first_token(model, &mut kv, tokens)?;
        Ok(Self { recompute, decode: report.decode_model, step: started.elapsed(), rate: None })
    }

    /// Learns what the link brings, from a load at `level` over it. The coarsest is too short to tell bandwidth from
    /// round trips.
    pub(crate) fn learn_rate(
        &mut self,
        runtime: &Runtime,
        client: &KvClient,
        (model, tokens): (&Model, &[u32]),
        level: Level,
    ) -> CliResult {
        let (_, report) = load_fixed(runtime, client, (model, tokens), &self.recompute, level)?;
        self.rate = report.rate();
        Ok(())
    }
}

/// Loads the whole context at one level, however long it takes.
fn load_fixed(
    runtime: &Runtime,
    client: &KvClient,
    (model, tokens): (&Model, &[u32]),
    recompute: &RecomputeModel,
    level: Level,
) -> CliResult<(PagedKv, LoadReport)> {
    let mut options = LoadOptions::new(Duration::from_secs(60), recompute.clone());
    options.policy = Box::new(Fixed::new(level));
    let mut report = None;
    let kv = into_pages(model, tokens.len(), |sink| {
        let load = async { client.get_kv(&client.lookup(tokens).await?, options, sink).await };
        report = Some(runtime.block_on(load).map_err(client_error)?);
        Ok(())
    })?;
    Ok((kv, report.ok_or_else(|| CliError::internal("nothing was loaded"))?))
}

/// A load over the link, with the time of its parts.
pub(crate) struct Loaded {
    /// The cache, in pages.
    pub(crate) kv: PagedKv,
    /// What the fetcher did.
    pub(crate) report: LoadReport,
    /// Sizes of the stored objects, `[chunk][level]`.
    pub(crate) level_bytes: Vec<Vec<u64>>,
    /// From the request to the first token.
    pub(crate) ttft: Duration,
    /// Name and time of every part.
    pub(crate) parts: Vec<(&'static str, Duration)>,
}

/// Looks the context up by its tokens, streams it over the link within `slo`, and generates the first token.
pub(crate) fn load(
    runtime: &Runtime,
    link: &ShapedLink,
    client: &KvClient,
    (model, coder): (&Model, &Coder),
    tokens: &[u32],
    (slo, costs): (Duration, &Costs),
) -> CliResult<Loaded> {
    let mut kv = model.new_kv().map_err(engine_error)?;
    kv.reserve(tokens.len()).map_err(CliError::internal)?;
    link.restart();
    let started = Instant::now();
    let plan = runtime.block_on(client.lookup(tokens)).map_err(client_error)?;
    let looked_up = started.elapsed();
    if plan.matched_tokens() != tokens.len() as u64 {
        return Err(CliError::internal(format!(
            "{} of {} tokens were found",
            plan.matched_tokens(),
            tokens.len()
        )));
    }
    let mut options = LoadOptions::new(slo.saturating_sub(looked_up), costs.recompute.clone());
    options.suffix_time = costs.step;
    options.decode = costs.decode.clone();
    options.prior_rate = costs.rate;
    // Chunks of 256 tokens are a few kilobytes at the coarsest level: a mean over such samples measures round trips.
    options.estimator = EstimatorKind::LastChunk;
    options.level_loss = coder.profile.levels().iter().map(|l| l.kl.map(f64::from)).collect();
    let mut sink = kv.sink(0).map_err(CliError::internal)?;
    let report = runtime.block_on(client.get_kv(&plan, options, &mut sink)).map_err(client_error)?;
    sink.finish().map_err(CliError::internal)?;
    let streamed = started.elapsed();
    model
        .complete_kv(&mut kv, tokens, plan.matched_tokens() as usize, &report.recompute)
        .map_err(engine_error)?;
    let complete = started.elapsed();
    first_token(model, &mut kv, tokens)?;
    let ttft = started.elapsed();
    let parts = vec![
        ("look up", looked_up),
        ("stream and decode", streamed - looked_up),
        ("recompute", complete - streamed),
        ("first token", ttft - complete),
    ];
    let level_bytes = plan.chunks().iter().map(|c| c.level_bytes.clone()).collect();
    Ok(Loaded { kv, report, level_bytes, ttft, parts })
}

/// A link in front of the service.
pub(crate) fn shape(runtime: &Runtime, upstream: SocketAddr, options: &LinkOptions) -> CliResult<ShapedLink> {
    runtime.block_on(ShapedLink::start(upstream, options.clone())).map_err(CliError::internal)
}
