//! What contexts pin, as the collector sees it: read before it decides, again after it wrote tombstones, and never later
//! than the deletion of bytes.
//!
//! Whoever pins writes the pin and then looks for tombstones, so an acknowledged pin is older than any tombstone of its
//! chunks, and pins that are read after a tombstone was written have all that speaks against it. Where one does, the
//! tombstone is lifted. Only the collector's own are: what a request removed, or a scrub, stays removed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{ModelId, Name, SeqHash};
use object_store::{ObjectMeta, path::Path};
use tokio::time::Instant;
use uuid::Uuid;

use super::{super::Lifecycle, GcPass, StoreTime};
use crate::{
    changes::journal::JournalEntry,
    contexts::StoredContext,
    index::{IndexEntry, Scope},
    limits,
    removal::Removal,
    transitions::Transition,
};

/// Chunks that contexts pin.
#[derive(Debug, Default)]
pub(super) struct Pins {
    chunks: HashSet<(Name, ModelId, SeqHash)>,
    /// Tenants of whom a context cannot be read: any of their chunks may be pinned.
    unknown: HashSet<Name>,
}

impl Pins {
    /// Whether the collector must spare this chunk's objects: they are pinned, or may be.
    pub(super) fn contains(&self, key: &ChunkKey) -> bool {
        self.unknown.contains(&key.tenant) || self.are_known_to_contain(key)
    }

    fn are_known_to_contain(&self, key: &ChunkKey) -> bool {
        !self.chunks.is_empty() && self.chunks.contains(&(key.tenant.clone(), key.model_id, key.seq_hash))
    }
}

/// What a pass remembers of contexts, so that a second look reads only the versions that are new.
#[derive(Debug, Default)]
pub(super) struct KnownContexts(HashMap<Path, (StoreTime, Arc<StoredContext>)>);

/// Tombstones of this pass that are older than its last look at the pins.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    tombstones: Vec<ChunkKey>,
    since: Option<Instant>,
}

impl Unconfirmed {
    /// Takes note of a tombstone.
    pub(super) fn push(&mut self, key: &ChunkKey) {
        self.since.get_or_insert_with(Instant::now);
        self.tombstones.push(key.clone());
    }

    fn is_due(&self) -> bool {
        self.tombstones.len() >= limits::GC_UNCONFIRMED_MAX
            || self.since.is_some_and(|since| since.elapsed() >= limits::GC_UNCONFIRMED_AGE_MAX)
    }
}

impl Lifecycle {
    /// Looks at all contexts of all tenants: what they pin, and which versions nobody needs any more.
    pub(super) async fn read_contexts(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let before = std::mem::take(&mut pass.contexts);
        let mut pins = Pins::default();
        let mut unreadable = 0;
        for tenant in self.catalog.tenants().await? {
            unreadable += self.read_contexts_of(pass, &tenant, &before, &mut pins).await?;
        }
        pass.report.contexts_unreadable = unreadable;
        pass.pins = pins;
        Ok(())
    }

