//! Rotated salts of a namespace. A tenant's first salt is that of [`salts`](crate::Catalog::root); each
//! rotation writes another salt for one namespace, once and under a unique name, so that two rotations cannot
//! overwrite each other.
//!
//! The times in their names order them, and survive a copy of the bucket: chains start at the newest one, and
//! each records how long the previous ones are still searched. Other replicas see a rotation when they read
//! the salts again, at most [`limits::SALT_ROTATIONS_FRESH`] and one lookup later. Chunks under an expired
//! salt are collected (`gc/expired_salts.rs`), and then the salt itself.

use std::{sync::Arc, time::Duration};

use futures::TryStreamExt;
use kvasir_api::NamespaceRotation;
use kvasir_store::{StoreError, layout::Key, synced};
use kvasir_types::{ModelId, Name, RootHash};
use object_store::{PutPayload, path::Path};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Catalog, Salt};
use crate::{error::CatalogError, limits};

/// Salt, seconds for which previous ones are kept, and a hash of both and of their owner.
const RECORD_BYTES: usize = limits::SALT_BYTES + 8 + 32;

/// One rotated salt.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SaltRotation {
    pub(crate) id: Uuid,
    pub(crate) salt: Salt,
    /// Time of writing, in milliseconds of the store's clock; see [`id_after`].
    written_ms: i64,
    /// How long the previous salts are still searched.
    retention: Duration,
}

impl std::fmt::Debug for SaltRotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaltRotation").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SaltRotation {
    /// When the previous salts expire, in milliseconds of the store's clock.
    fn ends_before_ms(&self) -> i64 {
        self.written_ms.saturating_add(i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX))
    }
}

/// The rotated salts of a namespace, newest first, as last read.
#[derive(Debug, Clone, Default)]
pub(crate) struct SaltRotations {
    all: Arc<[SaltRotation]>,
    /// The store's time in milliseconds when they were read.
    now_ms: i64,
}

/// Rotations, and when they were read.
#[derive(Debug, Clone)]
pub(super) struct CachedRotations {
    since: Instant,
    rotations: SaltRotations,
}

impl CachedRotations {
    fn now(rotations: SaltRotations) -> Self {
        Self { since: Instant::now(), rotations }
    }
}

impl SaltRotations {
    fn new(mut all: Vec<SaltRotation>, now_ms: i64) -> Self {
        all.sort_by_key(|rotation| std::cmp::Reverse((rotation.written_ms, rotation.id)));
        Self { all: all.into(), now_ms }
    }

    /// The same rotations as of another time.
    pub(crate) fn at(&self, now_ms: i64) -> Self {
        Self { all: Arc::clone(&self.all), now_ms }
    }

    /// Whether the salt at `place`, counted from the newest, has expired: a rotation limits all previous
    /// ones. The place after the last is the first salt's.
    fn is_expired(&self, place: usize) -> bool {
        let later = self.all.iter().take(place);
        let by_age = later.into_iter().any(|later| later.ends_before_ms() <= self.now_ms);
        by_age || place >= limits::SALT_ROTATIONS_LIVE_MAX
    }

    /// Salts under which lookups find chunks, newest first, without the tenant's first one.
    pub(crate) fn live(&self) -> Vec<Salt> {
        let live = self.all.iter().enumerate().filter(|(place, _)| !self.is_expired(*place));
        live.map(|(_, rotation)| rotation.salt).collect()
    }

    /// Whether the tenant's first salt is live.
    pub(crate) fn has_first(&self) -> bool {
        !self.is_expired(self.all.len())
    }

    /// Rotated salts that have expired.
    pub(crate) fn expired(&self) -> impl Iterator<Item = &SaltRotation> {
        self.all.iter().enumerate().filter(|(place, _)| self.is_expired(*place)).map(|(_, rotation)| rotation)
    }
}

impl Catalog {
    /// Gives a namespace a new salt; returns its new root under a model. Chunks stored before are found for
    /// another `retention`.
    ///
    /// # Errors
    /// As [`root`](Self::root).
    pub async fn rotate_namespace(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        model_id: &ModelId,
        retention: Duration,
    ) -> Result<RootHash, CatalogError> {
        // Nothing is written for an unknown model.
        self.root(tenant, namespace, model_id).await?;
        let retention = retention.min(Duration::from_secs(NamespaceRotation::KEEP_S_MAX));
        let before = self.load_salt_rotations(tenant, namespace).await?;
        let (id, salt): (Uuid, Salt) = (id_after(&before), rand::random());
        let path =
            self.bucket.path(&Key::SaltRotation { tenant: tenant.clone(), namespace: namespace.clone(), id });
        let record = PutPayload::from(record(tenant, namespace, &id, &salt, retention));
        self.bucket.put(&path, record, "storing a salt").await?;
        self.bucket.reached(crate::transitions::Transition::SaltWritten);
        self.salt_rotations.remove(&self.rotations_key(tenant, namespace));
        self.root(tenant, namespace, model_id).await
    }

