//! The beginning of a pass: an object whose date says what time it is for the store, and who lists everything.

use std::{collections::BTreeMap, time::Duration};

use futures::TryStreamExt;
use kvasir_store::{StoreError, layout::Key};
use object_store::{ObjectMeta, PutPayload};
use tokio::time::Instant;

use super::{super::Lifecycle, GcPass, StoreTime};
use crate::{lifecycle::work_share::WorkShare, limits, transitions::Transition};

const BEGINNING: &str = "starting a collector's epoch";

/// The body of an epoch whose pass lists the whole store. Others are empty, so that a listing shows which is which.
const LISTS_ALL: &[u8] = b"lists the whole store\n";

/// A pass that has begun.
pub(super) struct Epoch {
    pub(super) n: u64,
    pub(super) begun: StoreTime,
    /// Whether this pass lists the whole store.
    pub(super) lists_all: bool,
}

impl Lifecycle {
    /// Writes the next epoch. `None` if other collectors have just done so; those of a part try again, since the others
    /// do other parts.
    pub(super) async fn begin_epoch(
        &self,
        share: &WorkShare,
        dry_run: bool,
    ) -> Result<Option<Epoch>, StoreError> {
        let tries = if share.is_whole() { 1 } else { limits::EPOCH_TRIES_MAX };
        for _ in 0..tries {
            let mut epochs = self.epochs().await?;
            // Nobody counts that far: whoever wrote it would have ended all passes after it.
            for n in epochs.split_off(&limits::EPOCH_MAX).into_keys() {
                self.bucket.delete(&self.bucket.path(&Key::GcEpoch { n })).await?;
            }
            let n = epochs.last_key_value().map_or(0, |(last, _)| last + 1);
            let path = self.bucket.path(&Key::GcEpoch { n });
            let marked =
                epochs.iter().filter(|(_, meta)| meta.size > 0).max_by_key(|(_, meta)| meta.last_modified);
            // The first pass of all says from when on the others wait.
            let is_marked = !dry_run && (share.keeps_accounts() || marked.is_none());
            let body = if is_marked { PutPayload::from_static(LISTS_ALL) } else { PutPayload::new() };
            if !self.bucket.create(&path, body, BEGINNING).await? {
                continue;
            }
            self.bucket.reached(Transition::EpochBegun);
            let spared = if is_marked { None } else { marked.map(|(n, _)| *n) };
            for old in epochs.keys().rev().skip(limits::EPOCHS_KEPT).filter(|old| Some(**old) != spared) {
                self.bucket.delete(&self.bucket.path(&Key::GcEpoch { n: *old })).await?;
            }
            let Some(meta) = self.bucket.head(&path, BEGINNING).await? else { return Ok(None) };
            let begun = StoreTime::of(&meta);
            let waited = marked.map_or(Duration::ZERO, |(_, meta)| begun.age(meta));
            let stands_in = self.stands_in(share, begun, waited);
            if stands_in && !dry_run {
                self.bucket.put(&path, PutPayload::from_static(LISTS_ALL), BEGINNING).await?;
            }
            return Ok(Some(Epoch { n, begun, lists_all: stands_in || share.keeps_accounts() }));
        }
        Ok(None)
    }

    /// Dates the mark of a pass that lists the whole store anew: while it lasts, nobody takes its member for away.
    pub(super) async fn still_lists(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        if pass.lists_all && !pass.policy.dry_run && pass.marked.elapsed() >= limits::EPOCH_MARKED_EVERY {
            pass.marked = Instant::now();
            let path = self.bucket.path(&Key::GcEpoch { n: pass.epoch });
            self.bucket.put(&path, PutPayload::from_static(LISTS_ALL), BEGINNING).await?;
        }
        Ok(())
    }

    /// Whether this replica lists the whole store although another should: nobody has for `waited`, measured in its own
    /// passes.
    fn stands_in(&self, share: &WorkShare, begun: StoreTime, waited: Duration) -> bool {
        if share.keeps_accounts() {
            return false;
        }
        let before = self.last_pass.lock().replace(begun);
        let patience = limits::WHOLE_PASSES_MISSED_MAX.saturating_mul(share.rank_for_accounts());
        before.is_some_and(|before| waited > begun.since(before).saturating_mul(patience))
    }

    async fn epochs(&self) -> Result<BTreeMap<u64, ObjectMeta>, StoreError> {
        let listed = self.bucket.list(&self.bucket.layout().epochs_prefix(), BEGINNING);
        let number = async |(key, meta)| match key {
            Key::GcEpoch { n } => Ok(Some((n, meta))),
            _ => Ok(None),
        };
        listed.try_filter_map(number).try_collect().await
    }
}
