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
        // Unreadable chunks may be under one of these roots, and the tenant's actions may have ended before its chunks: the salts
        // stay for a pass that can read and mark the rest.
        let is_spent = !pass.tenant_budget.has_remaining(tenant);
        if pass.policy.dry_run || pass.report.unread > unread || is_spent {
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
                self.mark_deleted(pass, &key, Removal::Expired).await?;
            }
        }
        Ok(())
    }
}
