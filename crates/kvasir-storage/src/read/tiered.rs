//! Reads through the hot tier, and the hints of lookups for it.

use std::{ops::Range, sync::Arc};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kvasir_api::ChunkMatch;
use kvasir_container::Head;
use kvasir_eviction::ClassId;
use kvasir_store::{StoreError, layout::ChunkKey, of_tenant};
use kvasir_types::{Level, Medium, ModelId, Name, SeqHash};
use tokio::sync::OwnedSemaphorePermit;

use super::Reads;
use crate::{
    blocking::blocking,
    error::{ChunkError, ChunkMismatch},
    hot::{FrameKey, HotCache, HotContext, HotObject, RangeReader, RequestHint},
    index::{IndexEntry, Scope, Walk},
    limits,
    object_read::{ByteRange, ObjectRead},
};

impl Reads {
    /// The hot tier, if there is one.
    pub fn tier(&self) -> Option<&Arc<HotCache>> {
        self.tier.as_ref()
    }

    /// Reads from the hot tier, and missing parts from the store, once for all concurrent readers.
    pub(super) async fn read_hot(
        self: &Arc<Self>,
        hot: &Arc<HotCache>,
        key: &ChunkKey,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let object = match hot.object(scope, key.object_digest).filter(|object| object.chunk() == key) {
            Some(object) => object,
            None => hot.register_object(key, &self.head(key).await?),
        };
        let object_bytes = object.bytes();
        let range = range.resolve(object_bytes).ok_or(ChunkError::Range { object_bytes })?;
        let context = hot.requests().context(&object, hint, hot.tier().now());
        if hint.is_verified {
            let (tier, object, range) = (Arc::clone(hot.tier()), Arc::clone(&object), range.clone());
            blocking(move || tier.drop_damaged(&object, &range)).await.map_err(StoreError::Task)?;
        }
        self.read_ahead(hot, &object, context, range.end);
        let mut bytes =
            hot.tier().read(&object, range.clone(), context, self.range_reader(key, object_bytes));
        // Wait for the first bytes before the response begins: a missing object is then an error rather than
        // a cut-off body.
        let first = bytes.try_next().await.inspect_err(|error| self.evict_if_corrupt(scope, error))?;
        let this = Arc::clone(self);
        let rest = bytes.inspect_err(move |error| this.evict_if_corrupt(scope, error));
        Ok(ObjectRead { range, object_bytes, bytes: stream::iter(first.map(Ok)).chain(rest).boxed() })
    }

