//! Scrubs: reads stored objects and verifies them against their names.

use std::time::Duration;

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use object_store::ObjectMeta;
use tokio::time::{Instant, sleep_until};

use super::{Lifecycle, ProgressAnswer, WorkShare, gc::is_younger};
use crate::{error::ChunkError, limits, removal::Removal};

const LISTING: &str = "listing the store for a scrub";

/// The result of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubReport {
    /// Objects read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were wrong in two reads and now have a tombstone.
    pub quarantined: u64,
    /// Objects that could not be read.
    pub unread: u64,
    /// Objects that were wrong in the first read and right in the second, or stored again during the reads.
    pub misread: u64,
}

impl ScrubReport {
    fn note_unread(&mut self, key: &ChunkKey, error: &ChunkError) {
        self.unread += 1;
        match self.unread {
            ..limits::SCRUB_UNREAD_LOGGED => tracing::warn!(?key, %error, "a scrub could not read an object"),
            limits::SCRUB_UNREAD_LOGGED => {
                tracing::warn!(?key, %error, "a scrub could not read an object; further ones are only counted");
            }
            _ => {}
        }
    }
}

impl Lifecycle {
    /// Reads every chunk object of a share at `bytes_per_second` (zero: no limit) and verifies it against its name. One
    /// that is wrong in two reads is quarantined: hidden from lookups at once, deleted after the grace; a dry
    /// run only counts it. `progress` may end it between two objects.
    ///
    /// # Errors
    /// [`StoreError::Request`] if the store cannot be listed. Failures of single objects are counted.
    pub async fn scrub<N: ProgressAnswer>(
        &self,
        share: &WorkShare,
        bytes_per_second: u64,
        dry_run: bool,
        mut progress: impl FnMut(&ScrubReport) -> N,
    ) -> Result<ScrubReport, StoreError> {
        let share = &share.of_scrub_at(self.bucket.now_ms().unwrap_or(0));
        let mut listing = if share.is_whole() {
            self.bucket.list_long(&self.bucket.layout().tenants_prefix(), LISTING)
        } else {
            self.list_units(share, &self.models().await?, LISTING)
        };
        let (start, mut report) = (Instant::now(), ScrubReport::default());
        while let Some((key, meta)) = listing.try_next().await? {
            let Key::Chunk(key) = key else { continue };
            match self.reads.is_what_it_is_called(&key).await {
                Ok(true) => {}
                Ok(false) => match self.is_wrong_again(&key, &meta).await {
                    Ok(true) => {
                        if dry_run {
                            tracing::error!(?key, "an object is corrupt in the store");
                        } else {
                            tracing::error!(?key, "an object is corrupt in the store and is quarantined");
                            self.changes.write_tombstone(&key, Removal::Corrupt).await?;
                        }
                        report.quarantined += 1;
                    }
                    Ok(false) => {
                        tracing::warn!(
                            ?key,
                            "an object was wrong in the first read but right in the second, or was stored again"
                        );
                        report.misread += 1;
                    }
                    Err(error) => report.note_unread(&key, &error),
                },
                // It was removed in the meantime, or is a plain object of a tenant that has since received a
                // key.
                Err(ChunkError::Unknown { .. }) => continue,
                Err(error) => report.note_unread(&key, &error),
            }
            report.objects += 1;
            report.bytes += meta.size;
            if !progress(&report).goes_on() {
                return Ok(report);
            }
            if bytes_per_second > 0 {
                let due = start + Duration::from_secs_f64(report.bytes as f64 / bytes_per_second as f64);
                // Large objects at a low rate: a stop must not wait for the next one.
                while Instant::now() < due {
                    sleep_until(due.min(Instant::now() + limits::SCRUB_PROGRESS_EVERY)).await;
                    if !progress(&report).goes_on() {
                        return Ok(report);
                    }
                }
            }
        }
        Ok(report)
    }

    /// Whether a listed object that was wrong is so in a second read, and was not stored again during the reads:
    /// the acknowledged bytes of a PUT may have replaced the damaged ones.
    async fn is_wrong_again(&self, key: &ChunkKey, listed: &ObjectMeta) -> Result<bool, ChunkError> {
        if self.reads.is_what_it_is_called(key).await? {
            return Ok(false);
        }
        let now = self.bucket.head(&listed.location, "asking for a damaged object").await?;
        Ok(now.is_some_and(|now| !is_younger(&now, listed)))
    }
}
