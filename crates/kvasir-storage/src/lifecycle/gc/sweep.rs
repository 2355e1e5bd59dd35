//! From a tombstone to free space: the bytes are deleted after the grace, the tombstone after its retention.
//!
//! The retention begins when the bytes are gone. That time is recorded as an empty object (a note) next to
//! the tombstone, dated by the store. If it were counted from the tombstone's own date, a late pass could
//! delete both within a minute, and a slow collector that had decided earlier would meet a name that is in
//! use again. A late or repeated note only prolongs the tombstone's life; a note older than the tombstone
//! belongs to an earlier object of the name and does not count.
//!
//! In between, a pass asks the store for the bytes under a tombstone only if it may have listed them. A note does not say
//! that they are still gone: a writer that was late may have written them again. Then they must go while the replicas
//! remember the removal, which is for hardly longer than the retention: the next pass lists them and deletes them.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key, ListedKey},
};
use kvasir_types::Name;
use object_store::{ObjectMeta, PutPayload};

use super::{super::Lifecycle, GcPass, StoreTime, concurrent::concurrently};
use crate::{blocking::blocking, error::ObjectError, limits, removal::Removal, transitions::Transition};

/// A tombstone past its grace.
#[derive(Debug)]
pub(super) struct DueTombstone {
    key: ChunkKey,
    meta: ObjectMeta,
}

/// What is under it.
enum Looked {
    /// An object of so many bytes.
    Object(DueTombstone, u64),
    /// None, and what became of the tombstone.
    Nothing(Swept),
}

/// What became of it.
enum Swept {
    /// It stays, and nothing was deleted.
    Kept,
    /// The object under it was deleted, of so many bytes. A dry run only counts it.
    ObjectDeleted(ChunkKey, u64),
    /// The object was gone before, and no note says since when.
    Unnoted(ChunkKey),
    /// Its retention was over. A dry run only counts it.
    TombstoneDeleted,
}

impl Lifecycle {
    /// Lets a listed tombstone past its grace wait, and sweeps those that wait if they are many.
    pub(super) async fn sweep_tombstone(
        &self,
        pass: &mut GcPass<'_>,
        key: ChunkKey,
        meta: ObjectMeta,
    ) -> Result<(), StoreError> {
        if pass.now.age(&meta) < pass.policy.grace || !pass.tenant_budget.has_remaining(&key.tenant) {
            return Ok(());
        }
        // There are no bytes to delete, and it stays.
        if !pass.may_have_listed(&key) && !pass.may_end(&meta) {
            return Ok(());
        }
        pass.due_tombstones.push(DueTombstone { key, meta });
        if pass.due_tombstones.len() < pass.policy.tombstones_at_once() {
            return Ok(());
        }
        self.sweep_due(pass).await
    }

    /// Deletes the bytes of the tombstones that wait, and those whose retention is over.
    pub(super) async fn sweep_due(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let due = std::mem::take(&mut pass.due_tombstones);
        let shared = &*pass;
        let (looked, asked) = concurrently(due, |due| self.look_under(shared, due)).await;
        let mut found = Vec::new();
        for looked in looked {
            match looked {
                Looked::Object(due, bytes) => found.push((due, bytes)),
                Looked::Nothing(swept) => self.note_swept(pass, swept),
            }
        }
        // Pins were read after the pass began. A tombstone can be younger only if the grace period is nearly
        // zero.
        let needs_pins = |due: &DueTombstone| {
            pass.now.age(&due.meta) <= limits::STORE_DATE_UNIT || !pass.contexts.has_read(&due.key.tenant)
        };
        let tenants: BTreeSet<Name> =
            found.iter().filter(|(due, _)| needs_pins(due)).map(|(due, _)| due.key.tenant.clone()).collect();
        self.read_contexts(pass, tenants).await?;
        let shared = &*pass;
        let (swept, ended) = concurrently(found, |(due, bytes)| self.sweep_one(shared, due, bytes)).await;
        for swept in swept {
            self.note_swept(pass, swept);
        }
        asked.and(ended)
    }