    /// A head from the hot tier or the store, verified. Frames on disk outlive what this replica remembers of
    /// removals, so for an object of which this process remembers no row, the store is asked.
    pub(crate) async fn head(&self, key: &ChunkKey) -> Result<Head, ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let is_known = self.index.row(scope, key.object_digest).is_some()
            || self.index.entry(scope, key.object_digest).is_some();
        if is_known
            && let Some(hot) = &self.tier
            && let Some(frame) = hot.tier().first_frame(key).await
            && let Ok(head) = Head::parse(&frame)
            && is_head_of(&head, key)
        {
            return Ok(head);
        }
        let head = self.read_head(key).await?;
        if self.tier.is_some() {
            // It is known from now on: the next read does not ask the store.
            let entry = IndexEntry::of_head(&head, key.object_digest);
            self.index.note_row_unless_gone(scope, &entry.row);
        }
        Ok(head)
    }

    /// Counts and drops the object that an error reports as corrupt in the store.
    fn evict_if_corrupt(&self, scope: Scope, error: &ChunkError) {
        if let ChunkError::Corrupt { object_digest, .. } = error {
            self.found_corrupt(error);
            self.forget(scope, *object_digest);
        }
    }

    /// Reads ranges of an object from the store, for the hot tier.
    fn range_reader(self: &Arc<Self>, key: &ChunkKey, object_bytes: u64) -> RangeReader {
        let (this, key) = (Arc::clone(self), key.clone());
        Arc::new(move |range: Range<u64>| {
            let (this, key) = (Arc::clone(&this), key.clone());
            async move {
                let options = of_tenant(&key.tenant);
                let parts = this.open(&key, Some(range), Some(object_bytes), options).await?;
                Ok(parts.bytes)
            }
            .boxed()
        })
    }

    /// Prefetches the chunks after the one being read, as much of each as is read of this one.
    fn read_ahead(
        self: &Arc<Self>,
        hot: &Arc<HotCache>,
        object: &Arc<HotObject>,
        context: HotContext,
        end: u64,
    ) {
        let count = hot.tier().settings().read_ahead_chunks;
        if count == 0 {
            return;
        }
        let levels = object.levels_within(end).max(1);
        for key in hot.requests().behind(object, &context, count) {
            let scope = Scope::new(&key.tenant, &key.model_id);
            let row = self.index.row(scope, key.object_digest);
            let wanted =
                row.and_then(|row| row.level_bytes.get(levels - 1).or(row.level_bytes.last()).copied());
            let Some(wanted) = wanted else { continue };
            if matches!(hot.tier().medium_of_prefix(&key, wanted), Medium::Cpu) {
                continue;
            }
            let Some(permit) = hot.tier().prefetch_permit() else { return };
            self.spawn_read_ahead(hot, key, permit, move |_, _| (wanted, context));
        }
    }

    /// Caches the base of an object that clients read directly, if the tier has capacity for prefetches.
    pub(super) fn prefetch_base(self: &Arc<Self>, key: &ChunkKey) {
        let Some(hot) = &self.tier else { return };
        let Some(permit) = hot.tier().prefetch_permit() else { return };
        let (this, requests) = (Arc::clone(self), Arc::clone(hot));
        self.spawn_read_ahead(hot, key.clone(), permit, move |head, object| {
            let base = this.offered_bytes(&[head.level_bytes(Level::BASE).unwrap_or(0)]);
            (base, requests.requests().context(object, &RequestHint::default(), requests.tier().now()))
        });
    }

    /// Reads the head of an object, and then as much of it into the tier as `wanted` returns.
    fn spawn_read_ahead(
        self: &Arc<Self>,
        hot: &Arc<HotCache>,
        key: ChunkKey,
        permit: OwnedSemaphorePermit,
        wanted: impl FnOnce(&Head, &Arc<HotObject>) -> (u64, HotContext) + Send + 'static,
    ) {
        let (this, hot) = (Arc::clone(self), Arc::clone(hot));
        tokio::spawn(async move {
            let Ok(head) = this.head(&key).await else { return };
            let object = hot.register_object(&key, &head);
            let (bytes, context) = wanted(&head, &object);
            let source = this.range_reader(&key, object.bytes());
            hot.tier().read_ahead(&object, 0..bytes, context, source).await;
            drop(permit);
        });
    }

    /// Bytes of an object's prefix that are cached when it is stored: its base, if there is a hot tier.
    pub(crate) fn offered_bytes(&self, level_bytes: &[u64]) -> u64 {
        let base = level_bytes.first().copied().unwrap_or(0);
        if self.tier.is_some() { base.min(limits::HOT_OFFERED_BYTES_MAX) } else { 0 }
    }

    /// Tells the hot tier about a lookup and its result. Returns the request's class.
    pub(crate) fn note_lookup(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        hint: &RequestHint,
        blocks: &[SeqHash],
        walk: &Walk,
    ) -> Option<ClassId> {
        let hot = self.tier.as_ref()?;
        self.index.note_rows(Scope::new(tenant, model_id), walk);
        let found: Vec<_> =
            walk.chunks.iter().map(|chunk| (chunk.row.seq_hash, chunk.row.object_digest)).collect();
        let now = hot.tier().now();
        Some(hot.requests().record_lookup((tenant, model_id), hint, blocks, &found, now))
    }

    /// The media of the chunks' bases.
    pub(crate) fn media(&self, scope: Scope, chunks: &[ChunkMatch]) -> Vec<Medium> {
        let Some(hot) = &self.tier else { return vec![Medium::Object; chunks.len()] };
        let bases = chunks.iter().map(|chunk| {
            let base = chunk.level_bytes.first().copied().unwrap_or(0);
            (FrameKey::first_of(scope, &chunk.seq_hash, &chunk.object_digest), base)
        });
        hot.tier().media(&bases.collect::<Vec<_>>())
    }
}

/// Whether a frame's head is that of the object. Names of frames are short: with an invented model, one tenant
/// could find a name of another tenant's frame.
fn is_head_of(head: &Head, key: &ChunkKey) -> bool {
    ChunkMismatch::check(&head.header, &key.model_id, &key.seq_hash).is_ok()
}

#[cfg(test)]
mod tests {
    use kvasir_container::OpaqueHead;
    use kvasir_types::{ObjectDigest, RootHash};

    use super::*;

    #[test]
    fn a_head_is_that_of_one_chunk_of_one_model() {
        let chain_key = RootHash::from([7; 32]).chain_key();
        let mut head = OpaqueHead::new(chain_key, &"a".parse().expect("a key"), 1).expect("small");
        head.push(b"x").expect("one byte");
        let head = Head::parse(&head.finish([1; 32], 2, 3).expect("whole")).expect("a head");
        let (tenant, object_digest) = ("t".parse().expect("a name"), ObjectDigest::of(b"x"));
        let seq_hash = head.header.seq_hash;
        let key = ChunkKey { tenant, model_id: ModelId::OPAQUE, seq_hash, object_digest };
        assert!(is_head_of(&head, &key));
        assert!(!is_head_of(&head, &ChunkKey { model_id: [9; 32].into(), ..key.clone() }));
        assert!(!is_head_of(&head, &ChunkKey { seq_hash: [9; 32].into(), ..key }));
    }
}
