//! Decode units: some layers of some tokens of a verified chunk, for one rank.

use std::{ops::Range, sync::Arc, time::Duration};

use kvasir_codec::{ChunkDecoder, LayerGroup, container::Head};
use kvasir_types::{Level, ModelSpec, TokenRange};
use tokio::time::Instant;

use super::{LoadError, assembly::VerifiedChunk, token_ranges::context_range};
use crate::pages::{BlockTable, WriteGate};

/// Context shared by all decode units of a load.
pub(super) struct DecodeContext {
    pub(super) spec: Arc<ModelSpec>,
    /// The decoding thread writes rows here directly; one table per rank.
    pub(super) tables: Vec<BlockTable>,
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

/// The result of a decode unit.
pub(super) struct DecodeOutcome {
    pub(super) scope: UnitScope,
    pub(super) took: Duration,
    /// When it ended.
    pub(super) at: Instant,
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
            let result = self.decode(&context);
            (started.elapsed(), Instant::now(), result)
        };
        let (took, at, result) = tokio::task::spawn_blocking(decode)
            .await
            .unwrap_or_else(|panic| (Duration::ZERO, Instant::now(), Err(LoadError::Read(panic.into()))));
        DecodeOutcome { scope, took, at, result }
    }

    fn decode(&self, context: &DecodeContext) -> Result<usize, LoadError> {
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
