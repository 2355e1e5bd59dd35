//! Lock-free agreement between collectors and pins.
//!
//! The collector records in the bucket which chunks it is about to delete (an *intent*), then reads the pins
//! of their tenants, and writes tombstones for unpinned ones. A pin is written first, waits until no intent
//! that it finds names its chunks, and then checks for tombstones. Either the pin or the intent exists before
//! the other is looked for: every collector whose intent comes later sees an acknowledged pin, and an earlier
//! intent can no longer yield tombstones. So no tombstone ever has to be withdrawn.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{ModelId, Name, SeqHash};
use object_store::PutPayload;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use super::{super::Lifecycle, GcPass, concurrent::concurrently};
use crate::{checked_json, limits, removal::Removal, transitions::Transition};

/// A stored intent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Intent {
    pub(crate) id: Uuid,
    pub(crate) chunks: Vec<IntendedChunk>,
}

/// A chunk in an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IntendedChunk {
    pub(crate) tenant: Name,
    pub(crate) model_id: ModelId,
    pub(crate) seq_hash: SeqHash,
}

/// Objects that a pass has decided to delete, before it records the intent.
#[derive(Debug, Default)]
pub(super) struct Decided {
    objects: Vec<(ChunkKey, Removal)>,
}

/// What became of the decisions about one chunk.
#[derive(Debug, Default)]
struct CarriedOut {
    spared: u64,
    was_cut_short: bool,
}

impl Decided {
    pub(super) fn push(&mut self, key: &ChunkKey, reason: Removal) {
        self.objects.push((key.clone(), reason));
    }
}

impl Lifecycle {
    /// Carries out the decisions once there are enough for an intent.
    pub(super) async fn carry_out_due(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        self.still_lists(pass).await?;
        if pass.decided.objects.len() < limits::GC_INTENT_CHUNKS_MAX {
            return Ok(());
        }
        self.carry_out(pass).await
    }

    /// Writes an intent, reads the pins of its tenants, and writes tombstones for unpinned objects.
    pub(super) async fn carry_out(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let decided = std::mem::take(&mut pass.decided).objects;
        if decided.is_empty() {
            return Ok(());
        }
        let chunk = |(key, _): &(ChunkKey, Removal)| IntendedChunk {
            tenant: key.tenant.clone(),
            model_id: key.model_id,
            seq_hash: key.seq_hash,
        };
        let intent = Intent { id: Uuid::now_v7(), chunks: decided.iter().map(chunk).collect() };
        let json = checked_json::to_vec(&intent)
            .map_err(|e| StoreError::own("writing an intent", &e.to_string()))?;
        let path = self.bucket.path(&Key::GcIntent(intent.id));
        let begun = Instant::now();
        self.bucket.put(&path, PutPayload::from(json), "writing an intent").await?;
        self.bucket.reached(Transition::IntentWritten);
        let tenants: BTreeSet<Name> = decided.iter().map(|(key, _)| key.tenant.clone()).collect();
        let mut chunks: BTreeMap<(Name, ModelId, SeqHash), Vec<(ChunkKey, Removal)>> = BTreeMap::new();
        self.read_contexts(pass, tenants).await?;
        for (key, reason) in decided {
            let chunk = (key.tenant.clone(), key.model_id, key.seq_hash);
            chunks.entry(chunk).or_default().push((key, reason));
        }
        let shared = &*pass;
        let write = |objects| self.write_tombstones(shared, begun, objects);
        let (carried_out, outcome) = concurrently(chunks.into_values().collect(), write).await;
        for of_chunk in carried_out {
            pass.report.spared += of_chunk.spared;
            pass.was_cut_short |= of_chunk.was_cut_short;
        }
        // After an error it stays until it is old: a tombstone may still be in flight.
        outcome?;
        self.bucket.delete(&path).await
    }

    /// Writes tombstones for the unpinned ones of a chunk's objects. One after the other: each may be the last one that can
    /// serve a pin.
    async fn write_tombstones(
        &self,
        pass: &GcPass<'_>,
        begun: Instant,
        objects: Vec<(ChunkKey, Removal)>,
    ) -> Result<CarriedOut, StoreError> {
        let mut carried_out = CarriedOut::default();
        for (key, reason) in objects {
            if self.is_pinned(pass, &key, reason).await? {
                carried_out.spared += 1;
                continue;
            }
            pass.pace().await;
            // After a long suspension, others may no longer respect the intent.
            if begun.elapsed() >= limits::GC_INTENT_USE {
                carried_out.was_cut_short = true;
                break;
            }
            self.changes.write_tombstone(&key, reason).await?;
        }
        Ok(carried_out)
    }

    /// Deletes the intents of collectors that ended before they had carried them out.
    pub(super) async fn delete_old_intents(&self, pass: &GcPass<'_>) -> Result<(), StoreError> {
        let prefix = self.bucket.layout().intents_prefix();
        let mut listing = self.bucket.list(&prefix, "listing the collectors' intents");
        while let Some((key, meta)) = listing.try_next().await? {
            let is_old = pass.now.age(&meta) >= limits::GC_INTENT_KEPT;
            if matches!(key, Key::GcIntent(_)) && is_old && !pass.policy.dry_run {
                self.bucket.delete(&meta.location).await?;
            }
        }
        Ok(())
    }
}
