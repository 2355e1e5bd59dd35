//! `kvasir selftest`: does a service work from end to end, for the credential at hand?
//!
//! One chunk of random tokens, which nobody stored before, is put, looked up, fetched, compared bit for bit and removed.
//! With several replicas behind one address each request may meet another one, so steps wait for what replicas learn of
//! each other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use kvasir_client::{Client, KvClient, LoadOptions, LoadPlan, fetcher::Fixed, fetcher::RecomputeModel};
use kvasir_codec::{ChunkDecoder as _, ChunkEncoder as _, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer};
use kvasir_codec::{KvSource, Profile};
use kvasir_container::Head;
use kvasir_types::{Level, ModelSpec, RootHash, SeqHash};
use serde_json::json;

use super::serve::runtime;
use crate::{
    args::ServiceArguments,
    error::{CliError, CliResult, Exit},
    inputs::{engine_error, shipped_model},
    output::print_json,
    progress::Step,
    remote::{client, client_error, connect, profile},
};

/// Tokens of the chunk: the shortest there is.
const TOKENS: usize = kvasir_types::CHUNK_TOKENS_STEP;
/// Pause between two looks at what replicas know.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `kvasir selftest`.
#[derive(Debug, Args)]
pub(crate) struct SelftestArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// How long to wait for readiness, and for replicas to learn of each other, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,
    /// Leave the chunk there.
    #[arg(long)]
    keep: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// What is stored, and what must come back.
struct Sample {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    tokens: Vec<u32>,
    kv: Box<dyn KvSource>,
    expected: KvBuffer,
}

/// How long each step took, in its order.
#[derive(Default)]
struct Timings(serde_json::Map<String, serde_json::Value>);

impl Timings {
    async fn of<T>(&mut self, name: &str, step: impl Future<Output = CliResult<T>>) -> CliResult<T> {
        let started = Instant::now();
        let shown = Step::start(name);
        let result = step.await?;
        let elapsed = started.elapsed().as_secs_f64() * 1e3;
        shown.done(&format!("{elapsed:.1} ms"));
        self.0.insert(format!("{name}_ms"), json!(elapsed));
        Ok(result)
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &SelftestArguments) -> CliResult {
    let sample = Sample::new()?;
    let client = client(&arguments.service)?;
    let patience = Duration::from_secs(arguments.patience);
    let mut timings = Timings::default();
    let bytes = runtime()?.block_on(async {
        timings.of("ready", ready(&client, patience)).await?;
        let kv = connect(&arguments.service, &sample.spec, &sample.profile).await?;
        let kv = kv.with_chunk_tokens(TOKENS).map_err(client_error)?;
        let (chunk, bytes) = timings.of("put", put(&kv, &sample)).await?;
        let tested = async {
            let plan = timings.of("lookup", matched(&kv, &sample.tokens, TOKENS as u64, patience)).await?;
            timings.of("get", get(&kv, &plan, &sample)).await
        }
        .await;
        if arguments.keep {
            return tested.map(|()| bytes);
        }
        // Removed whether it came back or not; what went wrong first is what is told.
        let removed = timings.of("delete", delete(&client, &kv, chunk)).await;
        tested.and(removed)?;
        timings.of("gone", matched(&kv, &sample.tokens, 0, patience)).await?;
        Ok::<_, CliError>(bytes)
    })?;
    if !arguments.json {
        return Ok(());
    }
    let mut result = timings.0;
    result.insert("tokens".to_owned(), json!(TOKENS));
    result.insert("bytes".to_owned(), json!(bytes));
    print_json(&result)
}

impl Sample {
    fn new() -> CliResult<Self> {
        let model = shipped_model()?;
        let profile = profile(None)?;
        let text: String = (0..64).map(|_| uuid::Uuid::new_v4().simple().to_string() + " ").collect();
        let mut tokens = model.tokenizer().encode(&text).map_err(engine_error)?;
        tokens.truncate(TOKENS);
        let kv = model.calculate_kv(&tokens).map_err(engine_error)?;
        let spec = Arc::clone(model.spec());
        let expected = round_trip(&spec, &profile, &tokens, &kv)?;
        Ok(Self { spec, profile, tokens, kv: Box::new(kv), expected })
    }
}

/// What the codec makes of `kv` without a service: the service must not change a bit of it.
fn round_trip(
    spec: &Arc<ModelSpec>,
    profile: &Arc<Profile>,
    tokens: &[u32],
    kv: &dyn KvSource,
) -> CliResult<KvBuffer> {
    let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(profile)).map_err(CliError::internal)?;
    let decoder = CpuDecoder::new(Arc::clone(spec), Arc::clone(profile)).map_err(CliError::internal)?;
    let root = RootHash::derive("local", "local", b"", &spec.model_id());
    let input = ChunkInput {
        tokens,
        preceding_token: None,
        first_position: 0,
        parent_hash: *root.as_bytes(),
        kl_beneath: 0.0,
        kv,
    };
    let object = encoder.encode(&input).map_err(CliError::internal)?;
    let head = Head::parse(&object).map_err(CliError::internal)?;
    let mut buffer = KvBuffer::new(spec, tokens.len());
    decoder
        .decode(&head, &object, finest(profile), 0..tokens.len(), &mut buffer)
        .map_err(CliError::internal)?;
    Ok(buffer)
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

async fn put(kv: &KvClient, sample: &Sample) -> CliResult<(SeqHash, u64)> {
    kv.client().put_profile(&kv.model_id(), sample.profile.to_bytes()).await.map_err(client_error)?;
    let report = kv.store_kv(&sample.tokens, &*sample.kv, |_| {}).await.map_err(client_error)?;
    match report.chunks.first() {
        Some(chunk) if report.bytes() > 0 => Ok((chunk.seq_hash, report.bytes())),
        _ => Err(wrong("random tokens were said to be stored already")),
    }
}

/// Waits until a lookup matches as many tokens as it should: other replicas may need a moment.
async fn matched(kv: &KvClient, tokens: &[u32], expected: u64, patience: Duration) -> CliResult<LoadPlan> {
    let started = Instant::now();
    loop {
        let plan = kv.lookup(tokens).await.map_err(client_error)?;
        let found = plan.matched_tokens();
        if found == expected {
            return Ok(plan);
        }
        if started.elapsed() >= patience {
            return Err(wrong(&format!("a lookup matches {found} tokens where {expected} are stored")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn get(kv: &KvClient, plan: &LoadPlan, sample: &Sample) -> CliResult {
    // Nobody would compute this: computing is unattractive, and what is loaded saves no GPU anything.
    let never = RecomputeModel::from_seconds(1e6, 1e3, 0.0).on_gpus(0);
    let mut options = LoadOptions::new(Duration::from_secs(60), never);
    options.policy = Box::new(Fixed::new(finest(&sample.profile)));
    let mut got = KvBuffer::new(&sample.spec, sample.tokens.len());
    let report = kv.get_kv(plan, options, &mut got).await.map_err(client_error)?;
    if let Some(failure) = report.failures.first() {
        return Err(wrong(&format!("the chunk does not load: {}", failure.error)));
    }
    if got == sample.expected { Ok(()) } else { Err(wrong("what came back is not what was stored")) }
}

async fn delete(client: &Client, kv: &KvClient, chunk: SeqHash) -> CliResult {
    client.delete_chunk(&kv.model_id(), &chunk).await.map_err(client_error)
}

fn wrong(message: &str) -> CliError {
    CliError::new(Exit::Data, message, "The service's log and `kvasir top` say more.")
}
