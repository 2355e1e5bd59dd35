//! Cost models that loads fit for later loads: the engine's prefill times, this node's decode times, the
//! link's throughput.

use std::{
    num::NonZero,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread::available_parallelism,
    time::Duration,
};

use kvasir_codec::ChunkDecoder;
use kvasir_types::{Level, SPAN_TOKENS, TokenRange};

use super::{
    LoadReport,
    decode::DecodeContext,
    device_promise::{DevicePace, DeviceRun},
};
use crate::{
    fetcher::{
        ByteRate, DecodeModel, FetchPlan, Fetcher, FetcherConfig, PlannedChunk, RecomputeModel, TextMode,
    },
    limits::DECODE_CONCURRENCY,
};

/// Seconds of one core for an element of a direct profile: 0.78e9 a second with AVX2 (`kvasir-lab`'s CODEC.md, "Speed").
const DIRECT_SECONDS: f64 = 1.0 / 0.78e9;
/// The same for an element and a coefficient of its basis: 0.056e9 elements a second with AVX2 at rank 673, the finest
/// level of the shipped profile. Measured in November 2026.
const COEFFICIENT_SECONDS: f64 = 1.0 / (0.056e9 * 673.0);
/// Bytes of a 16-bit cache that a device decodes in a second. Nobody has measured a GPU: this is what `kvasir-model`'s
/// plan assumes of one (`Deployment::decode_rate`).
const DEVICE_BYTES_PER_SECOND: f64 = 50e9;
/// What takes at most this share of the time of computing keeps no load from trying it.
const TRIED_SHARE: f64 = 0.25;
/// After how many loads in a row that tried nothing one does: at first, and at most.
const PATIENCE: (u32, u32) = (8, 512);

/// The cost models of a client, shared by its clones.
#[derive(Debug)]
pub(crate) struct LearnedCosts(Mutex<Learned>);

#[derive(Debug, Clone)]
struct Learned {
    models: CostModels,
    device_pace: DevicePace,
    /// Of loads into pages of the host, and of those into pages on a device.
    patience: [Patience; 2],
}

/// Cost models as fitted so far. Where decoding or the link seems so slow that loads use neither, one load now and then
/// assumes less than these, and measures it again.
#[derive(Debug, Clone)]
pub struct CostModels {
    /// Cost of computing from text on this engine.
    pub recompute: RecomputeModel,
    /// Cost of decoding on this node's CPU, by the last load that decoded; `None` before the first. Loads then assume it
    /// from the model and the profiles of their chunks.
    pub decode: Option<DecodeModel>,
    /// The same into pages on a device: by the device and, where it refuses, by the CPU.
    pub device_decode: Option<DecodeModel>,
    /// Throughput of the last load that measured it; `None` before the first.
    pub rate: Option<ByteRate>,
}

/// Held by the load that tries what seems slow, for as long as it runs.
pub(super) type Trial = Arc<()>;

/// How many loads leave what seems slow untried before one tries it.
#[derive(Debug, Clone)]
struct Patience {
    /// Loads in a row that left it untried.
    untried: u32,
    /// Loads in a row that decoded.
    decoded: u32,
    max: u32,
    /// The latest load that tried it.
    trial: Weak<()>,
}

impl Patience {
    const NEW: Self = Self { untried: 0, decoded: 0, max: PATIENCE.0, trial: Weak::new() };

    const fn on_untried(&mut self) {
        (self.untried, self.decoded) = (self.untried.saturating_add(1), 0);
    }

    /// A few show nothing: where decoding is hardly too slow, several loads decode before the fitted time says so.
    const fn on_decoded(&mut self) {
        (self.untried, self.decoded) = (0, self.decoded.saturating_add(1));
        if self.decoded >= PATIENCE.0 {
            self.max = PATIENCE.0;
        }
    }

    /// Lets the next load try it if it is time, and none does at present. If that one is dropped or fails, another one does.
    fn try_if_due(&mut self) -> Option<Trial> {
        let is_due = self.untried >= self.max && self.trial.strong_count() == 0;
        is_due.then(|| {
            let trial = Trial::default();
            self.trial = Arc::downgrade(&trial);
            trial
        })
    }

    /// A load has tried it. The next one that does has twice as many before it.
    fn on_tried(&mut self) {
        (self.untried, self.max) = (0, (2 * self.max).min(PATIENCE.1));
    }
}

