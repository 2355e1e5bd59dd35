//! Decode units: some layers of some tokens of a verified chunk, for one rank. A device decodes several at once.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kvasir_codec::{ChunkDecoder, LayerGroup, container::Head};
use kvasir_types::{Level, ModelSpec, TokenRange};
use tokio::time::Instant;

use super::{
    LoadError,
    assembly::VerifiedChunk,
    device_promise::{DevicePromise, DeviceRun},
    token_ranges::context_range,
};
use crate::{
    limits::{DEVICE_FAULTS_MAX, DEVICE_TOKENS_MAX},
    pages::{BlockTable, DeviceBytes, DeviceDecode, DevicePart, PartOutcome, WriteGate},
};

/// Context shared by all decode units of a load.
pub(super) struct DecodeContext {
    pub(super) spec: Arc<ModelSpec>,
    /// The decoding thread writes rows here directly; one table per rank.
    pub(super) tables: Vec<BlockTable>,
    pub(super) gate: Arc<WriteGate>,
    /// For each table, how often its device refused what it was given, and decoded none of it.
    device_faults: Vec<AtomicU32>,
    /// How fast devices were so far; `None` if nobody knows.
    pub(super) promise: Option<DevicePromise>,
}

impl DecodeContext {
    pub(super) fn new(spec: Arc<ModelSpec>, tables: Vec<BlockTable>, gate: Arc<WriteGate>) -> Self {
        let device_faults = tables.iter().map(|_| AtomicU32::new(0)).collect();
        Self { spec, tables, gate, device_faults, promise: None }
    }

    /// Whether a device decodes for one of the tables.
    pub(super) fn is_on_device(&self) -> bool {
        self.tables.iter().any(|table| table.device().is_some())
    }

    /// Whether a unit has a device that may be asked for it.
    pub(super) fn has_device_for(&self, unit: &DecodeUnit) -> bool {
        self.tables[unit.rank].device().is_some()
            && unit.group.is_some()
            && unit.decoder.shared_profile().is_some()
            && self.device_faults[unit.rank].load(Ordering::Relaxed) < DEVICE_FAULTS_MAX
    }
}

/// Whether a device that is given `units` takes `next` together with them: other tokens of the same layers, for the same
/// rank, by the same profile.
pub(super) fn joins(units: &[DecodeUnit], next: &DecodeUnit) -> bool {
    let Some(first) = units.first() else { return false };
    let kind = |unit: &DecodeUnit| (unit.rank, unit.layers.clone(), unit.head.header.profile_hash);
    let tokens: usize = units.iter().map(|unit| unit.tokens.len()).sum();
    kind(first) == kind(next) && tokens + next.tokens.len() <= DEVICE_TOKENS_MAX
}

/// Some layers of some tokens of one chunk, for one rank, at one level.
#[derive(Clone)]
pub(super) struct DecodeUnit {
    pub(super) chunk: usize,
    pub(super) rank: usize,
    /// `None`: all layers at once.
    pub(super) group: Option<Arc<LayerGroup>>,
    pub(super) layers: Range<usize>,
    /// Relative to the chunk.
    pub(super) tokens: Range<usize>,
    pub(super) first_token: u64,
    pub(super) level: Level,
    pub(super) head: Arc<Head>,
    pub(super) bytes: bytes::Bytes,
    pub(super) decoder: Arc<dyn ChunkDecoder>,
}

/// The scope of a decode unit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UnitScope {
    pub(super) chunk: usize,
    pub(super) rank: usize,
    pub(super) layers: Range<usize>,
    /// In the context.
    pub(super) tokens: TokenRange,
    pub(super) level: Level,
}

/// Who decoded a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DecodedBy {
    Cpu,
    /// A device, with this much memory for all that it decoded together.
    Device(DeviceBytes),
    /// Its pages are another request's by now.
    Nobody,
    /// The CPU, because the device did not, for this reason.
    CpuInstead(String),
    /// The CPU, because the device was too slow before, for this reason, and was not asked.
    CpuIsFaster(String),
}

/// The result of a decode unit.
pub(super) struct DecodeOutcome {
    pub(super) scope: UnitScope,
    pub(super) took: Duration,
    /// When it ended.
    pub(super) at: Instant,
    pub(super) by: DecodedBy,
    /// What a device did, told once: with the first of the units that it was given at once.
    pub(super) on_device: Option<DeviceRun>,
    /// The number of rows not written because their page was reassigned; all others are in their pages.
    pub(super) result: Result<usize, LoadError>,
}

