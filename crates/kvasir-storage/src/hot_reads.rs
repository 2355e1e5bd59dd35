//! Reads through the hot tier, and what writes and lookups tell it.

use std::{ops::Range, sync::Arc};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kvasir_container::{ChunkHeader, Head};
use kvasir_types::{Medium, Name, SeqHash};

use crate::{
    ByteRange, ObjectRead, Storage, StorageError,
    eviction::ClassId,
    hot::{FrameKey, HotCache, HotContext, HotObject, RangeReader, RequestHint},
    index::{IndexRow, Scope, Walk},
    layout::ChunkKey,
    limits,
    memory::Region,
    spool::Spool,
};

impl Storage {
    /// The hot tier, where there is one.
    pub fn hot(&self) -> Option<&HotCache> {
        self.hot.as_ref()
    }

    /// Reads from the hot tier what is there, and the rest from the store, once for all who ask.
    pub(crate) async fn read_hot(
        &self,
        hot: &HotCache,
        key: &ChunkKey,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, StorageError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let object = match hot.object(scope, key.object_digest) {
            Some(object) => object,
            None => self.register_object(hot, key, &self.head(key).await?),
        };
        let object_bytes = object.bytes();
        let range = range.resolve(object_bytes).ok_or(StorageError::Range { object_bytes })?;
        let context = hot.requests().context(&object, hint, hot.tier().now());
        self.read_ahead(hot, &object, context, range.end);
        let mut bytes =
            hot.tier().read(&object, range.clone(), context, self.range_reader(key, object_bytes));
        // The first bytes before the answer begins: what is not there is said, rather than cut off.
        let first = bytes.try_next().await.inspect_err(|error| self.evict_if_corrupt(scope, error))?;
        let this = self.this.clone();
        let rest = bytes.inspect_err(move |error| {
            if let Some(storage) = this.upgrade() {
                storage.evict_if_corrupt(scope, error);
            }
        });
        Ok(ObjectRead { range, object_bytes, bytes: stream::iter(first.map(Ok)).chain(rest).boxed() })
    }

    /// Registers with the hot tier how an object is cut into frames, and what its tokens cost.
    fn register_object(&self, hot: &HotCache, key: &ChunkKey, head: &Head) -> Arc<HotObject> {
        let ChunkHeader { first_position, token_count, .. } = head.header;
        let seconds = self.recompute_seconds(&key.tenant, &key.model_id, first_position, token_count);
        hot.register_object(Scope::new(&key.tenant, &key.model_id), key, head, seconds)
    }

    /// A head from the hot tier or the store, verified.
    pub(crate) async fn head(&self, key: &ChunkKey) -> Result<Head, StorageError> {
        if let Some(hot) = &self.hot
            && let Some(frame) = hot.tier().first_frame(key).await
            && let Ok(head) = Head::parse(&frame)
        {
            return Ok(head);
        }
        self.read_head(key).await
    }

    /// Forgets the object that an error says is corrupt in the store.
    fn evict_if_corrupt(&self, scope: Scope, error: &StorageError) {
        if let StorageError::Corrupt { object_digest, .. } = error {
            self.forget(scope, *object_digest);
        }
    }

    /// Reads ranges of an object from the store, for the hot tier.
    fn range_reader(&self, key: &ChunkKey, object_bytes: u64) -> RangeReader {
        let (this, key) = (self.this.clone(), key.clone());
        Arc::new(move |range: Range<u64>| {
            let (this, key) = (this.clone(), key.clone());
            async move {
                let ended = || StorageError::broken_off("the service is stopping");
                let storage = this.upgrade().ok_or_else(ended)?;
                Ok(storage.open(&key, Some(range), Some(object_bytes)).await?.bytes)
            }
            .boxed()
        })
    }

    /// Brings the chunks behind one that is read, as much of each as is read of this one.
    fn read_ahead(&self, hot: &HotCache, object: &Arc<HotObject>, context: HotContext, end: u64) {
        let count = hot.tier().settings().read_ahead_chunks;
        if count == 0 {
            return;
        }
        let levels = object.levels_within(end).max(1);
        for key in hot.requests().behind(object, &context, count) {
            let scope = Scope::new(&key.tenant, &key.model_id);
            let row = self.catalog.get(&(scope, key.object_digest));
            let wanted =
                row.and_then(|row| row.level_bytes.get(levels - 1).or(row.level_bytes.last()).copied());
            let Some(wanted) = wanted else { continue };
            if matches!(hot.tier().medium_of_prefix(&key, wanted), Medium::Cpu) {
                continue;
            }
            let Some(storage) = self.this.upgrade() else { return };
            let Some(permit) = hot.tier().prefetch_permit() else { return };
            tokio::spawn(async move {
                let Some(hot) = storage.hot() else { return };
                let Ok(head) = storage.head(&key).await else { return };
                let object = storage.register_object(hot, &key, &head);
                let source = storage.range_reader(&key, object.bytes());
                hot.tier().read_ahead(&object, 0..wanted, context, source).await;
                drop(permit);
            });
        }
    }

