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
    removal::Removal,
};

impl Lifecycle {
    /// Marks the tails that this replica knows in other replicas' units.
    pub(super) async fn collect_known_tails(
        &self,
        pass: &mut GcPass<'_>,
        models: Vec<(Name, ModelId)>,
    ) -> Result<(), StoreError> {
        let scope = |(tenant, model_id): &(Name, ModelId)| Scope::new(tenant, model_id);
        let scopes: HashMap<_, _> = models.into_iter().map(|model| (scope(&model), model)).collect();
        // In an order that does not depend on the map: one seed of the simulation, one trace. Models are adjacent.
        let mut entries = self.reads.index().entries();
        entries.sort_unstable_by_key(|(scope, entry)| (*scope, entry.row.seq_hash, entry.row.object_digest));
        for (scope, entry) in entries {
            let Some((tenant, model_id)) = scopes.get(&scope).cloned() else { continue };
            let (seq_hash, object_digest) = (entry.row.seq_hash, entry.row.object_digest);
            let key = ChunkKey { tenant, model_id, seq_hash, object_digest };
            if !self.may_be_contained(&key) || pass.owns(&key) || self.may_pin(pass, &key).await? {
                continue;
            }
            let path = self.bucket.path(&Key::Chunk(key.clone()));
            let meta = self.bucket.head(&path, "asking for a tail").await?;
            if meta.is_none_or(|meta| pass.now.age(&meta) < pass.policy.grace) {
                continue;
            }
            self.mark_if_contained(pass, &key).await?;
        }
        Ok(())
    }

    /// Marks a tail if a longer chunk contains it.
    pub(super) async fn mark_if_contained(
        &self,
        pass: &mut GcPass<'_>,
        key: &ChunkKey,
    ) -> Result<(), StoreError> {
        let contained = self.is_contained_tail(pass, key).await;
        if pass.read_or_left(key, contained).unwrap_or(false) {
            pass.report.contained += 1;
            self.mark_deleted(pass, key, Removal::Contained).await?;
        }
        Ok(())
    }

    /// Whether the index knows a chunk that may contain all of `key`.
    pub(super) fn may_be_contained(&self, key: &ChunkKey) -> bool {
        let (scope, index) = (Scope::new(&key.tenant, &key.model_id), self.reads.index());
        let entry = index.entry(scope, key.object_digest);
        entry.is_some_and(|entry| index.index().longer_sibling(scope, &entry).is_some())
    }

    /// Whether a longer sibling contains all of `key`, verified in the store.
    pub(super) async fn is_contained_tail(
        &self,
        pass: &GcPass<'_>,
        key: &ChunkKey,
    ) -> Result<bool, StoreError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let Some(entry) = self.reads.index().entry(scope, key.object_digest) else { return Ok(false) };
        let index = self.reads.index().index();
        let Some(longer) = index.longer_sibling(scope, &entry) else { return Ok(false) };
        // Chunks that follow this one would lose their parent; and whole caches are only usable as a whole.
        let is_whole = match self.catalog.model(&key.tenant, &key.model_id).await {
            Ok(model) => model.reuse == Reuse::Whole,
            Err(CatalogError::Store(error)) => return Err(error),
            // Unknown: keep it.
            Err(_) => true,
        };
        if is_whole || index.has_children(scope, &entry.row.seq_hash) {
            return Ok(false);
        }
        let longer =
            ChunkKey { seq_hash: longer.seq_hash, object_digest: longer.object_digest, ..key.clone() };
        match self.contains(pass, &longer, key).await {
            Ok(is_proved) => Ok(is_proved),
            Err(error) => error.only_this_object().map(|()| false),
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
