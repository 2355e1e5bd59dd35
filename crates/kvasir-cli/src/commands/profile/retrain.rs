//! `kvasir profile retrain`: trains a profile on a sample of stored chunks, and publishes it if it pays.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use kvasir_api::{TRAINING_REASON_BYTES_MAX, TrainingOutcome, TrainingRecord};
use kvasir_client::{Kvasir, tuning::StoredKv};
use kvasir_codec::{
    ChunkDecoder as _, ChunkEncoder as _, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer, Profile,
    container::Head,
};
use kvasir_train::{TrainingContext, non_finite, train_transparent};
use kvasir_types::{ChainLink, Level, Loss, ModelId, ModelSpec, Quality};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::retrain_all;
use crate::{
    error::{CliError, CliResult, Exit},
    output::{bytes, columns, print, print_json},
    progress::{Step, note},
    service::{AddressArguments, ServiceArguments, client, client_error, connection, runtime},
    training::retraining_recipe,
    units,
};

/// Fewest sampled tokens: a basis trained on fewer does not generalise to new text.
pub(super) const TOKENS_MIN: usize = 4_096;
/// One sampled chunk in this many is held out for evaluation.
const JUDGING: usize = 5;
/// Share of the bytes that a new profile may need: smaller savings do not justify another download by every
/// reader.
const BYTES_MAX: f64 = 0.95;

/// Arguments of `kvasir profile retrain`.
#[derive(Debug, Args)]
pub(crate) struct RetrainArguments {
    /// The model, by its id: 64 hex digits, as `kvasir model spec` prints it.
    #[arg(long, value_name = "ID", required_unless_present = "all")]
    model_id: Option<ModelId>,
    /// All models of the credential's tenant (the first 1,000 by id), one after the other. Skips a model unless
    /// half of its sample was stored since its last training.
    #[arg(long, conflicts_with_all = ["model_id", "parameters"])]
    all: bool,
    /// Maximum number of sampled chunks.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub(super) chunks: u16,
    /// Bandwidth of readers, for instance 3gbit. A profile whose decoding costs more time than its smaller
    /// size saves is not published.
    #[arg(long, value_name = "RATE", default_value = "1gbit", value_parser = units::bandwidth)]
    bandwidth: f64,
    /// Parameters of the model, at 2 bytes each: the profile may have a tenth of their bytes. Default: a
    /// limit of 256 MiB.
    #[arg(long, value_name = "N")]
    parameters: Option<u64>,
    /// Train and compare, but publish nothing and report nothing to the service.
    #[arg(long)]
    dry_run: bool,
    /// The service. The credential needs the role `admin`, because the sample covers all namespaces.
    #[command(flatten)]
    pub(super) service: AddressArguments,
    /// Print the comparison as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// The cost of the held-out chunks with a profile.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cost {
    /// Tokens of the counted chunks: those that reach quality `transparent` with the profile in force.
    tokens: usize,
    /// Bytes that decode to quality `transparent`.
    bytes: u64,
    /// Chunks that do not reach it. They count with the bytes of the profile in force.
    chunks_missed: usize,
    decode_ms: f64,
    /// Time to transfer and decode.
    load_ms: f64,
}

impl Cost {
    fn add(&mut self, context: &TrainingContext, (bytes, decode): (u64, Duration)) {
        self.tokens += context.tokens.len();
        self.bytes += bytes;
        self.decode_ms += decode.as_secs_f64() * 1e3;
    }

    fn bits_per_element(&self, elements_per_token: usize) -> f64 {
        8.0 * self.bytes as f64 / (self.tokens * elements_per_token).max(1) as f64
    }
}

/// A trained profile beside the one in force.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    model_id: ModelId,
    trained_tokens: usize,
    judging_chunks: usize,
    elements_per_token: usize,
    in_force: Cost,
    trained: Cost,
    profile_bytes: usize,
    profile_hash: String,
    pub(super) published: bool,
    pub(super) why: String,
}