impl LearnedCosts {
    pub(crate) fn new(recompute: RecomputeModel) -> Self {
        let models = CostModels { recompute, decode: None, device_decode: None, rate: None };
        let (device_pace, patience) = (DevicePace::default(), [Patience::NEW; 2]);
        Self(Mutex::new(Learned { models, device_pace, patience }))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Learned) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn models(&self) -> CostModels {
        self.with(|learned| learned.models.clone())
    }

    /// Lets a load try what seems slow, if enough loads before it have not.
    ///
    /// A load that decodes or reads nothing measures nothing. Where it does so because decoding or reading seems slow, as
    /// after one load of a suspended machine or over a dead link, so would every later one. But it may be slow: then each
    /// load that tries takes long, so they become fewer.
    pub(super) fn put_to_the_test(
        &self,
        plan: &mut FetchPlan,
        config: &mut FetcherConfig,
        on_device: bool,
    ) -> Option<Trial> {
        let (decode, rate) = to_try(plan, config.text_mode, (&config.recompute, &config.decode));
        if decode.is_none() && rate.is_none() {
            return None;
        }
        let trial = self.with(|learned| learned.patience[usize::from(on_device)].try_if_due())?;
        if let Some(decode) = decode {
            config.decode = decode;
        }
        plan.prior_rate = rate.or(plan.prior_rate);
        Some(trial)
    }

    /// Takes over the decode times that a load has measured, into pages `on_device` or not, and its throughput. Of two
    /// concurrent loads, the one that ends later counts.
    pub(super) fn learn(&self, fetcher: &Fetcher, report: &LoadReport, on_device: bool, is_trial: bool) {
        let (recompute, fitted) = fetcher.models();
        let has_decoded = fetcher.chunks().iter().any(|chunk| chunk.level().is_some());
        let measured = report.rate();
        let (decode, rate) = to_try(fetcher.plan(), fetcher.text_mode(), (recompute, fitted));
        let is_slow = decode.is_some() || measured.is_none() && rate.is_some();
        // One that failed or ended early does not tell whether it would have decoded.
        let is_whole = fetcher.is_done() && report.failures.is_empty();
        let is_untried = is_slow && !has_decoded && is_whole;
        let has_tried = is_trial && (has_decoded || measured.is_some() || is_whole);
        self.with(|Learned { models, patience, .. }| {
            let patience = &mut patience[usize::from(on_device)];
            if has_tried {
                patience.on_tried();
            }
            if has_decoded {
                let decode = if on_device { &mut models.device_decode } else { &mut models.decode };
                *decode = Some(fitted.clone());
                patience.on_decoded();
            } else if is_untried {
                patience.on_untried();
            }
            models.rate = measured.or(models.rate);
        });
    }

    /// Learns from one prefill at once: a load that began before it does not know it, and must not undo it.
    pub(crate) fn observe_prefill(&self, range: TokenRange, took: Duration) {
        self.with(|learned| learned.models.recompute.observe(range, took));
    }

    /// Learns from what a device did, at once and apart from [`CostModels`], which counts the waits and the CPU, too.
    pub(super) fn observe_device_run(&self, run: &DeviceRun) {
        self.with(|learned| learned.device_pace.observe(run));
    }

    /// Seconds of a device for an element, if enough runs were observed.
    pub(super) fn device_pace(&self) -> Option<f64> {
        self.with(|learned| learned.device_pace.seconds_per_element())
    }
}

