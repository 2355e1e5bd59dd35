//! What contexts pin, as the collector sees it: read before it decides, and again between its intent and its tombstones
//! (see [`intents`](super::intents)).

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
use uuid::Uuid;

use super::{super::Lifecycle, GcPass, StoreTime};
use crate::{contexts::StoredContext, limits, removal::Removal};

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

    /// Whether a context pins a chunk, or may, and no other object of it serves the pin as well.
    pub(super) async fn is_pinned(
        &self,
        pass: &GcPass<'_>,
        key: &ChunkKey,
        reason: Removal,
    ) -> Result<bool, StoreError> {
        if !pass.pins.contains(key) {
            return Ok(false);
        }
        Ok(!(reason == Removal::Duplicate && self.has_stand_in(key).await?))
    }

    /// Whether the bytes under a tombstone past its grace stay. A collector gives no tombstone to what is pinned; one that does not
    /// know of intents, or was away for longer than they last, may have.
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
        if !pass.pins.contains(key) {
            return Ok(false);
        }
        match self.reads.tombstones().reason_at(&tombstone.location).await? {
            Some(reason) if reason.is_the_collectors() => self.is_pinned(pass, key, reason).await,
            _ => Ok(false),
        }
    }

    /// Whether another object of the chunk is offered that begins where this one does.
    async fn has_stand_in(&self, key: &ChunkKey) -> Result<bool, StoreError> {
        let first_position = match self.reads.row(key).await {
            Ok(row) => row.first_position,
            // What cannot be read serves no pin.
            Err(error) => return error.only_this_object().map(|()| true),
        };
        let offered = self.reads.offered_objects(&key.tenant, &key.model_id, &key.seq_hash).await?;
        for other in offered.into_iter().filter(|other| other.object_digest != key.object_digest) {
            match self.reads.row(&other).await {
                Ok(row) if row.first_position == first_position => return Ok(true),
                Ok(_) => {}
                Err(error) => error.only_this_object()?,
            }
        }
        Ok(false)
    }
}
