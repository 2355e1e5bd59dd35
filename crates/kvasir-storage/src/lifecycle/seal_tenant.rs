//! Moves a tenant whose data is stored unencrypted to its first key.
//!
//! Names of chunks follow from the salt, and anyone who could read the bucket has the old one. So the tenant
//! gets a new salt, and everything under the old one is removed: chunks, the contexts that name them, rotated
//! salts. It is a cache, and fills again. Models, profiles and namespaces are kept: they are never sealed.

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::Key,
    seal::{Keyring, derived_salt, is_box},
};
use kvasir_types::Name;
use object_store::{ObjectStoreExt, PutPayload, path::Path};

use super::{Lifecycle, ProgressAnswer};
use crate::catalog::salt_record;

/// Progress of moving a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealReport {
    /// Plain salts replaced by a sealed one: 1, or 0 if that was done before.
    pub salts: u64,
    /// Unencrypted versions of contexts, rotated salts, proposals and keys of listed objects that were
    /// removed.
    pub records: u64,
    /// Removed uploads waiting for their commit, and removed parts.
    pub uploads: u64,
    /// Removed plain chunk objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Lifecycle {
    /// Moves a tenant to its first key: a new, sealed salt; unencrypted contexts, rotated salts, uploads and
    /// chunk objects are removed, the objects last. If stopped anywhere, another call resumes; two concurrent
    /// calls do the same work. `progress` is called after each step, and may stop it.
    ///
    /// # Errors
    /// [`StoreError::KeyLost`] if the tenant has no key here, [`Request`](StoreError::Request),
    /// [`Damaged`](StoreError::Damaged) for a plain salt that cannot be read.
    pub async fn seal_tenant<N: ProgressAnswer>(
        &self,
        tenant: &Name,
        mut progress: impl FnMut(SealReport) -> N,
    ) -> Result<SealReport, StoreError> {
        let keyring = self.bucket.open().keyring();
        if !keyring.seals(tenant) {
            let reason =
                format!("tenant {tenant} has no key here: give it one in encryption.keys_file first");
            return Err(StoreError::KeyLost { reason });
        }
        let mut report = SealReport::default();
        if self.seal_salt(tenant).await? {
            report.salts += 1;
            if !progress(report).goes_on() {
                return Ok(report);
            }
        }
        let failed = StoreError::request("sealing a tenant");
        let listing = || keyring.store().list(Some(&self.bucket.layout().tenant(tenant)));
        let mut records = listing();
        while let Some(meta) = records.try_next().await.map_err(&failed)? {
            let place = &meta.location;
            match self.bucket.layout().parse(place) {
                Some(Key::Context { .. } | Key::SaltRotation { .. } | Key::SaltProposal { .. })
                    if !is_sealed(keyring, place).await.map_err(&failed)? =>
                {
                    report.records += 1;
                }
                Some(Key::Listed(_)) => report.records += 1,
                Some(Key::Upload(_) | Key::Part(_)) => report.uploads += 1,
                _ => continue,
            }
            remove(keyring, place).await.map_err(&failed)?;
            if !progress(report).goes_on() {
                return Ok(report);
            }
        }
        // Last: a remaining object shows that a run has not finished.
        let mut objects = listing();
        while let Some(meta) = objects.try_next().await.map_err(&failed)? {
            if let Some(Key::Chunk(_)) = self.bucket.layout().parse(&meta.location) {
                remove(keyring, &meta.location).await.map_err(&failed)?;
                report.objects += 1;
                report.bytes += meta.size;
                if !progress(report).goes_on() {
                    return Ok(report);
                }
            }
        }
        Ok(report)
    }

    /// Replaces a plain salt by a new one. It is derived from the plain one and the tenant's key: two runs
    /// write the same.
    async fn seal_salt(&self, tenant: &Name) -> Result<bool, StoreError> {
        let keyring = self.bucket.open().keyring();
        let failed = StoreError::request("sealing a salt");
        let place = self.bucket.path(&Key::Salt { tenant: tenant.clone() });
        let plain = match keyring.store().get(&place).await {
            Ok(found) => found.bytes().await.map_err(&failed)?,
            // Its first request creates a sealed one.
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        if is_box(&plain) {
            return Ok(false);
        }
        let (_, tenant_key) = keyring.newest(tenant).await.map_err(&failed)?;
        let record = salt_record(tenant, &derived_salt(&tenant_key, &plain));
        self.bucket.put(&place, PutPayload::from(record), "sealing a salt").await?;
        Ok(true)
    }
}

async fn is_sealed(keyring: &Keyring, place: &Path) -> object_store::Result<bool> {
    match keyring.store().get(place).await {
        Ok(found) => found.bytes().await.map(|bytes: Bytes| is_box(&bytes)),
        // Another run was faster.
        Err(object_store::Error::NotFound { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

async fn remove(keyring: &Keyring, place: &Path) -> object_store::Result<()> {
    match keyring.store().delete(place).await {
        Err(object_store::Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}
