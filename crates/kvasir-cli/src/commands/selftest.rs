//! `kvasir selftest`: checks a service end to end with the given credential.
//!
//! Puts one chunk of random tokens that was never stored before, looks it up, fetches it, compares it bit for
//! bit and removes it. Its "cache" is a function of the tokens and of a private model, so the command needs
//! no engine. With several replicas behind one address, each request may reach another replica, so steps wait
//! until the replicas have learned of each other's changes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use kvasir_client::{
    Kvasir, Session,
    pages::HostPages,
    rest::Client,
    tuning::{LoadOptions, RecomputeModel},
};
use kvasir_codec::{KvBuffer, Profile};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Reuse, Rope, SeqHash};
use serde_json::json;
use url::Url;

use super::selftest_s3::{self, AccessKeyArguments};
use crate::{
    error::{CliError, CliResult, Exit},
    output::print_json,
    progress::Step,
    service::{ServiceArguments, client, client_error, connection, runtime},
};

/// Tokens of the chunk: the shortest possible.
const TOKENS: usize = kvasir_types::CHUNK_TOKENS_STEP;
/// Interval between two checks for a change to reach a replica.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `kvasir selftest`.
#[derive(Debug, Args)]
pub(crate) struct SelftestArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// How long to wait for readiness and for changes to reach other replicas, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,
    /// Test the S3 front end at this address instead, with the access key in `AWS_ACCESS_KEY_ID` and
    /// `AWS_SECRET_ACCESS_KEY`.
    #[arg(long, value_name = "URL", conflicts_with = "keep")]
    s3: Option<Url>,
    #[command(flatten)]
    access_key: AccessKeyArguments,
    /// Keep the chunk.
    #[arg(long)]
    keep: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The stored sample; it must come back bit for bit.
struct Sample {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    tokens: Vec<u32>,
    kv: KvBuffer,
}

/// The duration of each step, in order.
#[derive(Default)]
pub(super) struct Timings(serde_json::Map<String, serde_json::Value>);

impl Timings {
    pub(super) async fn of<T>(
        &mut self,
        name: &str,
        step: impl Future<Output = CliResult<T>>,
    ) -> CliResult<T> {
        let started = Instant::now();
        let shown = Step::start(name);
        let result = step.await?;
        let elapsed = started.elapsed().as_secs_f64() * 1e3;
        shown.done(&format!("{elapsed:.1} ms"));
        self.0.insert(format!("{name}_ms"), json!(elapsed));
        Ok(result)
    }

    /// Prints the timings, followed by `facts`.
    fn print(mut self, facts: &[(&str, u64)]) -> CliResult {
        self.0.extend(facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
        print_json(&self.0)
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &SelftestArguments) -> CliResult {
    if let Some(url) = &arguments.s3 {
        let mut timings = Timings::default();
        let patience = Duration::from_secs(arguments.patience);
        let bytes =
            runtime()?.block_on(selftest_s3::run(url, &arguments.access_key, patience, &mut timings))?;
        return if arguments.json { timings.print(&[("bytes", bytes as u64)]) } else { Ok(()) };
    }
    let sample = Sample::new()?;
    let client = client(&arguments.service.address)?;
    let patience = Duration::from_secs(arguments.patience);
    let mut timings = Timings::default();
    let bytes = runtime()?.block_on(async {
        timings.of("ready", ready(&client, patience)).await?;
        let builder = connection(&arguments.service, &sample.spec)?
            .profile(Arc::clone(&sample.profile))
            .chunk_tokens(TOKENS);
        let kvasir = builder.connect().await.map_err(client_error)?;
        let (chunk, bytes) = timings.of("put", put(&kvasir, &sample)).await?;
        let tested = async {
            let found =
                timings.of("lookup", matched(&kvasir, &sample.tokens, TOKENS as u64, patience)).await?;
            timings.of("get", get(&found, &sample)).await
        }
        .await;
        if arguments.keep {
            return tested.map(|()| bytes);
        }
        // Remove it whether or not it came back; report the first error.
        let removed = timings.of("delete", delete(&kvasir, chunk)).await;
        tested.and(removed)?;
        timings.of("gone", matched(&kvasir, &sample.tokens, 0, patience)).await?;
        Ok::<_, CliError>(bytes)
    })?;
    if !arguments.json {
        return Ok(());
    }
    timings.print(&[("tokens", TOKENS as u64), ("bytes", bytes)])
}

impl Sample {
    fn new() -> CliResult<Self> {
        let spec = spec();
        // The same tokens each time, so that every run has the same profile.
        let trained = TrainingContext {
            first_position: 0,
            tokens: (0..TOKENS as u32).collect(),
            kv: cache(&spec, 0..TOKENS as u32),
        };
        let profile = train(&spec, &[trained], &Recipe::DirectExact, 0.01, &mut |_, _| ())
            .map_err(CliError::internal)?;
        let random = || uuid::Uuid::new_v4().as_u128() as u32 >> 12;
        let tokens: Vec<u32> = (0..TOKENS).map(|_| random()).collect();
        let kv = cache(&spec, tokens.iter().copied());
        Ok(Self { spec: Arc::new(spec), profile: Arc::new(profile), tokens, kv })
    }
}

/// The private model of the self-test: two layers of two heads.
fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 32 }, rope: Some(0) };
    ModelSpec {
        weights: "kvasir/selftest".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 32, 10_000.0)],
        layers: vec![layer; 2],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// A value for every token and position, each exactly representable as f16.