    /// Looks for the object under a tombstone. If there is none, the tombstone's retention may be over: that is decided at
    /// once, because a writer that was late may write the object again.
    async fn look_under(&self, pass: &GcPass<'_>, due: DueTombstone) -> Result<Looked, StoreError> {
        if pass.is_stale() {
            return Ok(Looked::Nothing(Swept::Kept));
        }
        let object = self.meta_of(&self.bucket.path(&Key::Chunk(due.key.clone()))).await?;
        if let Some(object) = object {
            return Ok(Looked::Object(due, object.size));
        }
        let DueTombstone { key, meta } = due;
        if !pass.may_end(&meta) {
            return Ok(Looked::Nothing(Swept::Kept));
        }
        Ok(Looked::Nothing(self.expire_tombstone(pass, key, &meta).await?))
    }

    /// Deletes the object under a tombstone, unless it is held.
    async fn sweep_one(
        &self,
        pass: &GcPass<'_>,
        DueTombstone { key, meta }: DueTombstone,
        bytes: u64,
    ) -> Result<Swept, StoreError> {
        if self.is_held(pass, &key, &meta).await? {
            return Ok(Swept::Kept);
        }
        if !pass.policy.dry_run {
            if !pass.tenant_budget.try_take(&key.tenant) {
                return Ok(Swept::Kept);
            }
            pass.pace().await;
            if !self.stands(pass, &meta).await? {
                return Ok(Swept::Kept);
            }
            self.bucket.delete(&self.bucket.path(&Key::Chunk(key.clone()))).await?;
            self.bucket.reached(Transition::ObjectDeleted);
        }
        Ok(Swept::ObjectDeleted(key, bytes))
    }

    fn note_swept(&self, pass: &mut GcPass<'_>, swept: Swept) {
        match swept {
            Swept::Kept => {}
            Swept::ObjectDeleted(key, bytes) => {
                pass.report.deleted += 1;
                pass.report.deleted_bytes += bytes;
                if pass.policy.dry_run {
                    return;
                }
                // A walk of folders may not have reached it yet; the next count is right.
                if self.bucket.open().directory().is_none() {
                    pass.count.deleted(&key.tenant, bytes);
                }
                pass.gone.push(key);
            }
            Swept::Unnoted(key) => pass.gone.push(key),
            Swept::TombstoneDeleted => pass.report.tombstones_deleted += 1,
        }
    }

    /// Deletes the marker of a removed opaque object. If the key has another object, that one is listed
    /// first.
    pub(super) async fn sweep_listed(
        &self,
        pass: &mut GcPass<'_>,
        listed: ListedKey,
        meta: &ObjectMeta,
    ) -> Result<(), StoreError> {
        if pass.policy.dry_run {
            return Ok(());
        }
        pass.pace().await;
        match self.reads.opaque(&listed.tenant, &listed.namespace, &listed.key).await {
            Ok(object) if object.digest() == listed.object_digest => return Ok(()),
            Ok(object) => {
                self.bucket.write_listed(ListedKey { object_digest: object.digest(), ..listed }).await?;
            }
            Err(ObjectError::Unknown { .. }) => {}
            // Unknown: the next pass checks again.
            Err(error) => {
                tracing::warn!(%error, "the marker of a removed object could not be deleted; the next pass retries");
                return Ok(());
            }
        }
        self.bucket.delete(&meta.location).await
    }

    /// Whether a listed tombstone still exists. Another collector may have ended its retention since, and the
    /// name may be in use again.
    async fn stands(&self, pass: &GcPass<'_>, tombstone: &ObjectMeta) -> Result<bool, StoreError> {
        let now = self.meta_of(&tombstone.location).await?;
        Ok(!pass.is_stale() && now.is_some_and(|now| !is_younger(&now, tombstone)))
    }

