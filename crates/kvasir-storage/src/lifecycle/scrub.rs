//! Scrubs: reads stored objects and verifies them against their names.

use std::time::Duration;

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::{Lifecycle, ProgressAnswer, WorkShare, gc::is_younger};
use crate::{checked_json, error::ChunkError, index::Index, limits, removal::Removal};

const LISTING: &str = "listing the store for a scrub";

/// The result of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// How far a pass is. That of a replica's repeated scrub is kept in its index.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ScrubPosition {
    /// The store's time, in ms, at which the pass began; without one under way, at which the last one ended.
    since_ms: i64,
    /// The name of its units.
    units: String,
    /// Of all objects so far, in the order of their names.
    report: ScrubReport,
    /// The last of them; empty: no pass is under way.
    last: String,
}

impl ScrubPosition {
    /// No pass is under way since that time.
    fn idle(since_ms: i64) -> Self {
        Self { since_ms, ..Self::default() }
    }

    /// The kept one; `None` where there is none, or none that can be read.
    fn load(index: &Index) -> Option<Self> {
        checked_json::from_slice(&index.scrub_position()?).ok()
    }

    fn keep(&self, index: &Index) {
        if let Ok(record) = checked_json::to_vec(self) {
            index.set_scrub_position(&record);
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
        progress: impl FnMut(&ScrubReport) -> N,
    ) -> Result<ScrubReport, StoreError> {
        let share = share.of_scrub_at(self.bucket.now_ms().unwrap_or(0));
        let mut position = ScrubPosition::default();
        self.scrub_pass(&share, &mut position, None, bytes_per_second, dry_run, progress).await?;
        Ok(position.report)
    }

    /// Makes the pass of this replica that is due, or goes on with the one that an earlier process began; its report is of the
    /// whole pass. `None`: nothing is due. `up`: since this process began, or last ended a pass. A pass is due
    /// `interval` after the last one, or after `up` began where no position is known. It begins only once `up` is an hour, or
    /// `interval` where that is shorter: before, the list of members may not be whole. If the list names other units by
    /// then, a pass that was under way begins anew. `progress` first hears what earlier processes counted. Over a
    /// directory, whose listing has no order, an interrupted pass begins anew.
    ///
    /// # Errors
    /// As [`scrub`](Self::scrub). The next call goes on, or, if nothing was verified and over a directory, the next pass is
    /// due in `interval`.
    pub async fn continue_scrub(
        &self,
        share: &WorkShare,
        interval: Duration,
        up: Duration,
        bytes_per_second: u64,
        mut progress: impl FnMut(&ScrubReport),
    ) -> Result<Option<ScrubReport>, StoreError> {
        let Some(now_ms) = self.bucket.now_ms() else { return Ok(None) };
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let index = self.reads.index().index();
        let mut position = ScrubPosition::load(index).unwrap_or_else(|| {
            // The interval counts from the first start, not from the latest one.
            let none = ScrubPosition::idle(now_ms.saturating_sub(ms(up)));
            none.keep(index);
            none
        });
        let mut share_then = share.of_scrub_at(position.since_ms);
        let is_under_way = !position.last.is_empty();
        if !is_under_way || position.units != share_then.name() {
            // Where the last one ended in the future, a clock was wrong.
            let is_due =
                is_under_way || !(0..ms(interval)).contains(&now_ms.saturating_sub(position.since_ms));
            if !is_due || up < interval.min(limits::SCRUB_BEGUN_AFTER) {
                return Ok(None);
            }
            share_then = share.of_scrub_at(now_ms);
            position = ScrubPosition { units: share_then.name(), ..ScrubPosition::idle(now_ms) };
        }
        progress(&position.report);
        let kept_in = self.bucket.lists_in_order().then_some(index);
        let scrubbed =
            self.scrub_pass(&share_then, &mut position, kept_in, bytes_per_second, false, progress).await;
        let report = position.report;
        if scrubbed.is_ok() || position.last.is_empty() {
            position = ScrubPosition::idle(self.bucket.now_ms().unwrap_or(now_ms));
        }
        position.keep(index);
        scrubbed.map(|()| Some(report))
    }

    /// The rest of a pass behind `position`, which is kept in the index on the way.
    async fn scrub_pass<N: ProgressAnswer>(
        &self,
        share: &WorkShare,
        position: &mut ScrubPosition,
        kept_in: Option<&Index>,
        bytes_per_second: u64,
        dry_run: bool,
        mut progress: impl FnMut(&ScrubReport) -> N,
    ) -> Result<(), StoreError> {
        let layout = self.bucket.layout();
        let mut listing = if share.is_whole() {
            self.bucket.list_long(&layout.tenants_prefix(), LISTING)
        } else {
            let mut models = self.models().await?;
            // In the order of names, which a position is in.
            models.sort_by_cached_key(|(tenant, model_id)| layout.model_chunks_prefix(tenant, model_id));
            self.list_units(share, &models, LISTING)
        };
        let (behind, bytes_before) = (position.last.clone(), position.report.bytes);
        let (mut start, mut kept) = (None::<Instant>, None::<Instant>);
        while let Some((key, meta)) = listing.try_next().await? {
            let Key::Chunk(key) = key else { continue };
            let name: &str = meta.location.as_ref();
            // To list it again costs far less than to read it again.
            if name <= behind.as_str() {
                continue;
            }
            let start = *start.get_or_insert_with(Instant::now);
            let report = &mut position.report;
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
            if let Some(index) = kept_in {
                position.last = meta.location.into();
                if kept.is_none_or(|kept| kept.elapsed() >= limits::SCRUB_KEPT_EVERY) {
                    position.keep(index);
                    kept = Some(Instant::now());
                }
            }
            let report = &position.report;
            if !progress(report).goes_on() {
                return Ok(());
            }
            if bytes_per_second > 0 {
                let bytes = report.bytes - bytes_before;
                let due = start + Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64);
                // Large objects at a low rate: a stop must not wait for the next one.
                while Instant::now() < due {
                    sleep_until(due.min(Instant::now() + limits::SCRUB_PROGRESS_EVERY)).await;
                    if !progress(report).goes_on() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
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
