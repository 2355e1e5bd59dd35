//! Pins of contexts, as the collector sees them: read before it decides, and again between its intent and its
//! tombstones (see [`intents`](super::intents)).

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
use crate::{contexts::StoredContext, removal::Removal};

/// The contexts of all tenants, as last read by a pass. A context can only pin chunks of its own tenant.
#[derive(Debug, Default)]
pub(super) struct Contexts(HashMap<Name, TenantContexts>);

/// The contexts of one tenant.
#[derive(Debug, Default)]
struct TenantContexts {
    /// Versions already read, so that a second look only reads new ones.
    read: HashMap<Path, (StoreTime, Arc<StoredContext>)>,
    pinned: HashSet<(ModelId, SeqHash)>,
    /// Number of unreadable ones: if there is any, every chunk of the tenant may be pinned.
    unreadable: u64,
}

impl Contexts {
    /// Whether the collector must spare this chunk's objects because they are pinned, or may be.
    pub(super) fn may_pin(&self, key: &ChunkKey) -> bool {
        self.0.get(&key.tenant).is_some_and(|of_tenant| {
            of_tenant.unreadable > 0 || of_tenant.pinned.contains(&(key.model_id, key.seq_hash))
        })
    }

    /// Whether the contexts of a tenant were read.
    pub(super) fn has_read(&self, tenant: &Name) -> bool {
        self.0.contains_key(tenant)
    }

    fn unreadable(&self) -> u64 {
        self.0.values().map(|of_tenant| of_tenant.unreadable).sum()
    }
}

impl Lifecycle {
    /// Whether a context pins a chunk, or may, as its tenant's contexts were when this pass first needed them.
    pub(super) async fn may_pin(&self, pass: &mut GcPass<'_>, key: &ChunkKey) -> Result<bool, StoreError> {
        if !pass.contexts.has_read(&key.tenant) {
            self.read_contexts(pass, [key.tenant.clone()]).await?;
        }
        Ok(pass.contexts.may_pin(key))
    }

    /// Reads all contexts of these tenants: their pins, and which versions are no longer needed.
    pub(super) async fn read_contexts(
        &self,
        pass: &mut GcPass<'_>,
        tenants: impl IntoIterator<Item = Name>,
    ) -> Result<(), StoreError> {
        for tenant in tenants {
            let of_tenant = self.read_contexts_of(pass, &tenant).await?;
            pass.contexts.0.insert(tenant, of_tenant);
        }
        pass.report.contexts_unreadable = pass.contexts.unreadable();
        Ok(())
    }

