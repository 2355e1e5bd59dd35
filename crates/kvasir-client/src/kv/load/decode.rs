//! Decode units: some layers of some tokens of a verified chunk, for one rank.

use std::{ops::Range, sync::Arc, time::Duration};

use kvasir_codec::{ChunkDecoder, KvBuffer, LayerGroup, container::Head};
use kvasir_types::{Level, ModelSpec, TokenRange};
use tokio::time::Instant;

use super::{LoadError, assembly::VerifiedChunk, token_ranges::context_range};
use crate::pages::{BlockTable, WriteGate};

/// Where decoded rows go.
#[derive(Debug, Clone)]
pub(super) enum Destination {
    /// Into pages, straight from the decoding thread; one table a rank.
    Tables(Arc<[BlockTable]>),
    /// Back to the load's owner, who holds a sink that cannot leave its task.
    Rows,
}

/// What all decode units of a load share.
pub(super) struct DecodeContext {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) destination: Destination,
    pub(super) gate: Arc<WriteGate>,
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

/// What a decode unit is of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UnitScope {
    pub(super) chunk: usize,
    pub(super) rank: usize,
    pub(super) layers: Range<usize>,
    /// Of the context.
    pub(super) tokens: TokenRange,
    pub(super) level: Level,
}

/// How a decode unit ended.
pub(super) struct DecodeOutcome {
    pub(super) scope: UnitScope,
    pub(super) took: Duration,
    /// When it ended.
    pub(super) at: Instant,
    pub(super) result: Result<DecodedUnit, LoadError>,
}

/// The rows of a decoded unit.
pub(super) enum DecodedUnit {
    /// The rows are in their pages, except `stale_rows` whose page was reassigned.
    Written { stale_rows: usize },
    /// The rows of all layers, for the load's owner.
    Rows(Box<KvBuffer>),
}

impl DecodeUnit {
    /// What to decode first: early layers of everything before later layers of anything, so that an engine can start
    /// on the suffix; then the order of tokens.
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
            let result = self.decode(&context);
            (started.elapsed(), Instant::now(), result)
        };
        let (took, at, result) = tokio::task::spawn_blocking(decode)
            .await
            .unwrap_or_else(|panic| (Duration::ZERO, Instant::now(), Err(LoadError::Read(panic.into()))));
        DecodeOutcome { scope, took, at, result }
    }

    fn decode(&self, context: &DecodeContext) -> Result<DecodedUnit, LoadError> {
        match &context.destination {
            Destination::Tables(tables) => {
                let mut sink = tables[self.rank].sink(&context.spec, self.first_token, &context.gate);
                self.decode_into(&mut sink)?;
                Ok(DecodedUnit::Written { stale_rows: sink.stale_rows })
            }
            Destination::Rows => {
                let mut rows = KvBuffer::new(&context.spec, self.tokens.len());
                self.decode_into(&mut OffsetSink { rows: &mut rows, offset: self.tokens.start })?;
                Ok(DecodedUnit::Rows(Box::new(rows)))
            }
        }
    }

    fn decode_into(&self, sink: &mut dyn kvasir_codec::KvSink) -> Result<(), LoadError> {
        let (head, bytes, tokens) = (&self.head, &self.bytes, self.tokens.clone());
        match &self.group {
            Some(group) => self.decoder.decode_group(head, bytes, group, self.level, tokens, sink),
            None => self.decoder.decode(head, bytes, self.level, tokens, sink),
        }
        .map_err(|error| LoadError::Object(error.to_string()))
    }
}

/// Writes to a buffer whose token 0 is the chunk's token `offset`.
struct OffsetSink<'a> {
    rows: &'a mut KvBuffer,
    offset: usize,
}

impl kvasir_codec::KvSink for OffsetSink<'_> {
    fn write(&mut self, layer: usize, plane: kvasir_types::Plane, head: usize, first: usize, rows: &[f32]) {
        self.rows.write(layer, plane, head, first - self.offset, rows);
    }
}

/// The decode units of a verified chunk: every run of tokens, every group of layers, every rank that holds part of it.
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
        let Destination::Tables(tables) = &context.destination else {
            units.push(unit(0, None, all.clone(), tokens, level));
            continue;
        };
        for (rank, table) in tables.iter().enumerate() {
            let shard = table.shard();
            let groups = decoder.layer_groups();
            if groups.is_empty() {
                units.push(unit(rank, None, all.clone(), tokens, level));
            }
            for group in groups {
                let scopes = group.scopes.iter().filter(|scope| {
                    meets(&scope.layers, &shard.layers)
                        // Planes with fewer heads than ranks are everyone's.
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