    /// Deletes a tombstone whose retention has ended; starts the retention if no collector has recorded it.
    async fn expire_tombstone(
        &self,
        pass: &GcPass<'_>,
        key: ChunkKey,
        tombstone: &ObjectMeta,
    ) -> Result<Swept, StoreError> {
        let note = self.bucket.path(&Key::Gone(key.clone()));
        // A note older than the tombstone belongs to an earlier object of the name.
        let noted = self.meta_of(&note).await?.filter(|note| !is_younger(tombstone, note));
        let Some(noted) = noted else {
            if pass.policy.dry_run || !self.stands(pass, tombstone).await? {
                return Ok(Swept::Kept);
            }
            // The collector that deleted the bytes ended before it could record that; or there is only a
            // plain object that is never read.
            self.bucket.delete(&self.bucket.path(&Key::Chunk(key.clone()))).await?;
            return Ok(Swept::Unnoted(key));
        };
        if pass.now.age(&noted) < pass.policy.tombstone_retention {
            return Ok(Swept::Kept);
        }
        if !pass.policy.dry_run {
            pass.pace().await;
            if !self.stands(pass, tombstone).await? {
                return Ok(Swept::Kept);
            }
            self.bucket.delete(&tombstone.location).await?;
            self.bucket.reached(Transition::TombstoneDeleted);
            self.bucket.delete(&note).await?;
        }
        Ok(Swept::TombstoneDeleted)
    }

    /// Deletes a note that has outlived its tombstone: its collector stopped between the two deletions.
    pub(super) async fn delete_stray_note(
        &self,
        pass: &mut GcPass<'_>,
        key: &ChunkKey,
        note: &ObjectMeta,
    ) -> Result<(), StoreError> {
        // While its tombstone may still be in flight, do not check.
        let is_late =
            pass.now.age(note) >= pass.policy.grace + pass.policy.tombstone_retention.saturating_mul(2);
        let tombstone = self.bucket.path(&Key::Tombstone(key.clone()));
        if is_late && !pass.policy.dry_run && self.meta_of(&tombstone).await?.is_none() {
            self.bucket.delete(&note.location).await?;
        }
        Ok(())
    }

    /// Like [`note_gone`](Self::note_gone), if many objects are waiting for it.
    pub(super) async fn note_gone_due(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        if pass.gone.len() >= limits::GC_GONE_WAITING_MAX { self.note_gone(pass).await } else { Ok(()) }
    }

    /// Announces objects whose bytes this pass deleted, and writes their notes once that is durable: the
    /// remover may have ended between its tombstone and the announcement. The retention of a tombstone begins
    /// with the note, so by the time the tombstone is deleted, the other replicas have read of the removal or
    /// were away for too long.
    pub(super) async fn note_gone(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let gone = std::mem::take(&mut pass.gone);
        // Objects without a note get one from the next pass.
        if gone.is_empty() || pass.is_stale() {
            return Ok(());
        }
        let noted = self.announce_and_note(gone.clone()).await;
        if noted.is_err() {
            // A pass that fails tries again. Some may be noted by then: a repeated note is harmless.
            pass.gone = gone;
        }
        noted
    }

    async fn announce_and_note(&self, gone: Vec<ChunkKey>) -> Result<(), StoreError> {
        let (gone, asked) = concurrently(gone, |key| self.with_reason(key)).await;
        // Every replica reads each batch, so all leave together.
        if self.announce_gone(&gone).await?.is_ok() {
            let (_, noted) = concurrently(gone, |(key, _)| self.write_note(key)).await;
            return asked.and(noted);
        }
        let mut by_tenant: BTreeMap<Name, Vec<(ChunkKey, Removal)>> = BTreeMap::new();
        for (key, reason) in gone {
            by_tenant.entry(key.tenant.clone()).or_default().push((key, reason));
        }
        let mut outcome = asked;
        for (tenant, gone) in by_tenant {
            if let Err(error) = self.announce_gone(&gone).await? {
                tracing::warn!(%error, %tenant, "removals of a tenant cannot be announced; a later pass tries again");
                continue;
            }
            let (_, noted) = concurrently(gone, |(key, _)| self.write_note(key)).await;
            outcome = outcome.and(noted);
        }
        outcome
    }

