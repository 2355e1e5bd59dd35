//! Chunk objects whose digest is announced before their first byte: they are sent to the store while they
//! arrive, and become visible once all of it is verified. They are not spooled, and nothing is read or hashed
//! twice.
//!
//! If the name has a tombstone, or there is no memory for two parts, a body is spooled like all others.

use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use kvasir_api::StoredChunk;
use kvasir_container::Head;
use kvasir_store::{
    StoreError, StoreKind,
    layout::{ChunkKey, Key},
    synced,
    trace::carry,
};
use kvasir_types::{Level, ObjectDigest};
use object_store::{GetOptions, GetResult, MultipartUpload, ObjectStoreExt, path::Path};
use tokio::{task::JoinHandle, time::Instant};

use super::{
    Ingest,
    chunks::{BodySink, PutChunk},
};
use crate::{
    bucket::Bucket,
    error::{ChunkMismatch, PutError},
    hot::{HotCache, HotObject},
    index::IndexEntry,
    limits,
    memory::{PooledRegion, Region, RegionPool},
    removal::Removal,
    transitions::Transition,
};

/// Bytes of a part that are hashed at once. Each time begins at a multiple of them, so that they fill the
/// processor's lanes.
const HASHED_BYTES: usize = 64 << 10;

/// A writer's announcement before the first byte of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedBody {
    /// BLAKE3 of the whole body.
    pub object_digest: ObjectDigest,
    /// Its length.
    pub bytes: u64,
}

impl AnnouncedBody {
    /// Compares it with the received body.
    pub(super) fn check(&self, found: ObjectDigest, head: &Head) -> Result<(), ChunkMismatch> {
        ChunkMismatch::same("length", &head.header.object_bytes(), &self.bytes)?;
        ChunkMismatch::same("object_digest", &found, &self.object_digest)
    }
}

impl Ingest {
    /// Starts storing a body under the announced name; `None` if it must be spooled.
    pub(super) async fn begin_streamed(
        &self,
        put: &PutChunk,
        announced: AnnouncedBody,
    ) -> Result<Option<StreamedObject>, PutError> {
        if announced.bytes > self.chunk_bytes_max {
            return Err(PutError::TooLarge { limit: self.chunk_bytes_max });
        }
        // The key that seals an object follows from its digest, and must seal one content only: what is sealed is
        // compared with the digest first.
        if self.bucket.seals(&put.tenant) {
            return Ok(None);
        }
        let part_bytes = match self.bucket.open().kind() {
            // One request is cheaper than three.
            StoreKind::S3 if announced.bytes <= limits::MULTIPART_PART_BYTES as u64 => return Ok(None),
            StoreKind::S3 => limits::MULTIPART_PART_BYTES,
            _ => limits::STREAMED_PART_BYTES,
        };
        let part_bytes = part_bytes.min(announced.bytes as usize).max(1);
        let parts = announced.bytes.div_ceil(part_bytes as u64).clamp(1, 2);
        let space = |_| Some(Region::new(part_bytes, Some(self.spools.lease(part_bytes as u64)?)));
        let Some(parts) = (0..parts).map(space).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let key = put.key(announced.object_digest);
        if self.reads.tombstones().has(&key).await? {
            return Ok(None);
        }
        let path = self.bucket.path(&Key::Chunk(key.clone()));
        let existed = self.bucket.head(&path, "asking for an object").await?.is_some();
        let begun = self.bucket.objects().put_multipart(&path).await;
        let upload = begun.map_err(StoreError::request("storing an object in parts"))?;
        self.bucket.reached(Transition::PartsBegun);
        let kept = self.reads.tier().filter(|_| !put.hint.transient);
        Ok(Some(StreamedObject {
            bucket: Arc::clone(&self.bucket),
            path,
            announced,
            existed,
            upload: Some(upload),
            part_bytes,
            pool: RegionPool::new(parts),
            part: None,
            filled: 0,
            digest: Box::default(),
            hashed: 0,
            sending: None,
            frames: kept.map(|hot| PassingFrames::new(Arc::clone(hot), key)),
        }))
    }