/// Runs the command.
pub(crate) fn run(arguments: &RetrainArguments) -> CliResult {
    let runtime = runtime()?;
    let Some(model_id) = &arguments.model_id else { return retrain_all::run(arguments, &runtime) };
    let comparison = retrain(arguments, &runtime, model_id)?;
    if arguments.json {
        return print_json(&comparison);
    }
    note(&format!("a profile of {}, {}", bytes(comparison.profile_bytes as u64), comparison.why));
    print(&table(&comparison))
}

/// Trains for one model, and reports to the service how it ended. Nothing that it holds outlives it.
pub(super) fn retrain(
    arguments: &RetrainArguments,
    runtime: &Runtime,
    model_id: &ModelId,
) -> CliResult<Comparison> {
    let step = Step::start("sampling");
    let (kvasir, in_force, sample) = runtime.block_on(sampled(arguments, model_id))?;
    let tokens: usize = sample.iter().map(|kv| kv.tokens.len()).sum();
    step.done(&format!("{} chunks, {tokens} tokens", sample.len()));
    let mut record = TrainingRecord {
        outcome: TrainingOutcome::Failed,
        reason: String::new(),
        sampled_chunks: sample.len() as u64,
        sampled_tokens: tokens as u64,
        in_force: in_force.hash(),
        trained: None,
        held_out_chunks: 0,
        in_force_bits: None,
        trained_bits: None,
    };
    let ended = train_and_publish(arguments, runtime, &kvasir, &in_force, sample, &mut record);
    if let Err(error) = &ended {
        record.reason += error.message();
    }
    if !arguments.dry_run {
        send_report(runtime, &kvasir, record);
    }
    ended
}

/// Trains on a part of the sample, compares on the rest, and publishes what pays. `record` says how far it came; if
/// it ends early, its reason is what the error is to be appended to.
fn train_and_publish(
    arguments: &RetrainArguments,
    runtime: &Runtime,
    kvasir: &Kvasir,
    in_force: &Arc<Profile>,
    sample: Vec<StoredKv>,
    record: &mut TrainingRecord,
) -> CliResult<Comparison> {
    let tokens = record.sampled_tokens;
    if tokens < TOKENS_MIN as u64 {
        record.outcome = TrainingOutcome::TooFewTokens;
        let message = format!("the sample has {tokens} tokens; at least {TOKENS_MIN} are needed");
        let advice =
            "Store more of the model's caches in quality transparent, or sample more chunks with --chunks.";
        return Err(CliError::new(Exit::Nothing, message, advice));
    }
    let (mut judging, mut contexts) = (Vec::new(), Vec::new());
    // Chunks arrive in the order of their hashes, so every fifth is an unbiased choice.
    for (index, StoredKv { tokens, first_position, kv }) in sample.into_iter().enumerate() {
        let context = TrainingContext { tokens, first_position, kv };
        if index % JUDGING == 0 { judging.push(context) } else { contexts.push(context) }
    }
    let spec = kvasir.spec();
    let step = Step::start("training");
    let mut tell = |what: &str, part| step.at(what, part);
    let trained = train_transparent(spec, &contexts, &retraining_recipe(arguments.parameters), &mut tell)
        .map_err(|error| CliError::new(Exit::Data, error, ""))?;
    step.done("");
    if let Some(left_out) = non_finite(spec, &contexts, trained.exact_tokens()) {
        note(&left_out.to_string());
    }
    let step = Step::start("comparing");
    let trained_bytes = trained.to_bytes();
    let trained = Arc::new(trained);
    record.trained = Some(trained.hash());
    record.reason = "the profile could not be compared: ".to_owned();
    let (before, after) = compare(spec, [in_force, &trained], &judging, arguments.bandwidth)?;
    step.done(&format!("{} chunks", judging.len()));
    let elements = spec.elements_per_token();
    let bits = |cost: Cost| (cost.tokens > 0).then(|| cost.bits_per_element(elements) as f32);
    record.held_out_chunks = judging.len() as u64;
    (record.in_force_bits, record.trained_bits) = (bits(before), bits(after));
    let refusal = refusal(before, after);
    let published = refusal.is_none() && !arguments.dry_run;
    if published {
        record.reason = "the profile could not be stored: ".to_owned();
        let model_id = kvasir.model_id();
        let put = kvasir.rest().put_profile(&model_id, trained_bytes.clone());
        runtime.block_on(put).map_err(client_error)?;
    }
    (record.outcome, record.reason) = match &refusal {
        Some(why) => (TrainingOutcome::Refused, why.clone()),
        None => (TrainingOutcome::Published, "it needs fewer bytes, and loads take no longer".to_owned()),
    };
    let why = match (&refusal, published) {
        (Some(why), _) => format!("not published: {why}"),
        (None, true) => {
            "published: clients encode with it in five minutes, after readers have fetched it".to_owned()
        }
        (None, false) => "not published: this was a dry run".to_owned(),
    };
    Ok(Comparison {
        model_id: kvasir.model_id(),
        trained_tokens: contexts.iter().map(|context| context.tokens.len()).sum(),
        judging_chunks: judging.len(),
        elements_per_token: elements,
        in_force: before,
        trained: after,
        profile_bytes: trained_bytes.len(),
        profile_hash: trained.hash().to_string(),
        published,
        why,
    })
}

