//! Tails contained in a longer chunk: a conversation's end is stored, the conversation continues, and a
//! longer chunk is stored. The shorter one is then useless.
//!
//! Tails are found in the hot index, where siblings are neighbours: those that the owner of a unit knows when the unit
//! is listed, and in a large cluster, where others know them, those that this replica knows. A candidate is verified in
//! the store: both heads are read, the longer object is read whole, and the tokens decide.

use std::collections::HashMap;

use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{BLOCK_TOKENS, ModelId, Name, Reuse};

use super::{super::Lifecycle, GcPass};
use crate::{
    error::{CatalogError, ChunkError},
    index::Scope,
    limits,
    removal::Removal,
};

impl Lifecycle {
    /// Marks the tails that this replica knows in other replicas' units. To verify one takes a second, and what is marked between
    /// two turns of the journal is announced in one batch, which every replica reads: so they are marked once the others were
    /// verified, or an error ended that.
    pub(super) async fn collect_known_tails(
        &self,
        pass: &mut GcPass<'_>,
        models: Vec<(Name, ModelId)>,
    ) -> Result<(), StoreError> {
        let mut tails = Vec::new();
        let verified = self.verify_known_tails(pass, models, &mut tails).await;
        let marked = self.mark_contained(pass, tails).await;
        let carried_out = self.carry_out(pass).await;
        verified.and(marked).and(carried_out)
    }

    /// Adds tails and the longer chunks that contain them to `tails`. The rest of the pass waits for that, so it ends after
    /// [`limits::GC_KNOWN_TAILS_MAX`] candidates, and the next pass begins behind them.
    async fn verify_known_tails(
        &self,
        pass: &mut GcPass<'_>,
        models: Vec<(Name, ModelId)>,
        tails: &mut Vec<(ChunkKey, ChunkKey)>,
    ) -> Result<(), StoreError> {
        let scope = |(tenant, model_id): &(Name, ModelId)| Scope::new(tenant, model_id);
        let scopes: HashMap<_, _> = models.into_iter().map(|model| (scope(&model), model)).collect();
        // In an order that does not depend on the map: one seed of the simulation, one trace. Models are adjacent.
        let entries = self.reads.index().entries().into_iter();
        let mut places: Vec<_> =
            entries.map(|(scope, entry)| (scope, entry.row.seq_hash, entry.row.object_digest)).collect();
        sort_from_behind(&mut places, *self.last_known_tail.lock());
        let mut asked = 0;
        for place in places {
            let (scope, seq_hash, object_digest) = place;
            let Some((tenant, model_id)) = scopes.get(&scope).cloned() else { continue };
            let key = ChunkKey { tenant, model_id, seq_hash, object_digest };
            let may_go = self.may_be_contained(&key)
                && !pass.owns(&key)
                && pass.tenant_budget.has_remaining(&key.tenant)
                && !self.may_pin(pass, &key).await?;
            if !may_go {
                continue;
            }
            if asked == limits::GC_KNOWN_TAILS_MAX {
                break;
            }
            asked += 1;
            *self.last_known_tail.lock() = Some(place);
            let path = self.bucket.path(&Key::Chunk(key.clone()));
            let meta = self.bucket.head(&path, "asking for a tail").await?;
            if meta.is_none_or(|meta| pass.now.age(&meta) < pass.policy.grace) {
                continue;
            }
            self.still_lists(pass).await?;
            let longer = self.chunk_around(pass, &key).await;
            if let Some(longer) = pass.read_or_left(&key, longer).flatten() {
                tails.push((key, longer));
            }
        }
        Ok(())
    }

    /// Marks a tail if a longer chunk contains it.
    pub(super) async fn mark_if_contained(
        &self,
        pass: &mut GcPass<'_>,
        key: &ChunkKey,
    ) -> Result<(), StoreError> {
        let longer = self.chunk_around(pass, key).await;
        let tail = pass.read_or_left(key, longer).flatten().map(|longer| (key.clone(), longer));
        self.mark_contained(pass, Vec::from_iter(tail)).await
    }

