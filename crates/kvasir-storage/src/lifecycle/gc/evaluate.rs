//! Which objects of a listed chunk are deleted: expired ones, duplicates, tails that a longer chunk contains.

use std::{cmp::Ordering, sync::Arc};

use kvasir_store::{StoreError, layout::ChunkKey};
use kvasir_types::ModelId;
use object_store::ObjectMeta;

use super::{super::Lifecycle, GcPass, concurrent::concurrently};
use crate::{
    error::ChunkError,
    index::{IndexRow, prefer},
    limits,
    removal::Removal,
};

impl Lifecycle {
    /// Decides which objects of one chunk are deleted.
    pub(super) async fn evaluate_chunk(
        &self,
        pass: &mut GcPass<'_>,
        mut group: Vec<(ChunkKey, ObjectMeta)>,
    ) -> Result<(), StoreError> {
        // A plain object next to the sealed one is the same object: the younger date is that of the form in use.
        group.sort_by_key(|(key, meta)| (key.object_digest, std::cmp::Reverse(meta.last_modified)));
        group.dedup_by(|(key, _), (before, _)| key == before);
        let several = group.len() > 1;
        let is_own = group.first().is_some_and(|(key, _)| pass.owns(key));
        // Writers of a key may have collided. Of their objects one that is left alone would be served, acknowledged or not: none
        // is evicted, and those that differ expire together.
        let may_go = !several || group.iter().all(|(key, _)| key.model_id != ModelId::OPAQUE);
        let (ttl, now) = (pass.policy.ttl, pass.now);
        let is_past_ttl = move |meta: &ObjectMeta| ttl.is_some_and(|ttl| now.age(meta) >= ttl);
        let past_ttl = group.iter().filter(|(_, meta)| is_past_ttl(meta)).count();
        let may_expire = may_go || [0, group.len()].contains(&past_ttl) || {
            let keys: Vec<ChunkKey> = group.iter().map(|(key, _)| key.clone()).collect();
            self.reads.are_alike(&keys).await?
        };
        let mut sound = Vec::new();
        for (key, meta) in group {
            pass.report.objects += 1;
            pass.report.bytes += meta.size;
            let is_old = may_expire && is_past_ttl(&meta);
            let is_expired = is_old && !self.may_pin(pass, &key).await?;
            pass.observe_for_capacity(&key, &meta, may_go);
            if !is_own {
                if is_expired {
                    pass.exclude_from_capacity(&key);
                }
                continue;
            }
            pass.report.pinned += u64::from(is_old && !is_expired);
            // The usual chunk (one object, young, without a longer sibling) costs no request.
            if !(is_expired || several) {
                let is_settled = pass.now.age(&meta) >= pass.policy.grace;
                if !is_settled || !self.may_be_contained(&key) || self.may_pin(pass, &key).await? {
                    continue;
                }
                self.mark_if_contained(pass, &key).await?;
                continue;
            }
            if is_expired {
                pass.expired.push(key);
                continue;
            }
            if self.reads.tombstones().has(&key).await? {
                continue;
            }
            match self.reads.row(&key).await {
                Ok(row) => sound.push((key, meta, row)),
                // Useless, but no reason to lose the other one as well.
                Err(ChunkError::Corrupt { .. } | ChunkError::Unknown { .. }) => {}
                Err(error) => {
                    pass.read_or_left::<()>(&key, Err(error));
                }
            }
        }
        if sound.len() > 1 && sound.iter().all(|(key, ..)| key.model_id == ModelId::OPAQUE) {
            let keys: Vec<ChunkKey> = sound.iter().map(|(key, ..)| key.clone()).collect();
            if !self.reads.are_alike(&keys).await? {
                return self.mark_contested(pass, &sound).await;
            }
        }
        // Objects of one `seq_hash` end with the same tokens. Only those that also begin alike are equivalent.
        sound.sort_by(|(_, _, a), (_, _, b)| {
            let prefers = if prefer(a, b) { Ordering::Less } else { Ordering::Greater };
            a.first_position.cmp(&b.first_position).then(prefers)
        });
        for alike in sound.chunk_by(|(_, _, a), (_, _, b)| a.first_position == b.first_position) {
            self.mark_duplicates(pass, alike).await?;
        }
        Ok(())
    }

    /// Like [`mark_expired`](Self::mark_expired), if many are waiting for it.
    pub(super) async fn mark_expired_due(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        if pass.expired.len() >= limits::GC_BATCH_OBJECTS { self.mark_expired(pass).await } else { Ok(()) }
    }