    /// Stores a body as it arrives: completes it once it is verified, aborts it otherwise.
    pub(super) async fn put_streamed(
        self: &Arc<Self>,
        put: PutChunk,
        mut object: StreamedObject,
        body: impl Stream<Item = Result<Bytes, PutError>> + Send,
    ) -> Result<StoredChunk, PutError> {
        let received = async {
            let (head, found) = self.receive(&put, body, &mut object).await?;
            object.announced.check(found, &head)?;
            object.send().await?;
            object.settle().await?;
            Ok(head)
        };
        let head = match received.await {
            Ok(head) => head,
            Err(error) => {
                object.abort().await;
                return Err(error);
            }
        };
        let this = Arc::clone(self);
        // If the caller disconnects now, the upload is still finished or aborted.
        let storing = tokio::spawn(carry(async move { this.commit_streamed(put, head, object).await }));
        storing.await.map_err(StoreError::Task)?
    }

    /// Completes a verified object whose bytes are all in the store. Checks its tombstone before that, since
    /// the upload may have taken long, and afterwards.
    async fn commit_streamed(
        &self,
        mut put: PutChunk,
        mut head: Head,
        mut object: StreamedObject,
    ) -> Result<StoredChunk, PutError> {
        self.bucket.reached(Transition::UploadVerified);
        let (scope, key) = (put.scope(), put.key(object.announced.object_digest));
        let removed = || PutError::Removed { seq_hash: key.seq_hash, object_digest: key.object_digest };
        let tombstones = self.reads.tombstones();
        match tombstones.has(&key).await {
            Ok(false) => {}
            found => {
                object.abort().await;
                return Err(found.err().map_or_else(removed, PutError::from));
            }
        }
        // It was begun in the clear. Its tenant may have got a key since, here or elsewhere.
        let is_plain = self.bucket.open().keyring().is_plain(&put.tenant).await;
        if !matches!(is_plain, Ok(true)) {
            object.abort().await;
            const STORING: &str = "storing an object in parts";
            let sealed = || StoreError::own(STORING, "its tenant got a key while the body arrived");
            return Err(is_plain.err().map_or_else(sealed, StoreError::request(STORING)).into());
        }
        object.complete().await?;
        self.bucket.reached(Transition::ObjectWritten);
        let entry = Arc::new(IndexEntry::of_head(&head, key.object_digest));
        let (before, since_ms) = (self.reads.index().removals(), self.bucket.now_ms());
        if tombstones.has(&key).await? {
            self.reads.forget_removed(scope, key.object_digest, Removal::Removed);
            return Err(removed());
        }
        self.indexed(scope, &entry, before);
        let (block_hashes, namespace) = (std::mem::take(&mut head.block_hashes), put.namespace.take());
        let stored = self.stored(key.clone(), &entry, block_hashes, namespace, since_ms, !object.existed);
        if let Some(frames) = object.frames.take() {
            frames.offer(&key, &head, &put);
        }
        Ok(stored)
    }
}

/// An object being sent to the store: one part is collected while the previous one is written. Aborted when
/// dropped.
pub(super) struct StreamedObject {
    bucket: Arc<Bucket>,
    path: Path,
    announced: AnnouncedBody,
    /// Whether its name existed, with these same bytes or damaged ones.
    existed: bool,
    /// `None` once it was completed or aborted.
    upload: Option<Box<dyn MultipartUpload>>,
    part_bytes: usize,
    /// Two parts, or one if memory allows only one.
    pool: Arc<RegionPool>,
    part: Option<PooledRegion>,
    filled: usize,
    /// BLAKE3 of the parts before the collected one, and of its first `hashed` bytes.
    digest: Box<blake3::Hasher>,
    hashed: usize,
    sending: Option<JoinHandle<object_store::Result<()>>>,
    frames: Option<PassingFrames>,
}

