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
    /// Objects that were read wrongly once and rightly the second time.
    pub misread: u64,
}

impl Storage {
    /// Reads every chunk object at `bytes_per_second` (zero: as fast as it goes) and compares it with its name. One that
    /// is wrong twice is quarantined: hidden from lookups now, deleted after the grace; in a dry run it is only counted.
    ///
    /// # Errors
    /// [`StorageError::Store`] when the store cannot be listed. Single objects that fail are counted.
    pub async fn scrub(
        &self,
        bytes_per_second: u64,
        dry_run: bool,
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
                        tracing::error!(
                            ?key,
                            dry_run,
                            "an object is corrupt in the store and is quarantined"
                        );
                        if !dry_run {
                            self.write_tombstone(&key, Removal::Corrupt).await?;
                        }
                        report.quarantined += 1;
                    }
                    Ok(true) => {
                        tracing::warn!(?key, "an object was read wrongly once");
                        report.misread += 1;
                    }
                    Err(_) => report.unread += 1,
                },
                // It went meanwhile, or is a plain object of a tenant that has a key by now.
                Err(StorageError::UnknownChunk { .. }) => continue,
                Err(_) => report.unread += 1,
            }
            report.objects += 1;
            report.bytes += meta.size;
            progress(&report);
            if bytes_per_second > 0 {
                let due = Duration::from_secs_f64(report.bytes as f64 / bytes_per_second as f64);
                tokio::time::sleep_until(start + due).await;
            }
        }
        Ok(report)
    }

    /// Reads all of an object: is the hash of its bytes its name?
    pub(crate) async fn is_what_it_is_called(&self, key: &ChunkKey) -> Result<bool, StorageError> {
        let digest = async {
            let mut read = self.read_store(key, ByteRange::Whole).await?.bytes;
            let mut digest = blake3::Hasher::new();
            while let Some(part) = read.try_next().await? {
                digest.update(&part);
            }
            Ok(digest.finalize())
        };
        match digest.await {
            Ok(digest) => Ok(digest == *key.object_digest.as_bytes()),
            Err(StorageError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