    /// Takes in the base of an object that clients read directly for the second time, if the tier has hands free: once
    /// is no sign that anybody will come back.
    pub(crate) fn fill_behind_direct(&self, key: &ChunkKey) {
        let Some(hot) = &self.hot else { return };
        let scope = Scope::new(&key.tenant, &key.model_id);
        if !self.direct_seen.contains(&(scope, key.object_digest)) {
            return self.direct_seen.insert((scope, key.object_digest), ());
        }
        let Some(storage) = self.this.upgrade() else { return };
        let Some(permit) = hot.tier().prefetch_permit() else { return };
        let key = key.clone();
        tokio::spawn(async move {
            let Some(hot) = storage.hot() else { return };
            let Ok(head) = storage.head(&key).await else { return };
            let base = storage.offered_bytes(&[head.level_bytes(kvasir_types::Level::BASE).unwrap_or(0)]);
            let object = storage.register_object(hot, &key, &head);
            let context = hot.requests().context(&object, &RequestHint::default(), hot.tier().now());
            let source = storage.range_reader(&key, object.bytes());
            hot.tier().read_ahead(&object, 0..base, context, source).await;
            drop(permit);
        });
    }

    /// Takes in the base of an object that was stored a moment ago, frame by frame, as far as there is memory for it.
    pub(crate) async fn offer_base(
        &self,
        key: &ChunkKey,
        row: &IndexRow,
        spool: &mut Spool,
        hint: &RequestHint,
    ) -> std::io::Result<()> {
        let (Some(hot), base) = (&self.hot, self.offered_bytes(&row.level_bytes)) else { return Ok(()) };
        if base == 0 {
            return Ok(());
        }
        spool.settle().await?;
        let lease = hot.tier().memory().lease(u64::from(row.head_bytes));
        let Some(lease) = lease else { return Ok(()) };
        let head = spool.fill(0, Region::new(row.head_bytes as usize, Some(lease))).await?;
        let Ok(head) = Head::parse(&head) else { return Ok(()) };
        let object = self.register_object(hot, key, &head);
        let context = hot.requests().context(&object, hint, hot.tier().now());
        for frame in (0..object.frames()).take_while(|frame| object.range(*frame).end <= base) {
            let Some(space) = hot.tier().space(&object, frame) else { break };
            let bytes = spool.fill(object.range(frame).start, space).await?;
            hot.tier().offer(&object, frame, context, bytes);
        }
        Ok(())
    }

    /// Bytes of an object's prefix that are taken in when it is stored: its base, if a hot tier wants it.
    pub(crate) fn offered_bytes(&self, level_bytes: &[u64]) -> u64 {
        let base = level_bytes.first().copied().unwrap_or(0);
        if self.hot.is_some() { base.min(limits::HOT_FETCH_BYTES) } else { 0 }
    }

    /// Tells the hot tier of a lookup and what it found. Gives the request's class.
    pub(crate) fn note_lookup(
        &self,
        tenant: &Name,
        scope: Scope,
        hint: &RequestHint,
        blocks: &[SeqHash],
        walk: &Walk,
        found: &Arc<[ChunkKey]>,
    ) -> Option<ClassId> {
        let hot = self.hot.as_ref()?;
        for chunk in &walk.chunks {
            let key = (scope, chunk.row.object_digest);
            if !self.catalog.contains(&key) {
                self.catalog.insert(key, Arc::new(chunk.row.clone()));
            }
        }
        Some(hot.requests().record_lookup(tenant, hint, blocks, found, hot.tier().now()))
    }

    /// Where the base of an object is.
    pub(crate) fn medium(&self, scope: Scope, key: &ChunkKey, level_bytes: &[u64]) -> Medium {
        let base = level_bytes.first().copied().unwrap_or(0);
        let Some(hot) = &self.hot else { return Medium::Object };
        hot.tier().medium_from(FrameKey::first_of(scope, &key.seq_hash, &key.object_digest), base)
    }
}