    /// Marks the expired objects that have no tombstone.
    pub(super) async fn mark_expired(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let expired = std::mem::take(&mut pass.expired);
        let (unmarked, asked) = concurrently(expired, |key| self.unless_marked(key)).await;
        for key in unmarked.into_iter().flatten() {
            pass.report.expired += 1;
            self.mark_deleted(pass, &key, Removal::Expired, None).await?;
        }
        asked
    }

    /// The object, unless it has a tombstone.
    async fn unless_marked(&self, key: ChunkKey) -> Result<Option<ChunkKey>, StoreError> {
        Ok((!self.reads.tombstones().has(&key).await?).then_some(key))
    }

    /// Marks all objects of a key whose writers collided if one of them ended before it gave way: which one
    /// was acknowledged is unknown, and the key is a miss until they are gone. While a context may pin them, all stay.
    async fn mark_contested(
        &self,
        pass: &mut GcPass<'_>,
        contested: &[(ChunkKey, ObjectMeta, Arc<IndexRow>)],
    ) -> Result<(), StoreError> {
        // The writer of an object younger than the grace may be about to give way.
        if contested.iter().any(|(_, meta, _)| pass.now.age(meta) < pass.policy.grace) {
            return Ok(());
        }
        if let Some((key, ..)) = contested.first()
            && self.may_pin(pass, key).await?
        {
            return Ok(());
        }
        for (key, ..) in contested {
            pass.report.duplicates += 1;
            // None stands in for another: one that is left alone would be served.
            self.mark_deleted(pass, key, Removal::Duplicate, None).await?;
        }
        Ok(())
    }

    /// Marks all except the first of several equivalent objects.
    async fn mark_duplicates(
        &self,
        pass: &mut GcPass<'_>,
        alike: &[(ChunkKey, ObjectMeta, Arc<IndexRow>)],
    ) -> Result<(), StoreError> {
        let Some(((survivor, meta, _), others)) = alike.split_first() else { return Ok(()) };
        // One that is younger than the grace may still go: the writer of an opaque object may be about to give way.
        if others.is_empty() || pass.now.age(meta) < pass.policy.grace {
            return Ok(());
        }
        // The object to keep is read whole before any other is deleted: a name does not prove its bytes.
        let is_sound = self.reads.is_what_it_is_called(survivor).await;
        if !pass.read_or_left(survivor, is_sound).unwrap_or(false) {
            return Ok(());
        }
        for (key, meta, _) in others {
            if pass.now.age(meta) >= pass.policy.grace {
                pass.report.duplicates += 1;
                self.mark_deleted(pass, key, Removal::Duplicate, Some(survivor)).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvasir_store::layout::Key;
    use object_store::{ObjectStoreExt, PutPayload};

    use super::{
        super::{Epoch, GcPolicy, StoreTime, testing::storage},
        *,
    };
    use crate::WorkShare;

    /// Nobody knows which of them was acknowledged, and one that is left alone would be served. Of chunks each expires by itself.
    #[tokio::test]
    async fn objects_of_a_key_that_differ_expire_together() {
        let (storage, share, hour) = (storage().await, WorkShare::WHOLE, Duration::from_secs(3600));
        let policy = GcPolicy { ttl: Some(hour), ..GcPolicy::default() };
        let begun = StoreTime(storage.store().now_ms().expect("was probed"));
        let path = storage.store().layout().path(&Key::GcVictims);
        storage.store().objects().put(&path, PutPayload::new()).await.expect("writes");
        let meta = storage.store().objects().head(&path).await.expect("was written");
        // Nothing can be read of them, so they do not have the same bytes.
        let object = |model_id: ModelId, n: u8, is_old: bool| {
            let (age, tenant) = (hour * if is_old { 2 } else { 0 }, "t".parse().expect("a name"));
            let (seq_hash, object_digest) = ([1; 32].into(), [n; 32].into());
            let meta = ObjectMeta { last_modified: meta.last_modified - age, ..meta.clone() };
            (ChunkKey { tenant, model_id, seq_hash, object_digest }, meta)
        };
        for (model_id, expired) in [(ModelId::OPAQUE, [0, 2, 0]), ([1; 32].into(), [1, 2, 0])] {
            let mut found = Vec::new();
            for [one, other] in [[true, false], [true, true], [false, false]] {
                let mut pass = GcPass::new(&policy, &share, Epoch { n: 0, begun, lists_all: false });
                let group = vec![object(model_id, 1, one), object(model_id, 2, other)];
                storage.lifecycle().evaluate_chunk(&mut pass, group).await.expect("decides");
                found.push(pass.expired.len());
            }
            assert_eq!(found, expired, "of {model_id:?}");
        }
    }
}