    /// Announces objects. The inner error says that some were dropped, as those of a tenant that cannot be sealed because its key
    /// is lost: they end no pass, because without notes they are announced again. The store's failure does.
    async fn announce_gone(
        &self,
        gone: &[(ChunkKey, Removal)],
    ) -> Result<Result<(), StoreError>, StoreError> {
        let dropped = self.changes.dropped_removals();
        for (key, reason) in gone {
            self.changes.announce_removed(key, *reason);
        }
        match self.changes.append_removals(dropped).await {
            Err(error) if self.changes.dropped_removals() == dropped => Err(error),
            announced => Ok(announced),
        }
    }

    /// An object and the reason of its tombstone.
    async fn with_reason(&self, key: ChunkKey) -> Result<(ChunkKey, Removal), StoreError> {
        let reason = self.reads.tombstones().reason(&key).await?.unwrap_or(Removal::Removed);
        Ok((key, reason))
    }

    async fn write_note(&self, key: ChunkKey) -> Result<(), StoreError> {
        let path = self.bucket.path(&Key::Gone(key));
        self.bucket.put(&path, PutPayload::new(), "recording that an object is gone").await?;
        self.bucket.reached(Transition::GoneNoted);
        Ok(())
    }

    async fn meta_of(&self, path: &object_store::path::Path) -> Result<Option<ObjectMeta>, StoreError> {
        self.bucket.head(path, "asking for an object under a tombstone").await
    }

    /// Remains of ended writers: staging files of a directory, multipart uploads of a bucket.
    pub(super) async fn sweep_leftovers(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        if let Some(directory) = self.bucket.open().directory().cloned() {
            let (age, dry_run) = (pass.policy.leftovers_age, pass.policy.dry_run);
            let swept = blocking(move || super::leftovers::sweep(&directory, age, dry_run));
            match swept.await? {
                Ok(count) => pass.report.leftovers_deleted += count,
                Err(error) => {
                    tracing::warn!(%error, "the store's directory cannot be searched for orphaned files")
                }
            }
        }
        if let Err(error) = self.abort_unfinished(pass).await {
            // Nothing depends on it, and many stores have their own rules for this.
            tracing::warn!(%error, "unfinished uploads in parts stay; is s3:ListBucketMultipartUploads allowed?");
        }
        Ok(())
    }

    /// Aborts multipart uploads that are older than any writer's lifetime.
    async fn abort_unfinished(&self, pass: &mut GcPass<'_>) -> object_store::Result<()> {
        let Some(uploads) = self.bucket.open().unfinished() else { return Ok(()) };
        for upload in uploads.list(&self.bucket.layout().tenants_prefix()).await? {
            if pass.now.since(StoreTime(upload.begun_ms)) < pass.policy.leftovers_age {
                continue;
            }
            if !pass.policy.dry_run {
                pass.pace().await;
                uploads.abort(&upload).await?;
            }
            pass.report.leftovers_deleted += 1;
        }
        Ok(())
    }
}

impl GcPass<'_> {
    /// Whether the retention of a tombstone may be over: it begins after the grace.
    fn may_end(&self, tombstone: &ObjectMeta) -> bool {
        self.now.age(tombstone) >= self.policy.removals_kept()
    }
}

/// Whether `one` was written after `other`. At equal times, a listed date may look younger than a queried
/// one.
pub(crate) fn is_younger(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    StoreTime::of(one).since(StoreTime::of(other)) > limits::STORE_DATE_UNIT
}