/// Reports how the training ended. A service that does not take the report changes nothing about the result.
fn send_report(runtime: &Runtime, kvasir: &Kvasir, mut record: TrainingRecord) {
    // One line: errors may quote answers of others.
    record.reason = record.reason.replace(char::is_control, " ");
    let end = record.reason.floor_char_boundary(TRAINING_REASON_BYTES_MAX);
    record.reason.truncate(end);
    if let Err(error) = runtime.block_on(kvasir.rest().report_training(&kvasir.model_id(), &record)) {
        note(&format!("the service did not take the report of this training: {error}"));
    }
}

/// The connection, the profile in force, and KV for training and evaluation.
async fn sampled(
    arguments: &RetrainArguments,
    model_id: &ModelId,
) -> CliResult<(Kvasir, Arc<Profile>, Vec<StoredKv>)> {
    let address = &arguments.service;
    let spec = client(address)?.model(model_id).await.map_err(client_error)?;
    // The sample covers all namespaces. This one only determines the root of the connection's own chains.
    let namespace = "default".parse().map_err(CliError::internal)?;
    let service = ServiceArguments { address: address.clone(), namespace };
    let kvasir = connection(&service, &Arc::new(spec))?.connect().await.map_err(client_error)?;
    let in_force = kvasir.profile_in_force().await.map_err(client_error)?.ok_or_else(|| {
        let advice = "Save a cache at another quality than `exact` first. Clients of `exact` take one of `kvasir profile \
                      train --recipe exact-only`.";
        CliError::new(Exit::Nothing, "no profile of the model is in force", advice)
    })?;
    let sample = kvasir.sample(arguments.chunks.into()).await.map_err(client_error)?;
    Ok((kvasir, in_force, sample))
}

/// The reason not to publish the trained profile, if there is one.
fn refusal(before: Cost, after: Cost) -> Option<String> {
    if before.bytes == 0 {
        return Some(
            "no held-out chunk reaches transparent with the profile in force: nothing was compared"
                .to_owned(),
        );
    }
    if after.bytes as f64 > BYTES_MAX * before.bytes as f64 {
        let share = 100.0 * after.bytes as f64 / before.bytes.max(1) as f64;
        return Some(format!("it needs {share:.0} % of the bytes of the profile in force"));
    }
    (after.load_ms > before.load_ms).then(|| {
        format!(
            "loads would take {:.1} ms instead of {:.1}: decoding costs more than the link saves",
            after.load_ms, before.load_ms
        )
    })
}

