//! Named contexts: versioned and immutable; the newest version is current.
//!
//! A version is one immutable object. Deleting writes a version that records it. On a store with conditional
//! creates, two writers of the same version are detected; on others the last one wins, as a whole.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_api::{
    CONTEXT_CHUNKS_MAX, CONTEXT_LABELS_MAX, CONTEXTS_PAGE_MAX, Context, ContextChange, ContextList,
    ContextRequest, LABEL_VALUE_BYTES_MAX, Labels,
};
use kvasir_store::{StoreError, layout::Key};
use kvasir_types::{ModelId, Name, RootHash, SeqHash};
use object_store::{PutPayload, path::Path};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    bucket::Bucket,
    catalog::Catalog,
    changes::{Changes, context_digest, events::now_ms},
    checked_json,
    error::{ChunkError, ContextError},
    index::IndexEntry,
    lifecycle::gc::intents::{IntendedChunk, Intent},
    limits,
    read::Reads,
};

/// A stored version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredContext {
    #[serde(flatten)]
    pub(crate) context: Context,
    /// Whether this version ends the context.
    #[serde(default)]
    deleted: bool,
}

impl StoredContext {
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.deleted || self.context.expires_at_ms.is_some_and(|end| end <= now_ms)
    }

    /// The same without its chunks, which may be many.
    pub(crate) fn without_chunks(&self) -> Self {
        let context = Context { chunks: Vec::new(), ..self.context.clone() };
        Self { context, deleted: self.deleted }
    }
}

/// Named contexts of all tenants.
#[derive(Debug)]
pub struct Contexts {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    changes: Arc<Changes>,
}

/// Selects the contexts of a list.
#[derive(Debug, Clone, Default)]
pub struct ContextFilter {
    /// The context must have all of these labels.
    pub labels: Labels,
    /// Prefix of the id, or part of the name or value of a label, ignoring case; empty: any context.
    pub search: String,
}

impl ContextFilter {
    fn matches(&self, context: &Context) -> bool {
        let search = self.search.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&search);
        let is_found = || {
            context.context_id.to_string().starts_with(&search)
                || context.labels.iter().any(|(name, value)| has(name.as_str()) || has(value))
        };
        let has_labels = self.labels.iter().all(|(name, value)| context.labels.get(name) == Some(value));
        has_labels && (search.is_empty() || is_found())
    }
}