    /// Marks tails, each with the longer chunk that contains it.
    async fn mark_contained(
        &self,
        pass: &mut GcPass<'_>,
        tails: Vec<(ChunkKey, ChunkKey)>,
    ) -> Result<(), StoreError> {
        for (tail, longer) in tails {
            pass.report.contained += 1;
            self.mark_deleted(pass, &tail, Removal::Contained, Some(&longer)).await?;
        }
        Ok(())
    }

    /// Whether the index knows a chunk that may contain all of `key`.
    pub(super) fn may_be_contained(&self, key: &ChunkKey) -> bool {
        let (scope, index) = (Scope::new(&key.tenant, &key.model_id), self.reads.index());
        let entry = index.entry(scope, key.object_digest);
        entry.is_some_and(|entry| index.index().longer_sibling(scope, &entry).is_some())
    }

    /// The longer sibling that contains all of `key`, verified in the store.
    async fn chunk_around(&self, pass: &GcPass<'_>, key: &ChunkKey) -> Result<Option<ChunkKey>, StoreError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let Some(entry) = self.reads.index().entry(scope, key.object_digest) else { return Ok(None) };
        let index = self.reads.index().index();
        let Some(longer) = index.longer_sibling(scope, &entry) else { return Ok(None) };
        // Chunks that follow this one would lose their parent; and whole caches are only usable as a whole.
        let is_whole = match self.catalog.model(&key.tenant, &key.model_id).await {
            Ok(model) => model.reuse == Reuse::Whole,
            Err(CatalogError::Store(error)) => return Err(error),
            // Unknown: keep it.
            Err(_) => true,
        };
        if is_whole || self.has_children(key) {
            return Ok(None);
        }
        let longer =
            ChunkKey { seq_hash: longer.seq_hash, object_digest: longer.object_digest, ..key.clone() };
        match self.contains(pass, &longer, key).await {
            Ok(is_proved) => Ok(is_proved.then_some(longer)),
            Err(error) => error.only_this_object().map(|()| None),
        }
    }

    /// Whether `longer` stays, is intact, and contains all of `shorter`'s tokens after the same parent.
    async fn contains(
        &self,
        pass: &GcPass<'_>,
        longer: &ChunkKey,
        shorter: &ChunkKey,
    ) -> Result<bool, ChunkError> {
        let path = self.bucket.path(&Key::Chunk(longer.clone()));
        let Some(meta) = self.bucket.head(&path, "asking for a longer sibling").await? else {
            return Ok(false);
        };
        let tombstones = self.reads.tombstones();
        let is_settled = pass.now.age(&meta) >= pass.policy.grace;
        if !is_settled || tombstones.has(longer).await? || tombstones.has(shorter).await? {
            return Ok(false);
        }
        let (long, short) = (self.reads.read_head(longer).await?, self.reads.read_head(shorter).await?);
        let holds = long.header.parent_hash == short.header.parent_hash
            && long.tokens.len() > short.tokens.len()
            && long.tokens.starts_with(&short.tokens)
            && long.header.kl_beneath <= short.header.kl_beneath
            && long.header.profile_hash == short.header.profile_hash
            && short.tokens.len() >= BLOCK_TOKENS;
        Ok(holds && self.reads.is_what_it_is_called(longer).await?)
    }
}

/// Sorts candidates, those behind `last` first.
fn sort_from_behind<T: Copy + Ord>(candidates: &mut [T], last: Option<T>) {
    candidates.sort_unstable();
    let behind = candidates.partition_point(|candidate| Some(*candidate) <= last);
    candidates.rotate_left(behind);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_begins_behind_where_the_last_one_stopped() {
        let sorted = |last| {
            let mut candidates = [40, 10, 30, 20];
            sort_from_behind(&mut candidates, last);
            candidates
        };
        assert_eq!(sorted(None), [10, 20, 30, 40]);
        assert_eq!([sorted(Some(20)), sorted(Some(25))], [[30, 40, 10, 20]; 2]);
        assert_eq!([sorted(Some(5)), sorted(Some(40))], [[10, 20, 30, 40]; 2]);
    }
}