impl BodySink for StreamedObject {
    async fn push(&mut self, bytes: &[u8], head: Option<&Head>) -> Result<(), PutError> {
        if let Some(frames) = &mut self.frames {
            frames.push(bytes, head);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut part = match self.part.take() {
                Some(part) => part,
                None => self.space().await?,
            };
            let (now, later) = rest.split_at(rest.len().min(part.len() - self.filled));
            part[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            rest = later;
            let is_full = self.filled == part.len();
            // The caches still have these bytes.
            let until = if is_full { self.filled } else { self.filled - self.filled % HASHED_BYTES };
            self.digest.update(&part[self.hashed..until]);
            self.hashed = until;
            self.part = Some(part);
            if is_full {
                self.send().await?;
            }
        }
        Ok(())
    }

    fn digest(&self) -> ObjectDigest {
        let rest = self.part.as_ref().map_or(&[][..], |part| &part[self.hashed..self.filled]);
        (*self.digest.clone().update(rest).finalize().as_bytes()).into()
    }
}

impl StreamedObject {
    /// Memory for a part.
    async fn space(&mut self) -> Result<PooledRegion, PutError> {
        if let Some(space) = self.pool.take() {
            return Ok(space);
        }
        self.settle().await?;
        // A store's client may hold a part briefly after its response.
        let other = || RegionPool::new(vec![Region::new(self.part_bytes, None)]).take();
        let none = || StoreError::own("storing an object in parts", "there is no memory for a part").into();
        self.pool.take().or_else(other).ok_or_else(none)
    }

    /// Sends the collected part once the previous one is stored.
    async fn send(&mut self) -> Result<(), PutError> {
        self.settle().await?;
        let (Some(part), Some(upload)) = (self.part.take(), &mut self.upload) else { return Ok(()) };
        self.hashed = 0;
        let bytes = Bytes::from_owner(part).slice(..std::mem::take(&mut self.filled));
        let (request, bucket) = (upload.put_part(bytes.into()), Arc::clone(&self.bucket));
        self.sending = Some(tokio::spawn(carry(async move {
            request.await.inspect(|()| bucket.reached(Transition::PartWritten))
        })));
        Ok(())
    }

    /// Waits for the part in flight.
    async fn settle(&mut self) -> Result<(), PutError> {
        let Some(sending) = self.sending.take() else { return Ok(()) };
        let sent = sending.await.map_err(StoreError::from)?;
        Ok(sent.map_err(StoreError::request("storing a part"))?)
    }

    /// Makes it visible.
    async fn complete(&mut self) -> Result<(), PutError> {
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        if let Err(error) = upload.complete().await {
            // It may have taken effect: names are digests, so a complete object that did not exist before is
            // ours. Its name may not be durable.
            let head = GetOptions { head: true, ..synced() };
            let there = self.bucket.open_object(&self.path, head, "asking for an object").await;
            let has_all = |found: GetResult| found.meta.size == self.announced.bytes;
            let is_there = there.is_ok_and(|found| found.is_some_and(has_all));
            if self.existed || !is_there {
                self.upload = Some(upload);
                self.abort().await;
                return Err(StoreError::request("storing an object in parts")(error).into());
            }
        }
        self.bucket.reached(Transition::PartsCompleted);
        Ok(())
    }

    async fn abort(&mut self) {
        if let Some(upload) = self.upload.take() {
            // A part that arrives later would stay.
            let _ = self.settle().await;
            abort(&self.bucket, upload).await;
        }
    }
}

async fn abort(bucket: &Bucket, mut upload: Box<dyn MultipartUpload>) {
    match upload.abort().await {
        Ok(()) => bucket.reached(Transition::PartsAborted),
        // The collector deletes the rest.
        Err(error) => tracing::debug!(%error, "an upload in parts was not aborted"),
    }
}

impl Drop for StreamedObject {
    fn drop(&mut self) {
        // Its client disconnected.
        if let (Some(upload), Ok(runtime)) = (self.upload.take(), tokio::runtime::Handle::try_current()) {
            let (bucket, sending) = (Arc::clone(&self.bucket), self.sending.take());
            runtime.spawn(async move {
                if let Some(sending) = sending {
                    let _ = sending.await;
                }
                abort(&bucket, upload).await;
            });
        }
    }
}

/// Copies of the frames of an object's base, made while its bytes pass through, as far as the hot tier has
/// memory.
struct PassingFrames {
    hot: Arc<HotCache>,
    key: ChunkKey,
    /// The division of the object, once its head has arrived; unverified until all of it has.
    cut: Option<(HotObject, u64)>,
    /// Bytes that arrived before that.
    early: Vec<u8>,
    frames: Vec<Region>,
    /// Number of bytes in the last one.
    filled: usize,
    begun: Instant,
    is_over: bool,
}

impl PassingFrames {
    fn new(hot: Arc<HotCache>, key: ChunkKey) -> Self {
        let (early, frames, begun) = (Vec::new(), Vec::new(), Instant::now());
        Self { hot, key, cut: None, early, frames, filled: 0, begun, is_over: false }
    }