    /// The rotated salts of a namespace, as of recently.
    pub(super) async fn salt_rotations(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
    ) -> Result<SaltRotations, StoreError> {
        let key = self.rotations_key(tenant, namespace);
        let Some(CachedRotations { since, rotations: known }) = self.salt_rotations.get(&key) else {
            return self.load_salt_rotations(tenant, namespace).await;
        };
        let age = since.elapsed();
        if age >= limits::SALT_ROTATIONS_STALE_MAX {
            // An outage of the store does not change salts.
            return Ok(self.load_salt_rotations(tenant, namespace).await.unwrap_or(known));
        }
        if age >= self.salt_rotations_fresh {
            // No request waits for it, and concurrent requests do not read as well.
            self.salt_rotations.insert(key, CachedRotations::now(known.clone()));
            let (catalog, tenant, namespace) = (Arc::clone(self), tenant.clone(), namespace.clone());
            tokio::spawn(async move {
                if let Err(error) = catalog.load_salt_rotations(&tenant, &namespace).await {
                    tracing::debug!(%error, "salts of a namespace could not be read");
                }
            });
        }
        Ok(known)
    }

    /// Reads them from the store; known records are immutable and not read again.
    pub(crate) async fn load_salt_rotations(
        &self,
        tenant: &Name,
        namespace: &Name,
    ) -> Result<SaltRotations, StoreError> {
        let key = self.rotations_key(tenant, namespace);
        let known = self.salt_rotations.get(&key).map(|cached| cached.rotations.all).unwrap_or_default();
        let prefix = self.bucket.layout().salt_rotations_prefix(tenant, namespace);
        let listed = self.bucket.list(&prefix, "listing the salts of a namespace");
        let listed: Vec<_> = listed.try_collect().await?;
        let mut all = Vec::new();
        for (listed, meta) in listed {
            let Key::SaltRotation { id, .. } = listed else { continue };
            let found = known.iter().find(|rotation| rotation.id == id).cloned();
            match found {
                Some(rotation) => all.push(rotation),
                None => all.extend(self.read_salt_rotation(tenant, namespace, id, &meta.location).await?),
            }
        }
        let found = SaltRotations::new(all, self.now_ms());
        self.salt_rotations.insert(key, CachedRotations::now(found.clone()));
        Ok(found)
    }

    /// The store's time; before the first one is known, nothing has expired.
    fn now_ms(&self) -> i64 {
        self.bucket.now_ms().unwrap_or(0)
    }

    /// Salts read unsealed are not reused once the tenant has a key.
    fn rotations_key(&self, tenant: &Name, namespace: &Name) -> (Name, Name, bool) {
        (tenant.clone(), namespace.clone(), self.bucket.seals(tenant))
    }

    async fn read_salt_rotation(
        &self,
        tenant: &Name,
        namespace: &Name,
        id: Uuid,
        path: &Path,
    ) -> Result<Option<SaltRotation>, StoreError> {
        // One bad read may be a transfer error; two mean that the store's copy is bad.
        for _ in 0..limits::SALT_READS {
            let read = self.bucket.get_with(path, synced(), "reading a salt").await?;
            let Some(bytes) = read else { return Ok(None) };
            if let Some((salt, retention)) = parse(tenant, namespace, &id, &bytes) {
                let written_ms = written_ms(id);
                return Ok(Some(SaltRotation { id, salt, written_ms, retention }));
            }
        }
        let reason = "its bytes do not match their checksum".to_owned();
        Err(StoreError::Damaged { what: "a namespace's salt", reason })
    }
}

/// A name for a rotation after those `before`: a version 7 UUID of the store's time, or just after theirs if
/// the store's clock was set back.
fn id_after(before: &SaltRotations) -> Uuid {
    let newest = before.all.first().map_or(i64::MIN, |rotation| rotation.written_ms);
    let ms = before.now_ms.max(newest.saturating_add(1));
    uuid::Builder::from_unix_timestamp_millis(u64::try_from(ms).unwrap_or(0), &rand::random()).into_uuid()
}

/// The time in a name from [`id_after`]; a name of another form counts as older than all.
fn written_ms(id: Uuid) -> i64 {
    let (seconds, nanos) = id.get_timestamp().map_or((0, 0), |time| time.to_unix());
    i64::try_from(seconds.saturating_mul(1000))
        .unwrap_or(i64::MAX)
        .saturating_add(i64::from(nanos / 1_000_000))
}

