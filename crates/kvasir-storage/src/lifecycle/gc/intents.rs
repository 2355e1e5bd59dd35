//! Lock-free agreement between collectors and pins.
//!
//! The collector records in the bucket which chunks it is about to delete (an *intent*), then reads the pins
//! of their tenants, and writes tombstones for unpinned ones. A pin is written first, waits until no intent
//! that it finds names its chunks, and then checks for tombstones. Either the pin or the intent exists before
//! the other is looked for: every collector whose intent comes later sees an acknowledged pin, and an earlier
//! intent can no longer yield tombstones. So no tombstone ever has to be withdrawn.
//!
//! A duplicate or a contained tail may go because another object has its content. That one may have been removed since the
//! decision, which was up to [`limits::GC_INTENT_CHUNKS_MAX`] chunks or the rest of a pass ago. So it is asked for again
//! before the tombstone. A tail may have got a child meanwhile, which would lose its parent.

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
use crate::{checked_json, index::Scope, limits, removal::Removal, transitions::Transition};

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
    objects: Vec<Decision>,
}

/// An object to be deleted.
#[derive(Debug)]
struct Decision {
    key: ChunkKey,
    reason: Removal,
    /// The object that has its content. Without it, this one stays.
    stand_in: Option<ChunkKey>,
}

/// What became of the decisions about one chunk.
#[derive(Debug, Default)]
struct CarriedOut {
    spared: u64,
    was_cut_short: bool,
}

impl Lifecycle {
    /// Decides that an object gets a tombstone, unless this is a dry run or the tenant's budget is exhausted. `stand_in`: the
    /// object that has its content, where that is why it may go.
    pub(super) async fn mark_deleted(
        &self,
        pass: &mut GcPass<'_>,
        key: &ChunkKey,
        reason: Removal,
        stand_in: Option<&ChunkKey>,
    ) -> Result<(), StoreError> {
        pass.exclude_from_capacity(key);
        if pass.policy.dry_run || !pass.tenant_budget.try_take(&key.tenant) {
            return Ok(());
        }
        let decision = Decision { key: key.clone(), reason, stand_in: stand_in.cloned() };
        pass.decided.objects.push(decision);
        self.carry_out_due(pass).await
    }

    /// Carries out the decisions once there are enough for an intent.
    pub(super) async fn carry_out_due(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        self.still_lists(pass).await?;
        if pass.decided.objects.len() < limits::GC_INTENT_CHUNKS_MAX {
            return Ok(());
        }
        self.carry_out(pass).await
    }

    /// Writes an intent, reads the pins of its tenants, and writes tombstones for unpinned objects whose stand-ins are still
    /// there.
    pub(super) async fn carry_out(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let decided = std::mem::take(&mut pass.decided).objects;
        if decided.is_empty() {
            return Ok(());
        }
        let chunk = |Decision { key, .. }: &Decision| IntendedChunk {
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
        let tenants: BTreeSet<Name> = decided.iter().map(|decision| decision.key.tenant.clone()).collect();
        let mut chunks: BTreeMap<(Name, ModelId, SeqHash), Vec<Decision>> = BTreeMap::new();
        self.read_contexts(pass, tenants).await?;
        for decision in decided {
            let key = &decision.key;
            let chunk = (key.tenant.clone(), key.model_id, key.seq_hash);
            chunks.entry(chunk).or_default().push(decision);
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

    /// Writes tombstones for those of a chunk's objects that no context pins, and whose stand-ins are still there. One after
    /// the other: one may stand in for the next.
    async fn write_tombstones(
        &self,
        pass: &GcPass<'_>,
        begun: Instant,
        objects: Vec<Decision>,
    ) -> Result<CarriedOut, StoreError> {
        let mut carried_out = CarriedOut::default();
        for Decision { key, reason, stand_in } in objects {
            // Another object of the chunk serves a pin as well; a longer chunk does not.
            let is_pinned =
                pass.contexts.may_pin(&key) && !(reason == Removal::Duplicate && stand_in.is_some());
            if is_pinned {
                carried_out.spared += 1;
                continue;
            }
            pass.pace().await;
            if let Some(stand_in) = &stand_in
                && !self.is_offered(stand_in).await?
            {
                carried_out.spared += 1;
                continue;
            }
            if reason == Removal::Contained && self.has_children(&key) {
                carried_out.spared += 1;
                continue;
            }
            // After a long suspension, others may no longer respect the intent.
            if begun.elapsed() >= limits::GC_INTENT_USE {
                carried_out.was_cut_short = true;
                break;
            }
            self.changes.write_tombstone(&key, reason).await?;
        }
        Ok(carried_out)
    }

    /// Whether the index knows a chunk behind this one.
    pub(super) fn has_children(&self, key: &ChunkKey) -> bool {
        let scope = Scope::new(&key.tenant, &key.model_id);
        self.reads.index().index().has_children(scope, &key.seq_hash)
    }

    /// Whether an object is in the store and has no tombstone. Its bytes were read before the decision, and its name never has
    /// others.
    async fn is_offered(&self, key: &ChunkKey) -> Result<bool, StoreError> {
        let path = self.bucket.path(&Key::Chunk(key.clone()));
        let is_there = self.bucket.head(&path, "asking for what stays in its place").await?.is_some();
        Ok(is_there && !self.reads.tombstones().has(key).await?)
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
