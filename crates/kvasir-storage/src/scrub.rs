//! Reading stored objects again, and comparing their bytes with their names.

use std::time::Duration;

use futures::TryStreamExt;
use tokio::time::Instant;

use crate::{
    ByteRange, Storage, StorageError,
    layout::{ChunkKey, Key},
    removal::Removal,
};

/// What a scrub found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubReport {
    /// Objects read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were wrong twice and have a tombstone now.
    pub quarantined: u64,
    /// Objects that could not be read.
    pub unread: u64,
}

impl Storage {
    /// Reads every chunk object at `bytes_per_second` (zero: as fast as it goes) and compares it with its name. One that
    /// is wrong twice is quarantined: hidden from lookups now, deleted after the grace.
    ///
    /// # Errors
    /// [`StorageError::Store`] when the store cannot be listed. Single objects that fail are counted.
    pub async fn scrub(
        &self,
        bytes_per_second: u64,
        mut progress: impl FnMut(&ScrubReport),
    ) -> Result<ScrubReport, StorageError> {
        let prefix = self.store.layout.tenants_prefix();
        let mut listing = self.store.store.list(Some(&prefix));
        let failed = StorageError::store("listing the store for a scrub");
        let (start, mut report) = (Instant::now(), ScrubReport::default());
        while let Some(meta) = listing.try_next().await.map_err(&failed)? {
            let Some(Key::Chunk(key)) = self.store.layout.parse(&meta.location) else { continue };
            match self.is_what_it_is_called(&key).await {
                Ok(true) => {}
                Ok(false) => match self.is_what_it_is_called(&key).await {
                    Ok(false) => {
                        tracing::error!(?key, "an object is corrupt in the store and is quarantined");
                        self.bury(&key, Removal::Corrupt).await?;
                        report.quarantined += 1;
                    }
                    Ok(true) => tracing::warn!(?key, "an object was read wrongly once"),
                    Err(_) => report.unread += 1,
                },
                Err(_) => report.unread += 1,
            }
            report.objects += 1;
            report.bytes += meta.size;
            progress(&report);
            if let Some(due) = report.bytes.checked_div(bytes_per_second) {
                tokio::time::sleep_until(start + Duration::from_secs(due)).await;
            }
        }
        Ok(report)
    }

    /// Reads all of an object: is the hash of its bytes its name?
    pub(crate) async fn is_what_it_is_called(&self, key: &ChunkKey) -> Result<bool, StorageError> {
        let mut read = match self.read_store(key, ByteRange::Whole).await {
            Err(StorageError::Corrupt { .. }) => return Ok(false),
            read => read?.bytes,
        };
        let mut digest = blake3::Hasher::new();
        while let Some(part) = read.try_next().await? {
            digest.update(&part);
        }
        Ok(digest.finalize() == *key.object_digest.as_bytes())
    }
}
