//! A tenant's usage of the store from a listing, which is authoritative.

use futures::TryStreamExt;
use kvasir_api::UsageResponse;
use kvasir_store::{StoreError, layout::Key};
use kvasir_types::Name;
use object_store::path::Path;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Changes,
    count::Count,
    journal::{JournalEntry, included_until},
    ledger::{Full, Later, Ledger, Reach, Reservation, Stored, StoredQuota},
};
use crate::error::QuotaError;

const LISTING: &str = "listing a tenant's objects";

/// Identifies a version of a context in a count.
pub(crate) fn context_digest(context_id: &Uuid, version: u64) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    *hash.update(context_id.as_bytes()).update(&version.to_le_bytes()).finalize().as_bytes()
}

/// Identifies a part, a model spec or the record of a namespace in a count.
pub(crate) fn path_digest(path: &Path) -> [u8; 32] {
    *blake3::hash(path.as_ref().as_bytes()).as_bytes()
}

/// The collector is listing. What is stored meanwhile is remembered until this is published or dropped.
#[derive(Debug)]
pub(crate) struct Counting<'a> {
    changes: &'a Changes,
    begun_ms: i64,
    /// Not if another pass of this replica does, and no more when the count is published.
    counts: bool,
}

impl Counting<'_> {
    /// Publishes the results of the listing.
    pub(crate) fn publish(mut self, count: Count) {
        if !std::mem::take(&mut self.counts) {
            return;
        }
        let Changes { journal, ledger, .. } = self.changes;
        let reach = journal.reach(Some(self.begun_ms));
        for (tenant, stored) in ledger.end_count(count) {
            ledger.take_count(&tenant, stored, journal.replica(), &reach);
            journal.push(JournalEntry::Counted { tenant, stored, reach: reach.clone() });
        }
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        if self.counts {
            self.changes.ledger.end_count(Count::default());
        }
    }
}

impl Changes {
    /// Reserves storage for a write of `wanted` until the reservation is dropped.
    ///
    /// # Errors
    /// [`QuotaError::Full`] if `quota` is exhausted; [`Store`](QuotaError::Store) if there is no count yet
    /// and the store cannot be listed.
    pub async fn reserve(
        &self,
        tenant: &Name,
        quota: StoredQuota,
        wanted: Stored,
    ) -> Result<Reservation, QuotaError> {
        self.count_unless(|ledger| ledger.is_counted(tenant), tenant).await?;
        let full = |Full { limit, max, used }| QuotaError::Full { limit, max, used };
        self.ledger.reserve(tenant, quota, wanted).map_err(full)
    }

    /// Lists a tenant's objects unless `is_counted` says that it is not needed. One listing at a time: others that need the same
    /// count wait for it.
    async fn count_unless(
        &self,
        is_counted: impl Fn(&Ledger) -> bool,
        tenant: &Name,
    ) -> Result<(), StoreError> {
        if is_counted(&self.ledger) {
            return Ok(());
        }
        let counting = self.ledger.counting(tenant);
        let _one_at_a_time = counting.lock().await;
        if is_counted(&self.ledger) {
            return Ok(());
        }
        let reach = self.journal.reach(self.bucket.now_ms());
        let counted = self.stored_total(tenant).await?;
        self.ledger.take_count(tenant, counted, self.journal.replica(), &reach);
        Ok(())
    }

    /// Tells the other replicas what changed in the usage of tenants with a quota since the last call, of those that were counted.
    /// For a replica that reads what all stored, on behalf of others that read counts alone; two that do so at once are harmless.
    pub fn publish_usage(&self, has_quota: impl Fn(&Name) -> bool) {
        for tenant in self.ledger.unpublished().into_iter().filter(|tenant| has_quota(tenant)) {
            let reach = self.journal.reach(self.bucket.now_ms());
            if let Some((stored, listed_ms)) = self.ledger.publish(&tenant) {
                let reach = Reach { listed_ms: Some(listed_ms), ..reach };
                self.journal.push(JournalEntry::Counted { tenant, stored, reach });
            }
        }
    }