fn cache(spec: &ModelSpec, tokens: impl ExactSizeIterator<Item = u32>) -> KvBuffer {
    let tokens: Vec<u32> = tokens.collect();
    let mut kv = KvBuffer::new(spec, tokens.len());
    for (place, value) in kv.as_mut_slice().iter_mut().enumerate() {
        let token = tokens[place / 32 % tokens.len()];
        let mixed = (token ^ place as u32).wrapping_mul(0x9e37_79b9) >> 21;
        *value = mixed as f32 / 1024.0 - 1.0;
    }
    kv
}

fn finest(profile: &Profile) -> Level {
    Level(profile.level_count().saturating_sub(1) as u8)
}

async fn ready(client: &Client, patience: Duration) -> CliResult {
    let started = Instant::now();
    loop {
        match client.ready().await {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() >= patience => return Err(client_error(error)),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn put(kvasir: &Kvasir, sample: &Sample) -> CliResult<(SeqHash, u64)> {
    let session = kvasir.session(&sample.tokens).without_lookup().await;
    let report = session.save_now(&sample.kv, TOKENS, |_| {}).await.map_err(client_error)?;
    match report.chunks.first() {
        Some(chunk) if report.bytes() > 0 => Ok((chunk.seq_hash, report.bytes())),
        _ => Err(wrong("the service reports random tokens as already stored")),
    }
}

/// Waits until a lookup matches the expected number of tokens: other replicas may need a moment.
async fn matched(kvasir: &Kvasir, tokens: &[u32], expected: u64, patience: Duration) -> CliResult<Session> {
    let started = Instant::now();
    let mut session = kvasir.session(tokens).without_lookup().await;
    loop {
        let found = session.lookup().await.map_err(client_error)?;
        if found == expected {
            return Ok(session);
        }
        if started.elapsed() >= patience {
            return Err(wrong(&format!("a lookup matches {found} tokens, but {expected} are stored")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn get(found: &Session, sample: &Sample) -> CliResult {
    let pages = HostPages::new(&sample.spec, TOKENS, TOKENS).map_err(client_error)?;
    // Recomputing is never an option here, so its cost does not matter.
    let never = RecomputeModel::from_seconds(1e6, 1e3, 0.0).on_gpus(0);
    let options = LoadOptions { recompute: Some(never), ..LoadOptions::at_level(finest(&sample.profile)) };
    let loaded = found.load([pages.table()], options).map_err(client_error)?.finish().await;
    if let Some(failure) = loaded.report().and_then(|report| report.failures.first()) {
        return Err(wrong(&format!("the chunk does not load: {}", failure.error)));
    }
    let got = KvBuffer::from_source(&sample.spec, TOKENS, &*pages);
    if got == sample.kv { Ok(()) } else { Err(wrong("the fetched data differs from the stored data")) }
}

async fn delete(kvasir: &Kvasir, chunk: SeqHash) -> CliResult {
    kvasir.rest().delete_chunk(&kvasir.model_id(), &chunk).await.map_err(client_error)
}

pub(super) fn wrong(message: &str) -> CliError {
    CliError::new(Exit::Data, message, "See the service's log and `kvasir admin top`.")
}
