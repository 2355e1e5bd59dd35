//! What a tenant keeps in the store: by a listing, which is the truth.

use futures::TryStreamExt;
use kvasir_api::UsageResponse;
use kvasir_types::Name;

use crate::{Storage, StorageError, layout::Key};

impl Storage {
    /// Counts everything of a tenant: one listing, a request for every thousand objects.
    ///
    /// # Errors
    /// [`StorageError::Store`].
    pub async fn usage(&self, tenant: &Name) -> Result<UsageResponse, StorageError> {
        let mut usage = UsageResponse {
            objects: 0,
            bytes: 0,
            removed_objects: 0,
            removed_bytes: 0,
            profile_bytes: 0,
            context_versions: 0,
            waiting_uploads: 0,
            bytes_by_model: Default::default(),
            as_of_s_ago: 0,
        };
        let mut removed = std::collections::HashSet::new();
        let mut chunks = Vec::new();
        let prefix = self.store.layout.tenant(tenant);
        let mut listing = self.store.store.list(Some(&prefix));
        let failed = StorageError::store("listing a tenant's objects");
        while let Some(meta) = listing.try_next().await.map_err(&failed)? {
            match self.store.layout.parse(&meta.location) {
                Some(Key::Chunk(key)) => chunks.push((key, meta.size)),
                Some(Key::Tombstone(key)) => drop(removed.insert(key)),
                Some(Key::Spec { .. } | Key::Profile { .. }) => usage.profile_bytes += meta.size,
                Some(Key::Context { .. }) => usage.context_versions += 1,
                Some(Key::Upload(_)) => usage.waiting_uploads += 1,
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
        Ok(usage)
    }
}