    /// Counts the tenants with a quota whose usage this replica cannot publish, because it was not counted, or not for long. Lists
    /// their objects, which may take minutes.
    ///
    /// # Errors
    /// [`StoreError::Request`].
    pub async fn count_uncounted(&self, has_quota: impl Fn(&Name) -> bool) -> Result<(), StoreError> {
        for tenant in self.ledger.unpublished().into_iter().filter(|tenant| has_quota(tenant)) {
            self.count_unless(|ledger| ledger.was_listed(&tenant), &tenant).await?;
        }
        Ok(())
    }

    /// Whether the collector of this replica is counting.
    pub fn is_counting(&self) -> bool {
        self.ledger.is_counting()
    }

    /// Records an object that is not in the journal: other replicas learn of it from the next count.
    pub(crate) fn note_stored(&self, tenant: &Name, digest: [u8; 32], bytes: u64) {
        let later = Later {
            replica: self.journal.replica().clone(),
            n: self.journal.last_waiting(),
            is_journaled: false,
            stored_ms: self.bucket.now_ms(),
            stored: Stored::one(bytes),
        };
        self.ledger.note_later(tenant, digest, later);
    }

    /// The collector starts listing, at `begun_ms` of the store's time.
    pub(crate) fn begin_count(&self, begun_ms: i64) -> Counting<'_> {
        let counts = self.ledger.begin_count(Some(included_until(begun_ms)));
        Counting { changes: self, begun_ms, counts }
    }

    /// The sum of what [`usage`](Self::usage) counts. Remembers no key: a write waits for it, and a tenant may have millions
    /// of objects.
    async fn stored_total(&self, tenant: &Name) -> Result<Stored, StoreError> {
        let mut listing = self.bucket.list_long(&self.bucket.layout().tenant(tenant), LISTING);
        let mut total = Stored::default();
        while let Some((key, meta)) = listing.try_next().await? {
            let counts = matches!(
                key,
                Key::Chunk(_)
                    | Key::Profile { .. }
                    | Key::Context { .. }
                    | Key::Upload(_)
                    | Key::Part(_)
                    | Key::Spec { .. }
                    | Key::Namespace { .. }
            );
            if counts {
                total = total.plus(Stored::one(meta.size));
            }
        }
        Ok(total)
    }

    /// Counts a tenant's objects: one listing, with one request per thousand objects. Keys, salts, tombstones, and the
    /// markers of listed objects are left out.
    ///
    /// # Errors
    /// [`StoreError::Request`].
    pub async fn usage(&self, tenant: &Name) -> Result<UsageResponse, StoreError> {
        let begun = Instant::now();
        let mut usage = UsageResponse {
            objects: 0,
            bytes: 0,
            removed_objects: 0,
            removed_bytes: 0,
            profiles: 0,
            profile_bytes: 0,
            context_versions: 0,
            waiting_uploads: 0,
            records: 0,
            other_bytes: 0,
            stored_objects_max: None,
            stored_bytes_max: None,
            bytes_by_model: Default::default(),
            as_of_s_ago: 0,
        };
        let mut removed = std::collections::HashSet::new();
        let mut chunks = Vec::new();
        let prefix = self.bucket.layout().tenant(tenant);
        let mut listing = self.bucket.list_long(&prefix, LISTING);
        while let Some((key, meta)) = listing.try_next().await? {
            match key {
                Key::Chunk(key) => chunks.push((key, meta.size)),
                Key::Tombstone(key) => drop(removed.insert(key)),
                Key::Profile { .. } => {
                    usage.profiles += 1;
                    usage.profile_bytes += meta.size;
                }
                Key::Context { .. } => {
                    usage.context_versions += 1;
                    usage.other_bytes += meta.size;
                }
                Key::Upload(_) | Key::Part(_) => {
                    usage.waiting_uploads += 1;
                    usage.other_bytes += meta.size;
                }
                Key::Spec { .. } | Key::Namespace { .. } => {
                    usage.records += 1;
                    usage.other_bytes += meta.size;
                }
                _ => {}
            }
        }
        for (key, bytes) in chunks {
            if removed.contains(&key) {
                usage.removed_objects += 1;
                usage.removed_bytes += bytes;
            } else {
                usage.objects += 1;
                usage.bytes += bytes;
                *usage.bytes_by_model.entry(key.model_id).or_default() += bytes;
            }
        }
        usage.as_of_s_ago = begun.elapsed().as_secs();
        Ok(usage)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use kvasir_store::{
        OpenStore, StoreConfig, StoreKind,
        layout::{ChunkKey, PartKey, UploadKey},
        observe::NoObserver,
    };
    use object_store::{
        ObjectStoreExt, PutPayload,
        memory::InMemory,
        throttle::{ThrottleConfig, ThrottledStore},
    };

    use super::*;
    use crate::{Settings, Storage, index::Index};

    const BYTES: u64 = 10;

    /// An object of each kind that counts, and some that do not.
    fn keys(tenant: &Name) -> Vec<Key> {
        let (tenant, model_id, upload_id) = (tenant.clone(), [1; 32].into(), Uuid::from_u128(1));
        let chunk = ChunkKey {
            tenant: tenant.clone(),
            model_id,
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
        };
        let removed = ChunkKey { object_digest: [4; 32].into(), ..chunk.clone() };
        let upload = UploadKey { chunk: chunk.clone(), upload_id, bytes: BYTES, sha256: [5; 32] };
        let (number, digest) = (1, [6; 32].into());
        let part = PartKey { tenant: tenant.clone(), upload_id, number, bytes: BYTES, digest };
        vec![
            Key::Chunk(chunk),
            Key::Tombstone(removed.clone()),
            Key::Chunk(removed),
            Key::Profile { tenant: tenant.clone(), model_id, profile_hash: [7; 32].into() },
            Key::Context { tenant: tenant.clone(), context_id: upload_id, version: 1 },
            Key::Upload(upload),
            Key::Part(part),
            Key::Spec { tenant: tenant.clone(), model_id },
            Key::Namespace { tenant: tenant.clone(), namespace: tenant.clone() },
            Key::Salt { tenant },
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn usage_says_when_its_listing_began_and_a_quota_counts_the_same() {
        let backend = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
        let config = StoreConfig::new("memory://".parse().expect("a url"));
        let (root, observer) = (Path::default(), Arc::new(NoObserver));
        let store = OpenStore::with(Arc::clone(&backend), &root, StoreKind::Memory, &config, observer);
        let abilities = store.probe().await.expect("answers");
        let storage =
            Storage::new(store, abilities, Index::memory(), Settings::new(std::env::temp_dir()), None);
        let tenant: Name = "a".parse().expect("a name");
        let keys = keys(&tenant);
        for key in &keys {
            let path = storage.store().layout().path(key);
            backend.put(&path, PutPayload::from(vec![0; BYTES as usize])).await.expect("writes");
        }
        backend.config_mut(|config| config.wait_list_per_entry = Duration::from_secs(1));
        let usage = storage.changes().usage(&tenant).await.expect("lists");
        assert!(usage.as_of_s_ago >= keys.len() as u64, "{usage:?}");
        let objects = usage.objects
            + usage.removed_objects
            + usage.profiles
            + usage.context_versions
            + usage.waiting_uploads
            + usage.records;
        let bytes = usage.bytes + usage.removed_bytes + usage.profile_bytes + usage.other_bytes;
        assert_eq!((objects, bytes), (8, 8 * BYTES));
        let [of_objects, of_bytes] =
            [(Some(0), None), (None, Some(0))].map(|(objects, bytes)| StoredQuota { objects, bytes });
        for (quota, expected) in [(of_objects, objects), (of_bytes, bytes)] {
            let refused = storage.changes().reserve(&tenant, quota, Stored::one(1)).await;
            let refused = refused.expect_err("it is full");
            assert!(matches!(refused, QuotaError::Full { used, .. } if used == expected), "{refused}");
        }
    }
}
