//! For `explain`: when and why the matched chunks were evicted from this replica's hot tier.

use std::collections::BTreeMap;

use kvasir_api::{ChunkEviction, LookupResponse};
use kvasir_store::layout::ChunkKey;
use kvasir_types::{Medium, ModelId, Name, SeqHash};

use super::Explain;
use crate::{
    hot::{FrameEviction, HotCache},
    limits,
};

impl Explain {
    /// When and why the matched chunks of a lookup were evicted from this replica's memory and disk, in the
    /// order of the context: one entry per chunk and medium, at most [`limits::EVICTIONS_LISTED_MAX`].
    pub(super) fn recent_evictions(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        found: &LookupResponse,
    ) -> Vec<ChunkEviction> {
        let Some(hot) = self.reads.tier() else { return Vec::new() };
        let not_in_memory: Vec<_> = found.chunks.iter().filter(|chunk| chunk.medium != Medium::Cpu).collect();
        let keys: Vec<ChunkKey> = not_in_memory
            .iter()
            .map(|chunk| ChunkKey {
                tenant: tenant.clone(),
                model_id: *model_id,
                seq_hash: chunk.seq_hash,
                object_digest: chunk.object_digest,
            })
            .collect();
        let mut evictions: BTreeMap<(usize, bool), ChunkEviction> = BTreeMap::new();
        for (position, eviction) in hot.tier().recent_evictions(&keys) {
            // The latest comes first and determines time and reason; earlier ones only add their bytes.
            let entry = evictions.entry((position, eviction.medium == Medium::Disk)).or_insert_with(|| {
                let chunk = not_in_memory[position];
                chunk_eviction(hot, chunk.seq_hash, chunk.medium, &eviction)
            });
            entry.level = entry.level.min(eviction.level);
            entry.bytes += eviction.bytes;
        }
        evictions.into_values().take(limits::EVICTIONS_LISTED_MAX).collect()
    }
}

/// The response's entry for a chunk, without bytes, from the eviction of one of its frames.
fn chunk_eviction(
    hot: &HotCache,
    seq_hash: SeqHash,
    now_in: Medium,
    eviction: &FrameEviction,
) -> ChunkEviction {
    let class = hot.requests().class(eviction.class);
    let millis = |seconds: f64| (seconds * 1e3) as u64;
    ChunkEviction {
        seq_hash,
        medium: eviction.medium,
        now_in,
        reason: eviction.reason.as_str().to_owned(),
        level: eviction.level,
        bytes: 0,
        ago_ms: millis(eviction.seconds_ago),
        age_ms: millis(eviction.age_seconds),
        idle_ms: millis(eviction.idle_seconds),
        request_type: class.as_ref().map_or_else(String::new, |class| class.kind.clone()),
        turn: class.map_or_else(String::new, |class| class.turn.label().to_owned()),
    }
}