impl DecodeUnit {
    /// Decoding order: early layers of all chunks before later layers of any, so that an engine can start on
    /// the suffix; then by ranks, so that what a device takes together is in a row; then by tokens.
    pub(super) fn key(&self) -> (usize, usize, usize, usize) {
        (self.layers.start, self.rank, self.chunk, self.tokens.start)
    }

    fn scope(&self) -> UnitScope {
        UnitScope {
            chunk: self.chunk,
            rank: self.rank,
            layers: self.layers.clone(),
            tokens: context_range(self.first_token, &self.tokens),
            level: self.level,
        }
    }

    /// Elements of the cache that it writes.
    pub(super) fn elements(&self, context: &DecodeContext) -> u64 {
        let shard = context.tables[self.rank].shard();
        let is_written = |layer: &usize| shard.layers.contains(layer) && self.layers.contains(layer);
        let layers = context.spec.layers.iter().enumerate().filter(|(layer, _)| is_written(layer));
        let planes = layers.flat_map(|(_, layer)| layer.layout.planes());
        let of_token: usize = planes.map(|(heads, dim)| shard.heads_of(heads).len() * dim).sum();
        (of_token * self.tokens.len()) as u64
    }

    /// What a device is given; `None` if none decodes it.
    fn part<'a>(&'a self, table: &'a BlockTable) -> Option<DevicePart<'a>> {
        let (group, profile) = (self.group.as_ref()?, self.decoder.shared_profile()?);
        let (object, first) = ((&*self.head, &self.bytes[..]), self.first_token as usize);
        DevicePart::new(table, profile, object, group, self.level, first, self.tokens.clone())
    }

    fn decode_on_cpu(&self, context: &DecodeContext) -> Result<usize, LoadError> {
        let mut sink = context.tables[self.rank].sink(&context.spec, self.first_token, &context.gate);
        let (head, bytes, tokens) = (&self.head, &self.bytes, self.tokens.clone());
        match &self.group {
            Some(group) => self.decoder.decode_group(head, bytes, group, self.level, tokens, &mut sink),
            None => self.decoder.decode(head, bytes, self.level, tokens, &mut sink),
        }
        .map_err(|error| LoadError::Object(error.to_string()))?;
        Ok(sink.stale_rows)
    }
}

/// Who decoded a unit, and the number of its rows that were not written.
type Decoded = (DecodedBy, Result<usize, LoadError>);

/// Decodes units on a blocking thread: several that [join](joins) each other, on a device, or one `on_cpu`, with what that is
/// reported as. That was decided when they left the queue.
pub(super) async fn run(
    units: Vec<DecodeUnit>,
    on_cpu: Option<DecodedBy>,
    context: Arc<DecodeContext>,
) -> Vec<DecodeOutcome> {
    let scopes: Vec<UnitScope> = units.iter().map(DecodeUnit::scope).collect();
    let work = move || {
        let started = Instant::now();
        let (decoded, on_device) = decode(&units, on_cpu, &context);
        (started.elapsed(), Instant::now(), decoded, on_device)
    };
    let (took, at, decoded, mut on_device) =
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
            let what = format!("what was decoded together with it failed: {panic}");
            let others = std::iter::repeat_with(|| LoadError::Object(what.clone()));
            let errors = std::iter::once(LoadError::Read(panic.into())).chain(others);
            let decoded = scopes.iter().zip(errors).map(|(_, error)| (DecodedBy::Cpu, Err(error)));
            (Duration::ZERO, Instant::now(), decoded.collect(), None)
        });
    let tokens: u64 = scopes.iter().map(|scope| scope.tokens.len()).sum();
    let outcome = |(scope, (by, result)): (UnitScope, Decoded)| {
        let took = took.mul_f64(scope.tokens.len() as f64 / tokens.max(1) as f64);
        DecodeOutcome { scope, took, at, by, on_device: on_device.take(), result }
    };
    scopes.into_iter().zip(decoded).map(outcome).collect()
}