    async fn read_contexts_of(
        &self,
        pass: &mut GcPass<'_>,
        tenant: &Name,
    ) -> Result<TenantContexts, StoreError> {
        let prefix = self.bucket.layout().contexts_prefix(tenant);
        let mut contexts: BTreeMap<Uuid, BTreeMap<u64, ObjectMeta>> = BTreeMap::new();
        let mut listing = self.bucket.list(&prefix, "collecting contexts");
        while let Some((key, meta)) = listing.try_next().await? {
            if let Key::Context { context_id, version, .. } = key {
                contexts.entry(context_id).or_default().insert(version, meta);
            }
        }
        let before = pass
            .contexts
            .0
            .get_mut(tenant)
            .map(|before| std::mem::take(&mut before.read))
            .unwrap_or_default();
        // Pins of versions that are not read again. A copy: if this fails, those known before still hold.
        let pinned = pass.contexts.0.get(tenant).map(|before| before.pinned.clone()).unwrap_or_default();
        let mut of_tenant = TenantContexts { pinned, ..TenantContexts::default() };
        for (context_id, versions) in contexts {
            let newest = self.newest_context(tenant, context_id, &versions, u64::MAX, &before).await;
            let (newest, meta, stored) = match newest {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, %tenant, %context_id,
                        "a context cannot be read; until it is readable or deleted, none of its tenant's chunks expire or are evicted");
                    of_tenant.unreadable += 1;
                    continue;
                }
            };
            let now_ms = u64::try_from(pass.now.0).unwrap_or(0);
            let over = stored.is_over(now_ms);
            // A pin may still be refused and withdrawn. Then the version before it is in force again: both hold.
            let (now, grace) = (pass.now, pass.policy.grace);
            let is_settled =
                |meta: &ObjectMeta, stored: &StoredContext| !stored.context.pinned || now.age(meta) >= grace;
            let is_newest_settled = is_settled(meta, &stored);
            let mut in_force = Some((newest, meta, stored));
            while let Some((version, meta, stored)) = in_force.take() {
                if stored.context.pinned && !stored.is_over(now_ms) {
                    let context = &stored.context;
                    of_tenant.pinned.extend(context.chunks.iter().map(|c| (context.model_id, *c)));
                }
                let last = version.checked_sub(1).filter(|_| !is_settled(meta, &stored));
                if let Some(last) = last {
                    match self.newest_context(tenant, context_id, &versions, last, &before).await {
                        Ok(older) => in_force = older,
                        Err(error) => {
                            tracing::warn!(%error, %tenant, %context_id,
                                "a version of a context cannot be read; until it is readable or superseded, none of its tenant's chunks expire or are evicted");
                            of_tenant.unreadable += 1;
                        }
                    }
                }
                of_tenant
                    .read
                    .insert(meta.location.clone(), (StoreTime::of(meta), Arc::new(stored.without_chunks())));
            }
            // Older versions stay readable for a while, and in force while the newest may still be withdrawn. The last one is
            // deleted once it records the end of the context, and none before it is left that would bring it back.
            let is_superseded = over && is_newest_settled || pass.now.age(meta) >= pass.policy.grace;
            let mut is_older_left = false;
            for (version, meta) in &versions {
                let is_unneeded = if *version < newest { is_superseded } else { over && !is_older_left };
                if !(pass.lists_all && is_unneeded && pass.now.age(meta) >= pass.policy.grace) {
                    is_older_left = true;
                    continue;
                }
                pass.report.context_versions_deleted += 1;
                if !pass.policy.dry_run {
                    self.bucket.delete(&meta.location).await?;
                }
            }
        }
        Ok(of_tenant)
    }

    /// The newest existing version of a context up to `last`, and its number. A listed one may have been
    /// withdrawn since.
    async fn newest_context<'a>(
        &self,
        tenant: &Name,
        context_id: Uuid,
        versions: &'a BTreeMap<u64, ObjectMeta>,
        last: u64,
        before: &HashMap<Path, (StoreTime, Arc<StoredContext>)>,
    ) -> Result<Option<(u64, &'a ObjectMeta, Arc<StoredContext>)>, StoreError> {
        for (version, meta) in versions.range(..=last).rev() {
            let known = before.get(&meta.location).filter(|(date, _)| *date == StoreTime::of(meta));
            if let Some((_, stored)) = known {
                return Ok(Some((*version, meta, Arc::clone(stored))));
            }
            if let Some(stored) = self.contexts.stored(tenant, context_id, *version).await? {
                return Ok(Some((*version, meta, Arc::new(stored))));
            }
        }
        Ok(None)
    }

    /// Whether the bytes under a tombstone past its grace are kept. A collector writes no tombstone for
    /// pinned objects, but one that does not know of intents, or was suspended for longer than they last, may
    /// have. The pass has read the pins of its tenant.
    pub(super) async fn is_held(
        &self,
        pass: &GcPass<'_>,
        key: &ChunkKey,
        tombstone: &ObjectMeta,
    ) -> Result<bool, StoreError> {
        if !pass.contexts.may_pin(key) {
            return Ok(false);
        }
        match self.reads.tombstones().reason_at(&tombstone.location).await? {
            // Another object of the chunk may serve the pin.
            Some(Removal::Duplicate) => Ok(!self.has_stand_in(key).await?),
            reason => Ok(reason.is_some_and(Removal::is_the_collectors)),
        }
    }

    /// Whether another usable object of the chunk begins where this one does.
    async fn has_stand_in(&self, key: &ChunkKey) -> Result<bool, StoreError> {
        let first_position = match self.reads.row(key).await {
            Ok(row) => row.first_position,
            // An unreadable object cannot serve a pin.
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