fn record(tenant: &Name, namespace: &Name, id: &Uuid, salt: &Salt, retention: Duration) -> Vec<u8> {
    let retention = retention.as_secs().to_le_bytes();
    let mut hash = blake3::Hasher::new_derive_key("kvasir/1 generation record");
    for field in [tenant.as_str().as_bytes(), namespace.as_str().as_bytes(), id.as_bytes(), salt, &retention]
    {
        hash.update(&(field.len() as u64).to_le_bytes()).update(field);
    }
    [&salt[..], &retention, hash.finalize().as_bytes()].concat()
}

fn parse(tenant: &Name, namespace: &Name, id: &Uuid, bytes: &[u8]) -> Option<(Salt, Duration)> {
    let (salt, rest) = bytes.split_first_chunk::<{ limits::SALT_BYTES }>()?;
    let (retention, _) = rest.split_first_chunk::<8>()?;
    let retention = Duration::from_secs(u64::from_le_bytes(*retention));
    let is_sound = bytes.len() == RECORD_BYTES && record(tenant, namespace, id, salt, retention) == bytes;
    is_sound.then_some((*salt, retention))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation(n: u8, written_ms: i64, keep_s: u64) -> SaltRotation {
        let id = Uuid::from_u128(n.into());
        SaltRotation { id, salt: [n; 32], written_ms, retention: Duration::from_secs(keep_s) }
    }

    #[test]
    fn each_says_how_long_the_one_before_is_kept() {
        let at = |now_ms| SaltRotations::new(vec![rotation(1, 0, 10), rotation(2, 4_000, 20)], now_ms);
        let salts = |now_ms| at(now_ms).live().iter().map(|salt| salt[0]).collect::<Vec<_>>();
        assert_eq!((salts(5_000), at(5_000).has_first()), (vec![2, 1], true));
        assert_eq!((salts(10_000), at(10_000).has_first()), (vec![2, 1], false));
        assert_eq!((salts(24_000), at(24_000).has_first()), (vec![2], false));
        assert_eq!(at(24_000).expired().map(|g| g.id.as_u128()).collect::<Vec<_>>(), [1]);
        // A later one that keeps nothing ends all previous ones, whatever their retention.
        let all = vec![rotation(1, 0, 1_000), rotation(2, 4_000, 1_000), rotation(3, 5_000, 0)];
        let ended = SaltRotations::new(all, 5_000);
        assert_eq!((ended.live(), ended.has_first(), ended.expired().count()), (vec![[3; 32]], false, 2));
        let none = SaltRotations::default();
        assert!(none.live().is_empty() && none.has_first());
    }

    #[test]
    fn a_later_one_has_a_later_name_whatever_the_clock_says() {
        let mut all = Vec::new();
        for now_ms in [1_764_000_000_000, 1_764_000_000_000, 1_000, 1_764_000_500_000, -5] {
            let id = id_after(&SaltRotations::new(all.clone(), now_ms));
            all.insert(0, SaltRotation { written_ms: written_ms(id), ..rotation(1, 0, 9) });
            assert!(written_ms(id) >= now_ms);
        }
        assert!(all.is_sorted_by(|later, before| later.written_ms > before.written_ms));
        assert_eq!(written_ms(Uuid::from_u128(7)), 0);
    }

    #[test]
    fn the_number_of_live_ones_is_bounded() {
        let many = (0..20).map(|n| rotation(n, i64::from(n), 1_000_000)).collect();
        let many = SaltRotations::new(many, 100);
        assert_eq!(many.live().len(), limits::SALT_ROTATIONS_LIVE_MAX);
        assert!(!many.has_first());
        assert_eq!(many.expired().count(), 20 - limits::SALT_ROTATIONS_LIVE_MAX);
    }

    #[test]
    fn a_record_is_of_one_namespace_and_whole() {
        let (a, b): (Name, Name) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let (id, retention) = (Uuid::from_u128(7), Duration::from_secs(60));
        let bytes = record(&a, &b, &id, &[9; 32], retention);
        assert_eq!(bytes.len(), RECORD_BYTES);
        assert_eq!(parse(&a, &b, &id, &bytes), Some(([9; 32], retention)));
        assert_eq!(parse(&b, &a, &id, &bytes), None);
        assert_eq!(parse(&a, &b, &Uuid::nil(), &bytes), None);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(parse(&a, &b, &id, &flipped), None);
        }
        assert_eq!(parse(&a, &b, &id, &bytes[..71]), None);
    }
}