impl Contexts {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        reads: Arc<Reads>,
        changes: Arc<Changes>,
    ) -> Self {
        Self { bucket, catalog, reads, changes }
    }

    /// Creates a context from a chain of chunks that starts at the namespace's root.
    ///
    /// # Errors
    /// [`ContextError::Invalid`]; [`Catalog`](ContextError::Catalog) for an unknown model;
    /// [`Chunk`](ContextError::Chunk) for an unknown chunk, also if it was removed while it was being pinned:
    /// then nothing is pinned.
    pub async fn create(&self, tenant: &Name, request: ContextRequest) -> Result<Context, ContextError> {
        let ContextRequest { model_id, namespace, chunks, labels, ttl_s, pinned } = request;
        check_labels(&labels)?;
        let tokens = self.check_chunks(tenant, &namespace, &model_id, &chunks).await?;
        let created_at_ms = self.now_ms();
        let context = Context {
            context_id: Uuid::now_v7(),
            version: 1,
            model_id,
            namespace,
            chunks,
            tokens,
            labels,
            created_at_ms,
            expires_at_ms: ttl_s.and_then(|ttl| expiry(created_at_ms, ttl)),
            pinned,
        };
        self.write_version(tenant, context).await
    }

    /// Writes the next version of a context. To unpin one that is not pinned changes nothing.
    ///
    /// # Errors
    /// [`ContextError::Unknown`], [`Conflict`](ContextError::Conflict), and as
    /// [`create`](Self::create).
    pub async fn update(
        &self,
        tenant: &Name,
        context_id: Uuid,
        change: ContextChange,
    ) -> Result<Context, ContextError> {
        let mut context = self.get(tenant, context_id, None).await?;
        if !context.pinned && change.only_unpins() {
            return Ok(context);
        }
        let unpins = context.pinned && change.pinned == Some(false);
        context.version = next_version(context.version, unpins)?;
        context.created_at_ms = self.now_ms();
        if let Some(chunks) = change.chunks {
            let (namespace, model_id) = (context.namespace.clone(), context.model_id);
            context.tokens = self.check_chunks(tenant, &namespace, &model_id, &chunks).await?;
            context.chunks = chunks;
        }
        if let Some(labels) = change.labels {
            check_labels(&labels)?;
            context.labels = labels;
        }
        if let Some(ttl) = change.ttl_s {
            context.expires_at_ms = expiry(context.created_at_ms, ttl);
        }
        if change.pinned == Some(true) {
            self.check_offered(tenant, &context).await?;
        }
        context.pinned = change.pinned.unwrap_or(context.pinned);
        self.write_version(tenant, context).await
    }

    /// Writes a version. A pin is written first; then collectors' intents are checked, and then tombstones. A
    /// collector writes its intent first and reads pins afterwards, so it sees this pin if this check does
    /// not see its intent.
    async fn write_version(&self, tenant: &Name, context: Context) -> Result<Context, ContextError> {
        let context = self.write(tenant, StoredContext { context, deleted: false }).await?;
        if !context.pinned {
            return Ok(context);
        }
        let settled = async {
            self.outlast_intents(tenant, &context).await?;
            self.check_offered(tenant, &context).await
        };
        if let Err(error) = settled.await {
            let Context { context_id, version, .. } = context;
            let path = self.bucket.path(&Key::Context { tenant: tenant.clone(), context_id, version });
            if let Err(error) = self.bucket.delete(&path).await {
                tracing::warn!(%error, %path, "a refused pin could not be withdrawn");
            }
            return Err(error);
        }
        Ok(context)
    }

    /// Checks that each chunk of a context has an object without a tombstone. Waits until all intents that
    /// predate the pin and name one of its chunks are gone.
    async fn outlast_intents(&self, tenant: &Name, context: &Context) -> Result<(), ContextError> {
        const ASKING: &str = "listing collectors' intents";
        let mut due = Vec::new();
        let mut listing = self.bucket.list(&self.bucket.layout().intents_prefix(), ASKING);
        while let Some((key, meta)) = listing.try_next().await? {
            let Key::GcIntent(id) = key else { continue };
            if self.names(id, &meta.location, tenant, context).await? {
                due.push(meta.location);
            }
        }
        for look in 0.. {
            let mut left = Vec::new();
            for path in due {
                if self.bucket.head(&path, ASKING).await?.is_some() {
                    left.push(path);
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            if look == limits::PIN_LOOKS_MAX {
                break;
            }
            due = left;
            tokio::time::sleep(limits::PIN_LOOK_EVERY).await;
        }
        let reason =
            "the collector is about to delete one of its chunks; store the chunks again, or try again later";
        Err(StoreError::own("pinning a context", reason).into())
    }

    /// Whether an intent names a chunk of a context. An unreadable one may.
    async fn names(
        &self,
        id: Uuid,
        path: &Path,
        tenant: &Name,
        context: &Context,
    ) -> Result<bool, StoreError> {
        let Some(json) = self.bucket.get(path, "reading a collector's intent").await? else {
            return Ok(false);
        };
        let read = checked_json::from_slice::<Intent>(&json);
        let Some(intent) = read.ok().filter(|intent| intent.id == id) else { return Ok(true) };
        let is_of = |chunk: &IntendedChunk| {
            chunk.tenant == *tenant
                && chunk.model_id == context.model_id
                && context.chunks.contains(&chunk.seq_hash)
        };
        Ok(intent.chunks.iter().any(is_of))
    }

    async fn check_offered(&self, tenant: &Name, context: &Context) -> Result<(), ContextError> {
        let mut looks = stream::iter(context.chunks.clone())
            .map(async |seq_hash| {
                let offered = self.reads.offered_objects(tenant, &context.model_id, &seq_hash).await?;
                let unknown = ChunkError::Unknown { seq_hash, object_digest: None };
                if offered.is_empty() { Err(unknown) } else { Ok(()) }
            })
            .buffer_unordered(limits::CONTEXTS_PARALLEL);
        while looks.try_next().await?.is_some() {}
        Ok(())
    }

    /// The store's time, by which the collector ends contexts; this replica's own until the store was reached.
    fn now_ms(&self) -> u64 {
        self.bucket.now_ms().and_then(|now| u64::try_from(now).ok()).unwrap_or_else(now_ms)
    }

    /// Deletes a context and its pin. Its chunks remain, for other contexts and lookups.
    ///
    /// # Errors
    /// [`ContextError::Unknown`], [`Conflict`](ContextError::Conflict), and the store's.
    pub async fn delete(&self, tenant: &Name, context_id: Uuid) -> Result<(), ContextError> {
        let mut context = self.get(tenant, context_id, None).await?;
        context.version = next_version(context.version, true)?;
        context.created_at_ms = self.now_ms();
        context.pinned = false;
        self.write(tenant, StoredContext { context, deleted: true }).await.map(|_| ())
    }

    /// A context: its newest version, or a given one.
    ///
    /// # Errors
    /// [`ContextError::Unknown`], and the store's.
    pub async fn get(
        &self,
        tenant: &Name,
        context_id: Uuid,
        version: Option<u64>,
    ) -> Result<Context, ContextError> {
        let versions = self.all_versions(tenant, context_id).await?;
        let newest = match versions.last() {
            Some(&newest) => self.stored(tenant, context_id, newest).await?,
            None => None,
        };
        // An ended context has ended in all its versions.
        let newest = newest.filter(|newest| !newest.is_over(self.now_ms()));
        let wanted = match (newest, version) {
            (Some(_), Some(version)) if versions.contains(&version) => {
                self.stored(tenant, context_id, version).await?
            }
            (newest, None) => newest,
            _ => None,
        };
        wanted.map(|wanted| wanted.context).ok_or(ContextError::Unknown { context_id, version })
    }

    /// The remaining versions of a context, oldest first.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn versions(&self, tenant: &Name, context_id: Uuid) -> Result<Vec<u64>, ContextError> {
        self.get(tenant, context_id, None).await?;
        Ok(self.all_versions(tenant, context_id).await?)
    }

    /// A page of contexts in the order of their ids (which is that of their creation), newest versions.
    ///
    /// # Errors
    /// [`StoreError::Request`]. An unreadable version is left out and logged.
    pub async fn list(
        &self,
        tenant: &Name,
        filter: &ContextFilter,
        limit: usize,
        after: Option<Uuid>,
    ) -> Result<ContextList, StoreError> {
        let limit = limit.clamp(1, CONTEXTS_PAGE_MAX);
        let now = self.now_ms();
        let newest = self.newest_versions(tenant, after).await?;
        let reads = stream::iter(newest)
            .map(|(id, version)| self.stored(tenant, id, version))
            .buffered(limits::CONTEXTS_PARALLEL);
        let mut reads = std::pin::pin!(reads);
        let mut page = ContextList { contexts: Vec::new(), next: None };
        while let Some(read) = reads.next().await {
            let stored = match read {
                Ok(Some(stored)) if !stored.is_over(now) => stored,
                Ok(_) => continue,
                Err(error @ StoreError::Damaged { .. }) => {
                    tracing::warn!(%error, "skipping an unreadable context in a list");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !filter.matches(&stored.context) {
                continue;
            }
            if page.contexts.len() == limit {
                page.next = page.contexts.last().map(|last| last.context_id);
                break;
            }
            page.contexts.push(stored.context);
        }
        Ok(page)
    }

    /// Checks that the chunks form a chain from the root. Returns their tokens.
    async fn check_chunks(
        &self,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
        chunks: &[SeqHash],
    ) -> Result<u64, ContextError> {
        let invalid = |problem: String| Err(ContextError::Invalid { problem });
        if chunks.is_empty() || chunks.len() > CONTEXT_CHUNKS_MAX {
            return invalid(format!(
                "a context must have 1 to {CONTEXT_CHUNKS_MAX} chunks, not {}",
                chunks.len()
            ));
        }
        let (newest, earlier) = self.catalog.roots(tenant, namespace, model_id).await?;
        let entries = stream::iter(chunks.to_vec())
            .map(|chunk| self.preferred_entry(tenant, model_id, chunk))
            .buffered(limits::CONTEXTS_PARALLEL);
        let entries: Vec<_> = entries.try_collect().await?;
        // A context may have started under an earlier salt of its namespace.
        let begins =
            |root: &&RootHash| entries.first().is_some_and(|entry| entry.parent_hash == root.first_parent());
        let mut parent = earlier.iter().find(begins).unwrap_or(&newest).first_parent();
        let mut tokens = 0;
        for (i, (entry, chunk)) in entries.iter().zip(chunks).enumerate() {
            if entry.parent_hash != parent {
                let before = if i == 0 { "the root of the namespace" } else { "the previous chunk" };
                return invalid(format!("chunk {i} ({chunk}) does not follow {before}"));
            }
            parent = *chunk.as_bytes();
            tokens += u64::from(entry.row.token_count);
        }
        Ok(tokens)
    }

    async fn preferred_entry(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        chunk: SeqHash,
    ) -> Result<Arc<IndexEntry>, ChunkError> {
        let key = self.reads.preferred(tenant, model_id, &chunk).await?;
        self.reads.entry(&key).await
    }

    async fn write(&self, tenant: &Name, stored: StoredContext) -> Result<Context, ContextError> {
        let Context { context_id, version, .. } = stored.context;
        let path = self.bucket.path(&Key::Context { tenant: tenant.clone(), context_id, version });
        let json = checked_json::to_vec(&stored)
            .map_err(|e| StoreError::Damaged { what: "a context", reason: e.to_string() })?;
        let bytes = json.len() as u64;
        if self.bucket.create(&path, PutPayload::from(json), "writing a context").await? {
            self.changes.note_stored(tenant, context_digest(&context_id, version), bytes);
            return Ok(stored.context);
        }
        // A retry inside the store's client may have met its own write.
        match self.stored(tenant, context_id, version).await {
            Ok(Some(there)) if there == stored => Ok(stored.context),
            _ => Err(ContextError::Conflict { context_id, version }),
        }
    }

    /// A stored version; `None` if it does not exist.
    pub(crate) async fn stored(
        &self,
        tenant: &Name,
        context_id: Uuid,
        version: u64,
    ) -> Result<Option<StoredContext>, StoreError> {
        let path = self.bucket.path(&Key::Context { tenant: tenant.clone(), context_id, version });
        let Some(json) = self.bucket.get(&path, "reading a context").await? else { return Ok(None) };
        let damaged = |reason: &str| StoreError::Damaged {
            what: "a context",
            reason: format!("version {version} of {context_id}: {reason}"),
        };
        let stored: StoredContext = checked_json::from_slice(&json).map_err(|e| damaged(&e))?;
        if (stored.context.context_id, stored.context.version) != (context_id, version) {
            return Err(damaged("it is the record of another context"));
        }
        Ok(Some(stored))
    }

    async fn all_versions(&self, tenant: &Name, context_id: Uuid) -> Result<Vec<u64>, StoreError> {
        let prefix = self.bucket.layout().context_prefix(tenant, context_id);
        let listed = self.bucket.list(&prefix, "listing a context's versions");
        let most = limits::CONTEXT_VERSIONS_MAX + limits::CONTEXT_LAST_VERSIONS;
        let listed: Vec<_> = listed.take(most).try_collect().await?;
        let versions = listed.into_iter().filter_map(|(key, _)| match key {
            Key::Context { version, .. } => Some(version),
            _ => None,
        });
        let mut versions: Vec<u64> = versions.collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// The newest version of each context after `after`, in the order of their ids.
    async fn newest_versions(
        &self,
        tenant: &Name,
        after: Option<Uuid>,
    ) -> Result<BTreeMap<Uuid, u64>, StoreError> {
        let prefix = self.bucket.layout().contexts_prefix(tenant);
        let listing = "listing contexts";
        // After every version of that context.
        let mut listing = match after {
            Some(id) => {
                let last = Key::Context { tenant: tenant.clone(), context_id: id, version: u64::MAX };
                self.bucket.list_behind(&prefix, &self.bucket.path(&last), listing)
            }
            None => self.bucket.list(&prefix, listing),
        };
        let mut newest = BTreeMap::new();
        while let Some((key, _)) = listing.try_next().await? {
            if let Key::Context { context_id, version, .. } = key {
                let known = newest.entry(context_id).or_insert(version);
                *known = version.max(*known);
            }
        }
        Ok(newest)
    }
}

/// The version after `version`. One that unpins or deletes may exceed the limit, so that a pin can always be
/// released.
fn next_version(version: u64, lets_go: bool) -> Result<u64, ContextError> {
    let more = if lets_go { limits::CONTEXT_LAST_VERSIONS } else { 0 };
    let next = version.checked_add(1).filter(|next| *next <= (limits::CONTEXT_VERSIONS_MAX + more) as u64);
    next.ok_or_else(|| {
        let most = limits::CONTEXT_VERSIONS_MAX;
        let problem = format!(
            "a context may have at most {most} versions; unpin or delete it, and create another one from its chunks"
        );
        ContextError::Invalid { problem }
    })
}

fn expiry(from_ms: u64, ttl_s: u64) -> Option<u64> {
    (ttl_s > 0).then(|| from_ms.saturating_add(ttl_s.saturating_mul(1_000)))
}

fn check_labels(labels: &Labels) -> Result<(), ContextError> {
    let invalid = |problem: String| Err(ContextError::Invalid { problem });
    if labels.len() > CONTEXT_LABELS_MAX {
        return invalid(format!(
            "a context may have at most {CONTEXT_LABELS_MAX} labels, not {}",
            labels.len()
        ));
    }
    match labels.iter().find(|(_, value)| value.len() > LABEL_VALUE_BYTES_MAX || value.contains(',')) {
        Some((name, _)) => invalid(format!(
            "the value of label {name} contains a comma or has more than {LABEL_VALUE_BYTES_MAX} bytes"
        )),
        None => Ok(()),
    }
}
