//! Tails contained in a longer chunk: a conversation's end is stored, the conversation continues, and a
//! longer chunk is stored. The shorter one is then useless.
//!
//! Tails are found in the hot index of the leading replica, where siblings are neighbours; those that it does
//! not know are left for another leader. A candidate is verified in the store: both heads are read, the
//! longer object is read whole, and the tokens decide.

use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{BLOCK_TOKENS, Reuse};

use super::{super::Lifecycle, GcPass};
use crate::{
    error::{CatalogError, ChunkError},
    index::Scope,
};

impl Lifecycle {
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