    /// Gives how many contexts cannot be read.
    async fn read_contexts_of(
        &self,
        pass: &mut GcPass<'_>,
        tenant: &Name,
        before: &KnownContexts,
        pins: &mut Pins,
    ) -> Result<u64, StoreError> {
        let prefix = self.bucket.layout().contexts_prefix(tenant);
        let mut contexts: BTreeMap<Uuid, BTreeMap<u64, ObjectMeta>> = BTreeMap::new();
        let mut unreadable = 0;
        let mut listing = self.bucket.list(&prefix, "collecting contexts");
        while let Some((key, meta)) = listing.try_next().await? {
            if let Key::Context { context_id, version, .. } = key {
                contexts.entry(context_id).or_default().insert(version, meta);
            }
        }
        for (context_id, versions) in contexts {
            let (newest, stored) = match self
                .newest_context(pass, tenant, context_id, &versions, before)
                .await
            {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, %tenant, %context_id,
                        "a context cannot be read: until it can be or is deleted, nothing of its tenant expires or is evicted");
                    unreadable += 1;
                    pins.unknown.insert(tenant.clone());
                    continue;
                }
            };
            let over = stored.is_over(u64::try_from(pass.now.0).unwrap_or(0));
            if stored.context.pinned && !over {
                let context = &stored.context;
                pins.chunks.extend(context.chunks.iter().map(|c| (tenant.clone(), context.model_id, *c)));
            }
            for (version, meta) in versions {
                // Older versions are readable for a while; the last goes once it says that all is over.
                let unneeded = version < newest || over;
                if unneeded && pass.now.age(&meta) >= pass.policy.grace {
                    pass.report.context_versions_deleted += 1;
                    if !pass.policy.dry_run {
                        self.bucket.delete(&meta.location).await?;
                    }
                }
            }
        }
        Ok(unreadable)
    }

    /// The newest version of a context that is there, and its number. One that was listed may have been withdrawn since.
    async fn newest_context(
        &self,
        pass: &mut GcPass<'_>,
        tenant: &Name,
        context_id: Uuid,
        versions: &BTreeMap<u64, ObjectMeta>,
        before: &KnownContexts,
    ) -> Result<Option<(u64, Arc<StoredContext>)>, StoreError> {
        for (version, meta) in versions.iter().rev() {
            let date = StoreTime::of(meta);
            let known = before.0.get(&meta.location).filter(|(read, _)| *read == date);
            let stored = match known {
                Some((_, stored)) => Arc::clone(stored),
                None => match self.contexts.stored(tenant, context_id, *version).await? {
                    Some(stored) => Arc::new(stored),
                    None => continue,
                },
            };
            pass.contexts.0.insert(meta.location.clone(), (date, Arc::clone(&stored)));
            return Ok(Some((*version, stored)));
        }
        Ok(None)
    }

    /// Reads pins again where this pass's tombstones have waited for it long enough.
    pub(super) async fn confirm_due(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        if pass.unconfirmed.is_due() { self.confirm_all(pass).await } else { Ok(()) }
    }

    /// Reads pins again, and lifts this pass's tombstones of what was pinned meanwhile.
    pub(super) async fn confirm_all(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let tombstones = std::mem::take(&mut pass.unconfirmed).tombstones;
        if tombstones.is_empty() {
            return Ok(());
        }
        self.read_contexts(pass).await?;
        for key in tombstones {
            if pass.pins.are_known_to_contain(&key) {
                self.lift(pass, &key).await?;
            }
        }
        Ok(())
    }

    /// Whether the bytes under a tombstone past its grace stay, because a context pins them, or may.
    pub(super) async fn is_held(
        &self,
        pass: &mut GcPass<'_>,
        key: &ChunkKey,
        tombstone: &ObjectMeta,
    ) -> Result<bool, StoreError> {
        // Pins were read when the pass began. A tombstone can be younger only where there is next to no grace.
        if pass.now.age(tombstone) <= limits::STORE_DATE_UNIT {
            self.read_contexts(pass).await?;
        }
        if pass.pins.are_known_to_contain(key) {
            return self.lift(pass, key).await;
        }
        let reason = match pass.pins.contains(key) {
            true => self.reads.tombstones().reason_at(&tombstone.location).await?,
            false => return Ok(false),
        };
        Ok(reason.is_some_and(Removal::is_the_collectors))
    }

    /// Whether another object of the chunk is offered that begins where this one does.
    async fn has_stand_in(&self, key: &ChunkKey) -> Result<bool, StoreError> {
        let first_position = match self.reads.row(key).await {
            Ok(row) => row.first_position,
            // What cannot be read serves no pin.
            Err(error) => return error.only_this_object().map(|()| true),
        };
        for other in self.reads.offered_objects(&key.tenant, &key.model_id, &key.seq_hash).await? {
            match self.reads.row(&other).await {
                Ok(row) if row.first_position == first_position => return Ok(true),
                Ok(_) => {}
                Err(error) => error.only_this_object()?,
            }
        }
        Ok(false)
    }

    /// Lifts the collector's tombstone of a pinned chunk. Gives whether the object stays.
    async fn lift(&self, pass: &mut GcPass<'_>, key: &ChunkKey) -> Result<bool, StoreError> {
        let path = self.bucket.path(&Key::Tombstone(key.clone()));
        match self.reads.tombstones().reason_at(&path).await? {
            Some(reason) if !reason.is_the_collectors() => return Ok(false),
            // The object that made this one superfluous serves the pin as well.
            Some(Removal::Duplicate) if self.has_stand_in(key).await? => return Ok(false),
            Some(_) => {}
            // Lifted by another collector.
            None => return Ok(true),
        }
        if pass.policy.dry_run {
            return Ok(true);
        }
        self.bucket.delete(&path).await?;
        self.bucket.reached(Transition::TombstoneDeleted);
        pass.report.lifted += 1;
        let ChunkKey { tenant, model_id, seq_hash, object_digest } = key.clone();
        self.changes.publish(JournalEntry::Lifted { tenant, model_id, seq_hash, object_digest });
        let since_ms = self.bucket.now_ms();
        match self.reads.read_head(key).await {
            Ok(head) => {
                let entry = Arc::new(IndexEntry::of_head(&head, key.object_digest));
                self.reads.index().insert(Scope::new(&key.tenant, &key.model_id), &entry);
                self.bucket.reached(Transition::IndexWritten);
                let (tenant, model_id) = (key.tenant.clone(), key.model_id);
                self.changes.publish_stored(tenant, model_id, &entry, head.block_hashes, None, since_ms);
            }
            // It stays, and lookups ask the store for it.
            Err(error) => tracing::warn!(%error, "a pinned object cannot be read"),
        }
        Ok(true)
    }
}
