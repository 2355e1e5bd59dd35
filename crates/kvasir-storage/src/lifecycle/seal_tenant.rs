//! Moving a tenant that was stored in the clear over to its first key.
//!
//! Names of chunks follow from the salt, and whoever could read the bucket has the old one. So the tenant gets a new salt, and
//! what the old one led to goes: chunks, the contexts that name them, rotated salts. It is a cache, and fills anew. Models,
//! profiles and namespaces stay as they are: they are never sealed.

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::Key,
    seal::{Keyring, derived_salt, is_box},
};
use kvasir_types::Name;
use object_store::{ObjectStoreExt, PutPayload, path::Path};

use super::Lifecycle;
use crate::catalog::salt_record;

/// What moving a tenant over has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealReport {
    /// Plain salts that were replaced by a sealed one: 1, or 0 where that was done before.
    pub salts: u64,
    /// Versions of contexts, rotated salts, proposals and keys of listed objects in the clear that were removed.
    pub records: u64,
    /// Uploads that waited for their commit, and parts, removed.
    pub uploads: u64,
    /// Plain chunk objects that were removed.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Lifecycle {
    /// Moves a tenant over to its first key: a new salt, sealed; contexts, rotated salts, uploads and chunk objects in the clear
    /// are removed, the objects last. Stopped anywhere, it goes on when it is called again; two at once do the same.
    /// `progress` is told after each step.
    ///
    /// # Errors
    /// [`StoreError::KeyLost`] where the tenant has no key here, [`Request`](StoreError::Request),
    /// [`Damaged`](StoreError::Damaged) for a plain salt that cannot be read.
    pub async fn seal_tenant(
        &self,
        tenant: &Name,
        mut progress: impl FnMut(SealReport),
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
            progress(report);
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
            progress(report);
        }
        // Last: as long as one is there, it is known that a run has not ended.
        let mut objects = listing();
        while let Some(meta) = objects.try_next().await.map_err(&failed)? {
            if let Some(Key::Chunk(_)) = self.bucket.layout().parse(&meta.location) {
                remove(keyring, &meta.location).await.map_err(&failed)?;
                report.objects += 1;
                report.bytes += meta.size;
                progress(report);
            }
        }
        Ok(report)
    }

    /// Puts a new salt in the place of a plain one. It is derived from that and the tenant's key: two runs write the same.
    async fn seal_salt(&self, tenant: &Name) -> Result<bool, StoreError> {
        let keyring = self.bucket.open().keyring();
        let failed = StoreError::request("sealing a salt");
        let place = self.bucket.path(&Key::Salt { tenant: tenant.clone() });
        let plain = match keyring.store().get(&place).await {
            Ok(found) => found.bytes().await.map_err(&failed)?,
            // Its first request makes one, sealed.
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
        // Another run was quicker.
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