fn decode(
    units: &[DecodeUnit],
    on_cpu: Option<DecodedBy>,
    context: &DecodeContext,
) -> (Vec<Decoded>, Option<DeviceRun>) {
    let on_device = if on_cpu.is_none() { decode_on_device(units, context) } else { None };
    let Some((DeviceDecode { outcomes, memory, .. }, run)) = on_device else {
        let by = on_cpu.unwrap_or(DecodedBy::Cpu);
        let decoded = units.iter().map(|unit| (by.clone(), unit.decode_on_cpu(context)));
        return (decoded.collect(), None);
    };
    let decoded = |(unit, outcome): (&DecodeUnit, PartOutcome)| match outcome {
        PartOutcome::Decoded => (DecodedBy::Device(memory), Ok(0)),
        // One row of each token is counted: how many they are in all does not matter.
        PartOutcome::Stale => (DecodedBy::Nobody, Ok(unit.tokens.len())),
        // If an object is at fault, the CPU finds it too.
        PartOutcome::Refused(reason) => (DecodedBy::CpuInstead(reason), unit.decode_on_cpu(context)),
    };
    (units.iter().zip(outcomes).map(decoded).collect(), Some(run))
}

/// What a device did, with an outcome for each unit. `None` if the CPU has to decode them.
fn decode_on_device(units: &[DecodeUnit], context: &DecodeContext) -> Option<(DeviceDecode, DeviceRun)> {
    let rank = units.first()?.rank;
    let table = &context.tables[rank];
    let device = table.device()?;
    let parts: Vec<DevicePart<'_>> = units.iter().map(|unit| unit.part(table)).collect::<Option<_>>()?;
    let started = Instant::now();
    // The gate stays open until the device is done: after the load was dropped it writes nothing.
    let decoded = context.gate.hold_open(|| device.decode(&parts));
    let took = started.elapsed();
    let all = |outcome| DeviceDecode { outcomes: vec![outcome; units.len()], ..DeviceDecode::default() };
    let mut decoded = match decoded {
        Some(decoded) => decoded.unwrap_or_else(|reason| all(PartOutcome::Refused(reason))),
        None => all(PartOutcome::Stale),
    };
    let missing = PartOutcome::Refused("the device did not say what became of it".into());
    decoded.outcomes.resize(units.len(), missing);
    let is_refused = |outcome: &PartOutcome| matches!(outcome, PartOutcome::Refused(_));
    // A part that is refused beside others that are decoded, for its bytes for instance, is no fault of the device.
    if decoded.outcomes.iter().any(is_refused) && !decoded.outcomes.contains(&PartOutcome::Decoded) {
        context.device_faults[rank].fetch_add(1, Ordering::Relaxed);
    }
    let is_whole = decoded.outcomes.iter().all(|outcome| *outcome == PartOutcome::Decoded);
    let elements: u64 = if is_whole { units.iter().map(|unit| unit.elements(context)).sum() } else { 0 };
    let (times, took) = (decoded.times, took.saturating_sub(decoded.times.waited));
    let is_slow = context.promise.is_some_and(|promise| promise.is_broken_by(elements, took));
    Some((decoded, DeviceRun { rank, elements, began: started, took, is_slow, times }))
}

/// The decode units of a verified chunk, one for every run of tokens, group of layers, and rank that holds
/// part of it.
pub(super) fn decode_units(
    (chunk, first_token): (usize, u64),
    verified: &VerifiedChunk,
    decoder: &Arc<dyn ChunkDecoder>,
    context: &DecodeContext,
) -> Vec<DecodeUnit> {
    let unit = |rank, group: Option<Arc<LayerGroup>>, layers, tokens: &Range<usize>, level| DecodeUnit {
        chunk,
        rank,
        group,
        layers,
        tokens: tokens.clone(),
        first_token,
        level,
        head: Arc::clone(&verified.head),
        bytes: verified.bytes.clone(),
        decoder: Arc::clone(decoder),
    };
    let all = 0..context.spec.layers.len();
    let mut units = Vec::new();
    for (tokens, level) in &verified.runs {
        let Some(level) = *level else { continue };
        for (rank, table) in context.tables.iter().enumerate() {
            let shard = table.shard();
            let groups = decoder.layer_groups();
            if groups.is_empty() {
                units.push(unit(rank, None, all.clone(), tokens, level));
            }
            for group in groups {
                let scopes = group.scopes.iter().filter(|scope| {
                    meets(&scope.layers, &shard.layers)
                        // Planes with fewer heads than ranks belong to all ranks.
                        && (meets(&scope.heads, &shard.heads) || scope.heads.end <= shard.heads.start)
                });
                let layers = group.layers.clone();
                let part = LayerGroup { layers: layers.clone(), scopes: scopes.cloned().collect() };
                if !part.scopes.is_empty() {
                    units.push(unit(rank, Some(Arc::new(part)), layers, tokens, level));
                }
            }
        }
    }
    units
}

fn meets(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