/// The cost of the held-out chunks with the profile in force and with the trained one.
fn compare(
    spec: &Arc<ModelSpec>,
    [in_force, trained]: [&Arc<Profile>; 2],
    judging: &[TrainingContext],
    bandwidth: f64,
) -> CliResult<(Cost, Cost)> {
    let (in_force, trained) = (Judge::new(spec, in_force)?, Judge::new(spec, trained)?);
    let (mut before, mut after) = (Cost::default(), Cost::default());
    for context in judging {
        // A chunk that misses the bound with the profile in force is stored with the model's first one, which
        // is not compared here.
        let (now, then) = (in_force.cost(context)?, trained.cost(context)?);
        before.chunks_missed += usize::from(now.is_none());
        after.chunks_missed += usize::from(then.is_none());
        let Some(now) = now else { continue };
        before.add(context, now);
        after.add(context, then.unwrap_or(now));
    }
    for cost in [&mut before, &mut after] {
        cost.load_ms = cost.bytes as f64 * 8e3 / bandwidth + cost.decode_ms;
    }
    Ok((before, after))
}

/// A profile's encoder and decoder.
struct Judge<'a> {
    spec: &'a Arc<ModelSpec>,
    encoder: CpuEncoder,
    decoder: CpuDecoder,
}

impl<'a> Judge<'a> {
    fn new(spec: &'a Arc<ModelSpec>, profile: &Arc<Profile>) -> CliResult<Self> {
        let encoder = CpuEncoder::new(Arc::clone(spec), Arc::clone(profile)).map_err(CliError::internal)?;
        let decoder = CpuDecoder::new(Arc::clone(spec), Arc::clone(profile)).map_err(CliError::internal)?;
        Ok(Self { spec, encoder, decoder })
    }

    /// Bytes and decoding time of a chunk at the smallest transparent level; `None` if no level is.
    fn cost(&self, context: &TrainingContext) -> CliResult<Option<(u64, Duration)>> {
        let input = ChunkInput {
            tokens: &context.tokens,
            preceding_token: None,
            first_position: context.first_position,
            link: ChainLink::first([0; 32].into()),
            beneath: Loss::NONE,
            kv: &context.kv,
        };
        let object = self.encoder.encode(&input).map_err(CliError::internal)?;
        let head = Head::parse(&object).map_err(CliError::internal)?;
        let bound = Quality::Transparent.error_max();
        let is_good = |level: &Level| head.measured().is_some_and(|measured| measured.error(*level) <= bound);
        let Some(level) = (0..head.header.level_count).map(Level).find(is_good) else { return Ok(None) };
        let length = head.level_bytes(level).unwrap_or(object.len() as u64);
        let mut rows = KvBuffer::new(self.spec, context.tokens.len());
        let started = Instant::now();
        let all = 0..context.tokens.len();
        self.decoder.decode(&head, &object, level, all, &mut rows).map_err(CliError::internal)?;
        Ok(Some((length, started.elapsed())))
    }
}

fn table(comparison: &Comparison) -> String {
    let header = ["", "bits/element", "bytes", "decoding", "load", "chunks missed"];
    let row = |name: &str, cost: &Cost| {
        vec![
            name.to_owned(),
            format!("{:.2}", cost.bits_per_element(comparison.elements_per_token)),
            bytes(cost.bytes),
            format!("{:.1} ms", cost.decode_ms),
            format!("{:.1} ms", cost.load_ms),
            cost.chunks_missed.to_string(),
        ]
    };
    let rows = [
        header.map(str::to_owned).to_vec(),
        row("in force", &comparison.in_force),
        row("trained", &comparison.trained),
    ];
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_published_where_loads_get_smaller_and_no_slower() {
        let cost = |bytes, load_ms| Cost { bytes, load_ms, ..Cost::default() };
        assert_eq!(refusal(cost(1_000, 10.0), cost(900, 10.0)), None);
        let refused = |after| refusal(cost(1_000, 10.0), after).unwrap_or_default();
        assert!(refused(cost(960, 9.0)).contains("96 % of the bytes"));
        assert!(refused(cost(500, 11.0)).contains("11.0 ms instead of 10.0"));
        assert!(refusal(cost(0, 0.0), cost(0, 0.0)).is_some_and(|why| why.contains("nothing was compared")));
    }
}
