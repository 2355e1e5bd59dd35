//! Decode units: some layers of some tokens of a verified chunk, for one rank.

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

use super::{LoadError, assembly::VerifiedChunk, token_ranges::context_range};
use crate::{
    limits::DEVICE_FAULTS_MAX,
    pages::{BlockTable, DevicePart, WriteGate},
};

/// Context shared by all decode units of a load.
pub(super) struct DecodeContext {
    pub(super) spec: Arc<ModelSpec>,
    /// The decoding thread writes rows here directly; one table per rank.
    pub(super) tables: Vec<BlockTable>,
    pub(super) gate: Arc<WriteGate>,
    /// For each table, parts that its device did not decode so far.
    device_faults: Vec<AtomicU32>,
}

impl DecodeContext {
    pub(super) fn new(spec: Arc<ModelSpec>, tables: Vec<BlockTable>, gate: Arc<WriteGate>) -> Self {
        let device_faults = tables.iter().map(|_| AtomicU32::new(0)).collect();
        Self { spec, tables, gate, device_faults }
    }

    /// Whether a device decodes for one of the tables.
    pub(super) fn is_on_device(&self) -> bool {
        self.tables.iter().any(|table| table.device().is_some())
    }
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
    Device,
    /// Its pages are another request's by now.
    Nobody,
    /// The CPU, because the device did not, for this reason.
    CpuInstead(String),
}

/// The result of a decode unit.
pub(super) struct DecodeOutcome {
    pub(super) scope: UnitScope,
    pub(super) took: Duration,
    /// When it ended.
    pub(super) at: Instant,
    pub(super) by: DecodedBy,
    /// The number of rows not written because their page was reassigned; all others are in their pages.
    pub(super) result: Result<usize, LoadError>,
}

impl DecodeUnit {
    /// Decoding order: early layers of all chunks before later layers of any, so that an engine can start on
    /// the suffix; then by tokens.
    pub(super) fn key(&self) -> (usize, usize, usize, usize) {
        (self.layers.start, self.chunk, self.tokens.start, self.rank)
    }

    /// Decodes on a blocking thread.
    pub(super) async fn run(self, context: Arc<DecodeContext>) -> DecodeOutcome {
        let scope = UnitScope {
            chunk: self.chunk,
            rank: self.rank,
            layers: self.layers.clone(),
            tokens: context_range(self.first_token, &self.tokens),
            level: self.level,
        };
        let decode = move || {
            let started = Instant::now();
            let (by, result) = self.decode(&context);
            (started.elapsed(), Instant::now(), by, result)
        };
        let (took, at, by, result) = tokio::task::spawn_blocking(decode).await.unwrap_or_else(|panic| {
            (Duration::ZERO, Instant::now(), DecodedBy::Cpu, Err(LoadError::Read(panic.into())))
        });
        DecodeOutcome { scope, took, at, by, result }
    }

    fn decode(&self, context: &DecodeContext) -> (DecodedBy, Result<usize, LoadError>) {
        match self.decode_on_device(context) {
            None => (DecodedBy::Cpu, self.decode_on_cpu(context)),
            Some(Ok(0)) => (DecodedBy::Device, Ok(0)),
            Some(Ok(stale_rows)) => (DecodedBy::Nobody, Ok(stale_rows)),
            Some(Err(reason)) => {
                context.device_faults[self.rank].fetch_add(1, Ordering::Relaxed);
                // If the object is at fault, the CPU finds it too.
                (DecodedBy::CpuInstead(reason), self.decode_on_cpu(context))
            }
        }
    }

    /// `None` without a device, or if the CPU has to decode.
    fn decode_on_device(&self, context: &DecodeContext) -> Option<Result<usize, String>> {
        let table = &context.tables[self.rank];
        let (device, group, profile) =
            (table.device()?, self.group.as_ref()?, self.decoder.shared_profile()?);
        // Devices decode no lossless level, which is no fault of theirs.
        if self.level.index() >= profile.lossy_levels()
            || context.device_faults[self.rank].load(Ordering::Relaxed) >= DEVICE_FAULTS_MAX
        {
            return None;
        }
        let first = self.first_token as usize;
        let (pages, first_slot) = table.pages_of(&(first + self.tokens.start..first + self.tokens.end))?;
        let part = DevicePart {
            table,
            profile,
            head: &self.head,
            object_prefix: &self.bytes,
            scopes: group.scopes.iter().map(|reach| reach.scope).collect(),
            level: self.level,
            tokens: self.tokens.clone(),
            pages,
            first_slot,
        };
        // The gate stays open until the device is done: after the load was dropped it writes nothing.
        let decoded = context.gate.hold_open(|| device.decode(&part));
        // Of stale pages, one row of each token is counted: how many they are in all does not matter.
        let stale_rows = |written: bool| if written { 0 } else { self.tokens.len() };
        Some(decoded.unwrap_or(Ok(false)).map(stale_rows))
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