    fn push(&mut self, bytes: &[u8], head: Option<&Head>) {
        if self.is_over {
            return;
        }
        if self.cut.is_some() {
            return self.fill(bytes);
        }
        self.early.extend_from_slice(bytes);
        if let Some(head) = head {
            let base = head.level_bytes(Level::BASE).unwrap_or(0).min(limits::HOT_OFFERED_BYTES_MAX);
            self.cut = Some((HotObject::new(&self.key, head), base));
            let early = std::mem::take(&mut self.early);
            self.fill(&early);
        } else if self.early.len() > limits::PASSING_HEAD_BYTES_MAX {
            (self.early, self.is_over) = (Vec::new(), true);
        }
    }

    fn fill(&mut self, mut bytes: &[u8]) {
        let Some((object, base)) = &self.cut else { return };
        while !bytes.is_empty() {
            if self.frames.last().is_none_or(|last| self.filled == last.len()) {
                let next = self.frames.len() as u32;
                // A slow sender would hold memory of the tier for long.
                let end = object.range(next).end;
                let is_soon =
                    end <= limits::HOT_FETCH_BYTES || self.begun.elapsed() <= limits::PASSING_TIME_MAX;
                let is_wanted = next < object.frames() && end <= *base && is_soon;
                match is_wanted.then(|| self.hot.tier().space(object, next)).flatten() {
                    Some(space) => (self.filled, _) = (0, self.frames.push(space)),
                    None => return self.is_over = true,
                }
            }
            let Some(last) = self.frames.last_mut() else { return };
            let (now, later) = bytes.split_at(bytes.len().min(last.len() - self.filled));
            last[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
        }
    }

    /// Offers the frames of a verified object.
    fn offer(self, key: &ChunkKey, head: &Head, put: &PutChunk) {
        let object = self.hot.register_object(key, head);
        let tier = self.hot.tier();
        let context = self.hot.requests().context(&object, &put.hint, tier.now());
        for (frame, bytes) in (0..).zip(self.frames) {
            tier.offer(&object, frame, context, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use kvasir_store::{OpenStore, StoreAbilities, StoreConfig, observe::NoObserver};
    use object_store::memory::InMemory;

    use super::*;
    use crate::{ingest::spool::tests::RefusesCompletion, transitions::NoCrashPointObserver};

    #[tokio::test]
    async fn a_completion_without_an_answer_counts_once_it_is_durable() {
        let store = RefusesCompletion::new(InMemory::new(), true);
        let config = StoreConfig::new("file:///store".parse().expect("a url"));
        let backend = Arc::<RefusesCompletion>::clone(&store);
        let open = OpenStore::with(backend, &Path::default(), StoreKind::File, &config, Arc::new(NoObserver));
        let abilities = StoreAbilities { conditional_create: true };
        let bucket = Arc::new(Bucket::new(open, abilities, Arc::new(NoCrashPointObserver)));
        let path = Path::from("object");
        let mut upload = bucket.objects().put_multipart(&path).await.expect("begins");
        upload.put_part("bytes".into()).await.expect("is sent");
        let mut object = StreamedObject {
            bucket,
            path,
            announced: AnnouncedBody { object_digest: ObjectDigest::of(b"bytes"), bytes: 5 },
            existed: false,
            upload: Some(upload),
            part_bytes: 5,
            pool: RegionPool::new(Vec::new()),
            part: None,
            filled: 0,
            digest: Box::default(),
            hashed: 0,
            sending: None,
            frames: None,
        };
        object.complete().await.expect("it took effect");
        assert!(store.is_synced(), "a power failure would take it");
    }
}
