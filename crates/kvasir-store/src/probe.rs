//! Probes a store's capabilities.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::{TryStreamExt, future::join_all};
use object_store::{Error, ObjectStoreExt, PutMode, PutPayload, Result, path::Path};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    error::StoreError,
    layout::{Key, LAYOUT_VERSION},
    limits,
    open_store::OpenStore,
};

/// Writers that race for one key in a probe.
const RACING: usize = 4;

/// A store's probed capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreAbilities {
    /// Conditional creates are honoured. Correctness does not need them.
    pub conditional_create: bool,
}

/// A bucket of an earlier layout, which this version does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the store has objects of an earlier layout under {prefix}/ and none of layout {LAYOUT_VERSION}; it is a cache and fills again: \
     give store.url another prefix, or delete the objects under {prefix}/"
)]
pub struct FormerLayout {
    /// Their prefix.
    pub prefix: Path,
}

impl OpenStore {
    /// Connects to the store and determines whether it honours conditional creates: of several creates of one
    /// key, sequential and concurrent, exactly one may succeed, and its bytes must stay. A store that rejects
    /// them with 501 does not honour them either.
    ///
    /// # Errors
    /// [`StoreError::Request`] if it cannot be reached, read and written.
    pub async fn probe(&self) -> Result<StoreAbilities, StoreError> {
        let failed = StoreError::request("probing the store");
        let path = || self.layout().path(&Key::Probe(Uuid::new_v4()));
        let (after, race) = (path(), path());
        let mut sequential = Vec::new();
        for n in 0..2 {
            sequential.push(self.create(&after, n).await.map_err(&failed)?);
        }
        let racing = join_all((0..RACING).map(|n| self.create(&race, n))).await;
        let racing: Vec<bool> = racing.into_iter().collect::<Result<_>>().map_err(&failed)?;
        let honoured = self.won(&after, &sequential).await.map_err(&failed)?
            & self.won(&race, &racing).await.map_err(&failed)?;
        // Without conditions, a race may look as if one writer had won.
        let refused = self.plain_creates.load(Ordering::Relaxed);
        Ok(StoreAbilities { conditional_create: honoured && !refused })
    }

    /// The reason for a service to refuse a store: it has objects of the previous layout and none of this
    /// one. The empty cache would look like lost data.
    ///
    /// # Errors
    /// [`StoreError::Request`], while it cannot be listed.
    pub async fn former_layout(&self) -> Result<Option<FormerLayout>, StoreError> {
        let failed = StoreError::request("looking for a former layout");
        let prefix = self.layout().former();
        let is_former = self.has_any(&prefix.clone().join("t")).await.map_err(&failed)?
            && !self.has_any(&self.layout().tenants_prefix()).await.map_err(&failed)?;
        Ok(is_former.then(|| FormerLayout { prefix: prefix.clone() }))
    }

    async fn has_any(&self, prefix: &Path) -> Result<bool> {
        Ok(self.objects().list(Some(prefix)).try_next().await?.is_some())
    }

    /// Whether the store accepted the n-th create.
    async fn create(&self, path: &Path, n: usize) -> Result<bool> {
        let payload = PutPayload::from(content(n));
        match self.objects().put_opts(path, payload, PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether exactly one create succeeded and its bytes are stored. Cleans up.
    async fn won(&self, path: &Path, created: &[bool]) -> Result<bool> {
        let found = self.objects().get(path).await?;
        let _ = self.probed_at.set((found.meta.last_modified.timestamp_millis(), Instant::now()));
        let left = found.bytes().await?;
        self.objects().delete(path).await?;
        let mut winners = created.iter().enumerate().filter(|(_, won)| **won).map(|(n, _)| n);
        let first = winners.next();
        Ok(first.is_some_and(|n| left == content(n)) && winners.next().is_none())
    }

    /// Determines whether the store verifies direct uploads against their checksum, if it supports them.
    ///
    /// # Errors
    /// If the store cannot be reached with signed URLs.
    pub async fn probe_direct(&self) -> Result<()> {
        let Some(presigner) = self.presigner() else { return Ok(()) };
        let path = self.layout().path(&Key::Probe(Uuid::new_v4()));
        let probing = presigner.probe(&**self.objects(), &path);
        let late = |_| Error::Generic { store: "presigned URL", source: "no answer".into() };
        tokio::time::timeout(limits::DIRECT_PROBE_TIME, probing).await.map_err(late)?.map(|_| ())
    }
}

fn content(n: usize) -> Bytes {
    format!("writer {n}").into()
}