/// The decode times and the rate with which a load tries both: decoding all chunks, and reading their bases, takes
/// [`TRIED_SHARE`] of computing them. `None` of what seems no slower, and of both where the texts fit the deadline by the
/// cautious forecast of a GPU that no other load uses: those are computed however fast the rest is.
fn to_try(
    plan: &FetchPlan,
    text_mode: TextMode,
    (recompute, decode): (&RecomputeModel, &DecodeModel),
) -> (Option<DecodeModel>, Option<ByteRate>) {
    let bases = || plan.chunks.iter().map(|chunk| (chunk.tokens, chunk.bytes_at(Level::BASE)));
    let compute: Duration = bases().map(|(tokens, _)| recompute.predict(tokens)).sum();
    let bound = |tokens| recompute.predict(tokens).mul_f64(recompute.caution(tokens));
    let bounds: Duration = bases().map(|(tokens, _)| bound(tokens)).sum();
    if text_mode == TextMode::Overlapped && bounds <= plan.deadline() {
        return (None, None);
    }
    let short = compute.mul_f64(TRIED_SHARE);
    let decodes: Duration = bases().map(|(tokens, bytes)| decode.predict(tokens.len(), bytes)).sum();
    let faster = || decode.clone().assumed(short.as_secs_f64() / decodes.as_secs_f64());
    let bytes: u64 = bases().map(|(_, bytes)| bytes).sum();
    let is_slow = plan.prior_rate.is_some_and(|rate| rate.time_for(bytes) > short);
    ((decodes > short).then(faster), ByteRate::of(bytes, short).filter(|_| is_slow))
}

/// Decode times before the first load, assumed from the elements that the tables hold and the slowest of the chunks'
/// profiles. If it is so pessimistic that nothing is decoded, less is tried ([`LearnedCosts::put_to_the_test`]).
pub(super) fn unmeasured_decode(
    context: &DecodeContext,
    decoders: &[Arc<dyn ChunkDecoder>],
    chunks: &[PlannedChunk],
) -> DecodeModel {
    if context.is_on_device() {
        let bytes = 2.0 * elements_held(context) as f64;
        return DecodeModel::from_seconds(bytes / DEVICE_BYTES_PER_SECOND, 0.0);
    }
    unmeasured_cpu(context, decoders, chunks)
}

/// The same for the CPU, whatever the tables' pages are.
fn unmeasured_cpu(
    context: &DecodeContext,
    decoders: &[Arc<dyn ChunkDecoder>],
    chunks: &[PlannedChunk],
) -> DecodeModel {
    let profiles = decoders.iter().filter_map(|decoder| decoder.shared_profile());
    let rank = profiles.map(|profile| profile.basis_rank()).fold(0.0, f64::max);
    let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(1);
    let cores = decoding_cores(available_parallelism().map_or(1, NonZero::get), longest);
    DecodeModel::from_seconds(thread_seconds(elements_held(context), rank, cores), 0.0)
}

/// Seconds of a thread of the CPU for an element of a load's chunks: the longer one of what was measured, perhaps of other
/// profiles, and of what is assumed of theirs.
pub(super) fn cpu_pace(
    measured: Option<&DecodeModel>,
    context: &DecodeContext,
    decoders: &[Arc<dyn ChunkDecoder>],
    chunks: &[PlannedChunk],
) -> f64 {
    let assumed = unmeasured_cpu(context, decoders, chunks);
    let time = |model: &DecodeModel| -> Duration {
        chunks.iter().map(|chunk| model.predict(chunk.tokens.len(), chunk.bytes_at(chunk.top_level()))).sum()
    };
    let longest = measured.map_or(Duration::ZERO, time).max(time(&assumed));
    let tokens: u64 = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    longest.as_secs_f64() / (tokens as f64 * elements_held(context) as f64)
}

/// Elements of a token that the tables hold. A load without tables decodes nothing, and must not assume that it takes no time.
fn elements_held(context: &DecodeContext) -> usize {
    let held = context.tables.iter().map(|table| table.shard().part_of(&context.spec).elements_per_token());
    held.sum::<usize>().max(1)
}

/// Cores that decode for one load of chunks of at most so many tokens, of the `available` ones: a core for each span of the
/// chunks that are decoded at once. Scopes of the same layers would keep more busy, which is not counted.
pub fn decoding_cores(available: usize, chunk_tokens: u64) -> usize {
    available.min(DECODE_CONCURRENCY * chunk_tokens.div_ceil(SPAN_TOKENS as u64) as usize)
}

/// Seconds of decoding threads for one token, summed over them as a load's report does: they share the cores, so the
/// time passes for each of them.
fn thread_seconds(elements: usize, rank: f64, cores: usize) -> f64 {
    let core_seconds = elements as f64 * (rank * COEFFICIENT_SECONDS).max(DIRECT_SECONDS);
    core_seconds * DECODE_CONCURRENCY as f64 / cores.max(1) as f64
}

#[cfg(test)]
#[path = "learned_costs_tests.rs"]
mod tests;
