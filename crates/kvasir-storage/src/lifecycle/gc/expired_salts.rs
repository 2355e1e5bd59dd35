//! Collection of a rotated salt after its expiry: first the chunks under its root, then the salt.
//!
//! Chunks do not name their salt. So when one has expired, this replica checks the chunks of its tenant once,
//! each with its parent hash, and marks those under an expired root as deleted. A client with such a root may
//! continue to write under it: later chunks are not found by others, and expire by their time to live or the
//! capacity.

use std::collections::HashMap;

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{ModelId, Name, RootHash};

use super::{super::Lifecycle, GcPass};
use crate::{catalog::Salt, error::ChunkError, removal::Removal};

impl Lifecycle {
    /// Marks the chunks that are only reachable from expired salts as deleted, then deletes these salts. A
    /// namespace where that fails waits for the next pass.
    pub(super) async fn collect_expired_salts(&self, pass: &mut GcPass<'_>) {
        for (tenant, namespace) in std::mem::take(&mut pass.rotated) {
            if let Err(error) = self.collect_expired_salts_of(pass, &tenant, &namespace).await {
                tracing::warn!(%error, %tenant, %namespace, "the collector could not delete the expired salts of a namespace; the next pass retries");
            }
        }
    }

    async fn collect_expired_salts_of(
        &self,
        pass: &mut GcPass<'_>,
        tenant: &Name,
        namespace: &Name,
    ) -> Result<(), StoreError> {
        let rotations = self.catalog.load_salt_rotations(tenant, namespace).await?.at(pass.now.0);
        let mut salts: Vec<Salt> = rotations.expired().map(|rotation| rotation.salt).collect();
        if !rotations.has_first() {
            salts.push(self.catalog.salt(tenant).await?);
        }
        salts.retain(|salt| !self.swept.contains(&(tenant.clone(), namespace.clone(), *salt)));
        if salts.is_empty() {
            return Ok(());
        }
        let unread = pass.report.unread;
        for model_id in self.catalog.list_models(tenant).await? {
            let root = |salt: &Salt| RootHash::derive(tenant.as_str(), namespace.as_str(), salt, &model_id);
            self.mark_deleted_under(pass, tenant, &model_id, salts.iter().map(root).collect()).await?;
        }
        self.carry_out(pass).await?;
        // Unreadable chunks may be under one of these roots, and the tenant's actions or an intent may have ended before its chunks:
        // the salts stay for a pass that can read and mark the rest.
        let is_spent = !pass.tenant_budget.has_remaining(tenant);
        if pass.policy.dry_run || pass.report.unread > unread || is_spent || pass.was_cut_short {
            return Ok(());
        }
        for rotation in rotations.expired() {
            let (tenant, namespace) = (tenant.clone(), namespace.clone());
            let key = Key::SaltRotation { tenant, namespace, id: rotation.id };
            self.bucket.delete(&self.bucket.path(&key)).await?;
        }
        for salt in salts {
            self.swept.insert((tenant.clone(), namespace.clone(), salt), ());
        }
        Ok(())
    }

    /// Marks every chunk of a model under one of `roots` as deleted, unless a context pins it.
    async fn mark_deleted_under(
        &self,
        pass: &mut GcPass<'_>,
        tenant: &Name,
        model_id: &ModelId,
        roots: Vec<RootHash>,
    ) -> Result<(), StoreError> {
        let prefix = self.bucket.layout().model_chunks_prefix(tenant, model_id);
        let mut listing = self.bucket.list(&prefix, "listing chunks for the collector");
        let mut behind: HashMap<[u8; 32], Vec<ChunkKey>> = HashMap::new();
        while let Some((key, _)) = listing.try_next().await? {
            let Key::Chunk(key) = key else { continue };
            match self.reads.entry(&key).await {
                Ok(entry) => behind.entry(entry.parent_hash).or_default().push(key),
                // It is unreadable for everyone: a scrub or its age will remove it.
                Err(ChunkError::Corrupt { .. } | ChunkError::Unknown { .. }) => {}
                Err(error) => {
                    pass.read_or_left::<()>(&key, Err(error));
                }
            }
        }
        let mut next: Vec<[u8; 32]> = roots.iter().map(RootHash::first_parent).collect();
        while let Some(hash) = next.pop() {
            for key in behind.remove(&hash).unwrap_or_default() {
                next.push(*key.seq_hash.as_bytes());
                if pass.contexts.may_pin(&key) || self.reads.tombstones().has(&key).await? {
                    continue;
                }
                pass.report.expired += 1;
                self.mark_deleted(pass, &key, Removal::Expired, None).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use object_store::{ObjectStoreExt, PutPayload};

    use super::{
        super::{Epoch, GcPolicy, StoreTime, testing::storage},
        *,
    };
    use crate::{
        Storage, WorkShare,
        index::{IndexEntry, IndexRow, Scope},
        limits,
    };

    /// Stores a chunk of which the index alone is asked.
    async fn put(storage: &Storage, key: &ChunkKey, parent_hash: [u8; 32]) {
        let row = Arc::new(IndexRow::example(key.seq_hash, key.object_digest));
        let entry = IndexEntry { parent_hash, blocks: IndexEntry::short_blocks([&[7; 8][..]]), row };
        let path = storage.store().layout().path(&Key::Chunk(key.clone()));
        storage.store().objects().put(&path, PutPayload::new()).await.expect("writes");
        storage.reads().index().insert_unless_gone(Scope::new(&key.tenant, &key.model_id), &Arc::new(entry));
    }

    #[tokio::test]
    async fn a_salt_stays_while_its_tenant_has_no_action_left_for_its_chunks() {
        let storage = storage().await;
        let (tenant, namespace): (Name, Name) = ("t".parse().expect("a name"), "n".parse().expect("a name"));
        let key = ChunkKey {
            tenant: tenant.clone(),
            model_id: [1; 32].into(),
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
        };
        let salt = storage.catalog().salt(&tenant).await.expect("a salt");
        let root = RootHash::derive(tenant.as_str(), namespace.as_str(), &salt, &key.model_id);
        put(&storage, &key, root.first_parent()).await;
        // The second one ends the first one and the tenant's first salt.
        for _ in 0..2 {
            let rotated =
                storage.catalog().rotate_namespace(&tenant, &namespace, &ModelId::OPAQUE, Duration::ZERO);
            rotated.await.expect("a salt");
        }
        let now = StoreTime(storage.store().now_ms().expect("was probed") + 60_000);
        let (policy, share) = (GcPolicy::default(), WorkShare::WHOLE);
        let mut found = Vec::new();
        for taken in [limits::GC_TENANT_ACTIONS_MIN, 0] {
            let epoch = Epoch { n: 0, begun: now, lists_all: true };
            let mut pass = GcPass::new(&policy, &share, epoch);
            assert!((0..taken).all(|_| pass.tenant_budget.try_take(&tenant)));
            pass.rotated.insert((tenant.clone(), namespace.clone()));
            storage.lifecycle().collect_expired_salts(&mut pass).await;
            let folder = storage.store().layout().salt_rotations_prefix(&tenant, &namespace);
            let salts: Vec<_> =
                storage.store().objects().list(Some(&folder)).try_collect().await.expect("lists");
            found.push((storage.reads().tombstones().has(&key).await.expect("asks"), salts.len()));
        }
        assert_eq!(found, [(false, 2), (true, 1)], "whether the chunk is marked, and the salts left");
    }
}
